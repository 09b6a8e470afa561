/** The journal in PostgreSQL, on a real server: that it holds the contract, also behind PgBouncer. */
import pg from 'pg'
import { afterAll, beforeAll, describe, test, vi } from 'vitest'
import { postgresJournal } from '../../src/stores/postgres.ts'
import { rowOf } from '../../src/stores/postgres-statements.ts'
import type { JournalStore } from '../../src/stores/store.ts'
import { storeSuite } from '../../src/testing/store-suite.ts'
import type { StorePlace } from '../../src/testing/store-suite.ts'
import { findBouncer, startBouncer, startPostgres } from '../support/postgres.ts'
import type { Bouncer, PostgresServer } from '../support/postgres.ts'

vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

let server: PostgresServer
let bouncer: Bouncer | undefined
beforeAll(async () => {
  server = await startPostgres()
  if (findBouncer() !== undefined) bouncer = await startBouncer(server)
})
afterAll(async () => {
  await bouncer?.stop()
  await server?.stop()
})

let places = 0

/** A place is a schema; each store has a pool of its own, as of another process. */
function placeAt(urlOf: () => string): StorePlace {
  const schema = `place_${++places}`
  const pools: pg.Pool[] = []
  const open = (): JournalStore => {
    const pool = new pg.Pool({ connectionString: urlOf(), max: 6 })
    pools.push(pool)
    return postgresJournal({ pool, schema })
  }
  return {
    open,
    keeps: true,
    async putRaw(entry, text) {
      const row: Record<string, unknown> = { ...rowOf(entry), entry: text, nth: 1 }
      const names = Object.keys(row)
      await admin((client) =>
        client.query(
          `INSERT INTO ${schema}.billonce_entries (${names.join(', ')}) VALUES (${names.map((_, index) => `$${index + 1}`).join(', ')})`,
          Object.values(row),
        ),
      )
    },
    async dispose() {
      await Promise.all(pools.map((pool) => pool.end()))
      await admin((client) => client.query(`DROP SCHEMA IF EXISTS ${schema} CASCADE`))
    },
  }
}

async function admin<T>(use: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.end()
  }
}

describe('postgresJournal', () => {
  for (const { name, run } of storeSuite(() => placeAt(() => server.url))) test(`${name}`, run)
})

describe.skipIf(findBouncer() === undefined)('postgresJournal behind PgBouncer in transaction mode', () => {
  for (const { name, run } of storeSuite(() => placeAt(() => bouncer?.url ?? ''))) test(`${name}`, run)
})
