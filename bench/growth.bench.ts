/**
 * What a journal with a million final entries costs beside one with a thousand, or none: to open it and list what is open, to
 * work in it, to prune it; and whether its file stops growing when as much is pruned as comes in. With other numbers:
 * BENCH_FINALS=100000.
 */
import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { createBillingClient } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { DAY_MS, fillJournal, loadOf, operationOf, workOf } from './journal-work.ts'
import { median, progress, quantile, ratios, report } from './report.ts'

const ROUNDS = Number(process.env['BENCH_ROUNDS'] ?? 9)
const FINALS = Number(process.env['BENCH_FINALS'] ?? 1_000_000)
const SLICE_MS = 500

const folder = mkdtempSync(join(tmpdir(), 'billonce-bench-'))
const [small, large, empty, steady] = ['small', 'large', 'empty', 'steady'].map((name) =>
  join(folder, `${name}.sqlite`),
) as [string, string, string, string]
const journals: JournalStore[] = []
const open = (path: string): JournalStore => {
  const journal = sqliteJournal({ path })
  journals.push(journal)
  return journal
}
const of = operationOf().begun

/** In a process of its own. */
async function openIn(path: string): Promise<{ tookMs: number; count: number; mb: number }> {
  const child = join(import.meta.dirname, 'journal-child.ts')
  const { stdout } = await promisify(execFile)(process.execPath, [
    ...process.execArgv,
    '--expose-gc',
    child,
    'open',
    path,
  ])
  return JSON.parse(stdout) as { tookMs: number; count: number; mb: number }
}

/** A client that prunes what was settled this many days ago, bodies and names. */
async function prune(journal: JournalStore, days: number): Promise<{ ms: number; operations: number }> {
  const retention = { finalMs: Math.round(days * DAY_MS), namesMs: { usage: Math.round(days * DAY_MS) } }
  const { endpoint, scope } = of
  const client = createBillingClient({ baseUrl: endpoint, scope, headers: {}, journal, retention })
  const beganMs = performance.now()
  const { operations } = await client.prune()
  return { ms: performance.now() - beganMs, operations }
}

const megabytes = (path: string): number =>
  ['', '-wal'].reduce((sum, end) => sum + (statSync(path + end, { throwIfNoEntry: false })?.size ?? 0), 0) / 2 ** 20

try {
  progress(`making a file with ${FINALS} entries`)
  await fillJournal(small, 1000, 100)
  await fillJournal(large, FINALS, 100)
  const largeMb = megabytes(large)

  const opened = { small: [] as number[], large: [] as number[], smallMb: [] as number[], largeMb: [] as number[] }
  for (let round = 0; round <= ROUNDS; round += 1) {
    const [one, other] = [await openIn(small), await openIn(large)]
    if (round === 0) continue
    opened.small.push(one.tookMs)
    opened.large.push(other.tookMs)
    opened.smallMb.push(one.mb)
    opened.largeMb.push(other.mb)
    progress(`round ${round} of ${ROUNDS}: open and list`)
  }

  const [inLarge, inEmpty, inSmall] = [open(large), open(empty), open(small)]
  const rates = { empty: [] as number[], large: [] as number[] }
  const beginP99Ms: number[] = []
  for (let round = 0; round <= ROUNDS; round += 1) {
    const beside = await loadOf(workOf(inEmpty), 64, SLICE_MS)
    const filled = await loadOf(workOf(inLarge), 64, SLICE_MS)
    const begins = await loadOf(async () => void (await inLarge.insert(operationOf().begun, [])), 8, SLICE_MS)
    if (round === 0) continue
    rates.empty.push(beside.rate)
    rates.large.push(filled.rate)
    beginP99Ms.push(quantile(begins.tookMs, 0.99))
    progress(`round ${round} of ${ROUNDS}: rate and begins`)
  }

  // Nothing is due in either; then a fiftieth of the large one, while others begin and settle.
  const idle = { small: [] as number[], large: [] as number[] }
  for (let round = 0; round <= ROUNDS; round += 1) {
    const [one, other] = [await prune(inSmall, 3650), await prune(inLarge, 3650)]
    if (round === 0) continue
    idle.small.push(one.ms)
    idle.large.push(other.ms)
  }
  progress('pruning while others work')
  const before = await loadOf(workOf(inLarge), 8, 2000)
  let isPruning = true
  const during: number[] = []
  const working = (async () => {
    while (isPruning) during.push(...(await loadOf(workOf(inLarge), 8, 100)).tookMs)
  })()
  const pruned = await prune(inLarge, 90 * (1 - 1 / 50))
  isPruning = false
  await working

  // As much goes as comes: each round settles some and then lets go of all.
  const sizes: number[] = []
  const inSteady = open(steady)
  for (let round = 0; round < 10; round += 1) {
    await Promise.all(
      Array.from({ length: 64 }, async () => {
        for (let count = 0; count < 150; count += 1) await workOf(inSteady)()
      }),
    )
    await prune(inSteady, 0)
    sizes.push(megabytes(steady))
    progress(`round ${round + 1} of 10: in and out`)
  }
  progress()

  const ofFinals = `${FINALS.toLocaleString('en')} final`
  report({
    name: 'growth',
    tables: [
      {
        title: 'Open the journal in a new process and list its 100 open entries, thread included',
        head: ['file', 'ms', 'ratio', 'memory MB', 'file MB'],
        rows: [
          ['1,000 final', median(opened.small), 1, median(opened.smallMb), megabytes(small)],
          [ofFinals, median(opened.large), median(ratios(opened.large, opened.small)), median(opened.largeMb), largeMb],
        ],
      },
      {
        title: 'Begin and settle, 64 at a time',
        head: ['file', 'operations/s', 'ratio', 'p99 of begins, 8 at a time, ms'],
        rows: [
          ['empty at first', median(rates.empty), 1, ''],
          [ofFinals, median(rates.large), median(ratios(rates.large, rates.empty)), median(beginP99Ms)],
        ],
      },
      {
        title: 'Pruning',
        head: ['', 'ms', 'operations removed', 'p50 ms of calls, 8 at a time', 'p99 ms'],
        rows: [
          ['1,000 final, nothing due', median(idle.small), 0, '', ''],
          [`${ofFinals}, nothing due`, median(idle.large), 0, '', ''],
          ['before', '', '', median(before.tookMs), quantile(before.tookMs, 0.99)],
          [
            'a fiftieth due, while calls are made',
            pruned.ms,
            pruned.operations,
            median(during),
            quantile(during, 0.99),
          ],
        ],
      },
      {
        title: 'File size when 9,600 operations come and go, round after round',
        head: ['round', ...sizes.map((_mb, index) => String(index + 1))],
        rows: [['MB', ...sizes]],
      },
    ],
    goals: [
      { name: `open and list, ${ofFinals} / 1,000`, measured: median(ratios(opened.large, opened.small)), atMost: 1.1 },
      { name: 'memory, thread included, MB', measured: median(opened.largeMb), atMost: 20 },
      { name: `rate, ${ofFinals} / empty`, measured: median(ratios(rates.large, rates.empty)), atLeast: 0.75 },
      { name: 'p99 of begins, 8 at a time, ms', measured: median(beginP99Ms), atMost: 8 },
      { name: 'file size, last round / sixth', measured: (sizes.at(-1) ?? 0) / (sizes[5] ?? 0), atMost: 1.1 },
    ],
    details: { opened, rates, beginP99Ms, idle, sizes },
  })
} finally {
  for (const journal of journals) await journal.close()
  rmSync(folder, { recursive: true, force: true })
}
