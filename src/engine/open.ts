/**
 * From a call to an entry: the one that the journal holds under this name, or a new one, durable before anything is sent.
 * A direct call whose credentials are at hand makes the entry and begins its first attempt in one commit.
 */
import { advance, isDeliverable, isWindowOver, newEntry } from '../model/entry.ts'
import type { Claim, DeliverableEntry, EntryDraft, JournalEntry } from '../model/entry.ts'
import { keyOf } from '../model/key.ts'
import type { IdempotencyKey, OperationId, OperationName } from '../model/key.ts'
import { openingOf } from '../model/opening.ts'
import type { Wanted } from '../model/opening.ts'
import type { AnyWriteDefinition, Operation } from '../model/operation.ts'
import type { Seen } from '../stores/store.ts'
import { emitChange, journalFault } from './context.ts'
import type { Context } from './context.ts'
import { credentialsFor, CLAIM_SLACK_MS } from './deliver.ts'
import type { Begun } from './deliver.ts'
import { keyWindowMs } from './schedule.ts'

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
  /** Nothing is to be sent. */
  | { readonly kind: 'answer'; readonly entry: JournalEntry; readonly isNew: boolean }
  | { readonly kind: 'deliver'; readonly entry: DeliverableEntry; readonly begun?: Begun; readonly isNew: boolean }

/** Credentials that take longer than this are not at hand: then the entry is made durable first. */
const AT_HAND_MS = 25

/**
 * Opens the entry of a call.
 *
 * @throws {OperationConflictError} {@link openingOf}
 * @throws {RevisionRefusedError} {@link openingOf}
 * @throws {JournalUnavailableError} nothing was sent
 */
export async function openEntry(context: Context, call: Call): Promise<Opened> {
  const { runtime, store } = context
  const wanted = wantedOf(context, call)
  const predates = await mayPredateJournal(context, call)
  let revision = call.revision ?? 1
  let seen: readonly Seen[] = []
  for (;;) {
    const draft = newEntry(draftOf(context, call, wanted, revision, predates), runtime.nowMs())
    const fresh = await firstVersionOf(context, call, draft)
    const result = await guarded(context, () => store.insert(fresh.entry, seen))
    if (result.inserted) {
      emitChange(context, undefined, fresh.entry)
      return isDeliverable(fresh.entry)
        ? { kind: 'deliver', entry: fresh.entry, isNew: true, ...(fresh.begun ? { begun: fresh.begun } : {}) }
        : { kind: 'answer', entry: fresh.entry, isNew: true }
    }
    const opening = openingOf(result.found, wanted, runtime.nowMs())
    switch (opening.kind) {
      case 'answer':
        return { kind: 'answer', entry: opening.entry, isNew: false }
      case 'deliver':
        return { kind: 'deliver', entry: opening.entry, isNew: false }
      case 'open':
        revision = opening.revision
        seen = result.found
        break
      case 'reopen': {
        const { request, fingerprint, expected, volatileFields, sendBeforeAtMs, dialect } = draftOf(
          context,
          call,
          wanted,
          opening.entry.revision,
          predates,
        )
        const kept = { ...request, keyHeader: opening.entry.request.keyHeader }
        const again = advance(
          opening.entry,
          {
            kind: 'reopened',
            wanted: { request: kept, fingerprint, expected, volatileFields, sendBeforeAtMs, dialect },
            claim: null,
          },
          runtime.nowMs(),
        )
        if ((await guarded(context, () => store.replace(again))) && isDeliverable(again)) {
          emitChange(context, opening.entry, again)
          return { kind: 'deliver', entry: again, isNew: true }
        }
        // Somebody was faster: look again at what is there now.
        seen = []
        break
      }
    }
  }
}

/** As it will first stand in the journal: its first attempt begun where nothing stands against it, else waiting. */
async function firstVersionOf(
  context: Context,
  call: Call,
  draft: JournalEntry,
): Promise<{ entry: JournalEntry; begun?: Begun }> {
  const { runtime, settings } = context
  if (isWindowOver(draft, runtime.nowMs())) {
    const reason = draft.mayPredateJournal ? 'may-predate-journal' : 'window-over'
    return { entry: { ...advance(draft, { kind: 'ended', reason }, runtime.nowMs()), version: 1 } }
  }
  if (call.background || !runtime.isOnline()) return { entry: draft }
  const late = new AbortController()
  const at = await Promise.race([
    credentialsFor(context, draft),
    runtime.sleep(AT_HAND_MS, late.signal).then(() => undefined),
  ])
  late.abort()
  if (!at || 'held' in at || isWindowOver(draft, runtime.nowMs())) return { entry: draft }
  const claim: Claim = {
    owner: context.owner(),
    fence: 1,
    untilMs: runtime.nowMs() + settings.policy.attemptTimeoutMs + CLAIM_SLACK_MS,
  }
  return {
    entry: { ...advance(draft, { kind: 'began', claim }, runtime.nowMs()), version: 1 },
    begun: { headers: at.headers },
  }
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
    names: settings.names,
    despiteUnrecordedRefusal: call.despiteUnrecordedRefusal,
    reopen: call.reopen,
    keepsRejections: settings.dialect.keepsRejections(call.operation.kind),
  }
}

function nameOf(context: Context, call: Call): OperationName {
  const { kind, subject } = call.operation
  return { scope: context.settings.scope, kind, subject, operationId: call.operationId }
}

function draftOf(context: Context, call: Call, wanted: Wanted, revision: number, predates: boolean): EntryDraft {
  const { settings, runtime } = context
  const { dialect } = settings
  const { definition, operation } = call
  const nowMs = runtime.nowMs()
  const name = nameOf(context, call)
  const key = call.idempotencyKey ?? keyOf(name, revision)
  const { path, body, contentType } = dialect.encode(definition, operation.fields)
  const times = [call.eventAtMs, operation.occurredAtMs, nowMs].filter((ms) => ms !== undefined)
  const sendBeforeMs = call.sendBeforeMs ?? definition.sendBeforeMs
  return {
    ...name,
    key,
    endpoint: wanted.endpoint,
    endpointNamed: wanted.endpointNamed,
    revision,
    request: {
      method: definition.method,
      path,
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
    eventAtMs: call.eventAtMs ?? operation.occurredAtMs ?? null,
    mayPredateJournal: predates,
    window: {
      names: settings.names,
      startAtMs: settings.names === 'shared' ? Math.min(...times) : null,
      lengthMs: keyWindowMs(dialect, operation.kind, settings.windowMarginMs),
      marginMs: settings.windowMarginMs,
    },
    sendBeforeAtMs: sendBeforeMs === undefined ? null : nowMs + sendBeforeMs,
  }
}

/** An event older than the journal may have been sent by a journal that is gone (only names that others use too). */
async function mayPredateJournal(context: Context, call: Call): Promise<boolean> {
  const eventAtMs = call.eventAtMs ?? call.operation.occurredAtMs
  if (eventAtMs === undefined || context.settings.names === 'own') return false
  return eventAtMs < (await guarded(context, () => context.store.bornAtMs()))
}

async function guarded<T>(context: Context, action: () => Promise<T>): Promise<T> {
  try {
    return await action()
  } catch (error) {
    const fault = journalFault(error, { sentByThisCall: false })
    context.events.emit({ type: 'storage-fault', step: 'begin', fault: fault.fault, atMs: context.runtime.nowMs() })
    throw fault
  }
}
