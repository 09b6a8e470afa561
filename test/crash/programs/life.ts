/**
 * A worker as a user would write one, for tests of its life: it starts background delivery, reports usage in the background,
 * and does nothing else. With `drain` it has a SIGTERM handler of its own, as in docs/volume.md; with `stay` it has more to do
 * for a minute.
 *
 * node life.ts <journal> <url> <operations> [drain|stay]
 */
import { writeSync } from 'node:fs'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'

const [path = '', baseUrl = '', operations = '1', how] = process.argv.slice(2)
const billing = createBillingClient({
  baseUrl,
  scope: 'org_42/test',
  headers: {},
  journal: sqliteJournal({ path }),
  retry: { attemptTimeoutMs: how === 'drain' ? 20_000 : 1500 },
})
if (how === 'drain') {
  process.once('SIGTERM', () => {
    void billing.close({ withinMs: 500 }).then(() => process.exit(0))
  })
}
billing.start()
for (let number = 1; number <= Number(operations); number += 1) {
  await billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId: `job-${number}`, background: true })
}
writeSync(1, 'queued\n')
if (how === 'stay') setTimeout(() => {}, 60_000)
