/**
 * The errors a call can throw: it throws when it could not do its work. What the receiver answered, also a bad answer,
 * is an outcome (model/outcome.ts) and not an error.
 *
 * Every error has a literal `code`, keeps its `cause`, and says only what it can vouch for. None of them says "not
 * charged": an earlier call, another tab or another device may have sent the operation. No message holds a body, a
 * header value or a credential.
 */

/** What the journal held of the operation when the error was made, as far as it could be read. */
export interface EntryGlimpse {
  /** The idempotency key; give it to support, it is not a secret. */
  readonly key: string
  /** The state of the entry, such as `pending` or `sending`. */
  readonly state: string
}

export interface BillingErrorDetails {
  /** Whether a request may have left by this call before it threw. Default `false`. */
  readonly sentByThisCall?: boolean | undefined
  readonly entry?: EntryGlimpse | undefined
  readonly cause?: unknown
}

/** @internal How messages name an operation; support needs the key. */
export function titleOf(of: { readonly operationId: string; readonly kind: string; readonly key: string }): string {
  return `Operation ${of.operationId} (${of.kind}, key ${of.key})`
}

/** The base of all errors of this library; tell them apart by `code`. */
export abstract class BillingError extends Error {
  /** Literal and stable; a `switch` over it narrows {@link AnyBillingError}. */
  abstract readonly code: string
  /** `false`: no request left by this call. `true`: one may have left. Says nothing about other calls. */
  readonly sentByThisCall: boolean
  /** What the journal held, if it could be read. */
  readonly entry: EntryGlimpse | undefined

  constructor(message: string, details: BillingErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause })
    this.sentByThisCall = details.sentByThisCall ?? false
    this.entry = details.entry
  }
}

/** A parameter or an option is not usable. Nothing was written and nothing was sent by this call. */
export class InvalidInputError extends BillingError {
  override readonly name = 'InvalidInputError'
  readonly code = 'ERR_INVALID_INPUT'
  /** Path of the field, such as `amount` or `metadata.items[2]`. */
  readonly field: string

  constructor(field: string, message: string, details: BillingErrorDetails = {}) {
    super(message, details)
    this.field = field
  }
}

/**
 * @internal Refuses what was given; the text goes on after the name of the field.
 * @throws {InvalidInputError} always
 */
export function refuse(field: string, what: string): never {
  throw new InvalidInputError(field, `${field} ${what}.`)
}

/**
 * @internal The same for what has to hold.
 * @throws {InvalidInputError} unless it holds
 */
export function mustBe(isRight: unknown, field: string, what: string): asserts isRight {
  if (!isRight) refuse(field, `must be ${what}`)
}

/** Why a journal could not do its work. */
export type JournalFault =
  /** Not there, not allowed, or no runtime for it: private mode, a read-only folder, no journal in this runtime. */
  | 'unavailable'
  /** It did not answer in time: a hung open, a lock held for too long. */
  | 'timeout'
  /** Another tab holds an older version of the database open. */
  | 'blocked'
  /** No space left or the quota is used up. */
  | 'full'
  /** The file or database is torn, truncated or not readable; it was left as it is. */
  | 'damaged'
  /** The file or database is somebody else's; it was left as it is. */
  | 'foreign'
  /** Written by a newer version of this library; it was left as it is. */
  | 'newer-format'
  /** The journal was closed. */
  | 'closed'

export interface JournalUnavailableDetails extends BillingErrorDetails {
  readonly fault: JournalFault
}

/**
 * The journal could not be read, or an entry could not be made durable; so nothing was sent by the step that failed.
 * `sentByThisCall` is true if an earlier attempt of the same call had left already.
 */
export class JournalUnavailableError extends BillingError {
  override readonly name = 'JournalUnavailableError'
  readonly code = 'ERR_JOURNAL_UNAVAILABLE'
  readonly fault: JournalFault

  constructor(message: string, details: JournalUnavailableDetails) {
    super(message, details)
    this.fault = details.fault
  }
}

export interface OperationConflictDetails extends BillingErrorDetails {
  readonly fields: readonly string[]
}

/**
 * The operation is in the journal with other parameters, another key or under another endpoint. Nothing was sent by this
 * call and the stored operation was not touched: it stays resumable as it is.
 */
export class OperationConflictError extends BillingError {
  override readonly name = 'OperationConflictError'
  readonly code = 'ERR_OPERATION_CONFLICT'
  /** Names of the top-level fields that differ, never their values. */
  readonly fields: readonly string[]

  constructor(message: string, details: OperationConflictDetails) {
    super(message, details)
    this.fields = details.fields
  }
}

/** Why a revision may not be opened. */
export type RevisionRefusal =
  /** The revision before it is not rejected: it may have worked, or is still under way. */
  | 'earlier-revision-open'
  /** A higher revision is in the journal. */
  | 'not-the-next'
  /** The refusal did not come from behind the receiver's key layer, so another device's attempt may have worked. */
  | 'unrecorded-refusal'
  /** The receiver frees keys on a rejection, and the last ambiguous attempt may still be at work. */
  | 'too-soon'
  /** The revision that was asked for has been canceled. */
  | 'earlier-revision-canceled'
  /** There is no rejected revision to try again, or its body is no longer kept. */
  | 'nothing-to-retry'

export interface RevisionRefusedDetails extends BillingErrorDetails {
  readonly reason: RevisionRefusal
  readonly retryAfterMs?: number | undefined
}

/** A next revision is a new key, and it may not be opened now. Nothing was written and nothing was sent by this call. */
export class RevisionRefusedError extends BillingError {
  override readonly name = 'RevisionRefusedError'
  readonly code = 'ERR_REVISION_REFUSED'
  readonly reason: RevisionRefusal
  /** Milliseconds until it may be asked again; with reason `too-soon` only. */
  readonly retryAfterMs: number | undefined

  constructor(message: string, details: RevisionRefusedDetails) {
    super(message, details)
    this.reason = details.reason
    this.retryAfterMs = details.retryAfterMs
  }
}

/** Only a pending entry, which is certainly without effect, can be canceled. The entry was not touched. */
export class NotCancelableError extends BillingError {
  override readonly name = 'NotCancelableError'
  readonly code = 'ERR_NOT_CANCELABLE'
}

export interface EvidenceRefusedDetails extends BillingErrorDetails {
  readonly reason: 'receipt-differs' | 'being-sent' | 'too-soon' | 'pending'
  readonly retryAfterMs?: number | undefined
}

/** Evidence cannot be believed, or not yet. The entry was not changed. */
export class EvidenceRefusedError extends BillingError {
  override readonly name = 'EvidenceRefusedError'
  readonly code = 'ERR_EVIDENCE_REFUSED'
  /**
   * `receipt-differs`: it is for another amount or currency. `being-sent`, `too-soon`: something of it may still be on its
   * way. `pending`: certainly without effect, so cancel it instead.
   */
  readonly reason: EvidenceRefusedDetails['reason']
  /** Milliseconds until it may be given again; with `being-sent` and `too-soon`. */
  readonly retryAfterMs: number | undefined

  constructor(message: string, details: EvidenceRefusedDetails) {
    super(message, details)
    this.reason = details.reason
    this.retryAfterMs = details.retryAfterMs
  }
}

/** The journal holds no such operation. Nothing was changed. */
export class NotFoundError extends BillingError {
  override readonly name = 'NotFoundError'
  readonly code = 'ERR_NOT_FOUND'
}

/** The reference fits operations of several subjects; name the subject. Nothing was changed. */
export class AmbiguousReferenceError extends BillingError {
  override readonly name = 'AmbiguousReferenceError'
  readonly code = 'ERR_AMBIGUOUS_REFERENCE'
  readonly subjects: readonly (string | null)[]

  constructor(message: string, subjects: readonly (string | null)[]) {
    super(message)
    this.subjects = subjects
  }
}

/**
 * So much waits to be delivered already (`maxBacklog`) that a call in the background was refused. Nothing was written and
 * nothing was sent by this call; call again later under the same name.
 */
export class BackpressureError extends BillingError {
  override readonly name = 'BackpressureError'
  readonly code = 'ERR_BACKPRESSURE'
  /** The client's `maxBacklog`. */
  readonly limit: number

  constructor(message: string, limit: number) {
    super(message)
    this.limit = limit
  }
}

/** The client was closed. Nothing was written and nothing was sent by this call. */
export class ClientClosedError extends BillingError {
  override readonly name = 'ClientClosedError'
  readonly code = 'ERR_CLIENT_CLOSED'
}

/**
 * The caller's `signal` fired. Aborting stops the waiting, it does not cancel the operation: if the entry is open it
 * will be delivered by `start()`, `resume()` or the next call of the same name.
 * `cause` is the signal's reason.
 */
export class DeliveryAbortedError extends BillingError {
  override readonly name = 'AbortError'
  readonly code = 'ERR_DELIVERY_ABORTED'
}

/** Thrown by `unwrap` for an outcome that is not a success; the outcome says what is known. */
export class NotSucceededError<
  O extends { readonly status: string; readonly key: string } = { readonly status: string; readonly key: string },
> extends BillingError {
  override readonly name = 'NotSucceededError'
  readonly code = 'ERR_NOT_SUCCEEDED'
  readonly outcome: O

  constructor(message: string, outcome: O, details: BillingErrorDetails = {}) {
    super(message, details)
    this.outcome = outcome
  }
}

/** Every error a call may throw; `code` tells them apart. */
export type AnyBillingError =
  | InvalidInputError
  | JournalUnavailableError
  | OperationConflictError
  | RevisionRefusedError
  | NotCancelableError
  | EvidenceRefusedError
  | NotFoundError
  | AmbiguousReferenceError
  | BackpressureError
  | ClientClosedError
  | DeliveryAbortedError
  | NotSucceededError

/** A bug in this library. It is thrown as such and never made into an outcome. */
export class UnreachableError extends Error {
  override readonly name = 'UnreachableError'

  constructor(value: never, where: string) {
    super(`Impossible case in ${where}: ${String(value)}`)
  }
}
