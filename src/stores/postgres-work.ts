/**
 * The journal's work on a pool of the user's: which calls share a statement, how many connections are in use, what is tried
 * again, and what an error of the server means. A commit whose answer was lost is tried again and then looked for: inserting
 * what is absent and comparing versions make that safe. What is asked is postgres-statements.ts's.
 */
import { JournalUnavailableError } from '../errors.ts'
import type { JournalFault } from '../errors.ts'

/** What a `Client` of `pg` can do, as far as the journal needs it; also the type of a transaction of your own. */
export interface PostgresClient {
  query(text: string, values?: unknown[]): Promise<{ readonly rows: unknown[] }>
}

/** A client that belongs to a pool. */
export interface PostgresPoolClient extends PostgresClient {
  /** Gives it back, or ends it, if something was wrong with it. */
  release(destroy?: boolean | Error): void
  on?(event: 'error', listener: (error: Error) => void): unknown
  off?(event: 'error', listener: (error: Error) => void): unknown
}

/** What a `Pool` of `pg` can do, as far as the journal needs it; others of that shape, such as Neon's, will do. */
export interface PostgresPool {
  connect(): Promise<PostgresPoolClient>
  on?(event: 'error', listener: (error: Error) => void): unknown
  off?(event: 'error', listener: (error: Error) => void): unknown
}

export type Fields = Readonly<Record<string, unknown>>
export type Query = (text: string, values?: unknown[]) => Promise<readonly Fields[]>

/** Waits of somebody else's lock: shortly while others of the group wait too, longer for one alone. */
const LOCK_MS = { inGroup: 200, alone: 1000 }
const ANSWER_MS = 250
/** A statement whose connection broke, or that could not have one, is tried so often in all. */
const TRIES = 4
const FIRST_WAIT_MS = 40
/** In one statement. */
const MOST_IN_GROUP = 256
const MOST_CHARS_IN_GROUP = 1_000_000

/** One call that waits for its turn. */
interface Job {
  readonly kind: string
  /** What it touches; two that touch the same are not in one statement. */
  readonly marks: readonly string[]
  readonly size: number
  readonly what: unknown
  readonly untilMs: number
  tries: number
  isAlone: boolean
  /** It was sent, and its answer was lost. */
  isInDoubt: boolean
  notBeforeMs: number
  readonly resolve: (value: unknown) => void
  readonly reject: (error: unknown) => void
}

/** A kind of work that many calls can share a statement for. */
export interface Shared<Ask, Answer> {
  readonly kind: string
  /** `true`: asked twice, it does no harm, and there is nothing to be in doubt about. */
  readonly isRead: boolean
  marksOf(ask: Ask): readonly string[]
  sizeOf(ask: Ask): number
  /**
   * Does the work for all, and answers in their order. `isInDoubt` is whether it may have been done before by the same call.
   */
  run(
    query: Query,
    asks: readonly { readonly ask: Ask; readonly isInDoubt: boolean }[],
    lockMs: number,
  ): Promise<Answer[]>
}

export interface Work {
  /** Waits until it is done, in a statement with others of its kind where it can be. */
  share<Ask, Answer>(of: Shared<Ask, Answer>, ask: Ask): Promise<Answer>
  /** One thing by itself that may be tried again. */
  alone<Answer>(run: (query: Query) => Promise<Answer>): Promise<Answer>
  /** Resolves when nothing is under way. */
  settled(): Promise<void>
}

export interface WorkSettings {
  readonly pool: PostgresPool
  readonly connections: number
  readonly timeoutMs: number
}

export function workOn({ pool, connections, timeoutMs }: WorkSettings): Work {
  let waiting: Job[] = []
  const kinds = new Map<string, Shared<never, unknown>>()
  const open = new Set<Promise<unknown>>()
  let running = 0
  let timer: ReturnType<typeof setTimeout> | undefined
  let isScheduled = false

  const enqueue = (of: Shared<never, unknown>, ask: unknown): Promise<unknown> => {
    kinds.set(of.kind, of)
    const promise = new Promise<unknown>((resolve, reject) => {
      waiting.push({
        kind: of.kind,
        marks: of.marksOf(ask as never),
        size: of.sizeOf(ask as never),
        what: ask,
        untilMs: performance.now() + timeoutMs,
        tries: 0,
        isAlone: false,
        isInDoubt: false,
        notBeforeMs: 0,
        resolve,
        reject,
      })
    })
    const settled: Promise<void> = promise.then(
      () => void open.delete(settled),
      () => void open.delete(settled),
    )
    open.add(settled)
    // What is called in the same turn travels together.
    if (!isScheduled) {
      isScheduled = true
      queueMicrotask(() => {
        isScheduled = false
        next()
      })
    }
    return promise
  }

  const next = (): void => {
    clearTimeout(timer)
    while (running < connections) {
      const group = takeGroup()
      if (group.length === 0) break
      running += 1
      void runGroup(group).finally(() => {
        running -= 1
        next()
      })
    }
    const soonestMs = Math.min(...waiting.map((job) => job.notBeforeMs))
    if (running < connections && Number.isFinite(soonestMs)) {
      timer = setTimeout(next, Math.max(1, soonestMs - performance.now()))
    }
  }

  const takeGroup = (): Job[] => {
    const nowMs = performance.now()
    const first = waiting.find((job) => job.notBeforeMs <= nowMs)
    if (!first) return []
    const group = [first]
    const marks = new Set(first.marks)
    let size = first.size
    if (!first.isAlone) {
      for (const job of waiting) {
        if (job === first || job.kind !== first.kind || job.isAlone || job.notBeforeMs > nowMs) continue
        if (group.length >= MOST_IN_GROUP || size + job.size > MOST_CHARS_IN_GROUP) break
        if (job.marks.some((mark) => marks.has(mark))) continue
        group.push(job)
        size += job.size
        for (const mark of job.marks) marks.add(mark)
      }
    }
    const taken = new Set(group)
    waiting = waiting.filter((job) => !taken.has(job))
    return group
  }

  const runGroup = async (group: Job[]): Promise<void> => {
    const of = kinds.get(group[0]?.kind ?? '')
    if (!of) return
    const untilMs = Math.min(...group.map((job) => job.untilMs))
    // The server gives up before this side does, or it might get the lock when nobody listens any more.
    const leftMs = Math.max(1, Math.floor(untilMs - performance.now() - ANSWER_MS))
    const lockMs = Math.min(leftMs, group.length > 1 ? LOCK_MS.inGroup : LOCK_MS.alone)
    let wasSent = false
    try {
      const answers = await withClient(pool, untilMs, async (client) => {
        wasSent = true
        const asks = group.map((job) => ({ ask: job.what as never, isInDoubt: job.isInDoubt }))
        return await of.run(queryOf(client), asks, lockMs)
      })
      for (const [index, job] of group.entries()) job.resolve(answers[index])
    } catch (error) {
      for (const job of group) againOrNot(job, error, wasSent && !of.isRead, group.length > 1)
    }
  }

  const againOrNot = (job: Job, error: unknown, mayHaveBeenDone: boolean, wasShared: boolean): void => {
    const failure = failureOf(error)
    const nowMs = performance.now()
    job.tries += 1
    if (failure.kind === 'broken') {
      job.isInDoubt ||= mayHaveBeenDone && !failure.isRefusal
      job.notBeforeMs = nowMs + FIRST_WAIT_MS * 2 ** (job.tries - 1) * (0.5 + Math.random())
      if (job.tries < TRIES && job.notBeforeMs < job.untilMs) {
        waiting.push(job)
        return
      }
    } else if (failure.kind === 'busy' ? nowMs < job.untilMs : wasShared && failure.kind === 'other') {
      // Somebody's transaction holds what it needs, or one of the group cannot be done: each for itself then.
      job.isAlone = true
      job.notBeforeMs = failure.kind === 'busy' && !wasShared ? nowMs + 10 + Math.random() * 40 : 0
      waiting.push(job)
      return
    }
    if (failure.kind === 'known' && failure.fault === 'timeout') {
      job.isInDoubt ||= mayHaveBeenDone
      // The time of another of the group was over, not this one's.
      if (wasShared && nowMs < job.untilMs) {
        waiting.push(job)
        return
      }
    }
    job.reject(errorOf(failure, job.isInDoubt))
  }

  const alone: Shared<(query: Query) => Promise<unknown>, unknown> = {
    kind: 'alone',
    isRead: true,
    marksOf: () => ['alone'],
    sizeOf: () => 0,
    run: async (query, asks) => {
      const answers: unknown[] = []
      for (const { ask } of asks) answers.push(await ask(query))
      return answers
    },
  }

  return {
    // The kind of work that answers is the one that was asked.
    share: (of, ask) => enqueue(of, ask) as never,
    alone: (run) => enqueue(alone, run) as never,
    async settled() {
      while (open.size > 0) await Promise.allSettled(open)
    },
  }
}

/**
 * Uses a connection of the pool's, not beyond a time. One that broke, or that did not answer, is not given back: what it
 * still does nobody knows.
 */
async function withClient<T>(
  pool: PostgresPool,
  untilMs: number,
  use: (client: PostgresPoolClient) => Promise<T>,
): Promise<T> {
  let isLate = false
  let client: PostgresPoolClient | undefined
  // An error of a connection comes to whoever waits for an answer too; this keeps it from ending the process.
  const ignore = (): void => {}
  const work = (async () => {
    const connected = await pool.connect()
    if (isLate) {
      connected.release()
      throw new Error('late')
    }
    client = connected
    connected.on?.('error', ignore)
    return await use(connected)
  })()
  let timer: ReturnType<typeof setTimeout> | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => {
        isLate = true
        reject(new JournalUnavailableError('The database did not answer in time.', { fault: 'timeout' }))
      },
      Math.max(1, untilMs - performance.now()),
    )
  })
  try {
    const answer = await Promise.race([work, late])
    giveBack(client, ignore)
    return answer
  } catch (error) {
    work.catch(() => {})
    giveBack(client, ignore, isLate || failureOf(error).isConnectionOver)
    throw error
  } finally {
    clearTimeout(timer)
  }
}

function giveBack(client: PostgresPoolClient | undefined, ignore: () => void, destroy = false): void {
  // One that is ended may still have something to complain of.
  if (!destroy) client?.off?.('error', ignore)
  client?.release(destroy)
}

export function queryOf(client: PostgresClient): Query {
  return async (text, values) => {
    // Without values it is the simple protocol, with them a statement without a name: neither needs the same connection twice.
    const result = values === undefined ? await client.query(text) : await client.query(text, values)
    // Rows are objects by column name, as `pg` makes them by default.
    return result.rows as readonly Fields[]
  }
}

// ----------------------------------------------------------------------------------------------------- what went wrong

interface Failure {
  /** `broken`: not done, or done and not answered; `busy`: undone, and worth another try; `other`: undone. */
  readonly kind: 'broken' | 'busy' | 'known' | 'other'
  readonly isConnectionOver: boolean
  /** `broken`, but the server said that it does not do it. */
  readonly isRefusal: boolean
  readonly fault: JournalFault
  readonly message: string
  readonly cause: unknown
}

/** Codes of PostgreSQL, Appendix A, the longest that fits; of the rest nothing is known but that it was not done. */
const FAULTS: Readonly<Record<string, readonly [JournalFault, string]>> = {
  '42P01': ['unavailable', 'A table of the journal is missing.'],
  '3F000': ['unavailable', 'The schema of the journal is missing.'],
  '42703': ['foreign', 'A table of the journal has not the columns that it should have.'],
  '42501': ['unavailable', 'The role may not do this with the tables of the journal.'],
  '25006': ['unavailable', 'The database takes no writes: it is a standby or set to read-only.'],
  '53100': ['full', 'The disk of the database is full.'],
  '53300': ['unavailable', 'The database has no connection left.'],
  '53': ['unavailable', 'The database is out of something that it needs.'],
  '57014': ['timeout', 'The database canceled the statement: it took too long, or somebody asked for it.'],
  '25P03': ['timeout', 'The database ended the transaction: it was idle for too long.'],
  '25P04': ['timeout', 'The database ended the transaction: it took too long.'],
  '55P03': ['timeout', 'Another transaction holds the entry for too long.'],
  '40': ['timeout', 'Other transactions were at the same entries again and again.'],
  '25P02': ['unavailable', 'The transaction has failed before, so nothing can be written in it.'],
  '28': ['unavailable', 'The database does not let this role in.'],
  '3D000': ['unavailable', 'There is no such database.'],
  XX001: ['damaged', 'The database says that data is damaged.'],
  XX002: ['damaged', 'The database says that an index is damaged.'],
}
/** The connection is over, or this server is the wrong one, and another may be better. */
const BROKEN = ['08', '57P01', '57P02', '57P03', '57P05', '25006', '53300']
const REFUSING = ['25006', '53300', '57P03']
const BUSY = ['40001', '40P01', '55P03']

/** What an error of the driver means. Of its texts only those are kept that hold no values. */
export function failureOf(error: unknown): Failure {
  if (error instanceof JournalUnavailableError) {
    const { fault, message, cause } = error
    return { kind: 'known', isConnectionOver: false, isRefusal: false, fault, message, cause }
  }
  const { code, message } = (typeof error === 'object' && error !== null ? error : {}) as {
    code?: unknown
    message?: unknown
  }
  const state = typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && /\d/.test(code) ? code : undefined
  if (state === undefined) {
    // No answer of the server's: the network, the pool, or the driver.
    const text = typeof message === 'string' ? message : ''
    const cause = new Error(typeof code === 'string' ? `${code}: ${text}` : text)
    return {
      kind: 'broken',
      isConnectionOver: true,
      isRefusal: false,
      fault: 'unavailable',
      message: 'The database cannot be reached.',
      cause,
    }
  }
  const begins = (codes: readonly string[]): boolean => codes.some((one) => state.startsWith(one))
  const [fault, text] = FAULTS[state] ??
    FAULTS[state.slice(0, 2)] ?? [
      'unavailable',
      begins(BROKEN) ? 'The database ended the connection.' : 'The database refused.',
    ]
  return {
    kind: begins(BROKEN) ? 'broken' : begins(BUSY) ? 'busy' : 'other',
    isConnectionOver: begins(BROKEN),
    isRefusal: begins(REFUSING),
    fault,
    message: text,
    // With the code where the driver has it, so that what runs transactions again finds it there too.
    cause: Object.assign(new Error(`PostgreSQL error ${state}`), { code: state }),
  }
}

export function errorOf({ fault, message, cause }: Failure, isInDoubt = false): JournalUnavailableError {
  return new JournalUnavailableError(
    isInDoubt ? `${message} Whether it was written before that is not known.` : message,
    { fault, cause },
  )
}
