/**
 * The client in real browsers that are killed while a charge is on the wire: what was begun is delivered after the restart,
 * with the same key and the same bytes, and takes effect once.
 */
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { BrowserGoneError, openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'

/** Runs in the page: a charge as a checkout would make it. */
async function charge(page: Page, operationId: string) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const outcome = await billing.charge(
    { amount: 5000, currency: 'usd', metadata: { operation: operationId } },
    { operationId },
  )
  await billing.close()
  return {
    status: outcome.status,
    source: outcome.source,
    attempts: outcome.attempts,
    durable: outcome.durable,
    key: outcome.key,
  }
}

/** Runs in the page: what an application does when it starts. */
async function resume(page: Page) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const summary = await billing.resume()
  await billing.close()
  return summary
}

function expectOneEffect(receiver: Receiver, browser: RealBrowser): void {
  expect(receiver.ledger.effects).toHaveLength(1)
  const charges = browser.requests.filter((request) => request.path === '/v1/charges')
  expect(new Set(charges.map((request) => request.headers['idempotency-key'])).size).toBe(1)
  expect(new Set(charges.map((request) => request.body)).size).toBe(1)
}

describe.each(engines)('%s', (engine) => {
  test('G06: killed before the receiver saw the charge, it is delivered once after the restart', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    browser.handle('/v1/', async () => {
      await browser.kill()
    })
    await expect(browser.run(charge, 'order-1')).rejects.toThrow(BrowserGoneError)
    expect(receiver.ledger.effects).toHaveLength(0)

    browser.handle('/v1/', (request) => receiver.fetch(request))
    await browser.launch()
    expect(await browser.run(resume)).toMatchObject({ total: 1, succeeded: 1, waiting: 0 })
    expectOneEffect(receiver, browser)
    // The page that asks again gets the receipt from its journal, without a request.
    const before = browser.requests.length
    expect(await browser.run(charge, 'order-1')).toMatchObject({
      status: 'succeeded',
      source: 'journal',
      attempts: 2,
      durable: true,
    })
    expect(browser.requests).toHaveLength(before)
  })

  test('G06: killed after the effect and before the reply, the page that asks again gets the receipt and no second effect', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    browser.handle('/v1/', async (request) => {
      await receiver.fetch(request)
      await browser.kill()
    })
    await expect(browser.run(charge, 'order-1')).rejects.toThrow(BrowserGoneError)
    expect(receiver.ledger.effects).toHaveLength(1)

    browser.handle('/v1/', (request) => receiver.fetch(request))
    await browser.launch()
    expect(await browser.run(charge, 'order-1')).toMatchObject({ status: 'succeeded', source: 'receiver', attempts: 2 })
    expectOneEffect(receiver, browser)
  })

  test('G44: with the storage wiped, the same operation has the same key and no second effect', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    browser.handle('/v1/', (request) => receiver.fetch(request))
    const first = await browser.run(charge, 'order-1')
    await browser.run(async () => {
      for (const { name } of await indexedDB.databases()) {
        await new Promise((resolve) => {
          if (name === undefined) return resolve(undefined)
          const deleting = indexedDB.deleteDatabase(name)
          deleting.onsuccess = resolve
          deleting.onerror = resolve
        })
      }
    })
    const again = await browser.run(charge, 'order-1')
    expect(again).toMatchObject({ status: 'succeeded', source: 'receiver', attempts: 1, key: first.key })
    expectOneEffect(receiver, browser)
  })

  test('G28: resets and cut bodies are lost replies, whatever the engine makes of them', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    let count = 0
    browser.handle('/v1/', async (request, exchange) => {
      count += 1
      const reply = await receiver.fetch(request)
      if (count === 1) return exchange.reset()
      if (count === 2) return new Response(null, { status: 303, headers: { location: '/elsewhere' } })
      if (count === 3) return new Response('{"id":"ch_', { headers: { 'content-type': 'application/json' } })
      return reply
    })
    const outcome = await browser.run(charge, 'order-1')
    expect(outcome.status).toBe('succeeded')
    // Chromium and Firefox send again by themselves when a kept connection is reset: a retry that no library sees, and one
    // more reason why key and body must be the same whoever sends.
    expect([3, 4]).toContain(outcome.attempts)
    expect(browser.requests.filter((request) => request.path === '/v1/charges')).toHaveLength(4)
    expect(browser.requests.some((request) => request.path === '/elsewhere')).toBe(false)
    expectOneEffect(receiver, browser)
  })
})
