/**
 * What goes over the wire between a client and the receiver, without saying which wire: a request as it arrived, and a
 * delivery, which is a reply or one of the ways in which a connection fails. The fetch form is made here; server.ts
 * makes the same from a socket, and receiver.ts decides what is delivered.
 */

/** A request as it arrived, whole. */
export interface IncomingRequest {
  /** Upper case, as sent: `POST`. */
  readonly method: string
  /** Absolute, or the path alone; only its path is looked at. */
  readonly url: string
  readonly headers: Headers
  /** The exact text of the body; `''` if there was none. */
  readonly body: string
}

/** A whole reply. */
export interface Reply {
  /** 200 to 599. */
  readonly status: number
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string>>
  /** The exact text of the body; `''` for none. */
  readonly body: string
}

/** What the receiver hands to the wire: a reply, or a connection that fails in one way or another. */
export type Delivery =
  | ({ readonly how: 'reply' } & Reply)
  /** Closed without a byte of a reply; on a socket an orderly close (FIN). */
  | { readonly how: 'closed' }
  /** Reset without a byte of a reply; on a socket RST (`ECONNRESET` at the client). */
  | { readonly how: 'reset' }
  /**
   * Headers and the first `keepBytes` bytes of the body, then the connection is gone. `framing` says how the client
   * could tell: a `Content-Length` that is not reached, or a chunked body without its last chunk.
   */
  | ({ readonly how: 'cut'; readonly keepBytes: number; readonly framing: 'length' | 'chunked' } & Reply)
  /** Silence on an open connection: from the start, or after the headers. */
  | ({ readonly how: 'stalled'; readonly after: 'nothing' | 'headers' } & Reply)

/** Statuses of which `Response` allows no body. */
const WITHOUT_BODY: ReadonlySet<number> = new Set([204, 205, 304])

/**
 * A delivery in the form that `fetch` gives it: network failures reject with a `TypeError`, as in every runtime;
 * a cut body is a `Response` whose stream fails after its first part; silence lasts until `signal` aborts, and then
 * rejects with its reason (a body that is read by `text()` or `json()` with a `TypeError` in Chromium, whatever the reason).
 *
 * @param signal of the request; without one, silence lasts for ever
 */
export async function responseOf(delivery: Delivery, signal?: AbortSignal | null): Promise<Response> {
  switch (delivery.how) {
    case 'reply': {
      const { status, body } = delivery
      return new Response(WITHOUT_BODY.has(status) || body === '' ? null : body, {
        status,
        headers: framedHeadersOf(delivery),
      })
    }
    case 'closed':
    case 'reset':
      // The same words that undici uses; Chromium says «Failed to fetch», WebKit «Load failed». None of them means more.
      throw new TypeError('fetch failed')
    case 'cut': {
      const { status, body, keepBytes } = delivery
      return new Response(brokenBody(body, keepBytes), { status, headers: framedHeadersOf(delivery) })
    }
    case 'stalled': {
      if (delivery.after === 'nothing') return unlessAborted(new Promise<never>(() => {}), signal)
      return new Response(silentBody(signal), { status: delivery.status, headers: framedHeadersOf(delivery) })
    }
  }
}

/**
 * The headers of a delivery with those that say where its body ends. Without them a body that is cut off looks whole: a
 * client, and msw in Node, then takes the end of the connection for the end of the body.
 */
export function framedHeadersOf(delivery: Extract<Delivery, Reply>): Record<string, string> {
  const { status, headers, body, how } = delivery
  if (how === 'cut' && delivery.framing === 'chunked') return { ...headers, 'transfer-encoding': 'chunked' }
  if (WITHOUT_BODY.has(status)) return headers
  // Silence with nothing left to say would be a whole reply.
  const bytes = Math.max(new TextEncoder().encode(body).length, how === 'stalled' ? 1 : 0)
  return { ...headers, 'content-length': String(bytes) }
}

/** What `promise` comes to, or the signal's reason if that aborts first. Leaves no listener behind. */
export function unlessAborted<T>(promise: Promise<T>, signal?: AbortSignal | null): Promise<T> {
  if (!signal) return promise
  return new Promise<T>((resolve, reject) => {
    const giveUp = (): void => reject(signal.reason)
    if (signal.aborted) giveUp()
    signal.addEventListener('abort', giveUp, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', giveUp))
  })
}

function brokenBody(body: string, keepBytes: number): ReadableStream<Uint8Array> {
  const kept = new TextEncoder().encode(body).slice(0, keepBytes)
  let given = kept.length === 0
  return new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (given) {
          controller.error(new TypeError('terminated'))
        } else {
          given = true
          controller.enqueue(kept)
        }
      },
    },
    // No reading ahead: an error that comes before the part was read would throw the part away.
    { highWaterMark: 0 },
  )
}

function silentBody(signal?: AbortSignal | null): ReadableStream<Uint8Array> {
  let giveUp = (): void => {}
  return new ReadableStream<Uint8Array>({
    start(controller) {
      giveUp = () => controller.error(signal?.reason)
      if (signal?.aborted) giveUp()
      signal?.addEventListener('abort', giveUp, { once: true })
    },
    cancel() {
      signal?.removeEventListener('abort', giveUp)
    },
  })
}
