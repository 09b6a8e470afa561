/**
 * The journal in an SQLite file, for Node: what a process that bills keeps on its own disk. Many processes may share one
 * file. Here are the entries and the thread they are handed to; how they lie in the file is sqlite-worker.ts's.
 *
 * Node's modules are asked for when they are first needed and not imported, so that a bundle for browsers may hold this
 * file; there it fails at its first call.
 */
import type { Worker } from 'node:worker_threads'
import { InvalidInputError, JournalUnavailableError } from '../errors.ts'
import type { JournalFault } from '../errors.ts'
import type { JournalEntry } from '../model/entry.ts'
import { decodeEntry, encodeEntry } from './codec.ts'
import { builtin, isGone, ownerOfProcess } from './owner.ts'
import { sqliteWorker } from './sqlite-worker.ts'
import type { Answer, Change, RawPage, Row, Tasks, WorkerSettings } from './sqlite-worker.ts'
import { prunableFromMs } from './store.ts'
import type { Cursor, InsertResult, JournalStore, ListFilter, OpenCount, Page, Prunable, Seen } from './store.ts'

export interface SqliteJournalOptions {
  /**
   * The file; beside it SQLite keeps two of its own, `-wal` and `-shm`, which belong to it. A relative path counts from the
   * working directory at construction. Default: the environment's `BILLONCE_JOURNAL`, else `.billonce/journal.sqlite`.
   * In a container it has to lie on a volume that outlives it.
   */
  readonly path?: string | undefined
  /**
   * When the record of a receipt is flushed to the disk. `flushed`, the default: before the call returns. `lazy`: with the next
   * attempt that begins, of whatever process, or within 50 ms; a call alone takes half as many flushes. A killed process loses
   * nothing by it. A power cut in that time leaves the entry as it was while its request was on the way, so the next start
   * sends the operation again under the same key. Everything else is flushed before it is acknowledged, whatever is set here:
   * what is sent, and every other answer.
   */
  readonly settle?: 'flushed' | 'lazy' | undefined
  /** How long a call waits while other processes write, in milliseconds; default 30,000. Then it fails with fault `timeout`. */
  readonly busyTimeoutMs?: number | undefined
  /**
   * Allows a file on a network or user-space file system (NFS, SMB, FUSE and the like). Only safe if no other machine ever
   * opens it; default `false`, and then it is refused where it can be seen, which is on Linux.
   */
  readonly allowNetworkFileSystem?: boolean | undefined
}

/**
 * Makes a journal in an SQLite file. Construction touches nothing; the file, its folder (readable by the owner only) and
 * the thread come with the first call. Journals of one path in one process share a thread, so one for each client is fine.
 *
 * What a call promises when it resolves has been flushed to the disk (WAL with `synchronous=FULL`), by one flush for all
 * calls that waited. The event loop does not wait for it. An idle journal keeps no process alive.
 *
 * A file that is empty, cut off, damaged, somebody else's or of a newer version is refused by a
 * {@link JournalUnavailableError} and left as it is.
 *
 * @throws {InvalidInputError} for options that cannot be right
 * @example
 * const billing = createBillingClient({ ...options, journal: sqliteJournal({ path: '/var/lib/shop/billing.sqlite' }) })
 */
export function sqliteJournal(options: SqliteJournalOptions = {}): JournalStore {
  const settings = readSettings(options)
  const member = {}
  const threadId = JSON.stringify(settings)
  /** Calls that wait for the thread, and who waits for the last of them. */
  let open = 0
  let whenIdle: (() => void) | undefined
  let closing: Promise<void> | undefined

  const assertOpen = (): void => {
    if (closing) throw new JournalUnavailableError('The journal was closed.', { fault: 'closed' })
  }
  const onSettled = (): void => {
    open -= 1
    if (open === 0) whenIdle?.()
  }
  /** No async function, since every call comes by here, twice. */
  const ask = <Name extends keyof Tasks>(task: Name, what: Tasks[Name]['ask']): Promise<Tasks[Name]['answer']> => {
    assertOpen()
    const answer = threadOf(settings, threadId, member).ask(task, what, onSettled)
    open += 1
    // The thread answers each task by its own type.
    return answer as Promise<Tasks[Name]['answer']>
  }
  const close = async (): Promise<void> => {
    if (open > 0) {
      await new Promise<void>((resolve) => {
        whenIdle = resolve
      })
    }
    await leave(threadId, member)
  }

  return {
    durable: true,
    get owner() {
      return ownerOfProcess()
    },
    async insert(entry: JournalEntry, seen: readonly Seen[]): Promise<InsertResult> {
      const texts = await ask('insert', {
        row: rowOf(entry),
        seen: seen.map(({ endpoint, key, version }) => [endpoint, key, version] as const),
      })
      return texts === null ? { inserted: true } : { inserted: false, found: texts.map(decodeEntry) }
    },
    async replace(entry: JournalEntry): Promise<boolean> {
      return ask('replace', { row: changeOf(entry), isReceipt: settings.isLazy && isReceipt(entry) })
    },
    async get(endpoint: string, key: string): Promise<JournalEntry | undefined> {
      return (await ask('get', { endpoint, key })).map(decodeEntry)[0]
    },
    async getByKey(key: string): Promise<readonly JournalEntry[]> {
      return (await ask('getByKey', { key })).map(decodeEntry)
    },
    async history({ scope, kind, operationId }): Promise<readonly JournalEntry[]> {
      return (await ask('history', { scope, kind, operationId })).map(decodeEntry)
    },
    async listDeliverable({ endpoint, scope }, limit: number, after?: Cursor): Promise<Page> {
      return pageOf(await ask('deliverable', { endpoint, scope, limit, after: readCursor(after) }))
    },
    async countOpen(): Promise<readonly OpenCount[]> {
      // The states of the rows are those of their entries, written beside them.
      return (await ask('count', {})) as readonly OpenCount[]
    },
    async list(filter: ListFilter, limit: number, after?: Cursor): Promise<Page> {
      const { endpoint = null, scope = null, kind = null, operationId = null, states = null } = filter
      const conditions = { endpoint, scope, kind, operationId, states }
      return pageOf(await ask('list', { conditions, limit, after: readCursor(after) }))
    },
    async listPrunable({ endpoint, scope }, { bodiesAtMs, namesAtMs }: Prunable, limit: number, after?: Cursor) {
      const names = Object.entries(namesAtMs)
      return pageOf(await ask('prunable', { endpoint, scope, bodiesAtMs, names, limit, after: after ?? null }))
    },
    async remove(entries: readonly JournalEntry[]): Promise<boolean> {
      const gone = entries.map(
        ({ endpoint, key, version, kind, namedAtMs }) => [endpoint, key, version, kind, namedAtMs] as const,
      )
      return ask('remove', { gone })
    },
    async knowsSinceMs(kind: string): Promise<number> {
      return ask('knowsSince', { kind })
    },
    // oxlint-disable-next-line typescript/require-await -- async turns a throw into a rejection
    async isGone(owner: string): Promise<boolean> {
      assertOpen()
      return isGone(owner)
    },
    async close(): Promise<void> {
      closing ??= close()
      await closing
    },
  }
}

function rowOf(entry: JournalEntry): Row {
  return [...changeOf(entry), entry.scope, entry.kind, entry.subject, entry.operationId]
}

function changeOf(entry: JournalEntry): Change {
  const { endpoint, key, version, state, request } = entry
  return [endpoint, key, version, state, prunableFromMs(entry), request.body === null ? 1 : 0, encodeEntry(entry)]
}

/**
 * Whether nothing but a receiver's receipt would be forgotten with this change, and the receiver gives it again under the
 * same key. A refusal it may not remember, and a person's decision or a cancellation nobody would make again.
 */
function isReceipt(entry: JournalEntry): boolean {
  const isMade = entry.state === 'succeeded' || entry.state === 'accepted'
  return isMade && entry.keyed && entry.evidence.length === 0 && !entry.contradiction
}

/** An entry that cannot be read stays as it is and holds up no other. */
function pageOf({ texts, next }: RawPage): Page {
  const entries: JournalEntry[] = []
  let unreadable = 0
  for (const text of texts) {
    try {
      entries.push(decodeEntry(text))
    } catch (error) {
      if (!(error instanceof JournalUnavailableError)) throw error
      unreadable++
    }
  }
  return { entries, unreadable, ...(next === null ? {} : { next }) }
}

function readCursor(after: Cursor | undefined): number {
  const id = after === undefined ? 0 : Number(after)
  if (!Number.isSafeInteger(id)) throw new InvalidInputError('after', 'after must be a cursor that this journal gave.')
  return id
}

function readSettings(options: SqliteJournalOptions): WorkerSettings {
  const { busyTimeoutMs = 30_000, allowNetworkFileSystem = false, settle = 'flushed' } = options
  const env = 'process' in globalThis ? globalThis.process.env?.['BILLONCE_JOURNAL'] : undefined
  const path = options.path ?? (env === undefined || env === '' ? '.billonce/journal.sqlite' : env)
  if (typeof path !== 'string' || path === '' || path.includes('\0')) {
    throw new InvalidInputError('path', 'path must be the path of a file.')
  }
  if (path.startsWith(':memory:') || path.startsWith('file:')) {
    throw new InvalidInputError(
      'path',
      'path must be a path, not a name that only SQLite knows. A journal in memory is forgetfulJournal().',
    )
  }
  if (typeof busyTimeoutMs !== 'number' || !(busyTimeoutMs >= 0 && busyTimeoutMs <= 2 ** 31 - 1)) {
    throw new InvalidInputError('busyTimeoutMs', 'busyTimeoutMs must be a number of milliseconds from 0 to 2^31 - 1.')
  }
  if (settle !== 'flushed' && settle !== 'lazy') {
    throw new InvalidInputError('settle', "settle must be 'flushed' or 'lazy'.")
  }
  // Taken now, so that a later change of the working directory does not change the journal.
  return {
    path: builtin('node:path')?.resolve(path) ?? path,
    busyTimeoutMs,
    allowNetworkFileSystem,
    isLazy: settle === 'lazy',
  }
}

// ---------------------------------------------------------------------------------------------------------- the thread

interface Thread {
  /** The journals that use it; the last to leave closes it. */
  readonly members: Set<object>
  ask(task: keyof Tasks, what: object, onSettled: () => void): Promise<unknown>
  close(): Promise<void>
}

const threads = new Map<string, Thread>()

function threadOf(settings: WorkerSettings, id: string, member: object): Thread {
  let thread = threads.get(id)
  if (!thread) {
    const started = startThread(settings, () => {
      if (threads.get(id) === started) threads.delete(id)
    })
    threads.set(id, started)
    thread = started
  }
  thread.members.add(member)
  return thread
}

async function leave(id: string, member: object): Promise<void> {
  const thread = threads.get(id)
  if (!thread?.members.delete(member) || thread.members.size > 0) return
  threads.delete(id)
  await thread.close()
}

interface Caller {
  readonly resolve: (value: unknown) => void
  readonly reject: (error: JournalUnavailableError) => void
  readonly onSettled: () => void
}

/** So many calls go on before the event loop turns. */
const SETTLED_AT_ONCE = 32
/** What they write down next goes to the thread while others still wait here to go on, but not in less than this: a flush each. */
const SENT_BEFORE = 128

function startThread(settings: WorkerSettings, onEnd: () => void): Thread {
  const worker = startWorker(settings)
  const callers = new Map<number, Caller>()
  let lastId = 0
  let outbox: object[] = []
  const inbox: Answer[] = []
  let cause: unknown

  const flush = (): void => {
    if (inbox.length > 0 && outbox.length < SENT_BEFORE) {
      setImmediate(flush)
      return
    }
    worker.postMessage(outbox)
    outbox = []
  }
  const ask = (task: keyof Tasks, what: object, onSettled: () => void): Promise<unknown> =>
    new Promise((resolve, reject) => {
      // While somebody waits the process may not end, and while nobody does it may.
      if (callers.size === 0) worker.ref()
      lastId++
      callers.set(lastId, { resolve, reject, onSettled })
      outbox.push({ ...what, id: lastId, task })
      // All calls of one turn of the event loop travel together, such as those of all replies that came in with it.
      if (outbox.length === 1) setImmediate(flush)
    })
  const settle = (most: number): void => {
    for (const answer of inbox.splice(0, most)) {
      const caller = callers.get(answer.id)
      if (!caller) continue
      callers.delete(answer.id)
      if ('fault' in answer) caller.reject(errorOf(answer))
      else caller.resolve(answer.value)
      caller.onSettled()
    }
    if (callers.size === 0) worker.unref()
  }
  /** What was answered together does not go on all at once, or timers and the network would wait until the last has. */
  const settleSome = (): void => {
    settle(SETTLED_AT_ONCE)
    if (inbox.length > 0) setImmediate(settleSome)
  }
  const ended = new Promise<void>((resolve) => {
    worker.on('message', (answers: readonly Answer[]) => {
      const isUnderWay = inbox.length > 0
      inbox.push(...answers)
      if (!isUnderWay) settleSome()
    })
    worker.on('error', (error) => {
      cause = error
    })
    worker.on('exit', () => {
      onEnd()
      settle(inbox.length)
      for (const { reject, onSettled } of callers.values()) {
        onSettled()
        reject(
          new JournalUnavailableError(`The thread of the journal ${settings.path} ended.`, {
            fault: 'unavailable',
            cause,
          }),
        )
      }
      callers.clear()
      resolve()
    })
  })

  return {
    members: new Set(),
    ask,
    async close(): Promise<void> {
      worker.ref()
      worker.postMessage([{ id: 0, task: 'close' }])
      await ended
    },
  }
}

function startWorker(settings: WorkerSettings): Worker {
  const threads = builtin('node:worker_threads')
  if (!threads) {
    throw new JournalUnavailableError('The SQLite journal needs Node; in a browser use indexedDbJournal().', {
      fault: 'unavailable',
    })
  }
  // The first line is for bundlers that keep names by a helper of this name, should a call of it reach in all the same.
  const text = `var __name = function (f) { return f }\n(${String(sqliteWorker)})()`
  try {
    // Without flags and environment: what the application preloads by them is not for this thread.
    return new threads.Worker(text, {
      eval: true,
      name: 'billonce journal',
      workerData: settings,
      execArgv: [],
      env: {},
    })
  } catch (cause) {
    throw new JournalUnavailableError('The thread of the SQLite journal cannot be started.', {
      fault: 'unavailable',
      cause,
    })
  }
}

function errorOf({
  fault,
  message,
  detail,
}: {
  fault: JournalFault
  message: string
  detail: string | null
}): JournalUnavailableError {
  return new JournalUnavailableError(message, { fault, ...(detail === null ? {} : { cause: new Error(detail) }) })
}
