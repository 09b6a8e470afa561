/** One content, one text; and what JSON cannot carry is said, not changed. */
import { createHash } from 'node:crypto'
import { runInNewContext } from 'node:vm'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  canonicalText,
  differingFields,
  fingerprintOf,
  parseReceived,
  readJson,
  readJsonObject,
} from '../../src/model/canonical.ts'
import type { JsonObject, JsonValue } from '../../src/model/canonical.ts'
import { InvalidInputError } from '../../src/errors.ts'
import { chargeWrite, readOperation } from '../../src/model/operation.ts'

/** Plain data as a caller may give it: well-formed texts, numbers that JSON carries. */
const jsonValue = fc.letrec<{ value: JsonValue; object: JsonObject }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthIdentifier: 'json' },
    fc.constant(null),
    fc.boolean(),
    fc.string({ unit: 'grapheme' }),
    fc.maxSafeInteger(),
    fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e15, max: 1e15 }),
    fc.array(tie('value'), { maxLength: 4, depthIdentifier: 'json' }),
    tie('object'),
  ),
  object: fc.dictionary(
    fc.oneof(
      fc.string({ unit: 'grapheme', maxLength: 6 }),
      fc.constantFrom('__proto__', 'constructor', 'toJSON', '1', '02'),
    ),
    tie('value'),
    { maxKeys: 5, depthIdentifier: 'json' },
  ) as fc.Arbitrary<JsonObject>,
}))

function shuffled(value: JsonValue): JsonValue {
  if (Array.isArray(value)) return value.map(shuffled)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value as JsonObject)
  return Object.fromEntries(entries.toReversed().map(([name, item]) => [name, shuffled(item)]))
}

describe('canonical text', () => {
  test('is what RFC 8785 has in its sample of numbers, strings and literals', () => {
    const input = String.raw`{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}`
    expect(canonicalText(JSON.parse(input) as JsonValue)).toBe(
      String.raw`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
    )
  })

  test('sorts names by UTF-16 code units, as the sample of RFC 8785 has them', () => {
    const value = { '\u20ac': 1, '\r': 2, '\ufb33': 3, '1': 4, '\u{1f600}': 5, '\u0080': 6, ö: 7 }
    expect(Object.keys(JSON.parse(canonicalText(value)) as object)).toHaveLength(7)
    expect([...canonicalText(value).matchAll(/:(\d)/g)].map(([, digit]) => digit)).toEqual([
      '2',
      '4',
      '6',
      '7',
      '1',
      '5',
      '3',
    ])
  })

  test('does not depend on the order of properties, and reads back as what it was', () => {
    fc.assert(
      fc.property(jsonValue.value, (value) => {
        const read = readJson(value, 'value')
        const text = canonicalText(read)
        expect(canonicalText(readJson(shuffled(value), 'value'))).toBe(text)
        expect(canonicalText(JSON.parse(text) as JsonValue)).toBe(text)
        expect(JSON.stringify(JSON.parse(text))).toEqual(JSON.stringify(JSON.parse(JSON.stringify(sorted(read)))))
      }),
      { numRuns: 500 },
    )
  })

  test('is different for different content', () => {
    fc.assert(
      fc.property(jsonValue.value, jsonValue.value, (one, other) => {
        const texts = [one, other].map((value) => canonicalText(readJson(value, 'value')))
        const isSame = JSON.stringify(sorted(readJson(one, 'x'))) === JSON.stringify(sorted(readJson(other, 'x')))
        expect(texts[0] === texts[1]).toBe(isSame)
      }),
      { numRuns: 500 },
    )
  })
})

/** An oracle of another make: properties put in order first, then JSON.stringify. */
function sorted(value: JsonValue): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  const object: Record<string, unknown> = Object.create(null) as Record<string, unknown>
  for (const name of Object.keys(value).toSorted()) object[name] = sorted((value as JsonObject)[name]!)
  return object
}

describe('G12: property order does not matter, list order does', () => {
  const charge = chargeWrite({ anyCurrency: false })
  const fingerprint = (params: object): unknown => readOperation(charge, params as never).fingerprint
  const one = { amount: 1, currency: 'usd', customer: 'cus_1', metadata: { a: { x: 1, y: 2 }, list: [1, 2] } }

  test('of parameters and of objects in them', () => {
    const other = { customer: 'cus_1', metadata: { list: [1, 2], a: { y: 2, x: 1 } }, currency: 'usd', amount: 1 }
    expect(fingerprint(other)).toEqual(fingerprint(one))
  })

  test('a list with two elements swapped is another list', () => {
    const other = { ...one, metadata: { ...one.metadata, list: [2, 1] } }
    expect(differingFields(fingerprint(one) as never, fingerprint(other) as never, [])).toEqual(['metadata'])
  })
})

describe('G45: plain data passes in whatever it is wrapped', () => {
  /** As reactive frameworks do it: each object behind a proxy, made when it is reached. */
  const reactive = <T extends object>(target: T): T =>
    new Proxy(target, {
      get: (of, name, receiver) => {
        const value: unknown = Reflect.get(of, name, receiver)
        return typeof value === 'object' && value !== null ? reactive(value) : value
      },
    })

  test.each([
    ['a reactive proxy', reactive({ a: { b: [1, { c: 'd' }] } })],
    ['an object without a prototype', Object.assign(Object.create(null) as object, { a: { b: [1, { c: 'd' }] } })],
    ['an object of another realm', runInNewContext('({ a: { b: [1, { c: "d" }] } })') as unknown],
    ['a frozen object', Object.freeze({ a: { b: [1, { c: 'd' }] } })],
    ['undefined properties', { a: { b: [1, { c: 'd', e: undefined }], f: undefined }, g: undefined }],
    ['getters of its own', Object.defineProperty({}, 'a', { enumerable: true, get: () => ({ b: [1, { c: 'd' }] }) })],
  ])('%s', (_, value) => {
    expect(canonicalText(readJson(value, 'value'))).toBe('{"a":{"b":[1,{"c":"d"}]}}')
  })

  test('what is read shares nothing with what was given', () => {
    const given = { list: [{ a: 1 }] }
    const read = readJson(given, 'value')
    given.list[0]!.a = 2
    given.list.push({ a: 3 })
    expect(canonicalText(read)).toBe('{"list":[{"a":1}]}')
  })

  test('a shared object that does not contain itself is no cycle', () => {
    const address = { city: 'Oslo' }
    expect(canonicalText(readJson({ from: address, to: address, all: [address, address] }, 'value'))).toBe(
      '{"all":[{"city":"Oslo"},{"city":"Oslo"}],"from":{"city":"Oslo"},"to":{"city":"Oslo"}}',
    )
  })

  test('names that objects inherit are names like any other', () => {
    const value = JSON.parse('{"__proto__":{"a":1},"constructor":2,"toString":3}') as unknown
    expect(canonicalText(readJson(value, 'value'))).toBe('{"__proto__":{"a":1},"constructor":2,"toString":3}')
  })
})

describe('G45: what JSON cannot carry is refused, with its path', () => {
  const cycle: Record<string, unknown> = { inner: {} }
  ;(cycle['inner'] as Record<string, unknown>)['back'] = cycle
  class Order {
    amount = 1
  }
  const deep = (levels: number): unknown => (levels === 0 ? 1 : [deep(levels - 1)])

  test.each<[string, unknown, string]>([
    ['a method', { a: { pay() {} } }, 'value.a.pay'],
    ['a Date', { at: new Date(0) }, 'value.at'],
    ['a Map', { map: new Map([['a', 1]]) }, 'value.map'],
    ['a Set', [new Set([1])], 'value[0]'],
    ['an instance of a class', { order: new Order() }, 'value.order'],
    ['an object made from another one', Object.create({ inherited: 1 }), 'value'],
    ['a boxed number', { a: new Number(1) }, 'value.a'],
    ['bytes', { a: new Uint8Array([1]) }, 'value.a'],
    ['an error', { a: new Error('x') }, 'value.a'],
    ['a promise', { a: Promise.resolve(1) }, 'value.a'],
    ['a cycle', cycle, 'value.inner.back'],
    ['a BigInt', { amount: 1n }, 'value.amount'],
    ['a symbol', { a: [1, Symbol('x')] }, 'value.a[1]'],
    ['undefined at the top', undefined, 'value'],
    ['undefined in a list', [1, undefined], 'value[1]'],
    ['a hole in a list', { list: Object.assign([] as number[], { 0: 1, 2: 3 }) }, 'value.list[1]'],
    ['NaN', { a: Number.NaN }, 'value.a'],
    ['Infinity', { a: Infinity }, 'value.a'],
    ['minus Infinity', [-Infinity], 'value[0]'],
    ['2^53', { a: 2 ** 53 }, 'value.a'],
    ['-2^53', { a: -(2 ** 53) }, 'value.a'],
    ['1e21', { a: 1e21 }, 'value.a'],
    ['half a surrogate pair', { a: { b: 'x\ud83d' } }, 'value.a.b'],
    ['half a surrogate pair in a name', { a: { '\ude00': 1 } }, 'value.a'],
    ['65 levels', deep(65), `value${'[0]'.repeat(64)}`],
  ])('%s', (_, value, field) => {
    expect(() => readJson(value, 'value')).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_INPUT', field, sentByThisCall: false }),
    )
  })

  test('64 levels and both ends of the safe integers pass, and minus zero is zero', () => {
    expect(canonicalText(readJson(deep(64), 'value'))).toBe(`${'['.repeat(64)}1${']'.repeat(64)}`)
    expect(canonicalText(readJson([2 ** 53 - 1, 1 - 2 ** 53, -0, 1e-7], 'value'))).toBe(
      '[9007199254740991,-9007199254740991,0,1e-7]',
    )
  })

  test('the message names the path and does not quote the value', () => {
    const secret = 'sk_live_secret\ud83d'
    const error = thrownBy(() => readJson({ card: { token: secret } }, 'metadata'))
    expect(error.message).toContain('metadata.card.token')
    expect(error.message).not.toContain('sk_live')
  })

  test.each([[[1]], [null], ['text'], [1], [true]])('%j is no object where one is needed', (value) => {
    expect(() => readJsonObject(value, 'metadata')).toThrow(expect.objectContaining({ field: 'metadata' }))
  })
})

function thrownBy(action: () => unknown): InvalidInputError {
  try {
    action()
  } catch (error) {
    if (error instanceof InvalidInputError) return error
  }
  throw new Error('Nothing was refused.')
}

describe('G66: what a receiver sent is not rounded', () => {
  test.each<[string, unknown]>([
    ['9007199254740991', 9007199254740991],
    ['-9007199254740991', -9007199254740991],
    ['9007199254740992', '9007199254740992'],
    ['9007199254740993', '9007199254740993'],
    ['-9007199254740993', '-9007199254740993'],
    ['1234567890123456789', '1234567890123456789'],
    ['123456789012345678901234567890', '123456789012345678901234567890'],
    ['1e400', '1e400'],
    ['0.25', 0.25],
    ['-0.5e-3', -0.0005],
    ['0', 0],
  ])('%s', (text, value) => {
    expect(parseReceived(text)).toBe(value)
    expect(parseReceived(`{"a":[{"b":${text}}],"${text}":"${text}"}`)).toEqual({ a: [{ b: value }], [text]: text })
  })

  test.each(['12345678901234567.89', '9007199254740993.0', '1234567890123456789.5', '1.2345678901234567891e18'])(
    'a number beyond 2^53 - 1 keeps its digits however it is written: %s',
    (text) => {
      expect(parseReceived(`{"balance":${text}}`)).toEqual({ balance: text })
    },
  )

  test('digits in strings stay as they are, also behind quotes and backslashes in them', () => {
    const value = {
      plain: '1234567890123456789',
      quoted: 'a "1234567890123456789" b',
      escaped: '\\"1234567890123456789\\',
      'name 1234567890123456789': ['\\\\', '1234567890123456789:1234567890123456789,'],
    }
    expect(parseReceived(JSON.stringify(value))).toEqual(value)
    expect(parseReceived(JSON.stringify(value, null, 2))).toEqual(value)
  })

  test('what needs no care comes back as JSON.parse has it', () => {
    fc.assert(
      fc.property(jsonValue.value, fc.constantFrom(undefined, 2, '\t'), (value, space) => {
        const text = JSON.stringify(value, null, space)
        expect(parseReceived(text)).toEqual(JSON.parse(text))
      }),
      { numRuns: 500 },
    )
  })

  test('every whole number comes back digit for digit, as a number or as text', () => {
    fc.assert(
      fc.property(fc.bigInt({ min: -(10n ** 30n), max: 10n ** 30n }), (number) => {
        const { a, b } = parseReceived(`{"a":${number},"b":[${number} ]}`) as { a: unknown; b: [unknown] }
        expect(String(a)).toBe(String(number))
        expect(b[0]).toBe(a)
        expect(typeof a).toBe(number >= -(2n ** 53n) + 1n && number <= 2n ** 53n - 1n ? 'number' : 'string')
      }),
    )
  })

  test.each([
    '',
    ' ',
    '{',
    '{"a":1',
    '{"a":1}}',
    "{'a':1}",
    '<html></html>',
    '{"a":01}',
    'undefined',
    'NaN',
    '{"a":"\n"}',
  ])('%j is not JSON', (text) => {
    expect(parseReceived(text)).toBeUndefined()
  })

  test('a long text is read as well as a short one', () => {
    const value = { id: 'ch_1', note: 'x'.repeat(12_000_000) }
    expect(parseReceived(JSON.stringify(value)) !== undefined).toBe(true)
  })
})

describe('fingerprints', () => {
  const fields = { amount: 5000, currency: 'usd', metadata: { b: [1, 2], a: null }, customer: 'cus_é' }
  const asked = ['amount', 'currency', 'metadata', 'customer']

  test('are frozen, since stored ones are compared with new ones', () => {
    expect(fingerprintOf(fields, asked)).toEqual(FROZEN)
  })

  test('are UUIDs of version 5 over the canonical text', () => {
    const digest = createHash('sha1')
      .update(Buffer.from('4d0c9a5e3b0e5d5c9a550f6a1c8e2b71', 'hex'))
      .update('{"a":null,"b":[1,2]}')
      .digest()
    digest[6] = (digest[6]! & 0x0f) | 0x50
    digest[8] = (digest[8]! & 0x3f) | 0x80
    expect(fingerprintOf(fields, asked)['metadata']?.replaceAll('-', '')).toBe(digest.subarray(0, 16).toString('hex'))
  })

  test('leave out what the caller did not ask for', () => {
    expect(Object.keys(fingerprintOf(fields, ['amount', 'absent']))).toEqual(['amount'])
    expect(fingerprintOf({ ...fields, capture: true }, asked)).toEqual(fingerprintOf(fields, asked))
  })

  test('do not show the values', () => {
    expect(Object.values(fingerprintOf(fields, asked)).join()).not.toMatch(/usd|5000|cus/)
  })

  test.each<[string, object, object, readonly string[], readonly string[]]>([
    ['nothing', { a: '1' }, { a: '1' }, [], []],
    ['one field', { a: '1', b: '1' }, { a: '1', b: '2' }, [], ['b']],
    ['a field only the first has', { a: '1', b: '1' }, { a: '1' }, [], ['b']],
    ['a field only the second has', { a: '1' }, { a: '1', b: '1' }, [], ['b']],
    ['several, in order', { z: '1', a: '1' }, { m: '1' }, [], ['a', 'm', 'z']],
    ['a volatile one', { a: '1', b: '1' }, { a: '1', b: '2' }, ['b'], []],
    ['a volatile one that is absent in one', { a: '1', b: '1' }, { a: '1' }, ['b'], []],
    ['a volatile one beside another', { a: '1', b: '1' }, { a: '2', b: '2' }, ['b'], ['a']],
    ['a name that every object has', { constructor: '1' }, {}, [], ['constructor']],
  ])('differ in %s', (_, one, other, volatileFields, differing) => {
    expect(differingFields(one as never, other as never, volatileFields)).toEqual(differing)
    expect(differingFields(other as never, one as never, volatileFields)).toEqual(differing)
  })
})

const FROZEN = {
  amount: 'f472d57c-a345-5e9b-be59-0911dd63df88',
  currency: 'bcb7ed07-912f-590e-85be-15417ffa1822',
  customer: '5d2e36a7-400d-55ed-9309-ffa75172da5b',
  metadata: 'c94099c1-4e0f-5717-a3c9-6d290363a379',
}
