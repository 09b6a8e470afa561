/** Waits, clocks and budgets: how often and how long a call tries, whatever the receiver asks for and the clocks do. */
import { createBillingClient, InvalidInputError } from 'billonce'
import { delay, loseReply, stall, status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { expectOneName } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }

describe('Retry-After', () => {
  test.each(['2147483', '2147484', '9999999999', '99999999999999999999', '99999999999999999999999.5'])(
    'G22: %s seconds neither burst nor hold the call: the entry waits with a next time',
    async (seconds) => {
      const { billing, receiver } = setUp({
        receiver: { faults: [status(503, { headers: { 'Retry-After': seconds } })] },
        client: { retry: { maxRetryAfterMs: 3_600_000 } },
      })
      const asked = billing.charge(coffee, order)
      await pass(2000)
      expect(receiver.ledger.requests).toHaveLength(1)
      const outcome = await settled(asked)
      expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 1 })
      const waitMs = 'retryAfterMs' in outcome ? outcome.retryAfterMs : 0
      expect(waitMs).toBeGreaterThan(3_590_000)
      expect(waitMs).toBeLessThanOrEqual(3_600_500)
    },
  )

  test('G22: background delivery keeps to the clamped wait and then goes on', async () => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '9999999999' } })] },
      client: { retry: { maxRetryAfterMs: 3_600_000 } },
    })
    await settled(billing.charge(coffee, order))
    const stop = another().start()
    await pass(3_500_000)
    expect(receiver.ledger.requests).toHaveLength(1)
    await pass(200_000)
    expect(receiver.ledger.requests).toHaveLength(2)
    expect(receiver.ledger.effects).toHaveLength(1)
    stop()
  })

  test('no timer is ever longer than a timer can be', async () => {
    const spy = vi.spyOn(globalThis, 'setTimeout')
    const { billing, another } = setUp({
      receiver: { faults: [status(503, { headers: { 'Retry-After': '99999999999999999999' } })] },
    })
    await settled(billing.charge(coffee, order))
    const stop = another().start()
    await pass(100_000)
    stop()
    for (const [, ms] of spy.mock.calls) {
      expect(ms ?? 0).toBeGreaterThanOrEqual(0)
      expect(ms ?? 0).toBeLessThan(2 ** 31)
    }
    spy.mockRestore()
  })

  test('a date is taken against the receiver’s own clock', async () => {
    const date = Date.UTC(2001, 0, 1)
    const { billing, receiver } = setUp({
      receiver: {
        faults: [
          status(503, {
            attempt: 1,
            headers: { date: new Date(date).toUTCString(), 'Retry-After': new Date(date + 20_000).toUTCString() },
          }),
        ],
      },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    const [one, two] = receiver.ledger.requests.map((request) => request.atMs)
    expect(two! - one!).toBeGreaterThanOrEqual(20_000)
    expect(two! - one!).toBeLessThan(21_000)
  })

  test('an unreadable one is as none', async () => {
    const { billing, receiver } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': 'soon' } })] },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    const [one, two] = receiver.ledger.requests.map((request) => request.atMs)
    expect(two! - one!).toBeLessThanOrEqual(500)
  })
})

describe('budgets', () => {
  const budget = { deadlineMs: 30_000, maxAttempts: 100, baseDelayMs: 1000, maxDelayMs: 2000 } as const

  test.each([0, 3_600_000, -3_600_000, 600_000, -600_000])(
    'G24: a clock set by %i ms in the middle neither ends a budget of 30 s early nor prolongs it',
    async (stepMs) => {
      const { billing, receiver } = setUp({ client: { retry: budget }, receiver: { faults: [status(503)] } })
      const began = performance.now()
      let endedAt = Number.NaN
      const asked = billing.charge(coffee, order).finally(() => {
        endedAt = performance.now()
      })
      const sentAt: number[] = []
      billing.subscribe((event) => {
        if (event.type === 'attempt-began') sentAt.push(performance.now() - began)
      })
      await pass(5_500)
      vi.setSystemTime(Date.now() + stepMs)
      const outcome = await settled(asked)
      expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues' })
      // What is left at the end may be less than the next wait, which is at most 2 s.
      expect(endedAt - began).toBeGreaterThanOrEqual(27_500)
      expect(endedAt - began).toBeLessThanOrEqual(30_100)
      expect(sentAt.some((ms) => ms > 25_000)).toBe(true)
      expectOneName(receiver)
    },
  )

  test('the deadline is over all attempts, and what is then in flight is recorded all the same', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [delay(20_000)] } })
    const began = performance.now()
    const asked = billing.charge(coffee, { ...order, deadlineMs: 5000 })
    const outcome = await settled(asked)
    expect(performance.now() - began).toBe(5000)
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 1 })
    await pass(20_000)
    expect(await settled(billing.find({ kind: 'charge', ...order }))).toMatchObject({
      status: 'succeeded',
      attempts: 1,
    })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('after the deadline of its only caller no further attempt begins', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(503)] } })
    await settled(billing.charge(coffee, { ...order, deadlineMs: 100 }))
    const sent = receiver.ledger.requests.length
    await pass(600_000)
    expect(receiver.ledger.requests).toHaveLength(sent)
  })

  test.each([0, -1, Number.NaN, Infinity, 2 ** 31, '5' as unknown as number])(
    'a deadline of %s is refused',
    async (deadlineMs) => {
      const { billing, receiver } = setUp()
      await expect(billing.charge(coffee, { ...order, deadlineMs })).rejects.toMatchObject({ field: 'deadlineMs' })
      expect(receiver.ledger.requests).toHaveLength(0)
    },
  )

  test('G33: three attempts are three requests where the receiver always answers 503', async () => {
    const { billing, receiver } = setUp({ client: { retry: { maxAttempts: 3 } }, receiver: { faults: [status(503)] } })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'unknown', attempts: 3 })
    await pass(600_000)
    expect(receiver.ledger.requests).toHaveLength(3)
    expectOneName(receiver)
  })

  test('G33: three attempts are three requests where the receiver always hangs', async () => {
    const { billing, receiver } = setUp({
      client: { retry: { maxAttempts: 3, attemptTimeoutMs: 1000 } },
      receiver: { faults: [stall()] },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'unknown', attempts: 3 })
    await pass(600_000)
    expect(receiver.ledger.requests).toHaveLength(3)
  })

  test.each([{ limit: 5 }, { retries: 5 }, { methods: ['post'] }, { statusCodes: [503] }])(
    'G33: the retry options of an HTTP library are refused: %o',
    (retry) => {
      const options = { baseUrl: 'https://billing.test', scope: 's', retry: retry as object }
      expect(() => createBillingClient(options)).toThrow(InvalidInputError)
    },
  )

  test('G30: a timeout is tried again', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [stall({ attempt: 1 })] } })
    const began = performance.now()
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(performance.now() - began).toBeGreaterThanOrEqual(30_000)
    expect(performance.now() - began).toBeLessThan(31_000)
    const [view] = await viewsOf(billing)
    expect(view?.attempts[0]).toMatchObject({ result: 'unclear', why: 'timeout' })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  })

  test('G29: the timeout of an attempt covers the body', async () => {
    const { billing, receiver } = setUp({
      client: { retry: { attemptTimeoutMs: 500 } },
      receiver: { faults: [stall({ attempt: 1, after: 'headers' })] },
    })
    const began = performance.now()
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(performance.now() - began).toBeGreaterThanOrEqual(500)
    expect(performance.now() - began).toBeLessThan(1100)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a fetch that does not heed its signal does not hold the attempt open', async () => {
    const { billing, receiver } = setUp({ client: { retry: { attemptTimeoutMs: 500, maxAttempts: 2 } } })
    let calls = 0
    const deaf = setUp({
      client: {
        retry: { attemptTimeoutMs: 500, maxAttempts: 2 },
        fetch: ((input: string, init: RequestInit) => {
          calls += 1
          return calls === 1 ? new Promise<Response>(() => {}) : receiver.fetch(input, { ...init, signal: null })
        }) as typeof fetch,
      },
    })
    expect(await settled(deaf.billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    await billing.close()
  })

  test('a policy whose waits cannot fit the window is refused at construction', () => {
    const make = (retry: object): unknown =>
      createBillingClient({ baseUrl: 'https://billing.test', scope: 's', windowMarginMs: 23.9 * 3_600_000, retry })
    expect(() => make({ maxBackgroundDelayMs: 600_000 })).toThrow(expect.objectContaining({ field: 'retry' }))
    expect(() => make({})).not.toThrow()
  })
})

describe('two callers of one entry', () => {
  test('share its loop, and each has its own deadline', async () => {
    const { billing, receiver } = setUp({
      client: { retry: { attemptTimeoutMs: 5000, maxAttempts: 3 } },
      receiver: { faults: [stall({ attempt: [1, 2] })] },
    })
    const short = billing.charge(coffee, { ...order, deadlineMs: 1000 })
    const long = billing.charge(coffee, { ...order, deadlineMs: 50_000 })
    expect(await settled(short)).toMatchObject({ status: 'unknown', attempts: 1 })
    expect(await settled(long)).toMatchObject({ status: 'succeeded', attempts: 3 })
    expect(receiver.ledger.requests).toHaveLength(3)
  })

  test('one who comes while the last attempt of the first is in flight brings attempts of its own', async () => {
    const { billing, receiver } = setUp({
      client: { retry: { attemptTimeoutMs: 5000, maxAttempts: 1 } },
      receiver: { faults: [loseReply({ attempt: 1 }), stall({ attempt: 2 })] },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'unknown', attempts: 1 })
    const second = billing.charge(coffee, order)
    await pass(1000)
    const third = billing.charge(coffee, order)
    expect(await settled(third)).toMatchObject({ status: 'succeeded', attempts: 3 })
    expect(await settled(second)).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.requests).toHaveLength(3)
  })
})

test('offline costs no attempts, and the call goes on when the network is back', async () => {
  vi.stubGlobal('navigator', { onLine: false })
  try {
    const { billing, receiver } = setUp()
    const asked = billing.charge(coffee, order)
    await pass(30_000)
    expect(receiver.ledger.requests).toHaveLength(0)
    vi.stubGlobal('navigator', { onLine: true })
    expect(await settled(asked)).toMatchObject({ status: 'succeeded', attempts: 1 })
  } finally {
    vi.unstubAllGlobals()
  }
})

test('offline until the deadline is deferred, and says why', async () => {
  vi.stubGlobal('navigator', { onLine: false })
  try {
    const { billing, receiver } = setUp()
    const outcome = await settled(billing.charge(coffee, order))
    expect(outcome).toMatchObject({ status: 'deferred', attempts: 0, reason: 'offline' })
    await quiet()
    expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'deferred', reason: 'offline' })
    expect(receiver.ledger.requests).toHaveLength(0)
  } finally {
    vi.unstubAllGlobals()
  }
})
