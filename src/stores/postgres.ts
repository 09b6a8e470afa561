/**
 * `billonce/postgres`: the journal in PostgreSQL, for workers that share it and have no disk of their own that lasts, on a
 * pool of the user's own. Here is what a journal promises; how it lies in the database is postgres-schema.ts's, what is asked
 * of it postgres-statements.ts's, and who asks when postgres-work.ts's.
 */
import { InvalidInputError, JournalUnavailableError } from '../errors.ts'
import type { JournalEntry } from '../model/entry.ts'
import { decodeEntry } from './codec.ts'
import { builtin, isGone, ownerOfProcess } from './owner.ts'
import {
  buildIndexes,
  hasIndexes,
  inspect,
  isCurrentSql,
  metaSql,
  readFormat,
  readPlace,
  refused,
  runScript,
  scriptOf,
} from './postgres-schema.ts'
import type { Inspected, Names, PostgresJournalPlace } from './postgres-schema.ts'
import {
  changesOf,
  keyIdOf,
  kindIdOf,
  listOf,
  listsOf,
  nameIdOf,
  NOW_MS,
  placeIdOf,
  pruningOf,
  rowOf,
  seenText,
  statementsOf,
} from './postgres-statements.ts'
import type { Row, Statements } from './postgres-statements.ts'
import { errorOf, failureOf, queryOf, workOn } from './postgres-work.ts'
import type { Fields, PostgresClient, PostgresPool, Query, Shared, Work } from './postgres-work.ts'
import type { InsertResult, JournalStore, OpenCount, Page, Prunable, Seen, Taking } from './store.ts'

export type { PostgresJournalPlace } from './postgres-schema.ts'
export type { PostgresClient, PostgresPool, PostgresPoolClient } from './postgres-work.ts'

export interface PostgresJournalOptions extends PostgresJournalPlace {
  /** Your pool: a `Pool` of `pg`, or one of that shape. It stays yours; `close()` does not end it. */
  readonly pool: PostgresPool
  /**
   * `true`: makes the tables at the first use if they are not there. `false`: they have to be there, made by
   * {@link migratePostgresJournal} or by {@link postgresJournalSql}, for roles that may not create tables. Default `true`.
   */
  readonly migrate?: boolean | undefined
  /** How many connections of the pool are used at most at a time, from 1; calls that come meanwhile share. Default 4. */
  readonly connections?: number | undefined
  /** How long a call may take, in milliseconds, waiting for a connection included. Default 30,000. Then fault `timeout`. */
  readonly timeoutMs?: number | undefined
  /** How often background delivery looks whether another process has left something to deliver, in milliseconds. Default 1,000. */
  readonly pollMs?: number | undefined
  /** Takes a server with `fsync` off, such as one for tests; outcomes then say `durable: false`. Default `false`: it is refused. */
  readonly allowFsyncOff?: boolean | undefined
}

/**
 * Makes a journal in PostgreSQL 12 or newer. Construction touches nothing; the first call looks for the tables.
 *
 * What a call promises when it resolves is committed, and flushed to the server's disk (`synchronous_commit` is raised for
 * the statement where the session has it lower). Calls that come together share a statement. Nothing depends on the session:
 * it works behind PgBouncer in transaction mode. Leases and windows go by the server's clock.
 *
 * When the database is away, a call rejects with {@link JournalUnavailableError}, and nothing is sent. If only the answer to a
 * commit was lost, the journal looks whether it was made.
 *
 * @throws {InvalidInputError} for options that cannot be right
 * @example
 * const pool = new Pool({ connectionString: process.env['DATABASE_URL'] })
 * const billing = createBillingClient({ ...options, journal: postgresJournal({ pool }) })
 */
export function postgresJournal(options: PostgresJournalOptions): JournalStore {
  const { names, pool, migrate, connections, timeoutMs, pollMs, allowFsyncOff } = readSettings(options)
  const work = workOn({ pool, connections, timeoutMs })
  const clock = clockOf(async () => {
    assertOpen()
    await work.alone((query) => clock.ask(query))
  })
  const sql = statementsOf(names, true)
  const shared = sharedOf(sql, clock)
  /** Holders that are certainly gone; no owner ever comes back. */
  const gone = new Set<string>()
  let ready: Promise<void> | undefined
  let knownBornAtMs: number | undefined
  let knowsIndexes = false
  let building: Promise<void> | undefined
  let isListening = false
  let isClosed = false
  const stops = new Set<() => void>()

  const assertOpen = (): void => {
    if (isClosed) throw new JournalUnavailableError('The journal was closed.', { fault: 'closed' })
  }

  /** Looks for the tables once; what went wrong is looked at again with the next call. */
  const opened = (): Promise<void> => {
    assertOpen()
    if (!ready) {
      // `pg` tells the pool of idle connections that broke, and an error that nobody listens to ends the process.
      if (!isListening) pool.on?.('error', ignore)
      isListening = true
      ready = prepare().catch((error: unknown) => {
        ready = undefined
        throw error
      })
    }
    return ready
  }

  const prepare = async (): Promise<void> => {
    const look = (): Promise<Inspected> => work.alone((query) => inspect(query, names, allowFsyncOff))
    let found = await look()
    if (!found.isCurrent && migrate) {
      await work.alone((query) => runScript(query, names))
      found = await look()
    }
    if (found.bornAtMs === undefined || !found.isCurrent) throw missing(names, found.bornAtMs !== undefined)
    knownBornAtMs = found.bornAtMs
  }

  const share = async <Ask, Answer>(of: Shared<Ask, Answer>, ask: Ask): Promise<Answer> => {
    await opened()
    await clock.look()
    return await work.share(of, ask)
  }

  const alone = async <Answer>(run: (query: Query) => Promise<Answer>): Promise<Answer> => {
    await opened()
    // Whoever has read something knows what time it is; that it is looked at again is rare.
    await clock.look()
    return await work.alone(run)
  }

  /** What is due and free, to one of those who ask; with the last page what is left. */
  const handOut = async (
    of: { readonly endpoint: string; readonly scope: string },
    limit: number,
    after: string | undefined,
    { owner, holdMs, kinds, due }: Taking,
  ): Promise<Page> => {
    const placeId = placeIdOf(of)
    const from = readCursor(after)
    for (;;) {
      const own = [owner, ...gone]
      const rows = await alone((query) => query(sql.take, [placeId, from, kinds, due, own, limit, owner, holdMs]))
      const page = pageOf(rows)
      if (rows.length >= limit) return { ...page, next: String(rows.at(-1)?.['at']) }
      const [left] = await alone((query) => query(sql.left, [placeId, kinds, owner]))
      // Whom this machine knows to be gone holds nothing; what others hold is theirs until their lease is over.
      const holders = (left?.['holders'] as readonly string[] | null) ?? []
      const news = holders.filter(
        (holder) => !gone.has(holder) && isHolderGone(holder.slice(0, holder.lastIndexOf('#'))),
      )
      for (const holder of news) gone.add(holder)
      const nextAtMs = left?.['next_at_ms']
      if (news.length === 0 || rows.length > 0) {
        return {
          ...page,
          left: {
            strange: Number(left?.['strange'] ?? 0),
            nextAtMs: news.length > 0 ? 0 : typeof nextAtMs === 'string' ? Number(nextAtMs) : undefined,
          },
        }
      }
    }
  }

  /** Whether pruning can go by the indexes; builds them if they are not there, for which no call but pruning waits. */
  const isIndexed = async (): Promise<boolean> => {
    if (knowsIndexes) return true
    knowsIndexes = await alone((query) => hasIndexes(query, names))
    if (knowsIndexes || !migrate) return knowsIndexes
    building ??= workOn({ pool, connections: 1, timeoutMs: BUILD_MS })
      .alone(async (query) => {
        // Workers that prune at the same minute of the night are not to begin in the same moment.
        await new Promise((resolve) => setTimeout(resolve, Math.random() * APART_MS))
        await buildIndexes(query, names, false)
      })
      .finally(() => (building = undefined))
    // While they are not there it reads all that is final, as where they may not be built.
    await building.catch(ignore)
    return await alone((query) => hasIndexes(query, names))
  }

  /** Says since when entries are prunable of which an earlier version did not say. */
  const date = async (rows: readonly Fields[]): Promise<void> => {
    if (rows.length === 0) return
    const pruning = rows.map((row) => pruningOfRow(row))
    await alone((query) =>
      query(sql.date, [
        rows.map((row) => row['at']),
        rows.map((row) => row['version']),
        pruning.map((one) => one.prunable_from_ms),
        pruning.map((one) => one.is_lean),
      ]),
    )
  }

  const prunable = async (
    { endpoint, scope }: { readonly endpoint: string; readonly scope: string },
    { bodiesAtMs, namesAtMs }: Prunable,
    limit: number,
    after: string | undefined,
  ): Promise<Page> => {
    const placeId = placeIdOf({ endpoint, scope })
    // The first page decides by what the others go.
    if (after === undefined ? !(await isIndexed()) : /^\d+$/.test(after))
      return await methods.list({ endpoint, scope, states: FINAL_STATES }, limit, after)
    const from = readPruneCursor(after)
    if (typeof from === 'string') {
      const rows = await alone((query) => query(sql.undated, [placeId, from, DATED_AT_ONCE]))
      await date(rows)
      // A page of its own, so that whoever prunes may stop in between.
      if (rows.length === DATED_AT_ONCE) return { entries: [], unreadable: 0, next: `u${String(rows.at(-1)?.['at'])}` }
    }
    const [kind, isLean, fromMs, id] = typeof from === 'string' ? FIRST_PRUNABLE : from
    const names = Object.entries(namesAtMs)
    const rows = await alone((query) =>
      query(sql.prunable, [
        placeId,
        bodiesAtMs,
        names.map(([name]) => name),
        names.map(([, atMs]) => atMs),
        kind,
        isLean,
        fromMs,
        id,
        limit + 1,
      ]),
    )
    // What an earlier version has changed since is not what its columns say.
    await date(rows.filter(isMisdated))
    const { entries, unreadable } = pageOf(rows, limit)
    const last = rows.length > limit ? rows[limit - 1] : undefined
    if (!last) return { entries, unreadable }
    const next = [last['kind'], String(last['is_lean']) === 'true', Number(last['from_ms']), String(last['at'])]
    return { entries, unreadable, next: JSON.stringify(next) }
  }

  const methods = methodsOf(names, sql, {
    insert: (ask) => share(shared.insert, ask),
    replace: (row) => share(shared.replace, row),
    remove: (entries) => share(shared.remove, entries),
    get: (id) => share(shared.get, id),
    history: (id) => share(shared.history, id),
    ask: alone,
  })

  return {
    ...methods,
    durable: !allowFsyncOff,
    clock,
    listDeliverable: async (of, limit, after, taking) =>
      taking
        ? await handOut(of, Math.min(limit, taking.most), after, taking)
        : await methods.listDeliverable(of, limit, after),
    listPrunable: prunable,
    watchDeliverable(of, kinds, onDeliverable) {
      const placeId = placeIdOf(of)
      let isOver = false
      let timer: ReturnType<typeof setTimeout> | undefined
      const look = async (): Promise<void> => {
        let tookMs = 0
        try {
          const found = await alone(async (query) => {
            const beganAtMs = performance.now()
            const rows = await query(sql.isAnything, [placeId, kinds()])
            tookMs = performance.now() - beganAtMs
            return rows
          })
          if (found.length > 0 && !isOver) onDeliverable()
        } catch {
          // The next pass of delivery tells what is wrong.
        }
        // Where there is much to look through, it is looked at less often.
        if (!isOver) later(Math.max(pollMs, Math.min(20 * tookMs, MOST_POLL_MS)))
      }
      const later = (ms: number): void => {
        timer = setTimeout(() => void look(), ms)
        ;(timer as { unref?: () => void }).unref?.()
      }
      const stop = (): void => {
        isOver = true
        clearTimeout(timer)
        stops.delete(stop)
      }
      stops.add(stop)
      later(pollMs)
      return stop
    },
    // oxlint-disable-next-line typescript/require-await -- async turns a throw into a rejection
    async within(transaction): Promise<JournalStore> {
      assertOpen()
      return journalWithin(transaction, { names, opened, bornAtMs: () => knownBornAtMs, clock })
    },
    // oxlint-disable-next-line typescript/require-await -- async turns a throw into a rejection
    async isGone(owner: string): Promise<boolean> {
      assertOpen()
      return isHolderGone(owner)
    },
    async close(): Promise<void> {
      isClosed = true
      for (const stop of stops) stop()
      await work.settled()
      pool.off?.('error', ignore)
    },
    get owner() {
      return ownerHere()
    },
  }
}

/**
 * Makes the tables, or brings those of an earlier version up to date, or does nothing; safe to run twice and at once, and
 * beside workers of both versions, which go on meanwhile. For a deployment step with a role that may create tables. On a table
 * of an earlier version it builds indexes, for which it reads it once or twice and waits for the end of every transaction that is open.
 *
 * @throws {JournalUnavailableError} nothing was changed
 */
export async function migratePostgresJournal(pool: PostgresPool, place: PostgresJournalPlace = {}): Promise<void> {
  const names = readPlace(place)
  const work: Work = workOn({ pool: readPool(pool), connections: 1, timeoutMs: MIGRATION_MS })
  await work.alone((query) => runScript(query, names))
  await work.alone((query) => inspect(query, names, true))
  await workOn({ pool, connections: 1, timeoutMs: BUILD_MS }).alone((query) => buildIndexes(query, names, true))
}

/**
 * The same as SQL, for those who run their migrations by other means: one transaction, safe to run twice and at once. On a
 * table of an earlier version it builds indexes, and whoever writes waits meanwhile, for one pass over the table.
 */
export function postgresJournalSql(place: PostgresJournalPlace = {}): string {
  return `${scriptOf(readPlace(place), true).trim().replaceAll(/^ {4}/gm, '')}\n`
}

const MIGRATION_MS = 60_000
/** For a table of any size; nobody but who asked for it waits. */
const BUILD_MS = 6 * 3_600_000
const APART_MS = 500
/** Entries of an earlier version that one statement dates. */
const DATED_AT_ONCE = 500
const FINAL_STATES = ['succeeded', 'rejected', 'canceled'] as const
const MOST_POLL_MS = 30_000

function ignore(): void {}

function missing({ entries }: Names, isEarlier: boolean): JournalUnavailableError {
  return refused(
    `The tables of the journal (${entries}) are ${isEarlier ? 'of an earlier version' : 'not there'}, and migrate is false. Run migratePostgresJournal(pool) or the text of postgresJournalSql() with a role that may create tables.`,
    'unavailable',
  )
}

// -------------------------------------------------------------------------------------------------------------- options

function readSettings(options: PostgresJournalOptions): {
  readonly names: Names
  readonly pool: PostgresPool
  readonly migrate: boolean
  readonly connections: number
  readonly timeoutMs: number
  readonly pollMs: number
  readonly allowFsyncOff: boolean
} {
  if (typeof options !== 'object' || (options as unknown) === null)
    throw new InvalidInputError('options', 'The journal needs options with a pool.')
  const { pool, migrate = true, connections = 4, timeoutMs = 30_000, pollMs = 1000, allowFsyncOff = false } = options
  const whole = (value: number, field: string, least: number, most: number): number => {
    if (!Number.isSafeInteger(value) || value < least || value > most)
      throw new InvalidInputError(field, `${field} must be a whole number from ${least} to ${most}.`)
    return value
  }
  return {
    names: readPlace(options),
    pool: readPool(pool),
    migrate: migrate !== false,
    connections: whole(connections, 'connections', 1, 1000),
    timeoutMs: whole(timeoutMs, 'timeoutMs', 1, 2 ** 31 - 1),
    pollMs: whole(pollMs, 'pollMs', 10, 2 ** 31 - 1),
    allowFsyncOff: allowFsyncOff === true,
  }
}

function readPool(pool: unknown): PostgresPool {
  if (typeof (pool as Partial<PostgresPool> | null | undefined)?.connect !== 'function')
    throw new InvalidInputError('pool', 'pool must be a Pool of pg, or one of that shape.')
  return pool as PostgresPool
}

/** Ids are numbers of 64 bits, so they stay text. */
function readCursor(after: string | undefined): string {
  if (after !== undefined && !/^\d{1,19}$/.test(after))
    throw new InvalidInputError('after', 'after must be a cursor that this journal gave.')
  return after ?? '0'
}

type PruneCursor = readonly [kind: string, isLean: boolean, fromMs: number, id: string]
const FIRST_PRUNABLE: PruneCursor = ['', false, -Number.MAX_VALUE, '0']

/** The id after which dating goes on, or where a listing of what is prunable does. */
function readPruneCursor(after: string | undefined): string | PruneCursor {
  if (after === undefined) return '0'
  if (/^u\d{1,19}$/.test(after)) return after.slice(1)
  try {
    const [kind, isLean, fromMs, id] = JSON.parse(after) as PruneCursor
    if (typeof kind === 'string' && typeof isLean === 'boolean' && typeof fromMs === 'number')
      return [kind, isLean, fromMs, readCursor(id)]
  } catch {
    // As below.
  }
  throw new InvalidInputError('after', 'after must be a cursor that this journal gave.')
}

/** What cannot be read is never pruned, so it is not looked at again. */
function pruningOfRow(row: Fields): ReturnType<typeof pruningOf> {
  const entry = pageOf([row]).entries[0]
  return entry ? pruningOf(entry) : { prunable_from_ms: Infinity, is_lean: false }
}

function isMisdated(row: Fields): boolean {
  const entry = pageOf([row]).entries[0]
  if (!entry) return false
  const pruning = pruningOf(entry)
  return pruning.prunable_from_ms !== Number(row['from_ms']) || String(pruning.is_lean) !== String(row['is_lean'])
}

// ---------------------------------------------------------------------------------------------------------------- clock

interface Clock {
  look(): Promise<void>
  atMs(localMs: number): number
  ask(query: Query): Promise<void>
  /** The server's clock showed `nowMs` at some time between two readings of this process's clock. */
  learn(nowMs: unknown, sentAtMs: number): void
}

/** How long what is known of the server's clock is good for. */
const CLOCK_MS = 30_000

/**
 * The server's clock. Each answer shows that the difference lies between two numbers; it is moved only as far as it is
 * proven wrong, so slow answers do not shake it, and clocks that agree stay as they are.
 */
function clockOf(look: () => Promise<void>): Clock {
  let differenceMs = 0
  let lookedAtMs: number | undefined
  const clock: Clock = {
    look: async () => {
      if (lookedAtMs === undefined || Math.abs(Date.now() - lookedAtMs) > CLOCK_MS) await look()
    },
    atMs: (localMs) => localMs + differenceMs,
    async ask(query) {
      const sentAtMs = Date.now()
      const [row] = await query(`SELECT ${NOW_MS}::text AS now_ms`)
      clock.learn(row?.['now_ms'], sentAtMs)
    },
    learn(nowMs, sentAtMs) {
      const atMs = Number(nowMs)
      if (!Number.isFinite(atMs)) return
      differenceMs = Math.max(atMs - Date.now() - 1, Math.min(atMs - sentAtMs, differenceMs))
      lookedAtMs = Date.now()
    },
  }
  return clock
}

// ---------------------------------------------------------------------------------------------------------------- owner

/** The machine's present run: host names and process ids of two machines may be the same. */
function bootId(): string {
  try {
    return builtin('node:fs')?.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim() ?? ''
  } catch {
    // Not on Linux.
    return ''
  }
}

let boot: string | undefined

function ownerHere(): string {
  boot ??= bootId()
  return `${boot}/${ownerOfProcess()}`
}

/** Only of this machine can it be told; of others their leases decide. */
function isHolderGone(owner: string): boolean {
  boot ??= bootId()
  return boot !== '' && owner.startsWith(`${boot}/`) && isGone(owner.slice(boot.length + 1))
}

// --------------------------------------------------------------------------------------------------------------- methods

interface InsertAsk {
  readonly row: Row
  readonly seen: string
}

interface GoneAsk {
  readonly entries: readonly JournalEntry[]
}

/** How the methods get at the database: in statements shared with others, or in a transaction of the caller's. */
interface Access {
  /** `null` if inserted, else the texts of what was found. */
  insert(ask: InsertAsk): Promise<readonly string[] | null>
  replace(row: Row): Promise<boolean>
  remove(ask: GoneAsk): Promise<boolean>
  get(keyId: string): Promise<readonly string[]>
  history(nameId: string): Promise<readonly string[]>
  ask<Answer>(run: (query: Query) => Promise<Answer>): Promise<Answer>
}

type Methods = Pick<
  JournalStore,
  | 'insert'
  | 'replace'
  | 'get'
  | 'getByKey'
  | 'history'
  | 'listDeliverable'
  | 'countOpen'
  | 'list'
  | 'remove'
  | 'knowsSinceMs'
>

function methodsOf(names: Names, sql: Statements, access: Access): Methods {
  return {
    async insert(entry: JournalEntry, seen: readonly Seen[]): Promise<InsertResult> {
      const texts = await access.insert({ row: rowOf(entry), seen: seenText(seen) })
      return texts === null ? { inserted: true } : { inserted: false, found: texts.map(decodeEntry) }
    },
    replace: async (entry) => await access.replace(rowOf(entry)),
    get: async (endpoint, key) => (await access.get(keyIdOf({ endpoint, key }))).map(decodeEntry)[0],
    getByKey: async (key) =>
      (await access.ask((query) => query(sql.getByKey, [key]))).map((row) => decodeEntry(textOf(row))),
    history: async (name) => (await access.history(nameIdOf(name))).map(decodeEntry),
    async listDeliverable(of, limit, after): Promise<Page> {
      const from = readCursor(after)
      const rows = await access.ask((query) => query(sql.deliverable, [placeIdOf(of), from, limit + 1]))
      return pageOf(rows, limit)
    },
    async countOpen(): Promise<readonly OpenCount[]> {
      const rows = await access.ask((query) => query(sql.count))
      // The states of the rows are those of their entries, written beside them.
      return rows.map((row) => ({ ...row, count: Number(row['count']) })) as unknown as readonly OpenCount[]
    },
    async list(filter, limit, after): Promise<Page> {
      const rows: Fields[] = []
      for (let from = readCursor(after); ;) {
        const { text, values, isSliced } = listOf(names, filter, limit, from)
        const some = await access.ask((query) => query(text, values))
        rows.push(...some.filter((row) => row['at'] !== null))
        const last = some[0]?.['last']
        if (!isSliced || rows.length > limit || typeof last !== 'string') return pageOf(rows, limit)
        from = last
      }
    },
    remove: async (entries) => entries.length === 0 || (await access.remove({ entries })),
    async knowsSinceMs(kind: string): Promise<number> {
      const [row] = await access.ask((query) => query(sql.knowsSince, [kindIdOf(kind)]))
      return Number(row?.['value'])
    },
  }
}

function textOf(row: Fields): string {
  return String(row['entry'])
}

/** An entry that cannot be read stays as it is and holds up no other. */
function pageOf(rows: readonly Fields[], limit = Infinity): Page {
  const entries: JournalEntry[] = []
  let unreadable = 0
  for (const row of rows.slice(0, limit)) {
    try {
      entries.push(decodeEntry(textOf(row)))
    } catch (error) {
      if (!(error instanceof JournalUnavailableError)) throw error
      unreadable++
    }
  }
  return { entries, unreadable, ...(rows.length > limit ? { next: String(rows[limit - 1]?.['at']) } : {}) }
}

interface SharedWork {
  readonly insert: Shared<InsertAsk, readonly string[] | null>
  readonly replace: Shared<Row, boolean>
  readonly remove: Shared<GoneAsk, boolean>
  readonly get: Shared<string, readonly string[]>
  readonly history: Shared<string, readonly string[]>
}

/** Calls that share a statement, and what is made of one whose answer was lost the first time. */
function sharedOf(sql: Statements, clock: Pick<Clock, 'learn'>): SharedWork {
  const write = async (query: Query, text: string, lockMs: number, lists: unknown[]): Promise<Fields> => {
    const sentAtMs = Date.now()
    const [row] = await query(text, [String(lockMs), ...lists])
    if (!['on', 'remote_apply'].includes(String(row?.['synchronous'])))
      throw refused(
        'The database does not let commits wait for its disk, so nothing can be kept safely.',
        'unavailable',
      )
    clock.learn(row?.['now_ms'], sentAtMs)
    return row ?? {}
  }
  const listed = (value: unknown): ReadonlySet<string> => new Set(typeof value === 'string' ? value.split(',') : [])

  return {
    insert: {
      kind: 'insert',
      isRead: false,
      marksOf: ({ row }) => [row.key_id, `${String(row.name_id)} ${String(row.subject_id)}`],
      sizeOf: ({ row }) => row.entry.length,
      async run(query, asks, lockMs) {
        const rows = asks.map(({ ask }) => ask.row)
        const lists = [...listsOf(rows), asks.map(({ ask }) => ask.seen)]
        const { keys } = await write(query, sql.insert, lockMs, lists)
        const done = listed(keys)
        const refusedRows = rows.filter((row) => !done.has(row.key_id))
        const found = refusedRows.length > 0 ? await foundOf(query, sql, refusedRows) : new Map<string, string[]>()
        return asks.map(({ ask: { row }, isInDoubt }) => {
          if (done.has(row.key_id)) return null
          const texts = found.get(row.key_id) ?? []
          // What is there to the letter was written by this call, before its answer was lost.
          return isInDoubt && texts.includes(row.entry) ? null : texts
        })
      },
    },
    replace: {
      kind: 'replace',
      isRead: false,
      marksOf: (row) => [row.key_id],
      sizeOf: (row) => row.entry.length,
      async run(query, asks, lockMs) {
        const rows = asks.map(({ ask }) => ask)
        const { keys } = await write(query, sql.replace, lockMs, changesOf(rows))
        const done = listed(keys)
        const doubtful = asks.filter(({ ask, isInDoubt }) => isInDoubt && !done.has(ask.key_id)).map(({ ask }) => ask)
        const there =
          doubtful.length > 0
            ? await textsById(
                query,
                sql.get,
                doubtful.map((row) => row.key_id),
              )
            : undefined
        return rows.map((row) => done.has(row.key_id) || (there?.get(row.key_id)?.includes(row.entry) ?? false))
      },
    },
    remove: {
      kind: 'remove',
      isRead: false,
      marksOf: ({ entries }) => entries.map(keyIdOf),
      sizeOf: ({ entries }) => entries.length * 100,
      async run(query, asks, lockMs) {
        const items = asks.flatMap(({ ask }, task) => ask.entries.map((entry) => ({ task, entry })))
        const answer = await write(query, sql.remove, lockMs, [
          items.map(({ task }) => task),
          items.map(({ entry }) => keyIdOf(entry)),
          items.map(({ entry }) => entry.version),
          items.map(({ entry }) => kindIdOf(entry.kind)),
        ])
        const done = listed(answer['done'])
        const answers: boolean[] = []
        for (const [task, { ask, isInDoubt }] of asks.entries()) {
          const isDone = done.has(String(task))
          // Of which nothing is left, that was removed, by this call or by another like it.
          answers.push(isDone || (isInDoubt && (await textsById(query, sql.get, ask.entries.map(keyIdOf))).size === 0))
        }
        return answers
      },
    },
    get: readOf('get', sql.get),
    history: readOf('history', sql.history),
  }
}

function readOf(kind: string, text: string): Shared<string, readonly string[]> {
  return {
    kind,
    isRead: true,
    marksOf: () => [],
    sizeOf: () => 0,
    async run(query, asks) {
      const texts = await textsById(query, text, [...new Set(asks.map(({ ask }) => ask))])
      return asks.map(({ ask }) => texts.get(ask) ?? [])
    },
  }
}

async function textsById(query: Query, text: string, ids: readonly string[]): Promise<Map<string, string[]>> {
  return gathered(await query(text, [ids]))
}

async function foundOf(query: Query, sql: Statements, rows: readonly Row[]): Promise<Map<string, string[]>> {
  return gathered(await query(sql.found, listsOf(rows, ['key_id', 'name_id', 'subject_id'])))
}

function gathered(rows: readonly Fields[]): Map<string, string[]> {
  const texts = new Map<string, string[]>()
  for (const row of rows) {
    const id = String(row['for_id'])
    texts.set(id, [...(texts.get(id) ?? []), textOf(row)])
  }
  return texts
}

// ------------------------------------------------------------------------------------------- the caller's own transaction

/** How long a transaction waits for the journal's first look, for which the caller may have left no connection in the pool. */
const FIRST_LOOK_MS = 500

async function soon(work: Promise<void>): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, FIRST_LOOK_MS)
  })
  work.catch(() => {})
  try {
    await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

interface Outside {
  readonly names: Names
  /** Looks for the tables, and makes them, on a connection of the pool's. */
  readonly opened: () => Promise<void>
  /** When the journal was born, if that is known already. */
  readonly bornAtMs: () => number | undefined
  readonly clock: Clock
}

/** One statement after the other on the caller's connection, none of which fails for what the journal holds. */
async function journalWithin(transaction: object, { names, opened, bornAtMs, clock }: Outside): Promise<JournalStore> {
  const client = transaction as PostgresClient
  if (typeof (client as Partial<PostgresClient> | null)?.query !== 'function')
    throw new InvalidInputError('transaction', 'The transaction must be a client of pg on which BEGIN was run.')
  const sql = statementsOf(names, false)

  const query: Query = async (text, values) => {
    try {
      return await queryOf(client)(text, values)
    } catch (error) {
      throw errorOf(failureOf(error))
    }
  }

  const sentAtMs = Date.now()
  // Without values: then both times are those of this one message, unless a BEGIN came before it.
  const [row] = await query(
    `SELECT transaction_timestamp() = statement_timestamp() AS alone, to_regclass('${names.meta}') IS NOT NULL AND ${isCurrentSql(names)} AS there, ${NOW_MS}::text AS now_ms`,
  )
  if (String(row?.['alone']) === 'true') {
    throw new InvalidInputError(
      'transaction',
      'No transaction is open on this client: run BEGIN on it first, and pass the client, not the pool.',
    )
  }
  clock.learn(row?.['now_ms'], sentAtMs)
  if (String(row?.['there']) !== 'true') await opened()
  // Until it was looked at, nobody knows which database the journal is in, nor whether that keeps what it commits.
  else if (bornAtMs() === undefined) await soon(opened())
  const meta = await query(metaSql(names))
  if (meta.length === 0) {
    throw refused(
      'The tables of the journal were made after this transaction took its snapshot. Roll it back and run it again.',
      'unavailable',
    )
  }
  const born = readFormat(meta, names)
  if (born !== (bornAtMs() ?? born))
    throw new InvalidInputError('transaction', 'The transaction is in another database than the journal.')

  const ask = async <Answer>(run: (within: Query) => Promise<Answer>): Promise<Answer> => await run(query)
  const texts = (text: string, id: string): Promise<readonly string[]> =>
    ask(async (within) => (await textsById(within, text, [id])).get(id) ?? [])
  const refuse = (): Promise<never> =>
    Promise.reject(new InvalidInputError('transaction', 'This is not done within a transaction of the caller’s.'))

  return {
    ...methodsOf(names, sql, {
      insert: ({ row, seen }) =>
        ask(async (within) => {
          const [answer] = await within(sql.insert, [...listsOf([row]), [seen]])
          if (answer?.['keys'] === row.key_id) return null
          return (await foundOf(within, sql, [row])).get(row.key_id) ?? []
        }),
      replace: (row) =>
        ask(async (within) => {
          const [answer] = await within(sql.replace, changesOf([row]))
          return answer?.['keys'] === row.key_id
        }),
      remove: refuse,
      get: (id) => texts(sql.get, id),
      history: (id) => texts(sql.history, id),
      ask,
    }),
    durable: true,
    clock: { atMs: (localMs) => clock.atMs(localMs), look: async () => {} },
    // oxlint-disable-next-line typescript/require-await -- the contract's promise
    isGone: async (owner) => isHolderGone(owner),
    close: async () => {},
    get owner() {
      return ownerHere()
    },
  }
}
