/**
 * Every reason of an unknown outcome, from the first call to the end: what brings it about, that it is never called a no, and
 * how many effects there are at the receiver. docs/unknown.md has a paragraph for each of them.
 */
import { forgetfulJournal, RevisionRefusedError, standard } from 'billonce'
import type { BillingClient, Credentials, Outcome, SendingReason, Unknown, UnknownReason } from 'billonce'
import { loseReply, savedFailure, slowConflict, status, wrongReceipt } from 'billonce/testing'
import type { Fault } from 'billonce/testing'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { aProcess, CLAIM_MS, expectOneName } from '../engine/tampering.ts'
import { coffee, pass, quiet, SCOPE, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'

virtualTime()
afterEach(() => {
  vi.unstubAllGlobals()
})

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS
const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const second = { ...order, revision: 2 }

function expectUnknown(outcome: Outcome | undefined, delivery: 'continues' | 'ended', reason: Unknown['reason']): void {
  expect(outcome).toMatchObject({ status: 'unknown', delivery, reason })
}

/** Whatever is tried, nothing is sent any more: not by a call, a pass, background delivery or the next revision. */
async function expectNothingMoreIsSent({ billing, another, receiver }: World): Promise<void> {
  const { length } = receiver.ledger.requests
  const reason = (await billing.find(ref))?.status
  expect((await settled(billing.charge(coffee, order))).status).toBe(reason)
  await settled(another().resume())
  const stop = another().start()
  await pass(2 * HOUR_MS)
  stop()
  await expect(settled(another().charge(coffee, second))).rejects.toBeInstanceOf(RevisionRefusedError)
  expect(receiver.ledger.requests).toHaveLength(length)
}

/** A charge that was made, whose reply was lost, and which meets `fault` at every further attempt. */
async function madeThen(fault: Fault): Promise<World & { outcome: Outcome }> {
  const world = setUp({ receiver: { faults: [loseReply({ attempt: 1 }), fault] } })
  const outcome = await settled(world.billing.charge(coffee, order))
  expect(world.receiver.ledger.effects).toHaveLength(1)
  return { ...world, outcome }
}

const later = { when: (request: { readonly attempt: number }) => request.attempt > 1 }

/** What stands before the key answers so after the charge was made: no proof of anything, and it goes on. */
async function expectStaysOpen(reason: SendingReason, fault: Fault): Promise<void> {
  const world = await madeThen(fault)
  const { billing, another, receiver, outcome } = world
  expectUnknown(outcome, 'continues', reason)
  await expect(settled(billing.charge(coffee, second))).rejects.toMatchObject({ reason: 'earlier-revision-open' })
  await expect(settled(billing.cancel(ref))).rejects.toMatchObject({ code: 'ERR_NOT_CANCELABLE' })

  // Without end: in the background until the window is over, and still not a no.
  const stop = another().start()
  await pass(24 * HOUR_MS)
  expectUnknown(await billing.find(ref), 'ended', 'window-over')
  stop()
  receiver.faults.clear()
  await expectNothingMoreIsSent(world)
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
}

/** The same, and then it goes away: the next pass gets the receipt of the charge that was made. */
async function expectSettles(fault: Fault): Promise<void> {
  const { another, receiver } = await madeThen(fault)
  await pass(HOUR_MS)
  receiver.faults.clear()
  expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
}

async function heldAfterLostReply(reason: SendingReason, next: () => Credentials): Promise<void> {
  let asked = 0
  const { billing, receiver, another } = setUp({
    client: {
      headers: undefined,
      credentials: () => {
        asked += 1
        return asked === 1 ? { scope: SCOPE, headers: {} } : next()
      },
    },
    receiver: { faults: [loseReply({ attempt: 1 })] },
  })
  expectUnknown(await settled(billing.charge(coffee, order)), 'continues', reason)
  expect(receiver.ledger.requests).toHaveLength(1)
  await pass(CLAIM_MS)
  expect(await settled(another({ credentials: undefined, headers: {} }).resume())).toMatchObject({ succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
}

const continues: Readonly<Record<SendingReason, () => Promise<void>>> = {
  async 'in-flight'() {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 20_000 } })
    const call = billing.charge(coffee, { ...order, deadlineMs: 1000 })
    await pass(500)
    expectUnknown(await another().find(ref), 'continues', 'in-flight')
    expectUnknown(await settled(call), 'continues', 'in-flight')
    await pass(MINUTE_MS)
    expect(await billing.find(ref)).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'no-clear-reply'() {
    const { billing, another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: [1, 2, 3, 4, 5] })] } })
    expectUnknown(await settled(billing.charge(coffee, order)), 'continues', 'no-clear-reply')
    expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  },

  // A receiver that answers 409 for ever, although the charge is made.
  async busy() {
    const world = setUp({ receiver: { faults: [slowConflict({ ms: 365 * DAY_MS })] } })
    const { billing, receiver } = world
    expectUnknown(await settled(billing.charge(coffee, order)), 'continues', 'busy')
    const stop = billing.start()
    await pass(24 * HOUR_MS)
    stop()
    expectUnknown(await billing.find(ref), 'ended', 'window-over')
    const times = receiver.ledger.requests.map((request) => request.atMs)
    expect(Math.max(...times) - Math.min(...times)).toBeLessThan(23 * HOUR_MS)
    await expectNothingMoreIsSent(world)
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  },

  async 'refused-unproven'() {
    const refusal = status(400, { ...later, body: { error: { code: 'no_such_customer' } } })
    await expectStaysOpen('refused-unproven', refusal)
    await expectSettles(refusal)
  },

  // A gateway that answers 401 after the charge was made.
  async unauthorized() {
    for (const code of [401, 403]) {
      await expectStaysOpen('unauthorized', status(code, { ...later, body: { error: 'unauthorized' } }))
      await expectSettles(status(code, later))
    }
  },

  async 'rate-limited'() {
    await expectStaysOpen('rate-limited', status(429, { ...later, headers: { 'retry-after': '600' } }))
    await expectSettles(status(429, { ...later, headers: { 'retry-after': '600' } }))
  },

  async 'too-early'() {
    await expectStaysOpen('too-early', status(425, later))
    await expectSettles(status(425, later))
  },

  async misrouted() {
    for (const code of [404, 405, 421]) {
      await expectStaysOpen('misrouted', status(code, later))
      await expectSettles(status(code, later))
    }
  },

  async offline() {
    const { billing, another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    const call = billing.charge(coffee, { ...order, deadlineMs: 20_000 })
    await quiet()
    vi.stubGlobal('navigator', { onLine: false })
    expectUnknown(await settled(call), 'continues', 'offline')
    expect(receiver.ledger.requests).toHaveLength(1)
    vi.stubGlobal('navigator', { onLine: true })
    await pass(CLAIM_MS)
    expect(await settled(another().resume())).toMatchObject({ succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'other-login'() {
    await heldAfterLostReply('other-login', () => ({ scope: 'org_7/test', headers: {} }))
  },

  async 'no-credentials'() {
    await heldAfterLostReply('no-credentials', () => {
      throw new Error('signed out')
    })
  },

  // An event older than the journal: another journal may have sent it, so nobody can say that it is certainly not done.
  async 'not-yet-tried'() {
    const { receiver, journal, another } = setUp()
    const event = { ...order, eventAtMs: Date.now() - HOUR_MS }
    const dying = aProcess({ receiver, journal }, {}, { at: 'insert', call: 1, side: 'after' })
    void dying.billing.charge(coffee, { ...event, background: true })
    await pass(1000)
    expectUnknown(await another().find(ref), 'continues', 'not-yet-tried')
    await expect(settled(another().cancel(ref))).rejects.toMatchObject({ code: 'ERR_NOT_CANCELABLE' })
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await settled(another().charge(coffee, event))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  },
}

const ended: Readonly<Record<UnknownReason | 'contradicted', () => Promise<void>>> = {
  async 'window-over'() {
    const world = setUp({ receiver: { faults: [loseReply()] } })
    await settled(world.billing.charge(coffee, order))
    await pass(9 * DAY_MS)
    world.receiver.faults.clear()
    expect(await settled(world.another().resume())).toMatchObject({ total: 1, unknown: 1 })
    expectUnknown(await settled(world.billing.charge(coffee, order)), 'ended', 'window-over')
    await expectNothingMoreIsSent(world)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  },

  // A receiver that replays a 500 for ever, although the charge was made.
  async 'recorded-failure'() {
    for (const afterEffect of [true, false]) {
      const world = setUp({ receiver: { faults: [savedFailure(500, { afterEffect })] } })
      expectUnknown(await settled(world.billing.charge(coffee, order)), 'ended', 'recorded-failure')
      expect(world.receiver.ledger.requests).toHaveLength(2)
      await expectNothingMoreIsSent(world)
      expect(world.receiver.ledger.effects).toHaveLength(afterEffect ? 1 : 0)
    }
  },

  async 'key-conflict'() {
    const first = setUp()
    await settled(first.billing.charge(coffee, order))
    const journal = forgetfulJournal()
    const elsewhere = first.another({ journal })
    const outcome = await settled(elsewhere.charge({ ...coffee, amount: 451 }, order))
    expectUnknown(outcome, 'ended', 'key-conflict')
    await expect(settled(elsewhere.charge(coffee, order))).rejects.toMatchObject({ fields: ['amount'] })
    await expect(settled(elsewhere.charge(coffee, second))).rejects.toMatchObject({ reason: 'earlier-revision-open' })
    expect(first.receiver.ledger.effects).toHaveLength(1)
  },

  async 'receipt-differs'() {
    for (const fields of [{ amount: 1 }, { currency: 'usd' }]) {
      const world = setUp({ receiver: { faults: [wrongReceipt({ fields })] } })
      const outcome = await settled(world.billing.charge(coffee, order))
      expectUnknown(outcome, 'ended', 'receipt-differs')
      expect(outcome).toMatchObject({ receipt: { id: 'ch_000001', reply: fields } })
      await expectNothingMoreIsSent(world)
      expect(world.receiver.ledger.effects).toHaveLength(1)
    }
  },

  async 'dialect-missing'() {
    const { billing, another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: [1, 2, 3, 4, 5] })] } })
    await settled(billing.charge(coffee, order))
    const newer = { ...standard(), version: 2 }
    await pass(CLAIM_MS)
    const world = { client: another({ dialect: newer }), sent: receiver.ledger.requests.length }
    expectUnknown(await settled(world.client.charge(coffee, order)), 'ended', 'dialect-missing')
    expect(receiver.ledger.requests).toHaveLength(world.sent)
    expect(receiver.ledger.effects).toHaveLength(1)

    // Named as an older dialect its replies can be read, and it is delivered.
    receiver.faults.add(loseReply({ attempt: [1, 2, 3, 4, 5] }))
    await settled(billing.charge(coffee, { operationId: 'order-2' }))
    await pass(CLAIM_MS)
    const both = another({ dialect: newer, olderDialects: [standard()] })
    expect(await settled(both.charge(coffee, { operationId: 'order-2' }))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(2)
  },

  async 'may-predate-journal'() {
    const world = setUp()
    const event = { ...order, eventAtMs: Date.now() - 9 * DAY_MS }
    expectUnknown(await settled(world.billing.charge(coffee, event)), 'ended', 'may-predate-journal')
    await expectNothingMoreIsSent(world)
    expect(world.receiver.ledger.requests).toHaveLength(0)
  },

  async 'takes-no-key'() {
    const world = setUp({
      client: { dialect: standard({ withoutKey: ['charge'] }) },
      receiver: { requiresKey: false, keyOf: () => undefined, faults: [loseReply({ request: 1 })] },
    })
    expectUnknown(await settled(world.billing.charge(coffee, order)), 'ended', 'takes-no-key')
    expect(world.receiver.ledger.requests).toHaveLength(1)
    await expectNothingMoreIsSent(world)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  },

  async superseded() {
    const world = setUp()
    const { billing, receiver } = world
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
    receiver.faults.add(loseReply())
    await settled(billing.charge(coffee, second))
    const receipt = { id: 'ch_9', amount: coffee.amount, currency: coffee.currency }
    const first = { ...ref, revision: 1 }
    await settled(billing.recordEvidence(first, { source: 'webhook', found: 'applied', receipt }))
    await settled(
      billing.recordEvidence(first, { source: 'decision', by: 'Ada', why: 'paid', found: 'applied', receipt }),
    )
    receiver.faults.clear()
    const { length } = receiver.ledger.requests
    await pass(600_000)
    expect(await settled(world.another().resume())).toMatchObject({ total: 1, unknown: 1 })
    expectUnknown(await billing.find({ ...ref, revision: 2 }), 'ended', 'superseded')
    // Asked without a revision, the answer is the success.
    expect(await settled(billing.charge(coffee, { operationId: order.operationId }))).toMatchObject({ revision: 1 })
    expect(receiver.ledger.requests).toHaveLength(length)
  },

  async contradicted() {
    const world = setUp()
    const { billing, receiver } = world
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
    const receipt = { id: 'ch_9', amount: coffee.amount, currency: coffee.currency }
    const outcome = await settled(billing.recordEvidence(ref, { source: 'webhook', found: 'applied', receipt }))
    expectUnknown(outcome, 'ended', 'contradicted')
    expectUnknown(await settled(billing.charge(coffee, second)), 'ended', 'contradicted')
    expect(receiver.ledger.requests).toHaveLength(1)
  },
}

describe('unknown, delivery continues', () => {
  test.each(Object.entries(continues))('%s', async (_reason, run) => await run())
})

describe('unknown, delivery ended', () => {
  test.each(Object.entries(ended))('%s', async (_reason, run) => await run())
})

describe('an entry whose reply was lost, resumed when its key has this age', () => {
  const ages = [
    ['22 h 50', 22 * HOUR_MS + 50 * MINUTE_MS],
    ['23 h 50', 23 * HOUR_MS + 50 * MINUTE_MS],
    ['24 h 10', 24 * HOUR_MS + 10 * MINUTE_MS],
    ['9 days', 9 * DAY_MS],
  ] as const

  /** Resumed by a client of a later process; `sent` is how many requests that were. */
  async function resumedAt(ageMs: number, windowMarginMs?: number): Promise<{ sent: number; outcome?: Outcome }> {
    const { billing, receiver, journal, another } = setUp({
      client: { windowMarginMs },
      receiver: { faults: [loseReply()] },
    })
    const namedAtMs = Date.now()
    await settled(billing.charge(coffee, order))
    await pass(namedAtMs + ageMs - Date.now())
    receiver.faults.clear()
    const { length } = receiver.ledger.requests
    const next = another({ journal, windowMarginMs })
    await settled(next.resume())
    const outcome = await next.find(ref)
    // Each charge that was sent past what the receiver remembers would be a second effect.
    expect(receiver.ledger.effects).toHaveLength(1)
    return { sent: receiver.ledger.requests.length - length, ...(outcome ? { outcome } : {}) }
  }

  test.each(ages)('%s: sent only while an hour is left', async (age, ageMs) => {
    const { sent, outcome } = await resumedAt(ageMs)
    expect(sent).toBe(age === '22 h 50' ? 1 : 0)
    if (age === '22 h 50') expect(outcome).toMatchObject({ status: 'succeeded', markedReplay: true })
    else expectUnknown(outcome, 'ended', 'window-over')
  })

  test.each(ages)('%s with the smallest margin: sent while two minutes are left', async (age, ageMs) => {
    const { sent, outcome } = await resumedAt(ageMs, 0)
    const isSent = age === '22 h 50' || age === '23 h 50'
    expect(sent).toBe(isSent ? 1 : 0)
    if (isSent) expect(outcome).toMatchObject({ status: 'succeeded' })
    else expectUnknown(outcome, 'ended', 'window-over')
  })

  test('all of them in one journal, in one pass', async () => {
    const { billing, receiver, another } = setUp({ receiver: { faults: [loseReply()] } })
    const endMs = Date.now() + 10 * DAY_MS
    for (const [age, ageMs] of ages.toReversed()) {
      await pass(endMs - ageMs - Date.now())
      await settled(billing.charge(coffee, { operationId: age, deadlineMs: 1 }))
    }
    await pass(endMs - Date.now())
    receiver.faults.clear()
    const { length } = receiver.ledger.requests
    expect(await settled(another().resume())).toMatchObject({ total: 4, succeeded: 1, unknown: 3 })
    expect(receiver.ledger.requests).toHaveLength(length + 1)
    expect(receiver.ledger.effects).toHaveLength(4)
    expect((await viewsOf(billing, { states: ['unknown'] })).map((view) => view.operationId)).toEqual([
      '9 days',
      '24 h 10',
      '23 h 50',
    ])
  })

  test('a clock that was set back by more than the margin counts as over', async () => {
    const { billing, receiver, another } = setUp({ receiver: { faults: [loseReply()] } })
    await settled(billing.charge(coffee, order))
    receiver.faults.clear()
    const { length } = receiver.ledger.requests
    vi.setSystemTime(Date.now() - 2 * HOUR_MS)
    await settled(another().resume())
    expectUnknown(await another().find(ref), 'ended', 'window-over')
    expect(receiver.ledger.requests).toHaveLength(length)
  })

  test('a usage record counts from its own time, not from the call', async () => {
    const { billing, receiver } = setUp()
    await pass(2 * DAY_MS)
    const occurredAt = new Date(Date.now() - 23 * HOUR_MS)
    const outcome = await settled(
      billing.recordUsage({ meter: 'm', quantity: 1, occurredAt }, { operationId: 'job-1' }),
    )
    expectUnknown(outcome, 'ended', 'window-over')
    expect(receiver.ledger.requests).toHaveLength(0)
  })
})

test('a person who opens the list sees each with its reason, and none of them as failed', async () => {
  const { billing, receiver } = setUp()
  receiver.faults.add(savedFailure(500, { times: 1 }))
  await settled(billing.charge(coffee, order))
  receiver.faults.clear()
  receiver.faults.add(wrongReceipt({ fields: { amount: 1 } }))
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  const views = await viewsOf(billing satisfies BillingClient, { states: ['unknown'] })
  expect(views.map(({ outcome }) => 'reason' in outcome && outcome.reason)).toEqual([
    'recorded-failure',
    'receipt-differs',
  ])
})
