/**
 * `list` and `stats`: what a journal holds, of all endpoints and scopes.
 */
import type { EntryState, JournalEntry, JournalStore } from 'billonce'
import { entriesOf, SHORT_KEY } from './journal.ts'
import type { Place, Reading } from './journal.ts'
import type { Output } from './output.ts'
import { tableOf } from './table.ts'
import type { Column } from './table.ts'
import { durationOf, fromNow, isoOf, numberOf, plural } from './text.ts'
import { needsAttention, rowOf, SHOWN_STATES, stateOf } from './view.ts'
import type { Row, ShownState } from './view.ts'

export interface Conditions extends Place {
  readonly kind?: string | undefined
  readonly states?: readonly ShownState[] | undefined
  readonly operation?: string | undefined
  readonly olderThanMs?: number | undefined
}

export type Order = 'problems' | 'newest' | 'oldest'

export interface ListOptions extends Conditions {
  readonly limit?: number | undefined
  readonly order: Order
  readonly wide: boolean
}

/** Entries that fit the conditions of the command line. */
export async function* selected(
  store: JournalStore,
  { endpoint, scope, kind, states, operation, olderThanMs }: Conditions,
  nowMs: number,
  reading: Reading,
): AsyncGenerator<JournalEntry> {
  // A contradiction stands beside a state, so that has to be looked at one by one.
  const own = states?.includes('contradicted')
    ? undefined
    : states?.filter((state): state is EntryState => state !== 'contradicted')
  const filter = { endpoint, scope, kind, operationId: operation, states: own }
  for await (const entry of entriesOf(store, filter, reading)) {
    if (states && !states.includes(stateOf(entry))) continue
    if (olderThanMs !== undefined && entry.namedAtMs > nowMs - olderThanMs) continue
    yield entry
  }
}

/** On a terminal nobody reads thousands of lines. */
const DEFAULT_LIMIT = 50

/** @returns how many entries fit */
export async function list(store: JournalStore, options: ListOptions, out: Output, nowMs: number): Promise<number> {
  const reading: Reading = { unreadable: 0 }
  const rows: Row[] = []
  for await (const entry of selected(store, options, nowMs, reading)) rows.push(rowOf(entry))
  const sorted = inOrder(rows, options.order)
  const limit = options.limit ?? (out.json ? 0 : DEFAULT_LIMIT)
  const shown = limit === 0 ? sorted : sorted.slice(0, limit)
  if (out.json) {
    for (const row of shown) {
      if (out.isClosed) break
      await out.printJson(row)
    }
  } else if (shown.length > 0) await out.print(rowsTable(shown, out, nowMs, options.wide))
  noteUnreadable(reading, out)
  if (shown.length === 0) out.note('No entry fits.')
  else if (shown.length < rows.length)
    out.note(`\n${numberOf(shown.length)} of ${plural(rows.length, 'entry')}. All of them: --limit 0`)
  return rows.length
}

export function noteUnreadable(reading: Reading, out: Output): void {
  if (reading.unreadable === 0) return
  out.warn(
    `${plural(reading.unreadable, 'row')} cannot be read by this version of billonce and are left as they are; a newer version may have written them.`,
  )
}

function inOrder(rows: readonly Row[], order: Order): readonly Row[] {
  // The journal gives them in the order of naming.
  if (order === 'oldest') return rows
  const newest = rows.toReversed().toSorted((one, other) => other.namedAtMs - one.namedAtMs)
  if (order === 'newest') return newest
  const rank = (row: Row): number => (isSettled(row.state) ? SETTLED : SHOWN_STATES.indexOf(row.state))
  return newest.toSorted((one, other) => rank(one) - rank(other))
}

const SETTLED = 99

function isSettled(state: ShownState): boolean {
  return state === 'succeeded' || state === 'rejected' || state === 'canceled'
}

/** The columns that matter; the narrower the terminal, the fewer. */
export function rowsTable(rows: readonly Row[], out: Output, nowMs: number, wide: boolean): string {
  const several = (of: (row: Row) => string): boolean => new Set(rows.map(of)).size > 1
  const only = <T>(is: boolean, column: T): readonly T[] => (is ? [column] : [])
  const columns: readonly Column<Row>[] = [
    { head: 'STATE', of: (row) => row.state, paint: (row, text) => painted(row.state, text, out) },
    { head: 'REASON', of: (row) => row.reason ?? '', least: 17, onlyIfAny: true },
    { head: 'KIND', of: (row) => row.kind, least: 7 },
    { head: 'OPERATION', of: (row) => row.operationId, least: 16 },
    { head: 'SUBJECT', of: (row) => row.subject ?? '', least: 6, dropAt: 4, onlyIfAny: true },
    { head: 'REV', of: (row) => String(row.revision), align: 'right', dropAt: 3 },
    { head: 'TRIES', of: (row) => String(row.attempts), align: 'right' },
    { head: 'AGE', of: (row) => durationOf(nowMs - row.namedAtMs), align: 'right' },
    {
      head: 'NEXT TRY',
      of: (row) =>
        row.nextAttemptAtMs === null ? '' : row.nextAttemptAtMs <= nowMs ? 'due' : fromNow(row.nextAttemptAtMs, nowMs),
      dropAt: 5,
      onlyIfAny: true,
    },
    {
      head: 'KEY WINDOW',
      of: (row) => {
        if (row.windowEndsAtMs === null) return ''
        const left = row.windowEndsAtMs - nowMs
        return left <= 0 ? `over ${durationOf(-left)}` : `${durationOf(left)} left`
      },
      paint: (row, text) =>
        row.windowEndsAtMs !== null && row.windowEndsAtMs <= nowMs ? out.paint('red', text) : text,
      dropAt: 2,
      onlyIfAny: true,
    },
    ...only(wide || several((row) => row.scope), {
      head: 'SCOPE',
      of: (row: Row) => row.scope,
      least: 11,
      dropAt: 6,
    }),
    ...only(wide || several((row) => row.endpoint), {
      head: 'ENDPOINT',
      of: (row: Row) => (wide ? row.endpoint : shortEndpoint(row.endpoint)),
      least: 15,
      dropAt: 7,
    }),
    ...only(wide, { head: 'NAMED AT', of: (row: Row) => isoOf(row.namedAtMs) }),
    { head: 'KEY', of: (row) => (wide ? row.key : shortKey(row.key)) },
  ]
  return tableOf(columns, rows, wide ? Number.POSITIVE_INFINITY : out.width, (text) => out.paint('bold', text))
}

export function shortKey(key: string): string {
  return key.length <= SHORT_KEY + 1 ? key : `${key.slice(0, SHORT_KEY)}…`
}

/** An address without what all addresses have. */
export function shortEndpoint(endpoint: string): string {
  return endpoint.replace(/^https?:\/\//, '').replace(/\/$/, '')
}

export function painted(state: ShownState, text: string, out: Output): string {
  switch (state) {
    case 'contradicted':
      return out.paint(['bold', 'red'], text)
    case 'unknown':
      return out.paint('red', text)
    case 'sending':
    case 'accepted':
      return out.paint('yellow', text)
    case 'pending':
      return out.paint('cyan', text)
    case 'succeeded':
      return out.paint('green', text)
    case 'rejected':
    case 'canceled':
      return out.paint('dim', text)
    default:
      return state satisfies never
  }
}

// -------------------------------------------------------------------------------------------------------------- stats

interface Count {
  readonly endpoint: string
  readonly scope: string
  readonly kind: string
  readonly states: Record<ShownState, number>
  attempts: number
  oldestOpenAtMs: number | null
  /** The first end of a key window among what is still sent. */
  windowEndsAtMs: number | null
}

/** @returns whether something needs a person */
export async function stats(store: JournalStore, place: Conditions, out: Output, nowMs: number): Promise<boolean> {
  const reading: Reading = { unreadable: 0 }
  const counts = new Map<string, Count>()
  let total = 0
  let attention = 0
  for await (const entry of selected(store, place, nowMs, reading)) {
    const row = rowOf(entry)
    const id = JSON.stringify([row.endpoint, row.scope, row.kind])
    const count = counts.get(id) ?? newCount(row)
    counts.set(id, count)
    total += 1
    count.states[row.state] += 1
    count.attempts += row.attempts
    if (needsAttention(row)) attention += 1
    if (!isSettled(row.state)) count.oldestOpenAtMs = least(count.oldestOpenAtMs, row.namedAtMs)
    if (row.nextAttemptAtMs !== null) count.windowEndsAtMs = least(count.windowEndsAtMs, row.windowEndsAtMs)
  }
  const groups = [...counts.values()].toSorted((one, other) =>
    JSON.stringify([one.endpoint, one.scope, one.kind]) < JSON.stringify([other.endpoint, other.scope, other.kind])
      ? -1
      : 1,
  )
  const states = Object.fromEntries(
    SHOWN_STATES.map((state) => [state, groups.reduce((sum, { states: of }) => sum + of[state], 0)]),
  )
  if (out.json) {
    await out.printJson({ total, needAttention: attention, unreadable: reading.unreadable, states, groups })
    return attention > 0
  }
  if (total === 0) out.note('No entry fits.')
  else await out.print(statsTable(groups, out, nowMs))
  noteUnreadable(reading, out)
  if (attention > 0) out.note(`\n${needOf(attention)}: billonce list --state unknown,contradicted`)
  return attention > 0
}

export function needOf(count: number): string {
  return count === 1 ? '1 entry needs a person' : `${numberOf(count)} entries need a person`
}

const NARROW = 110
const SHORT_STATES: Readonly<Record<ShownState, string>> = {
  contradicted: 'CONTRAD',
  unknown: 'UNKN',
  accepted: 'ACCEPT',
  sending: 'SEND',
  pending: 'PEND',
  rejected: 'REJ',
  canceled: 'CANC',
  succeeded: 'SUCC',
}

function statsTable(groups: readonly Count[], out: Output, nowMs: number): string {
  const several = (of: (count: Count) => string): boolean => new Set(groups.map(of)).size > 1
  const columns: readonly Column<Count>[] = [
    ...(several((one) => one.endpoint)
      ? [{ head: 'ENDPOINT', of: (one: Count) => shortEndpoint(one.endpoint), least: 9 } as const]
      : []),
    ...(several((one) => one.scope) ? [{ head: 'SCOPE', of: (one: Count) => one.scope, least: 9 } as const] : []),
    { head: 'KIND', of: (one) => one.kind, least: 6 },
    ...SHOWN_STATES.map((state): Column<Count> => ({
      head: out.width < NARROW ? SHORT_STATES[state] : state.toUpperCase(),
      of: (one) => (one.states[state] === 0 ? '' : numberOf(one.states[state])),
      paint: (_, text) => painted(state, text, out),
      align: 'right',
      onlyIfAny: true,
    })),
    { head: 'ATTEMPTS', of: (one) => numberOf(one.attempts), align: 'right', dropAt: 2 },
    {
      head: 'OLDEST OPEN',
      of: (one) => (one.oldestOpenAtMs === null ? '' : durationOf(nowMs - one.oldestOpenAtMs)),
      align: 'right',
      dropAt: 3,
      onlyIfAny: true,
    },
    {
      head: 'NEXT WINDOW END',
      of: (one) => (one.windowEndsAtMs === null ? '' : fromNow(one.windowEndsAtMs, nowMs)),
      align: 'right',
      dropAt: 4,
      onlyIfAny: true,
    },
  ]
  return tableOf(columns, groups, out.width, (text) => out.paint('bold', text))
}

function newCount({ endpoint, scope, kind }: Row): Count {
  const states: Record<ShownState, number> = {
    contradicted: 0,
    unknown: 0,
    accepted: 0,
    sending: 0,
    pending: 0,
    rejected: 0,
    canceled: 0,
    succeeded: 0,
  }
  return { endpoint, scope, kind, states, attempts: 0, oldestOpenAtMs: null, windowEndsAtMs: null }
}

function least(one: number | null, other: number | null): number | null {
  if (one === null || other === null) return one ?? other
  return Math.min(one, other)
}
