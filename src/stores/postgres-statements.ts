/**
 * What is asked of the tables: the text of each statement and the row of an entry. Each write is one statement for many
 * entries, so a transaction of its own, which any pooler can hand to any connection. When they run is postgres-work.ts's.
 */
import { v5 as uuidV5, NIL } from 'uuid'
import { isDeliverable, isFinal, nextLookAtMs } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import { encodeEntry } from './codec.ts'
import { IS_DELIVERABLE, IS_PRUNABLE, IS_UNDATED, IS_WAITING } from './postgres-schema.ts'
import type { Names } from './postgres-schema.ts'
import { prunableFromMs } from './store.ts'
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

export type Value = string | number | boolean | null

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
  prunable_from_ms: 'float8',
  is_lean: 'bool',
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
  'prunable_from_ms',
  'is_lean',
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
    ...pruningOf(entry),
  }
}

/** What pruning goes by: nothing for what is open, and for what will never be pruned a time that never comes. */
export function pruningOf(entry: JournalEntry): { prunable_from_ms: number | null; is_lean: boolean | null } {
  return isFinal(entry)
    ? { prunable_from_ms: prunableFromMs(entry) ?? Infinity, is_lean: entry.request.body === null }
    : { prunable_from_ms: null, is_lean: null }
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
  readonly prunable: string
  readonly undated: string
  readonly date: string
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
    // OFFSET 0 keeps it to one look into the index for each name: a planner who does not know the table yet takes a name for
    // one of two hundred, and reads the table for many names.
    history: `SELECT i.name_id::text AS for_id, e.entry FROM unnest($1::uuid[]) AS i(name_id)
      CROSS JOIN LATERAL (SELECT id, entry FROM ${entries} WHERE name_id = i.name_id OFFSET 0) e ORDER BY e.id`,
    found: `SELECT i.key_id::text AS for_id, e.entry
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS i(key_id, name_id, subject_id)
      JOIN LATERAL (
        SELECT id FROM ${entries} WHERE key_id = i.key_id
        UNION SELECT id FROM ${entries} WHERE name_id = i.name_id AND subject_id = i.subject_id) ids ON true
      JOIN ${entries} e ON e.id = ids.id ORDER BY e.id`,
    deliverable: `SELECT id::text AS at, entry FROM ${entries}
      WHERE ${IS_DELIVERABLE} AND ${isAfter('$1', '$2')} ORDER BY place_id, id LIMIT $3`,
    count: `${half(IS_DELIVERABLE)} UNION ALL ${half(IS_WAITING)}`,
    knowsSince: `SELECT greatest(max(value::float8))::text AS value FROM ${meta} WHERE name = 'born_at_ms' OR name = 'forgotten ' || $1::text`,

    // By ranges of the index, each of one kind, with bodies or without, and in the order of settlement.
    prunable: `WITH RECURSIVE kinds AS (
        (SELECT kind FROM ${entries} WHERE place_id = $1 AND ${IS_PRUNABLE} ORDER BY kind LIMIT 1)
        UNION ALL
        SELECT (SELECT e.kind FROM ${entries} e WHERE e.place_id = $1 AND ${IS_PRUNABLE} AND e.kind > kinds.kind ORDER BY e.kind LIMIT 1)
        FROM kinds WHERE kinds.kind IS NOT NULL),
      ranges AS (
        SELECT k.kind, lean.is_lean,
          greatest(CASE WHEN lean.is_lean THEN '-Infinity' ELSE $2::float8 END, coalesce(n.at_ms, '-Infinity')) AS until_ms
        FROM kinds k CROSS JOIN (VALUES (false), (true)) AS lean(is_lean)
        LEFT JOIN unnest($3::text[], $4::float8[]) AS n(kind, at_ms) ON n.kind = k.kind
        WHERE k.kind IS NOT NULL AND (k.kind, lean.is_lean) >= ($5::text, $6::bool))
      SELECT m.id::text AS at, m.version::text AS version, m.kind, m.is_lean::text AS is_lean, m.prunable_from_ms::text AS from_ms, m.entry
      FROM ranges r CROSS JOIN LATERAL (
        SELECT e.id, e.version, e.kind, e.is_lean, e.prunable_from_ms, e.entry FROM ${entries} e
        WHERE e.place_id = $1 AND ${IS_PRUNABLE} AND e.kind = r.kind AND e.is_lean = r.is_lean AND e.prunable_from_ms <= r.until_ms
          AND (e.prunable_from_ms, e.id) > (
            CASE WHEN r.kind = $5::text AND r.is_lean = $6::bool THEN $7::float8 ELSE '-Infinity' END,
            CASE WHEN r.kind = $5::text AND r.is_lean = $6::bool THEN $8::int8 ELSE 0 END)
        ORDER BY e.prunable_from_ms, e.id LIMIT $9) m
      ORDER BY m.kind, m.is_lean, m.prunable_from_ms, m.id LIMIT $9`,
    undated: `SELECT id::text AS at, version::text AS version, entry FROM ${entries}
      WHERE place_id = $1 AND ${IS_UNDATED} AND id > $2 ORDER BY id LIMIT $3`,
    // No promise either, and what others are just changing is left to them.
    date: `WITH input AS MATERIALIZED (SELECT * FROM unnest($1::int8[], $2::int8[], $3::float8[], $4::bool[]) AS i(id, version, from_ms, is_lean)),
      free AS MATERIALIZED (
        SELECT e.id, i.from_ms, i.is_lean FROM input i JOIN ${entries} e ON e.id = i.id AND e.version = i.version
        ORDER BY e.id FOR UPDATE OF e SKIP LOCKED)
      UPDATE ${entries} e SET prunable_from_ms = free.from_ms, is_lean = free.is_lean FROM free WHERE e.id = free.id`,

    // Handing out is no promise, so nothing waits for the disk. What others are just changing is left to them.
    take: `WITH setup AS MATERIALIZED (
        SELECT set_config('synchronous_commit', 'off', true) AS synchronous, ${NOW_MS} AS now_ms),
      due AS MATERIALIZED (
        SELECT id FROM ${entries}
        WHERE ${IS_DELIVERABLE} AND ${isAfter('$1', '$2')} AND kind = ANY($3::text[])
          AND ${isDue('(SELECT now_ms FROM setup)', '$4::text')} AND ${isFree('(SELECT now_ms FROM setup)', '$5::text[]')}
        ORDER BY place_id, id LIMIT $6 FOR UPDATE SKIP LOCKED),
      taken AS (
        UPDATE ${entries} e SET held_by = $7, held_until_ms = (SELECT now_ms FROM setup) + $8::float8
        FROM due WHERE e.id = due.id RETURNING e.id, e.entry)
      SELECT taken.id::text AS at, entry, (SELECT synchronous FROM setup) AS synchronous FROM taken ORDER BY taken.id`,
    left: `SELECT count(*) FILTER (WHERE kind <> ALL($2::text[]))::int AS strange,
        min(greatest(planned_at_ms, held_until_ms)) FILTER (WHERE kind = ANY($2::text[]))::text AS next_at_ms,
        array_agg(DISTINCT held_by) FILTER (WHERE held_until_ms > ${NOW_MS} AND held_by <> $3) AS holders
      FROM ${entries} WHERE ${IS_DELIVERABLE} AND ${isAfter('$1', '0')}`,
    isAnything: `SELECT 1 AS is FROM ${entries}
      WHERE ${IS_DELIVERABLE} AND ${isAfter('$1', '0')} AND kind = ANY($2::text[]) AND planned_at_ms <= ${NOW_MS}
        AND (held_until_ms IS NULL OR held_until_ms <= ${NOW_MS}) ORDER BY place_id, id LIMIT 1`,
  }
}

/**
 * Of one place, after an id. In these words, and ordered by both, only the index of what is open has the order: else the ids of the whole table
 * would look like the shorter way to a planner who does not know the table yet, or as it was when most of it was open.
 */
function isAfter(placeId: string, id: string): string {
  return `(place_id, id) > (${placeId}::uuid, ${id}::int8) AND place_id <= ${placeId}::uuid`
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
  // Where the index has no ids in it, those of the whole table are not to look like the shorter way either.
  let order = 'id + 0'
  if (isNamed) add((value) => `name_id = ${value}`, nameIdOf({ scope, kind, operationId }))
  else if (isOfOpen && endpoint !== undefined && scope !== undefined) {
    order = 'place_id, id'
    add((value) => isAfter(value, '$1'), placeIdOf({ endpoint, scope }))
  }
  const all = ['true', ...conditions].join(' AND ')
  if (isNamed || isOfOpen) {
    const of = (states: string): string =>
      `(SELECT id, entry FROM ${entries} WHERE id + 0 > $1 AND ${states} AND ${all} ORDER BY ${order} LIMIT $2)`
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
