/**
 * Never run, only compiled: what a caller's code may and may not say. Each `@ts-expect-error` is a mistake that the types
 * have to catch; a line that begins to compile is as much of a failure as one that stops to.
 */
import { createBillingClient, unwrap } from 'billonce'
import type {
  Accepted,
  AnyBillingError,
  BillingClient,
  Canceled,
  ChargeParams,
  ChargeReceipt,
  Contradicted,
  CreditsReceipt,
  Deferred,
  JsonValue,
  Outcome,
  Queued,
  Receipt,
  Rejected,
  Rejection,
  Succeeded,
  Unknown,
  UnknownContinues,
  UnknownEnded,
  UsageReceipt,
  WriteOptions,
} from 'billonce'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
/** Compiles for `true` only. */
declare const holds: <const T extends true>() => T

declare const billing: BillingClient
const coffee: ChargeParams = { amount: 450, currency: 'eur' }
const operationId = 'order-991'

// ----------------------------------------------------------------------------------------------------- the client

createBillingClient({ baseUrl: 'https://api.example.com', scope: 'org_42/live' })
createBillingClient({
  baseUrl: 'https://api.example.com',
  scope: 'org_42/live',
  credentials: ({ scope, attempt, previousStatus }) => {
    holds<Equal<typeof attempt, number>>()
    holds<Equal<typeof previousStatus, number | undefined>>()
    return { scope, headers: { authorization: 'Bearer x' } }
  },
})
createBillingClient({
  baseUrl: 'https://api.example.com',
  scope: 'org_42/live',
  credentials: async ({ scope }) => ({ scope, headers: {} }),
  endpoint: undefined,
  journal: undefined,
  dialect: undefined,
  retry: { maxAttempts: undefined },
  fetch: undefined,
})
// @ts-expect-error a scope is needed
createBillingClient({ baseUrl: 'https://api.example.com' })
// @ts-expect-error credentials say whose they are
createBillingClient({ baseUrl: 'https://a.example', scope: 's', credentials: () => ({ headers: {} }) })
// @ts-expect-error retry options of another library
createBillingClient({ baseUrl: 'https://a.example', scope: 's', retry: { limit: 3 } })

// ------------------------------------------------------------------------------------------------------ background

export async function backgroundOrNot(isBackground: boolean, options: WriteOptions<'metadata'>): Promise<void> {
  const direct = await billing.charge(coffee, { operationId })
  const explicit = await billing.charge(coffee, { operationId, background: false })
  const absent = await billing.charge(coffee, { operationId, background: undefined })
  holds<Equal<typeof direct, Outcome<ChargeReceipt>>>()
  holds<Equal<typeof explicit, Outcome<ChargeReceipt>>>()
  holds<Equal<typeof absent, Outcome<ChargeReceipt>>>()

  const always = await billing.charge(coffee, { operationId, background: true })
  const perhaps = await billing.charge(coffee, { operationId, background: isBackground })
  const passed = await billing.charge(coffee, options)
  holds<Equal<typeof always, Outcome<ChargeReceipt> | Queued>>()
  holds<Equal<typeof perhaps, Outcome<ChargeReceipt> | Queued>>()
  holds<Equal<typeof passed, Outcome<ChargeReceipt> | Queued>>()

  // @ts-expect-error a call that waits is never queued
  if (direct.status === 'queued') return
  // @ts-expect-error a background call may be queued, and then it is no outcome
  const outcome: Outcome<ChargeReceipt> = always
  void outcome
}

/** A wrapper of the user's own that passes the choice through. */
export async function recordLater<const B extends boolean>(background: B): Promise<Outcome<UsageReceipt> | Queued> {
  return await billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId, background })
}

// -------------------------------------------------------------------------------------------------- the parameters

/** Under exactOptionalPropertyTypes, values that may be undefined have to be passed on without ado. */
export async function optionalParameters(given: {
  customer: string | undefined
  paymentMethod?: string
  description?: string | undefined
}): Promise<void> {
  const signal: AbortSignal | undefined = undefined
  await billing.charge(
    { ...coffee, ...given, metadata: undefined },
    {
      operationId,
      revision: undefined,
      eventAtMs: undefined,
      volatileFields: undefined,
      signal,
      deadlineMs: undefined,
      sendBeforeMs: undefined,
      idempotencyKey: undefined,
      reopen: undefined,
      despiteUnrecordedRefusal: undefined,
    },
  )
  await billing.recordUsage(
    { meter: 'm', quantity: '0.25', customer: given.customer, occurredAt: undefined, metadata: undefined },
    { operationId },
  )
  await billing.recordUsage({ meter: 'm', quantity: 1, occurredAt: new Date() }, { operationId })
  await billing.consumeCredits({ amount: 1, account: given.customer, description: given.description }, { operationId })
}

interface OrderMetadata {
  orderId: string
  lines: readonly { sku: string; count: number }[]
}

/** Interfaces have no index signature; metadata takes them all the same. */
export async function metadataOfAnInterface(metadata: OrderMetadata): Promise<void> {
  await billing.charge({ ...coffee, metadata }, { operationId })
  await billing.recordUsage({ meter: 'm', quantity: 1, metadata }, { operationId })
  await billing.consumeCredits({ amount: 1, metadata }, { operationId })
  // @ts-expect-error metadata is an object
  await billing.charge({ ...coffee, metadata: 'order-991' }, { operationId })
}

export async function wrongParameters(): Promise<void> {
  // @ts-expect-error every operation has a name
  await billing.charge(coffee, {})
  // @ts-expect-error every operation has a name
  await billing.charge(coffee)
  // @ts-expect-error an amount is a number
  await billing.charge({ amount: '450', currency: 'eur' }, { operationId })
  // @ts-expect-error an amount of what?
  await billing.charge({ amount: 450 }, { operationId })
  // @ts-expect-error no such parameter
  await billing.charge({ ...coffee, payment_method: 'pm_1' }, { operationId })
  // @ts-expect-error no such option
  await billing.charge(coffee, { operationId, idempotency_key: 'x' })
  // @ts-expect-error usage is counted per meter
  await billing.recordUsage({ quantity: 1 }, { operationId })
  // @ts-expect-error a BigInt is given as text
  await billing.recordUsage({ meter: 'm', quantity: 1n }, { operationId })
  // @ts-expect-error credits have no currency
  await billing.consumeCredits({ amount: 1, currency: 'usd' }, { operationId })
}

export async function volatileFields(): Promise<void> {
  await billing.charge(coffee, { operationId, volatileFields: ['paymentMethod', 'description', 'metadata'] })
  await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId, volatileFields: ['metadata'] })
  await billing.consumeCredits({ amount: 1 }, { operationId, volatileFields: ['description', 'metadata'] })
  const frozen = ['metadata'] as const
  await billing.charge(coffee, { operationId, volatileFields: frozen, background: true })
  // @ts-expect-error the amount is what must not differ
  await billing.charge(coffee, { operationId, volatileFields: ['amount'] })
  // @ts-expect-error not among others either
  await billing.charge(coffee, { operationId, volatileFields: ['metadata', 'currency'] })
  // @ts-expect-error not in the background either
  await billing.charge(coffee, { operationId, background: true, volatileFields: ['amount'] })
  // @ts-expect-error a description is not part of usage
  await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId, volatileFields: ['description'] })
  // @ts-expect-error nor a payment method of credits
  await billing.consumeCredits({ amount: 1 }, { operationId, volatileFields: ['paymentMethod'] })
}

// ---------------------------------------------------------------------------------------------------- the outcomes

/** A switch over all of them ends in never. */
export function sayWhat(outcome: Outcome<ChargeReceipt>): string {
  switch (outcome.status) {
    case 'succeeded':
      holds<Equal<typeof outcome, Succeeded<ChargeReceipt>>>()
      holds<Equal<typeof outcome.receipt, ChargeReceipt>>()
      return outcome.receipt.id
    case 'accepted':
      holds<Equal<typeof outcome, Accepted<ChargeReceipt>>>()
      holds<Equal<typeof outcome.nextAction, JsonValue | undefined>>()
      switch (outcome.progress) {
        case 'requires_action':
          return 'go on at your bank'
        case 'processing':
          return 'wait'
        default:
          return outcome.progress satisfies never
      }
    case 'rejected':
      holds<Equal<typeof outcome, Rejected>>()
      holds<Equal<typeof outcome.rejection, Rejection>>()
      return outcome.rejection.code ?? outcome.rejection.kind
    case 'deferred':
      holds<Equal<typeof outcome, Deferred>>()
      return `later: ${outcome.reason}, ${outcome.retryAfterMs ?? 0} ms, until ${outcome.sendBeforeAtMs ?? 'ever'}`
    case 'canceled':
      holds<Equal<typeof outcome, Canceled>>()
      return outcome.by
    case 'unknown':
      holds<Equal<typeof outcome, Unknown<ChargeReceipt>>>()
      if (outcome.delivery === 'continues') {
        holds<Equal<typeof outcome, UnknownContinues>>()
        return outcome.hint ?? outcome.reason
      }
      if (outcome.reason === 'contradicted') {
        holds<Equal<typeof outcome, Contradicted<ChargeReceipt>>>()
        return `${outcome.settled.state}, and then ${outcome.contradiction.word}`
      }
      holds<Equal<typeof outcome, UnknownEnded<ChargeReceipt>>>()
      return outcome.receipt?.id ?? outcome.reason
    default:
      return outcome satisfies never
  }
}

/** Every outcome has these, and no receipt before one has looked at the status. */
export function common(outcome: Outcome): readonly unknown[] {
  // @ts-expect-error not every outcome has a receipt
  void outcome.receipt
  // @ts-expect-error there is no outcome of this name: a maybe is no failure
  if (outcome.status === 'failed') return []
  const { key, kind, operationId: id, revision, attempts, source, markedReplay, durable } = outcome
  holds<Equal<typeof source, 'receiver' | 'journal'>>()
  holds<Equal<typeof markedReplay, true | undefined>>()
  return [key, kind, id, revision, attempts, durable]
}

export async function receiptsByWrite(): Promise<void> {
  const charged = unwrap(await billing.charge(coffee, { operationId }))
  holds<Equal<typeof charged, ChargeReceipt>>()
  holds<Equal<typeof charged.amount, number | string | undefined>>()
  const used = unwrap(await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId, background: true }))
  holds<Equal<typeof used, UsageReceipt>>()
  holds<Equal<typeof used.standing, JsonValue | undefined>>()
  const taken = unwrap(await billing.consumeCredits({ amount: 1 }, { operationId }))
  holds<Equal<typeof taken, CreditsReceipt>>()
  holds<Equal<typeof taken.balance, number | string | undefined>>()
  const found = await billing.find({ kind: 'charge', operationId })
  holds<Equal<typeof found, Outcome<Receipt> | undefined>>()
  // @ts-expect-error a charge has no balance
  void charged.balance
  // @ts-expect-error a receipt is not the caller's to change
  charged.id = 'ch_2'
}

// ------------------------------------------------------------------------------------------------------- the errors

/** Narrows by code, and ends in never. */
export function explain(error: AnyBillingError): string {
  void error.sentByThisCall
  void error.entry?.state
  switch (error.code) {
    case 'ERR_INVALID_INPUT':
      return error.field
    case 'ERR_JOURNAL_UNAVAILABLE':
      return error.fault
    case 'ERR_OPERATION_CONFLICT':
      return error.fields.join()
    case 'ERR_REVISION_REFUSED':
      return `${error.reason} ${error.retryAfterMs ?? ''}`
    case 'ERR_EVIDENCE_REFUSED':
      return error.reason
    case 'ERR_NOT_FOUND':
      return error.name
    case 'ERR_NOT_CANCELABLE':
      return error.name
    case 'ERR_BACKPRESSURE':
      return String(error.limit)
    case 'ERR_AMBIGUOUS_REFERENCE':
      return String(error.subjects.length)
    case 'ERR_CLIENT_CLOSED':
      return error.name
    case 'ERR_DELIVERY_ABORTED':
      holds<Equal<typeof error.name, 'AbortError'>>()
      return error.name
    case 'ERR_NOT_SUCCEEDED':
      return error.outcome.status
    default:
      return error satisfies never
  }
}

export async function references(): Promise<void> {
  await billing.find({ kind: 'usage', operationId, subject: 'exports', revision: 2 })
  await billing.find({ key: 'db75a499-d95b-52b4-a203-c3b1e26f411b' })
  await billing.cancel({ kind: 'charge', operationId, subject: undefined })
  // @ts-expect-error an operationId alone could be several operations
  await billing.find({ operationId })
  for await (const view of billing.entries({ states: ['pending', 'unknown'] })) void view.outcome.status
  // @ts-expect-error there is no such state
  billing.entries({ states: ['failed'] })
}
