/**
 * The checkout page of the examples in all three engines: paid through a lost reply, reloaded and killed while the charge is
 * on the wire, declined and paid with another card, in two tabs. Charges are counted at its billing server. Everything that
 * can be tried in one engine is in test/examples/checkout.test.ts.
 */
import { stall } from 'billonce/testing'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { ViewName } from '../../examples/checkout/words.ts'
import { startShop } from '../../examples/checkout/serve.ts'
import type { RunningShop } from '../../examples/checkout/serve.ts'
import { engines } from '../support/browsers.ts'
import type { Engine } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { RealBrowser } from '../support/real-browser.ts'

let shop: RunningShop

beforeAll(async () => {
  shop = await startShop({ latencyMs: 50 })
})
afterAll(async () => {
  await shop.close()
})

/** A browser in which the shop is of the same origin as the page that gives commands, so that this one may press its buttons. */
async function openAtShop(engine: Engine): Promise<RealBrowser> {
  const browser = await openRealBrowser(engine)
  browser.handle('/shop/', async (request) => {
    const path = new URL(request.url).pathname.replace(/^\/shop\//, '')
    // The panel's stream never ends, and this is about the page.
    return path.startsWith('panel/') ? new Response(null, { status: 404 }) : await fetch(`${shop.url}${path}`)
  })
  return browser
}

/** Runs in the page: a tab at this address of the shop, or at a new order; resolves with its address when it is ready. */
async function openTab(_page: unknown, address: string | null): Promise<string> {
  const frame = document.createElement('iframe')
  frame.style.cssText = 'width: 400px; height: 800px'
  frame.src = address ?? '/shop/'
  document.body.append(frame)
  for (;;) {
    const view = frame.contentDocument?.querySelector<HTMLElement>('#status')?.dataset['view']
    if (view !== undefined) return frame.contentWindow?.location.href ?? ''
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** Runs in the page: chooses the card and presses «Pay» in each tab, at once. */
function pressPay(_page: unknown, card: string): void {
  for (const { contentDocument } of document.querySelectorAll('iframe')) {
    contentDocument?.querySelector<HTMLInputElement>(`input[value=${card}]`)?.click()
  }
  for (const { contentDocument } of document.querySelectorAll('iframe')) {
    contentDocument?.querySelector<HTMLButtonElement>('#pay')?.click()
  }
}

/** Runs in the page: what each tab says. */
function views(): (string | undefined)[] {
  return [...document.querySelectorAll('iframe')].map(
    ({ contentDocument }) => contentDocument?.querySelector<HTMLElement>('#status')?.dataset['view'],
  )
}

/** Runs in the page: what has the focus in the tab. */
function focused(): string | undefined {
  return document.querySelector('iframe')?.contentDocument?.activeElement?.id
}

/** Runs in the page. */
function reloadTab(): void {
  document.querySelector('iframe')?.contentWindow?.location.reload()
}

async function expectView(browser: RealBrowser, ...names: ViewName[]): Promise<void> {
  await expect.poll(() => browser.run(views), { timeout: 30_000 }).toEqual(names)
}

function seenOf(address: string) {
  const name = `order-${new URL(address).searchParams.get('order')}`
  const { ledger } = shop.billing.receiver
  const requests = ledger.requestsOf({ name })
  return { name, requests, effects: ledger.effectsOf({ name }), keys: new Set(requests.map(({ key }) => key)) }
}

describe.each(engines)('%s', (engine) => {
  test('a charge whose reply is lost is paid once, and a declined card is followed by another one', async () => {
    await using browser = await openAtShop(engine)
    const address = await browser.run(openTab, null)
    await browser.run(pressPay, 'pm_declined')
    await expectView(browser, 'rejected')
    expect(seenOf(address).effects).toHaveLength(0)
    await browser.run(pressPay, 'pm_lost_reply')
    await expectView(browser, 'succeeded')
    expect(seenOf(address).requests.map(({ did }) => did)).toEqual(['refused', 'executed', 'replayed'])
    expect(seenOf(address).keys.size).toBe(2)
    expect(seenOf(address).effects).toHaveLength(1)
  })

  test('reloaded, and killed with the whole browser, while the charge is on the wire, it finds it paid', async () => {
    await using browser = await openAtShop(engine)
    const address = await browser.run(openTab, null)
    const { name } = seenOf(address)
    const when = ({ body }: { readonly body: string }): boolean => body.includes(name)
    shop.billing.receiver.faults.add(stall({ attempt: [1, 2], when }))
    await browser.run(pressPay, 'pm_good')
    await expect.poll(() => seenOf(address).requests.length, { timeout: 30_000 }).toBe(1)
    await browser.run(reloadTab)
    await expect.poll(() => seenOf(address).requests.length, { timeout: 30_000 }).toBe(2)
    await browser.relaunch()
    await browser.run(openTab, address)
    await expectView(browser, 'succeeded')
    expect(new Set(seenOf(address).requests.map(({ body }) => body)).size).toBe(1)
    expect(seenOf(address).keys.size).toBe(1)
    expect(seenOf(address).effects).toHaveLength(1)
  })

  test('when the bank asks, the focus is there and not on a button that does nothing, and after a reload nowhere', async () => {
    await using browser = await openAtShop(engine)
    const address = await browser.run(openTab, null)
    await browser.run(pressPay, 'pm_requires_action')
    await expectView(browser, 'requires-action')
    // With the words, in one task.
    expect(await browser.run(focused)).toBe('cover')
    await browser.run(reloadTab)
    await expect.poll(() => browser.run(focused), { timeout: 30_000 }).toBe('')
    await expectView(browser, 'requires-action')
    expect(await browser.run(focused)).toBe('')
    expect(seenOf(address).effects).toHaveLength(1)
  })

  test('two tabs that pay at the same moment pay once, and both say so', async () => {
    await using browser = await openAtShop(engine)
    const address = await browser.run(openTab, null)
    await browser.run(openTab, address)
    await browser.run(pressPay, 'pm_good')
    await expectView(browser, 'succeeded', 'succeeded')
    expect(seenOf(address).effects).toHaveLength(1)
    expect(seenOf(address).keys.size).toBe(1)
  })
})
