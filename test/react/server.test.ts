/** G70: components that use the hooks are rendered on a server, and nothing is touched. */
import { createBillingClient } from 'billonce'
import type { BillingClient } from 'billonce'
import { createElement, StrictMode } from 'react'
import { renderToString } from 'react-dom/server'
import { expect, test, vi } from 'vitest'
import { Checkout, OpenPayments } from '../../examples/react-checkout.tsx'
import { journalWith } from '../engine/tampering.ts'
import { setUp } from '../support/world.ts'

const page = (billing: BillingClient) =>
  createElement(
    StrictMode,
    null,
    createElement(Checkout, { billing, order: '991' }),
    createElement(OpenPayments, { billing }),
  )

test('rendering reads no journal, listens to nothing, sets no timer and sends nothing', async () => {
  const world = setUp()
  await world.billing.charge({ amount: 5000, currency: 'eur' }, { operationId: 'order-991' })
  const requests = world.receiver.ledger.requests.length
  const touched: string[] = []
  const journal = journalWith(world.journal, async (call, run) => {
    touched.push(call.method)
    return await run()
  })
  const billing = createBillingClient({
    baseUrl: 'https://billing.test/',
    scope: 'org_42/test',
    journal,
    fetch: world.receiver.fetch,
  })
  const subscribe = vi.spyOn(billing, 'subscribe')
  const timer = vi.spyOn(globalThis, 'setTimeout')
  const html = renderToString(page(billing))
  expect(timer).not.toHaveBeenCalled()
  timer.mockRestore()
  await new Promise((resolve) => setTimeout(resolve, 20))
  expect(subscribe).not.toHaveBeenCalled()
  expect(touched).toEqual([])
  expect(world.receiver.ledger.requests).toHaveLength(requests)
  // The order is paid, but a server cannot know it: nothing is offered, and nothing said.
  expect(html).toMatch(/<button aria-disabled="true"[^>]*>Pay/)
  expect(html).toContain('<p role="status"></p>')
  expect(html).toContain('<ul></ul>')
})

test('a client without a journal can be rendered too: what is missing is told when it is asked', () => {
  const billing = createBillingClient({ baseUrl: 'https://billing.test/', scope: 'org_42/test' })
  expect(renderToString(page(billing))).toContain('Pay')
})
