/**
 * `export`: what finance needs of the journal, as CSV or JSON lines. Amounts, but no other field of a body.
 */
import { rename, rm, open } from 'node:fs/promises'
import { dirname, basename, join } from 'node:path'
import type { JournalEntry, JournalStore } from 'billonce'
import { stringify } from 'csv-stringify/sync'
import { usageError } from './failure.ts'
import type { Reading } from './journal.ts'
import { noteUnreadable, selected } from './list.ts'
import type { Conditions } from './list.ts'
import type { Output } from './output.ts'
import { startProgress } from './progress.ts'
import { isoOf, plural } from './text.ts'
import { amountsOf, rowOf } from './view.ts'

export interface ExportOptions extends Conditions {
  readonly format: 'csv' | 'json'
  readonly output?: string | undefined
  readonly fromMs?: number | undefined
  readonly toMs?: number | undefined
  readonly by: 'named' | 'settled'
  readonly bom: boolean
}

/** The columns, in their order; new ones come last. */
const COLUMNS = [
  'kind',
  'operation',
  'subject',
  'revision',
  'state',
  'reason',
  'amount',
  'currency',
  'quantity',
  'receipt_id',
  'named_at',
  'settled_at',
  'attempts',
  'key',
  'scope',
  'endpoint',
] as const

type Line = Readonly<Record<(typeof COLUMNS)[number], string | number | null>>

function lineOf(entry: JournalEntry): Line {
  const row = rowOf(entry)
  const { amount, currency, quantity } = amountsOf(entry)
  return {
    kind: row.kind,
    operation: row.operationId,
    subject: row.subject,
    revision: row.revision,
    state: row.state,
    reason: row.reason,
    amount,
    currency,
    quantity,
    receipt_id: row.receiptId,
    named_at: isoOf(row.namedAtMs),
    settled_at: row.settledAtMs === null ? null : isoOf(row.settledAtMs),
    attempts: row.attempts,
    key: row.key,
    scope: row.scope,
    endpoint: row.endpoint,
  }
}

/** So many lines are written at once. */
const BATCH = 512

/** Writes page by page. A file appears only when it is whole. */
export async function exportEntries(
  store: JournalStore,
  options: ExportOptions,
  out: Output,
  nowMs: number,
): Promise<void> {
  const reading: Reading = { unreadable: 0 }
  const sink = options.output === undefined ? undefined : await fileSink(options.output)
  const write = (text: string): Promise<void> => (sink ? sink.write(text) : out.write(text))
  const progress = startProgress('exporting', out.json || sink === undefined)
  let count = 0
  try {
    if (options.format === 'csv') await write(`${options.bom ? '\uFEFF' : ''}${csvOf([COLUMNS])}`)
    let batch: Line[] = []
    const flush = async (): Promise<void> => {
      await write(textOf(batch, options.format))
      batch = []
    }
    for await (const entry of selected(store, options, nowMs, reading)) {
      if (!sink && out.isClosed) return
      if (!isWithin(entry, options)) continue
      batch.push(lineOf(entry))
      count += 1
      if (batch.length < BATCH) continue
      await flush()
      progress.update(count, count)
    }
    await flush()
    await sink?.finish()
  } catch (error) {
    await sink?.discard()
    throw error
  } finally {
    progress.stop()
  }
  noteUnreadable(reading, out)
  if (sink) out.note(`${plural(count, 'entry')} exported to ${options.output}.`)
}

function isWithin(entry: JournalEntry, { fromMs, toMs, by }: ExportOptions): boolean {
  const atMs = by === 'named' ? entry.namedAtMs : 'settledAtMs' in entry ? entry.settledAtMs : null
  if (fromMs === undefined && toMs === undefined) return true
  return atMs !== null && (fromMs === undefined || atMs >= fromMs) && (toMs === undefined || atMs < toMs)
}

function textOf(lines: readonly Line[], format: 'csv' | 'json'): string {
  if (format === 'json') return lines.map((line) => `${JSON.stringify(line)}\n`).join('')
  return csvOf(lines.map((line) => COLUMNS.map((column) => line[column])))
}

/**
 * RFC 4180. A field that a spreadsheet would take for a formula gets an apostrophe in front: an operationId is what a user
 * of the shop may have chosen.
 */
function csvOf(records: readonly (readonly unknown[])[]): string {
  return records.length === 0 ? '' : stringify([...records], { record_delimiter: '\r\n', escape_formulas: true })
}

async function fileSink(path: string): Promise<{
  write(text: string): Promise<void>
  finish(): Promise<void>
  discard(): Promise<void>
}> {
  const part = join(dirname(path), `.${basename(path)}.${process.pid}.part`)
  let file
  try {
    file = await open(part, 'wx', 0o600)
  } catch (error) {
    throw usageError(`${path} cannot be written (${(error as NodeJS.ErrnoException).code}).`)
  }
  return {
    async write(text) {
      await file.write(text)
    },
    async finish() {
      await file.sync()
      await file.close()
      await rename(part, path)
    },
    async discard() {
      await file.close().catch(() => {})
      await rm(part, { force: true })
    },
  }
}
