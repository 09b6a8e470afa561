/**
 * `billonce/service-worker`: lets an application's service worker deliver what its pages left open, when the browser fires
 * Background Sync or when a page that goes away asks for it. It adds another moment for `resume()` and no second path, and
 * nothing relies on it: a page that calls `start()` delivers the same entries without it.
 */
import type { BillingClient } from './api.ts'

export interface SyncOptions {
  /** Tells this sync from others of the application, and one journal's from another's; default `billonce`. */
  readonly tag?: string | undefined
}

export interface ResumeOnSyncOptions extends SyncOptions {
  /**
   * How long a pass may begin attempts, in milliseconds; default 60,000. The attempts under way then end by themselves, so a
   * pass lasts at most one attempt's timeout and five seconds longer. Browsers end a worker that is busy for some minutes.
   */
  readonly deadlineMs?: number | undefined
}

/** One pass makes a client of its own and closes it: the worker may be stopped at any time after it. */
export type MakeClient = () => BillingClient | undefined | Promise<BillingClient | undefined>

/** What is not in TypeScript's library: events that keep the worker alive, and the managers that ask for them. */
interface WorkerEvent extends Event {
  waitUntil(work: Promise<unknown>): void
  readonly tag?: string
  readonly data?: unknown
}
interface WithSync {
  readonly sync?: { register(tag: string): Promise<void> }
}

const TAG = 'billonce'
const DEADLINE_MS = 60_000

/**
 * In the service worker: resumes open entries on `sync` and `periodicsync` of the tag, and when a page calls
 * {@link resumeInWorker}. To be called while the worker's script first runs, or the browser does not wake the worker for it.
 *
 * Each event is one bounded pass of `resume()` over the journal that the pages use too. Where something deliverable is left the
 * event fails, so that the browser fires it again after some minutes (Chromium: three times in all). Page and worker at work
 * at the same time send an entry once, by the claims of the journal, and under the same key if ever twice. A worker that is
 * killed in mid-request leaves the entry to the next pass, in whichever of them.
 *
 * A worker has no `localStorage` and no memory of the page's session: its client's `credentials` have to find out whose login
 * there is (in IndexedDB, or by asking the server that set the cookie) and say it; without one nothing is sent.
 *
 * @param makeClient makes the client for a pass, which is closed after it; gives `undefined` when nobody is signed in. A client
 *   with a journal of its own leaves that open, as always. What it throws fails the event.
 * @throws {TypeError} this runtime has no events to listen to, as Node has none; nothing was done
 * @see Background Synchronization, «Firing a sync event»; Service Workers, «ExtendableEvent»
 * @example
 * ```ts
 * import { createBillingClient } from 'billonce'
 * import { resumeOnSync } from 'billonce/service-worker'
 *
 * resumeOnSync(async () => {
 *   const login = await readLogin() // from IndexedDB
 *   if (!login) return undefined
 *   const headers = { authorization: `Bearer ${login.token}` }
 *   return createBillingClient({
 *     baseUrl: 'https://api.example.com',
 *     scope: login.scope,
 *     credentials: () => ({ scope: login.scope, headers }),
 *   })
 * })
 * ```
 */
export function resumeOnSync(makeClient: MakeClient, options: ResumeOnSyncOptions = {}): void {
  const tag = options.tag ?? TAG
  const deadlineMs = options.deadlineMs ?? DEADLINE_MS
  const pass = oneAtATime(() => onePass(makeClient, deadlineMs))
  const onSync = (event: Event): void => {
    const sync = event as WorkerEvent
    if (sync.tag === tag) sync.waitUntil(pass())
  }
  globalThis.addEventListener('sync', onSync)
  // Registering it needs a permission and how often, which are the application's to ask for; the pass is the same.
  globalThis.addEventListener('periodicsync', onSync)
  globalThis.addEventListener('message', (event: Event) => {
    const message = event as WorkerEvent
    if (!isRequest(message.data, tag)) return
    // Nobody fires a message again, so what is left over is no failure; the page or the next event goes on.
    message.waitUntil(pass().catch(() => {}))
  })
}

/**
 * In the page: asks the browser to fire the worker's pass as soon as there is a network, also when the page is closed by
 * then. To be called after a write that is still open: `queued`, `deferred`, or `unknown` whose delivery continues.
 *
 * @param registration one whose worker is active, such as `await navigator.serviceWorker.ready`
 * @returns whether the browser will do it: `false` where it has no Background Sync (Firefox, Safari), refuses it (no permission,
 *   a private window) or has no active worker. Then the next page that calls `start()` does it. Never rejects.
 * @see Background Synchronization, «SyncManager»
 */
export async function requestSync(
  registration: ServiceWorkerRegistration,
  options: SyncOptions = {},
): Promise<boolean> {
  try {
    const { sync } = registration as WithSync
    if (!sync) return false
    await sync.register(options.tag ?? TAG)
    return true
  } catch {
    return false
  }
}

/**
 * In the page: asks the active worker for a pass now. Works in every engine and does not wait, so it can be called in
 * `pagehide`: a worker may go on for a while after the page is gone, how long is each browser's own, and a request that the
 * page can no longer repeat is repeated there.
 *
 * @returns whether there was a worker to ask; what came of it is in the journal, for `find` and `entries`
 */
export function resumeInWorker(registration: ServiceWorkerRegistration, options: SyncOptions = {}): boolean {
  const { active } = registration
  active?.postMessage({ type: TAG, tag: options.tag ?? TAG })
  return active !== null
}

function isRequest(data: unknown, tag: string): boolean {
  if (typeof data !== 'object' || data === null) return false
  const { type, tag: asked } = data as { type?: unknown; tag?: unknown }
  return type === TAG && asked === tag
}

async function onePass(makeClient: MakeClient, deadlineMs: number): Promise<void> {
  const billing = await makeClient()
  if (!billing) return
  // Over the whole pass: the deadline of `resume` is that of each entry, and there may be hundreds.
  const timer = setTimeout(() => void billing.close(), deadlineMs)
  try {
    const { waiting, failed } = await billing.resume({ deadlineMs })
    // The only way to tell a browser that it should fire the event again.
    if (waiting + failed > 0) throw new Error(`${waiting + failed} entries are left to deliver.`)
  } finally {
    clearTimeout(timer)
    // The worker may be stopped after this, with all that was not waited for.
    await billing.close()
  }
}

/** Whoever asks during a pass gets one that begins after it: what was written down meanwhile may have been missed. */
function oneAtATime(run: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | undefined
  let next: Promise<void> | undefined
  const begin = (): Promise<void> => {
    const mine = run().finally(() => {
      running = undefined
    })
    running = mine
    return mine
  }
  return () => {
    if (!running) return next ?? begin()
    next ??= running
      .catch(() => {})
      .then(() => {
        next = undefined
        return begin()
      })
    return next
  }
}
