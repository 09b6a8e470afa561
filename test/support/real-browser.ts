/**
 * A real browser that a test can kill and start again on the same profile. There is no driver: the page, served by a
 * server of ours, asks for its next command and posts what came of the last, which is the same code for every engine
 * and survives a SIGKILL. The server keeps its port, so the origin and what is stored under it stay the same.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Engine } from './browsers.ts'
import { bundleForPage } from './bundle.ts'
import { SpawnedBrowser } from './spawn-browser.ts'

/** What a function that runs in the page is handed; nothing else of the test file exists there. */
export interface Page {
  billonce(): Promise<typeof import('billonce')>
  indexeddb(): Promise<typeof import('billonce/stores/indexeddb')>
  serviceWorker(): Promise<typeof import('billonce/service-worker')>
  /**
   * Goes to another address, or steps back (-1) or forward (1), once the function has returned. Nothing of ours is in flight
   * then, which would keep the page out of the back/forward cache; a page that comes out of it listens again.
   */
  leaveFor(target: string | number): void
  /** How often this page has come out of the back/forward cache. */
  readonly revivals: number
}

/** The wire under one request, for what a `Response` cannot say. */
export interface Exchange {
  /** Cuts the connection with a TCP reset, as a proxy that restarts does. */
  reset(): void
  /** Whether the browser still waits for the answer; one that gives up a request of HTTP/1.1 closes its connection. */
  isAwaited(): boolean
}

/** `undefined` leaves the request without an answer for as long as the browser lives. */
export type Handler = (
  request: Request,
  exchange: Exchange,
) => Response | undefined | void | Promise<Response | undefined | void>

export interface SeenRequest {
  method: string
  path: string
  headers: Record<string, string>
  body: string
}

export class BrowserGoneError extends Error {
  override readonly name = 'BrowserGoneError'
}

interface Command {
  id: number
  code: string
  resolve(value: unknown): void
  reject(reason: Error): void
}

const launchTimeoutMs = 60_000

/** Starts the engine with a fresh profile and waits for its page. `await using` ends it and removes the profile. */
export async function openRealBrowser(
  engine: Engine,
  moreArgs: readonly string[] = [],
  host?: string,
): Promise<RealBrowser> {
  const browser = new RealBrowser(engine, moreArgs, host)
  try {
    await browser.launch()
    return browser
  } catch (error) {
    await browser.close()
    throw error
  }
}

export class RealBrowser implements AsyncDisposable {
  /** Every request but our own to the page, in the order in which they came. */
  readonly requests: SeenRequest[] = []
  /** Pages that have said that they are there; commands go to the latest. */
  pagesOpened = 0
  readonly #engine: Engine
  readonly #host: string
  readonly #process: SpawnedBrowser
  readonly #handlers = new Map<string, Handler>()
  readonly #server: Server = createServer((request, response) => {
    this.#serve(request, response).catch((error: unknown) => {
      if (!response.headersSent) response.writeHead(500, { 'content-type': 'text/plain' })
      response.end(error instanceof Error ? error.stack : String(error))
    })
  })
  #origin: string | undefined
  /** Counts launches; a page of an earlier one (a browser may restore its tabs) is not listened to. */
  #launch = 0
  #onHello: (() => void) | undefined
  #waiting: ServerResponse | undefined
  #queue: Command[] = []
  #running: Command | undefined
  #lastId = 0

  /** @param host an address of this machine; only a page of the loopback's is a secure context without https */
  constructor(engine: Engine, moreArgs: readonly string[] = [], host: string = '127.0.0.1') {
    this.#engine = engine
    this.#host = host
    this.#process = new SpawnedBrowser(engine, moreArgs)
  }

  get profile(): string {
    return this.#process.profile
  }

  /** `http://host:port`, the same for every launch. */
  get origin(): string {
    if (this.#origin === undefined) throw new Error('Not launched yet')
    return this.#origin
  }

  /** The same server under another name, which is another site to the browser. */
  get otherOrigin(): string {
    return this.origin.replace('127.0.0.1', 'localhost')
  }

  /** The address of the page that takes commands, here or under {@link otherOrigin}. */
  pageAt(origin: string): string {
    return `${origin}/?launch=${this.#launch}`
  }

  /** Answers requests to this path, and to all below it if it ends with a slash; a later one replaces it. */
  handle(path: string, handler: Handler): void {
    this.#handlers.set(path, handler)
  }

  /** Starts the browser on its profile, the first time or after {@link kill}; resolves when its page is ready. */
  async launch(): Promise<void> {
    if (this.#origin === undefined) {
      await new Promise<void>((resolve) => this.#server.listen(0, this.#host, resolve))
      this.#origin = `http://${this.#host}:${(this.#server.address() as AddressInfo).port}`
    }
    this.#launch += 1
    await this.#process.open(`${this.#origin}/?launch=${this.#launch}`)
    // Nothing is missed: the page needs longer to load than this takes to listen.
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => {
        reject(new Error(`${this.#engine} did not open its page. It said: ${this.#process.lastWords}`))
      }, launchTimeoutMs)
      this.#onHello = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  /**
   * Runs the function in the page and resolves with what it returns, by way of JSON. The function is sent as text: it
   * sees its two parameters and the page, and no variable or import of the test around it.
   *
   * @throws {BrowserGoneError} the browser was killed before the function had returned
   */
  run<Result, Argument = undefined>(
    code: (page: Page, argument: Argument) => Result | Promise<Result>,
    ...[argument]: Argument extends undefined ? [] : [argument: Argument]
  ): Promise<Result> {
    const text = JSON.stringify(argument) as string | undefined
    const outcome = new Promise<unknown>((resolve, reject) => {
      this.#lastId += 1
      this.#queue.push({
        id: this.#lastId,
        code: `(${code.toString()})(page, ${text ?? 'undefined'})`,
        resolve,
        reject,
      })
      this.#sendNext()
    })
    // A test that kills the browser from a handler often looks at this only afterwards, or never.
    outcome.catch(() => {})
    return outcome as Promise<Result>
  }

  /** SIGKILL to every process of the browser; what it was running rejects. The profile stays as it was that moment. */
  async kill(): Promise<void> {
    await this.#process.kill()
    this.#waiting = undefined
    const lost = [...(this.#running ? [this.#running] : []), ...this.#queue]
    this.#running = undefined
    this.#queue = []
    for (const command of lost) command.reject(new BrowserGoneError(`${this.#engine} was killed`))
    // Requests that were left unanswered on purpose.
    this.#server.closeAllConnections()
  }

  async relaunch(): Promise<void> {
    await this.kill()
    await this.launch()
  }

  async close(): Promise<void> {
    await this.kill()
    await this.#process.close()
    if (this.#server.listening) await new Promise((resolve) => this.#server.close(resolve))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close()
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', this.origin)
    const body = await textOf(request)
    if (url.pathname === '/')
      return send(
        response,
        // With no-store the page could not be kept for the way back.
        new Response(pageHtml, { headers: { 'content-type': 'text/html', 'cache-control': 'no-cache' } }),
      )
    if (url.pathname === '/favicon.ico') return send(response, new Response(null, { status: 404 }))
    if (url.pathname === '/next') return this.#next(url, body, response)
    if (url.pathname.endsWith('.js')) {
      const code = (await bundleForPage()).files.get(url.pathname.slice(1))
      if (code !== undefined) {
        return send(response, new Response(code, { headers: { 'content-type': 'text/javascript' } }))
      }
    }
    const headers = Object.fromEntries(
      Object.entries(request.headers).map(([name, value]) => [name, String(value)] as const),
    )
    const method = request.method ?? 'GET'
    this.requests.push({ method, path: url.pathname, headers, body })
    const handler = this.#handlerOf(url.pathname)
    if (handler === undefined) return send(response, new Response(`No handler for ${url.pathname}`, { status: 404 }))
    const answer = await handler(
      new Request(url, { method, headers, ...(method === 'GET' || method === 'HEAD' ? {} : { body }) }),
      { reset: () => request.socket.resetAndDestroy(), isAwaited: () => !request.socket.destroyed },
    )
    if (answer !== undefined) await send(response, answer)
  }

  #handlerOf(path: string): Handler | undefined {
    const exact = this.#handlers.get(path)
    if (exact !== undefined) return exact
    return [...this.#handlers].find(([prefix]) => prefix.endsWith('/') && path.startsWith(prefix))?.[1]
  }

  /** The page tells what came of the last command and waits for the next one. */
  #next(url: URL, body: string, response: ServerResponse): void {
    if (Number(url.searchParams.get('launch')) !== this.#launch) {
      response.writeHead(410).end()
      return
    }
    const report = JSON.parse(body) as { hello?: true; leaving?: true; id?: number; value?: unknown; error?: string }
    if (report.leaving) response.writeHead(204).end()
    else this.#waiting = response
    response.once('close', () => {
      if (this.#waiting === response) this.#waiting = undefined
    })
    if (report.hello) {
      this.pagesOpened += 1
      this.#onHello?.()
    }
    const done = this.#running
    if (done !== undefined && done.id === report.id) {
      this.#running = undefined
      if (report.error === undefined) done.resolve(report.value)
      else done.reject(new Error(`In ${this.#engine}: ${report.error}`))
    }
    this.#sendNext()
  }

  #sendNext(): void {
    if (this.#waiting === undefined || this.#running !== undefined) return
    const command = this.#queue.shift()
    if (command === undefined) return
    this.#running = command
    const response = this.#waiting
    this.#waiting = undefined
    response.writeHead(200, { 'content-type': 'application/json' })
    response.end(JSON.stringify({ id: command.id, code: command.code }))
  }
}

// A report that is lost with the page is what a crash is; a server that is gone ends the loop.
const pageHtml = `<!doctype html>
<meta charset="utf-8">
<title>billonce</title>
<script type="module">
let target
const page = {
  billonce: () => import('/billonce.js'),
  indexeddb: () => import('/indexeddb.js'),
  serviceWorker: () => import('/service-worker.js'),
  leaveFor: (where) => { target = where },
  revivals: 0,
}
async function listen() {
  let report = { hello: true }
  for (;;) {
    const response = await fetch('/next' + location.search, { method: 'POST', body: JSON.stringify(report) })
    if (!response.ok || report.leaving) break
    const { id, code } = await response.json()
    try {
      report = { id, value: await new Function('page', 'return ' + code)(page) }
    } catch (error) {
      report = { id, error: error instanceof Error ? error.name + ': ' + error.message + '\\n' + error.stack : String(error) }
    }
    if (target !== undefined) report.leaving = true
  }
  // Firefox counts a request as in flight for a moment after its reply.
  await new Promise((resolve) => setTimeout(resolve, 100))
  if (typeof target === 'number') history.go(target)
  else if (target !== undefined) location.href = target
  target = undefined
}
addEventListener('pageshow', ({ persisted }) => {
  if (persisted) page.revivals += 1
  if (persisted) listen()
})
listen()
</script>
`

async function textOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  return Buffer.concat(parts).toString('utf8')
}

async function send(response: ServerResponse, answer: Response): Promise<void> {
  const body = Buffer.from(await answer.arrayBuffer())
  // The browser may have been killed meanwhile.
  if (response.destroyed) return
  response.writeHead(answer.status, { 'cache-control': 'no-store', ...Object.fromEntries(answer.headers) })
  response.end(body)
}
