/** One attempt is one request, with the stored bytes, whatever fetch throws and whatever the runtime calls it. */
import { createHash } from 'node:crypto'
import { defineWrite } from 'billonce'
import type { BillingClient, Outcome } from 'billonce'
import { createReceiver, status } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { describe, expect, test, vi } from 'vitest'
import { coffee, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { expectOneName } from './tampering.ts'

const order = { operationId: 'order-1' }

describe('in virtual time', () => {
  virtualTime()

  test.each([
    'Failed to fetch',
    'Failed to fetch (api.example)',
    'Load failed',
    'Load failed (api.example)',
    'NetworkError when attempting to fetch resource.',
    'fetch failed',
    'terminated',
    'network error',
    'Network request failed',
    'a text that nobody has seen before',
    '',
  ])('G35: a TypeError with the message %j is a lost reply and is tried again', async (message) => {
    await failsOnce(new TypeError(message))
  })

  test.each([
    ['an Error', new Error('ECONNRESET')],
    ['a DOMException', new DOMException('The operation was aborted.', 'AbortError')],
    ['a timeout of another layer', new DOMException('timed out', 'TimeoutError')],
    ['a string', 'boom'],
    ['nothing', undefined],
    ['an object', { code: 'EPIPE' }],
  ])('G35: %s thrown by the transport is a lost reply too', async (_what, thrown) => {
    await failsOnce(thrown)
  })

  async function failsOnce(thrown: unknown): Promise<void> {
    const receiver = createReceiver()
    let calls = 0
    const { billing } = setUp({
      client: {
        fetch: (async (input: string, init: RequestInit) => {
          calls += 1
          const response = await receiver.fetch(input, init)
          // The receiver has done it, and the reply is lost.
          if (calls === 1) throw thrown
          return response
        }) as typeof fetch,
      },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    const [view] = await viewsOf(billing)
    expect(view?.attempts[0]).toMatchObject({ result: 'unclear', why: 'network' })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  }

  const note = defineWrite({
    kind: 'note',
    path: 'v1/notes',
    method: 'PUT',
    readParams: (params: { text: string }) => params,
    readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
  })
  const methods: [string, (billing: BillingClient) => Promise<Outcome>][] = [
    ['charge', (billing) => billing.charge(coffee, order)],
    ['recordUsage', (billing) => billing.recordUsage({ meter: 'exports', quantity: 1 }, order)],
    ['consumeCredits', (billing) => billing.consumeCredits({ amount: 1 }, order)],
    ['write', (billing) => billing.write(note, { text: 'hello' }, order)],
  ]
  const answers: [string, Parameters<typeof createReceiver>[0]][] = [
    ['a success', {}],
    ['a 400', { faults: [status(400, { body: { error: { code: 'no' } } })] }],
    ['a 402', { faults: [status(402, { body: { error: { code: 'no' } } })] }],
    ['a 401', { faults: [status(401)] }],
    ['a 404', { faults: [status(404)] }],
    ['a 409', { faults: [status(409)] }],
    ['a 429', { faults: [status(429)] }],
    ['a 413', { faults: [status(413)] }],
    ['a 500', { faults: [status(500)] }],
    ['a 503', { faults: [status(503)] }],
  ]
  const all = methods.flatMap(([method, call]) =>
    answers.map(([answer, options]) => [method, answer, call, options] as const),
  )

  test.each(all)(
    'G32: %s is exactly one request where one attempt is allowed, on %s',
    async (_method, _answer, call, options) => {
      const { billing, receiver } = setUp({
        client: { retry: { maxAttempts: 1 } },
        receiver: { ...options, routes: { 'v1/notes': { kind: 'note', idPrefix: 'no_', method: 'PUT' } } },
      })
      await settled(call(billing))
      await vi.advanceTimersByTimeAsync(3_600_000)
      expect(receiver.ledger.requests).toHaveLength(1)
    },
  )

  test('a request carries the stored type and key, whatever the headers are, and says that it wants JSON', async () => {
    const { billing, receiver } = setUp({ client: { headers: { 'X-Trace': 't-1', Accept: 'text/plain' } } })
    const outcome = await settled(billing.charge(coffee, order))
    expect(receiver.ledger.requests[0]?.headers).toMatchObject({
      'content-type': 'application/json',
      'idempotency-key': outcome.key,
      'x-trace': 't-1',
    })
  })

  test('a fetch of the user’s is handed the address and the body as texts, the same at every attempt', async () => {
    const receiver = createReceiver({ faults: [status(503, { attempt: 1 })] })
    const handed: unknown[] = []
    const { billing } = setUp({
      client: {
        fetch: (input, init) => {
          handed.push([input, init?.method, init?.body])
          return receiver.fetch(input, init)
        },
      },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    const [request] = receiver.ledger.requests
    expect(handed[0]).toEqual(['https://billing.test/v1/charges', 'POST', request?.body])
    expect(handed[1]).toEqual(handed[0])
  })

  test('a base address with a path keeps it', async () => {
    const { another, receiver } = setUp()
    await settled(another({ baseUrl: 'https://billing.test/api/eu' }).charge(coffee, order))
    expect(receiver.ledger.requests[0]?.path).toBe('/api/eu/v1/charges')
  })
})

describe('over real sockets', () => {
  test('G31: three attempts send three identical bodies that are not empty', async () => {
    const receiver = createReceiver({ faults: [status(503, { attempt: [1, 2] })] })
    await using server = await startServer(receiver)
    const { billing } = setUp({
      client: { baseUrl: server.url, fetch: (input, init) => fetch(input, init), retry: { baseDelayMs: 5 } },
    })
    const metadata = { text: 'größer 💶 ' + 'x'.repeat(100_000) }
    expect(await billing.charge({ ...coffee, metadata }, order)).toMatchObject({ status: 'succeeded', attempts: 3 })
    const { requests } = receiver.ledger
    expect(requests).toHaveLength(3)
    expectOneName(receiver)
    const digests = requests.map((request) => createHash('sha256').update(request.body).digest('hex'))
    expect(new Set(digests).size).toBe(1)
    const lengths = requests.map((request) => Number(request.headers['content-length']))
    expect(lengths).toEqual(requests.map((request) => Buffer.byteLength(request.body)))
    expect(lengths[0]).toBeGreaterThan(100_000)
  })
})
