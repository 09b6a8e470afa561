/**
 * A journal that forgets: everything is gone with the process or the page. It exists for tests and for callers who ask for
 * it by name; every outcome then says `durable: false`.
 */
import { JournalUnavailableError } from '../errors.ts'
import type { JournalEntry } from '../model/entry.ts'
import { isDeliverable, isOpen } from '../model/entry.ts'
import { sameName } from '../model/key.ts'
import { decodeEntry, encodeEntry } from './codec.ts'
import { isAsSeen, matches } from './store.ts'
import type { JournalStore, OpenCount, Page } from './store.ts'

/** One entry as text, so that nothing is shared with callers, and its place in the order of insertion. */
interface Row {
  readonly number: number
  version: number
  text: string
}

/**
 * Makes a journal in memory. A crash or a reload forgets what was sent, so the next call of the same name sends again:
 * under the same key, but also after the receiver may have forgotten it. Do not use it for money.
 */
export function forgetfulJournal(): JournalStore {
  const bornAtMs = Date.now()
  const owner = `memory:${crypto.getRandomValues(new Uint32Array(2)).join('-')}`
  const rows = new Map<string, Row>()
  const families = new Map<string, Row[]>()
  /** The open ones only, so that what looks for them does not read the final ones. */
  const open = new Map<string, Row>()
  /** The latest naming that was removed, by kind. */
  const removed = new Map<string, number>()
  let lastNumber = 0
  let isClosed = false

  /** What a method does; a throw becomes a rejection. */
  const call = async <T>(work: () => T): Promise<T> => {
    if (isClosed) throw new JournalUnavailableError('The journal was closed.', { fault: 'closed' })
    return await Promise.resolve(work())
  }
  const keep = (id: string, row: Row, entry: JournalEntry): void => {
    row.text = encodeEntry(entry)
    row.version = entry.version
    if (isOpen(entry)) open.set(id, row)
    else open.delete(id)
  }
  const entriesOf = (some: Iterable<Row>): JournalEntry[] => Array.from(some, (row) => decodeEntry(row.text))
  const page = (
    some: Iterable<Row>,
    limit: number,
    after: string | undefined,
    isWanted: (entry: JournalEntry) => boolean,
  ): Page => {
    const entries: JournalEntry[] = []
    let last = after
    // An entry that was opened again stands at the end of the open ones, so they are put in order here.
    for (const row of [...some].toSorted((one, other) => one.number - other.number)) {
      if (after !== undefined && row.number <= Number(after)) continue
      const entry = decodeEntry(row.text)
      if (!isWanted(entry)) continue
      if (entries.length === limit) return { entries, unreadable: 0, ...(last === undefined ? {} : { next: last }) }
      entries.push(entry)
      last = String(row.number)
    }
    return { entries, unreadable: 0 }
  }

  return {
    durable: false,
    owner,
    insert: (entry, seen) =>
      call(() => {
        const family = families.get(familyOf(entry)) ?? []
        const id = idOf(entry)
        const own = rows.get(id)
        const named = entriesOf(family).filter((other) => sameName(other, entry) && idOf(other) !== id)
        const found = [...named, ...entriesOf(own ? [own] : [])]
        // What is there under the same endpoint and key is never written over, whatever was seen.
        if (own || !isAsSeen(found, seen)) return { inserted: false, found } as const
        lastNumber += 1
        const row: Row = { number: lastNumber, version: 0, text: '' }
        rows.set(id, row)
        families.set(familyOf(entry), [...family, row])
        keep(id, row, entry)
        return { inserted: true } as const
      }),
    replace: (entry) =>
      call(() => {
        const row = rows.get(idOf(entry))
        if (row?.version !== entry.version - 1) return false
        keep(idOf(entry), row, entry)
        return true
      }),
    get: (endpoint, key) =>
      call(() => {
        const row = rows.get(idOf({ endpoint, key }))
        return row && decodeEntry(row.text)
      }),
    getByKey: (key) => call(() => entriesOf(rows.values()).filter((entry) => entry.key === key)),
    history: (name) => call(() => entriesOf(families.get(familyOf(name)) ?? [])),
    listDeliverable: (of, limit, after) =>
      call(() =>
        page(
          open.values(),
          limit,
          after,
          (entry) => isDeliverable(entry) && entry.endpoint === of.endpoint && entry.scope === of.scope,
        ),
      ),
    countOpen: () =>
      call(() => {
        const counts = new Map<string, OpenCount>()
        for (const entry of entriesOf(open.values())) {
          if (!isOpen(entry)) continue
          const { endpoint, scope, state } = entry
          const id = JSON.stringify([endpoint, scope, state])
          counts.set(id, { endpoint, scope, state, count: (counts.get(id)?.count ?? 0) + 1 })
        }
        return [...counts.values()]
      }),
    list: (filter, limit, after) => call(() => page(rows.values(), limit, after, (entry) => matches(entry, filter))),
    remove: (entries) =>
      call(() => {
        const isThere = (entry: JournalEntry): boolean => rows.get(idOf(entry))?.version === entry.version
        if (!entries.every(isThere)) return false
        for (const entry of entries) {
          const id = idOf(entry)
          const row = rows.get(id)
          families.set(
            familyOf(entry),
            (families.get(familyOf(entry)) ?? []).filter((other) => other !== row),
          )
          rows.delete(id)
          open.delete(id)
          removed.set(entry.kind, Math.max(removed.get(entry.kind) ?? 0, entry.namedAtMs))
        }
        return true
      }),
    knowsSinceMs: (kind) => call(() => Math.max(bornAtMs, removed.get(kind) ?? 0)),
    isGone: () => call(() => false),
    // oxlint-disable-next-line typescript/require-await -- the contract's promise
    async close(): Promise<void> {
      isClosed = true
    },
  }
}

function idOf({ endpoint, key }: { readonly endpoint: string; readonly key: string }): string {
  return JSON.stringify([endpoint, key])
}

function familyOf(name: { readonly scope: string; readonly kind: string; readonly operationId: string }): string {
  return JSON.stringify([name.scope, name.kind, name.operationId])
}
