/**
 * What only an IndexedDB journal can get wrong: opens that never finish, other tabs that want the database, connections
 * that the browser closes, commits that fail after their requests succeeded, and who holds a claim.
 */
import { requestPersistence } from 'billonce/stores/indexeddb'
import { describe, expect, onTestFinished, test, vi } from 'vitest'
import { OPEN_STATES } from '../../src/model/entry.ts'
import type { JournalEntry } from '../../src/model/entry.ts'
import type { JournalStore } from '../../src/stores/store.ts'
import { type Sample, sampleEntry } from '../../src/testing/store-suite.ts'
import {
  deadRequest,
  deleteDatabase,
  isClosed,
  methodOf,
  newName,
  onTransaction,
  openJournal,
  openRaw,
  replaceProperty,
  spyOnConnections,
} from './indexeddb-support.ts'

const first = sampleEntry()
const second = sampleEntry({ version: 2, state: 'sending' })
const unavailable = (fault: string): object => expect.objectContaining({ code: 'ERR_JOURNAL_UNAVAILABLE', fault })
const stored = (journal: JournalStore): Promise<JournalEntry | undefined> => journal.get(first.endpoint, first.key)
const many = (count: number, sample: Sample = {}): JournalEntry[] =>
  Array.from({ length: count }, (_, index) =>
    sampleEntry({
      ...sample,
      operationId: `${sample.operationId ?? 'item'}-${index}`,
      namedAtMs: 1_760_000_000_000 + index,
    }),
  )
/** An entry whose claim this page holds. */
const claimed = (journal: JournalStore, sample: Sample = {}): JournalEntry => ({
  ...sampleEntry(sample),
  claim: { owner: `${journal.owner}#1`, fence: 1, untilMs: Date.now() + 60_000 },
})
const scopeOf = ({ endpoint, scope }: JournalEntry): { endpoint: string; scope: string } => ({ endpoint, scope })
const insertAll = (journal: JournalStore, entries: readonly JournalEntry[]): Promise<boolean[]> =>
  Promise.all(entries.map(async (entry) => (await journal.insert(entry, [])).inserted))

test('G70: making a journal touches nothing', () => {
  const open = vi.spyOn(IDBFactory.prototype, 'open')
  const request = vi.spyOn(LockManager.prototype, 'request')
  openJournal()
  expect(open).not.toHaveBeenCalled()
  expect(request).not.toHaveBeenCalled()
})

describe('opening', () => {
  test('G38: an open that fires nothing is tried afresh once, then refused; the next call tries again', async () => {
    const journal = openJournal(newName(), 300)
    const open = vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(deadRequest)
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('timeout'))
    expect(open).toHaveBeenCalledTimes(2)
    open.mockRestore()
    expect(await stored(journal)).toBeUndefined()
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('G38: an open that fires on the second try only is enough', async () => {
    const journal = openJournal(newName(), 500)
    const open = vi.spyOn(IDBFactory.prototype, 'open').mockImplementationOnce(deadRequest)
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    expect(open).toHaveBeenCalledTimes(2)
  })

  test('G38: a first connection that comes late is closed', async () => {
    const journal = openJournal(newName(), 500)
    const real = methodOf(IDBFactory.prototype, 'open')
    const late = deadRequest()
    let fire = (): void => {}
    const cameLate = new Promise<IDBDatabase>((resolve) => {
      vi.spyOn(IDBFactory.prototype, 'open').mockImplementationOnce(function (this: IDBFactory, ...args) {
        const request = real.apply(this, args)
        request.onupgradeneeded = (event) => {
          Object.defineProperty(late, 'result', { value: request.result, configurable: true })
          late.onupgradeneeded?.(event)
        }
        request.onsuccess = (event) => {
          Object.defineProperty(late, 'result', { value: request.result, configurable: true })
          fire = () => late.onsuccess?.(event)
          resolve(request.result)
        }
        return late
      })
    })
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    const connection = await cameLate
    expect(isClosed(connection)).toBe(false)
    fire()
    expect(isClosed(connection)).toBe(true)
    expect(await stored(journal)).toEqual(first)
  })

  test('G38: calls that come together wait for one open', async () => {
    const journal = openJournal()
    const open = vi.spyOn(IDBFactory.prototype, 'open')
    await Promise.all([journal.knowsSinceMs('charge'), journal.list({}, 1), journal.insert(first, [])])
    expect(open).toHaveBeenCalledTimes(1)
  })

  test('G40: a page that was frozen while it opened does not give up when it wakes', async () => {
    const journal = openJournal(newName(), 3_000)
    const open = vi.spyOn(IDBFactory.prototype, 'open')
    const inserted = journal.insert(first, [])
    const wakesAtMs = performance.now() + 3_200
    while (performance.now() < wakesAtMs);
    expect(await inserted).toEqual({ inserted: true })
    expect(open).toHaveBeenCalledTimes(1)
  })

  test('G39: the connection gives way to a newer version, which is left alone', async () => {
    const name = newName()
    const journal = openJournal(name)
    await journal.insert(first, [])
    const newer = await openRaw(name, 2)
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('newer-format'))
    expect(newer.version).toBe(2)
    expect([...newer.objectStoreNames]).toEqual(['entries'])
  })

  test('G39: an upgrade by another tab that comes to nothing leaves the journal usable', async () => {
    const name = newName()
    const journal = openJournal(name)
    await journal.insert(first, [])
    await openRaw(name, 2, (request) => request.transaction?.abort()).catch(() => {})
    expect(await journal.replace(second)).toBe(true)
  })

  test('G39: an open that another tab blocks is refused in time, and not tried twice', async () => {
    const name = newName()
    const other = await openRaw(name)
    const journal = openJournal(name, 300)
    const real = methodOf(IDBFactory.prototype, 'open')
    const open = vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(function (this: IDBFactory, database) {
      return real.call(this, database, 2)
    })
    await expect(journal.knowsSinceMs('charge')).rejects.toEqual(unavailable('blocked'))
    expect(open).toHaveBeenCalledTimes(1)
    other.close()
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('G43: where access to indexedDB throws, calls are refused', async () => {
    const journal = openJournal()
    const refusal = new DOMException('no', 'SecurityError')
    replaceProperty(globalThis, 'indexedDB', {
      get() {
        throw refusal
      },
    })
    await expect(journal.insert(claimed(journal), [])).rejects.toEqual(unavailable('unavailable'))
    await expect(journal.knowsSinceMs('charge')).rejects.toMatchObject({ cause: refusal })
  })

  test('G43: where there is no indexedDB, calls are refused', async () => {
    const journal = openJournal()
    replaceProperty(globalThis, 'indexedDB', { value: undefined })
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('unavailable'))
  })

  test.each([
    ['InvalidStateError', 'unavailable'],
    ['UnknownError', 'unavailable'],
    ['QuotaExceededError', 'full'],
  ])('G43: an open that fails with %s is refused as %s', async (name, fault) => {
    const journal = openJournal()
    vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(() => {
      const request = Object.assign(deadRequest(), { error: new DOMException('no', name) })
      setTimeout(() => request.onerror?.(new Event('error')))
      return request
    })
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable(fault))
    vi.restoreAllMocks()
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('G43: a put that throws is refused, and the others of its transaction are not', async () => {
    const journal = openJournal()
    const real = methodOf(IDBObjectStore.prototype, 'put')
    vi.spyOn(IDBObjectStore.prototype, 'put').mockImplementation(function (this: IDBObjectStore, ...args) {
      if (args[1] === JSON.stringify([first.endpoint, first.key])) throw new DOMException('no', 'DataError')
      return real.apply(this, args)
    })
    const others = insertAll(journal, many(5))
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('unavailable'))
    expect(await others).toEqual([true, true, true, true, true])
  })

  test('a database of the same name that is no journal is left as it is', async () => {
    const name = newName()
    const other = await openRaw(name, 1, (request) => request.result.createObjectStore('keyval'))
    await expect(openJournal(name).insert(first, [])).rejects.toEqual(unavailable('foreign'))
    expect([...other.objectStoreNames]).toEqual(['keyval'])
  })

  test('G41: on a fresh profile an entry is kept, settled and listed', async () => {
    const journal = openJournal()
    const settled = sampleEntry({ version: 2, state: 'succeeded' })
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    expect(await journal.replace(settled)).toBe(true)
    expect(await journal.list({}, 10)).toEqual({ entries: [settled], unreadable: 0 })
  })
})

describe('G40: a connection that died', () => {
  const calls: Record<string, (journal: JournalStore) => Promise<unknown>> = {
    insert: (journal) => journal.insert(sampleEntry({ operationId: 'other' }), []),
    replace: (journal) => journal.replace(second),
    get: stored,
    history: (journal) => journal.history(first),
    list: (journal) => journal.list({}, 1),
    listDeliverable: (journal) => journal.listDeliverable(first, 1),
    countOpen: (journal) => journal.countOpen(),
    remove: (journal) => journal.remove([first]),
    knowsSinceMs: (journal) => journal.knowsSinceMs('charge'),
  }

  test.each(Object.entries(calls))('is opened again by %s', async (_, call) => {
    const connections = spyOnConnections()
    const journal = openJournal()
    await journal.insert(first, [])
    connections[0]?.close()
    expect(await call(journal)).toBeTruthy()
    expect(connections).toHaveLength(2)
  })

  test('is opened once for all calls that find it dead', async () => {
    const connections = spyOnConnections()
    const journal = openJournal()
    await journal.insert(first, [])
    connections[0]?.close()
    await Promise.all([
      stored(journal),
      insertAll(journal, many(20)),
      journal.list({}, 5),
      journal.knowsSinceMs('charge'),
    ])
    expect(connections).toHaveLength(2)
  })

  test('is dropped when the browser says that it closed it', async () => {
    const connections = spyOnConnections()
    const journal = openJournal()
    await journal.insert(first, [])
    connections[0]?.dispatchEvent(new Event('close'))
    await Promise.resolve()
    expect(isClosed(connections[0]!)).toBe(true)
    expect(await stored(journal)).toEqual(first)
    expect(connections).toHaveLength(2)
  })

  test('because another context deleted the database: entries are kept in a new one', async () => {
    const name = newName()
    const journal = openJournal(name)
    await journal.insert(first, [])
    const frame = document.body.appendChild(document.createElement('iframe'))
    onTestFinished(() => frame.remove())
    await deleteDatabase(name, frame.contentWindow?.indexedDB)
    expect(await stored(journal)).toBeUndefined()
    expect(await journal.replace(second)).toBe(false)
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    expect(await stored(journal)).toEqual(first)
  })

  test('in the middle of a transaction: it is done again, once', async () => {
    const journal = openJournal()
    await journal.knowsSinceMs('charge')
    const transactions = onTransaction((transaction, index) => {
      if (index === 0) afterPut(transaction, () => transaction.abort())
    })
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    expect(transactions.count).toBe(2)
    expect(await stored(journal)).toEqual(first)
  })

  test('after the commit and before its answer: what was done is not taken for another’s work', async () => {
    const journal = openJournal()
    await journal.knowsSinceMs('charge')
    const transactions = onTransaction((transaction, index) => {
      if (index % 2 === 0) loseCompletion(transaction)
    })
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
    expect(await journal.replace(second)).toBe(true)
    expect(transactions.count).toBe(4)
    expect(await stored(journal)).toEqual(second)
  })

  test('after the commit of a removal and before its answer: that it is gone is not taken for another’s work', async () => {
    const journal = openJournal()
    await insertAll(journal, [first, sampleEntry({ operationId: 'other' })])
    const transactions = onTransaction((transaction, index) => {
      if (index === 0) loseCompletion(transaction)
    })
    expect(await journal.remove([first, sampleEntry({ operationId: 'other' })])).toBe(true)
    expect(transactions.count).toBe(2)
    expect(await journal.list({}, 10)).toEqual({ entries: [], unreadable: 0 })
    // Without a lost answer, what is not there cannot be removed.
    expect(await journal.remove([first])).toBe(false)
  })

  test('in the middle of a removal: it is done again, whole', async () => {
    const journal = openJournal()
    await insertAll(journal, many(3))
    const transactions = onTransaction((transaction, index) => {
      if (index === 0) afterPut(transaction, () => transaction.abort())
    })
    const late = many(3).map((entry) => ({ ...entry, namedAtMs: Date.now() + 60_000 }))
    expect(await journal.remove(late)).toBe(true)
    expect(transactions.count).toBe(2)
    expect(await journal.list({}, 10)).toEqual({ entries: [], unreadable: 0 })
    expect(await journal.knowsSinceMs('charge')).toBe(late[0]?.namedAtMs)
  })

  test('and cannot be opened again: the call is refused', async () => {
    const connections = spyOnConnections()
    const journal = openJournal(newName(), 300)
    await journal.insert(first, [])
    connections[0]?.close()
    vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(deadRequest)
    await expect(journal.replace(second)).rejects.toEqual(unavailable('timeout'))
    vi.restoreAllMocks()
    expect(await journal.replace(second)).toBe(true)
  })
})

describe('commits', () => {
  test('G42: put succeeds, then the transaction aborts for lack of space: refused as full, and nothing is there', async () => {
    const journal = openJournal()
    await journal.knowsSinceMs('charge')
    let puts = 0
    onTransaction((transaction) => {
      afterPut(transaction, () => {
        puts += 1
        runOutOfSpace(transaction)
      })
    })
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('full'))
    expect(puts).toBe(1)
    vi.restoreAllMocks()
    expect(await stored(journal)).toBeUndefined()
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('G42: no space for the database itself: refused as full, and made when there is some', async () => {
    const journal = openJournal()
    const real = methodOf(IDBObjectStore.prototype, 'put')
    vi.spyOn(IDBObjectStore.prototype, 'put').mockImplementationOnce(function (this: IDBObjectStore, ...args) {
      const request = real.apply(this, args)
      request.addEventListener('success', () => runOutOfSpace(this.transaction))
      return request
    })
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('full'))
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('G42: the one that is too large fails alone', async () => {
    const journal = openJournal()
    await journal.knowsSinceMs('charge')
    const large = sampleEntry({ operationId: 'large', body: 'large' })
    onTransaction((transaction) => {
      afterPut(transaction, (text) => {
        if (text.includes('"body":"large"')) runOutOfSpace(transaction)
      })
    })
    const before = insertAll(journal, many(10, { operationId: 'before' }))
    const refused = journal.insert(large, [])
    const after = insertAll(journal, many(10, { operationId: 'after' }))
    await expect(refused).rejects.toEqual(unavailable('full'))
    expect([...(await before), ...(await after)]).toEqual(Array(20).fill(true))
    expect((await journal.list({}, 100)).entries).toHaveLength(20)
  })

  test('a removal that cannot be remembered removes nothing', async () => {
    const journal = openJournal()
    await insertAll(journal, many(3))
    const sinceMs = await journal.knowsSinceMs('charge')
    onTransaction((transaction) => afterPut(transaction, () => runOutOfSpace(transaction)))
    const late = many(3).map((entry) => ({ ...entry, namedAtMs: Date.now() + 60_000 }))
    await expect(journal.remove(late)).rejects.toEqual(unavailable('full'))
    vi.restoreAllMocks()
    expect((await journal.list({}, 10)).entries).toEqual(many(3))
    expect(await journal.knowsSinceMs('charge')).toBe(sinceMs)
    vi.spyOn(IDBObjectStore.prototype, 'put').mockImplementation(() => {
      throw new DOMException('no', 'DataError')
    })
    await expect(journal.remove(late)).rejects.toEqual(unavailable('unavailable'))
    vi.restoreAllMocks()
    expect((await journal.list({}, 10)).entries).toEqual(many(3))
  })

  test('a transaction that never ends is refused in time and undone', async () => {
    const journal = openJournal(newName(), 300)
    await journal.knowsSinceMs('charge')
    onTransaction((transaction) => {
      const store = transaction.objectStore('entries')
      const goOn = (): void => {
        try {
          store.count().onsuccess = goOn
        } catch {
          // It was aborted.
        }
      }
      afterPut(transaction, goOn)
    })
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('timeout'))
    vi.restoreAllMocks()
    expect(await stored(journal)).toBeUndefined()
  })

  test('a request that says nothing is refused in time', async () => {
    const journal = openJournal(newName(), 300)
    await journal.knowsSinceMs('charge')
    vi.spyOn(IDBObjectStore.prototype, 'get').mockImplementation(deadRequest)
    await expect(journal.insert(first, [])).rejects.toEqual(unavailable('timeout'))
    await expect(stored(journal)).rejects.toEqual(unavailable('timeout'))
    vi.restoreAllMocks()
    expect(await stored(journal)).toBeUndefined()
    expect(await journal.insert(first, [])).toEqual({ inserted: true })
  })

  test('a change resolves only when its transaction is complete', async () => {
    const journal = openJournal()
    await journal.knowsSinceMs('charge')
    const seen: string[] = []
    onTransaction((transaction) => transaction.addEventListener('complete', () => seen.push('complete')))
    await journal.insert(first, []).then(() => seen.push('inserted'))
    await journal.replace(second).then(() => seen.push('replaced'))
    expect(seen).toEqual(['complete', 'inserted', 'complete', 'replaced'])
  })

  test('the transactions are strict', async () => {
    const journal = openJournal()
    const durabilities: string[] = []
    onTransaction((transaction) => durabilities.push(transaction.durability))
    await journal.insert(first, [])
    await journal.replace(second)
    expect(durabilities).toEqual(['strict', 'strict'])
  })

  test('fifty inserts that come together share transactions', async () => {
    const journal = openJournal()
    const transactions = onTransaction(() => {})
    expect(await insertAll(journal, many(50))).toEqual(Array(50).fill(true))
    expect(transactions.count).toBeLessThanOrEqual(3)
  })

  test('one that is not as seen does not fail those it shares the transaction with', async () => {
    const journal = openJournal()
    await journal.insert(first, [])
    const transactions = onTransaction(() => {})
    const [others, refused, replaced] = await Promise.all([
      insertAll(journal, many(10)),
      journal.insert(sampleEntry({ revision: 2 }), []),
      journal.replace(sampleEntry({ version: 5 })),
    ])
    expect(others).toEqual(Array(10).fill(true))
    expect(refused).toEqual({ inserted: false, found: [first] })
    expect(replaced).toBe(false)
    expect(transactions.count).toBeLessThanOrEqual(3)
  })

  test('what is remembered of removed entries is a record of its own for each kind, and in no index', async () => {
    const name = newName()
    const journal = openJournal(name)
    const entries = ['charge', 'usage'].flatMap((kind) => many(3, { kind, state: 'succeeded' }))
    await insertAll(journal, entries)
    expect(await journal.remove(entries)).toBe(true)
    const database = await openRaw(name)
    const store = database.transaction('entries').objectStore('entries')
    const wait = <T>(request: IDBRequest<T>): Promise<T> =>
      new Promise((resolve) => {
        request.onsuccess = () => resolve(request.result)
      })
    const keys = wait(store.getAllKeys())
    const counts = Promise.all([...store.indexNames].map((index) => wait(store.index(index).count())))
    expect(await keys).toEqual(['forgotten:charge', 'forgotten:usage', 'meta'])
    expect(await counts).toEqual(Array(5).fill(0))
  })

  test('changes of one entry that come together are made one after the other', async () => {
    const journal = openJournal()
    const third = sampleEntry({ version: 3, state: 'succeeded' })
    const results = await Promise.all([
      journal.insert(first, []),
      journal.insert(first, []),
      journal.replace(second),
      journal.replace(second),
      journal.replace(third),
    ])
    expect(results).toEqual([{ inserted: true }, { inserted: false, found: [first] }, true, false, true])
    expect(await stored(journal)).toEqual(third)
  })
})

describe('listing', () => {
  test('deliverable entries among 2,000 final ones are found without reading those', async () => {
    const journal = openJournal()
    await insertAll(journal, many(2_000, { state: 'succeeded', operationId: 'final' }))
    const deliverable = many(5)
    await insertAll(journal, deliverable)
    const read = countRows()
    expect((await journal.listDeliverable(first, 100)).entries).toEqual(deliverable)
    expect(read.rows).toBe(5)
    const { endpoint, scope } = first
    expect(await journal.countOpen()).toEqual([{ endpoint, scope, state: 'pending', count: 5 }])
    expect(read.rows).toBe(5)
    expect((await journal.list({}, 3_000)).entries).toHaveLength(2_005)
    expect(read.rows).toBe(2_010)
  }, 30_000)

  test('what is open among 2,000 final entries is listed by state, and the final ones are not read', async () => {
    const journal = openJournal()
    await insertAll(journal, many(2_000, { state: 'succeeded', operationId: 'final' }))
    const open = many(12).map((entry, index) => ({
      ...sampleEntry({ operationId: entry.operationId, state: OPEN_STATES[index % 4] ?? 'pending' }),
      namedAtMs: entry.namedAtMs,
    }))
    await insertAll(journal, open.toReversed())
    const { endpoint, scope } = first
    const read = countRows()
    expect((await journal.list({ endpoint, scope, states: OPEN_STATES }, 100)).entries).toEqual(open)
    expect((await journal.list({ endpoint, scope, states: OPEN_STATES }, 1)).entries).toEqual(open.slice(0, 1))
    const settling = open.filter(({ state }) => state === 'accepted' || state === 'unknown')
    expect((await journal.list({ endpoint, scope, states: ['accepted', 'unknown'] }, 100)).entries).toEqual(settling)
    expect(read.rows).toBe(3 * 12)
  }, 30_000)

  test.each([1, 7, 199, 200, 201, 450, 451, 1000])(
    'deliverable entries and those that wait for evidence come once each, in order, in pages of %d',
    async (limit) => {
      const journal = openJournal()
      const entries = many(450).map((entry, index) =>
        index % 9 === 0 ? { ...sampleEntry({ ...entry, state: 'unknown' }), namedAtMs: entry.namedAtMs } : entry,
      )
      await insertAll(journal, entries)
      const listed: JournalEntry[] = []
      let after: string | undefined
      do {
        const page = await journal.list({ ...scopeOf(first), states: ['pending', 'unknown'] }, limit, after)
        expect(page.entries.length).toBeLessThanOrEqual(limit)
        listed.push(...page.entries)
        after = page.next
      } while (after !== undefined)
      expect(listed).toEqual(entries)
    },
    30_000,
  )

  test.each([1, 150, 199, 200, 201, 400, 450, 451])(
    '450 entries in pages of %d come once each, in order',
    async (limit) => {
      const journal = openJournal()
      const entries = many(450)
      await insertAll(journal, entries)
      const listed: JournalEntry[] = []
      let after: string | undefined
      do {
        const page = await journal.listDeliverable(first, limit, after)
        expect(page.entries.length).toBeLessThanOrEqual(limit)
        listed.push(...page.entries)
        after = page.next
      } while (after !== undefined)
      expect(listed).toEqual(entries)
    },
    30_000,
  )
})

describe('claims', () => {
  const isHeld = async (owner: string): Promise<boolean> =>
    (await navigator.locks.query()).held?.some(({ name }) => name === owner) ?? false

  test('G69: the owner is one per page and needs neither randomUUID nor subtle', async () => {
    replaceProperty(crypto, 'randomUUID', { value: undefined })
    replaceProperty(crypto, 'subtle', { value: undefined })
    Reflect.deleteProperty(globalThis, Symbol.for('billonce.owner'))
    const [one, other] = [openJournal(), openJournal()]
    expect(one.owner).toMatch(/^billonce:[\d-]+$/)
    expect(other.owner).toBe(one.owner)
    expect(await one.insert(claimed(one), [])).toEqual({ inserted: true })
  })

  test('the lock is held before an entry with a claim is written, and only then', async () => {
    const journal = openJournal()
    await journal.insert(sampleEntry({ operationId: 'unclaimed' }), [])
    await journal.insert(sampleEntry({ operationId: 'of somebody', state: 'sending' }), [])
    expect(await isHeld(journal.owner)).toBe(false)
    const seen: string[] = []
    const request = methodOf(LockManager.prototype, 'request') as (...args: unknown[]) => Promise<unknown>
    vi.spyOn(LockManager.prototype, 'request').mockImplementation(async function (this: LockManager, ...args) {
      await new Promise((resolve) => {
        setTimeout(resolve, 100)
      })
      seen.push('lock')
      return request.apply(this, args)
    })
    onTransaction(() => seen.push('transaction'))
    await journal.insert(claimed(journal), [])
    expect(seen).toEqual(['lock', 'transaction'])
    expect(await isHeld(journal.owner)).toBe(true)
    await journal.close()
    await expect.poll(() => isHeld(journal.owner)).toBe(false)
  })

  test('the lock is held as long as there are claims of this page, whoever ends them', async () => {
    const name = newName()
    const [journal, elsewhere] = [openJournal(name), openJournal(name)]
    const one = claimed(journal)
    const other = claimed(journal, { operationId: 'other' })
    await Promise.all([journal.insert(one, []), journal.insert(other, [])])
    expect(await journal.replace({ ...one, version: 2, claim: null })).toBe(true)
    expect(await isHeld(journal.owner)).toBe(true)
    // Taken over meanwhile, as may happen while the page is frozen: that is seen when this page comes with its own version.
    const taken = { owner: 'billonce:1-2-3-4#1', fence: 2, untilMs: Date.now() + 60_000 }
    expect(await elsewhere.replace({ ...other, version: 2, claim: taken })).toBe(true)
    expect(await isHeld(journal.owner)).toBe(true)
    expect(await journal.replace({ ...other, version: 2, claim: null })).toBe(false)
    await expect.poll(() => isHeld(journal.owner)).toBe(false)
    // And for the next one it is asked for again.
    expect(await journal.replace({ ...one, version: 3 })).toBe(true)
    expect(await isHeld(journal.owner)).toBe(true)
  })

  test('a page that goes away lets go of the lock, and asks for it again when it is back', async () => {
    const journal = openJournal()
    await journal.insert(claimed(journal), [])
    for (const [away, back, target] of [
      ['pagehide', 'pageshow', globalThis],
      ['freeze', 'resume', document],
    ] as const) {
      target.dispatchEvent(new Event(away))
      await expect.poll(() => isHeld(journal.owner)).toBe(false)
      target.dispatchEvent(new Event(back))
      await expect.poll(() => isHeld(journal.owner)).toBe(true)
    }
    await journal.close()
    globalThis.dispatchEvent(new Event('pageshow'))
    await expect.poll(() => isHeld(journal.owner)).toBe(false)
  })

  test('what is kept is the entry as it was when the call was made', async () => {
    const journal = openJournal()
    const entry = claimed(journal)
    const inserted = journal.insert(entry, [])
    Object.assign(entry, { version: 99 })
    expect(await inserted).toEqual({ inserted: true })
    expect((await stored(journal))?.version).toBe(1)
    const next = { ...entry, version: 2 }
    const replaced = journal.replace(next)
    Object.assign(next, { version: 99 })
    expect(await replaced).toBe(true)
    const gone = [{ ...next, version: 2 }]
    const removed = journal.remove(gone)
    Object.assign(gone[0]!, { version: 99, key: 'other' })
    gone.length = 0
    expect(await removed).toBe(true)
    expect(await stored(journal)).toBeUndefined()
  })

  test('one of two journals of a page that is closed leaves the lock to the other', async () => {
    const [one, other] = [openJournal(), openJournal()]
    await Promise.all([one.insert(claimed(one), []), other.insert(claimed(other), [])])
    await one.close()
    expect(await isHeld(other.owner)).toBe(true)
  })

  test('a holder lives while its lock is held, and is gone without it', async () => {
    const journal = openJournal()
    const owner = 'billonce:1-2-3-4'
    expect(await journal.isGone(owner)).toBe(true)
    const frame = document.body.appendChild(document.createElement('iframe'))
    await new Promise((granted) => {
      void frame.contentWindow?.navigator.locks.request(owner, () => {
        granted(undefined)
        return new Promise(() => {})
      })
    })
    expect(await journal.isGone(owner)).toBe(false)
    frame.remove()
    await expect.poll(() => journal.isGone(owner)).toBe(true)
  })

  test('a worker that is ended with a claim of its own is known to be gone', async () => {
    const name = newName()
    const journal = openJournal(name)
    const url = new URL('./indexeddb-worker.ts', import.meta.url)
    const worker = new Worker(`${url.href}?name=${name}`, { type: 'module' })
    const { data } = await new Promise<MessageEvent<{ owner: string; inserted: boolean }>>((resolve, reject) => {
      worker.onmessage = resolve
      worker.onerror = (event) => reject(new Error(event.message))
    })
    expect(data).toEqual({ owner: expect.not.stringContaining(journal.owner), inserted: true })
    expect((await stored(journal))?.claim?.owner).toBe(`${data.owner}#1`)
    expect(await journal.isGone(data.owner)).toBe(false)
    worker.terminate()
    await expect.poll(() => journal.isGone(data.owner)).toBe(true)
  })

  test('without locks entries are kept all the same, and nobody is said to be gone', async () => {
    const journal = openJournal()
    replaceProperty(navigator, 'locks', { value: undefined })
    expect(await journal.insert(claimed(journal), [])).toEqual({ inserted: true })
    expect(await journal.isGone('billonce:1-2-3-4')).toBe(false)
  })

  test.each<[string, () => Promise<never>]>([
    ['hang', () => new Promise(() => {})],
    ['are refused', () => Promise.reject(new DOMException('no', 'SecurityError'))],
  ])('where locks %s, entries are kept all the same, and nobody is said to be gone', async (_, answer) => {
    const journal = openJournal(newName(), 300)
    vi.spyOn(LockManager.prototype, 'request').mockImplementation(answer)
    vi.spyOn(LockManager.prototype, 'query').mockImplementation(answer)
    expect(await journal.insert(claimed(journal), [])).toEqual({ inserted: true })
    expect(await journal.isGone('billonce:1-2-3-4')).toBe(false)
  })
})

describe('closing', () => {
  test('it lets go of the database', async () => {
    const connections = spyOnConnections()
    const journal = openJournal()
    await journal.insert(first, [])
    await journal.close()
    expect(connections.map(isClosed)).toEqual([true])
  })

  test('calls that are open, also those that wait for the database, settle first', async () => {
    const journal = openJournal()
    const settled: string[] = []
    const calls = [
      insertAll(journal, many(10)).then(() => settled.push('inserts')),
      journal.insert(claimed(journal), []).then(() => settled.push('claimed')),
      journal.knowsSinceMs('charge').then(() => settled.push('birth')),
    ]
    await journal.close()
    expect(settled.toSorted()).toEqual(['birth', 'claimed', 'inserts'])
    await Promise.all(calls)
    await expect(journal.isGone('x')).rejects.toEqual(unavailable('closed'))
  })
})

describe('G44: persistent storage', () => {
  // WebKitGTK has no StorageManager, so the answers are made up here; the first test asks the real one.
  const answering = (persist: () => Promise<boolean>): void => {
    replaceProperty(navigator, 'storage', { value: { persist } })
  }

  test('the browser is asked, and has one of the three answers or lets the user think', async () => {
    // Firefox asks the user, and here there is none.
    const thinking = new Promise((resolve) => {
      setTimeout(() => resolve('thinking'), 300)
    })
    const answer = await Promise.race([requestPersistence(), thinking])
    expect(['persistent', 'not-granted', 'unsupported', 'thinking']).toContain(answer)
  })

  test.each<[string, () => Promise<boolean>]>([
    ['persistent', () => Promise.resolve(true)],
    ['not-granted', () => Promise.resolve(false)],
    ['unsupported', () => Promise.reject(new TypeError('opaque origin'))],
  ])('the answer %s is told', async (answer, persist) => {
    answering(persist)
    expect(await requestPersistence()).toBe(answer)
  })

  test('where there is nobody to ask, it is unsupported', async () => {
    replaceProperty(navigator, 'storage', { value: undefined })
    expect(await requestPersistence()).toBe('unsupported')
  })

  test('the report tells what the browser says, and asks the user for nothing', async () => {
    const persist = vi.fn(() => Promise.resolve(true))
    const estimate = (): Promise<StorageEstimate> => Promise.resolve({ usage: 10, quota: 1000 })
    replaceProperty(navigator, 'storage', { value: { persist, persisted: () => Promise.resolve(false), estimate } })
    const report = { persistence: 'not-granted', usedBytes: 10, quotaBytes: 1000 }
    expect(await openJournal().storage?.()).toEqual(report)
    expect(persist).not.toHaveBeenCalled()
  })

  test('a browser that tells nothing, or refuses to, is reported so', async () => {
    const unknown = { persistence: 'unsupported', usedBytes: undefined, quotaBytes: undefined }
    const refuse = (): Promise<never> => Promise.reject(new TypeError('opaque origin'))
    for (const value of [undefined, {}, { persisted: refuse, estimate: refuse }]) {
      replaceProperty(navigator, 'storage', { value })
      expect(await openJournal().storage?.()).toEqual(unknown)
    }
  })

  test('the real browser is asked', async () => {
    const report = await openJournal().storage?.()
    expect(['persistent', 'not-granted', 'unsupported']).toContain(report?.persistence)
  })

  test('the journal does not ask by itself', async () => {
    const persist = vi.fn(() => Promise.resolve(true))
    answering(persist)
    const journal = openJournal()
    await journal.insert(claimed(journal), [])
    await journal.close()
    expect(persist).not.toHaveBeenCalled()
  })
})

/** Calls back as soon as a put of this transaction has succeeded, with the text that was put. */
function afterPut(transaction: IDBTransaction, callback: (text: string) => void): void {
  const store = transaction.objectStore('entries')
  // The same object is given again for the same transaction.
  store.put = function (this: IDBObjectStore, ...args) {
    const request = IDBObjectStore.prototype.put.apply(this, args)
    const { text } = args[0] as { text: string }
    request.addEventListener('success', () => callback(text))
    return request
  }
}

function runOutOfSpace(transaction: IDBTransaction): void {
  Object.defineProperty(transaction, 'error', { value: new DOMException('no space', 'QuotaExceededError') })
  transaction.abort()
}

/** It is committed, and the page hears of an abort. */
function loseCompletion(transaction: IDBTransaction): void {
  transaction.addEventListener('complete', (event) => {
    event.stopImmediatePropagation()
    transaction.onabort?.(new Event('abort'))
  })
}

/** Rows that reads gave, from here on. */
function countRows(): { readonly rows: number } {
  const seen = { rows: 0 }
  for (const source of [IDBIndex.prototype, IDBObjectStore.prototype]) {
    const real = methodOf(source, 'getAll')
    vi.spyOn(source, 'getAll').mockImplementation(function (this: IDBIndex & IDBObjectStore, ...args) {
      const request = real.apply(this, args)
      request.addEventListener('success', () => {
        seen.rows += request.result.length
      })
      return request
    })
    vi.spyOn(source, 'openCursor').mockImplementation(() => {
      throw new Error('not counted here')
    })
  }
  return seen
}
