/**
 * What an observer may see. No event holds a body, a credential, an operationId, a scope or anything else that may be
 * personal; entries are named by their key.
 */
import type { JournalFault, RevisionRefusal } from './errors.ts'
import type {
  AttemptResult,
  CanceledEntry,
  Contradiction,
  EntryState,
  HoldReason,
  PendingReason,
  SendingReason,
  UnknownReason,
} from './model/entry.ts'
import type { EvidenceSource, Finding } from './model/evidence.ts'
import type { EvidenceRefusal } from './model/judgement.ts'
import type { Progress, Rejection } from './model/verdict.ts'

/** What every event about an entry says. */
export interface AboutEntry {
  /** The idempotency key: the name of the entry towards support and in logs. */
  readonly key: string
  readonly kind: string
  readonly revision: number
  /** Wall time in milliseconds. */
  readonly atMs: number
  /** Milliseconds since the entry was first named; 0 if the clock ran backwards. */
  readonly ageMs: number
  /** Milliseconds until the key may no longer be sent, 0 when it is over; `null` while nothing counts. */
  readonly headroomMs: number | null
}

/**
 * Why an entry is in its state: of pending, sending and unknown why it waits, of accepted how far it is, of rejected what
 * kind of no it was, of canceled what canceled it.
 */
export type StateReason =
  | PendingReason
  | SendingReason
  | UnknownReason
  | Progress
  | Rejection['kind']
  | CanceledEntry['by']

/** Every event, told apart by `type`. */
export type BillingEvent =
  /** The entry is in another state, durably. `from` is absent for a new one. */
  | (AboutEntry & {
      readonly type: 'state'
      readonly from?: EntryState
      readonly to: EntryState
      readonly reason?: StateReason
    })
  /** A call was answered with what the journal holds: nothing was sent for it. */
  | (AboutEntry & { readonly type: 'answered'; readonly state: EntryState })
  /**
   * A call named an operation that the journal holds otherwise, and was refused. `fields` are the names of the top-level
   * fields that differ, never their values; for a write of your own they are what its `readParams` calls them. About the
   * entry that is held.
   */
  | (AboutEntry & { readonly type: 'conflict'; readonly fields: readonly string[] })
  /** A call asked for a revision that may not be opened now, and was refused. About the entry that stands against it. */
  | (AboutEntry & { readonly type: 'revision-refused'; readonly reason: RevisionRefusal })
  /** An attempt begins: its begin is durable and its request is about to leave. */
  | (AboutEntry & { readonly type: 'attempt-began'; readonly attempt: number; readonly windowEndsAtMs: number | null })
  /**
   * The attempt is over, each that began once. With result `unrecorded` the reply could not be written down, and a
   * `storage-fault` says why; with `not-sent` it was stopped before it left.
   */
  | (AboutEntry & {
      readonly type: 'attempt-ended'
      readonly attempt: number
      readonly result: AttemptResult
      readonly why?: string
      readonly status?: number
      /** The receiver marked its reply as one it gave before under this key. */
      readonly markedReplay?: true
      /** By a clock that only goes forward. */
      readonly durationMs: number
    })
  /** The loop waits for another attempt, or leaves the entry to background delivery. */
  | (AboutEntry & {
      readonly type: 'retry-scheduled'
      readonly by: 'call' | 'background'
      readonly nextAttemptAtMs: number
    })
  /**
   * A delivery in which an attempt began is over: every such delivery ends with this, whatever happened. `state` is what
   * this client knows of the entry; if it is pending or sending, the entry waits for background delivery, `resume()` or
   * the next call.
   */
  | (AboutEntry & {
      readonly type: 'delivery-ended'
      readonly state: EntryState
      readonly reason?: StateReason
      /** Attempts that began in this delivery. */
      readonly attempts: number
    })
  /** Nothing is sent now: offline, no credentials, or another login. */
  | (AboutEntry & { readonly type: 'held'; readonly reason: HoldReason })
  /** Evidence was taken; what it changed is a `state` event of its own. */
  | (AboutEntry & {
      readonly type: 'evidence'
      readonly source: EvidenceSource['source']
      readonly found: Finding['found']
    })
  /** A look-up of `reconcile` threw; what it threw is not in here, since it may hold anything. */
  | (AboutEntry & { readonly type: 'look-up-failed' })
  /** Evidence was not taken. */
  | (AboutEntry & { readonly type: 'evidence-refused'; readonly reason: EvidenceRefusal })
  /** A word came that contradicts a final state; a person has to decide. */
  | (AboutEntry & {
      readonly type: 'contradiction'
      readonly attempt: number | null
      readonly word: Contradiction['word']
    })
  /**
   * The journal failed. With step `record` a reply could not be written down: the caller has it all the same, and the entry
   * will be asked for again under the same key. What it says of an entry is there if the step was about one.
   */
  | (Partial<AboutEntry> & {
      readonly type: 'storage-fault'
      readonly step: 'read' | 'begin' | 'record' | 'list'
      readonly fault: JournalFault
      readonly atMs: number
    })
  /** The journal holds deliverable entries that this client does not send: of another endpoint or scope, or of an unknown kind. */
  | {
      readonly type: 'left-alone'
      readonly why: 'other-endpoint' | 'other-scope' | 'unknown-kind' | 'unreadable'
      readonly count: number
      readonly atMs: number
    }

export type Listener = (event: BillingEvent) => void

/** Tells all listeners; one that throws changes nothing for anybody. */
export class Events {
  readonly #listeners = new Set<Listener>()

  subscribe(listener: Listener): () => void {
    // A function of its own, so that one listener subscribed twice is two.
    const own: Listener = (event) => listener(event)
    this.#listeners.add(own)
    return () => this.#listeners.delete(own)
  }

  /** Nobody listens, so what an event would say need not be put together. */
  get isIdle(): boolean {
    return this.#listeners.size === 0
  }

  emit(event: BillingEvent): void {
    for (const listener of this.#listeners) tell(listener, event)
  }
}

/** Tells an observer, who must not be able to stop a payment: neither by a throw nor, if it is async, by a rejection. */
export function tell<T>(observer: (about: T) => unknown, about: T): void {
  try {
    void Promise.resolve(observer(about)).catch(() => {})
  } catch {
    // As said above.
  }
}
