/**
 * Evidence settles what no reply has: by webhook, look-up or a person's decision, for one entry or for all. It moves forward
 * only, is refused where it cannot be believed, and what contradicts a final state waits for a person.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import {
  createBillingClient,
  defineWrite,
  EvidenceRefusedError,
  InvalidInputError,
  NotFoundError,
  standard,
} from 'billonce'
import type {
  BillingClient,
  BillingEvent,
  EntryState,
  EvidenceInput,
  LookUp,
  Outcome,
  ReconcileProgress,
} from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver, loseReply, savedFailure, status, wrongReceipt } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { journalWith } from '../engine/tampering.ts'
import { BASE_URL, coffee, pass, quiet, SCOPE, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'

virtualTime()

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const second = { ...order, revision: 2 }
const oneAttempt = { retry: { maxAttempts: 1 } }

const receipt = { id: 'ch_000001', amount: coffee.amount, currency: coffee.currency, status: 'succeeded' }
const webhook = { source: 'webhook', found: 'applied', receipt } as const
const decision = { source: 'decision', by: 'Ada, finance', why: 'bank statement of 3 May' } as const
const applied = { ...decision, found: 'applied', receipt } as const
const notApplied = { ...decision, found: 'not-applied' } as const
const nothing = { source: 'look-up', found: 'nothing' } as const

/** A charge in each state; what may have left has left two hours ago. */
const inState: Readonly<Record<EntryState, () => Promise<World>>> = {
  async pending() {
    return await charged(
      { receiver: { faults: [status(429, { attempt: 1, headers: { 'retry-after': '36000' } })] } },
      0,
    )
  },
  async sending() {
    return await charged({ client: oneAttempt, receiver: { faults: [loseReply({ attempt: 1 })] } })
  },
  async accepted() {
    return await charged({ receiver: { paymentMethods: { pm_card: { status: 'processing' } } } })
  },
  async unknown() {
    return await charged({ receiver: { faults: [savedFailure(500, { afterEffect: true })] } })
  },
  async succeeded() {
    return await charged({})
  },
  async rejected() {
    return await charged({ receiver: { paymentMethods: { pm_card: { declined: 'card_declined' } } } })
  },
  async canceled() {
    const world = await charged({ receiver: { faults: [status(429, { attempt: 1 })] } })
    await settled(world.billing.cancel(ref))
    return world
  },
}

async function charged(options: Parameters<typeof setUp>[0], waitMs = 2 * HOUR_MS): Promise<World> {
  const world = setUp(options)
  await settled(world.billing.charge(coffee, order))
  if (waitMs > 0) await pass(waitMs)
  return world
}

async function inStateOf(state: EntryState): Promise<World> {
  const world = await inState[state]()
  expect(await viewsOf(world.billing)).toMatchObject([{ state }])
  return world
}

async function refusalOf(asked: Promise<unknown>): Promise<EvidenceRefusedError> {
  const error: unknown = await settled(asked.catch((thrown: unknown) => thrown))
  expect(error).toBeInstanceOf(EvidenceRefusedError)
  expect(error).toMatchObject({ code: 'ERR_EVIDENCE_REFUSED', sentByThisCall: false })
  return error as EvidenceRefusedError
}

/** The stored entry as text, to see that nothing has changed. */
async function stored({ journal }: World): Promise<string> {
  return JSON.stringify((await journal.list({}, 10)).entries)
}

const evidenceOf = async ({ journal }: World) => (await journal.list({}, 10)).entries[0]?.evidence ?? []

// ------------------------------------------------------------------------------------------------- every form, every state

describe('what evidence makes of each state', () => {
  const table: readonly [EvidenceInput, Readonly<Record<EntryState, string>>][] = [
    [
      webhook,
      {
        pending: 'succeeded',
        sending: 'succeeded',
        accepted: 'succeeded',
        unknown: 'succeeded',
        succeeded: 'succeeded',
        rejected: 'contradicted',
        canceled: 'contradicted',
      },
    ],
    [
      { source: 'look-up', found: 'applied', receipt },
      {
        pending: 'succeeded',
        sending: 'succeeded',
        accepted: 'succeeded',
        unknown: 'succeeded',
        succeeded: 'succeeded',
        rejected: 'contradicted',
        canceled: 'contradicted',
      },
    ],
    [
      applied,
      {
        pending: 'succeeded',
        sending: 'succeeded',
        accepted: 'succeeded',
        unknown: 'succeeded',
        succeeded: 'succeeded',
        rejected: 'contradicted',
        canceled: 'contradicted',
      },
    ],
    ...(['webhook', 'look-up', 'decision'] as const).map(
      (source): [EvidenceInput, Readonly<Record<EntryState, string>>] => [
        source === 'decision' ? notApplied : { source, found: 'not-applied', code: 'voided' },
        {
          pending: 'refused: pending',
          sending: 'rejected',
          accepted: 'rejected',
          unknown: 'rejected',
          succeeded: 'contradicted',
          rejected: 'rejected',
          canceled: 'canceled',
        },
      ],
    ),
    [
      { ...nothing, conclusive: true },
      {
        pending: 'refused: pending',
        sending: 'rejected',
        accepted: 'rejected',
        unknown: 'rejected',
        succeeded: 'succeeded',
        rejected: 'rejected',
        canceled: 'canceled',
      },
    ],
    // Without a dialect that says when that is enough, it never is.
    [
      nothing,
      {
        pending: 'deferred',
        sending: 'unknown',
        accepted: 'accepted',
        unknown: 'unknown',
        succeeded: 'succeeded',
        rejected: 'rejected',
        canceled: 'canceled',
      },
    ],
  ]
  const cases = table.flatMap(([evidence, results]) =>
    Object.entries(results).map(([state, result]) => {
      const said = `${evidence.source} ${evidence.found}${'conclusive' in evidence ? ', conclusive' : ''}`
      return [said, state as EntryState, result, evidence] as const
    }),
  )

  test.each(cases)('%s, %s: %s', async (_said, state, result, evidence) => {
    const world = await inStateOf(state)
    const { billing, receiver, another } = world
    const { length } = receiver.ledger.requests
    if (result.startsWith('refused')) {
      const before = await stored(world)
      expect(`refused: ${(await refusalOf(billing.recordEvidence(ref, evidence))).reason}`).toBe(result)
      expect(await stored(world)).toBe(before)
      return
    }
    const outcome = await settled(billing.recordEvidence(ref, evidence))
    const word = 'reason' in outcome && outcome.reason === 'contradicted' ? 'contradicted' : outcome.status
    expect(word).toBe(result)
    expect(outcome).toMatchObject({ source: 'journal', operationId: 'order-1', revision: 1 })
    // The same to another process, by either way of naming it, and to the next call.
    expect(await another().find(ref)).toEqual(outcome)
    expect(await another().find({ key: outcome.key })).toEqual(outcome)
    if (result !== 'deferred' && result !== 'unknown') {
      expect((await settled(another().charge(coffee, order))).status).toBe(outcome.status)
      expect(receiver.ledger.requests).toHaveLength(length)
    }
  })

  test('a settled one says by what: the receipt, or a rejection that is not a decline', async () => {
    const one = await inStateOf('unknown')
    expect(await settled(one.billing.recordEvidence(ref, webhook))).toMatchObject({
      receipt: { id: 'ch_000001', amount: 450, reply: receipt },
    })
    const other = await inStateOf('unknown')
    const evidence = {
      source: 'look-up',
      found: 'not-applied',
      code: 'voided',
      message: 'Voided by the bank.',
    } as const
    expect(await settled(other.billing.recordEvidence(ref, evidence))).toMatchObject({
      status: 'rejected',
      rejection: { kind: 'not-applied', code: 'voided', message: 'Voided by the bank.', behindKey: true },
    })
  })

  test('who said what, when and why is kept, and told by events without any of it', async () => {
    const world = await inStateOf('unknown')
    await settled(world.billing.recordEvidence(ref, nothing))
    await settled(world.billing.recordEvidence(ref, notApplied))
    const atMs = Date.now()
    expect(await evidenceOf(world)).toEqual([
      { atMs, source: 'look-up', found: 'nothing', by: null, why: null, receiptId: null },
      { atMs, source: 'decision', found: 'not-applied', by: decision.by, why: decision.why, receiptId: null },
    ])
    const told = world.events.slice(-3)
    expect(told).toMatchObject([
      { type: 'evidence', source: 'look-up', found: 'nothing' },
      { type: 'evidence', source: 'decision', found: 'not-applied' },
      { type: 'state', from: 'unknown', to: 'rejected' },
    ])
    expect(JSON.stringify(told)).not.toMatch(/Ada|bank|order-1|org_42/)
  })

  test('after "not applied" the next revision opens, and that is one effect more and not two', async () => {
    const { billing, receiver } = await charged({ receiver: { faults: [savedFailure(500, { times: 1 })] } })
    await expect(settled(billing.charge(coffee, second))).rejects.toMatchObject({ reason: 'earlier-revision-open' })
    await settled(billing.recordEvidence(ref, notApplied))
    expect(await settled(billing.charge(coffee, second))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

// ---------------------------------------------------------------------------------------------------- what is refused

describe('a receipt for something else', () => {
  test.each<[string, object]>([
    ['another amount', { ...receipt, amount: 451 }],
    ['another currency', { ...receipt, currency: 'usd' }],
    ['another amount as text', { ...receipt, amount: '4500' }],
  ])('%s is refused and told by an event, whoever says it', async (_what, wrong) => {
    for (const source of [{ source: 'webhook' }, { source: 'look-up' }, decision] as const) {
      for (const state of ['pending', 'sending', 'accepted', 'unknown', 'succeeded'] as const) {
        const world = await inStateOf(state)
        const before = await stored(world)
        const error = await refusalOf(
          world.billing.recordEvidence(ref, { ...source, found: 'applied', receipt: wrong }),
        )
        expect(error).toMatchObject({ reason: 'receipt-differs', entry: { state } })
        expect(error.message).toContain(error.entry?.key)
        expect(world.events.at(-1)).toMatchObject({ type: 'evidence-refused', reason: 'receipt-differs' })
        expect(await stored(world)).toBe(before)
      }
    }
  })

  test('the same in other letters, or without amount and currency, is the same', async () => {
    for (const same of [{ ...receipt, currency: 'EUR' }, { id: 'ch_000001' }, { ...receipt, amount: null }]) {
      const { billing } = await inStateOf('unknown')
      const outcome = await settled(billing.recordEvidence(ref, { source: 'webhook', found: 'applied', receipt: same }))
      expect(outcome).toMatchObject({ status: 'succeeded' })
    }
  })

  test('an entry whose receipt differs is settled by a person: with the id alone, or as not applied', async () => {
    for (const said of [{ ...applied, receipt: { id: 'ch_000001' } }, notApplied]) {
      const { billing } = await charged({ receiver: { faults: [wrongReceipt({ fields: { amount: 1 } })] } })
      expect(await billing.find(ref)).toMatchObject({ reason: 'receipt-differs' })
      const outcome = await settled(billing.recordEvidence(ref, said))
      expect(outcome.status).toBe(said.found === 'applied' ? 'succeeded' : 'rejected')
    }
  })

  test('and a webhook with another receipt than the one that came is two things under one key', async () => {
    const { billing } = await charged({ receiver: { faults: [wrongReceipt({ fields: { amount: 1 } })] } })
    const other = { ...webhook, receipt: { ...receipt, id: 'ch_7' } }
    expect(await settled(billing.recordEvidence(ref, other))).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'succeeded', receipt: { id: 'ch_7' } },
      contradiction: { receipt: { id: 'ch_000001' } },
    })
  })
})

describe('"not applied" while something may still be on its way', () => {
  const forms = [
    ['a decision', notApplied],
    ['a look-up', { source: 'look-up', found: 'not-applied' }],
    ['a conclusive look-up', { ...nothing, conclusive: true }],
  ] as const

  test.each(forms)('%s, while it is being sent, is refused until the claim ends', async (_form, evidence) => {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 10_000 } })
    const call = billing.charge(coffee, order)
    await pass(1000)
    const error = await refusalOf(another().recordEvidence(ref, evidence))
    expect(error).toMatchObject({ reason: 'being-sent', retryAfterMs: expect.any(Number), entry: { state: 'sending' } })
    expect(await settled(call)).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test.each(forms)('%s, too soon after the last attempt, is refused with the time', async (_form, evidence) => {
    const { billing } = await charged({ client: oneAttempt, receiver: { faults: [loseReply()] } }, 0)
    const error = await refusalOf(billing.recordEvidence(ref, evidence))
    expect(error.reason).toBe('too-soon')
    expect(error.retryAfterMs).toBeGreaterThan(100_000)
    expect(error.retryAfterMs).toBeLessThanOrEqual(120_000)
    await pass((error.retryAfterMs ?? 0) - 1)
    expect((await refusalOf(billing.recordEvidence(ref, evidence))).reason).toBe('too-soon')
    await pass(1)
    expect(await settled(billing.recordEvidence(ref, evidence))).toMatchObject({ status: 'rejected' })
  })

  test('the longest request is what the dialect says, and never less than an attempt may take', async () => {
    for (const [dialect, retry, longestMs] of [
      [standard({ longestRequestMs: 600_000 }), { maxAttempts: 1 }, 600_000],
      [standard({ longestRequestMs: 1000 }), { maxAttempts: 1, attemptTimeoutMs: 45_000 }, 45_000],
    ] as const) {
      const { billing } = await charged({ client: { dialect, retry }, receiver: { faults: [loseReply()] } }, 0)
      expect((await refusalOf(billing.recordEvidence(ref, notApplied))).retryAfterMs).toBeLessThanOrEqual(longestMs)
      await pass(longestMs - 1000)
      await refusalOf(billing.recordEvidence(ref, notApplied))
      await pass(1000)
      expect(await settled(billing.recordEvidence(ref, notApplied))).toMatchObject({ status: 'rejected' })
    }
  })

  test('what ended unknown is still too soon: another attempt of it may be at work', async () => {
    const { billing } = await charged({ receiver: { faults: [savedFailure(500)] } }, 0)
    expect((await refusalOf(billing.recordEvidence(ref, notApplied))).reason).toBe('too-soon')
  })

  test('of what is pending: it is canceled instead', async () => {
    const { billing, events } = await inStateOf('pending')
    expect((await refusalOf(billing.recordEvidence(ref, notApplied))).reason).toBe('pending')
    expect(events.at(-1)).toMatchObject({ type: 'evidence-refused', reason: 'pending' })
    expect(await settled(billing.cancel(ref))).toMatchObject({ status: 'canceled' })
  })

  test('once taken, nothing is sent any more', async () => {
    const { billing, another, receiver } = await inStateOf('sending')
    const { length } = receiver.ledger.requests
    await settled(billing.recordEvidence(ref, notApplied))
    expect(await settled(another().resume())).toMatchObject({ total: 0 })
    expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'rejected' })
    expect(receiver.ledger.requests).toHaveLength(length)
  })
})

describe('a look-up that finds nothing', () => {
  const dialect = standard({ lookUp: { path: ({ key }) => `v1/operations/${key}`, misses: 3, delayMs: HOUR_MS } })
  const made = { client: { ...oneAttempt, dialect }, receiver: { faults: [loseReply()] } }

  test('counts as not applied after the delay, the third time', async () => {
    const world = await charged(made, 2 * HOUR_MS)
    const { billing } = world
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'unknown' })
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'unknown' })
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'rejected' })
    expect((await evidenceOf(world)).map((record) => record.found)).toEqual(['nothing', 'nothing', 'nothing'])
  })

  test('however often it finds nothing, before the delay it is no proof', async () => {
    const { billing } = await charged(made, 0)
    for (let miss = 1; miss <= 5; miss += 1) {
      expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'unknown' })
      await pass(600_000)
    }
    await pass(HOUR_MS)
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'rejected' })
  })

  test('an attempt meanwhile begins the delay anew', async () => {
    const { billing, another } = await charged(made, HOUR_MS)
    for (let miss = 1; miss <= 2; miss += 1) await settled(billing.recordEvidence(ref, nothing))
    await settled(another().charge(coffee, order))
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'unknown' })
    await pass(HOUR_MS)
    expect(await settled(billing.recordEvidence(ref, nothing))).toMatchObject({ status: 'rejected' })
  })

  test('is never enough without a dialect that says how often and how late', async () => {
    const { billing } = await inStateOf('unknown')
    for (let miss = 1; miss <= 30; miss += 1) {
      await settled(billing.recordEvidence(ref, nothing))
      await pass(DAY_MS)
    }
    expect(await billing.find(ref)).toMatchObject({ status: 'unknown' })
  })

  // The receiver has given a receipt, so that it finds nothing says something about the look-up, not about the charge.
  test.each<[string, Parameters<typeof createReceiver>[0]]>([
    ['differs', { faults: [wrongReceipt({ fields: { amount: 1 } })] }],
    ['is not concluded', { paymentMethods: { pm_card: { status: 'requires_action', nextAction: {} } } }],
  ])('is no proof against a receipt at hand that %s', async (_how, receiver) => {
    const { billing } = await charged({ client: { dialect }, receiver: receiver ?? {} })
    const before = (await billing.find(ref))?.status
    for (let miss = 1; miss <= 5; miss += 1) await settled(billing.recordEvidence(ref, nothing))
    expect((await billing.find(ref))?.status).toBe(before)
  })

  test('is at once where it is conclusive', async () => {
    const { billing } = await inStateOf('unknown')
    const said = { ...nothing, conclusive: true }
    expect(await settled(billing.recordEvidence(ref, said))).toMatchObject({ status: 'rejected' })
  })
})

test.each<[string, unknown, string]>([
  ['no evidence', undefined, 'evidence'],
  ['a source of its own', { source: 'rumour', found: 'applied', receipt }, 'source'],
  ['a finding of its own', { source: 'webhook', found: 'perhaps' }, 'found'],
  ['a receipt without an id', { ...webhook, receipt: { amount: 450 } }, 'receipt'],
  ['a receipt that is text', { ...webhook, receipt: 'ch_1' }, 'receipt'],
  ['no receipt', { source: 'webhook', found: 'applied' }, 'receipt'],
  ['a receipt whose amount is none', { ...webhook, receipt: { ...receipt, amount: true } }, 'receipt'],
  ['a decision of nobody', { source: 'decision', found: 'not-applied', why: 'x' }, 'by'],
  ['a decision without a reason', { source: 'decision', found: 'not-applied', by: 'x', why: '' }, 'why'],
  ['a webhook that found nothing', { source: 'webhook', found: 'nothing' }, 'found'],
])('%s is refused as input, and nothing is changed', async (_what, evidence, field) => {
  const world = await inStateOf('unknown')
  const before = await stored(world)
  const asked = settled(world.billing.recordEvidence(ref, evidence as EvidenceInput))
  await expect(asked).rejects.toMatchObject({ name: 'InvalidInputError', field: expect.stringContaining(field) })
  expect(await stored(world)).toBe(before)
})

describe('a write of one’s own', () => {
  const refund = defineWrite({
    kind: 'refund',
    path: 'v1/charges',
    method: 'POST',
    readParams: (params: { amount: number; currency: string }) => params,
    readReceipt: ({ data, ...rest }) => {
      const { id } = data as { id: string }
      return { id, reply: rest }
    },
    echoes: ['amount'],
  })
  const refundRef = { kind: 'refund', ...order }
  const params = { amount: 450, currency: 'eur' }

  async function lost(): Promise<World> {
    const world = setUp({ client: { writes: [refund], ...oneAttempt }, receiver: { faults: [loseReply()] } })
    await settled(world.billing.write(refund, params, order))
    return world
  }

  test('its receipt is read by its definition, and what it repeats has to fit', async () => {
    const { billing } = await lost()
    const wrong = { ...webhook, receipt: { data: { id: 'rf_1' }, amount: 1 } }
    expect((await refusalOf(billing.recordEvidence(refundRef, wrong))).reason).toBe('receipt-differs')
    const right = { ...webhook, receipt: { data: { id: 'rf_1' }, amount: 450 } }
    expect(await settled(billing.recordEvidence(refundRef, right))).toMatchObject({ receipt: { id: 'rf_1' } })
  })

  test('a client without the definition takes evidence too, such as that of a webhook handler', async () => {
    const { another } = await lost()
    const plain = another({ writes: [] })
    const wrong = { ...webhook, receipt: { id: 'rf_1', amount: 1 } }
    expect((await refusalOf(plain.recordEvidence(refundRef, wrong))).reason).toBe('receipt-differs')
    const right = { ...webhook, receipt: { id: 'rf_1', amount: 450 } }
    expect(await settled(plain.recordEvidence(refundRef, right))).toMatchObject({ status: 'succeeded' })
  })

  test('a receipt that its definition cannot read is refused as input', async () => {
    const { billing } = await lost()
    const asked = settled(billing.recordEvidence(refundRef, { ...webhook, receipt: { id: 'rf_1' } }))
    await expect(asked).rejects.toMatchObject({ name: 'InvalidInputError', field: 'receipt' })
  })
})

test('an operation that the journal does not hold is a typed error, by name and by key', async () => {
  const { billing, another } = await inStateOf('unknown')
  for (const wrong of [{ kind: 'charge', operationId: 'other' }, { key: 'other' }, { ...ref, revision: 2 }]) {
    await expect(settled(billing.recordEvidence(wrong, webhook))).rejects.toBeInstanceOf(NotFoundError)
  }
  const stranger = another({ scope: 'org_7/test' })
  await expect(settled(stranger.recordEvidence(ref, webhook))).rejects.toBeInstanceOf(NotFoundError)
})

test('after close() nothing is taken', async () => {
  const { billing } = await inStateOf('unknown')
  await settled(billing.close())
  for (const asked of [
    billing.recordEvidence(ref, webhook),
    billing.reconcile(() => ({ found: 'unclear' })),
    billing.prune(),
  ]) {
    await expect(asked).rejects.toMatchObject({ code: 'ERR_CLIENT_CLOSED' })
  }
})

// ------------------------------------------------------------------------------------------------- forward only

describe('a late reply after evidence', () => {
  /** A call whose reply is held back until `release`, while evidence is recorded. */
  async function lateAfter(
    evidence: EvidenceInput,
    receiver: Parameters<typeof createReceiver>[0] = {},
  ): Promise<{ world: World; outcome: Outcome; events: BillingEvent[] }> {
    const world = setUp({ receiver })
    let release = (): void => {}
    const held = new Promise<void>((resolve) => (release = resolve))
    const slow = world.another({
      retry: { attemptTimeoutMs: HOUR_MS, deadlineMs: 2 * HOUR_MS },
      fetch: async (input, init) => {
        const response = await world.receiver.fetch(input, init)
        await held
        return response
      },
    })
    const events: BillingEvent[] = []
    slow.subscribe((event) => events.push(event))
    const call = slow.charge(coffee, order)
    await pass(1000)
    // Its process is taken for dead, as if its lease were over.
    const journal = journalWith(world.journal, async (step, run) => (step.method === 'isGone' ? true : await run()))
    if (evidence.found === 'not-applied') vi.setSystemTime(Date.now() + HOUR_MS)
    await settled(world.another({ journal }).recordEvidence(ref, evidence))
    release()
    return { world, outcome: await settled(call), events }
  }

  test('the same receipt changes nothing', async () => {
    const { world, outcome } = await lateAfter(webhook)
    expect(outcome).toMatchObject({ status: 'succeeded', receipt: { id: 'ch_000001' } })
    expect(await world.billing.find(ref)).toMatchObject({ status: 'succeeded' })
  })

  test('another receipt is a contradiction', async () => {
    const { world, outcome, events } = await lateAfter({ ...webhook, receipt: { ...receipt, id: 'ch_7' } })
    expect(outcome).toMatchObject({
      reason: 'contradicted',
      settled: { receipt: { id: 'ch_7' } },
      contradiction: { word: 'succeeded', attempt: 1, receipt: { id: 'ch_000001' } },
    })
    expect(events).toContainEqual(expect.objectContaining({ type: 'contradiction' }))
    expect(await world.billing.find(ref)).toMatchObject({ reason: 'contradicted' })
  })

  test('a decline after "applied" is a contradiction, and so is a success after "not applied"', async () => {
    const declined = await lateAfter(webhook, { paymentMethods: { pm_card: { declined: 'card_declined' } } })
    expect(declined.outcome).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'succeeded' },
      contradiction: { word: 'refused', rejection: { code: 'card_declined' } },
    })
    const { outcome } = await lateAfter(notApplied)
    expect(outcome).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'rejected', rejection: { kind: 'not-applied' } },
      contradiction: { word: 'succeeded', receipt: { id: 'ch_000001' } },
    })
  })

  test('what says nothing changes nothing', async () => {
    for (const fault of [status(500), status(401), status(409), status(400, { body: { error: 'x' } })]) {
      const { outcome } = await lateAfter(webhook, { faults: [fault] })
      expect(outcome).toMatchObject({ status: 'succeeded', receipt: { id: 'ch_000001' } })
    }
  })
})

describe('contradictions', () => {
  async function contradicted(): Promise<World> {
    const world = await inStateOf('rejected')
    expect(await settled(world.billing.recordEvidence(ref, webhook))).toMatchObject({ reason: 'contradicted' })
    return world
  }

  test('a webhook against a refusal: unknown everywhere, with both words, and no revision opens', async () => {
    const { billing, another, receiver, events } = await contradicted()
    expect(events).toContainEqual(expect.objectContaining({ type: 'contradiction', attempt: null }))
    const { length } = receiver.ledger.requests
    for (const client of [billing, another()] satisfies BillingClient[]) {
      const answers = [
        await client.find(ref),
        await settled(client.charge(coffee, order)),
        await settled(client.charge({ ...coffee, paymentMethod: 'pm_2' }, second)),
        (await viewsOf(client))[0]?.outcome,
      ]
      for (const answer of answers) {
        expect(answer).toMatchObject({
          status: 'unknown',
          delivery: 'ended',
          reason: 'contradicted',
          settled: { state: 'rejected', rejection: { code: 'card_declined' } },
          contradiction: { word: 'succeeded', attempt: null, receipt: { id: 'ch_000001' } },
        })
      }
      await expect(settled(client.retryRejected(ref))).rejects.toMatchObject({ code: 'ERR_REVISION_REFUSED' })
    }
    expect(receiver.ledger.requests).toHaveLength(length)
    expect(await viewsOf(billing)).toHaveLength(1)
  })

  test.each([
    ['applied', applied, 'succeeded'],
    ['not applied', notApplied, 'rejected'],
  ] as const)('a decision ends it: %s', async (_word, said, expected) => {
    const { billing, another, receiver } = await contradicted()
    expect(await settled(billing.recordEvidence(ref, said))).toMatchObject({ status: expected })
    expect(await another().find(ref)).toMatchObject({ status: expected })
    const next = await settled(another().charge({ ...coffee, paymentMethod: 'pm_2' }, second))
    expect(next).toMatchObject({ status: 'succeeded', revision: expected === 'succeeded' ? 1 : 2 })
    expect(receiver.ledger.effects).toHaveLength(expected === 'succeeded' ? 0 : 1)
  })

  test('only a decision does: look-ups and webhooks are noted', async () => {
    const world = await contradicted()
    const before = await world.billing.find(ref)
    for (const said of [
      webhook,
      { source: 'look-up', found: 'applied', receipt },
      { source: 'look-up', found: 'not-applied' },
      { ...nothing, conclusive: true },
    ] satisfies EvidenceInput[]) {
      expect(await settled(world.billing.recordEvidence(ref, said))).toEqual(before)
    }
  })

  test('a webhook that is delivered again says nothing that the decision did not know', async () => {
    const { billing } = await contradicted()
    await settled(billing.recordEvidence(ref, notApplied))
    expect(await settled(billing.recordEvidence(ref, webhook))).toMatchObject({ status: 'rejected' })
    // Another receipt is news.
    const other = { ...webhook, receipt: { ...receipt, id: 'ch_8' } }
    expect(await settled(billing.recordEvidence(ref, other))).toMatchObject({ reason: 'contradicted' })
  })

  test('two receipts under one key', async () => {
    const { billing } = await inStateOf('succeeded')
    const outcome = await settled(billing.recordEvidence(ref, { ...webhook, receipt: { ...receipt, id: 'ch_7' } }))
    expect(outcome).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'succeeded', receipt: { id: 'ch_000001' } },
      contradiction: { word: 'succeeded', receipt: { id: 'ch_7' } },
    })
  })

  test('the decision stays on record, however often the webhook is delivered again', async () => {
    const world = await inStateOf('unknown')
    await settled(world.billing.recordEvidence(ref, applied))
    for (let time = 1; time <= 25; time += 1) await settled(world.billing.recordEvidence(ref, webhook))
    expect(await evidenceOf(world)).toContainEqual(expect.objectContaining({ by: decision.by, why: decision.why }))
  })
})

describe('what was made and not concluded', () => {
  test('is moved by evidence to succeeded, and to rejected, after which another card may be tried', async () => {
    const one = await inStateOf('accepted')
    expect(await settled(one.billing.recordEvidence(ref, webhook))).toMatchObject({ status: 'succeeded' })
    const other = await inStateOf('accepted')
    await expect(settled(other.billing.charge(coffee, second))).rejects.toMatchObject({
      reason: 'earlier-revision-open',
    })
    const failed = { source: 'webhook', found: 'not-applied', code: 'authentication_failed' } as const
    expect(await settled(other.billing.recordEvidence(ref, failed))).toMatchObject({
      status: 'rejected',
      rejection: { kind: 'not-applied', code: 'authentication_failed' },
    })
    const again = await settled(other.billing.charge({ ...coffee, paymentMethod: 'pm_2' }, second))
    expect(again).toMatchObject({ status: 'succeeded', revision: 2 })
  })

  test('is not concluded by a word that says it is still at work', async () => {
    for (const word of ['processing', 'requires_action']) {
      const { billing } = await inStateOf('accepted')
      const said = { ...webhook, receipt: { ...receipt, status: word } }
      await settled(billing.recordEvidence(ref, said).catch((thrown: unknown) => thrown))
      expect(await billing.find(ref)).toMatchObject({ status: 'accepted' })
    }
  })

  test('with another receipt than the one it has, it is two things under one key', async () => {
    const { billing } = await inStateOf('accepted')
    const outcome = await settled(billing.recordEvidence(ref, { ...webhook, receipt: { ...receipt, id: 'ch_7' } }))
    expect(outcome).toMatchObject({ reason: 'contradicted', contradiction: { receipt: { id: 'ch_000001' } } })
  })
})

// ----------------------------------------------------------------------------------------------- restarts, two at once

test('a restart between the answer, the evidence and the next question', async () => {
  vi.useRealTimers()
  const folder = mkdtempSync(join(tmpdir(), 'billonce-evidence-'))
  const receiver = createReceiver({ faults: [savedFailure(500, { afterEffect: true })] })
  const inProcess = async <T>(work: (billing: BillingClient) => Promise<T>): Promise<T> => {
    const journal = sqliteJournal({ path: join(folder, 'journal.sqlite') })
    const billing = createBillingClient({
      baseUrl: BASE_URL,
      scope: SCOPE,
      journal,
      fetch: receiver.fetch,
      retry: { baseDelayMs: 1 },
    })
    try {
      return await work(billing)
    } finally {
      await billing.close()
      await journal.close()
    }
  }
  try {
    expect(await inProcess((billing) => billing.charge(coffee, order))).toMatchObject({ reason: 'recorded-failure' })
    expect(await inProcess((billing) => billing.recordEvidence(ref, applied))).toMatchObject({ status: 'succeeded' })
    const wrong = { ...webhook, receipt: { ...receipt, id: 'ch_7' } }
    expect(await inProcess((billing) => billing.recordEvidence(ref, wrong))).toMatchObject({ reason: 'contradicted' })
    expect(await inProcess((billing) => billing.find(ref))).toMatchObject({
      reason: 'contradicted',
      contradiction: { receipt: { id: 'ch_7' } },
    })
    expect(await inProcess((billing) => billing.recordEvidence(ref, applied))).toMatchObject({ status: 'succeeded' })
    expect(await inProcess((billing) => billing.charge(coffee, order))).toMatchObject({
      status: 'succeeded',
      receipt: { id: 'ch_000001' },
    })
    expect(receiver.ledger.effects).toHaveLength(1)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

describe('two clients at once', () => {
  test('with the same word: one change of state, both get it', async () => {
    const { billing, another, journal } = await inStateOf('unknown')
    const outcomes = await settled(
      Promise.all([billing, another(), another()].map((client) => client.recordEvidence(ref, webhook))),
    )
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded', 'succeeded'])
    expect((await journal.list({}, 10)).entries).toMatchObject([{ state: 'succeeded', contradiction: null }])
  })

  test('with opposite words: the first is the state, the second contradicts, none is lost', async () => {
    const world = await inStateOf('unknown')
    await settled(
      Promise.all([world.billing.recordEvidence(ref, webhook), world.another().recordEvidence(ref, notApplied)]),
    )
    expect(await world.billing.find(ref)).toMatchObject({
      reason: 'contradicted',
      settled: { state: 'succeeded' },
      contradiction: { word: 'refused' },
    })
    expect(await evidenceOf(world)).toHaveLength(2)
  })

  test('evidence and an attempt that begins at the same moment: never a no for what leaves', async () => {
    for (let round = 0; round < 5; round += 1) {
      const { billing, another, receiver } = await inStateOf('sending')
      const results = await settled(
        Promise.allSettled([billing.recordEvidence(ref, notApplied), another().charge(coffee, order)]),
      )
      const after = await billing.find(ref)
      expect(['rejected', 'succeeded']).toContain(after?.status)
      if (after?.status === 'rejected') expect(receiver.ledger.requests).toHaveLength(1)
      else expect(results[0]).toMatchObject({ status: 'rejected', reason: { code: 'ERR_EVIDENCE_REFUSED' } })
    }
  })

  test('a journal that fails: a typed error, and the next time it is taken', async () => {
    const world = await inStateOf('unknown')
    let isBroken = true
    const journal = journalWith(world.journal, async ({ method }, run) => {
      if (isBroken && method === 'replace') throw new Error('no space')
      return await run()
    })
    const client = world.another({ journal })
    await expect(settled(client.recordEvidence(ref, webhook))).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      sentByThisCall: false,
    })
    expect(await world.billing.find(ref)).toMatchObject({ status: 'unknown' })
    isBroken = false
    expect(await settled(client.recordEvidence(ref, webhook))).toMatchObject({ status: 'succeeded' })
  })
})

// -------------------------------------------------------------------------------------------------------- reconcile

describe('reconcile()', () => {
  /** Charges of which nobody knows what became of them, `order-1` to `order-n`. */
  async function unknowns(count: number, options: Parameters<typeof setUp>[0] = {}): Promise<World> {
    const world = setUp({ ...options, receiver: { faults: [savedFailure(500, { afterEffect: true })] } })
    for (let number = 1; number <= count; number += 1) {
      await settled(world.billing.charge(coffee, { operationId: `order-${number}` }))
    }
    await pass(2 * HOUR_MS)
    return world
  }

  /** What the receiver's own records say. */
  const byLedger =
    (receiver: Receiver): LookUp =>
    ({ key }) => {
      const [effect] = receiver.ledger.effectsOf({ key })
      return effect ? { found: 'applied', receipt: effect.receipt } : { found: 'nothing' }
    }

  test('settles all that is unknown or accepted by what is found, and leaves all else alone', async () => {
    const { billing, receiver, another } = await unknowns(5)
    receiver.faults.clear()
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_processing' }, { operationId: 'accepted' }))
    await settled(billing.charge(coffee, { operationId: 'paid' }))
    receiver.faults.add(loseReply())
    await settled(billing.charge(coffee, { operationId: 'sending' }))
    const asked: string[] = []
    const summary = await settled(
      billing.reconcile((entry) => {
        asked.push(entry.operationId)
        return byLedger(receiver)(entry)
      }),
    )
    // The accepted one is still processing at the receiver, which is what the journal knows already.
    expect(summary).toEqual({
      total: 6,
      succeeded: 5,
      rejected: 0,
      misses: 0,
      unsettled: 1,
      contradicted: 0,
      failed: 0,
    })
    expect(asked.toSorted()).toEqual(['accepted', 'order-1', 'order-2', 'order-3', 'order-4', 'order-5'])
    expect(await settled(another().reconcile(byLedger(receiver)))).toMatchObject({ total: 1, unsettled: 1 })
  })

  test('counts each kind of answer once, and one that throws holds up none of the others', async () => {
    const { billing, events } = await unknowns(8)
    // A word against a word: left alone, since only a person can end it.
    await settled(billing.recordEvidence({ kind: 'charge', operationId: 'order-8' }, webhook))
    await settled(billing.recordEvidence({ kind: 'charge', operationId: 'order-8' }, notApplied))
    const answers: Record<string, LookUp> = {
      'order-1': () => ({ found: 'applied', receipt: { id: 'ch_1' } }),
      'order-2': () => ({ found: 'not-applied', code: 'voided' }),
      'order-3': () => ({ found: 'nothing' }),
      'order-4': () => ({ found: 'unclear' }),
      'order-5': () => {
        throw new Error('503')
      },
      'order-6': () => ({ found: 'applied', receipt: { id: 'ch_6', amount: 1 } }),
      'order-7': () => Promise.reject(new Error('timeout')),
    }
    const progress: ReconcileProgress[] = []
    const asked: string[] = []
    const summary = await settled(
      billing.reconcile(
        async (entry) => {
          asked.push(entry.operationId)
          return await answers[entry.operationId]!(entry)
        },
        { onProgress: (one) => progress.push(one) },
      ),
    )
    expect(summary).toEqual({
      total: 7,
      succeeded: 1,
      rejected: 1,
      misses: 1,
      unsettled: 2,
      contradicted: 0,
      failed: 2,
    })
    expect(asked).not.toContain('order-8')
    expect(progress.map(({ done }) => done)).toEqual([1, 2, 3, 4, 5, 6, 7])
    expect(progress.at(-1)).toEqual({ done: 7, found: 7 })
    expect(events).toContainEqual(expect.objectContaining({ type: 'evidence-refused', reason: 'receipt-differs' }))
    const left = await viewsOf(billing, { states: ['unknown'] })
    expect(left.map((view) => view.operationId)).toEqual(['order-3', 'order-4', 'order-5', 'order-6', 'order-7'])
  })

  test('a look-up that finds another receipt than the one at hand is counted as contradicted', async () => {
    const { billing } = await inStateOf('accepted')
    const other = { found: 'applied', receipt: { ...receipt, id: 'ch_7' } } as const
    expect(await settled(billing.reconcile(() => other))).toMatchObject({ total: 1, contradicted: 1, succeeded: 0 })
    expect(await settled(billing.reconcile(() => other))).toMatchObject({ total: 0 })
  })

  test.each([1, 3])('asks %s at a time', async (concurrency) => {
    const { billing, receiver } = await unknowns(10, { client: { concurrency } })
    let now = 0
    let most = 0
    const summary = await settled(
      billing.reconcile(async (entry) => {
        now += 1
        most = Math.max(most, now)
        await new Promise((resolve) => setTimeout(resolve, 100))
        now -= 1
        return await byLedger(receiver)(entry)
      }),
    )
    expect(most).toBe(concurrency)
    expect(summary).toMatchObject({ total: 10, succeeded: 10 })
  })

  test('some hundred entries over several pages', async () => {
    const { billing, receiver } = await unknowns(150)
    expect(await settled(billing.reconcile(byLedger(receiver)))).toMatchObject({ total: 150, succeeded: 150 })
  })

  test('ends at a signal and at close(), and what was begun is counted', async () => {
    const { billing, receiver, another } = await unknowns(10, { client: { concurrency: 1 } })
    const stop = new AbortController()
    let asked = 0
    const look: LookUp = (entry) => {
      asked += 1
      if (asked === 3) stop.abort()
      return byLedger(receiver)(entry)
    }
    const summary = await settled(billing.reconcile(look, { signal: stop.signal }))
    expect(summary).toMatchObject({ total: asked, succeeded: asked })
    expect(asked).toBeLessThan(10)

    const closing = another()
    let askedThen = 0
    await settled(
      closing.reconcile((entry) => {
        askedThen += 1
        void closing.close()
        return byLedger(receiver)(entry)
      }),
    )
    expect(askedThen).toBeLessThan(10 - asked)
    expect(await settled(another().reconcile(byLedger(receiver)))).toMatchObject({ failed: 0 })
    expect(await viewsOf(another(), { states: ['unknown'] })).toEqual([])
  })

  test('an observer that throws changes nothing', async () => {
    const { billing, receiver } = await unknowns(2)
    const onProgress = (): never => {
      throw new Error('no')
    }
    expect(await settled(billing.reconcile(byLedger(receiver), { onProgress }))).toMatchObject({ succeeded: 2 })
  })

  test('a look-up that answers nonsense is counted as failed', async () => {
    const { billing } = await unknowns(3)
    const nonsense = [undefined, { found: 'yes' }, { found: 'applied', receipt: null }]
    const summary = await settled(billing.reconcile((() => nonsense.pop()) as unknown as LookUp))
    expect(summary).toMatchObject({ total: 3, failed: 3 })
    expect(await viewsOf(billing, { states: ['unknown'] })).toHaveLength(3)
  })

  test('one that answers while another process settles the entry', async () => {
    const { billing, another, receiver } = await unknowns(1)
    const summary = await settled(
      billing.reconcile(async (entry) => {
        await another().recordEvidence({ key: entry.key }, webhook)
        return await byLedger(receiver)(entry)
      }),
    )
    expect(summary).toMatchObject({ total: 1, succeeded: 1, contradicted: 0 })
  })

  test('of this scope and endpoint only', async () => {
    const { another, receiver } = await unknowns(2)
    expect(await settled(another({ scope: 'org_7/test' }).reconcile(byLedger(receiver)))).toMatchObject({ total: 0 })
    expect(await settled(another({ endpoint: 'other' }).reconcile(byLedger(receiver)))).toMatchObject({ total: 0 })
  })

  test('without a look-up of one’s own or of the dialect is a typed error', async () => {
    const { billing } = await unknowns(1)
    const error: unknown = await settled(billing.reconcile().catch((thrown: unknown) => thrown))
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field: 'lookUp' })
    await expect(settled(billing.reconcile(undefined, { progress: 1 } as object))).rejects.toMatchObject({
      field: 'progress',
    })
  })

  test('a journal that cannot be listed is a typed error', async () => {
    const world = await unknowns(1)
    const journal = journalWith(world.journal, async ({ method }, run) => {
      if (method === 'list') throw new Error('gone')
      return await run()
    })
    const asked = settled(world.another({ journal }).reconcile(byLedger(world.receiver)))
    await expect(asked).rejects.toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE' })
  })
})

describe('reconcile() by the dialect’s own look-up', () => {
  const lookUp = { path: ({ key }: { key: string }) => `v1/operations/${key}`, misses: 2, delayMs: HOUR_MS }

  /** A receiver that also answers `GET v1/operations/<key>`, with what `answer` says or with its records. */
  async function world(
    options: { faults?: Parameters<typeof createReceiver>[0]; answer?: () => Response; withoutKey?: string[] } = {},
  ): Promise<World & { asked: Request[] }> {
    const asked: Request[] = []
    const receiver = createReceiver(options.faults ?? { faults: [savedFailure(500, { afterEffect: true })] })
    const made = setUp({
      client: {
        dialect: standard({ lookUp, withoutKey: options.withoutKey }),
        fetch: async (input, init) => {
          const request = new Request(input, init)
          if (request.method !== 'GET') return await receiver.fetch(request)
          asked.push(request)
          if (options.answer) return options.answer()
          const key = new URL(request.url).pathname.split('/').at(-1) ?? ''
          const [effect] = receiver.ledger.effectsOf({ key })
          return effect ? Response.json(effect.receipt) : Response.json({ error: 'not_found' }, { status: 404 })
        },
      },
    })
    await settled(made.billing.charge(coffee, order))
    await pass(2 * HOUR_MS)
    return { ...made, receiver, asked }
  }

  test('asks with GET, with credentials, without a key and a body, and settles', async () => {
    const { billing, receiver, asked } = await world()
    const { length } = receiver.ledger.requests
    expect(await settled(billing.reconcile())).toMatchObject({ total: 1, succeeded: 1 })
    const { key } = receiver.ledger.effects[0]!
    expect(asked.map(({ method, url }) => `${method} ${url}`)).toEqual([`GET ${BASE_URL}v1/operations/${key}`])
    expect(asked[0]?.headers.get('authorization')).toBe('Bearer sk_test')
    expect(asked[0]?.headers.get('idempotency-key')).toBeNull()
    expect(await asked[0]?.text()).toBe('')
    expect(receiver.ledger.requests).toHaveLength(length)
    expect(await billing.find(ref)).toMatchObject({ status: 'succeeded', receipt: { id: 'ch_000001' } })
  })

  test('not found is a miss, and as many as the dialect says are "not applied"', async () => {
    const { billing, asked } = await world({ faults: { faults: [savedFailure(500)] } })
    expect(await settled(billing.reconcile())).toMatchObject({ total: 1, misses: 1, rejected: 0 })
    expect(await settled(billing.reconcile())).toMatchObject({ total: 1, misses: 0, rejected: 1 })
    expect(asked).toHaveLength(2)
    expect(await billing.find(ref)).toMatchObject({ status: 'rejected', rejection: { kind: 'not-applied' } })
  })

  test.each<[string, () => Response]>([
    ['a 404 in HTML', () => new Response('<h1>404</h1>', { status: 404, headers: { 'content-type': 'text/html' } })],
    ['a 500', () => Response.json({ error: 'x' }, { status: 500 })],
    ['a 401', () => Response.json({ error: 'x' }, { status: 401 })],
    ['a redirect', () => Response.redirect('https://elsewhere.test/', 302)],
    ['an empty list', () => Response.json([])],
    ['an object without an id', () => Response.json({ amount: 450 })],
    ['one that is still at work', () => Response.json({ ...receipt, status: 'processing' })],
    ['text that breaks off', () => new Response('{"id":"ch_', { headers: { 'content-type': 'application/json' } })],
    ['a failure of the network', () => Response.error()],
  ])('%s says nothing', async (_what, answer) => {
    const made = await world({ answer })
    const before = await stored(made)
    expect(await settled(made.billing.reconcile())).toMatchObject({ total: 1, unsettled: 1 })
    expect(await stored(made)).toBe(before)
  })

  test.each(['failed', 'declined', 'canceled', 'cancelled', 'voided'])('%s is not applied', async (word) => {
    const { billing } = await world({ answer: () => Response.json({ ...receipt, status: word }) })
    expect(await settled(billing.reconcile())).toMatchObject({ rejected: 1 })
    expect(await billing.find(ref)).toMatchObject({ rejection: { kind: 'not-applied', code: word } })
  })

  test('another amount is not taken', async () => {
    const { billing, events } = await world({ answer: () => Response.json({ ...receipt, amount: 1 }) })
    expect(await settled(billing.reconcile())).toMatchObject({ unsettled: 1, succeeded: 0 })
    expect(events).toContainEqual(expect.objectContaining({ type: 'evidence-refused', reason: 'receipt-differs' }))
  })

  test('with another login nothing is asked', async () => {
    const { another, asked } = await world()
    const credentials = () => ({ scope: 'org_7/test', headers: {} })
    const other = another({ headers: undefined, credentials })
    expect(await settled(other.reconcile())).toMatchObject({ total: 1, unsettled: 1 })
    expect(asked).toHaveLength(0)
  })

  test('a receiver that takes no key cannot be asked by key, and finding nothing there is no proof', async () => {
    const { billing, receiver } = await world({
      withoutKey: ['charge'],
      faults: { requiresKey: false, keyOf: () => undefined, faults: [loseReply()] },
    })
    expect(receiver.ledger.effects).toHaveLength(1)
    for (let time = 1; time <= 4; time += 1) {
      await settled(billing.reconcile())
      await pass(2 * HOUR_MS)
    }
    expect(await billing.find(ref)).toMatchObject({ status: 'unknown', reason: 'takes-no-key' })
  })
})

// --------------------------------------------------------------------------------------------------------- retention

describe('prune()', () => {
  test('bodies and receipts go after thirty days; the name still answers, without a request', async () => {
    const { billing, another, receiver, journal } = setUp()
    const first = await settled(billing.charge(coffee, order))
    await pass(29 * DAY_MS)
    expect(await settled(billing.prune())).toEqual({ bodies: 0, operations: 0 })
    await pass(2 * DAY_MS)
    expect(await settled(billing.prune())).toEqual({ bodies: 1, operations: 0 })
    expect(await settled(billing.prune())).toEqual({ bodies: 0, operations: 0 })
    const text = JSON.stringify((await journal.list({}, 10)).entries)
    expect(text).not.toMatch(/pm_card|cus_1|createdAt/)
    for (const again of [await settled(another().charge(coffee, order)), await another().find(ref)]) {
      expect(again).toMatchObject({
        status: 'succeeded',
        key: first.key,
        receipt: { id: 'ch_000001' },
        source: 'journal',
      })
    }
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('other parameters still conflict, and a decline is still a decline', async () => {
    const { billing, receiver } = setUp({ receiver: { paymentMethods: { pm_no: { declined: 'card_declined' } } } })
    await settled(billing.charge(coffee, order))
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_no' }, { operationId: 'order-2' }))
    await pass(365 * DAY_MS)
    expect(await settled(billing.prune())).toMatchObject({ bodies: 2, operations: 0 })
    await expect(settled(billing.charge({ ...coffee, amount: 1 }, order))).rejects.toMatchObject({ fields: ['amount'] })
    const declined = await settled(billing.charge({ ...coffee, paymentMethod: 'pm_no' }, { operationId: 'order-2' }))
    expect(declined).toMatchObject({ status: 'rejected', rejection: { kind: 'declined', code: 'card_declined' } })
    expect(await settled(billing.charge(coffee, { operationId: 'order-2', revision: 2 }))).toMatchObject({
      status: 'succeeded',
    })
    expect(receiver.ledger.requests).toHaveLength(3)
  })

  test.each(['pending', 'sending', 'accepted', 'unknown'] as const)('what is %s stays whole', async (state) => {
    const world = await inStateOf(state)
    const before = await stored(world)
    await pass(400 * DAY_MS)
    expect(await settled(world.billing.prune())).toEqual({ bodies: 0, operations: 0 })
    expect(await stored(world)).toBe(before)
  })

  test('what is contradicted stays whole', async () => {
    const world = await inStateOf('rejected')
    await settled(world.billing.recordEvidence(ref, webhook))
    const before = await stored(world)
    await pass(400 * DAY_MS)
    expect(await settled(world.billing.prune())).toEqual({ bodies: 0, operations: 0 })
    expect(await stored(world)).toBe(before)
  })

  const usage = { meter: 'exports', quantity: 3 }
  const job = { operationId: 'export:job-7' }

  test('names of usage go after forty days, and an old event named again is not sent blindly', async () => {
    const { billing, another, receiver } = setUp()
    await pass(1000)
    const event = { ...job, eventAtMs: Date.now() - 500 }
    await settled(billing.recordUsage(usage, event))
    await settled(billing.charge(coffee, order))
    await pass(39 * DAY_MS)
    expect(await settled(billing.prune())).toMatchObject({ operations: 0 })
    await pass(2 * DAY_MS)
    expect(await settled(billing.prune())).toMatchObject({ operations: 1 })
    expect((await viewsOf(billing)).map((view) => view.kind)).toEqual(['charge'])
    receiver.forgetKeys()
    const again = await settled(another().recordUsage(usage, event))
    expect(again).toMatchObject({ status: 'unknown', delivery: 'ended' })
    expect(receiver.ledger.effectsOf({ kind: 'usage' })).toHaveLength(1)
    // A new event is sent as ever.
    const fresh = { operationId: 'export:job-8', eventAtMs: Date.now() }
    expect(await settled(billing.recordUsage(usage, fresh))).toMatchObject({ status: 'succeeded' })
  })

  test('names of its own are never let go: nothing would tell an old event that comes again from a new one', async () => {
    const { billing, receiver } = setUp({ client: { names: 'own' } })
    await pass(1000)
    const event = { ...job, eventAtMs: Date.now() - 500 }
    await settled(billing.recordUsage(usage, event))
    await pass(41 * DAY_MS)
    expect(await settled(billing.prune())).toEqual({ bodies: 1, operations: 0 })
    receiver.forgetKeys()
    expect(await settled(billing.recordUsage(usage, event))).toMatchObject({ status: 'succeeded', source: 'journal' })
    expect(receiver.ledger.effectsOf({ kind: 'usage' })).toHaveLength(1)
  })

  test('whole operations only: one that has an open revision stays', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(400, { times: 1, body: { error: 'bad' } })] } })
    await settled(billing.recordUsage(usage, job))
    await pass(41 * DAY_MS)
    receiver.faults.add(savedFailure(500))
    const next = { ...job, revision: 2, despiteUnrecordedRefusal: true }
    expect(await settled(billing.recordUsage(usage, next))).toMatchObject({ reason: 'recorded-failure' })
    expect(await settled(billing.prune())).toMatchObject({ operations: 0 })
    await settled(billing.recordEvidence({ kind: 'usage', ...job }, { ...webhook, receipt: { id: 'us_1' } }))
    await pass(41 * DAY_MS)
    expect(await settled(billing.prune())).toMatchObject({ operations: 1 })
    expect(await viewsOf(billing)).toEqual([])
  })

  test('settings of one’s own, and progress', async () => {
    const { billing } = setUp({ client: { retention: { finalMs: 0, namesMs: { usage: 1000, credits: 1000 } } } })
    await settled(billing.charge(coffee, order))
    await settled(billing.recordUsage(usage, job))
    await settled(billing.consumeCredits({ amount: 1 }, job))
    await pass(2000)
    const done: number[] = []
    expect(await settled(billing.prune({ onProgress: (count) => done.push(count) }))).toEqual({
      bodies: 1,
      operations: 2,
    })
    expect(done.at(-1)).toBe(3)
    expect((await viewsOf(billing)).map((view) => view.kind)).toEqual(['charge'])
  })

  test('some hundred entries, while charges go on', async () => {
    const { billing } = setUp({ client: { retention: { finalMs: DAY_MS } } })
    for (let number = 1; number <= 250; number += 1) {
      await settled(billing.charge(coffee, { operationId: `order-${number}` }))
    }
    await pass(2 * DAY_MS)
    const [pruned, paid] = await settled(
      Promise.all([billing.prune(), billing.charge(coffee, { operationId: 'meanwhile' })]),
    )
    expect(pruned).toEqual({ bodies: 250, operations: 0 })
    expect(paid).toMatchObject({ status: 'succeeded' })
  })
})

// --------------------------------------------------------------------------------- usage that is dated by timestamp

describe('a receiver that accepts usage for a day only', () => {
  const dialect = standard({ acceptanceMs: { usage: DAY_MS }, keyRetentionMs: 7 * DAY_MS })
  const usage = { meter: 'exports', quantity: 3 }
  const job = { operationId: 'export:job-7' }
  const usageRef = { kind: 'usage', ...job }

  test('pending usage is canceled as too late, with an event, and not sent', async () => {
    const { billing, receiver, events } = setUp({
      client: { dialect },
      receiver: { faults: [status(429, { headers: { 'retry-after': '3600' } })] },
    })
    const occurredAt = new Date(Date.now() + 1000)
    await pass(2000)
    expect(await settled(billing.recordUsage({ ...usage, occurredAt }, job))).toMatchObject({ status: 'deferred' })
    const stop = billing.start()
    await pass(DAY_MS + HOUR_MS)
    stop()
    expect(await billing.find(usageRef)).toMatchObject({ status: 'canceled', by: 'too-late' })
    expect(events).toContainEqual(expect.objectContaining({ type: 'state', from: 'pending', to: 'canceled' }))
    const times = receiver.ledger.requests.map((request) => request.atMs)
    expect(Math.max(...times)).toBeLessThan(occurredAt.getTime() + DAY_MS)
    const { length } = times
    receiver.faults.clear()
    expect(await settled(billing.recordUsage({ ...usage, occurredAt }, job))).toMatchObject({ by: 'too-late' })
    expect(await settled(billing.recordUsage({ ...usage, occurredAt }, { ...job, reopen: true }))).toMatchObject({
      status: 'canceled',
      by: 'too-late',
    })
    expect(receiver.ledger.requests).toHaveLength(length)
    expect(receiver.ledger.effects).toHaveLength(0)
  })

  test('an event that is too old when it is named is canceled at once, and told by an event', async () => {
    const { billing, receiver, events } = setUp({ client: { dialect, names: 'own' } })
    const occurredAt = new Date(Date.now() - 25 * HOUR_MS)
    expect(await settled(billing.recordUsage({ ...usage, occurredAt }, job))).toMatchObject({
      status: 'canceled',
      by: 'too-late',
    })
    expect(events).toContainEqual(expect.objectContaining({ type: 'state', to: 'canceled' }))
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test('what may have been counted is never canceled: it goes on, and the receiver has the last word', async () => {
    const { billing, receiver } = setUp({
      client: { dialect, ...oneAttempt },
      receiver: { keyRetentionMs: 7 * DAY_MS, faults: [loseReply()] },
    })
    expect(await settled(billing.recordUsage(usage, job))).toMatchObject({ status: 'unknown', delivery: 'continues' })
    await pass(2 * DAY_MS)
    receiver.faults.clear()
    expect(await settled(billing.resume())).toMatchObject({ total: 1, canceled: 0 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('charges do not care, and without the option nothing is too old', async () => {
    const { billing } = setUp({ client: { dialect, names: 'own' } })
    const eventAtMs = Date.now() - 25 * HOUR_MS
    expect(await settled(billing.charge(coffee, { ...order, eventAtMs }))).toMatchObject({ status: 'succeeded' })
    const plain = setUp({ client: { names: 'own' } })
    expect(await settled(plain.billing.recordUsage(usage, { ...job, eventAtMs }))).toMatchObject({
      status: 'succeeded',
    })
    await quiet()
  })

  test.each([0, -1, Number.NaN, Infinity])('acceptance of %s ms is refused', (ms) => {
    expect(() => standard({ acceptanceMs: { usage: ms } })).toThrow(InvalidInputError)
  })
})
