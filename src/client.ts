/**
 * `createBillingClient` and what it returns. Each call is read here, opened (engine/open.ts), delivered (engine/deliver.ts)
 * and answered with the outcome of its entry.
 */
import type {
  BillingClient,
  CloseOptions,
  EntriesFilter,
  EntryView,
  EvidenceInput,
  LookUp,
  OperationRef,
  ReconcileOptions,
  ResumeOptions,
  RetryRejectedOptions,
  WriteCall,
  WriteOptions,
} from './api.ts'
import { backgroundOf } from './engine/background.ts'
import { backlogOf } from './engine/backlog.ts'
import { contexts, emitChange, guarded, pagesOf, revisionsOf } from './engine/context.ts'
import type { Context } from './engine/context.ts'
import { abortedError, deliver } from './engine/deliver.ts'
import type { Delivered, Delivery } from './engine/deliver.ts'
import { healthOf } from './engine/health.ts'
import { openEntry, openNextRevision } from './engine/open.ts'
import type { Call, Opened } from './engine/open.ts'
import { Pace } from './engine/pace.ts'
import { runPrune } from './engine/prune.ts'
import type { PruneSummary } from './engine/prune.ts'
import { lookUpByDialect, refuseNoLookUp, runReconcile, takeEvidence } from './engine/reconcile.ts'
import type { LookUpAnswer, ReconcileSummary } from './engine/reconcile.ts'
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
  JournalUnavailableError,
  NotCancelableError,
  NotFoundError,
  refuse,
  titleOf,
} from './errors.ts'
import { Events, tell } from './events.ts'
import { readCall, readEvidence, readFilter, readRef } from './input.ts'
import { advance, glimpseOf, isDeliverable, windowEndsAtMs } from './model/entry.ts'
import type { JournalEntry } from './model/entry.ts'
import { defineWrite } from './model/operation.ts'
import type { AnyWriteDefinition } from './model/operation.ts'
import { outcomeOf, queuedOf } from './model/outcome.ts'
import type { Outcome, Queued } from './model/outcome.ts'
import { standingOf } from './model/verdict.ts'
import type { Receipt } from './model/verdict.ts'
import { readMs, readObject, readOptions, refuseShortWindow, refuseUnknownOptions } from './options.ts'
import type { BillingClientOptions } from './options.ts'
import type { Page } from './stores/store.ts'

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
export function createClient(options: BillingClientOptions, world: Runtime): BillingClient {
  const settings = readOptions(options)
  const { store, policy } = settings
  const { clock } = store
  // What is compared between machines goes by the one clock that they share.
  const runtime: Runtime = clock ? { ...world, nowMs: () => clock.atMs(world.nowMs()) } : world
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
    backlog: settings.maxBacklog === Infinity ? undefined : backlogOf(settings.maxBacklog),
    pace: new Pace({
      baseMs: policy.backgroundBaseDelayMs,
      capMs: policy.maxDelayMs,
      longestMs: policy.maxBackgroundDelayMs,
      most: settings.concurrency,
    }),
    lastWork: new Set(),
    closing: closing.signal,
  }
  /** Openings under way by name, so that two calls in one tick become one entry and one delivery. */
  const openings = new Map<string, Promise<unknown>>()
  const background = backgroundOf(context)
  let resuming: Promise<ResumeSummary> | undefined
  /** All who resume at the same time are told of the one pass. */
  const watchers = new Set<(progress: ResumeProgress) => void>()
  let closed: Promise<void> | undefined

  const refuseIfClosed = (): void => {
    if (closing.signal.aborted) throw new ClientClosedError('The client was closed; this call wrote and sent nothing.')
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
    return await outcomeOfDelivered(delivered)
  }

  const outcomeOfDelivered = async ({ entry, heardReceiver }: Delivered): Promise<Outcome> => {
    if (isDeliverable(entry)) background.notice()
    // Only a later revision can stand beside a contradiction here; the first one would have been answered with it.
    const deciding = entry.revision > 1 ? await decidingRevision(entry) : undefined
    return deciding ? outcome(deciding, false) : outcome(entry, heardReceiver, hintOf(entry))
  }

  const inBackground = async (
    call: Call,
    budget: Budget,
    signal: AbortSignal | undefined,
  ): Promise<Outcome | Queued> => {
    const opening = exclusively(call, (it) => {
      // If the caller has gone meanwhile it was told that nothing is sent by this call; a pass takes the entry up.
      const isThere = !signal?.aborted && runtime.monotonicMs() < budget.deadlineAtMs
      if (it.kind === 'deliver' && isThere) background.take(it.entry)
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
    if (signal?.aborted) throw abortedError('opening', false, signal)
    context.events.emit({ type: 'storage-fault', step: 'begin', fault: 'timeout', atMs: runtime.nowMs() })
    throw new JournalUnavailableError(
      'The journal did not answer in time. This call sent nothing; the operation may still be written down.',
      { fault: 'timeout' },
    )
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

  /**
   * Another revision that is the answer to the whole operation: while a word contradicts one, that one; and for one that
   * stopped because another succeeded, the success.
   */
  const decidingRevision = async (of: JournalEntry): Promise<JournalEntry | undefined> => {
    const revisions = await revisionsOf(context, of)
    const isStopped =
      of.state === 'canceled' ? of.by === 'superseded' : of.state === 'unknown' && of.reason === 'superseded'
    return (
      revisions.find((other) => other.contradiction !== null) ??
      (isStopped || isDeliverable(of) ? revisions.find((other) => other.state === 'succeeded') : undefined)
    )
  }

  const hintOf = (entry: JournalEntry): string | undefined => {
    const origin = runtime.origin()
    const isNetworkOnly = entry.attempts.length > 1 && entry.attempts.every((attempt) => attempt.why === 'network')
    if (origin === undefined || !isNetworkOnly || new URL(settings.baseUrl).origin === origin) return undefined
    return `No attempt had a reply, and the receiver is of another origin: probeReceiver tells whether it allows this one and the header ${entry.request.keyHeader.name} (Access-Control-Allow-Headers).`
  }

  // ----------------------------------------------------------------------------------------------------- the journal

  const read = <T>(action: () => Promise<T>): Promise<T> => guarded(context, 'read', action)

  /** The entry that a reference means. */
  const entryOf = async (ref: OperationRef): Promise<JournalEntry | undefined> => {
    const wanted = readRef(ref)
    if ('key' in wanted) {
      const entry = await read(() => store.get(settings.endpoint, wanted.key))
      return entry?.scope === settings.scope ? entry : undefined
    }
    const { kind, operationId, subject, revision } = wanted
    const all = await read(() => store.history({ scope: settings.scope, kind, operationId }))
    const here = all.filter(
      (entry) => entry.endpoint === settings.endpoint && (subject === undefined || entry.subject === subject),
    )
    const subjects = [...new Set(here.map((entry) => entry.subject))]
    if (subjects.length > 1) {
      throw new AmbiguousReferenceError(
        `Operation ${operationId} (${kind}) is in the journal for ${subjects.length} subjects; name one.`,
        subjects,
      )
    }
    return revision === undefined
      ? here.toSorted((one, other) => one.revision - other.revision).at(-1)
      : here.find((entry) => entry.revision === revision)
  }

  async function* entries(filter: EntriesFilter = {}): AsyncGenerator<EntryView> {
    const { contradicted, kind, operationId, states } = readFilter(filter)
    const { endpoint, scope } = settings
    const page = (after?: string): Promise<Page> =>
      store.list({ endpoint, scope, kind, operationId, states }, 100, after)
    for await (const { entries: found, unreadable } of pagesOf(context, 'read', page)) {
      for (const entry of found) {
        if (contradicted === undefined || contradicted === (entry.contradiction !== null)) yield viewOf(entry)
      }
      if (unreadable > 0) {
        context.events.emit({ type: 'left-alone', why: 'unreadable', count: unreadable, atMs: runtime.nowMs() })
      }
    }
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
    evidence: entry.evidence,
    misses: entry.misses,
    outcome: outcome(entry, false),
  })

  const cancel = async (ref: OperationRef): Promise<Outcome> => {
    refuseIfClosed()
    for (;;) {
      const entry = await entryOf(ref)
      if (!entry) throw new NotCancelableError(NOT_THERE)
      if (entry.state === 'canceled') return outcome(entry, false)
      if (entry.state !== 'pending') {
        throw new NotCancelableError(
          `${titleOf(entry)} is ${entry.state} and cannot be canceled: only what is pending can.`,
          { entry: glimpseOf(entry) },
        )
      }
      const canceled = advance(entry, { kind: 'canceled', by: 'caller' }, runtime.nowMs())
      if (await guarded(context, 'record', () => store.replace(canceled))) {
        emitChange(context, entry, canceled)
        return outcome(canceled, false)
      }
    }
  }

  // --------------------------------------------------------------------------------------------------------- evidence

  const found = async (ref: OperationRef): Promise<JournalEntry> => {
    const entry = await entryOf(ref)
    if (!entry) throw new NotFoundError(NOT_THERE)
    return entry
  }

  const recordEvidence = async (ref: OperationRef, evidence: EvidenceInput): Promise<Outcome> => {
    refuseIfClosed()
    const entry = await found(ref)
    const after = await takeEvidence(context, entry, readEvidence(context, entry, evidence))
    return outcome((await decidingRevision(after)) ?? after, false)
  }

  const reconcile = async (lookUp?: LookUp, reconcileOptions: ReconcileOptions = {}): Promise<ReconcileSummary> => {
    refuseIfClosed()
    refuseUnknownOptions(reconcileOptions, ['onProgress', 'signal'], '')
    const { onProgress, signal } = reconcileOptions
    if (!lookUp && !settings.dialects.some((dialect) => dialect.lookUp)) refuseNoLookUp()
    const look = async (entry: JournalEntry): Promise<LookUpAnswer> => {
      if (!lookUp) return await lookUpByDialect(context, entry)
      const result = await lookUp(viewOf(entry))
      // Made and not concluded is what the journal knows already.
      const standing = result.found === 'applied' ? standingOf(result.receipt) : undefined
      if (standing === 'processing' || standing === 'requires_action') return { found: 'unclear' }
      return result.found === 'unclear' ? result : readEvidence(context, entry, { source: 'look-up', ...result })
    }
    return await runReconcile(context, look, (progress) => onProgress && tell(onProgress, progress), signal)
  }

  const retryRejected = async (ref: OperationRef, retryOptions: RetryRejectedOptions = {}): Promise<Outcome> => {
    refuseIfClosed()
    refuseUnknownOptions(retryOptions, ['deadlineMs', 'despiteUnrecordedRefusal', 'signal'], '')
    const { deadlineMs, despiteUnrecordedRefusal = false, signal } = retryOptions
    const budget = budgetOf(readMs(deadlineMs, 'deadlineMs', undefined, 1))
    if (signal?.aborted) throw abortedError(undefined, false, signal)
    const opened = await openNextRevision(context, await found(ref), despiteUnrecordedRefusal)
    if (opened.kind === 'answer') return outcome((await decidingRevision(opened.entry)) ?? opened.entry, false)
    return await outcomeOfDelivered(await deliver(context, opened.entry).join(budget, signal))
  }

  const prune = async (
    pruneOptions: { readonly onProgress?: ((done: number) => void) | undefined } = {},
  ): Promise<PruneSummary> => {
    refuseIfClosed()
    refuseUnknownOptions(pruneOptions, ['onProgress'], '')
    const { onProgress } = pruneOptions
    return await runPrune(context, (done) => onProgress && tell(onProgress, done))
  }

  // ------------------------------------------------------------------------------------------------------- deliveries

  const resume = async (resumeOptions: ResumeOptions = {}): Promise<ResumeSummary> => {
    refuseIfClosed()
    refuseUnknownOptions(resumeOptions, ['deadlineMs', 'onProgress'], '')
    if (resumeOptions.onProgress) watchers.add(resumeOptions.onProgress)
    const deadlineMs = readMs(resumeOptions.deadlineMs, 'deadlineMs', settings.policy.deadlineMs, 1)
    resuming ??= runPass(context, {
      deliver: (entry) => deliver(context, entry).join(budgetOf(deadlineMs)),
      most: () => settings.concurrency,
      due: 'any',
      onProgress: (progress) => {
        for (const watcher of watchers) tell(watcher, progress)
      },
    })
      .then(({ nextAttemptAtMs: _next, ...summary }) => summary)
      .finally(() => {
        resuming = undefined
        watchers.clear()
      })
    return await resuming
  }

  const end = (): void => {
    closing.abort()
    for (const delivery of context.deliveries.values()) delivery.nudge()
  }

  const close = async (closeOptions: CloseOptions = {}): Promise<void> => {
    refuseUnknownOptions(closeOptions, ['withinMs'], '')
    // No attempt takes longer than its timeout; what a journal that hangs holds up is left to the next start.
    const longestMs = policy.attemptTimeoutMs + CLOSE_SLACK_MS
    const deadlineAtMs = runtime.monotonicMs() + readMs(closeOptions.withinMs, 'withinMs', longestMs, 0)
    closed ??= (async () => {
      if (context.lastWork.size > 0) await Promise.all(Array.from(context.lastWork, async (work) => await work()))
      end()
      await Promise.all(openings.values())
      await Promise.all([...context.deliveries.values()].map((delivery: Delivery) => delivery.ended))
      if (settings.ownsStore) await store.close()
    })()
    closed.catch(() => {})
    await firstOf(runtime, closed, deadlineAtMs, undefined)
    // Also if what comes before it takes too long.
    end()
  }

  const definitionOf = (kind: string): AnyWriteDefinition => {
    const definition = context.definitions.get(kind)
    return definition ?? refuse('kind', `${kind} has no definition`)
  }

  const typed = <P extends object, R extends Receipt, V extends string>(kind: string): WriteCall<P, R, V> =>
    // The receipt is what the definition of this kind read, and `background` decides whether `queued` may come.
    ((params: P, callOptions: WriteOptions<V>) => write(definitionOf(kind), params, callOptions)) as WriteCall<P, R, V>

  const client: BillingClient = {
    charge: typed('charge'),
    recordUsage: typed('usage'),
    consumeCredits: typed('credits'),
    write: (async (definition: AnyWriteDefinition, params: object, callOptions: WriteOptions) => {
      registerDefinition(context, definition)
      return await write(definition, params, callOptions)
    }) as BillingClient['write'],
    start() {
      refuseIfClosed()
      return background.start()
    },
    resume,
    async find(ref) {
      const entry = await entryOf(ref)
      if (!entry) return undefined
      const deciding = await decidingRevision(entry)
      // Who asks for a certain revision wants to know what became of that one, unless a word contradicts another.
      const isCertain = 'key' in ref || ref.revision !== undefined
      return outcome(deciding && (deciding.contradiction || !isCertain) ? deciding : entry, false)
    },
    entries,
    cancel,
    retryRejected,
    recordEvidence,
    reconcile,
    prune,
    journalHealth: () => healthOf(context),
    subscribe: (listener) => context.events.subscribe(listener),
    close,
    [Symbol.asyncDispose]: () => close(),
  }
  contexts.set(client, context)
  return client
}

const NOT_THERE = 'The journal holds no such operation.'

/** For the records after the last replies. */
const CLOSE_SLACK_MS = 5000

/** @internal A kind is part of the key, so it has one meaning; the library's own kinds are taken. */
export function registerDefinition(context: Context, definition: AnyWriteDefinition): void {
  const { settings } = context
  readObject(definition, 'definition')
  const known = context.definitions.get(definition.kind)
  if (known === definition) return
  if (known && settings.writes.some((write) => write.kind === definition.kind))
    refuse('kind', `${definition.kind} is defined already; another write needs a kind of its own`)
  defineWrite(definition)
  refuseShortWindow(
    definition.kind,
    keyWindowMs(settings.dialect, definition.kind, settings.windowMarginMs),
    settings.policy,
  )
  context.definitions.set(definition.kind, definition)
}
