/**
 * Trying again after a definite no: with another card, or with the same body after a deploy that refused it. A new key opens only
 * where the old one cannot have worked, and if it turns out that it did, the new one stops.
 */
import { RevisionRefusedError, standard } from 'billonce'
import type { BillingEvent, Outcome } from 'billonce'
import { delay, loseReply, savedFailure, status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { journalWith } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'

virtualTime()

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const second = { ...order, revision: 2 }
const declined = { ...coffee, paymentMethod: 'pm_declined' }
const otherCard = { ...coffee, paymentMethod: 'pm_card_2' }
const decision = { source: 'decision', by: 'Ada, finance', why: 'bank statement of 3 May' } as const
const receipt = { id: 'ch_000001', amount: coffee.amount, currency: coffee.currency }

async function refusalOf(asked: Promise<unknown>): Promise<RevisionRefusedError> {
  const error: unknown = await settled(asked.catch((thrown: unknown) => thrown))
  expect(error).toBeInstanceOf(RevisionRefusedError)
  expect(error).toMatchObject({ code: 'ERR_REVISION_REFUSED', sentByThisCall: false })
  return error as RevisionRefusedError
}

const distinct = (world: World, of: 'key' | 'body'): number =>
  new Set(world.receiver.ledger.requests.map((request) => request[of])).size

// -------------------------------------------------------------------------------------------------- another card

describe('a decline, then another card in two tabs at once', () => {
  test.each([
    ['the receiver answers at once', {}],
    ['it takes its time', { latencyMs: 3000 }],
    ['the first reply to the new card gets lost', { faults: [loseReply({ request: 2 })] }],
    ['the second request to arrive finds it at work', { faults: [delay(5000, { request: 2 })] }],
  ])('%s: one entry, one key, one charge', async (_how, receiver) => {
    const world = setUp({ receiver })
    const { billing, another } = world
    const tabs = [billing, another()]
    const first = await settled(Promise.all(tabs.map((tab) => tab.charge(declined, order))))
    expect(first.map((outcome) => outcome.status)).toEqual(['rejected', 'rejected'])
    const outcomes = await settled(Promise.all(tabs.map((tab) => tab.charge(otherCard, second))))
    expect(outcomes).toMatchObject([
      { status: 'succeeded', revision: 2 },
      { status: 'succeeded', revision: 2 },
    ])
    expect(outcomes[0]?.key).toBe(outcomes[1]?.key)
    expect(await viewsOf(billing)).toHaveLength(2)
    expect(distinct(world, 'key')).toBe(2)
    expect(distinct(world, 'body')).toBe(2)
    expect(world.receiver.ledger.effects).toMatchObject([{ params: { paymentMethod: 'pm_card_2' } }])
  })

  test('with two different cards: the faster one is charged, the other is told that it differs', async () => {
    const world = setUp({ receiver: { latencyMs: 100 } })
    const { billing, another } = world
    await settled(billing.charge(declined, order))
    const results = await settled(
      Promise.allSettled([
        billing.charge(otherCard, second),
        another().charge({ ...coffee, paymentMethod: 'pm_card_3' }, second),
      ]),
    )
    expect(results.map((result) => result.status).toSorted()).toEqual(['fulfilled', 'rejected'])
    expect(results.find((result) => result.status === 'rejected')).toMatchObject({
      reason: { code: 'ERR_OPERATION_CONFLICT', fields: ['paymentMethod'] },
    })
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test('on a device that does not know of the decline, the caller vouches by the number', async () => {
    const { billing, another, receiver } = setUp()
    await settled(billing.charge(declined, order))
    const phone = another({ journal: setUp().journal })
    const outcomes = await settled(Promise.all([billing, phone].map((tab) => tab.charge(otherCard, second))))
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded'])
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

describe('while it cannot be known that revision 1 did nothing', () => {
  test('the error says which revision, in which state, and what to do', async () => {
    const { billing } = setUp({ receiver: { faults: [savedFailure(500, { afterEffect: true })] } })
    const { key } = await settled(billing.charge(coffee, order))
    const error = await refusalOf(billing.charge(otherCard, second))
    expect(error).toMatchObject({ reason: 'earlier-revision-open', entry: { key, state: 'unknown' } })
    expect(error.message).toContain(key)
    expect(error.message).toMatch(/revision 1 is unknown and may have worked.*settle it first/)
  })

  test('evidence that it worked is the answer to both, that it did not opens the next', async () => {
    for (const found of ['applied', 'not-applied'] as const) {
      const { billing, receiver } = setUp({ receiver: { faults: [savedFailure(500, { times: 1 })] } })
      await settled(billing.charge(coffee, order))
      await pass(HOUR_MS)
      const evidence = found === 'applied' ? { ...decision, found, receipt } : { ...decision, found }
      await settled(billing.recordEvidence(ref, evidence))
      const outcome = await settled(billing.charge(otherCard, second))
      expect(outcome).toMatchObject({ status: 'succeeded', revision: found === 'applied' ? 1 : 2 })
      expect(receiver.ledger.effects).toHaveLength(found === 'applied' ? 0 : 1)
    }
  })
})

test('after a success, whatever number is asked for, the answer is the success', async () => {
  const { billing, another, receiver } = setUp()
  await settled(billing.charge(declined, order))
  await settled(billing.charge(otherCard, second))
  for (const client of [billing, another()]) {
    for (const revision of [3, 4, 17]) {
      expect(await settled(client.charge(coffee, { ...order, revision }))).toMatchObject({
        status: 'succeeded',
        revision: 2,
        source: 'journal',
      })
    }
  }
  expect(receiver.ledger.requests).toHaveLength(2)
})

describe('receivers that free the key on a rejection', () => {
  const frees = (longestRequestMs: number) => ({
    client: { dialect: standard({ keepsRejections: false, longestRequestMs }) },
    receiver: { keepsRejections: false, faults: [loseReply({ attempt: 1 })] },
  })

  test.each([120_000, 600_000])('the next revision waits out the longest request, %s ms', async (longestMs) => {
    const { billing, receiver } = setUp(frees(longestMs))
    const beganAtMs = Date.now()
    // The refusal of the second attempt freed the key, and the first one may still be on its way to it.
    expect(await settled(billing.charge(declined, order))).toMatchObject({
      status: 'unknown',
      reason: 'refused-unproven',
      attempts: 2,
    })
    const { length } = receiver.ledger.requests
    await pass(beganAtMs + longestMs - Date.now() - 1)
    expect(await settled(billing.resume({ deadlineMs: 1 }))).toMatchObject({ waiting: 1 })
    expect((await refusalOf(billing.charge(otherCard, second))).reason).toBe('earlier-revision-open')
    await refusalOf(billing.retryRejected(ref))
    expect(receiver.ledger.requests).toHaveLength(length)
    await pass(1000)
    expect(await settled(billing.resume())).toMatchObject({ rejected: 1 })
    expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('at once where no attempt is in doubt', async () => {
    const { billing } = setUp({ ...frees(120_000), receiver: { keepsRejections: false } })
    await settled(billing.charge(declined, order))
    expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'succeeded' })
  })

  test('where they are kept, a decline that was replayed speaks for the lost one too', async () => {
    const { billing } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    const first = await settled(billing.charge(declined, order))
    expect(first).toMatchObject({ status: 'rejected', markedReplay: true })
    expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'succeeded' })
  })
})

// --------------------------------------------------------------------------------------------------- the old one worked

describe('a word for revision 1 that comes while revision 2 is under way', () => {
  /** Revision 1 is refused for certain, its first reply is still held back, and revision 2 waits in the journal. */
  async function underWay(): Promise<{
    world: World
    late: Promise<Outcome>
    release: () => void
    events: BillingEvent[]
  }> {
    const world = setUp({
      receiver: { faults: [status(402, { request: 2, body: { error: { code: 'card_declined' } } })] },
    })
    let release = (): void => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    let fetches = 0
    const slow = world.another({
      retry: { attemptTimeoutMs: 250_000, deadlineMs: 600_000 },
      fetch: async (input, init) => {
        fetches += 1
        const response = await world.receiver.fetch(input, init)
        if (fetches === 1) await held
        return response
      },
    })
    const events: BillingEvent[] = []
    slow.subscribe((event) => events.push(event))
    const late = slow.charge(coffee, order)
    await pass(1000)
    const lockless = journalWith(world.journal, async (call, run) => (call.method === 'isGone' ? true : await run()))
    expect(await settled(world.another({ journal: lockless }).charge(coffee, order))).toMatchObject({
      status: 'rejected',
    })
    return { world, late, release, events }
  }

  /** From the receiver's door: every request with the new card. */
  const withNewCard = { when: (request: { readonly body: string }) => request.body.includes('pm_card_2') }

  test('is kept and raised, and revision 2 stops before its next attempt', async () => {
    const { world, late, release, events } = await underWay()
    world.receiver.faults.add(status(503, withNewCard))
    const next = world.billing.charge(otherCard, { ...second, deadlineMs: 60_000 })
    await pass(50)
    release()
    const outcome = await settled(late)
    expect(outcome).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'rejected' },
      contradiction: { word: 'succeeded', attempt: 1, receipt: { id: 'ch_000001' } },
    })
    expect(events).toContainEqual(expect.objectContaining({ type: 'contradiction', key: outcome.key }))
    const { length } = world.receiver.ledger.requests
    expect(await settled(next)).toMatchObject({ reason: 'contradicted', revision: 1 })
    expect(world.receiver.ledger.requests).toHaveLength(length)
    world.receiver.faults.clear()
    await pass(HOUR_MS)
    await settled(world.another().resume())
    expect(world.receiver.ledger.requests).toHaveLength(length)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test.each(['a webhook', 'a late reply'])(
    '%s, then the decision that it worked: revision 2 is never sent',
    async (how) => {
      const { world, late, release } = await underWay()
      const { billing, another, receiver } = world
      receiver.faults.add(status(429, withNewCard))
      expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'deferred', revision: 2 })
      const one = { ...ref, revision: 1 }
      if (how === 'a webhook') {
        const said = { source: 'webhook', found: 'applied', receipt } as const
        expect(await settled(billing.recordEvidence(one, said))).toMatchObject({ reason: 'contradicted' })
      }
      release()
      await settled(late)
      receiver.faults.clear()
      expect(await billing.find(ref)).toMatchObject({ reason: 'contradicted', revision: 1 })
      await settled(billing.recordEvidence(one, { ...decision, found: 'applied', receipt }))
      const { length } = receiver.ledger.requests
      await settled(another().resume())
      const stop = another().start()
      await pass(600_000)
      stop()
      await settled(another().charge(otherCard, second))
      expect(receiver.ledger.requests).toHaveLength(length)
      expect(receiver.ledger.effects).toHaveLength(1)
    },
  )

  test('then the decision that it did not: revision 2 goes on', async () => {
    const { world, late, release } = await underWay()
    world.receiver.faults.add(status(429, withNewCard))
    await settled(world.billing.charge(otherCard, second))
    release()
    await settled(late)
    world.receiver.faults.clear()
    await settled(world.billing.recordEvidence({ ...ref, revision: 1 }, { ...decision, found: 'not-applied' }))
    expect(await settled(world.another().resume())).toMatchObject({ total: 1, succeeded: 1 })
    expect(await world.billing.find(ref)).toMatchObject({ status: 'succeeded', revision: 2 })
  })
})

// ---------------------------------------------------------------------------------------------------- the same again

describe('retryRejected()', () => {
  const job = { operationId: 'export:job-7' }
  const jobRef = { kind: 'usage', ...job }
  const usage = { meter: 'exports', quantity: 3 }
  const despite = { despiteUnrecordedRefusal: true }

  /** A usage record that a bad deploy of the receiver refused, which is over now. */
  async function refused(client: Parameters<typeof setUp>[0] = {}): Promise<World> {
    const world = setUp({
      ...client,
      receiver: { faults: [status(400, { body: { error: { code: 'no_such_meter' } } })] },
    })
    expect(await settled(world.billing.recordUsage(usage, job))).toMatchObject({
      status: 'rejected',
      rejection: { kind: 'invalid', behindKey: false },
    })
    world.receiver.faults.clear()
    return world
  }

  test('sends the stored body under the key of the next revision', async () => {
    const world = await refused()
    const { billing, receiver } = world
    const outcome = await settled(billing.retryRejected(jobRef, despite))
    expect(outcome).toMatchObject({ status: 'succeeded', revision: 2, source: 'receiver' })
    expect(distinct(world, 'key')).toBe(2)
    expect(distinct(world, 'body')).toBe(1)
    expect(receiver.ledger.effects).toMatchObject([{ kind: 'usage', key: outcome.key, params: usage }])
  })

  test('named again by a call afterwards, it is the same operation, without a request', async () => {
    const { billing, another, receiver } = await refused()
    await settled(billing.retryRejected(jobRef, despite))
    const again = await settled(another().recordUsage(usage, job))
    expect(again).toMatchObject({ status: 'succeeded', revision: 2, source: 'journal' })
    expect(await settled(another().recordUsage(usage, { ...job, revision: 2 }))).toMatchObject({ status: 'succeeded' })
    await expect(settled(another().recordUsage({ ...usage, quantity: 4 }, job))).rejects.toMatchObject({
      fields: ['quantity'],
    })
    expect(receiver.ledger.requests).toHaveLength(2)
  })

  test('a refusal that is not on record behind the key needs the word of the caller', async () => {
    const { billing, receiver } = await refused()
    expect((await refusalOf(billing.retryRejected(jobRef))).reason).toBe('unrecorded-refusal')
    expect(receiver.ledger.requests).toHaveLength(1)
    expect(await viewsOf(billing)).toHaveLength(1)
    // Where the names are its own, nobody else can have sent it.
    const own = await refused({ client: { names: 'own' } })
    expect(await settled(own.billing.retryRejected(jobRef))).toMatchObject({ status: 'succeeded', revision: 2 })
  })

  test('a decline that is on record needs none', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(402, { times: 1, body: { error: 'no' } })] } })
    await settled(billing.charge(coffee, order))
    expect(await settled(billing.retryRejected(ref))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('two at once open one revision', async () => {
    const { billing, another, receiver } = await refused()
    const results = await settled(
      Promise.allSettled([billing, another()].map((client) => client.retryRejected(jobRef, despite))),
    )
    expect(results.filter((result) => result.status === 'fulfilled').length).toBeGreaterThan(0)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(billing)).toHaveLength(2)
  })

  test('and a call that names the next revision at the same moment is the same one', async () => {
    const { billing, another, receiver } = await refused()
    await settled(
      Promise.allSettled([
        billing.retryRejected(jobRef, despite),
        another().recordUsage(usage, { ...job, revision: 2, ...despite }),
      ]),
    )
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(billing)).toHaveLength(2)
  })

  test('what is refused again is rejected again, and the next is revision 3', async () => {
    const { billing, receiver } = await refused()
    receiver.faults.add(status(400, { times: 1, body: { error: 'no_such_meter' } }))
    expect(await settled(billing.retryRejected(jobRef, despite))).toMatchObject({ status: 'rejected', revision: 2 })
    expect(await settled(billing.retryRejected({ ...jobRef, revision: 2 }, despite))).toMatchObject({
      status: 'succeeded',
      revision: 3,
    })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a reply that gets lost is asked for under the same key, also by a later process', async () => {
    const { billing, another, receiver } = await refused()
    receiver.faults.add(loseReply())
    const outcome = await settled(billing.retryRejected(jobRef, despite))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', revision: 2 })
    receiver.faults.clear()
    expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('weeks later its key is new, and so is its window', async () => {
    const { billing, receiver } = await refused()
    await pass(20 * DAY_MS)
    expect(await settled(billing.retryRejected(jobRef, despite))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('after the body has gone it is refused, and nothing is written', async () => {
    const { billing, receiver } = await refused()
    await pass(31 * DAY_MS)
    expect(await settled(billing.prune())).toMatchObject({ bodies: 1 })
    const error = await refusalOf(billing.retryRejected(jobRef, despite))
    expect(error.reason).toBe('nothing-to-retry')
    expect(error.message).toContain('body')
    expect(await viewsOf(billing)).toHaveLength(1)
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test.each<[string, Parameters<typeof setUp>[0]]>([
    ['pending', { receiver: { faults: [status(429, { attempt: 1 })] } }],
    ['sending', { client: { retry: { maxAttempts: 1 } }, receiver: { faults: [loseReply({ attempt: 1 })] } }],
    ['unknown', { receiver: { faults: [savedFailure(500)] } }],
    ['accepted', { receiver: { paymentMethods: { pm_card: { status: 'processing' } } } }],
    ['succeeded', {}],
  ])('what is %s is not tried again', async (state, options) => {
    const { billing, receiver } = setUp(options)
    await settled(billing.charge(coffee, order))
    const { length } = receiver.ledger.requests
    const error = await refusalOf(billing.retryRejected(ref, despite))
    expect(error).toMatchObject({ reason: 'nothing-to-retry', entry: { state } })
    expect(receiver.ledger.requests).toHaveLength(length)
  })

  test('what the journal does not hold is a typed error', async () => {
    const { billing } = setUp()
    await expect(settled(billing.retryRejected(ref))).rejects.toMatchObject({ code: 'ERR_NOT_FOUND' })
  })

  // The event is old, the key of the next revision is not: naming the event again must not end its delivery.
  test('a reply that gets lost weeks later, and the job that runs again with the time of its event', async () => {
    const world = setUp({ receiver: { faults: [status(400, { request: 1, body: { error: 'no_such_meter' } })] } })
    const { billing, receiver } = world
    await pass(1000)
    const event = { ...job, eventAtMs: Date.now() - 500 }
    await settled(billing.recordUsage(usage, event))
    await pass(20 * DAY_MS)
    receiver.faults.add(loseReply())
    await settled(billing.retryRejected(jobRef, despite))
    receiver.faults.clear()
    await pass(HOUR_MS)
    expect(await settled(billing.recordUsage(usage, event))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a signal that fired writes nothing; one that fires later stops the waiting only', async () => {
    const { billing, another, receiver } = await refused()
    const fired = billing.retryRejected(jobRef, { ...despite, signal: AbortSignal.abort() })
    await expect(fired).rejects.toMatchObject({ code: 'ERR_DELIVERY_ABORTED', sentByThisCall: false })
    expect(await viewsOf(billing)).toHaveLength(1)

    receiver.faults.add(delay(10_000))
    const leaving = new AbortController()
    const left = billing.retryRejected(jobRef, { ...despite, signal: leaving.signal })
    left.catch(() => {})
    await pass(1000)
    leaving.abort()
    await expect(left).rejects.toMatchObject({ code: 'ERR_DELIVERY_ABORTED', sentByThisCall: true })
    await pass(HOUR_MS)
    await settled(another().resume())
    expect(await billing.find(jobRef)).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a deadline ends the waiting, and the entry goes on', async () => {
    const { billing, receiver } = await refused()
    receiver.faults.add(delay(10_000))
    const outcome = await settled(billing.retryRejected(jobRef, { ...despite, deadlineMs: 1000 }))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'in-flight' })
    await pass(HOUR_MS)
    expect(await billing.find(jobRef)).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('with another login nothing is sent, and it waits', async () => {
    const { billing, another, receiver } = await refused()
    const credentials = () => ({ scope: 'org_7/test', headers: {} })
    const other = another({ headers: undefined, credentials })
    expect(await settled(other.retryRejected(jobRef, despite))).toMatchObject({
      status: 'deferred',
      reason: 'other-login',
      revision: 2,
    })
    expect(receiver.ledger.effects).toHaveLength(0)
    expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1 })
  })

  test('after close() nothing is opened', async () => {
    const { billing, another } = await refused()
    await settled(billing.close())
    await expect(billing.retryRejected(jobRef, despite)).rejects.toMatchObject({ code: 'ERR_CLIENT_CLOSED' })
    expect(await viewsOf(another())).toHaveLength(1)
  })

  test('a misspelled option is refused', async () => {
    const { billing } = await refused()
    const misspelled = { despite: true } as object
    await expect(settled(billing.retryRejected(jobRef, misspelled))).rejects.toMatchObject({ field: 'despite' })
  })

  // Both revisions were declined, and then it turns out that the first was paid.
  test.each(['contradicted', 'decided'])(
    'not while or after an earlier revision turned out to be paid: %s',
    async (until) => {
      const { billing, receiver } = setUp()
      await settled(billing.charge(declined, order))
      await settled(billing.charge(declined, second))
      const one = { ...ref, revision: 1 }
      await settled(billing.recordEvidence(one, { source: 'webhook', found: 'applied', receipt }))
      if (until === 'decided') await settled(billing.recordEvidence(one, { ...decision, found: 'applied', receipt }))
      const { length } = receiver.ledger.requests
      await settled(billing.retryRejected(ref, despite).catch((thrown: unknown) => thrown))
      expect(receiver.ledger.requests).toHaveLength(length)
      expect(await viewsOf(billing)).toHaveLength(2)
    },
  )
})
