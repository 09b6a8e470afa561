/** `enqueueIn`: the order and its charge in one transaction of the caller's own, on a real PostgreSQL. */
import { createBillingClient, defineWrite, forgetfulJournal } from 'billonce'
import type { BillingClient, BillingClientOptions, BillingEvent } from 'billonce'
import { enqueueIn, migratePostgresJournal, postgresJournal } from 'billonce/postgres'
import type { PostgresClient } from 'billonce/postgres'
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import { startPostgres } from '../support/postgres.ts'
import type { PostgresServer } from '../support/postgres.ts'
import { BASE_URL, coffee, SCOPE, viewsOf } from '../support/world.ts'

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 })

let server: PostgresServer
let pool: pg.Pool
let receiver: Receiver
let clients: BillingClient[] = []
let schemas = 0
let schema = ''

beforeAll(async () => {
  server = await startPostgres()
})
afterAll(async () => {
  await server?.stop()
})
beforeEach(async () => {
  schema = `enqueue_${++schemas}`
  pool = new pg.Pool({ connectionString: server.url })
  receiver = createReceiver()
  await pool.query('CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY)')
  await pool.query('TRUNCATE orders')
})
afterEach(async () => {
  // What a test that failed left open would be waited for.
  for (const connection of begun) connection.release(true)
  begun.clear()
  await Promise.all(clients.map((client) => client.close()))
  clients = []
  await pool.end()
})

const begun = new Set<pg.PoolClient>()

async function begin(): Promise<pg.PoolClient> {
  const transaction = await pool.connect()
  begun.add(transaction)
  await transaction.query('BEGIN')
  return transaction
}

async function end(transaction: pg.PoolClient, how: 'COMMIT' | 'ROLLBACK' | 'a lost connection'): Promise<void> {
  if (how !== 'a lost connection') await transaction.query(how)
  begun.delete(transaction)
  transaction.release(how === 'a lost connection')
}

/** A client with a journal of its own on the shared tables, as in another process. */
function client(options: Partial<BillingClientOptions> = {}): BillingClient {
  const billing = createBillingClient({
    baseUrl: BASE_URL,
    scope: SCOPE,
    journal: postgresJournal({ pool, schema, pollMs: 20 }),
    fetch: receiver.fetch,
    headers: { authorization: 'Bearer sk_test' },
    ...options,
  })
  clients.push(billing)
  return billing
}

async function inTransaction<T>(
  use: (transaction: PostgresClient) => Promise<T>,
  how: 'COMMIT' | 'ROLLBACK' = 'COMMIT',
): Promise<T> {
  const transaction = await begin()
  const result = await use(transaction)
  await end(transaction, how)
  return result
}

const place =
  (billing: BillingClient, id: string, amount: number = coffee.amount) =>
  async (transaction: PostgresClient) => {
    await transaction.query('INSERT INTO orders VALUES ($1)', [id])
    return await enqueueIn(billing, transaction, 'charge', { ...coffee, amount }, { operationId: id })
  }

const orders = async (): Promise<unknown[]> => (await pool.query('SELECT id FROM orders ORDER BY id')).rows

test('committed, there is the order and its charge, which a running worker makes once', async () => {
  const worker = client()
  const stop = worker.start()
  const billing = client()
  const outcome = await inTransaction(place(billing, 'order-1'))
  expect(outcome).toMatchObject({ status: 'queued', revision: 1, attempts: 0, durable: true })
  await vi.waitFor(
    async () => expect(await billing.find({ key: outcome.key })).toMatchObject({ status: 'succeeded' }),
    {
      timeout: 10_000,
    },
  )
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(receiver.ledger.requests.map(({ key }) => key)).toEqual([outcome.key])
  expect(await orders()).toEqual([{ id: 'order-1' }])
  stop()
})

test('before it is committed nobody sees it, and nothing is sent', async () => {
  const billing = client()
  const transaction = await begin()
  await place(billing, 'order-1')(transaction)
  expect(await billing.resume()).toMatchObject({ total: 0 })
  expect(await client().find({ kind: 'charge', operationId: 'order-1' })).toBeUndefined()
  expect(receiver.ledger.requests).toEqual([])
  await end(transaction, 'COMMIT')
  expect(await billing.resume()).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test.each(['ROLLBACK', 'a lost connection'] as const)('after %s there is neither order nor charge', async (how) => {
  const billing = client()
  const transaction = await begin()
  const outcome = await place(billing, 'order-1')(transaction)
  expect(outcome.status).toBe('queued')
  await end(transaction, how)
  expect(await billing.resume()).toMatchObject({ total: 0 })
  expect(await viewsOf(billing)).toEqual([])
  expect(await orders()).toEqual([])
  expect(receiver.ledger.requests).toEqual([])
  // And the name is as free as if it had never been there.
  await inTransaction(place(billing, 'order-1', 999))
  expect(await billing.resume()).toMatchObject({ succeeded: 1 })
  expect(receiver.ledger.effects.map(({ params }) => params['amount'])).toEqual([999])
})

test('writes of all kinds, and those of one’s own, are named and checked as by any other call', async () => {
  const refund = defineWrite({
    kind: 'refund',
    path: 'v1/charges',
    method: 'POST',
    readParams: (params: { readonly charge: string }) => ({ ...params, amount: 1, currency: 'eur' }),
    readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
  })
  const billing = client({ writes: [refund] })
  await inTransaction(async (transaction) => {
    await enqueueIn(billing, transaction, 'usage', { meter: 'exports', quantity: 3 }, { operationId: 'job-7' })
    await enqueueIn(billing, transaction, 'credits', { amount: 4 }, { operationId: 'image-5' })
    await enqueueIn(billing, transaction, refund, { charge: 'ch_1' }, { operationId: 'refund-1' })
    await expect(
      enqueueIn(billing, transaction, 'charge', { amount: 0.5, currency: 'eur' }, { operationId: 'order-1' }),
    ).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'amount' })
    await expect(
      enqueueIn(billing, transaction, 'charge', coffee, {
        operationId: 'order-1',
        signal: AbortSignal.abort(),
      } as never),
    ).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'signal' })
    await expect(
      enqueueIn(billing, transaction, 'nothing' as 'charge', coffee, { operationId: 'order-1' }),
    ).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'write' })
  })
  const views = await viewsOf(billing)
  expect(views.map(({ kind, state }) => [kind, state])).toEqual([
    ['usage', 'pending'],
    ['credits', 'pending'],
    ['refund', 'pending'],
  ])
  // The same keys as a direct call would have.
  const direct = createBillingClient({
    baseUrl: BASE_URL,
    scope: SCOPE,
    journal: forgetfulJournal(),
    fetch: receiver.fetch,
  })
  const same = await direct.recordUsage({ meter: 'exports', quantity: 3 }, { operationId: 'job-7' })
  expect(views[0]?.key).toBe(same.key)
  await direct.close()
})

describe('a name that is there already', () => {
  test('with other parameters is refused, and the transaction goes on', async () => {
    const billing = client()
    const events: BillingEvent[] = []
    billing.subscribe((event) => events.push(event))
    await billing.charge(coffee, { operationId: 'order-1' })
    events.length = 0
    await inTransaction(async (transaction) => {
      await transaction.query("INSERT INTO orders VALUES ('order-0')")
      await expect(place(billing, 'order-1', 999)(transaction)).rejects.toMatchObject({
        code: 'ERR_OPERATION_CONFLICT',
        fields: ['amount'],
      })
      await expect(
        enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-2', revision: 1 }),
      ).resolves.toMatchObject({ status: 'queued' })
      await expect(
        enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-2', revision: 2 }),
      ).rejects.toMatchObject({ code: 'ERR_REVISION_REFUSED', reason: 'earlier-revision-open' })
      await transaction.query("INSERT INTO orders VALUES ('order-3')")
    })
    expect(await orders()).toHaveLength(3)
    expect(events.map(({ type }) => type)).toEqual(['conflict', 'revision-refused'])
  })

  test('and final gives its outcome; open, it is queued as it is', async () => {
    const billing = client()
    const made = await billing.charge(coffee, { operationId: 'order-1' })
    await inTransaction(async (transaction) => {
      expect(await place(billing, 'order-1')(transaction)).toMatchObject({ status: 'succeeded', key: made.key })
      const queued = await place(billing, 'order-2')(transaction)
      expect(await enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-2' })).toEqual(queued)
    })
    expect(await viewsOf(billing)).toHaveLength(2)
    expect(await billing.resume()).toMatchObject({ total: 1, succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('canceled before is opened again within the transaction, or stays canceled with it', async () => {
    const billing = client()
    await billing.charge(coffee, { operationId: 'order-1', background: true, sendBeforeMs: 3_600_000 })
    await vi.waitFor(() => expect(receiver.ledger.effects).toHaveLength(1))
    await inTransaction((transaction) => enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-2' }))
    await billing.cancel({ kind: 'charge', operationId: 'order-2' })
    const again = (transaction: PostgresClient) =>
      enqueueIn(billing, transaction, 'charge', { ...coffee, amount: 7 }, { operationId: 'order-2', reopen: true })
    expect(await inTransaction(again, 'ROLLBACK')).toMatchObject({ status: 'queued' })
    expect(await billing.find({ kind: 'charge', operationId: 'order-2' })).toMatchObject({ status: 'canceled' })
    expect(await inTransaction(again)).toMatchObject({ status: 'queued' })
    expect(await billing.resume()).toMatchObject({ succeeded: 1 })
  })

  test('in two transactions at once is one entry; the later one waits and then gets the same', async () => {
    const billing = client()
    const [one, two] = [await begin(), await begin()]
    const first = await enqueueIn(billing, one, 'charge', coffee, { operationId: 'order-1' })
    const second = enqueueIn(billing, two, 'charge', coffee, { operationId: 'order-1' })
    const third = client().charge(coffee, { operationId: 'order-1' })
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(receiver.ledger.requests).toEqual([])
    await end(one, 'COMMIT')
    // By then it may have been made.
    expect(await second).toMatchObject({ status: expect.stringMatching(/queued|succeeded/) as string, key: first.key })
    await end(two, 'COMMIT')
    expect(await third).toMatchObject({ status: 'succeeded', key: first.key })
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(billing)).toHaveLength(1)
  })
})

describe('what is no transaction of this database', () => {
  test('is refused, and nothing is written', async () => {
    const billing = client()
    const options = { operationId: 'order-1' }
    const idle = await pool.connect()
    for (const wrong of [pool, idle, {}, null, 'BEGIN']) {
      await expect(enqueueIn(billing, wrong as PostgresClient, 'charge', coffee, options)).rejects.toMatchObject({
        code: 'ERR_INVALID_INPUT',
        field: 'transaction',
      })
    }
    idle.release()
    const other = createBillingClient({ baseUrl: BASE_URL, scope: SCOPE, journal: forgetfulJournal() })
    await inTransaction((transaction) =>
      expect(enqueueIn(other, transaction, 'charge', coffee, options)).rejects.toMatchObject({ field: 'billing' }),
    )
    expect(await viewsOf(billing)).toEqual([])
  })

  test.each([
    ['looked at before', true],
    ['not looked at yet', false],
  ])('is one in a database with another journal, ours %s', async (_, isKnown) => {
    const name = `other_${schemas}`
    await pool.query(`CREATE DATABASE ${name}`)
    const url = new URL(server.url)
    url.pathname = `/${name}`
    const elsewhere = new pg.Pool({ connectionString: url.href })
    try {
      const billing = client()
      await (isKnown ? billing : client()).find({ key: 'k' })
      await new Promise((resolve) => setTimeout(resolve, 5))
      await migratePostgresJournal(elsewhere, { schema })
      const transaction = await elsewhere.connect()
      await transaction.query('BEGIN')
      await expect(enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-1' })).rejects.toMatchObject(
        {
          code: 'ERR_INVALID_INPUT',
          field: 'transaction',
        },
      )
      transaction.release(true)
    } finally {
      await elsewhere.end()
      await pool.query(`DROP DATABASE ${name}`)
    }
  })

  test('is one that has failed: the error is the journal’s, and nothing is written', async () => {
    const billing = client()
    await billing.find({ key: 'k' })
    const transaction = await begin()
    await transaction.query('SELECT nothing').catch(() => {})
    await expect(enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-1' })).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      fault: 'unavailable',
    })
    await end(transaction, 'ROLLBACK')
    expect(await viewsOf(billing)).toEqual([])
  })
})

test('of two serializable transactions that name one operation, the loser is told PostgreSQL’s code, and run again gets the entry', async () => {
  const billing = client()
  await billing.find({ key: 'k' })
  const [one, two] = [await begin(), await begin()]
  for (const transaction of [one, two]) {
    await transaction.query('SET TRANSACTION ISOLATION LEVEL SERIALIZABLE')
    await transaction.query('SELECT FROM orders')
  }
  const first = await place(billing, 'order-1')(one)
  await end(one, 'COMMIT')
  const late = await enqueueIn(billing, two, 'charge', coffee, { operationId: 'order-1' }).catch(
    (reason: unknown) => reason,
  )
  expect(late).toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE', fault: 'timeout', cause: { code: '40001' } })
  await end(two, 'ROLLBACK')
  const again = await inTransaction((transaction) =>
    enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-1' }),
  )
  expect(again).toMatchObject({ status: 'queued', key: first.key })
  expect(await viewsOf(billing)).toHaveLength(1)
})

test('a transaction whose snapshot is older than the tables is told so, not that they are damaged', async () => {
  const billing = client()
  const transaction = await begin()
  await transaction.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')
  await transaction.query('SELECT FROM orders')
  await expect(place(billing, 'order-1')(transaction)).rejects.toMatchObject({
    code: 'ERR_JOURNAL_UNAVAILABLE',
    fault: 'unavailable',
    message: expect.stringContaining('snapshot') as string,
  })
  await end(transaction, 'ROLLBACK')
  expect(await inTransaction(place(billing, 'order-1'))).toMatchObject({ status: 'queued' })
})

test('a server whose commits may be lost is refused by the first transaction too', async () => {
  await migratePostgresJournal(pool, { schema })
  await pool.query(`ALTER TABLE ${schema}.billonce_entries SET UNLOGGED`)
  await inTransaction(async (transaction) => {
    await expect(place(client(), 'order-1')(transaction)).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      message: expect.stringContaining('unlogged') as string,
    })
  })
})

test('the only connection of the pool is enough', async () => {
  const small = new pg.Pool({ connectionString: server.url, max: 1 })
  await migratePostgresJournal(small, { schema })
  const billing = client({ journal: postgresJournal({ pool: small, schema, migrate: false }) })
  const transaction = await small.connect()
  await transaction.query('BEGIN')
  expect(await enqueueIn(billing, transaction, 'charge', coffee, { operationId: 'order-1' })).toMatchObject({
    status: 'queued',
  })
  await transaction.query('COMMIT')
  transaction.release()
  expect(await billing.resume()).toMatchObject({ succeeded: 1 })
  await billing.close()
  await small.end()
})

test('a lease of another machine is waited for by the server’s clock, and then its entry is taken over', async () => {
  const billing = client()
  await inTransaction(place(billing, 'order-1'))
  const [view] = await viewsOf(billing)
  const store = postgresJournal({ pool, schema })
  const entry = (await store.get(BASE_URL, view?.key ?? '')) ?? expect.fail('It is there.')
  const nowMs = Date.now()
  await store.replace({
    ...entry,
    version: entry.version + 1,
    claim: { owner: 'another-machine#1', fence: 2, untilMs: nowMs + 1500 },
  })
  const real = Date.now
  // This machine's clock is an hour ahead: by itself it would take the lease for over.
  vi.spyOn(Date, 'now').mockImplementation(() => real() + 3_600_000)
  try {
    const worker = client()
    const stop = worker.start()
    await new Promise((resolve) => setTimeout(resolve, 700))
    expect(receiver.ledger.requests).toEqual([])
    await vi.waitFor(() => expect(receiver.ledger.effects).toHaveLength(1), { timeout: 10_000 })
    expect(real() - nowMs).toBeGreaterThanOrEqual(1400)
    stop()
  } finally {
    vi.restoreAllMocks()
  }
})

test('what others are at work on counts as waiting in a pass', async () => {
  const billing = client()
  for (const id of ['order-1', 'order-2', 'order-3']) await inTransaction(place(billing, id))
  const store = postgresJournal({ pool, schema })
  const page = await store.listDeliverable({ endpoint: BASE_URL, scope: SCOPE }, 10, undefined, {
    owner: 'another-machine#1',
    most: 2,
    holdMs: 60_000,
    kinds: ['charge'],
    due: 'any',
  })
  expect(page.entries).toHaveLength(2)
  expect(await billing.resume()).toMatchObject({ total: 3, succeeded: 1, waiting: 2 })
})
