/**
 * `evidence` and `cancel`: what a person writes into the journal. Nothing is sent.
 */
import { readFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import type { EvidenceInput, JournalEntry, JournalStore } from 'billonce'
import { clientOf, withClient } from './clients.ts'
import type { Config } from './clients.ts'
import { EXIT, usageError } from './failure.ts'
import type { ExitCode } from './failure.ts'
import { painted } from './list.ts'
import type { Output } from './output.ts'
import { harmless, wrapped } from './text.ts'
import { rowOf } from './view.ts'
import { contradictionOf, nextStepOf } from './words.ts'

export interface EvidenceFlags {
  readonly applied?: boolean | undefined
  readonly notApplied?: boolean | undefined
  readonly notFound?: boolean | undefined
  readonly receipt?: string | undefined
  readonly receiptFile?: string | undefined
  readonly code?: string | undefined
  readonly conclusive?: boolean | undefined
  readonly webhook?: boolean | undefined
  readonly lookUp?: boolean | undefined
  readonly by?: string | undefined
  readonly why?: string | undefined
}

export async function evidence(
  store: JournalStore,
  config: Config,
  entry: JournalEntry,
  flags: EvidenceFlags,
  out: Output,
): Promise<ExitCode> {
  const input = await readEvidence(flags)
  await withClient(clientOf(entry, store, config), (client) => client.recordEvidence({ key: entry.key }, input))
  return await report(store, entry, entry.key, out)
}

export async function cancel(store: JournalStore, config: Config, entry: JournalEntry, out: Output): Promise<ExitCode> {
  await withClient(clientOf(entry, store, config), (client) => client.cancel({ key: entry.key }))
  return await report(store, entry, entry.key, out)
}

/** Tells what an entry is now. */
export async function report(store: JournalStore, before: JournalEntry, key: string, out: Output): Promise<ExitCode> {
  const after = (await store.get(before.endpoint, key)) ?? before
  const row = rowOf(after)
  if (out.json) await out.printJson({ ...row, changed: after.key !== before.key || after.version !== before.version })
  else {
    const was = rowOf(before).state
    const isSame = after.key === before.key && was === row.state
    const receipt = row.receiptId === null ? '' : `, receipt ${harmless(row.receiptId)}`
    const reason = row.reason === null ? '' : ` (${harmless(row.reason)})`
    const verb = isSame ? (after.version === before.version ? 'is already' : 'is still') : 'is now'
    await out.print(
      `${harmless(`${row.kind}:${row.operationId}`)} revision ${row.revision} ${verb} ${painted(row.state, row.state, out)}${reason}${receipt}.`,
    )
    const contradiction = contradictionOf(after)
    if (contradiction) out.note(wrapped(contradiction, out.textWidth))
    if (row.state !== 'succeeded' && row.state !== 'canceled') {
      out.note(wrapped(`Next: ${nextStepOf(after, Date.now())}`, out.textWidth))
    }
  }
  return row.state === 'succeeded' || row.state === 'canceled' || (row.state === 'rejected' && before.key === key)
    ? EXIT.ok
    : EXIT.attention
}

async function readEvidence(flags: EvidenceFlags): Promise<EvidenceInput> {
  const found = [flags.applied && '--applied', flags.notApplied && '--not-applied', flags.notFound && '--not-found']
  if (found.filter(Boolean).length !== 1) {
    throw usageError('Say what was found: one of --applied, --not-applied and --not-found.')
  }
  const source = readSource(flags)
  if (!flags.applied && (flags.receipt !== undefined || flags.receiptFile !== undefined)) {
    throw usageError('A receipt goes with --applied.')
  }
  if (!flags.notApplied && flags.code !== undefined) throw usageError('--code goes with --not-applied.')
  if (!flags.notFound && flags.conclusive) throw usageError('--conclusive goes with --not-found.')
  if (flags.applied) return { ...source, found: 'applied', receipt: await readReceipt(flags) }
  if (flags.notApplied) return { ...source, found: 'not-applied', code: flags.code }
  if (source.source !== 'look-up') throw usageError('--not-found goes with --look-up: only a look-up finds nothing.')
  return { ...source, found: 'nothing', conclusive: flags.conclusive === true }
}

function readSource({
  webhook,
  lookUp,
  by,
  why,
}: EvidenceFlags): { source: 'webhook' | 'look-up' } | { source: 'decision'; by: string; why: string } {
  if (webhook && lookUp) throw usageError('Give --webhook or --look-up, not both.')
  if (webhook || lookUp) {
    if (by !== undefined || why !== undefined) {
      throw usageError('--by and --why are for a decision; a webhook and a look-up speak for themselves.')
    }
    return { source: webhook ? 'webhook' : 'look-up' }
  }
  if (by === undefined || why === undefined) {
    throw usageError(
      'A decision needs --by (who decides) and --why (what it rests on); both are kept in the journal. Or say --webhook or --look-up.',
    )
  }
  return { source: 'decision', by, why }
}

async function readReceipt({ receipt, receiptFile }: EvidenceFlags): Promise<object> {
  if ((receipt === undefined) === (receiptFile === undefined)) {
    throw usageError('--applied needs the receipt: --receipt \'{"id":"ch_1"}\' or --receipt-file <file> (- for stdin).')
  }
  let given: string
  try {
    given = receipt ?? (receiptFile === '-' ? await text(process.stdin) : await readFile(receiptFile ?? '', 'utf8'))
  } catch (error) {
    throw usageError(`The receipt file ${receiptFile} cannot be read (${(error as NodeJS.ErrnoException).code}).`)
  }
  let value: unknown
  try {
    value = JSON.parse(given)
  } catch {
    throw usageError('The receipt is not JSON.')
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw usageError('The receipt must be a JSON object with an id, as the receiver gives it.')
  }
  return value
}
