/**
 * One exchange with the receiver: bytes out, bytes in, the body included. It does not retry and does not judge a reply;
 * deliver.ts does the one, the dialect the other.
 */
import ky from 'ky'
import type { StoredRequest } from '../model/entry.ts'
import type { LostReply, Reply } from '../model/verdict.ts'
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
  const init: RequestInit = {
    method: request.method,
    body: request.body,
    headers: headersOf(exchange),
    // A redirect may lead the write anywhere; it is never followed.
    redirect: 'manual',
    cache: 'no-store',
    signal: controller.signal,
    keepalive: giveBack !== undefined,
  }
  let hasBegun = false
  // The text goes to the fetch and not to ky, whose Request would hold it as a stream, which Node pipes through another (that
  // took a third of a call), and whose signal would be one more. Firefox (153) does not heed keepalive in a Request either.
  const guardedFetch = (): Promise<Response> => {
    if (!exchange.mayLeave()) throw new Error('not sent')
    hasBegun = true
    return runtime.fetch(exchange.url, init)
  }
  const exchanged = (async (): Promise<Reply> => {
    const response = await ky(exchange.url, {
      method: request.method,
      // ky would retry what the journal does not see, and such a retry could outlive the key: so none, and no timeout of its
      // own either, since it would not cover the body.
      retry: 0,
      timeout: false,
      throwHttpErrors: false,
      fetch: guardedFetch,
    })
    return await readReply(response, runtime)
  })().catch((): Reply | 'not-sent' => (hasBegun ? { kind: 'lost', why: 'network' } : 'not-sent'))

  // Whichever comes first, because a fetch that does not heed its signal must not hold the attempt open for ever.
  return await new Promise((resolve) => {
    const stops: (() => void)[] = giveBack ? [giveBack] : []
    const end = (reply: Reply | 'not-sent'): void => {
      // Once: what comes after the first finds nothing left to stop.
      for (const stop of stops.splice(0)) stop()
      resolve(reply)
    }
    const loseAfter = (ms: number, why: LostReply['why']): void => {
      const lose = (): void => {
        end({ kind: 'lost', why })
        controller.abort(DONE)
      }
      stops.push(runtime.timer(ms, lose))
    }
    loseAfter(exchange.timeoutMs, 'timeout')
    // In WebKit (2.50) a page that was kept for the way back never hears of a keepalive request that was on its way.
    const whenAwake = (isRevived: boolean): void => {
      if (isRevived) loseAfter(AFTER_REVIVAL_MS, 'network')
    }
    if (giveBack) stops.push(runtime.onWake(whenAwake))
    void exchanged.then(end)
  })
}

/** The stored ones have the last word, whatever case the fresh ones are written in. */
function headersOf({ request, freshHeaders }: Exchange): Record<string, string> {
  const headers: Record<string, string> = { accept: 'application/json' }
  const set = (all: Readonly<Record<string, string>>): void => {
    for (const name in all) headers[name.toLowerCase()] = all[name] ?? ''
  }
  set(freshHeaders)
  set(request.headers)
  if (request.contentType !== null) headers['content-type'] = request.contentType
  if (request.keyHeader) headers[request.keyHeader.name.toLowerCase()] = request.keyHeader.value
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

/** Made at the first reply; it keeps nothing of one for the next. */
let decoder: TextDecoder | undefined

function decode(bytes: ArrayBuffer): string | undefined {
  try {
    decoder ??= new TextDecoder('utf-8', { fatal: true })
    return decoder.decode(bytes)
  } catch {
    return undefined
  }
}
