/**
 * What a call returns: a union with a tag, each member with only what it has. Bad answers are answers too; an outcome never
 * calls a maybe a no.
 */
import { NotSucceededError, titleOf, UnreachableError } from '../errors.ts'

import type { Contradiction, JournalEntry, PendingReason, SendingReason, UnknownReason } from './entry.ts'
import type { JsonValue } from './canonical.ts'
import type { IdempotencyKey } from './key.ts'
import type { Progress, Receipt, Rejection } from './verdict.ts'

export interface OutcomeBase {
  readonly key: IdempotencyKey
  readonly kind: string
  readonly operationId: string
  readonly revision: number
  /** Attempts begun so far for this revision, by all calls, tabs and processes. */
  readonly attempts: number
  /** `receiver`: a reply to this call says so. `journal`: it was known already, no reply to this call says so. */
  readonly source: 'receiver' | 'journal'
  /** The receiver marked its reply as a replay. */
  readonly markedReplay?: true
  /** `false`: the journal forgets all when the process ends, because the caller asked for one that does. */
  readonly durable: boolean
}

export interface Succeeded<R extends Receipt = Receipt> extends OutcomeBase {
  readonly status: 'succeeded'
  readonly receipt: R
}

/** Made and not concluded: it will not be sent again. A repeated call gets the same. */
export interface Accepted<R extends Receipt = Receipt> extends OutcomeBase {
  readonly status: 'accepted'
  readonly receipt: R
  readonly progress: Progress
  /** What the customer has to do, as the receiver says it; with `requires_action`. */
  readonly nextAction?: JsonValue
}

/** A definite no. Another try of the same operation is the next `revision`. */
export interface Rejected extends OutcomeBase {
  readonly status: 'rejected'
  readonly rejection: Rejection
}

/** Certainly not done by this journal; `start()`, `resume()` or the next call sends it. */
export interface Deferred extends OutcomeBase {
  readonly status: 'deferred'
  readonly reason: PendingReason
  /** Milliseconds until it will be tried. */
  readonly retryAfterMs?: number
  /** Wall time after which it is canceled instead of sent. */
  readonly sendBeforeAtMs?: number
}

export interface Canceled extends OutcomeBase {
  readonly status: 'canceled'
  /**
   * `send-before`: it waited too long, and the next call of the name opens it again. `too-late`: the receiver accepts no event
   * this old. `superseded`: another revision of the operation succeeded.
   */
  readonly by: 'caller' | 'send-before' | 'too-late' | 'superseded'
}

/** May have been done. Not a failure: do not charge in another way before it is settled. */
export type Unknown<R extends Receipt = Receipt> = UnknownContinues | UnknownEnded<R> | Contradicted<R>

/** Delivery goes on, under the same key, by `start()`, `resume()` or the next call. */
export interface UnknownContinues extends OutcomeBase {
  readonly status: 'unknown'
  readonly delivery: 'continues'
  readonly reason: SendingReason
  /** Milliseconds until it will be tried again. */
  readonly retryAfterMs?: number
  /** What may be wrong, in words for a developer, where the pattern of failures suggests it. */
  readonly hint?: string
}

/** Nothing is sent any more by itself; evidence is needed. */
export interface UnknownEnded<R extends Receipt = Receipt> extends OutcomeBase {
  readonly status: 'unknown'
  readonly delivery: 'ended'
  readonly reason: UnknownReason
  /** The receipt that did not fit; with `receipt-differs`. */
  readonly receipt?: R
}

/** Two words of the receiver contradict each other; a person has to decide. */
export interface Contradicted<R extends Receipt = Receipt> extends OutcomeBase {
  readonly status: 'unknown'
  readonly delivery: 'ended'
  readonly reason: 'contradicted'
  /** The state that the entry is in, with its word. */
  readonly settled:
    | { readonly state: 'succeeded' | 'accepted'; readonly receipt: R }
    | { readonly state: 'rejected'; readonly rejection: Rejection }
    | { readonly state: 'canceled' }
  /** The word that does not go with it. */
  readonly contradiction: Contradiction
}

export type Outcome<R extends Receipt = Receipt> =
  | Succeeded<R>
  | Accepted<R>
  | Rejected
  | Deferred
  | Canceled
  | Unknown<R>

/** A background call that is durable and not settled yet: it will be delivered. */
export interface Queued extends OutcomeBase {
  readonly status: 'queued'
}

export interface OutcomeContext {
  readonly nowMs: number
  readonly source: 'receiver' | 'journal'
  readonly durable: boolean
  readonly hint?: string | undefined
}

/** What an entry means to a caller. Receipts are as the entry's definition read them. */
export function outcomeOf(entry: JournalEntry, context: OutcomeContext): Outcome {
  const base = baseOf(entry, context)
  if (entry.contradiction) return contradicted(entry, base, entry.contradiction)
  switch (entry.state) {
    case 'succeeded':
      return { ...base, status: 'succeeded', receipt: entry.receipt }
    case 'accepted':
      return {
        ...base,
        status: 'accepted',
        receipt: entry.receipt,
        progress: entry.progress,
        ...(entry.nextAction === null ? {} : { nextAction: entry.nextAction }),
      }
    case 'rejected':
      return { ...base, status: 'rejected', rejection: entry.rejection }
    case 'canceled':
      return { ...base, status: 'canceled', by: entry.by }
    case 'pending':
      return {
        ...base,
        status: 'deferred',
        reason: entry.reason,
        ...untilOf(entry.nextAttemptAtMs, context.nowMs),
        ...(entry.sendBeforeAtMs === null ? {} : { sendBeforeAtMs: entry.sendBeforeAtMs }),
      }
    case 'sending':
      return {
        ...base,
        status: 'unknown',
        delivery: 'continues',
        reason: entry.reason,
        ...untilOf(entry.nextAttemptAtMs, context.nowMs),
        ...(context.hint === undefined ? {} : { hint: context.hint }),
      }
    case 'unknown':
      return {
        ...base,
        status: 'unknown',
        delivery: 'ended',
        reason: entry.reason,
        ...(entry.receipt ? { receipt: entry.receipt } : {}),
      }
    default:
      throw new UnreachableError(entry, 'outcomeOf')
  }
}

/** What a background call returns for an entry that is not settled. */
export function queuedOf(entry: JournalEntry, context: OutcomeContext): Queued {
  return { ...baseOf(entry, context), status: 'queued' }
}

/**
 * The receipt of a success, for those who would rather catch than switch.
 *
 * @throws {NotSucceededError} for every other outcome, which it carries; its message never says "not charged" of a maybe
 */
export function unwrap<R extends Receipt>(outcome: Outcome<R> | Queued): R {
  if (outcome.status === 'succeeded') return outcome.receipt
  throw new NotSucceededError(`${titleOf(outcome)} ${SENTENCES[outcome.status](outcome)}`, outcome)
}

const SENTENCES: Record<Exclude<Outcome['status'] | 'queued', 'succeeded'>, (outcome: Outcome | Queued) => string> = {
  accepted: () => 'was made and is not concluded; do not start another one.',
  rejected: () => 'was rejected; another try is the next revision.',
  deferred: () => 'is not done yet and will be sent by start(), resume() or the next call.',
  canceled: () => 'was canceled before it was sent.',
  queued: () => 'is queued.',
  unknown: (outcome) =>
    'may have been done; this is not a failure. ' +
    ('delivery' in outcome && outcome.delivery === 'continues'
      ? `Delivery continues under the same key.${'hint' in outcome && outcome.hint !== undefined ? ` ${outcome.hint}` : ''}`
      : 'Delivery has ended and evidence is needed.'),
}

function contradicted(entry: JournalEntry, base: OutcomeBase, contradiction: Contradiction): Contradicted {
  return {
    ...base,
    status: 'unknown',
    delivery: 'ended',
    reason: 'contradicted',
    settled: settledOf(entry),
    contradiction,
  }
}

function settledOf(entry: JournalEntry): Contradicted['settled'] {
  if (entry.state === 'succeeded' || entry.state === 'accepted') return { state: entry.state, receipt: entry.receipt }
  if (entry.state === 'rejected') return { state: 'rejected', rejection: entry.rejection }
  return { state: 'canceled' }
}

function baseOf(entry: JournalEntry, context: OutcomeContext): OutcomeBase {
  const markedReplay = entry.attempts.at(-1)?.markedReplay
  return {
    key: entry.key,
    kind: entry.kind,
    operationId: entry.operationId,
    revision: entry.revision,
    attempts: entry.attemptsBegun,
    source: context.source,
    ...(markedReplay ? { markedReplay } : {}),
    durable: context.durable,
  }
}

function untilOf(atMs: number, nowMs: number): { retryAfterMs?: number } {
  return atMs > nowMs ? { retryAfterMs: atMs - nowMs } : {}
}
