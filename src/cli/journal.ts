/**
 * The journal that a command works on: found, never made, read page by page; and how a person names one entry in it.
 */
import { stat } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { EntryState, JournalEntry, JournalStore, ListFilter } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { CliError, EXIT, usageError } from './failure.ts'
import { harmless } from './text.ts'

export interface Journal {
  readonly store: JournalStore
  /** What to call it in messages. */
  readonly name: string
  close(): Promise<void>
}

const DEFAULT_PATH = '.billonce/journal.sqlite'

/**
 * Opens the journal that `--journal`, the config module or the environment names. Never makes one: a mistyped path would be
 * an empty journal, and "nothing is open" the wrong answer.
 */
export async function openJournal(options: {
  readonly path: string | undefined
  readonly given: JournalStore | undefined
  readonly waitMs: number
}): Promise<Journal> {
  if (options.path === undefined && options.given) {
    // It is the config module's, but nobody else will close it, and an open pool would keep the process.
    const store = options.given
    return { store, name: 'of the config module', close: () => store.close() }
  }
  const fromEnv = process.env['BILLONCE_JOURNAL']
  const named = options.path ?? (fromEnv === undefined || fromEnv === '' ? undefined : fromEnv)
  const path = resolve(named ?? DEFAULT_PATH)
  const how =
    named === undefined
      ? ' It is the default path; name another one by --journal or BILLONCE_JOURNAL.'
      : options.path === undefined
        ? ' The path is from BILLONCE_JOURNAL.'
        : ''
  try {
    const found = await stat(path)
    if (!found.isFile()) throw journalError('unavailable', `${path} is not a file.${how}`)
  } catch (error) {
    if (error instanceof CliError) throw error
    const { code } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      throw journalError('unavailable', `There is no journal at ${path}. Nothing was created.${how}`)
    }
    throw journalError('unavailable', `The journal ${path} cannot be read (${code}).${how}`)
  }
  const store = sqliteJournal({ path, busyTimeoutMs: options.waitMs })
  return { store, name: path, close: () => store.close() }
}

function journalError(fault: string, message: string): CliError {
  return new CliError(EXIT.journal, 'ERR_JOURNAL_UNAVAILABLE', message, { fault })
}

const PAGE = 256

export interface Reading {
  /** Rows that this version cannot read, counted while reading. */
  unreadable: number
}

/** All entries that fit, oldest first; page by page, so that a large journal needs no large memory. */
export async function* entriesOf(
  store: JournalStore,
  filter: ListFilter,
  reading: Reading = { unreadable: 0 },
): AsyncGenerator<JournalEntry> {
  let after: string | undefined
  do {
    const page = await store.list(filter, PAGE, after)
    reading.unreadable += page.unreadable
    yield* page.entries
    after = page.next
  } while (after !== undefined)
}

// ------------------------------------------------------------------------------------------------------------- groups

/** One receiver and one owner of operations: what one client works on. */
export interface Group {
  readonly endpoint: string
  /** Whether the endpoint is an id that somebody gave, and not an address. */
  readonly endpointNamed: boolean
  readonly scope: string
}

export interface Place {
  readonly endpoint?: string | undefined
  readonly scope?: string | undefined
}

/** The groups that have entries in these states. */
export async function groupsOf(
  store: JournalStore,
  place: Place,
  states?: readonly EntryState[],
): Promise<readonly (Group & { readonly count: number })[]> {
  const groups = new Map<string, Group & { count: number }>()
  for await (const { endpoint, endpointNamed, scope } of entriesOf(store, { ...place, states })) {
    const id = JSON.stringify([endpoint, scope])
    const group = groups.get(id) ?? { endpoint, endpointNamed, scope, count: 0 }
    group.count += 1
    groups.set(id, group)
  }
  return [...groups.values()]
}

// --------------------------------------------------------------------------------------------------------- references

export interface RefOptions extends Place {
  readonly subject?: string | undefined
  readonly revision?: number | undefined
}

/** As few characters of a key, as `list` shows it, are enough to name it. */
export const SHORT_KEY = 8

/**
 * The entry that a person means: by its key, the first characters of its key, or `kind:operationId` (then the latest
 * revision). What fits several is refused with all of them, never guessed.
 */
export async function entryOf(store: JournalStore, ref: string, options: RefOptions): Promise<JournalEntry> {
  const fits = (entry: JournalEntry): boolean =>
    (options.endpoint === undefined || entry.endpoint === options.endpoint) &&
    (options.scope === undefined || entry.scope === options.scope) &&
    (options.subject === undefined || entry.subject === options.subject) &&
    (options.revision === undefined || entry.revision === options.revision)
  const byKey = (await store.getByKey(ref)).filter(fits)
  if (byKey.length > 0) return only(ref, byKey)
  const colon = ref.indexOf(':')
  if (colon > 0 && colon < ref.length - 1) {
    const { endpoint, scope } = options
    const name = { endpoint, scope, kind: ref.slice(0, colon), operationId: ref.slice(colon + 1) }
    const found: JournalEntry[] = []
    for await (const entry of entriesOf(store, name)) if (fits(entry)) found.push(entry)
    if (found.length > 0) return only(ref, latestOf(found))
  }
  const start = ref.replace(/(?:…|\.\.\.)$/, '')
  if (start.length >= SHORT_KEY) {
    const found: JournalEntry[] = []
    for await (const entry of entriesOf(store, { endpoint: options.endpoint, scope: options.scope })) {
      if (entry.key.startsWith(start) && fits(entry)) found.push(entry)
    }
    if (found.length > 0) return only(ref, found)
  }
  throw new CliError(
    EXIT.notFound,
    'ERR_NOT_FOUND',
    `The journal holds nothing by the name ${ref}. A name is a key, its first ${SHORT_KEY} characters or more, or kind:operationId such as charge:order-991.`,
  )
}

function latestOf(entries: readonly JournalEntry[]): readonly JournalEntry[] {
  const latest = new Map<string, JournalEntry>()
  for (const entry of entries) {
    const id = JSON.stringify([entry.endpoint, entry.scope, entry.subject])
    const other = latest.get(id)
    if (!other || other.revision < entry.revision) latest.set(id, entry)
  }
  return [...latest.values()]
}

function only(ref: string, entries: readonly JournalEntry[]): JournalEntry {
  const [entry, ...others] = entries
  if (entry && others.length === 0) return entry
  const candidates = entries.map(({ key, kind, operationId, subject, revision, scope, endpoint }) => ({
    key,
    kind,
    operationId,
    subject,
    revision,
    scope,
    endpoint,
  }))
  const lines = candidates
    .slice(0, 10)
    .map(
      (one) =>
        `  ${one.key}  ${harmless(`${one.kind}:${one.operationId}`)}` +
        `${one.subject === null ? '' : `  subject ${harmless(one.subject)}`}  scope ${harmless(one.scope)}  ${harmless(one.endpoint)}`,
    )
  throw usageError(
    `${ref} fits ${entries.length} entries; give the whole key, or --scope, --endpoint or --subject:\n${lines.join('\n')}`,
    { candidates },
  )
}
