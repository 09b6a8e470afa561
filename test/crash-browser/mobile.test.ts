/**
 * The app of examples/mobile in real browsers that are killed: what was recorded offline is billed once after the next start,
 * in all three engines. The app runs in a frame of the harness's page, from the same files that its own command serves.
 */
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { buildApp } from '../../examples/mobile/build.ts'
import { officeAccounts } from '../../examples/mobile/office.ts'
import { engines } from '../support/browsers.ts'
import type { Engine } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'

let files: ReturnType<typeof buildApp> | undefined

interface Round {
  readonly browser: RealBrowser
  readonly receiver: Receiver
  /** Whether anything of the app's server is there, the app's own files included. */
  network: 'there' | 'gone' | 'loses replies'
}

async function openRound(engine: Engine): Promise<Round> {
  files ??= buildApp()
  const app = await files
  const browser = await openRealBrowser(engine)
  const receiver = createReceiver({ accounts: officeAccounts })
  const round: Round = { browser, receiver, network: 'there' }
  browser.handle('/rounds/', async (request, exchange) => {
    if (round.network === 'gone') return exchange.reset()
    const path = new URL(request.url).pathname.slice('/rounds/'.length)
    if (path.startsWith('billing/')) {
      const reply = await receiver.fetch(request)
      return round.network === 'loses replies' ? exchange.reset() : reply
    }
    const file = app.get(path)
    return file
      ? new Response(file.body as BodyInit, { headers: { 'content-type': file.type } })
      : new Response(null, { status: 404 })
  })
  return round
}

/** Runs in the page: opens the app in a frame, and with no network where that is asked for. */
async function openApp(_: Page, options: { isOnline: boolean; isControlled: boolean }) {
  const frame = document.createElement('iframe')
  frame.style.cssText = 'width: 390px; height: 800px'
  frame.src = '/rounds/'
  document.body.replaceChildren(frame)
  await new Promise((resolve) => frame.addEventListener('load', resolve))
  const inside = frame.contentWindow
  if (!inside) throw new Error('No frame')
  // The harness talks over the same network, so the app is only told that there is none.
  if (!options.isOnline) {
    Object.defineProperty(inside.navigator, 'onLine', { configurable: true, get: () => false })
    inside.dispatchEvent(new Event('offline'))
  }
  for (let tries = 0; tries < 300; tries += 1) {
    const isReady = inside.document.body.dataset['signedIn'] !== undefined
    if (isReady && (!options.isControlled || inside.navigator.serviceWorker.controller !== null)) return true
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`The app did not open: ${inside.document.body.textContent.slice(0, 200)}`)
}

/** Runs in the page: presses what shows these words, once it is there. */
async function press(_: Page, words: string) {
  const document_ = document.querySelector('iframe')?.contentDocument
  for (let tries = 0; tries < 300; tries += 1) {
    const found = [...(document_?.querySelectorAll<HTMLElement>('button, label') ?? [])].find(
      (node) => node.textContent.includes(words) && node.getClientRects().length > 0,
    )
    if (found) {
      found.click()
      return
    }
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`Nothing says ${words}`)
}

/** Runs in the page: the bar, and the words of the list with the latest first. */
function shown() {
  const document_ = document.querySelector('iframe')?.contentDocument
  return {
    bar: document_?.getElementById('bar-text')?.textContent ?? '',
    words: [...(document_?.querySelectorAll('.day li .words') ?? [])].map((node) => node.textContent),
  }
}

async function record(browser: RealBrowser, sites: readonly string[]): Promise<void> {
  for (const site of sites) {
    await browser.run(press, site)
    await browser.run(press, 'Record ')
    await browser.run(press, 'Next visit')
  }
}

const wordsOf = async (browser: RealBrowser): Promise<readonly string[]> => (await browser.run(shown)).words
const times = (count: number, words: string): string[] => Array.from({ length: count }, () => words)
const settled = { timeout: 60_000, interval: 200 }

describe.each(engines)('%s', (engine) => {
  test('five visits recorded offline, the browser killed: after the next start each is billed once', async () => {
    const round = await openRound(engine)
    const { browser, receiver } = round
    await using _ = browser
    await browser.run(openApp, { isOnline: true, isControlled: true })
    await browser.run(press, 'Maren')
    await browser.run(press, 'Record ').then(() => browser.run(press, 'Next visit'))
    await expect.poll(() => wordsOf(browser), settled).toEqual(['Recorded'])
    receiver.reset()

    round.network = 'gone'
    // The worker has the app's files, so it opens all the same.
    await browser.run(openApp, { isOnline: false, isControlled: true })
    const sites = ['Harbour Mill', 'Linden Court', 'Quay Baths', 'Harbour Mill', 'Linden Court']
    await record(browser, sites)
    const { bar, words } = await browser.run(shown)
    expect(bar).toMatch(/^5 waiting, the oldest since \d\d:\d\d · offline$/)
    expect(words).toHaveLength(6)
    // Chromium's worker is woken at once, since Chromium itself has a network here, and gets no answer.
    const waits = engine === 'chromium' ? /^(Saved on this phone|Sending|Being checked)$/ : /^Saved on this phone$/
    for (const word of words.slice(0, 5)) expect(word).toMatch(waits)
    expect(receiver.ledger.requests).toHaveLength(0)

    await browser.kill()
    expect(receiver.ledger.requests).toHaveLength(0)
    await browser.launch()
    await browser.run(openApp, { isOnline: false, isControlled: true })
    expect((await browser.run(shown)).bar).toMatch(/^5 waiting/)

    round.network = 'there'
    await browser.run(openApp, { isOnline: true, isControlled: true })
    await expect.poll(() => wordsOf(browser), settled).toEqual(times(6, 'Recorded'))
    expect((await browser.run(shown)).bar).toBe('Nothing waiting · online')
    const { effects } = receiver.ledger
    expect(effects).toHaveLength(5)
    expect(new Set(effects.map(({ key }) => key)).size).toBe(5)
    expect(effects.map(({ params }) => String(params['customer'])).toSorted()).toEqual([
      'harbour-mill',
      'harbour-mill',
      'linden-court',
      'linden-court',
      'quay-baths',
    ])
  })

  test('killed after a visit was billed and its reply lost: the next start learns of it, and it stays one', async () => {
    const round = await openRound(engine)
    const { browser, receiver } = round
    await using _ = browser
    await browser.run(openApp, { isOnline: true, isControlled: true })
    await browser.run(press, 'Maren')
    round.network = 'loses replies'
    await record(browser, ['Harbour Mill'])
    await expect.poll(() => receiver.ledger.effects.length, settled).toBe(1)
    await expect.poll(() => wordsOf(browser), settled).toEqual(['Being checked'])

    await browser.kill()
    round.network = 'there'
    await browser.launch()
    await browser.run(openApp, { isOnline: true, isControlled: true })
    await expect.poll(() => wordsOf(browser), settled).toEqual(['Recorded'])
    const { requests, effects } = receiver.ledger
    expect(effects).toHaveLength(1)
    expect(requests.length).toBeGreaterThan(1)
    expect(new Set(requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
  })
})
