/** The receiver's table: what each request is answered, and that an effect is made once. */
import { afterEach, describe, expect, test, vi } from 'vitest'
import { createReceiver, manualClock, type ReceiverOptions } from 'billonce/testing'
import { charge, post, shortOf, type PostOptions } from './post.ts'

function setUp(options: ReceiverOptions = {}) {
  const clock = manualClock()
  const receiver = createReceiver({ clock, ...options })
  const ask = async (asked?: PostOptions) => shortOf(await post(receiver.fetch, asked))
  return { receiver, clock, ask, ledger: receiver.ledger }
}

/** Lets everything run that waits for nothing but its turn. */
const settle = () => new Promise((resolve) => setTimeout(resolve))

afterEach(() => void vi.useRealTimers())

describe('a key', () => {
  test('never seen is claimed and executed', async () => {
    const { ask, ledger } = setUp()
    expect(await ask()).toEqual({ status: 200, id: 'ch_000001', replayed: false })
    expect(ledger.effects).toMatchObject([
      { id: 'ch_000001', kind: 'charge', key: 'k1', account: 'anonymous', params: charge, request: 1 },
    ])
    expect(ledger.requests[0]).toMatchObject({ number: 1, attempt: 1, did: 'executed', body: JSON.stringify(charge) })
  })

  test('finished, with the same parameters, is answered with the stored status and body, marked', async () => {
    const { receiver, clock } = setUp()
    const first = await post(receiver.fetch)
    clock.advance(5000)
    const again = await post(receiver.fetch)
    expect(again.headers.get('idempotent-replayed')).toBe('true')
    expect(first.headers.get('idempotent-replayed')).toBeNull()
    expect(again.status).toBe(first.status)
    expect(await again.text()).toBe(await first.text())
    expect(Date.parse(again.headers.get('date') ?? '') - Date.parse(first.headers.get('date') ?? '')).toBe(5000)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(receiver.ledger.requests[1]?.did).toBe('replayed')
  })

  test('of a refusal is answered with the refusal again', async () => {
    const { ask, ledger } = setUp()
    const declined = { body: { ...charge, paymentMethod: 'pm_declined' } }
    expect(await ask(declined)).toEqual({ status: 402, code: 'card_declined', replayed: false })
    expect(await ask(declined)).toEqual({ status: 402, code: 'card_declined', replayed: true })
    expect(ledger.effects).toHaveLength(0)
    expect(ledger.requests.map(({ did }) => did)).toEqual(['refused', 'replayed'])
  })

  test('is free again after a refusal where refusals are not kept', async () => {
    const { ask, receiver } = setUp({ keepsRejections: false })
    await ask({ body: { ...charge, paymentMethod: 'pm_declined' } })
    expect(receiver.keyState('k1')).toBeUndefined()
    expect(await ask()).toMatchObject({ status: 200, replayed: false })
  })

  test.each([
    ['body', { body: { ...charge, amount: 5001 } }],
    ['order of properties', { body: Object.fromEntries(Object.entries(charge).reverse()) }],
    ['path', { path: 'v1/credits/consume' }],
    ['base path', { path: 'other/v1/charges' }],
  ])('used with another %s is a mismatch, and nothing is done', async (_, other) => {
    const { ask, ledger } = setUp()
    await ask()
    expect(await ask(other)).toEqual({ status: 422, code: 'idempotency_key_reused', replayed: false })
    expect(await ask()).toMatchObject({ status: 200, replayed: true })
    expect(ledger.effects).toHaveLength(1)
    expect(ledger.summary().keysWithOtherBytes).toBe(1)
  })

  test('in progress is busy, and with other parameters a mismatch', async () => {
    const { ask, clock, receiver } = setUp({ latencyMs: 1000, busyRetryAfterSeconds: 3 })
    const first = ask()
    await settle()
    expect(receiver.keyState('k1')).toMatchObject({ recoveryPoint: 'started', inProgress: true })
    const busy = await post(receiver.fetch)
    expect(busy.headers.get('retry-after')).toBe('3')
    expect(await shortOf(busy)).toEqual({ status: 409, code: 'idempotency_key_in_progress', replayed: false })
    expect(await ask({ body: { ...charge, amount: 1 } })).toMatchObject({ status: 422 })
    clock.advance(1000)
    expect(await first).toMatchObject({ status: 200, replayed: false })
    expect(await ask()).toMatchObject({ status: 200, replayed: true })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('asked fifty times at once has one effect, with time to work or without', async () => {
    for (const latencyMs of [0, 50]) {
      const { ask, clock, ledger } = setUp({ latencyMs })
      const asked = Array.from({ length: 50 }, () => ask())
      await settle()
      clock.advance(50)
      const answers = await Promise.all(asked)
      expect(ledger.effects).toHaveLength(1)
      expect(answers.filter(({ status, replayed }) => status === 200 && !replayed)).toHaveLength(1)
      expect(answers.filter(({ status }) => status === 409)).toHaveLength(latencyMs === 0 ? 0 : 49)
      expect(ledger.requests.map(({ attempt }) => attempt)).toEqual(Array.from({ length: 50 }, (_, at) => at + 1))
    }
  })

  test('is forgotten when its retention is over, counted from its first request', async () => {
    const { ask, clock, ledger } = setUp()
    await ask()
    clock.advance(24 * 3600_000 - 1)
    expect(await ask()).toMatchObject({ id: 'ch_000001', replayed: true })
    clock.advance(1)
    expect(await ask()).toMatchObject({ id: 'ch_000002', replayed: false })
    expect(ledger.effects).toHaveLength(2)
    expect(ledger.duplicates()).toHaveLength(1)
  })

  test('is not forgotten while somebody is at work on it', async () => {
    const { ask, clock, ledger } = setUp({ keyRetentionMs: 1000, latencyMs: 5000 })
    const first = ask()
    await settle()
    clock.advance(2000)
    expect(await ask()).toMatchObject({ status: 409 })
    clock.advance(3000)
    await first
    expect(ledger.effects).toHaveLength(1)
  })

  test.each([
    ['"k1"', 'k1'],
    ['"k1"; v=1', 'k1'],
    [String.raw`"a\"b\\c"`, String.raw`a"b\c`],
    ['k1', 'k1'],
  ])('is read bare or as a structured-field string: %s', async (sent, key) => {
    const { ask, ledger } = setUp()
    expect(await ask({ key: sent })).toMatchObject({ status: 200 })
    expect(ledger.effects[0]?.key).toBe(key)
  })

  test.each([
    [null, 'idempotency_key_missing'],
    ['"open', 'idempotency_key_invalid'],
    ['""', 'idempotency_key_invalid'],
    ['k'.repeat(256), 'idempotency_key_invalid'],
  ])('that is missing, unreadable or too long is refused: %s', async (key, code) => {
    const { ask, ledger } = setUp()
    expect(await ask({ key })).toEqual({ status: 400, code, replayed: false })
    expect(ledger.effects).toHaveLength(0)
  })

  test('may be missing where none is required, and then every request has its effect', async () => {
    const { ask, ledger } = setUp({ requiresKey: false })
    await ask({ key: null })
    await ask({ key: null })
    expect(ledger.effects).toHaveLength(2)
    expect(ledger.duplicates()).toMatchObject([{ name: 'order-1' }])
  })

  test('may be elsewhere than in the header', async () => {
    const { ask, ledger } = setUp({
      keyOf: ({ body }) => (JSON.parse(body) as { idempotencyKey: string }).idempotencyKey,
    })
    await ask({ key: null, body: { ...charge, idempotencyKey: 'in-body' } })
    await ask({ key: null, body: { ...charge, idempotencyKey: 'in-body' } })
    expect(ledger.effects).toMatchObject([{ key: 'in-body' }])
  })
})

describe('an account', () => {
  test('has keys of its own, and its token is not in the ledger', async () => {
    const { ask, ledger } = setUp()
    await ask({ token: 'sk_a' })
    expect(await ask({ token: 'sk_b' })).toMatchObject({ status: 200, replayed: false })
    expect(await ask({ token: 'sk_a' })).toMatchObject({ replayed: true })
    expect(new Set(ledger.effects.map(({ account }) => account)).size).toBe(2)
    expect(JSON.stringify(ledger)).not.toContain('sk_a')
    expect(ledger.requests[0]?.headers).toMatchObject({ authorization: '[withheld]', 'idempotency-key': 'k1' })
  })

  test('may have several tokens by table, and an unknown token is refused before the key', async () => {
    const { ask, ledger, receiver } = setUp({ accounts: { old: 'A', new: 'A' } })
    await ask({ token: 'old' })
    expect(await ask({ token: 'new' })).toMatchObject({ replayed: true })
    for (const token of ['stranger', 'constructor']) {
      expect(await ask({ token, key: 'k2' })).toEqual({ status: 401, code: 'unauthorized', replayed: false })
    }
    expect(receiver.keyState('k2')).toBeUndefined()
    expect(ledger.effectsOf({ account: 'A' })).toHaveLength(1)
  })

  test('may be read from anything', async () => {
    const { ask, ledger } = setUp({ accounts: ({ headers }) => headers.get('x-tenant') ?? undefined })
    await ask({ headers: { 'x-tenant': 't1' } })
    expect(ledger.effects[0]?.account).toBe('t1')
    expect(await ask()).toMatchObject({ status: 401 })
  })
})

describe('what stands before the key', () => {
  test.each([
    ['an unknown path', { path: 'v1/refunds' }, 404, 'not_found'],
    ['another method', { method: 'PUT' }, 405, 'method_not_allowed'],
    ['no JSON', { body: '{"amount":' }, 400, 'body_unreadable'],
    ['a list', { body: '[]' }, 400, 'body_unreadable'],
    ...[0, -1, 1.5, '100', 2 ** 53, null].map(
      (amount) => [`amount ${amount}`, { body: { ...charge, amount } }, 400, 'parameter_invalid'] as const,
    ),
    ['currency', { body: { ...charge, currency: 'dollars' } }, 400, 'parameter_invalid'],
    ['quantity', { path: 'v1/usage', body: { meter: 'exports', quantity: '1,5' } }, 400, 'parameter_invalid'],
    [
      'occurredAt',
      { path: 'v1/usage', body: { meter: 'm', quantity: 1, occurredAt: 'soon' } },
      400,
      'parameter_invalid',
    ],
    ['credits', { path: 'v1/credits/consume', body: { amount: 0 } }, 400, 'parameter_invalid'],
  ] as const)('refuses %s and keeps nothing', async (_, asked, status, code) => {
    const { ask, receiver } = setUp()
    expect(await ask(asked)).toEqual({ status, code, replayed: false })
    expect(await ask(asked)).toEqual({ status, code, replayed: false })
    expect(receiver.ledger.requests.map(({ did }) => did)).toEqual(['invalid', 'invalid'])
    expect(receiver.keyState('k1')).toBeUndefined()
    expect(await ask()).toMatchObject({ status: 200, replayed: false })
  })

  test('answers as asked for: 422, problem details', async () => {
    const { receiver } = setUp({ invalidStatus: 422, errorFormat: 'problem-details' })
    const answer = await post(receiver.fetch, { body: { ...charge, amount: 0 } })
    expect(answer.headers.get('content-type')).toBe('application/problem+json')
    expect(await answer.json()).toMatchObject({ status: 422, code: 'parameter_invalid' })
  })
})

describe('a crash', () => {
  test('while at work cuts the request off; the next one with the key starts again from what was durable', async () => {
    const { receiver, clock, ask, ledger } = setUp({ latencyMs: 1000 })
    const first = ask()
    await settle()
    receiver.crash()
    await expect(first).rejects.toThrow(TypeError)
    expect(receiver.keyState('k1')).toMatchObject({ recoveryPoint: 'started', inProgress: false })
    expect(ledger.effects).toHaveLength(0)
    const second = ask()
    await settle()
    clock.advance(1000)
    expect(await second).toEqual({ status: 200, id: 'ch_000001', replayed: false })
    expect(ledger.requests.map(({ did }) => did)).toEqual(['crashed', 'executed'])
    expect(ledger.effects).toHaveLength(1)
  })

  test('does not let the dead finish beside their successors', async () => {
    const { receiver, clock, ask, ledger } = setUp({ latencyMs: 1000 })
    const first = ask()
    await settle()
    receiver.crash()
    const second = ask()
    await expect(first).rejects.toThrow(TypeError)
    await settle()
    clock.advance(1000)
    await second
    await settle()
    expect(ledger.effects).toHaveLength(1)
  })

  test('takes requests without a key down too', async () => {
    const { receiver, clock, ask, ledger } = setUp({ latencyMs: 1000, requiresKey: false })
    const first = ask({ key: null })
    await settle()
    receiver.crash()
    clock.advance(1000)
    await expect(first).rejects.toThrow(TypeError)
    expect(ledger.effects).toHaveLength(0)
  })
})

describe('the writes', () => {
  test('a charge gives its money and status back', async () => {
    const { receiver, ledger } = setUp()
    const bodyOf = async (paymentMethod: string, key: string): Promise<unknown> =>
      (await post(receiver.fetch, { key, body: { ...charge, paymentMethod } })).json()
    expect(await bodyOf('pm_1', 'a')).toMatchObject({ amount: 5000, currency: 'usd', status: 'succeeded' })
    expect(await bodyOf('pm_requires_action', 'b')).toMatchObject({
      status: 'requires_action',
      nextAction: { type: 'redirect' },
    })
    expect(await bodyOf('pm_processing', 'c')).toMatchObject({ status: 'processing' })
    expect(await bodyOf('constructor', 'd')).toMatchObject({ status: 'succeeded' })
    expect(ledger.summary()).toMatchObject({ charged: { usd: 10_000 }, notConcluded: { usd: 10_000 } })
  })

  test('usage is added up exactly, by meter', async () => {
    const { receiver } = setUp()
    const standingOf = async (key: string, quantity: unknown, meter = 'gb'): Promise<unknown> =>
      (
        (await (await post(receiver.fetch, { path: 'v1/usage', key, body: { meter, quantity } })).json()) as {
          standing: unknown
        }
      ).standing
    await standingOf('a', '0.1')
    expect(await standingOf('b', '0.2')).toEqual({ meter: 'gb', used: '0.3' })
    expect(await standingOf('c', 9007199254740991)).toEqual({ meter: 'gb', used: '9007199254740991.3' })
    expect(await standingOf('d', '-0.25', 'other')).toEqual({ meter: 'other', used: '-0.25' })
  })

  test('credits go down to nothing and no further, once for each key', async () => {
    const { ask, receiver } = setUp({ credits: 100 })
    const spend = { path: 'v1/credits/consume', body: { amount: 60 } }
    expect(await (await post(receiver.fetch, spend)).json()).toMatchObject({ balance: 40 })
    expect(await (await post(receiver.fetch, spend)).json()).toMatchObject({ balance: 40 })
    expect(await ask({ ...spend, key: 'k2' })).toMatchObject({ status: 402, code: 'insufficient_credits' })
    expect(await ask({ ...spend, key: 'k3', body: { amount: 60, account: 'other' } })).toMatchObject({ status: 200 })
  })

  test('of your own are taken like the others, with forms too', async () => {
    const { ask, receiver, ledger } = setUp({
      routes: {
        'v1/payment_intents': { kind: 'intent', idPrefix: 'pi_' },
        'v1/seats': {
          kind: 'seat',
          idPrefix: 'seat_',
          method: 'PUT',
          check: ({ seats }) => (typeof seats === 'number' ? undefined : 'seats must be a number'),
          respond: ({ seats }, { id }) =>
            seats === 13
              ? { refusal: { status: 403, code: 'unlucky', message: 'Not that one.' } }
              : { status: 201, receipt: { name: `seat of ${id}` } },
        },
      },
    })
    const form = { 'content-type': 'application/x-www-form-urlencoded' }
    await ask({
      path: 'v1/payment_intents',
      headers: form,
      body: 'amount=5&metadata[operation]=order-7&metadata[a][b]=c',
    })
    expect(ledger.effects[0]?.params).toEqual({ amount: '5', metadata: { operation: 'order-7', a: { b: 'c' } } })
    expect(ledger.effectsOf({ name: 'order-7' })).toHaveLength(1)

    const seat = { path: 'v1/seats', method: 'PUT', key: 'k2' }
    expect(await (await post(receiver.fetch, { ...seat, body: { seats: 2 } })).json()).toEqual({
      id: 'seat_000002',
      name: 'seat of seat_000002',
    })
    expect(await ask({ ...seat, key: 'k3', body: { seats: 13 } })).toMatchObject({ status: 403, code: 'unlucky' })
    expect(await ask({ ...seat, key: 'k4', body: { seats: '1' } })).toMatchObject({ status: 400 })
    expect(await ask({ ...seat, key: 'k5', method: 'POST', body: { seats: 1 } })).toMatchObject({ status: 405 })
  })

  test('of your own that throw say so, and do not hold their key for ever', async () => {
    let broken = true
    const { ask, ledger } = setUp({
      routes: {
        'v1/charges': {
          kind: 'charge',
          idPrefix: 'ch_',
          respond: () => {
            if (broken) throw new Error('typing error')
            return { receipt: {} }
          },
        },
      },
    })
    expect(await ask()).toMatchObject({ status: 500, code: 'route_failed' })
    broken = false
    expect(await ask()).toMatchObject({ status: 200, replayed: false })
    expect(ledger.effects).toHaveLength(1)
  })
})

describe('as fetch', () => {
  test('takes a Request, a URL and a string', async () => {
    const { receiver } = setUp()
    const init = { method: 'POST', headers: { 'idempotency-key': 'k1' }, body: JSON.stringify(charge) }
    for (const url of ['https://api.test/v1/charges?x=1', 'https://other.test/base/v1/charges']) {
      expect((await receiver.fetch(new Request(url, init))).ok).toBe(true)
      receiver.reset()
      expect((await receiver.fetch(new URL(url), init)).ok).toBe(true)
      receiver.reset()
    }
  })

  test('a signal that has fired sends nothing; one that fires later gets its reason, and the receiver works on', async () => {
    const { receiver, clock, ledger } = setUp({ latencyMs: 1000 })
    await expect(post(receiver.fetch, { signal: AbortSignal.abort('gone') })).rejects.toBe('gone')
    expect(ledger.requests).toHaveLength(0)
    const giving = new AbortController()
    const asked = post(receiver.fetch, { signal: giving.signal })
    await settle()
    giving.abort('enough')
    await expect(asked).rejects.toBe('enough')
    clock.advance(1000)
    await settle()
    expect(ledger.effects).toHaveLength(1)
  })

  test('leaves no listener on a signal that lives long', async () => {
    const { receiver } = setUp()
    const { signal } = new AbortController()
    const added = vi.spyOn(signal, 'addEventListener')
    const removed = vi.spyOn(signal, 'removeEventListener')
    for (let at = 0; at < 20; at++) await receiver.fetch('https://api.test/v1/charges', { method: 'POST', signal })
    await settle()
    const ours = added.mock.calls.filter(([, listener]) => removed.mock.calls.some(([, gone]) => gone === listener))
    expect(ours).toHaveLength(20)
  })
})

describe('reset', () => {
  test('begins again with no keys, effects, faults or balances', async () => {
    const { ask, receiver } = setUp({ credits: 10 })
    const spend = { path: 'v1/credits/consume', body: { amount: 10 } }
    await ask(spend)
    receiver.reset()
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await ask(spend)).toEqual({ status: 200, id: 'cr_000001', replayed: false })
    expect(receiver.ledger.requests[0]).toMatchObject({ number: 1, attempt: 1 })
  })

  test('forgetting keys keeps the ledger', async () => {
    const { ask, receiver } = setUp()
    await ask()
    await ask({ key: 'k2' })
    receiver.forgetKeys('k1')
    await ask()
    await ask({ key: 'k2' })
    expect(receiver.ledger.effects).toHaveLength(3)
    receiver.forgetKeys()
    expect(receiver.keyState('k2')).toBeUndefined()
  })
})

describe('the clock', () => {
  test('by default is the system’s, which fake timers drive and advance turns on', async () => {
    vi.useFakeTimers({ now: 1_000_000 })
    const { clock, fetch, ledger } = createReceiver({ latencyMs: 60_000 })
    const first = post(fetch)
    await vi.advanceTimersByTimeAsync(59_999)
    expect(ledger.effects).toHaveLength(0)
    await vi.advanceTimersByTimeAsync(1)
    await first
    expect(clock.nowMs()).toBe(1_060_000)

    const second = post(fetch, { key: 'k2' })
    await vi.advanceTimersByTimeAsync(0)
    clock.advance(60_000)
    await second
    expect(clock.nowMs()).toBe(1_120_000)
    expect(vi.getTimerCount()).toBe(0)
  })

  test('sleeps past the longest timer', async () => {
    vi.useFakeTimers()
    const { clock } = createReceiver()
    const woke = vi.fn()
    const timers = vi.spyOn(globalThis, 'setTimeout')
    void clock.sleep(2 ** 31 + 1000).then(woke)
    await vi.advanceTimersByTimeAsync(2 ** 31)
    expect(woke).not.toHaveBeenCalled()
    await vi.advanceTimersByTimeAsync(1000)
    expect(woke).toHaveBeenCalledOnce()
    expect(timers.mock.calls.map(([, ms]) => ms)).toEqual([2 ** 31 - 1, 1001])
    timers.mockRestore()
  })

  test('wakes in order of time, and does not run backwards', async () => {
    const clock = manualClock(0)
    const woken: number[] = []
    const sleeps = [30, 10, 20].map((ms) => clock.sleep(ms).then(() => woken.push(ms)))
    clock.advance(30)
    await Promise.all(sleeps)
    expect(woken).toEqual([10, 20, 30])
    expect(() => clock.advance(-1)).toThrow(RangeError)
  })
})
