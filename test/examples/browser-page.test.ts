/**
 * The checkout page as a customer meets it: built and served by its own command, in a real Chromium, against a receiver that
 * counts. Left out where the machine has no Chromium.
 */
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { createReceiver, loseReply, savedFailure, stall, status } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { RunningServer } from 'billonce/testing/server'
import { chromium } from 'playwright'
import type { Browser, BrowserContext, Page } from 'playwright'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { chromiumArgs, findBrowser } from '../support/browsers.ts'
import { nodeArguments } from '../support/node-program.ts'

const program = fileURLToPath(new URL('../../examples/browser-page/serve.ts', import.meta.url))
const found = findBrowser('chromium')
const receiver = createReceiver()
let server: RunningServer
let pages: ChildProcess
let url = ''
let browser: Browser
let context: BrowserContext
let orders = 0

describe.skipIf(found === undefined)('the checkout page', { timeout: 60_000 }, () => {
  beforeAll(async () => {
    server = await startServer(receiver)
    pages = spawn(process.execPath, [...nodeArguments, program], {
      env: { ...process.env, BILLING_URL: server.url },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    url = await new Promise((resolve, reject) => {
      let text = ''
      pages.stdout?.on('data', (part: Buffer) => {
        text += part.toString()
        const address = /^checkout: (\S+)$/m.exec(text)?.[1]
        if (address !== undefined) resolve(address)
      })
      pages.once('exit', (code) => reject(new Error(`serve.ts ended with ${code}`)))
    })
    browser = await chromium.launch({ executablePath: found?.path ?? '', args: [...chromiumArgs] })
  }, 60_000)

  afterAll(async () => {
    await browser?.close()
    if (pages.exitCode === null && pages.kill('SIGKILL')) await once(pages, 'exit')
    await server.close()
  })

  beforeEach(async () => {
    receiver.reset()
    orders += 1
    context = await browser.newContext()
  })
  afterEach(async () => {
    await context.close()
  })

  /** A tab at the checkout of this test's order. */
  const open = async (): Promise<Page> => {
    const page = await context.newPage()
    await page.goto(`${url}?order=${orders}`)
    return page
  }
  const title = (page: Page) => page.locator('#state-title')
  /** Waits for this title, the whole of it: «Not paid» is not «Paid». */
  const says = (page: Page, words: string) =>
    title(page)
      .filter({ hasText: new RegExp(`^${words}$`) })
      .waitFor({ timeout: 20_000 })
  const payButton = (page: Page) => page.getByRole('button', { name: 'Pay' })
  const effects = () => receiver.ledger.effects.length

  test('asked without an order, it gives one', async () => {
    const page = await context.newPage()
    await page.goto(url)
    expect(new URL(page.url()).searchParams.get('order')).toMatch(/^\d+$/)
  })

  test('a charge whose reply is lost is paid once, and a reload still says so', async () => {
    receiver.faults.add(loseReply({ attempt: 1 }))
    const page = await open()
    await payButton(page).click()
    await says(page, 'Paid. Thank you!')
    await page.reload()
    await says(page, 'Paid. Thank you!')
    expect(await page.locator('#checkout').isVisible()).toBe(false)
    expect(receiver.ledger.requests).toHaveLength(2)
    expect(effects()).toBe(1)
  })

  test('reloaded while the charge is on the wire, it asks again and finds it paid', async () => {
    receiver.faults.add(stall({ attempt: 1 }))
    const page = await open()
    await payButton(page).click()
    await expect.poll(effects).toBe(1)
    await page.reload()
    await says(page, 'Paid. Thank you!')
    expect(new Set(receiver.ledger.requests.map((request) => request.body)).size).toBe(1)
    expect(receiver.ledger.requests).toHaveLength(2)
    expect(effects()).toBe(1)
  })

  test('closed while the charge is on the wire, the next visit finds it paid', async () => {
    receiver.faults.add(stall({ attempt: 1 }))
    const first = await open()
    await payButton(first).click()
    await expect.poll(effects).toBe(1)
    await first.close()
    await says(await open(), 'Paid. Thank you!')
    expect(effects()).toBe(1)
  })

  test('a declined card can be followed by another one, which is a charge of its own', async () => {
    const page = await open()
    await page.getByLabel('Card').selectOption('pm_declined')
    await payButton(page).click()
    await says(page, 'The payment was declined')
    // Also after a reload: the page knows that the first try is settled.
    await page.reload()
    await says(page, 'The payment was declined')
    await page.getByLabel('Card').selectOption('pm_card')
    await payButton(page).click()
    await says(page, 'Paid. Thank you!')
    expect(new Set(receiver.ledger.requests.map((request) => request.key)).size).toBe(2)
    expect(effects()).toBe(1)
  })

  test('what the bank wants confirmed leads to the bank', async () => {
    const page = await open()
    await page.getByLabel('Card').selectOption('pm_requires_action')
    await payButton(page).click()
    await says(page, 'One more step')
    const link = page.getByRole('link', { name: 'Confirm with your bank' })
    expect(await link.getAttribute('href')).toBe('https://bank.example/authenticate')
  })

  test('offline it says so, and pays when it is back online', async () => {
    const page = await open()
    await context.setOffline(true)
    await payButton(page).click()
    await says(page, 'Not paid yet')
    expect(await page.locator('#state-text').textContent()).toContain('You are offline')
    expect(receiver.ledger.requests).toHaveLength(0)
    await context.setOffline(false)
    await says(page, 'Paid. Thank you!')
    expect(effects()).toBe(1)
  })

  test('what has to wait can be canceled, and paid after all', async () => {
    const page = await open()
    receiver.faults.add(status(429, { headers: { 'retry-after': '600' }, times: 1 }))
    await payButton(page).click()
    await says(page, 'Not paid yet')
    await page.getByRole('button', { name: 'Do not pay' }).click()
    await says(page, 'Not paid')
    expect(effects()).toBe(0)
    await payButton(page).click()
    await says(page, 'Paid. Thank you!')
    expect(effects()).toBe(1)
    expect(new Set(receiver.ledger.requests.map((request) => request.key)).size).toBe(1)
  })

  test('a failure that the receiver replays is looked into, and there is nothing to pay with', async () => {
    receiver.faults.add(savedFailure(500, { attempt: 1 }))
    const page = await open()
    await payButton(page).click()
    await says(page, 'We are looking into your payment')
    expect(await payButton(page).isEnabled()).toBe(false)
    expect(await page.locator('#state-text').textContent()).toContain(receiver.ledger.requests[0]?.key)
  })

  test('while there is no answer it says that it is checking, and leaves nothing to press', async () => {
    receiver.faults.add(status(503, { headers: { 'retry-after': '90' }, times: 1 }))
    const page = await open()
    await payButton(page).click()
    await says(page, 'We are checking your payment')
    expect(await payButton(page).isEnabled()).toBe(false)
    expect(await page.getByRole('button', { name: 'Do not pay' }).isVisible()).toBe(false)
  })

  test('two tabs that pay at the same time pay once, and both say so', async () => {
    const [one, two] = await Promise.all([open(), open()])
    await Promise.all([payButton(one).click(), payButton(two).click()])
    await Promise.all([says(one, 'Paid. Thank you!'), says(two, 'Paid. Thank you!')])
    expect(effects()).toBe(1)
  })

  test('its words are in a live region, and every control has a name', async () => {
    const page = await open()
    expect(await page.getByRole('status').getAttribute('aria-live')).toBe('polite')
    expect(await page.getByLabel('Card').count()).toBe(1)
    await payButton(page).focus()
    await page.keyboard.press('Enter')
    await says(page, 'Paid. Thank you!')
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('state')
    // Narrow, nothing sticks out.
    await page.setViewportSize({ width: 320, height: 640 })
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(320)
  })
})
