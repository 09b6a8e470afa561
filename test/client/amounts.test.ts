/** Money as the receiver gets it: digit for digit, or not at all. */
import { InvalidInputError } from 'billonce'
import type { ChargeParams, CreditsParams, UsageParams } from 'billonce'
import { status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }

test.each([
  [2000, 'JPY', '{"amount":2000,"currency":"JPY"}'],
  [1999, 'USD', '{"amount":1999,"currency":"USD"}'],
  [1500, 'KWD', '{"amount":1500,"currency":"KWD"}'],
  [1, 'clp', '{"amount":1,"currency":"clp"}'],
])('G64: %i %s goes out unchanged', async (amount, currency, body) => {
  const { billing, receiver } = setUp()
  expect(await settled(billing.charge({ amount, currency }, order))).toMatchObject({
    status: 'succeeded',
    receipt: { amount, currency },
  })
  expect(receiver.ledger.requests[0]?.body).toBe(body)
})

test('G64: a currency that nobody knows is refused, or passed on unchanged where the caller says so', async () => {
  const strict = setUp()
  for (const currency of ['XQQ', 'usdt', 'Us', 'EURO', '', 'eU1', 'Usd']) {
    const asked = strict.billing.charge({ amount: 1, currency }, order)
    await expect(asked, currency).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'currency' })
  }
  expect(strict.receiver.ledger.requests).toHaveLength(0)
  const free = setUp({ client: { anyCurrency: true } })
  expect(await settled(free.billing.charge({ amount: 5, currency: 'xqq' }, order))).toMatchObject({
    status: 'succeeded',
  })
  expect(free.receiver.ledger.requests[0]?.body).toBe('{"amount":5,"currency":"xqq"}')
})

const unusable: [string, unknown][] = [
  ['19.99 * 100', 19.99 * 100],
  ['80.6 * 100', 80.6 * 100],
  ['0.1 + 0.2', 0.1 + 0.2],
  ['1e21', 1e21],
  ['-0', -0],
  ['-1', -1],
  ['0', 0],
  ['NaN', Number.NaN],
  ['Infinity', Infinity],
  ["'100'", '100'],
  ['2^53', 2 ** 53],
  ['2^53 + 2', 2 ** 53 + 2],
  ['100n', 100n],
  ['nothing', undefined],
  ['null', null],
  ['a Number object', Object(5)],
  ['a list', [5]],
  ['true', true],
]

describe('G65, G66: what is no whole number of minor units', () => {
  test.each(unusable)('%s is refused before anything is written', async (_what, amount) => {
    const { billing, receiver, journal } = setUp()
    const calls = [
      billing.charge({ amount, currency: 'eur' } as ChargeParams, order),
      billing.charge({ amount, currency: 'eur' } as ChargeParams, { ...order, background: true }),
      billing.consumeCredits({ amount } as CreditsParams, order),
    ]
    for (const call of calls) {
      const error: unknown = await call.catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error).toMatchObject({ field: 'amount', sentByThisCall: false })
    }
    expect((await journal.list({}, 10)).entries).toHaveLength(0)
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test.each(unusable.filter(([what]) => what !== '0' && what !== "'100'"))(
    '%s is no quantity either',
    async (_what, quantity) => {
      const { billing, receiver, journal } = setUp()
      const asked = billing.recordUsage({ meter: 'm', quantity } as UsageParams, order)
      await expect(asked).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'quantity' })
      expect((await journal.list({}, 10)).entries).toHaveLength(0)
      expect(receiver.ledger.requests).toHaveLength(0)
    },
  )
})

test('G66: the largest safe number goes out, for money and for usage', async () => {
  const { billing, receiver } = setUp()
  await settled(billing.charge({ amount: 9_007_199_254_740_991, currency: 'eur' }, order))
  await settled(billing.recordUsage({ meter: 'm', quantity: 9_007_199_254_740_991 }, order))
  expect(receiver.ledger.requests.map((request) => request.body)).toEqual([
    '{"amount":9007199254740991,"currency":"eur"}',
    '{"meter":"m","quantity":9007199254740991}',
  ])
})

test.each(['9007199254740993', '123456789012345678901234567890', '0.25', '0.000000000000000001', '0', '10.50'])(
  'G66: the quantity %s goes out digit for digit as text',
  async (quantity) => {
    const { billing, receiver } = setUp()
    expect(await settled(billing.recordUsage({ meter: 'm', quantity }, order))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.requests[0]?.body).toBe(`{"meter":"m","quantity":"${quantity}"}`)
  },
)

test.each(['', ' 1', '01', '1e3', '-1', '+1', '1.', '.5', '0x10', '1,5', '١'])(
  'the quantity %j is refused',
  async (quantity) => {
    const { billing } = setUp()
    await expect(billing.recordUsage({ meter: 'm', quantity }, order)).rejects.toMatchObject({ field: 'quantity' })
  },
)

test('G66: a reply with a number of 19 digits is not rounded in results, now or later', async () => {
  const reply = '{"id":"cr_1","amount":5,"balance":1234567890123456789,"other":9007199254740993,"e":1e400}'
  const { billing, another } = setUp({
    receiver: { faults: [status(200, { body: reply, contentType: 'application/json' })] },
  })
  const expected = {
    status: 'succeeded',
    receipt: { id: 'cr_1', balance: '1234567890123456789', reply: { other: '9007199254740993', e: '1e400' } },
  }
  expect(await settled(billing.consumeCredits({ amount: 5 }, order))).toMatchObject(expected)
  expect(await settled(another().consumeCredits({ amount: 5 }, order))).toMatchObject(expected)
})

test('G66: a receipt whose amount is another number beyond the safe range is not taken for the asked one', async () => {
  const reply = '{"id":"ch_1","amount":9007199254740993,"currency":"eur"}'
  const { billing } = setUp({ receiver: { faults: [status(200, { body: reply, contentType: 'application/json' })] } })
  expect(await settled(billing.charge({ amount: 9_007_199_254_740_991, currency: 'eur' }, order))).toMatchObject({
    status: 'unknown',
    reason: 'receipt-differs',
  })
})

test('a misspelled parameter is refused instead of falling under the table', async () => {
  const { billing, receiver } = setUp()
  const params = { amount: 5, currency: 'eur', paymentMehtod: 'pm_1' } as ChargeParams
  await expect(billing.charge(params, order)).rejects.toMatchObject({ field: 'paymentMehtod' })
  expect(receiver.ledger.requests).toHaveLength(0)
})

describe('event times', () => {
  const HOUR_MS = 3_600_000
  const usage = { meter: 'm', quantity: 1 }

  test('occurredAt is sent as it is given, and absent otherwise', async () => {
    const { billing, receiver } = setUp()
    const at = new Date(Date.now())
    await settled(billing.recordUsage({ ...usage, occurredAt: at }, order))
    await settled(billing.recordUsage(usage, { operationId: 'order-2' }))
    expect(receiver.ledger.requests.map((request) => JSON.parse(request.body) as object)).toEqual([
      { ...usage, occurredAt: at.toISOString() },
      usage,
    ])
  })

  test('the same moment as a Date and as text is the same operation', async () => {
    const { billing, receiver } = setUp()
    const at = Math.floor(Date.now() / 1000) * 1000
    await settled(billing.recordUsage({ ...usage, occurredAt: new Date(at) }, order))
    const text = new Date(at).toISOString().replace('.000Z', '+00:00')
    expect(await settled(billing.recordUsage({ ...usage, occurredAt: text }, order))).toMatchObject({
      source: 'journal',
    })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test.each(['2026-11-30', '2026-11-30T18:00:00', 'yesterday', '', new Date(Number.NaN)])(
    '%s is no moment',
    async (occurredAt) => {
      const { billing } = setUp()
      await expect(billing.recordUsage({ ...usage, occurredAt }, order)).rejects.toMatchObject({ field: 'occurredAt' })
    },
  )

  test('an event older than the journal, within the window, is sent, and is never deferred', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
    const outcome = await settled(billing.recordUsage(usage, { ...order, eventAtMs: Date.now() - HOUR_MS }))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues', reason: 'rate-limited' })
    expect(await settled(billing.recordUsage(usage, order))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test.each(['eventAtMs', 'occurredAt'] as const)(
    'an event older than the journal and than the window (%s) is not sent',
    async (which) => {
      const { billing, another, receiver } = setUp()
      const atMs = Date.now() - 24 * HOUR_MS
      const outcome = await settled(
        which === 'eventAtMs'
          ? billing.recordUsage(usage, { ...order, eventAtMs: atMs })
          : billing.recordUsage({ ...usage, occurredAt: new Date(atMs) }, order),
      )
      expect(outcome).toMatchObject({
        status: 'unknown',
        delivery: 'ended',
        reason: 'may-predate-journal',
        attempts: 0,
      })
      expect(await settled(another().resume())).toMatchObject({ total: 0, needEvidence: { unknown: 1 } })
      expect(receiver.ledger.requests).toHaveLength(0)
    },
  )

  test('in the background too', async () => {
    const { billing, receiver } = setUp()
    const late = { ...order, eventAtMs: Date.now() - 24 * HOUR_MS, background: true }
    expect(await settled(billing.recordUsage(usage, late))).toMatchObject({
      status: 'unknown',
      reason: 'may-predate-journal',
    })
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test('names of one’s own are not older than their journal', async () => {
    const { billing, receiver } = setUp({ client: { names: 'own' } })
    const late = { ...order, eventAtMs: Date.now() - 240 * HOUR_MS }
    expect(await settled(billing.recordUsage(usage, late))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a time of the event that is none is refused', async () => {
    const { billing } = setUp()
    for (const eventAtMs of [Number.NaN, Infinity, '1' as unknown as number, new Date() as unknown as number]) {
      await expect(billing.recordUsage(usage, { ...order, eventAtMs })).rejects.toMatchObject({ field: 'eventAtMs' })
    }
  })
})
