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
import type { InsertResult, JournalStore, ListFilter, OpenCount, Page, Seen } from './store.ts'

/**
 * Makes a journal in memory. A crash or a reload forgets what was sent, so the next call of the same name sends again:
 * under the same key, but also after the receiver may have forgotten it. Do not use it for money.
 */
export function forgetfulJournal(): JournalStore {
  const bornAtMs = Date.now()
  const owner = `memory:${crypto.getRandomValues(new Uint32Array(2)).join('-')}`
  /** Texts, not objects, so that nothing is shared with callers; in the order of insertion. */
  const rows = new Map<string, string>()
  let isClosed = false

  const rowKey = (endpoint: string, key: string): string => JSON.stringify([endpoint, key])
  const assertOpen = (): void => {
    if (isClosed) throw new JournalUnavailableError('The journal was closed.', { fault: 'closed' })
  }
  const all = (): JournalEntry[] => {
    assertOpen()
    return [...rows.values()].map(decodeEntry)
  }
  const page = (entries: JournalEntry[], limit: number, after: string | undefined): Page => {
    const start = after === undefined ? 0 : Number(after)
    const slice = entries.slice(start, start + limit)
    return { entries: slice, unreadable: 0, ...(start + limit < entries.length ? { next: String(start + limit) } : {}) }
  }

  return {
    durable: false,
    owner,
    // oxlint-disable-next-line typescript/require-await -- async turns a throw into a rejection
    async insert(entry: JournalEntry, seen: readonly Seen[]): Promise<InsertResult> {
      const found = all().filter(
        (other) => sameName(other, entry) || (other.endpoint === entry.endpoint && other.key === entry.key),
      )
      // An insert never writes over an entry, also when the caller says that it saw that one.
      if (!isAsSeen(found, seen) || rows.has(rowKey(entry.endpoint, entry.key))) return { inserted: false, found }
      rows.set(rowKey(entry.endpoint, entry.key), encodeEntry(entry))
      return { inserted: true }
    },
    // oxlint-disable-next-line typescript/require-await
    async replace(entry: JournalEntry): Promise<boolean> {
      const stored = all().find((other) => other.endpoint === entry.endpoint && other.key === entry.key)
      if (stored?.version !== entry.version - 1) return false
      rows.set(rowKey(entry.endpoint, entry.key), encodeEntry(entry))
      return true
    },
    // oxlint-disable-next-line typescript/require-await
    async get(endpoint: string, key: string): Promise<JournalEntry | undefined> {
      return all().find((entry) => entry.endpoint === endpoint && entry.key === key)
    },
    // oxlint-disable-next-line typescript/require-await
    async getByKey(key: string): Promise<readonly JournalEntry[]> {
      return all().filter((entry) => entry.key === key)
    },
    // oxlint-disable-next-line typescript/require-await
    async history(name): Promise<readonly JournalEntry[]> {
      return all().filter(
        (entry) => entry.scope === name.scope && entry.kind === name.kind && entry.operationId === name.operationId,
      )
    },
    // oxlint-disable-next-line typescript/require-await
    async listDeliverable(of, limit, after): Promise<Page> {
      const mine = all().filter((entry) => entry.endpoint === of.endpoint && entry.scope === of.scope)
      // The page goes on by position among all of the scope, so that entries settled meanwhile shift nothing.
      const start = after === undefined ? 0 : Number(after)
      const entries: JournalEntry[] = []
      for (const [index, entry] of mine.entries()) {
        if (index < start || !isDeliverable(entry)) continue
        if (entries.length === limit) return { entries, unreadable: 0, next: String(index) }
        entries.push(entry)
      }
      return { entries, unreadable: 0 }
    },
    // oxlint-disable-next-line typescript/require-await
    async countOpen(): Promise<readonly OpenCount[]> {
      const counts = new Map<string, OpenCount>()
      for (const { endpoint, scope, state } of all().filter(isOpen)) {
        const id = JSON.stringify([endpoint, scope, state])
        counts.set(id, { endpoint, scope, state, count: (counts.get(id)?.count ?? 0) + 1 })
      }
      return [...counts.values()]
    },
    // oxlint-disable-next-line typescript/require-await
    async list(filter: ListFilter, limit: number, after?: string): Promise<Page> {
      return page(
        all().filter((entry) => matches(entry, filter)),
        limit,
        after,
      )
    },
    // oxlint-disable-next-line typescript/require-await
    async bornAtMs(): Promise<number> {
      assertOpen()
      return bornAtMs
    },
    // oxlint-disable-next-line typescript/require-await
    async isGone(): Promise<boolean> {
      return false
    },
    // oxlint-disable-next-line typescript/require-await
    async close(): Promise<void> {
      isClosed = true
    },
  }
}
