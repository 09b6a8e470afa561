/**
 * `billonce/service-worker` in real browsers: what a page leaves open is delivered by the application's worker, once, whoever
 * else is at work, and also after a kill in the middle. Where there is no Background Sync the page is told so.
 */
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import type { Engine } from '../support/browsers.ts'
import { bundleForBrowser } from '../support/bundle.ts'
import { connectDevTools, devToolsArgs } from '../support/devtools.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'

const SCOPE = 'org_42/test'
let workerCode: Promise<string> | undefined

/** A page with a worker, and a server that knows who is signed in. */
async function openShop(
  engine: Engine,
): Promise<{ browser: RealBrowser; receiver: Receiver; signIn: (scope?: string) => void }> {
  workerCode ??= bundleForBrowser({ worker: 'test/crash-browser/programs/service-worker.ts' }, { format: 'iife' }).then(
    ({ files }) => files.get('worker.js') ?? '',
  )
  const code = await workerCode
  const browser = await openRealBrowser(engine, engine === 'chromium' ? devToolsArgs : [])
  const receiver = createReceiver()
  let scope: string | undefined = SCOPE
  browser.handle('/worker.js', () => new Response(code, { headers: { 'content-type': 'text/javascript' } }))
  browser.handle('/session', () =>
    scope === undefined ? new Response(null, { status: 401 }) : Response.json({ scope, token: 't' }),
  )
  browser.handle('/v1/', (request) => receiver.fetch(request))
  return {
    browser,
    receiver,
    signIn: (as) => {
      scope = as
    },
  }
}

/** Runs in the page: usage that is recorded while there is no network, and the worker that shall deliver it. */
async function recordOffline(page: Page, operationId: string) {
  await navigator.serviceWorker.register('/worker.js')
  const registration = await navigator.serviceWorker.ready
  Object.defineProperty(navigator, 'onLine', { configurable: true, get: () => false })
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  const { status } = await billing.recordUsage({ meter: 'km', quantity: 3 }, { operationId, background: true })
  await billing.close()
  return { status, hasActive: registration.active !== null }
}

/** Runs in the page: what it does before it goes away. */
async function askWorker(page: Page) {
  const { resumeInWorker } = await page.serviceWorker()
  return resumeInWorker(await navigator.serviceWorker.ready)
}

/** Runs in the page: how the journal stands. */
async function statesOf(page: Page) {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({ baseUrl: location.origin, scope: 'org_42/test' })
  const states: string[] = []
  for await (const { state } of billing.entries()) states.push(state)
  await billing.close()
  return states
}

function expectOneEffect(receiver: Receiver): void {
  expect(receiver.ledger.effects).toHaveLength(1)
  const { requests } = receiver.ledger
  expect(new Set(requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
}

/** Runs in the page: the page delivers too, at the same moment as the worker it asks. */
async function resumeWithWorker(page: Page) {
  const { createBillingClient } = await page.billonce()
  const { resumeInWorker } = await page.serviceWorker()
  const registration = await navigator.serviceWorker.ready
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
  })
  Object.defineProperty(navigator, 'onLine', { configurable: true, get: () => true })
  resumeInWorker(registration)
  const { succeeded, failed, waiting } = await billing.resume()
  await billing.close()
  return { succeeded, failed, waiting }
}

/** Runs in the page: whether the browser will fire the event. */
async function askForSync(page: Page, tag: string) {
  const { requestSync } = await page.serviceWorker()
  return await requestSync(await navigator.serviceWorker.ready, { tag })
}

const settledUsage = { timeout: 30_000, interval: 100 }

describe.each(engines)('%s', (engine) => {
  test('the worker delivers what the page asks it to, signed in as the page is', async () => {
    const { browser, receiver } = await openShop(engine)
    await using _ = browser
    expect(await browser.run(recordOffline, 'trip-1')).toEqual({ status: 'queued', hasActive: true })
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await browser.run(askWorker)).toBe(true)
    await expect.poll(() => receiver.ledger.effects.length, settledUsage).toBe(1)
    await expect.poll(() => browser.run(statesOf), settledUsage).toEqual(['succeeded'])
    expectOneEffect(receiver)
  })

  test('G49: nobody or somebody else signed in, the worker sends nothing, and the entry waits for its owner', async () => {
    const { browser, receiver, signIn } = await openShop(engine)
    await using _ = browser
    await browser.run(recordOffline, 'trip-1')
    for (const scope of [undefined, 'org_77/test']) {
      signIn(scope)
      const before = browser.requests.length
      await browser.run(askWorker)
      await expect.poll(() => browser.requests.length, settledUsage).toBe(before + 1)
      expect(browser.requests.at(-1)?.path).toBe('/session')
    }
    await expect.poll(() => browser.run(statesOf), settledUsage).toEqual(['pending'])
    expect(receiver.ledger.requests).toHaveLength(0)

    signIn(SCOPE)
    await browser.run(askWorker)
    await expect.poll(() => receiver.ledger.effects.length, settledUsage).toBe(1)
  })

  test('G46: page and worker at work at once send an entry once', async () => {
    const { browser, receiver } = await openShop(engine)
    await using _ = browser
    for (let trip = 1; trip <= 10; trip += 1) await browser.run(recordOffline, `trip-${trip}`)
    expect(await browser.run(resumeWithWorker)).toEqual({ succeeded: 10, failed: 0, waiting: 0 })
    expect(receiver.ledger.effects).toHaveLength(10)
    const { requests } = receiver.ledger
    // Claims are taken with the begin of the attempt, so in normal running each entry has one sender.
    expect(requests).toHaveLength(10)
  })

  test('killed with the request of the worker on the wire, the next worker delivers, and there is one effect', async () => {
    const { browser, receiver } = await openShop(engine)
    await using _ = browser
    await browser.run(recordOffline, 'trip-1')
    const killed = new Promise<void>((resolve) => {
      browser.handle('/v1/', async (request) => {
        await receiver.fetch(request)
        await browser.kill()
        resolve()
      })
    })
    await browser.run(askWorker).catch(() => {})
    await killed
    expect(receiver.ledger.effects).toHaveLength(1)

    browser.handle('/v1/', (request) => receiver.fetch(request))
    await browser.launch()
    expect(await browser.run(statesOf)).toEqual(['sending'])
    await browser.run(askWorker)
    await expect.poll(() => browser.run(statesOf), settledUsage).toEqual(['succeeded'])
    expect(receiver.ledger.requests).toHaveLength(2)
    expectOneEffect(receiver)
  })

  test('requestSync says whether the browser has Background Sync', async () => {
    const { browser } = await openShop(engine)
    await using _ = browser
    await browser.run(recordOffline, 'trip-1')
    expect(await browser.run(askForSync, 'some-tag')).toBe(engine === 'chromium')
  })
})

describe('Background Sync', () => {
  test('the browser itself fires the event of a registered sync, and the worker delivers', async () => {
    const { browser, receiver } = await openShop('chromium')
    await using _ = browser
    await browser.run(recordOffline, 'trip-1')
    expect(await browser.run(askForSync, 'billonce')).toBe(true)
    await expect.poll(() => receiver.ledger.effects.length, settledUsage).toBe(1)
    expectOneEffect(receiver)
  })

  test.each(['ServiceWorker.dispatchSyncEvent', 'ServiceWorker.dispatchPeriodicSyncEvent'])(
    'recorded offline, the tab closed: %s delivers once',
    async (dispatch) => {
      const { browser, receiver } = await openShop('chromium')
      await using _ = browser
      await browser.run(recordOffline, 'trip-1')
      using tools = await connectDevTools(browser.profile)
      const { targetId } = await tools.attach(browser.origin)
      await tools.send('Target.createTarget', { url: 'about:blank' })
      const { sessionId } = await tools.attach('about:blank')
      await tools.send('ServiceWorker.enable', {}, sessionId)
      const registrationIds = (): unknown[] =>
        tools
          .seen('ServiceWorker.workerRegistrationUpdated')
          .flatMap(({ registrations }) => registrations as { registrationId: string }[])
          .map(({ registrationId }) => registrationId)
      await expect.poll(() => registrationIds().length, settledUsage).toBeGreaterThan(0)
      await tools.send('Target.closeTarget', { targetId })
      const fire = (tag: string): Promise<unknown> =>
        tools.send(
          dispatch,
          { origin: browser.origin, registrationId: registrationIds()[0], tag, lastChance: false },
          sessionId,
        )
      await fire('another-tag')
      await fire('billonce')
      await expect.poll(() => receiver.ledger.effects.length, settledUsage).toBe(1)
      // Once for the tag that is ours.
      expect(browser.requests.filter(({ path }) => path === '/session')).toHaveLength(1)
      expectOneEffect(receiver)
    },
  )
})
