/**
 * What the journal in PostgreSQL costs beside a bare loop at the same table, as pgbench would run it: one INSERT and one
 * UPDATE for an operation, each a commit of its own, by as many connections as the journal has, and by one for each caller.
 * All at one server on this machine, in turn, in one run. Then what the calls cost that have nothing to do with what is final,
 * beside 200,000 final entries (BENCH_FINALS=…). A server of its own, or that of BILLONCE_TEST_POSTGRES.
 */
import { createBillingClient } from 'billonce'
import pg from 'pg'
import { postgresJournal } from 'billonce/postgres'
import { sampleEntry } from 'billonce/testing'
import { startPostgres } from '../test/support/postgres.ts'
import { median, progress, ratios, report } from './report.ts'

const ROUNDS = 7
const FINALS = Number(process.env['BENCH_FINALS'] ?? 200_000)
const CONNECTIONS = 4
const SCHEMA = 'bench'

/** One operation: begun and settled, both durable. */
type Operate = (name: string) => Promise<void>

const server = await startPostgres()
const pools: pg.Pool[] = []
const poolOf = (max: number): pg.Pool => {
  const pool = new pg.Pool({ connectionString: server.url, max })
  pools.push(pool)
  return pool
}

const journal = postgresJournal({ pool: poolOf(CONNECTIONS), schema: SCHEMA, connections: CONNECTIONS })
await journal.countOpen()

const withJournal: Operate = async (name) => {
  await journal.insert(sampleEntry({ operationId: name, state: 'sending' }), [])
  await journal.replace(sampleEntry({ operationId: name, state: 'succeeded', version: 2 }))
}

/** The same rows in the same table with the same indexes, and nothing looked at. */
const bare = (pool: pg.Pool): Operate => {
  const insert = `INSERT INTO ${SCHEMA}.billonce_entries (key_id, name_id, subject_id, nth, place_id, endpoint, key, version,
      scope, kind, operation_id, state, named_at_ms, planned_at_ms, not_before_ms, held_by, held_until_ms, entry)
    VALUES ($1, gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 1, '00000000-0000-0000-0000-000000000000',
      $2, $3, 1, $4, $5, $6, $7, $8, 0, 0, 'somebody', 0, $9)`
  const update = `UPDATE ${SCHEMA}.billonce_entries SET version = 2, state = $2, held_by = NULL, held_until_ms = NULL, entry = $3, prunable_from_ms = 0, is_lean = false
    WHERE key_id = $1 AND version = 1`
  return async (name) => {
    const id = crypto.randomUUID()
    const first = sampleEntry({ operationId: name, state: 'sending' })
    const { endpoint, key, scope, kind, operationId, state, namedAtMs } = first
    const values = [id, endpoint, key, scope, kind, operationId, state, namedAtMs, JSON.stringify(first)]
    await pool.query(insert, values)
    const second = sampleEntry({ operationId: name, state: 'succeeded', version: 2 })
    await pool.query(update, [id, second.state, JSON.stringify(second)])
  }
}

const subjects: readonly { readonly name: string; readonly operate: Operate; readonly rates: Map<number, number[]> }[] =
  [
    { name: `bare loop, ${CONNECTIONS} connections`, operate: bare(poolOf(CONNECTIONS)), rates: new Map() },
    { name: 'bare loop, one connection a caller', operate: bare(poolOf(64)), rates: new Map() },
    { name: `journal, ${CONNECTIONS} connections`, operate: withJournal, rates: new Map() },
  ]

try {
  let number = 0
  for (let round = 0; round <= ROUNDS; round += 1) {
    for (const concurrency of [1, 8, 64]) {
      for (const { name, operate, rates } of subjects) {
        const operations = concurrency === 1 ? 40 : 400
        let left = operations
        const began = performance.now()
        await Promise.all(
          Array.from({ length: concurrency }, async () => {
            while (left > 0) {
              left -= 1
              number += 1
              await operate(`bench-${number}`)
            }
          }),
        )
        const ms = performance.now() - began
        // The first round warms up.
        if (round === 0) continue
        rates.set(concurrency, [...(rates.get(concurrency) ?? []), (operations / ms) * 1000])
        progress(`round ${round} of ${ROUNDS}, ${concurrency} at a time: ${name}`)
      }
    }
  }
  const { endpoint, scope } = sampleEntry()
  const client = createBillingClient({
    baseUrl: endpoint,
    scope,
    headers: {},
    journal,
    retention: { finalMs: 3650 * 86_400_000 },
  })
  const calls: readonly { readonly name: string; readonly call: () => Promise<unknown> }[] = [
    { name: 'prune, nothing due', call: () => client.prune() },
    {
      name: 'list of 100 open ones',
      call: () => journal.list({ endpoint, scope, states: ['pending', 'sending', 'accepted', 'unknown'] }, 100),
    },
    { name: 'countOpen', call: () => journal.countOpen() },
    { name: 'getByKey', call: () => journal.getByKey('no such key') },
  ]
  const tookMs: number[][][] = []
  for (let index = 0; index < 100; index += 1) await journal.insert(sampleEntry({ operationId: `open-${index}` }), [])
  for (const finals of [1000, FINALS]) {
    progress(`${finals} final entries`)
    await poolOf(1).query(`DELETE FROM ${SCHEMA}.billonce_entries WHERE state = 'succeeded'`)
    let made = 0
    await Promise.all(
      Array.from({ length: 1000 }, async () => {
        while (made < finals) {
          made += 1
          const operationId = `final-${finals}-${made}`
          await journal.insert(sampleEntry({ operationId, state: 'succeeded', namedAtMs: Date.now() }), [])
        }
      }),
    )
    await poolOf(1).query(`VACUUM ANALYZE ${SCHEMA}.billonce_entries`)
    const ofCalls: number[][] = []
    for (const { call } of calls) {
      const took: number[] = []
      for (let round = 0; round <= 20; round += 1) {
        const began = performance.now()
        await call()
        if (round > 0) took.push(performance.now() - began)
      }
      ofCalls.push(took)
    }
    tookMs.push(ofCalls)
  }
  progress()
  const base = subjects[0]
  report({
    name: 'postgres',
    tables: [
      ...[1, 8, 64].map((concurrency) => ({
        title: `${concurrency} at a time; operations, each begun and settled durably, as ratios to the bare loop of as many connections`,
        head: ['', 'operations/s', 'ratio'],
        rows: subjects.map(({ name, rates }) => [
          name,
          median(rates.get(concurrency) ?? []),
          median(ratios(rates.get(concurrency) ?? [], base?.rates.get(concurrency) ?? [])),
        ]),
      })),
      {
        title: 'Calls that have nothing to do with what is final',
        head: ['', 'ms with 1,000 final', `ms with ${FINALS.toLocaleString('en')}`, 'ratio'],
        rows: calls.map(({ name }, index) => {
          const [few, lots] = tookMs.map((one) => one[index] ?? [])
          return [name, median(few ?? []), median(lots ?? []), median(ratios(lots ?? [], few ?? []))]
        }),
      },
    ],
  })
} finally {
  await journal.close()
  await Promise.all(pools.map((pool) => pool.end()))
  await server.stop()
}
