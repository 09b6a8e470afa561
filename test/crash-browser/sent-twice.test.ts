/**
 * One fetch, two requests: a browser whose connection breaks before the reply sends a request again by itself, a POST too, and
 * tells nobody. So what the second meets says nothing about the first. Seen here in Chromium and Firefox.
 */
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterEach, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page } from '../support/real-browser.ts'

const CORS = {
  'access-control-allow-origin': '*',
  'access-control-allow-headers': 'content-type, idempotency-key',
  'access-control-expose-headers': 'Idempotent-Replayed',
}

let server: Server | undefined
afterEach(() => {
  server?.closeAllConnections()
  server?.close()
})

/** Makes the charge at the first request and breaks the connection; turns the second away; replays from then on. */
async function startReceiver(): Promise<{ url: string; seen: string[] }> {
  const seen: string[] = []
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    if (request.method === 'OPTIONS') return void response.writeHead(204, CORS).end()
    if (request.method === 'GET') return void response.writeHead(200, CORS).end('warm')
    seen.push(`${String(request.headers['idempotency-key'])} ${Buffer.concat(parts).toString()}`)
    if (seen.length === 1) return void request.socket.resetAndDestroy()
    const json = { ...CORS, 'content-type': 'application/json' }
    if (seen.length === 2) return void response.writeHead(429, json).end('{"error":{"code":"rate_limited"}}')
    response.writeHead(200, { ...json, 'idempotent-replayed': 'true' }).end('{"id":"ch_1","amount":5000}')
  }
  server = createServer((request, response) => void answer(request, response))
  await new Promise<void>((resolve) => server?.listen(0, '127.0.0.1', resolve))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen }
}

test.each(engines)('what a browser sent twice is never said to be not done: %s', async (engine) => {
  const { url, seen } = await startReceiver()
  await using browser = await openRealBrowser(engine)
  const pay = async (page: Page, baseUrl: string) => {
    const { createBillingClient } = await page.billonce()
    const billing = createBillingClient({ baseUrl, scope: 'org_1/live', retry: { maxAttempts: 1 } })
    const ref = { kind: 'charge', operationId: 'order-1' }
    // So that the charge goes over a connection that was used before.
    await (await fetch(baseUrl)).text()
    const first = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' })
    const canceled = await billing.cancel(ref).then(
      () => 'canceled',
      (error: unknown) => (error as { code: string }).code,
    )
    const second = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' })
    const third = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' })
    await billing.close()
    return { first: first.status, canceled, last: second.status === 'succeeded' ? second.status : third.status }
  }
  expect(await browser.run(pay, url)).toEqual({
    first: 'unknown',
    canceled: 'ERR_NOT_CANCELABLE',
    last: 'succeeded',
  })
  expect(new Set(seen).size).toBe(1)
  expect(seen).toHaveLength(3)
})
