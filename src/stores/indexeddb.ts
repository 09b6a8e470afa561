/**
 * The journal of a browser: one IndexedDB database, driven through idb-keyval with a store function of ours, since its own
 * sets no durability, has no index and never lets go of a dead connection. How the database is reached is in
 * indexeddb-connection.ts, who works on an entry in indexeddb-owner.ts; what an entry means is not known here.
 */
import { get, promisifyRequest } from 'idb-keyval'
import { JournalUnavailableError } from '../errors.ts'
import type { Claim, EntryState, JournalEntry, OpenState } from '../model/entry.ts'
import { isDeliverable, isOpen, OPEN_STATES } from '../model/entry.ts'
import { sameName } from '../model/key.ts'
import { decodeEntry, encodeEntry } from './codec.ts'
import { asUnavailable, bounded, connection, FORGOTTEN, META } from './indexeddb-connection.ts'
import type { Forgotten, IndexName, Meta } from './indexeddb-connection.ts'
import { isOwnerGone, ownerLock, ownerOfRealm, storageReport } from './indexeddb-owner.ts'
import { isAsSeen, matches } from './store.ts'
import type { InsertResult, JournalStore, OpenCount, Page } from './store.ts'

export { requestPersistence } from './indexeddb-owner.ts'
export type { Persistence } from './store.ts'

export interface IndexedDbOptions {
  /** Name of the database; default `billonce`. */
  readonly name?: string | undefined
  /**
   * How long one try to open the database may take; default 5,000. There are two tries, so a call waits up to twice as long
   * before it throws; a transaction that says nothing is given up after four times as long.
   */
  readonly openTimeoutMs?: number | undefined
}

/**
 * What is kept under `[endpoint, key]`. Only `text` is the entry; the other fields are there for the indexes, and the last
 * two only while they hold, so that the indexes over them have no final entry in them.
 */
type Row = Pick<JournalEntry, 'endpoint' | 'scope' | 'kind' | 'operationId' | 'namedAtMs' | 'key'> & {
  readonly text: string
  readonly deliverable?: 1
  readonly open?: EntryState
}

/** One change, as part of a transaction that it may share with others. */
interface Step {
  /** Names of what it reads and changes; two steps of one transaction never share one. */
  readonly touches: readonly string[]
  /** Never rejects; what comes back tells the caller, once the transaction is complete. */
  readonly run: (store: IDBObjectStore, isRetry: boolean) => Promise<() => void>
  readonly reject: (error: unknown) => void
}

/** As many rows are read at a time. */
const CHUNK = 200

/**
 * Keeps the journal in IndexedDB, for browsers. Nothing is touched before the first call, so it can be made while a page is
 * rendered on a server.
 *
 * A change resolves when its transaction, of durability `strict`, is complete; changes that come together share one. What
 * the browser closed is opened again, once, and nothing waits without end: what does not answer in time rejects with
 * JournalUnavailableError and a fault of `timeout` or `blocked`.
 *
 * @throws {JournalUnavailableError} from its methods; see {@link JournalStore}
 * @example
 * const billing = createBillingClient({ ...options, journal: indexedDbJournal({ name: 'my-shop' }) })
 */
export function indexedDbJournal(options: IndexedDbOptions = {}): JournalStore {
  const openTimeoutMs = options.openTimeoutMs ?? 5_000
  const database = connection(options.name ?? 'billonce', openTimeoutMs)
  const lock = ownerLock()
  const calls = new Set<Promise<unknown>>()
  let queue: Step[] = []
  let isFlushing = false
  /** As many of the queue go alone, after one among them may have been too large. */
  let alone = 0
  let closing: Promise<void> | undefined

  /** What a public method does: not after `close`, which waits for it. */
  async function call<T>(work: () => Promise<T>): Promise<T> {
    if (closing) throw new JournalUnavailableError('The journal was closed; make a new one.', { fault: 'closed' })
    const result = work()
    calls.add(result)
    try {
      return await result
    } finally {
      calls.delete(result)
    }
  }

  /**
   * `decide` puts and deletes or does not; a request that fails ends the transaction, so nobody waits for it alone. What it
   * needs of an entry is taken before, since the entry is the caller's to change. Beside its result it gives the claim that
   * stands after it on what it touches first.
   */
  async function change<T>(
    touches: readonly string[],
    claim: Claim | null,
    decide: (store: IDBObjectStore, isRetry: boolean) => Promise<readonly [T, claim: Claim | null]>,
  ): Promise<T> {
    const [id = ''] = touches
    if (isOurs(claim)) {
      // The database first: without one there is no claim to hold a lock for.
      await database.open()
      await bounded(lock.hold(id), openTimeoutMs).catch(() => {})
    }
    return new Promise<T>((resolve, reject) => {
      queue.push({
        touches,
        async run(store, isRetry) {
          try {
            const [result, standing] = await decide(store, isRetry)
            return () => {
              if (!isOurs(standing)) lock.letGo(id)
              resolve(result)
            }
          } catch (error) {
            return () => reject(asUnavailable(error))
          }
        },
        reject,
      })
      if (!isFlushing) void flush()
    })
  }

  /** Never rejects: the errors are those of the steps. */
  async function flush(): Promise<void> {
    isFlushing = true
    while (queue.length > 0) {
      let batch: Step[] | undefined
      try {
        const answers = await database.use('readwrite', async (store) => {
          const isRetry = batch !== undefined
          // Taken only now, so that what came while the database was opened goes along.
          batch ??= takeBatch()
          const answers = Promise.all(batch.map((step) => step.run(store, isRetry)))
          // A request that succeeded may still be undone: only completion counts.
          await promisifyRequest(store.transaction)
          return answers
        })
        for (const answer of answers) answer()
      } catch (error) {
        const failed = batch ?? queue.splice(0)
        if (failed.length > 1 && error instanceof JournalUnavailableError && error.fault === 'full') {
          queue.unshift(...failed)
          alone = failed.length
        } else {
          for (const step of failed) step.reject(error)
        }
      }
    }
    isFlushing = false
  }

  /**
   * Steps that have nothing to do with each other, so all of them can read before any of them writes. The others keep their
   * order and wait for the next transaction.
   */
  function takeBatch(): Step[] {
    if (alone > 0) {
      alone -= 1
      return queue.splice(0, 1)
    }
    const touched = new Set<string>()
    const batch: Step[] = []
    const rest: Step[] = []
    for (const step of queue) {
      const isFree = !step.touches.some((name) => touched.has(name))
      for (const name of step.touches) touched.add(name)
      if (isFree) batch.push(step)
      else rest.push(step)
    }
    queue = rest
    return batch
  }

  /**
   * A page of what an index holds under a prefix of its keys; of `settling` also what waits for evidence in one endpoint and
   * scope, which is in no index by age: there is little of it, so it is read whole and put in between.
   */
  async function page(
    index: IndexName,
    prefix: readonly string[],
    limit: number,
    after: string | undefined,
    isWanted: (entry: JournalEntry) => boolean,
    settling: readonly EntryState[] = [],
  ): Promise<Page> {
    const start: IDBValidKey[] | undefined = after === undefined ? undefined : JSON.parse(after)
    return database.use('readonly', async (store) => {
      const entries: JournalEntry[] = []
      let unreadable = 0
      let last = start
      const all: Row[][] = await Promise.all(
        settling.map((state) => promisifyRequest(store.index('open').getAll([...prefix, state]))),
      )
      const others = all.flat().filter((row) => !last || isLater(row, last))
      for (;;) {
        // A list sorts behind all strings and numbers, so with an empty one at its end a key is just past all that begin so.
        const range = IDBKeyRange.bound(last ? [...last, []] : prefix, [...prefix, []])
        const rows: Row[] = await promisifyRequest(store.index(index).getAll(range, CHUNK))
        const isEnd = rows.length < CHUNK
        const end = rows.at(-1)
        const between = others.filter(
          (row) => (!last || isLater(row, last)) && (isEnd || (end && !isLater(row, placeOf(end)))),
        )
        for (const row of between.length > 0 ? [...rows, ...between].toSorted(byPlace) : rows) {
          const entry = readable(row)
          if (!entry) unreadable += 1
          else if (isWanted(entry)) {
            if (entries.length === limit)
              return { entries, unreadable, ...(last ? { next: JSON.stringify(last) } : {}) }
            entries.push(entry)
          }
          last = placeOf(row)
        }
        if (isEnd) return { entries, unreadable }
      }
    })
  }

  async function allOf(index: IndexName, key: IDBValidKey): Promise<JournalEntry[]> {
    const rows: Row[] = await database.use('readonly', (store) => promisifyRequest(store.index(index).getAll(key)))
    return rows.map((row) => decodeEntry(row.text))
  }

  return {
    durable: true,
    get owner() {
      return ownerOfRealm()
    },
    insert: (entry, seen) =>
      call(() => {
        const row = rowOf(entry)
        const name = { ...entry }
        const { claim } = entry
        return change<InsertResult>(touchesOf(row), claim, async (store, isRetry) => {
          const [family, own]: [Row[], Row | undefined] = await Promise.all([
            promisifyRequest(store.index('family').getAll([row.scope, row.kind, row.operationId])),
            promisifyRequest(store.get(idOf(row))),
          ])
          // The first try was committed and its answer lost: nobody else writes the very same text.
          if (isRetry && own?.text === row.text) return [{ inserted: true }, claim]
          const rows = family.filter((other) => idOf(other) !== idOf(row))
          const found = rows.map((other) => decodeEntry(other.text)).filter((other) => sameName(other, name))
          // What is there under the same endpoint and key is never written over, whatever was seen.
          const there = own && decodeEntry(own.text)
          if (there) found.push(there)
          if (there || !isAsSeen(found, seen)) return [{ inserted: false, found }, there?.claim ?? null]
          store.put(row, idOf(row))
          return [{ inserted: true }, claim]
        })
      }),
    replace: (entry) =>
      call(() => {
        const row = rowOf(entry)
        const { version, claim } = entry
        return change<boolean>(touchesOf(row), claim, async (store, isRetry) => {
          const stored: Row | undefined = await promisifyRequest(store.get(idOf(row)))
          if (!stored) return [false, null]
          if (isRetry && stored.text === row.text) return [true, claim]
          const there = decodeEntry(stored.text)
          if (there.version !== version - 1) return [false, there.claim]
          store.put(row, idOf(row))
          return [true, claim]
        })
      }),
    get: (endpoint, key) =>
      call(async () => {
        const row = await get<Row>(idOf({ endpoint, key }), database.use)
        return row && decodeEntry(row.text)
      }),
    getByKey: (key) => call(() => allOf('key', key)),
    history: (name) => call(() => allOf('family', [name.scope, name.kind, name.operationId])),
    listDeliverable: (of, limit, after) =>
      call(() => page('deliverable', [of.endpoint, of.scope], limit, after, isDeliverable)),
    countOpen: () =>
      call(() =>
        database.use('readonly', async (store) => {
          const counts: OpenCount[] = []
          const index = store.index('open')
          let rest: IDBKeyRange | undefined
          for (;;) {
            const cursor = await promisifyRequest(index.openKeyCursor(rest))
            if (!cursor) return counts
            // The keys of this index are made of these three.
            const [endpoint, scope, state] = cursor.key as [string, string, OpenState]
            counts.push({ endpoint, scope, state, count: await promisifyRequest(index.count(cursor.key)) })
            // Past all that were just counted, to the next endpoint, scope or state.
            rest = IDBKeyRange.lowerBound(cursor.key, true)
          }
        }),
      ),
    list: (filter, limit, after) =>
      call(() => {
        const { endpoint, scope, states } = filter
        if (
          endpoint !== undefined &&
          scope !== undefined &&
          states?.length &&
          states.every((state) => (OPEN_STATES as readonly string[]).includes(state))
        ) {
          const isWanted = (entry: JournalEntry): boolean => matches(entry, filter)
          const settling = states.filter((state) => state === 'accepted' || state === 'unknown')
          // What is final is not read: there may be a lot of it.
          return page('deliverable', [endpoint, scope], limit, after, isWanted, settling)
        }
        const prefix = endpoint === undefined ? [] : scope === undefined ? [endpoint] : [endpoint, scope]
        return page('order', prefix, limit, after, (entry) => matches(entry, filter))
      }),
    remove: (entries) =>
      call(() => {
        const gone = entries.map((entry) => ({ id: idOf(entry), version: entry.version }))
        const latest = new Map<string, number>()
        for (const { kind, namedAtMs } of entries) latest.set(kind, Math.max(latest.get(kind) ?? 0, namedAtMs))
        const touches = [...entries.flatMap(touchesOf), ...Array.from(latest.keys(), (kind) => FORGOTTEN + kind)]
        return change<boolean>(touches, null, async (store, isRetry) => {
          const stored: (Row | undefined)[] = await Promise.all(gone.map(({ id }) => promisifyRequest(store.get(id))))
          // The first try was committed and its answer lost; or another removed the same, and that is as good.
          if (isRetry && stored.every((row) => row === undefined)) return [true, null]
          const isThere = (row: Row | undefined, index: number): boolean =>
            row !== undefined && decodeEntry(row.text).version === gone[index]?.version
          if (!stored.every(isThere)) return [false, null]
          // Before the first is deleted: to remember too much is harmless, should one of these be refused.
          for (const [kind, latestMs] of latest) {
            const before: Forgotten | undefined = await promisifyRequest(store.get(FORGOTTEN + kind))
            const record: Forgotten = { latestMs: Math.max(before?.latestMs ?? 0, latestMs) }
            store.put(record, FORGOTTEN + kind)
          }
          for (const { id } of gone) store.delete(id)
          return [true, null]
        })
      }),
    knowsSinceMs: (kind) =>
      call(async () => {
        const [meta, forgotten]: [Meta | undefined, Forgotten | undefined] = await database.use('readonly', (store) =>
          Promise.all([promisifyRequest(store.get(META)), promisifyRequest(store.get(FORGOTTEN + kind))]),
        )
        if (!meta)
          throw new JournalUnavailableError('The journal has no birth. It was left as it is.', { fault: 'damaged' })
        return Math.max(meta.bornAtMs, forgotten?.latestMs ?? 0)
      }),
    storage: () => bounded(storageReport(), openTimeoutMs),
    isGone: (owner) => call(() => bounded(isOwnerGone(owner), openTimeoutMs).catch(() => false)),
    close() {
      closing ??= Promise.allSettled(calls).then(() => {
        lock.release()
        return database.close()
      })
      return closing
    },
  }
}

/** A list of two strings as JSON is unambiguous, and begins with a bracket as the keys of the other records do not. */
function idOf({ endpoint, key }: Pick<Row, 'endpoint'> & { readonly key: string }): string {
  return JSON.stringify([endpoint, key])
}

/** Its key in the index that is ordered by age. */
function placeOf(row: Row): IDBValidKey[] {
  return [row.endpoint, row.scope, row.namedAtMs, row.key]
}

function isLater(row: Row, place: IDBValidKey[]): boolean {
  return indexedDB.cmp(placeOf(row), place) > 0
}

function byPlace(one: Row, other: Row): number {
  return indexedDB.cmp(placeOf(one), placeOf(other))
}

/** Its id and its family; a list of three is none of two. */
function touchesOf(of: Pick<Row, 'endpoint' | 'key' | 'scope' | 'kind' | 'operationId'>): string[] {
  return [idOf(of), JSON.stringify([of.scope, of.kind, of.operationId])]
}

function rowOf(entry: JournalEntry): Row {
  const { endpoint, scope, kind, operationId, namedAtMs, key } = entry
  const text = encodeEntry(entry)
  return {
    text,
    endpoint,
    scope,
    kind,
    operationId,
    namedAtMs,
    key,
    ...(isDeliverable(entry) ? { deliverable: 1 } : {}),
    ...(isOpen(entry) ? { open: entry.state } : {}),
  }
}

/** `undefined` for what this version cannot read; a listing counts it and goes on. */
function readable(row: Row): JournalEntry | undefined {
  try {
    return decodeEntry(row.text)
  } catch {
    return undefined
  }
}

/** Whether a claim is of this page or worker, whichever client in it. */
function isOurs(claim: Claim | null): boolean {
  return claim?.owner.startsWith(ownerOfRealm()) ?? false
}
