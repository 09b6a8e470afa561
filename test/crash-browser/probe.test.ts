/** What pages of another origin find out about a receiver, in real browsers with real preflights. */
import { createServer } from 'node:http'
import type { RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createReceiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { CorsOptions } from 'billonce/testing/server'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page } from '../support/real-browser.ts'

async function probe(page: Page, baseUrl: string) {
  const { probeReceiver } = await page.billonce()
  return await probeReceiver({ baseUrl, timeoutMs: 5_000 })
}

async function chargeOnce(page: Page, baseUrl: string) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
    retry: { maxAttempts: 3, baseDelayMs: 1 },
  })
  const outcome = await billing.charge({ amount: 450, currency: 'eur' }, { operationId: 'order-1' })
  await billing.close()
  return { status: outcome.status, hint: 'hint' in outcome ? outcome.hint : undefined }
}

const key = { 'Idempotency-Key': 'no', 'Content-Type': 'yes', Authorization: 'yes' }

describe.each(engines)('%s', (engine) => {
  test('a page sees what a receiver of another origin allows; nothing takes effect', { timeout: 180_000 }, async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    const asked = async (cors: CorsOptions | boolean) => {
      await using server = await startServer(receiver, { cors })
      return await browser.run(probe, server.url)
    }
    expect(await asked(true)).toMatchObject({
      ok: true,
      crossOrigin: true,
      headersExposed: { Date: 'yes' },
      advice: [],
    })
    expect(await asked({ allowHeaders: ['content-type', 'authorization'] })).toMatchObject({
      ok: false,
      originAllowed: 'yes',
      headersAllowed: key,
      advice: [expect.stringContaining('Access-Control-Allow-Headers: Idempotency-Key')],
    })
    expect(await asked({ exposeHeaders: [] })).toMatchObject({ ok: false, headersExposed: { Date: 'no' } })
    expect(await asked(false)).toMatchObject({ ok: false, reachable: true, originAllowed: 'no' })
    expect(await asked({ origin: 'https://other.example' })).toMatchObject({ ok: false, originAllowed: 'no' })
    expect(await browser.run(probe, 'http://127.0.0.1:1')).toMatchObject({
      ok: false,
      reachable: false,
      advice: [expect.stringContaining('connect-src')],
    })
    expect(await browser.run(probe, browser.origin)).toMatchObject({ ok: true, crossOrigin: false })
    expect(receiver.ledger.effects).toEqual([])
  })

  test('a page is told when it is the preflight itself that is missing or redirected', async () => {
    await using browser = await openRealBrowser(engine)
    const asked = async (listener: RequestListener) => {
      const server = createServer((request, response) => {
        response.setHeader('access-control-allow-origin', '*')
        response.setHeader('access-control-expose-headers', 'date, retry-after, idempotent-replayed')
        listener(request, response)
      })
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      try {
        return await browser.run(probe, `http://127.0.0.1:${(server.address() as AddressInfo).port}`)
      } finally {
        server.closeAllConnections()
        server.close()
      }
    }
    // A login that is asked of preflights too, which carry none.
    const none = await asked((request, response) => response.writeHead(request.method === 'OPTIONS' ? 401 : 404).end())
    expect(none).toMatchObject({ ok: false, originAllowed: 'yes', advice: [expect.stringContaining('OPTIONS')] })
    const elsewhere = await asked((_, response) => response.writeHead(308, { location: '/elsewhere' }).end())
    expect(elsewhere).toMatchObject({ ok: false, reachable: true, advice: [expect.stringContaining('redirect')] })
  })

  test('G21: a charge whose key header the preflight refuses is not done, stays open, and says where to look', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    await using server = await startServer(receiver, { cors: { allowHeaders: ['content-type', 'authorization'] } })
    const outcome = await browser.run(chargeOnce, server.url)
    expect(outcome.status).toBe('unknown')
    expect(outcome.hint).toContain('idempotency-key')
    expect(outcome.hint).toContain('probeReceiver')
    // The browser never let the key header off, and nobody dropped it to make it work.
    expect(receiver.ledger.requests).toEqual([])
    expect(receiver.ledger.effects).toEqual([])
  })
})
