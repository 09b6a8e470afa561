/**
 * The world as the engine sees it: clocks, timers, chance, the network and the life of a page. Nothing here is touched before
 * the engine asks; tests hand in a world of their own.
 */

export interface Runtime {
  /** Wall time, for what outlives the process: windows, leases, next attempts. */
  nowMs(): number
  /** Monotonic time, for budgets inside the process; a change of the clock does not move it. */
  monotonicMs(): number
  /** From 0 up to, not including, 1. */
  readonly random: () => number
  /** Resolves after `ms`, or at once when the signal fires; never rejects. `idle` timers do not keep a process alive. */
  sleep(ms: number, signal: AbortSignal, idle?: 'idle'): Promise<void>
  /** Calls back once after `ms`; returns what stops it. For what every call needs: it makes no signal and no event. */
  timer(ms: number, wake: () => void): () => void
  readonly fetch: typeof fetch
  /** `false` only where the runtime is sure that there is no network. */
  isOnline(): boolean
  /**
   * Calls back when the page comes back to life or the network is there again, and says whether it came out of the back/forward
   * cache; returns a function that stops it.
   */
  onWake(listener: (isRevived: boolean) => void): () => void
  /** Whether this is a page, which may be closed while its requests are on their way, and whose `fetch` can let them go on. */
  isPage(): boolean
  /**
   * Whether one `fetch` may be two requests. A browser whose connection breaks before the reply sends a request again by itself,
   * a POST too, if the connection had been used before, and tells nobody (seen in Chromium 156 and Firefox 153, although
   * RFC 9110, 9.2.2, asks not to). Node does not.
   */
  maySendTwice(): boolean
  /** Where the page comes from; `undefined` outside a page. */
  origin(): string | undefined
}

/** Reason of aborts that only end a wait. Without one the runtime would make an error with a stack each time. */
export const DONE = 'done'

/** Timers hold no more than this; a longer one would fire at once. */
const MAX_TIMER_MS = 2 ** 31 - 1

/**
 * The real world. `fetch` is looked up at each call, so that a mock that is installed later is used.
 */
export function realRuntime(fetchOfUser?: typeof fetch): Runtime {
  return {
    nowMs: () => Date.now(),
    monotonicMs: () => performance.now(),
    random: () => Math.random(),
    sleep,
    timer(ms, wake) {
      const timer = startTimer(ms, wake)
      return () => clearTimeout(timer)
    },
    fetch: (input, init) => (fetchOfUser ?? globalThis.fetch)(input, init),
    isOnline: () => typeof navigator === 'undefined' || navigator.onLine !== false,
    onWake,
    isPage: () => typeof document !== 'undefined' && 'keepalive' in Request.prototype,
    maySendTwice: () => typeof location !== 'undefined',
    origin: () => (typeof location === 'undefined' ? undefined : location.origin),
  }
}

async function sleep(ms: number, signal: AbortSignal, idle?: 'idle'): Promise<void> {
  if (signal.aborted || ms <= 0) return
  await new Promise<void>((resolve) => {
    const wake = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', wake)
      resolve()
    }
    const timer = startTimer(ms, wake)
    // Node's timers are objects, a browser's are numbers.
    if (idle && typeof timer === 'object') (timer as { unref?: () => void }).unref?.()
    signal.addEventListener('abort', wake)
  })
}

function startTimer(ms: number, wake: () => void): ReturnType<typeof setTimeout> {
  return setTimeout(wake, Math.min(Math.ceil(ms), MAX_TIMER_MS))
}

function onWake(listener: (isRevived: boolean) => void): () => void {
  // Node has no such events.
  if (typeof addEventListener === 'undefined') return () => {}
  const stop = new AbortController()
  const { signal } = stop
  const wake = (): void => listener(false)
  // In workers too; all the others are a page's.
  addEventListener('online', wake, { signal })
  if (typeof document !== 'undefined') {
    const whenVisible = (): void => {
      if (document.visibilityState === 'visible') wake()
    }
    addEventListener('pageshow', ({ persisted }) => listener(persisted), { signal })
    document.addEventListener('visibilitychange', whenVisible, { signal })
    // A hidden page that was frozen may go on hidden (Page Lifecycle, Chromium).
    document.addEventListener('resume', wake, { signal })
  }
  return () => stop.abort()
}
