/**
 * The way to the IndexedDB database: opens it within bounds, lets go of it when asked to, and opens it again when the
 * browser has closed it. What is kept in it is indexeddb.ts's.
 */
import { JournalUnavailableError } from '../errors.ts'
import type { JournalFault } from '../errors.ts'

/** Shape of the database; the text of an entry has a format number of its own. */
const VERSION = 1
// One store, since one that is added later needs a new version, and with it every open tab to let go of the old one.
const STORE = 'entries'
/** Key of the record about the journal itself. */
export const META = 'meta'
export interface Meta {
  readonly bornAtMs: number
}
/** What the key of a record about the removed entries of a kind begins with; the kind follows. */
export const FORGOTTEN = 'forgotten:'
/** Shares no field with a row, so that it is in no index. */
export interface Forgotten {
  readonly latestMs: number
}

export type IndexName = 'family' | 'key' | 'order' | 'deliverable' | 'open'
const ORDER = ['endpoint', 'scope', 'namedAtMs', 'key']
/** A row without one of the fields is not in the index. */
const INDEXES: Readonly<Record<IndexName, string | readonly string[]>> = {
  family: ['scope', 'kind', 'operationId'],
  key: 'key',
  order: ORDER,
  deliverable: [...ORDER, 'deliverable'],
  open: ['endpoint', 'scope', 'open'],
}

type Work<T> = readonly [mode: IDBTransactionMode, callback: (store: IDBObjectStore) => T | PromiseLike<T>]

export interface Connection {
  /** What idb-keyval calls a store: one transaction, tried again once if the connection was dead. */
  readonly use: <T>(...work: Work<T>) => Promise<T>
  readonly open: () => Promise<unknown>
  readonly close: () => Promise<void>
}

export function connection(name: string, openTimeoutMs: number): Connection {
  let opened: Promise<IDBDatabase> | undefined

  function open(): Promise<IDBDatabase> {
    if (!opened) {
      const mine: Promise<IDBDatabase> = connect(name, openTimeoutMs, () => void letGo(mine)).catch(
        (error: unknown) => {
          // An open that fires nothing at all happens in every engine, and a fresh one helps. One that is blocked would only
          // queue behind itself.
          if (error instanceof JournalUnavailableError && error.fault === 'timeout')
            return connect(name, openTimeoutMs, () => void letGo(mine))
          throw error
        },
      )
      opened = mine
      mine.catch(() => void letGo(mine))
    }
    return opened
  }

  /** The next call opens afresh. Transactions that are running end by themselves. */
  async function letGo(one: Promise<IDBDatabase>): Promise<void> {
    if (opened === one) opened = undefined
    await one.then((database) => database.close()).catch(() => {})
  }

  async function transact<T>(...[mode, callback]: Work<T>): Promise<T> {
    const mine = open()
    const database = await mine
    try {
      const transaction = database.transaction(STORE, mode, { durability: 'strict' })
      const work = Promise.resolve(callback(transaction.objectStore(STORE)))
      return await bounded(work, 4 * openTimeoutMs, () => {
        abort(transaction)
        return 'timeout'
      })
    } catch (error) {
      void letGo(mine)
      throw error
    }
  }

  return {
    open,
    async use<T>(...work: Work<T>): Promise<T> {
      try {
        return await transact(...work)
      } catch (error) {
        const fault = asUnavailable(error)
        // What is left looks like a connection that the browser closed. Doing it again is safe, even if the first time was
        // committed and only its answer lost: versions are compared.
        if (error === fault || fault.fault !== 'unavailable') throw fault
        return transact(...work).catch((again: unknown) => {
          throw asUnavailable(again)
        })
      }
    },
    async close(): Promise<void> {
      if (opened) await letGo(opened)
    },
  }
}

function connect(name: string, timeoutMs: number, onGone: () => void): Promise<IDBDatabase> {
  let isBlocked = false
  let isLate = false
  const opening = new Promise<IDBDatabase>((resolve, reject) => {
    // Where there is no indexedDB, or a policy forbids it, this throws.
    const request = indexedDB.open(name, VERSION)
    let whyAborted: DOMException | null = null
    request.onupgradeneeded = () => {
      const { transaction } = request
      // The request will only say that it was aborted, also where the database itself found no space.
      transaction?.addEventListener('abort', () => {
        whyAborted = transaction.error
      })
      create(request.result)
    }
    request.onblocked = () => {
      isBlocked = true
    }
    request.onerror = () => reject(asUnavailable(whyAborted ?? request.error))
    request.onsuccess = () => {
      const database = request.result
      // One that nobody waits for any more would block the upgrade of another tab for ever.
      if (isLate) return database.close()
      // Another tab wants to upgrade or to delete: it waits until all have let go.
      database.onversionchange = onGone
      database.onclose = onGone
      if (database.objectStoreNames.contains(STORE)) return resolve(database)
      database.close()
      reject(unavailable('foreign'))
    }
  }).catch((error: unknown) => {
    throw asUnavailable(error)
  })
  return bounded(opening, timeoutMs, () => {
    isLate = true
    return isBlocked ? 'blocked' : 'timeout'
  })
}

function create(database: IDBDatabase): void {
  const store = database.createObjectStore(STORE)
  for (const [name, keyPath] of Object.entries(INDEXES)) store.createIndex(name, keyPath)
  store.put({ bornAtMs: Date.now() } satisfies Meta, META)
}

function abort(transaction: IDBTransaction): void {
  try {
    transaction.abort()
  } catch {
    // It has just ended.
  }
}

/**
 * Waits for some time and no longer. In two halves: a page that was frozen gets its timer and what it waited for at once when
 * it wakes, and should not take the timer's word first.
 */
export function bounded<T>(work: Promise<T>, ms: number, late: () => Fault = () => 'timeout'): Promise<T> {
  return new Promise((resolve, reject) => {
    let timer = setTimeout(() => {
      timer = setTimeout(() => reject(unavailable(late())), ms / 2)
    }, ms / 2)
    void work.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}

type Fault = Exclude<JournalFault, 'damaged' | 'closed'>
const TEXTS: Readonly<Record<Fault, string>> = {
  unavailable:
    'IndexedDB is missing or refused (private mode, a policy, a full disk, a server). Allow this site to store data, or choose another journal.',
  timeout: 'IndexedDB did not answer in time. Call again, or restart the browser.',
  blocked: 'Another tab holds the database open in another version. Close or reload the other tabs, then call again.',
  full: 'The browser has no space left for this site. Free some, then call again.',
  foreign: 'The database is not a journal. It was left as it is. Choose another `name`.',
  'newer-format': 'The database is of a newer version of billonce. It was left as it is. Reload the page.',
}

function unavailable(fault: Fault, cause?: unknown): JournalUnavailableError {
  return new JournalUnavailableError(TEXTS[fault], { fault, cause })
}

/** What the browser gave as a reason; `null` for a transaction that was aborted without one. */
export function asUnavailable(error: unknown): JournalUnavailableError {
  if (error instanceof JournalUnavailableError) return error
  const name = error instanceof Error ? error.name : ''
  return unavailable(
    name === 'QuotaExceededError' ? 'full' : name === 'VersionError' ? 'newer-format' : 'unavailable',
    error,
  )
}
