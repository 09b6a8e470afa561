/**
 * Two contexts of one origin over one journal, in real browsers: each with globals, locks and an owner of its own, as two
 * tabs have.
 */
import { createReceiver } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page } from '../support/real-browser.ts'

const COUNT = 50

/** Runs in the page: leaves charges pending in the journal, as a customer does who is signed out. */
async function leavePending(page: Page, count: number): Promise<string[]> {
  const { createBillingClient } = await page.billonce()
  const billing = createBillingClient({
    baseUrl: location.origin,
    scope: 'org_42/test',
    credentials: () => {
      throw new Error('signed out')
    },
  })
  const statuses: string[] = []
  for (let number = 1; number <= count; number += 1) {
    const outcome = await billing.charge({ amount: number, currency: 'eur' }, { operationId: `order-${number}` })
    statuses.push(outcome.status)
  }
  await billing.close()
  return statuses
}

/** Runs in the page: two frames resume at the same moment, each with a library and globals of its own. */
async function resumeInTwoFrames(_page: Page, withLocks: boolean) {
  const frames = await Promise.all(
    [1, 2].map(async () => {
      const frame = document.createElement('iframe')
      frame.srcdoc = '<!doctype html><title>tab</title>'
      const loaded = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }))
      document.body.append(frame)
      await loaded
      return frame.contentWindow as unknown as { eval: (code: string) => Promise<unknown> }
    }),
  )
  const code = `(async () => {
    if (!${withLocks}) Object.defineProperty(navigator, 'locks', { value: undefined })
    const { createBillingClient } = await import('${location.origin}/billonce.js')
    const billing = createBillingClient({ baseUrl: '${location.origin}', scope: 'org_42/test', headers: { authorization: 'Bearer t' } })
    const summary = await billing.resume()
    await billing.close()
    return { total: summary.total, succeeded: summary.succeeded, waiting: summary.waiting, failed: summary.failed }
  })()`
  return await Promise.all(frames.map((frame) => frame.eval(code)))
}

describe.each(engines)('%s', (engine) => {
  test.each([true, false])('G47: two tabs resume fifty open charges at once, with Web Locks: %s', async (withLocks) => {
    await using browser = await openRealBrowser(engine)
    const receiver = createReceiver()
    browser.handle('/v1/', (request) => receiver.fetch(request))
    expect(new Set(await browser.run(leavePending, COUNT))).toEqual(new Set(['deferred']))
    expect(receiver.ledger.requests).toHaveLength(0)

    const summaries = (await browser.run(resumeInTwoFrames, withLocks)) as {
      total: number
      succeeded: number
      failed: number
    }[]
    expect(summaries.map(({ failed }) => failed)).toEqual([0, 0])
    expect(receiver.ledger.effects).toHaveLength(COUNT)
    const { requests } = receiver.ledger
    expect(new Set(requests.map((request) => request.key)).size).toBe(COUNT)
    expect(new Set(requests.map((request) => `${request.key} ${request.body}`)).size).toBe(COUNT)
    // Claims are taken in one transaction with the begin of the attempt, so in normal running each has one sender.
    expect(requests).toHaveLength(COUNT)
    // What one tab delivered, the other one knows.
    expect(summaries.every(({ succeeded, total }) => succeeded === total)).toBe(true)
  })
})
