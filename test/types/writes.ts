/** Never run, only compiled: writes of the user's own, and what is inferred of them. */
import { defineWrite } from 'billonce'
import type { AnyWriteDefinition, BillingClient, Outcome, Queued, Receipt, WriteDefinition } from 'billonce'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
/** Compiles for `true` only. */
declare const holds: <const T extends true>() => T

declare const billing: BillingClient
const operationId = 'refund-7'

interface RefundParams {
  charge: string
  amount?: number | undefined
  note?: string | undefined
}
interface RefundReceipt extends Receipt {
  readonly refunded: number
}

const refund = defineWrite({
  kind: 'refund',
  path: 'v1/refunds',
  method: 'POST',
  subject: 'charge',
  volatile: ['note'],
  readParams: (params: RefundParams) => params,
  readReceipt: (reply): RefundReceipt | undefined =>
    typeof reply['id'] === 'string' && typeof reply['amount'] === 'number'
      ? { id: reply['id'], refunded: reply['amount'], reply }
      : undefined,
})
holds<Equal<typeof refund, WriteDefinition<RefundParams, RefundReceipt, 'note'>>>()

// Without `volatile` nothing may be volatile.
const plain = defineWrite({
  kind: 'plain',
  path: 'v1/plain',
  method: 'PUT',
  readParams: (params: { amount: number }) => params,
  readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
})
type VolatileOf<D> = D extends WriteDefinition<infer _P, infer _R, infer V> ? V : 'none'
holds<Equal<typeof plain extends WriteDefinition<{ amount: number }, infer R, never> ? R['id'] : never, string>>()
holds<Equal<[VolatileOf<typeof plain>], [never]>>()

// Both go where any definition goes.
export const all: readonly AnyWriteDefinition[] = [refund, plain]

defineWrite({
  kind: 'x',
  path: 'v1/x',
  // @ts-expect-error a write that changes nothing needs no library
  method: 'GET',
  readParams: () => ({}),
  readReceipt: () => undefined,
})
defineWrite({
  kind: 'x',
  path: 'v1/x',
  method: 'POST',
  readParams: () => ({}),
  // @ts-expect-error a receipt has an id
  readReceipt: (reply) => ({ reply }),
})
// @ts-expect-error what is sent has to be read first
defineWrite({ kind: 'x', path: 'v1/x', method: 'POST', readReceipt: () => undefined })

export async function calls(isBackground: boolean): Promise<void> {
  const outcome = await billing.write(refund, { charge: 'ch_1', amount: undefined }, { operationId })
  holds<Equal<typeof outcome, Outcome<RefundReceipt>>>()
  if (outcome.status === 'succeeded') holds<Equal<typeof outcome.receipt.refunded, number>>()

  const later = await billing.write(refund, { charge: 'ch_1' }, { operationId, background: true })
  const perhaps = await billing.write(refund, { charge: 'ch_1' }, { operationId, background: isBackground })
  holds<Equal<typeof later, Outcome<RefundReceipt> | Queued>>()
  holds<Equal<typeof perhaps, Outcome<RefundReceipt> | Queued>>()

  await billing.write(refund, { charge: 'ch_1' }, { operationId, volatileFields: ['note'] })
  await billing.write(plain, { amount: 1 }, { operationId, volatileFields: [] })
  // @ts-expect-error the definition does not list it
  await billing.write(refund, { charge: 'ch_1' }, { operationId, volatileFields: ['amount'] })
  // @ts-expect-error not among others either
  await billing.write(refund, { charge: 'ch_1' }, { operationId, volatileFields: ['note', 'charge'] })
  // @ts-expect-error the definition lists none
  await billing.write(plain, { amount: 1 }, { operationId, volatileFields: ['amount'] })

  // @ts-expect-error the charge is missing
  await billing.write(refund, { amount: 1 }, { operationId })
  // @ts-expect-error of another type
  await billing.write(refund, { charge: 7 }, { operationId })
  // @ts-expect-error misspelled
  await billing.write(refund, { charge: 'ch_1', ammount: 1 }, { operationId })
  // @ts-expect-error without a name
  await billing.write(refund, { charge: 'ch_1' }, {})
}

/** A wrapper of the user's own around any definition. */
export async function through<P extends object, R extends Receipt, V extends string>(
  definition: WriteDefinition<P, R, V>,
  params: P,
): Promise<Outcome<R>> {
  return await billing.write(definition, params, { operationId })
}
