/**
 * A checkout page that charges once, whatever happens to it; this builds it and serves it, with a billing server and a bank.
 *
 *     node --conditions=source examples/checkout/serve.ts
 *
 * The page is built by vite as any page of yours would be. PORT chooses the port; default 4173, or one that is free if that is
 * taken. What to try there is in README.md beside this file.
 */
import { createServer } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'
import { startBillingServer } from './billing-server.ts'
import type { BillingServer, BillingServerOptions } from './billing-server.ts'
import type { PanelRequest } from './panel-api.ts'

export interface RunningShop {
  /** Where the checkout is, with a slash at the end. */
  readonly url: string
  readonly billing: BillingServer
  close(): Promise<void>
}

const TYPES: Readonly<Record<string, string>> = { html: 'text/html', js: 'text/javascript', css: 'text/css' }
const folder = fileURLToPath(new URL('.', import.meta.url))

/** Starts pages and billing server. `port` 0: one that is free. */
export async function startShop(
  options: { readonly port?: number } & Pick<BillingServerOptions, 'latencyMs'> = {},
): Promise<RunningShop> {
  const pages = createServer()
  // First, since it is what may fail.
  await listen(pages, options.port ?? 0)
  const url = `http://127.0.0.1:${(pages.address() as AddressInfo).port}/`
  const files = await buildPages()
  const billing = await startBillingServer({ ...options, port: 0, bankUrl: `${url}bank.html` })
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { pathname, searchParams } = new URL(request.url ?? '/', url)
    if (pathname === '/panel/stream') return stream(billing, searchParams.get('operation') ?? '', response)
    if (pathname === '/panel/ask' && request.method === 'POST') {
      // Of our own panel; for anything else the connection is closed below.
      await billing.ask(JSON.parse(await textOf(request)) as PanelRequest)
      response.writeHead(204).end()
      return
    }
    const path = pathname === '/' ? '/index.html' : pathname
    const file = files.get(path)
    const type = TYPES[path.split('.').at(-1) ?? '']
    if (file === undefined || type === undefined) {
      response.writeHead(404).end()
      return
    }
    response.writeHead(200, { 'content-type': `${type}; charset=utf-8`, 'cache-control': 'no-store' })
    response.end(path.endsWith('.html') ? file.replace('%BILLING_URL%', billing.url) : file)
  }

  pages.on('request', (request: IncomingMessage, response: ServerResponse) => {
    answer(request, response).catch(() => response.destroy())
  })
  return {
    url,
    billing,
    async close() {
      pages.closeAllConnections()
      await new Promise((resolve) => pages.close(resolve))
      await billing.close()
    },
  }
}

/** The files of the two pages by path. */
async function buildPages(): Promise<ReadonlyMap<string, string>> {
  const built = await build({
    root: folder,
    base: './',
    configFile: false,
    logLevel: 'warn',
    // In this repository only, where billonce is read from its sources; a page of yours needs no conditions.
    resolve: { conditions: ['source', 'browser', 'module', 'import', 'default'] },
    build: {
      write: false,
      target: 'es2022',
      modulePreload: { polyfill: false },
      rolldownOptions: { input: ['index.html', 'bank.html'].map((name) => `${folder}${name}`) },
    },
  })
  if (Array.isArray(built) || !('output' in built)) throw new Error('vite built something else than pages')
  return new Map(
    built.output.map((file) => [`/${file.fileName}`, String(file.type === 'chunk' ? file.code : file.source)] as const),
  )
}

/** Server-sent events: the view now, and again whenever something changes. */
function stream(billing: BillingServer, operationId: string, response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' })
  const send = (): void => {
    response.write(`data: ${JSON.stringify(billing.viewOf(operationId))}\n\n`)
  }
  const stop = billing.onChange(send)
  response.on('close', stop)
  send()
}

async function textOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = []
  for await (const part of request) parts.push(part as Buffer)
  return Buffer.concat(parts).toString('utf8')
}

async function listen(server: Server, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', () => {
      server.off('error', reject)
      resolve()
    })
  })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const chosen = process.env['PORT']
  // The same port each time, since a browser keeps the journal by origin.
  const port = Number(chosen ?? 4173)
  const shop = await startShop({ port }).catch((error: unknown) => {
    if (chosen !== undefined || (error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    return startShop()
  })
  console.log(`checkout: ${shop.url}`)
  console.log(`billing server: ${shop.billing.url}`)
}
