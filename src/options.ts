/**
 * The one place where options are checked and defaults are filled in. Inside, everything is complete.
 */
import { defaultJournal } from '#default-store'
import { standard } from './dialects/standard.ts'
import type { Dialect } from './dialects/dialect.ts'
import type { CredentialsOption } from './engine/credentials.ts'
import type { Settings } from './engine/context.ts'
import { keyWindowMs, longestCallMs } from './engine/schedule.ts'
import type { RetryPolicy } from './engine/schedule.ts'
import { mustBe, refuse } from './errors.ts'
import { readHeaders } from './model/headers.ts'
import { readName } from './model/key.ts'
import { chargeWrite, creditsWrite, defineWrite, usageWrite } from './model/operation.ts'
import type { AnyWriteDefinition } from './model/operation.ts'
import type { JournalStore } from './stores/store.ts'

/** How often, how long and how slowly a call is tried. */
export interface RetryOptions {
  /** Attempts of one call, the first one included: 1 to 100. Default 5. */
  readonly maxAttempts?: number | undefined
  /** One attempt, in milliseconds, the reply's body included. Default 30,000. */
  readonly attemptTimeoutMs?: number | undefined
  /** One call over all attempts and waits, in milliseconds of monotonic time. Default 60,000. */
  readonly deadlineMs?: number | undefined
  /** The first back-off is random between 0 and this many milliseconds; it doubles from there. Default 500. */
  readonly baseDelayMs?: number | undefined
  /** No back-off within a call is longer, in milliseconds. Default 30,000. */
  readonly maxDelayMs?: number | undefined
  /**
   * While the receiver fails, background delivery waits a random time between 0 and twice this after the first failure; it
   * doubles from there, up to `maxDelayMs`, and in a long outage slowly up to `maxBackgroundDelayMs`. In milliseconds.
   * Default 1,000.
   */
  readonly backgroundBaseDelayMs?: number | undefined
  /** No back-off of background delivery is longer, in milliseconds. Default 300,000. */
  readonly maxBackgroundDelayMs?: number | undefined
  /** A longer `Retry-After` is taken as this many milliseconds, at most 24 hours. Default 86,400,000. */
  readonly maxRetryAfterMs?: number | undefined
  /**
   * Statuses that a call retries itself, beyond network errors, timeouts, 5xx and 409, such as `[429]`. Others wait in the
   * journal for their time. Default none.
   */
  readonly alsoStatuses?: readonly number[] | undefined
}

/** How long what is final is kept; `prune` applies it. */
export interface RetentionOptions {
  /** Bodies and receipts, in milliseconds after the end. Default 30 days. */
  readonly finalMs?: number | undefined
  /**
   * Names (key, fingerprint, final state, receipt id) by kind, in milliseconds after the end. Default `{ usage: 40 days }`; the
   * names of charges, credits and writes of your own stay for good, so that a backfill a year later does not take effect again;
   * so do all with `names: 'own'`.
   */
  readonly namesMs?: Readonly<Record<string, number>> | undefined
}

export interface BillingClientOptions {
  /** Address of the receiver, `https://…`; paths are appended. */
  readonly baseUrl: string
  /** Whose operations these are (tenant, account, user; live or test): 1-255 characters, part of every key. */
  readonly scope: string
  /** An id of the receiver, which stays when its address changes. Default is the address itself. */
  readonly endpoint?: string | undefined
  /** Asked before each attempt; says whose credentials it gives. */
  readonly credentials?: CredentialsOption | undefined
  /** In place of `credentials`, where they cannot change while the client lives: a server's own API key. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** How long `credentials` may take, in milliseconds. Default 10,000. */
  readonly credentialsTimeoutMs?: number | undefined
  /** Default by runtime: IndexedDB in a browser, an SQLite file in Node. One that is given stays open after `close()`. */
  readonly journal?: JournalStore | undefined
  /** How the receiver speaks. Default `standard()`. */
  readonly dialect?: Dialect | undefined
  /** Dialects under which open entries may still lie in the journal. */
  readonly olderDialects?: readonly Dialect[] | undefined
  /** Writes of your own, so that `start()` and `resume()` can deliver them before `write` is called. */
  readonly writes?: readonly AnyWriteDefinition[] | undefined
  readonly retry?: RetryOptions | undefined
  /**
   * `shared`: other devices or journals may use the same names, so a key's age counts from the event or its first naming.
   * `own`: names are made by this journal alone. Default `shared`.
   */
  readonly names?: 'shared' | 'own' | undefined
  /** Taken off the time the receiver remembers a key, in milliseconds; never less than its longest request. Default 1 hour. */
  readonly windowMarginMs?: number | undefined
  /** Passes currency codes on that the runtime does not know. Default `false`. */
  readonly anyCurrency?: boolean | undefined
  /** Entries delivered at the same time in the background: 1 to 100. Default 8. */
  readonly concurrency?: number | undefined
  /**
   * Calls in the background are refused by a `BackpressureError` while so many deliverable entries of this scope and endpoint
   * are in the journal: 1 or more, or `Infinity`. Approximate where several processes write to one journal. Default 100,000.
   */
  readonly maxBacklog?: number | undefined
  /** How long final entries are kept, for `prune`. */
  readonly retention?: RetentionOptions | undefined
  /**
   * In place of the runtime's `fetch`. It is handed the address as text and everything else in its second parameter, the body
   * as text too. It must not retry by itself.
   */
  readonly fetch?: typeof fetch | undefined
}

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

const KNOWN = [
  'anyCurrency',
  'baseUrl',
  'concurrency',
  'credentials',
  'credentialsTimeoutMs',
  'dialect',
  'endpoint',
  'fetch',
  'headers',
  'journal',
  'maxBacklog',
  'names',
  'olderDialects',
  'retention',
  'retry',
  'scope',
  'windowMarginMs',
  'writes',
] as const satisfies readonly (keyof BillingClientOptions)[]

/**
 * Reads a client's options. Touches nothing: no file, no database, no timer.
 *
 * @throws {InvalidInputError} naming the option
 */
export function readOptions(options: BillingClientOptions): Settings {
  refuseUnknownOptions(options, KNOWN, '')
  const baseUrl = readBaseUrl(options.baseUrl)
  const dialect = readDialect(options.dialect ?? standard(), 'dialect')
  const policy = readPolicy(options.retry ?? {})
  const windowMarginMs = Math.max(
    readMs(options.windowMarginMs, 'windowMarginMs', HOUR_MS, 0),
    dialect.longestRequestMs,
  )
  const anyCurrency: unknown = options.anyCurrency ?? false
  mustBe(typeof anyCurrency === 'boolean', 'anyCurrency', 'true or false')
  mustBe(options.fetch === undefined || typeof options.fetch === 'function', 'fetch', 'a function')
  const writes = [
    chargeWrite({ anyCurrency }),
    usageWrite,
    creditsWrite,
    ...readList<AnyWriteDefinition>(options.writes, 'writes').map(readDefinition),
  ]
  refuseTwins(writes)
  for (const { kind } of writes) refuseShortWindow(kind, keyWindowMs(dialect, kind, windowMarginMs), policy)
  if (options.credentials !== undefined && options.headers !== undefined)
    refuse('headers', 'are for credentials that never change; give them or credentials, not both')
  const { names = 'shared' } = options
  mustBe(names === 'shared' || names === 'own', 'names', "'shared' or 'own'")
  const scope = readName(options.scope, 'scope')
  return {
    baseUrl,
    endpoint: options.endpoint === undefined ? baseUrl : readName(options.endpoint, 'endpoint'),
    endpointNamed: options.endpoint !== undefined,
    scope,
    credentials: readCredentials(options, scope, dialect),
    hasFixedHeaders: options.credentials === undefined,
    credentialsTimeoutMs: readMs(options.credentialsTimeoutMs, 'credentialsTimeoutMs', 10_000, 1),
    store: readJournal(options.journal) ?? defaultJournal(),
    ownsStore: options.journal === undefined,
    dialect,
    dialects: [
      dialect,
      ...readList<Dialect>(options.olderDialects, 'olderDialects').map((one) => readDialect(one, 'olderDialects')),
    ],
    writes,
    policy,
    names,
    windowMarginMs,
    anyCurrency,
    retention: readRetention(options.retention ?? {}),
    concurrency: readWhole(options.concurrency, 'concurrency', 8, 1, 100),
    maxBacklog:
      options.maxBacklog === Infinity
        ? Infinity
        : readWhole(options.maxBacklog, 'maxBacklog', 100_000, 1, Number.MAX_SAFE_INTEGER),
    fetch: options.fetch,
  }
}

/** A schedule that could not fit the window would end its last tries after the receiver forgot the key. */
export function refuseShortWindow(kind: string, windowMs: number, policy: RetryPolicy): void {
  const neededMs = Math.max(longestCallMs(policy), policy.maxBackgroundDelayMs)
  if (windowMs < neededMs) {
    refuse(
      'retry',
      `may need ${neededMs} ms, but a key of ${kind} may be sent for ${windowMs} ms (what the receiver remembers, less windowMarginMs)`,
    )
  }
}

/**
 * A name that is not known is refused: a misspelled option would silently leave a default in force.
 */
export function refuseUnknownOptions(options: object, known: readonly string[], prefix: string): void {
  readObject(options, prefix.slice(0, -1) || 'options')
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown !== undefined) refuse(prefix + unknown, 'is not an option')
}

export function readObject(value: unknown, field: string): void {
  mustBe(typeof value === 'object' && value !== null, field, 'an object')
}

export function readMs<D extends number | undefined>(
  value: unknown,
  name: string,
  defaultMs: D,
  leastMs: number,
  mostMs: number = 2 ** 31 - 1,
): number | D {
  if (value === undefined) return defaultMs
  const isRight = typeof value === 'number' && value >= leastMs && value <= mostMs
  if (!isRight) refuse(name, `must be a number of milliseconds from ${leastMs} to ${mostMs}`)
  return value
}

function readWhole(value: unknown, name: string, byDefault: number, least: number, most: number): number {
  if (value === undefined) return byDefault
  const isRight = typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most
  if (!isRight) refuse(name, `must be a whole number from ${least} to ${most}`)
  return value
}

function readList<T>(value: readonly T[] | undefined, name: string): readonly T[] {
  if (value === undefined) return []
  mustBe(Array.isArray(value), name, 'a list')
  return [...(value as readonly T[])]
}

function readDefinition(definition: AnyWriteDefinition): AnyWriteDefinition {
  readObject(definition, 'writes')
  return defineWrite(definition)
}

function readJournal(journal: JournalStore | undefined): JournalStore | undefined {
  const isJournal = typeof journal === 'object' && typeof journal?.insert === 'function'
  mustBe(journal === undefined || isJournal, 'journal', 'a journal, such as indexedDbJournal()')
  return journal
}

/** Keys that this library derives have this many characters. */
const DERIVED_KEY_LENGTH = 36

function readDialect(dialect: Dialect, name: string): Dialect {
  mustBe(
    typeof dialect === 'object' && typeof dialect?.classify === 'function' && typeof dialect.keyHeader === 'function',
    name,
    'a dialect, such as standard()',
  )
  const { minLength, maxLength } = dialect.keyLimits
  if (maxLength < DERIVED_KEY_LENGTH || minLength > DERIVED_KEY_LENGTH)
    refuse(name, `must take derived keys, which have ${DERIVED_KEY_LENGTH} characters`)
  // They are sent with every attempt and stored with every entry, so they may say nothing about the key or the body.
  readHeaders(dialect.headers, dialect.keyHeader('key').name)
  return dialect
}

function readBaseUrl(value: unknown): string {
  const text = String(value)
  let url: URL | undefined
  try {
    url = new URL(text)
  } catch {
    // Said below; what it threw quotes the address, which may hold a password.
  }
  mustBe(
    url && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '' && !/[?#]/.test(text),
    'baseUrl',
    'an absolute http(s) address without user, query and fragment',
  )
  return url.href.endsWith('/') ? url.href : `${url.href}/`
}

function readRetention(retention: RetentionOptions): { finalMs: number; namesMs: Readonly<Record<string, number>> } {
  refuseUnknownOptions(retention, ['finalMs', 'namesMs'], 'retention.')
  const namesMs = Object.entries({ usage: 40 * DAY_MS, ...retention.namesMs })
  const most = Number.MAX_SAFE_INTEGER
  return {
    finalMs: readMs(retention.finalMs, 'retention.finalMs', 30 * DAY_MS, 0, most),
    // From pairs, so that a kind may have any name.
    namesMs: Object.fromEntries(
      namesMs.map(([kind, ms]) => [kind, readMs(ms, `retention.namesMs.${kind}`, 0, 0, most)]),
    ),
  }
}

function readPolicy(retry: RetryOptions): RetryPolicy {
  readObject(retry, 'retry')
  const alsoStatuses = readList<number>(retry.alsoStatuses, 'retry.alsoStatuses')
  mustBe(
    alsoStatuses.every((status) => Number.isInteger(status) && status >= 400 && status < 500),
    'retry.alsoStatuses',
    'a list of statuses from 400 to 499',
  )
  const policy = {
    maxAttempts: readWhole(retry.maxAttempts, 'retry.maxAttempts', 5, 1, 100),
    attemptTimeoutMs: readMs(retry.attemptTimeoutMs, 'retry.attemptTimeoutMs', 30_000, 1),
    deadlineMs: readMs(retry.deadlineMs, 'retry.deadlineMs', 60_000, 1),
    baseDelayMs: readMs(retry.baseDelayMs, 'retry.baseDelayMs', 500, 0),
    maxDelayMs: readMs(retry.maxDelayMs, 'retry.maxDelayMs', 30_000, 0),
    backgroundBaseDelayMs: readMs(retry.backgroundBaseDelayMs, 'retry.backgroundBaseDelayMs', 1000, 0),
    maxBackgroundDelayMs: readMs(retry.maxBackgroundDelayMs, 'retry.maxBackgroundDelayMs', 300_000, 0),
    maxRetryAfterMs: readMs(retry.maxRetryAfterMs, 'retry.maxRetryAfterMs', 24 * HOUR_MS, 0, 24 * HOUR_MS),
    alsoStatuses,
  } satisfies Record<keyof RetryOptions, unknown>
  refuseUnknownOptions(retry, Object.keys(policy), 'retry.')
  return policy
}

function readCredentials(options: BillingClientOptions, scope: string, dialect: Dialect): CredentialsOption {
  if (options.credentials !== undefined) {
    mustBe(typeof options.credentials === 'function', 'credentials', 'a function')
    return options.credentials
  }
  const headers = readHeaders(options.headers ?? {}, dialect.keyHeader('key').name)
  return () => ({ scope, headers })
}

function refuseTwins(writes: readonly AnyWriteDefinition[]): void {
  const kinds = writes.map((write) => write.kind)
  const twin = kinds.find((kind, index) => kinds.indexOf(kind) !== index)
  if (twin !== undefined) refuse('writes', `have two of kind ${twin}, which needs one meaning`)
}
