/** Events: what happened, in order, to whoever listens; nothing personal, and no way to stop a payment. */
import type { BillingEvent } from 'billonce'
import { cutBody, loseReply, savedFailure, status } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { broken, journalWith } from '../engine/tampering.ts'
import { coffee, pass, SCOPE, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }

test('a charge with a lost reply tells each step in order', async () => {
  const { billing, events } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const { key } = await settled(billing.charge(coffee, order))
  const steps = events.filter(
    ({ type }) => type === 'state' || type === 'retry-scheduled' || type.startsWith('attempt-'),
  )
  expect(steps.map(({ type }) => type)).toEqual([
    'state',
    'attempt-began',
    'attempt-ended',
    'retry-scheduled',
    'attempt-began',
    'state',
    'attempt-ended',
  ])
  expect(steps).toMatchObject([
    { to: 'sending' },
    { attempt: 1, windowEndsAtMs: expect.any(Number) },
    { attempt: 1, result: 'unclear', why: 'network' },
    { by: 'call' },
    { attempt: 2 },
    { from: 'sending', to: 'succeeded' },
    { attempt: 2, result: 'succeeded', status: 200, markedReplay: true },
  ])
  expect(events.every((event) => 'key' in event && event.key === key && event.atMs > 0)).toBe(true)
})

test('a state is told only once it is durable', async () => {
  const world = setUp()
  const told: string[] = []
  const journal = journalWith(world.journal, async (call, run) => {
    const before = told.length
    const result = await run()
    if (call.method === 'insert' || call.method === 'replace') expect(told.length).toBe(before)
    return result
  })
  const billing = world.another({ journal })
  billing.subscribe((event) => {
    if (event.type === 'state') told.push(event.to)
  })
  await settled(billing.charge(coffee, order))
  expect(told).toEqual(['sending', 'succeeded'])
})

test('a listener that throws changes nothing, for the call or for the other listeners', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const heard: BillingEvent[] = []
  billing.subscribe(() => {
    throw new Error('observer')
  })
  billing.subscribe((event) => heard.push(event))
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(heard.length).toBeGreaterThan(4)
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a listener that charges, closes or unsubscribes from inside does not confuse the others', async () => {
  const { billing, receiver } = setUp()
  const inner: Promise<unknown>[] = []
  let calls = 0
  const stop = billing.subscribe((event) => {
    calls += 1
    if (event.type === 'attempt-began' && inner.length === 0)
      inner.push(billing.charge(coffee, { operationId: 'order-2' }))
    stop()
  })
  await settled(billing.charge(coffee, order))
  expect(calls).toBe(1)
  await settled(Promise.all(inner))
  const other: Promise<unknown>[] = []
  billing.subscribe((event) => {
    if (event.type === 'attempt-began') other.push(billing.charge(coffee, { operationId: 'order-3' }))
  })
  await settled(billing.charge(coffee, { operationId: 'order-4' }))
  await settled(Promise.all(other))
  expect(receiver.ledger.effects).toHaveLength(3)
})

test('the function that subscribe returned ends it; the same listener twice is two', async () => {
  const { billing } = setUp()
  let heard = 0
  const listener = (event: BillingEvent): void => {
    if (event.type === 'attempt-began') heard += 1
  }
  const [first, second] = [billing.subscribe(listener), billing.subscribe(listener)]
  await settled(billing.charge(coffee, order))
  expect(heard).toBe(2)
  first()
  first()
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  expect(heard).toBe(3)
  second()
  await settled(billing.charge(coffee, { operationId: 'order-3' }))
  expect(heard).toBe(3)
})

test('no event of a busy day holds a body, a credential, an operationId, a scope or an address', async () => {
  const secrets = [
    'secret-token',
    'operation-secret',
    'cus_secret',
    'pm_secret',
    'meter-secret',
    'description-secret',
    'metadata-secret',
    'account-secret',
    'cause-secret',
    SCOPE,
    'billing.test',
    'card_declined',
    'The card was declined',
  ]
  const world = setUp({
    client: { headers: { authorization: 'Bearer secret-token' }, retry: { maxAttempts: 3 } },
    receiver: {
      paymentMethods: { pm_secret: { status: 'requires_action', nextAction: { url: 'https://secret-token.test' } } },
      faults: [
        loseReply({ request: 1 }),
        status(429, { request: 4 }),
        cutBody({ request: 5 }),
        savedFailure(500, { request: 7 }),
        status(400, { request: 10, body: { error: { code: 'cause-secret', message: 'description-secret' } } }),
        status(422, { request: 12, body: { error: { code: 'idempotency_key_reused' } } }),
      ],
    },
  })
  const { billing, events } = world
  let isFailing = false
  const journal = journalWith(world.journal, (_call, run) =>
    isFailing ? Promise.reject(new Error('cause-secret')) : run(),
  )
  const clients = [billing, world.another({ journal }), world.another({ scope: 'other-scope' })]
  for (const client of clients.slice(1)) client.subscribe((event) => events.push(event))
  const params = {
    amount: 4711,
    currency: 'eur',
    customer: 'cus_secret',
    description: 'description-secret',
    metadata: { note: 'metadata-secret' },
  }
  const stops = clients.map((client) => client.start())
  for (let number = 1; number <= 10; number += 1) {
    for (const [index, client] of clients.entries()) {
      const operationId = `operation-secret-${number}-${index}`
      isFailing = number === 5
      const method = ['pm_card', 'pm_declined', 'pm_secret'][number % 3]!
      const calls = [
        client.charge({ ...params, paymentMethod: method }, { operationId, background: number % 2 === 0 }),
        client.recordUsage({ meter: 'meter-secret', quantity: 1, customer: 'cus_secret' }, { operationId }),
        client.consumeCredits({ amount: 1, account: 'account-secret' }, { operationId }),
      ]
      await settled(Promise.allSettled(calls))
      await client.cancel({ kind: 'charge', operationId }).catch(() => {})
    }
  }
  isFailing = false
  await pass(3_600_000)
  for (const stop of stops) stop()
  expect(new Set(events.map((event) => event.type)).size).toBeGreaterThanOrEqual(5)
  const told = JSON.stringify(events)
  for (const secret of secrets) expect(told).not.toContain(secret)
  expect(told).not.toContain('other-scope')
  expect(told).not.toContain('4711')
  expect(world.receiver.ledger.duplicates()).toEqual([])
  expect(world.receiver.ledger.summary().keysWithOtherBytes).toBe(0)
}, 30_000)

test('errors and outcomes hold no credential, and errors no body', async () => {
  const world = setUp({ client: { headers: { authorization: 'Bearer secret-token' } } })
  const private1 = { ...coffee, description: 'description-secret' }
  await settled(world.billing.charge(private1, order))
  const failing = world.another({ journal: journalWith(world.journal, () => Promise.reject(broken())) })
  const errors: unknown[] = []
  const keep = (error: unknown): void => void errors.push(error)
  await settled(world.billing.charge({ ...private1, amount: 4711 }, order).catch(keep))
  await settled(failing.charge(private1, order).catch(keep))
  await settled(world.billing.charge(private1, { ...order, signal: AbortSignal.abort('gone') }).catch(keep))
  await settled(world.billing.charge({ ...private1, amount: 0.5 }, { operationId: 'order-2' }).catch(keep))
  await settled(world.billing.cancel({ kind: 'charge', ...order }).then(keep, keep))
  await settled(world.billing.charge(private1, { ...order, revision: 2 }).then(() => {}, keep))
  expect(errors).toHaveLength(5)
  for (const error of errors) {
    const text = `${String(error)} ${JSON.stringify(error)} ${(error as Error).stack}`
    expect(text).not.toMatch(/secret-token|description-secret|4711|cus_1/)
    expect(text).not.toMatch(/not charged/i)
    expect(error).toMatchObject({ code: expect.stringMatching(/^ERR_/), sentByThisCall: false })
  }
})

test('why nothing is sent is told once it is on record, so that whoever then reads the journal finds it there', async () => {
  const { billing } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const read: Promise<unknown>[] = []
  billing.subscribe((event) => {
    if (event.type === 'attempt-ended') vi.stubGlobal('navigator', { onLine: false })
    if (event.type === 'held') read.push(billing.find({ kind: 'charge', ...order }))
  })
  await settled(billing.charge(coffee, order))
  vi.unstubAllGlobals()
  expect(await Promise.all(read)).toEqual([expect.objectContaining({ status: 'unknown', reason: 'offline' })])
})
