/**
 * The front door: the names a user needs, in the order of use. Exports only.
 */
export { createBillingClient } from './client.ts'
export type {
  BillingClient,
  CloseOptions,
  EntriesFilter,
  EntryView,
  EvidenceInput,
  LookUp,
  LookUpResult,
  OperationRef,
  ReconcileOptions,
  ResumeOptions,
  RetryRejectedOptions,
  WriteCall,
  WriteOptions,
} from './api.ts'
export type { BillingClientOptions, RetentionOptions, RetryOptions } from './options.ts'
export type { Credentials, CredentialsOption, CredentialsRequest } from './engine/credentials.ts'

export { unwrap } from './model/outcome.ts'
export type {
  Accepted,
  Canceled,
  Contradicted,
  Deferred,
  Outcome,
  OutcomeBase,
  Queued,
  Rejected,
  Succeeded,
  Unknown,
  UnknownContinues,
  UnknownEnded,
} from './model/outcome.ts'
export type {
  ChargeParams,
  ChargeReceipt,
  ChargeVolatile,
  CreditsParams,
  CreditsReceipt,
  CreditsVolatile,
  UsageParams,
  UsageReceipt,
  UsageVolatile,
} from './model/operation.ts'
export type { NotAccepted, Progress, Receipt, Rejection } from './model/verdict.ts'

export { defineWrite } from './model/operation.ts'
export type { AnyWriteDefinition, EncodedBody, WriteDefinition } from './model/operation.ts'
export { randomOperationId } from './model/key.ts'
export type { IdempotencyKey, KeyLimits, OperationId } from './model/key.ts'

export { probeReceiver } from './probe.ts'
export type { ProbeAnswer, ProbeOptions, ProbeReport } from './probe.ts'

export { standard } from './dialects/standard.ts'
export type { StandardLookUp, StandardOptions } from './dialects/standard.ts'
export { forgetfulJournal } from './stores/memory.ts'

export type { JournalHealth, OpenCounts } from './engine/health.ts'
export type { PruneSummary } from './engine/prune.ts'
export type { ReconcileProgress, ReconcileSummary } from './engine/reconcile.ts'
export type { ResumeProgress, ResumeSummary } from './engine/resume.ts'
export type { AboutEntry, BillingEvent, Listener, StateReason } from './events.ts'
export {
  AmbiguousReferenceError,
  BackpressureError,
  BillingError,
  ClientClosedError,
  DeliveryAbortedError,
  EvidenceRefusedError,
  InvalidInputError,
  JournalUnavailableError,
  NotCancelableError,
  NotFoundError,
  NotSucceededError,
  OperationConflictError,
  RevisionRefusedError,
} from './errors.ts'
export type {
  BillingErrorDetails,
  EvidenceRefusedDetails,
  JournalUnavailableDetails,
  OperationConflictDetails,
  RevisionRefusedDetails,
} from './errors.ts'
export type { AnyBillingError, EntryGlimpse, JournalFault, RevisionRefusal } from './errors.ts'

/** For those who write a journal or a dialect of their own. */
export type {
  InsertResult,
  JournalClock,
  JournalStore,
  ListFilter,
  OpenCount,
  Page,
  Persistence,
  Prunable,
  Seen,
  StorageReport,
  Taking,
} from './stores/store.ts'
export type { Asked, Dialect, DialectLookUp } from './dialects/dialect.ts'
export type { Evidence, EvidenceRecord, EvidenceSource, Finding } from './model/evidence.ts'
export type { EvidenceRefusal, LookUpRules } from './model/judgement.ts'
export type {
  AcceptedEntry,
  Attempt,
  AttemptResult,
  CanceledEntry,
  Claim,
  Contradiction,
  EntryBase,
  EntryState,
  HoldReason,
  JournalEntry,
  KeyWindow,
  OpenState,
  PendingEntry,
  PendingReason,
  RejectedEntry,
  SendingEntry,
  SendingReason,
  StoredRequest,
  SucceededEntry,
  Timing,
  UnknownEntry,
  UnknownReason,
} from './model/entry.ts'
export type { HttpReply, LostReply, Reply, Unclear, Verdict } from './model/verdict.ts'
export type { Fingerprint, JsonObject, JsonValue } from './model/canonical.ts'
