/**
 * What an earlier version left in a file: a database of every format so far, made as that version made it, with the entries
 * that its clients wrote, is read and delivered; an entry of a newer format is left alone and holds up no other.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver } from 'billonce/testing'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import type { JournalEntry } from '../../src/model/entry.ts'
import written from './fixtures/indexeddb-format-1.json' with { type: 'json' }

// The text of an entry is the same in every journal.
const entries = written.database.stores.flatMap(({ records }) =>
  records.flatMap(([, value]) =>
    typeof value === 'object' && 'text' in value ? [JSON.parse(value.text) as JournalEntry] : [],
  ),
)
const isOpenHere = ({ state, scope }: JournalEntry): boolean =>
  scope === 'org_42/test' && (state === 'pending' || state === 'sending')

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-'))
  // Some minutes after it was written: within the time for which keys are remembered.
  vi.useFakeTimers({ toFake: ['Date'], now: written.writtenAtMs + 120_000 })
})
afterEach(() => {
  vi.useRealTimers()
  rmSync(folder, { recursive: true })
})

/** Makes the file; `edit` may change what stands in a row. */
function restore(format: number, edit: (entry: JournalEntry) => object = (entry) => entry): string {
  const path = join(folder, 'journal.sqlite')
  const database = new DatabaseSync(path)
  database.exec(readFileSync(join(import.meta.dirname, 'fixtures', `sqlite-format-${format}.sql`), 'utf8'))
  database.prepare('INSERT INTO journal VALUES (?)').run(written.writtenAtMs - 10_000)
  database.prepare('INSERT INTO forgotten VALUES (?, ?)').run('usage', written.writtenAtMs - 500.5)
  const insert = database.prepare('INSERT INTO entries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)')
  for (const entry of entries.toSorted((one, other) => one.namedAtMs - other.namedAtMs)) {
    const { endpoint, key, version, scope, kind, subject, operationId, state } = entry
    insert.run(endpoint, key, version, scope, kind, subject, operationId, state, JSON.stringify(edit(entry)))
  }
  database.close()
  return path
}

function clientOn(path: string) {
  const receiver = createReceiver()
  const journal = sqliteJournal({ path })
  const billing = createBillingClient({
    baseUrl: 'https://api.example.com',
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
    journal,
    fetch: receiver.fetch,
  })
  return { receiver, journal, billing }
}

describe.each([1])('a file of format %i', (format) => {
  test('is read as it is', async () => {
    const journal = sqliteJournal({ path: restore(format) })
    for (const entry of entries) expect(await journal.get(entry.endpoint, entry.key)).toEqual(entry)
    const { entries: listed, unreadable } = await journal.list({}, 100)
    expect(listed).toHaveLength(entries.length)
    expect(unreadable).toBe(0)
    expect(await journal.knowsSinceMs('usage')).toBe(written.writtenAtMs - 500.5)
    expect(await journal.knowsSinceMs('charge')).toBe(written.writtenAtMs - 10_000)
    await journal.close()
  })

  test('is delivered with the keys and bytes of then, once each', async () => {
    const { receiver, journal, billing } = clientOn(restore(format))
    // What was on the wire has a claim of somebody whom this journal does not know; its lease is over by then.
    vi.setSystemTime(written.writtenAtMs + 240_000)
    const open = entries.filter(isOpenHere)
    expect(await billing.resume()).toMatchObject({ total: open.length, succeeded: open.length })
    expect(receiver.ledger.effects).toHaveLength(open.length)
    expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`))).toEqual(
      new Set(open.map(({ key, request }) => `${key} ${request.body}`)),
    )
    await journal.close()
  })

  test('with entries of a newer format leaves those as they are, and delivers the others', async () => {
    const orders = ['signed-out', 'paid']
    const path = restore(format, (entry) =>
      orders.includes(entry.operationId) ? { ...entry, format: entry.format + 1, new: 'field' } : entry,
    )
    const rows = (): unknown[] => {
      const database = new DatabaseSync(path, { readOnly: true })
      const found = database
        // The columns of format 1; those that pruning goes by came later.
        .prepare(
          'SELECT id, endpoint, key, version, scope, kind, subject, operation_id, state, entry FROM entries WHERE operation_id IN (?, ?)',
        )
        .all(...orders)
      database.close()
      return found
    }
    const before = rows()
    expect(before).toHaveLength(2)
    const { receiver, journal, billing } = clientOn(path)
    vi.setSystemTime(written.writtenAtMs + 240_000)
    const count = entries.filter(isOpenHere).length - 1
    expect(await billing.resume()).toMatchObject({ total: count, succeeded: count, unreadable: 1 })
    for (const operationId of orders) {
      await expect(billing.charge({ amount: 1250, currency: 'eur' }, { operationId })).rejects.toMatchObject({
        code: 'ERR_JOURNAL_UNAVAILABLE',
        fault: 'newer-format',
        sentByThisCall: false,
      })
    }
    expect(receiver.ledger.effects).toHaveLength(count)
    await journal.close()
    expect(rows()).toEqual(before)
  })
})
