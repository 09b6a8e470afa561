/**
 * One exchange with the receiver: bytes out, bytes in, the body included. It does not retry and does not judge a reply;
 * deliver.ts does the one, the dialect the other.
 */
import ky from 'ky'
import type { StoredRequest } from '../model/entry.ts'
import type { Reply } from '../model/verdict.ts'
import { takeShare } from './keepalive.ts'
import { DONE } from './runtime.ts'
import type { Runtime } from './runtime.ts'

export interface Exchange {
  readonly url: string
  readonly request: Omit<StoredRequest, 'path' | 'keyHeader' | 'contentType'> & {
    /** `null` for a look-up, which writes nothing. */
    readonly keyHeader: StoredRequest['keyHeader'] | null
    readonly contentType: string | null
  }
  /** Credentials and trace headers, taken afresh for this attempt; they are not stored. */
  readonly freshHeaders: Readonly<Record<string, string>>
  readonly timeoutMs: number
  /** Whether it may go on when the page is gone, where there is room for that. */
  readonly mayOutlive: boolean
  /** Asked synchronously just before the fetch: `false` and nothing leaves. */
  readonly mayLeave: () => boolean
}

/** So long a reply to a request that outlived the page is waited for when the page is back; where one comes, it is there at once. */
const AFTER_REVIVAL_MS = 3000

/** What a dialect may look at, and what support asks for; nothing else of a reply's headers is kept. */
const KEPT_HEADERS = [
  'content-type',
  'retry-after',
  'date',
  'idempotent-replayed',
  'stripe-should-retry',
  'request-id',
  'x-request-id',
]

/**
 * Sends once.
 *
 * @returns the reply; or `not-sent` if the fetch was never begun. Never rejects: whatever fetch throws once begun is a lost
 *   reply, and message text is never looked at.
 */
export async function send(exchange: Exchange, runtime: Runtime): Promise<Reply | 'not-sent'> {
  const { request } = exchange
  const giveBack =
    exchange.mayOutlive && runtime.isPage() && request.body !== null ? takeShare(request.body) : undefined
  const controller = new AbortController()
  let hasBegun = false
  const guardedFetch: typeof fetch = (input, init) => {
    if (!exchange.mayLeave()) throw new Error('not sent')
    hasBegun = true
    // Beside ky's Request, since Firefox (153) does not heed what a Request says of it.
    return runtime.fetch(input, giveBack ? { ...init, keepalive: true } : init)
  }
  const exchanged = (async (): Promise<Reply> => {
    const response = await ky(exchange.url, {
      method: request.method,
      body: request.body,
      headers: headersOf(exchange),
      // ky would retry what the journal does not see, and such a retry could outlive the key: so none, and no timeout of its
      // own either, since it would not cover the body.
      retry: 0,
      timeout: false,
      throwHttpErrors: false,
      // A redirect may lead the write anywhere; it is never followed.
      redirect: 'manual',
      cache: 'no-store',
      signal: controller.signal,
      fetch: guardedFetch,
    })
    return await readReply(response, runtime)
  })().catch((): Reply | 'not-sent' => (hasBegun ? { kind: 'lost', why: 'network' } : 'not-sent'))

  // The race, because a fetch that does not heed its signal must not hold the attempt open for ever.
  const timedOut = new AbortController()
  const timeout = runtime
    .sleep(exchange.timeoutMs, timedOut.signal)
    .then((): Reply => ({ kind: 'lost', why: 'timeout' }))
  // In WebKit (2.50) a page that was kept for the way back never hears of a keepalive request that was on its way.
  let stopListening = (): void => {}
  const unheard = new Promise<Reply>((resolve) => {
    if (!giveBack) return
    stopListening = runtime.onWake((isRevived) => {
      if (!isRevived) return
      void runtime.sleep(AFTER_REVIVAL_MS, timedOut.signal).then(() => resolve({ kind: 'lost', why: 'network' }))
    })
  })
  try {
    return await Promise.race([exchanged, timeout, unheard])
  } finally {
    stopListening()
    timedOut.abort(DONE)
    controller.abort(DONE)
    giveBack?.()
  }
}

/** The stored ones have the last word, whatever case the fresh ones are written in. */
function headersOf({ request, freshHeaders }: Exchange): Headers {
  const headers = new Headers({ accept: 'application/json' })
  const all = { ...freshHeaders, ...request.headers }
  for (const [name, value] of Object.entries(all)) headers.set(name, value)
  if (request.contentType !== null) headers.set('content-type', request.contentType)
  if (request.keyHeader) headers.set(request.keyHeader.name, request.keyHeader.value)
  return headers
}

async function readReply(response: Response, runtime: Runtime): Promise<Reply> {
  const bytes = await response.arrayBuffer()
  const body = decode(bytes)
  if (body === undefined) return { kind: 'lost', why: 'undecodable' }
  const headers: Record<string, string> = {}
  for (const name of KEPT_HEADERS) {
    const value = response.headers.get(name)
    if (value !== null) headers[name] = value
  }
  const isRedirect = response.type === 'opaqueredirect' || (response.status >= 300 && response.status < 400)
  return { kind: 'http', status: response.status, isRedirect, headers, body, receivedAtMs: runtime.nowMs() }
}

function decode(bytes: ArrayBuffer): string | undefined {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch {
    return undefined
  }
}
