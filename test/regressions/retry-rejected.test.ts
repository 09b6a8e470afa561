/** retryRejected tries the revision it is given, and only that. */
import { status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { coffee, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const refused = status(400, { body: { error: { code: 'bad_deploy' } } })

test('one that a later revision has followed is not tried again, or a list of rejected ones would feed itself', async () => {
  const { billing, receiver } = setUp({ client: { names: 'own' }, receiver: { faults: [refused] } })
  const { key } = await settled(billing.charge(coffee, order))
  expect(await settled(billing.retryRejected({ key }))).toMatchObject({ status: 'rejected', revision: 2 })
  for (const again of [{ key }, { ...ref, revision: 1 }])
    await expect(settled(billing.retryRejected(again))).rejects.toMatchObject({ reason: 'nothing-to-retry' })
  // Without a revision the latest is meant.
  expect(await settled(billing.retryRejected(ref))).toMatchObject({ revision: 3 })
  expect(receiver.ledger.requests).toHaveLength(3)
})

test('where another name holds the key of the next revision it is a conflict and no endless loop', async () => {
  const { billing, receiver, another } = setUp({ client: { names: 'own' }, receiver: { faults: [refused] } })
  await settled(billing.charge(coffee, order))
  // What the next revision's key will be, taken from a journal of its own.
  const probe = setUp()
  const { key } = await settled(probe.billing.charge(coffee, { ...order, revision: 2 }))
  receiver.faults.clear()
  await settled(another().charge(coffee, { operationId: 'order-2', idempotencyKey: key }))
  await expect(settled(billing.retryRejected(ref))).rejects.toMatchObject({ code: 'ERR_OPERATION_CONFLICT' })
})
