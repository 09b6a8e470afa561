/**
 * When to try again: stop, or wait until when. Pure; deliver.ts does the waiting.
 */
import type { Dialect } from '../dialects/dialect.ts'
import type { JournalEntry, Timing } from '../model/entry.ts'
import { isDeliverable } from '../model/entry.ts'
import type { ReplyFacts, Verdict } from '../model/verdict.ts'

export interface RetryPolicy {
  /** Attempts of one call, the first one included. */
  readonly maxAttempts: number
  /** One attempt, from the first byte sent to the last byte read. */
  readonly attemptTimeoutMs: number
  /** One call, over all its attempts and waits. */
  readonly deadlineMs: number
  /** The first back-off is random between 0 and this. */
  readonly baseDelayMs: number
  /** No back-off within a call is longer. */
  readonly maxDelayMs: number
  /** While the receiver fails, the first wait of background delivery is random between 0 and twice this; see pace.ts. */
  readonly backgroundBaseDelayMs: number
  /** No back-off of background delivery is longer. */
  readonly maxBackgroundDelayMs: number
  /** A longer `Retry-After` is taken as this. */
  readonly maxRetryAfterMs: number
  /** Statuses that a call retries itself beyond network errors, timeouts, 5xx and 409. */
  readonly alsoStatuses: readonly number[]
}

export interface Turn {
  /** The entry after the verdict. */
  readonly entry: JournalEntry
  readonly verdict: Verdict
  readonly facts: ReplyFacts
  /** Attempts made by this loop so far. */
  readonly attemptsMade: number
  /** What the entry's own back-off counts in the background; 0: it has none, the pace slows it. */
  readonly failures: number
  readonly nowMs: number
}

export interface Step {
  /** Whether this loop goes on if its callers can wait that long. */
  readonly mayGoOn: boolean
  /** When the loop would go on. */
  readonly next: Timing
  /** When background delivery tries again if the loop does not go on. */
  readonly parked: Timing
}

/** What follows an attempt. A verdict that settled the entry leaves nothing to go on with. */
export function nextStep(turn: Turn, policy: RetryPolicy, random: () => number): Step {
  const { entry, verdict, nowMs } = turn
  // A Retry-After of zero, or a date that is over, asks for nothing: back off as usual, or everybody would come at once.
  const askedMs =
    'retryAfterMs' in verdict && verdict.retryAfterMs !== undefined && verdict.retryAfterMs > 0
      ? Math.min(verdict.retryAfterMs, policy.maxRetryAfterMs)
      : undefined
  // What the receiver asks for is kept; a little is added, so that those who were told the same do not come back as one.
  const asked =
    askedMs === undefined
      ? undefined
      : timing(nowMs + Math.ceil(askedMs), Math.floor(random() * Math.min(askedMs, policy.baseDelayMs)))
  const parkedMs =
    turn.failures === 0 ? 0 : backoffMs(turn.failures, policy.baseDelayMs, policy.maxBackgroundDelayMs, random)
  return {
    mayGoOn: isDeliverable(entry) && isRetriedByCalls(verdict, turn.facts, policy),
    next: asked ?? {
      nextAttemptAtMs: nowMs + backoffMs(turn.attemptsMade, policy.baseDelayMs, policy.maxDelayMs, random),
      notBeforeMs: 0,
    },
    parked: asked ?? { nextAttemptAtMs: nowMs + parkedMs, notBeforeMs: 0 },
  }
}

/**
 * Exponential back-off with full jitter: the cap comes first and the jitter goes over the whole range, so that clients at the
 * cap stay apart (Brooker, «Exponential Backoff And Jitter», AWS Architecture Blog, 2015).
 *
 * @param attempt the attempt that failed, from 1
 */
export function backoffMs(attempt: number, baseMs: number, capMs: number, random: () => number): number {
  return Math.floor(random() * (Math.min(capMs, baseMs * 2 ** Math.min(attempt - 1, 60)) + 1))
}

/** Network errors, timeouts, 5xx and 409 and what else is a lost reply; others by choice only. */
function isRetriedByCalls(verdict: Verdict, facts: ReplyFacts, policy: RetryPolicy): boolean {
  if (verdict.kind === 'unclear' || verdict.kind === 'busy') return true
  return facts.status !== undefined && policy.alsoStatuses.includes(facts.status)
}

function timing(notBeforeMs: number, jitterMs: number): Timing {
  return { nextAttemptAtMs: notBeforeMs + jitterMs, notBeforeMs }
}

/** Where the receiver does not say how long it remembers a key. */
const UNPUBLISHED_RETENTION_MS = 12 * 3_600_000

/** How long after its start a key may still be sent. */
export function keyWindowMs(dialect: Dialect, kind: string, marginMs: number): number {
  const retentionMs = dialect.keyRetentionMs(kind)
  return (retentionMs === 'unpublished' ? UNPUBLISHED_RETENTION_MS : retentionMs) - marginMs
}

/** How long a call may last at most; a window shorter than this is refused at construction. */
export function longestCallMs(policy: RetryPolicy): number {
  const waitsMs = Array.from({ length: policy.maxAttempts - 1 }, (_, index) =>
    Math.min(policy.maxDelayMs, policy.baseDelayMs * 2 ** index),
  )
  const attemptsMs = policy.maxAttempts * policy.attemptTimeoutMs
  return Math.min(
    policy.deadlineMs + policy.attemptTimeoutMs,
    waitsMs.reduce((sum, ms) => sum + ms, attemptsMs),
  )
}
