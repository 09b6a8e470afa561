/**
 * README's table «If this fails, then …»: a test for each of its rows, by the words in the row's first cell. A row without a
 * test, and a test without a row, is a failure too. What needs a real process or browser names the test that does it.
 */
import { existsSync, readFileSync } from 'node:fs'
import { JournalUnavailableError, OperationConflictError, forgetfulJournal, standard } from 'billonce'
import type { JournalStore, Outcome } from 'billonce'
import {
  cutBody,
  interceptionPage,
  loseReply,
  loseRequest,
  redirect,
  resetAfter,
  resetBefore,
  savedFailure,
  slowConflict,
  stall,
  status,
  wrongReceipt,
} from 'billonce/testing'
import type { Fault } from 'billonce/testing'
import { afterEach, expect, test, vi } from 'vitest'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'
import { rowsOf, textOf } from './markdown.ts'

virtualTime()
afterEach(() => {
  vi.unstubAllGlobals()
})

const HOUR_MS = 3_600_000
const options = { operationId: 'order-1' }

/** The charge of these tests with these faults, in a world of its own. */
async function chargeWith(...faults: Fault[]): Promise<World & { outcome: Outcome }> {
  const world = setUp({ receiver: { faults } })
  return { ...world, outcome: await settled(world.billing.charge(coffee, options)) }
}

/** However many requests: one key, one path, one body. */
function expectSameBytes({ receiver }: World): void {
  const { requests } = receiver.ledger
  expect(new Set(requests.map(({ key, path, body }) => `${key} ${path} ${body}`)).size).toBe(1)
}

async function expectRetried(count: number, ...faults: Fault[]): Promise<void> {
  const world = await chargeWith(...faults)
  expect(world.outcome).toMatchObject({ status: 'succeeded', attempts: count })
  expectSameBytes(world)
  expect(world.receiver.ledger.effects).toHaveLength(1)
}

/** Where a row is proven by a test that needs more than this one has. */
type Proof = (() => Promise<void>) | { readonly file: string; readonly test: string }

const rows: Readonly<Record<string, Proof>> = {
  async offline() {
    vi.stubGlobal('navigator', { onLine: false })
    const { billing, receiver } = setUp()
    const outcome = await settled(billing.charge(coffee, options))
    expect(outcome).toMatchObject({ status: 'deferred', attempts: 0 })
    expect(receiver.ledger.requests).toHaveLength(0)
    vi.stubGlobal('navigator', { onLine: true })
    expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1 })

    // The same with more than an hour between.
    vi.stubGlobal('navigator', { onLine: false })
    await settled(billing.charge(coffee, { operationId: 'order-2' }))
    await pass(HOUR_MS + 1000)
    vi.stubGlobal('navigator', { onLine: true })
    expect(await settled(billing.resume())).toMatchObject({ total: 1, canceled: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'reply lost, connection reset, body cut off'() {
    await expectRetried(
      5,
      loseRequest({ attempt: 1 }),
      loseReply({ attempt: 2 }),
      resetAfter({ attempt: 3 }),
      cutBody({ attempt: 4 }),
    )
    const world = await chargeWith(resetBefore({ attempt: [1, 2, 3, 4, 5] }))
    expect(world.outcome).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 5 })
    expect(await settled(world.billing.charge(coffee, options))).toMatchObject({ status: 'succeeded', attempts: 6 })
    expectSameBytes(world)
  },

  async timeout() {
    const began = Date.now()
    await expectRetried(2, stall({ attempt: 1, after: 'headers' }))
    expect(Date.now() - began).toBeGreaterThanOrEqual(30_000)
    expect(Date.now() - began).toBeLessThan(32_000)
  },

  async '500, 502, 503, 504, 408'() {
    await expectRetried(5, ...[500, 502, 503, 408].map((code, index) => status(code, { attempt: index + 1 })))
    const began = Date.now()
    await expectRetried(2, status(504, { attempt: 1, afterEffect: true, headers: { 'retry-after': '20' } }))
    expect(Date.now() - began).toBeGreaterThanOrEqual(20_000)
  },

  async '500 that the server saved under the key and replays (`Idempotent-Replayed: true`)'() {
    const { outcome, receiver, billing } = await chargeWith(savedFailure(500))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'ended', reason: 'recorded-failure' })
    const { length } = receiver.ledger.requests
    expect(await settled(billing.charge(coffee, options))).toMatchObject({ status: 'unknown', source: 'journal' })
    expect(receiver.ledger.requests).toHaveLength(length)
  },

  async '409, the key is at work'() {
    await expectRetried(3, slowConflict({ attempts: 2, retryAfterSeconds: 1 }))
  },

  async '402, declined'() {
    const { billing, receiver } = setUp()
    const declined = await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, options))
    expect(declined).toMatchObject({ status: 'rejected', rejection: { kind: 'declined', code: 'card_declined' } })
    const again = await settled(billing.charge(coffee, { ...options, revision: 2 }))
    expect(again).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(again.key).not.toBe(declined.key)
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'the bank wants the customer to confirm, or the server is still processing'() {
    for (const [paymentMethod, progress] of [
      ['pm_requires_action', 'requires_action'],
      ['pm_processing', 'processing'],
    ] as const) {
      const { billing, another, receiver } = setUp()
      const first = await settled(billing.charge({ ...coffee, paymentMethod }, options))
      expect(first).toMatchObject({ status: 'accepted', progress })
      // Another client on the same journal: the page after a reload.
      const again = await settled(another().charge({ ...coffee, paymentMethod }, options))
      expect(again).toEqual({ ...first, source: 'journal' })
      expect(await settled(another().resume())).toMatchObject({ total: 0, needEvidence: { accepted: 1 } })
      expect(receiver.ledger.requests).toHaveLength(1)
    }
  },

  async 'another 4xx with an error in JSON'() {
    const refusal = { body: { error: { code: 'amount_too_small' } } }
    const { outcome } = await chargeWith(status(400, refusal))
    expect(outcome).toMatchObject({ status: 'rejected', rejection: { kind: 'invalid', code: 'amount_too_small' } })
    const later = await chargeWith(loseReply({ attempt: 1 }), status(400, { ...refusal, attempt: [2, 3, 4] }))
    expect(later.outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'refused-unproven' })
    expect(later.receiver.ledger.effects).toHaveLength(1)
  },

  async '400, 402 and the like in HTML, from a gateway'() {
    await expectRetried(3, status(400, { attempt: 1 }), status(402, { attempt: 2, afterEffect: true }))
  },

  async '401, 403, 429'() {
    for (const [code, reason] of [
      [401, 'unauthorized'],
      [403, 'unauthorized'],
      [429, 'rate-limited'],
    ] as const) {
      const { outcome, billing, receiver } = await chargeWith(
        status(code, { attempt: 1, headers: { 'retry-after': '90' } }),
      )
      expect(outcome).toMatchObject({ status: 'deferred', reason, attempts: 1, retryAfterMs: expect.any(Number) })
      await pass(91_000)
      expect(await settled(billing.resume())).toMatchObject({ succeeded: 1 })
      expect(receiver.ledger.effects).toHaveLength(1)
    }
    const { outcome } = await chargeWith(loseReply({ attempt: 1 }), status(401, { attempt: 2 }))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'unauthorized' })
  },

  async '422, the key was used with other parameters'() {
    const { receiver, billing, another } = setUp()
    await settled(billing.charge(coffee, options))
    // Another device, which makes something else of the same event.
    const elsewhere = another({ journal: forgetfulJournal() })
    const outcome = await settled(elsewhere.charge({ ...coffee, amount: 451 }, options))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'ended', reason: 'key-conflict' })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'the server may have forgotten the key'() {
    const { outcome, billing, receiver } = await chargeWith(loseReply())
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues' })
    await pass(23 * HOUR_MS)
    receiver.faults.clear()
    receiver.forgetKeys()
    const { length } = receiver.ledger.requests
    const late = await settled(billing.charge(coffee, options))
    expect(late).toMatchObject({ status: 'unknown', delivery: 'ended', reason: 'window-over' })
    expect(receiver.ledger.requests).toHaveLength(length)
    expect(receiver.ledger.effects).toHaveLength(1)
    const [made] = receiver.ledger.effects
    const lookUp = { source: 'look-up', found: 'applied', receipt: made?.receipt ?? {} } as const
    expect(await settled(billing.recordEvidence({ key: late.key }, lookUp))).toMatchObject({ status: 'succeeded' })
  },

  async 'the clock of the device was set back'() {
    const { outcome, billing, receiver } = await chargeWith(loseReply())
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues' })
    receiver.faults.clear()
    const { length } = receiver.ledger.requests
    vi.setSystemTime(Date.now() - 2 * HOUR_MS)
    expect(await settled(billing.charge(coffee, options))).toMatchObject({ delivery: 'ended', reason: 'window-over' })
    expect(receiver.ledger.requests).toHaveLength(length)
  },

  async 'the event is older than the journal'() {
    const { billing, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
    const event = { ...options, eventAtMs: Date.now() - HOUR_MS }
    expect(await settled(billing.charge(coffee, event))).toMatchObject({ status: 'unknown', delivery: 'continues' })
    await expect(settled(billing.cancel({ kind: 'charge', ...options }))).rejects.toMatchObject({
      code: 'ERR_NOT_CANCELABLE',
    })
    expect(await settled(billing.charge(coffee, event))).toMatchObject({ status: 'succeeded' })
    const older = { operationId: 'order-2', eventAtMs: Date.now() - 25 * HOUR_MS }
    expect(await settled(billing.charge(coffee, older))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'may-predate-journal',
    })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'usage is older than the server accepts (`acceptanceMs`)'() {
    const dialect = standard({ acceptanceMs: { usage: HOUR_MS } })
    const usage = { meter: 'exports', quantity: 3 }
    const { billing, receiver } = setUp({ client: { dialect }, receiver: { faults: [status(429, { request: 1 })] } })
    expect(await settled(billing.recordUsage(usage, options))).toMatchObject({ status: 'deferred' })
    receiver.faults.add(loseReply({ request: [2, 3, 4, 5, 6] }))
    expect(await settled(billing.recordUsage(usage, { operationId: 'job-2' }))).toMatchObject({ status: 'unknown' })
    await pass(HOUR_MS)
    expect(await settled(billing.resume())).toMatchObject({ total: 2, canceled: 1, succeeded: 1 })
    expect(await billing.find({ kind: 'usage', ...options })).toMatchObject({ status: 'canceled', by: 'too-late' })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'the server takes no key for this write'() {
    const { billing, receiver } = setUp({
      client: { dialect: standard({ withoutKey: ['charge'] }) },
      receiver: { requiresKey: false, keyOf: () => undefined, faults: [loseReply()] },
    })
    const lost = { status: 'unknown', delivery: 'ended', reason: 'takes-no-key' }
    expect(await settled(billing.charge(coffee, options))).toMatchObject(lost)
    expect(await settled(billing.charge(coffee, options))).toMatchObject(lost)
    expect(receiver.ledger.requests).toHaveLength(1)
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async '202, or HTML, nothing or no receipt with 200 (captive portal, gateway), a redirect'() {
    await expectRetried(
      3,
      status(202, { attempt: 1, body: { id: 'ch_x' } }),
      status(200, { attempt: 2, body: { ok: true } }),
    )
    await expectRetried(
      4,
      interceptionPage({ attempt: 1 }),
      status(200, { attempt: 2, body: '' }),
      redirect('https://elsewhere.test/', { attempt: 3 }),
    )
    const { outcome } = await chargeWith(status(404))
    expect(outcome).toMatchObject({ status: 'deferred', reason: 'misrouted', attempts: 1 })
  },

  async 'the receipt is for another amount or currency, or says that it failed'() {
    for (const fields of [{ amount: 1 }, { currency: 'usd' }, { status: 'failed' }]) {
      const { outcome } = await chargeWith(wrongReceipt({ fields }))
      expect(outcome).toMatchObject({
        status: 'unknown',
        delivery: 'ended',
        reason: 'receipt-differs',
        receipt: { id: 'ch_000001' },
      })
    }
  },

  async 'a late reply or a webhook contradicts what is on record'() {
    const { billing, receiver } = setUp()
    const ref = { kind: 'charge', ...options }
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, options))
    await settled(billing.recordEvidence(ref, { source: 'webhook', found: 'applied', receipt: { id: 'ch_9' } }))
    const next = { ...options, revision: 2 }
    expect(await settled(billing.charge(coffee, next))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'contradicted',
      settled: { state: 'rejected', rejection: { code: 'card_declined' } },
      contradiction: { word: 'succeeded', receipt: { id: 'ch_9' } },
    })
    expect(receiver.ledger.requests).toHaveLength(1)
    const decision = { source: 'decision', by: 'Ada', why: 'statement', found: 'not-applied' } as const
    await settled(billing.recordEvidence(ref, decision))
    expect(await settled(billing.charge(coffee, next))).toMatchObject({ status: 'succeeded', revision: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  'tab closed, page reloaded': {
    file: 'test/examples/checkout.test.ts',
    test: 'closed while the charge is on the wire, the next visit finds it paid',
  },

  'the process is killed at any point': { file: 'test/crash/kill.test.ts', test: 'G06: a worker that dies at %s' },

  async 'disk full, private mode, storage forbidden, damaged file'() {
    const full = (): Promise<never> => Promise.reject(new JournalUnavailableError('No space.', { fault: 'full' }))
    const before = setUp({ journal: { ...forgetfulJournal(), insert: full } })
    await expect(settled(before.billing.charge(coffee, options))).rejects.toMatchObject({
      name: 'JournalUnavailableError',
      fault: 'full',
      sentByThisCall: false,
    })
    expect(before.receiver.ledger.requests).toHaveLength(0)

    // Only the reply does not fit any more.
    const kept = forgetfulJournal()
    const journal: JournalStore = { ...kept, replace: full }
    const { billing, receiver, events, another } = setUp({ journal })
    expect(await settled(billing.charge(coffee, options))).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(events).toContainEqual(expect.objectContaining({ type: 'storage-fault', step: 'record', fault: 'full' }))
    // The claim of the one who could not write it down has to end first.
    await pass(HOUR_MS)
    expect(await settled(another({ journal: kept }).resume())).toMatchObject({ total: 1, succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  },

  async 'storage was wiped, or it is another device'() {
    const world = await chargeWith()
    const again = await settled(world.another({ journal: forgetfulJournal() }).charge(coffee, options))
    expect(again).toMatchObject({ status: 'succeeded', key: world.outcome.key, markedReplay: true })
    expectSameBytes(world)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  },

  async 'another user is signed in'() {
    const credentials = () => ({ scope: 'org_7/test', headers: {} })
    const { billing, receiver, another } = setUp({ client: { headers: undefined, credentials } })
    expect(await settled(billing.charge(coffee, options))).toMatchObject({ status: 'deferred', reason: 'other-login' })
    expect(receiver.ledger.requests).toHaveLength(0)

    receiver.faults.add(loseReply())
    const own = another({ credentials: undefined, headers: {} })
    await settled(own.charge(coffee, { operationId: 'order-2' }))
    const { length } = receiver.ledger.requests
    await pass(HOUR_MS)
    const late = await settled(billing.charge(coffee, { operationId: 'order-2' }))
    expect(late).toMatchObject({ status: 'unknown', reason: 'other-login' })
    expect(receiver.ledger.requests).toHaveLength(length)
  },

  async 'a double click, two tabs, two processes'() {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 200 } })
    const other = another()
    const outcomes = await settled(
      Promise.all([billing.charge(coffee, options), billing.charge(coffee, options), other.charge(coffee, options)]),
    )
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded', 'succeeded'])
    expect(receiver.ledger.requests).toHaveLength(1)
  },

  async 'the same `operationId` with other parameters'() {
    const { billing, receiver } = await chargeWith()
    const error = await settled(billing.charge({ ...coffee, amount: 500 }, options).catch((caught: unknown) => caught))
    expect(error).toBeInstanceOf(OperationConflictError)
    expect(error).toMatchObject({ fields: ['amount'], sentByThisCall: false })
    expect(receiver.ledger.requests).toHaveLength(1)
  },
}

test.each(Object.entries(rows))('%s', async (_row, proof) => {
  if (typeof proof === 'function') return await proof()
  const file = new URL(`../../${proof.file}`, import.meta.url)
  expect(existsSync(file), `${proof.file} is gone`).toBe(true)
  expect(readFileSync(file, 'utf8')).toContain(`'${proof.test}'`)
})

test('each row of the table has a test, and each test a row', () => {
  const cells = rowsOf(textOf('README.md'), 'If this fails, then …').map(([first]) => first)
  expect(cells).toEqual(Object.keys(rows))
})
