/** The next revision is a new key: it opens only where the one before was refused for certain. */
import { RevisionRefusedError, standard } from 'billonce'
import type { BillingClient, BillingEvent, Outcome } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { journalWith } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const declined = { ...coffee, paymentMethod: 'pm_declined' }
const otherCard = { ...coffee, paymentMethod: 'pm_card_2' }
const second = { ...order, revision: 2 }

async function afterDecline(options: Parameters<typeof setUp>[0] = {}): Promise<ReturnType<typeof setUp>> {
  const world = setUp(options)
  expect(await settled(world.billing.charge(declined, order))).toMatchObject({
    status: 'rejected',
    revision: 1,
    rejection: { kind: 'declined', code: 'card_declined', behindKey: true },
  })
  return world
}

const refusalOf = async (asked: Promise<unknown>): Promise<unknown> => {
  const error: unknown = await settled(asked.catch((thrown: unknown) => thrown))
  expect(error).toBeInstanceOf(RevisionRefusedError)
  expect(error).toMatchObject({ code: 'ERR_REVISION_REFUSED', sentByThisCall: false })
  return error
}

test('a declined card, then revision 2 with another one: a new key, one effect, both on record', async () => {
  const { billing, receiver } = await afterDecline()
  const outcome = await settled(billing.charge(otherCard, second))
  expect(outcome).toMatchObject({ status: 'succeeded', revision: 2 })
  expect(receiver.ledger.effects).toMatchObject([{ params: { paymentMethod: 'pm_card_2' } }])
  expect(new Set(receiver.ledger.requests.map((request) => request.key)).size).toBe(2)
  expect(await viewsOf(billing)).toMatchObject([
    { revision: 1, state: 'rejected' },
    { revision: 2, state: 'succeeded' },
  ])
  expect(await billing.find(ref)).toMatchObject({ revision: 2, status: 'succeeded' })
  expect(await billing.find({ ...ref, revision: 1 })).toMatchObject({ revision: 1, status: 'rejected' })
})

test('named again without a revision, a rejected operation is answered from the journal, and the latest is meant', async () => {
  const { billing, receiver } = await afterDecline()
  expect(await settled(billing.charge(declined, order))).toMatchObject({ status: 'rejected', source: 'journal' })
  await expect(settled(billing.charge(otherCard, order))).rejects.toMatchObject({ code: 'ERR_OPERATION_CONFLICT' })
  await settled(billing.charge(otherCard, second))
  expect(await settled(billing.charge(otherCard, order))).toMatchObject({
    status: 'succeeded',
    revision: 2,
    source: 'journal',
  })
  expect(receiver.ledger.requests).toHaveLength(2)
})

test('revision 2 twice at once, in one client and in two, is one entry and one effect', async () => {
  const { billing, another, receiver } = await afterDecline({ receiver: { latencyMs: 10 } })
  const outcomes = await settled(
    Promise.all([billing, billing, another(), another()].map((client) => client.charge(otherCard, second))),
  )
  expect(outcomes.every((outcome) => outcome.status === 'succeeded' && outcome.revision === 2)).toBe(true)
  expect(new Set(outcomes.map((outcome) => outcome.key)).size).toBe(1)
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(await viewsOf(billing)).toHaveLength(2)
})

test('revisions 2 and 3 at once: never two open at the same time', async () => {
  const { billing, another, receiver } = await afterDecline({ receiver: { latencyMs: 10 } })
  const results = await settled(
    Promise.allSettled([billing.charge(otherCard, second), another().charge(otherCard, { ...order, revision: 3 })]),
  )
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(results.filter((result) => result.status === 'fulfilled').length).toBeGreaterThan(0)
  expect(await viewsOf(billing)).toHaveLength(2)
})

test.each<[string, Parameters<typeof setUp>[0]]>([
  ['sending', { client: { retry: { maxAttempts: 1 } }, receiver: { faults: [loseReply({ attempt: 1 })] } }],
  ['pending', { receiver: { faults: [status(429, { attempt: 1 })] } }],
  [
    'unknown',
    { receiver: { faults: [status(422, { attempt: 1, body: { error: { code: 'idempotency_key_reused' } } })] } },
  ],
])('while revision 1 is %s revision 2 is refused, and nothing is written or sent', async (state, options) => {
  const { billing, receiver, journal } = setUp(options)
  await settled(billing.charge(coffee, order))
  const before = await journal.list({}, 10)
  const error = await refusalOf(billing.charge(otherCard, second))
  expect(error).toMatchObject({ reason: 'earlier-revision-open', entry: { state } })
  expect(await journal.list({}, 10)).toEqual(before)
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('while revision 1 waits for the customer’s bank revision 2 is refused', async () => {
  const { billing } = setUp()
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_requires_action' }, order))
  expect(await refusalOf(billing.charge(otherCard, second))).toMatchObject({
    reason: 'earlier-revision-open',
    entry: { state: 'accepted' },
  })
})

test('while revision 1 is in flight revision 2 is refused', async () => {
  const { billing, receiver } = setUp({ receiver: { latencyMs: 1000 } })
  const first = billing.charge(coffee, order)
  await pass(100)
  await refusalOf(billing.charge(otherCard, second))
  expect(await settled(first)).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('after a success revision 2 is answered with the success', async () => {
  const { billing, receiver } = setUp()
  await settled(billing.charge(coffee, order))
  expect(await settled(billing.charge(otherCard, second))).toMatchObject({
    status: 'succeeded',
    revision: 1,
    source: 'journal',
  })
  expect(await settled(billing.charge(otherCard, { ...order, revision: 7 }))).toMatchObject({ revision: 1 })
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('after a cancellation revision 2 is refused: the same revision is opened again', async () => {
  const { billing } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
  await settled(billing.charge(coffee, order))
  await settled(billing.cancel(ref))
  expect(await refusalOf(billing.charge(otherCard, second))).toMatchObject({ reason: 'earlier-revision-canceled' })
})

test('a revision below one that the journal holds is refused', async () => {
  const { billing } = setUp()
  await settled(billing.charge(declined, { ...order, revision: 3 }))
  expect(await refusalOf(billing.charge(otherCard, second))).toMatchObject({ reason: 'not-the-next' })
})

test('for revisions that the journal does not hold the caller vouches', async () => {
  const { billing, receiver } = setUp()
  expect(await settled(billing.charge(coffee, { ...order, revision: 5 }))).toMatchObject({
    status: 'succeeded',
    revision: 5,
  })
  expect(receiver.ledger.effects).toHaveLength(1)
})

describe('a refusal that is not on record behind the key', () => {
  const invalid = {
    faults: [status(400, { request: 1, body: { error: { code: 'no_such_customer', message: 'No.' } } })],
  }

  test('opens the next revision only where the caller vouches', async () => {
    const { billing, receiver } = setUp({ receiver: invalid })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'rejected',
      rejection: { kind: 'invalid', code: 'no_such_customer', behindKey: false },
    })
    expect(await refusalOf(billing.charge(otherCard, second))).toMatchObject({ reason: 'unrecorded-refusal' })
    const outcome = await settled(billing.charge(otherCard, { ...second, despiteUnrecordedRefusal: true }))
    expect(outcome).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('is enough where names are one’s own', async () => {
    const { billing } = setUp({ client: { names: 'own' }, receiver: invalid })
    await settled(billing.charge(coffee, order))
    expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'succeeded', revision: 2 })
  })
})

test('where the receiver frees keys on a rejection, the next revision waits for attempts that may still be at work', async () => {
  const { billing, receiver } = setUp({
    client: { dialect: standard({ keepsRejections: false }) },
    receiver: { keepsRejections: false, faults: [loseReply({ attempt: 1 })] },
  })
  expect(await settled(billing.charge(declined, order))).toMatchObject({
    status: 'unknown',
    reason: 'refused-unproven',
    attempts: 2,
  })
  expect(await refusalOf(billing.charge(otherCard, second))).toMatchObject({ reason: 'earlier-revision-open' })
  await pass(121_000)
  expect(await settled(billing.resume())).toMatchObject({ rejected: 1 })
  expect(await settled(billing.charge(otherCard, second))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

describe('a word that contradicts a final state', () => {
  /** Revision 1 is refused for certain, and later its first, late reply says that it worked. */
  async function contradicted(): Promise<{
    world: ReturnType<typeof setUp>
    late: Promise<Outcome>
    release: () => void
    events: BillingEvent[]
  }> {
    const events: BillingEvent[] = []
    let release = (): void => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    let fetches = 0
    const world = setUp({
      receiver: { faults: [status(402, { request: 2, body: { error: { code: 'card_declined' } } })] },
    })
    const slow = world.another({
      retry: { attemptTimeoutMs: 250_000, deadlineMs: 600_000 },
      fetch: async (input, init) => {
        fetches += 1
        const response = await world.receiver.fetch(input, init)
        if (fetches === 1) await held
        return response
      },
    })
    slow.subscribe((event) => events.push(event))
    const late = slow.charge(coffee, order)
    await pass(1000)
    const lockless = journalWith(world.journal, async (call, run) => (call.method === 'isGone' ? true : await run()))
    const other = world.another({ journal: lockless })
    expect(await settled(other.charge(coffee, order))).toMatchObject({ status: 'rejected' })
    return { world, late, release, events }
  }

  test('is kept beside it, raised as an event, and answered as unknown with both words', async () => {
    const { world, late, release, events } = await contradicted()
    release()
    const outcome = await settled(late)
    expect(events).toContainEqual(expect.objectContaining({ type: 'contradiction', key: outcome.key, attempt: 1 }))
    expect(outcome).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'contradicted',
      settled: { state: 'rejected', rejection: { code: 'card_declined' } },
      contradiction: { word: 'succeeded', attempt: 1, receipt: { id: 'ch_000001' } },
    })
    for (const client of [world.billing, world.another()] satisfies BillingClient[]) {
      expect(await client.find(ref)).toMatchObject({ reason: 'contradicted' })
      expect(await settled(client.charge(coffee, order))).toMatchObject({ reason: 'contradicted' })
      expect(await settled(client.charge(otherCard, second))).toMatchObject({ reason: 'contradicted', revision: 1 })
    }
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(world.billing)).toMatchObject([{ state: 'rejected', outcome: { reason: 'contradicted' } }])
  })

  test('stops a later revision that was open already', async () => {
    const { world, late, release } = await contradicted()
    world.receiver.faults.add(status(429, { when: (request) => request.body.includes('pm_card_2') }))
    expect(await settled(world.billing.charge(otherCard, second))).toMatchObject({ status: 'deferred', revision: 2 })
    release()
    await settled(late)
    world.receiver.faults.clear()
    const sent = world.receiver.ledger.requests.length
    expect(await settled(world.billing.charge(otherCard, second))).toMatchObject({ reason: 'contradicted' })
    expect(await settled(world.another().resume())).toMatchObject({ total: 1, succeeded: 0 })
    const stop = world.another().start()
    await pass(600_000)
    stop()
    expect(world.receiver.ledger.requests).toHaveLength(sent)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expect(await world.billing.find(ref)).toMatchObject({ reason: 'contradicted' })
  })
})

test.each([0, -1, 1.5, Number.NaN, '2' as unknown as number, 2 ** 53])(
  'revision %s is refused as input',
  async (revision) => {
    const { billing, receiver } = setUp()
    await expect(billing.charge(coffee, { ...order, revision })).rejects.toMatchObject({ field: 'revision' })
    expect(receiver.ledger.requests).toHaveLength(0)
  },
)

test('G62: a charge that waits for the customer is offered again and never sent again; settled it stays settled', async () => {
  const { billing, another, receiver } = setUp()
  const params = { ...coffee, paymentMethod: 'pm_requires_action' }
  const first = await settled(billing.charge(params, order))
  expect(first).toMatchObject({
    status: 'accepted',
    progress: 'requires_action',
    nextAction: { type: 'redirect', url: 'https://bank.example/authenticate' },
  })
  const again = await settled(another().charge(params, order))
  expect(again).toMatchObject({
    status: 'accepted',
    nextAction: (first as { nextAction?: unknown }).nextAction,
    source: 'journal',
  })
  expect(await settled(another().resume())).toMatchObject({ total: 0, needEvidence: { accepted: 1 } })
  expect(receiver.ledger.requests).toHaveLength(1)
})
