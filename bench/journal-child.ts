/**
 * One process at a journal, for benches that need a fresh one or several: says what it found as JSON on stdout.
 *
 * journal-child.ts open <path>: opens the journal and lists what is open, and says how long that took and what memory it took
 * journal-child.ts load <path> <concurrency> <ms>: says `ready`, waits for a line, and works
 */
import { once } from 'node:events'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { loadOf, operationOf, workOf } from './journal-work.ts'
import { quantile } from './report.ts'

const [task, path = '', concurrency = '64', forMs = '1000'] = process.argv.slice(2)

/** With what can be collected collected, where the process was told how. */
function residentMb(): number {
  ;(globalThis as { gc?: () => void }).gc?.()
  return process.memoryUsage().rss / 2 ** 20
}

const of = operationOf().begun
const before = residentMb()
const beganMs = performance.now()
const journal = sqliteJournal({ path })
if (task === 'open') {
  let count = 0
  let after: string | undefined
  do {
    const page = await journal.listDeliverable(of, 256, after)
    count += page.entries.length
    after = page.next
  } while (after !== undefined)
  const tookMs = performance.now() - beganMs
  console.log(JSON.stringify({ tookMs, count, mb: residentMb() - before }))
} else {
  await journal.countOpen()
  console.log('ready')
  await once(process.stdin, 'data')
  try {
    const { rate, tookMs } = await loadOf(workOf(journal), Number(concurrency), Number(forMs))
    console.log(JSON.stringify({ rate, p99Ms: quantile(tookMs, 0.99), maxMs: Math.max(...tookMs), errors: 0 }))
  } catch (error) {
    console.log(JSON.stringify({ rate: 0, p99Ms: Infinity, maxMs: Infinity, errors: 1, what: String(error) }))
  }
  process.stdin.destroy()
}
await journal.close()
