/** What comes of a call by what the receiver says: no maybe becomes a no, and nothing makes a second key. */
import {
  delay,
  interceptionPage,
  loseReply,
  redirect,
  savedFailure,
  slowConflict,
  status,
  wrongReceipt,
} from 'billonce/testing'
import type { Fault } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { coffee, pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { expectOneName } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }

const mismatches: [number, object][] = [
  [400, { error: { code: 'idempotency_error', message: 'Once upon a time.' } }],
  [409, { error: { type: 'idempotency_key_reused', message: 'Something else altogether.' } }],
  [422, { type: 'https://example.com/problems/idempotency-key-mismatch', title: 'Oops', status: 422 }],
]

test.each(mismatches)(
  'G10: a %i whose code says that the key has other parameters ends delivery',
  async (code, body) => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(code, { attempt: 1, body: { ...body } })] },
    })
    const outcome = await settled(billing.charge(coffee, order))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'ended', reason: 'key-conflict', attempts: 1 })
    expect(await settled(another().charge(coffee, order))).toMatchObject({ reason: 'key-conflict', source: 'journal' })
    expect(await settled(another().resume())).toMatchObject({ total: 0, needEvidence: { unknown: 1 } })
    expect(receiver.ledger.requests).toHaveLength(1)
    const views = await viewsOf(billing)
    expect(views).toMatchObject([{ state: 'unknown', attempts: [{ status: code, result: 'conflict' }] }])
  },
)

test('G10: the words of a message alone never mean a conflict', async () => {
  const body = { error: { code: 'bad_thing', message: 'idempotency key reused with a different request' } }
  const { billing } = setUp({ receiver: { faults: [status(400, { attempt: 1, body })] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({
    status: 'rejected',
    rejection: { kind: 'invalid' },
  })
})

test('G14: a write that is still in progress is waited for, and its result is the outcome', async () => {
  const { billing, receiver } = setUp({
    client: { retry: { maxAttempts: 10, attemptTimeoutMs: 5000, deadlineMs: 120_000 } },
    receiver: { busyRetryAfterSeconds: 8, faults: [delay(45_000, { attempt: 1 })] },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', source: 'receiver' })
  const fates = receiver.ledger.requests.map((request) => request.did)
  expect(fates).toEqual(['executed', 'busy', 'busy', 'busy', 'busy', 'busy', 'replayed'])
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G14: in progress beyond the budget is unknown, and a later pass gets the result', async () => {
  const { billing, another, receiver } = setUp({ receiver: { faults: [slowConflict({ ms: 300_000 })] } })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'busy', attempts: 5 })
  await pass(400_000)
  expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G14: Retry-After of a 409 is kept to', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [slowConflict({ attempts: 2, retryAfterSeconds: 7 })] },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 3 })
  const [one, two, three] = receiver.ledger.requests.map((request) => request.atMs)
  expect(two! - one!).toBeGreaterThanOrEqual(7000)
  expect(three! - two!).toBeGreaterThanOrEqual(7000)
  expect(three! - one!).toBeLessThan(16_000)
})

const conflicts: [string, Fault, object][] = [
  [
    'a code for in progress is tried again',
    status(409, { attempt: 1, body: { error: { code: 'idempotency_key_in_use', type: 'idempotency_error' } } }),
    { status: 'succeeded', attempts: 2 },
  ],
  [
    'a code for other parameters ends delivery',
    status(409, { body: { error: { code: 'idempotency_key_reused' } } }),
    { status: 'unknown', delivery: 'ended', reason: 'key-conflict', attempts: 1 },
  ],
  [
    'an empty body is tried again within bounds',
    status(409, { body: '' }),
    { status: 'unknown', delivery: 'continues', reason: 'busy', attempts: 5 },
  ],
  [
    'HTML is tried again within bounds',
    status(409, { body: '<h1>Conflict</h1>' }),
    { status: 'unknown', delivery: 'continues', reason: 'busy', attempts: 5 },
  ],
]

test.each(conflicts)('G15: of a 409, %s', async (_what, fault, expected) => {
  const { billing, receiver } = setUp({ receiver: { faults: [fault] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject(expected)
  expectOneName(receiver)
})

test.each([false, true])(
  'G16: a failure that the receiver saved is not asked for again (effect made: %s)',
  async (afterEffect) => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [savedFailure(500, { attempt: 1, afterEffect })] },
    })
    const outcome = await settled(billing.charge(coffee, order))
    expect(outcome).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'recorded-failure',
      markedReplay: true,
      attempts: 2,
    })
    const [view] = await viewsOf(billing)
    expect(view?.attempts.at(-1)).toMatchObject({ status: 500, result: 'recorded-failure', markedReplay: true })
    expect(await settled(another().charge(coffee, order))).toMatchObject({
      reason: 'recorded-failure',
      source: 'journal',
    })
    expect(await settled(another().resume())).toMatchObject({ total: 0 })
    expect(receiver.ledger.requests).toHaveLength(2)
    const next = settled(billing.charge(coffee, { ...order, revision: 2 }))
    await expect(next).rejects.toMatchObject({ code: 'ERR_REVISION_REFUSED', reason: 'earlier-revision-open' })
    expectOneName(receiver)
  },
)

test('G16: the same 500 without a mark is tried again within bounds and stays open', async () => {
  const body = { error: { code: 'internal_error', message: 'Something went wrong here.' } }
  const { billing, receiver } = setUp({ receiver: { faults: [status(500, { body, afterEffect: true })] } })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'no-clear-reply', attempts: 5 })
  receiver.faults.clear()
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test.each([500, 502, 503, 504, 520, 599])(
  'G17: a %i after the effect is unknown, and the stored success is the outcome',
  async (code) => {
    const { billing, receiver, events } = setUp({
      receiver: { faults: [status(code, { attempt: 1, afterEffect: true })] },
    })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'succeeded',
      attempts: 2,
      markedReplay: true,
    })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
    expect(events.flatMap((event) => (event.type === 'state' ? [event.to] : []))).toEqual(['sending', 'succeeded'])
  },
)

test.each([500, 502, 503, 504])('G17: a %i to every attempt never says that the charge failed', async (code) => {
  const { billing } = setUp({ receiver: { faults: [status(code)] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'unknown', delivery: 'continues' })
})

test('G19: a login page, another shape, an empty 200, a 204 and a 202 are no success; the true 200 is', async () => {
  const { billing, receiver } = setUp({
    client: { retry: { maxAttempts: 10, deadlineMs: 600_000 } },
    receiver: {
      faults: [
        interceptionPage({ attempt: 1 }),
        status(200, { attempt: 2, body: { ok: true } }),
        status(200, { attempt: 3, body: '' }),
        status(204, { attempt: 4 }),
        status(202, { attempt: 5, body: { id: 'ch_x', status: 'processing' } }),
        status(200, { attempt: 6, body: { status: 'processing' } }),
        status(200, { attempt: 7, body: '{"id":"ch_9","amount":450}', contentType: 'text/html' }),
        status(200, { attempt: 8, body: '{"id":"ch_9","amount":4', contentType: 'application/json' }),
        status(200, { attempt: 9, body: '[{"id":"ch_9"}]', contentType: 'application/json' }),
      ],
    },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 10 })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G19: while nothing but pages come the entry stays open, and its record is kept', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [interceptionPage()] } })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'no-clear-reply' })
  receiver.faults.clear()
  expect(await settled(billing.resume())).toMatchObject({ succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test.each([301, 302, 303, 307, 308])('a redirect with %i is never followed', async (code) => {
  const { billing, receiver } = setUp({
    receiver: { faults: [redirect('https://elsewhere.test/v1/charges', { code, attempt: 1 })] },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(receiver.ledger.requests.every((request) => request.method === 'POST')).toBe(true)
  expect(receiver.ledger.requests).toHaveLength(2)
})

test.each([
  ['amount', { amount: 1 }],
  ['currency', { currency: 'usd' }],
])('a receipt for another %s stops delivery, with the receipt', async (_what, fields) => {
  const { billing, another, receiver } = setUp({ receiver: { faults: [wrongReceipt({ fields })] } })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({
    status: 'unknown',
    delivery: 'ended',
    reason: 'receipt-differs',
    receipt: { id: 'ch_000001' },
  })
  expect(await settled(another().charge(coffee, order))).toMatchObject({ reason: 'receipt-differs', source: 'journal' })
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('G20: a 429 waits in the journal for its time and goes with the next pass', async () => {
  const { billing, another, receiver } = setUp({
    receiver: { faults: [status(429, { attempt: 1, headers: { 'Retry-After': '2' } })] },
  })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'deferred', reason: 'rate-limited', attempts: 1, source: 'receiver' })
  const waitMs = 'retryAfterMs' in outcome ? outcome.retryAfterMs : 0
  expect(waitMs).toBeGreaterThanOrEqual(2000)
  expect(waitMs).toBeLessThanOrEqual(2500)
  const [view] = await viewsOf(billing)
  expect(view).toMatchObject({ state: 'pending', nextAttemptAtMs: Date.now() + (waitMs ?? 0) })
  expect(await settled(another().resume())).toMatchObject({ total: 1, succeeded: 1 })
  const [one, two] = receiver.ledger.requests.map((request) => request.atMs)
  expect(two! - one!).toBeGreaterThanOrEqual(2000)
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G20: a call that names it again before that time waits for it', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [status(429, { attempt: 1, headers: { 'Retry-After': '2' } })] },
  })
  await settled(billing.charge(coffee, order))
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  const [one, two] = receiver.ledger.requests.map((request) => request.atMs)
  expect(two! - one!).toBeGreaterThanOrEqual(2000)
})

test('G20: a 429 for ever is never a failure and never a new key', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(429, { headers: { 'Retry-After': '1' } })] } })
  for (let call = 1; call <= 4; call += 1) {
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'deferred',
      reason: 'rate-limited',
      attempts: call,
    })
  }
  expectOneName(receiver)
  expect(receiver.ledger.effects).toHaveLength(0)
})

test('G20: a call retries a 429 itself where it was told to', async () => {
  const { billing, receiver } = setUp({
    client: { retry: { alsoStatuses: [429] } },
    receiver: { faults: [status(429, { attempt: [1, 2], headers: { 'Retry-After': '2' } })] },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 3 })
  const [one, , three] = receiver.ledger.requests.map((request) => request.atMs)
  expect(three! - one!).toBeGreaterThanOrEqual(4000)
})

test('G20: a 408 is a lost reply and is tried again', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(408, { attempt: 1, afterEffect: true })] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('G20: a 425 is not accepted and waits', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(425, { attempt: 1 })] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred', reason: 'too-early' })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expectOneName(receiver)
})

test('G20: a 429 after an attempt that may have worked is unknown, not deferred', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [loseReply({ attempt: 1 }), status(429, { attempt: 2 })] },
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({
    status: 'unknown',
    delivery: 'continues',
    reason: 'rate-limited',
    attempts: 2,
  })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a page, whose browser may have sent a request twice, does not take 429 or 401 for a no', async () => {
  vi.stubGlobal('location', { origin: 'https://shop.test' })
  try {
    for (const [code, reason] of [
      [429, 'rate-limited'],
      [401, 'unauthorized'],
    ] as const) {
      const { billing, receiver } = setUp()
      receiver.faults.add(status(code, { times: 1 }))
      expect(await settled(billing.charge(coffee, order))).toMatchObject({
        status: 'unknown',
        delivery: 'continues',
        reason,
        attempts: 1,
      })
      await expect(settled(billing.cancel({ kind: 'charge', ...order }))).rejects.toMatchObject({
        code: 'ERR_NOT_CANCELABLE',
      })
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
      expect(receiver.ledger.effects).toHaveLength(1)
    }
  } finally {
    vi.unstubAllGlobals()
  }
})

test('in a page another revision after a refusal from in front of the key layer needs a word, whoever names', async () => {
  vi.stubGlobal('location', { origin: 'https://shop.test' })
  try {
    const { billing, receiver } = setUp({ client: { names: 'own' } })
    receiver.faults.add(status(400, { times: 1, body: { error: { code: 'odd' } } }))
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'rejected',
      rejection: { behindKey: false },
    })
    const refused = { code: 'ERR_REVISION_REFUSED', reason: 'unrecorded-refusal' }
    await expect(settled(billing.charge(coffee, { ...order, revision: 2 }))).rejects.toMatchObject(refused)
    await expect(settled(billing.retryRejected({ kind: 'charge', ...order }))).rejects.toMatchObject(refused)
    expect(receiver.ledger.requests).toHaveLength(1)
    const again = billing.charge(coffee, { ...order, revision: 2, despiteUnrecordedRefusal: true })
    expect(await settled(again)).toMatchObject({ status: 'succeeded' })
  } finally {
    vi.unstubAllGlobals()
  }
})

test('G21: a page whose every attempt fails at once, online, ends in bounds with a hint about the allow-list', async () => {
  vi.stubGlobal('location', { origin: 'https://shop.test' })
  try {
    let fetches = 0
    const keys: (string | null)[] = []
    const { billing } = setUp({
      client: {
        fetch: (async (input: string, init: RequestInit) => {
          fetches += 1
          keys.push(new Request(input, init).headers.get('idempotency-key'))
          await new Promise((resolve) => setTimeout(resolve, 3))
          throw new TypeError('Failed to fetch')
        }) as typeof fetch,
      },
    })
    const outcome = await settled(billing.charge(coffee, order))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 5 })
    expect('hint' in outcome ? outcome.hint : '').toMatch(/Access-Control-Allow-Headers/)
    expect('hint' in outcome ? outcome.hint : '').toMatch(/idempotency-key/i)
    expect(fetches).toBe(5)
    expect(keys).toEqual(Array.from({ length: 5 }, () => outcome.key))
    expect(await settled(billing.find({ kind: 'charge', ...order }))).toMatchObject({
      status: 'unknown',
      delivery: 'continues',
    })
  } finally {
    vi.unstubAllGlobals()
  }
})

test('G21: there is no such hint where the receiver is of the page’s own origin, nor outside a page', async () => {
  const failing = (async () => {
    throw new TypeError('Failed to fetch')
  }) as unknown as typeof fetch
  const outside = setUp({ client: { fetch: failing } })
  expect(await settled(outside.billing.charge(coffee, order))).not.toHaveProperty('hint')
  vi.stubGlobal('location', { origin: 'https://billing.test' })
  try {
    const same = setUp({ client: { fetch: failing } })
    expect(await settled(same.billing.charge(coffee, order))).not.toHaveProperty('hint')
  } finally {
    vi.unstubAllGlobals()
  }
})

test('a refusal from in front of the key layer after an attempt that may have worked is no evidence', async () => {
  const body = { error: { code: 'parameter_invalid', message: 'no' } }
  const { billing, receiver } = setUp({
    receiver: { faults: [loseReply({ attempt: 1 }), status(400, { attempt: [2, 3], body })] },
  })
  const outcome = await settled(billing.charge(coffee, order))
  expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'refused-unproven', attempts: 2 })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'unknown', reason: 'refused-unproven' })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a decline from behind the key is believed also after a lost reply', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const outcome = await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
  expect(outcome).toMatchObject({
    status: 'rejected',
    attempts: 2,
    rejection: { kind: 'declined', code: 'card_declined', status: 402, behindKey: true },
  })
  expect(receiver.ledger.effects).toHaveLength(0)
})

test.each([404, 405, 415, 421, 426])(
  'a %i without an error of the receiver’s is a wrong address: deferred',
  async (code) => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(code, { attempt: 1 })] } })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred', reason: 'misrouted' })
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  },
)

test.each([400, 402, 410, 422])('a %i with a gateway’s page is unclear and tried again', async (code) => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(code, { attempt: 1 })] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('a definition or a dialect that throws at a reply does not lose it: the entry stays open', async () => {
  const { another, receiver } = setUp()
  const throwing = another({
    dialect: {
      ...(await import('billonce')).standard(),
      classify: () => {
        throw new Error('bug')
      },
    },
  })
  expect(await settled(throwing.charge(coffee, order))).toMatchObject({ status: 'unknown', delivery: 'continues' })
  await throwing.close()
  expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})
