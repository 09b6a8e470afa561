/**
 * `billonce/testing/server`: the receiver behind a real HTTP server, where faults happen to real sockets. For Node. It
 * decides nothing: what is delivered comes from the receiver, and how it looks on a socket is made here.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { Receiver } from './receiver.ts'
import { framedHeadersOf, type Delivery } from './wire.ts'

/** Cross-origin access for browsers. */
export interface CorsOptions {
  /** `Access-Control-Allow-Origin`; default the origin that asks. */
  readonly origin?: string
  /**
   * Request headers allowed by the preflight; default `Authorization`, `Content-Type`, `Idempotency-Key` and trace headers.
   * Leave `Idempotency-Key` out to see what a browser makes of a server that forgot it.
   */
  readonly allowHeaders?: readonly string[]
  /** Headers of replies that pages may read; default `Retry-After`, `Idempotent-Replayed` and `Date`. */
  readonly exposeHeaders?: readonly string[]
}

/** Where and how it listens. */
export interface ServerOptions {
  /** Default 0: one that is free. */
  readonly port?: number
  /** Default `127.0.0.1`. */
  readonly host?: string
  /** Default: on, for the origin that asks. `false`: no cross-origin headers, and preflights fail. */
  readonly cors?: CorsOptions | boolean
  /**
   * What becomes of a connection after a reply. `keep` (default): kept for the next request. `close`: closed, and announced
   * with `Connection: close`. `drop`: closed without a word, which a client that pools connections finds out when it writes.
   */
  readonly connections?: 'keep' | 'close' | 'drop'
}

/** A server that listens. */
export interface RunningServer {
  /** `http://127.0.0.1:12345`, without a slash at the end. */
  readonly url: string
  readonly port: number
  /** Stops listening and destroys what is open; resolves when nothing is left. May be called again. */
  close(): Promise<void>
  [Symbol.asyncDispose](): Promise<void>
}

const DEFAULT_ALLOW_HEADERS: readonly string[] = [
  'Authorization',
  'Content-Type',
  'Idempotency-Key',
  'traceparent',
  'tracestate',
]
const DEFAULT_EXPOSE_HEADERS: readonly string[] = ['Retry-After', 'Idempotent-Replayed', 'Date']

/** A client that sends more than this is answered 413; the receiver keeps every body in memory. */
const MAX_BODY_BYTES = 1024 * 1024

/**
 * Serves a receiver over HTTP. Several servers may serve one receiver, and it outlives them: close one and start another on
 * the same port, and the keys are still known.
 *
 * @throws what `listen` fails with, such as `EADDRINUSE`
 * @example
 * await using server = await startServer(createReceiver({ faults: [resetAfter({ attempt: 1 })] }))
 * const billing = createBillingClient({ baseUrl: server.url, scope: 'org_1/test' })
 */
export async function startServer(
  receiver: Pick<Receiver, 'handle'>,
  options: ServerOptions = {},
): Promise<RunningServer> {
  const { port = 0, host = '127.0.0.1', cors = true, connections = 'keep' } = options
  const corsOptions = cors === true ? {} : cors
  const sockets = new Set<Socket>()
  const server = createServer((request, response) => {
    // A client that has gone is no failure of the server's; the receiver's work goes on without it.
    response.on('error', () => {})
    answer(request, response).catch((error: unknown) => response.destroy(error instanceof Error ? error : undefined))
  })
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => sockets.delete(socket))
  })

  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    if (corsOptions) allowOrigin(response, request.headers.origin, corsOptions)
    if (request.method === 'OPTIONS' && request.headers['access-control-request-method'] !== undefined) {
      if (corsOptions) allowPreflight(response, corsOptions)
      else response.writeHead(403).end()
      return
    }
    const body = await bodyOf(request)
    if (body === undefined) {
      response.writeHead(413, { connection: 'close' }).end()
      return
    }
    const headers = new Headers()
    for (const [name, values] of Object.entries(request.headersDistinct)) {
      for (const value of values ?? []) headers.append(name, value)
    }
    const { method = 'GET', url = '/' } = request
    deliver(await receiver.handle({ method, url, headers, body }), response, connections)
  }

  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, () => {
      server.off('error', reject)
      resolve()
    })
  })
  // Not a pipe and listening, so an address.
  const address = server.address() as AddressInfo
  const close = async (): Promise<void> => {
    const closed = server.listening ? new Promise<void>((resolve) => server.close(() => resolve())) : undefined
    for (const socket of sockets) socket.destroy()
    await closed
  }
  return {
    url: `http://${address.family === 'IPv6' ? `[${address.address}]` : address.address}:${address.port}`,
    port: address.port,
    close,
    [Symbol.asyncDispose]: close,
  }
}

function deliver(delivery: Delivery, response: ServerResponse, connections: 'keep' | 'close' | 'drop'): void {
  const { socket } = response
  switch (delivery.how) {
    case 'reply': {
      if (connections === 'close') response.setHeader('connection', 'close')
      if (connections === 'drop') response.on('finish', () => socket?.end())
      response.writeHead(delivery.status, framedHeadersOf(delivery)).end(delivery.body)
      return
    }
    case 'closed':
      socket?.destroy()
      return
    case 'reset':
      socket?.resetAndDestroy()
      return
    case 'cut': {
      response.writeHead(delivery.status, framedHeadersOf(delivery)).flushHeaders()
      const part = Buffer.from(delivery.body).subarray(0, delivery.keepBytes)
      // Destroyed once the part is with the system, which then still sends it: it closes in order, before its time.
      if (part.length === 0) socket?.destroySoon()
      else response.write(part, () => socket?.destroySoon())
      return
    }
    case 'stalled':
      if (delivery.after === 'headers') response.writeHead(delivery.status, framedHeadersOf(delivery)).flushHeaders()
      return
  }
}

/** The body as text; `undefined` if it is too long. */
async function bodyOf(request: IncomingMessage): Promise<string | undefined> {
  const parts: Buffer[] = []
  let bytes = 0
  for await (const part of request as AsyncIterable<Buffer>) {
    bytes += part.length
    if (bytes > MAX_BODY_BYTES) return undefined
    parts.push(part)
  }
  return Buffer.concat(parts).toString('utf8')
}

function allowOrigin(response: ServerResponse, asking: string | undefined, cors: CorsOptions): void {
  const { exposeHeaders = DEFAULT_EXPOSE_HEADERS, origin } = cors
  const allowed = origin ?? asking
  if (allowed === undefined) return
  response.setHeader('access-control-allow-origin', allowed)
  // Not among the few headers that a page may read without being told so.
  response.setHeader('access-control-expose-headers', exposeHeaders.join(', '))
  response.setHeader('vary', 'Origin')
}

function allowPreflight(response: ServerResponse, { allowHeaders = DEFAULT_ALLOW_HEADERS }: CorsOptions): void {
  response.writeHead(204, {
    'access-control-allow-methods': 'GET, POST, PUT, PATCH, DELETE',
    'access-control-allow-headers': allowHeaders.join(', '),
    // Not kept, so that each test sees its own.
    'access-control-max-age': '0',
  })
  response.end()
}
