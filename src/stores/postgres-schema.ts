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

/** Which tables this version makes; a later one adds a step to the script and takes the next number. */
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

/**
 * One table, and a small one beside it for its format, its birth and what pruning took. Ids rise in the order of insertion,
 * which is what pages go by. Names are looked up by digests of them (see postgres-statements.ts), since an index takes no
 * text of any length; the texts beside them are for people. `nth` counts the entries of a name: of two that saw the same and
 * insert at once, the unique index lets one. Collation "C", because an index in the order of a language breaks when the
 * operating system's idea of that order changes. Pages keep some room, so that a claim can be written beside what it changes,
 * and vacuum comes early, or what was settled would lie in the way of what is due.
 */
function stepsOf({ entries, meta, prefix }: Names): string {
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
          CONSTRAINT "${prefix}entries_by_id" PRIMARY KEY (id),
          CONSTRAINT "${prefix}entries_by_key" UNIQUE (key_id),
          CONSTRAINT "${prefix}entries_by_name" UNIQUE (name_id, subject_id, nth)
        ) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
        CREATE INDEX "${prefix}entries_deliverable" ON ${entries} (place_id, id) WHERE ${IS_DELIVERABLE};
        CREATE INDEX "${prefix}entries_waiting" ON ${entries} (place_id, id) WHERE ${IS_WAITING};
        INSERT INTO ${meta} VALUES
          ('format', '${TABLE_FORMAT}'),
          ('born_at_ms', floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint::text);
      END IF;
    END
    $billonce$;`
}

/** The whole script, one transaction; who comes second waits for the first and then finds the work done. */
export function scriptOf(names: Names): string {
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
    $billonce$;${stepsOf(names)}
    COMMIT;`
}

/**
 * Looks whether the tables are there and are ours, and whether this server keeps what it says it has kept.
 *
 * @returns when the journal was born, or nothing if there are no tables
 * @throws {JournalUnavailableError} they are another's, of a newer version, or not safe
 */
export async function inspect(query: Query, names: Names, allowFsyncOff: boolean): Promise<number | undefined> {
  const [server] = await query(
    `SELECT current_setting('server_version_num') AS version, current_setting('server_encoding') AS encoding,
      current_setting('fsync') AS fsync, to_regclass('${names.entries}') IS NOT NULL AND to_regclass('${names.meta}') IS NOT NULL AS "isThere",
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
  if (String(server?.['isThere']) !== 'true') return undefined
  if (server?.['persistence'] !== 'p')
    throw refused(`The table ${names.entries} is unlogged or temporary, so a crash empties it.`, 'unavailable')
  return readFormat(await query(metaSql(names)), names)
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
