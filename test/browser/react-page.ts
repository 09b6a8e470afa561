/**
 * A page of its own: what an iframe of react.test.ts imports, so that it has its own modules, React and client, and dies with the
 * iframe as a page does on reload. The wire is the test's, since the receiver has to outlive the page.
 */
import { createBillingClient } from 'billonce'
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { createElement, StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Checkout } from '../../examples/react-checkout.tsx'

/** What the test hands to its pages: plain values only, since a `Request` of one window is none in another. */
export interface PageWire {
  readonly database: string
  post(url: string, headers: readonly (readonly [string, string])[], body: string): Promise<PageReply>
}

export interface PageReply {
  readonly status: number
  readonly headers: readonly (readonly [string, string])[]
  readonly body: string
}

const { pageWire } = window.parent as unknown as { readonly pageWire: PageWire }

const billing = createBillingClient({
  baseUrl: 'https://billing.test/',
  scope: 'org_42/test',
  journal: indexedDbJournal({ name: pageWire.database }),
  headers: { authorization: 'Bearer t' },
  async fetch(input, init) {
    const request = new Request(input, init)
    const reply = await pageWire.post(request.url, [...request.headers], await request.text())
    return new Response(reply.body, {
      status: reply.status,
      headers: reply.headers.map(([name, value]) => [name, value]),
    })
  },
})
billing.start()

const container = document.body.appendChild(document.createElement('main'))
createRoot(container).render(createElement(StrictMode, null, createElement(Checkout, { billing, order: '991' })))
