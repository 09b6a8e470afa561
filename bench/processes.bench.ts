/**
 * Several processes on one SQLite journal, 64 operations at a time each, against one: what they do together, whether each gets
 * its share, and how long the slowest waits.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { median, progress, ratios, report } from './report.ts'

const ROUNDS = Number(process.env['BENCH_ROUNDS'] ?? 7)
const FOR_MS = 3000
const COUNTS = [1, 2, 4] as const

interface Found {
  readonly rate: number
  readonly p99Ms: number
  readonly maxMs: number
  readonly errors: number
}

const folder = mkdtempSync(join(tmpdir(), 'billonce-bench-'))

/** So many processes on a file of their own, which begin together. */
async function run(count: number, path: string): Promise<readonly Found[]> {
  const child = join(import.meta.dirname, 'journal-child.ts')
  const children = Array.from({ length: count }, () =>
    spawn(process.execPath, [...process.execArgv, child, 'load', path, '64', String(FOR_MS)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    }),
  )
  await Promise.all(children.map(({ stdout }) => once(stdout, 'data')))
  const said = children.map(({ stdout }) => text(stdout))
  for (const { stdin } of children) stdin.write('go\n')
  return (await Promise.all(said)).map((line) => JSON.parse(line) as Found)
}

try {
  const figures = new Map(
    COUNTS.map((count) => [
      count,
      { sum: [] as number[], fair: [] as number[], p99Ms: [] as number[], maxMs: [] as number[] },
    ]),
  )
  let errors = 0
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const count of COUNTS) {
      const path = join(folder, `${round}-${count}.sqlite`)
      const found = await run(count, path)
      const rates = found.map(({ rate }) => rate)
      const of = figures.get(count)
      of?.sum.push(rates.reduce((sum, rate) => sum + rate, 0))
      of?.fair.push(Math.min(...rates) / Math.max(...rates))
      of?.p99Ms.push(Math.max(...found.map(({ p99Ms }) => p99Ms)))
      of?.maxMs.push(Math.max(...found.map(({ maxMs }) => maxMs)))
      errors += found.reduce((sum, one) => sum + one.errors, 0)
      for (const end of ['', '-wal', '-shm']) rmSync(path + end, { force: true })
      progress(`round ${round + 1} of ${ROUNDS}: ${count} processes`)
    }
  }
  progress()
  const of = (count: (typeof COUNTS)[number]) => figures.get(count) ?? { sum: [], fair: [], p99Ms: [], maxMs: [] }
  const together = (count: (typeof COUNTS)[number]): number => median(ratios(of(count).sum, of(1).sum))
  report({
    name: 'processes',
    tables: [
      {
        title: `Processes on one file, 64 operations at a time each, ${ROUNDS} rounds of ${FOR_MS / 1000} s`,
        head: ['processes', 'operations/s together', 'ratio', 'slowest / fastest', 'p99 ms', 'longest ms'],
        rows: COUNTS.map((count) => [
          String(count),
          median(of(count).sum),
          together(count),
          median(of(count).fair),
          median(of(count).p99Ms),
          Math.max(...of(count).maxMs),
        ]),
      },
    ],
    goals: [
      { name: '4 processes: slowest / fastest', measured: median(of(4).fair), atLeast: 0.8 },
      { name: '4 processes together / one', measured: together(4), atLeast: 0.75 },
      { name: '4 processes: p99, ms', measured: median(of(4).p99Ms), atMost: 100 },
      { name: 'errors that a caller saw', measured: errors, atMost: 0 },
    ],
    details: Object.fromEntries(figures),
  })
} finally {
  rmSync(folder, { recursive: true, force: true })
}
