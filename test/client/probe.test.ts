/** The probe outside of a page, at real servers. In pages: test/crash-browser/probe.test.ts. */
import { createServer } from 'node:http'
import type { RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { InvalidInputError, probeReceiver } from 'billonce'
import type { ProbeOptions } from 'billonce'
import { createReceiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { ServerOptions } from 'billonce/testing/server'
import { expect, test } from 'vitest'

const origin = 'https://shop.example'
const all = { Authorization: 'yes', 'Content-Type': 'yes', 'Idempotency-Key': 'yes' }
const readable = { Date: 'yes', 'Retry-After': 'yes', 'Idempotent-Replayed': 'yes' }

async function probing(cors: Exclude<ServerOptions['cors'], undefined>, options: Partial<ProbeOptions> = {}) {
  const receiver = createReceiver()
  await using server = await startServer(receiver, { cors })
  const report = await probeReceiver({ baseUrl: server.url, origin, ...options })
  expect(receiver.ledger.effects).toEqual([])
  return report
}

async function answering(listener: RequestListener, options: Partial<ProbeOptions> = {}) {
  const server = createServer(listener)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    return await probeReceiver({ baseUrl: `http://127.0.0.1:${port}`, origin, ...options })
  } finally {
    server.closeAllConnections()
    server.close()
  }
}

test('a receiver that allows and exposes all is ready', async () => {
  expect(await probing(true)).toEqual({
    ok: true,
    reachable: true,
    crossOrigin: true,
    originAllowed: 'yes',
    headersAllowed: all,
    headersExposed: readable,
    advice: [],
  })
})

test('G21: a preflight that forgot the key header is named, with the line to add', async () => {
  const report = await probing({ allowHeaders: ['content-type', 'Authorization'] })
  expect(report).toMatchObject({ ok: false, originAllowed: 'yes', headersAllowed: { ...all, 'Idempotency-Key': 'no' } })
  expect(report.advice).toEqual(['The preflight refuses headers: add to Access-Control-Allow-Headers: Idempotency-Key'])
})

test('headers that pages may not read are named', async () => {
  const report = await probing({ exposeHeaders: ['retry-after'] })
  expect(report).toMatchObject({ ok: false, headersExposed: { ...readable, Date: 'no', 'Idempotent-Replayed': 'no' } })
  expect(report.advice).toEqual([
    'Pages cannot read headers of replies: add to Access-Control-Expose-Headers: Date, Idempotent-Replayed',
  ])
})

test('a receiver without cross-origin headers, or for another origin, lets nobody in', async () => {
  for (const cors of [false, { origin: 'https://other.example' }]) {
    const report = await probing(cors)
    expect(report).toMatchObject({ ok: false, reachable: true, originAllowed: 'no' })
    expect(report.advice).toEqual([expect.stringContaining(`Access-Control-Allow-Origin: ${origin}`)])
  }
})

test('a star allows all headers but Authorization', async () => {
  const report = await probing({ origin: '*', allowHeaders: ['*'], exposeHeaders: ['*'] })
  expect(report).toMatchObject({ headersAllowed: { ...all, Authorization: 'no' }, headersExposed: readable })
})

test('a preflight that is answered with an error allows nothing', async () => {
  const report = await answering((request, response) => {
    response.writeHead(request.method === 'OPTIONS' ? 403 : 404, {
      'access-control-allow-origin': '*',
      'access-control-allow-headers': 'authorization, content-type, idempotency-key',
      'access-control-expose-headers': 'date, retry-after, idempotent-replayed',
    })
    response.end()
  })
  expect(report).toMatchObject({ ok: false, originAllowed: 'no' })
})

test('errors that carry no cross-origin headers are named, since no page can read them', async () => {
  const report = await answering((request, response) => {
    if (request.method !== 'OPTIONS') return response.writeHead(405).end()
    response.writeHead(204, {
      'access-control-allow-origin': origin,
      'access-control-allow-headers': 'authorization, content-type, idempotency-key',
    })
    return response.end()
  })
  expect(report).toMatchObject({ ok: false, originAllowed: 'no', headersAllowed: all })
  expect(report.advice).toEqual([expect.stringMatching(`errors too .*405.*Access-Control-Allow-Origin: ${origin}$`)])
})

test('a preflight that is answered with a redirect is told as that, whatever its headers say', async () => {
  const report = await answering((request, response) => {
    response.writeHead(request.method === 'OPTIONS' ? 308 : 200, {
      location: 'https://api.example/v1/charges',
      'access-control-allow-origin': '*',
      'access-control-allow-headers': 'authorization, content-type, idempotency-key',
      'access-control-expose-headers': 'date, retry-after, idempotent-replayed',
    })
    response.end()
  })
  expect(report).toMatchObject({ ok: false, originAllowed: 'no', advice: [expect.stringContaining('redirect')] })
})

test('an address without https is none for a page with it, other than this machine', async () => {
  const asking = (baseUrl: string, of = origin) =>
    probeReceiver({ baseUrl, origin: of, fetch: () => Promise.resolve(new Response()) })
  expect(await asking('http://api.example')).toMatchObject({
    ok: false,
    advice: [expect.stringContaining('without https')],
  })
  for (const loopback of ['http://127.0.0.1:8080', 'http://[::1]', 'http://localhost', 'http://api.localhost']) {
    expect((await asking(loopback)).advice.join(' ')).not.toContain('without https')
  }
  expect((await asking('http://api.example', 'http://shop.example')).advice.join(' ')).not.toContain('without https')
})

test('the preflight is asked as a browser asks it, and nothing but GET and OPTIONS is sent', async () => {
  const seen: unknown[] = []
  await answering(
    ({ headers, method, url }, response) => {
      seen.push([method, url, headers.origin, headers['access-control-request-headers'], headers['idempotency-key']])
      response.end()
    },
    { path: 'v2/payments', headers: ['Idempotency-Key', 'Api-Version'] },
  )
  expect(seen).toEqual([
    ['GET', '/v2/payments', origin, undefined, undefined],
    ['OPTIONS', '/v2/payments', origin, 'api-version,idempotency-key', undefined],
  ])
})

test('nobody there, a silent server and a reset are unreachable', async () => {
  const unreachable = { ok: false, reachable: false, advice: [expect.stringContaining('baseUrl') as string] }
  expect(await probeReceiver({ baseUrl: 'http://127.0.0.1:1', origin })).toMatchObject(unreachable)
  expect(await answering(() => {}, { timeoutMs: 50 })).toMatchObject(unreachable)
  expect(await answering((request) => request.socket.resetAndDestroy())).toMatchObject(unreachable)
})

test('without an origin there is nothing to allow', async () => {
  expect(await probing(false, { origin: undefined })).toMatchObject({ ok: true, crossOrigin: false, advice: [] })
})

test.each<[string, object]>([
  ['headers', { headers: 'Authorization' }],
  ['headers', { headers: [undefined] }],
  ['headers', { headers: null }],
  ['path', { path: 'https://elsewhere.example/v1/charges' }],
  ['path', { path: '//elsewhere.example/v1/charges' }],
  ['path', { path: 'http://' }],
  ['path', { path: null }],
  ['fetch', { fetch: 5 }],
  ['timeout', { timeout: 5 }],
  ['baseUrl', { baseUrl: 'api.example.com' }],
  ['baseUrl', { baseUrl: 'ftp://api.example.com' }],
  ['origin', { origin: 'https://shop.example/' }],
  ['headers', { headers: ['Idempotency Key'] }],
  ['headers', { headers: 'Idempotency-Key' as never }],
  ['timeoutMs', { timeoutMs: 0 }],
  ['timeoutMs', { timeoutMs: 1000.5 }],
  ['timeoutMs', { timeoutMs: Infinity }],
  ['timeoutMs', { timeoutMs: 2 ** 31 }],
])('an unusable %s is refused and nothing is sent', async (field, options) => {
  let sent = 0
  const fetch = (): Promise<Response> => {
    sent += 1
    return Promise.resolve(new Response())
  }
  const error: unknown = await probeReceiver({ baseUrl: 'https://api.example.com', origin, fetch, ...options }).catch(
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(InvalidInputError)
  expect(error).toMatchObject({ field })
  expect(sent).toBe(0)
})

test.each([undefined, null, 'https://api.example.com'])('%s is refused for options', async (options) => {
  await expect(probeReceiver(options as unknown as ProbeOptions)).rejects.toBeInstanceOf(InvalidInputError)
})
