/**
 * What a client offers: the calls, their options, and what they give back. Types only; client.ts makes one.
 */
import type { JournalHealth } from './engine/health.ts'
import type { PruneSummary } from './engine/prune.ts'
import type { ReconcileProgress, ReconcileSummary } from './engine/reconcile.ts'
import type { ResumeProgress, ResumeSummary } from './engine/resume.ts'
import type { Listener } from './events.ts'
import type { Attempt, EntryState } from './model/entry.ts'
import type { EvidenceRecord, EvidenceSource } from './model/evidence.ts'
import type {
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
import type { Outcome, Queued } from './model/outcome.ts'
import type { Receipt } from './model/verdict.ts'

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
 * @throws {BackpressureError} with `background: true`: too much waits already; nothing was written or sent
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
  /** `true`: only those in which a word contradicts another, whatever their state. */
  readonly contradicted?: boolean | undefined
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
  /** What was found out besides replies, the latest last. */
  readonly evidence: readonly EvidenceRecord[]
  /** Look-ups that found nothing. */
  readonly misses: number
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

export interface CloseOptions {
  /** No longer than this, in milliseconds. Default: until the last attempt's timeout, and a little for its record. */
  readonly withinMs?: number | undefined
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
   * Background delivery: deliverable entries of this scope and endpoint now, then on `online`, `visibilitychange`, `pageshow`,
   * `resume` and timers, which do not keep a process alive.
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
  /**
   * A report for a status page, a support form or a worker's health check: whether the journal can be read, whether it lasts,
   * how much is open and since when. Reads only what is open, asks the user for nothing, and does not reject when the
   * journal cannot be read: the report says so. That it can be written is known only after a write.
   */
  journalHealth(): Promise<JournalHealth>
  /** Typed events of every transition and attempt; returns a function that ends it. A listener that throws changes nothing. */
  subscribe(listener: Listener): () => void
  /**
   * No new work; resolves when the attempts in flight have ended, or when `withinMs` is over: what is not done by then is in
   * the journal, and the next start delivers it. The default journal is closed too, one that was given in the options
   * stays open. It installs no handlers; call it from your own, on SIGTERM.
   */
  close(options?: CloseOptions): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}
