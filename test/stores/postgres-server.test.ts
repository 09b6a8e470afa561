/**
 * What is special about a journal in a database: its tables, its connections, its clock, and everything that can go wrong
 * between here and its disk.
 */
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createBillingClient } from 'billonce'
import { createReceiver } from 'billonce/testing'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import type { JournalUnavailableError } from '../../src/errors.ts'
import type { JournalEntry } from '../../src/model/entry.ts'
import { changesOf, listOf, listsOf, rowOf, statementsOf } from '../../src/stores/postgres-statements.ts'
import { readPlace } from '../../src/stores/postgres-schema.ts'
import { migratePostgresJournal, postgresJournal, postgresJournalSql } from '../../src/stores/postgres.ts'
import type { PostgresJournalOptions, PostgresPool } from '../../src/stores/postgres.ts'
import type { JournalStore, Page, Taking } from '../../src/stores/store.ts'
import { sampleEntry } from '../../src/testing/store-suite.ts'
import { isOurServer, startPostgres, startProxy } from '../support/postgres.ts'
import type { PostgresServer } from '../support/postgres.ts'
import { canMountDisk } from '../support/disk.ts'

vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

let server: PostgresServer
let admin: pg.Pool
let pools: pg.Pool[] = []
let stores: JournalStore[] = []
let schema = ''
let schemas = 0

beforeAll(async () => {
  // What is committed without waiting for the disk would stay away from it for so long.
  server = await startPostgres(['wal_writer_delay=10s'])
})
afterAll(async () => {
  await server?.stop()
})
beforeEach(() => {
  schema = `test_${++schemas}`
  admin = new pg.Pool({ connectionString: server.url, max: 3 })
  // Some tests stop the server.
  admin.on('error', () => {})
})
afterEach(async () => {
  await Promise.all(stores.map((store) => store.close()))
  await Promise.all([...pools, admin].map((pool) => pool.end()))
  stores = []
  pools = []
})

function poolOf(config: pg.PoolConfig = {}): pg.Pool {
  const pool = new pg.Pool({ connectionString: server.url, max: 8, ...config })
  pools.push(pool)
  return pool
}

function journal(options: Partial<PostgresJournalOptions> = {}, config: pg.PoolConfig = {}): JournalStore {
  const store = postgresJournal({ pool: poolOf(config), schema, ...options })
  stores.push(store)
  return store
}

async function faultOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    (value) => expect.fail(`It gave ${JSON.stringify(value)}.`),
    (reason: unknown) => reason as JournalUnavailableError,
  )
  expect(error.code, String(error)).toBe('ERR_JOURNAL_UNAVAILABLE')
  return error.fault
}

const order = (number: number, more: Parameters<typeof sampleEntry>[0] = {}): JournalEntry =>
  sampleEntry({ operationId: `order-${number}`, ...more })

async function rowsOf(text: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
  return (await admin.query<Record<string, unknown>>(text, values)).rows
}

describe('the tables', () => {
  test('are made once by eight who come at the same time, and stay as they are', async () => {
    const all = Array.from({ length: 8 }, () => journal())
    const births = await Promise.all(all.map((store) => store.knowsSinceMs('charge')))
    expect(new Set(births).size).toBe(1)
    await all[0]?.insert(order(1), [])
    await Promise.all([1, 2, 3].map(() => migratePostgresJournal(poolOf(), { schema })))
    await admin.query(postgresJournalSql({ schema }))
    expect(await journal().get(order(1).endpoint, order(1).key)).toEqual(order(1))
    expect(await journal().knowsSinceMs('charge')).toBe(births[0])
  })

  test('of two prefixes in one schema are two journals', async () => {
    const one = journal({ prefix: 'a_' })
    const other = journal({ prefix: 'b_' })
    await one.insert(order(1), [])
    expect(await other.get(order(1).endpoint, order(1).key)).toBeUndefined()
    const tables = await rowsOf('SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1', [schema])
    expect(tables.map((row) => row['tablename'])).toEqual(['a_entries', 'a_meta', 'b_entries', 'b_meta'])
  })

  test.each([
    { schema: 'a"; DROP TABLE x; --' },
    { schema: '' },
    { schema: 'x'.repeat(64) },
    { prefix: 'with space_' },
    { prefix: '1_' },
    { prefix: 'x'.repeat(33) },
    { pool: {} as PostgresPool },
    { connections: 0 },
    { timeoutMs: Number.NaN },
    { pollMs: 1 },
  ])('with options %o are refused', (options) => {
    expect(() => postgresJournal({ pool: poolOf(), ...options })).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_INPUT', field: Object.keys(options)[0] }),
    )
  })

  test('are not made by a role that may not, which is told so and can use those that another made', async () => {
    const role = `app_${schemas}`
    await admin.query(`CREATE ROLE ${role} LOGIN`)
    const url = new URL(server.url)
    url.username = role
    const config = { connectionString: url.href }
    expect(await faultOf(journal({ migrate: false }, config).countOpen())).toBe('unavailable')
    await expect(journal({ migrate: false }, config).countOpen()).rejects.toThrow(/migratePostgresJournal/)
    expect(await faultOf(journal({}, config).countOpen())).toBe('unavailable')
    await admin.query(postgresJournalSql({ schema }))
    expect(await faultOf(journal({ migrate: false }, config).countOpen())).toBe('unavailable')
    await admin.query(`GRANT USAGE ON SCHEMA ${schema} TO ${role};
      GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role}`)
    const store = journal({ migrate: false }, config)
    expect(await store.insert(order(1), [])).toEqual({ inserted: true })
    expect(await store.replace(order(1, { version: 2, state: 'succeeded' }))).toBe(true)
    expect(await store.remove([order(1, { version: 2, state: 'succeeded' })])).toBe(true)
    await admin.query(`REVOKE INSERT ON ALL TABLES IN SCHEMA ${schema} FROM ${role}`)
    expect(await faultOf(store.insert(order(2), []))).toBe('unavailable')
    await admin.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
  })

  test('that cannot be made leave the connection as it was', async () => {
    const role = `poor_${schemas}`
    await admin.query(`CREATE ROLE ${role} LOGIN`)
    const url = new URL(server.url)
    url.username = role
    const pool = poolOf({ connectionString: url.href, max: 1 })
    expect(await faultOf(journal({ pool }).countOpen())).toBe('unavailable')
    expect(await faultOf(migratePostgresJournal(pool, { schema }))).toBe('unavailable')
    // Not 25P02, for whoever gets it next.
    expect((await pool.query('SELECT 1 AS one')).rows).toEqual([{ one: 1 }])
    await admin.query(`DROP ROLE ${role}`)
  })

  test('of a newer version, of somebody else, unlogged or dropped are refused and left alone', async () => {
    await journal().insert(order(1), [])
    await admin.query(`UPDATE ${schema}.billonce_meta SET value = '2' WHERE name = 'format'`)
    expect(await faultOf(journal().countOpen())).toBe('newer-format')
    await admin.query(`DELETE FROM ${schema}.billonce_meta WHERE name = 'format'`)
    expect(await faultOf(journal().countOpen())).toBe('damaged')
    await admin.query(`UPDATE ${schema}.billonce_meta SET name = 'format', value = '1' WHERE name = 'format'`)
    await admin.query(`INSERT INTO ${schema}.billonce_meta VALUES ('format', '1')`)
    expect(await journal().countOpen()).toHaveLength(1)
    await admin.query(`ALTER TABLE ${schema}.billonce_entries SET UNLOGGED`)
    expect(await faultOf(journal().countOpen())).toBe('unavailable')
    await admin.query(`ALTER TABLE ${schema}.billonce_entries SET LOGGED`)
    const store = journal()
    expect(await store.countOpen()).toHaveLength(1)
    await admin.query(`ALTER TABLE ${schema}.billonce_entries RENAME version TO edition`)
    expect(await faultOf(store.replace(order(1, { version: 2 })))).toBe('foreign')
    await admin.query(`DROP TABLE ${schema}.billonce_entries`)
    expect(await faultOf(store.insert(order(2), []))).toBe('unavailable')
  })

  test.skipIf(!isOurServer)('of a server that does not flush are refused, unless that is asked for', async () => {
    await admin.query('ALTER SYSTEM SET fsync = off')
    await admin.query('SELECT pg_reload_conf()')
    try {
      await vi.waitFor(async () => expect(await rowsOf('SHOW fsync')).toEqual([{ fsync: 'off' }]), { timeout: 5000 })
      expect(await faultOf(journal().countOpen())).toBe('unavailable')
      const store = journal({ allowFsyncOff: true })
      expect(await store.countOpen()).toEqual([])
      expect(store.durable).toBe(false)
    } finally {
      await admin.query('ALTER SYSTEM RESET fsync')
      await admin.query('SELECT pg_reload_conf()')
    }
  })
})

describe('a commit', () => {
  test.skipIf(!isOurServer)(
    'is on the disk when a call resolves, also if the session does not wait for it',
    async () => {
      const lazy = { options: '-c synchronous_commit=off' }
      const store = journal({}, lazy)
      await store.countOpen()
      for (let number = 0; number < 5; number++) await store.insert(order(number), [])
      expect(await store.replace(order(0, { version: 2, state: 'succeeded' }))).toBe(true)
      await server.crash()
      await server.start()
      const left = await journal().list({}, 10)
      expect(left.entries.map(({ state }) => state)).toEqual(['succeeded', 'pending', 'pending', 'pending', 'pending'])
      // That this says something: the same by other means is lost.
      const other = poolOf(lazy)
      other.on('error', () => {})
      await other.query(`CREATE TABLE ${schema}.lazy (number int)`)
      await admin.query('CHECKPOINT')
      await other.query(`INSERT INTO ${schema}.lazy VALUES (1)`)
      await server.crash()
      await server.start()
      expect(await rowsOf(`SELECT * FROM ${schema}.lazy`)).toEqual([])
    },
  )

  test('whose answer is lost is looked for: an insert, a replace and a remove are done once and said to be done', async () => {
    const proxy = await startProxy(server)
    const store = journal({}, { connectionString: proxy.url })
    await store.countOpen()
    try {
      proxy.cutAfter('INSERT INTO')
      expect(await store.insert(order(1), [])).toEqual({ inserted: true })
      expect(proxy.cuts).toBe(1)
      proxy.cutAfter('UPDATE')
      const second = order(1, { version: 2, state: 'succeeded' })
      expect(await store.replace(second)).toBe(true)
      expect(proxy.cuts).toBe(2)
      proxy.cutAfter('DELETE FROM')
      expect(await store.remove([second])).toBe(true)
      expect(proxy.cuts).toBe(3)
      expect(await journal().list({}, 10)).toEqual({ entries: [], unreadable: 0 })
    } finally {
      await proxy.stop()
    }
  })

  test('whose answer is lost is not said to be done if another has written meanwhile', async () => {
    const proxy = await startProxy(server)
    const store = journal({}, { connectionString: proxy.url })
    const other = journal()
    await store.insert(order(1), [])
    try {
      // The other one is there first; what comes back after the cut is not this call's.
      expect(await other.replace(order(1, { version: 2, state: 'sending' }))).toBe(true)
      proxy.cutAfter('UPDATE')
      expect(await store.replace(order(1, { version: 2, state: 'succeeded' }))).toBe(false)
      proxy.cutAfter('INSERT INTO')
      const taken = order(1, { body: 'another' })
      expect(await store.insert(taken, [])).toEqual({
        inserted: false,
        found: [await other.get(taken.endpoint, taken.key)],
      })
      expect(proxy.cuts).toBe(2)
    } finally {
      await proxy.stop()
    }
  })

  test('whose answer is lost each time, or never comes, is a typed error', async () => {
    const proxy = await startProxy(server)
    const store = journal({ timeoutMs: 1000 }, { connectionString: proxy.url })
    await store.countOpen()
    try {
      proxy.cutAfter('INSERT INTO', 99)
      const lost = store.insert(order(1), [])
      await expect(lost).rejects.toThrow(/not known/)
      expect(await faultOf(lost)).toBe('unavailable')
      proxy.swallowAfter('UPDATE')
      expect(await faultOf(store.replace(order(1, { version: 2 })))).toBe('timeout')
      // And the journal goes on.
      expect(await store.replace(order(1, { version: 3 }))).toBe(true)
    } finally {
      await proxy.stop()
    }
  })
})

describe('calls that come together', () => {
  test('share statements and connections', async () => {
    const pool = poolOf()
    let [statements, open, most] = [0, 0, 0]
    const counting: PostgresPool = {
      async connect() {
        const client = await pool.connect()
        most = Math.max(most, ++open)
        return {
          query: (text, values) => {
            statements += 1
            return client.query(text, values)
          },
          release: (destroy) => {
            open -= 1
            client.release(destroy)
          },
        }
      },
    }
    const store = journal({ pool: counting, connections: 3 })
    await store.countOpen()
    statements = 0
    const results = await Promise.all(Array.from({ length: 500 }, (_, number) => store.insert(order(number), [])))
    expect(results.every(({ inserted }) => inserted)).toBe(true)
    expect(statements).toBeLessThan(10)
    expect(most).toBeLessThanOrEqual(3)
    // In the order in which they came, within each statement.
    const { entries } = await store.listDeliverable(order(0), 500)
    const numbers = entries.map(({ operationId }) => Number(operationId.slice('order-'.length)))
    expect(new Set(numbers).size).toBe(500)
    const first = numbers.filter((number) => number < 256)
    expect(first).toEqual(first.toSorted((one, other) => one - other))
  })

  test('wait neither for one that cannot be written nor for one that another transaction holds', async () => {
    const store = journal()
    await store.countOpen()
    const within = await admin.connect()
    await within.query('BEGIN')
    const inside = (await store.within?.(within)) ?? expect.fail()
    await inside.insert(order(1), [])
    await inside.insert(order(2), [])
    let isHeld = true
    const beganAtMs = performance.now()
    const held = store.insert(order(1, { body: 'later' }), []).finally(() => (isHeld = false))
    const free = store.insert(order(2, { body: 'later' }), [])
    const others = await Promise.all([3, 4, 5].map((number) => store.insert(order(number), [])))
    expect(others).toEqual([{ inserted: true }, { inserted: true }, { inserted: true }])
    expect(isHeld).toBe(true)
    // Far from what one alone would wait.
    expect(performance.now() - beganAtMs).toBeLessThan(10_000)
    await within.query('ROLLBACK')
    within.release()
    expect([await held, await free]).toEqual([{ inserted: true }, { inserted: true }])
  })

  test('are given up with fault timeout if another transaction never ends', async () => {
    const store = journal({ timeoutMs: 1500 })
    await store.insert(order(1), [])
    const within = await admin.connect()
    await within.query('BEGIN')
    await (await store.within?.(within))?.replace(order(1, { version: 2 }))
    expect(await faultOf(store.replace(order(1, { version: 2 })))).toBe('timeout')
    await within.query('ROLLBACK')
    within.release()
    // What was given up is not known to be undone, which is why it is asked for again.
    await store.replace(order(1, { version: 2 }))
    expect(await store.get(order(1).endpoint, order(1).key)).toEqual(order(1, { version: 2 }))
  })
})

describe('a database that is not there for it', () => {
  test.skipIf(!isOurServer)('is a typed error, and when it is back the journal goes on', async () => {
    const store = journal()
    await store.insert(order(1), [])
    await server.crash()
    expect(await faultOf(store.insert(order(2), []))).toBe('unavailable')
    expect(await faultOf(store.get(order(1).endpoint, order(1).key))).toBe('unavailable')
    expect(await faultOf(journal().countOpen())).toBe('unavailable')
    await server.start()
    expect(await store.insert(order(2), [])).toEqual({ inserted: true })
    expect((await store.list({}, 10)).entries).toHaveLength(2)
  })

  test('takes no writes: fault unavailable, and reads go on', async () => {
    await journal().insert(order(1), [])
    const store = journal({}, { options: '-c default_transaction_read_only=on' })
    expect(await store.get(order(1).endpoint, order(1).key)).toEqual(order(1))
    const refused = await store.replace(order(1, { version: 2 })).catch((reason: unknown) => reason)
    expect(refused).toMatchObject({ fault: 'unavailable', cause: { code: '25006' } })
    // It was refused each time, so nothing is in doubt.
    expect(String(refused)).not.toContain('not known')
  })

  test('cancels statements: fault timeout', async () => {
    const store = journal({}, { statement_timeout: 300 })
    await store.insert(order(1), [])
    const blocker = await admin.connect()
    await blocker.query(`BEGIN; LOCK TABLE ${schema}.billonce_entries IN ACCESS EXCLUSIVE MODE`)
    expect(await faultOf(store.get(order(1).endpoint, order(1).key))).toBe('timeout')
    await blocker.query('ROLLBACK')
    blocker.release()
  })

  test('has no connection left: fault unavailable; a pool that has none: fault timeout', async () => {
    const role = `few_${schemas}`
    await journal().countOpen()
    await admin.query(`CREATE ROLE ${role} LOGIN CONNECTION LIMIT 1; GRANT ${role} TO CURRENT_USER`)
    const url = new URL(server.url)
    url.username = role
    const holder = poolOf({ connectionString: url.href })
    const held = await holder.connect()
    expect(await faultOf(journal({}, { connectionString: url.href }).countOpen())).toBe('unavailable')
    held.release()
    const small = poolOf({ max: 1 })
    const only = await small.connect()
    expect(await faultOf(journal({ pool: small, timeoutMs: 300 }).countOpen())).toBe('timeout')
    only.release()
    await admin.query(`DROP ROLE ${role}`)
  })

  test.each([
    ['53100', 'full'],
    ['57014', 'timeout'],
    ['XX001', 'damaged'],
    ['28P01', 'unavailable'],
    ['3D000', 'unavailable'],
    ['ECONNREFUSED', 'unavailable'],
    [undefined, 'unavailable'],
  ])('code %s is fault %s, and what its text holds goes nowhere', async (code, fault) => {
    const pool: PostgresPool = {
      // oxlint-disable-next-line typescript/require-await
      connect: async () => ({
        query: () =>
          Promise.reject(
            Object.assign(new Error('secret in the text'), { code, detail: 'Key (body)=(secret) exists' }),
          ),
        release: () => {},
      }),
    }
    const error = await journal({ pool })
      .insert(order(1), [])
      .catch((reason: unknown) => reason as JournalUnavailableError)
    expect(error).toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE', fault })
    const isOfServer = code !== undefined && /\d/.test(code)
    if (isOfServer) expect([error, (error as Error).cause].map(String).join(' ')).not.toContain('secret')
  })
})

describe('entries that are handed out', () => {
  const kinds = ['charge']
  const take = (store: JournalStore, owner: string, more: Partial<Taking> = {}): Promise<Page> =>
    store.listDeliverable(order(1), 100, undefined, {
      owner,
      most: 10,
      holdMs: 60_000,
      kinds,
      due: 'any',
      ...more,
    })

  test('go to one of those who ask, also if all ask at once', async () => {
    const all = [journal(), journal(), journal(), journal()]
    await Promise.all(Array.from({ length: 40 }, (_, number) => (all[0] ?? expect.fail()).insert(order(number), [])))
    const pages = await Promise.all(all.map((store, index) => take(store, `w#${index}`)))
    const keys = pages.flatMap(({ entries }) => entries.map(({ key }) => key))
    expect(new Set(keys).size).toBe(keys.length)
    expect((await take(journal(), 'late#1', { most: 99 })).entries).toHaveLength(40 - keys.length)
  })

  test('come back when they were changed, when the holder asks again, and when the time is over', async () => {
    const store = journal()
    for (const number of [1, 2, 3]) await store.insert(order(number), [])
    expect((await take(store, 'a#1', { holdMs: 30_000 })).entries).toHaveLength(3)
    expect((await take(store, 'b#1')).entries).toEqual([])
    await store.replace(order(1, { version: 2 }))
    expect((await take(store, 'b#1')).entries).toEqual([order(1, { version: 2 })])
    expect((await take(store, 'a#1', { holdMs: 300 })).entries).toHaveLength(2)
    await new Promise((resolve) => setTimeout(resolve, 350))
    expect((await take(store, 'b#1')).entries).toHaveLength(3)
  })

  test('are those that are due, of kinds that were asked for, and without a claim that lives', async () => {
    const store = journal()
    const nowMs = Date.now()
    const due = order(1)
    const later = { ...order(2), nextAttemptAtMs: nowMs + 50_000, notBeforeMs: nowMs + 40_000 } as JournalEntry
    const planned = { ...order(3), nextAttemptAtMs: nowMs + 30_000, notBeforeMs: 0 } as JournalEntry
    const claimed = {
      ...order(4, { state: 'sending' }),
      claim: { owner: 'other#1', fence: 1, untilMs: nowMs + 20_000 },
    } as JournalEntry
    const strange = order(5, { kind: 'usage' })
    for (const entry of [due, later, planned, claimed, strange]) await store.insert(entry, [])
    const names = async (how: Taking['due'], owner: string): Promise<string[]> =>
      (await take(store, owner, { due: how, holdMs: 1 })).entries.map(({ operationId }) => operationId)
    expect(await names('planned', 'a#1')).toEqual(['order-1'])
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(await names('not-before', 'b#1')).toEqual(['order-1', 'order-3'])
    await new Promise((resolve) => setTimeout(resolve, 20))
    expect(await names('any', 'c#1')).toEqual(['order-1', 'order-2', 'order-3'])
    const { left } = await take(store, 'd#1', { due: 'planned' })
    expect(left?.strange).toBe(1)
    await new Promise((resolve) => setTimeout(resolve, 20))
    const after = await take(store, 'e#1', { due: 'planned' })
    expect(after.left?.nextAtMs).toBe(nowMs + 20_000)
  })

  test('of a process of this machine that is gone are handed out again at once', async () => {
    const store = journal()
    await store.insert(order(1), [])
    const gone = store.owner.replace(/\/\d+\//, '/4194305/')
    expect(await store.isGone(gone)).toBe(true)
    expect((await take(store, `${gone}#1`)).entries).toHaveLength(1)
    expect((await take(store, 'b#1')).entries).toHaveLength(1)
    // Of another machine nobody can tell.
    expect(await store.isGone(`elsewhere${gone}`)).toBe(false)
  })

  test('are told of to those who watch, whoever wrote them down', async () => {
    const store = journal({ pollMs: 20 })
    let calls = 0
    const stop = store.watchDeliverable?.(
      order(1),
      () => kinds,
      () => (calls += 1),
    )
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(calls).toBe(0)
    await journal().insert(order(1), [])
    await vi.waitFor(() => expect(calls).toBeGreaterThan(0), { timeout: 5000 })
    await take(store, 'a#1')
    // Soon, and not at once: what was asked before it was taken may still be answered.
    const callsMeanwhile = async (): Promise<number> => {
      const before = calls
      await new Promise((resolve) => setTimeout(resolve, 150))
      return calls - before
    }
    await expect.poll(callsMeanwhile, { timeout: 5000 }).toBe(0)
    stop?.()
  })
})

test.runIf(isOurServer && canMountDisk())(
  'a full disk is a typed error and nothing is sent, and with room again it goes on',
  async () => {
    const own = await startPostgres()
    const disk = mkdtempSync(join(tmpdir(), 'billonce-disk-'))
    const ballast = join(disk, 'ballast')
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', disk])
    const pool = poolOf({ connectionString: own.url, options: '-c default_tablespace=small' })
    pool.on('error', () => {})
    try {
      execFileSync('chown', ['postgres', disk])
      const maker = poolOf({ connectionString: own.url })
      maker.on('error', () => {})
      await maker.query(`CREATE TABLESPACE small LOCATION '${disk}'`)
      const receiver = createReceiver()
      const { scope } = order(1)
      const retry = { backgroundBaseDelayMs: 10 }
      const store = journal({ pool, pollMs: 20 })
      const billing = createBillingClient({
        baseUrl: 'https://api.example.com',
        scope,
        headers: {},
        journal: store,
        fetch: receiver.fetch,
        retry,
      })
      // Text that the server cannot make smaller.
      const notes = Array.from({ length: 80 }, () => randomBytes(6000).toString('base64'))
      const charge = (number: number): Promise<unknown> =>
        billing.charge(
          { amount: 500, currency: 'eur', metadata: { note: notes[number] ?? '' } },
          { operationId: `order-${number}`, background: number % 2 === 0 },
        )
      for (let number = 0; number < 10; number += 1) await charge(number)
      await vi.waitFor(async () => expect(await store.countOpen()).toEqual([]))
      writeFileSync(ballast, new Uint8Array(await roomIn(disk)))
      let [sent, refused] = [0, 0]
      for (let number = 10; number < 80; number += 1) {
        sent = receiver.ledger.requests.length
        const fault = await charge(number).then(
          () => undefined,
          (error: unknown) => error as JournalUnavailableError,
        )
        // What pages have room for is still taken.
        if (!fault) continue
        expect(fault).toMatchObject({
          code: 'ERR_JOURNAL_UNAVAILABLE',
          fault: 'full',
          sentByThisCall: false,
          cause: { code: '53100' },
        })
        expect(receiver.ledger.requests.length).toBe(sent)
        refused += 1
        if (refused === 5) break
      }
      expect(refused).toBe(5)
      rmSync(ballast)
      for (let number = 0; number < 80; number += 1) await charge(number)
      await vi.waitFor(async () => expect(await store.countOpen()).toEqual([]), { timeout: 20_000 })
      expect(receiver.ledger.effects).toHaveLength(80)
      await billing.close()
      await store.close()
    } finally {
      await own.stop()
      execFileSync('umount', [disk])
      rmSync(disk, { recursive: true })
    }
  },
)

async function roomIn(place: string): Promise<number> {
  const { bavail, bsize } = await statfs(place)
  return bavail * bsize
}

test('the clock is the server’s, as far as this process’s is proven wrong', async () => {
  const store = journal()
  await store.clock?.look()
  expect(Math.abs((store.clock?.atMs(Date.now()) ?? 0) - Date.now())).toBeLessThan(100)
  const real = Date.now
  vi.spyOn(Date, 'now').mockImplementation(() => real() + 3_600_000)
  try {
    const other = journal()
    await other.clock?.look()
    const [row] = await rowsOf('SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now')
    expect(Math.abs((other.clock?.atMs(Date.now()) ?? 0) - Number(row?.['now']))).toBeLessThan(1000)
    // One that runs gets to know with its next commit.
    await store.insert(order(1), [])
    expect(Math.abs((store.clock?.atMs(Date.now()) ?? 0) - Number(row?.['now']))).toBeLessThan(2000)
  } finally {
    vi.restoreAllMocks()
  }
})

describe('tables of an earlier version', () => {
  const settledAtMs = 1_760_000_000_500
  const final = (number: number, more: Parameters<typeof sampleEntry>[0] = {}): JournalEntry =>
    ({ ...order(number, { state: 'succeeded', ...more }), settledAtMs }) as JournalEntry
  const due = { bodiesAtMs: settledAtMs, namesAtMs: {} }
  const everything = { bodiesAtMs: settledAtMs, namesAtMs: { charge: settledAtMs } }

  /** The tables as the script of then made them. */
  async function makeEarlier(): Promise<void> {
    const text = readFileSync(join(import.meta.dirname, 'fixtures/postgres-step-1.sql'), 'utf8')
    await admin.query(text.replaceAll('old_schema', schema))
  }

  /** What a worker of that version writes. */
  async function insertEarlier(entry: JournalEntry, text?: string): Promise<void> {
    const { prunable_from_ms: _from, is_lean: _lean, ...row } = rowOf(entry)
    const values = { ...row, nth: entry.revision, ...(text === undefined ? {} : { entry: text }) }
    const names = Object.keys(values)
    await admin.query(
      `INSERT INTO ${schema}.billonce_entries (${names.join(', ')}) VALUES (${names.map((_, index) => `$${index + 1}`).join(', ')})`,
      Object.values(values),
    )
  }
  async function replaceEarlier(entry: JournalEntry): Promise<void> {
    const { key_id: id, version, state, entry: text } = rowOf(entry)
    await admin.query(
      `UPDATE ${schema}.billonce_entries SET version = $2, state = $3, entry = $4, planned_at_ms = NULL, not_before_ms = NULL WHERE key_id = $1`,
      [id, version, state, text],
    )
  }
  async function indexesThere(): Promise<string[]> {
    const rows = await rowsOf(
      `SELECT c.relname::text AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
       WHERE i.indrelid = '${schema}.billonce_entries'::regclass AND i.indisvalid ORDER BY 1`,
    )
    return rows.map((row) => String(row['name']).replace('billonce_entries_', ''))
  }
  const all = ['by_id', 'by_key', 'by_name', 'by_text', 'deliverable', 'prunable', 'undated', 'waiting']

  async function prunableOf(store: JournalStore, what: Parameters<NonNullable<JournalStore['listPrunable']>>[1]) {
    const found: JournalEntry[] = []
    let after: string | undefined
    do {
      const page: Page = (await store.listPrunable?.(order(1), what, 7, after)) ?? expect.fail()
      found.push(...page.entries)
      after = page.next
    } while (after !== undefined)
    return found.map(({ operationId }) => operationId).toSorted()
  }
  const undatedLeft = async (): Promise<number> =>
    Number(
      (
        await rowsOf(
          `SELECT count(*)::int AS count FROM ${schema}.billonce_entries WHERE prunable_from_ms IS NULL AND state IN ('succeeded', 'rejected', 'canceled')`,
        )
      )[0]?.['count'],
    )

  test('are brought up to date by four who come at once, and pruning finds in them what is due', async () => {
    await makeEarlier()
    for (let number = 0; number < 20; number += 1) await insertEarlier(final(number))
    await insertEarlier(order(20))
    await insertEarlier(final(21, { body: null }))
    await insertEarlier(final(22), '{"cut')
    const stores = [journal(), journal(), journal(), journal()]
    const found = await Promise.all(stores.map((store) => prunableOf(store, due)))
    const wanted = Array.from({ length: 20 }, (_, number) => `order-${number}`).toSorted()
    // One builds the indexes, and the others do not wait for it.
    for (const names of found) expect(names).toEqual(expect.arrayContaining(wanted))
    await vi.waitFor(async () => expect(await prunableOf(journal(), due)).toEqual(wanted), { timeout: 20_000 })
    expect(await indexesThere()).toEqual(all)
    expect(await undatedLeft()).toBe(0)
    expect(await prunableOf(journal(), everything)).toEqual([...wanted, 'order-21'].toSorted())
    // A second time changes nothing, whoever does it.
    await Promise.all([1, 2, 3].map(() => migratePostgresJournal(poolOf(), { schema })))
    await admin.query(postgresJournalSql({ schema }))
    expect(await indexesThere()).toEqual(all)
  })

  test.each(['migratePostgresJournal', 'postgresJournalSql'])('are brought up to date by %s', async (how) => {
    await makeEarlier()
    for (let number = 0; number < 5; number += 1) await insertEarlier(final(number))
    const store = journal({ migrate: false })
    expect(await faultOf(store.countOpen())).toBe('unavailable')
    await expect(store.insert(order(9), [])).rejects.toThrow(/earlier version.*migratePostgresJournal/)
    if (how === 'migratePostgresJournal') await migratePostgresJournal(poolOf(), { schema })
    else await admin.query(postgresJournalSql({ schema }))
    expect(await indexesThere()).toEqual(all)
    expect(await prunableOf(store, due)).toHaveLength(5)
  })

  test('keep their workers, and what those write meanwhile is pruned as it is due', async () => {
    await makeEarlier()
    await migratePostgresJournal(poolOf(), { schema })
    const store = journal()
    // Begun by one version and settled by the other, both ways round, and one only by the earlier.
    await insertEarlier(order(1))
    expect(await store.replace(final(1, { version: 2 }))).toBe(true)
    await store.insert(order(2), [])
    await replaceEarlier(final(2, { version: 2 }))
    await insertEarlier(final(3))
    await store.insert(final(4), [])
    expect(await prunableOf(store, due)).toEqual(['order-1', 'order-2', 'order-3', 'order-4'])
    // Pruned by the earlier one, which leaves the columns as they were: listed once more, and never again.
    await replaceEarlier(final(4, { body: null, version: 2 }))
    await prunableOf(store, due)
    expect(await prunableOf(store, due)).toEqual(['order-1', 'order-2', 'order-3'])
    expect(await prunableOf(store, everything)).toEqual(['order-1', 'order-2', 'order-3', 'order-4'])
  })

  test('of a thousand entries are dated in slices, and pruned to the last', async () => {
    await makeEarlier()
    await insertEarlier(final(0))
    const entries = Array.from({ length: 1201 }, (_, number) => final(number + 1))
    const columns = Object.keys(rowOf(final(0))).filter((name) => !['prunable_from_ms', 'is_lean'].includes(name))
    const lists = listsOf(entries.map(rowOf), columns as Parameters<typeof listsOf>[1])
    const types = columns.map((name) =>
      name.endsWith('_id') && name !== 'operation_id' ? 'uuid' : name.endsWith('_ms') ? 'float8' : 'text',
    )
    await admin.query(
      `INSERT INTO ${schema}.billonce_entries (nth, ${columns.join(', ')})
       SELECT 1, ${columns.map((name) => (name === 'version' ? 'version::bigint' : name)).join(', ')}
       FROM unnest(${types.map((type, index) => `$${index + 1}::${type}[]`).join(', ')}) AS i(${columns.join(', ')})`,
      lists,
    )
    const pages: number[] = []
    const store = journal()
    const watched: JournalStore = {
      ...store,
      owner: store.owner,
      listPrunable: async (...given) => {
        const page = (await store.listPrunable?.(...given)) ?? expect.fail()
        pages.push(page.entries.length)
        return page
      },
    }
    const { endpoint, scope } = order(1)
    const billing = createBillingClient({
      baseUrl: endpoint,
      scope,
      headers: {},
      journal: watched,
      retention: { finalMs: 1 },
    })
    expect(await billing.prune()).toEqual({ bodies: 1202, operations: 0 })
    expect(pages.slice(0, 2)).toEqual([0, 0])
    expect(Math.max(...pages)).toBe(100)
    expect(await billing.prune()).toEqual({ bodies: 0, operations: 0 })
    expect(pages.at(-1)).toBe(0)
    await billing.close()
  })

  test('hold up nobody while they are changed: a transaction that is open is waited for, others go on', async () => {
    await makeEarlier()
    await insertEarlier(final(1))
    const blocker = await admin.connect()
    await blocker.query('BEGIN')
    await blocker.query(`UPDATE ${schema}.billonce_entries SET version = version`)
    const store = journal()
    let isThere = false
    const opened = store.countOpen().then(() => (isThere = true))
    const late: number[] = []
    for (let number = 10; number < 25; number += 1) {
      const beganAtMs = performance.now()
      await insertEarlier(order(number))
      late.push(performance.now() - beganAtMs)
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
    expect(isThere).toBe(false)
    expect(Math.max(...late)).toBeLessThan(1000)
    await blocker.query('COMMIT')
    await opened
    // Building the indexes waits for such a transaction too, and nobody waits for the building.
    await blocker.query('BEGIN')
    await blocker.query(`UPDATE ${schema}.billonce_entries SET version = version WHERE state = 'succeeded'`)
    let isListed = false
    const listed = prunableOf(store, due).finally(() => (isListed = true))
    await vi.waitFor(
      async () =>
        expect(
          await rowsOf(
            `SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%${schema}%' AND state = 'active' AND pid <> pg_backend_pid()`,
          ),
        ).toHaveLength(1),
      { timeout: 10_000 },
    )
    expect(await store.insert(order(30), [])).toEqual({ inserted: true })
    expect(await store.replace(order(30, { version: 2 }))).toBe(true)
    // Nor does another who prunes: it reads what is final instead.
    expect(await prunableOf(journal(), due)).toEqual(['order-1'])
    expect(isListed).toBe(false)
    await blocker.query('COMMIT')
    blocker.release()
    expect(await listed).toEqual(['order-1'])
  })

  test('with an index that somebody began and did not finish get it anew', async () => {
    await makeEarlier()
    await insertEarlier(final(1))
    await journal().countOpen()
    const builder = poolOf({ max: 1 })
    builder.on('error', () => {})
    const blocker = await admin.connect()
    await blocker.query('BEGIN')
    await blocker.query(`UPDATE ${schema}.billonce_entries SET version = version`)
    const building = builder.query(
      `CREATE INDEX CONCURRENTLY billonce_entries_prunable ON ${schema}.billonce_entries (place_id)`,
    )
    const failed = building.then(
      () => expect.fail(),
      () => {},
    )
    await vi.waitFor(async () => {
      const canceled = await rowsOf(
        `SELECT pg_cancel_backend(pid) AS canceled FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY billonce_entries_prunable ON ${schema}%' AND wait_event_type = 'Lock'`,
      )
      expect(canceled).toEqual([{ canceled: true }])
    })
    await failed
    await blocker.query('COMMIT')
    blocker.release()
    expect(await indexesThere()).not.toContain('prunable')
    expect(await prunableOf(journal(), due)).toEqual(['order-1'])
    expect(await indexesThere()).toEqual(all)
    const [row] = await rowsOf(`SELECT indexdef FROM pg_indexes WHERE schemaname = $1 AND indexname LIKE '%prunable'`, [
      schema,
    ])
    expect(row?.['indexdef']).toContain('prunable_from_ms')
  })

  test('are pruned by reading all that is final where the role may not build indexes', async () => {
    await makeEarlier()
    await insertEarlier(final(1))
    await insertEarlier(final(2))
    await admin.query(
      `ALTER TABLE ${schema}.billonce_entries ADD COLUMN prunable_from_ms float8, ADD COLUMN is_lean bool`,
    )
    const role = `prune_${schemas}`
    await admin.query(`CREATE ROLE ${role} LOGIN; GRANT USAGE ON SCHEMA ${schema} TO ${role};
      GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ${schema} TO ${role}`)
    const url = new URL(server.url)
    url.username = role
    for (const migrate of [true, false]) {
      const store = journal({ migrate }, { connectionString: url.href })
      expect(await prunableOf(store, due)).toEqual(['order-1', 'order-2'])
    }
    expect(await indexesThere()).not.toContain('prunable')
    await admin.query(`DROP OWNED BY ${role}; DROP ROLE ${role}`)
  })

  test('are brought up to date for a transaction of the caller’s, also one with an old snapshot', async () => {
    await makeEarlier()
    for (const level of ['READ COMMITTED', 'REPEATABLE READ']) {
      const transaction = await admin.connect()
      await transaction.query(`BEGIN ISOLATION LEVEL ${level}`)
      await transaction.query('SELECT count(*) FROM pg_class')
      const store = journal()
      const within = (await store.within?.(transaction)) ?? expect.fail()
      expect(await within.insert(order(level.length), [])).toEqual({ inserted: true })
      await transaction.query('COMMIT')
      transaction.release()
      expect(await store.countOpen()).toHaveLength(1)
      expect(await store.get(order(level.length).endpoint, order(level.length).key)).toBeDefined()
    }
  })
})

test('no statement reads what is final: with 200,000 final entries all go by an index', async () => {
  const store = journal()
  await store.insert(order(0), [])
  await store.insert(order(1, { state: 'unknown' }), [])
  const columns = 'subject_id, nth, place_id, endpoint, version, scope, subject, operation_id, named_at_ms, entry'
  await admin.query(`INSERT INTO ${schema}.billonce_entries (key_id, name_id, state, kind, key, prunable_from_ms, is_lean, ${columns})
    SELECT gen_random_uuid(), gen_random_uuid(), 'succeeded', (ARRAY['charge', 'usage', 'credits'])[1 + number % 3],
      'key-' || number, 1760000000000 + number, number % 2 = 0, ${columns}
    FROM ${schema}.billonce_entries, generate_series(1, 100000) AS number`)
  const names = readPlace({ schema })
  const sql = statementsOf(names, true)
  const { place_id: place, key_id: id, name_id: nameId } = rowOf(order(0))
  const { endpoint, scope } = order(0)
  const open = listOf(names, { endpoint, scope, states: ['pending', 'sending', 'accepted', 'unknown'] }, 10, '0')
  const openAnywhere = listOf(names, { states: ['unknown'] }, 10, '0')
  const named = listOf(names, { scope, kind: 'charge', operationId: 'order-0' }, 10, '0')
  const row = rowOf(order(7))
  const many = Array.from({ length: 256 }, (_, number) => rowOf(order(1000 + number)))
  const ids = many.map((one) => one.key_id)
  const changes = rowOf(order(0, { version: 2 }))
  const { insert, replace, remove, get, getByKey, history, found, deliverable, count, knowsSince } = sql
  const dueNow = [place, 1_759_999_999_999, ['usage'], [1_760_000_000_050], '', false, -Number.MAX_VALUE, '0', 101]
  const explained: readonly (readonly [name: string, text: string, values: unknown[]])[] = [
    ['insert', insert, ['200', ...listsOf([row]), ['']]],
    ['replace', replace, ['200', ...changesOf([changes])]],
    ['remove', remove, ['200', [0], [id], [1], [nameId]]],
    ['get', get, [[id]]],
    ['getByKey', getByKey, ['key-7']],
    ['history', history, [[nameId]]],
    ['found', found, [[id], [nameId], ['00000000-0000-0000-0000-000000000000']]],
    ['deliverable', deliverable, [place, '0', 64]],
    ['count', count, []],
    ['knowsSince', knowsSince, [nameId]],
    ['prunable', sql.prunable, dueNow],
    ['undated', sql.undated, [place, '0', 500]],
    ['date', sql.date, [['1'], ['1'], [1], [false]]],
    ['take', sql.take, [place, '0', ['charge'], 'planned', ['a'], 16, 'a', 60_000]],
    ['left', sql.left, [place, ['charge'], 'a']],
    ['isAnything', sql.isAnything, [place, ['charge']]],
    ['list open', open.text, open.values],
    ['list open anywhere', openAnywhere.text, openAnywhere.values],
    ['list of a name', named.text, named.values],
    // As many as one statement takes at most.
    ['insert of many', insert, ['200', ...listsOf(many), many.map(() => '')]],
    ['replace of many', replace, ['200', ...changesOf(many)]],
    ['remove of many', remove, ['200', many.map((_, task) => task), ids, many.map(() => 1), ids]],
    ['get of many', get, [ids]],
    ['history of many', history, [ids]],
    ['found of many', found, [ids, ids, ids]],
    ['date of many', sql.date, [many.map((_, one) => one), many.map(() => 1), many.map(() => 1), many.map(() => true)]],
  ]
  // All that there are; a new one is to be looked at too.
  expect(explained.map(([name]) => name)).toEqual(expect.arrayContaining(Object.keys(sql)))
  // Before the table is known to the planner, and after that.
  for (const step of ['SELECT 1', `VACUUM ANALYZE ${schema}.billonce_entries`]) {
    await admin.query(step)
    for (const [name, text, values] of explained) {
      const client = await admin.connect()
      await client.query('BEGIN')
      const { rows } = await client.query<Record<string, unknown>>(
        `EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) ${text}`,
        values,
      )
      await client.query('ROLLBACK')
      client.release()
      const plan = rows.map((line) => String(line['QUERY PLAN'])).join('\n')
      expect(plan, name).not.toMatch(/Seq Scan on billonce_entries/)
      // What it looked at, in pages of 8 kB: the table and its indexes have some 40,000.
      const [, hit, read] = /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(plan) ?? expect.fail(plan)
      const most = name.endsWith('of many') ? 40 * 256 : 300
      expect(Number(hit ?? 0) + Number(read ?? 0), `${name}\n${plan}`).toBeLessThan(most)
    }
  }
  expect(await store.countOpen()).toHaveLength(2)
  expect((await store.list({ states: ['unknown', 'pending'], endpoint, scope }, 10)).entries).toHaveLength(2)
})

test('what the planner knows of a time when most was due has no poll and no listing read what is final', async () => {
  const store = journal()
  await store.insert(order(0), [])
  const columns =
    'subject_id, nth, place_id, endpoint, key, version, scope, kind, subject, operation_id, named_at_ms, entry'
  await admin.query(`ALTER TABLE ${schema}.billonce_entries SET (autovacuum_enabled = off)`)
  await admin.query(`INSERT INTO ${schema}.billonce_entries (key_id, name_id, state, planned_at_ms, not_before_ms, ${columns})
    SELECT gen_random_uuid(), gen_random_uuid(), CASE number % 3 WHEN 0 THEN 'unknown' ELSE 'pending' END, 0, 0, ${columns}
    FROM ${schema}.billonce_entries, generate_series(1, 20000) AS number`)
  await admin.query(`ANALYZE ${schema}.billonce_entries`)
  await admin.query(`UPDATE ${schema}.billonce_entries SET state = 'succeeded', prunable_from_ms = 1, is_lean = false`)
  await admin.query(`VACUUM ${schema}.billonce_entries`)
  const { isAnything, deliverable, take, left } = statementsOf(readPlace({ schema }), true)
  const { place_id: place } = rowOf(order(0))
  const { endpoint, scope } = order(0)
  const waiting = listOf(readPlace({ schema }), { endpoint, scope, states: ['unknown'] }, 10, '0')
  const explained: readonly (readonly [string, unknown[]])[] = [
    [isAnything, [place, ['charge']]],
    [deliverable, [place, '0', 64]],
    [left, [place, ['charge'], 'a']],
    [take, [place, '0', ['charge'], 'planned', ['a'], 16, 'a', 60_000]],
    [waiting.text, waiting.values],
  ]
  for (const [text, values] of explained) {
    const plan = (await rowsOf(`EXPLAIN ${text}`, values)).map((row) => String(row['QUERY PLAN'])).join('\n')
    expect(plan).toMatch(/billonce_entries_(deliverable|waiting)/)
    expect(plan).not.toMatch(/Seq Scan on billonce_entries|entries_by_id on billonce_entries(?! e)/)
  }
})
