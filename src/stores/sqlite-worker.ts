/**
 * What runs in the thread of the SQLite journal: opens or creates the file, looks whether it is ours and whole, groups
 * writes into transactions, answers reads. Which thread runs when, and what an entry is, is sqlite.ts's.
 *
 * The thread is started from the text of `sqliteWorker` (`String(sqliteWorker)`), because no file name would survive every
 * bundler, loader and test runner. So nothing outside the function may be used in it but types and what a bare Node has.
 * And no function in it gets a name by declaration or assignment, only as a method: bundlers that keep names would put a
 * call of a helper of theirs around it, which is not there in the thread (test/stores/sqlite-bundle.test.ts).
 */
import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite'
import type { JournalFault } from '../errors.ts'

/**
 * An entry as it lies in its row: a list, since the names of an object would travel with each message to the thread. First
 * what changes or finds it, then what stays.
 */
export type Row = readonly [
  endpoint: string,
  key: string,
  version: number,
  state: string,
  prunableFromMs: number | null,
  isLean: 0 | 1,
  text: string,
  scope: string,
  kind: string,
  subject: string | null,
  operationId: string,
]

/** What a change of an entry changes and by what it is found. */
export type Change = readonly [
  endpoint: string,
  key: string,
  version: number,
  state: string,
  /** When it was settled, if pruning will have something to do with it. */
  prunableFromMs: number | null,
  /** Whether the body has gone. */
  isLean: 0 | 1,
  text: string,
]

/** What has to be known of an entry to remove it. */
export type Gone = readonly [endpoint: string, key: string, version: number, kind: string, namedAtMs: number]

/** Conditions of a listing; `null` for those that nobody asked for. */
export interface Conditions {
  readonly endpoint: string | null
  readonly scope: string | null
  readonly kind: string | null
  readonly operationId: string | null
  readonly states: readonly string[] | null
}

export interface PageTask {
  readonly limit: number
  /** The id after which it goes on. */
  readonly after: number
}

/** What the thread can be asked, and what it answers. */
export interface Tasks {
  /** `null` if inserted, else the texts of what was found. */
  insert: { ask: { row: Row; seen: readonly (readonly [string, string, number])[] }; answer: readonly string[] | null }
  replace: { ask: { row: Change; isReceipt: boolean }; answer: boolean }
  get: { ask: { endpoint: string; key: string }; answer: readonly string[] }
  getByKey: { ask: { key: string }; answer: readonly string[] }
  history: { ask: { scope: string; kind: string; operationId: string }; answer: readonly string[] }
  deliverable: { ask: PageTask & { endpoint: string; scope: string }; answer: RawPage }
  count: { ask: object; answer: readonly { endpoint: string; scope: string; state: string; count: number }[] }
  list: { ask: PageTask & { conditions: Conditions }; answer: RawPage }
  prunable: {
    ask: {
      endpoint: string
      scope: string
      bodiesAtMs: number
      names: readonly (readonly [kind: string, atMs: number])[]
      limit: number
      after: string | null
    }
    answer: RawPage
  }
  remove: { ask: { gone: readonly Gone[] }; answer: boolean }
  knowsSince: { ask: { kind: string }; answer: number }
  /** Answered by the end of the thread. */
  close: { ask: object; answer: undefined }
}

export interface RawPage {
  readonly texts: readonly string[]
  /** Where the next page goes on; `null` at the end. */
  readonly next: string | null
}

export type Task = {
  [Name in keyof Tasks]: { readonly id: number; readonly task: Name } & Tasks[Name]['ask']
}[keyof Tasks]

export type Answer =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly fault: JournalFault; readonly message: string; readonly detail: string | null }

/** What the thread is started with. */
export interface WorkerSettings {
  readonly path: string
  readonly busyTimeoutMs: number
  readonly allowNetworkFileSystem: boolean
  /** Whether a receipt may be flushed later; see `settle` of the options. */
  readonly isLazy: boolean
}

/** The body of the thread; see above for what it may use. */
export function sqliteWorker(): void {
  const { parentPort, workerData, receiveMessageOnPort } = process.getBuiltinModule('node:worker_threads')
  if (parentPort === null) throw new Error('This runs in a worker thread only.')
  const port = parentPort
  const fs = process.getBuiltinModule('node:fs')
  const paths = process.getBuiltinModule('node:path')
  const { path, busyTimeoutMs, allowNetworkFileSystem, isLazy } = workerData as WorkerSettings
  // Node 22 warns that node:sqlite is experimental. Only this thread keeps quiet about it.
  process.emitWarning = () => undefined

  /** 'bill' in ASCII; a file with another number is not ours. */
  const APPLICATION_ID = 0x62696c6c
  /** 2 has the columns and the index for pruning; a file of format 1 gets them when it is opened. */
  const FILE_FORMAT = 2
  /** Writes in one transaction at most, so that the first of very many does not wait for the last. */
  const MAX_GROUP = 512
  /** Ids that a listing looks at before writes get their turn. */
  const SLICE = 4096
  /** Every query that is to use the index of open entries repeats this, or SQLite would not see that it may. */
  const OPEN = ['pending', 'sending', 'accepted', 'unknown']
  const IS_OPEN = `state IN (${OPEN.map((state) => `'${state}'`).join(', ')})`
  const PRUNABLE_INDEX = `
    CREATE INDEX entries_prunable ON entries (endpoint, scope, is_lean, kind, prunable_from_ms)
    WHERE prunable_from_ms IS NOT NULL;`
  // One rowid table. Ids rise in the order of insertion, which is what pages go by. The second index begins with the
  // operation's id, since that tells most apart; the third holds open entries only, so that its cost does not grow with
  // what is final; the fourth is what pruning goes by, and grows at its end as time does. What was removed leaves one row for its kind; a time is REAL, since a clock may give fractions.
  const SCHEMA = `
    CREATE TABLE journal (born_at_ms INTEGER NOT NULL) STRICT;
    CREATE TABLE forgotten (kind TEXT PRIMARY KEY NOT NULL, named_at_ms REAL NOT NULL) STRICT;
    CREATE TABLE entries (
      id INTEGER PRIMARY KEY,
      endpoint TEXT NOT NULL,
      key TEXT NOT NULL,
      version INTEGER NOT NULL,
      scope TEXT NOT NULL,
      kind TEXT NOT NULL,
      subject TEXT,
      operation_id TEXT NOT NULL,
      state TEXT NOT NULL,
      prunable_from_ms REAL,
      is_lean INTEGER NOT NULL DEFAULT 0,
      entry TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX entries_by_key ON entries (key, endpoint);
    CREATE INDEX entries_by_name ON entries (operation_id, kind, scope);
    CREATE INDEX entries_open ON entries (endpoint, scope, state) WHERE ${IS_OPEN};
    ${PRUNABLE_INDEX}`
  const PARTS = ['journal', 'forgotten', 'entries', 'entries_by_key', 'entries_by_name', 'entries_open']
  // Magic numbers of statfs(2) and linux/magic.h: NFS, SMB, SMB2, CIFS, Ceph, AFS, 9P, Lustre, FUSE.
  const NETWORK_FILE_SYSTEMS = [
    0x6969, 0x517b, 0xfe534d42, 0xff534d42, 0x00c36400, 0x5346414f, 0x01021997, 0x0bd00bd0, 0x65735546,
  ]
  /** A receipt that was not flushed waits no longer than this for a commit that takes it along. */
  const FLUSH_MS = 50
  const BUSY = 5
  const PROTOCOL = 15

  type Failure = Error & { fault?: JournalFault; errcode?: number; code?: string }
  interface Waiting {
    readonly task: Task
    readonly untilMs: number
    /** Its group failed, so it is tried in a transaction of its own. */
    isAlone: boolean
    /** Where a listing goes on. */
    from: number
    readonly rows: Record<string, unknown>[]
  }
  interface Opened {
    readonly db: DatabaseSync
    readonly identity: string
    readonly bornAtMs: number
    readonly statements: Map<string, StatementSync>
    /** Whether commits are flushed, as they are but for receipts under `settle: 'lazy'`. */
    isFlushing: boolean
  }

  let opened: Opened | undefined
  /** Why this thread will not touch the file again. */
  let lost: Failure | undefined
  let isClosing = false
  let reads: Waiting[] = []
  let writes: Waiting[] = []
  /** Runs while receipts are committed and not flushed. */
  let flushTimer: NodeJS.Timeout | undefined
  const never = new Int32Array(new SharedArrayBuffer(4))

  const w = {
    // ------------------------------------------------------------------------------------------------- the queue

    take(tasks: readonly Task[]): void {
      const untilMs = performance.now() + busyTimeoutMs
      for (const task of tasks) {
        const waiting: Waiting = { task, untilMs, isAlone: false, from: 0, rows: [] }
        if (task.task === 'close') isClosing = true
        else if (task.task === 'insert' || task.task === 'replace' || task.task === 'remove') writes.push(waiting)
        else reads.push(waiting)
      }
    },

    /** Takes what came in meanwhile without going back to the event loop: that is what makes groups. */
    drain(): void {
      for (let one = receiveMessageOnPort(port); one !== undefined; one = receiveMessageOnPort(port)) {
        w.take(one.message as readonly Task[])
      }
    },

    /** Reads go first and never wait for a write lock: one try to write, then it is their turn again. */
    turn(): void {
      for (;;) {
        w.drain()
        if (reads.length === 0 && writes.length === 0) break
        w.answerReads()
        if (writes.length > 0) w.commit()
      }
      if (isClosing) w.close()
    },

    close(): void {
      try {
        if (flushTimer !== undefined) w.flush()
        opened?.db.close()
      } catch (error) {
        // What was acknowledged is durable; the next one who opens the file does what could not be done here.
        void error
      }
      port.close()
    },

    answer(answers: readonly Answer[]): void {
      if (answers.length > 0) port.postMessage(answers)
    },

    /**
     * SQLite's own waits grow to 100 ms, and then a process that takes the lock again at once starves the others. Short
     * ones are fair; jittered, so that two who met do not meet again.
     */
    pause(): void {
      Atomics.wait(never, 0, 0, 0.5 + Math.random())
    },

    // ------------------------------------------------------------------------------------------------- writes

    /** All writes that wait, in one transaction; answered after its commit. */
    commit(): void {
      const size = writes[0]?.isAlone === true ? 1 : MAX_GROUP
      const isFlushed = !isLazy || !writes.slice(0, size).every(({ task }) => task.task === 'replace' && task.isReceipt)
      try {
        const { identity } = w.open()
        w.assertInPlace(identity)
        w.setFlushing(isFlushed)
        w.statement('BEGIN IMMEDIATE').run()
      } catch (error) {
        const isBusy = w.isBusy(error)
        const nowMs = performance.now()
        const failed = writes.filter((waiting) => !isBusy || waiting.untilMs <= nowMs)
        writes = writes.filter((waiting) => !failed.includes(waiting))
        w.answer(failed.map((waiting) => w.failure(waiting.task.id, error)))
        if (isBusy) w.pause()
        return
      }
      const group = writes.splice(0, size)
      const answers: Answer[] = []
      let isComplete = false
      try {
        // The list grows while it is gone through: what came in meanwhile goes along, since one flush is as dear as another.
        for (const { task } of group) {
          answers.push({ id: task.id, value: w.write(task) })
          if (isFlushed && answers.length === group.length && group.length < size) w.join(group, size)
        }
        isComplete = true
        w.statement('COMMIT').run()
      } catch (error) {
        w.rollBack()
        if (isComplete || group.length === 1) {
          // A commit whose answer was an error is a failure for all: nobody may send for what is perhaps not on the disk.
          // The connection stays: closed and opened again, SQLite would take the frames of this transaction, which the
          // kernel may have dropped without writing, for committed.
          w.answer(group.map((waiting) => w.failure(waiting.task.id, error)))
        } else {
          // One that cannot be written does not fail the others: each for itself then.
          for (const waiting of group) waiting.isAlone = true
          writes = [...group, ...writes]
        }
        return
      }
      w.answer(answers)
      if (isFlushed) w.stopFlushTimer()
      else flushTimer ??= setTimeout(() => w.flush(), FLUSH_MS)
    },

    /** Takes into a group what came in while it was written, as far as there is room. */
    join(group: Waiting[], size: number): void {
      w.drain()
      group.push(...writes.splice(0, size - group.length))
    },

    /** SQLite changes this between transactions only. A commit that is flushed takes along whatever stands before it in the WAL. */
    setFlushing(isFlushing: boolean): void {
      const it = w.open()
      if (it.isFlushing === isFlushing) return
      it.db.exec(`PRAGMA synchronous = ${isFlushing ? 'FULL' : 'NORMAL'}`)
      it.isFlushing = isFlushing
    },

    /** Flushes receipts that no other commit took along in time, by one that changes nothing. */
    flush(): void {
      w.stopFlushTimer()
      try {
        w.setFlushing(true)
        w.statement('BEGIN IMMEDIATE').run()
        w.statement('UPDATE journal SET born_at_ms = born_at_ms').run()
        w.statement('COMMIT').run()
      } catch (error) {
        w.rollBack()
        // Another process writes, and its commit takes them along; or it failed, then it is tried again as long as we live.
        if (!isClosing) flushTimer = setTimeout(() => w.flush(), w.isBusy(error) ? 1 : FLUSH_MS)
      }
    },

    stopFlushTimer(): void {
      clearTimeout(flushTimer)
      flushTimer = undefined
    },

    write(task: Task): unknown {
      if (task.task === 'insert') return w.insert(task)
      if (task.task === 'replace') return w.replace(task)
      if (task.task === 'remove') return w.remove(task)
      throw new Error(`Not a write: ${task.task}`)
    },

    insert({ row, seen }: Tasks['insert']['ask']): readonly string[] | null {
      const [rowEndpoint, rowKey, , , , , , scope, kind, subject, operationId] = row
      // Mostly there is nothing, and then one statement looks and inserts.
      if (seen.length === 0) {
        const { changes } = w
          .statement(
            `INSERT INTO entries
             (endpoint, key, version, state, prunable_from_ms, is_lean, entry, scope, kind, subject, operation_id)
             SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE NOT EXISTS (
               SELECT 1 FROM entries WHERE operation_id = ? AND kind = ? AND scope = ? AND subject IS ?)
             ON CONFLICT (key, endpoint) DO NOTHING`,
          )
          .run(...row, operationId, kind, scope, subject)
        if (Number(changes) === 1) return null
      }
      const found = w.all(
        `SELECT endpoint, key, version, entry FROM entries
         WHERE (operation_id = ? AND kind = ? AND scope = ? AND subject IS ?) OR (key = ? AND endpoint = ?) ORDER BY id`,
        [operationId, kind, scope, subject, rowKey, rowEndpoint],
      )
      const isAsSeen =
        found.length === seen.length &&
        found.every((one) =>
          seen.some(
            ([endpoint, key, version]) =>
              one['endpoint'] === endpoint && one['key'] === key && one['version'] === version,
          ),
        )
      // Never over an entry, whatever the caller saw.
      const isTaken = found.some((one) => one['endpoint'] === rowEndpoint && one['key'] === rowKey)
      if (!isAsSeen || isTaken) return found.map((one) => String(one['entry']))
      w.statement(
        `INSERT INTO entries
         (endpoint, key, version, state, prunable_from_ms, is_lean, entry, scope, kind, subject, operation_id)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
      ).run(...row)
      return null
    },

    replace({ row }: Tasks['replace']['ask']): boolean {
      const [endpoint, key, version, state, prunableFromMs, isLean, text] = row
      const { changes } = w
        .statement(
          `UPDATE entries SET version = ?, state = ?, prunable_from_ms = ?, is_lean = ?, entry = ?
           WHERE key = ? AND endpoint = ? AND version = ?`,
        )
        .run(version, state, prunableFromMs, isLean, text, key, endpoint, version - 1)
      return Number(changes) === 1
    },

    /** Looks at all before it removes the first, since what it has changed is committed with its group. */
    remove({ gone }: Tasks['remove']['ask']): boolean {
      for (const [endpoint, key, version] of gone) {
        const sql = 'SELECT 1 FROM entries WHERE key = ? AND endpoint = ? AND version = ?'
        if (w.all(sql, [key, endpoint, version]).length === 0) return false
      }
      for (const [endpoint, key, , kind, namedAtMs] of gone) {
        w.statement('DELETE FROM entries WHERE key = ? AND endpoint = ?').run(key, endpoint)
        w.statement(
          `INSERT INTO forgotten VALUES (?, ?)
           ON CONFLICT (kind) DO UPDATE SET named_at_ms = max(named_at_ms, excluded.named_at_ms)`,
        ).run(kind, namedAtMs)
      }
      return true
    },

    rollBack(): void {
      try {
        w.statement('ROLLBACK').run()
      } catch (error) {
        // Some errors roll back by themselves, and then there is nothing left to roll back.
        void error
      }
    },

    /** A file removed or replaced under an open journal still takes writes, which nobody will ever read. */
    assertInPlace(identity: string): void {
      if (w.identity() === identity) return
      lost = w.error(
        'unavailable',
        `The journal ${path} was removed or replaced while it was in use. What this process wrote is in the file that was removed. Put it back and start again.`,
      )
      throw lost
    },

    // ------------------------------------------------------------------------------------------------- reads

    answerReads(): void {
      const now = reads
      reads = []
      const answers: Answer[] = []
      for (const waiting of now) {
        const { id } = waiting.task
        try {
          const value = w.patiently(waiting.untilMs, waiting)
          if (value === undefined) reads.push(waiting)
          else answers.push({ id, value })
        } catch (error) {
          answers.push(w.failure(id, error))
        }
      }
      w.answer(answers)
    },

    /** Readers wait too, if shortly: while another process recovers the file or takes its WAL away. */
    patiently(untilMs: number, waiting: Waiting): unknown {
      for (;;) {
        try {
          return w.read(waiting)
        } catch (error) {
          if (!w.isBusy(error) || performance.now() >= untilMs) throw error
          w.pause()
        }
      }
    },

    /** `undefined`: there is more to do, ask again. */
    read(waiting: Waiting): unknown {
      const { task } = waiting
      switch (task.task) {
        case 'get':
          return w.texts('SELECT entry FROM entries WHERE key = ? AND endpoint = ?', [task.key, task.endpoint])
        case 'getByKey':
          return w.texts('SELECT entry FROM entries WHERE key = ? ORDER BY id', [task.key])
        case 'history':
          return w.texts('SELECT entry FROM entries WHERE operation_id = ? AND kind = ? AND scope = ? ORDER BY id', [
            task.operationId,
            task.kind,
            task.scope,
          ])
        case 'deliverable': {
          // Both halves come from the index in the order of their ids and are merged up to the limit.
          const half = `SELECT id, entry FROM entries WHERE endpoint = ? AND scope = ? AND state = ? AND ${IS_OPEN} AND id > ?`
          const { endpoint, scope, after, limit } = task
          const values = [endpoint, scope, 'pending', after, endpoint, scope, 'sending', after, limit + 1]
          return w.page(w.all(`${half} UNION ALL ${half} ORDER BY id LIMIT ?`, values), limit)
        }
        case 'count':
          return w.all(
            `SELECT endpoint, scope, state, count(*) AS count FROM entries WHERE ${IS_OPEN} GROUP BY endpoint, scope, state`,
            [],
          )
        case 'list':
          return w.list(waiting, task)
        case 'prunable':
          return w.prunable(task)
        case 'knowsSince': {
          const [row] = w.all('SELECT named_at_ms FROM forgotten WHERE kind = ?', [task.kind])
          return Math.max(w.open().bornAtMs, Number(row?.['named_at_ms'] ?? 0))
        }
        default:
          throw new Error(`Not a read: ${task.task}`)
      }
    },

    /**
     * What is open comes from the index of what is open. Anything else goes through the table, in slices, so that no commit
     * waits until a whole journal is read.
     */
    list(waiting: Waiting, { conditions, limit, after }: Tasks['list']['ask']): RawPage | undefined {
      const { endpoint, scope, kind, operationId, states } = conditions
      const from = Math.max(waiting.from, after)
      const wanted: string[] = []
      const values: SQLInputValue[] = []
      for (const [column, value] of [
        ['endpoint', endpoint],
        ['scope', scope],
        ['kind', kind],
        ['operation_id', operationId],
      ] as const) {
        if (value === null) continue
        wanted.push(`AND ${column} = ?`)
        values.push(value)
      }
      if (states !== null) {
        wanted.push(`AND state IN (${states.map(() => '?').join(', ')})`)
        values.push(...states)
      }
      if (states !== null && states.length > 0 && states.every((state) => OPEN.includes(state))) {
        // The ids alone are put in order, not the texts.
        const ids = `SELECT id FROM entries INDEXED BY entries_open WHERE ${IS_OPEN} AND id > ? ${wanted.join(' ')} ORDER BY id LIMIT ?`
        const sql = `SELECT id, entry FROM entries WHERE id IN (${ids}) ORDER BY id`
        return w.page(w.all(sql, [after, ...values, limit + 1]), limit)
      }
      const { last } = w.all('SELECT max(id) AS last FROM entries', [])[0] ?? {}
      const sql = `SELECT id, entry FROM entries WHERE id > ? AND id <= ? ${wanted.join(' ')} ORDER BY id LIMIT ?`
      waiting.rows.push(...w.all(sql, [from, from + SLICE, ...values, limit + 1 - waiting.rows.length]))
      waiting.from = from + SLICE
      return waiting.rows.length > limit || waiting.from >= Number(last ?? 0) ? w.page(waiting.rows, limit) : undefined
    },

    /**
     * By ranges of the index, each of one kind and in the order of settlement: first what has a body, then the names that go.
     * Where a page ends is told by the range, the time and the id of its last row.
     */
    prunable({ endpoint, scope, bodiesAtMs, names, limit, after }: Tasks['prunable']['ask']): RawPage {
      const namesAtMs = new Map(names)
      const [fromLean, fromKind, fromMs, fromId] = (after === null ? [0, '', -Infinity, 0] : JSON.parse(after)) as [
        number,
        string,
        number,
        number,
      ]
      const rows: Record<string, unknown>[] = []
      for (const isLean of [0, 1]) {
        for (let kind = w.kindAfter(endpoint, scope, isLean, null); kind !== null;) {
          const untilMs = Math.max(isLean === 0 ? bodiesAtMs : -Infinity, namesAtMs.get(kind) ?? -Infinity)
          const isBefore = isLean < fromLean || (isLean === fromLean && kind < fromKind)
          const isFrom = isLean === fromLean && kind === fromKind
          if (!isBefore && untilMs > -Infinity && rows.length <= limit) {
            const sql = `SELECT id, is_lean, kind, prunable_from_ms, entry FROM entries INDEXED BY entries_prunable
              WHERE endpoint = ? AND scope = ? AND is_lean = ? AND kind = ? AND prunable_from_ms <= ?
              AND (prunable_from_ms, id) > (?, ?) ORDER BY prunable_from_ms, id LIMIT ?`
            const [ms, id] = isFrom ? [fromMs, fromId] : [-1e300, 0]
            rows.push(...w.all(sql, [endpoint, scope, isLean, kind, untilMs, ms, id, limit + 1 - rows.length]))
          }
          kind = w.kindAfter(endpoint, scope, isLean, kind)
        }
      }
      const last = rows[limit - 1]
      const texts = rows.slice(0, limit).map((row) => String(row['entry']))
      if (rows.length <= limit || last === undefined) return { texts, next: null }
      return { texts, next: JSON.stringify([last['is_lean'], last['kind'], last['prunable_from_ms'], last['id']]) }
    },

    /** The next kind in the index; `null` after the last. */
    kindAfter(endpoint: string, scope: string, isLean: number, kind: string | null): string | null {
      const sql = `SELECT min(kind) AS kind FROM entries INDEXED BY entries_prunable
        WHERE endpoint = ? AND scope = ? AND is_lean = ? AND kind > ? AND prunable_from_ms IS NOT NULL`
      const [row] = w.all(sql, [endpoint, scope, isLean, kind ?? ''])
      return (row?.['kind'] ?? null) as string | null
    },

    page(rows: readonly Record<string, unknown>[], limit: number): RawPage {
      const page = rows.slice(0, limit)
      const last = page[page.length - 1]
      return {
        texts: page.map((row) => String(row['entry'])),
        next: rows.length > limit && last !== undefined ? String(Number(last['id'])) : null,
      }
    },

    texts(sql: string, values: SQLInputValue[]): readonly string[] {
      return w.all(sql, values).map((row) => String(row['entry']))
    },

    all(sql: string, values: SQLInputValue[]): Record<string, unknown>[] {
      return w.statement(sql).all(...values)
    },

    statement(sql: string): StatementSync {
      const { db, statements } = w.open()
      let statement = statements.get(sql)
      if (statement === undefined) {
        statement = db.prepare(sql)
        statements.set(sql, statement)
      }
      return statement
    },

    // ------------------------------------------------------------------------------------------------- the file

    /** Opens the file, after a look whether it is ours and whole. What is not is left exactly as it is. */
    open(): Opened {
      if (lost !== undefined) throw lost
      if (opened !== undefined) return opened
      const sqlite = process.getBuiltinModule('node:sqlite') as typeof import('node:sqlite') | undefined
      if (sqlite === undefined) {
        throw w.error('unavailable', 'This Node has no node:sqlite; the SQLite journal needs Node 22.13 or later.')
      }
      const { DatabaseSync: Database } = sqlite
      w.assertLocal()
      if (!fs.existsSync(path)) w.create(Database)
      const { size } = fs.statSync(path)
      if (size === 0) {
        // Ours appear at their path complete, so an empty one is what a power cut or a full disk left of another.
        throw w.error('damaged', `The journal ${path} is empty, which a journal never is. It was left as it is.`)
      }
      w.assertWal()
      const identity = w.identity()
      // Read-only, because the last writing connection to close would move the WAL into a file that we do not know yet.
      const look = new Database(path, { readOnly: true })
      let db: DatabaseSync | undefined
      try {
        const bornAtMs = w.inspect(look)
        db = new Database(path)
        w.configure(db)
        w.upgrade(db)
        if (w.identity() !== identity) {
          throw w.error('unavailable', `The journal ${path} was replaced while it was being opened.`)
        }
        opened = { db, identity, bornAtMs, statements: new Map(), isFlushing: true }
        return opened
      } catch (error) {
        db?.close()
        throw error
      } finally {
        look.close()
      }
    },

    /** Names the file that lies at the path. Only its name is asked: opening and closing it here would let go of SQLite's locks. */
    identity(): string {
      const stat = fs.statSync(path, { bigint: true, throwIfNoEntry: false })
      return stat === undefined ? '' : `${stat.dev}:${stat.ino}`
    },

    inspect(db: DatabaseSync): number {
      // In one snapshot, under which the WAL cannot begin anew.
      db.exec('BEGIN')
      const names = db
        .prepare('SELECT name FROM sqlite_schema')
        .all()
        .map((row) => String(row['name']))
      if (w.pragma(db, 'application_id') !== APPLICATION_ID) {
        throw w.error('foreign', `${path} is a database, but not a journal of billonce. It was left as it is.`)
      }
      const format = Number(w.pragma(db, 'user_version'))
      if (format > FILE_FORMAT) {
        throw w.error(
          'newer-format',
          `The journal ${path} has format ${format}, of a newer version of billonce; this one reads up to ${FILE_FORMAT}. Update it; the file was left as it is.`,
        )
      }
      const missing = PARTS.filter((part) => !names.includes(part) && (format >= 2 || part !== 'entries_prunable'))
      if (format < 1 || missing.length > 0)
        throw w.damaged(`format ${format}, missing: ${missing.join(', ') || 'nothing'}`)
      w.assertWhole(Number(w.pragma(db, 'page_count')), Number(w.pragma(db, 'page_size')))
      const born = db.prepare('SELECT born_at_ms FROM journal').get()
      if (born === undefined) throw w.damaged('it does not say when it was created')
      db.exec('COMMIT')
      return Number(born['born_at_ms'])
    },

    pragma(db: DatabaseSync, name: string): unknown {
      return Object.values(db.prepare(`PRAGMA ${name}`).get() ?? {})[0]
    },

    /** A WAL whose header is broken is one that SQLite takes for empty, with all that was acknowledged in it. */
    assertWal(): void {
      // Other processes may be making, resetting or deleting it at this moment; what is broken stays broken.
      for (let look = 0; look < 20; look++) {
        if (w.isWalUsable()) return
        w.pause()
      }
      throw w.damaged('its WAL has no valid header')
    },

    isWalUsable(): boolean {
      let wal: number
      try {
        wal = fs.openSync(`${path}-wal`, 'r')
      } catch (error) {
        if ((error as Failure).code === 'ENOENT') return true
        throw error
      }
      try {
        // Of the file that was opened, which need not be the one that has the name by now. The header alone is no commit.
        if (fs.fstatSync(wal).size <= 32) return true
        const head = Buffer.alloc(4)
        // SQLite file format, 4.1: the last bit tells the byte order of the checksums.
        return fs.readSync(wal, head, 0, 4, 0) === 4 && head.readUInt32BE(0) >>> 1 === 0x377f0682 >>> 1
      } finally {
        fs.closeSync(wal)
      }
    },

    /**
     * SQLite compares the size of the file with what its header says only if there is no WAL. Here too: pages that the file
     * does not have must be in the WAL, as after a crash before or in a checkpoint; or the file was cut off.
     */
    assertWhole(pages: number, pageSize: number): void {
      const whole = Math.floor(fs.statSync(path).size / pageSize)
      if (whole >= pages) return
      const missing = new Set<number>()
      for (let page = whole + 1; page <= pages; page++) missing.add(page)
      const { size } = fs.statSync(`${path}-wal`, { throwIfNoEntry: false }) ?? { size: 0 }
      if (size > 32) {
        const wal = fs.openSync(`${path}-wal`, 'r')
        try {
          const head = Buffer.alloc(32)
          const frame = Buffer.alloc(24)
          fs.readSync(wal, head, 0, 32, 0)
          for (let at = 32; at + 24 + pageSize <= size; at += 24 + pageSize) {
            fs.readSync(wal, frame, 0, 24, at)
            // Frames of the WAL's present round carry the salts of its header.
            if (head.compare(frame, 8, 16, 16, 24) !== 0) break
            missing.delete(frame.readUInt32BE(0))
          }
        } finally {
          fs.closeSync(wal)
        }
      }
      if (missing.size > 0) throw w.damaged(`${missing.size} of its ${pages} pages are missing`)
    },

    configure(db: DatabaseSync): void {
      // fullfsync is for macOS, where fsync alone does not reach the disk. A checkpoint every 250 pages instead of 1,000 is
      // a shorter one: it is what the slowest commits wait for.
      db.exec(`
        PRAGMA busy_timeout = 0;
        PRAGMA trusted_schema = OFF;
        PRAGMA cell_size_check = ON;
        PRAGMA synchronous = FULL;
        PRAGMA fullfsync = ON;
        PRAGMA checkpoint_fullfsync = ON;
        PRAGMA wal_autocheckpoint = 250;`)
      if (w.pragma(db, 'journal_mode') !== 'wal') db.exec('PRAGMA journal_mode = WAL')
      const [journal, synchronous] = [w.pragma(db, 'journal_mode'), w.pragma(db, 'synchronous')]
      if (journal !== 'wal' || synchronous !== 2) {
        throw w.error(
          'unavailable',
          `The journal ${path} cannot be kept safely here: journal_mode is ${String(journal)}, synchronous is ${String(synchronous)}.`,
        )
      }
    },

    /** In one transaction, so that a file is of one format or the other; whoever else opens it meanwhile waits. */
    upgrade(db: DatabaseSync): void {
      if (w.pragma(db, 'user_version') === FILE_FORMAT) return
      db.exec('BEGIN IMMEDIATE')
      try {
        if (w.pragma(db, 'user_version') !== FILE_FORMAT) {
          db.exec(`
            ALTER TABLE entries ADD COLUMN prunable_from_ms REAL;
            ALTER TABLE entries ADD COLUMN is_lean INTEGER NOT NULL DEFAULT 0;
            UPDATE entries SET
              prunable_from_ms = CASE WHEN entry ->> '$.contradiction' IS NULL
                AND (entry ->> '$.request.body' IS NOT NULL OR entry ->> '$.window.names' <> 'own')
                THEN CAST(entry ->> '$.settledAtMs' AS REAL) END,
              is_lean = entry ->> '$.request.body' IS NULL
            WHERE NOT (${IS_OPEN}) AND json_valid(entry);
            ${PRUNABLE_INDEX}
            PRAGMA user_version = ${FILE_FORMAT};`)
        }
        db.exec('COMMIT')
      } catch (error) {
        db.exec('ROLLBACK')
        throw error
      }
    },

    /**
     * A file appears at its path complete and durable or not at all, whoever dies in between: it is made beside it and
     * linked, which fails if a twin was faster, whose file is as good.
     */
    create(Database: typeof DatabaseSync): void {
      const folder = paths.dirname(path)
      const made = w.makeFolder(folder)
      w.assertLocal()
      const left = ['-wal', '-journal'].filter((end) => fs.statSync(path + end, { throwIfNoEntry: false })?.size)
      if (left.length > 0 && !fs.existsSync(path)) {
        throw w.error('damaged', `The journal ${path} is gone, but ${path}${left[0]} is there. It was left as it is.`)
      }
      const draft = `${path}.${Math.random().toString(36).slice(2)}.new`
      fs.closeSync(fs.openSync(draft, 'wx', 0o600))
      try {
        const db = new Database(draft)
        try {
          db.exec(`
            PRAGMA synchronous = FULL;
            PRAGMA fullfsync = ON;
            BEGIN IMMEDIATE;
            PRAGMA application_id = ${APPLICATION_ID};
            PRAGMA user_version = ${FILE_FORMAT};
            ${SCHEMA}
            INSERT INTO journal VALUES (${Date.now()});
            COMMIT;
            PRAGMA journal_mode = WAL;`)
        } finally {
          db.close()
        }
        w.link(draft)
      } finally {
        for (const end of ['', '-wal', '-shm', '-journal']) fs.rmSync(draft + end, { force: true })
      }
      for (const one of [folder, ...made.map((child) => paths.dirname(child))]) w.syncFolder(one)
    },

    /** Not by `recursive: true`: where a file system says that a parent is missing which is there, as /proc does, that never ends. */
    makeFolder(folder: string): readonly string[] {
      const missing: string[] = []
      for (let one = folder; !fs.existsSync(one) && one !== paths.dirname(one); one = paths.dirname(one))
        missing.push(one)
      for (const one of missing.toReversed()) {
        try {
          fs.mkdirSync(one, 0o700)
        } catch (error) {
          if ((error as Failure).code !== 'EEXIST') throw error
        }
      }
      return missing
    },

    link(draft: string): void {
      try {
        try {
          fs.linkSync(draft, path)
        } catch (error) {
          const { code } = error as Failure
          // File systems without hard links. The copy is exclusive too, only not all at once.
          if (!['EPERM', 'ENOTSUP', 'EOPNOTSUPP', 'ENOSYS', 'EMLINK'].includes(code ?? '')) throw error
          fs.copyFileSync(draft, path, fs.constants.COPYFILE_EXCL)
        }
      } catch (error) {
        if ((error as Failure).code !== 'EEXIST') throw error
      }
    },

    /** A new name is durable only when its folder is. Windows can neither open nor sync one. */
    syncFolder(folder: string): void {
      if (process.platform === 'win32') return
      const handle = fs.openSync(folder, 'r')
      try {
        fs.fsyncSync(handle)
      } finally {
        fs.closeSync(handle)
      }
    },

    /** A WAL needs memory that all processes share, which machines do not (sqlite.org/wal.html). Linux alone tells the type. */
    assertLocal(): void {
      const folder = paths.dirname(path)
      if (allowNetworkFileSystem || process.platform !== 'linux' || !fs.existsSync(folder)) return
      // Unsigned, whatever the machine's word for it is.
      const type = fs.statfsSync(folder).type >>> 0
      if (!NETWORK_FILE_SYSTEMS.includes(type)) return
      throw w.error(
        'unavailable',
        `The journal ${path} lies on a network or user-space file system (type 0x${type.toString(16)}), where SQLite cannot keep it safe from other machines. Choose a local path, or pass allowNetworkFileSystem: true if only this machine ever opens it.`,
      )
    },

    // ------------------------------------------------------------------------------------------------- what went wrong

    isBusy(error: unknown): boolean {
      const { errcode } = error as Failure
      // PROTOCOL is what SQLite gives up with after many processes raced for the WAL.
      return errcode !== undefined && [BUSY, PROTOCOL].includes(errcode & 0xff)
    },

    error(fault: JournalFault, message: string): Failure {
      return Object.assign(new Error(message), { fault })
    },

    damaged(what: string): Failure {
      return w.error(
        'damaged',
        `The journal ${path} is damaged (${what}). It was left as it is; keep it, it may hold what was sent.`,
      )
    },

    failure(id: number, error: unknown): Answer {
      const { fault, errcode, code, message } = error as Failure
      if (fault !== undefined) return { id, fault, message, detail: null }
      const detail = errcode === undefined ? `${code ?? 'error'}: ${message}` : `SQLite error ${errcode}: ${message}`
      const is = w.faultOf(errcode, code)
      switch (is) {
        case 'damaged':
          return { id, fault: is, message: w.damaged(message).message, detail }
        case 'full':
          return { id, fault: is, message: `There is no space left for the journal ${path}.`, detail }
        case 'timeout':
          return {
            id,
            fault: is,
            message: `The journal ${path} was locked by another process for more than ${busyTimeoutMs} ms.`,
            detail,
          }
        default:
          return { id, fault: is, message: `The journal ${path} cannot be used (${detail}).`, detail }
      }
    },

    /** By SQLite's result code, whose low byte is the kind, or by the code of a system error. */
    faultOf(errcode: number | undefined, code: string | undefined): JournalFault {
      if (errcode === undefined) return code === 'ENOSPC' || code === 'EDQUOT' ? 'full' : 'unavailable'
      // CORRUPT, NOTADB; IOERR_SHORT_READ, IOERR_CORRUPTFS
      if ([11, 26].includes(errcode & 0xff) || [522, 8458].includes(errcode)) return 'damaged'
      if ((errcode & 0xff) === 13) return 'full'
      return [BUSY, PROTOCOL].includes(errcode & 0xff) ? 'timeout' : 'unavailable'
    },
  }

  port.on('message', (tasks: readonly Task[]) => {
    w.take(tasks)
    w.turn()
  })
}
