/**
 * `./dev demo`: the same billing work, the same faults, the same kills, once with a plain worker and once with one on
 * billonce; in the end a table of what the receiver's ledger says. Reads the command line, runs both, judges.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { CURRENCY, FAULT_SHARE, planOf, type Plan } from './plan.ts'
import { run, type RunResult } from './run.ts'
import { paintFor, progressOn, tableOf, type Cell, type Paint, type Row } from './screen.ts'

const HELP = `Usage: ./dev demo [options]

Runs the same few hundred charges, usage records and credit debits twice against a receiver on a real socket that
loses, resets, delays and cuts: once by a plain fetch-and-retry worker, once by a worker on billonce with an SQLite
journal. Both are separate processes, killed with SIGKILL in mid-request and started again.

  --operations n   how many operations, 1 to 10000 (default 400)
  --seed n         another seed is another mix of work, faults and kills (default 1)
  --json           the result as JSON on stdout, for programs (kills: of each worker); progress stays on stderr
  --help           this text

Ends with 0 if billonce did everything exactly once, 1 if it did not or a worker could not be run, 2 on wrong usage.
`

interface Options {
  readonly operations: number
  readonly seed: number
  readonly json: boolean
}

/** The two workers under test. */
const WORKERS = {
  naive: { label: 'plain fetch + retry', program: new URL('plain-worker.ts', import.meta.url) },
  billonce: { label: 'billonce + SQLite', program: new URL('billonce-worker.ts', import.meta.url) },
} as const
type WorkerName = keyof typeof WORKERS

const options = readOptions(process.argv.slice(2))
const interrupted = new AbortController()
for (const [name, exitCode] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const) {
  process.on(name, () => {
    process.exitCode = exitCode
    interrupted.abort()
  })
}
// Nobody watching (a closed pipe) is no reason to end without tidying up.
process.stderr.on('error', () => {})

const progress = progressOn(process.stderr)
const paint = paintFor(process.stderr)
try {
  await demo(options)
} catch (error) {
  progress.stop()
  if (interrupted.signal.aborted) progress.say('interrupted')
  else {
    progress.say(
      paint('red', `The demo could not be run to its end: ${error instanceof Error ? error.message : String(error)}`),
    )
    process.exitCode = 1
  }
}

async function demo({ operations, seed, json }: Options): Promise<void> {
  const plan = planOf({ seed, operations })
  const folder = mkdtempSync(join(tmpdir(), 'billonce-demo-'))
  // Here, so that it goes whatever ends the demo; the workers are gone by then.
  process.once('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }))

  progress.say(`${paint('bold', 'billonce demo')}, seed ${seed}
Two workers get the same list of ${operations} charges, usage records and credit debits.
One request in ${Math.round(1 / FAULT_SHARE)} meets a fault: lost, reset, answer lost or cut off, 503, too slow.
Each worker is killed ${count(plan.killsAfter.length, 'time')} in mid-request (SIGKILL) and started again.
`)
  const naive = await runWorker('naive', plan, folder)
  const billonce = await runWorker('billonce', plan, folder)

  if (json) process.stdout.write(`${JSON.stringify(jsonOf(operations, { naive, billonce }))}\n`)
  else process.stdout.write(reportOf(operations, { naive, billonce }, paintFor(process.stdout)))

  const broken = brokenPromises(billonce)
  if (broken.length > 0) {
    progress.say(
      paint('red', `billonce broke its promise: ${broken.join('; ')}. Please report it, with the seed ${seed}.`),
    )
    process.exitCode = 1
  }
}

async function runWorker(name: WorkerName, plan: Plan, folder: string): Promise<RunResult> {
  const { label, program } = WORKERS[name]
  const ownFolder = join(folder, name)
  mkdirSync(ownFolder)
  writeFileSync(join(ownFolder, 'work.json'), JSON.stringify(plan.work))
  const result = await run({
    plan,
    program,
    folder: ownFolder,
    signal: interrupted.signal,
    onStart: (numbers) =>
      progress.follow(label, () => {
        const { reached, requests, kills, duplicates } = numbers()
        const notes: Cell[] = [
          { text: `${duplicates} charged twice`, style: duplicates > 0 ? 'red' : 'green' },
          { text: count(kills, 'kill') },
          { text: count(requests, 'request') },
        ]
        return { done: reached, total: plan.work.length, notes }
      }),
    onKill: ({ number, inFlight }) =>
      progress.say(
        paint('yellow', `  kill ${number} of ${plan.killsAfter.length}`) +
          ` with ${count(inFlight, 'request')} under way; starting again`,
      ),
  })
  progress.stop()
  return result
}

/** What must not be, whatever happened; empty if all is well. */
function brokenPromises({ duplicates, lost, keysWithOtherBytes }: RunResult): readonly string[] {
  return [
    ...(duplicates > 0 ? [`${count(duplicates, 'operation')} took effect more than once`] : []),
    ...(lost > 0 ? [`${count(lost, 'operation')} got lost`] : []),
    ...(keysWithOtherBytes > 0 ? [`${count(keysWithOtherBytes, 'key')} came with more than one body`] : []),
  ]
}

function jsonOf(operations: number, results: Record<WorkerName, RunResult>): object {
  const numbersOf = ({ requests, effects, duplicates, lost }: RunResult): object => ({
    requests,
    effects,
    duplicates,
    lost,
  })
  return {
    operations,
    // Of each worker; the plan is the same for both.
    kills: Math.min(results.naive.kills, results.billonce.kills),
    naive: numbersOf(results.naive),
    billonce: numbersOf(results.billonce),
  }
}

function reportOf(operations: number, { naive, billonce }: Record<WorkerName, RunResult>, color: Paint): string {
  const row = (label: string, textOf: (result: RunResult) => string): Row => ({
    label,
    cells: [naive, billonce].map((result) => ({ text: textOf(result) })),
  })
  /** A row where anything but nothing is bad. */
  const badRow = (label: string, badOf: (result: RunResult) => number, textOf = badText): Row => ({
    label,
    cells: [naive, billonce].map((result) => ({
      text: textOf(badOf(result)),
      style: badOf(result) > 0 ? ['red', 'bold'] : 'green',
    })),
  })
  const table = tableOf(
    [WORKERS.naive.label, WORKERS.billonce.label],
    [
      row('operations', () => String(operations)),
      row('requests', ({ requests }) => String(requests)),
      row('kills (SIGKILL)', ({ kills }) => String(kills)),
      row('effects', ({ effects }) => String(effects)),
      badRow('charged twice', ({ duplicates }) => duplicates),
      badRow('lost', ({ lost }) => lost),
      badRow('money wrongly taken', wronglyTaken, money),
    ],
    color,
  )
  const conclusion = conclusionOf(operations, naive, billonce).map((line) => `  ${color('bold', line)}\n`)
  return `\n${table}\n${conclusion.join('')}`
}

/** Two lines that are one sentence; in one it would not fit into an ordinary terminal. */
function conclusionOf(operations: number, naive: RunResult, billonce: RunResult): readonly string[] {
  if (brokenPromises(billonce).length > 0) return ['billonce did not keep its promise in this run.']
  const taken = wronglyTaken(naive)
  const twice = `The plain worker did ${count(naive.duplicates, 'operation')} more than once`
  return [
    naive.duplicates === 0
      ? 'The plain worker was lucky this time;'
      : taken > 0
        ? `${twice} and took ${money(taken)} that nobody owed;`
        : `${twice};`,
    `billonce did each of the ${operations} exactly once.`,
  ]
}

/** Minor units. */
function wronglyTaken({ chargedTwice }: RunResult): number {
  return chargedTwice[CURRENCY] ?? 0
}

function money(minor: number): string {
  const format = new Intl.NumberFormat('en-US', { style: 'currency', currency: CURRENCY })
  return format.format(minor / 10 ** (format.resolvedOptions().maximumFractionDigits ?? 2))
}

function badText(bad: number): string {
  return String(bad)
}

function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? '' : 's'}`
}

/** Ends the process where there is nothing to run. */
function readOptions(args: readonly string[]): Options {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        operations: { type: 'string', default: '400' },
        seed: { type: 'string', default: '1' },
        json: { type: 'boolean', default: false },
        help: { type: 'boolean', short: 'h', default: false },
      },
    })
    if (values.help) {
      process.stdout.write(HELP)
      process.exit(0)
    }
    return {
      operations: readWhole('operations', values.operations, 1, 10_000),
      seed: readWhole('seed', values.seed, 0, 2 ** 31 - 1),
      json: values.json,
    }
  } catch (error) {
    process.stderr.write(`demo: ${error instanceof Error ? error.message : String(error)}\n\n${HELP}`)
    process.exit(2)
  }
}

function readWhole(name: string, text: string, least: number, most: number): number {
  const value = Number(text)
  if (!/^\d+$/.test(text) || value < least || value > most) {
    throw new RangeError(`--${name} takes a whole number from ${least} to ${most}, not '${text}'`)
  }
  return value
}
