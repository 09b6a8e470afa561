/**
 * How the journal lies in PostgreSQL: names, tables, and the script that makes them, safe to run twice and at once. What is
 * asked of the tables is postgres-statements.ts's.
 */
import { InvalidInputError, JournalUnavailableError } from '../errors.ts'
import type { Fields, Query } from './postgres-work.ts'

export interface PostgresJournalPlace {
  /** The schema; made if it is not there. Letters, digits and `_`, at most 63. Default `public`. */
  readonly schema?: string | undefined
  /** What the names of the tables begin with; letters, digits and `_`, at most 32. Default `billonce_`. */
  readonly prefix?: string | undefined
}

/** Names as they stand in statements: quoted, and with their schema. */
export interface Names {
  readonly entries: string
  readonly meta: string
  readonly schema: string
  readonly prefix: string
}

/**
 * What a version has to know to write in the tables without doing harm. It is raised only when an older version could do harm;
 * what is added beside, such as the columns and indexes that pruning goes by, is looked for in the catalog, and workers of an
 * older version go on at the same tables.
 */
export const TABLE_FORMAT = 1
/** `MATERIALIZED` (12) is the youngest thing that is used. */
const OLDEST_SERVER = 120_000

/**
 * @throws {InvalidInputError} for names that would need more than quotes
 */
export function readPlace(place: PostgresJournalPlace): Names {
  const { schema = 'public', prefix = 'billonce_' } = place
  readIdentifier(schema, 'schema', 63)
  // With room for the names of the indexes: PostgreSQL cuts off what is longer than 63, and two of them would meet.
  readIdentifier(prefix, 'prefix', 32)
  return { entries: `"${schema}"."${prefix}entries"`, meta: `"${schema}"."${prefix}meta"`, schema, prefix }
}

function readIdentifier(value: unknown, field: string, most: number): void {
  if (typeof value !== 'string' || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(value) || value.length > most) {
    throw new InvalidInputError(
      field,
      `${field} must be letters, digits and _, not begin with a digit, and have at most ${most} characters.`,
    )
  }
}

/** Where partial indexes look; a query that is to use one repeats its text. */
export const IS_DELIVERABLE = "state IN ('pending', 'sending')"
export const IS_WAITING = "state IN ('accepted', 'unknown')"
export const IS_PRUNABLE = "prunable_from_ms < 'Infinity'"
/** Final, and written by a version that did not say yet since when it is prunable; the next pruning does. */
export const IS_UNDATED = "state IN ('succeeded', 'rejected', 'canceled') AND prunable_from_ms IS NULL"

/**
 * One table, and a small one beside it for its format, its birth and what pruning took. Ids rise in the order of insertion,
 * which is what pages go by. Names are looked up by digests of them (see postgres-statements.ts), since an index takes no
 * text of any length; the texts beside them are for people. `nth` counts the entries of a name: of two that saw the same and
 * insert at once, the unique index lets one. Collation "C", because an index in the order of a language breaks when the
 * operating system's idea of that order changes. Pages keep some room, so that a claim can be written beside what it changes,
 * and vacuum comes early, or what was settled would lie in the way of what is due. A final entry says since when it is prunable,
 * or that it never is (`Infinity`), and whether its body has gone.
 */
function stepsOf(names: Names): string {
  const { entries, meta, prefix } = names
  return `
    CREATE TABLE IF NOT EXISTS ${meta} (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
    DO $billonce$
    BEGIN
      IF NOT EXISTS (SELECT FROM ${meta} WHERE name = 'format') THEN
        CREATE TABLE ${entries} (
          id bigint GENERATED ALWAYS AS IDENTITY,
          key_id uuid NOT NULL,
          name_id uuid NOT NULL,
          subject_id uuid NOT NULL,
          nth integer NOT NULL,
          place_id uuid NOT NULL,
          endpoint text COLLATE "C" NOT NULL,
          key text COLLATE "C" NOT NULL,
          version bigint NOT NULL,
          scope text COLLATE "C" NOT NULL,
          kind text COLLATE "C" NOT NULL,
          subject text COLLATE "C",
          operation_id text COLLATE "C" NOT NULL,
          state text COLLATE "C" NOT NULL,
          named_at_ms double precision NOT NULL,
          planned_at_ms double precision,
          not_before_ms double precision,
          held_by text COLLATE "C",
          held_until_ms double precision,
          entry text NOT NULL,
          prunable_from_ms double precision,
          is_lean boolean,
          CONSTRAINT "${prefix}entries_by_id" PRIMARY KEY (id),
          CONSTRAINT "${prefix}entries_by_key" UNIQUE (key_id),
          CONSTRAINT "${prefix}entries_by_name" UNIQUE (name_id, subject_id, nth)
        ) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
        CREATE INDEX "${prefix}entries_deliverable" ON ${entries} (place_id, id) WHERE ${IS_DELIVERABLE};
        CREATE INDEX "${prefix}entries_waiting" ON ${entries} (place_id, id) WHERE ${IS_WAITING};
        INSERT INTO ${meta} VALUES
          ('format', '${TABLE_FORMAT}'),
          ('born_at_ms', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint::text);
        ${laterIndexesOf(names)
          .map(({ made }) => `CREATE INDEX ${made};`)
          .join('\n        ')}
      ELSIF NOT ${isCurrentSql(names)} THEN
        -- Done in no time, once it has its turn. Others wait behind it, so it does not wait long itself, and comes again.
        PERFORM set_config('lock_timeout', '100ms', true);
        ALTER TABLE ${entries} ADD COLUMN prunable_from_ms double precision, ADD COLUMN is_lean boolean;
      END IF;
    END
    $billonce$;`
}

/**
 * Indexes that earlier tables do not have. The hash takes a key of any length. The others have nothing to do with an entry
 * before it is final, and the last is empty but for what earlier versions wrote.
 */
function laterIndexesOf({ entries, prefix }: Names): readonly { readonly name: string; readonly made: string }[] {
  const index = (name: string, what: string): { name: string; made: string } => ({
    name: `${prefix}entries_${name}`,
    made: `"${prefix}entries_${name}" ON ${entries} ${what}`,
  })
  return [
    index('by_text', 'USING hash (key)'),
    index('prunable', `(place_id, kind, is_lean, prunable_from_ms, id) WHERE ${IS_PRUNABLE}`),
    index('undated', `(place_id, id) WHERE ${IS_UNDATED}`),
  ]
}

/** Names of the later indexes that are there and whole, or are there and not. */
function indexesSql(names: Names, isWhole: boolean): string {
  const list = laterIndexesOf(names).map(({ name }) => `'${name}'`)
  return `SELECT c.relname::text AS name FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
      WHERE i.indrelid = to_regclass('${names.entries}') AND c.relname IN (${list.join(', ')}) AND ${isWhole ? '' : 'NOT '}i.indisvalid`
}

/** Whoever builds one holds this lock until the end, so that what then is not whole was left by somebody who died over it. */
function dropBrokenSql(names: Names, lock: 'SHARE' | 'SHARE UPDATE EXCLUSIVE'): string {
  return `LOCK TABLE ${names.entries} IN ${lock} MODE;
        FOR broken IN ${indexesSql(names, false)} LOOP
          EXECUTE format('DROP INDEX %I.%I', '${names.schema}', broken);
        END LOOP;`
}

/** The later indexes at once, in the transaction of the script. Nobody writes meanwhile, for one pass over the table. */
function plainIndexesSql(names: Names): string {
  const all = laterIndexesOf(names)
  return `
    DO $billonce$
    DECLARE
      broken text;
    BEGIN
      IF (SELECT count(*) FROM (${indexesSql(names, true)}) AS whole) < ${all.length} THEN
        ${dropBrokenSql(names, 'SHARE')}
        ${all.map(({ made }) => `CREATE INDEX IF NOT EXISTS ${made};`).join('\n        ')}
      END IF;
    END
    $billonce$;`
}

/**
 * Builds the later indexes without holding up anybody, which no transaction can do; it takes a while and waits for
 * transactions that are open. Safe to run twice and at once: of two who build at once PostgreSQL would end one, so whoever
 * sees another at it leaves it to that one, and who began in the same moment comes again.
 *
 * @param isPatient waits for another who builds them
 * @throws {JournalUnavailableError} they are not there
 */
export async function buildIndexes(query: Query, names: Names, isPatient: boolean): Promise<void> {
  const isWhole = async (name: string): Promise<boolean> =>
    (await query(indexesSql(names, true))).some((row) => row['name'] === name)
  for (const { name, made } of laterIndexesOf(names)) {
    for (let tries = 0; !(await isWhole(name));) {
      const others = await query(
        `SELECT 1 AS is FROM pg_catalog.pg_stat_progress_create_index WHERE relid = to_regclass('${names.entries}') AND datname = current_database()`,
      )
      if (others.length > 0 && !isPatient) throw refused(`Another builds the index ${name}.`, 'unavailable')
      if (others.length > 0) {
        await new Promise((resolve) => setTimeout(resolve, BUILT_MS))
        continue
      }
      tries += 1
      if (tries === 3) throw refused(`The index ${name} could not be built.`, 'unavailable')
      if (tries === 2) {
        await query(
          `DO $billonce$ DECLARE broken text; BEGIN PERFORM set_config('lock_timeout', '300ms', true);
            ${dropBrokenSql(names, 'SHARE UPDATE EXCLUSIVE')}
          EXCEPTION WHEN lock_not_available THEN NULL; END $billonce$`,
        )
      }
      await query(`CREATE INDEX CONCURRENTLY IF NOT EXISTS ${made}`)
    }
  }
}

/** How often it is looked whether another is done with building. */
const BUILT_MS = 250

/** Whether pruning can go by the indexes. */
export async function hasIndexes(query: Query, names: Names): Promise<boolean> {
  return (await query(indexesSql(names, true))).length === laterIndexesOf(names).length
}

/**
 * The whole script, one transaction; who comes second waits for the first and then finds the work done.
 *
 * @param isComplete with the indexes that earlier tables do not have; else those are left to {@link buildIndexes}
 */
export function scriptOf(names: Names, isComplete: boolean): string {
  const { schema, entries } = names
  return `
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SELECT pg_advisory_xact_lock(hashtextextended('billonce ${entries}', 0));
    DO $billonce$
    BEGIN
      -- Read as a table, which the lock just waited for does not leave stale as it does the caches behind to_regnamespace.
      IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '${schema}') THEN
        CREATE SCHEMA "${schema}";
      END IF;
    END
    $billonce$;${stepsOf(names)}${isComplete ? plainIndexesSql(names) : ''}
    COMMIT;`
}

/** Runs it without the indexes that earlier tables do not have. */
export async function runScript(query: Query, names: Names): Promise<void> {
  try {
    await query(scriptOf(names, false))
  } catch (error) {
    // The connection is the pool's again after this, and is not to come to the next one with a transaction that has failed.
    await query('ROLLBACK').catch(() => {})
    throw error
  }
}

/** What a look at the tables has found. */
export interface Inspected {
  /** When the journal was born; nothing if there are no tables. */
  readonly bornAtMs: number | undefined
  /** Whether they have the columns of this version. */
  readonly isCurrent: boolean
}

/**
 * Looks whether the tables are there and are ours, and whether this server keeps what it says it has kept.
 *
 * @throws {JournalUnavailableError} they are another's, of a newer version, or not safe
 */
export async function inspect(query: Query, names: Names, allowFsyncOff: boolean): Promise<Inspected> {
  const [server] = await query(
    `SELECT current_setting('server_version_num') AS version, current_setting('server_encoding') AS encoding,
      current_setting('fsync') AS fsync, to_regclass('${names.entries}') IS NOT NULL AND to_regclass('${names.meta}') IS NOT NULL AS "isThere",
      ${isCurrentSql(names)} AS "isCurrent",
      coalesce((SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass('${names.entries}')), 'p') AS persistence`,
  )
  if (Number(server?.['version']) < OLDEST_SERVER)
    throw refused('The journal needs PostgreSQL 12 or newer.', 'unavailable')
  if (server?.['encoding'] !== 'UTF8') {
    throw refused(
      `The journal needs a database in UTF8; this one is in ${String(server?.['encoding'])}.`,
      'unavailable',
    )
  }
  if (server?.['fsync'] !== 'on' && !allowFsyncOff) {
    throw refused(
      'The server runs with fsync off, so a commit may be gone after a power cut. Turn it on, or pass allowFsyncOff: true where nothing is at stake, such as in tests.',
      'unavailable',
    )
  }
  if (String(server?.['isThere']) !== 'true') return { bornAtMs: undefined, isCurrent: false }
  if (server?.['persistence'] !== 'p')
    throw refused(`The table ${names.entries} is unlogged or temporary, so a crash empties it.`, 'unavailable')
  const bornAtMs = readFormat(await query(metaSql(names)), names)
  return { bornAtMs, isCurrent: String(server?.['isCurrent']) === 'true' }
}

/** Whether the tables have the columns of this version. */
export function isCurrentSql({ entries }: Names): string {
  return `EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass('${entries}') AND attname = 'is_lean' AND NOT attisdropped)`
}

export function metaSql({ meta }: Names): string {
  return `SELECT name, value FROM ${meta} WHERE name IN ('format', 'born_at_ms')`
}

/**
 * @returns when the journal was born
 * @throws {JournalUnavailableError} it is of a newer version, or does not say of which
 */
export function readFormat(rows: readonly Fields[], names: Names): number {
  const valueOf = (name: string): number => Number(rows.find((row) => row['name'] === name)?.['value'] ?? Number.NaN)
  const [format, bornAtMs] = [valueOf('format'), valueOf('born_at_ms')]
  if (format > TABLE_FORMAT) {
    throw refused(
      `The journal ${names.entries} has format ${format}, of a newer version of billonce; this one reads up to ${TABLE_FORMAT}. Update it; the tables were left as they are.`,
      'newer-format',
    )
  }
  if (!Number.isInteger(format) || !Number.isFinite(bornAtMs)) {
    throw refused(`The table ${names.meta} does not say of which format the journal is.`, 'damaged')
  }
  return bornAtMs
}

export function refused(message: string, fault: JournalUnavailableError['fault']): JournalUnavailableError {
  return new JournalUnavailableError(message, { fault })
}
