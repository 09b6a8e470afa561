/** The receiver behind msw, in Node. */
import { http, HttpResponse } from 'msw'
import { setupServer } from 'msw/node'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { createReceiver, cutBody, loseReply, resetBefore, stall, status } from 'billonce/testing'
import { handlers } from 'billonce/testing/msw'
import { post, shortOf } from './post.ts'

const receiver = createReceiver()
const server = setupServer(
  ...handlers(receiver, { baseUrl: 'https://api.test/base/' }),
  http.get('https://api.test/base/v1/other', () => HttpResponse.text('yours')),
)
const base = 'https://api.test/base'

beforeEach(() => server.listen({ onUnhandledFrame: 'error' }))
afterEach(() => {
  server.close()
  receiver.reset()
})

test('requests under the base are the receiver’s, all others are not', async () => {
  expect(await shortOf(await post(fetch, { base }))).toEqual({ status: 200, id: 'ch_000001', replayed: false })
  expect(await shortOf(await post(fetch, { base }))).toEqual({ status: 200, id: 'ch_000001', replayed: true })
  expect((await post(fetch, { base, method: 'GET' })).status).toBe(405)
  expect(await (await fetch(`${base}/v1/other`)).text()).toBe('yours')
  vi.spyOn(console, 'error').mockImplementation(() => {})
  await expect(fetch('https://elsewhere.test/v1/charges')).rejects.toThrow(TypeError)
  vi.restoreAllMocks()
  expect(receiver.ledger.requests).toHaveLength(3)
})

test('without a base any host is taken', async () => {
  server.use(...handlers(receiver))
  expect((await post(fetch, { base: 'https://elsewhere.test' })).status).toBe(200)
})

test('faults come as they do from a network', async () => {
  const complaints = vi.spyOn(console, 'error')
  receiver.faults.add(
    loseReply({ attempt: 1 }),
    resetBefore({ attempt: 2 }),
    cutBody({ attempt: 3 }),
    cutBody({ attempt: 4, framing: 'chunked' }),
    status(204, { attempt: 5 }),
    stall({ attempt: 6 }),
    stall({ attempt: 7, after: 'headers' }),
  )
  await expect(post(fetch, { base })).rejects.toThrow(TypeError)
  await expect(post(fetch, { base })).rejects.toThrow(TypeError)
  for (let at = 0; at < 2; at++) {
    const cut = await post(fetch, { base })
    expect(cut.status).toBe(200)
    await expect(cut.text()).rejects.toThrow(TypeError)
  }
  expect((await post(fetch, { base })).status).toBe(204)
  for (let at = 0; at < 2; at++) {
    const stalled = post(fetch, { base, signal: AbortSignal.timeout(100) }).then((answer) => answer.text())
    await expect(stalled).rejects.toThrow('timeout')
  }
  expect(await shortOf(await post(fetch, { base }))).toMatchObject({ status: 200, replayed: true })
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(complaints).not.toHaveBeenCalled()
})
