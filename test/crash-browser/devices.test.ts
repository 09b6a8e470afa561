/**
 * One wallet and several places that pay from it, in real browsers: a tab before and after a reload, tabs of one profile, two
 * profiles. Whoever asks, the order takes effect once, and everybody who waits gets the receipt.
 */
import { createReceiver, delay, loseReply, stall } from 'billonce/testing'
import type { Receiver, ReceiverOptions } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { BrowserGoneError, openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'
import { openTab } from '../support/tab.ts'

interface Order {
  operationId: string
  withLocks?: boolean
  deadlineMs?: number
}

/** Runs in a page or tab: a charge as a checkout would make it. */
async function charge(page: Page, { operationId, withLocks = true, deadlineMs }: Order) {
  if (!withLocks) Object.defineProperty(navigator, 'locks', { value: undefined, configurable: true })
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId, deadlineMs })
  await billing.close()
  const { status, source, attempts, key } = outcome
  return {
    status,
    source,
    attempts,
    key,
    receipt: outcome.status === 'succeeded' ? outcome.receipt.id : undefined,
    reason: outcome.status === 'unknown' ? outcome.reason : undefined,
    delivery: outcome.status === 'unknown' ? outcome.delivery : undefined,
  }
}

/** Runs in a page or tab: delivers in the background until nothing is open, as an application does while it runs. */
async function start(page: Page) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const stop = billing.start()
  for (;;) {
    const states: string[] = []
    for await (const { state } of billing.entries()) states.push(state)
    if (states.length > 0 && states.every((state) => state !== 'pending' && state !== 'sending')) {
      stop()
      await billing.close()
      return states
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

async function openShop(
  engine: (typeof engines)[number],
  options: ReceiverOptions | Receiver = {},
): Promise<{ browser: RealBrowser; receiver: Receiver }> {
  const browser = await openRealBrowser(engine)
  const receiver = 'ledger' in options ? options : createReceiver(options)
  browser.handle('/v1/', (request) => receiver.fetch(request))
  return { browser, receiver }
}

function expectOneEffect(receiver: Receiver, requests: number): void {
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(receiver.ledger.requests).toHaveLength(requests)
  expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
}

describe.each(engines)('%s', (engine) => {
  test('G06: reloaded while the charge is on the wire, the page asks again and gets the receipt', async () => {
    const { browser, receiver } = await openShop(engine, { faults: [stall({ attempt: 1 })] })
    await using _closing = browser
    const tab = await openTab(browser)
    await tab.begin(charge, { operationId: 'order-1' })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await tab.reload()
    expect(await tab.run(charge, { operationId: 'order-1' })).toMatchObject({
      status: 'succeeded',
      source: 'receiver',
      attempts: 2,
    })
    expectOneEffect(receiver, 2)
  })

  test('G06: reloaded while the charge is on the wire, start() delivers it', async () => {
    const { browser, receiver } = await openShop(engine, { faults: [stall({ attempt: 1 })] })
    await using _closing = browser
    const tab = await openTab(browser)
    await tab.begin(charge, { operationId: 'order-1' })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await tab.reload()
    expect(await tab.run(start)).toEqual(['succeeded'])
    expect(await tab.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', source: 'journal' })
    expectOneEffect(receiver, 2)
  })

  test.each([true, false])(
    'G46: what one tab is told reaches the caller who waits in another, with Web Locks: %s',
    async (withLocks) => {
      const { browser, receiver } = await openShop(engine, { faults: [delay(1500, { attempt: 1 })] })
      await using _closing = browser
      const [one, two] = [await openTab(browser), await openTab(browser)]
      const order = { operationId: 'order-1', withLocks }
      await one.begin(charge, order)
      await expect.poll(() => receiver.ledger.requests.length, { timeout: 20_000 }).toBe(1)
      const told = await two.run(charge, order)
      const first = await one.end<Awaited<ReturnType<typeof charge>>>()
      expect(first).toMatchObject({ status: 'succeeded', source: 'receiver', attempts: 1 })
      expect(told).toMatchObject({ status: 'succeeded', source: 'journal', attempts: 1, receipt: first.receipt })
      expectOneEffect(receiver, 1)
    },
  )

  test('G48: a tab that is closed in mid-charge leaves it to the one that waits', async () => {
    const { browser, receiver } = await openShop(engine, { faults: [stall({ attempt: 1 })] })
    await using _closing = browser
    const [one, two] = [await openTab(browser), await openTab(browser)]
    await one.begin(charge, { operationId: 'order-1' })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await two.begin(charge, { operationId: 'order-1' })
    // While the first one lives, the second sends nothing.
    await new Promise((resolve) => setTimeout(resolve, 1000))
    expect(receiver.ledger.requests).toHaveLength(1)
    await one.close()
    expect(await two.end()).toMatchObject({ status: 'succeeded', source: 'receiver', attempts: 2 })
    expectOneEffect(receiver, 2)
  })

  test('G48: without Web Locks nobody can tell that a tab is gone, so whoever waits is told that it is unknown', async () => {
    const { browser, receiver } = await openShop(engine, { faults: [stall({ attempt: 1 })] })
    await using _closing = browser
    const [one, two] = [await openTab(browser), await openTab(browser)]
    await one.begin(charge, { operationId: 'order-1', withLocks: false })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await two.begin(charge, { operationId: 'order-1', withLocks: false, deadlineMs: 3000 })
    await one.close()
    // The lease outlives this call; test/engine/two-clients.test.ts waits for its end in virtual time.
    expect(await two.end()).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'in-flight' })
    expectOneEffect(receiver, 1)
  })

  test('G44: a second device that names the order gets the receipt of the first', async () => {
    const { browser: phone, receiver } = await openShop(engine)
    await using _phone = phone
    const first = await phone.run(charge, { operationId: 'order-1' })
    const { browser: laptop } = await openShop(engine, receiver)
    await using _laptop = laptop
    expect(await laptop.run(charge, { operationId: 'order-1' })).toMatchObject({
      status: 'succeeded',
      source: 'receiver',
      attempts: 1,
      key: first.key,
      receipt: first.receipt,
    })
    expectOneEffect(receiver, 2)
  })

  test('G44: a device that died in mid-charge and never came back: the next one finds it paid', async () => {
    const { browser: phone, receiver } = await openShop(engine)
    await using _phone = phone
    phone.handle('/v1/', async (request) => {
      await receiver.fetch(request)
      await phone.kill()
    })
    await expect(phone.run(charge, { operationId: 'order-1' })).rejects.toThrow(BrowserGoneError)
    const { browser: laptop } = await openShop(engine, receiver)
    await using _laptop = laptop
    expect(await laptop.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', attempts: 1 })
    expectOneEffect(receiver, 2)
  })

  test('G44: two devices that pay the order at the same time pay it once, and both are told', async () => {
    // The first to come is still at work when the second comes, and its reply is lost.
    const receiver = createReceiver({ latencyMs: 700, faults: [loseReply({ attempt: 1 })] })
    const { browser: phone } = await openShop(engine, receiver)
    await using _phone = phone
    const { browser: laptop } = await openShop(engine, receiver)
    await using _laptop = laptop
    const [one, two] = await Promise.all([
      phone.run(charge, { operationId: 'order-1' }),
      laptop.run(charge, { operationId: 'order-1' }),
    ])
    expect([one.status, two.status]).toEqual(['succeeded', 'succeeded'])
    expect(two).toMatchObject({ key: one.key, receipt: one.receipt })
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(receiver.ledger.requests.length).toBeGreaterThanOrEqual(3)
    expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
  })
})
