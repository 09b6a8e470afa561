/**
 * What really happened at the receiver: every request that was seen, every effect that was made. Tests count here and
 * not at a mock, because only the receiver knows how often somebody was charged. It records and adds up; it decides nothing.
 */

/**
 * What the receiver did with a request.
 *
 * - `working`: not finished yet
 * - `lost`: never arrived; a fault took it on the way
 * - `turned-away`: something in front (a gateway, a reset) ended it before the receiver looked at the key
 * - `invalid`: the receiver's own checks, which stand before the key: route, method, key, account, parameters
 * - `executed`: the effect was made by this request
 * - `refused`: declined behind the key; no effect
 * - `failed`: a failure that was saved under the key (see `savedFailure`)
 * - `replayed`: finished before; the stored reply again
 * - `resumed`: a crash had left it unfinished after its effect; concluded without a second one
 * - `busy`: the key is in progress
 * - `mismatch`: the key was used with other parameters
 * - `crashed`: the receiver went down while at work on it
 */
export type RequestFate =
  | 'working'
  | 'lost'
  | 'turned-away'
  | 'invalid'
  | 'executed'
  | 'refused'
  | 'failed'
  | 'replayed'
  | 'resumed'
  | 'busy'
  | 'mismatch'
  | 'crashed'

/** What went back to the client. */
export interface Sent {
  readonly how: 'reply' | 'closed' | 'reset' | 'cut' | 'stalled'
  /** Absent where no status line went out. */
  readonly status?: number
  /** The exact text of the body; of a cut one the whole that was meant. */
  readonly body?: string
}

/** One request as seen on the wire, lost ones included. */
export interface LedgerRequest {
  /** Counts from 1 over all requests of this receiver. */
  readonly number: number
  /** Which request of its account and key this is, from 1. Requests without a key are counted together. */
  readonly attempt: number
  /** Receiver's clock, milliseconds since the Unix epoch. */
  readonly atMs: number
  readonly method: string
  /** Path without query: `/v1/charges`. */
  readonly path: string
  /** Which write the path is of; absent for a path that is none. */
  readonly kind?: string
  /** The account that the credentials are of; absent if they are of none. */
  readonly account?: string
  /** The idempotency key, without the quotes of its structured form; absent if there was none that can be read. */
  readonly key?: string
  /** The exact text of the body. */
  readonly body: string
  /** Names in lower case; values of headers that may hold a secret are replaced by `[withheld]`. */
  readonly headers: Readonly<Record<string, string>>
  readonly did: RequestFate
  /** Names of the faults that applied, in the order in which they did. */
  readonly faults: readonly string[]
  /** Absent while the receiver is at work. */
  readonly sent?: Sent
}

/** One real effect: somebody was charged, some usage was counted, some credits are gone. */
export interface LedgerEffect {
  /** The receipt's id. */
  readonly id: string
  readonly kind: string
  readonly account: string
  /** Absent only where the receiver takes requests without a key. */
  readonly key?: string
  /** The parameters as sent, parsed. */
  readonly params: Readonly<Record<string, unknown>>
  /** The receipt that was sent, or would have been. */
  readonly receipt: Readonly<Record<string, unknown>>
  /** Receiver's clock, milliseconds since the Unix epoch. */
  readonly atMs: number
  /** Number of the request that made it. */
  readonly request: number
}

/** Which effects or requests are meant; every field given has to hold. */
export interface LedgerFilter {
  readonly kind?: string | undefined
  readonly key?: string | undefined
  readonly account?: string | undefined
  /** The business name, as {@link businessNameOf} reads it from the parameters; for requests only where the body is JSON. */
  readonly name?: string | undefined
}

/** Several effects of what the business takes for one thing. */
export interface Duplicate {
  readonly name: string
  readonly kind: string
  readonly account: string
  /** Two or more, oldest first. */
  readonly effects: readonly LedgerEffect[]
}

/** The ledger in numbers. */
export interface LedgerSummary {
  readonly requests: number
  readonly effects: number
  readonly effectsByKind: Readonly<Record<string, number>>
  readonly fates: Readonly<Partial<Record<RequestFate, number>>>
  /** Concluded charges by currency, minor units. */
  readonly charged: Readonly<Record<string, number>>
  /** Charges made and not concluded (`requires_action`, `processing`) by currency, minor units. */
  readonly notConcluded: Readonly<Record<string, number>>
  /** Of `charged` and `notConcluded` together, what goes beyond the first charge of each business name, minor units. */
  readonly chargedTwice: Readonly<Record<string, number>>
  /** How many business names have more than one effect. */
  readonly duplicates: number
  /** Keys that came with more than one body, path or method; a client that keeps its promises has none. */
  readonly keysWithOtherBytes: number
}

/** Reads the business name of an effect; `undefined` if it has none. */
export type NameOf = (effect: LedgerEffect) => string | undefined

/** The record of one receiver. The lists grow for as long as the receiver lives; `clear` empties them. */
export interface Ledger {
  readonly requests: readonly LedgerRequest[]
  readonly effects: readonly LedgerEffect[]
  requestsOf(filter: LedgerFilter): LedgerRequest[]
  effectsOf(filter: LedgerFilter): LedgerEffect[]
  /**
   * Effects grouped by what the business takes for one thing, where a group has more than one. It does not go by key:
   * a client that makes a new key for each try charges twice under two keys, and this is where it shows.
   *
   * @param nameOf default {@link businessNameOf}
   */
  duplicates(nameOf?: NameOf): Duplicate[]
  /** @throws {RangeError} if a sum of money is beyond 2^53 - 1, since it would be wrong */
  summary(nameOf?: NameOf): LedgerSummary
  /** Forgets requests and effects, and counts from 1 again. Keys are the receiver's: see `Receiver.reset`. */
  clear(): void
}

/** The ledger as the receiver writes it. */
export interface LedgerBook extends Ledger {
  open(request: Omit<LedgerRequest, 'number' | 'attempt' | 'did' | 'faults' | 'sent'>): OpenRequest
  made(effect: LedgerEffect): void
}

/** A request in the ledger that is not concluded: the receiver fills in what it does. */
export type OpenRequest = { -readonly [Name in keyof LedgerRequest]: LedgerRequest[Name] } & { faults: string[] }

/**
 * The business name of an effect by default: `metadata.operation`, else the key, so that a receiver which forgot a key
 * and executed it again is seen too.
 */
export function businessNameOf(effect: Pick<LedgerEffect, 'params' | 'key'>): string | undefined {
  const metadata = effect.params['metadata']
  const operation = typeof metadata === 'object' && metadata !== null ? (metadata as { operation?: unknown }) : {}
  return typeof operation.operation === 'string' ? operation.operation : effect.key
}

/** An empty ledger. */
export function createLedger(): LedgerBook {
  const requests: OpenRequest[] = []
  const effects: LedgerEffect[] = []
  const attempts = new Map<string, number>()

  const duplicates = (nameOf: NameOf = businessNameOf): Duplicate[] => {
    const groups = new Map<string, Duplicate & { effects: LedgerEffect[] }>()
    for (const effect of effects) {
      const name = nameOf(effect)
      if (name === undefined) continue
      const { kind, account } = effect
      const id = JSON.stringify([account, kind, name])
      const group = groups.get(id) ?? { name, kind, account, effects: [] }
      group.effects.push(effect)
      groups.set(id, group)
    }
    return [...groups.values()].filter((group) => group.effects.length > 1)
  }

  return {
    requests,
    effects,
    requestsOf: (filter) =>
      requests.filter((request) =>
        matches(filter, request, () => businessNameOf({ ...request, params: paramsOf(request.body) })),
      ),
    effectsOf: (filter) => effects.filter((effect) => matches(filter, effect, () => businessNameOf(effect))),
    duplicates,
    summary: (nameOf) => summaryOf(requests, effects, duplicates(nameOf)),
    clear: () => {
      requests.length = 0
      effects.length = 0
      attempts.clear()
    },
    open: (request) => {
      const id = JSON.stringify([request.account, request.key])
      const attempt = (attempts.get(id) ?? 0) + 1
      attempts.set(id, attempt)
      const opened: OpenRequest = { ...request, number: requests.length + 1, attempt, did: 'working', faults: [] }
      requests.push(opened)
      return opened
    },
    made: (effect) => void effects.push(effect),
  }
}

function matches(
  filter: LedgerFilter,
  record: { kind?: string; key?: string; account?: string },
  nameOf: () => string | undefined,
): boolean {
  return (
    (filter.kind === undefined || filter.kind === record.kind) &&
    (filter.key === undefined || filter.key === record.key) &&
    (filter.account === undefined || filter.account === record.account) &&
    (filter.name === undefined || filter.name === nameOf())
  )
}

function paramsOf(body: string): Record<string, unknown> {
  try {
    const params: unknown = JSON.parse(body)
    return typeof params === 'object' && params !== null ? (params as Record<string, unknown>) : {}
  } catch {
    return {}
  }
}

function summaryOf(
  requests: readonly LedgerRequest[],
  effects: readonly LedgerEffect[],
  duplicates: readonly Duplicate[],
): LedgerSummary {
  const effectsByKind: Record<string, number> = {}
  const fates: Partial<Record<RequestFate, number>> = {}
  const charged: Record<string, number> = {}
  const notConcluded: Record<string, number> = {}
  const chargedTwice: Record<string, number> = {}
  const bytes = new Map<string, Set<string>>()

  for (const { did, account, key, method, path, body } of requests) {
    fates[did] = (fates[did] ?? 0) + 1
    if (key === undefined) continue
    const id = JSON.stringify([account, key])
    bytes.set(id, (bytes.get(id) ?? new Set()).add(JSON.stringify([method, path, body])))
  }
  for (const effect of effects) {
    effectsByKind[effect.kind] = (effectsByKind[effect.kind] ?? 0) + 1
    addMoney(effect.receipt['status'] === 'succeeded' ? charged : notConcluded, effect)
  }
  for (const { effects: all } of duplicates) for (const effect of all.slice(1)) addMoney(chargedTwice, effect)

  return {
    requests: requests.length,
    effects: effects.length,
    effectsByKind,
    fates,
    charged,
    notConcluded,
    chargedTwice,
    duplicates: duplicates.length,
    keysWithOtherBytes: [...bytes.values()].filter((seen) => seen.size > 1).length,
  }
}

function addMoney(sums: Record<string, number>, { params }: LedgerEffect): void {
  const { amount, currency } = params
  if (typeof amount !== 'number' || typeof currency !== 'string') return
  const sum = (sums[currency] ?? 0) + amount
  if (!Number.isSafeInteger(sum)) throw new RangeError(`The sum of charges in ${currency} is beyond 2^53 - 1`)
  sums[currency] = sum
}
