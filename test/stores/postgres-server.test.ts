/**
 * What is special about a journal in a database: its tables, its connections, its clock, and everything that can go wrong
 * between here and its disk.
 */
import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest'
import type { JournalUnavailableError } from '../../src/errors.ts'
import type { JournalEntry } from '../../src/model/entry.ts'
import { statementsOf } from '../../src/stores/postgres-statements.ts'
import { readPlace } from '../../src/stores/postgres-schema.ts'
import { migratePostgresJournal, postgresJournal, postgresJournalSql } from '../../src/stores/postgres.ts'
import type { PostgresJournalOptions, PostgresPool } from '../../src/stores/postgres.ts'
import type { JournalStore, Page, Taking } from '../../src/stores/store.ts'
import { sampleEntry } from '../../src/testing/store-suite.ts'
import { isOurServer, startPostgres, startProxy } from '../support/postgres.ts'
import type { PostgresServer } from '../support/postgres.ts'

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
    expect((await take(store, 'a#1', { holdMs: 300 })).entries).toHaveLength(3)
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
    await new Promise((resolve) => setTimeout(resolve, 50))
    const before = calls
    await new Promise((resolve) => setTimeout(resolve, 150))
    expect(calls).toBe(before)
    stop?.()
  })
})

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

test('nothing reads what is final: with 100,000 final entries the listings go by the indexes of what is open', async () => {
  const store = journal()
  await store.insert(order(0), [])
  await store.insert(order(1, { state: 'unknown' }), [])
  const columns =
    'name_id, subject_id, nth, place_id, endpoint, key, version, scope, kind, subject, operation_id, named_at_ms, entry'
  await admin.query(`INSERT INTO ${schema}.billonce_entries (key_id, state, ${columns})
    SELECT gen_random_uuid(), 'succeeded', ${columns.replace('name_id', 'gen_random_uuid()')}
    FROM ${schema}.billonce_entries, generate_series(1, 50000) AS number`)
  await admin.query(`ANALYZE ${schema}.billonce_entries`)
  const { deliverable, count, take, isAnything, get } = statementsOf(readPlace({ schema }), true)
  const place = '00000000-0000-0000-0000-000000000000'
  const explained: readonly (readonly [string, unknown[]])[] = [
    [deliverable, [place, '0', 64]],
    [count, []],
    [take, [place, '0', ['charge'], 'planned', ['a'], 16, 'a', 60_000]],
    [isAnything, [place, ['charge']]],
    [get, [[place]]],
  ]
  for (const [text, values] of explained) {
    const plan = (await rowsOf(`EXPLAIN ${text}`, values)).map((row) => String(row['QUERY PLAN'])).join('\n')
    expect(plan).toMatch(/billonce_entries_(deliverable|waiting|by_key)/)
    expect(plan).not.toMatch(/Seq Scan on billonce_entries/)
  }
  expect(await store.countOpen()).toHaveLength(2)
  expect(
    (await store.list({ states: ['unknown', 'pending'], endpoint: order(0).endpoint, scope: order(0).scope }, 10))
      .entries,
  ).toHaveLength(2)
})
