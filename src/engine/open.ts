/**
 * From a call to an entry: the one that the journal holds under this name, or a new one, durable before anything is sent.
 * A direct call whose credentials are at hand makes the entry and begins its first attempt in one commit.
 */
import type { Dialect } from '../dialects/dialect.ts'
import { BackpressureError, OperationConflictError, RevisionRefusedError, titleOf } from '../errors.ts'
import { advance, baseOf, glimpseOf, isDeliverable, isHoldReason, newEntry } from '../model/entry.ts'
import type { DeliverableEntry, EntryDraft, EntryEvent, JournalEntry } from '../model/entry.ts'
import { keyOf, sameName } from '../model/key.ts'
import type { IdempotencyKey, OperationId, OperationName } from '../model/key.ts'
import { openingOf } from '../model/opening.ts'
import type { Opening, Wanted } from '../model/opening.ts'
import { readEncoded, readPath } from '../model/operation.ts'
import type { AnyWriteDefinition, Operation } from '../model/operation.ts'
import type { Seen } from '../stores/store.ts'
import { claimUntil } from './claim.ts'
import { about, dialectOf, emitChange, guarded } from './context.ts'
import type { Context } from './context.ts'
import { credentialsFor } from './credentials.ts'
import { endOf } from './deliver.ts'
import type { Prepared } from './deliver.ts'
import { keyWindowMs } from './schedule.ts'
import { firstOf } from './waiters.ts'

/** A call, read and complete. */
export interface Call {
  readonly definition: AnyWriteDefinition
  readonly operation: Operation
  readonly operationId: OperationId
  readonly revision: number | undefined
  readonly idempotencyKey: IdempotencyKey | undefined
  readonly eventAtMs: number | undefined
  readonly volatileFields: readonly string[]
  readonly sendBeforeMs: number | undefined
  readonly reopen: boolean
  readonly despiteUnrecordedRefusal: boolean
  readonly background: boolean
}

export type Opened =
  /** Nothing is to be sent now. */
  | { readonly kind: 'answer'; readonly entry: JournalEntry }
  | { readonly kind: 'deliver'; readonly entry: DeliverableEntry; readonly prepared: Prepared }

/** Credentials that take longer than this are not at hand: then the entry is made durable first. */
const AT_HAND_MS = 25

/**
 * Opens the entry of a call.
 *
 * @throws {OperationConflictError} {@link openingOf}
 * @throws {RevisionRefusedError} {@link openingOf}
 * @throws {JournalUnavailableError} nothing was sent
 * @throws {BackpressureError} too much waits already; nothing was written
 */
export async function openEntry(context: Context, call: Call): Promise<Opened> {
  const { runtime, store, settings } = context
  const { clock } = store
  if (clock) await guarded(context, 'read', () => clock.look())
  const wanted = wantedOf(context, call)
  const predates = await mayPredateJournal(context, call)
  // Fixed headers cost nothing to ask for, so the entry is inserted on the chance that there is none. Others are asked for only
  // once it is known that they are needed.
  let found: readonly JournalEntry[] = settings.hasFixedHeaders
    ? []
    : await guarded(context, 'read', () => store.history(wanted))
  let isRead = !settings.hasFixedHeaders
  for (;;) {
    const opening = decide(context, found, wanted)
    switch (opening.kind) {
      case 'answer':
        context.events.emit({ type: 'answered', ...about(context, opening.entry), state: opening.entry.state })
        return { kind: 'answer', entry: opening.entry }
      case 'open': {
        const isAdmitted = !call.background || (await context.backlog?.admit(context)) !== false
        if (!isAdmitted && isRead) throw tooMuch(context)
        if (!isAdmitted) {
          // It may be there already; that is answered however much waits.
          found = await guarded(context, 'read', () => store.history(wanted))
          isRead = true
          break
        }
        const inserted = await insert(context, call, draftOf(context, call, wanted, opening.revision, predates), found)
        if ('opened' in inserted) return inserted.opened
        if (call.background) context.backlog?.release()
        found = inserted.found
        isRead = true
        break
      }
      case 'deliver':
      case 'reopen': {
        const event: EntryEvent | undefined =
          opening.kind === 'reopen'
            ? {
                kind: 'reopened',
                wanted: draftOf(context, call, wanted, opening.entry.revision, predates, opening.entry.key),
              }
            : datedBy(call, predates)
        const entry = event ? advance(opening.entry, event, runtime.nowMs()) : opening.entry
        const isKept = entry === opening.entry || (await guarded(context, 'begin', () => store.replace(entry)))
        if (isKept) {
          emitChange(context, opening.entry, entry)
          return isDeliverable(entry) ? { kind: 'deliver', entry, prepared: {} } : { kind: 'answer', entry }
        }
        // Somebody was faster: look again at what is there now.
        found = await guarded(context, 'read', () => store.history(wanted))
        break
      }
    }
  }
}

function tooMuch({ settings: { maxBacklog } }: Context): BackpressureError {
  return new BackpressureError(
    `${maxBacklog} operations wait to be delivered (maxBacklog); this call wrote and sent nothing.`,
    maxBacklog,
  )
}

/** Asks the rules; observers are told of a refusal, by the names of fields and never by their values. */
function decide(context: Context, found: readonly JournalEntry[], wanted: Wanted): Opening {
  try {
    return openingOf(found, wanted, context.runtime.nowMs())
  } catch (error) {
    const isRefusal = error instanceof OperationConflictError || error instanceof RevisionRefusedError
    const entry = isRefusal ? found.find((one) => one.key === error.entry?.key) : undefined
    if (isRefusal && entry) {
      context.events.emit(
        error instanceof OperationConflictError
          ? { type: 'conflict', ...about(context, entry), fields: error.fields }
          : { type: 'revision-refused', ...about(context, entry), reason: error.reason },
      )
    }
    throw error
  }
}

/**
 * Opens the next revision of a rejected entry with what was stored of it, under a new key.
 *
 * @throws {RevisionRefusedError} it is not rejected, may not be opened now, or its body is no longer kept
 * @throws {JournalUnavailableError} nothing was sent
 */
export async function openNextRevision(
  context: Context,
  of: JournalEntry,
  despiteUnrecordedRefusal: boolean,
): Promise<Opened> {
  const { runtime, store } = context
  /** Entries of other names that hold the key of the next revision. */
  let others: readonly JournalEntry[] = []
  for (;;) {
    const all = await guarded(context, 'read', () => store.history(of))
    const revisions = all.filter((entry) => entry.subject === of.subject)
    const latest = revisions
      .filter((entry) => entry.endpoint === of.endpoint)
      .toSorted((one, other) => one.revision - other.revision)
      .at(-1)
    const dialect = latest && dialectOf(context, latest)
    // Opened by somebody else at the same time: theirs is the one.
    if (latest && latest.revision === of.revision + 1 && isDeliverable(latest))
      return { kind: 'deliver', entry: latest, prepared: {} }
    if (
      latest?.state !== 'rejected' ||
      latest.revision > of.revision ||
      latest.contradiction ||
      latest.request.body === null ||
      !dialect
    ) {
      const why =
        latest?.state === 'rejected'
          ? 'a later revision followed, its body or dialect is no longer there, or a word contradicts it'
          : 'it is not rejected'
      throw new RevisionRefusedError(`${titleOf(of)} cannot be tried again from the journal: ${why}.`, {
        reason: 'nothing-to-retry',
        entry: glimpseOf(latest ?? of),
      })
    }
    const revision = latest.revision + 1
    const keepsRejections = dialect.keepsRejections(latest.kind)
    const nowMs = runtime.nowMs()
    // Asks the rules of revisions, as a call with `revision` would.
    const opening = decide(context, [...revisions, ...others], {
      ...latest,
      revision,
      idempotencyKey: undefined,
      names: namersOf(context),
      despiteUnrecordedRefusal,
      reopen: false,
      keepsRejections,
    })
    if (opening.kind !== 'open') return { kind: 'answer', entry: opening.entry }
    const entry = newEntry(nextDraftOf(latest, revision, dialect, nowMs), nowMs)
    const result = await guarded(context, 'begin', () => store.insert(entry, revisions))
    if (result.inserted && isDeliverable(entry)) {
      emitChange(context, undefined, entry)
      return { kind: 'deliver', entry, prepared: {} }
    }
    // Somebody else opened one meanwhile, or holds its key: the rules decide again.
    others = result.inserted ? [] : result.found.filter((entry) => !sameName(entry, of))
  }
}

/** The same write under the key of the next revision, which nobody has sent, however old the event is. */
function nextDraftOf(latest: JournalEntry, revision: number, dialect: Dialect, nowMs: number): EntryDraft {
  const key = keyOf(latest, revision)
  return {
    // What it has lived through is made afresh by newEntry.
    ...baseOf(latest),
    key,
    revision,
    request: { ...latest.request, keyHeader: dialect.keyHeader(key) },
    namedAtMs: nowMs,
    mayPredateJournal: false,
    window: { ...latest.window, startAtMs: latest.window.names === 'shared' ? nowMs : null },
    sendBeforeAtMs: latest.sendBeforeAtMs === null ? null : nowMs + (latest.sendBeforeAtMs - latest.namedAtMs),
  }
}

/** What a new entry of a call would be, whatever the journal holds. */
export function draftFor(context: Context, call: Call): EntryDraft {
  return draftOf(context, call, wantedOf(context, call), 1, false)
}

/**
 * @throws {BackpressureError} so much waits already
 */
export async function admitOne(context: Context): Promise<void> {
  if ((await context.backlog?.admit(context)) === false) throw tooMuch(context)
}

/** Inserts a new entry; if the journal holds something else than was seen, nothing is written and that is given back. */
async function insert(
  context: Context,
  call: Call,
  draft: EntryDraft,
  found: readonly JournalEntry[],
): Promise<{ opened: Opened } | { found: readonly JournalEntry[] }> {
  // From here until the call delivers it, a pass of background delivery must not take the entry up.
  const { end } = beginOpening(context, draft.key)
  let isInserted = false
  try {
    const { entry, prepared } = await firstVersionOf(context, call, newEntry(draft, context.runtime.nowMs()))
    const seen: readonly Seen[] = found.filter((other) => other.subject === draft.subject || other.key === draft.key)
    const result = await guarded(context, 'begin', () => context.store.insert(entry, seen))
    if (!result.inserted) return { found: result.found }
    isInserted = true
    emitChange(context, undefined, entry)
    if (entry.state === 'pending' && isHoldReason(entry.reason)) {
      context.events.emit({ type: 'held', ...about(context, entry), reason: entry.reason })
    }
    return {
      opened: isDeliverable(entry) && prepared ? { kind: 'deliver', entry, prepared } : { kind: 'answer', entry },
    }
  } finally {
    if (!isInserted) end()
  }
}

function beginOpening(context: Context, key: string): { readonly end: () => void } {
  let settle = (): void => {}
  const ended = new Promise<void>((resolve) => {
    settle = resolve
  })
  const opening = {
    ended,
    end(): void {
      if (context.openings.get(key) === opening) context.openings.delete(key)
      settle()
    },
  }
  context.openings.set(key, opening)
  return opening
}

/** As it will first stand in the journal: its first attempt begun where nothing stands against it, else waiting. */
async function firstVersionOf(
  context: Context,
  call: Call,
  draft: JournalEntry,
): Promise<{ entry: JournalEntry; prepared?: Prepared }> {
  const { runtime, settings } = context
  const first = (event: EntryEvent): JournalEntry => ({ ...advance(draft, event, runtime.nowMs()), version: 1 })
  if (!isDeliverable(draft)) return { entry: draft }
  const end = endOf(context, draft)
  if (end) return { entry: first(end) }
  if (call.background) return { entry: draft, prepared: {} }
  if (!runtime.isOnline()) {
    return { entry: first({ kind: 'held', reason: 'offline', nextAttemptAtMs: runtime.nowMs() }), prepared: {} }
  }
  const credentials = credentialsFor(context, draft)
  const at = settings.hasFixedHeaders
    ? await credentials
    : await firstOf(runtime, credentials, runtime.monotonicMs() + AT_HAND_MS, undefined)
  if (!at) return { entry: draft, prepared: { credentials } }
  // Nothing can be sent now, so there is nothing to deliver: the entry waits.
  if ('held' in at) return { entry: first({ kind: 'held', reason: at.held, nextAttemptAtMs: runtime.nowMs() }) }
  const claim = claimUntil(context, draft, runtime.nowMs() + settings.policy.attemptTimeoutMs)
  return { entry: first({ kind: 'began', claim }), prepared: { begunWith: at.headers } }
}

function datedBy(call: Call, mayPredateJournal: boolean): EntryEvent | undefined {
  const eventAtMs = timeOf(call)
  return eventAtMs === undefined ? undefined : { kind: 'dated', eventAtMs, mayPredateJournal }
}

/** The earliest time that the call gives for its event. */
function timeOf(call: Call): number | undefined {
  const times = [call.eventAtMs, call.operation.occurredAtMs].filter((ms) => ms !== undefined)
  return times.length === 0 ? undefined : Math.min(...times)
}

function wantedOf(context: Context, call: Call): Wanted {
  const { settings } = context
  return {
    ...nameOf(context, call),
    endpoint: settings.endpoint,
    endpointNamed: settings.endpointNamed,
    revision: call.revision,
    idempotencyKey: call.idempotencyKey,
    fingerprint: call.operation.fingerprint,
    volatileFields: call.volatileFields,
    names: namersOf(context),
    despiteUnrecordedRefusal: call.despiteUnrecordedRefusal,
    reopen: call.reopen,
    keepsRejections: settings.dialect.keepsRejections(call.operation.kind),
  }
}

/** Whose attempts a refusal has to speak for: in a browser there may be another one, the browser's own. */
function namersOf({ runtime, settings }: Context): Wanted['names'] {
  return runtime.maySendTwice() ? 'shared' : settings.names
}

function nameOf(context: Context, call: Call): OperationName {
  const { kind, subject } = call.operation
  return { scope: context.settings.scope, kind, subject, operationId: call.operationId }
}

function draftOf(
  context: Context,
  call: Call,
  wanted: Wanted,
  revision: number,
  mayPredateJournal: boolean,
  keptKey?: IdempotencyKey,
): EntryDraft {
  const { settings, runtime } = context
  const { dialect } = settings
  const { definition, operation } = call
  const nowMs = runtime.nowMs()
  const name = nameOf(context, call)
  const key = keptKey ?? call.idempotencyKey ?? keyOf(name, revision)
  const encoded = dialect.encode(definition, operation.fields)
  const { body, contentType } = readEncoded(encoded)
  const eventAtMs = timeOf(call) ?? null
  const sendBeforeMs = call.sendBeforeMs ?? definition.sendBeforeMs
  const acceptanceMs = dialect.acceptanceMs?.(operation.kind)
  return {
    ...name,
    key,
    endpoint: wanted.endpoint,
    endpointNamed: wanted.endpointNamed,
    revision,
    request: {
      method: definition.method,
      path: readPath(encoded.path, 'path'),
      keyHeader: dialect.keyHeader(key),
      contentType,
      headers: dialect.headers,
      body,
    },
    fingerprint: operation.fingerprint,
    expected: operation.expected,
    volatileFields: call.volatileFields,
    dialect: { name: dialect.name, version: dialect.version },
    keyed: dialect.takesKey(operation.kind),
    longestRequestMs: Math.max(dialect.longestRequestMs, settings.policy.attemptTimeoutMs),
    namedAtMs: nowMs,
    eventAtMs,
    mayPredateJournal,
    window: {
      names: settings.names,
      startAtMs: settings.names === 'shared' ? Math.min(eventAtMs ?? nowMs, nowMs) : null,
      lengthMs: keyWindowMs(dialect, operation.kind, settings.windowMarginMs),
      marginMs: settings.windowMarginMs,
    },
    sendBeforeAtMs: sendBeforeMs === undefined ? null : nowMs + sendBeforeMs,
    acceptUntilAtMs: acceptanceMs === undefined ? null : (eventAtMs ?? nowMs) + acceptanceMs,
  }
}

/** An event older than the journal may have been sent by a journal that is gone (only names that others use too). */
async function mayPredateJournal(context: Context, call: Call): Promise<boolean> {
  const eventAtMs = timeOf(call)
  if (eventAtMs === undefined || context.settings.names === 'own') return false
  return eventAtMs < (await guarded(context, 'read', () => context.store.knowsSinceMs(call.operation.kind)))
}
