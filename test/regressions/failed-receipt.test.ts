/** A 2xx whose receipt says that it failed is no success. */
import { expect, test } from 'vitest'
import { coffee, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }

test.each(['failed', 'declined', 'canceled', 'voided'])(
  'a receipt that says %s stops the delivery and is kept',
  async (word) => {
    const answers = (async () =>
      Response.json({ id: 'ch_1', amount: coffee.amount, currency: coffee.currency, status: word })) as typeof fetch
    const { billing } = setUp({ client: { fetch: answers } })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'receipt-differs',
      receipt: { id: 'ch_1', status: word },
    })
    const evidence = { source: 'webhook', found: 'applied', receipt: { id: 'ch_1', status: word } } as const
    await expect(settled(billing.recordEvidence(ref, evidence))).rejects.toMatchObject({
      code: 'ERR_INVALID_INPUT',
      field: 'receipt',
    })
  },
)

test('contradicted operations can be listed', async () => {
  const { billing } = setUp()
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  await settled(billing.recordEvidence(ref, { source: 'webhook', found: 'applied', receipt: { id: 'ch_9' } }))
  const listed: string[] = []
  for await (const view of billing.entries({ contradicted: true })) listed.push(view.operationId)
  expect(listed).toEqual(['order-1'])
})
