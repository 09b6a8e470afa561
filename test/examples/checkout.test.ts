/**
 * The checkout page as a customer meets it, in a real Chromium, reloaded, without a network, in two tabs, at the bank; what it
 * charged is counted at its billing server. Left out where the machine has no Chromium. How it looks and is used without a
 * mouse: checkout-looks.test.ts. The other engines: test/crash-browser.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { stall, status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'
import {
  canPay,
  choose,
  effectsOf,
  hasChromium,
  keysOf,
  newContext,
  onFirst,
  openTheShop,
  operationOf,
  payButton,
  requestsOf,
  says,
  shop,
  visit,
} from './checkout.ts'

describe.skipIf(!hasChromium)('the checkout page', { timeout: 60_000 }, () => {
  openTheShop()

  // ---------------------------------------------------------------------------------------------------- what is paid

  test('starts with one command', async () => {
    const program = fileURLToPath(new URL('../../examples/checkout/serve.ts', import.meta.url))
    const child = spawn(process.execPath, [...nodeArguments, program], {
      env: { ...process.env, PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      const [line] = (await once(child.stdout, 'data')) as [Buffer]
      const [, url = ''] = /^checkout: (http:\S+)$/m.exec(line.toString()) ?? []
      const page = await (await fetch(url)).text()
      expect(page).toContain('<h1>Checkout</h1>')
      expect(page).toMatch(/name="billing-url" content="http:\/\/127\.0\.0\.1:\d+"/)
    } finally {
      child.kill('SIGKILL')
    }
  })

  test('an order is paid once and stays paid, whoever asks again', async () => {
    const it = await visit()
    const total = await it.page.locator('#total').textContent()
    expect(await payButton(it.page).innerText()).toBe(`Pay ${total}`)
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await it.page.reload()
    await says(it.page, 'succeeded')
    expect(await it.page.locator('#cover').textContent()).toContain(effectsOf(it)[0]?.id)
    expect(await it.page.locator('#cover-sum').textContent()).toBe(total)
    // Neither a press nor a script that sends the form again.
    await payButton(it.page).click({ force: true })
    await it.page.evaluate(() => document.querySelector('form')?.requestSubmit())
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
    // A token, and nothing of a card.
    expect(JSON.parse(requestsOf(it)[0]?.body ?? '')).toMatchObject({ paymentMethod: 'pm_good' })
    expect(requestsOf(it)[0]?.body).not.toMatch(/\d{4}"/)
  })

  test('a new order is another one, and the old one is still there', async () => {
    const it = await visit()
    const before = it.page.url()
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await it.page.getByRole('link', { name: 'New order' }).click()
    await says(it.page, 'ready')
    expect(new URL(it.page.url()).searchParams.get('order')).not.toBe(new URL(before).searchParams.get('order'))
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await it.page.goto(before)
    await says(it.page, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('a double click, and two submits in one moment, pay once', async () => {
    const it = await visit()
    await payButton(it.page).dblclick()
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    const other = await visit()
    await other.page.evaluate(() => {
      document.querySelector('form')?.requestSubmit()
      document.querySelector('form')?.requestSubmit()
    })
    await says(other.page, 'succeeded')
    expect(requestsOf(other)).toHaveLength(1)
    expect(effectsOf(other)).toHaveLength(1)
  })

  test('a reply that gets lost is asked for again, and the customer is told', async () => {
    const it = await visit()
    await choose(it.page, '5100')
    const told = says(it.page, 'paying-late').catch(() => {})
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await told
    expect(requestsOf(it).map(({ did }) => did)).toEqual(['executed', 'replayed'])
    expect(new Set(requestsOf(it).map(({ body }) => body)).size).toBe(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('a slow bank is waited for, and the page says that it is', async () => {
    const it = await visit()
    await choose(it.page, '6008')
    await payButton(it.page).click()
    await says(it.page, 'paying')
    expect(await canPay(it.page)).toBe(false)
    // Pressing on does nothing.
    await payButton(it.page).click({ clickCount: 3, force: true })
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  // -------------------------------------------------------------------------------------------------- reload and close

  test('killed while the charge is on the wire, it goes on by itself and finds it paid', async () => {
    const it = await visit()
    shop.billing.receiver.faults.add(stall(onFirst(it)))
    await payButton(it.page).click()
    await expect.poll(() => effectsOf(it).length).toBe(1)
    await it.page.getByRole('button', { name: 'Kill it' }).click()
    await says(it.page, 'succeeded')
    expect(new Set(requestsOf(it).map(({ body }) => body)).size).toBe(1)
    expect(requestsOf(it)).toHaveLength(2)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('closed while the charge is on the wire, the next visit finds it paid', async () => {
    const it = await visit()
    shop.billing.receiver.faults.add(stall(onFirst(it)))
    await payButton(it.page).click()
    await expect.poll(() => effectsOf(it).length).toBe(1)
    const address = it.page.url()
    await it.page.close()
    const next = await it.context.newPage()
    await next.goto(address)
    await says(next, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('with its storage wiped the order has the same key, and is not charged again', async () => {
    const it = await visit()
    await choose(it.page, '5100')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    await it.page.getByRole('button', { name: 'Wipe its storage' }).click()
    await says(it.page, 'ready')
    // The card is in the address with the order.
    expect(await it.page.getByRole('radio', { name: '5100' }).isChecked()).toBe(true)
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(requestsOf(it).map(({ did }) => did)).toEqual(['executed', 'replayed', 'replayed'])
    expect(keysOf(it)).toBe(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('two tabs that pay at the same moment pay once, and both say so', async () => {
    const it = await visit()
    const other = await it.context.newPage()
    await other.goto(it.page.url())
    await says(other, 'ready')
    await Promise.all([payButton(it.page).click(), payButton(other).click()])
    await Promise.all([says(it.page, 'succeeded'), says(other, 'succeeded')])
    expect(effectsOf(it)).toHaveLength(1)
    expect(keysOf(it)).toBe(1)
  })

  test('what one tab pays the other one shows, though nobody touches it', async () => {
    const it = await visit()
    const [other] = await Promise.all([
      it.context.waitForEvent('page'),
      it.page.getByRole('button', { name: 'Open it twice' }).click(),
    ])
    await says(other, 'ready')
    await payButton(it.page).click()
    await says(other, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })

  // ------------------------------------------------------------------------------------------------ bank and other cards

  test('a declined card can be followed by another one, which is a charge of its own', async () => {
    const it = await visit()
    await choose(it.page, '0002')
    await payButton(it.page).click()
    await says(it.page, 'rejected')
    expect(effectsOf(it)).toHaveLength(0)
    // Also after a reload: the first try is settled.
    await it.page.reload()
    await says(it.page, 'rejected')
    await choose(it.page, '4242')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(keysOf(it)).toBe(2)
    expect(effectsOf(it)).toHaveLength(1)
    // Which try it was is kept with the order, so a wiped journal does not begin at the first one again.
    await it.page.getByRole('button', { name: 'Wipe its storage' }).click()
    await says(it.page, 'ready')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(keysOf(it)).toBe(2)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('what the bank wants confirmed leads to the bank and back, and is paid', async () => {
    const it = await visit()
    const total = await it.page.locator('#total').textContent()
    await choose(it.page, '3220')
    await payButton(it.page).click()
    await says(it.page, 'requires-action')
    await it.page.reload()
    await says(it.page, 'requires-action')
    await it.page.getByRole('link', { name: 'Confirm with your bank' }).click()
    await it.page.getByRole('heading', { name: 'Confirm this payment' }).waitFor()
    await expect.poll(() => it.page.locator('#payment').textContent()).toBe(effectsOf(it)[0]?.id)
    expect(await it.page.locator('#amount').textContent()).toBe(total)
    await it.page.getByRole('link', { name: 'Back to the shop' }).click()
    await says(it.page, 'bank-answers')
    await it.page.getByRole('link', { name: 'Confirm with your bank' }).click()
    await it.page.getByRole('button', { name: 'Confirm the payment' }).click()
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('what the customer refuses at the bank can be paid with another card', async () => {
    const it = await visit()
    await choose(it.page, '3220')
    await payButton(it.page).click()
    await says(it.page, 'requires-action')
    await it.page.getByRole('link', { name: 'Confirm with your bank' }).click()
    await it.page.getByRole('button', { name: 'Refuse it' }).click()
    await says(it.page, 'not-confirmed')
    await choose(it.page, '4242')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(shop.billing.viewOf(it.operationId).charges.map(({ standing }) => standing)).toEqual(['failed', 'paid'])
    expect(requestsOf(it)).toHaveLength(2)
  })

  test('what takes days is said to take days, is not sent again, and is paid when the bank says so', async () => {
    const it = await visit()
    await choose(it.page, '3000')
    await payButton(it.page).click()
    await says(it.page, 'processing')
    await payButton(it.page).click({ force: true })
    await it.page.reload()
    await says(it.page, 'processing')
    expect(await canPay(it.page)).toBe(false)
    await it.page.getByRole('button', { name: 'Bank pays' }).click()
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  // -------------------------------------------------------------------------------------------------- network and server

  test('offline it says so and sends nothing, and pays when it is back', async () => {
    const it = await visit()
    await it.context.setOffline(true)
    await payButton(it.page).click()
    await says(it.page, 'deferred-offline')
    expect(await it.page.locator('#status-text').textContent()).toMatch(/^You are offline\. .* until \d\d:\d\d\.$/)
    expect(await it.page.locator('#network').isVisible()).toBe(true)
    expect(requestsOf(it)).toHaveLength(0)
    await it.context.setOffline(false)
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('offline it can be called off, and paid after all under the same key', async () => {
    const it = await visit()
    await it.context.setOffline(true)
    await payButton(it.page).click()
    await says(it.page, 'deferred-offline')
    await it.page.getByRole('button', { name: 'Do not pay' }).click()
    await says(it.page, 'stopped')
    await it.context.setOffline(false)
    const key = await it.page.locator('.entry .key').textContent()
    // Nothing goes out by itself.
    await it.page.reload()
    await says(it.page, 'stopped')
    expect(requestsOf(it)).toHaveLength(0)
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(requestsOf(it).map((request) => request.key)).toEqual([key])
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('a connection that breaks while the charge is on the wire leaves a maybe, which is never called a no', async () => {
    const it = await visit()
    shop.billing.receiver.faults.add(stall(onFirst(it)))
    await payButton(it.page).click()
    await expect.poll(() => effectsOf(it).length).toBe(1)
    await it.context.setOffline(true)
    await says(it.page, 'checking-offline')
    expect(await it.page.getByRole('button', { name: 'Do not pay' }).count()).toBe(0)
    expect(await canPay(it.page)).toBe(false)
    await it.context.setOffline(false)
    await says(it.page, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('while the server cannot be reached it keeps trying, and pays once it can', async () => {
    const it = await visit()
    await it.page.getByRole('switch', { name: 'Server unreachable' }).click()
    await expect.poll(() => it.page.getByRole('switch').getAttribute('aria-checked')).toBe('true')
    await payButton(it.page).click()
    await says(it.page, 'paying-late')
    expect(requestsOf(it)).toHaveLength(0)
    await it.page.reload()
    await says(it.page, 'checking')
    await it.page.getByRole('switch', { name: 'Server unreachable' }).click()
    await says(it.page, 'succeeded')
    expect(requestsOf(it)).toHaveLength(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test.each([
    { chip: 'Lose the reply', view: 'succeeded', did: ['executed', 'replayed'], effects: 1 },
    { chip: '500', view: 'succeeded', did: ['turned-away', 'executed'], effects: 1 },
    { chip: '409, twice', view: 'succeeded', did: ['busy', 'busy', 'replayed'], effects: 1 },
    { chip: 'Four seconds', view: 'succeeded', did: ['executed'], effects: 1 },
    { chip: 'Decline', view: 'rejected', did: ['refused'], effects: 0 },
    { chip: '429, wait 20 s', view: 'checking', did: ['turned-away'], effects: 0 },
    { chip: '500, saved', view: 'looking-into', did: ['failed', 'replayed'], effects: 0 },
  ] as const)('the next charge meets «$chip»: $view, and the panel tells all of it', async (row) => {
    const it = await visit()
    const chip = it.page.getByRole('button', { name: row.chip, exact: true })
    await chip.click()
    await expect.poll(() => chip.getAttribute('aria-pressed')).toBe('true')
    await payButton(it.page).click()
    await says(it.page, row.view)
    // What has hit is over.
    await expect.poll(() => chip.getAttribute('aria-pressed')).toBe('false')
    if (row.chip === '409, twice') expect(requestsOf(it).at(-1)?.did).toBe('replayed')
    else expect(requestsOf(it).map(({ did }) => did)).toEqual(row.did)
    expect(effectsOf(it)).toHaveLength(row.effects)
    // Journal and ledger, as the panel has them.
    const requests = requestsOf(it).length
    await expect.poll(() => it.page.locator('#tile-requests').textContent()).toBe(String(requests))
    expect(await it.page.locator('#tile-charges').textContent()).toBe(String(row.effects))
    await expect.poll(() => it.page.locator('.entry tbody tr').count()).toBe(requests)
    expect(await it.page.locator('.entry .key').textContent()).toBe(requestsOf(it)[0]?.key)
  })

  test('what has to wait for its time is asked again then, and cannot be called off', async () => {
    const it = await visit()
    shop.billing.receiver.faults.add(status(429, { ...onFirst(it), headers: { 'retry-after': '1' } }))
    await payButton(it.page).click()
    await says(it.page, 'checking')
    expect(await it.page.getByRole('button', { name: 'Do not pay' }).isVisible()).toBe(false)
    await says(it.page, 'succeeded')
    expect(keysOf(it)).toBe(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('what waits for a network can be called off, and paid after all', async () => {
    const it = await visit()
    await it.context.setOffline(true)
    await payButton(it.page).click()
    await says(it.page, 'deferred-offline')
    await it.page.getByRole('button', { name: 'Do not pay' }).click()
    await says(it.page, 'stopped')
    await it.context.setOffline(false)
    expect(effectsOf(it)).toHaveLength(0)
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(keysOf(it)).toBe(1)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('a failure that the server saved is looked into, there is nothing to pay with, and the reference can be copied', async () => {
    const it = await visit()
    await it.context.grantPermissions(['clipboard-read', 'clipboard-write'])
    await choose(it.page, '9005')
    await payButton(it.page).click()
    await says(it.page, 'looking-into')
    expect(await canPay(it.page)).toBe(false)
    expect(await it.page.getByRole('radio', { name: '4242' }).isVisible()).toBe(false)
    await it.page.getByRole('button', { name: 'Copy the reference' }).click()
    await it.page.getByRole('button', { name: 'Copied' }).waitFor()
    expect(await it.page.evaluate(() => navigator.clipboard.readText())).toBe(requestsOf(it)[0]?.key)
    const sent = requestsOf(it).length
    await payButton(it.page).click({ force: true })
    await it.page.reload()
    await says(it.page, 'looking-into')
    expect(requestsOf(it)).toHaveLength(sent)
    expect(effectsOf(it)).toHaveLength(0)
  })

  test('what is looked into is settled by the word of the server, and only then another card can pay', async () => {
    const it = await visit()
    await choose(it.page, '9005')
    await payButton(it.page).click()
    await says(it.page, 'looking-into')
    // Not before the first request can be at work no more.
    await it.page.getByRole('button', { name: 'Ask the server' }).click()
    await expect
      .poll(
        async () => {
          await it.page.getByRole('button', { name: 'Ask the server' }).click()
          return await it.page.locator('#status').getAttribute('data-view')
        },
        { timeout: 30_000, interval: 500 },
      )
      .toBe('not-confirmed')
    await choose(it.page, '4242')
    await payButton(it.page).click()
    await says(it.page, 'succeeded')
    expect(keysOf(it)).toBe(2)
    expect(effectsOf(it)).toHaveLength(1)
  })

  test('while there is no answer it says that it is checking, and leaves nothing to press', async () => {
    const it = await visit()
    shop.billing.receiver.faults.add(status(503, { ...onFirst(it), headers: { 'retry-after': '90' } }))
    await payButton(it.page).click()
    await says(it.page, 'checking')
    expect(await canPay(it.page)).toBe(false)
    expect(await it.page.locator('#cover .act:visible').count()).toBe(0)
    expect(effectsOf(it)).toHaveLength(0)
  })

  test('where storage is refused it says so in clear words and sends nothing, and works once it is allowed', async () => {
    const context = await newContext()
    await context.addInitScript(() => {
      const open = indexedDB.open.bind(indexedDB)
      IDBFactory.prototype.open = (...args) => {
        if (sessionStorage.getItem('allowed') === null) throw new DOMException('denied', 'SecurityError')
        return open(...args)
      }
    })
    const page = await context.newPage()
    await page.goto(shop.url)
    await says(page, 'no-storage')
    const it = { page, context, operationId: operationOf(page) }
    await payButton(page).click()
    await says(page, 'no-storage')
    expect(await page.locator('#status-text').textContent()).toContain('Nothing was sent just now')
    expect(requestsOf(it)).toHaveLength(0)
    await page.evaluate(() => sessionStorage.setItem('allowed', 'yes'))
    await payButton(page).click()
    await says(page, 'succeeded')
    expect(effectsOf(it)).toHaveLength(1)
  })
})
