/**
 * A browser that does not keep what it is given: no space, cleared by the browser or by another tab, private, forbidden, or
 * without an answer. Nothing here is made up in the page: the browser itself is told or brought to it. What no engine can be
 * brought to is played in test/browser/indexeddb.test.ts.
 */
import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import type { Engine } from '../support/browsers.ts'
import { connectDevTools, devToolsArgs } from '../support/devtools.ts'
import { openRealBrowser, RealBrowser } from '../support/real-browser.ts'
import type { Page } from '../support/real-browser.ts'
import { openTab } from '../support/tab.ts'

interface Order {
  operationId: string
  openTimeoutMs?: number
  forgetful?: boolean
}

/** Runs in a page or tab: a charge, and what became of it. The client lives on, as in an application. */
async function charge(page: Page, { operationId, openTimeoutMs, forgetful = false }: Order) {
  const { createBillingClient, forgetfulJournal } = await page.billonce()
  const { indexedDbJournal } = await page.indexeddb()
  const shop = globalThis as unknown as { billing?: import('billonce').BillingClient; faults: string[] }
  if (!shop.billing || forgetful) {
    shop.faults = []
    shop.billing = createBillingClient({
      baseUrl: location.origin,
      scope: 'org_42/test',
      headers: { authorization: 'Bearer t' },
      journal: forgetful ? forgetfulJournal() : indexedDbJournal({ openTimeoutMs }),
    })
    shop.billing.subscribe((event) => {
      if (event.type === 'storage-fault') shop.faults.push(`${event.step}: ${event.fault}`)
    })
  }
  const { billing, faults } = shop
  try {
    const outcome = await billing.charge(
      { amount: 5000, currency: 'usd', description: 'x'.repeat(500) },
      { operationId },
    )
    const { status, source, attempts, durable, key } = outcome
    return { status, source, attempts, durable, key, faults }
  } catch (error) {
    const { code, fault, sentByThisCall } = error as { code: string; fault: string; sentByThisCall: boolean }
    return { code, fault, sentByThisCall }
  }
}

function withReceiver(browser: RealBrowser): Receiver {
  const receiver = createReceiver()
  browser.handle('/v1/', (request) => receiver.fetch(request))
  return receiver
}

function expectOneKey({ ledger }: Receiver): void {
  expect(new Set(ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
}

/** Runs in a page: as a browser or another tab does that clears the data of this site. */
function clear(): Promise<string> {
  return new Promise((resolve) => {
    const deleting = indexedDB.deleteDatabase('billonce')
    deleting.onsuccess = () => resolve('cleared')
    deleting.onerror = () => resolve('failed')
  })
}

const LIMIT_BYTES = 1_000_000

/** Runs in a page: takes all the space that this site has, as other data of it may. */
async function fill(): Promise<void> {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const opening = indexedDB.open('other data', 1)
    opening.onupgradeneeded = () => opening.result.createObjectStore('data', { autoIncrement: true })
    opening.onsuccess = () => resolve(opening.result)
    opening.onerror = () => reject(opening.error)
  })
  // Smaller and smaller, until not even a few letters fit.
  for (const size of [100_000, 10_000, 1000, 100]) {
    const isKept = (): Promise<boolean> =>
      new Promise((resolve) => {
        const transaction = database.transaction('data', 'readwrite')
        transaction.objectStore('data').add('x'.repeat(size))
        transaction.oncomplete = () => resolve(true)
        transaction.onabort = () => resolve(false)
      })
    while (await isKept());
  }
}

const refused = (fault: string): object => ({ code: 'ERR_JOURNAL_UNAVAILABLE', fault, sentByThisCall: false })

describe('chromium, told how much space there is', () => {
  /** A browser whose space for this site can be set, in bytes; `undefined` gives it back. */
  const openLimited = async () => {
    const browser = await openRealBrowser('chromium', devToolsArgs)
    const tools = await connectDevTools(browser.profile)
    const { sessionId } = await tools.attach(browser.origin)
    const send = (method: string, params: object): Promise<unknown> =>
      tools.send(method, { origin: browser.origin, ...params }, sessionId)
    return {
      browser,
      limitTo: (quotaSize: number | undefined) =>
        send('Storage.overrideQuotaForOrigin', quotaSize === undefined ? {} : { quotaSize }),
      evict: () => send('Storage.clearDataForOrigin', { storageTypes: 'all' }),
      [Symbol.asyncDispose]: async () => {
        tools[Symbol.dispose]()
        await browser.close()
      },
    }
  }

  test('G42: without space for the entry nothing is sent, and with space again the same call goes through', async () => {
    await using limited = await openLimited()
    const { browser, limitTo } = limited
    const receiver = withReceiver(browser)
    await limitTo(LIMIT_BYTES)
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded' })
    await browser.run(fill)
    expect(await browser.run(charge, { operationId: 'order-2' })).toEqual(refused('full'))
    expect(await browser.run(charge, { operationId: 'order-2' })).toEqual(refused('full'))
    // What is there can still be read.
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ source: 'journal' })
    expect(receiver.ledger.requests).toHaveLength(1)
    await limitTo(undefined)
    expect(await browser.run(charge, { operationId: 'order-2' })).toMatchObject({ status: 'succeeded', attempts: 1 })
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('G42: on a full disk from the first call on, nothing is sent', async () => {
    await using limited = await openLimited()
    const { browser, limitTo } = limited
    const receiver = withReceiver(browser)
    await limitTo(1)
    expect(await browser.run(charge, { operationId: 'order-1' })).toEqual(refused('full'))
    expect(receiver.ledger.requests).toHaveLength(0)
    await limitTo(undefined)
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('G42: full while the charge is on the wire, the caller gets the receipt, and the next call asks again under the key', async () => {
    await using limited = await openLimited()
    const { browser, limitTo } = limited
    const receiver = createReceiver()
    let release = (): void => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    browser.handle('/v1/', async (request) => {
      const reply = await receiver.fetch(request)
      await released
      return reply
    })
    await limitTo(LIMIT_BYTES)
    const tab = await openTab(browser)
    await tab.begin(charge, { operationId: 'order-1' })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    await browser.run(fill)
    release()
    const told = await tab.end()
    expect(told).toMatchObject({ status: 'succeeded', source: 'receiver', faults: ['record: full'] })
    await limitTo(undefined)
    expect(await tab.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneKey(receiver)
  })

  test('G40, G44: cleared by the browser under an open page, the next call has a new database and the same key', async () => {
    await using limited = await openLimited()
    const { browser, evict } = limited
    const receiver = withReceiver(browser)
    const first = await browser.run(charge, { operationId: 'order-1' })
    await evict()
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({
      status: 'succeeded',
      source: 'receiver',
      attempts: 1,
      key: first.key,
    })
    expect(await browser.run(charge, { operationId: 'order-2' })).toMatchObject({ status: 'succeeded', durable: true })
    expect(receiver.ledger.effects).toHaveLength(2)
  })
})

/** A browser whose every window is a private one. */
async function openPrivate(engine: Engine): Promise<RealBrowser> {
  const browser = new RealBrowser(engine, { chromium: ['--incognito'], firefox: [], webkit: ['--private'] }[engine])
  if (engine === 'firefox') prefer(browser, `user_pref('browser.privatebrowsing.autostart', true)`)
  await browser.launch()
  return browser
}

function prefer(firefox: RealBrowser, preference: string): void {
  appendFileSync(join(firefox.profile, 'user.js'), `${preference};\n`)
}

describe.each(engines)('%s', (engine) => {
  test('G44: cleared by another tab while the charge is on the wire, the caller gets the receipt, and a repetition no second effect', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    let release = (): void => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    browser.handle('/v1/', async (request) => {
      const reply = await receiver.fetch(request)
      await released
      return reply
    })
    const tab = await openTab(browser)
    await tab.begin(charge, { operationId: 'order-1' })
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 20_000 }).toBe(1)
    // The tab's connection lets go, or this would wait for ever.
    expect(await browser.run(clear)).toBe('cleared')
    release()
    expect(await tab.end()).toMatchObject({ status: 'succeeded', source: 'receiver', faults: ['read: damaged'] })
    expect(await tab.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneKey(receiver)
  })

  test('G38: behind a deletion that another tab holds up, an open says nothing: refused in time, and good again after it', async () => {
    await using browser = await openRealBrowser(engine)
    const receiver = withReceiver(browser)
    const holder = await openTab(browser)
    await holder.run(async () => {
      const opening = indexedDB.open('billonce', 1)
      await new Promise((resolve) => {
        opening.onsuccess = resolve
      })
      // A connection that does not heed `versionchange`, as old code has.
      Object.assign(globalThis, { connection: opening.result })
    })
    await browser.run(() => {
      indexedDB.deleteDatabase('billonce')
    })
    const beganAtMs = performance.now()
    expect(await browser.run(charge, { operationId: 'order-1', openTimeoutMs: 500 })).toEqual(refused('timeout'))
    expect(performance.now() - beganAtMs).toBeLessThan(10_000)
    expect(receiver.ledger.requests).toHaveLength(0)
    await holder.close()
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ status: 'succeeded', durable: true })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('G43: in a private window it charges once, also when the window was closed and its data is gone', async () => {
    await using browser = await openPrivate(engine)
    const receiver = withReceiver(browser)
    const first = await browser.run(charge, { operationId: 'order-1' })
    expect(first).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({ source: 'journal' })
    await browser.relaunch()
    expect(await browser.run(charge, { operationId: 'order-1' })).toMatchObject({
      status: 'succeeded',
      source: 'receiver',
      key: first.key,
    })
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

// WebKitGTK has no setting that forbids a site to store data.
describe.each(['chromium', 'firefox'] as const)('%s, set to let no site store data', (engine) => {
  test('G43: nothing is sent; only a journal that forgets, asked for by name, charges', async () => {
    await using browser = new RealBrowser(engine)
    if (engine === 'firefox') {
      prefer(browser, `user_pref('network.cookie.cookieBehavior', 2)`)
    } else {
      mkdirSync(join(browser.profile, 'Default'))
      writeFileSync(
        join(browser.profile, 'Default/Preferences'),
        JSON.stringify({ profile: { default_content_setting_values: { cookies: 2 } } }),
      )
    }
    await browser.launch()
    const receiver = withReceiver(browser)
    expect(await browser.run(charge, { operationId: 'order-1' })).toEqual(refused('unavailable'))
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await browser.run(charge, { operationId: 'order-1', forgetful: true })).toMatchObject({
      status: 'succeeded',
      durable: false,
    })
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})
