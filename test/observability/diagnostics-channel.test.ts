/** The channels of `billonce/diagnostics-channel`. */
import { execFile } from 'node:child_process'
import diagnosticsChannel from 'node:diagnostics_channel'
import { promisify } from 'node:util'
import { BillingError } from 'billonce'
import type { BillingEvent } from 'billonce'
import { publish } from 'billonce/diagnostics-channel'
import type { BillingChannel, BillingMessage } from 'billonce/diagnostics-channel'
import { loseReply } from 'billonce/testing'
import { afterEach, expect, expectTypeOf, test, vi } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { coffee, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const stops: (() => void)[] = []
afterEach(() => {
  for (const stop of stops.splice(0)) stop()
})

function listen(channel: BillingChannel): BillingEvent[] {
  const heard: BillingEvent[] = []
  const listener = (message: unknown): void => void heard.push(message as BillingEvent)
  diagnosticsChannel.subscribe(channel, listener)
  stops.push(() => diagnosticsChannel.unsubscribe(channel, listener))
  return heard
}

test('each event is on the channel of all and on that of its type', async () => {
  const { billing, events } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  publish(billing)
  const all = listen('billonce:event')
  const ended = listen('billonce:attempt-ended')
  await settled(billing.charge(coffee, order))
  expect(all).toEqual(events)
  expect(ended).toEqual(events.filter(({ type }) => type === 'attempt-ended'))
  expect(ended).toHaveLength(2)
})

test('whoever subscribes later, or leaves, is heard from then on', async () => {
  const { billing } = setUp()
  publish(billing)
  await settled(billing.charge(coffee, order))
  const late = listen('billonce:state')
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  expect(late).toHaveLength(2)
  for (const stop of stops.splice(0)) stop()
  await settled(billing.charge(coffee, { operationId: 'order-3' }))
  expect(late).toHaveLength(2)
})

test('nothing is published without subscribers, nor after the end', async () => {
  const { billing } = setUp()
  const stop = publish(billing)
  const published = vi.spyOn(diagnosticsChannel.Channel.prototype, 'publish')
  await settled(billing.charge(coffee, order))
  expect(published).not.toHaveBeenCalled()
  const heard = listen('billonce:event')
  stop()
  stop()
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  expect(heard).toEqual([])
  published.mockRestore()
})

test('where there is no diagnostics_channel the call says so, and loading did not', async () => {
  const { billing, events } = setUp()
  for (const runtime of [undefined, {}, { getBuiltinModule: () => undefined }]) {
    vi.stubGlobal('process', runtime)
    let thrown: unknown
    try {
      publish(billing)
    } catch (error) {
      thrown = error
    } finally {
      vi.unstubAllGlobals()
    }
    expect(thrown).toBeInstanceOf(BillingError)
    expect(thrown).toMatchObject({ code: 'ERR_NO_DIAGNOSTICS_CHANNEL', sentByThisCall: false })
  }
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(events.length).toBeGreaterThan(0)
})

// In a process of its own, because Node raises what a subscriber throws as an uncaught exception.
test('a subscriber that throws does not reach the payment', async () => {
  const program = `
    import { subscribe } from 'node:diagnostics_channel'
    import { createBillingClient, forgetfulJournal } from 'billonce'
    import { publish } from 'billonce/diagnostics-channel'
    import { createReceiver } from 'billonce/testing'
    let uncaught = 0
    process.on('uncaughtException', () => { uncaught += 1 })
    subscribe('billonce:event', () => { throw new Error('observer') })
    const receiver = createReceiver()
    const billing = createBillingClient({
      baseUrl: 'https://billing.test', scope: 'test', journal: forgetfulJournal(), fetch: receiver.fetch, headers: {},
    })
    publish(billing)
    const { status } = await billing.charge({ amount: 1, currency: 'eur' }, { operationId: 'order-1' })
    await new Promise((resolve) => setImmediate(resolve))
    console.log(JSON.stringify({ status, effects: receiver.ledger.effects.length, uncaught: uncaught > 0 }))
  `
  const args = ['--conditions=source', '--input-type=module', '--eval', program]
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: repositoryRoot })
  expect(JSON.parse(stdout)).toEqual({ status: 'succeeded', effects: 1, uncaught: true })
})

test('a message has the type of its channel', () => {
  expectTypeOf<BillingMessage>().toEqualTypeOf<BillingEvent>()
  expectTypeOf<BillingMessage<'billonce:conflict'>>().toEqualTypeOf<Extract<BillingEvent, { type: 'conflict' }>>()
  expectTypeOf<'billonce:delivery-ended'>().toExtend<BillingChannel>()
  expectTypeOf<'billonce:charged'>().not.toExtend<BillingChannel>()
})
