/**
 * What an earlier version left in a user's browser: a database of every format so far, restored as it lay there, is read,
 * delivered and answered from; what a newer version wrote is refused and left alone.
 */
import { createBillingClient } from 'billonce'
import type { BillingClient, BillingClientOptions, JournalStore } from 'billonce'
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { afterEach, describe, expect, test, vi } from 'vitest'
import type { JournalEntry } from '../../src/model/entry.ts'
import format1 from '../stores/fixtures/indexeddb-format-1.json' with { type: 'json' }
import { newName, openJournal, openRaw } from './indexeddb-support.ts'

// Never edited: this is what lies with users. A new format gets a file beside it, by crash-browser/programs/write-fixture.ts.
const fixtures: Record<string, typeof format1> = { 1: format1 }

interface Row {
  readonly text: string
  readonly operationId: string
}
type Edit = (row: Row) => Row

afterEach(() => {
  vi.useRealTimers()
})

/** Puts the database where it lay, with its shape, and the clock to a time after it was written. */
async function restore(fixture: typeof format1, afterMs: number, edit: Edit = (row) => row): Promise<string> {
  const name = newName()
  vi.useFakeTimers({ toFake: ['Date'], now: fixture.writtenAtMs + afterMs })
  const database = await openRaw(name, fixture.database.version, ({ result }) => {
    for (const { name: store, keyPath, autoIncrement, indexes, records } of fixture.database.stores) {
      const made = result.createObjectStore(store, { keyPath, autoIncrement })
      for (const index of indexes) made.createIndex(index.name, index.keyPath, index)
      for (const [key, value] of records) {
        made.put(typeof value === 'object' && 'text' in value ? edit(value) : value, key as string)
      }
    }
  })
  database.close()
  return name
}

/** The rows of these operations as they lie there. */
async function rowsOf(name: string, operationIds: readonly string[]): Promise<Row[]> {
  const database = await openRaw(name)
  const reading = database.transaction('entries').objectStore('entries').getAll()
  const rows = await new Promise<Row[]>((resolve) => {
    reading.onsuccess = () => resolve(reading.result as Row[])
  })
  database.close()
  return rows.filter(({ operationId }) => operationIds.includes(operationId))
}

function clientOf(
  journal: JournalStore,
  options: Partial<BillingClientOptions> = {},
): { billing: BillingClient; receiver: Receiver } {
  const receiver = createReceiver()
  const billing = createBillingClient({
    baseUrl: 'https://api.example.com',
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
    journal,
    fetch: receiver.fetch,
    ...options,
  })
  return { billing, receiver }
}

const paramsOf = (order: string) =>
  ({ amount: 1250, currency: 'eur', customer: 'cus_1', description: 'Tee “süß” 🧾', metadata: { order } }) as const
const DELIVERABLE = ['in-doubt', 'on-the-wire', 'signed-out', 'slow-down']

describe.each(Object.entries(fixtures))('a database of format %s', (format, fixture) => {
  const entries = fixture.database.stores.flatMap(({ records }) =>
    records.flatMap(([, value]) =>
      typeof value === 'object' && 'text' in value ? [JSON.parse(value.text) as JournalEntry] : [],
    ),
  )

  test('has entries in every state, with attempts, evidence, a contradiction, a claim, and one that was pruned', () => {
    expect(new Set(entries.map(({ state }) => state))).toEqual(
      new Set(['pending', 'sending', 'unknown', 'accepted', 'succeeded', 'rejected', 'canceled']),
    )
    expect(entries.filter(({ evidence }) => evidence.length > 0)).toHaveLength(3)
    expect(entries.filter(({ contradiction }) => contradiction !== null)).toHaveLength(1)
    expect(entries.filter(({ claim }) => claim !== null)).toHaveLength(1)
    expect(entries.filter(({ request }) => request.body === null)).toHaveLength(1)
    expect(new Set(entries.map((entry) => String(entry.format)))).toEqual(new Set([format]))
  })

  test('is read as it is, by key, by name and in lists', async () => {
    const journal = openJournal(await restore(fixture, 60_000))
    for (const entry of entries) {
      expect(await journal.get(entry.endpoint, entry.key)).toEqual(entry)
      expect(await journal.getByKey(entry.key)).toEqual([entry])
      expect(await journal.history(entry)).toContainEqual(entry)
    }
    expect(await journal.list({}, 100)).toMatchObject({ entries: { length: entries.length }, unreadable: 0 })
    const [of] = entries.filter(({ scope }) => scope === 'org_42/test')
    const deliverable = (await journal.listDeliverable(of!, 100)).entries.map(({ operationId }) => operationId)
    expect(deliverable.toSorted()).toEqual(DELIVERABLE)
    expect(Object.fromEntries((await journal.countOpen()).map(({ state, count }) => [state, count]))).toEqual({
      pending: 2,
      sending: 2,
      accepted: 2,
      unknown: 2,
    })
    // What was removed is remembered, so that an event of before is not sent blindly.
    expect(await journal.knowsSinceMs('usage')).toBeGreaterThan(await journal.knowsSinceMs('charge'))
  })

  test('says of every entry what it said then', async () => {
    // Before the wait that a receiver asked for is over.
    const journal = openJournal(await restore(fixture, 10_000))
    const said: unknown[] = []
    for (const scope of ['org_42/test', 'org_43/test']) {
      for await (const { kind, operationId, revision, state, outcome } of clientOf(journal, {
        scope,
      }).billing.entries()) {
        const { source: _, ...rest } = outcome
        // As it was written down: without what is absent.
        said.push(JSON.parse(JSON.stringify({ scope, kind, operationId, revision, state, outcome: rest })))
      }
    }
    const { said: before } = fixture
    expect(said).toEqual(
      before.map((one) => {
        // The same wait is shorter now.
        if (!('retryAfterMs' in one.outcome)) return one
        return { ...one, outcome: { ...one.outcome, retryAfterMs: expect.any(Number) as number } }
      }),
    )
  })

  test('is delivered with the keys and bytes of then, once each', async () => {
    const name = await restore(fixture, 120_000)
    const { billing, receiver } = clientOf(openJournal(name))
    expect(await billing.resume()).toMatchObject({ total: 4, succeeded: 4, unreadable: 0 })
    const open = entries.filter(({ operationId }) => DELIVERABLE.includes(operationId))
    expect(receiver.ledger.effects).toHaveLength(4)
    expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`))).toEqual(
      new Set(open.map(({ key, request }) => `${key} ${request.body}`)),
    )
    // They are there for the next page, and for the next version.
    expect(await clientOf(openJournal(name)).billing.resume()).toMatchObject({ total: 0 })
  })

  test('answers those who name its operations again', async () => {
    const { billing, receiver } = clientOf(openJournal(await restore(fixture, 120_000)))
    const named = async (order: string, options: object = {}) =>
      (await billing.charge(paramsOf(order), { operationId: order, ...options })).status
    expect(await named('paid')).toBe('succeeded')
    expect(await named('declined')).toBe('rejected')
    expect(await named('requires-action')).toBe('accepted')
    expect(await named('recorded-failure')).toBe('unknown')
    expect(await named('contradicted')).toBe('unknown')
    expect(await named('decided')).toBe('succeeded')
    expect(await named('canceled')).toBe('canceled')
    expect(await named('with-own-key', { idempotencyKey: 'legacy-order-7' })).toBe('succeeded')
    await expect(billing.charge({ ...paramsOf('paid'), amount: 1 }, { operationId: 'paid' })).rejects.toMatchObject({
      code: 'ERR_OPERATION_CONFLICT',
      fields: ['amount'],
    })
    expect(receiver.ledger.requests).toHaveLength(0)
  })
})

test('an entry of a newer format is refused and left as it is, and the others are delivered', async () => {
  const newest = Math.max(...Object.keys(fixtures).map(Number))
  const fixture = fixtures[newest]!
  const orders = ['signed-out', 'paid']
  const newer = (row: Row): Row =>
    orders.includes(row.operationId)
      ? { ...row, text: JSON.stringify({ ...(JSON.parse(row.text) as object), format: newest + 1, new: 'field' }) }
      : row
  const name = await restore(fixture, 120_000, newer)
  const before = await rowsOf(name, orders)
  expect(before).toHaveLength(2)
  const journal = indexedDbJournal({ name })
  const { billing, receiver } = clientOf(journal)
  expect(await billing.resume()).toMatchObject({ total: 3, succeeded: 3, unreadable: 1 })
  for (const order of orders) {
    await expect(billing.charge(paramsOf(order), { operationId: order })).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      fault: 'newer-format',
      sentByThisCall: false,
    })
  }
  expect(receiver.ledger.effects).toHaveLength(3)
  expect(receiver.ledger.requests).toHaveLength(3)
  await journal.close()
  expect(await rowsOf(name, orders)).toEqual(before)
})
