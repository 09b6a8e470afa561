/**
 * `show`: everything about one entry, and what to do next. Body, receipt and the receiver's own words only when asked for.
 */
import type { Attempt, Contradiction, EvidenceRecord, JournalEntry, JournalStore } from 'billonce'
import { entriesOf } from './journal.ts'
import { painted } from './list.ts'
import type { Output } from './output.ts'
import { fieldsOf, tableOf } from './table.ts'
import { durationOf, fromNow, harmless, isoOf, wrapped } from './text.ts'
import { amountsOf, receiptIdOf, rowOf, stateOf } from './view.ts'
import { contradictionOf, meaningOf, nextStepOf, whyOf } from './words.ts'

export async function show(
  store: JournalStore,
  entry: JournalEntry,
  options: { readonly body: boolean },
  out: Output,
  nowMs: number,
): Promise<void> {
  const revisions = await revisionsOf(store, entry)
  if (out.json) await out.printJson(detailsOf(entry, revisions, options.body, nowMs))
  else await out.print(textOf(entry, revisions, options.body, out, nowMs))
}

async function revisionsOf(store: JournalStore, of: JournalEntry): Promise<readonly JournalEntry[]> {
  const { endpoint, scope, kind, operationId, subject } = of
  const found: JournalEntry[] = []
  for await (const entry of entriesOf(store, { endpoint, scope, kind, operationId })) {
    if (entry.subject === subject) found.push(entry)
  }
  return found.toSorted((one, other) => one.revision - other.revision)
}

/** The shape of `show --json`: that of `list`, and more. */
function detailsOf(
  entry: JournalEntry,
  revisions: readonly JournalEntry[],
  withBody: boolean,
  nowMs: number,
): Readonly<Record<string, unknown>> {
  const { request } = entry
  return {
    ...rowOf(entry),
    ...amountsOf(entry),
    entryState: entry.state,
    endpointNamed: entry.endpointNamed,
    request: { method: request.method, path: request.path, contentType: request.contentType },
    dialect: entry.dialect,
    acceptUntilAtMs: entry.acceptUntilAtMs,
    mayPredateJournal: entry.mayPredateJournal,
    window: { ...entry.window },
    rejection:
      entry.state === 'rejected'
        ? {
            kind: entry.rejection.kind,
            code: entry.rejection.code ?? null,
            status: entry.rejection.status,
            behindKey: entry.rejection.behindKey,
          }
        : null,
    attemptList: entry.attempts,
    evidence: entry.evidence,
    misses: entry.misses,
    contradiction: entry.contradiction && contradictionData(entry.contradiction),
    isBeingSent: isClaimed(entry, nowMs),
    revisions: revisions.map((one) => ({ revision: one.revision, key: one.key, state: stateOf(one) })),
    meaning: meaningOf(entry),
    why: whyOf(entry) ?? null,
    nextStep: nextStepOf(entry, nowMs),
    ...(withBody ? heldOf(entry) : {}),
  }
}

function contradictionData({ atMs, attempt, word, receipt, rejection }: Contradiction): object {
  return { atMs, attempt, word, receiptId: receipt?.id ?? null, code: rejection?.code ?? null }
}

/** What is printed with `--body` only. */
function heldOf(entry: JournalEntry): {
  readonly body: string | null
  readonly receipt: unknown
  readonly reply: unknown
} {
  return {
    body: entry.request.body,
    receipt: ('receipt' in entry ? entry.receipt : null) ?? null,
    reply: entry.state === 'rejected' ? entry.rejection : (entry.contradiction?.receipt ?? null),
  }
}

function isClaimed(entry: JournalEntry, nowMs: number): boolean {
  return entry.claim !== null && entry.claim.untilMs > nowMs
}

function textOf(
  entry: JournalEntry,
  revisions: readonly JournalEntry[],
  withBody: boolean,
  out: Output,
  nowMs: number,
): string {
  const row = rowOf(entry)
  const { amount, currency, quantity } = amountsOf(entry)
  const bold = (text: string): string => out.paint('bold', text)
  const dim = (text: string): string => out.paint('dim', text)
  const time = (atMs: number): string => `${isoOf(atMs)}  ${dim(fromNow(atMs, nowMs))}`
  const state = stateOf(entry)
  const reason = row.reason === null ? '' : `  ${harmless(row.reason)}`
  const fields: (readonly [string, string] | undefined)[] = [
    ['state', `${painted(state, state, out)}${reason}`],
    ['key', harmless(entry.key)],
    ['scope', harmless(entry.scope)],
    ['endpoint', `${harmless(entry.endpoint)}${entry.endpointNamed ? '  (an id)' : ''}`],
    entry.subject === null ? undefined : ['subject', harmless(entry.subject)],
    amount === null ? undefined : ['amount', harmless(`${amount} ${currency ?? ''}`.trim())],
    quantity === null ? undefined : ['quantity', harmless(String(quantity))],
    receiptIdOf(entry) === null ? undefined : ['receipt', harmless(receiptIdOf(entry) ?? '')],
    ['named', time(entry.namedAtMs)],
    entry.eventAtMs === null ? undefined : ['event', time(entry.eventAtMs)],
    row.settledAtMs === null ? undefined : ['settled', time(row.settledAtMs)],
    row.nextAttemptAtMs === null
      ? undefined
      : ['next try', row.nextAttemptAtMs <= nowMs ? 'due now' : time(row.nextAttemptAtMs)],
    row.sendBeforeAtMs === null ? undefined : ['canceled if not sent by', time(row.sendBeforeAtMs)],
    row.windowEndsAtMs === null
      ? undefined
      : [row.windowEndsAtMs > nowMs ? 'key window ends' : 'key window ended', time(row.windowEndsAtMs)],
    ['request', harmless(`${entry.request.method} ${entry.request.path}`)],
    ['dialect', harmless(`${entry.dialect.name} ${entry.dialect.version}`)],
    isClaimed(entry, nowMs) ? ['being sent', 'a process holds it right now'] : undefined,
  ]
  const width = out.textWidth
  const contradiction = contradictionOf(entry)
  const why = whyOf(entry)
  const parts = [
    `${bold(`${harmless(entry.kind)}:${harmless(entry.operationId)}`)}  revision ${entry.revision}`,
    fieldsOf(
      fields.filter((field) => field !== undefined),
      dim,
    ),
    wrapped([meaningOf(entry), why].filter((text) => text !== undefined).join(' '), width),
    contradiction && out.paint('red', wrapped(contradiction, width)),
    section('Next', wrapped(nextStepOf(entry, nowMs), width), bold),
    attemptsOf(entry, out),
    evidenceOf(entry, out),
    revisions.length > 1
      ? section('Revisions', revisions.map((one) => `${one.revision}  ${stateOf(one)}  ${one.key}`).join('\n'), bold)
      : undefined,
    ...(withBody ? bodiesOf(entry, bold) : []),
  ]
  return parts.filter((part) => part !== undefined && part !== '' && part !== null).join('\n\n')
}

function section(title: string, text: string, bold: (text: string) => string): string {
  return `${bold(title)}\n${text}`
}

function attemptsOf(entry: JournalEntry, out: Output): string | undefined {
  if (entry.attemptsBegun === 0) return undefined
  const omitted = entry.attemptsBegun - entry.attempts.length
  const note = omitted > 0 ? `  (${omitted} earlier ones are no longer listed)` : ''
  const title = `${out.paint('bold', 'Attempts')}${note}`
  if (entry.attempts.length === 0) return title
  const table = tableOf<Attempt>(
    [
      { head: '#', of: (one) => String(one.number), align: 'right' },
      { head: 'BEGAN', of: (one) => isoOf(one.beganAtMs) },
      {
        head: 'TOOK',
        of: (one) => (one.endedAtMs === undefined ? '' : tookOf(one.endedAtMs - one.beganAtMs)),
        align: 'right',
      },
      { head: 'RESULT', of: (one) => one.result ?? 'under way' },
      { head: 'WHY', of: (one) => one.why ?? '', onlyIfAny: true },
      { head: 'STATUS', of: (one) => (one.status === undefined ? '' : String(one.status)), onlyIfAny: true },
      { head: 'REPLAY', of: (one) => (one.markedReplay ? 'yes' : ''), onlyIfAny: true, dropAt: 1 },
      { head: 'REQUEST ID', of: (one) => one.requestId ?? '', onlyIfAny: true, dropAt: 2 },
    ],
    entry.attempts,
    out.width,
    (text) => out.paint('bold', text),
  )
  return `${title}\n${table}`
}

function tookOf(ms: number): string {
  return ms < 1000 ? `${Math.max(0, Math.round(ms))} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : durationOf(ms)
}

function evidenceOf(entry: JournalEntry, out: Output): string | undefined {
  if (entry.evidence.length === 0) return undefined
  const table = tableOf<EvidenceRecord>(
    [
      { head: 'AT', of: (one) => isoOf(one.atMs) },
      { head: 'SOURCE', of: (one) => one.source },
      { head: 'FOUND', of: (one) => one.found },
      { head: 'RECEIPT', of: (one) => one.receiptId ?? '', onlyIfAny: true },
      { head: 'BY', of: (one) => one.by ?? '', onlyIfAny: true },
      { head: 'WHY', of: (one) => one.why ?? '', onlyIfAny: true },
    ],
    entry.evidence,
    Number.POSITIVE_INFINITY,
    (text) => out.paint('bold', text),
  )
  return section('Evidence', table, (text) => out.paint('bold', text))
}

function bodiesOf(entry: JournalEntry, bold: (text: string) => string): readonly string[] {
  const { body, receipt, reply } = heldOf(entry)
  const json = (value: unknown): string => JSON.stringify(value, null, 2).split('\n').map(harmless).join('\n')
  return [
    section('Body', body === null ? 'no longer kept' : body.split('\n').map(harmless).join('\n'), bold),
    ...(receipt === null ? [] : [section('Receipt', json(receipt), bold)]),
    ...(reply === null ? [] : [section(entry.state === 'rejected' ? 'Rejection' : 'Other receipt', json(reply), bold)]),
  ]
}
