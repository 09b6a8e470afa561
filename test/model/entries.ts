/** Entries to start from, and what can happen to them, in few words. */
import { standard } from '../../src/dialects/standard.ts'
import { advance, newEntry } from '../../src/model/entry.ts'
import type { Claim, EntryDraft, EntryEvent, JournalEntry } from '../../src/model/entry.ts'
import { keyOf } from '../../src/model/key.ts'
import type { OperationId } from '../../src/model/key.ts'
import type { Receipt, Rejection, Verdict } from '../../src/model/verdict.ts'

/** Wall time at which all of these entries are named. */
export const NAMED_AT_MS = Date.UTC(2026, 10, 30, 12)
export const HOUR_MS = 3_600_000

export function draft(changes: Partial<EntryDraft> = {}): EntryDraft {
  const name = {
    scope: 'org_42/live',
    kind: 'charge',
    subject: null,
    operationId: 'order-991' as OperationId,
    ...changes,
  }
  const key = changes.key ?? keyOf(name, changes.revision ?? 1)
  return {
    ...name,
    key,
    endpoint: 'https://api.example.com/',
    endpointNamed: false,
    revision: 1,
    request: {
      method: 'POST',
      path: 'v1/charges',
      keyHeader: standard().keyHeader(key),
      contentType: 'application/json',
      headers: {},
      body: '{"amount":5000,"currency":"usd"}',
    },
    fingerprint: { amount: 'digest of 5000', currency: 'digest of usd' },
    expected: { amount: 5000, currency: 'usd' },
    volatileFields: [],
    dialect: { name: 'standard', version: 1 },
    keyed: true,
    longestRequestMs: 120_000,
    namedAtMs: NAMED_AT_MS,
    eventAtMs: null,
    mayPredateJournal: false,
    window: { names: 'shared', startAtMs: NAMED_AT_MS, lengthMs: 23 * HOUR_MS, marginMs: HOUR_MS },
    sendBeforeAtMs: NAMED_AT_MS + HOUR_MS,
    acceptUntilAtMs: null,
    ...changes,
  }
}

export const ownWindow = { names: 'own', startAtMs: null, lengthMs: 23 * HOUR_MS, marginMs: HOUR_MS } as const

export const named = (changes?: Partial<EntryDraft>): JournalEntry => newEntry(draft(changes), NAMED_AT_MS)

export const receipt = (id = 'ch_1'): Receipt => ({ id, status: 'succeeded', reply: { id, status: 'succeeded' } })

export const rejection = (changes: Partial<Rejection> = {}): Rejection => ({
  kind: 'declined',
  code: 'card_declined',
  status: 402,
  behindKey: false,
  ...changes,
})

/** One of every verdict there is, and both kinds of refusal. */
export const verdicts = {
  succeeded: { kind: 'succeeded', receipt: receipt() },
  accepted: {
    kind: 'accepted',
    receipt: { id: 'ch_1', status: 'requires_action', reply: { id: 'ch_1', status: 'requires_action' } },
    progress: 'requires_action',
    nextAction: { url: 'https://bank.example' },
  },
  'receipt-differs': { kind: 'receipt-differs', receipt: receipt('ch_other') },
  unclear: { kind: 'unclear', why: 'timeout' },
  busy: { kind: 'busy' },
  conflict: { kind: 'conflict' },
  'recorded-failure': { kind: 'recorded-failure' },
  'not-accepted': { kind: 'not-accepted', reason: 'rate-limited' },
  refused: { kind: 'refused', rejection: rejection() },
  'refused behind the key': { kind: 'refused', rejection: rejection({ behindKey: true }) },
} as const satisfies Record<string, Verdict>
export type VerdictName = keyof typeof verdicts

export const claim = (changes: Partial<Claim> = {}): Claim => ({
  owner: 'process-1#1',
  fence: 1,
  untilMs: NAMED_AT_MS + 90_000,
  ...changes,
})

export const began: EntryEvent = { kind: 'began', claim: claim() }

export const replied = (attempt: number, verdict: Verdict | VerdictName, nextAttemptAtMs = 0): EntryEvent => ({
  kind: 'replied',
  attempt,
  verdict: typeof verdict === 'string' ? verdicts[verdict] : verdict,
  mayBeOfTwo: false,
  facts: { status: 200 },
  timing: { nextAttemptAtMs, notBeforeMs: 0 },
  claim: null,
})

export const notSent = (attempt: number): EntryEvent => ({
  kind: 'not-sent',
  attempt,
  reason: 'not-yet-tried',
  timing: { nextAttemptAtMs: 0, notBeforeMs: 0 },
  claim: null,
})

export const canceled = (by: 'caller' | 'send-before' = 'caller'): EntryEvent => ({ kind: 'canceled', by })
export const ended: EntryEvent = { kind: 'ended', reason: 'window-over' }
export const held: EntryEvent = { kind: 'held', reason: 'other-login', nextAttemptAtMs: 0 }

export const released: EntryEvent = { kind: 'released' }
export const dated = (eventAtMs: number, mayPredateJournal = false): EntryEvent => ({
  kind: 'dated',
  eventAtMs,
  mayPredateJournal,
})

/** What a call asks for that names a canceled entry again, an hour later, with another body and another dialect. */
export const wantedAgain = (changes: Partial<EntryDraft> = {}): EntryDraft =>
  draft({
    request: { ...draft().request, body: '{"amount":7000,"currency":"usd"}' },
    fingerprint: { amount: 'digest of 7000' },
    expected: { amount: 7000 },
    volatileFields: ['metadata'],
    sendBeforeAtMs: NAMED_AT_MS + 2 * HOUR_MS,
    dialect: { name: 'standard', version: 2 },
    namedAtMs: NAMED_AT_MS + HOUR_MS,
    window: { ...draft().window, startAtMs: NAMED_AT_MS + HOUR_MS },
    ...changes,
  })
export const reopened: EntryEvent = { kind: 'reopened', wanted: wantedAgain() }

/** The entry after these events, a second apart. */
export function after(entry: JournalEntry, ...events: readonly EntryEvent[]): JournalEntry {
  return events.reduce((before, event, index) => advance(before, event, NAMED_AT_MS + 1000 * (index + 1)), entry)
}
