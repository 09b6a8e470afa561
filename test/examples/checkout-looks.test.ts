/**
 * How the checkout page looks and is used: by keyboard alone, read out, with less motion, on a phone, in the dark. Each state is
 * checked by axe, and nothing may move when it changes. Screenshots are left in test-results/checkout.
 */
import { join } from 'node:path'
import axe from 'axe-core'
import type { Page } from 'playwright'
import { describe, expect, test } from 'vitest'
import { WORDS } from '../../examples/checkout/words.ts'
import {
  choose,
  DESKTOP,
  effectsOf,
  hasChromium,
  openTheShop,
  payButton,
  says,
  screenshots,
  visit,
} from './checkout.ts'

const PHONE = { width: 360, height: 740 }
const SMALLEST = { width: 320, height: 600 }

describe.skipIf(!hasChromium)('the checkout page, used and looked at', { timeout: 60_000 }, () => {
  openTheShop()

  test('by keyboard alone: a card is chosen, the bank is confirmed, the focus is seen and never lost', async () => {
    const it = await visit()
    const { page } = it
    const focus = () => page.evaluate(() => document.activeElement?.id || document.activeElement?.textContent)
    await page.keyboard.press('Tab')
    expect(await focus()).toBe('Skip to the payment')
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    expect(await page.getByRole('radio', { name: '4242' }).evaluate((radio) => radio === document.activeElement)).toBe(
      true,
    )
    await page.keyboard.press('ArrowDown')
    await page.keyboard.press('ArrowDown')
    expect(await page.getByRole('radio', { name: '3220' }).isChecked()).toBe(true)
    const outline = () =>
      page.evaluate(() => {
        const at = document.activeElement
        return at && [at, at.parentElement].map((one) => one && getComputedStyle(one).outlineStyle)
      })
    expect(await outline()).toContain('solid')
    // Enter in the form pays; the card that had the focus cannot be chosen any more.
    await page.keyboard.press('Enter')
    await says(page, 'requires-action')
    // The focus is where the bank asks, named by the words of the state, and an Enter too many does nothing there.
    expect(await focus()).toBe('cover')
    expect(await outline()).toContain('solid')
    expect(await page.getByRole('group', { name: WORDS['requires-action'].title }).getAttribute('id')).toBe('cover')
    await page.keyboard.press('Enter')
    await page.keyboard.press('Tab')
    expect(await focus()).toBe('confirm')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'Confirm this payment' }).waitFor()
    await page.keyboard.press('Tab')
    expect(await focus()).toBe('yes')
    await page.keyboard.press('Enter')
    await says(page, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('its words are read out: one live region, there from the start, that is told only what is new', async () => {
    const it = await visit()
    const region = it.page.getByRole('status')
    expect(await region.count()).toBe(1)
    expect(await region.getAttribute('aria-live')).toBe('polite')
    await region.evaluate((node) => {
      const told: string[] = []
      Object.assign(window, { told })
      new MutationObserver(() => told.push(node.querySelector('h3')?.textContent ?? '')).observe(node, {
        subtree: true,
        childList: true,
        characterData: true,
      })
    })
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    const told = await it.page.evaluate(() => (window as unknown as { told: string[] }).told)
    expect(told).toEqual([WORDS.paying.title, WORDS.succeeded.title])
  })

  test('who wants less motion gets none', async () => {
    const it = await visit({ reducedMotion: 'reduce' })
    await choose(it.page, '6008')
    await payButton(it.page).click()
    await says(it.page, 'paying')
    expect(await it.page.evaluate(() => document.getAnimations().length)).toBe(0)
  })

  test('nothing jumps from the first paint to the receipt', async () => {
    const it = await visit()
    // As the browser itself counts it. The panel beside the page may grow.
    await it.page.addInitScript(() => {
      const moved: string[] = []
      Object.assign(window, { moved })
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries() as (PerformanceEntry & { sources: { node: Node | null }[] })[]) {
          for (const { node } of entry.sources) {
            const element = node instanceof Element ? node : node?.parentElement
            if (element?.closest('.shop')) moved.push(element.outerHTML.slice(0, 80))
          }
        }
      }).observe({ type: 'layout-shift', buffered: true })
    })
    await it.page.getByRole('link', { name: 'New order' }).click()
    await says(it.page, 'ready')
    await choose(it.page, '5100')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(await it.page.evaluate(() => (window as unknown as { moved: string[] }).moved)).toEqual([])
  })

  test('after a declined card and a lost reply the panel shows three requests, two keys and one charge', async () => {
    // What README shows.
    const it = await visit({ viewport: { width: 1280, height: 1000 } }, '€')
    await choose(it.page, '0002')
    await payButton(it.page).click()
    await says(it.page, 'rejected')
    await choose(it.page, '5100')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await expect.poll(() => it.page.locator('#tile-requests').textContent()).toBe('3')
    expect(await it.page.locator('#tile-charges').textContent()).toBe('1')
    expect(await it.page.locator('#tile-taken').textContent()).toBe('€62.40')
    expect(await it.page.locator('.entry .key').count()).toBe(2)
    await it.page.screenshot({ path: join(screenshots, 'readme.png'), animations: 'disabled' })

    const phone = await visit({ viewport: PHONE, colorScheme: 'dark' })
    await choose(phone.page, '3220')
    await payButton(phone.page).click()
    await says(phone.page, 'requires-action')
    await phone.page.screenshot({ path: join(screenshots, 'readme-phone.png'), fullPage: true, animations: 'disabled' })
  })

  describe.each([
    { name: 'desktop-light', viewport: DESKTOP, colorScheme: 'light', money: '€' },
    { name: 'desktop-dark', viewport: DESKTOP, colorScheme: 'dark', money: '$' },
    { name: 'phone-light', viewport: PHONE, colorScheme: 'light', money: '$' },
    { name: 'phone-dark', viewport: PHONE, colorScheme: 'dark', money: '€' },
    { name: 'smallest-light', viewport: SMALLEST, colorScheme: 'light', money: '¥' },
  ] as const)('$name', ({ name, money, ...options }) => {
    const places = (page: Page) =>
      page.evaluate(() =>
        ['.order', '.payment', '#pay', '#status'].map((place) => {
          const { left, top, width, height } = document.querySelector(place)?.getBoundingClientRect() ?? new DOMRect()
          return [place, left, top + scrollY, width, height].join(' ')
        }),
      )
    /** Nothing sticks out, no word is cut, no accessibility rule is broken. */
    const expectInOrder = async (page: Page, what: string): Promise<void> => {
      await page.screenshot({ path: join(screenshots, `${name}-${what}.png`), fullPage: true, animations: 'disabled' })
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(
        options.viewport.width,
      )
      const cut = await page.evaluate(() =>
        [...document.querySelectorAll('button, a, td, th, dd, dt, p, h1, h2, h3, .name, .hint, .mark, .money')]
          .filter((one) => one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1)
          .map((one) => one.textContent),
      )
      expect(cut, what).toEqual([])
      await page.evaluate(axe.source)
      const violations = await page.evaluate(async () => {
        const { axe: tool } = window as unknown as {
          axe: { run(): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }> }
        }
        return (await tool.run()).violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(' ')}`)
      })
      expect(violations, what).toEqual([])
    }

    test.each([
      { card: '4242', view: 'succeeded' },
      { card: '0002', view: 'rejected' },
      { card: '3220', view: 'requires-action' },
      { card: '3000', view: 'processing' },
      { card: '9005', view: 'looking-into' },
      { card: '6008', view: 'paying' },
    ] as const)('$view: nothing moves, overlaps or breaks a rule', async ({ card, view }) => {
      const it = await visit(options, money)
      const before = await places(it.page)
      if (view === 'succeeded') await expectInOrder(it.page, 'ready')
      await choose(it.page, card)
      await payButton(it.page).click()
      await says(it.page, view)
      expect(await places(it.page)).toEqual(before)
      if ((await it.page.locator('#panel').getAttribute('data-open')) === 'false') {
        await it.page.locator('#panel-toggle').click()
      }
      await it.page.locator('.entry').waitFor()
      await expectInOrder(it.page, view)
      if (view !== 'requires-action') return
      await it.page.getByRole('link', { name: 'Confirm with your bank' }).click()
      await it.page.getByRole('heading', { name: 'Confirm this payment' }).waitFor()
      await expectInOrder(it.page, 'bank')
    })

    test('offline: nothing moves, overlaps or breaks a rule', async () => {
      const it = await visit(options, money)
      const before = await places(it.page)
      await it.context.setOffline(true)
      await payButton(it.page).click()
      await says(it.page, 'deferred-offline')
      expect(await places(it.page)).toEqual(before)
      await expectInOrder(it.page, 'deferred-offline')
      await it.context.setOffline(false)
    })
  })
})
