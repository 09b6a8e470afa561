/**
 * What an observer may see. No event holds a body, a credential, an operationId, a scope or anything else that may be
 * personal; entries are named by their key.
 */
import type { JournalFault } from './errors.ts'
import type { AttemptResult, EntryState, HoldReason } from './model/entry.ts'
import type { EvidenceSource, Finding } from './model/evidence.ts'
import type { EvidenceRefusal } from './model/judgement.ts'

interface AboutEntry {
  readonly key: string
  readonly kind: string
  readonly revision: number
  /** Wall time in milliseconds. */
  readonly atMs: number
}

/** Every event, told apart by `type`. */
export type BillingEvent =
  /** The entry is in another state, durably. `from` is absent for a new one. */
  | (AboutEntry & {
      readonly type: 'state'
      readonly from?: EntryState
      readonly to: EntryState
      readonly reason?: string
    })
  /** An attempt begins: its begin is durable and its request is about to leave. */
  | (AboutEntry & { readonly type: 'attempt-began'; readonly attempt: number; readonly windowEndsAtMs: number | null })
  | (AboutEntry & {
      readonly type: 'attempt-ended'
      readonly attempt: number
      readonly result: AttemptResult
      readonly why?: string
      readonly status?: number
      readonly markedReplay?: true
      readonly durationMs: number
    })
  /** The loop waits for another attempt, or leaves the entry to background delivery. */
  | (AboutEntry & {
      readonly type: 'retry-scheduled'
      readonly by: 'call' | 'background'
      readonly nextAttemptAtMs: number
    })
  /** Nothing is sent now: offline, no credentials, or another login. */
  | (AboutEntry & { readonly type: 'held'; readonly reason: HoldReason })
  /** Evidence was taken; what it changed is a `state` event of its own. */
  | (AboutEntry & {
      readonly type: 'evidence'
      readonly source: EvidenceSource['source']
      readonly found: Finding['found']
    })
  /** Evidence was not taken. */
  | (AboutEntry & { readonly type: 'evidence-refused'; readonly reason: EvidenceRefusal })
  /** A word came that contradicts a final state; a person has to decide. */
  | (AboutEntry & { readonly type: 'contradiction'; readonly attempt: number | null })
  /**
   * The journal failed. With step `record` a reply could not be written down: the caller has it all the same, and the entry
   * will be asked for again under the same key.
   */
  | {
      readonly type: 'storage-fault'
      readonly step: 'read' | 'begin' | 'record' | 'list'
      readonly fault: JournalFault
      readonly atMs: number
      readonly key?: string
    }
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
