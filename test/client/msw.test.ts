/** The whole client in front of msw: the receiver as handlers, and the runtime's own fetch. */
import { createBillingClient, forgetfulJournal } from 'billonce'
import { createReceiver, cutBody, loseReply, resetBefore, stall, status } from 'billonce/testing'
import { handlers } from 'billonce/testing/msw'
import { setupServer } from 'msw/node'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { expectOneName } from '../engine/tampering.ts'
import { BASE_URL, coffee, SCOPE } from '../support/world.ts'

const receiver = createReceiver()
const server = setupServer(...handlers(receiver, { baseUrl: BASE_URL }))
// Made before msw is at work: fetch is looked up at each call.
const billing = createBillingClient({
  baseUrl: BASE_URL,
  scope: SCOPE,
  journal: forgetfulJournal(),
  headers: { authorization: 'Bearer sk_test' },
  retry: { baseDelayMs: 1, attemptTimeoutMs: 150 },
})

beforeAll(() => server.listen({ onUnhandledFrame: 'error' }))
afterEach(() => receiver.reset())
afterAll(() => server.close())

test('all three writes go through', async () => {
  const outcomes = [
    await billing.charge(coffee, { operationId: 'msw-1' }),
    await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'msw-1' }),
    await billing.consumeCredits({ amount: 5 }, { operationId: 'msw-1' }),
  ]
  expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded', 'succeeded'])
  expect(receiver.ledger.effects.map((effect) => effect.kind)).toEqual(['charge', 'usage', 'credits'])
})

test.each([
  ['lost', loseReply({ attempt: 1 })],
  ['reset', resetBefore({ attempt: 1 })],
  ['cut', cutBody({ attempt: 1 })],
  ['cut in its chunks', cutBody({ attempt: 1, framing: 'chunked' })],
  ['a 502 after the effect', status(502, { attempt: 1, afterEffect: true })],
  ['silence', stall({ attempt: 1 })],
  ['silence after the headers', stall({ attempt: 1, after: 'headers' })],
])('a reply that is %s is asked for again: one effect', async (what, fault) => {
  receiver.faults.add(fault)
  const outcome = await billing.charge(coffee, { operationId: `msw-${what}` })
  expect(outcome).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('a decline is a decline', async () => {
  const outcome = await billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'msw-declined' })
  expect(outcome).toMatchObject({ status: 'rejected', rejection: { code: 'card_declined' } })
  expect(receiver.ledger.effects).toHaveLength(0)
})
