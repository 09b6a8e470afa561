/** Credentials: asked afresh at each attempt, of the right scope or nothing is sent, bounded in time, and never stored. */
import { createBillingClient, InvalidInputError } from 'billonce'
import type { Credentials, CredentialsOption, CredentialsRequest } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { coffee, pass, SCOPE, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { expectOneName } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }
const bearer = (token: string): Credentials => ({ scope: SCOPE, headers: { authorization: `Bearer ${token}` } })

function withCredentials(
  credentials: CredentialsOption,
  more: Parameters<typeof setUp>[0] = {},
): ReturnType<typeof setUp> {
  return setUp({ ...more, client: { headers: undefined, credentials, ...more.client } })
}

test('they are asked once for each attempt, with scope, number and the status before', async () => {
  const asked: CredentialsRequest[] = []
  const { billing } = withCredentials(
    (request) => {
      asked.push(request)
      return bearer('t')
    },
    { receiver: { faults: [status(503, { attempt: 1 }), loseReply({ attempt: 2 })] } },
  )
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 3 })
  expect(asked).toEqual([
    { scope: SCOPE, attempt: 1 },
    { scope: SCOPE, attempt: 2, previousStatus: 503 },
    { scope: SCOPE, attempt: 3 },
  ])
})

test('asynchronous ones that take their time are asked once for an attempt too', async () => {
  let asked = 0
  const { billing, receiver } = withCredentials(async () => {
    asked += 1
    await new Promise((resolve) => setTimeout(resolve, 200))
    return bearer('t')
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 1 })
  expect(receiver.ledger.requests).toHaveLength(1)
  expect(asked).toBe(1)
})

test('they are not asked where nothing will be sent', async () => {
  let asked = 0
  const { billing } = withCredentials(() => {
    asked += 1
    return bearer('t')
  })
  await settled(billing.charge(coffee, order))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'order-2' }))
  expect(asked).toBe(2)
  await settled(billing.charge(coffee, order))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'order-2' }))
  await settled(billing.charge({ ...coffee, amount: 1 }, order).catch(() => {}))
  await settled(billing.find({ kind: 'charge', ...order }))
  expect(asked).toBe(2)
})

test('synchronous ones make the entry and its first attempt in one commit', async () => {
  const { billing, events } = withCredentials(() => bearer('t'))
  await settled(billing.charge(coffee, order))
  expect(events.filter((event) => event.type === 'state')).toMatchObject([
    { to: 'sending' },
    { from: 'sending', to: 'succeeded' },
  ])
})

test('ones that are slow do not hold up the entry: it is durable as pending meanwhile', async () => {
  const { billing, events, receiver } = withCredentials(async () => {
    await new Promise((resolve) => setTimeout(resolve, 5000))
    return bearer('t')
  })
  const asked = billing.charge(coffee, order)
  await pass(1000)
  expect(await viewsOf(billing)).toMatchObject([{ state: 'pending', attemptsBegun: 0 }])
  expect(receiver.ledger.requests).toHaveLength(0)
  expect(await settled(asked)).toMatchObject({ status: 'succeeded' })
  expect(events.filter((event) => event.type === 'state').map((event) => event.to)).toEqual([
    'pending',
    'sending',
    'succeeded',
  ])
})

test('of another scope: nothing is sent, and the entry waits', async () => {
  let scope = 'org_666/live'
  const { billing, receiver, events } = withCredentials(() => ({ scope, headers: { authorization: 'Bearer other' } }))
  expect(await settled(billing.charge(coffee, order))).toMatchObject({
    status: 'deferred',
    reason: 'other-login',
    attempts: 0,
  })
  expect(events).toContainEqual(expect.objectContaining({ type: 'held', reason: 'other-login' }))
  await pass(600_000)
  expect(receiver.ledger.requests).toHaveLength(0)
  scope = SCOPE
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
})

const broken: [string, CredentialsOption, string][] = [
  [
    'throw',
    () => {
      throw new Error('session secret-token expired')
    },
    'no-credentials',
  ],
  ['reject', () => Promise.reject(new Error('offline')), 'no-credentials'],
  ['never answer', () => new Promise(() => {}), 'no-credentials'],
  ['give nothing', () => undefined as unknown as Credentials, 'no-credentials'],
  ['give no headers', () => ({ scope: SCOPE }) as Credentials, 'no-credentials'],
  ['set the key header', () => ({ scope: SCOPE, headers: { 'Idempotency-Key': 'mine' } }), 'no-credentials'],
  ['set the content type', () => ({ scope: SCOPE, headers: { 'content-type': 'text/plain' } }), 'no-credentials'],
  [
    'set a header with a line break',
    () => ({ scope: SCOPE, headers: { authorization: 'a\r\nb: c' } }),
    'no-credentials',
  ],
  ['give a number', () => ({ scope: SCOPE, headers: { authorization: 1 as unknown as string } }), 'no-credentials'],
]

test.each(broken)('that %s: nothing is sent, and a new entry is deferred', async (_what, credentials, reason) => {
  const { billing, receiver, events } = withCredentials(credentials, { client: { credentialsTimeoutMs: 3000 } })
  const began = performance.now()
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'deferred', reason, attempts: 0 })
  expect(performance.now() - began).toBeLessThan(3100)
  expect(receiver.ledger.requests).toHaveLength(0)
  expect(JSON.stringify([outcome, events, await viewsOf(billing)])).not.toContain('secret-token')
})

test('that fail after an attempt that may have worked: unknown, and delivery continues', async () => {
  let isLoggedIn = true
  const { billing, receiver } = withCredentials(
    () => {
      if (!isLoggedIn) throw new Error('logged out')
      return bearer('t')
    },
    { receiver: { faults: [loseReply({ attempt: 1 })] } },
  )
  billing.subscribe((event) => {
    if (event.type === 'attempt-began') isLoggedIn = false
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({
    status: 'unknown',
    delivery: 'continues',
    reason: 'no-credentials',
    attempts: 1,
  })
  isLoggedIn = true
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a login that is missing is asked for again in the background, with growing waits, and then it goes', async () => {
  let asked = 0
  let isLoggedIn = false
  const { billing, receiver } = withCredentials(() => {
    asked += 1
    if (!isLoggedIn) throw new Error('logged out')
    return bearer('t')
  })
  const stop = billing.start()
  await settled(billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1', background: true }))
  await pass(3_600_000)
  // An hour of waiting for a login is no reason to ask for it all the time.
  expect(asked).toBeLessThanOrEqual(200)
  isLoggedIn = true
  await pass(600_000)
  expect(receiver.ledger.effects).toHaveLength(1)
  stop()
})

test('a 401 is not accepted; the next call brings a new token and says which status was before', async () => {
  const asked: CredentialsRequest[] = []
  const { billing, receiver } = withCredentials(
    (request) => {
      asked.push(request)
      return bearer(request.previousStatus === 401 ? 'fresh' : 'stale')
    },
    { receiver: { accounts: { fresh: 'account-1' } } },
  )
  expect(await settled(billing.charge(coffee, order))).toMatchObject({
    status: 'deferred',
    reason: 'unauthorized',
    attempts: 1,
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(asked.at(-1)).toEqual({ scope: SCOPE, attempt: 2, previousStatus: 401 })
  expectOneName(receiver)
})

test('a call retries a 401 with a new token itself where it was told to', async () => {
  const { billing } = withCredentials((request) => bearer(request.previousStatus === 401 ? 'fresh' : 'stale'), {
    client: { retry: { alsoStatuses: [401] } },
    receiver: { accounts: { fresh: 'account-1' } },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
})

test('trace headers may be other ones at each attempt, and none of them is stored', async () => {
  let number = 0
  const { billing, receiver, journal } = withCredentials(
    () => ({
      scope: SCOPE,
      headers: { Traceparent: `00-trace-${(number += 1)}`, authorization: 'Bearer secret-token' },
    }),
    { receiver: { faults: [status(503, { attempt: 1 })] } },
  )
  await settled(billing.charge(coffee, order))
  const traces = receiver.ledger.requests.map((request) => request.headers['traceparent'])
  expect(new Set(traces).size).toBe(2)
  const stored = JSON.stringify(await journal.list({}, 10))
  expect(stored).not.toContain('secret-token')
  expect(stored).not.toContain('00-trace')
})

test('the scope is the entry’s, also where an object of the caller’s changes under way', async () => {
  const headers = { authorization: 'Bearer one' }
  const { billing, receiver } = withCredentials(() => ({ scope: SCOPE, headers }), {
    receiver: { faults: [status(503, { attempt: 1 })] },
  })
  const asked = billing.charge(coffee, order)
  await pass(0)
  headers.authorization = 'Bearer two'
  expect(await settled(asked)).toMatchObject({ status: 'succeeded' })
  expect(new Set(receiver.ledger.requests.map((request) => request.account)).size).toBe(2)
})

test('headers that never change are an option of their own', async () => {
  const { billing, receiver } = setUp({ client: { headers: { Authorization: 'Bearer sk_1' } } })
  await settled(billing.charge(coffee, order))
  expect(receiver.ledger.requests[0]?.headers).toMatchObject({ authorization: '[withheld]' })
  expect(receiver.ledger.requests[0]?.account).not.toBe('anonymous')
})

test.each([
  [{ headers: { 'Idempotency-Key': 'k' } }, 'headers.idempotency-key'],
  [{ headers: { 'Content-Type': 'text/plain' } }, 'headers.content-type'],
  [{ headers: { bad: 'a\nb' } }, 'headers.bad'],
  [{ headers: {}, credentials: () => bearer('t') }, 'headers'],
  [{ credentials: 'token' as unknown as CredentialsOption }, 'credentials'],
  [{ credentialsTimeoutMs: 0 }, 'credentialsTimeoutMs'],
])('%o is refused at construction', (options, field) => {
  const make = (): unknown => createBillingClient({ baseUrl: 'https://billing.test', scope: SCOPE, ...options })
  expect(make).toThrow(InvalidInputError)
  expect(make).toThrow(expect.objectContaining({ field }))
})

test('a key header of another name cannot be set either', async () => {
  const { standard } = await import('billonce')
  const dialect = { ...standard(), keyHeader: (key: string) => ({ name: 'X-Request-Token', value: key }) }
  const keyOf = ({ headers }: { headers: Headers }): string | undefined => headers.get('x-request-token') ?? undefined
  const { billing, receiver } = withCredentials(() => ({ scope: SCOPE, headers: { 'x-request-token': 'mine' } }), {
    client: { dialect },
    receiver: { keyOf },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred', reason: 'no-credentials' })
  const right = setUp({ client: { dialect }, receiver: { keyOf } })
  const outcome = await settled(right.billing.charge(coffee, order))
  expect(outcome.status).toBe('succeeded')
  expect(right.receiver.ledger.requests).toMatchObject([{ key: outcome.key }])
  expect(receiver.ledger.requests).toHaveLength(0)
  vi.restoreAllMocks()
})
