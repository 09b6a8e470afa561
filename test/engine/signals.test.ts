/** Aborting stops the waiting, not the operation: before, during and between attempts, and beside other callers. */
import { defineWrite, DeliveryAbortedError, forgetfulJournal } from 'billonce'
import { delay, loseReply, status } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { coffee, pass, quiet, setUp, settled, virtualTime } from '../support/world.ts'
import { expectOneName, slowJournal } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }
const thrown = (error: unknown): unknown => error

test('G26: an abort between two attempts ends the call at once and leaves no timer and no later request', async () => {
  vi.spyOn(Math, 'random').mockReturnValue(0.999)
  const { billing, receiver } = setUp({
    client: { retry: { baseDelayMs: 3000 } },
    receiver: { faults: [status(503, { attempt: 1 })] },
  })
  const controller = new AbortController()
  const reason = new Error('the user went away')
  const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  await pass(100)
  expect(receiver.ledger.requests).toHaveLength(1)
  const at = performance.now()
  controller.abort(reason)
  await quiet()
  const error = await asked
  expect(performance.now()).toBe(at)
  expect(error).toBeInstanceOf(DeliveryAbortedError)
  expect(error).toMatchObject({
    name: 'AbortError',
    code: 'ERR_DELIVERY_ABORTED',
    cause: reason,
    sentByThisCall: true,
    entry: { state: 'sending' },
  })
  expect(String(error)).toMatch(/not canceled/)
  expect(vi.getTimerCount()).toBe(0)
  await pass(600_000)
  expect(receiver.ledger.requests).toHaveLength(1)
  vi.restoreAllMocks()
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expectOneName(receiver)
})

test('G36: an abort in the middle of an attempt is not tried again, and what came of the attempt is recorded', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [delay(5000, { attempt: 1 })] } })
  const controller = new AbortController()
  const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  await pass(1000)
  controller.abort()
  await quiet()
  expect(await asked).toMatchObject({ name: 'AbortError', sentByThisCall: true, entry: { state: 'sending' } })
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'unknown', delivery: 'continues' })
  await pass(600_000)
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded', attempts: 1 })
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('G36: if the reply of the aborted attempt is lost, the entry stays open and a resume gets the result', async () => {
  const { billing, another, receiver } = setUp({
    receiver: { faults: [delay(5000, { attempt: 1 }), loseReply({ attempt: 1 })] },
  })
  const controller = new AbortController()
  const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  await pass(1000)
  controller.abort()
  await pass(600_000)
  expect(await asked).toMatchObject({ code: 'ERR_DELIVERY_ABORTED' })
  expect(receiver.ledger.requests).toHaveLength(1)
  expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G36: a signal that has fired before the call: nothing is written and nothing is sent', async () => {
  const { billing, receiver, journal } = setUp()
  const reason = 'too late'
  const error = await billing.charge(coffee, { ...order, signal: AbortSignal.abort(reason) }).catch(thrown)
  expect(error).toMatchObject({ code: 'ERR_DELIVERY_ABORTED', sentByThisCall: false, entry: undefined, cause: reason })
  await pass(60_000)
  expect((await journal.list({}, 10)).entries).toHaveLength(0)
  expect(receiver.ledger.requests).toHaveLength(0)
})

test('an abort while the entry is being written ends the call, and nothing leaves', async () => {
  const { billing, receiver } = setUp({ journal: slowJournal(forgetfulJournal(), 50) })
  const controller = new AbortController()
  const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  await pass(20)
  controller.abort()
  const error = await settled(asked)
  expect(error).toMatchObject({ code: 'ERR_DELIVERY_ABORTED' })
  await pass(600_000)
  expect(receiver.ledger.requests).toHaveLength(0)
  // What was begun and never left is certainly not done.
  expect(await settled(billing.find({ kind: 'charge', ...order }))).toMatchObject({ status: 'deferred' })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
})

test('an abort while credentials are asked for ends the call at once', async () => {
  const { billing, receiver } = setUp({ client: { credentials: () => new Promise(() => {}), headers: undefined } })
  const controller = new AbortController()
  const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  await pass(1000)
  const at = performance.now()
  controller.abort()
  await quiet()
  expect(await asked).toMatchObject({
    code: 'ERR_DELIVERY_ABORTED',
    sentByThisCall: false,
    entry: { state: 'pending' },
  })
  expect(performance.now()).toBe(at)
  await pass(60_000)
  expect(receiver.ledger.requests).toHaveLength(0)
})

test('aborting one caller does not touch another', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(503, { attempt: [1, 2] })] } })
  const controller = new AbortController()
  const one = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
  const other = billing.charge(coffee, order)
  await pass(0)
  controller.abort()
  await quiet()
  expect(await one).toMatchObject({ code: 'ERR_DELIVERY_ABORTED' })
  expect(await settled(other)).toMatchObject({ status: 'succeeded', attempts: 3 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test.each([0, 1, 5, 30])(
  'G61: call, abort and call again within one tick is one effect, and the second caller gets it (a journal of %i ms)',
  async (ms) => {
    const { billing, receiver } = setUp(ms === 0 ? {} : { journal: slowJournal(forgetfulJournal(), ms) })
    const controller = new AbortController()
    const first = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
    controller.abort()
    const second = billing.charge(coffee, order)
    expect(await settled(second)).toMatchObject({ status: 'succeeded' })
    expect(await settled(first)).toMatchObject({ code: 'ERR_DELIVERY_ABORTED' })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  },
)

test('G61: whenever the second call comes after the abort of the first, it gets the one effect', async () => {
  for (let abortAtMs = 0; abortAtMs <= 30; abortAtMs += 1) {
    for (const waitMs of [0, 1, 3, 7]) {
      const { billing, receiver } = setUp({ journal: slowJournal(forgetfulJournal(), 3) })
      const controller = new AbortController()
      const first = billing.charge(coffee, { ...order, signal: controller.signal }).catch(thrown)
      await vi.advanceTimersByTimeAsync(abortAtMs)
      controller.abort()
      await vi.advanceTimersByTimeAsync(waitMs)
      const second = await settled(billing.charge(coffee, order))
      expect(second, `abort at ${abortAtMs}, again ${waitMs} later`).toMatchObject({ status: 'succeeded' })
      await settled(first)
      expect(receiver.ledger.effects).toHaveLength(1)
      expectOneName(receiver)
    }
  }
})

test('G34: one signal over 500 operations with two retries each keeps no listener and warns of nothing', async () => {
  const warnings: Error[] = []
  const onWarning = (warning: Error): void => void warnings.push(warning)
  process.on('warning', onWarning)
  const { billing, receiver } = setUp({ receiver: { faults: [status(503, { attempt: [1, 2] })] } })
  const { signal } = new AbortController()
  const added = vi.spyOn(signal, 'addEventListener')
  const removed = vi.spyOn(signal, 'removeEventListener')
  const calls = Array.from({ length: 500 }, (_, number) =>
    billing.charge(coffee, { operationId: `order-${number}`, signal }),
  )
  const outcomes = await settled(Promise.all(calls))
  expect(outcomes.every((outcome) => outcome.status === 'succeeded' && outcome.attempts === 3)).toBe(true)
  await quiet()
  expect(added.mock.calls.length).toBeGreaterThan(0)
  const balance = new Map<unknown, number>()
  for (const [, listener] of added.mock.calls) balance.set(listener, (balance.get(listener) ?? 0) + 1)
  for (const [, listener] of removed.mock.calls) balance.set(listener, (balance.get(listener) ?? 0) - 1)
  expect([...balance.values()].every((left) => left === 0)).toBe(true)
  expect(warnings).toEqual([])
  expect(vi.getTimerCount()).toBe(0)
  expect(receiver.ledger.effects).toHaveLength(500)
  expect(receiver.ledger.summary().keysWithOtherBytes).toBe(0)
  process.off('warning', onWarning)
}, 60_000)

test('a signal that is none is refused', async () => {
  const { billing } = setUp()
  for (const signal of [{}, 'abort', null, { aborted: false }]) {
    await expect(billing.charge(coffee, { ...order, signal: signal as AbortSignal })).rejects.toMatchObject({
      field: 'signal',
    })
  }
})

test('a background call takes a signal only as far as the entry: once queued it is delivered', async () => {
  const { billing, receiver } = setUp()
  const controller = new AbortController()
  const queued = await settled(billing.charge(coffee, { ...order, background: true, signal: controller.signal }))
  controller.abort()
  expect(queued.status).toBe('queued')
  await pass(1000)
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a definition that throws in readParams throws as it is, and nothing is written', async () => {
  const { billing, journal } = setUp()
  const bad = defineWrite({
    kind: 'bad',
    path: 'v1/bad',
    method: 'POST',
    readParams: (): object => {
      throw new RangeError('mine')
    },
    readReceipt: () => undefined,
  })
  await expect(billing.write(bad, {}, order)).rejects.toThrow('mine')
  expect((await journal.list({}, 10)).entries).toHaveLength(0)
})
