/**
 * The journal's entry: what is kept of one revision of an operation, its states, and the only ways from one to the next.
 * All pure; who calls when is the engine's, where it is kept is a store's.
 *
 *              attempt begins            succeeded
 *   pending ───────────────────▶ sending ─────────────▶ accepted ──────▶ succeeded
 *    │  ▲                        │  │  │                    └──────────▶ rejected
 *    │  └── all certainly ───────┘  │  └ refused ────────────────────▶ rejected
 *    │      not done                │
 *    └──▶ canceled                  └ delivery ends ──▶ unknown ──────▶ succeeded, rejected (by a receiver's word)
 *
 * `pending` is certainly without effect. `sending` may have had its effect. A maybe is never a no: only a receiver's word
 * or a person's decision leads to `succeeded` or `rejected`, never time and never a guess.
 */
import { UnreachableError } from '../errors.ts'
import type { EntryGlimpse } from '../errors.ts'
import type { Fingerprint, JsonObject, JsonValue } from './canonical.ts'
import { recordOf } from './evidence.ts'
import type { Evidence, EvidenceRecord } from './evidence.ts'
import type { IdempotencyKey, OperationName } from './key.ts'
import type { NotAccepted, Progress, Receipt, Rejection, ReplyFacts, Verdict } from './verdict.ts'

/** Format of stored entries. A newer one is refused, an older one is read for ever (test/stores/fixtures). */
export const ENTRY_FORMAT = 1

/** The request of an entry. Every attempt sends exactly this, in every process and version. */
export interface StoredRequest {
  readonly method: string
  /** Relative to the base address. */
  readonly path: string
  /** The header that carries the key, as it is sent. */
  readonly keyHeader: { readonly name: string; readonly value: string }
  readonly contentType: string
  /** Frozen headers, such as the version of an API. */
  readonly headers: Readonly<Record<string, string>>
  /** The exact text; `null` once it was pruned, long after the entry became final. */
  readonly body: string | null
}

/** How an attempt ended. The first three are certainly not done; all others are, or may be, done. */
export type AttemptResult =
  /** It was begun and never left. */
  | 'not-sent'
  | 'not-accepted'
  /** A refusal that was believed. */
  | 'refused'
  /** A refusal after an ambiguous attempt, from before the receiver's key layer: no evidence. */
  | 'refused-unproven'
  /** Not accepted, by a reply to a fetch that may have been sent twice: the other one may have worked. */
  | 'not-accepted-unproven'
  /** It began and no reply was recorded: a crash, or a process that still works on it. */
  | 'unrecorded'
  | 'succeeded'
  | 'accepted'
  | 'receipt-differs'
  | 'unclear'
  | 'busy'
  | 'conflict'
  | 'recorded-failure'

export interface Attempt extends ReplyFacts {
  /** From 1. */
  readonly number: number
  readonly beganAtMs: number
  /** Absent while it is under way. */
  readonly endedAtMs?: number
  readonly result?: AttemptResult
  /** More about the result, such as `timeout` or `rate-limited`. */
  readonly why?: string
}

/** Who works on an entry. Claims save traffic; what keeps it safe is one key and one body. */
export interface Claim {
  readonly owner: string
  /** Rises with every taking, so that a holder who slept can tell that it lost the claim. */
  readonly fence: number
  readonly untilMs: number
}

/** How long the receiver remembers the key, and since when. */
export interface KeyWindow {
  /** `shared`: other devices may use the name too, so it counts from the naming. `own`: from the first attempt. */
  readonly names: 'shared' | 'own'
  /** `null`: nothing was sent that could be remembered (only for `own`). */
  readonly startAtMs: number | null
  /** What the receiver states, less the margin. */
  readonly lengthMs: number
  readonly marginMs: number
}

/** A word that contradicts the state, or another receipt under the same key; it stays until a person decides. */
export interface Contradiction {
  readonly atMs: number
  /** The attempt whose reply it was; `null` for evidence. */
  readonly attempt: number | null
  readonly word: 'succeeded' | 'accepted' | 'receipt-differs' | 'refused'
  /** Of a word that says it was done. */
  readonly receipt: Receipt | null
  /** Of a word that says it was not. */
  readonly rejection: Rejection | null
}

export type PendingReason = 'not-yet-tried' | 'not-sent' | 'offline' | 'other-login' | 'no-credentials' | NotAccepted
export type SendingReason =
  | 'in-flight'
  | 'not-yet-tried'
  | 'no-clear-reply'
  | 'busy'
  | 'refused-unproven'
  | 'offline'
  | 'other-login'
  | 'no-credentials'
  | NotAccepted
/** Why an entry waits without having been tried. */
export type HoldReason = 'offline' | 'other-login' | 'no-credentials'
export type UnknownReason =
  /** The receiver may have forgotten the key; sending again might be a second effect. */
  | 'window-over'
  /** The receiver replays a failure it saved. */
  | 'recorded-failure'
  /** The receiver knows the key with other parameters. */
  | 'key-conflict'
  /** The receipt is for another amount or currency. */
  | 'receipt-differs'
  /** No dialect that could read the replies of this entry. */
  | 'dialect-missing'
  /** May have been sent from a journal that is gone, and its window is over. */
  | 'may-predate-journal'
  /** The receiver takes no key for this write, so it is not asked twice. */
  | 'takes-no-key'
  /** Another revision of the operation succeeded, so this one, which may have worked too, is not sent any more. */
  | 'superseded'

export interface EntryBase extends OperationName {
  readonly format: number
  /** Rises by one with every change; a change is refused if somebody else was faster. */
  readonly version: number
  readonly key: IdempotencyKey
  readonly endpoint: string
  /** Whether the caller gave the endpoint an id, instead of the address being it. */
  readonly endpointNamed: boolean
  readonly revision: number
  readonly request: StoredRequest
  readonly fingerprint: Fingerprint
  /** What a receipt has to repeat. */
  readonly expected: JsonObject
  readonly volatileFields: readonly string[]
  readonly dialect: { readonly name: string; readonly version: number }
  /** `false`: the receiver takes no key for this write. */
  readonly keyed: boolean
  /** How long the receiver may work on one request. */
  readonly longestRequestMs: number
  readonly namedAtMs: number
  readonly eventAtMs: number | null
  /** The event is older than the journal, so another journal may have sent it. */
  readonly mayPredateJournal: boolean
  readonly window: KeyWindow
  /** A pending entry is canceled, not sent, after this time. */
  readonly sendBeforeAtMs: number | null
  /** The receiver does not accept an event this old any more; a pending entry is canceled then. `null`: it does not care. */
  readonly acceptUntilAtMs: number | null
  readonly attemptsBegun: number
  /** The latest attempts, oldest first; what fell off is counted in `droppedInDoubt`. */
  readonly attempts: readonly Attempt[]
  /** Attempts no longer listed that may have had their effect. */
  readonly droppedInDoubt: number
  /** When the last attempt began that may have had its effect; `null` if none did. */
  readonly lastAmbiguousAtMs: number | null
  readonly claim: Claim | null
  /** The highest wall time this entry has seen. */
  readonly highestWallMs: number
  readonly contradiction: Contradiction | null
  /** What was found out besides replies, the latest last. */
  readonly evidence: readonly EvidenceRecord[]
  /** Look-ups that found nothing. */
  readonly misses: number
}

/** When a deliverable entry may be tried again. */
export interface Timing {
  /** Our own pace: background delivery waits for it, a call or `resume()` need not. */
  readonly nextAttemptAtMs: number
  /** What the receiver asked for by `Retry-After`; nobody sends before it. 0 if it asked for nothing. */
  readonly notBeforeMs: number
}

export type PendingEntry = EntryBase & Timing & { readonly state: 'pending'; readonly reason: PendingReason }
export type SendingEntry = EntryBase & Timing & { readonly state: 'sending'; readonly reason: SendingReason }
export type AcceptedEntry = EntryBase & {
  readonly state: 'accepted'
  readonly receipt: Receipt
  readonly progress: Progress
  readonly nextAction: JsonValue | null
}
export type UnknownEntry = EntryBase & {
  readonly state: 'unknown'
  readonly reason: UnknownReason
  readonly receipt: Receipt | null
}
export type SucceededEntry = EntryBase & {
  readonly state: 'succeeded'
  readonly receipt: Receipt
  readonly settledAtMs: number
}
export type RejectedEntry = EntryBase & {
  readonly state: 'rejected'
  readonly rejection: Rejection
  readonly settledAtMs: number
}
export type CanceledEntry = EntryBase & {
  readonly state: 'canceled'
  readonly by: 'caller' | 'send-before' | 'too-late' | 'superseded'
  readonly settledAtMs: number
}

export type JournalEntry =
  | PendingEntry
  | SendingEntry
  | AcceptedEntry
  | UnknownEntry
  | SucceededEntry
  | RejectedEntry
  | CanceledEntry
export type EntryState = JournalEntry['state']
export const ENTRY_STATES: readonly EntryState[] = [
  'pending',
  'sending',
  'accepted',
  'unknown',
  'succeeded',
  'rejected',
  'canceled',
]
/** A state that is not final. */
export type OpenState = Exclude<EntryState, 'succeeded' | 'rejected' | 'canceled'>
export const OPEN_STATES: readonly OpenState[] = ['pending', 'sending', 'accepted', 'unknown']
/** Entries that may still be sent; no other ever is. */
export type DeliverableEntry = PendingEntry | SendingEntry

/** As many attempts are listed. */
const LISTED_ATTEMPTS = 32

export function isDeliverable(entry: JournalEntry): entry is DeliverableEntry {
  return entry.state === 'pending' || entry.state === 'sending'
}

export function isFinal(entry: JournalEntry): entry is SucceededEntry | RejectedEntry | CanceledEntry {
  return entry.state === 'succeeded' || entry.state === 'rejected' || entry.state === 'canceled'
}

export function isOpen(
  entry: JournalEntry,
): entry is Exclude<JournalEntry, SucceededEntry | RejectedEntry | CanceledEntry> {
  return !isFinal(entry)
}

export function isHoldReason(reason: string): reason is HoldReason {
  return reason === 'offline' || reason === 'other-login' || reason === 'no-credentials'
}

export function glimpseOf(entry: JournalEntry): EntryGlimpse {
  return { key: entry.key, state: entry.state }
}

// ------------------------------------------------------------------------------------------------- rules that ask

/** Whether an attempt is proven to have had no effect. */
export function isCertainlyNotDone(attempt: Attempt): boolean {
  return attempt.result === 'not-sent' || attempt.result === 'not-accepted' || attempt.result === 'refused'
}

/** Whether any attempt, of this journal or perhaps of one that is gone, may have had its effect. */
export function isInDoubt(entry: JournalEntry, exceptAttempt?: number): boolean {
  if (entry.mayPredateJournal || entry.droppedInDoubt > 0) return true
  return entry.attempts.some((attempt) => attempt.number !== exceptAttempt && !isCertainlyNotDone(attempt))
}

/**
 * When nothing of the other attempts can be on its way any more, in wall time: the last of those without a conclusive reply
 * began, and the receiver's longest request is over. 0 if there is none.
 */
export function quietAtMs(entry: JournalEntry, exceptAttempt: number): number {
  const mayBeUnderWay = (attempt: Attempt): boolean =>
    attempt.result === undefined ||
    attempt.result === 'unrecorded' ||
    attempt.result === 'unclear' ||
    attempt.result === 'not-accepted-unproven' ||
    attempt.result === 'busy'
  const last = entry.attempts.findLast((attempt) => attempt.number !== exceptAttempt && mayBeUnderWay(attempt))
  return last === undefined ? 0 : last.beganAtMs + entry.longestRequestMs
}

/** When something is to be done with an entry: another attempt, or its end because its time is over. */
export function nextLookAtMs(entry: DeliverableEntry): number {
  const { sendBeforeAtMs, nextAttemptAtMs } = entry
  return entry.state === 'pending' && sendBeforeAtMs !== null
    ? Math.min(sendBeforeAtMs, nextAttemptAtMs)
    : nextAttemptAtMs
}

/** Whether someone else works on it, as far as its lease says; whether that one still lives is the store's to tell. */
export function isClaimedByOther(entry: JournalEntry, owner: string, nowMs: number): boolean {
  return entry.claim !== null && entry.claim.owner !== owner && entry.claim.untilMs > nowMs
}

/**
 * Whether the receiver may have forgotten the key. A wall clock more than the margin below the highest time the entry has
 * seen counts as over too: then no clock here can be trusted to say how old the key is.
 */
export function isWindowOver(entry: JournalEntry, nowMs: number): boolean {
  if (nowMs < entry.highestWallMs - entry.window.marginMs) return true
  return entry.window.startAtMs !== null && nowMs >= entry.window.startAtMs + entry.window.lengthMs
}

/** Whether it has to be canceled instead of sent. Only what is certainly without effect can be. */
export function isPastSendBefore(entry: JournalEntry, nowMs: number): boolean {
  return entry.state === 'pending' && entry.sendBeforeAtMs !== null && nowMs >= entry.sendBeforeAtMs
}

/** Whether the receiver would no longer accept the event, however well it remembers the key. */
export function isTooLate(entry: JournalEntry, nowMs: number): boolean {
  return entry.state === 'pending' && entry.acceptUntilAtMs !== null && nowMs >= entry.acceptUntilAtMs
}

/** The end of the key window, for those who want to show it; `null` while nothing counts. */
export function windowEndsAtMs(entry: JournalEntry): number | null {
  return entry.window.startAtMs === null ? null : entry.window.startAtMs + entry.window.lengthMs
}

// ------------------------------------------------------------------------------------------------- rules that move

/** What an entry is made of; the rest follows. */
export type EntryDraft = Omit<
  EntryBase,
  | 'format'
  | 'version'
  | 'attemptsBegun'
  | 'attempts'
  | 'droppedInDoubt'
  | 'lastAmbiguousAtMs'
  | 'claim'
  | 'highestWallMs'
  | 'contradiction'
  | 'evidence'
  | 'misses'
>

/**
 * A new entry, not tried yet. One whose event is older than the journal may have been sent by a journal that is gone: it is
 * `sending` from the start, since nobody can vouch that it is without effect, and past its window it is unknown.
 */
export function newEntry(draft: EntryDraft, nowMs: number): JournalEntry {
  const base: EntryBase = {
    ...draft,
    format: ENTRY_FORMAT,
    version: 1,
    attemptsBegun: 0,
    attempts: [],
    droppedInDoubt: 0,
    lastAmbiguousAtMs: null,
    claim: null,
    highestWallMs: nowMs,
    contradiction: null,
    evidence: [],
    misses: 0,
  }
  const timing = { reason: 'not-yet-tried', nextAttemptAtMs: nowMs, notBeforeMs: 0 } as const
  return { ...base, state: draft.mayPredateJournal ? 'sending' : 'pending', ...timing }
}

/**
 * The next version of an entry that still collects: with another body, or due at another time. Whether nothing of it was sent
 * is for the journal to compare: what begins an attempt is a change, and then this version is not the next one any more.
 */
export function collected(
  entry: JournalEntry,
  draft: Pick<EntryDraft, 'request' | 'fingerprint' | 'expected'>,
  dueAtMs: number,
  nowMs: number,
): JournalEntry {
  const { request, fingerprint, expected } = draft
  if (entry.state !== 'pending' || entry.attemptsBegun > 0) return entry
  const highestWallMs = Math.max(entry.highestWallMs, nowMs)
  const timing = { nextAttemptAtMs: dueAtMs, notBeforeMs: dueAtMs }
  return { ...entry, request, fingerprint, expected, ...timing, version: entry.version + 1, highestWallMs }
}

/** What can happen to an entry. */
export type EntryEvent =
  /** Whoever worked on it does no longer. */
  | { readonly kind: 'released' }
  /** It is named again with a time of the event, which may be earlier than what is known. */
  | { readonly kind: 'dated'; readonly eventAtMs: number; readonly mayPredateJournal: boolean }
  /** An attempt begins; durable before its first byte. */
  | { readonly kind: 'began'; readonly claim: Claim }
  /** The attempt just begun was stopped before the fetch. */
  | {
      readonly kind: 'not-sent'
      readonly attempt: number
      readonly reason: HoldReason | 'not-yet-tried'
      readonly timing: Timing
      readonly claim: Claim | null
    }
  /** A reply came to an attempt, or it is known that none will. */
  | {
      readonly kind: 'replied'
      readonly attempt: number
      readonly verdict: Verdict
      /** Whether the attempt may have been two requests, of which this is the reply to the second. */
      readonly mayBeOfTwo: boolean
      readonly facts: ReplyFacts
      readonly timing: Timing
      readonly claim: Claim | null
    }
  /** Nothing was begun: the entry waits, for a login or for the network. */
  | { readonly kind: 'held'; readonly reason: HoldReason; readonly nextAttemptAtMs: number }
  /** Automatic delivery ends; evidence is needed. */
  | { readonly kind: 'ended'; readonly reason: UnknownReason }
  | { readonly kind: 'canceled'; readonly by: CanceledEntry['by'] }
  /** Something was found out, and judged (judgement.ts). */
  | { readonly kind: 'evidence'; readonly evidence: Evidence; readonly take: 'applied' | 'not-applied' | 'miss' }
  /** Body and receipt have been kept long enough; the name stays. */
  | { readonly kind: 'pruned' }
  /** A canceled entry is wanted after all: same key, the body may be a new one. */
  | { readonly kind: 'reopened'; readonly wanted: EntryDraft }

/**
 * The entry after an event: the only way from one state to the next. An event that does not fit the state leaves the entry
 * as it is but for what it adds to the record.
 *
 * @returns the next version, or the entry itself if nothing changed
 */
export function advance(entry: JournalEntry, event: EntryEvent, nowMs: number): JournalEntry {
  const next = moved(entry, event, nowMs)
  if (next === entry) return entry
  return { ...next, version: entry.version + 1, highestWallMs: Math.max(entry.highestWallMs, nowMs) }
}

function moved(entry: JournalEntry, event: EntryEvent, nowMs: number): JournalEntry {
  switch (event.kind) {
    case 'released':
      return entry.claim ? { ...entry, claim: null } : entry
    case 'dated':
      return dated(entry, event.eventAtMs, event.mayPredateJournal)
    case 'began':
      return isDeliverable(entry) ? begun(entry, event.claim, nowMs) : entry
    case 'not-sent':
      return withReason(endAttempt(entry, event, { result: 'not-sent', why: event.reason }, nowMs), event.reason)
    case 'replied':
      return replied(entry, event, nowMs)
    case 'held':
      return isDeliverable(entry)
        ? { ...entry, reason: event.reason, nextAttemptAtMs: event.nextAttemptAtMs, claim: null }
        : entry
    case 'ended':
      return isDeliverable(entry) ? unknown(entry, event.reason, null) : entry
    case 'canceled':
      return entry.state === 'pending'
        ? { ...baseOf(entry), state: 'canceled', by: event.by, settledAtMs: nowMs }
        : entry
    case 'evidence':
      return evidenced(entry, event.evidence, event.take, nowMs)
    case 'pruned':
      return isFinal(entry) && !entry.contradiction ? pruned(entry) : entry
    case 'reopened':
      // Past its time and not canceled yet is as good as canceled.
      return (entry.state === 'canceled' && !entry.contradiction) || isPastSendBefore(entry, nowMs)
        ? reopened(entry, event.wanted, nowMs)
        : entry
    default:
      throw new UnreachableError(event, 'advance')
  }
}

/** As many records of evidence are kept; what a person decided never falls off. */
const LISTED_EVIDENCE = 20

function trimmed(records: readonly EvidenceRecord[]): readonly EvidenceRecord[] {
  let surplus = records.length - LISTED_EVIDENCE
  return records.filter(({ source }) => source === 'decision' || surplus-- <= 0)
}

/** Evidence moves forward only: it settles what is open, and what is final it can only contradict, unless a person decides. */
function evidenced(
  entry: JournalEntry,
  evidence: Evidence,
  take: 'applied' | 'not-applied' | 'miss',
  nowMs: number,
): JournalEntry {
  // Messages come again: what was said before the last decision is no news after it, and twice the same is said once.
  const record = recordOf(evidence)
  const isKnown = (one: EvidenceRecord): boolean => one.found === record.found && one.receiptId === record.receiptId
  const decidedAt = entry.evidence.findLastIndex((one) => one.source === 'decision')
  const isOld = entry.evidence.slice(0, Math.max(0, decidedAt)).some(isKnown)
  if (record.source !== 'decision' && take !== 'miss' && isOld) return entry
  const last = entry.evidence.at(-1)
  const isRepeat =
    record.found !== 'nothing' && record.source !== 'decision' && last?.source === record.source && isKnown(last)
  const records = isRepeat ? entry.evidence : trimmed([...entry.evidence, record])
  if (isRepeat && isFinal(entry)) return entry
  const noted = { ...entry, evidence: records, misses: take === 'miss' ? entry.misses + 1 : entry.misses }
  if (take === 'miss') return noted
  const said = wordOf(evidence)
  const isSettled = entry.contradiction ? evidence.source !== 'decision' : isFinal(entry) && !isSameWord(entry, said)
  if (isSettled) return contradictedBy(noted, null, said, nowMs)
  if (isFinal(entry) && !entry.contradiction) return noted
  const base = { ...baseOf(noted), contradiction: null }
  const next: JournalEntry = said.receipt
    ? { ...base, state: 'succeeded', receipt: said.receipt, settledAtMs: nowMs }
    : { ...base, state: 'rejected', rejection: said.rejection, settledAtMs: nowMs }
  // Another receipt is held already: perhaps two effects, which only a person can judge.
  const held = heldReceipt(entry)
  const isAnother =
    evidence.source !== 'decision' && held !== null && said.receipt !== null && held.id !== said.receipt.id
  return isAnother ? contradictedBy(next, null, { word: 'accepted', receipt: held, rejection: null }, nowMs) : next
}

type Word =
  | { readonly word: 'succeeded'; readonly receipt: Receipt; readonly rejection: null }
  | { readonly word: 'refused'; readonly receipt: null; readonly rejection: Rejection }

function wordOf(evidence: Evidence): Word {
  switch (evidence.found) {
    case 'applied':
      return { word: 'succeeded', receipt: evidence.receipt, rejection: null }
    case 'not-applied':
      return { word: 'refused', receipt: null, rejection: { ...evidence.rejection, kind: 'not-applied' } }
    case 'nothing':
      return { word: 'refused', receipt: null, rejection: { kind: 'not-applied', status: 0, behindKey: true } }
    default:
      throw new UnreachableError(evidence, 'wordOf')
  }
}

function isSameWord(entry: JournalEntry, said: Word): boolean {
  if (entry.state === 'succeeded') return said.receipt?.id === entry.receipt.id
  return said.receipt === null
}

function heldReceipt(entry: JournalEntry): Receipt | null {
  return entry.state === 'succeeded' || entry.state === 'accepted' || entry.state === 'unknown' ? entry.receipt : null
}

/** The name, the state and the receipt's id stay for good; what they were about goes. */
function pruned(entry: JournalEntry): JournalEntry {
  const lean = { ...entry, request: { ...entry.request, body: null, headers: {} }, expected: {}, attempts: [] }
  if (lean.state === 'succeeded') return { ...lean, receipt: { id: lean.receipt.id, reply: {} } }
  if (lean.state !== 'rejected') return lean
  const { message: _message, reply: _reply, ...rejection } = lean.rejection
  return { ...lean, rejection }
}

/** The age of a key counts from the earliest time that is known, and that never moves forward. */
function dated(entry: JournalEntry, eventAtMs: number, mayPredateJournal: boolean): JournalEntry {
  // A time that was known when the entry was made has been counted then; a later revision may count from its own naming.
  if (!isDeliverable(entry) || (entry.eventAtMs !== null && eventAtMs >= entry.eventAtMs)) return entry
  const predates = entry.mayPredateJournal || mayPredateJournal
  // What another journal may have sent counts from the event, whatever this journal's own names are.
  const isFromEvent = entry.window.names === 'shared' || predates
  const startAtMs = isFromEvent ? earliest(entry.window.startAtMs, eventAtMs) : entry.window.startAtMs
  if (startAtMs === entry.window.startAtMs && predates === entry.mayPredateJournal) return entry
  const next = {
    ...entry,
    eventAtMs: earliest(entry.eventAtMs, eventAtMs),
    mayPredateJournal: predates,
    window: { ...entry.window, startAtMs },
  }
  // Perhaps another journal has sent it, so nobody can vouch any more that it is without effect.
  return predates && next.state === 'pending' ? { ...next, state: 'sending', reason: 'not-yet-tried' } : next
}

function reopened(entry: JournalEntry, wanted: EntryDraft, nowMs: number): JournalEntry {
  const mayPredateJournal = entry.mayPredateJournal || wanted.mayPredateJournal
  return {
    ...baseOf(entry),
    ...wanted,
    namedAtMs: entry.namedAtMs,
    eventAtMs: earliest(entry.eventAtMs, wanted.eventAtMs),
    mayPredateJournal,
    window: { ...wanted.window, startAtMs: earliest(entry.window.startAtMs, wanted.window.startAtMs) },
    state: mayPredateJournal ? 'sending' : 'pending',
    reason: 'not-yet-tried',
    nextAttemptAtMs: nowMs,
    notBeforeMs: 0,
  }
}

function earliest(one: number | null, other: number | null): number | null {
  if (one === null) return other
  return other === null ? one : Math.min(one, other)
}

function begun(entry: DeliverableEntry, claim: Claim, nowMs: number): SendingEntry {
  const number = entry.attemptsBegun + 1
  // One that never ended was cut off by a crash, or its sender still waits for the reply: it may have worked.
  const before = entry.attempts.map((attempt): Attempt =>
    attempt.result === undefined ? { ...attempt, result: 'unrecorded' } : attempt,
  )
  const all = [...before, { number, beganAtMs: nowMs }]
  const dropped = all.slice(0, -LISTED_ATTEMPTS)
  return {
    ...entry,
    state: 'sending',
    reason: 'in-flight',
    nextAttemptAtMs: nowMs,
    notBeforeMs: 0,
    attemptsBegun: number,
    attempts: all.slice(-LISTED_ATTEMPTS),
    droppedInDoubt: entry.droppedInDoubt + dropped.filter((attempt) => !isCertainlyNotDone(attempt)).length,
    lastAmbiguousAtMs: nowMs,
    window: { ...entry.window, startAtMs: entry.window.startAtMs ?? nowMs },
    claim,
  }
}

function replied(entry: JournalEntry, event: EntryEvent & { kind: 'replied' }, nowMs: number): JournalEntry {
  const { verdict } = event
  const ended = (why?: string): JournalEntry =>
    endAttempt(entry, event, { result: verdict.kind, ...(why === undefined ? {} : { why }) }, nowMs)
  switch (verdict.kind) {
    case 'succeeded':
    case 'accepted':
      return applied(entry, event, verdict, nowMs)
    case 'refused':
      return refused(entry, event, verdict.rejection, nowMs)
    case 'not-accepted': {
      if (!event.mayBeOfTwo) return withReason(ended(verdict.reason), verdict.reason)
      const end = { result: 'not-accepted-unproven', why: verdict.reason } as const
      return orNoKey(withReason(endAttempt(entry, event, end, nowMs), verdict.reason))
    }
    case 'busy':
      return orNoKey(withReason(ended(), 'busy'))
    case 'unclear':
      return orNoKey(withReason(ended(verdict.why), 'no-clear-reply'))
    case 'conflict':
      return unknownIfDeliverable(ended(), 'key-conflict', null)
    case 'recorded-failure':
      return unknownIfDeliverable(ended(), 'recorded-failure', null)
    case 'receipt-differs': {
      const noted = ended()
      // For another amount, but made: from a final state that is a contradiction like any other.
      return isFinal(noted)
        ? contradictedBy(noted, event, { word: 'receipt-differs', receipt: verdict.receipt, rejection: null }, nowMs)
        : unknownIfDeliverable(noted, 'receipt-differs', verdict.receipt)
    }
    default:
      throw new UnreachableError(verdict, 'replied')
  }
}

/** The receiver made it. */
function applied(
  entry: JournalEntry,
  event: EntryEvent & { kind: 'replied' },
  verdict: Verdict & { kind: 'succeeded' | 'accepted' },
  nowMs: number,
): JournalEntry {
  const { kind: word, receipt } = verdict
  const noted = endAttempt(entry, event, { result: word }, nowMs)
  const before = heldReceipt(noted)
  if (isFinal(noted)) {
    const isSame = noted.state === 'succeeded' && before?.id === receipt.id
    return isSame ? noted : contradictedBy(noted, event, { word, receipt, rejection: null }, nowMs)
  }
  const base = baseOf(noted)
  const settled: JournalEntry =
    verdict.kind === 'succeeded'
      ? { ...base, state: 'succeeded', receipt, settledAtMs: nowMs }
      : noted.state === 'accepted'
        ? noted
        : { ...base, state: 'accepted', receipt, progress: verdict.progress, nextAction: verdict.nextAction ?? null }
  // Two receipts of different things under one key: perhaps two effects, so a person has to look.
  return before && before.id !== receipt.id
    ? contradictedBy(settled, event, { word, receipt: settled === noted ? receipt : before, rejection: null }, nowMs)
    : settled
}

/** The receiver said no. Believed if no other attempt can have worked, or if it speaks for all attempts under the key. */
function refused(
  entry: JournalEntry,
  event: EntryEvent & { kind: 'replied' },
  rejection: Rejection,
  nowMs: number,
): JournalEntry {
  const isBelieved = rejection.behindKey || !isInDoubt(entry, event.attempt)
  const noted = endAttempt(entry, event, { result: isBelieved ? 'refused' : 'refused-unproven' }, nowMs)
  if (!isBelieved) return withReason(noted, 'refused-unproven')
  if (noted.state === 'succeeded' && rejection.behindKey) {
    return contradictedBy(noted, event, { word: 'refused', receipt: null, rejection }, nowMs)
  }
  // A receipt that differs says that something was made, and no refusal undoes that.
  const isSettled = !isDeliverable(noted) && !(noted.state === 'unknown' && noted.receipt === null)
  return !isSettled ? { ...baseOf(noted), state: 'rejected', rejection, settledAtMs: nowMs } : noted
}

/** The first word that contradicts is kept beside the state and raised; a final state itself never changes. */
function contradictedBy(
  entry: JournalEntry,
  event: { readonly attempt: number } | null,
  what: Pick<Contradiction, 'word' | 'receipt' | 'rejection'>,
  nowMs: number,
): JournalEntry {
  return entry.contradiction
    ? entry
    : { ...entry, contradiction: { atMs: nowMs, attempt: event?.attempt ?? null, ...what } }
}

/** Writes the end of an attempt down, and follows from all attempts together whether the entry is pending or sending. */
function endAttempt(
  entry: JournalEntry,
  event: {
    readonly attempt: number
    readonly facts?: ReplyFacts
    readonly timing: Timing
    readonly claim: Claim | null
  },
  end: { readonly result: AttemptResult; readonly why?: string },
  nowMs: number,
): JournalEntry {
  const attempts = entry.attempts.map((attempt) =>
    attempt.number === event.attempt && (attempt.result === undefined || attempt.result === 'unrecorded')
      ? { ...attempt, ...event.facts, ...end, endedAtMs: nowMs }
      : attempt,
  )
  const noted = { ...entry, attempts, lastAmbiguousAtMs: lastAmbiguousAtMs(entry, attempts) }
  if (!isDeliverable(noted)) return noted
  // A late reply to an earlier attempt says nothing about when the attempt now under way may be followed by another.
  const isLatest = event.attempt === entry.attemptsBegun
  const timing = isLatest
    ? { ...event.timing, claim: event.claim }
    : { nextAttemptAtMs: noted.nextAttemptAtMs, notBeforeMs: noted.notBeforeMs, claim: noted.claim }
  if (isInDoubt(noted))
    return {
      ...noted,
      state: 'sending',
      reason: noted.state === 'sending' ? noted.reason : 'in-flight',
      ...timing,
    }
  const window = noted.window.names === 'own' ? { ...noted.window, startAtMs: null } : noted.window
  return { ...noted, window, state: 'pending', reason: 'not-sent', ...timing }
}

function lastAmbiguousAtMs(entry: JournalEntry, attempts: readonly Attempt[]): number | null {
  const last = attempts.findLast((attempt) => !isCertainlyNotDone(attempt))
  return last?.beganAtMs ?? (entry.droppedInDoubt > 0 ? entry.lastAmbiguousAtMs : null)
}

function withReason(entry: JournalEntry, reason: SendingReason): JournalEntry {
  if (entry.state === 'sending') return entry.attempts.at(-1)?.result === undefined ? entry : { ...entry, reason }
  // Only what is certainly not done is pending, and only such verdicts lead here with a pending entry.
  return entry.state === 'pending' ? { ...entry, reason: reason as PendingReason } : entry
}

/** A receiver without keys cannot be asked twice. */
function orNoKey(entry: JournalEntry): JournalEntry {
  return entry.keyed ? entry : unknownIfDeliverable(entry, 'takes-no-key', null)
}

function unknownIfDeliverable(entry: JournalEntry, reason: UnknownReason, receipt: Receipt | null): JournalEntry {
  return isDeliverable(entry) ? unknown(entry, reason, receipt) : entry
}

function unknown(entry: JournalEntry, reason: UnknownReason, receipt: Receipt | null): UnknownEntry {
  return { ...baseOf(entry), state: 'unknown', reason, receipt }
}

/** What entries of all states share, with the claim let go. */
export function baseOf(entry: JournalEntry): EntryBase {
  const base: Record<string, unknown> = {}
  // By a loop: a rest pattern with this many names is several times slower, and every call comes by here.
  for (const name in entry) if (!OF_STATES.has(name)) base[name] = entry[name as keyof JournalEntry]
  base['claim'] = null
  // What is left is the base: the names taken out are all those that states add.
  return base as unknown as EntryBase
}

type NameOfState = Exclude<
  { [State in EntryState]: keyof (JournalEntry & { state: State }) }[EntryState],
  keyof EntryBase
>
const OF_STATES: ReadonlySet<string> = /* @__PURE__ */ new Set<NameOfState>([
  'state',
  'reason',
  'nextAttemptAtMs',
  'notBeforeMs',
  'receipt',
  'progress',
  'nextAction',
  'rejection',
  'by',
  'settledAtMs',
])
