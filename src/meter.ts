/**
 * `billonce/meter`: counts are collected and reported in batches, for what happens too often to be an operation each. A batch is
 * an operation of usage like any other: named once, at random, and sent with exactly the counts that are in it.
 *
 * A durable meter keeps its batch in the journal from the first count on, as a pending entry that is not due yet. Each count is
 * a new version of that entry, and so is the begin of its first attempt: whichever comes first, the other finds the version
 * gone. So a count is in the batch before that is sent, or it opens the next one; a batch that a killed process left is
 * delivered by the next start as it stands.
 */
import type { BillingClient } from './api.ts'
import { contexts, emitChange, guarded } from './engine/context.ts'
import type { Context } from './engine/context.ts'
import { admitOne, draftFor } from './engine/open.ts'
import { DONE } from './engine/runtime.ts'
import { keyWindowMs } from './engine/schedule.ts'
import { ClientClosedError, JournalUnavailableError, mustBe } from './errors.ts'
import { readCall } from './input.ts'
import { readJsonObject } from './model/canonical.ts'
import { collected, newEntry } from './model/entry.ts'
import type { JournalEntry } from './model/entry.ts'
import { randomOperationId, readName } from './model/key.ts'
import { addQuantities, readQuantity } from './model/money.ts'
import { usageWrite } from './model/operation.ts'
import type { UsageParams } from './model/operation.ts'
import { readMs, refuseUnknownOptions } from './options.ts'

export interface MeterOptions {
  /** Whose usage it is; a meter for each. */
  readonly customer?: string | undefined
  readonly metadata?: object | undefined
  /**
   * A batch is taken so many milliseconds after its first count. Default 10,000. At most half of the time its key may be sent,
   * which counts from there, where it is `durable` or `dated` and the client's `names` are not its own.
   */
  readonly flushEveryMs?: number | undefined
  /** A batch is taken when so many counts are in it: 1 or more. Default 1,000. */
  readonly flushAt?: number | undefined
  /**
   * `true`: a count is in the journal before `add` resolves, at the price of a commit, which counts that come together share.
   * Default `false`: what was not taken yet is lost when the process is killed, or ends without `flush` or `close`.
   */
  readonly durable?: boolean | undefined
  /** Each batch says when its first count was made (`occurredAt`). Default `false`: the receiver dates it as it comes. */
  readonly dated?: boolean | undefined
  /** What the names of the batches begin with: 1-200 characters. Default is the meter's name. */
  readonly id?: string | undefined
}

export interface Meter {
  /**
   * Counts, in memory.
   *
   * @param quantity a whole number, or a decimal string such as `'0.25'`, which is added digit for digit; default 1
   * @throws {InvalidInputError} nothing was counted
   * @throws {ClientClosedError} nothing was counted
   */
  add(quantity?: number | string): void
  /**
   * Takes what has been collected as a batch, which is in the journal when this resolves and is delivered in the background.
   * Called again after a failure it takes the same batch first, under the same name.
   *
   * @throws {JournalUnavailableError} the batch could not be kept, and is still in memory
   * @throws {BackpressureError} too much waits already; the batch is still in memory
   * @throws {ClientClosedError} the batch is still in memory
   */
  flush(): Promise<void>
}

export interface DurableMeter {
  /**
   * Counts, in the journal: resolves when that is durable.
   *
   * @param quantity a whole number, or a decimal string such as `'0.25'`, which is added digit for digit; default 1
   * @throws {InvalidInputError} nothing was counted
   * @throws {JournalUnavailableError} it could not be written down; where the journal could not be asked afterwards, it may have
   *   been counted all the same
   * @throws {BackpressureError} too much waits already for another batch; nothing was counted
   * @throws {ClientClosedError} nothing was counted
   */
  add(quantity?: number | string): Promise<void>
  /**
   * Takes what has been collected as a batch, and begins to deliver it in the background.
   *
   * @throws {JournalUnavailableError} the batch stays in the journal, and goes when its time comes
   */
  flush(): Promise<void>
}

/**
 * A meter of a client. It ends with its client: `close()` takes what has been collected first.
 *
 * @param billing a client that `createBillingClient` made
 * @param name what is metered, such as `exports`
 * @throws {InvalidInputError} naming the option
 * @example
 * const exports = meter(billing, 'exports', { customer: 'cus_1', durable: true })
 * await exports.add()
 */
export function meter(
  billing: BillingClient,
  name: string,
  options: MeterOptions & { readonly durable: true },
): DurableMeter
export function meter(
  billing: BillingClient,
  name: string,
  options?: MeterOptions & { readonly durable?: false | undefined },
): Meter
export function meter(billing: BillingClient, name: string, options: MeterOptions = {}): Meter | DurableMeter {
  const context = contexts.get(billing)
  mustBe(context, 'billing', 'a client that createBillingClient made')
  refuseUnknownOptions(options, ['customer', 'dated', 'durable', 'flushAt', 'flushEveryMs', 'id', 'metadata'], '')
  const { customer, dated = false, durable = false, flushAt = 1000 } = options
  mustBe(Number.isSafeInteger(flushAt) && flushAt >= 1, 'flushAt', 'a whole number from 1')
  mustBe(typeof dated === 'boolean', 'dated', 'true or false')
  mustBe(typeof durable === 'boolean', 'durable', 'true or false')
  const id = readName(options.id ?? name, 'id')
  mustBe(id.length <= 200, 'id', 'no longer than 200 characters')
  const flushEveryMs = readMs(
    options.flushEveryMs,
    'flushEveryMs',
    10_000,
    1,
    longestBatchMs(context, durable || dated),
  )
  const settings: Settings = { flushAt, flushEveryMs }
  // As it is now: a batch that is made or tried again later has to be the same.
  const metadata = options.metadata === undefined ? undefined : readJsonObject(options.metadata, 'metadata')
  const newBatch = (): Batch => {
    const occurredAt = dated ? new Date(context.runtime.nowMs()) : undefined
    return {
      operationId: `${id}:${randomOperationId()}`,
      count: 0,
      params: { meter: name, customer, metadata, occurredAt, quantity: 0 },
    }
  }
  // Wrong ones are to be told now, and not by the first batch.
  readCall(context, usageWrite, newBatch().params, { operationId: 'meter' })
  return durable
    ? durableMeter(billing, context, settings, newBatch)
    : meterInMemory(billing, context, settings, newBatch)
}

const MAX_TIMER_MS = 2 ** 31 - 1

/** One that is older when it is taken would have little time left to be sent, or none. */
function longestBatchMs({ settings }: Context, isAgeOfFirstCount: boolean): number | undefined {
  if (!isAgeOfFirstCount || settings.names === 'own') return undefined
  return Math.min(MAX_TIMER_MS, keyWindowMs(settings.dialect, usageWrite.kind, settings.windowMarginMs) / 2)
}

interface Settings {
  readonly flushAt: number
  readonly flushEveryMs: number
}

interface Batch {
  readonly operationId: string
  count: number
  params: UsageParams
}

function meterInMemory(
  billing: BillingClient,
  context: Context,
  { flushAt, flushEveryMs }: Settings,
  newBatch: () => Batch,
): Meter {
  let batch: Batch | undefined
  /** Taken, and perhaps in the journal already: it keeps its counts and its name. */
  let taken: Batch | undefined
  const timer = timerOf(context, flushEveryMs)

  const take = async (): Promise<void> => {
    if (taken) await report(billing, taken)
    taken = batch
    batch = undefined
    if (!taken) return
    timer.stop()
    await report(billing, taken)
    taken = undefined
  }
  const inOrder = ordered()
  const flush = (): Promise<void> =>
    inOrder(async () => {
      try {
        await take()
      } catch (error) {
        timer.start(flushQuietly)
        throw error
      }
    })
  const flushQuietly = quietly(flush)
  /** Takes what has become too much; for all counts that come meanwhile, once. */
  let isTaking = false
  const flushOnce = async (): Promise<void> => {
    if (isTaking) return
    isTaking = true
    await flushQuietly()
    isTaking = false
  }
  const refuseIfEnded = endsWith(context, flushQuietly)
  return {
    add(quantity = 1) {
      refuseIfEnded()
      const more = readQuantity(quantity, 'quantity')
      const quantityNow = addQuantities(batch?.params.quantity ?? 0, more)
      if (!batch) timer.start(flushQuietly)
      batch ??= newBatch()
      batch.params = { ...batch.params, quantity: quantityNow }
      batch.count += 1
      if (batch.count >= flushAt) void flushOnce()
    },
    flush,
  }
}

function durableMeter(
  billing: BillingClient,
  context: Context,
  { flushAt, flushEveryMs }: Settings,
  newBatch: () => Batch,
): DurableMeter {
  const { runtime, store } = context
  /** The batch that is open, as it stands in the journal. */
  let open: { readonly batch: Batch; readonly entry: JournalEntry; readonly dueAtMs: number } | undefined
  let waiting: { readonly quantity: number | string; readonly settle: (error?: unknown) => void }[] = []
  const timer = timerOf(context, flushEveryMs)

  const callOf = ({ operationId, params }: Batch) =>
    readCall(context, usageWrite, params, { operationId, background: true }).call

  /**
   * Has the journal take a version, and finds out whether it did if its answer does not say.
   *
   * @returns how the batch stands in the journal, or nothing if it is past this and these counts are not in it
   */
  const keep = async (entry: JournalEntry, write: () => Promise<boolean>): Promise<JournalEntry | undefined> => {
    const answer = await guarded(context, 'begin', write).catch((error: unknown) => ({ error }))
    if (answer === true) return entry
    const read = await guarded(context, 'read', async () => [await store.get(entry.endpoint, entry.key)]).catch(
      (error: unknown) => ({ error }),
    )
    if ('error' in read) {
      // Nobody knows whether they are in it; counted once more they might be in two.
      open = undefined
      throw answer === false ? read.error : answer.error
    }
    const [stored] = read
    // Other versions have other counts, whoever made them; and a journal that tried again by itself may find its own commit.
    if (stored?.request.body === entry.request.body) return stored
    if (answer === false) return undefined
    // As it was: these counts are not in it, and the next ones may be.
    if (!stored || stored.version !== open?.entry.version) open = undefined
    throw answer.error
  }

  /** More counts may join what still collects, and nothing else: counting nothing finds the same body in whatever came of it. */
  const joinable = (batch: Batch, entry: JournalEntry, dueAtMs: number): typeof open =>
    entry.state === 'pending' && entry.attemptsBegun === 0 ? { batch, entry, dueAtMs } : undefined

  const count = async (quantity: number | string, counts: number): Promise<void> => {
    if (open) {
      const { entry, dueAtMs } = open
      const batch = {
        ...open.batch,
        count: open.batch.count + counts,
        params: { ...open.batch.params, quantity: addQuantities(open.batch.params.quantity, quantity) },
      }
      const next = collected(entry, draftFor(context, callOf(batch)), dueAtMs, runtime.nowMs())
      const kept = await keep(next, () => store.replace(next))
      // If not, it is being sent, with what was in it.
      open = kept && joinable(batch, kept, dueAtMs)
      if (kept) return
    }
    const first = newBatch()
    const batch = { ...first, count: counts, params: { ...first.params, quantity } }
    await admitOne(context)
    const nowMs = runtime.nowMs()
    const dueAtMs = nowMs + flushEveryMs
    const entry = {
      ...newEntry(draftFor(context, callOf(batch)), nowMs),
      nextAttemptAtMs: dueAtMs,
      notBeforeMs: dueAtMs,
    }
    const kept = await keep(entry, async () => (await store.insert(entry, [])).inserted)
    if (!kept) throw new JournalUnavailableError('The journal holds another batch of this name.', { fault: 'damaged' })
    emitChange(context, undefined, entry)
    open = joinable(batch, kept, dueAtMs)
    timer.start(flushQuietly)
  }

  /** Counts that came together share a commit; those that come meanwhile have their own turn, behind a flush that waits. */
  const countAll = async (): Promise<void> => {
    if (waiting.length === 0) return
    const all = waiting
    waiting = []
    let failure: unknown
    try {
      await count(all.map(({ quantity }) => quantity).reduce(addQuantities), all.length)
    } catch (error) {
      failure = error
    }
    for (const { settle } of all) settle(failure)
    if (open && open.batch.count >= flushAt) await take()
  }

  const take = async (): Promise<void> => {
    if (!open) return
    timer.stop()
    const { batch, entry } = open
    open = undefined
    const nowMs = runtime.nowMs()
    const due = collected(entry, entry, nowMs, nowMs)
    const kept = await keep(due, () => store.replace(due))
    // If not, it is being sent already.
    if (kept && joinable(batch, kept, nowMs)) await report(billing, batch)
  }

  const inOrder = ordered()
  const flush = (): Promise<void> =>
    inOrder(async () => {
      await countAll()
      await take()
    })
  const flushQuietly = quietly(flush)
  const refuseIfEnded = endsWith(context, flushQuietly)
  return {
    async add(quantity = 1) {
      refuseIfEnded()
      const read = readQuantity(quantity, 'quantity')
      await new Promise<void>((resolve, reject) => {
        const settle = (error?: unknown): void => (error === undefined ? resolve() : reject(error))
        waiting.push({ quantity: read, settle })
        inOrder(countAll).catch(() => {})
      })
    },
    flush,
  }
}

/** A batch becomes an operation; again, if the first time left open whether it did. */
async function report(billing: BillingClient, { operationId, params }: Batch): Promise<void> {
  await billing.recordUsage(params, { operationId, background: true })
}

/**
 * A meter ends as soon as its client begins to close: what came after its last batch would be in none.
 *
 * @returns throws if it has ended
 */
function endsWith(context: Context, lastFlush: () => Promise<void>): () => void {
  let hasEnded = false
  context.lastWork.add(async () => {
    hasEnded = true
    await lastFlush()
  })
  return () => {
    if (hasEnded || context.closing.aborted) throw new ClientClosedError('The client was closed; nothing was counted.')
  }
}

/** One after the other, in the order they came. */
function ordered(): (action: () => Promise<void>) => Promise<void> {
  let last: Promise<void> = Promise.resolve()
  return (action) => {
    const mine = last.then(action)
    last = mine.catch(() => {})
    return mine
  }
}

/** For where nobody listens: an event has told what went wrong with the journal. */
function quietly(action: () => Promise<void>): () => Promise<void> {
  return async () => {
    await action().catch(() => {})
  }
}

interface Timer {
  start(action: () => Promise<void>): void
  stop(): void
}

/** One at a time; keeps no process alive. */
function timerOf({ runtime, closing }: Context, ms: number): Timer {
  let stopped: AbortController | undefined
  const stop = (): void => {
    stopped?.abort(DONE)
    stopped = undefined
  }
  return {
    start(action) {
      stop()
      const mine = new AbortController()
      stopped = mine
      void runtime.sleep(ms, mine.signal, 'idle').then(async () => {
        if (!mine.signal.aborted && !closing.aborted) await action()
      })
    },
    stop,
  }
}
