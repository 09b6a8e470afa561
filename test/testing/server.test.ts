/** The receiver over real sockets, asked by the runtime's own fetch and by a bare socket. */
import { once } from 'node:events'
import { Agent, request } from 'node:http'
import { connect } from 'node:net'
import { afterEach, describe, expect, test } from 'vitest'
import {
  createReceiver,
  cutBody,
  delay,
  loseReply,
  loseRequest,
  resetAfter,
  resetBefore,
  stall,
  status,
  type Fault,
} from 'billonce/testing'
import { startServer, type RunningServer, type ServerOptions } from 'billonce/testing/server'
import { charge, post, shortOf, type PostOptions } from './post.ts'

const running: RunningServer[] = []
afterEach(async () => {
  await Promise.all(running.splice(0).map((server) => server.close()))
})

async function setUp(faults: Fault[] = [], options: ServerOptions = {}) {
  const receiver = createReceiver({ faults })
  const server = await startServer(receiver, options)
  running.push(server)
  const ask = (asked: PostOptions = {}) => post(fetch, { base: server.url, ...asked })
  return { receiver, server, ask, ledger: receiver.ledger }
}

/** The code of the socket's failure, as undici reports it below its TypeError. */
const codeOf = async (asked: Promise<unknown>): Promise<string> =>
  asked.then(
    () => 'answered',
    (error: unknown) => (error as { cause?: { code?: string } }).cause?.code ?? String(error),
  )

/** Sends a charge over a bare socket; what came back, and how the connection ended. */
async function askBare(port: number, key: string): Promise<{ text: string; end: string }> {
  const socket = connect(port, '127.0.0.1')
  const body = JSON.stringify(charge)
  let text = ''
  let end = 'FIN'
  socket.on('data', (part) => (text += String(part)))
  socket.on('error', (error: Error & { code?: string }) => (end = error.code ?? error.message))
  socket.write(
    `POST /v1/charges HTTP/1.1\r\nHost: t\r\nIdempotency-Key: ${key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
  )
  await once(socket, 'close').catch(() => {})
  return { text, end }
}

describe('over HTTP', () => {
  test('the receiver answers as in memory, and one receiver outlives its servers', async () => {
    const { receiver, server, ask, ledger } = await setUp()
    expect(await shortOf(await ask())).toEqual({ status: 200, id: 'ch_000001', replayed: false })
    expect(await shortOf(await ask())).toEqual({ status: 200, id: 'ch_000001', replayed: true })
    const { port } = server
    await server.close()
    await expect(ask()).rejects.toThrow(TypeError)
    running.push(await startServer(receiver, { port }))
    expect(await shortOf(await ask())).toMatchObject({ replayed: true })
    expect(ledger.effects).toHaveLength(1)
    expect(ledger.requests[0]?.body).toBe(JSON.stringify(charge))
  })

  test('fifty at once with one key have one effect', async () => {
    const { ask, ledger } = await setUp([delay(50, { attempt: 1 })])
    const statuses = await Promise.all(Array.from({ length: 50 }, async () => (await ask()).status))
    expect(ledger.effects).toHaveLength(1)
    expect(statuses.filter((code) => code === 200).length).toBeGreaterThan(0)
    expect(statuses.every((code) => code === 200 || code === 409)).toBe(true)
  })

  test('a body that is too long is refused, and not kept', async () => {
    const { ask, ledger } = await setUp()
    const answer = await ask({ body: 'x'.repeat(1024 * 1024 + 1) }).then(
      ({ status }) => status,
      () => 'closed',
    )
    expect([413, 'closed']).toContain(answer)
    expect(ledger.requests).toHaveLength(0)
  })

  test('a client that leaves does not stop the work', async () => {
    const { ask, ledger } = await setUp([delay(50, { attempt: 1 })])
    await expect(ask({ signal: AbortSignal.timeout(20) })).rejects.toThrow('timeout')
    await expect.poll(() => ledger.effects.length).toBe(1)
    expect(await shortOf(await ask())).toMatchObject({ replayed: true })
  })
})

describe('on a socket', () => {
  test.each([
    ['loseRequest closes it', loseRequest, 'FIN', 'UND_ERR_SOCKET', 0],
    ['loseReply closes it', loseReply, 'FIN', 'UND_ERR_SOCKET', 1],
    ['resetBefore resets it', resetBefore, 'ECONNRESET', 'ECONNRESET', 0],
    ['resetAfter resets it', resetAfter, 'ECONNRESET', 'ECONNRESET', 1],
  ] as const)('%s without a byte', async (_, fault, end, code, effects) => {
    const { server, ask, ledger } = await setUp([fault({ attempt: 1 })])
    expect(await askBare(server.port, 'bare')).toEqual({ text: '', end })
    expect(await codeOf(ask())).toBe(code)
    expect(ledger.effects).toHaveLength(2 * effects)
    expect(await shortOf(await ask())).toMatchObject({ status: 200, replayed: effects === 1 })
  })

  test('cutBody by length promises more than comes', async () => {
    const { server, ask } = await setUp([cutBody({ attempt: 1 })])
    const { text } = await askBare(server.port, 'bare')
    const [head = '', body] = text.split('\r\n\r\n')
    expect(Number(/content-length: (\d+)/i.exec(head)?.[1])).toBeGreaterThan(10)
    expect(body).toBe('{"id":"ch_')
    const answer = await ask()
    expect(answer.status).toBe(200)
    await expect(answer.json()).rejects.toThrow(TypeError)
    expect(await shortOf(await ask())).toMatchObject({ replayed: true })
  })

  test('cutBody in chunks sends JSON that parses, without the last chunk', async () => {
    const { server, ask } = await setUp([cutBody({ attempt: 1, framing: 'chunked' })])
    const { text } = await askBare(server.port, 'bare')
    const [head = '', body = ''] = text.split('\r\n\r\n')
    expect(head).toMatch(/transfer-encoding: chunked/i)
    expect(JSON.parse(body.split('\r\n')[1] ?? '')).toMatchObject({ id: 'ch_000001' })
    expect(text).not.toMatch(/\r\n0\r\n/)
    await expect((await ask()).json()).rejects.toThrow(TypeError)
  })

  test('cutBody may keep nothing', async () => {
    const { ask } = await setUp([cutBody({ keepBytes: 0 })])
    await expect((await ask()).text()).rejects.toThrow(TypeError)
  })

  test('stall sends nothing, or headers and nothing more', async () => {
    const { ask, ledger } = await setUp([stall({ attempt: 1 }), stall({ attempt: 2, after: 'headers' })])
    await expect(ask({ signal: AbortSignal.timeout(50) })).rejects.toThrow('timeout')
    const answer = await ask({ signal: AbortSignal.timeout(200) })
    expect(answer.status).toBe(200)
    await expect(answer.text()).rejects.toThrow('timeout')
    expect(ledger.effects).toHaveLength(1)
    expect(ledger.requests.map(({ sent }) => sent)).toEqual([{ how: 'stalled' }, { how: 'stalled', status: 200 }])
  })

  test('stall after the headers is no whole reply where nothing was done either', async () => {
    const { ask } = await setUp([stall({ after: 'headers', afterEffect: false })])
    const answer = await ask({ signal: AbortSignal.timeout(200) })
    await expect(answer.text()).rejects.toThrow('timeout')
  })

  test('closing the server ends silence too', async () => {
    const { server, ask, ledger } = await setUp([stall()])
    const asked = codeOf(ask())
    await expect.poll(() => ledger.requests.length).toBe(1)
    await server.close()
    expect(await asked).not.toBe('answered')
    await server.close()
  })

  test('other answers come as they are', async () => {
    const { ask } = await setUp([
      status(502, { attempt: 1, afterEffect: true }),
      status(503, { attempt: 2, headers: { 'retry-after': '2' } }),
      status(204, { attempt: 3 }),
      status(200, { attempt: 4, body: '' }),
    ])
    const answers = [await ask(), await ask(), await ask(), await ask()]
    expect(answers.map((answer) => answer.status)).toEqual([502, 503, 204, 200])
    expect(answers[1]?.headers.get('retry-after')).toBe('2')
    expect(await Promise.all(answers.slice(2).map((answer) => answer.text()))).toEqual(['', ''])
    expect(await shortOf(await ask())).toMatchObject({ replayed: true })
  })

  test('connections are kept, closed with a word, or dropped without one', async () => {
    for (const connections of ['keep', 'close', 'drop'] as const) {
      const { server } = await setUp([], { connections })
      const agent = new Agent({ keepAlive: true })
      const asked = request(`${server.url}/v1/charges`, {
        agent,
        method: 'POST',
        headers: { 'idempotency-key': connections },
      })
      asked.end(JSON.stringify(charge))
      const [answer] = (await once(asked, 'response')) as [import('node:http').IncomingMessage]
      expect(answer.headers.connection).toBe(connections === 'close' ? 'close' : 'keep-alive')
      const { socket } = answer
      let gone = false
      socket.once('close', () => (gone = true))
      answer.resume()
      await once(answer, 'end')
      if (connections === 'keep') await new Promise((resolve) => setTimeout(resolve, 20))
      else await expect.poll(() => gone).toBe(true)
      expect(gone).toBe(connections !== 'keep')
      agent.destroy()
    }
  })
})

describe('across origins', () => {
  const preflight = (url: string): Promise<Response> =>
    fetch(`${url}/v1/charges`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://shop.test',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'idempotency-key',
      },
    })

  test('a page may send the key and read what it needs; preflights are not in the ledger', async () => {
    const { server, ask, ledger } = await setUp()
    const allowed = await preflight(server.url)
    expect(allowed.status).toBe(204)
    expect(allowed.headers.get('access-control-allow-origin')).toBe('https://shop.test')
    expect(allowed.headers.get('access-control-allow-headers')).toMatch(/idempotency-key/i)
    const answer = await ask({ headers: { origin: 'https://shop.test' } })
    expect(answer.headers.get('access-control-expose-headers')).toBe('Retry-After, Idempotent-Replayed, Date')
    expect(ledger.requests).toHaveLength(1)
  })

  test('the key header may be left off, the origin fixed, and all of it switched off', async () => {
    const forgetful = await setUp([], { cors: { origin: 'https://other.test', allowHeaders: ['Content-Type'] } })
    const answer = await preflight(forgetful.server.url)
    expect(answer.headers.get('access-control-allow-headers')).toBe('Content-Type')
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://other.test')

    const closed = await setUp([], { cors: false })
    const refused = await preflight(closed.server.url)
    expect([refused.status, refused.headers.get('access-control-allow-origin')]).toEqual([403, null])
    expect(closed.ledger.requests).toHaveLength(0)
  })
})
