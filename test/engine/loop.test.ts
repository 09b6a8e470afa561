/** The loop as a caller sees it: what is tried again, with what, and what comes of it. */
import { cutBody, loseReply, loseRequest, status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { coffee, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

test('a charge that goes through is one request and one effect', async () => {
  const { billing, receiver } = setUp()
  const outcome = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  expect(outcome).toMatchObject({ status: 'succeeded', revision: 1, attempts: 1, source: 'receiver', durable: false })
  expect(receiver.ledger.requests).toHaveLength(1)
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a reply lost on the way back is asked for again under the same key', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const outcome = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  expect(outcome).toMatchObject({ status: 'succeeded', attempts: 2, markedReplay: true })
  expect(receiver.ledger.requests).toHaveLength(2)
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('G01: the key is the same through a 503, a reset and a success', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [status(503, { attempt: 1 }), loseRequest({ attempt: 2 })] },
  })
  const outcome = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  expect(outcome.status).toBe('succeeded')
  const { requests } = receiver.ledger
  expect(requests).toHaveLength(3)
  expect(new Set(requests.map((request) => request.key)).size).toBe(1)
  expect(new Set(requests.map((request) => request.body)).size).toBe(1)
})

test('G28: a reply cut off in its body is no success', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [cutBody({ attempt: 1 }), cutBody({ attempt: 2, framing: 'chunked' })] },
  })
  const outcome = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  expect(outcome).toMatchObject({ status: 'succeeded', attempts: 3 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('G60: two calls in one tick are one entry, one request and one result; a third is answered from the journal', async () => {
  const { billing, receiver } = setUp()
  const options = { operationId: 'order-1' }
  const [one, two] = await settled(Promise.all([billing.charge(coffee, options), billing.charge(coffee, options)]))
  expect(one).toEqual(two)
  const three = await settled(billing.charge(coffee, options))
  expect(three).toMatchObject({ status: 'succeeded', source: 'journal' })
  expect(receiver.ledger.requests).toHaveLength(1)
})
