/** What a call may ask for, what becomes of it on the wire, and how a receipt is read. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { differingFields } from '../../src/model/canonical.ts'
import type { JsonObject } from '../../src/model/canonical.ts'
import {
  chargeWrite,
  creditsWrite,
  defineWrite,
  echoes,
  encodeJson,
  readOperation,
  readReceipt,
  usageWrite,
} from '../../src/model/operation.ts'
import type { AnyWriteDefinition, Operation } from '../../src/model/operation.ts'

const charge = chargeWrite({ anyCurrency: false })
const read = (definition: AnyWriteDefinition, params: unknown) => readOperation(definition, params as object)
const bodyOf = (definition: AnyWriteDefinition, params: unknown): string =>
  encodeJson(read(definition, params).fields).body
const refused = (field: string): Error =>
  expect.objectContaining({ code: 'ERR_INVALID_INPUT', field, sentByThisCall: false }) as Error

const fullCharge = {
  amount: 5000,
  currency: 'usd',
  customer: 'cus_1',
  paymentMethod: 'pm_1',
  description: 'Two coffees',
  metadata: { order: { id: 991, tags: ['a', 'b'] } },
}
const fullUsage = {
  meter: 'exports',
  quantity: 3,
  customer: 'cus_1',
  occurredAt: '2026-11-30T18:00:00+01:00',
  metadata: { job: 7 },
}
const fullCredits = { amount: 12, account: 'acc_1', description: 'A poster', metadata: { size: 'A2' } }

describe('the bytes that are sent', () => {
  test.each<[string, AnyWriteDefinition, unknown, string]>([
    [
      'a whole charge',
      charge,
      fullCharge,
      '{"amount":5000,"currency":"usd","customer":"cus_1","description":"Two coffees","metadata":{"order":{"id":991,"tags":["a","b"]}},"paymentMethod":"pm_1"}',
    ],
    ['the least of a charge', charge, { currency: 'USD', amount: 1 }, '{"amount":1,"currency":"USD"}'],
    [
      'a charge with everything optional left undefined',
      charge,
      {
        amount: 1,
        currency: 'usd',
        customer: undefined,
        paymentMethod: undefined,
        description: undefined,
        metadata: undefined,
      },
      '{"amount":1,"currency":"usd"}',
    ],
    [
      'a charge in letters of the world',
      charge,
      { amount: 1, currency: 'usd', description: 'кофе ☕ "\\\n' },
      '{"amount":1,"currency":"usd","description":"кофе ☕ \\"\\\\\\n"}',
    ],
    [
      'whole usage',
      usageWrite,
      fullUsage,
      '{"customer":"cus_1","metadata":{"job":7},"meter":"exports","occurredAt":"2026-11-30T17:00:00.000Z","quantity":3}',
    ],
    ['the least of usage', usageWrite, { meter: 'm', quantity: '0.10' }, '{"meter":"m","quantity":"0.10"}'],
    [
      'whole credits',
      creditsWrite,
      fullCredits,
      '{"account":"acc_1","amount":12,"description":"A poster","metadata":{"size":"A2"}}',
    ],
    ['the least of credits', creditsWrite, { amount: 1 }, '{"amount":1}'],
  ])('of %s', (_, definition, params, body) => {
    expect(bodyOf(definition, params)).toBe(body)
  })

  test.each([
    ['JPY', 2000],
    ['USD', 1999],
    ['KWD', 1500],
    ['usd', Number.MAX_SAFE_INTEGER],
  ])('G64: %s %i goes out unchanged', (currency, amount) => {
    expect(bodyOf(charge, { amount, currency })).toBe(`{"amount":${amount},"currency":"${currency}"}`)
  })

  test('are JSON and say so', () => {
    expect(encodeJson({ a: 1 })).toEqual({ body: '{"a":1}', contentType: 'application/json' })
  })

  test.each<[string, AnyWriteDefinition, object]>([
    ['charge', charge, fullCharge],
    ['usage', usageWrite, fullUsage],
    ['credits', creditsWrite, fullCredits],
  ])('of a %s do not depend on the order of its parameters, on the clock or on chance', (_, definition, params) => {
    fc.assert(
      fc.property(fc.shuffledSubarray(Object.entries(params), { minLength: Object.keys(params).length }), (entries) => {
        expect(bodyOf(definition, Object.fromEntries(entries))).toBe(bodyOf(definition, params))
      }),
      { numRuns: 30 },
    )
  })

  test('G11: what the caller changes afterwards is not in them', () => {
    const params = structuredClone(fullCharge)
    const operation = read(charge, params)
    params.amount = 1
    params.metadata.order.tags.push('c')
    expect(encodeJson(operation.fields).body).toBe(bodyOf(charge, fullCharge))
    expect(operation.fingerprint).toEqual(read(charge, fullCharge).fingerprint)
  })
})

describe('what is refused, by parameter', () => {
  const texts = ['', 7, null, true, {}, ['cus_1'], new Date(0)]
  const objects = ['text', 7, null, true, [1], new Map(), new Date(0)]
  test.each<[string, AnyWriteDefinition, object, string, readonly unknown[]]>([
    ['a charge', charge, fullCharge, 'amount', [0, -1, 1.5, '5000', null, undefined, 2 ** 53, 5000n]],
    ['a charge', charge, fullCharge, 'currency', ['', 'zzz', 'Usd', 840, null, undefined]],
    ['a charge', charge, fullCharge, 'customer', texts],
    ['a charge', charge, fullCharge, 'paymentMethod', texts],
    ['a charge', charge, fullCharge, 'description', texts],
    ['a charge', charge, fullCharge, 'metadata', objects],
    ['usage', usageWrite, fullUsage, 'meter', ['', 7, null, undefined, 'a\nb', 'x'.repeat(256), 'a\ud83d']],
    ['usage', usageWrite, fullUsage, 'quantity', [0.5, '1e3', null, undefined, 1n, '']],
    ['usage', usageWrite, fullUsage, 'customer', texts],
    ['usage', usageWrite, fullUsage, 'occurredAt', [0, '', 'yesterday', null, new Date(Number.NaN), {}]],
    ['usage', usageWrite, fullUsage, 'metadata', objects],
    ['credits', creditsWrite, fullCredits, 'amount', [0, -1, 1.5, '12', null, undefined]],
    ['credits', creditsWrite, fullCredits, 'account', texts],
    ['credits', creditsWrite, fullCredits, 'description', texts],
    ['credits', creditsWrite, fullCredits, 'metadata', objects],
  ])('%s: %s', (_, definition, params, field, values) => {
    for (const value of values)
      expect(() => read(definition, { ...params, [field]: value }), String(value)).toThrow(refused(field))
  })

  test.each<[string, AnyWriteDefinition, object, string]>([
    ['a misspelled one', charge, { ...fullCharge, ammount: 5000 }, 'ammount'],
    ['one of another provider', charge, { ...fullCharge, payment_method: 'pm_1' }, 'payment_method'],
    ['a method', charge, { ...fullCharge, submit() {} }, 'submit'],
    ['one of another write', usageWrite, { ...fullUsage, amount: 3 }, 'amount'],
    ['one of another write', creditsWrite, { ...fullCredits, currency: 'usd' }, 'currency'],
    ['an option among them', charge, { ...fullCharge, operationId: 'order-1' }, 'operationId'],
  ])('a parameter that is not known: %s', (_, definition, params, field) => {
    expect(() => read(definition, params)).toThrow(refused(field))
  })

  test.each<[string, unknown, string]>([
    ['half a surrogate pair', { ...fullCharge, description: 'x\ud83d' }, 'description'],
    ['a function deep inside', { ...fullCharge, metadata: { a: [{ f() {} }] } }, 'metadata.a[0].f'],
    ['a BigInt deep inside', { ...fullCharge, metadata: { a: { n: 1n } } }, 'metadata.a.n'],
    ['a number beyond 2^53', { ...fullCharge, metadata: { a: 2 ** 60 } }, 'metadata.a'],
  ])('with its path: %s', (_, params, field) => {
    expect(() => read(charge, params)).toThrow(refused(field))
  })

  test.each([undefined, null, 'params', 7, true, () => ({})])('parameters that are no object: %s', (params) => {
    expect(() => read(charge, params)).toThrow(refused('params'))
  })

  test('a list or a Date in place of the parameters', () => {
    expect(() => read(charge, [fullCharge])).toThrow(expect.objectContaining({ code: 'ERR_INVALID_INPUT' }))
    expect(() => read(charge, new Date())).toThrow(expect.objectContaining({ code: 'ERR_INVALID_INPUT' }))
  })
})

describe('when usage occurred', () => {
  test.each([
    ['2026-11-30T18:00:00Z', '2026-11-30T18:00:00.000Z'],
    ['2026-11-30T18:00:00.5Z', '2026-11-30T18:00:00.500Z'],
    ['2026-11-30T18:00:00.123Z', '2026-11-30T18:00:00.123Z'],
    ['2026-11-30T18:00:00+00:00', '2026-11-30T18:00:00.000Z'],
    ['2026-11-30T18:00:00-00:00', '2026-11-30T18:00:00.000Z'],
    ['2026-11-30T23:30:00-05:30', '2026-12-01T05:00:00.000Z'],
    ['2026-03-01T00:30:00+14:00', '2026-02-28T10:30:00.000Z'],
    ['2024-02-29T00:00:00Z', '2024-02-29T00:00:00.000Z'],
    ['1969-12-31T23:59:59Z', '1969-12-31T23:59:59.000Z'],
  ])('%s is the moment %s', (occurredAt, sent) => {
    const operation = read(usageWrite, { ...fullUsage, occurredAt })
    expect(operation.fields['occurredAt']).toBe(sent)
    expect(operation.occurredAtMs).toBe(Date.parse(sent))
  })

  test('a Date and the text of the same moment in any zone are one event with one body', () => {
    const moment = Date.UTC(2026, 10, 30, 17)
    const forms = [
      new Date(moment),
      '2026-11-30T17:00:00Z',
      '2026-11-30T18:00:00+01:00',
      '2026-11-30T12:00:00.000-05:00',
    ]
    const operations = forms.map((occurredAt) => read(usageWrite, { ...fullUsage, occurredAt }))
    expect(new Set(operations.map((operation) => encodeJson(operation.fields).body)).size).toBe(1)
    expect(new Set(operations.map((operation) => operation.fingerprint['occurredAt'])).size).toBe(1)
  })

  test.each([
    '2026-11-30T18:00:00',
    '2026-11-30',
    '2026-11-30 18:00:00Z',
    '30.11.2026',
    'Mon, 30 Nov 2026 18:00:00 GMT',
    '2026-13-01T00:00:00Z',
    '2026-11-30T18:00:60Z',
    '2026-11-30T18:00:00+0100',
    '1796061600000',
    '',
  ])('%j is refused: another machine could read another moment in it', (occurredAt) => {
    expect(() => read(usageWrite, { ...fullUsage, occurredAt })).toThrow(refused('occurredAt'))
  })

  test.each(['2026-02-29T00:00:00Z', '2026-02-30T12:00:00Z', '2026-04-31T00:00:00+02:00'])(
    '%s is no day of the calendar and is refused, not moved to the next month',
    (occurredAt) => {
      expect(() => read(usageWrite, { ...fullUsage, occurredAt })).toThrow(refused('occurredAt'))
    },
  )

  test('without it nothing is filled in', () => {
    const { occurredAt: _, ...params } = fullUsage
    const operation = read(usageWrite, params)
    expect(operation.fields).not.toHaveProperty('occurredAt')
    expect(operation.occurredAtMs).toBeUndefined()
  })
})

describe('the name and what is compared', () => {
  test('charges and credits have no subject, usage has its meter', () => {
    expect(read(charge, fullCharge)).toMatchObject({ kind: 'charge', subject: null })
    expect(read(creditsWrite, fullCredits)).toMatchObject({ kind: 'credits', subject: null })
    expect(read(usageWrite, fullUsage)).toMatchObject({ kind: 'usage', subject: 'exports' })
  })

  test.each<[string, AnyWriteDefinition, object, object]>([
    ['a charge its amount and currency', charge, fullCharge, { amount: 5000, currency: 'usd' }],
    ['usage nothing', usageWrite, fullUsage, {}],
    ['credits their amount', creditsWrite, fullCredits, { amount: 12 }],
  ])('a receipt has to repeat of %s', (_, definition, params, expected) => {
    expect(read(definition, params).expected).toEqual(expected)
  })

  test.each<[string, AnyWriteDefinition, object]>([
    ['charge', charge, fullCharge],
    ['usage', usageWrite, fullUsage],
    ['credits', creditsWrite, fullCredits],
  ])('every parameter of a %s that is given is compared, and none that is not', (_, definition, params) => {
    expect(Object.keys(read(definition, params).fingerprint).toSorted()).toEqual(Object.keys(params).toSorted())
    const required =
      definition.kind === 'usage'
        ? ['meter', 'quantity']
        : definition.kind === 'charge'
          ? ['amount', 'currency']
          : ['amount']
    const least = Object.fromEntries(
      Object.entries(params).map(([name, value]) => [name, required.includes(name) ? value : undefined]),
    )
    expect(Object.keys(read(definition, least).fingerprint).toSorted()).toEqual(required)
  })

  const capture = defineWrite({
    kind: 'capture',
    path: 'v1/captures',
    method: 'POST',
    readParams: (params: { amount: number; final?: boolean }) => ({
      amount: params.amount,
      final: params.final ?? true,
    }),
    readReceipt,
  })

  test('a default that the definition fills in goes out and is not compared', () => {
    const short = read(capture, { amount: 1 })
    const long = read(capture, { amount: 1, final: true })
    expect(encodeJson(short.fields).body).toBe('{"amount":1,"final":true}')
    expect(encodeJson(long.fields).body).toBe('{"amount":1,"final":true}')
    expect(Object.keys(short.fingerprint)).toEqual(['amount'])
    expect(Object.keys(long.fingerprint)).toEqual(['amount', 'final'])
  })

  test('a parameter that the body carries under another name is compared as well, or refused', () => {
    const payout = defineWrite({
      kind: 'payout',
      path: 'v1/payouts',
      method: 'POST',
      readParams: (params: { amountCents: number; to: string }) => ({ amount: params.amountCents, to: params.to }),
      readReceipt,
    })
    expect(differing((amountCents) => read(payout, { amountCents, to: 'acct_1' }))).not.toEqual([])
  })

  test('a parameter that an object inherits is compared, or refused', () => {
    class Order {
      readonly #amount: number
      currency = 'usd'
      constructor(amount: number) {
        this.#amount = amount
      }
      get amount(): number {
        return this.#amount
      }
    }
    expect(differing((amount) => read(charge, new Order(amount)))).not.toEqual([])
  })

  /** In which fields the operations of two amounts differ; `refused` if they do not come to be. */
  function differing(of: (amount: number) => Operation): readonly string[] {
    try {
      return differingFields(of(5).fingerprint, of(500_000).fingerprint, [])
    } catch (error) {
      expect(error).toMatchObject({ code: 'ERR_INVALID_INPUT' })
      return ['refused']
    }
  }

  test.each(['constructor', 'toString', '__proto__'])(
    'a parameter named %s reaches the body and is compared, or is refused',
    (name) => {
      const free = defineWrite({
        kind: 'free',
        path: 'v1/free',
        method: 'POST',
        readParams: (params: object) => params,
        readReceipt,
      })
      const params = JSON.parse(`{"${name}":{"a":1}}`) as object
      try {
        expect(JSON.parse(bodyOf(free, params))).toEqual(params)
        expect(Object.keys(read(free, params).fingerprint)).toEqual([name])
      } catch (error) {
        expect(error).toMatchObject({ code: 'ERR_INVALID_INPUT' })
      }
    },
  )
})

describe('defineWrite', () => {
  const good = {
    kind: 'refund',
    path: 'v1/refunds',
    method: 'POST',
    readParams: (params: { charge: string }) => params,
    readReceipt,
  } as const

  test('gives the definition back as it is', () => {
    expect(defineWrite(good)).toBe(good)
    for (const method of ['POST', 'PUT', 'PATCH'] as const) expect(defineWrite({ ...good, method }).method).toBe(method)
    for (const path of ['refunds', 'v1/refunds', 'v1/refunds/', 'v1/re:funds', 'v1/a..b', '…/refunds'])
      expect(defineWrite({ ...good, path }).path).toBe(path)
  })

  test.each<[string, unknown]>([
    ['kind', ''],
    ['kind', undefined],
    ['kind', 'a\nb'],
    ['kind', 'x'.repeat(256)],
    ['kind', 'x\ud83d'],
    ['path', ''],
    ['path', '/v1/refunds'],
    ['path', '//evil.example/v1'],
    ['path', '../v1/refunds'],
    ['path', 'v1/../../refunds'],
    ['path', 'v1/refunds?dry=1'],
    ['path', 'v1/refunds#top'],
    ['path', 'v1/re funds'],
    ['path', 'v1/refunds\n'],
    ['path', undefined],
    ['method', 'GET'],
    ['method', 'DELETE'],
    ['method', 'post'],
    ['method', undefined],
  ])('refuses the %s %j', (field, value) => {
    expect(() => defineWrite({ ...good, [field]: value })).toThrow(refused(field))
  })

  test.each(['v1/%2e%2e/%2E%2e/refunds', 'v1\\..\\..\\refunds'])(
    'refuses the path %j, which an address reads as one that leads out',
    (path) => {
      expect(() => defineWrite({ ...good, path })).toThrow(refused('path'))
    },
  )

  test('a subject of its own is part of the name and must be one', () => {
    const definition = defineWrite({ ...good, subject: 'charge' })
    expect(read(definition, { charge: 'ch_1' }).subject).toBe('ch_1')
    for (const subject of ['', 7, undefined, 'a\nb', 'x'.repeat(256)])
      expect(() => read(definition, { charge: subject })).toThrow(refused('charge'))
  })

  test('an event time of its own counts, and must be one', () => {
    const definition = defineWrite({ ...good, readParams: (params: { at?: string }) => params, eventTime: 'at' })
    expect(read(definition, { at: '2026-11-30T18:00:00Z' }).occurredAtMs).toBe(Date.UTC(2026, 10, 30, 18))
    expect(read(definition, {}).occurredAtMs).toBeUndefined()
    expect(() => read(definition, { at: 'now' })).toThrow(refused('at'))
  })

  test('what its readParams gives is checked like any other input', () => {
    for (const value of [Number.NaN, 1n, new Date(0), () => 1, 'x\ud83d'])
      expect(() => read(defineWrite({ ...good, readParams: () => ({ value }) }), {})).toThrow(refused('value'))
  })

  test('what its readParams throws reaches the caller', () => {
    const error = new RangeError('too many')
    const definition = defineWrite({
      ...good,
      readParams: (): object => {
        throw error
      },
    })
    expect(() => read(definition, {})).toThrow(error)
  })
})

describe('receipts', () => {
  test.each([{}, { id: '' }, { id: 7 }, { id: null }, { ID: 'ch_1' }, { data: { id: 'ch_1' } }])(
    '%j is none: there is no id',
    (reply) => {
      expect(readReceipt(reply as JsonObject)).toBeUndefined()
      for (const definition of [charge, usageWrite, creditsWrite])
        expect(definition.readReceipt(reply as JsonObject)).toBeUndefined()
    },
  )

  test('the whole reply stays readable', () => {
    const reply = { id: 'ch_1', status: 'succeeded', fee: { amount: 12 }, amount: 5000, currency: 'usd' }
    expect(charge.readReceipt(reply)).toEqual({ id: 'ch_1', status: 'succeeded', amount: 5000, currency: 'usd', reply })
  })

  test('of a charge with an amount or currency that is none are none', () => {
    for (const amount of [12.5, '12.50', true, {}, [5000], '1e3'])
      expect(charge.readReceipt({ id: 'ch_1', amount })).toBeUndefined()
    for (const currency of [840, true, {}]) expect(charge.readReceipt({ id: 'ch_1', currency })).toBeUndefined()
  })

  test('null counts as absent, and a status that is no text is left out', () => {
    const reply = { id: 'x', amount: null, currency: null, status: 3, standing: null, balance: null }
    for (const definition of [charge, usageWrite, creditsWrite])
      expect(definition.readReceipt(reply)).toEqual({ id: 'x', reply })
  })

  test('of usage have the standing as it came, of credits the balance', () => {
    const standing = { meter: 'exports', used: '90071992547409930' }
    expect(usageWrite.readReceipt({ id: 'us_1', standing })).toMatchObject({ standing })
    for (const balance of [0, 7, -3, 0.5, '90071992547409930'])
      expect(creditsWrite.readReceipt({ id: 'cr_1', balance })).toMatchObject({ balance })
    for (const balance of [true, {}, [1]]) expect(creditsWrite.readReceipt({ id: 'cr_1', balance })).toBeUndefined()
  })

  const receiptOf = (reply: JsonObject) => ({ id: 'x', reply: { id: 'x', ...reply } })

  test.each<[string, JsonObject, JsonObject, boolean]>([
    ['the same', { amount: 5000, currency: 'usd' }, { amount: 5000, currency: 'usd' }, true],
    ['the currency in other letters', { currency: 'usd' }, { currency: 'USD' }, true],
    ['the amount as text', { amount: 5000 }, { amount: '5000' }, true],
    ['nothing of it', { amount: 5000, currency: 'usd' }, {}, true],
    ['null', { amount: 5000 }, { amount: null }, true],
    ['another amount', { amount: 5000 }, { amount: 50 }, false],
    ['major units', { amount: 5000 }, { amount: '50.00' }, false],
    ['another currency', { amount: 5000, currency: 'usd' }, { amount: 5000, currency: 'eur' }, false],
    ['zero', { amount: 5000 }, { amount: 0 }, false],
    ['something of another type', { amount: 5000 }, { amount: { value: 5000 } }, false],
    ['an object in another order', { a: { x: 1, y: 2 } }, { a: { y: 2, x: 1 } }, true],
  ])('that repeat %s', (_, expected, reply, isEcho) => {
    expect(echoes(expected, receiptOf(reply))).toBe(isEcho)
  })
})
