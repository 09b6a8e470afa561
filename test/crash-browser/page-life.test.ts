/**
 * The life of a page in real browsers: kept for the way back and revived, gone in the middle of a charge, hidden with its timers
 * held back, frozen. Whatever happens, there is one effect, and the page that comes back gets the receipt.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import type { Engine } from '../support/browsers.ts'
import { connectDevTools, devToolsArgs } from '../support/devtools.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'

/** What the tests leave in the page, to find it again when the page comes back as it was. */
interface Shop {
  billing?: import('billonce').BillingClient
  asked?: Promise<import('billonce').Outcome> | undefined
  token?: string | undefined
}

const eventually = { timeout: 30_000, interval: 100 }
const server = async (engine: Engine): Promise<{ browser: RealBrowser; receiver: Receiver }> => {
  const browser = await openRealBrowser(engine, engine === 'chromium' ? devToolsArgs : [])
  const receiver = createReceiver()
  browser.handle('/v1/', (request) => receiver.fetch(request))
  return { browser, receiver }
}

/** Runs in the page: a client that delivers in the background, and one charge that is done. */
async function open(page: Page, operationId: string | null) {
  const { createBillingClient } = await page.billonce()
  const shop = globalThis as Shop
  shop.token = 't'
  shop.billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    credentials: ({ scope }) => {
      if (shop.token === undefined) throw new Error('nobody is signed in')
      return { scope, headers: { authorization: `Bearer ${shop.token}` } }
    },
  })
  shop.billing.start()
  if (operationId === null) return undefined
  return (await shop.billing.charge({ amount: 5000, currency: 'usd' }, { operationId })).status
}

/** Runs in the page: usage for the background, with this much beside it. */
async function record(_page: Page, { operationId, bytes }: { operationId: string; bytes: number }) {
  const params = { meter: 'km', quantity: 3, metadata: { note: 'x'.repeat(bytes) } }
  return (await (globalThis as Shop).billing?.recordUsage(params, { operationId, background: true }))?.status
}

/** Runs in the page: begins a charge and does not wait for it. */
function begin(_page: Page, operationId: string) {
  const shop = globalThis as Shop
  shop.asked = shop.billing?.charge({ amount: 5000, currency: 'usd' }, { operationId })
}

/** Runs in the page: the page as it was still waits for its charge; a new one names the same order again. */
async function outcomeOf(page: Page, operationId: string) {
  const shop = globalThis as Shop
  const isRevived = shop.asked !== undefined
  const { createBillingClient } = await page.billonce()
  shop.billing ??= createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const first = await shop.asked
  const { status, key } =
    first?.status === 'succeeded'
      ? first
      : await shop.billing.charge({ amount: 5000, currency: 'usd' }, { operationId })
  return { status, key, isRevived }
}

/** Runs in the page: as if a customer signed out. */
const signOut = (_page: Page): void => void ((globalThis as Shop).token = undefined)

const signInWhenShown = (_page: Page): void =>
  addEventListener('pageshow', () => void ((globalThis as Shop).token = 't'), { once: true })

/** Runs in the page: why an open entry is where it is. */
async function reasonOf(_page: Page, operationId: string) {
  const outcome = await (globalThis as Shop).billing?.find({ kind: 'usage', operationId })
  return outcome?.status === 'deferred' ? outcome.reason : undefined
}

/** Runs in the page: sends a write of this size, in a page that is not kept for the way back. */
async function sendAndForget(page: Page, bytes: number) {
  addEventListener('unload', () => {})
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({ baseUrl: location.origin, scope: 'org_42/test', headers: {} })
  const params = { meter: 'km', quantity: 3, metadata: { note: 'x'.repeat(bytes) } }
  void billing.recordUsage(params, { operationId: `trip-of-${bytes}` })
}

/** Runs in the page: one frame whose timers run once a minute charges, and meanwhile another looks for work. */
async function chargeInHiddenFrame(_page: Page) {
  const frameWith = async (code: string): Promise<unknown> => {
    const frame = document.createElement('iframe')
    frame.srcdoc = '<!doctype html><title>tab</title>'
    const loaded = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }))
    document.body.append(frame)
    await loaded
    return await (frame.contentWindow as unknown as { eval: (code: string) => Promise<unknown> }).eval(`(async () => {
      const client = async () => {
        const { createBillingClient } = await import('${location.origin}/billonce.js')
        return createBillingClient({ baseUrl: '${location.origin}', scope: 'org_42/test', headers: { authorization: 'Bearer t' } })
      }
      ${code}
    })()`)
  }
  const hidden = frameWith(`
    const set = globalThis.setTimeout
    globalThis.setTimeout = (callback, ms, ...rest) => set(callback, Math.max(60_000, ms ?? 0), ...rest)
    const billing = await client()
    return (await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' })).status
  `)
  const other = await frameWith(`
    const billing = await client()
    for (;;) {
      const { total, succeeded, waiting } = await billing.resume({ deadlineMs: 1500 })
      if (total > 0) return { total, succeeded, waiting }
    }
  `)
  return { hidden: await hidden, other }
}

const leaveFor = (page: Page, target: string): void => page.leaveFor(target === 'back' ? -1 : target)
const revivalsOf = (page: Page): number => page.revivals
const locksOf = async (_page: Page): Promise<number> => (await navigator.locks.query()).held?.length ?? 0

function expectOneEffect(receiver: Receiver): void {
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
}

describe.each(engines)('%s', (engine) => {
  test('a page with a client is kept for the way back, and goes on delivering when it is shown again', async () => {
    const { browser, receiver } = await server(engine)
    await using _ = browser
    expect(await browser.run(open, 'order-1')).toBe('succeeded')
    await browser.run(signOut)
    await browser.run(record, { operationId: 'trip-1', bytes: 1 })
    // Its background delivery has found nobody signed in, and looks again in half a minute.
    await expect.poll(() => browser.run(reasonOf, 'trip-1'), eventually).toBe('no-credentials')
    // No lock is held while nothing is being sent: Firefox would not keep the page.
    await expect.poll(() => browser.run(locksOf), eventually).toBe(0)
    // Only then, or a look at that moment takes the lock, and Firefox does not keep the page.
    await browser.run(signInWhenShown)
    await browser.run(leaveFor, browser.pageAt(browser.otherOrigin))
    await browser.run(leaveFor, 'back')
    expect(await browser.run(revivalsOf)).toBe(1)
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 15_000 }).toBe(2)
  })

  test.each(['by a fresh navigation', 'by history.back()'])(
    'G62: away to the bank in the middle of a charge and back %s, there is one effect, and the page gets the receipt',
    async (way) => {
      const { browser, receiver } = await server(engine)
      await using _ = browser
      const answered: boolean[] = []
      browser.handle('/v1/', async (request) => {
        const reply = await receiver.fetch(request)
        if (answered.length === 0) {
          answered.push(true)
          await sleep(1500)
        }
        return reply
      })
      await browser.run(open, null)
      await browser.run(begin, 'order-1')
      await expect.poll(() => receiver.ledger.effects.length, eventually).toBe(1)
      await browser.run(leaveFor, browser.pageAt(browser.otherOrigin))
      expect(await browser.run(() => location.hostname)).toBe('localhost')
      await browser.run(leaveFor, way === 'by history.back()' ? 'back' : browser.pageAt(browser.origin))
      const outcome = await browser.run(outcomeOf, 'order-1')
      expect(outcome.status).toBe('succeeded')
      // Firefox keeps no page that holds a lock, and one with an attempt under way does.
      expect(outcome.isRevived).toBe(way === 'by history.back()' && engine !== 'firefox')
      expectOneEffect(receiver)
    },
  )

  test('a write whose page is left as it leaves goes on without the page, if it is small (keepalive)', async () => {
    const { browser, receiver } = await server(engine)
    await using _ = browser
    const awaited = new Map<string, boolean>()
    browser.handle('/v1/', async (request, exchange) => {
      const { metadata } = (await request.clone().json()) as { metadata: { note: string } }
      await sleep(2000)
      // A receiver that begins only now, and not for somebody who has hung up.
      const isAwaited = exchange.isAwaited()
      awaited.set(metadata.note.length > 1000 ? 'large' : 'small', isAwaited)
      return isAwaited ? await receiver.fetch(request) : undefined
    })
    for (const [size, bytes] of [
      ['large', 40_000],
      ['small', 10],
    ] as const) {
      const before = browser.requests.length
      await browser.run(sendAndForget, bytes)
      await expect.poll(() => browser.requests.length, eventually).toBe(before + 1)
      await browser.run(leaveFor, browser.pageAt(browser.otherOrigin))
      await expect.poll(() => awaited.has(size), eventually).toBe(true)
      await browser.run(leaveFor, browser.pageAt(browser.origin))
    }
    expect(Object.fromEntries(awaited)).toEqual({ large: false, small: true })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('room for such requests that another script has used up costs one attempt at most', async () => {
    const { browser, receiver } = await server(engine)
    await using _ = browser
    browser.handle('/beacon', () => undefined)
    await browser.run(() => {
      void fetch('/beacon', { method: 'POST', body: 'x'.repeat(60_000), keepalive: true }).catch(() => {})
    })
    await expect.poll(() => browser.requests.length, eventually).toBe(1)
    await browser.run(open, null)
    const outcome = await browser.run(async () => {
      const params = { meter: 'km', quantity: 3, metadata: { note: 'x'.repeat(20_000) } }
      const usage = await (globalThis as Shop).billing?.recordUsage(params, { operationId: 'trip-1' })
      return { status: usage?.status, attempts: usage?.attempts }
    })
    expect(outcome).toEqual({ status: 'succeeded', attempts: 2 })
    expectOneEffect(receiver)
  })

  test('G25: a hidden tab, its timers held back to one a minute, keeps its entry over a slow request without a heartbeat', async () => {
    const { browser, receiver } = await server(engine)
    await using _ = browser
    browser.handle('/v1/', async (request) => {
      await sleep(4000)
      return await receiver.fetch(request)
    })
    expect(await browser.run(chargeInHiddenFrame)).toEqual({
      hidden: 'succeeded',
      other: { total: 1, succeeded: 0, waiting: 1 },
    })
    expect(receiver.ledger.requests).toHaveLength(1)
    expectOneEffect(receiver)
  })
})

// Only its DevTools can freeze a page; the other engines have no such state to ask for.
describe('chromium', () => {
  test('a tab frozen in the middle of a charge holds up nobody, and wakes to what another tab has finished', async () => {
    const { browser, receiver } = await server('chromium')
    await using _ = browser
    let isFirst = true
    browser.handle('/v1/', async (request) => {
      const reply = await receiver.fetch(request)
      // The first reply never comes: the frozen tab has nothing to wake up with.
      if (isFirst) {
        isFirst = false
        return undefined
      }
      return reply
    })
    await browser.run(open, null)
    await browser.run(begin, 'order-1')
    await expect.poll(() => receiver.ledger.effects.length, eventually).toBe(1)
    using tools = await connectDevTools(browser.profile)
    const { sessionId } = await tools.attach(browser.origin)
    await tools.send('Page.enable', {}, sessionId)
    const opened = browser.pagesOpened
    const { targetId } = await tools.send<{ targetId: string }>('Target.createTarget', {
      url: browser.pageAt(browser.origin),
      background: false,
    })
    // The new tab has to be there first, or what follows would be asked of the one that is frozen, and never answered.
    await expect.poll(() => browser.pagesOpened, eventually).toBe(opened + 1)
    await tools.send('Page.setWebLifecycleState', { state: 'frozen' }, sessionId)
    await expect.poll(() => browser.run(locksOf), eventually).toBe(0)

    const beganAtMs = performance.now()
    expect(await browser.run(outcomeOf, 'order-1')).toMatchObject({ status: 'succeeded', isRevived: false })
    // Not after the lease of two minutes.
    expect(performance.now() - beganAtMs).toBeLessThan(20_000)
    await tools.send('Target.closeTarget', { targetId })
    await tools.send('Page.setWebLifecycleState', { state: 'active' }, sessionId)
    const { result } = await tools.send<{ result: { value: string } }>(
      'Runtime.evaluate',
      { expression: 'asked.then(({ status }) => status)', awaitPromise: true, returnByValue: true },
      sessionId,
    )
    expect(result.value).toBe('succeeded')
    expect(receiver.ledger.requests).toHaveLength(2)
    expectOneEffect(receiver)
  })
})
