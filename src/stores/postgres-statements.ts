/**
 * What is asked of the tables: the text of each statement and the row of an entry. Each write is one statement for many
 * entries, so a transaction of its own, which any pooler can hand to any connection. When they run is postgres-work.ts's.
 */
import { v5 as uuidV5, NIL } from 'uuid'
import { isDeliverable, nextLookAtMs } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import { encodeEntry } from './codec.ts'
import { IS_DELIVERABLE, IS_WAITING } from './postgres-schema.ts'
import type { Names } from './postgres-schema.ts'
import type { ListFilter, Seen } from './store.ts'

// -------------------------------------------------------------------------------------------------------------- digests

/** UUID namespace of the digests in the tables. It never changes. */
const NAMESPACE = '0a4c0c0e-5f0b-5d5c-9a43-4a1c1b7f6a52'

// UUID v5 as for the keys themselves: what makes two names meet here would make two keys meet.
const digestOf = (parts: readonly string[]): string => uuidV5(JSON.stringify(parts), NAMESPACE)

export function keyIdOf({ endpoint, key }: { readonly endpoint: string; readonly key: string }): string {
  return digestOf(['key', endpoint, key])
}

export function nameIdOf(name: {
  readonly scope: string
  readonly kind: string
  readonly operationId: string
}): string {
  return digestOf(['name', name.scope, name.kind, name.operationId])
}

export function placeIdOf({ endpoint, scope }: { readonly endpoint: string; readonly scope: string }): string {
  return digestOf(['place', endpoint, scope])
}

export function kindIdOf(kind: string): string {
  return digestOf(['kind', kind])
}

function subjectIdOf({ subject }: JournalEntry): string {
  return subject === null ? NIL : digestOf(['subject', subject])
}

/** What the caller of `insert` saw, as the statement writes it too. */
export function seenText(seen: readonly Seen[]): string {
  return seen
    .map((one) => `${keyIdOf(one)}:${one.version}`)
    .toSorted()
    .join(',')
}

// ----------------------------------------------------------------------------------------------------------------- rows

export type Value = string | number | null

/** The columns in which an entry lies, with their types. */
const COLUMNS = {
  key_id: 'uuid',
  name_id: 'uuid',
  subject_id: 'uuid',
  place_id: 'uuid',
  endpoint: 'text',
  key: 'text',
  version: 'int8',
  scope: 'text',
  kind: 'text',
  subject: 'text',
  operation_id: 'text',
  state: 'text',
  named_at_ms: 'float8',
  planned_at_ms: 'float8',
  not_before_ms: 'float8',
  held_by: 'text',
  held_until_ms: 'float8',
  entry: 'text',
} as const

type Column = keyof typeof COLUMNS
export type Row = Readonly<Record<Column, Value>> & { readonly entry: string; readonly key_id: string }

/** The columns that a later version of an entry changes; the others are its name. */
const CHANGING = [
  'key_id',
  'version',
  'state',
  'planned_at_ms',
  'not_before_ms',
  'held_by',
  'held_until_ms',
  'entry',
] as const satisfies readonly Column[]
const ALL = Object.keys(COLUMNS) as Column[]

export function rowOf(entry: JournalEntry): Row {
  const { endpoint, key, version, scope, kind, subject, operationId, state, namedAtMs } = entry
  const isToSend = isDeliverable(entry)
  return {
    key_id: keyIdOf(entry),
    name_id: nameIdOf(entry),
    subject_id: subjectIdOf(entry),
    place_id: placeIdOf(entry),
    endpoint,
    key,
    version,
    scope,
    kind,
    subject,
    operation_id: operationId,
    state,
    named_at_ms: namedAtMs,
    planned_at_ms: isToSend ? nextLookAtMs(entry) : null,
    not_before_ms: isToSend ? entry.notBeforeMs : null,
    held_by: entry.claim?.owner ?? null,
    held_until_ms: entry.claim?.untilMs ?? null,
    entry: encodeEntry(entry),
  }
}

/** A list for each column, as `unnest` takes them. */
export function listsOf(rows: readonly Row[], columns: readonly Column[] = ALL): Value[][] {
  return columns.map((column) => rows.map((row) => row[column]))
}

export const changesOf = (rows: readonly Row[]): Value[][] => listsOf(rows, CHANGING)

/** `unnest($2::uuid[], …) WITH ORDINALITY AS i(key_id, …, n)` */
function unnest(first: number, columns: readonly Column[], more: readonly string[] = []): string {
  const lists = columns.map((column, index) => `$${first + index}::${COLUMNS[column]}[]`)
  const others = more.map((_, index) => `$${first + columns.length + index}::text[]`)
  return `unnest(${[...lists, ...others].join(', ')}) WITH ORDINALITY AS i(${[...columns, ...more, 'n'].join(', ')})`
}

// ----------------------------------------------------------------------------------------------------------- statements

/** Milliseconds by the server's clock. */
export const NOW_MS = '(extract(epoch FROM clock_timestamp()) * 1000)::float8'
const SAFE = "('on', 'remote_apply')"

/**
 * Before anything else of the statement, for its own transaction only: a commit waits until it is on the disk, whatever the
 * session says, and no lock is waited for as long as others in the group would have to wait with it.
 */
const SETUP = `setup AS MATERIALIZED (
  SELECT set_config('synchronous_commit',
      CASE WHEN current_setting('synchronous_commit') IN ${SAFE} THEN current_setting('synchronous_commit') ELSE 'on' END,
      true) AS synchronous,
    set_config('lock_timeout', $1::text, true) AS lock_timeout)`
const IS_SET_UP = `EXISTS (SELECT FROM setup WHERE synchronous IN ${SAFE})`

/** In the caller's own transaction its own settings hold. */
const settings = (isOwn: boolean): { setup: string; isSetUp: string; first: number; synchronous: string } =>
  isOwn
    ? { setup: `${SETUP},`, isSetUp: IS_SET_UP, first: 2, synchronous: '(SELECT synchronous FROM setup)' }
    : { setup: '', isSetUp: 'true', first: 1, synchronous: 'NULL' }

export interface Statements {
  readonly insert: string
  readonly replace: string
  readonly remove: string
  readonly get: string
  readonly getByKey: string
  readonly history: string
  readonly found: string
  readonly deliverable: string
  readonly count: string
  readonly knowsSince: string
  readonly take: string
  readonly left: string
  readonly isAnything: string
}

/**
 * The statements. Those that write answer with one row: `synchronous`, `now_ms` by the server's clock, and in `keys` those
 * of the entries (or in `done` the numbers of the tasks) that were written.
 *
 * @param isOwn in a transaction of its own, or in the caller's
 */
export function statementsOf({ entries, meta }: Names, isOwn: boolean): Statements {
  const { setup, isSetUp, first, synchronous } = settings(isOwn)
  const answer = (list: string): string => `SELECT ${synchronous} AS synchronous, ${NOW_MS} AS now_ms, ${list}`
  const given = columnList(CHANGING.filter((column) => column !== 'key_id'))
  const half = (states: string): string =>
    `SELECT endpoint, scope, state, count(*)::int AS count FROM ${entries} WHERE ${states} GROUP BY endpoint, scope, state`
  const isFree = (now: string, own: string): string =>
    `(held_until_ms IS NULL OR held_until_ms <= ${now} OR held_by = ANY(${own}))`
  const isDue = (now: string, due: string): string =>
    `CASE ${due} WHEN 'any' THEN true WHEN 'planned' THEN planned_at_ms <= ${now} ELSE not_before_ms <= ${now} END`

  return {
    // What is there of the name and of the key is locked, so that it is what it was when the new one comes. What is not there
    // cannot be locked: two who both saw nothing count the same `nth`, or bring the same key, and one of them conflicts.
    insert: `WITH ${setup}
      input AS MATERIALIZED (SELECT * FROM ${unnest(first, ALL, ['seen'])} WHERE ${isSetUp}),
      ids AS MATERIALIZED (
        SELECT i.n, e.id FROM input i JOIN ${entries} e ON e.key_id = i.key_id
        UNION
        SELECT i.n, e.id FROM input i JOIN ${entries} e ON e.name_id = i.name_id AND e.subject_id = i.subject_id),
      held AS MATERIALIZED (
        SELECT ids.n, e.key_id, e.version, e.nth, e.name_id, e.subject_id
        FROM ids JOIN ${entries} e ON e.id = ids.id ORDER BY e.id FOR UPDATE OF e),
      there AS MATERIALIZED (
        SELECT i.n, string_agg(h.key_id::text || ':' || h.version::text, ',' ORDER BY h.key_id::text COLLATE "C") AS what,
          max(h.nth) FILTER (WHERE h.name_id = i.name_id AND h.subject_id = i.subject_id) AS last
        FROM input i JOIN held h ON h.n = i.n GROUP BY i.n),
      done AS (
        INSERT INTO ${entries} (nth, ${columnList(ALL)})
        SELECT coalesce(t.last, 0) + 1, ${columnList(ALL, 'i.')}
        FROM input i LEFT JOIN there t ON t.n = i.n WHERE coalesce(t.what, '') = i.seen ORDER BY i.n
        ON CONFLICT DO NOTHING RETURNING key_id)
      ${answer("(SELECT string_agg(key_id::text, ',') FROM done) AS keys")}`,

    replace: `WITH ${setup}
      input AS MATERIALIZED (SELECT * FROM ${unnest(first, CHANGING)} WHERE ${isSetUp}),
      done AS (
        UPDATE ${entries} e SET (${given}) = ROW(${columnList(
          CHANGING.filter((column) => column !== 'key_id'),
          'i.',
        )})
        FROM input i WHERE e.key_id = i.key_id AND e.version = i.version - 1 RETURNING e.key_id)
      ${answer("(SELECT string_agg(key_id::text, ',') FROM done) AS keys")}`,

    // The lists: of which task an entry is, its key and its version.
    remove: `WITH ${setup}
      input AS MATERIALIZED (
        SELECT * FROM unnest($${first}::int4[], $${first + 1}::uuid[], $${first + 2}::int8[], $${first + 3}::text[])
          AS i(task, key_id, version, kind_id) WHERE ${isSetUp}),
      held AS MATERIALIZED (
        SELECT i.task, i.kind_id, e.id, e.named_at_ms FROM input i JOIN ${entries} e ON e.key_id = i.key_id AND e.version = i.version
        ORDER BY e.id FOR UPDATE OF e),
      whole AS MATERIALIZED (
        SELECT i.task FROM (SELECT task, count(*) AS count FROM input GROUP BY task) i
        JOIN (SELECT task, count(*) AS count FROM held GROUP BY task) h ON h.task = i.task AND h.count = i.count),
      gone AS (DELETE FROM ${entries} WHERE id IN (SELECT id FROM held WHERE task IN (SELECT task FROM whole))),
      noted AS (
        INSERT INTO ${meta} SELECT 'forgotten ' || kind_id, max(named_at_ms)::text FROM held
        WHERE task IN (SELECT task FROM whole) GROUP BY kind_id ORDER BY kind_id
        ON CONFLICT (name) DO UPDATE SET value = greatest(${meta}.value::float8, excluded.value::float8)::text)
      ${answer("(SELECT string_agg(task::text, ',') FROM whole) AS done")}`,

    get: `SELECT e.key_id::text AS for_id, e.entry FROM unnest($1::uuid[]) AS i(key_id) JOIN ${entries} e ON e.key_id = i.key_id`,
    getByKey: `SELECT entry FROM ${entries} WHERE key = $1 ORDER BY id`,
    history: `SELECT e.name_id::text AS for_id, e.entry FROM unnest($1::uuid[]) AS i(name_id)
      JOIN ${entries} e ON e.name_id = i.name_id ORDER BY e.id`,
    found: `SELECT i.key_id::text AS for_id, e.entry
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS i(key_id, name_id, subject_id)
      JOIN LATERAL (
        SELECT id FROM ${entries} WHERE key_id = i.key_id
        UNION SELECT id FROM ${entries} WHERE name_id = i.name_id AND subject_id = i.subject_id) ids ON true
      JOIN ${entries} e ON e.id = ids.id ORDER BY e.id`,
    deliverable: `SELECT id::text AS at, entry FROM ${entries}
      WHERE place_id = $1 AND ${IS_DELIVERABLE} AND id > $2 ORDER BY id LIMIT $3`,
    count: `${half(IS_DELIVERABLE)} UNION ALL ${half(IS_WAITING)}`,
    knowsSince: `SELECT greatest(max(value::float8))::text AS value FROM ${meta} WHERE name = 'born_at_ms' OR name = 'forgotten ' || $1::text`,

    // Handing out is no promise, so nothing waits for the disk. What others are just changing is left to them.
    take: `WITH setup AS MATERIALIZED (
        SELECT set_config('synchronous_commit', 'off', true) AS synchronous, ${NOW_MS} AS now_ms),
      due AS MATERIALIZED (
        SELECT id FROM ${entries}
        WHERE place_id = $1 AND ${IS_DELIVERABLE} AND id > $2 AND kind = ANY($3::text[])
          AND ${isDue('(SELECT now_ms FROM setup)', '$4::text')} AND ${isFree('(SELECT now_ms FROM setup)', '$5::text[]')}
        ORDER BY id LIMIT $6 FOR UPDATE SKIP LOCKED),
      taken AS (
        UPDATE ${entries} e SET held_by = $7, held_until_ms = (SELECT now_ms FROM setup) + $8::float8
        FROM due WHERE e.id = due.id RETURNING e.id, e.entry)
      SELECT taken.id::text AS at, entry, (SELECT synchronous FROM setup) AS synchronous FROM taken ORDER BY taken.id`,
    left: `SELECT count(*) FILTER (WHERE kind <> ALL($2::text[]))::int AS strange,
        min(greatest(planned_at_ms, held_until_ms)) FILTER (WHERE kind = ANY($2::text[]))::text AS next_at_ms,
        array_agg(DISTINCT held_by) FILTER (WHERE held_until_ms > ${NOW_MS} AND held_by <> $3) AS holders
      FROM ${entries} WHERE place_id = $1 AND ${IS_DELIVERABLE}`,
    isAnything: `SELECT 1 AS is FROM ${entries}
      WHERE place_id = $1 AND ${IS_DELIVERABLE} AND kind = ANY($2::text[]) AND planned_at_ms <= ${NOW_MS}
        AND (held_until_ms IS NULL OR held_until_ms <= ${NOW_MS}) LIMIT 1`,
  }
}

function columnList(columns: readonly Column[], alias = ''): string {
  return columns.map((column) => `${alias}${column}`).join(', ')
}

/** A listing: by the index of what is open, by a name, or else through the table in slices. */
export function listOf(
  { entries }: Names,
  filter: ListFilter,
  limit: number,
  after: string,
): { readonly text: string; readonly values: unknown[]; readonly isSliced: boolean } {
  const { endpoint, scope, kind, operationId, states } = filter
  const values: unknown[] = [after, limit + 1]
  const conditions: string[] = []
  const add = (condition: (value: string) => string, value: unknown): void => {
    values.push(value)
    conditions.push(condition(`$${values.length}`))
  }
  if (endpoint !== undefined) add((value) => `endpoint = ${value}`, endpoint)
  if (scope !== undefined) add((value) => `scope = ${value}`, scope)
  if (kind !== undefined) add((value) => `kind = ${value}`, kind)
  if (operationId !== undefined) add((value) => `operation_id = ${value}`, operationId)
  if (states !== undefined) add((value) => `state = ANY(${value}::text[])`, states)
  const isNamed = scope !== undefined && kind !== undefined && operationId !== undefined
  const isOfOpen = states?.every((state) => OPEN.includes(state)) === true
  if (isNamed) add((value) => `name_id = ${value}`, nameIdOf({ scope, kind, operationId }))
  else if (isOfOpen && endpoint !== undefined && scope !== undefined)
    add((value) => `place_id = ${value}`, placeIdOf({ endpoint, scope }))
  const all = ['true', ...conditions].join(' AND ')
  if (isNamed || isOfOpen) {
    const of = (states: string): string =>
      `(SELECT id, entry FROM ${entries} WHERE id > $1 AND ${states} AND ${all} ORDER BY id LIMIT $2)`
    const from = isOfOpen ? `${of(IS_DELIVERABLE)} UNION ALL ${of(IS_WAITING)}` : of('true')
    return {
      text: `SELECT e.id::text AS at, entry FROM (${from}) AS e ORDER BY e.id LIMIT $2`,
      values,
      isSliced: false,
    }
  }
  return {
    text: `WITH slice AS MATERIALIZED (SELECT id FROM ${entries} WHERE id > $1 ORDER BY id LIMIT ${SLICE})
      SELECT s.last::text AS last, m.id::text AS at, m.entry FROM (SELECT max(id) AS last FROM slice) s LEFT JOIN LATERAL (
        SELECT id, entry FROM ${entries} WHERE id > $1 AND id <= s.last AND ${all} ORDER BY id LIMIT $2) m ON true
      ORDER BY m.id`,
    values,
    isSliced: true,
  }
}

const OPEN: readonly string[] = ['pending', 'sending', 'accepted', 'unknown']
/** Rows that one statement of a listing looks at, so that none runs long. */
const SLICE = 5000
