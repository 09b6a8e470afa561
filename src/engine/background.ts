/**
 * Background delivery: passes over what is deliverable, at the start, when the page comes back to life or online, and when
 * the next entry is due. Nothing here rejects into nowhere: a pass that fails is told by an event and tried again later.
 */
import type { Context } from './context.ts'
import { runPass } from './resume.ts'

/** The journal is looked at this often even if nothing is due: other processes may have left something. */
const LOOK_MS = 30_000
/** And never more often than this, so that an entry that cannot be taken does not make a hot loop. */
const REST_MS = 250

/**
 * Starts it.
 *
 * @returns stops it; what is in flight ends by itself
 */
export function startBackground(context: Context): () => void {
  const { runtime } = context
  const stopped = new AbortController()
  let wake = new AbortController()
  /** The first pass and those after a wake-up do not wait for our own back-off. */
  let isEager = true
  const stopListening = runtime.onWake(() => {
    isEager = true
    wake.abort()
  })
  const stop = (): void => {
    stopListening()
    context.closing.removeEventListener('abort', stop)
    stopped.abort()
    wake.abort()
  }
  context.closing.addEventListener('abort', stop)

  const run = async (): Promise<void> => {
    while (!stopped.signal.aborted) {
      wake = new AbortController()
      const wasEager = isEager
      isEager = false
      const nextAttemptAtMs = await onePass(context, wasEager, stopped.signal)
      if (isEager) continue
      const untilDueMs = nextAttemptAtMs === undefined ? LOOK_MS : nextAttemptAtMs - runtime.nowMs()
      await runtime.sleep(Math.min(LOOK_MS, Math.max(REST_MS, untilDueMs)), wake.signal, 'idle')
    }
  }
  void run()
  return stop
}

async function onePass(context: Context, isEager: boolean, signal: AbortSignal): Promise<number | undefined> {
  const { runtime } = context
  try {
    const summary = await runPass(context, {
      // One attempt each and nobody waits: an entry that always fails holds up nobody.
      budget: () => ({ attempts: 1, deadlineAtMs: Infinity, isPatient: false }),
      isTaken: (entry) => runtime.nowMs() >= (isEager ? entry.notBeforeMs : entry.nextAttemptAtMs),
      signal,
    })
    return summary.nextAttemptAtMs
  } catch {
    // The journal could not be listed; an event has told it.
    return undefined
  }
}
