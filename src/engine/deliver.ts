/**
 * The loop that delivers one entry, the only one there is: calls, background delivery and `resume` all come here, and callers
 * of the same entry share it.
 *
 * One turn: wait until due and online, credentials, window, begin durable, window once more, send, classify, record. What
 * stops it before the begin leaves the entry as it was; what stops it between begin and fetch is recorded as not sent; a
 * crash there is ambiguous, and the next process asks again under the same key.
 */
import pRetry from 'p-retry'
import { DeliveryAbortedError } from '../errors.ts'
import type { Dialect } from '../dialects/dialect.ts'
import {
  advance,
  glimpseOf,
  isClaimedByOther,
  isDeliverable,
  isPastSendBefore,
  isWindowOver,
  windowEndsAtMs,
} from '../model/entry.ts'
import type { Claim, DeliverableEntry, EntryEvent, HoldReason, JournalEntry } from '../model/entry.ts'
import { factsOf } from '../model/verdict.ts'
import type { Reply, Verdict } from '../model/verdict.ts'
import { about, dialectOf, emitChange, journalFault } from './context.ts'
import type { Context } from './context.ts'
import { askCredentials } from './credentials.ts'
import { backoffMs, nextStep } from './schedule.ts'
import { send } from './send.ts'

/** What somebody who waits for a delivery allows it. */
export interface Budget {
  readonly attempts: number
  /** Monotonic time. */
  readonly deadlineAtMs: number
  /** `false`: somebody else's claim, a wait and being offline end it at once; background delivery comes back later. */
  readonly isPatient: boolean
}

export interface Delivered {
  readonly entry: JournalEntry
  /** Attempts that this delivery made while the caller was with it. */
  readonly attemptsMade: number
  /** The receiver said something while the caller was with it. */
  readonly heardReceiver: boolean
}

export interface Delivery {
  /**
   * Waits for the delivery, within a budget; whoever leaves does not stop it for the others.
   *
   * @throws {DeliveryAbortedError} the signal fired
   * @throws {JournalUnavailableError} the journal failed
   */
  join(budget: Budget, signal?: AbortSignal): Promise<Delivered>
  /** Resolves when nothing more happens here, the exchange in flight included. Never rejects. */
  readonly ended: Promise<void>
}

/** An attempt that was begun by the commit that made the entry. */
export interface Begun {
  readonly headers: Readonly<Record<string, string>>
}

/** Longer than a hidden tab's timers are held back (a minute), so that a throttled holder does not lose its claim. */
export const CLAIM_SLACK_MS = 60_000
/** How often the journal is looked at while somebody else works on the entry. */
const POLL_MS = { first: 25, most: 500 }

/** Thrown inside the loop only: another turn is wanted. */
class AnotherTurn extends Error {}

interface Waiter extends Budget {
  /** The loop's count of attempts up to which this one allows more. */
  readonly attemptsUntil: number
}

/** Joins the delivery of an entry that is under way in this client, or starts it. */
export function deliver(context: Context, entry: DeliverableEntry, begun?: Begun): Delivery {
  const underWay = context.deliveries.get(entry.key)
  if (underWay) return underWay
  const delivery = startDelivery(context, entry, begun)
  context.deliveries.set(entry.key, delivery)
  return delivery
}

function startDelivery(context: Context, first: DeliverableEntry, begun: Begun | undefined): Delivery {
  const { runtime, settings, store } = context
  const { policy } = settings
  const waiters = new Set<Waiter>()
  /** Fires when a waiter comes or goes and when the client closes, so that a wait can be looked at again. */
  let nudge = new AbortController()
  let entry: JournalEntry = first
  let attemptsMade = 0
  /** Replies in which the receiver said something. */
  let wordsHeard = 0
  let isFirstTurn = true
  let begunHeaders = begun?.headers

  const isWanted = (): boolean => !context.closing.aborted && waiters.size > 0
  const nudgeAll = (): void => {
    nudge.abort()
    nudge = new AbortController()
  }

  /** Whether anybody waits who allows another attempt at this wall time. */
  const isAnotherAllowed = (atMs: number): boolean => {
    const waitMs = Math.max(0, atMs - runtime.nowMs())
    const canWait = (waiter: Waiter): boolean =>
      attemptsMade < waiter.attemptsUntil &&
      (waitMs === 0 || waiter.isPatient) &&
      runtime.monotonicMs() + waitMs < waiter.deadlineAtMs
    return !context.closing.aborted && [...waiters].some(canWait)
  }

  // ------------------------------------------------------------------------------------------------- the journal

  /** Takes over what others wrote. */
  const reload = async (): Promise<void> => {
    const stored = await guarded('read', () => store.get(entry.endpoint, entry.key))
    if (stored) entry = stored
  }

  /** Compare-and-set of one event; if somebody was faster, their version is taken over and nothing is written. */
  const commit = async (step: 'begin' | 'record', event: EntryEvent): Promise<boolean> => {
    const next = advance(entry, event, runtime.nowMs())
    if (next === entry) return true
    if (!(await guarded(step, () => store.replace(next)))) {
      await reload()
      return false
    }
    const before = entry
    entry = next
    emitChange(context, before, next)
    return true
  }

  /** Writes down what happened, on top of whatever others wrote meanwhile. */
  const record = async (event: EntryEvent): Promise<void> => {
    while (!(await commit('record', event))) {
      // Each failure means that somebody else's change went through, so this ends.
    }
  }

  const guarded = async <T>(step: 'read' | 'begin' | 'record', action: () => Promise<T>): Promise<T> => {
    try {
      return await action()
    } catch (error) {
      const fault = journalFault(error, { sentByThisCall: attemptsMade > 0, entry })
      context.events.emit({ type: 'storage-fault', step, fault: fault.fault, atMs: runtime.nowMs(), key: entry.key })
      throw fault
    }
  }

  // ---------------------------------------------------------------------------------------------------- one turn

  /** Runs once for each attempt; throws AnotherTurn for another one. */
  const turn = async (): Promise<void> => {
    const headers = begunHeaders ?? (await beginAttempt())
    begunHeaders = undefined
    isFirstTurn = false
    if (!headers || !isDeliverable(entry)) return
    const dialect = dialectOf(context, entry)
    const definition = context.definitions.get(entry.kind)
    if (!dialect || !definition) return

    const attempt = entry.attemptsBegun
    const began = runtime.monotonicMs()
    attemptsMade += 1
    context.events.emit({
      type: 'attempt-began',
      ...about(context, entry),
      attempt,
      windowEndsAtMs: windowEndsAtMs(entry),
    })
    const sending = entry
    const reply = await send(
      {
        url: urlOf(settings.baseUrl, entry.request.path),
        request: entry.request,
        freshHeaders: headers,
        timeoutMs: policy.attemptTimeoutMs,
        mayLeave: () => isWanted() && !isWindowOver(sending, runtime.nowMs()),
      },
      runtime,
    )
    if (reply === 'not-sent') {
      attemptsMade -= 1
      await recordNotSent(attempt)
      return
    }
    const verdict = verdictOf(reply, dialect, entry, context.definitions)
    await recordReply(attempt, reply, verdict, runtime.monotonicMs() - began)
  }

  const recordNotSent = async (attempt: number): Promise<void> => {
    const nowMs = runtime.nowMs()
    await record({
      kind: 'not-sent',
      attempt,
      reason: runtime.isOnline() ? 'not-yet-tried' : 'offline',
      timing: { nextAttemptAtMs: nowMs, notBeforeMs: 0 },
      claim: null,
    })
    if (isDeliverable(entry) && isWindowOver(entry, nowMs)) await record({ kind: 'ended', reason: windowReason(entry) })
  }

  const recordReply = async (attempt: number, reply: Reply, verdict: Verdict, durationMs: number): Promise<void> => {
    const facts = factsOf(reply)
    const event = (step: ReturnType<typeof stepOf>, goesOn: boolean): EntryEvent => ({
      kind: 'replied',
      attempt,
      verdict,
      facts,
      timing: goesOn ? step.next : step.parked,
      claim: goesOn ? claimUntil(step.next.nextAttemptAtMs) : null,
    })
    const stepOf = (after: JournalEntry): ReturnType<typeof nextStep> =>
      nextStep({ entry: after, verdict, facts, attemptsMade, nowMs: runtime.nowMs() }, policy, runtime.random)
    // The step needs the entry after the verdict, and the verdict is written down together with the step.
    const guess = stepOf(entry)
    const step = stepOf(advance(entry, event(guess, false), runtime.nowMs()))
    const goesOn = step.mayGoOn && isAnotherAllowed(step.next.nextAttemptAtMs)
    const isWordOfReceiver = verdict.kind !== 'unclear'
    try {
      await record(event(step, goesOn))
    } catch (fault) {
      // The receiver's word must reach the caller although it could not be kept; resume asks again under the same key.
      if (!isWordOfReceiver) throw fault
      entry = advance(entry, event(step, false), runtime.nowMs())
      wordsHeard += 1
      return
    }
    if (isWordOfReceiver) wordsHeard += 1
    const ended = entry.attempts.find((one) => one.number === attempt)
    context.events.emit({
      type: 'attempt-ended',
      ...about(context, entry),
      attempt,
      ...facts,
      result: ended?.result ?? 'unrecorded',
      ...(ended?.why === undefined ? {} : { why: ended.why }),
      durationMs,
    })
    if (!isDeliverable(entry)) return
    const { nextAttemptAtMs } = entry
    const another = step.mayGoOn && isAnotherAllowed(nextAttemptAtMs)
    context.events.emit({
      type: 'retry-scheduled',
      ...about(context, entry),
      by: another ? 'call' : 'background',
      nextAttemptAtMs,
    })
    if (another) throw new AnotherTurn()
  }

  /**
   * Everything up to the durable begin of an attempt.
   *
   * @returns the fresh headers of the attempt, or nothing if none was begun
   */
  const beginAttempt = async (): Promise<Readonly<Record<string, string>> | undefined> => {
    for (;;) {
      if (!isWanted() || !isDeliverable(entry)) return undefined
      if (await isHeldByOther()) return undefined
      if (!isDeliverable(entry)) return undefined
      if (!(await isDue(entry))) return undefined
      if (!(await isOnline())) return await hold('offline')
      if (await isStopped()) return undefined
      const at = await credentialsFor(context, entry)
      if ('held' in at) return await hold(at.held)
      // Credentials may take their time, and time is what these two are about.
      if (await isStopped()) return undefined
      if (!isWanted()) return undefined
      const claim = claimUntil(runtime.nowMs() + policy.attemptTimeoutMs)
      if (await commit('begin', { kind: 'began', claim })) return at.headers
      // Somebody else changed the entry; look at it afresh.
    }
  }

  /** Waits while somebody else, who lives, works on the entry; at most until its claim ends. */
  const isHeldByOther = async (): Promise<boolean> => {
    let pollMs = POLL_MS.first
    while (isDeliverable(entry) && isClaimedByOther(entry, context.owner(), runtime.nowMs())) {
      const { claim } = entry
      if (claim && (await guarded('read', () => store.isGone(holderOf(claim))))) return false
      if (![...waiters].some((waiter) => waiter.isPatient) || !isWanted()) return true
      await runtime.sleep(pollMs, nudge.signal)
      if (!isWanted()) return true
      pollMs = Math.min(pollMs * 2, POLL_MS.most)
      await reload()
    }
    return false
  }

  /** Waits until the entry may be tried. A first try by a call waits only for what the receiver asked for. */
  const isDue = async (of: DeliverableEntry): Promise<boolean> => {
    const dueAtMs = isFirstTurn ? of.notBeforeMs : of.nextAttemptAtMs
    while (runtime.nowMs() < dueAtMs) {
      if (!isAnotherAllowed(dueAtMs)) return false
      await runtime.sleep(dueAtMs - runtime.nowMs(), nudge.signal)
    }
    return isAnotherAllowed(0)
  }

  const isOnline = async (): Promise<boolean> => {
    while (!runtime.isOnline()) {
      if (!isWanted() || ![...waiters].some((waiter) => waiter.isPatient)) return false
      const { signal } = nudge
      const stop = runtime.onWake(nudgeAll)
      // Not only the event: some engines come back online without one.
      await runtime.sleep(1000, signal)
      stop()
    }
    return true
  }

  /** What must never be sent is ended here, whatever the reason that brought it here. */
  const isStopped = async (): Promise<boolean> => {
    if (!isDeliverable(entry)) return true
    const nowMs = runtime.nowMs()
    const end = (event: EntryEvent): Promise<true> => record(event).then(() => true)
    if (isPastSendBefore(entry, nowMs)) return await end({ kind: 'canceled', by: 'send-before' })
    if (isWindowOver(entry, nowMs)) return await end({ kind: 'ended', reason: windowReason(entry) })
    if (!dialectOf(context, entry)) return await end({ kind: 'ended', reason: 'dialect-missing' })
    // A receiver without keys is asked once; one that was found sending may have done it.
    if (!entry.keyed && entry.state === 'sending') return await end({ kind: 'ended', reason: 'takes-no-key' })
    if (!context.definitions.has(entry.kind)) {
      context.events.emit({ type: 'left-alone', why: 'unknown-kind', count: 1, atMs: nowMs })
      return true
    }
    return entry.revision > 1 && (await isContradicted(entry))
  }

  /** A word for an earlier revision that came late: this one may be a second effect, so it stops. */
  const isContradicted = async (of: DeliverableEntry): Promise<boolean> => {
    const revisions = await guarded('read', () => store.history(of))
    return revisions.some(
      (other) => other.endpoint === of.endpoint && other.subject === of.subject && other.contradiction !== null,
    )
  }

  const hold = async (reason: HoldReason): Promise<undefined> => {
    if (isDeliverable(entry) && entry.reason === reason && reason === 'offline') return undefined
    context.events.emit({ type: 'held', ...about(context, entry), reason })
    const nextAttemptAtMs =
      reason === 'offline'
        ? runtime.nowMs()
        : runtime.nowMs() + backoffMs(2, policy.baseDelayMs, policy.maxBackgroundDelayMs, runtime.random)
    await commit('record', { kind: 'held', reason, nextAttemptAtMs })
    return undefined
  }

  const claimUntil = (atMs: number): Claim => ({
    owner: context.owner(),
    fence: entry.version + 1,
    untilMs: atMs + policy.attemptTimeoutMs + CLAIM_SLACK_MS,
  })

  // ---------------------------------------------------------------------------------------------------- the loop

  const leave = (): void => {
    // At once when the loop is over, so that the next caller starts afresh instead of joining what has ended.
    if (context.deliveries.get(first.key) === delivery) context.deliveries.delete(first.key)
  }

  const run = async (): Promise<void> => {
    // A turn later, so that whoever started the delivery is with it before it looks whether anybody is.
    await Promise.resolve()
    await pRetry(
      async () => {
        try {
          await turn()
          leave()
        } catch (error) {
          if (!(error instanceof AnotherTurn)) leave()
          throw error
        }
      },
      { retries: Infinity, minTimeout: 0, shouldRetry: ({ error }) => error instanceof AnotherTurn },
    )
  }

  const done = run()
  const ended = done.catch(() => {})

  const join = async (budget: Budget, signal?: AbortSignal): Promise<Delivered> => {
    const before = { attemptsMade, wordsHeard }
    const waiter: Waiter = { ...budget, attemptsUntil: attemptsMade + budget.attempts }
    waiters.add(waiter)
    nudgeAll()
    const left = new AbortController()
    try {
      await Promise.race([
        done,
        runtime.sleep(budget.deadlineAtMs - runtime.monotonicMs(), left.signal),
        ...(signal ? [aborted(signal, left.signal)] : []),
      ])
      if (signal?.aborted) throw abortedError(entry, attemptsMade > before.attemptsMade, signal)
      return { entry, attemptsMade: attemptsMade - before.attemptsMade, heardReceiver: wordsHeard > before.wordsHeard }
    } finally {
      left.abort()
      waiters.delete(waiter)
      nudgeAll()
    }
  }

  const delivery: Delivery = { join, ended }
  context.closing.addEventListener('abort', nudgeAll)
  void ended.then(() => context.closing.removeEventListener('abort', nudgeAll))
  return delivery
}

/** Credentials for the next attempt of an entry. */
export function credentialsFor(context: Context, entry: JournalEntry): ReturnType<typeof askCredentials> {
  const { settings, runtime } = context
  const previousStatus = entry.attempts.at(-1)?.status
  return askCredentials(
    settings.credentials,
    {
      scope: entry.scope,
      attempt: entry.attemptsBegun + 1,
      ...(previousStatus === undefined ? {} : { previousStatus }),
    },
    entry.request.keyHeader.name,
    settings.credentialsTimeoutMs,
    runtime,
  )
}

export function abortedError(
  entry: JournalEntry | undefined,
  sentByThisCall: boolean,
  signal: AbortSignal,
): DeliveryAbortedError {
  const what = entry
    ? `Waiting for operation ${entry.operationId} (${entry.kind}, key ${entry.key}) was aborted; the operation itself is not canceled, it is ${entry.state} in the journal.`
    : 'The call was aborted before anything was written or sent by it.'
  return new DeliveryAbortedError(what, { sentByThisCall, entry: entry && glimpseOf(entry), cause: signal.reason })
}

/** A dialect or a definition that throws must not lose a reply: then nothing is known, and the entry stays open. */
function verdictOf(reply: Reply, dialect: Dialect, entry: JournalEntry, definitions: Context['definitions']): Verdict {
  if (reply.kind === 'lost') return { kind: 'unclear', why: reply.why }
  const definition = definitions.get(entry.kind)
  if (!definition) return { kind: 'unclear', why: 'not-a-receipt' }
  try {
    // Through text, so that the caller gets today what a restart would read tomorrow.
    return JSON.parse(JSON.stringify(dialect.classify(reply, { definition, expected: entry.expected }))) as Verdict
  } catch {
    return { kind: 'unclear', why: 'not-a-receipt' }
  }
}

function windowReason(entry: JournalEntry): 'window-over' | 'may-predate-journal' {
  return entry.mayPredateJournal && entry.attemptsBegun === 0 ? 'may-predate-journal' : 'window-over'
}

/** The process or tab of a claim, without the client in it. */
function holderOf(claim: Claim): string {
  return claim.owner.slice(0, claim.owner.lastIndexOf('#'))
}

function urlOf(baseUrl: string, path: string): string {
  return `${baseUrl}${path}`
}

/** Resolves when the signal fires, and lets go of it when the caller has left. */
async function aborted(signal: AbortSignal, left: AbortSignal): Promise<void> {
  if (signal.aborted) return
  await new Promise<void>((resolve) => {
    const settle = (): void => {
      signal.removeEventListener('abort', settle)
      left.removeEventListener('abort', settle)
      resolve()
    }
    signal.addEventListener('abort', settle)
    left.addEventListener('abort', settle)
  })
}
