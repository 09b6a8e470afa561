/**
 * The SQLite journal beside the bare loop of the same design (bare-loop.ts), in turn, on files of their own that grow alike;
 * one operation is a begin and a settle, each durable, under a random key. And what the journal does to the event loop.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { bareLoop } from './bare-loop.ts'
import { idleLateMs, loadOf, workOf } from './journal-work.ts'
import type { Work } from './journal-work.ts'
import { median, progress, quantile, ratios, report } from './report.ts'

const ROUNDS = Number(process.env['BENCH_ROUNDS'] ?? 9)
const SLICE_MS = 400
const CONCURRENCIES = [1, 64, 512] as const
type Concurrency = (typeof CONCURRENCIES)[number]

const folder = mkdtempSync(join(tmpdir(), 'billonce-bench-'))
const flushed = sqliteJournal({ path: join(folder, 'flushed.sqlite') })
const lazy = sqliteJournal({ path: join(folder, 'lazy.sqlite'), settle: 'lazy' })
const bare = await bareLoop(join(folder, 'bare.sqlite'))

const figures = (): Record<Concurrency, { rate: number[]; p50Ms: number[]; p99Ms: number[]; lateP99Ms: number[] }> => ({
  1: { rate: [], p50Ms: [], p99Ms: [], lateP99Ms: [] },
  64: { rate: [], p50Ms: [], p99Ms: [], lateP99Ms: [] },
  512: { rate: [], p50Ms: [], p99Ms: [], lateP99Ms: [] },
})
const subject = (name: string, work: Work) => ({ name, work, figures: figures() })
const subjects = [
  subject('bare loop', bare.work),
  subject('SQLite journal', workOf(flushed)),
  subject('SQLite journal, settle lazy', workOf(lazy)),
] as const
const [base, journal] = subjects

try {
  const idle: number[] = []
  for (let round = -1; round <= ROUNDS; round += 1) {
    if (round > 0) idle.push(await idleLateMs(SLICE_MS))
    for (const concurrency of CONCURRENCIES) {
      for (const { name, work, figures: of } of round % 2 === 0 ? subjects : subjects.toReversed()) {
        const { rate, tookMs, lateMs } = await loadOf(work, concurrency, SLICE_MS)
        if (round < 1) continue
        of[concurrency].rate.push(rate)
        of[concurrency].p50Ms.push(median(tookMs))
        of[concurrency].p99Ms.push(quantile(tookMs, 0.99))
        of[concurrency].lateP99Ms.push(quantile(lateMs, 0.99))
        progress(`round ${round} of ${ROUNDS}, ${concurrency} at a time: ${name}`)
      }
    }
  }
  progress()
  const rateOf = (one: (typeof subjects)[number], concurrency: Concurrency): number =>
    median(ratios(one.figures[concurrency].rate, base.figures[concurrency].rate))
  const lateAdded = (concurrency: Concurrency): number =>
    median(journal.figures[concurrency].lateP99Ms.map((ms, round) => ms - (idle[round] ?? 0)))
  report({
    name: 'journal',
    tables: [
      ...CONCURRENCIES.map((concurrency) => ({
        title: `${concurrency} at a time; rates as ratios to the bare loop`,
        head: ['', 'operations/s', 'ratio', 'p50 ms', 'p99 ms', 'loop late p99 ms'],
        rows: subjects.map((one) => [
          one.name,
          median(one.figures[concurrency].rate),
          rateOf(one, concurrency),
          median(one.figures[concurrency].p50Ms),
          median(one.figures[concurrency].p99Ms),
          median(one.figures[concurrency].lateP99Ms),
        ]),
      })),
      { title: 'The event loop where nothing is done', head: ['', 'late p99 ms'], rows: [['idle', median(idle)]] },
    ],
    goals: [
      ...CONCURRENCIES.map((concurrency) => ({
        name: `${concurrency} at a time: rate / bare loop`,
        measured: rateOf(journal, concurrency),
        atLeast: 0.9,
      })),
      { name: '64 at a time: p99 lateness of the loop added, ms', measured: lateAdded(64), atMost: 1 },
      { name: '512 at a time: p99 lateness of the loop added, ms', measured: lateAdded(512), atMost: 3 },
    ],
    details: { rounds: Object.fromEntries(subjects.map((one) => [one.name, one.figures])), idleLateP99Ms: idle },
  })
} finally {
  await bare.close()
  await flushed.close()
  await lazy.close()
  rmSync(folder, { recursive: true, force: true })
}
