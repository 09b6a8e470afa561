/**
 * What is shown of an entry, in tables and as JSON: everything but the body and what the receiver replied.
 */
import type { EntryState, JournalEntry, JsonValue } from 'billonce'

/** An entry's state, and `contradicted` where a word stands against it that a person has not decided about. */
export type ShownState = EntryState | 'contradicted'

export const SHOWN_STATES: readonly ShownState[] = [
  'contradicted',
  'unknown',
  'accepted',
  'sending',
  'pending',
  'rejected',
  'canceled',
  'succeeded',
]

/** The shape of `list --json`; fields are added, never renamed. */
export interface Row {
  readonly key: string
  readonly endpoint: string
  readonly scope: string
  readonly kind: string
  readonly subject: string | null
  readonly operationId: string
  readonly revision: number
  readonly state: ShownState
  readonly reason: string | null
  readonly attempts: number
  readonly namedAtMs: number
  readonly eventAtMs: number | null
  readonly settledAtMs: number | null
  readonly nextAttemptAtMs: number | null
  readonly windowEndsAtMs: number | null
  readonly sendBeforeAtMs: number | null
  readonly receiptId: string | null
}

export function rowOf(entry: JournalEntry): Row {
  return {
    key: entry.key,
    endpoint: entry.endpoint,
    scope: entry.scope,
    kind: entry.kind,
    subject: entry.subject,
    operationId: entry.operationId,
    revision: entry.revision,
    state: stateOf(entry),
    reason: reasonOf(entry),
    attempts: entry.attemptsBegun,
    namedAtMs: entry.namedAtMs,
    eventAtMs: entry.eventAtMs,
    settledAtMs: 'settledAtMs' in entry ? entry.settledAtMs : null,
    nextAttemptAtMs: 'nextAttemptAtMs' in entry ? entry.nextAttemptAtMs : null,
    windowEndsAtMs: windowEndsAtMs(entry),
    sendBeforeAtMs: entry.state === 'pending' ? entry.sendBeforeAtMs : null,
    receiptId: receiptIdOf(entry),
  }
}

export function stateOf(entry: JournalEntry): ShownState {
  return entry.contradiction ? 'contradicted' : entry.state
}

export function reasonOf(entry: JournalEntry): string | null {
  if (entry.contradiction) {
    const { receipt, word } = entry.contradiction
    const isTwice = receipt !== null && 'receipt' in entry && entry.receipt !== null && receipt.id !== entry.receipt.id
    return isTwice ? 'two-receipts' : `${word}-after-${entry.state}`
  }
  switch (entry.state) {
    case 'pending':
    case 'sending':
    case 'unknown':
      return entry.reason
    case 'accepted':
      return entry.progress
    case 'rejected':
      return entry.rejection.code ?? entry.rejection.kind
    case 'canceled':
      return entry.by
    case 'succeeded':
      return null
    default:
      return entry satisfies never
  }
}

export function receiptIdOf(entry: JournalEntry): string | null {
  return 'receipt' in entry && entry.receipt ? entry.receipt.id : null
}

/** When the receiver may forget the key. What is settled is never sent again, so there it says nothing. */
function windowEndsAtMs(entry: JournalEntry): number | null {
  const isOver = entry.state === 'succeeded' || entry.state === 'rejected' || entry.state === 'canceled'
  return isOver || entry.window.startAtMs === null ? null : entry.window.startAtMs + entry.window.lengthMs
}

/** What needs a person: nothing of it moves by itself. */
export function needsAttention(row: Pick<Row, 'state'>): boolean {
  return row.state === 'contradicted' || row.state === 'unknown'
}

export interface Amounts {
  readonly amount: number | string | null
  readonly currency: string | null
  readonly quantity: number | string | null
}

/**
 * What finance needs of a body, and nothing else of it: from the body if it is JSON, else what a receipt has to repeat. All
 * `null` once the body has been pruned.
 */
export function amountsOf(entry: JournalEntry): Amounts {
  const body = jsonOf(entry.request.body)
  const field = (name: string): JsonValue | undefined => body[name] ?? entry.expected[name]
  const [amount, currency, quantity] = [field('amount'), field('currency'), field('quantity')]
  const isNumber = (value: unknown): value is number | string => typeof value === 'number' || typeof value === 'string'
  return {
    amount: isNumber(amount) ? amount : null,
    currency: typeof currency === 'string' ? currency : null,
    quantity: isNumber(quantity) ? quantity : null,
  }
}

function jsonOf(text: string | null): Readonly<Record<string, JsonValue>> {
  try {
    const value: unknown = JSON.parse(text ?? '{}')
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    // What JSON.parse makes of an object is an object of JSON values.
    return isObject ? (value as Record<string, JsonValue>) : {}
  } catch {
    return {}
  }
}
