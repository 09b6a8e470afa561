/**
 * What every bench ends with: tables and goals on the terminal, and the same as JSON under test-results/bench.
 */
import { mkdirSync, writeFileSync } from 'node:fs'
import { availableParallelism, cpus } from 'node:os'
import { join } from 'node:path'

/** Where the results are, a file for each bench. */
export const RESULTS: string = join(import.meta.dirname, '../test-results/bench')

export type Cell = string | number

export interface Table {
  /** What is measured, and what a ratio is to. */
  readonly title: string
  /** Names of the columns; the first column says what the row is about. */
  readonly head: readonly string[]
  /** Numbers are printed with two decimals below 100 and with none above; texts as they are. */
  readonly rows: readonly (readonly Cell[])[]
}

export interface Goal {
  /** Such as `C: peak after the outage / capacity`. */
  readonly name: string
  readonly measured: number
  readonly atMost?: number | undefined
  readonly atLeast?: number | undefined
}

export interface Report {
  /** Names the file of the results: `herd` is test-results/bench/herd.json. */
  readonly name: string
  readonly tables: readonly Table[]
  readonly goals?: readonly Goal[] | undefined
  /** Whatever else a chart or a later comparison needs, such as each round's figures. */
  readonly details?: unknown
}

/**
 * Prints a report and writes it.
 *
 * @returns whether every goal was met; a bench may swing, so it is for the caller to decide what follows
 */
export function report({ name, tables, goals = [], details }: Report): boolean {
  for (const table of tables) console.log(`\n${textOf(table)}`)
  if (goals.length > 0) console.log(`\n${textOf(tableOf(goals))}`)
  mkdirSync(RESULTS, { recursive: true })
  const [cpu] = cpus()
  const machine = {
    node: process.version,
    platform: `${process.platform} ${process.arch}`,
    cpu: cpu?.model,
    cores: availableParallelism(),
  }
  const judged = goals.map((goal) => ({ ...goal, isMet: isMet(goal) }))
  const measuredAt = new Date().toISOString()
  writeFileSync(
    join(RESULTS, `${name}.json`),
    `${JSON.stringify({ name, measuredAt, machine, goals: judged, tables, details }, undefined, 2)}\n`,
  )
  console.log(`\nWritten to test-results/bench/${name}.json`)
  return judged.every((goal) => goal.isMet)
}

/** Shows what is under way, where somebody looks on; nothing with no text. */
export function progress(text = ''): void {
  if (process.stderr.isTTY) process.stderr.write(`\r${text.padEnd(78)}${text === '' ? '\r' : ''}`)
}

export function median(values: readonly number[]): number {
  return values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)] ?? Number.NaN
}

export function quantile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((one, other) => one - other)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN
}

/** Round by round, for what swings with the machine swings for all of a round; take the median of it. */
export function ratios(above: readonly number[], below: readonly number[]): number[] {
  return above.map((value, index) => value / (below[index] ?? Number.NaN))
}

function isMet({ measured, atMost = Infinity, atLeast = -Infinity }: Goal): boolean {
  return measured <= atMost && measured >= atLeast
}

function tableOf(goals: readonly Goal[]): Table {
  const wish = ({ atMost, atLeast }: Goal): string =>
    [atLeast === undefined ? [] : `>= ${atLeast}`, atMost === undefined ? [] : `<= ${atMost}`].flat().join(', ')
  return {
    title: 'Goals',
    head: ['', 'measured', 'goal', ''],
    rows: goals.map((goal) => [goal.name, goal.measured, wish(goal), isMet(goal) ? 'met' : 'MISSED']),
  }
}

function textOf({ title, head, rows }: Table): string {
  const cells = [head, ...rows.map((row) => row.map(cellOf))]
  const widths = head.map((_name, column) => Math.max(...cells.map((row) => row[column]?.length ?? 0)))
  const lines = cells.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  )
  return [title, ...lines].join('\n')
}

function cellOf(cell: Cell): string {
  if (typeof cell === 'string') return cell
  return Math.abs(cell) < 100 ? String(Number(cell.toFixed(2))) : cell.toFixed(0)
}
