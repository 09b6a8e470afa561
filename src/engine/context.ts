/**
 * What the parts of the engine share: settings, journal, world, observers, and the deliveries under way in this client.
 */
import { JournalUnavailableError, UnreachableError } from '../errors.ts'
import type { Dialect } from '../dialects/dialect.ts'
import type { BillingEvent, Events, StateReason } from '../events.ts'
import { glimpseOf, windowEndsAtMs } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import type { AnyWriteDefinition } from '../model/operation.ts'
import type { JournalStore, Page } from '../stores/store.ts'
import type { Backlog } from './backlog.ts'
import type { CredentialsOption } from './credentials.ts'
import type { Delivery } from './deliver.ts'
import type { Pace } from './pace.ts'
import type { Runtime } from './runtime.ts'
import type { RetryPolicy } from './schedule.ts'

/** A client's options, complete; options.ts reads them. */
export interface Settings {
  readonly baseUrl: string
  readonly endpoint: string
  readonly endpointNamed: boolean
  readonly scope: string
  readonly credentials: CredentialsOption
  /** Credentials cannot change, so there is nothing to wait for. */
  readonly hasFixedHeaders: boolean
  readonly credentialsTimeoutMs: number
  readonly store: JournalStore
  readonly ownsStore: boolean
  readonly dialect: Dialect
  readonly dialects: readonly Dialect[]
  readonly writes: readonly AnyWriteDefinition[]
  readonly policy: RetryPolicy
  readonly names: 'shared' | 'own'
  readonly windowMarginMs: number
  readonly anyCurrency: boolean
  readonly concurrency: number
  readonly maxBacklog: number
  readonly retention: { readonly finalMs: number; readonly namesMs: Readonly<Record<string, number>> }
  readonly fetch: typeof fetch | undefined
}

export interface Opening {
  readonly ended: Promise<void>
  readonly end: () => void
}

export interface Context {
  readonly settings: Settings
  readonly store: JournalStore
  readonly runtime: Runtime
  readonly events: Events
  /** This client as a holder of claims: the process or tab, and which client in it. */
  readonly owner: () => string
  /** Definitions by kind: the library's own, those of the options, and those of `write` calls. */
  readonly definitions: Map<string, AnyWriteDefinition>
  /** Deliveries under way, by key; a second call joins instead of starting another. */
  readonly deliveries: Map<string, Delivery>
  /** Entries that a call is opening, by key: until it delivers them itself, nobody else in this client does. */
  readonly openings: Map<string, Opening>
  /** Refuses what would be too much; absent where nothing is refused. */
  readonly backlog: Backlog | undefined
  /** How background delivery paces itself. */
  readonly pace: Pace
  /** What is done before the client closes; it may still call the client. Never rejects. */
  readonly lastWork: Set<() => Promise<void>>
  /** Fires when the client is closed. */
  readonly closing: AbortSignal
}

/** By client, for what is offered beside the client and not by it, so that nobody loads it who does not use it. */
export const contexts: WeakMap<object, Context> = /* @__PURE__ */ new WeakMap()

export function dialectOf(context: Context, entry: JournalEntry): Dialect | undefined {
  return context.settings.dialects.find(
    (dialect) => dialect.name === entry.dialect.name && dialect.version === entry.dialect.version,
  )
}

/** What every event about an entry says. */
export function about(
  context: Context,
  entry: JournalEntry,
): Pick<Extract<BillingEvent, { type: 'state' }>, 'key' | 'kind' | 'revision' | 'atMs' | 'ageMs' | 'headroomMs'> {
  const atMs = context.runtime.nowMs()
  const endsAtMs = windowEndsAtMs(entry)
  return {
    key: entry.key,
    kind: entry.kind,
    revision: entry.revision,
    atMs,
    ageMs: Math.max(0, atMs - entry.namedAtMs),
    headroomMs: endsAtMs === null ? null : Math.max(0, endsAtMs - atMs),
  }
}

/** Why an entry is in its state, as far as observers may know: never the receiver's own words. */
export function reasonOf(entry: JournalEntry): { reason?: StateReason } {
  switch (entry.state) {
    case 'pending':
    case 'sending':
    case 'unknown':
      return { reason: entry.reason }
    case 'accepted':
      return { reason: entry.progress }
    case 'rejected':
      return { reason: entry.rejection.kind }
    case 'canceled':
      return { reason: entry.by }
    case 'succeeded':
      return {}
    default:
      throw new UnreachableError(entry, 'reasonOf')
  }
}

/** Tells observers what changed between two versions of an entry, both durable. */
export function emitChange(context: Context, before: JournalEntry | undefined, after: JournalEntry): void {
  if (context.events.isIdle) return
  if (before?.state !== after.state) {
    context.events.emit({
      type: 'state',
      ...about(context, after),
      ...(before ? { from: before.state } : {}),
      to: after.state,
      ...reasonOf(after),
    })
  }
  if (after.contradiction && !before?.contradiction) {
    const { attempt, word } = after.contradiction
    context.events.emit({ type: 'contradiction', ...about(context, after), attempt, word })
  }
}

/** All revisions of an operation under its endpoint, in order. */
export async function revisionsOf(
  context: Context,
  of: JournalEntry,
  details?: () => StepDetails,
): Promise<readonly JournalEntry[]> {
  const all = await guarded(context, 'read', () => context.store.history(of), details)
  return all
    .filter((other) => other.endpoint === of.endpoint && other.subject === of.subject)
    .toSorted((one, other) => one.revision - other.revision)
}

/** The part of the journal that a client is for. */
export function placeOf({ settings: { endpoint, scope } }: Context): { endpoint: string; scope: string } {
  return { endpoint, scope }
}

/** A listing of the journal, page by page as they are asked for. */
export async function* pagesOf<P extends Page>(
  context: Context,
  step: 'read' | 'list',
  read: (after: string | undefined) => Promise<P>,
): AsyncGenerator<P> {
  let after: string | undefined
  do {
    const cursor = after
    const page = await guarded(context, step, () => read(cursor))
    yield page
    after = page.next
  } while (after !== undefined)
}

/** What a failed step of the journal leaves to say. */
export interface StepDetails {
  readonly sentByThisCall: boolean
  readonly entry?: JournalEntry | undefined
}

/**
 * One step of the journal. Whatever it throws (a journal of the user's own may throw anything) is told to observers and
 * becomes the one error that callers know.
 */
export async function guarded<T>(
  context: Context,
  step: 'read' | 'begin' | 'record' | 'list',
  action: () => Promise<T>,
  details: () => StepDetails = () => ({ sentByThisCall: false }),
): Promise<T> {
  try {
    return await action()
  } catch (error) {
    const { sentByThisCall, entry } = details()
    const known = error instanceof JournalUnavailableError ? error : undefined
    const fault = known?.fault ?? 'unavailable'
    const message = known?.message ?? 'The journal failed.'
    context.events.emit({
      type: 'storage-fault',
      step,
      fault,
      atMs: context.runtime.nowMs(),
      ...(entry ? about(context, entry) : {}),
    })
    throw new JournalUnavailableError(
      `${message} This call ${sentByThisCall ? 'had sent an attempt before' : 'sent nothing'}.`,
      { fault, sentByThisCall, entry: entry && glimpseOf(entry), cause: known?.cause ?? error },
    )
  }
}
