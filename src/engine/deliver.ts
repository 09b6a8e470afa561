/**
 * The loop that delivers one entry, the only one there is: calls, background delivery and `resume` all come here, and callers
 * of the same entry share it.
 *
 * One turn: wait until due and online, credentials, window, begin durable, window once more, send, classify, record. What
 * stops it before the begin leaves the entry as it was; what stops it between begin and fetch is recorded as not sent; a
 * crash there is ambiguous, and the next process asks again under the same key.
 */
import pRetry from 'p-retry'
import type { Dialect } from '../dialects/dialect.ts'
import { DeliveryAbortedError, JournalUnavailableError, titleOf } from '../errors.ts'
import { isJsonObject, isWellFormed } from '../model/canonical.ts'
import {
  advance,
  glimpseOf,
  isClaimedByOther,
  isDeliverable,
  isInDoubt,
  isPastSendBefore,
  isTooLate,
  isWindowOver,
  quietAtMs,
  windowEndsAtMs,
} from '../model/entry.ts'
import type { DeliverableEntry, EntryEvent, HoldReason, JournalEntry, Timing } from '../model/entry.ts'
import type { AnyWriteDefinition } from '../model/operation.ts'
import { factsOf } from '../model/verdict.ts'
import type { Reply, ReplyFacts, Verdict } from '../model/verdict.ts'
import { claimUntil, holderOf } from './claim.ts'
import { about, dialectOf, emitChange, guarded, reasonOf, revisionsOf } from './context.ts'
import type { Context, StepDetails } from './context.ts'
import { credentialsFor } from './credentials.ts'
import type { AtHand } from './credentials.ts'
import { nextStep } from './schedule.ts'
import type { Step } from './schedule.ts'
import { send } from './send.ts'
import { firstOf, Waiters } from './waiters.ts'
import type { Budget } from './waiters.ts'

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
  /** Ends its waits, so that it sees that the client was closed. */
  readonly nudge: () => void
}

/** What the call that opened the entry has in hand for its first attempt. */
export interface Prepared {
  /** The commit that made the entry began its first attempt too, with these headers. */
  readonly begunWith?: Readonly<Record<string, string>> | undefined
  /** Credentials that were asked for already. */
  readonly credentials?: Promise<AtHand> | undefined
}

/** How often the journal is looked at while somebody else works on the entry. */
const POLL_MS = { first: 25, most: 500 }
/** How often a page that is offline looks: some engines come back online without an event. */
const OFFLINE_LOOK_MS = 1000

/** What was begun longer ago does not leave any more; begun afresh it may. */
const LEAVES_WITHIN_MS = 30_000

/** A caller whose time is over waits no longer than this to see what others did to the entry. */
const LAST_LOOK_MS = 250

/** Thrown inside the loop only: another turn is wanted. */
class AnotherTurn extends Error {}

/** Joins the delivery of an entry that is under way in this client, or starts it. */
export function deliver(context: Context, entry: DeliverableEntry, prepared: Prepared = {}): Delivery {
  const underWay = context.deliveries.get(entry.key)
  if (underWay) return underWay
  const delivery = startDelivery(context, entry, prepared)
  context.deliveries.set(entry.key, delivery)
  return delivery
}

function startDelivery(context: Context, first: DeliverableEntry, prepared: Prepared): Delivery {
  const { runtime, settings, store } = context
  const { policy } = settings
  const waiters = new Waiters(runtime, context.closing)
  let entry: JournalEntry = first
  let { begunWith, credentials } = prepared
  let attemptsMade = 0
  /** Attempts that observers were told of, also those that never left. */
  let attemptsTold = 0
  /** Requests that may have left, and replies in which the receiver said something. */
  let requestsSent = 0
  let wordsHeard = 0
  /** When the next turn may begin, in monotonic time; a first turn waits only for what the receiver asked for. */
  let dueAtMonotonicMs: number | undefined

  // ------------------------------------------------------------------------------------------------- the journal

  const details = (): StepDetails => ({ sentByThisCall: requestsSent > 0, entry })

  const step = <T>(name: 'read' | 'begin' | 'record', action: () => Promise<T>): Promise<T> =>
    guarded(context, name, action, details)

  /** Takes over what others wrote. */
  const reload = (): Promise<void> =>
    step('read', async () => {
      const stored = await store.get(entry.endpoint, entry.key)
      if (!stored) {
        throw new JournalUnavailableError('The entry was cleared from the journal.', { fault: 'damaged' })
      }
      entry = stored
    })

  /** Compare-and-set of one event; if somebody was faster, their version is taken over and nothing is written. */
  const commit = async (name: 'begin' | 'record', event: EntryEvent): Promise<boolean> => {
    const before = entry
    const next = advance(before, event, runtime.nowMs())
    if (next === before) return true
    if (!(await step(name, () => store.replace(next)))) {
      await reload()
      return false
    }
    entry = next
    emitChange(context, before, next)
    return true
  }

  /** Writes down what happened, on top of whatever others wrote meanwhile. */
  const record = async (event: EntryEvent): Promise<void> => {
    while (!(await commit('record', event))) {
      // Each failure means that somebody else's change went through, or reload throws; so this ends.
    }
  }

  // ------------------------------------------------------------------------------------------- before the attempt

  /**
   * Everything up to the durable begin of an attempt.
   *
   * @returns the fresh headers of the attempt, or nothing if none was begun
   */
  const beginAttempt = async (): Promise<Readonly<Record<string, string>> | undefined> => {
    for (;;) {
      if (await isHeldByOther()) return undefined
      if (!waiters.isWanted || !isDeliverable(entry)) return undefined
      // Before any wait: what is over does not have to be waited for.
      if ((await isStopped()) || !isDeliverable(entry)) return undefined
      if (!(await isDue(entry))) return undefined
      if (!(await isOnline())) return undefined
      const at = await (credentials ?? credentialsFor(context, entry))
      credentials = undefined
      if ('held' in at) {
        await hold(at.held)
        return undefined
      }
      // All of that takes time, and time is what this is about.
      if (await isStopped()) return undefined
      if (!waiters.isWanted) return undefined
      const untilMs = runtime.nowMs() + policy.attemptTimeoutMs
      if (await commit('begin', { kind: 'began', claim: claimUntil(context, entry, untilMs) })) return at.headers
      // Somebody else changed the entry; look at it afresh.
    }
  }

  /** Waits while somebody else, who lives, works on the entry; at most until its claim ends. */
  const isHeldByOther = async (): Promise<boolean> => {
    let pollMs = POLL_MS.first
    while (isDeliverable(entry) && isClaimedByOther(entry, context.owner(), runtime.nowMs())) {
      const { claim } = entry
      if (claim && (await step('read', () => store.isGone(holderOf(claim))))) return false
      if (!waiters.isAnyPatient) return true
      await runtime.sleep(pollMs, waiters.nudge)
      if (!waiters.isWanted) return true
      pollMs = Math.min(pollMs * 2, POLL_MS.most)
      await reload()
    }
    return false
  }

  /** Waits until the next turn is due, if anybody can wait that long. */
  const isDue = async (of: DeliverableEntry): Promise<boolean> => {
    dueAtMonotonicMs ??= runtime.monotonicMs() + Math.max(0, of.notBeforeMs - runtime.nowMs())
    for (;;) {
      const waitMs = dueAtMonotonicMs - runtime.monotonicMs()
      if (!waiters.allows(attemptsMade, waitMs)) return false
      if (waitMs <= 0) return true
      await runtime.sleep(waitMs, waiters.nudge)
    }
  }

  /** Being offline costs no attempts: the entry waits, and so does whoever has the patience. */
  const isOnline = async (): Promise<boolean> => {
    while (!runtime.isOnline()) {
      await hold('offline')
      if (!waiters.isAnyPatient) return false
      const stop = runtime.onWake(waiters.nudgeAll)
      await runtime.sleep(OFFLINE_LOOK_MS, waiters.nudge)
      stop()
      // Meanwhile it may have been canceled, or settled by another tab or by evidence: then there is nothing to wait for.
      await reload()
      if (!isDeliverable(entry)) return false
    }
    return true
  }

  /** What must never be sent is ended here, whatever the reason that brought it here. */
  const isStopped = async (): Promise<boolean> => {
    for (;;) {
      if (!isDeliverable(entry)) return true
      const others = entry.revision > 1 ? await otherRevisions(entry) : []
      // A word for another revision that came late: this one may be a second effect, so it stops until a person decides.
      if (others.some((other) => other.contradiction !== null)) return true
      const end = others.some((other) => other.state === 'succeeded') ? supersede(entry) : endOf(context, entry)
      if (!end) return !context.definitions.has(entry.kind)
      // Only if the entry is still the one that was looked at; otherwise it is looked at again.
      await commit('record', end)
    }
  }

  const otherRevisions = async (of: DeliverableEntry): Promise<readonly JournalEntry[]> => {
    const all = await revisionsOf(context, of, details)
    return all.filter((other) => other.revision !== of.revision)
  }

  const hold = async (reason: HoldReason): Promise<void> => {
    if (!isDeliverable(entry) || entry.reason === reason) return
    // Told once it is on record, so that whoever then reads the journal finds it there.
    await commit('record', { kind: 'held', reason, nextAttemptAtMs: runtime.nowMs() })
    context.events.emit({ type: 'held', ...about(context, entry), reason })
  }

  // --------------------------------------------------------------------------------------------------- the attempt

  /** Runs once for each attempt; throws AnotherTurn for another one. */
  const turn = async (): Promise<void> => {
    const arrivals = waiters.arrivals
    const headers = begunWith ?? (await beginAttempt())
    begunWith = undefined
    if (headers && isDeliverable(entry) && (await attempt(entry, headers))) return
    // Whoever came while this turn ended without a request has not had one yet.
    if (waiters.arrivals > arrivals && isDeliverable(entry) && waiters.allows(attemptsMade, 0)) {
      dueAtMonotonicMs = undefined
      throw new AnotherTurn()
    }
  }

  /** @returns whether a request left */
  const attempt = async (of: DeliverableEntry, freshHeaders: Readonly<Record<string, string>>): Promise<boolean> => {
    const dialect = dialectOf(context, of)
    const definition = context.definitions.get(of.kind)
    if (!dialect || !definition || of.request.body === null) return false
    const number = of.attemptsBegun
    const beganAtMs = runtime.monotonicMs()
    const mayLeave = (): boolean => {
      const nowMs = runtime.nowMs()
      // A page or process that was frozen since the begin has old ideas: somebody else may go on with the entry already, or
      // may have settled it. What has not left by now is begun afresh, from what the journal holds then.
      const isFresh = nowMs < (of.attempts.at(-1)?.beganAtMs ?? 0) + LEAVES_WITHIN_MS
      if (!waiters.isWanted || !isFresh || of.claim === null || isWindowOver(of, nowMs)) return false
      requestsSent += 1
      return true
    }
    attemptsTold += 1
    context.events.emit({
      type: 'attempt-began',
      ...about(context, of),
      attempt: number,
      windowEndsAtMs: windowEndsAtMs(of),
    })
    // Counted from here, so that whoever joins meanwhile brings attempts beyond this one.
    attemptsMade += 1
    const url = `${settings.baseUrl}${of.request.path}`
    // The room for requests that outlive the page may be used up by other scripts, which looks like a lost connection: so after
    // one of those the next does without.
    const mayOutlive = of.attempts.at(-2)?.why !== 'network'
    const reply = await send(
      { url, request: of.request, freshHeaders, timeoutMs: policy.attemptTimeoutMs, mayOutlive, mayLeave },
      runtime,
    )
    if (reply === 'not-sent') {
      attemptsMade -= 1
      const timing = { nextAttemptAtMs: runtime.nowMs(), notBeforeMs: 0 }
      try {
        await record({ kind: 'not-sent', attempt: number, reason: 'not-yet-tried', timing, claim: null })
      } finally {
        emitEnded(number, {}, runtime.monotonicMs() - beganAtMs)
      }
      await isStopped()
      return false
    }
    const verdict = asFarAsProven(verdictOf(reply, dialect, definition, of), dialect, of, runtime.nowMs())
    await recordReply(number, reply, verdict, runtime.monotonicMs() - beganAtMs)
    return true
  }

  const recordReply = async (number: number, reply: Reply, verdict: Verdict, durationMs: number): Promise<void> => {
    const facts = factsOf(reply)
    const failures = context.pace.failuresOf(entry.key) ?? entry.attemptsBegun
    const stepAfter = (after: JournalEntry): Step =>
      nextStep({ entry: after, verdict, facts, attemptsMade, failures, nowMs: runtime.nowMs() }, policy, runtime.random)
    // A key that was freed is not asked again while an earlier attempt may still find it free.
    const quietMs = quietAtMs(entry, number)
    const isKept = dialectOf(context, entry)?.keepsRejections(entry.kind) ?? true
    const isFreed = verdict.kind === 'refused' && !isKept && isInDoubt(entry, number)
    const eventOf = (next: Step, goesOn: boolean): EntryEvent => ({
      kind: 'replied',
      attempt: number,
      verdict,
      mayBeOfTwo: runtime.maySendTwice(),
      facts,
      timing: goesOn ? next.next : isFreed ? notBefore(next.parked, quietMs) : next.parked,
      claim: goesOn ? claimUntil(context, entry, next.next.nextAttemptAtMs) : null,
    })
    // What follows depends on the entry after the verdict, and both are written down together. Where it ends anyhow, as it
    // mostly does, there is nothing to look ahead for.
    const before = stepAfter(entry)
    const next = before.mayGoOn ? stepAfter(advance(entry, eventOf(before, false), runtime.nowMs())) : before
    const waitMs = next.next.nextAttemptAtMs - runtime.nowMs()
    const goesOn = next.mayGoOn && waiters.allows(attemptsMade, waitMs)
    if (verdict.kind !== 'unclear') wordsHeard += 1
    try {
      await record(eventOf(next, goesOn))
    } catch (fault) {
      emitEnded(number, facts, durationMs)
      // A receipt must reach the caller although it could not be kept: it stays true, and resume asks again under the same
      // key. Any other word may be overtaken by what resume then does, so the caller is told of the fault instead.
      if (verdict.kind !== 'succeeded' && verdict.kind !== 'accepted') throw fault
      entry = advance(entry, eventOf(next, false), runtime.nowMs())
      return
    }
    emitEnded(number, facts, durationMs)
    if (!isDeliverable(entry)) return
    const isAnother = next.mayGoOn && waiters.allows(attemptsMade, waitMs)
    const { nextAttemptAtMs } = entry
    context.events.emit({
      type: 'retry-scheduled',
      ...about(context, entry),
      by: isAnother ? 'call' : 'background',
      nextAttemptAtMs,
    })
    if (!isAnother) return
    dueAtMonotonicMs = runtime.monotonicMs() + waitMs
    throw new AnotherTurn()
  }

  /** Field by field, so that nothing else that is known of a reply gets out. */
  const emitEnded = (number: number, { status, markedReplay }: ReplyFacts, durationMs: number): void => {
    if (context.events.isIdle) return
    const ended = entry.attempts.find((one) => one.number === number)
    context.events.emit({
      type: 'attempt-ended',
      ...about(context, entry),
      attempt: number,
      result: ended?.result ?? 'unrecorded',
      ...(ended?.why === undefined ? {} : { why: ended.why }),
      ...(status === undefined ? {} : { status }),
      ...(markedReplay ? { markedReplay } : {}),
      durationMs,
    })
  }

  // ------------------------------------------------------------------------------------------------------ the loop

  /** At once when the loop is over, so that the next caller starts afresh instead of joining what has ended. */
  const leave = (): void => {
    if (context.deliveries.get(first.key) === delivery) context.deliveries.delete(first.key)
    if (attemptsTold === 0) return
    const { state } = entry
    context.events.emit({
      type: 'delivery-ended',
      ...about(context, entry),
      state,
      ...reasonOf(entry),
      attempts: attemptsTold,
    })
  }

  /** A claim of ours that outlives the loop would keep others waiting for its lease. */
  const release = async (): Promise<void> => {
    if (isDeliverable(entry) && entry.claim?.owner === context.owner()) await commit('record', { kind: 'released' })
  }

  const run = async (): Promise<void> => {
    // A moment later, so that whoever started the delivery is with it before it looks whether anybody is.
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
  const ended = done.then(release).catch(() => {
    // Told to those who waited, and by an event.
  })
  const delivery: Delivery = {
    ended,
    nudge: waiters.nudgeAll,
    async join(budget, signal) {
      const before = { attemptsMade, requestsSent, wordsHeard }
      await waiters.wait(done, budget, attemptsMade, signal)
      if (signal?.aborted) throw abortedError(entry, requestsSent > before.requestsSent, signal)
      // Whoever waited without anything being sent may have missed what others did to the entry, such as cancel it.
      if (isDeliverable(entry) && requestsSent === before.requestsSent && attemptsMade === before.attemptsMade) {
        await firstOf(runtime, reload(), runtime.monotonicMs() + LAST_LOOK_MS, signal)
      }
      return {
        entry,
        attemptsMade: attemptsMade - before.attemptsMade,
        heardReceiver: wordsHeard > before.wordsHeard,
      }
    },
  }
  return delivery
}

export function abortedError(
  of: JournalEntry | 'opening' | undefined,
  sentByThisCall: boolean,
  signal: AbortSignal,
): DeliveryAbortedError {
  const entry = typeof of === 'object' ? of : undefined
  return new DeliveryAbortedError(
    entry
      ? `${titleOf(entry)} is not canceled, only the waiting was aborted; it is ${entry.state} in the journal.`
      : of
        ? 'The call was aborted. It sent nothing; the operation may still be written down, and is sent later then.'
        : 'The call was aborted; it wrote and sent nothing.',
    { sentByThisCall, entry: entry && glimpseOf(entry), cause: signal.reason },
  )
}

/** Another revision succeeded, perhaps by a person's decision: this one is not wanted any more. */
function supersede(entry: DeliverableEntry): EntryEvent {
  return entry.state === 'pending' ? { kind: 'canceled', by: 'superseded' } : { kind: 'ended', reason: 'superseded' }
}

/** What ends the delivery of an entry before another attempt, if anything does. */
export function endOf(context: Context, entry: DeliverableEntry): EntryEvent | undefined {
  const nowMs = context.runtime.nowMs()
  if (isPastSendBefore(entry, nowMs)) return { kind: 'canceled', by: 'send-before' }
  if (isTooLate(entry, nowMs)) return { kind: 'canceled', by: 'too-late' }
  if (isWindowOver(entry, nowMs)) {
    const isOfAnother = entry.mayPredateJournal && entry.attemptsBegun === 0
    return { kind: 'ended', reason: isOfAnother ? 'may-predate-journal' : 'window-over' }
  }
  if (!dialectOf(context, entry)) return { kind: 'ended', reason: 'dialect-missing' }
  // A receiver without keys is asked once; whoever finds the entry sending cannot know what became of it.
  if (!entry.keyed && entry.state === 'sending') return { kind: 'ended', reason: 'takes-no-key' }
  return undefined
}

/**
 * What a reply means. A dialect or a definition that throws, or makes something of a reply that no journal could keep, must
 * not lose it: then nothing is known, and the entry stays open.
 */
function verdictOf(reply: Reply, dialect: Dialect, definition: AnyWriteDefinition, of: JournalEntry): Verdict {
  if (reply.kind === 'lost') return { kind: 'unclear', why: reply.why }
  try {
    // Through text, so that the caller gets today what a restart would read tomorrow.
    const verdict = JSON.parse(
      JSON.stringify(dialect.classify(reply, { definition, expected: of.expected })),
    ) as Verdict
    return isKeepable(verdict) ? verdict : { kind: 'unclear', why: 'not-a-receipt' }
  } catch {
    return { kind: 'unclear', why: 'not-a-receipt' }
  }
}

/**
 * A receiver that frees the key on a refusal speaks only for the attempt it refused: one that is still on its way finds the
 * key free, and works. So its refusal speaks for all only when none can be on its way any more.
 */
function asFarAsProven(verdict: Verdict, dialect: Dialect, of: JournalEntry, nowMs: number): Verdict {
  if (verdict.kind !== 'refused' || dialect.keepsRejections(of.kind) || nowMs >= quietAtMs(of, of.attemptsBegun)) {
    return verdict
  }
  return { ...verdict, rejection: { ...verdict.rejection, behindKey: false } }
}

function notBefore(timing: Timing, atMs: number): Timing {
  return { nextAttemptAtMs: Math.max(timing.nextAttemptAtMs, atMs), notBeforeMs: Math.max(timing.notBeforeMs, atMs) }
}

function isKeepable(verdict: Verdict): boolean {
  if ('receipt' in verdict) {
    const { id, reply } = verdict.receipt
    return typeof id === 'string' && id !== '' && isWellFormed(id) && isJsonObject(reply)
  }
  if (verdict.kind !== 'refused') return true
  const { kind, behindKey, status } = verdict.rejection
  return (kind === 'declined' || kind === 'invalid') && typeof behindKey === 'boolean' && typeof status === 'number'
}
