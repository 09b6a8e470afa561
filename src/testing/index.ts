/**
 * `billonce/testing`: an idempotent receiver to test against, in Node and in browsers. Exports only. For msw see
 * `billonce/testing/msw`, for a real HTTP server `billonce/testing/server`.
 */
export { createReceiver } from './receiver.ts'
export type { KeyState, Receiver, ReceiverOptions } from './receiver.ts'
export { TEST_PAYMENT_METHODS } from './routes.ts'
export type { ChargeBehavior, Params, Route, RouteContext, RouteResult } from './routes.ts'
export { manualClock, systemClock } from './clock.ts'
export type { ReceiverClock } from './clock.ts'
export { businessNameOf } from './ledger.ts'
export type {
  Duplicate,
  Ledger,
  LedgerEffect,
  LedgerFilter,
  LedgerRequest,
  LedgerSummary,
  NameOf,
  OpenRequest,
  RequestFate,
  Sent,
} from './ledger.ts'
export {
  chaos,
  crashAt,
  cutBody,
  delay,
  forgetKeys,
  interceptionPage,
  loseReply,
  loseRequest,
  redirect,
  resetAfter,
  resetBefore,
  savedFailure,
  slowConflict,
  stall,
  status,
  wrongReceipt,
} from './faults.ts'
export type { Fault, FaultKind, FaultRequest, Faults, FaultTarget, RecoveryPoint, StatusOptions } from './faults.ts'
export type { Delivery, IncomingRequest, Reply } from './wire.ts'
export { SAMPLE_STATES, sampleEntry, storeSuite } from './store-suite.ts'
export type { Sample, StorePlace, SuiteCase } from './store-suite.ts'
