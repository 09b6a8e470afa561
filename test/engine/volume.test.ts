/** Usage at volume (G58): what waits is in the journal, the limit is kept, and who waits for an answer goes first. */
import { BackpressureError, forgetfulJournal } from 'billonce'
import type { BillingClient } from 'billonce'
import { loseRequest, status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { journalWith } from './tampering.ts'

virtualTime()

const exports = { meter: 'exports', quantity: 1 } as const

async function queue(billing: BillingClient, from: number, to: number): Promise<PromiseSettledResult<unknown>[]> {
  const numbers = Array.from({ length: to - from + 1 }, (_, index) => from + index)
  return await settled(
    Promise.allSettled(
      numbers.map(async (number) => billing.recordUsage(exports, { operationId: `job-${number}`, background: true })),
    ),
  )
}

const refusals = (results: readonly PromiseSettledResult<unknown>[]): unknown[] =>
  results.filter((result) => result.status === 'rejected').map(({ reason }) => reason as unknown)

describe('a receiver that accepts and never answers', () => {
  test.each(['with', 'without'])(
    '%s start(): few requests are open, and all is delivered once it answers',
    async (how) => {
      let isSilent = true
      let open = 0
      let mostOpen = 0
      const world = setUp()
      const billing = world.another({
        concurrency: 4,
        retry: { attemptTimeoutMs: 20_000 },
        fetch: async (input, init) =>
          isSilent ? await new Promise<never>(() => {}) : await world.receiver.fetch(input, init),
      })
      billing.subscribe(({ type }) => {
        if (type === 'attempt-began') open += 1
        if (type === 'attempt-ended') open -= 1
        mostOpen = Math.max(mostOpen, open)
      })
      const stop = how === 'with' ? billing.start() : () => {}
      expect(refusals(await queue(billing, 1, 300))).toEqual([])
      await pass(300_000)
      expect(mostOpen).toBeLessThanOrEqual(4)
      isSilent = false
      await pass(900_000)
      expect(world.receiver.ledger.effects).toHaveLength(300)
      expect(mostOpen).toBeLessThanOrEqual(4)
      stop()
    },
  )
})

test('a burst in the background is worked off side by side, without start() too, and then nothing is looked at any more', async () => {
  let lists = 0
  const journal = journalWith(forgetfulJournal(), (call, run) => {
    if (call.method === 'listDeliverable') lists += 1
    return run()
  })
  const { billing, receiver } = setUp({ journal, receiver: { latencyMs: 100 } })
  await queue(billing, 1, 200)
  // Eight at a time is 2.5 s; the first are fewer.
  await pass(5000)
  expect(receiver.ledger.effects).toHaveLength(200)
  await pass(60_000)
  const listed = lists
  await pass(600_000)
  expect(lists).toBe(listed)
})

test('without start() nothing is sent that was there before', async () => {
  const { another, receiver, billing } = setUp({ receiver: { faults: [loseRequest({ attempt: 1 })] } })
  const before = another({ retry: { maxAttempts: 1 } })
  await settled(before.recordUsage(exports, { operationId: 'earlier' }))
  await pass(10)
  receiver.faults.clear()
  await queue(billing, 1, 50)
  await pass(600_000)
  expect(receiver.ledger.effects).toHaveLength(50)
  expect(await viewsOf(billing, { operationId: 'earlier' })).toMatchObject([{ state: 'sending' }])
})

describe('maxBacklog', () => {
  test('refuses the next call in the background with nothing written, until something is delivered', async () => {
    const { billing, receiver } = setUp({ client: { maxBacklog: 20 }, receiver: { faults: [status(503)] } })
    const stop = billing.start()
    const refused = refusals(await queue(billing, 1, 50))
    expect(refused).toHaveLength(30)
    for (const error of refused) {
      expect(error).toBeInstanceOf(BackpressureError)
      expect(error).toMatchObject({ code: 'ERR_BACKPRESSURE', limit: 20, sentByThisCall: false })
    }
    expect(await viewsOf(billing)).toHaveLength(20)
    receiver.faults.clear()
    await pass(300_000)
    expect(receiver.ledger.effects).toHaveLength(20)
    // Called again under the same names.
    expect(refusals(await queue(billing, 31, 50))).toEqual([])
    await pass(300_000)
    expect(receiver.ledger.effects).toHaveLength(40)
    stop()
  })

  test('answers what is there already, and refuses no call that waits for its answer', async () => {
    const { billing, receiver } = setUp({
      client: { maxBacklog: 1 },
      receiver: { faults: [status(503, { times: 5 })] },
    })
    await queue(billing, 1, 1)
    expect(refusals(await queue(billing, 2, 2))).toHaveLength(1)
    expect(await queue(billing, 1, 1)).toMatchObject([{ status: 'fulfilled', value: { status: 'queued' } }])
    expect(await settled(billing.charge(coffee, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
    await pass(300_000)
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('counts what other clients left in the journal, and not what is of another scope', async () => {
    const { billing, another } = setUp({ client: { maxBacklog: 10 }, receiver: { faults: [status(503)] } })
    await queue(another({ scope: 'org_7/test' }), 1, 10)
    await queue(another(), 11, 18)
    expect(refusals(await queue(billing, 21, 30))).toHaveLength(8)
  })

  test('costs no count for each call', async () => {
    let counts = 0
    const journal = journalWith(forgetfulJournal(), (call, run) => {
      if (call.method === 'countOpen') counts += 1
      return run()
    })
    const { billing } = setUp({ journal, client: { maxBacklog: 500 }, receiver: { faults: [status(503)] } })
    await queue(billing, 1, 1)
    await pass(100)
    const before = counts
    for (let number = 2; number <= 1000; number += 10) await queue(billing, number, number + 9)
    expect(counts - before).toBeLessThan(20)
    expect((await viewsOf(billing)).length).toBe(500)
  })
})

test('a call that waits for its answer is not held up by a full background', async () => {
  const world = setUp()
  const billing = world.another({
    fetch: async (input, init) => {
      const request = new Request(input, init)
      if (request.url.endsWith('usage')) return await new Promise<never>(() => {})
      return await world.receiver.fetch(request)
    },
  })
  const stop = billing.start()
  await queue(billing, 1, 100)
  await pass(1000)
  const began = performance.now()
  expect(await settled(billing.charge(coffee, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
  expect(performance.now() - began).toBeLessThan(1000)
  stop()
})

describe('close()', () => {
  const slow = async (): Promise<ReturnType<typeof setUp>> => {
    const world = setUp({ receiver: { latencyMs: 10_000 } })
    await queue(world.billing, 1, 30)
    await quiet()
    return world
  }

  test('waits for what is in flight and begins nothing more', async () => {
    const { billing, receiver } = await slow()
    const began = performance.now()
    await settled(billing.close())
    expect(performance.now() - began).toBeLessThanOrEqual(10_000)
    const { effects } = receiver.ledger
    expect(effects.length).toBeGreaterThan(0)
    expect(effects.length).toBeLessThanOrEqual(8)
    await pass(600_000)
    expect(receiver.ledger.requests).toHaveLength(effects.length)
  })

  test('waits no longer than withinMs; the next start delivers the rest, each once', async () => {
    const { billing, another, receiver } = await slow()
    const began = performance.now()
    await settled(billing.close({ withinMs: 2000 }))
    expect(performance.now() - began).toBe(2000)
    expect(receiver.ledger.effects.length).toBeLessThanOrEqual(8)
    await expect(billing.recordUsage(exports, { operationId: 'late' })).rejects.toMatchObject({
      code: 'ERR_CLIENT_CLOSED',
    })
    const stop = another().start()
    await pass(900_000)
    expect(receiver.ledger.effects).toHaveLength(30)
    stop()
  })

  test('refuses what is no number of milliseconds', async () => {
    const { billing } = setUp()
    await expect(billing.close({ withinMs: -1 })).rejects.toMatchObject({ field: 'withinMs' })
    await expect(billing.close({ within: 1 } as never)).rejects.toMatchObject({ field: 'within' })
  })
})
