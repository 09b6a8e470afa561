/**
 * One of several workers that share a journal in PostgreSQL, for tests that kill some and restart the database: it delivers
 * in the background, and names every operation itself, beginning at a place of its own. It says `begun`, then `done` when
 * all operations have succeeded.
 *
 * node fleet-worker.ts <database> <receiver> <operations> <first>
 */
import { createBillingClient, JournalUnavailableError } from 'billonce'
import { postgresJournal } from 'billonce/postgres'
import pg from 'pg'

const [database = '', url = '', count = '1', first = '0'] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: database, max: 6 })
const journal = postgresJournal({ pool, schema: 'fleet', pollMs: 100, timeoutMs: 5000 })
const billing = createBillingClient({
  baseUrl: url,
  scope: 'org_42/test',
  headers: { authorization: 'Bearer sk_test' },
  journal,
  retry: { baseDelayMs: 5, maxDelayMs: 50, attemptTimeoutMs: 2000 },
})
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

async function charge(number: number): Promise<void> {
  const operationId = `order-${number}`
  const params = { amount: 100 + number, currency: 'eur', metadata: { operation: operationId } }
  for (;;) {
    try {
      // Every other one is left to whoever comes to it first.
      const outcome = await billing.charge(params, { operationId, background: number % 2 === 0 })
      if (outcome.status === 'succeeded') return
    } catch (error) {
      if (!(error instanceof JournalUnavailableError)) throw error
    }
    await pause(50)
  }
}

billing.start()
process.stdout.write('begun\n')
const operations = Array.from({ length: Number(count) }, (_, index) => (index + Number(first)) % Number(count))
const next = operations.values()
await Promise.all(
  Array.from({ length: 8 }, async () => {
    for (const number of next) await charge(number)
  }),
)
await billing.close()
await journal.close()
await pool.end()
process.stdout.write('done\n')
