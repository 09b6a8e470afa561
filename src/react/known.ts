/**
 * What a page knows of the operations of its clients, apart from the components that show it: so it outlives them. A call
 * that a component began is here after the component has gone, and the next one that asks for the same operation finds it.
 *
 * The journal is the source. It is read when a component comes, when an event of the client says that something changed, when
 * another window that shows operations says so, when the page is shown again, and now and then while something open is shown,
 * since whatever else shares the journal tells nobody. Nothing in here starts or stops a delivery, and nothing is touched
 * before a component is mounted or a call begins.
 */
import type { BillingClient, EntriesFilter, EntryView } from '../api.ts'
import { InvalidInputError } from '../errors.ts'
import type { AnyBillingError } from '../errors.ts'
import type { BillingEvent } from '../events.ts'
import type { Outcome, Queued } from '../model/outcome.ts'

/**
 * What a call or a reading of the journal threw; `code` tells them apart. Without a `code` it is no error of this library
 * but a mistake in code of your own, such as `readParams`.
 */
export type OperationError = AnyBillingError | (Error & { readonly code?: undefined })

/** What a page knows of an operation. */
export type AnyOperationState =
  | { readonly phase: 'idle'; readonly isReading: boolean }
  | { readonly phase: 'working'; readonly outcome: Outcome | Queued | undefined }
  | AnySettledState

export type AnySettledState =
  | { readonly phase: 'known'; readonly outcome: Outcome | Queued }
  | { readonly phase: 'error'; readonly error: OperationError; readonly outcome: Outcome | Queued | undefined }

export type OpenOperationsState =
  /** The journal has not answered yet; also on a server. */
  | { readonly phase: 'reading'; readonly entries: readonly EntryView[] }
  | { readonly phase: 'known'; readonly entries: readonly EntryView[] }
  /** The journal could not be read; `entries` are those last read. */
  | { readonly phase: 'error'; readonly error: OperationError; readonly entries: readonly EntryView[] }

/** Names an operation; `subjectField` is the parameter that holds the subject, if the write has one. */
export interface Name {
  readonly kind: string
  readonly operationId: string
  readonly subject: string | undefined
  readonly subjectField: string | undefined
}

/** While something open is shown, the journal is read this often; not while the page is hidden. */
const POLL_MS = 2_000
/** A listing waits this long for more changes before it reads, and so does what tells other windows of them. */
const BURST_MS = 50
/** By this the windows of an origin tell each other that a journal has changed; what has, each reads there. */
const CHANNEL = 'billonce/react'
/** Operations that no component shows are kept up to this number, the latest ones. */
const KEPT = 200

export const UNREAD: AnyOperationState = { phase: 'idle', isReading: true }
const EMPTY: AnyOperationState = { phase: 'idle', isReading: false }
export const UNLISTED: OpenOperationsState = { phase: 'reading', entries: [] }

/** Events after which the journal may say something else of an entry. */
const CHANGES: ReadonlySet<BillingEvent['type']> = new Set([
  'state',
  'contradiction',
  'attempt-began',
  'attempt-ended',
  'retry-scheduled',
  'held',
  'delivery-ended',
])
type ChangeEvent = Extract<BillingEvent, { readonly key: string; readonly kind: string }>

/** One thing that components show: a state, and how the journal is read to bring it up to date. */
abstract class Shown<S> {
  readonly listeners: Set<() => void> = new Set()
  readonly #pauseMs: number
  #state: S
  #isReading = false
  #isStale = false

  constructor(state: S, pauseMs: number) {
    this.#state = state
    this.#pauseMs = pauseMs
  }

  get state(): S {
    return this.#state
  }

  protected show(state: S): void {
    this.#state = state
    for (const listener of Array.from(this.listeners)) listener()
  }

  /** Whether it may change by what another tab does. */
  abstract get isOpen(): boolean
  /** Whether the event may be about it. */
  abstract concerns(event: ChangeEvent): boolean
  /** Reads the journal and shows what it says; never rejects. */
  protected abstract read(): Promise<void>

  /** Has the journal read: one reading at a time, and one more for all that changed meanwhile. */
  refresh(): void {
    this.#isStale = true
    if (!this.#isReading) void this.#catchUp()
  }

  async #catchUp(): Promise<void> {
    this.#isReading = true
    while (this.#isStale && this.listeners.size > 0) {
      // A moment later, so that what changes together is read together.
      if (this.#pauseMs > 0) await new Promise((resolve) => setTimeout(resolve, this.#pauseMs))
      if (this.listeners.size === 0) break
      this.#isStale = false
      await this.read()
    }
    this.#isReading = false
  }
}

/** An operation, and the calls of it that are under way in this page. */
export class ShownOperation extends Shown<AnyOperationState> {
  readonly #page: PageOf
  readonly #name: Name
  /** What is known: `undefined` until the journal was read, `null` if it holds nothing. */
  #known: Outcome | Queued | null | undefined
  #running = 0
  /** Calls that ended: a reading that began before is older than what they said. */
  #ended = 0
  #callError: OperationError | undefined
  #readError: OperationError | undefined
  /** What is read first after a call threw is how things stand, and no news that would take the place of the error. */
  #isNews = true

  constructor(page: PageOf, name: Name) {
    super(UNREAD, 0)
    this.#page = page
    this.#name = name
  }

  get isRunning(): boolean {
    return this.#running > 0
  }

  get isOpen(): boolean {
    if (this.#running > 0 || !this.#known) return false
    const { status } = this.#known
    return status === 'queued' || status === 'deferred' || status === 'accepted' || status === 'unknown'
  }

  /** Nobody shows it any more. That there was nothing is no news for the next who does: another tab may begin it meanwhile. */
  leave(): void {
    if (this.#known !== null) return
    this.#known = undefined
    this.#showNow()
  }

  concerns(event: ChangeEvent): boolean {
    if (event.kind !== this.#name.kind) return false
    if (!this.#known || event.key === this.#known.key || event.type === 'contradiction') return true
    // A new entry may be the next revision of this one.
    return event.type === 'state' && event.from === undefined
  }

  /** Makes a call, which goes on whoever leaves, and resolves with what it came to; never rejects. */
  async run(call: () => Promise<Outcome | Queued>): Promise<AnySettledState> {
    this.#running += 1
    this.#callError = undefined
    this.#showNow()
    let result: AnySettledState
    try {
      const outcome = await call()
      this.#known = outcome
      this.#callError = undefined
      this.#readError = undefined
      this.#isNews = true
      result = { phase: 'known', outcome }
    } catch (thrown) {
      this.#callError = asError(thrown)
      this.#isNews = false
      result = { phase: 'error', error: this.#callError, outcome: this.#known ?? undefined }
    }
    this.#running -= 1
    this.#ended += 1
    this.#showNow()
    // How things stand after an error, whether background delivery went on with what is open, and whether another tab had a
    // later try of what is rejected.
    if (result.phase === 'error' || this.isOpen || result.outcome.status === 'rejected') this.refresh()
    this.#page.changed()
    return result
  }

  protected async read(): Promise<void> {
    const ended = this.#ended
    try {
      const outcome = await this.#find()
      if (ended !== this.#ended) return this.refresh()
      this.#readError = undefined
      this.#take(outcome)
    } catch (thrown) {
      if (ended !== this.#ended) return this.refresh()
      this.#readError = asError(thrown)
    }
    this.#showNow()
    this.#page.changed()
  }

  async #find(): Promise<Outcome | undefined> {
    const { kind, operationId, subject } = this.#name
    refuseStraySubject(this.#name)
    return await this.#page.client.find({ kind, operationId, ...(subject === undefined ? {} : { subject }) })
  }

  #take(outcome: Outcome | undefined): void {
    const before = this.#known
    const isNews = this.#isNews
    this.#isNews = true
    if (!outcome) {
      // What was known once stays true in a journal that was wiped; and nobody is shown what is read after they have gone.
      if (this.listeners.size > 0) this.#known ??= null
      return
    }
    if (before && (isSame(before, outcome) || isBehind(outcome, before))) return
    this.#known = outcome
    if (isNews) this.#callError = undefined
  }

  #showNow(): void {
    const before = this.state
    const next = this.#next()
    if (isSameState(before, next)) return
    this.show(next)
  }

  #next(): AnyOperationState {
    const outcome = this.#known ?? undefined
    if (this.#running > 0) return { phase: 'working', outcome }
    const error = this.#callError ?? this.#readError
    if (error) return { phase: 'error', error, outcome }
    if (outcome) return { phase: 'known', outcome }
    return this.#known === undefined ? UNREAD : EMPTY
  }
}

/** The open operations that a filter lets through. */
export class ShownList extends Shown<OpenOperationsState> {
  readonly #page: PageOf
  readonly #filter: EntriesFilter
  #text = ''

  constructor(page: PageOf, filter: EntriesFilter) {
    super(UNLISTED, BURST_MS)
    this.#page = page
    this.#filter = filter
  }

  get isOpen(): boolean {
    return this.state.entries.length > 0
  }

  concerns(event: ChangeEvent): boolean {
    return this.#filter.kind === undefined || event.kind === this.#filter.kind
  }

  protected async read(): Promise<void> {
    try {
      const entries: EntryView[] = []
      for await (const entry of this.#page.client.entries(this.#filter)) entries.push(entry)
      const text = JSON.stringify(entries.map((entry) => ({ ...entry, outcome: lasting(entry.outcome) })))
      if (this.state.phase !== 'known' || text !== this.#text) {
        this.#text = text
        this.show({ phase: 'known', entries })
      }
    } catch (thrown) {
      this.show({ phase: 'error', error: asError(thrown), entries: this.state.entries })
    }
    this.#page.changed()
  }
}

/** Everything that is shown of one client. */
export class PageOf {
  readonly client: BillingClient
  readonly #operations: Map<string, ShownOperation> = new Map()
  readonly #lists: Map<string, ShownList> = new Map()
  readonly #mounted: Set<ShownOperation | ShownList> = new Set()
  #stopListening: (() => void) | undefined
  #timer: ReturnType<typeof setTimeout> | undefined

  constructor(client: BillingClient) {
    this.client = client
  }

  peekOperation(name: Name): ShownOperation | undefined {
    return this.#operations.get(nameText(name))
  }

  operation(name: Name): ShownOperation {
    const text = nameText(name)
    const operation = this.#operations.get(text) ?? new ShownOperation(this, name)
    // Put last, as the one that was wanted last.
    this.#operations.delete(text)
    this.#operations.set(text, operation)
    return operation
  }

  peekList(text: string): ShownList | undefined {
    return this.#lists.get(text)
  }

  list(text: string, filter: EntriesFilter): ShownList {
    const list = this.#lists.get(text) ?? new ShownList(this, filter)
    this.#lists.set(text, list)
    return list
  }

  /** A component shows it from now on; what is returned ends that. */
  mount(shown: ShownOperation | ShownList, onChange: () => void): () => void {
    // A function of its own: the same one may be given twice.
    const listener = (): void => onChange()
    const isFirst = shown.listeners.size === 0
    shown.listeners.add(listener)
    this.#mounted.add(shown)
    this.#stopListening ??= this.#listen()
    // While it is shown already, it is up to date.
    if (isFirst || shown.state.phase === 'error') shown.refresh()
    return () => {
      if (!shown.listeners.delete(listener)) return
      if (shown.listeners.size === 0) {
        this.#mounted.delete(shown)
        if (shown instanceof ShownOperation) shown.leave()
      }
      if (this.#mounted.size === 0) {
        this.#stopListening?.()
        this.#stopListening = undefined
      }
      this.changed()
    }
  }

  /** Something is shown, hidden or otherwise than before: whether to look at the journal now and then. */
  changed(): void {
    const isWanted = !isHidden() && [...this.#mounted].some((shown) => shown.isOpen)
    if (!isWanted) {
      clearTimeout(this.#timer)
      this.#timer = undefined
    } else {
      this.#timer ??= setTimeout(() => {
        this.#timer = undefined
        for (const shown of this.#mounted) if (shown.isOpen) shown.refresh()
        this.changed()
      }, POLL_MS)
    }
    this.#forget()
  }

  #listen(): () => void {
    const look = (): void => {
      this.changed()
      if (!isHidden()) for (const shown of this.#mounted) shown.refresh()
    }
    const page = typeof document === 'undefined' ? undefined : document
    const view = page?.defaultView
    const windows = view ? new OtherWindows(view, look) : undefined
    const stop = this.client.subscribe((event) => {
      if (!CHANGES.has(event.type) || !('key' in event) || event.key === undefined) return
      for (const shown of this.#mounted) if (shown.concerns(event as ChangeEvent)) shown.refresh()
      if (event.type === 'state' || event.type === 'contradiction') windows?.tell()
    })
    page?.addEventListener('visibilitychange', look)
    view?.addEventListener('pageshow', look)
    return () => {
      stop()
      windows?.leave()
      page?.removeEventListener('visibilitychange', look)
      view?.removeEventListener('pageshow', look)
    }
  }

  /** What no component shows is in the journal, errors apart; so only the latest are kept, and no listing. */
  #forget(): void {
    for (const [text, list] of this.#lists) if (!this.#mounted.has(list)) this.#lists.delete(text)
    let tooMany = this.#operations.size - KEPT
    for (const [text, operation] of this.#operations) {
      if (tooMany <= 0) return
      if (this.#mounted.has(operation) || operation.isRunning) continue
      this.#operations.delete(text)
      tooMany -= 1
    }
  }
}

/** The other windows of this origin, as long as this one shows something. None of them waits for the other. */
class OtherWindows {
  readonly #view: Window & typeof globalThis
  readonly #onNews: () => void
  #channel: BroadcastChannel | undefined
  #telling: ReturnType<typeof setTimeout> | undefined

  constructor(view: Window & typeof globalThis, onNews: () => void) {
    this.#view = view
    this.#onNews = onNews
    this.#open()
    view.addEventListener('pageshow', this.#open)
    // Not every browser keeps a page with an open channel for the way back.
    view.addEventListener('pagehide', this.#close)
  }

  /** Something has changed; what changes together is told together. */
  tell(): void {
    this.#telling ??= setTimeout(() => this.#post(), BURST_MS)
  }

  leave(): void {
    this.#view.removeEventListener('pageshow', this.#open)
    this.#view.removeEventListener('pagehide', this.#close)
    this.#close()
  }

  readonly #open = (): void => {
    if (this.#channel || typeof this.#view.BroadcastChannel !== 'function') return
    this.#channel = new this.#view.BroadcastChannel(CHANNEL)
    this.#channel.addEventListener('message', this.#onNews)
  }

  readonly #close = (): void => {
    if (this.#telling !== undefined) this.#post()
    this.#channel?.close()
    this.#channel = undefined
  }

  #post(): void {
    clearTimeout(this.#telling)
    this.#telling = undefined
    this.#channel?.postMessage(null)
  }
}

const pages: WeakMap<BillingClient, PageOf> = /* @__PURE__ */ new WeakMap()

export function pageOf(client: BillingClient): PageOf {
  let page = pages.get(client)
  if (!page) {
    page = new PageOf(client)
    pages.set(client, page)
  }
  return page
}

/** The same, without making one: for what is asked while rendering. */
export function peekPageOf(client: BillingClient): PageOf | undefined {
  return pages.get(client)
}

/**
 * Refuses a name that cannot be one of its write: the subject is part of the name of those writes that have one.
 *
 * @throws {InvalidInputError}
 */
export function refuseStraySubject({ kind, subject, subjectField }: Name): void {
  if (subjectField !== undefined && subject === undefined) {
    throw new InvalidInputError('subject', `The name of a ${kind} needs a subject: its ${subjectField}.`)
  }
  if (subjectField === undefined && subject !== undefined) {
    throw new InvalidInputError('subject', `A ${kind} has no subject.`)
  }
}

export function nameText({ kind, operationId, subject }: Name): string {
  return JSON.stringify([kind, operationId, subject ?? null])
}

function isHidden(): boolean {
  return typeof document !== 'undefined' && document.visibilityState === 'hidden'
}

function asError(thrown: unknown): OperationError {
  // By what they have, since a page may hold this library twice.
  const isKnown = thrown instanceof Error && 'code' in thrown && 'sentByThisCall' in thrown
  if (isKnown) return thrown as AnyBillingError
  if (thrown instanceof Error && !('code' in thrown)) return thrown
  return new Error('Code of your own threw; see the cause.', { cause: thrown })
}

/** Without what depends on when the journal was read, or on who read it: that is no difference. */
function lasting(outcome: Outcome | Queued): object {
  return { ...outcome, source: undefined, retryAfterMs: undefined, hint: undefined }
}

function isSame(one: Outcome | Queued, other: Outcome | Queued): boolean {
  return JSON.stringify(lasting(one)) === JSON.stringify(lasting(other))
}

/** A receipt that could not be written down is true all the same: what the journal still holds open is older. */
function isBehind(read: Outcome, known: Outcome | Queued): boolean {
  if (read.key !== known.key || (known.status !== 'succeeded' && known.status !== 'accepted')) return false
  return read.status === 'deferred' || (read.status === 'unknown' && read.reason !== 'contradicted')
}

function isSameState(one: AnyOperationState, other: AnyOperationState): boolean {
  if (one.phase === 'idle' || other.phase === 'idle') return one === other
  const error = 'error' in one ? one.error : undefined
  const otherError = 'error' in other ? other.error : undefined
  return one.phase === other.phase && one.outcome === other.outcome && error === otherError
}
