/**
 * A receiver that frees its key on a refusal speaks only for the attempt it refused. Once, such a refusal was believed while an
 * earlier attempt was still on its way: that one found the key free and charged, and the next revision charged again.
 */
import { standard } from 'billonce'
import { createReceiver, status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const declined = status(402, { request: 1, body: { error: { code: 'card_declined' } } })

/** The first request is given up by the client and arrives all the same, so much later. */
function withLateFirst(lateMs: number) {
  const receiver = createReceiver({ keepsRejections: false, faults: [declined] })
  let count = 0
  const lateFetch = ((input: Request | URL | string, init?: RequestInit) => {
    count += 1
    if (count > 1) return receiver.fetch(input, init)
    setTimeout(() => void receiver.fetch(input, { ...init, signal: null }), lateMs)
    return new Promise<Response>(() => {})
  }) as typeof fetch
  return { receiver, lateFetch }
}

test('a refusal that frees the key is not believed while an earlier attempt is on its way', async () => {
  const { receiver, lateFetch } = withLateFirst(90_000)
  const { billing } = setUp({ client: { fetch: lateFetch, dialect: standard({ keepsRejections: false }) } })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'refused-unproven' })
  await expect(settled(billing.charge(coffee, { ...order, revision: 2 }))).rejects.toMatchObject({
    reason: 'earlier-revision-open',
  })
  // Nobody asks the freed key again before the late one can have arrived: each asking would be a try of its own.
  const { length } = receiver.ledger.requests
  await settled(billing.resume({ deadlineMs: 1000 }))
  expect(receiver.ledger.requests).toHaveLength(length)
  await pass(150_000)
  expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('it is believed once none can be on its way any more', async () => {
  const { receiver, lateFetch } = withLateFirst(1e9)
  const { billing } = setUp({ client: { fetch: lateFetch, dialect: standard({ keepsRejections: false }) } })
  await settled(billing.charge(coffee, order))
  await pass(150_000)
  receiver.faults.add(status(402, { body: { error: { code: 'card_declined' } } }))
  expect(await settled(billing.resume())).toMatchObject({ total: 1, rejected: 1 })
})
