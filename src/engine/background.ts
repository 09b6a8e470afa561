/**
 * Background delivery: passes over what is deliverable, at the start, when the page comes back to life or online, and when
 * the next entry is due. Nothing here rejects into nowhere: what fails is told by an event and tried again later.
 *
 * What waits is in the journal and not in memory, however much it is. pace.ts says how many may be under way and how long the
 * next one waits, so that an outage is not answered by a storm once it is over. Processes and tabs on one journal share
 * the pace without speaking to each other: each sees in the entries what became of the others' attempts, takes it for its
 * own, and leaves its turn to who was faster.
 */
import { isClaimedByOther, isDeliverable, isInDoubt, nextLookAtMs } from '../model/entry.ts'
import type { DeliverableEntry, JournalEntry } from '../model/entry.ts'
import type { Page, Taking } from '../stores/store.ts'
import { holderOf } from './claim.ts'
import { guarded, pagesOf, placeOf } from './context.ts'
import type { Context } from './context.ts'
import { deliver } from './deliver.ts'
import type { Delivered } from './deliver.ts'
import { compareTurns } from './pace.ts'
import type { Turn } from './pace.ts'
import { isDue, runPass } from './resume.ts'
import type { Budget } from './waiters.ts'

/** The journal is looked at this often even if nothing is due: other processes may have left something. */
const LOOK_MS = 30_000
/** And never more often than this. */
const REST_MS = 250
/** So many turns are found in one look, so that a long backlog is not read again for each attempt. */
const LINE = 64

/** One attempt each and nobody waits. */
const ONE_ATTEMPT: Budget = { attempts: 1, deadlineAtMs: Infinity, isPatient: false }

export interface Background {
  /**
   * Starts it.
   *
   * @returns stops it; what is in flight ends by itself
   */
  start(): () => void
  /**
   * Takes over an entry that a call has queued: sent at once where there is room, else when its turn comes. Without `start()`,
   * what was queued from the first such entry on is delivered, and nothing older.
   */
  take(entry: DeliverableEntry): void
  /** Looks when it is due at what a call has left open, where it has been started. */
  notice(): void
}

/** What a look at the journal leads to. */
interface Looked {
  /** When something is due, in wall time; absent if nothing is known to be. */
  readonly nextAtMs: number | undefined
  /** Whether something is left to deliver. */
  readonly isLeft: boolean
}

export function backgroundOf(context: Context): Background {
  const { runtime, pace, store, closing } = context
  let starts = 0
  /** Without `start()` what was named before this is not this client's to deliver. */
  let sinceMs = Infinity
  let isRunning = false
  /** The first look and those after a wake-up do not wait for the entries' own back-off. */
  let isEager = false
  /** Something was queued for which there was no room. */
  let isAsked = false
  /** Something was tried, so the pace may want a wait. */
  let isPauseDue = false
  /** Entries under way; and those of them that were not taken from the journal. */
  let inFlight = 0
  let direct = 0
  /** Whose turn is next while one entry at a time is sent. */
  let line: Turn[] = []
  /** The latest attempt known of, whoever made it; wall time. */
  let seenAtMs = -Infinity
  let halt = new AbortController()
  let wake = new AbortController()
  let stopListening: (() => void) | undefined

  const isWanted = (): boolean => !closing.aborted && (starts > 0 || sinceMs < Infinity)
  const isMine = (entry: DeliverableEntry): boolean =>
    context.definitions.has(entry.kind) && (starts > 0 || entry.namedAtMs >= sinceMs)

  const attempt = async (entry: DeliverableEntry): Promise<Delivered> => {
    const { key } = entry
    inFlight += 1
    pace.begin(key, begunAtMs(entry))
    let result: 'failed' | 'answered' | 'none' = 'none'
    try {
      const delivered = await deliver(context, entry).join(ONE_ATTEMPT, halt.signal)
      if (delivered.attemptsMade > 0) {
        result = isDeliverable(delivered.entry) ? 'failed' : 'answered'
        isPauseDue = true
        seenAtMs = Math.max(seenAtMs, begunAtMs(delivered.entry) ?? seenAtMs)
      }
      return delivered
    } finally {
      inFlight -= 1
      pace.end(key, result, runtime.nowMs())
    }
  }

  // -------------------------------------------------------------------------------------------------------- the looks

  const lookAtAll = async (due: Taking['due']): Promise<Looked> => {
    let isLeft = false
    const { nextAttemptAtMs } = await runPass(context, {
      deliver: attempt,
      most: () => pace.room - direct,
      due,
      isMine: (entry) => {
        if (!isMine(entry)) return false
        isLeft = true
        return pace.isSlow || inFlight >= pace.room ? 'later' : true
      },
      signal: halt.signal,
    })
    return { nextAtMs: nextAttemptAtMs, isLeft }
  }

  const lookAtOne = async (due: Taking['due']): Promise<Looked> => {
    let looked: Looked = { nextAtMs: undefined, isLeft: true }
    if (due === 'not-before') line = []
    if (line.length === 0) looked = await findTurns(due)
    const entry = await nextInLine()
    if (!entry) return looked
    await context.openings.get(entry.key)?.ended
    const delivered = await attempt(entry)
    // What could not be tried (offline, no login) is looked at when something happens, or with the next look at all.
    return delivered.attemptsMade > 0 || !isDeliverable(delivered.entry) ? { nextAtMs: 0, isLeft: true } : looked
  }

  /** Reads what is deliverable, page by page, and keeps those whose turn comes first. */
  const findTurns = async (due: Taking['due']): Promise<Looked> => {
    let nextAtMs: number | undefined
    let isLeft = false
    const knownAtMs = seenAtMs
    const read = (after?: string): Promise<Page> => store.listDeliverable(placeOf(context), 256, after)
    for await (const { entries } of pagesOf(context, 'list', read)) {
      for (const entry of entries) {
        if (!isDeliverable(entry)) continue
        seenAtMs = Math.max(seenAtMs, begunAtMs(entry) ?? seenAtMs)
        if (!isMine(entry)) continue
        isLeft = true
        if (await isAtWork(context, entry)) continue
        if (isDue(context, entry, due)) line.push(turnOf(entry))
        else nextAtMs = Math.min(nextAtMs ?? Infinity, nextLookAtMs(entry))
      }
      line = line.toSorted(compareTurns).slice(0, LINE)
    }
    // Nothing is known of the attempts before the first look.
    if (knownAtMs > -Infinity && seenAtMs > knownAtMs) leaveTurn('failed')
    return { nextAtMs, isLeft }
  }

  /** @returns nothing if it is not this client's turn, or nobody's */
  const nextInLine = async (): Promise<DeliverableEntry | undefined> => {
    if (isPauseDue) return undefined
    let noticed: 'failed' | 'answered' | undefined
    let isOvertaken = false
    for (let [turn] = line; turn && !halt.signal.aborted; [turn] = line) {
      const { key, sinceMs: knownMs } = turn
      const entry = await guarded(context, 'read', () => store.get(context.settings.endpoint, key))
      const isTried = entry !== undefined && turnOf(entry).sinceMs > knownMs
      if (entry && !isTried && isDeliverable(entry) && !(await isAtWork(context, entry))) {
        if (!isOvertaken) return (line.shift(), entry)
        break
      }
      line.shift()
      if (!isTried) continue
      // Somebody else was faster. What became of it is as good as known of one's own.
      isOvertaken = true
      seenAtMs = Math.max(seenAtMs, begunAtMs(entry) ?? seenAtMs)
      if (entry.attempts.at(-1)?.endedAtMs !== undefined && noticed !== 'answered')
        noticed = isDeliverable(entry) ? 'failed' : 'answered'
    }
    if (isOvertaken) leaveTurn(noticed)
    return undefined
  }

  const leaveTurn = (noticed: 'failed' | 'answered' | undefined): void => {
    if (noticed) pace.noticed(noticed, runtime.nowMs())
    isPauseDue = true
  }

  // --------------------------------------------------------------------------------------------------------- the loop

  const run = async (): Promise<void> => {
    while (isWanted()) {
      const pauseMs = isPauseDue ? pace.waitMs(runtime.random) : 0
      isPauseDue = false
      // After success and failure alike; a new entry or a wake-up does not shorten it.
      if (pauseMs > 0) await runtime.sleep(pauseMs, halt.signal, 'idle')
      if (!isWanted()) break
      wake = new AbortController()
      const due = isEager ? 'not-before' : 'planned'
      isEager = false
      isAsked = false
      // If the journal could not be read, an event has told it.
      const failed: Looked = { nextAtMs: undefined, isLeft: true }
      const { nextAtMs, isLeft } = await (pace.isSlow ? lookAtOne(due) : lookAtAll(due)).catch(() => failed)
      if (isEager || (isPauseDue && pace.isSlow)) continue
      if (starts === 0 && !isLeft && !isAsked && direct === 0) break
      const untilDueMs = nextAtMs === undefined ? LOOK_MS : Math.min(LOOK_MS, nextAtMs - runtime.nowMs())
      // This one keeps a process alive, so that a short one does not end before the rest of what it queued is sent.
      await runtime.sleep(REST_MS, halt.signal)
      if (!isAsked && !isEager) await runtime.sleep(untilDueMs - REST_MS, wake.signal, 'idle')
    }
    isRunning = false
    sinceMs = Infinity
    line = []
    leave()
  }

  const go = (): void => {
    if (!isWanted()) return
    if (halt.signal.aborted) halt = new AbortController()
    stopListening ??= listen()
    wake.abort()
    if (isRunning) return
    isRunning = true
    void run()
  }

  const listen = (): (() => void) => {
    const stopWaking = runtime.onWake(() => {
      isEager = true
      wake.abort()
    })
    const stopWatching = store.watchDeliverable?.(
      placeOf(context),
      () => [...context.definitions.keys()],
      () => {
        isAsked = true
        wake.abort()
      },
    )
    return () => {
      stopWaking()
      stopWatching?.()
    }
  }

  const leave = (): void => {
    if (isWanted()) return
    stopListening?.()
    stopListening = undefined
    halt.abort()
    wake.abort()
  }
  closing.addEventListener('abort', leave)

  return {
    start() {
      let isStarted = true
      starts += 1
      isEager = true
      go()
      return () => {
        if (!isStarted) return
        isStarted = false
        starts -= 1
        leave()
      }
    },
    notice() {
      if (starts === 0) return
      isAsked = true
      wake.abort()
    },
    take(entry) {
      if (closing.aborted) return
      if (starts === 0) sinceMs = Math.min(sinceMs, entry.namedAtMs)
      if (pace.isSlow || inFlight >= pace.room) {
        isAsked = true
        if (line.length > 0 && line.length < LINE) line.push(turnOf(entry))
        return go()
      }
      direct += 1
      void attempt(entry)
        // What goes wrong is told by events; there is nobody to reject to.
        .then(
          ({ entry: after }) => isDeliverable(after),
          () => true,
        )
        .then((isLeft) => {
          direct -= 1
          isAsked ||= isLeft
          if (isLeft) go()
          else if (starts === 0 && direct === 0 && !isRunning) sinceMs = Infinity
        })
    },
  }
}

function begunAtMs(entry: JournalEntry): number | undefined {
  return entry.attempts.at(-1)?.beganAtMs
}

function turnOf(entry: JournalEntry): Turn {
  return { key: entry.key, isInDoubt: isInDoubt(entry), sinceMs: begunAtMs(entry) ?? entry.namedAtMs }
}

/** Whether another process or tab, which lives, works on it; then its turn is another's. */
async function isAtWork(context: Context, entry: DeliverableEntry): Promise<boolean> {
  const { claim } = entry
  if (!claim || !isClaimedByOther(entry, context.owner(), context.runtime.nowMs())) return false
  return !(await guarded(context, 'read', () => context.store.isGone(holderOf(claim))))
}
