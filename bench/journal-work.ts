/**
 * What the benches of the SQLite journal share: operations with random keys, as keys are; files with as many final entries
 * as wanted; load, and what it does to the event loop of the thread that asks for it.
 */
import { DatabaseSync } from 'node:sqlite'
import { randomUUID } from 'node:crypto'
import type { JournalEntry, JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { sampleEntry } from '../src/testing/store-suite.ts'
import { quantile } from './report.ts'

export const DAY_MS = 86_400_000

/** One operation: its entry as it begins and as it is settled. */
export interface Operation {
  readonly begun: JournalEntry
  readonly settled: JournalEntry
}

/** Keys are random by nature, which is what makes a large index slow; names are numbered, as orders and jobs are. */
let number = 0

export function operationOf(kind = 'usage'): Operation {
  const key = randomUUID()
  const sample = {
    key,
    operationId: `export-${process.pid}-${(number += 1)}`,
    kind,
    subject: 'exports',
    namedAtMs: Date.now(),
  }
  return {
    begun: sampleEntry({ ...sample, state: 'sending' }),
    settled: sampleEntry({ ...sample, state: 'succeeded', version: 2 }),
  }
}

/** Begins and settles one operation, each durable. */
export type Work = () => Promise<void>

export function workOf(store: JournalStore): Work {
  return async () => {
    const { begun, settled } = operationOf()
    const { inserted } = await store.insert(begun, [])
    if (!inserted || !(await store.replace(settled))) throw new Error('An operation of its own name was refused.')
  }
}

export interface Load {
  readonly rate: number
  /** Latencies of single pieces of work. */
  readonly tookMs: readonly number[]
  /** How late a timer of 1 ms was. */
  readonly lateMs: readonly number[]
}

/** Does a work so many at a time for a while. */
export async function loadOf(work: Work, concurrency: number, forMs: number): Promise<Load> {
  const tookMs: number[] = []
  const lateMs: number[] = []
  let dueAtMs = performance.now() + 1
  const timer = setInterval(() => {
    const nowMs = performance.now()
    lateMs.push(Math.max(0, nowMs - dueAtMs))
    dueAtMs = nowMs + 1
  }, 1)
  const beganMs = performance.now()
  const untilMs = beganMs + forMs
  await Promise.all(
    Array.from({ length: concurrency }, async () => {
      while (performance.now() < untilMs) {
        const atMs = performance.now()
        await work()
        tookMs.push(performance.now() - atMs)
      }
    }),
  )
  clearInterval(timer)
  return { rate: (tookMs.length / (performance.now() - beganMs)) * 1000, tookMs, lateMs }
}

/** The same timer where nothing is done. */
export async function idleLateMs(forMs: number): Promise<number> {
  const { lateMs } = await loadOf(() => new Promise((resolve) => setTimeout(resolve, forMs)), 1, forMs)
  return quantile(lateMs, 0.99)
}

/**
 * Makes a journal with final entries, settled one after the other over the last 90 days, and open ones. By SQL, since a
 * million calls would take their time; the rows are those that calls would have left.
 */
export async function fillJournal(path: string, finals: number, opens: number): Promise<void> {
  const journal = sqliteJournal({ path })
  for (let index = 0; index < opens; index += 1) await journal.insert(operationOf().begun, [])
  await journal.close()
  if (finals === 0) return
  const db = new DatabaseSync(path)
  const { settled } = operationOf()
  const beganAtMs = Date.now() - 90 * DAY_MS
  const text = JSON.stringify(settled)
    .replaceAll(settled.key, '{key}')
    .replaceAll(settled.operationId, 'export-{number}')
    .replaceAll(/"settledAtMs":\d+/g, '"settledAtMs":{settled}')
  const indexes = db.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").all()
  db.exec('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000')
  // The indexes afterwards: in the order of their keys that is much faster.
  for (const index of indexes) db.exec(`DROP INDEX ${String(index['name'])}`)
  db.prepare(
    `WITH RECURSIVE n (i, key) AS (
       SELECT 1, lower(hex(randomblob(16))) UNION ALL SELECT i + 1, lower(hex(randomblob(16))) FROM n WHERE i < :finals)
     INSERT INTO entries
       (endpoint, key, version, scope, kind, subject, operation_id, state, prunable_from_ms, is_lean, entry)
     SELECT :endpoint, key, 2, :scope, :kind, :subject, 'export-' || (:first + i), 'succeeded', :began + i * :step, 0,
       replace(replace(replace(:text, '{key}', key), '{number}', :first + i), '{settled}', CAST(:began + i * :step AS INTEGER)) FROM n`,
  ).run({
    finals,
    first: beganAtMs * 1000,
    began: beganAtMs,
    step: Math.floor((90 * DAY_MS) / finals),
    text,
    endpoint: settled.endpoint,
    scope: settled.scope,
    kind: settled.kind,
    subject: settled.subject,
  })
  for (const index of indexes) db.exec(String(index['sql']))
  db.exec('PRAGMA journal_mode = WAL')
  db.close()
}
