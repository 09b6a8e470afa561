/**
 * An installable app that records service visits without a network and bills each once; this builds and serves it.
 *
 *     node --conditions=source examples/mobile/serve.ts
 *
 * App, service worker and office are at one address, as behind one domain. PORT chooses the port; default 4174, or one that is
 * free if that is taken. What to try there is in README.md beside this file.
 */
import { createServer, request as httpRequest } from 'node:http'
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import type { BenchOrder } from './bench-api.ts'
import { buildApp } from './build.ts'
import { startOffice } from './office.ts'
import type { Office } from './office.ts'

export interface RunningApp {
  /** Where the app is, with a slash at the end. */
  readonly url: string
  readonly office: Office
  close(): Promise<void>
}

/** Starts app and office. `port` 0: one that is free. */
export async function startApp(options: { readonly port?: number } = {}): Promise<RunningApp> {
  const server = createServer()
  // First, since it is what may fail.
  await listen(server, options.port ?? 0)
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const [files, office] = await Promise.all([buildApp(), startOffice()])
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const { pathname } = new URL(request.url ?? '/', url)
    if (pathname.startsWith('/billing/')) return handOn(request, response, office)
    if (pathname === '/bench') {
      if (request.method === 'POST') office.order(JSON.parse(await textOf(request)) as BenchOrder)
      response.writeHead(200, { 'content-type': 'application/json', 'cache-control': 'no-store' })
      response.end(JSON.stringify(office.view()))
      return
    }
    const file = files.get(pathname.slice(1))
    if (!file) {
      response.writeHead(404).end()
      return
    }
    response.writeHead(200, { 'content-type': file.type, 'cache-control': 'no-cache' }).end(file.body)
  }
  server.on('request', (request, response) => {
    answer(request, response).catch(() => response.destroy())
  })
  return {
    url,
    office,
    async close() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
      await office.close()
    },
  }
}

/** As a reverse proxy does it: what the office cuts off is cut off here too. */
function handOn(request: IncomingMessage, response: ServerResponse, office: Office): void {
  if (!office.isReachable) {
    request.socket.resetAndDestroy()
    return
  }
  const inner = httpRequest(
    `${office.url}${(request.url ?? '').slice('/billing'.length)}`,
    { method: request.method, headers: request.headers },
    (reply) => {
      response.writeHead(reply.statusCode ?? 502, reply.headers)
      response.flushHeaders()
      reply.on('error', () => response.destroy())
      reply.pipe(response)
    },
  )
  inner.on('error', () => request.socket.destroy())
  request.pipe(inner)
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
  // The same port each time, since a browser keeps what it has by address.
  const port = Number(chosen ?? 4174)
  const app = await startApp({ port }).catch((error: unknown) => {
    if (chosen !== undefined || (error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    return startApp()
  })
  console.log(`app: ${app.url}`)
}
