/**
 * A worker that counts, for tests that kill it: it takes up what is open, then counts one by one with two meters, and says
 * after each what it was told to be durable. Batches are taken every few milliseconds.
 *
 * node meter.ts <journal> <url>
 */
import { writeSync } from 'node:fs'
import { createBillingClient } from 'billonce'
import { meter } from 'billonce/meter'
import { sqliteJournal } from 'billonce/stores/sqlite'

const [path = '', baseUrl = ''] = process.argv.slice(2)
const billing = createBillingClient({
  baseUrl,
  scope: 'org_42/test',
  headers: { authorization: 'Bearer sk_test' },
  journal: sqliteJournal({ path }),
  retry: { baseDelayMs: 5, maxDelayMs: 20, backgroundBaseDelayMs: 5 },
})
billing.start()
await Promise.all(
  ['exports', 'imports'].map(async (name) => {
    const counts = meter(billing, name, { durable: true, flushEveryMs: 40, flushAt: 25 })
    for (let number = 1; ; number += 1) {
      // Synchronously, so that what is said before the kill is read after it.
      writeSync(1, `begun ${name} ${number}\n`)
      await counts.add(1)
      writeSync(1, `counted ${name} ${number}\n`)
    }
  }),
)
