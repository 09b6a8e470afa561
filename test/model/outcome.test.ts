/** What a caller hears, state by state; and what no message may hold. */
import { describe, expect, test } from 'vitest'
import { OperationConflictError } from '../../src/errors.ts'
import type { EntryEvent, JournalEntry } from '../../src/model/entry.ts'
import { openingOf } from '../../src/model/opening.ts'
import { outcomeOf, queuedOf, unwrap } from '../../src/model/outcome.ts'
import type { Outcome, OutcomeContext } from '../../src/model/outcome.ts'
import {
  after,
  began,
  canceled,
  draft,
  ended,
  HOUR_MS,
  named,
  NAMED_AT_MS,
  notSent,
  receipt,
  rejection,
  replied,
  verdicts,
} from './entries.ts'

const context: OutcomeContext = { nowMs: NAMED_AT_MS + 10_000, source: 'receiver', durable: true }
const outcome = (entry: JournalEntry, changes: Partial<OutcomeContext> = {}): Outcome =>
  outcomeOf(entry, { ...context, ...changes })
const base = (attempts: number): object => ({
  key: draft().key,
  kind: 'charge',
  operationId: 'order-991',
  revision: 1,
  attempts,
  source: 'receiver',
  durable: true,
})
const waiting = (event: EntryEvent, nextAttemptAtMs: number): EntryEvent =>
  ({ ...event, timing: { nextAttemptAtMs, notBeforeMs: 0 } }) as EntryEvent

describe('the outcome of an entry that is', () => {
  test.each<[string, JournalEntry, object]>([
    [
      'new',
      named(),
      { ...base(0), status: 'deferred', reason: 'not-yet-tried', sendBeforeAtMs: NAMED_AT_MS + HOUR_MS },
    ],
    [
      'pending and asked to wait',
      after(named({ sendBeforeAtMs: null }), began, waiting(replied(1, 'not-accepted'), context.nowMs + 7000)),
      { ...base(1), status: 'deferred', reason: 'rate-limited', retryAfterMs: 7000 },
    ],
    [
      'pending and due',
      after(named({ sendBeforeAtMs: null }), began, waiting(notSent(1), context.nowMs)),
      { ...base(1), status: 'deferred', reason: 'not-yet-tried' },
    ],
    ['sending', after(named(), began), { ...base(1), status: 'unknown', delivery: 'continues', reason: 'in-flight' }],
    [
      'sending and waiting',
      after(named(), began, waiting(replied(1, 'busy'), context.nowMs + 1)),
      { ...base(1), status: 'unknown', delivery: 'continues', reason: 'busy', retryAfterMs: 1 },
    ],
    [
      'unknown',
      after(named(), began, ended),
      { ...base(1), status: 'unknown', delivery: 'ended', reason: 'window-over' },
    ],
    [
      'unknown with a receipt that did not fit',
      after(named(), began, replied(1, 'receipt-differs')),
      { ...base(1), status: 'unknown', delivery: 'ended', reason: 'receipt-differs', receipt: receipt('ch_other') },
    ],
    [
      'accepted with something to do',
      after(named(), began, replied(1, 'accepted')),
      {
        ...base(1),
        status: 'accepted',
        progress: 'requires_action',
        receipt: verdicts.accepted.receipt,
        nextAction: { url: 'https://bank.example' },
      },
    ],
    [
      'accepted and processing',
      after(named(), began, replied(1, { kind: 'accepted', progress: 'processing', receipt: receipt() })),
      { ...base(1), status: 'accepted', progress: 'processing', receipt: receipt() },
    ],
    [
      'succeeded',
      after(named(), began, replied(1, 'succeeded')),
      { ...base(1), status: 'succeeded', receipt: receipt() },
    ],
    [
      'rejected',
      after(named(), began, replied(1, 'refused')),
      { ...base(1), status: 'rejected', rejection: rejection() },
    ],
    ['canceled by the caller', after(named(), canceled()), { ...base(0), status: 'canceled', by: 'caller' }],
    [
      'canceled as too late',
      after(named(), canceled('send-before')),
      { ...base(0), status: 'canceled', by: 'send-before' },
    ],
  ])('%s', (_, entry, expected) => {
    expect(outcome(entry)).toEqual(expected)
  })

  test.each<[string, JournalEntry, object]>([
    [
      'rejected',
      after(named(), began, began, replied(2, 'refused behind the key'), replied(1, 'succeeded')),
      { state: 'rejected', rejection: rejection({ behindKey: true }) },
    ],
    [
      'succeeded',
      after(
        named(),
        began,
        began,
        replied(2, 'succeeded'),
        replied(1, { kind: 'succeeded', receipt: receipt('ch_2') }),
      ),
      { state: 'succeeded', receipt: receipt('ch_1') },
    ],
    ['canceled', after(named(), began, notSent(1), canceled(), replied(1, 'succeeded')), { state: 'canceled' }],
  ])('%s and contradicted is unknown, with both words', (_, entry, settled) => {
    expect(outcome(entry)).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'contradicted',
      settled,
      contradiction: { word: 'succeeded', attempt: 1, receipt: { id: expect.any(String) as string } },
    })
  })

  test('marked as a replay says so, whoever asks', () => {
    const event = { ...replied(1, 'succeeded'), facts: { status: 200, markedReplay: true } } as EntryEvent
    for (const source of ['receiver', 'journal'] as const)
      expect(outcome(after(named(), began, event), { source })).toMatchObject({ markedReplay: true, source })
    expect(outcome(after(named(), began, replied(1, 'succeeded')))).not.toHaveProperty('markedReplay')
  })

  test('in a journal that forgets says so', () => {
    expect(outcome(named(), { durable: false }).durable).toBe(false)
  })

  test('queued is only that', () => {
    expect(queuedOf(named(), { ...context, source: 'journal' })).toEqual({
      ...base(0),
      source: 'journal',
      status: 'queued',
    })
  })
})

const SECRET = 'sk_live_4242'
const secretReply = { id: SECRET, reply: { id: SECRET, card: SECRET } }
const secretEntry = (verdict: Parameters<typeof replied>[1]): JournalEntry =>
  after(
    named({
      request: { ...draft().request, body: SECRET, headers: { 'x-version': SECRET } },
      fingerprint: { amount: SECRET },
    }),
    began,
    replied(1, verdict),
  )

describe('unwrap', () => {
  test('gives the receipt of a success', () => {
    expect(unwrap(outcome(after(named(), began, replied(1, 'succeeded'))))).toEqual(receipt())
  })

  const others: [string, Outcome][] = [
    ['deferred', outcome(named())],
    ['unknown', outcome(after(named(), began), { hint: 'Look at the headers.' })],
    ['unknown', outcome(after(named(), began, ended))],
    ['accepted', outcome(secretEntry({ kind: 'accepted', progress: 'processing', receipt: secretReply }))],
    [
      'rejected',
      outcome(
        secretEntry({ kind: 'refused', rejection: rejection({ code: SECRET, message: SECRET, reply: { a: SECRET } }) }),
      ),
    ],
    ['unknown', outcome(secretEntry({ kind: 'receipt-differs', receipt: secretReply }))],
    [
      'unknown',
      outcome(
        after(
          secretEntry({ kind: 'refused', rejection: rejection({ message: SECRET }) }),
          replied(1, { kind: 'succeeded', receipt: secretReply }),
        ),
      ),
    ],
    ['canceled', outcome(after(named(), canceled()))],
    ['queued', queuedOf(named(), context) as never],
  ]

  test.each(others)('throws for %s (%#), with the outcome and its key, and without a word of a body', (status, of) => {
    expect(of.status).toBe(status)
    const error = thrownBy(() => unwrap(of)) as Error & { outcome: unknown }
    expect(error).toMatchObject({ name: 'NotSucceededError', code: 'ERR_NOT_SUCCEEDED', outcome: of })
    expect(error.message).toContain(draft().key)
    expect(error.message).not.toContain(SECRET)
    expect(error.message).not.toMatch(/not charged|was not made|no charge|failed/i)
  })

  test.each(others.filter(([status]) => status === 'unknown'))('calls %s no failure (%#)', (_, of) => {
    expect((thrownBy(() => unwrap(of)) as Error).message).toContain('may have been done')
  })

  test('a hint for the developer is in the message', () => {
    expect((thrownBy(() => unwrap(others[1]![1])) as Error).message).toContain('Look at the headers.')
  })
})

test('a conflict names fields and key, and holds neither body, header nor digest', () => {
  const { scope, kind, subject, operationId, endpoint, endpointNamed } = draft()
  const entry = secretEntry('unclear')
  const error = thrownBy(() =>
    openingOf(
      [entry],
      {
        scope,
        kind,
        subject,
        operationId,
        endpoint,
        endpointNamed,
        revision: undefined,
        idempotencyKey: undefined,
        fingerprint: { amount: 'other' },
        volatileFields: [],
        names: 'shared',
        despiteUnrecordedRefusal: false,
        reopen: false,
        keepsRejections: true,
      },
      NAMED_AT_MS,
    ),
  )
  expect(error).toBeInstanceOf(OperationConflictError)
  expect(JSON.stringify([error, String(error)])).not.toContain(SECRET)
})

function thrownBy(action: () => unknown): unknown {
  try {
    action()
  } catch (error) {
    return error
  }
  throw new Error('Nothing was thrown.')
}
