/**
 * `createBillingClient` and what it returns. Each call is read here, opened (engine/open.ts), delivered (engine/deliver.ts)
 * and answered with the outcome of its entry.
 */
import { abortedError, deliver } from './engine/deliver.ts'
import type { Delivery } from './engine/deliver.ts'
import { startBackground } from './engine/background.ts'
import { emitChange, guarded } from './engine/context.ts'
import type { Context } from './engine/context.ts'
import { openEntry, openNextRevision } from './engine/open.ts'
import type { Call, Opened } from './engine/open.ts'
import { runPrune } from './engine/prune.ts'
import type { PruneSummary } from './engine/prune.ts'
import { lookUpByDialect, runReconcile, takeEvidence } from './engine/reconcile.ts'
import type { LookUpAnswer, ReconcileProgress, ReconcileSummary } from './engine/reconcile.ts'
import { runPass } from './engine/resume.ts'
import type { ResumeProgress, ResumeSummary } from './engine/resume.ts'
import { realRuntime } from './engine/runtime.ts'
import type { Runtime } from './engine/runtime.ts'
import { keyWindowMs } from './engine/schedule.ts'
import { firstOf } from './engine/waiters.ts'
import type { Budget } from './engine/waiters.ts'
import {
  AmbiguousReferenceError,
  ClientClosedError,
  InvalidInputError,
  JournalUnavailableError,
  NotCancelableError,
  NotFoundError,
} from './errors.ts'
import { Events, tell } from './events.ts'
import type { Listener } from './events.ts'
import { advance, ENTRY_STATES, glimpseOf, isDeliverable, windowEndsAtMs } from './model/entry.ts'
import type { Attempt, EntryState, JournalEntry } from './model/entry.ts'
import { readJsonObject } from './model/canonical.ts'
import type { Evidence, EvidenceSource } from './model/evidence.ts'
import { readIdempotencyKey, readName, readOperationId } from './model/key.ts'
import { defineWrite, readOperation, readReceipt } from './model/operation.ts'
import type {
  AnyWriteDefinition,
  ChargeParams,
  ChargeReceipt,
  ChargeVolatile,
  CreditsParams,
  CreditsReceipt,
  CreditsVolatile,
  UsageParams,
  UsageReceipt,
  UsageVolatile,
  WriteDefinition,
} from './model/operation.ts'
import { outcomeOf, queuedOf } from './model/outcome.ts'
import type { Outcome, Queued } from './model/outcome.ts'
import type { Receipt, Rejection } from './model/verdict.ts'
import { readMs, readOptions, refuseShortWindow, refuseUnknownOptions } from './options.ts'
import type { BillingClientOptions } from './options.ts'

/** Options of a call. Never changed and never remembered. `V` are the fields that may be volatile. */
export interface WriteOptions<V extends string = string> {
  /**
   * Names the business event (`order-991`, `export:job-7`), never the attempt, the request or the queue job: whoever names the
   * same event gets the same operation, under the same key. 1-255 characters without control characters.
   */
  readonly operationId: string
  /**
   * A genuinely new try after a definite rejection, under a new key: 1, 2, … Default is the latest that the journal holds, else
   * 1. Keep the number with the order: for revisions that the journal does not hold, the caller vouches.
   */
  readonly revision?: number | undefined
  /** When the event happened, in wall milliseconds; the age of the key counts from it. */
  readonly eventAtMs?: number | undefined
  /** Fields made afresh after a reload, such as a card token: not compared; what was stored is what is sent. */
  readonly volatileFields?: readonly V[] | undefined
  /** Resolve as soon as the entry is durable; it is delivered apart. Default `false`. */
  readonly background?: boolean | undefined
  /** Stops the waiting, not the operation. */
  readonly signal?: AbortSignal | undefined
  /** This call over all attempts and waits, in milliseconds. Default is the client's `retry.deadlineMs`. */
  readonly deadlineMs?: number | undefined
  /** A pending entry is canceled, not sent, this many milliseconds after it was named. Default 1 hour for charges, else none. */
  readonly sendBeforeMs?: number | undefined
  /** A key of your own, for moving from another system: visible ASCII within the receiver's limits. */
  readonly idempotencyKey?: string | undefined
  /** Opens an operation again that `cancel` ended, under the same key. Default `false`. */
  readonly reopen?: boolean | undefined
  /** Opens the next revision although the refusal is not on record behind the receiver's key. Default `false`. */
  readonly despiteUnrecordedRefusal?: boolean | undefined
}

/**
 * A billing write: takes effect once, however often it is called with the same `operationId`.
 *
 * Resolves when the receiver has answered or when trying on would be unsafe or too long; with `background: true` as soon as
 * the entry is durable. The entry is durable before the first byte is sent, so a crash at any point is taken up by the next
 * call, `resume()` or `start()`.
 *
 * @throws {InvalidInputError} a parameter or option is not usable; nothing was written or sent
 * @throws {JournalUnavailableError} the entry could not be kept or read, so nothing was sent by the step that failed
 * @throws {OperationConflictError} the operation exists with other parameters; nothing was sent by this call
 * @throws {RevisionRefusedError} the next revision may not be opened now; nothing was written or sent by this call
 * @throws {DeliveryAbortedError} the signal fired; the operation stays as it is in the journal
 * @throws {ClientClosedError} nothing was written or sent
 */
export interface WriteCall<P extends object, R extends Receipt, V extends string> {
  (params: P, options: WriteOptions<V> & { readonly background?: false | undefined }): Promise<Outcome<R>>
  (params: P, options: WriteOptions<V>): Promise<Outcome<R> | Queued>
}

/** Names an operation, or one revision of it by its key. */
export type OperationRef =
  | {
      readonly kind: string
      readonly operationId: string
      readonly subject?: string | undefined
      readonly revision?: number | undefined
    }
  | { readonly key: string }

/** Which entries `entries` gives; all conditions have to hold. */
export interface EntriesFilter {
  readonly kind?: string | undefined
  readonly operationId?: string | undefined
  readonly states?: readonly EntryState[] | undefined
}

/** What the journal holds of one revision, without the body. */
export interface EntryView {
  readonly key: string
  readonly kind: string
  readonly subject: string | null
  readonly operationId: string
  readonly revision: number
  readonly state: EntryState
  readonly namedAtMs: number
  readonly eventAtMs: number | null
  readonly attempts: readonly Attempt[]
  readonly attemptsBegun: number
  /** When background delivery tries again; `null` if nothing is sent any more. */
  readonly nextAttemptAtMs: number | null
  /** When the key may no longer be sent; `null` while nothing counts. */
  readonly windowEndsAtMs: number | null
  readonly outcome: Outcome
}

export interface ResumeOptions {
  /** Over the whole pass for each entry, in milliseconds. Default is the client's `retry.deadlineMs`. */
  readonly deadlineMs?: number | undefined
  readonly onProgress?: ((progress: ResumeProgress) => void) | undefined
}

/** Where evidence comes from, and what was found. A receipt is the receiver's own JSON object, with a non-empty `id`. */
export type EvidenceInput = EvidenceSource &
  (
    | { readonly found: 'applied'; readonly receipt: object }
    | { readonly found: 'not-applied'; readonly code?: string | undefined; readonly message?: string | undefined }
    /** No proof by itself: see {@link LookUpRules}, or `conclusive` where the receiver documents that it is one. */
    | { readonly found: 'nothing'; readonly conclusive?: boolean | undefined }
  )

/** What a look-up of your own answers. `unclear`: it could not tell, and nothing changes. */
export type LookUpResult =
  | { readonly found: 'applied'; readonly receipt: object }
  | { readonly found: 'not-applied'; readonly code?: string | undefined; readonly message?: string | undefined }
  | { readonly found: 'nothing'; readonly conclusive?: boolean | undefined }
  | { readonly found: 'unclear' }

/** Asks the receiver what became of an entry, in whatever way it offers; may throw, and then nothing changes. */
export type LookUp = (entry: EntryView) => LookUpResult | Promise<LookUpResult>

export interface ReconcileOptions {
  readonly onProgress?: ((progress: ReconcileProgress) => void) | undefined
  /** No further look-ups are begun after it fires. */
  readonly signal?: AbortSignal | undefined
}

export interface RetryRejectedOptions {
  /** Opens the next revision although the refusal is not on record behind the receiver's key. Default `false`. */
  readonly despiteUnrecordedRefusal?: boolean | undefined
  readonly signal?: AbortSignal | undefined
  /** In milliseconds. Default is the client's `retry.deadlineMs`. */
  readonly deadlineMs?: number | undefined
}

export interface BillingClient {
  /** Charges money. Its receipt repeats amount and currency where the receiver does; a pending charge is canceled after an hour. */
  readonly charge: WriteCall<ChargeParams, ChargeReceipt, ChargeVolatile>
  /** Reports usage of a meter; the meter is part of the operation's name. */
  readonly recordUsage: WriteCall<UsageParams, UsageReceipt, UsageVolatile>
  /** Takes credits. */
  readonly consumeCredits: WriteCall<CreditsParams, CreditsReceipt, CreditsVolatile>
  /** A write of your own, made by `defineWrite`, through the same machinery. */
  write<P extends object, R extends Receipt, V extends string>(
    definition: WriteDefinition<P, R, V>,
    params: NoInfer<P>,
    options: WriteOptions<NoInfer<V>> & { readonly background?: false | undefined },
  ): Promise<Outcome<R>>
  write<P extends object, R extends Receipt, V extends string>(
    definition: WriteDefinition<P, R, V>,
    params: NoInfer<P>,
    options: WriteOptions<NoInfer<V>>,
  ): Promise<Outcome<R> | Queued>
  /**
   * Background delivery: deliverable entries of this scope and endpoint now, then on `online`, `visibilitychange`, `pageshow`
   * and timers, which do not keep a process alive.
   *
   * @returns stops it; what is in flight ends by itself
   */
  start(): () => void
  /**
   * One pass over the deliverable entries of this scope and endpoint, oldest first. A call while one is under way joins it
   * and is told its progress; the deadline is that of the first.
   *
   * @throws {JournalUnavailableError} the journal could not be listed
   * @throws {ClientClosedError} nothing was sent
   */
  resume(options?: ResumeOptions): Promise<ResumeSummary>
  /**
   * What the journal holds; without `revision` the latest is meant; `undefined` if it holds nothing.
   *
   * @throws {AmbiguousReferenceError} the reference fits several subjects
   */
  find(ref: OperationRef): Promise<Outcome | undefined>
  /** The entries of this scope and endpoint, oldest first; those that this version cannot read are told by an event. */
  entries(filter?: EntriesFilter): AsyncIterable<EntryView>
  /**
   * Cancels a pending entry, durably, and returns its outcome; naming it again needs `reopen: true`.
   *
   * @throws {NotCancelableError} it is not pending (it may have been sent), or the journal does not hold it
   */
  cancel(ref: OperationRef): Promise<Outcome>
  /**
   * Opens the next revision of a rejected operation with its stored body, under a new key, and delivers it: for background
   * writes that a bad deploy refused.
   *
   * @throws {NotFoundError} the journal does not hold it
   * @throws {RevisionRefusedError} it is not rejected, may not be opened now, or its body is no longer kept
   */
  retryRejected(ref: OperationRef, options?: RetryRejectedOptions): Promise<Outcome>
  /**
   * Settles an operation by what was found out: a verified webhook, a look-up, a person's decision. Evidence moves forward
   * only; a word against a final state is kept beside it and makes the outcome `contradicted`, which a decision ends.
   *
   * @returns the outcome after it
   * @throws {NotFoundError} the journal does not hold it
   * @throws {InvalidInputError} the evidence is not usable
   * @throws {EvidenceRefusedError} it is not believed, or not yet; nothing was changed
   */
  recordEvidence(ref: OperationRef, evidence: EvidenceInput): Promise<Outcome>
  /**
   * Looks up all entries of this scope and endpoint that are unknown or accepted, a few at a time, and takes what is found
   * as evidence. Without a look-up of your own the dialect's is used.
   *
   * @throws {InvalidInputError} neither is there
   * @throws {JournalUnavailableError} the journal could not be listed
   */
  reconcile(lookUp?: LookUp, options?: ReconcileOptions): Promise<ReconcileSummary>
  /**
   * Lets go of what has been kept long enough, by the client's `retention`: first bodies and receipts, later the names of
   * usage. Nothing that is open goes.
   */
  prune(options?: { readonly onProgress?: ((done: number) => void) | undefined }): Promise<PruneSummary>
  /** Typed events of every transition and attempt; returns a function that ends it. A listener that throws changes nothing. */
  subscribe(listener: Listener): () => void
  /**
   * No new work; resolves when the attempts in flight have ended. The default journal is closed too, one that was given in
   * the options stays open.
   */
  close(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

const KNOWN = [
  'background',
  'deadlineMs',
  'despiteUnrecordedRefusal',
  'eventAtMs',
  'idempotencyKey',
  'operationId',
  'reopen',
  'revision',
  'sendBeforeMs',
  'signal',
  'volatileFields',
] as const satisfies readonly (keyof WriteOptions)[]

const KNOWN_FILTER = ['kind', 'operationId', 'states'] as const satisfies readonly (keyof EntriesFilter)[]
const KNOWN_RESUME = ['deadlineMs', 'onProgress'] as const satisfies readonly (keyof ResumeOptions)[]

/**
 * Makes a client. Touches nothing: no file, no database, no listener and no timer before the first call.
 *
 * @throws {InvalidInputError} naming the option that is not usable
 */
export function createBillingClient(options: BillingClientOptions): BillingClient {
  return createClient(options, realRuntime(options?.fetch))
}

let clients = 0

/** @internal The same in a world of the caller's; for tests. */
export function createClient(options: BillingClientOptions, runtime: Runtime): BillingClient {
  const settings = readOptions(options)
  const { store } = settings
  const closing = new AbortController()
  const number = ++clients
  const context: Context = {
    settings,
    store,
    runtime,
    events: new Events(),
    owner: () => `${settings.store.owner}#${number}`,
    definitions: new Map(settings.writes.map((write) => [write.kind, write])),
    deliveries: new Map(),
    openings: new Map(),
    closing: closing.signal,
  }
  /** Openings under way by name, so that two calls in one tick become one entry and one delivery. */
  const openings = new Map<string, Promise<unknown>>()
  const queue = limiter(settings.concurrency)
  let resuming: Promise<ResumeSummary> | undefined
  /** All who resume at the same time are told of the one pass. */
  const watchers = new Set<(progress: ResumeProgress) => void>()
  let closed: Promise<void> | undefined

  const refuseIfClosed = (): void => {
    if (closing.signal.aborted)
      throw new ClientClosedError('The client was closed. Nothing was written and nothing was sent by this call.')
  }

  // ---------------------------------------------------------------------------------------------------------- calls

  const write = async (
    definition: AnyWriteDefinition,
    params: object,
    callOptions: WriteOptions,
  ): Promise<Outcome | Queued> => {
    refuseIfClosed()
    const { call, signal, deadlineMs } = readCall(context, definition, params, callOptions)
    if (signal?.aborted) throw abortedError(undefined, false, signal)
    const budget = budgetOf(deadlineMs)
    return call.background ? await inBackground(call, budget, signal) : await directly(call, budget, signal)
  }

  const directly = async (call: Call, budget: Budget, signal: AbortSignal | undefined): Promise<Outcome> => {
    const { opened, joined } = await inTime(
      exclusively(call, (it) => {
        // Joined before the next call of this name is let in, so that it finds this delivery under way.
        const joining = it.kind === 'deliver' ? deliver(context, it.entry, it.prepared).join(budget, signal) : undefined
        // If the caller has gone meanwhile, nobody else listens.
        joining?.catch(() => {})
        return { opened: it, joined: joining }
      }),
      budget,
      signal,
    )
    const delivered = await joined
    if (!delivered) return outcome(opened.entry, false)
    const { entry, heardReceiver } = delivered
    // Only a later revision can stand beside a contradiction here; the first one would have been answered with it.
    const contradicted = entry.revision > 1 ? await contradictedRevision(entry) : undefined
    return contradicted ? outcome(contradicted, false) : outcome(entry, heardReceiver, hintOf(entry))
  }

  const inBackground = async (
    call: Call,
    budget: Budget,
    signal: AbortSignal | undefined,
  ): Promise<Outcome | Queued> => {
    const opening = exclusively(call, (it) => {
      if (it.kind === 'deliver') deliverLater(it)
      return it
    })
    const opened = await inTime(opening, budget, signal)
    if (opened.kind === 'answer') return outcome(opened.entry, false)
    return queuedOf(opened.entry, { nowMs: runtime.nowMs(), source: 'journal', durable: settings.store.durable })
  }

  /**
   * A journal that hangs holds nobody longer than the caller allows. What it does after that sends nothing for this call:
   * nobody waits any more.
   */
  const inTime = async <T extends object>(
    opening: Promise<T>,
    budget: Budget,
    signal: AbortSignal | undefined,
  ): Promise<T> => {
    const opened = await firstOf(runtime, opening, budget.deadlineAtMs, signal)
    if (opened) return opened
    // Nobody listens any more to what it may still throw; an event has told it.
    opening.catch(() => {})
    if (signal?.aborted) throw abortedError(undefined, false, signal)
    throw new JournalUnavailableError(
      'The journal did not answer before the deadline of the call. Nothing was sent by this call.',
      { fault: 'timeout' },
    )
  }

  const deliverLater = (opened: Extract<Opened, { kind: 'deliver' }>): void => {
    void queue(async () => {
      if (closing.signal.aborted) return
      // What goes wrong is told by events; there is nobody to reject to.
      await deliver(context, opened.entry)
        .join(budgetOf(undefined))
        .catch(() => {})
    })
  }

  /** One opening of a name at a time in this client; what follows at once still belongs to it. */
  const exclusively = async <T>(call: Call, then: (opened: Opened) => T): Promise<T> => {
    const name = JSON.stringify([call.operation.kind, call.operation.subject, call.operationId])
    const before = openings.get(name)
    const mine = (async () => {
      await before
      refuseIfClosed()
      const opened = await openEntry(context, call)
      const result = then(opened)
      context.openings.get(opened.entry.key)?.end()
      return result
    })()
    const settled = mine.then(
      () => {},
      () => {},
    )
    openings.set(name, settled)
    try {
      return await mine
    } finally {
      if (openings.get(name) === settled) openings.delete(name)
    }
  }

  const budgetOf = (deadlineMs: number | undefined): Budget => ({
    attempts: settings.policy.maxAttempts,
    deadlineAtMs: runtime.monotonicMs() + (deadlineMs ?? settings.policy.deadlineMs),
    isPatient: true,
  })

  const outcome = (entry: JournalEntry, heardReceiver: boolean, hint?: string): Outcome =>
    outcomeOf(entry, {
      nowMs: runtime.nowMs(),
      source: heardReceiver ? 'receiver' : 'journal',
      durable: settings.store.durable,
      hint,
    })

  /** While a word contradicts one revision, that is the answer to the whole operation. */
  const contradictedRevision = async (
    of: Pick<JournalEntry, 'kind' | 'operationId' | 'subject'>,
  ): Promise<JournalEntry | undefined> => {
    const all = await read(() => store.history({ scope: settings.scope, kind: of.kind, operationId: of.operationId }))
    return all.find(
      (other) => other.endpoint === settings.endpoint && other.subject === of.subject && other.contradiction !== null,
    )
  }

  const hintOf = (entry: JournalEntry): string | undefined => {
    const origin = runtime.origin()
    const isNetworkOnly = entry.attempts.length > 1 && entry.attempts.every((attempt) => attempt.why === 'network')
    if (origin === undefined || !isNetworkOnly || new URL(settings.baseUrl).origin === origin) return undefined
    return `Every attempt failed without a reply and the receiver is of another origin: check that it allows the header ${entry.request.keyHeader.name} and this origin (Access-Control-Allow-Headers, Access-Control-Allow-Origin).`
  }

  // ----------------------------------------------------------------------------------------------------- the journal

  const read = <T>(action: () => Promise<T>): Promise<T> => guarded(context, 'read', action)

  /** The entry that a reference means. */
  const entryOf = async (ref: OperationRef): Promise<JournalEntry | undefined> => {
    if (typeof ref !== 'object' || ref === null) throw new InvalidInputError('ref', 'A reference must be an object.')
    if ('key' in ref) {
      const key = readName(ref.key, 'key')
      const entry = await read(() => store.get(settings.endpoint, key))
      return entry?.scope === settings.scope ? entry : undefined
    }
    const { kind, operationId, subject, revision } = ref
    const name = {
      scope: settings.scope,
      kind: readName(kind, 'kind'),
      operationId: readOperationId(operationId),
    }
    const all = await read(() => store.history(name))
    const here = all.filter(
      (entry) => entry.endpoint === settings.endpoint && (subject === undefined || entry.subject === subject),
    )
    const subjects = [...new Set(here.map((entry) => entry.subject))]
    if (subjects.length > 1) {
      throw new AmbiguousReferenceError(
        `Operation ${operationId} (${kind}) is in the journal for ${subjects.length} subjects; name the subject.`,
        subjects,
      )
    }
    return revision === undefined
      ? here.toSorted((one, other) => one.revision - other.revision).at(-1)
      : here.find((entry) => entry.revision === revision)
  }

  async function* entries(filter: EntriesFilter = {}): AsyncGenerator<EntryView> {
    refuseUnknownOptions(filter, KNOWN_FILTER, '')
    const { kind, operationId, states } = filter
    const stray = states?.find((state) => !ENTRY_STATES.includes(state))
    if (stray !== undefined) throw new InvalidInputError('states', `${String(stray)} is not a state of an entry.`)
    let after: string | undefined
    do {
      const cursor = after
      const page = await read(() =>
        store.list({ endpoint: settings.endpoint, scope: settings.scope, kind, operationId, states }, 100, cursor),
      )
      for (const entry of page.entries) yield viewOf(entry)
      if (page.unreadable > 0) {
        context.events.emit({ type: 'left-alone', why: 'unreadable', count: page.unreadable, atMs: runtime.nowMs() })
      }
      after = page.next
    } while (after !== undefined)
  }

  const viewOf = (entry: JournalEntry): EntryView => ({
    key: entry.key,
    kind: entry.kind,
    subject: entry.subject,
    operationId: entry.operationId,
    revision: entry.revision,
    state: entry.state,
    namedAtMs: entry.namedAtMs,
    eventAtMs: entry.eventAtMs,
    attempts: entry.attempts,
    attemptsBegun: entry.attemptsBegun,
    nextAttemptAtMs: isDeliverable(entry) ? entry.nextAttemptAtMs : null,
    windowEndsAtMs: windowEndsAtMs(entry),
    outcome: outcome(entry, false),
  })

  const cancel = async (ref: OperationRef): Promise<Outcome> => {
    refuseIfClosed()
    for (;;) {
      const entry = await entryOf(ref)
      if (!entry) throw new NotCancelableError('The journal holds no such operation, so there is nothing to cancel.')
      if (entry.state === 'canceled') return outcome(entry, false)
      if (entry.state !== 'pending') {
        throw new NotCancelableError(
          `Operation ${entry.operationId} (${entry.kind}, key ${entry.key}) is ${entry.state} and cannot be canceled: only what is certainly without effect can.`,
          { entry: glimpseOf(entry) },
        )
      }
      const canceled = advance(entry, { kind: 'canceled', by: 'caller' }, runtime.nowMs())
      if (await read(() => store.replace(canceled))) {
        emitChange(context, entry, canceled)
        return outcome(canceled, false)
      }
    }
  }

  // --------------------------------------------------------------------------------------------------------- evidence

  const found = async (ref: OperationRef): Promise<JournalEntry> => {
    const entry = await entryOf(ref)
    if (!entry) throw new NotFoundError('The journal holds no such operation.')
    return entry
  }

  const recordEvidence = async (ref: OperationRef, evidence: EvidenceInput): Promise<Outcome> => {
    refuseIfClosed()
    const entry = await found(ref)
    const after = await takeEvidence(context, entry, readEvidence(context, entry, evidence))
    return outcome((await contradictedRevision(after)) ?? after, false)
  }

  const reconcile = async (lookUp?: LookUp, reconcileOptions: ReconcileOptions = {}): Promise<ReconcileSummary> => {
    refuseIfClosed()
    refuseUnknownOptions(reconcileOptions, ['onProgress', 'signal'], '')
    const { onProgress, signal } = reconcileOptions
    if (!lookUp && !settings.dialects.some((dialect) => dialect.lookUp)) {
      throw new InvalidInputError(
        'lookUp',
        'This dialect cannot ask its receiver; give reconcile a look-up of your own.',
      )
    }
    const look = async (entry: JournalEntry): Promise<LookUpAnswer> => {
      if (!lookUp) return await lookUpByDialect(context, entry)
      const result = await lookUp(viewOf(entry))
      return result.found === 'unclear' ? result : readEvidence(context, entry, { source: 'look-up', ...result })
    }
    return await runReconcile(context, look, (progress) => onProgress && tell(onProgress, progress), signal)
  }

  const retryRejected = async (ref: OperationRef, retryOptions: RetryRejectedOptions = {}): Promise<Outcome> => {
    refuseIfClosed()
    refuseUnknownOptions(retryOptions, ['deadlineMs', 'despiteUnrecordedRefusal', 'signal'], '')
    const { deadlineMs, despiteUnrecordedRefusal = false, signal } = retryOptions
    const budget = budgetOf(deadlineMs === undefined ? undefined : readMs(deadlineMs, 'deadlineMs', 0, 1))
    if (signal?.aborted) throw abortedError(undefined, false, signal)
    const entry = await openNextRevision(context, await found(ref), despiteUnrecordedRefusal)
    const delivered = await deliver(context, entry).join(budget, signal)
    return outcome(delivered.entry, delivered.heardReceiver, hintOf(delivered.entry))
  }

  const prune = async (
    pruneOptions: { readonly onProgress?: ((done: number) => void) | undefined } = {},
  ): Promise<PruneSummary> => {
    refuseIfClosed()
    const { onProgress } = pruneOptions
    return await runPrune(context, (done) => onProgress && tell(onProgress, done))
  }

  // ------------------------------------------------------------------------------------------------------- deliveries

  const resume = async (resumeOptions: ResumeOptions = {}): Promise<ResumeSummary> => {
    refuseIfClosed()
    refuseUnknownOptions(resumeOptions, KNOWN_RESUME, '')
    if (resumeOptions.onProgress) watchers.add(resumeOptions.onProgress)
    const deadlineMs = readMs(resumeOptions.deadlineMs, 'deadlineMs', settings.policy.deadlineMs, 1)
    resuming ??= runPass(context, {
      budget: () => budgetOf(deadlineMs),
      isTaken: () => true,
      onProgress: (progress) => {
        for (const watcher of watchers) tell(watcher, progress)
      },
    })
      .then(({ nextAttemptAtMs: _next, failures: _failures, ...summary }) => summary)
      .finally(() => {
        resuming = undefined
        watchers.clear()
      })
    return await resuming
  }

  const close = (): Promise<void> => {
    closed ??= (async () => {
      closing.abort()
      const ending = (async () => {
        await Promise.all(openings.values())
        await Promise.all([...context.deliveries.values()].map((delivery: Delivery) => delivery.ended))
        if (settings.ownsStore) await store.close()
      })()
      ending.catch(() => {})
      // No attempt takes longer than its timeout; what a journal that hangs holds up is left to the next start.
      await firstOf(
        runtime,
        ending,
        runtime.monotonicMs() + settings.policy.attemptTimeoutMs + CLOSE_SLACK_MS,
        undefined,
      )
    })()
    return closed
  }

  const definitionOf = (kind: string): AnyWriteDefinition => {
    const definition = context.definitions.get(kind)
    if (!definition) throw new InvalidInputError('kind', `There is no write of kind ${kind}.`)
    return definition
  }

  const typed = <P extends object, R extends Receipt, V extends string>(kind: string): WriteCall<P, R, V> =>
    // The receipt is what the definition of this kind read, and `background` decides whether `queued` may come.
    ((params: P, callOptions: WriteOptions<V>) => write(definitionOf(kind), params, callOptions)) as WriteCall<P, R, V>

  return {
    charge: typed('charge'),
    recordUsage: typed('usage'),
    consumeCredits: typed('credits'),
    write: (async (definition: AnyWriteDefinition, params: object, callOptions: WriteOptions) => {
      registerDefinition(context, definition)
      return await write(definition, params, callOptions)
    }) as BillingClient['write'],
    start() {
      refuseIfClosed()
      return startBackground(context)
    },
    resume,
    async find(ref) {
      const entry = await entryOf(ref)
      return entry && outcome((await contradictedRevision(entry)) ?? entry, false)
    },
    entries,
    cancel,
    retryRejected,
    recordEvidence,
    reconcile,
    prune,
    subscribe: (listener) => context.events.subscribe(listener),
    close,
    [Symbol.asyncDispose]: close,
  }
}

/** For the records after the last replies. */
const CLOSE_SLACK_MS = 5000

/** A kind is part of the key, so it has one meaning; the library's own kinds are taken. */
function registerDefinition(context: Context, definition: AnyWriteDefinition): void {
  const { settings } = context
  if (typeof definition !== 'object' || definition === null) {
    throw new InvalidInputError('definition', 'The definition must be what defineWrite returns.')
  }
  const known = context.definitions.get(definition.kind)
  if (known === definition) return
  if (known && settings.writes.some((write) => write.kind === definition.kind)) {
    throw new InvalidInputError(
      'kind',
      `The kind ${definition.kind} is defined already; another write needs a kind of its own.`,
    )
  }
  defineWrite(definition)
  refuseShortWindow(
    definition.kind,
    keyWindowMs(settings.dialect, definition.kind, settings.windowMarginMs),
    settings.policy,
  )
  context.definitions.set(definition.kind, definition)
}

function readCall(
  context: Context,
  definition: AnyWriteDefinition,
  params: object,
  options: WriteOptions,
): { call: Call; signal: AbortSignal | undefined; deadlineMs: number | undefined } {
  if (typeof options !== 'object' || options === null)
    throw new InvalidInputError('options', 'The options must be an object with an operationId.')
  refuseUnknownOptions(options, KNOWN, '')
  const { settings } = context
  const { revision, eventAtMs, idempotencyKey, signal, deadlineMs, sendBeforeMs } = options
  const volatileFields = options.volatileFields ?? []
  const allowed = definition.volatile ?? []
  const stray = volatileFields.find((field) => !allowed.includes(field))
  if (stray !== undefined)
    throw new InvalidInputError('volatileFields', `${stray} cannot be volatile in a ${definition.kind}.`)
  if (revision !== undefined && !(Number.isSafeInteger(revision) && revision >= 1)) {
    throw new InvalidInputError('revision', 'revision must be a whole number from 1.')
  }
  if (eventAtMs !== undefined && !(typeof eventAtMs === 'number' && Number.isFinite(eventAtMs))) {
    throw new InvalidInputError('eventAtMs', 'eventAtMs must be wall time in milliseconds.')
  }
  if (
    signal !== undefined &&
    !(
      typeof signal === 'object' &&
      (signal as unknown) !== null &&
      typeof signal.aborted === 'boolean' &&
      typeof signal.addEventListener === 'function'
    )
  ) {
    throw new InvalidInputError('signal', 'signal must be an AbortSignal.')
  }
  return {
    signal,
    deadlineMs: deadlineMs === undefined ? undefined : readMs(deadlineMs, 'deadlineMs', 0, 1),
    call: {
      definition,
      operationId: readOperationId(options.operationId),
      operation: readOperation(definition, params),
      revision,
      idempotencyKey:
        idempotencyKey === undefined ? undefined : readIdempotencyKey(idempotencyKey, settings.dialect.keyLimits),
      eventAtMs,
      volatileFields: [...volatileFields],
      sendBeforeMs:
        sendBeforeMs === undefined ? undefined : readMs(sendBeforeMs, 'sendBeforeMs', 0, 1, Number.MAX_SAFE_INTEGER),
      reopen: options.reopen === true,
      despiteUnrecordedRefusal: options.despiteUnrecordedRefusal === true,
      background: options.background === true,
    },
  }
}

/**
 * Reads evidence. The receipt is read by the definition of the entry's kind, as a reply would be.
 *
 * @throws {InvalidInputError} naming the field
 */
function readEvidence(context: Context, entry: JournalEntry, given: EvidenceInput): Evidence {
  if (typeof given !== 'object' || given === null)
    throw new InvalidInputError('evidence', 'The evidence must be an object.')
  const atMs = context.runtime.nowMs()
  const from = readSource(given)
  switch (given.found) {
    case 'applied': {
      const reply = readJsonObject(given.receipt, 'receipt')
      const receipt = (context.definitions.get(entry.kind)?.readReceipt ?? readReceipt)(reply)
      if (!receipt)
        throw new InvalidInputError('receipt', `The receipt is not one of a ${entry.kind}; it needs an id at least.`)
      return { ...from, atMs, found: 'applied', receipt }
    }
    case 'not-applied': {
      const { code, message } = given
      const rejection: Rejection = {
        kind: 'not-applied',
        status: 0,
        behindKey: true,
        ...(code === undefined ? {} : { code: readName(code, 'code') }),
        ...(message === undefined ? {} : { message: readName(message, 'message') }),
      }
      return { ...from, atMs, found: 'not-applied', rejection }
    }
    case 'nothing':
      if (from.source !== 'look-up')
        throw new InvalidInputError(
          'found',
          "Only a look-up finds 'nothing'; say 'not-applied' if that is what you know.",
        )
      return { ...from, atMs, found: 'nothing', conclusive: given.conclusive === true }
    default:
      throw new InvalidInputError('found', "found must be 'applied', 'not-applied' or 'nothing'.")
  }
}

function readSource(given: EvidenceInput): EvidenceSource {
  switch (given.source) {
    case 'webhook':
    case 'look-up':
      return { source: given.source }
    case 'decision':
      return { source: 'decision', by: readName(given.by, 'by'), why: readName(given.why, 'why') }
    default:
      throw new InvalidInputError('source', "source must be 'webhook', 'look-up' or 'decision'.")
  }
}

/** Runs at most `most` at a time, in the order they came. */
function limiter(most: number): (action: () => Promise<void>) => Promise<void> {
  let running = 0
  const waiting: (() => void)[] = []
  return async (action) => {
    if (running >= most) await new Promise<void>((resolve) => waiting.push(resolve))
    else running += 1
    try {
      await action()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else running -= 1
    }
  }
}
