/**
 * `billonce/testing/msw`: the receiver as request handlers for msw, in Node (`msw/node`) and in browsers (`msw/browser`).
 * It translates and decides nothing; requests that are none of the receiver's writes are left to other handlers.
 */
import { http, HttpResponse, type HttpHandler } from 'msw'
import type { Receiver } from './receiver.ts'
import { responseOf } from './wire.ts'

/** Which requests the handlers take. */
export interface HandlersOptions {
  /** What the client has as `baseUrl`: `https://api.example.com`, with or without a path. Default: any host. */
  readonly baseUrl?: string
}

/**
 * One handler for each write of the receiver, under `baseUrl`. Every method is taken, so that a wrong one gets the
 * receiver's 405; every other path falls through to your other handlers and then to msw's own rule for requests that
 * nobody handles (`onUnhandledRequest` in msw 2, `onUnhandledFrame` in msw 3).
 *
 * Connection faults become `HttpResponse.error()`, which `fetch` rejects with a `TypeError`. Silence ends with the
 * request's signal, and lasts for ever where msw does not pass that on (a service worker).
 *
 * @example
 * const server = setupServer(...handlers(receiver, { baseUrl: 'https://api.example.com' }))
 */
export function handlers(receiver: Pick<Receiver, 'handle' | 'paths'>, options: HandlersOptions = {}): HttpHandler[] {
  const base = options.baseUrl?.replace(/\/+$/, '') ?? '*'
  return receiver.paths.map((path) =>
    http.all(`${base}/${path}`, async ({ request }) => {
      const { method, url, headers } = request
      const delivery = await receiver.handle({ method, url, headers, body: await request.text() })
      // A rejection would be taken for a mistake in a handler, and answered with 500.
      return responseOf(delivery, request.signal).catch(() => HttpResponse.error())
    }),
  )
}
