/**
 * Two accounts on one browser, in real browsers: whose login pays whose bill. The server takes its caller from the
 * credentials of the request, as a real one does, and keeps who asked for what; what is open of the one account is never
 * sent with the login of the other.
 */
import { createReceiver, status } from 'billonce/testing'
import type { Receiver, ReceiverOptions } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'
import { openTab } from '../support/tab.ts'
import type { Tab } from '../support/tab.ts'

type Account = 'ana' | 'bob'

/** Runs in a tab: what the application is made of. Who is signed in stands where all tabs see it. */
async function load(page: Page): Promise<void> {
  const { createBillingClient } = await page.billonce()
  const shop = globalThis as unknown as Shop
  shop.clients = new Map()
  shop.clientOf = (account) => {
    const made = shop.clients.get(account)
    if (made) return made
    const client = createBillingClient({
      baseUrl: location.origin,
      scope: `user_${account}/live`,
      retry: { baseDelayMs: 20, maxDelayMs: 100, maxAttempts: 2 },
      credentials: () => {
        const who = localStorage.getItem('account')
        if (who === null) throw new Error('Nobody is signed in')
        return { scope: `user_${who}/live`, headers: { authorization: `Bearer token-of-${who}` } }
      },
    })
    shop.clients.set(account, client)
    return client
  }
}

interface Shop {
  clients: Map<Account, import('billonce').BillingClient>
  clientOf(account: Account): import('billonce').BillingClient
}

/** Runs in a tab. `undefined` signs out. */
function signIn(_page: Page, account: Account | undefined): void {
  if (account === undefined) localStorage.removeItem('account')
  else localStorage.setItem('account', account)
}

/** Runs in a tab. */
async function pay(_page: Page, { account, operationId }: { account: Account; operationId: string }) {
  const outcome = await (globalThis as unknown as Shop)
    .clientOf(account)
    .charge({ amount: 5000, currency: 'usd', metadata: { billOf: account } }, { operationId })
  return { status: outcome.status, reason: 'reason' in outcome ? outcome.reason : undefined, key: outcome.key }
}

/** Runs in a tab. */
function start(_page: Page, account: Account): void {
  ;(globalThis as unknown as Shop).clientOf(account).start()
}

/** Runs in a tab. */
async function resume(_page: Page, account: Account) {
  const { total, succeeded, elsewhere } = await (globalThis as unknown as Shop).clientOf(account).resume()
  return { total, succeeded, elsewhere: elsewhere.map(({ scope, count }) => [scope, count]) }
}

/** Runs in a tab: state by operation. */
async function statesOf(_page: Page, account: Account): Promise<Record<string, string>> {
  const states: Record<string, string> = {}
  for await (const { operationId, state } of (globalThis as unknown as Shop).clientOf(account).entries()) {
    states[operationId] = state
  }
  return states
}

interface World {
  browser: RealBrowser
  receiver: Receiver
  newTab: () => Promise<Tab>
  /** `account with whose login`, of every charge that came. */
  asked: () => string[]
}

async function openWorld(engine: (typeof engines)[number], options: ReceiverOptions = {}): Promise<World> {
  const browser = await openRealBrowser(engine)
  const receiver = createReceiver(options)
  browser.handle('/v1/', (request) => receiver.fetch(request))
  return {
    browser,
    receiver,
    newTab: async () => {
      const tab = await openTab(browser)
      await tab.run(load)
      return tab
    },
    asked: () =>
      browser.requests
        .filter(({ path }) => path === '/v1/charges')
        .map(({ headers, body }) => {
          const { metadata } = JSON.parse(body) as { metadata: { billOf: Account } }
          return `${metadata.billOf} with ${headers['authorization']?.replace('Bearer token-of-', '')}`
        }),
  }
}

const ofAna = ({ body }: { readonly body: string }): boolean => body.includes('"ana"')

describe.each(engines)('G49: %s', (engine) => {
  test('what is open of one account is not sent when the next one signs in, and goes when the first is back', async () => {
    const { browser, receiver, newTab, asked } = await openWorld(engine)
    await using _closing = browser
    let tab = await newTab()
    await tab.run(signIn, 'ana')
    // One that may have had its effect, and one that certainly has not.
    receiver.faults.add(status(502, { when: ({ body }) => ofAna({ body }) && receiver.ledger.requests.length < 3 }))
    expect(await tab.run(pay, { account: 'ana', operationId: 'order-1' })).toMatchObject({ status: 'unknown' })
    await tab.run(signIn, undefined)
    expect(await tab.run(pay, { account: 'ana', operationId: 'order-2' })).toMatchObject({
      status: 'deferred',
      reason: 'no-credentials',
    })
    receiver.faults.clear()

    // The page is another one, on the same profile.
    await tab.reload()
    await tab.run(load)
    await tab.run(signIn, 'bob')
    const before = asked().length
    await tab.run(start, 'bob')
    // The same number in Bob's books is an order of his own.
    expect(await tab.run(pay, { account: 'bob', operationId: 'order-1' })).toMatchObject({ status: 'succeeded' })
    expect(await tab.run(resume, 'bob')).toEqual({ total: 0, succeeded: 0, elsewhere: [['user_ana/live', 2]] })
    // Ana's own client, still there, asks for credentials and is given Bob's.
    expect(await tab.run(resume, 'ana')).toMatchObject({ total: 2, succeeded: 0 })
    expect(await tab.run(pay, { account: 'ana', operationId: 'order-2' })).toMatchObject({
      status: 'deferred',
      reason: 'other-login',
    })
    expect(asked().slice(before)).toEqual(['bob with bob'])

    await tab.close()
    tab = await newTab()
    await tab.run(signIn, 'ana')
    expect(await tab.run(resume, 'ana')).toMatchObject({ total: 2, succeeded: 2 })
    expect(new Set(asked())).toEqual(new Set(['ana with ana', 'bob with bob']))
    expect(receiver.ledger.effects).toHaveLength(3)
  })

  test('a tab that still delivers for the one account stops at the moment the other signs in elsewhere', async () => {
    const { browser, receiver, newTab, asked } = await openWorld(engine, { faults: [status(503, { when: ofAna })] })
    await using _closing = browser
    const [one, two] = [await newTab(), await newTab()]
    await one.run(signIn, 'ana')
    expect(await one.run(pay, { account: 'ana', operationId: 'order-1' })).toMatchObject({ status: 'unknown' })
    await one.run(start, 'ana')
    await expect.poll(() => asked().length, { timeout: 20_000 }).toBeGreaterThan(4)

    await two.run(signIn, 'bob')
    // What had its credentials already may just be leaving: with Ana's.
    await new Promise((resolve) => setTimeout(resolve, 300))
    const before = asked().length
    expect(await two.run(pay, { account: 'bob', operationId: 'order-1' })).toMatchObject({ status: 'succeeded' })
    await one.run(() => {
      for (const name of ['online', 'pageshow', 'pageshow']) dispatchEvent(new Event(name))
    })
    await new Promise((resolve) => setTimeout(resolve, 1000))
    expect(asked().slice(before)).toEqual(['bob with bob'])
    expect(await one.run(statesOf, 'ana')).toEqual({ 'order-1': 'sending' })

    receiver.faults.clear()
    await two.run(signIn, 'ana')
    // The tab is looked at again, as it is when the user comes back to it.
    await one.run(() => {
      dispatchEvent(new Event('pageshow'))
    })
    await expect.poll(() => one.run(statesOf, 'ana'), { timeout: 20_000 }).toEqual({ 'order-1': 'succeeded' })
    expect(new Set(asked())).toEqual(new Set(['ana with ana', 'bob with bob']))
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test.each([
    // Asked while Ana was there, answered when Bob was.
    ['for whoever is there then', 'bob', { status: 'deferred', reason: 'other-login' }, []],
    ['for the one who was there when it was asked', 'ana', { status: 'succeeded' }, ['ana with ana']],
    ['never', undefined, { status: 'deferred', reason: 'no-credentials' }, []],
  ] as const)('credentials that are answered late, %s', async (_name, answersFor, outcome, requests) => {
    const { browser, receiver, newTab, asked } = await openWorld(engine)
    await using _closing = browser
    let release = (): void => {}
    const released = new Promise<void>((resolve) => {
      release = resolve
    })
    let tokensAsked = 0
    browser.handle('/token', async () => {
      tokensAsked += 1
      await released
      return answersFor === undefined ? undefined : Response.json({ account: answersFor })
    })
    const [one, two] = [await newTab(), await newTab()]
    await one.begin(async (page) => {
      const { createBillingClient } = await page.billonce()
      const billing = createBillingClient({
        baseUrl: location.origin,
        scope: 'user_ana/live',
        credentialsTimeoutMs: 4000,
        credentials: async () => {
          const { account } = (await (await fetch('/token')).json()) as { account: Account }
          return { scope: `user_${account}/live`, headers: { authorization: `Bearer token-of-${account}` } }
        },
      })
      const paid = await billing.charge(
        { amount: 5000, currency: 'usd', metadata: { billOf: 'ana' } },
        { operationId: 'order-1' },
      )
      return { status: paid.status, ...('reason' in paid ? { reason: paid.reason } : {}) }
    })
    await expect.poll(() => tokensAsked, { timeout: 20_000 }).toBe(1)
    await two.run(signIn, 'bob')
    release()
    expect(await one.end()).toEqual(outcome)
    expect(asked()).toEqual(requests)
    expect(receiver.ledger.effects).toHaveLength(requests.length)
  })

  // A cookie is added by the browser when the request leaves, after everything that a page can check.
  test('where the login is a cookie, a header that names the account lets the server refuse the wrong one', async () => {
    const { browser, receiver, newTab } = await openWorld(engine)
    await using _closing = browser
    const seen: string[] = []
    let account: Account = 'ana'
    browser.handle('/session', () => {
      const answer = Response.json({ account })
      // In the moment after this answer somebody signs in as Bob in another tab.
      if (seen.length === 0) account = 'bob'
      answer.headers.set('set-cookie', `session=of-${account}; Path=/; HttpOnly`)
      return answer
    })
    browser.handle('/v1/', (request) => {
      const session = /session=of-(\w+)/.exec(request.headers.get('cookie') ?? '')?.[1]
      seen.push(`${request.headers.get('x-account')} with ${session}`)
      return request.headers.get('x-account') === session
        ? receiver.fetch(request)
        : new Response(null, { status: 403 })
    })
    const tab = await newTab()
    const payByCookie = async (page: Page) => {
      const { createBillingClient } = await page.billonce()
      const billing = createBillingClient({
        baseUrl: location.origin,
        scope: 'user_ana/live',
        credentials: async () => {
          const session = (await (await fetch('/session')).json()) as { account: Account }
          return { scope: `user_${session.account}/live`, headers: { 'x-account': session.account } }
        },
      })
      const paid = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' })
      await billing.close()
      return { status: paid.status, ...('reason' in paid ? { reason: paid.reason } : {}) }
    }
    // A browser may have sent it twice, so a 403 is no proof that nothing was done.
    expect(await tab.run(payByCookie)).toEqual({ status: 'unknown', reason: 'unauthorized' })
    expect(seen).toEqual(['ana with bob'])
    expect(await tab.run(payByCookie)).toEqual({ status: 'unknown', reason: 'other-login' })
    account = 'ana'
    expect(await tab.run(payByCookie)).toEqual({ status: 'succeeded' })
    expect(seen).toEqual(['ana with bob', 'ana with ana'])
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})
