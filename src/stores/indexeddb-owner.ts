/**
 * Who holds a claim in a browser, and whether that one still lives: a page or worker has a random name, and a Web Lock of
 * that name as long as it may hold claims. Also what the browser says about keeping this site's data.
 */
import type { Persistence, StorageReport } from './store.ts'

const OWNER = Symbol.for('billonce.owner')
const PREFIX = 'billonce:'

/** The name of this page or worker: one for all copies of this library in it, another after a reload. */
export function ownerOfRealm(): string {
  const realm = globalThis as { [OWNER]?: string }
  // Not randomUUID: it is missing on pages without https.
  return (realm[OWNER] ??= PREFIX + crypto.getRandomValues(new Uint32Array(4)).join('-'))
}

/** `undefined` without https, in an old browser, and in a server that renders pages. */
function webLocks(): LockManager | undefined {
  return globalThis.navigator?.locks
}

export interface OwnerLock {
  /** Resolves when the lock is held or cannot be; how long to wait for it is the caller's to say. */
  readonly hold: (id: string) => Promise<void>
  /** There is no claim on this entry any more; with the last one the lock goes. */
  readonly letGo: (id: string) => void
  readonly release: () => void
}

/**
 * A lock that says that this page lives. It has to be held before a claim becomes durable, or another tab could take the
 * entry over at once; that would be harmless, as both send the same key and body, but needless.
 *
 * The browser frees it when the page is closed, reloaded or crashes. It is held only while there are claims, since Firefox keeps
 * no page with a lock for the way back, and finds one that is let go of in `pagehide` too late. A page that goes away or is
 * frozen with a claim all the same lets go of it, so that others need not wait for the claim's lease, and asks again when it
 * is back. WebKit takes it away then by itself (seen in test/crash-browser/page-life.test.ts).
 */
export function ownerLock(): OwnerLock {
  const claims = new Set<string>()
  let held: Promise<void> | undefined
  let free = (): void => {}
  let listening: AbortController | undefined

  const ask = (): Promise<void> => {
    held ??= new Promise<void>((granted) => {
      const locks = webLocks()
      if (!locks) return granted()
      const freed = new Promise<void>((resolve) => {
        free = resolve
      })
      // Shared, since several journals of one page hold the same.
      const request = locks.request(ownerOfRealm(), { mode: 'shared' }, () => {
        granted()
        return freed
      })
      const mine = free
      const lost = (): void => {
        if (free === mine) held = undefined
        granted()
      }
      request.then(lost, lost)
    })
    return held
  }
  const leave = (): void => {
    held = undefined
    free()
  }
  const come = (): void => void ask()
  const listen = (): AbortController => {
    const stop = new AbortController()
    const { signal } = stop
    if (typeof document === 'undefined') return stop
    addEventListener('pagehide', leave, { signal })
    addEventListener('pageshow', come, { signal })
    document.addEventListener('freeze', leave, { signal })
    document.addEventListener('resume', come, { signal })
    return stop
  }
  const release = (): void => {
    claims.clear()
    listening?.abort()
    listening = undefined
    leave()
  }
  return {
    hold(id) {
      claims.add(id)
      listening ??= listen()
      return ask()
    },
    letGo(id) {
      if (claims.delete(id) && claims.size === 0) release()
    },
    release,
  }
}

/** Only a lock that is not there proves it; without locks nothing does. */
export async function isOwnerGone(owner: string): Promise<boolean> {
  const locks = webLocks()
  if (!locks || owner === ownerOfRealm() || !owner.startsWith(PREFIX)) return false
  const { held } = await locks.query()
  return held !== undefined && !held.some((lock) => lock.name === owner)
}

/**
 * Asks the browser not to clear this site's data when space runs low or after a week without a visit, and tells the answer.
 * Never called by the library itself. Firefox asks the user, and until the answer this waits; the other engines decide by
 * how much the site is used.
 *
 * @returns `not-granted` also means: ask again later, for example after a first purchase. Entries may be cleared then, and
 *   the same operation named again still gets the same key.
 */
export function requestPersistence(): Promise<Persistence> {
  return answerOf('persist')
}

async function answerOf(question: 'persist' | 'persisted'): Promise<Persistence> {
  const storage = siteStorage()
  try {
    const answer = await storage?.[question]?.()
    return answer === undefined ? 'unsupported' : answer ? 'persistent' : 'not-granted'
  } catch {
    return 'unsupported'
  }
}

/** What the browser says about this site's storage, without asking the user for anything. */
export async function storageReport(): Promise<StorageReport> {
  const [persistence, estimate] = await Promise.all([
    answerOf('persisted'),
    // Some refuse to tell, in private mode for example.
    Promise.resolve(siteStorage()?.estimate?.()).catch(() => undefined),
  ])
  return { persistence, usedBytes: estimate?.usage, quotaBytes: estimate?.quota }
}

/** Absent, or without some of it, on pages without https and in older browsers, whatever the types say. */
function siteStorage(): Partial<StorageManager> | undefined {
  return globalThis.navigator?.storage
}
