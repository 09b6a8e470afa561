/** The checkout page of the examples in a real Chromium, with its billing server, for the tests that look at it. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { chromium } from 'playwright'
import type { Browser, BrowserContext, BrowserContextOptions, Locator, Page } from 'playwright'
import { afterAll, afterEach, beforeAll, expect } from 'vitest'
import type { LedgerEffect, LedgerRequest } from 'billonce/testing'
import { startShop } from '../../examples/checkout/serve.ts'
import type { RunningShop } from '../../examples/checkout/serve.ts'
import { WORDS } from '../../examples/checkout/words.ts'
import type { ViewName } from '../../examples/checkout/words.ts'
import { chromiumArgs, findBrowser } from '../support/browsers.ts'
import { repositoryRoot } from '../support/bundle.ts'

const found = findBrowser('chromium')
export const hasChromium: boolean = found !== undefined
/** Left for a person to look at. */
export const screenshots: string = join(repositoryRoot, 'test-results/checkout')
export const DESKTOP = { width: 1360, height: 900 }

/** A tab at an order. */
export interface Visit {
  readonly page: Page
  readonly context: BrowserContext
  readonly operationId: string
}

export let shop: RunningShop
let browser: Browser
const contexts: BrowserContext[] = []

/** To be called once in a file's suite: starts shop and browser before, and closes tabs after each test. */
export function openTheShop(): void {
  beforeAll(async () => {
    mkdirSync(screenshots, { recursive: true })
    shop = await startShop({ latencyMs: 50 })
    browser = await chromium.launch({ executablePath: found?.path ?? '', args: [...chromiumArgs] })
  }, 60_000)
  afterEach(async () => {
    for (const context of contexts.splice(0)) await context.close()
    await shop.billing.ask({ ask: 'reach', on: true })
  })
  afterAll(async () => {
    await browser?.close()
    await shop?.close()
  })
}

/** A browser profile of its own. */
export async function newContext(options: BrowserContextOptions = {}): Promise<BrowserContext> {
  const context = await browser.newContext({ viewport: DESKTOP, ...options })
  contexts.push(context)
  return context
}

/**
 * A customer who comes to the checkout for the first time.
 *
 * @param money what the prices begin with; what is ordered follows from the moment, so it takes a few orders until it is this
 */
export async function visit(options: BrowserContextOptions = {}, money = ''): Promise<Visit> {
  const context = await newContext(options)
  const page = await context.newPage()
  await page.goto(shop.url)
  await says(page, 'ready')
  while (!(await page.locator('#total').textContent())?.startsWith(money)) {
    await page.getByRole('link', { name: 'New order' }).click()
    await says(page, 'ready')
  }
  return { page, context, operationId: operationOf(page) }
}

/** The order is in the address. */
export function operationOf(page: Page): string {
  const order = new URL(page.url()).searchParams.get('order') ?? ''
  expect(order).toMatch(/^[0-9a-z]{8}$/)
  return `order-${order}`
}

/** Waits for the words, as they are read out. */
export async function says(page: Page, name: ViewName): Promise<void> {
  await page.locator(`#status[data-view="${name}"]`).waitFor({ timeout: 20_000 })
  expect(await page.getByRole('status').locator('h3').textContent()).toBe(WORDS[name].title)
}

/** By the last digits that the page shows. */
export async function choose(page: Page, card: string): Promise<void> {
  await page.getByRole('radio', { name: card }).check()
}

export function payButton(page: Page): Locator {
  return page.locator('#pay')
}

export async function canPay(page: Page): Promise<boolean> {
  return (await payButton(page).getAttribute('aria-disabled')) === 'false'
}

/** What the billing server saw of the order. */
export function requestsOf({ operationId }: Visit): LedgerRequest[] {
  return shop.billing.receiver.ledger.requestsOf({ name: operationId })
}

/** How often the order was charged, by the billing server's ledger. */
export function effectsOf({ operationId }: Visit): LedgerEffect[] {
  return shop.billing.receiver.ledger.effectsOf({ name: operationId })
}

export function keysOf(of: Visit): number {
  return new Set(requestsOf(of).map(({ key }) => key)).size
}

/** The target of a fault that hits this order's first request. */
export function onFirst({ operationId }: Visit): {
  attempt: number
  times: number
  when(request: { readonly body: string }): boolean
} {
  return { attempt: 1, times: 1, when: ({ body }) => body.includes(operationId) }
}
