/**
 * A checkout page that survives a reload, a lost reply and a closed tab; this builds and serves it.
 *
 *     node --conditions=source examples/browser-page/serve.ts
 *
 * The page is built by vite as any page of yours would be. It charges at BILLING_URL, or without one at a test receiver that
 * is started beside it: that one needs a second for each charge and loses the first reply to it. PORT chooses the port.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { createReceiver, loseReply } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { build } from 'vite'

const receiver = createReceiver({ latencyMs: 1000, faults: [loseReply({ attempt: 1 })] })
const billingUrl = process.env['BILLING_URL'] ?? (await startServer(receiver)).url

// vite puts it where index.html says %VITE_BILLING_URL%.
process.env['VITE_BILLING_URL'] = billingUrl
const built = await build({
  root: fileURLToPath(new URL('.', import.meta.url)),
  configFile: false,
  logLevel: 'warn',
  // In this repository only, where billonce is read from its sources; a page of yours needs no conditions.
  resolve: { conditions: ['source', 'browser', 'module', 'import', 'default'] },
  build: { write: false, target: 'es2022', modulePreload: { polyfill: false } },
})
if (Array.isArray(built) || !('output' in built)) throw new Error('vite built something else than one page')
const files = new Map<string, string | Uint8Array>(
  built.output.map((file) => [`/${file.fileName}`, file.type === 'chunk' ? file.code : file.source] as const),
)

const TYPES: Readonly<Record<string, string>> = { html: 'text/html', js: 'text/javascript', css: 'text/css' }
/** The next order's number; in a shop the server gives it when the customer goes to the checkout. */
let order = 1000 + (Math.floor(Date.now() / 1000) % 100_000)

const pages = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost')
  if (pathname === '/' && !searchParams.has('order')) {
    order += 1
    response.writeHead(302, { location: `/?order=${order}` }).end()
    return
  }
  const path = pathname === '/' ? '/index.html' : pathname
  const file = files.get(path)
  const type = TYPES[path.split('.').at(-1) ?? '']
  if (file === undefined || type === undefined) {
    response.writeHead(404).end()
    return
  }
  response.writeHead(200, { 'content-type': `${type}; charset=utf-8`, 'cache-control': 'no-store' }).end(file)
})
pages.listen(Number(process.env['PORT'] ?? 0), '127.0.0.1', () => {
  const { port } = pages.address() as AddressInfo
  console.log(`checkout: http://127.0.0.1:${port}/`)
  console.log(`receiver: ${billingUrl}`)
})
