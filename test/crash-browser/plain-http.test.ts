/**
 * A page without https, such as on a till in a shop's own network: the browser gives it no Web Locks, no `randomUUID` and no
 * digests. Real here, since the page comes from an address that is not the loopback's.
 */
import { networkInterfaces } from 'node:os'
import { createReceiver, delay, stall } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page } from '../support/real-browser.ts'
import { openTab } from '../support/tab.ts'

const address = Object.values(networkInterfaces())
  .flatMap((addresses) => addresses ?? [])
  .find(({ family, internal }) => family === 'IPv4' && !internal)?.address

/** Runs in a page or tab. */
async function charge(page: Page, { operationId, deadlineMs }: { operationId: string; deadlineMs?: number }) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({ baseUrl: location.origin, scope: 'org_42/test', headers: {} })
  const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId, deadlineMs })
  const { status, source, attempts, durable } = outcome
  return { status, source, attempts, durable }
}

// A machine without a network has no such address.
describe.skipIf(address === undefined).each(engines)('G69: %s', (engine) => {
  test('it has none of these, and charges once, from two tabs too', async () => {
    await using browser = await openRealBrowser(engine, [], address)
    const receiver = createReceiver({ faults: [delay(1000, { attempt: 1 })] })
    browser.handle('/v1/', (request) => receiver.fetch(request))
    expect(
      await browser.run(() => ({
        isSecureContext,
        has: ['locks' in navigator, 'randomUUID' in crypto, 'subtle' in crypto],
      })),
    ).toEqual({ isSecureContext: false, has: [false, false, false] })
    const [one, two] = [await openTab(browser), await openTab(browser)]
    await one.begin(charge, { operationId: 'order-1' })
    await two.begin(charge, { operationId: 'order-1' })
    const told = [
      await one.end<{ status: string; source: string }>(),
      await two.end<{ status: string; source: string }>(),
    ]
    expect(told.map(({ status }) => status)).toEqual(['succeeded', 'succeeded'])
    expect(told.map(({ source }) => source).toSorted()).toEqual(['journal', 'receiver'])
    expect(receiver.ledger.requests).toHaveLength(1)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('killed in mid-charge, it asks again when its lease is over, and not before', async () => {
    await using browser = await openRealBrowser(engine, [], address)
    const receiver = createReceiver({ faults: [stall({ attempt: 1 })] })
    browser.handle('/v1/', (request) => receiver.fetch(request))
    void browser.run(charge, { operationId: 'order-1' }).catch(() => {})
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await browser.relaunch()
    // Nobody can tell that the page of before is gone; its lease can only run out.
    expect(await browser.run(charge, { operationId: 'order-1', deadlineMs: 2000 })).toMatchObject({ status: 'unknown' })
    expect(receiver.ledger.requests).toHaveLength(1)
    await browser.run(() => {
      const real = Date.now
      Date.now = () => real() + 180_000
    })
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
  })
})
