/**
 * Background delivery: passes over what is deliverable, at the start, when the page comes back to life or online, and when
 * the next entry is due. Nothing here rejects into nowhere: what fails is told by an event and tried again later.
 *
 * It is paced, so that an outage is not answered by a storm once it is over. While the receiver answers, everything that is
 * due is sent, a few at a time. A failure raises an exponent that belongs to the client, not to the entry; while it is
 * above zero one entry at a time is sent, the one whose last attempt is longest ago, and the next waits a random time that
 * doubles with the exponent. So one entry that always fails holds up nobody, and a hundred ask no more often than one.
 */
import { isClaimedByOther, isDeliverable, isInDoubt, nextLookAtMs } from '../model/entry.ts'
import type { DeliverableEntry } from '../model/entry.ts'
import type { Page, Taking } from '../stores/store.ts'
import { holderOf } from './claim.ts'
import { guarded, pagesOf, placeOf } from './context.ts'
import type { Context } from './context.ts'
import { deliver } from './deliver.ts'
import { isDue, runPass } from './resume.ts'
import { backoffMs } from './schedule.ts'
import type { Budget } from './waiters.ts'

/** The journal is looked at this often even if nothing is due: other processes may have left something. */
const LOOK_MS = 30_000
/** And never more often than this. */
const REST_MS = 250

/** One attempt each and nobody waits. */
const ONE_ATTEMPT: Budget = { attempts: 1, deadlineAtMs: Infinity, isPatient: false }

/** What a look at the journal leads to. */
interface Looked {
  /** Failures: 1, successes: -1, nothing tried: 0. */
  readonly change: 1 | 0 | -1
  /** When the next entry is due, in wall time; absent if none is known. */
  readonly nextAtMs: number | undefined
}

/**
 * Starts it.
 *
 * @returns stops it; what is in flight ends by itself
 */
export function startBackground(context: Context): () => void {
  const { runtime, pace } = context
  const { baseDelayMs, maxDelayMs } = context.settings.policy
  const stopped = new AbortController()
  let wake = new AbortController()
  /** The first look and those after a wake-up do not wait for the entries' own back-off. */
  let isEager = true
  const stopListening = runtime.onWake(() => {
    isEager = true
    wake.abort()
  })
  pace.running += 1
  pace.wake = () => wake.abort()
  const stopWatching = context.store.watchDeliverable?.(
    placeOf(context),
    () => [...context.definitions.keys()],
    () => pace.wake(),
  )
  const stop = (): void => {
    if (!stopped.signal.aborted) pace.running -= 1
    stopListening()
    stopWatching?.()
    context.closing.removeEventListener('abort', stop)
    stopped.abort()
    wake.abort()
  }
  context.closing.addEventListener('abort', stop)

  const run = async (): Promise<void> => {
    // Beyond this the waits are at their cap, and each step more would have to be taken back after the outage.
    const most = Math.max(1, Math.ceil(Math.log2(maxDelayMs / Math.max(1, baseDelayMs))) + 1)
    while (!stopped.signal.aborted) {
      wake = new AbortController()
      const due = isEager ? 'not-before' : 'planned'
      isEager = false
      const look = pace.exponent === 0 ? lookAtAll : lookAtOne
      const { change, nextAtMs } = await look(context, due, stopped.signal)
      pace.exponent = Math.min(most, Math.max(0, pace.exponent + change))
      // After success and failure alike; a new entry or a wake-up does not shorten it.
      if (pace.exponent > 0 && change !== 0) {
        await runtime.sleep(
          backoffMs(pace.exponent + 1, baseDelayMs, maxDelayMs, runtime.random),
          stopped.signal,
          'idle',
        )
      }
      if (isEager) continue
      const untilDueMs = nextAtMs === undefined ? LOOK_MS : Math.max(REST_MS, nextAtMs - runtime.nowMs())
      await runtime.sleep(Math.min(LOOK_MS, untilDueMs), wake.signal, 'idle')
    }
  }
  void run()
  return stop
}

async function lookAtAll(context: Context, due: Taking['due'], signal: AbortSignal): Promise<Looked> {
  try {
    const { failures, nextAttemptAtMs } = await runPass(context, { budget: () => ONE_ATTEMPT, due, signal })
    return { change: failures > 0 ? 1 : 0, nextAtMs: nextAttemptAtMs }
  } catch {
    // The journal could not be listed; an event has told it.
    return { change: 0, nextAtMs: undefined }
  }
}

async function lookAtOne(context: Context, due: Taking['due'], signal: AbortSignal): Promise<Looked> {
  try {
    const { entry, nextAtMs } = await longestAgo(context, due)
    if (!entry || signal.aborted) return { change: 0, nextAtMs }
    await context.openings.get(entry.key)?.ended
    const delivered = await deliver(context, entry).join(ONE_ATTEMPT, signal)
    const isOver = !isDeliverable(delivered.entry)
    // Something else may be due at once; the pace decides when it is its turn.
    return {
      change: isOver ? -1 : delivered.attemptsMade > 0 ? 1 : 0,
      nextAtMs: isOver || delivered.attemptsMade > 0 ? 0 : nextAtMs,
    }
  } catch {
    return { change: 0, nextAtMs: undefined }
  }
}

/**
 * The first try of a queued entry, at once. Where background delivery runs, this is one attempt, and none while the receiver
 * fails: the entry is in the queue already, and its turn comes.
 */
export async function deliverFirst(context: Context, entry: DeliverableEntry, budget: Budget): Promise<void> {
  const { pace } = context
  if (context.closing.aborted) return
  if (pace.running > 0 && pace.exponent > 0) return pace.wake()
  try {
    const delivered = await deliver(context, entry).join(pace.running > 0 ? ONE_ATTEMPT : budget)
    if (pace.running === 0 || !isDeliverable(delivered.entry)) return
    if (delivered.attemptsMade > 0) pace.exponent = Math.max(1, pace.exponent)
    pace.wake()
  } catch {
    // What goes wrong is told by events; there is nobody to reject to.
  }
}

/** Of those that are due the one whose last attempt is longest ago; those whose window runs before those never sent. */
async function longestAgo(
  context: Context,
  due: Taking['due'],
): Promise<{ entry: DeliverableEntry | undefined; nextAtMs: number | undefined }> {
  let best: DeliverableEntry | undefined
  let nextAtMs: number | undefined
  const rankOf = (entry: DeliverableEntry): number => (isInDoubt(entry) ? 0 : 1)
  const sinceOf = (entry: DeliverableEntry): number => entry.attempts.at(-1)?.beganAtMs ?? entry.namedAtMs
  const read = (after?: string): Promise<Page> => context.store.listDeliverable(placeOf(context), 256, after)
  for await (const page of pagesOf(context, 'list', read)) {
    for (const entry of page.entries) {
      if (!isDeliverable(entry) || !context.definitions.has(entry.kind) || (await isAtWork(context, entry))) continue
      if (!isDue(context, entry, due)) {
        nextAtMs = Math.min(nextAtMs ?? Infinity, nextLookAtMs(entry))
        continue
      }
      const isBetter =
        !best || rankOf(entry) < rankOf(best) || (rankOf(entry) === rankOf(best) && sinceOf(entry) < sinceOf(best))
      if (isBetter) best = entry
    }
  }
  return { entry: best, nextAtMs }
}

/** Whether another process or tab, which lives, works on it; then its turn is another's. */
async function isAtWork(context: Context, entry: DeliverableEntry): Promise<boolean> {
  const { claim } = entry
  if (!claim || !isClaimedByOther(entry, context.owner(), context.runtime.nowMs())) return false
  return !(await guarded(context, 'read', () => context.store.isGone(holderOf(claim))))
}
