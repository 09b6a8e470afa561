/**
 * A worker as a user would write one, for tests that kill it: it resumes, then makes its charges, and says `done` on stdout.
 * With DIE_AT it kills itself with SIGKILL at a named moment.
 *
 * node worker.ts <journal> <url> <operations>
 */
import { createBillingClient } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'

const [path = '', url = '', count = '1'] = process.argv.slice(2)
/** Such as `insert:1:before` or `fetch:2:after`. */
const dieAt = process.env['DIE_AT']
const calls = new Map<string, number>()

/** Runs a step and dies before or after it if this is the moment. */
async function step<T>(name: string, action: () => Promise<T>): Promise<T> {
  const number = (calls.get(name) ?? 0) + 1
  calls.set(name, number)
  if (dieAt === `${name}:${number}:before`) process.kill(process.pid, 'SIGKILL')
  try {
    return await action()
  } finally {
    if (dieAt === `${name}:${number}:after`) process.kill(process.pid, 'SIGKILL')
  }
}

const journal = sqliteJournal({ path })
const watched: JournalStore = {
  ...journal,
  insert: (entry, seen) => step('insert', () => journal.insert(entry, seen)),
  replace: (entry) => step('replace', () => journal.replace(entry)),
}
const billing = createBillingClient({
  baseUrl: url,
  scope: 'org_42/test',
  headers: { authorization: 'Bearer sk_test' },
  journal: watched,
  retry: { baseDelayMs: 5, maxDelayMs: 20, attemptTimeoutMs: 2000 },
  fetch: (input, init) => step('fetch', () => fetch(input, init)),
})

await billing.resume()
const operations = Array.from({ length: Number(count) }, (_, index) => `order-${index + 1}`)
await Promise.all(
  operations.map(async (operationId, index) => {
    const metadata = { operation: operationId }
    const options = { operationId }
    if (index % 3 === 0) await billing.charge({ amount: 100 + index, currency: 'eur', metadata }, options)
    else if (index % 3 === 1) await billing.recordUsage({ meter: 'exports', quantity: 1 + index, metadata }, options)
    else await billing.consumeCredits({ amount: 1 + index, metadata }, options)
  }),
)
await billing.close()
await journal.close()
process.stdout.write('done\n')
