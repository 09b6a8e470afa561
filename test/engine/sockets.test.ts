/** Real sockets that close, reset, cut and stall: nothing here may be taken for a success or for a no. */
import { createServer } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { createReceiver, cutBody, loseReply, loseRequest, resetAfter, resetBefore, stall } from 'billonce/testing'
import type { Fault } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { ServerOptions } from 'billonce/testing/server'
import { expect, test } from 'vitest'
import { coffee, setUp, viewsOf } from '../support/world.ts'
import { expectOneName } from './tampering.ts'

const order = { operationId: 'order-1' }
const realFetch: typeof fetch = (input, init) => fetch(input, init)

async function over(faults: readonly Fault[], options: ServerOptions = {}, retry: object = {}) {
  const receiver = createReceiver({ faults })
  const server = await startServer(receiver, options)
  const { billing, journal } = setUp({
    client: { baseUrl: server.url, fetch: realFetch, retry: { baseDelayMs: 5, ...retry } },
  })
  return { receiver, billing, journal, [Symbol.asyncDispose]: () => server.close() }
}

test.each(['close', 'drop'] as const)(
  'G27: operations go one after the other over connections that the server ends (%s)',
  async (connections) => {
    await using world = await over([], { connections })
    for (let number = 1; number <= 20; number += 1) {
      const outcome = await world.billing.charge(coffee, { operationId: `order-${number}` })
      expect(outcome.status).toBe('succeeded')
    }
    expect(world.receiver.ledger.effects).toHaveLength(20)
    expect(world.receiver.ledger.duplicates()).toEqual([])
    expect(world.receiver.ledger.summary().keysWithOtherBytes).toBe(0)
  },
)

test.each([
  ['reset after the effect', resetAfter({ attempt: 1 })],
  ['closed after the effect', loseReply({ attempt: 1 })],
  ['reset before it was looked at', resetBefore({ attempt: 1 })],
  ['closed before it was looked at', loseRequest({ attempt: 1 })],
])('G27: a connection that is %s is a lost reply, and one effect', async (_what, fault) => {
  await using world = await over([fault])
  for (const operationId of ['order-1', 'order-2']) {
    const outcome = await world.billing.charge(coffee, { operationId })
    expect(outcome).toMatchObject({ status: 'succeeded', attempts: 2 })
  }
  expect(world.receiver.ledger.effects).toHaveLength(2)
  const views = await viewsOf(world.billing)
  expect(views.map((view) => view.attempts[0])).toMatchObject([
    { result: 'unclear', why: 'network' },
    { result: 'unclear', why: 'network' },
  ])
  expect(world.receiver.ledger.summary().keysWithOtherBytes).toBe(0)
})

test.each([
  ['by its length', cutBody({ attempt: 1 })],
  ['before its first byte', cutBody({ attempt: 1, keepBytes: 0 })],
  ['in its last chunk, with the JSON whole', cutBody({ attempt: 1, framing: 'chunked' })],
  ['in the middle of a chunked body', cutBody({ attempt: 1, framing: 'chunked', keepBytes: 12 })],
])('G28: a reply cut %s is no success', async (_what, fault) => {
  await using world = await over([fault])
  expect(await world.billing.charge(coffee, order)).toMatchObject({
    status: 'succeeded',
    attempts: 2,
    markedReplay: true,
  })
  const [view] = await viewsOf(world.billing)
  expect(view?.attempts[0]).toMatchObject({ result: 'unclear' })
  expect(world.receiver.ledger.effects).toHaveLength(1)
  expectOneName(world.receiver)
})

test('G28: a cut reply where one attempt is allowed is unknown, never a receipt', async () => {
  await using world = await over([cutBody({ framing: 'chunked' })], {}, { maxAttempts: 1 })
  expect(await world.billing.charge(coffee, order)).toMatchObject({ status: 'unknown', delivery: 'continues' })
})

test('G28: 200, a content length of 100, ten bytes of JSON and then nothing', async () => {
  const sockets = new Set<Socket>()
  let requests = 0
  const server = createServer((request, response) => {
    requests += 1
    request.resume()
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': '100' })
    response.write('{"id":"a"}', () => response.socket?.destroy())
  })
  server.on('connection', (socket) => sockets.add(socket))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const { billing } = setUp({
    client: { baseUrl: `http://127.0.0.1:${port}`, fetch: realFetch, retry: { maxAttempts: 2, baseDelayMs: 1 } },
  })
  expect(await billing.charge(coffee, order)).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 2 })
  expect(requests).toBe(2)
  for (const socket of sockets) socket.destroy()
  await new Promise((resolve) => server.close(resolve))
})

test.each([
  ['with no byte', stall({ attempt: 1 })],
  ['after its headers', stall({ attempt: 1, after: 'headers' })],
  ['with no byte and without the effect', stall({ attempt: 1, afterEffect: false })],
])('G29: a reply that stalls %s ends with the attempt’s timeout', async (_what, fault) => {
  // Long enough for the second attempt on a machine that is busy.
  await using world = await over([fault], {}, { attemptTimeoutMs: 1000 })
  const began = performance.now()
  expect(await world.billing.charge(coffee, order)).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(performance.now() - began).toBeGreaterThanOrEqual(995)
  expect(performance.now() - began).toBeLessThan(10_000)
  const [view] = await viewsOf(world.billing)
  expect(view?.attempts[0]).toMatchObject({ result: 'unclear', why: 'timeout' })
  expect(world.receiver.ledger.effects).toHaveLength(1)
  expectOneName(world.receiver)
})

test('a server that is not there leaves the entry open, and it goes when the server is', async () => {
  const receiver = createReceiver()
  const first = await startServer(receiver)
  const { port, url } = first
  await first.close()
  const { billing } = setUp({ client: { baseUrl: url, fetch: realFetch, retry: { maxAttempts: 2, baseDelayMs: 1 } } })
  expect(await billing.charge(coffee, order)).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 2 })
  await using _again = await startServer(receiver, { port })
  expect(await billing.resume()).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
})
