/**
 * A process that dies at each step, and a journal that fails at each call: afterwards a new client on the same journal
 * finds one effect, under one key, and nobody was told more than was known.
 */
import { forgetfulJournal, JournalUnavailableError } from 'billonce'
import type { BillingClient, JournalStore, Outcome, Queued } from 'billonce'
import { createReceiver, loseReply, status } from 'billonce/testing'
import type { Fault, Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { aProcess, broken, CLAIM_MS, expectOneName, journalWith } from './tampering.ts'
import type { Death, StoreCall } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }
/** Timers of a dead process go on here; nobody hears what its calls say. */
const unheard = (): void => {}

function aWorld(faults: readonly Fault[] = []): { receiver: Receiver; journal: JournalStore } {
  return { receiver: createReceiver({ faults }), journal: forgetfulJournal() }
}

/** A new process: resumes until nothing is deliverable, as `start` would, and then asks for the outcome. */
async function afterRestart(world: { receiver: Receiver; journal: JournalStore }): Promise<{
  resumed: number
  outcome: Outcome | undefined
  billing: BillingClient
}> {
  await pass(CLAIM_MS)
  const { billing } = aProcess(world)
  let resumed = 0
  for (let round = 0; round < 20; round += 1) {
    const summary = await settled(billing.resume())
    resumed += summary.total
    if (summary.waiting === 0) break
    await pass(CLAIM_MS)
  }
  return { resumed, outcome: await settled(billing.find({ kind: 'charge', ...order })), billing }
}

describe('G06: a process killed', () => {
  test('after the entry was written and before the request left sends the same bytes after the restart', async () => {
    const world = aWorld()
    const { billing, isDead } = aProcess(world, {}, { at: 'fetch', call: 1, side: 'before' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    expect(isDead()).toBe(true)
    expect(world.receiver.ledger.requests).toHaveLength(0)
    const { entries } = await world.journal.list({}, 10)
    expect(entries).toMatchObject([{ state: 'sending', attemptsBegun: 1, operationId: 'order-1' }])
    const stored = entries[0]!.request
    const { outcome } = await afterRestart(world)
    expect(outcome).toMatchObject({ status: 'succeeded' })
    expect(world.receiver.ledger.requests).toMatchObject([{ body: stored.body, key: entries[0]!.key }])
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test('after the request left and before the reply came asks again under the same key', async () => {
    const world = aWorld()
    const { billing } = aProcess(world, {}, { at: 'fetch', call: 1, side: 'after' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    const { outcome, resumed } = await afterRestart(world)
    expect(resumed).toBeGreaterThan(0)
    expect(outcome).toMatchObject({ status: 'succeeded' })
    expect(world.receiver.ledger.requests).toHaveLength(2)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expectOneName(world.receiver)
  })

  test('after the reply came and before it was written asks again under the same key', async () => {
    const world = aWorld()
    const { billing } = aProcess(world, {}, { at: 'replace', call: 1, side: 'before' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    const { outcome } = await afterRestart(world)
    expect(outcome).toMatchObject({ status: 'succeeded', attempts: 2, markedReplay: true })
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expectOneName(world.receiver)
  })

  test('after the result was written has nothing left to do', async () => {
    const world = aWorld()
    const { billing } = aProcess(world, {}, { at: 'replace', call: 1, side: 'after' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    const { outcome, resumed } = await afterRestart(world)
    expect(resumed).toBe(0)
    expect(outcome).toMatchObject({ status: 'succeeded', attempts: 1, source: 'journal' })
    expect(world.receiver.ledger.requests).toHaveLength(1)
  })

  test('before the entry was written has written nothing and sent nothing; named again it is one effect', async () => {
    const world = aWorld()
    const { billing } = aProcess(world, {}, { at: 'insert', call: 1, side: 'before' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    expect((await world.journal.list({}, 10)).entries).toHaveLength(0)
    const { outcome, billing: again } = await afterRestart(world)
    expect(outcome).toBeUndefined()
    expect(await settled(again.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(world.receiver.ledger.requests).toHaveLength(1)
  })

  test('and named again at once by the next process, instead of resumed, is one effect', async () => {
    for (const death of deaths()) {
      const world = aWorld([loseReply({ attempt: 1 })])
      const { billing, kill } = aProcess(world, {}, death)
      billing.charge(coffee, order).catch(unheard)
      await pass(1000)
      kill()
      const next = aProcess(world)
      const first = await settled(next.billing.charge(coffee, order))
      // The claim of the dead one may outlast this call's deadline; then delivery continues.
      if (first.status !== 'succeeded') {
        expect(first, JSON.stringify(death)).toMatchObject({ status: 'unknown', delivery: 'continues' })
        await pass(CLAIM_MS)
        expect(await settled(next.billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
      }
      expect(world.receiver.ledger.effects).toHaveLength(1)
      expectOneName(world.receiver)
    }
  })

  test('at any step of three attempts ends with one effect', async () => {
    let died = 0
    for (const death of deaths()) {
      const world = aWorld([loseReply({ attempt: 1 }), status(503, { attempt: 2 })])
      const { billing, isDead, kill } = aProcess(world, {}, death)
      billing.charge(coffee, order).catch(unheard)
      await pass(10_000)
      if (isDead()) died += 1
      kill()
      const { outcome, billing: next } = await afterRestart(world)
      const last = outcome ?? (await settled(next.charge(coffee, order)))
      expect(last, JSON.stringify(death)).toMatchObject({ status: 'succeeded' })
      expect(world.receiver.ledger.effects).toHaveLength(1)
      expectOneName(world.receiver)
      expect((await world.journal.list({}, 10)).entries).toHaveLength(1)
    }
    expect(died).toBeGreaterThan(12)
  })

  test.each<[string, Fault, object]>([
    ['a 429', status(429, { attempt: 2 }), { reason: 'rate-limited' }],
    ['a 401', status(401, { attempt: 2 }), { reason: 'unauthorized' }],
    [
      'a validator’s 400',
      status(400, { attempt: 2, body: { error: { code: 'no_such_customer' } } }),
      { reason: 'refused-unproven' },
    ],
  ])(
    'with a request in flight may have charged: %s to the next attempt is no proof that it did not',
    async (_what, fault, expected) => {
      const world = aWorld([fault])
      aProcess(world, {}, { at: 'fetch', call: 1, side: 'after' }).billing.charge(coffee, order).catch(unheard)
      await pass(1000)
      expect(world.receiver.ledger.effects).toHaveLength(1)
      await pass(CLAIM_MS)
      const { billing } = aProcess(world)
      expect(await settled(billing.charge(coffee, order))).toMatchObject({
        status: 'unknown',
        delivery: 'continues',
        attempts: 2,
        ...expected,
      })
      await expect(billing.cancel({ kind: 'charge', ...order })).rejects.toMatchObject({ code: 'ERR_NOT_CANCELABLE' })
      await expect(settled(billing.charge(coffee, { ...order, revision: 2 }))).rejects.toMatchObject({
        code: 'ERR_REVISION_REFUSED',
      })
      const [view] = await viewsOf(billing)
      expect(view?.attempts[0]).toMatchObject({ number: 1, result: 'unrecorded' })
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 3 })
      expect(world.receiver.ledger.effects).toHaveLength(1)
    },
  )

  test('where the journal can tell that the holder of the claim is gone, the next one need not wait', async () => {
    const world = aWorld()
    const { billing } = aProcess(world, {}, { at: 'fetch', call: 1, side: 'after' })
    billing.charge(coffee, order).catch(unheard)
    await pass(1000)
    const journal = journalWith(world.journal, async (call, run) => (call.method === 'isGone' ? true : await run()))
    const began = performance.now()
    const next = aProcess({ ...world, journal })
    expect(await settled(next.billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(performance.now() - began).toBeLessThan(1000)
    expectOneName(world.receiver)
  })
})

function deaths(): Death[] {
  const sides = ['before', 'after'] as const
  const calls = [1, 2, 3, 4, 5, 6]
  return (['insert', 'replace', 'get', 'fetch', 'knowsSinceMs', 'history'] as const).flatMap((at) =>
    calls.flatMap((call) => sides.map((side) => ({ at, call, side }))),
  )
}

describe('G57: usage that was queued', () => {
  test('is in the journal before anybody is told, and reaches the receiver once although the process dies', async () => {
    const world = aWorld()
    const { billing, kill } = aProcess(world)
    const queued = await settled(
      billing
        .recordUsage({ meter: 'exports', quantity: 2 }, { operationId: 'job-7', background: true })
        .then((answer) => {
          kill()
          return answer
        }),
    )
    expect(queued).toMatchObject({ status: 'queued', durable: false })
    const { entries } = await world.journal.list({}, 10)
    expect(entries).toMatchObject([{ operationId: 'job-7', key: queued.key }])
    const { billing: next } = await afterRestart(world)
    await settled(next.resume())
    expect(world.receiver.ledger.effects).toMatchObject([{ params: { meter: 'exports', quantity: 2 } }])
    expectOneName(world.receiver)
  })

  test('is not called queued while its write is not durable', async () => {
    let release = (): void => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      const result = await run()
      if (call.method === 'insert') await held
      return result
    })
    const { billing, receiver } = setUp({ journal })
    let answer: Queued | Outcome | undefined
    const asked = billing
      .recordUsage({ meter: 'exports', quantity: 2 }, { operationId: 'job-7', background: true })
      .then((given) => (answer = given))
    await pass(30_000)
    expect(answer).toBeUndefined()
    expect(receiver.ledger.requests).toHaveLength(0)
    release()
    await settled(asked)
    expect(answer).toMatchObject({ status: 'queued' })
  })
})

test('G67: usage reported again after a crash, by the same code for the same period, is counted once', async () => {
  for (const death of [
    { at: 'fetch', call: 1, side: 'after' },
    { at: 'replace', call: 1, side: 'before' },
  ] as const) {
    const world = aWorld()
    const report = (billing: BillingClient): Promise<Outcome> =>
      billing.recordUsage({ meter: 'exports', quantity: 7 }, { operationId: 'exports:2026-11' })
    report(aProcess(world, {}, death).billing).catch(unheard)
    await pass(1000)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    await pass(CLAIM_MS)
    const outcome = await settled(report(aProcess(world).billing))
    expect(outcome).toMatchObject({ status: 'succeeded', receipt: { standing: { meter: 'exports', used: '7' } } })
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expectOneName(world.receiver)
  }
})

// --------------------------------------------------------------------------------------------- a journal that fails

const scenarios: [string, (billing: BillingClient) => Promise<Outcome | Queued>, Fault[]][] = [
  ['a charge that goes through', (billing) => billing.charge(coffee, order), []],
  [
    'a charge whose first reply is lost',
    (billing) => billing.charge(coffee, order),
    [loseReply({ attempt: 1 }), status(503, { attempt: 2 })],
  ],
  ['a charge with an event time', (billing) => billing.charge(coffee, { ...order, eventAtMs: Date.now() }), []],
  [
    'a charge in the background',
    (billing) => billing.charge(coffee, { ...order, background: true }),
    [loseReply({ attempt: 1 })],
  ],
  [
    'a charge after a 429',
    async (billing) => {
      await billing.charge(coffee, order)
      return await billing.charge(coffee, order)
    },
    [status(429, { attempt: 1 })],
  ],
]

describe.each(scenarios)('a journal that fails once during %s', (_what, call, faults) => {
  const table = (['before', 'after'] as const).flatMap((side) =>
    Array.from({ length: 12 }, (_, index) => [index + 1, side] as const),
  )

  test.each(table)(
    'at its call %i, %s that took effect: a typed error or the receipt, and one effect in the end',
    async (number, side) => {
      const world = aWorld(faults)
      const failing = failingJournal(world.journal, (one) => one.number === number, side)
      const first = aProcess({ ...world, journal: failing })
      const requestsOf = (): number => world.receiver.ledger.requests.length
      const answer: unknown = await settled(call(first.billing).catch((error: unknown) => error))
      if (answer instanceof Error) {
        expect(answer).toBeInstanceOf(JournalUnavailableError)
        expect(answer).toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE', fault: 'unavailable' })
        if (requestsOf() > 0 && faults.length === 0) expect(answer).toMatchObject({ sentByThisCall: true })
        if (!(answer as JournalUnavailableError).sentByThisCall)
          expect(String(answer)).toMatch(/This call sent nothing/)
        expect(String(answer)).not.toMatch(/not charged/i)
      } else {
        expect(['succeeded', 'queued', 'deferred', 'unknown']).toContain((answer as Outcome).status)
        if ((answer as Outcome).status === 'deferred') expect(world.receiver.ledger.effects).toHaveLength(0)
      }
      await pass(1000)
      await first.billing.close()
      expect(world.receiver.ledger.effects.length).toBeLessThanOrEqual(1)
      const { outcome, billing } = await afterRestart(world)
      const next = outcome?.status === 'succeeded' ? outcome : await settled(billing.charge(coffee, order))
      // Where the first call never got through, its 429 is still to come.
      const last = next.status === 'deferred' ? await settled(billing.charge(coffee, order)) : next
      expect(last).toMatchObject({ status: 'succeeded' })
      expect(world.receiver.ledger.effects).toHaveLength(1)
      expectOneName(world.receiver)
      expect((await world.journal.list({}, 10)).entries).toHaveLength(1)
    },
  )

  test('and the same client goes on under the same key when the journal is back', async () => {
    for (const [number, side] of table) {
      const world = aWorld(faults)
      let isBack = false
      const failing = failingJournal(world.journal, (one) => !isBack && one.number === number, side)
      const { billing } = aProcess({ ...world, journal: failing })
      await settled(call(billing).catch((error: unknown) => error))
      await pass(60_000)
      isBack = true
      if (world.receiver.ledger.requests.length === 0) await settled(billing.charge(coffee, order))
      expect(await settled(billing.charge(coffee, order)), `${number} ${side}`).toMatchObject({ status: 'succeeded' })
      expect(world.receiver.ledger.effects).toHaveLength(1)
      expectOneName(world.receiver)
    }
  })
})

test('nothing is sent while the journal cannot be written, at all', async () => {
  const world = aWorld()
  const failing = failingJournal(
    world.journal,
    (call) => call.method === 'insert' || call.method === 'replace',
    'before',
  )
  const { billing } = aProcess({ ...world, journal: failing })
  for (const background of [true, false]) {
    const asked = settled(billing.charge(coffee, { ...order, background }))
    await expect(asked).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      sentByThisCall: false,
      cause: expect.anything(),
    })
  }
  await pass(600_000)
  expect(world.receiver.ledger.requests).toHaveLength(0)
})

test('a journal of the user’s own that throws anything gives the one error that callers know, with its cause', async () => {
  for (const cause of [new TypeError('x is not a function'), 'text', null, { code: 'SQLITE_BUSY' }]) {
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      if (call.method === 'insert') throw cause as Error
      return await run()
    })
    const { billing, receiver, events } = setUp({ journal })
    const error: unknown = await settled(billing.charge(coffee, order)).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(JournalUnavailableError)
    expect(error).toMatchObject({ fault: 'unavailable', cause, sentByThisCall: false })
    expect(events).toContainEqual(
      expect.objectContaining({ type: 'storage-fault', step: 'begin', fault: 'unavailable' }),
    )
    expect(receiver.ledger.requests).toHaveLength(0)
  }
})

test('a receipt that could not be written down reaches its caller, an event says so, and a resume asks again', async () => {
  const world = aWorld()
  let isFailing = true
  const failing = failingJournal(world.journal, (call) => isFailing && call.method === 'replace', 'before')
  const { billing } = aProcess({ ...world, journal: failing })
  const events: unknown[] = []
  billing.subscribe((event) => events.push(event))
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'succeeded', source: 'receiver', receipt: { id: 'ch_000001' } })
  expect(events).toContainEqual(expect.objectContaining({ type: 'storage-fault', step: 'record', key: outcome.key }))
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'unknown', delivery: 'continues' })
  isFailing = false
  expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(world.receiver.ledger.effects).toHaveLength(1)
  expectOneName(world.receiver)
})

test('a journal that loses the entry while its request is in flight does not hold the call for ever', async () => {
  const world = aWorld()
  let calls = 0
  let isWiped = false
  const wiped = journalWith(world.journal, async (call, run) => {
    calls += 1
    // Whoever asks for ever would hold up this test too.
    if (calls > 1000) return await new Promise<never>(() => {})
    if (!isWiped) return await run()
    if (call.method === 'get') return undefined
    return call.method === 'replace' ? false : []
  })
  const { billing } = aProcess(
    { ...world, journal: wiped },
    {
      fetch: async (input, init) => {
        isWiped = true
        return await world.receiver.fetch(input, init)
      },
    },
  )
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'succeeded', receipt: { id: 'ch_000001' } })
  expect(calls).toBeLessThan(100)
})

test('a journal that loses the entry between two attempts sends nothing more, and says so', async () => {
  const world = aWorld([status(503)])
  let calls = 0
  let isWiped = false
  const wiped = journalWith(world.journal, async (call, run) => {
    calls += 1
    if (calls > 1000) return await new Promise<never>(() => {})
    if (!isWiped) return await run()
    if (call.method === 'get') return undefined
    return call.method === 'replace' ? false : []
  })
  const { billing } = aProcess({ ...world, journal: wiped })
  const asked = billing.charge(coffee, order).catch((error: unknown) => error)
  await quiet()
  isWiped = true
  const error: unknown = await settled(asked)
  expect(error).toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE', sentByThisCall: true })
  expect(world.receiver.ledger.requests).toHaveLength(1)
  expect(calls).toBeLessThan(100)
})

test('what is stored holds no credential', async () => {
  const { billing, journal } = setUp({
    client: { headers: { authorization: 'Bearer sk_live_secret', 'x-api-key': 'k_secret' } },
  })
  await settled(billing.charge(coffee, order))
  expect(JSON.stringify(await journal.list({}, 10))).not.toMatch(/secret/)
  expect(JSON.stringify(await viewsOf(billing))).not.toMatch(/secret/)
})

function failingJournal(
  journal: JournalStore,
  isHit: (call: StoreCall) => boolean,
  side: 'before' | 'after',
): JournalStore {
  return journalWith(journal, async (call, run) => {
    if (!isHit(call)) return await run()
    if (side === 'after') await run()
    throw broken()
  })
}
