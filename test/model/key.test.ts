/**
 * One name, one key, for ever. The vectors are frozen: a test here that has to change would mean a second charge for every
 * entry that lies in a journal.
 */
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import fc from 'fast-check'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { InvalidInputError } from '../../src/errors.ts'
import {
  keyOf,
  randomOperationId,
  readIdempotencyKey,
  readName,
  readOperationId,
  sameName,
} from '../../src/model/key.ts'
import type { OperationId, OperationName } from '../../src/model/key.ts'
import { standard } from '../../src/dialects/standard.ts'

interface Vector extends OperationName {
  readonly what: string
  readonly revision: number
  readonly key: string
}

const vectors = JSON.parse(readFileSync(new URL('key-vectors.json', import.meta.url), 'utf8')) as Vector[]

const UUID_V5 = /^[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/

afterEach(() => {
  vi.unstubAllGlobals()
})

describe('the vectors', () => {
  test.each(vectors)('$what', ({ what: _what, key, revision, ...name }) => {
    expect(keyOf(name, revision)).toBe(key)
  })

  test.each(vectors)(
    '$what, by the words of RFC 9562 alone',
    ({ scope, kind, subject, operationId, revision, key }) => {
      const namespace = Buffer.from('8f0c55a427cd5a0b8e5b6a4d4d2a9f10', 'hex')
      const text = JSON.stringify(['billonce-key-1', scope, kind, subject, operationId, revision])
      const digest = createHash('sha1').update(namespace).update(text, 'utf8').digest()
      digest[6] = (digest[6]! & 0x0f) | 0x50
      digest[8] = (digest[8]! & 0x3f) | 0x80
      expect(key.replaceAll('-', '')).toBe(digest.subarray(0, 16).toString('hex'))
    },
  )

  test('all of them differ, and all are names that a call may give', () => {
    expect(new Set(vectors.map((vector) => vector.key)).size).toBe(vectors.length)
    for (const { scope, kind, subject, operationId } of vectors) {
      for (const part of [scope, kind, operationId, ...(subject === null ? [] : [subject])])
        expect(readName(part, 'part')).toBe(part)
    }
  })

  test('the digest that browsers run gives the same keys', async () => {
    // The package holds two builds: the one for Node uses its crypto module, the other one is plain JavaScript.
    const build = new URL('../../node_modules/uuid/dist/v5.js', import.meta.url).href
    const { default: v5 } = (await import(build)) as { default: (text: string, namespace: string) => string }
    for (const { scope, kind, subject, operationId, revision, key } of vectors) {
      const text = JSON.stringify(['billonce-key-1', scope, kind, subject, operationId, revision])
      expect(v5(text, '8f0c55a4-27cd-5a0b-8e5b-6a4d4d2a9f10')).toBe(key)
    }
  })
})

const text = fc.string({ unit: 'grapheme', minLength: 1, maxLength: 12 })
/** Texts made of what separates names in an encoding, so that badly separated ones would meet. */
const trickyText = fc
  .array(fc.constantFrom('"', '\\', ',', '[', ']', 'null', '1', ':', '/', 'a', '\\"', '","'), { minLength: 1 })
  .map((parts) => parts.join(''))
const part = fc.oneof(text, trickyText)
const revisedName = fc.record({
  scope: part,
  kind: part,
  subject: fc.option(part, { nil: null }),
  operationId: part as fc.Arbitrary<OperationId>,
  revision: fc.integer({ min: 1, max: 9 }),
})

test('different names never give one key, and one name always the same', () => {
  fc.assert(
    fc.property(revisedName, revisedName, (one, other) => {
      const isSame = sameName(one, other) && one.revision === other.revision
      expect(keyOf(one, one.revision) === keyOf(other, other.revision)).toBe(isSame)
      expect(keyOf({ ...one }, one.revision)).toBe(keyOf(one, one.revision))
    }),
    { numRuns: 2000 },
  )
})

test('a separator inside a name does not meet the one between two names', () => {
  fc.assert(
    fc.property(fc.array(trickyText, { minLength: 4, maxLength: 4 }), fc.nat(2), trickyText, (parts, at, moved) => {
      const before = [...parts]
      const after = [...parts]
      before[at] += moved
      after[at + 1] = moved + after[at + 1]!
      const keyOfParts = ([scope, kind, subject, operationId]: string[]): string =>
        keyOf({ scope: scope!, kind: kind!, subject: subject!, operationId: operationId as OperationId }, 1)
      expect(keyOfParts(before)).not.toBe(keyOfParts(after))
    }),
  )
})

test('a name that differs in one part only has another key', () => {
  const name = { scope: 's', kind: 'k', subject: null, operationId: 'o' as OperationId }
  const others = [
    keyOf({ ...name, scope: 't' }, 1),
    keyOf({ ...name, kind: 'l' }, 1),
    keyOf({ ...name, subject: 'k' }, 1),
    keyOf({ ...name, operationId: 'p' as OperationId }, 1),
    keyOf(name, 2),
  ]
  expect(new Set([keyOf(name, 1), ...others]).size).toBe(6)
})

describe('G07: nothing is cut off', () => {
  test('an operationId of 255 characters passes as it is, also where the receiver takes 45', () => {
    const id = readOperationId('x'.repeat(255))
    expect(id).toHaveLength(255)
    const key = keyOf({ scope: 's', kind: 'k', subject: null, operationId: id }, 1)
    expect(key.length).toBeLessThanOrEqual(standard({ maxKeyLength: 45 }).keyLimits.maxLength)
  })

  test.each([256, 10_000])('one of %i characters is refused', (length) => {
    expect(() => readOperationId('x'.repeat(length))).toThrow(InvalidInputError)
    expect(() => readOperationId('x'.repeat(length))).toThrow(`${length} characters`)
  })

  test('the length is that of UTF-16, so that half an emoji is never what is left', () => {
    expect(readName('😀'.repeat(127), 'scope')).toHaveLength(254)
    expect(() => readName('😀'.repeat(128), 'scope')).toThrow(InvalidInputError)
  })

  test('ids that share their first 254 characters have keys of their own', () => {
    const keys = ['a', 'b', ''].map((end) =>
      keyOf({ scope: 's', kind: 'k', subject: null, operationId: readOperationId('x'.repeat(254) + end) }, 1),
    )
    expect(new Set(keys).size).toBe(3)
  })

  test('a key of the caller’s own is refused outside the limits of the receiver, at both ends', () => {
    const limits = { minLength: 16, maxLength: 45 }
    expect(readIdempotencyKey('k'.repeat(16), limits)).toHaveLength(16)
    expect(readIdempotencyKey('k'.repeat(45), limits)).toHaveLength(45)
    for (const length of [1, 15, 46, 255])
      expect(() => readIdempotencyKey('k'.repeat(length), limits)).toThrow(InvalidInputError)
  })
})

const HARD_IN_HEADERS = ['заказ-7', 'طلب', '订单', 'order-😀', 'order…7', 'order\u00a07', 'naïve', ' ', '\u200b']

describe('G08: a header can carry every key', () => {
  test.each(HARD_IN_HEADERS)('the operationId %j gives an ASCII key that is stable', (id) => {
    const name = { scope: 's', kind: 'k', subject: null, operationId: readOperationId(id) }
    const key = keyOf(name, 1)
    expect(key).toMatch(UUID_V5)
    expect(keyOf(name, 1)).toBe(key)
    expect(new Headers({ 'idempotency-key': key }).get('idempotency-key')).toBe(key)
  })

  test.each([...HARD_IN_HEADERS, 'two words', 'a"b', 'a\\b', 'tab\t', 'line\n', 'key\n', '\u007f', ''])(
    'the idempotencyKey %j is refused',
    (key) => {
      expect(() => readIdempotencyKey(key, { minLength: 1, maxLength: 255 })).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_INPUT', field: 'idempotencyKey' }),
      )
    },
  )

  test('every visible ASCII character but the quote and the backslash may stand in an idempotencyKey', () => {
    const visible = Array.from({ length: 94 }, (_, index) => String.fromCharCode(33 + index)).filter(
      (character) => character !== '"' && character !== '\\',
    )
    const key = readIdempotencyKey(visible.join(''), { minLength: 1, maxLength: 255 })
    expect(key).toHaveLength(92)
    for (const keyFormat of ['bare', 'quoted'] as const) {
      const { name, value } = standard({ keyFormat }).keyHeader(key)
      expect(new Headers([[name, value]]).get('idempotency-key')).toBe(keyFormat === 'bare' ? key : `"${key}"`)
    }
  })
})

describe('what is no name', () => {
  const control = [...Array.from({ length: 32 }, (_, code) => code), ...Array.from({ length: 33 }, (_, i) => 127 + i)]

  test('every control character of C0, DEL and C1', () => {
    for (const code of control) {
      const name = `a${String.fromCharCode(code)}b`
      expect(() => readName(name, 'operationId'), `U+${code.toString(16)}`).toThrow(InvalidInputError)
    }
  })

  test.each(['\ud83d', '\ude00', 'a\ud83d', '\ude00b', '\ude00\ud83d', 'ok\ud83d\ude00\ud83d'])(
    'half a surrogate pair: %j',
    (name) => {
      expect(() => readName(name, 'scope')).toThrow(expect.objectContaining({ field: 'scope' }))
    },
  )

  test.each([
    undefined,
    null,
    '',
    7,
    7n,
    true,
    {},
    [],
    ['order-1'],
    Symbol('order'),
    new String('order'),
    () => 'order',
  ])('%s', (value) => {
    expect(() => readOperationId(value)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_INPUT', field: 'operationId', sentByThisCall: false }),
    )
    expect(() => readIdempotencyKey(value, { minLength: 1, maxLength: 255 })).toThrow(InvalidInputError)
  })
})

describe('G69: without crypto.randomUUID and crypto.subtle', () => {
  test('keys and random names work', () => {
    const { crypto } = globalThis
    vi.stubGlobal('crypto', { getRandomValues: crypto.getRandomValues.bind(crypto) })
    expect(globalThis.crypto.subtle).toBeUndefined()
    for (const { what: _what, key, revision, ...name } of vectors) expect(keyOf(name, revision)).toBe(key)
    expect(randomOperationId()).toMatch(/^[0-9a-f-]{36}$/)
  })

  test('a derived key needs no source of chance at all', () => {
    vi.stubGlobal('crypto', undefined)
    expect(keyOf(vectors[0]!, vectors[0]!.revision)).toBe(vectors[0]!.key)
  })
})

test('random names are UUIDs of version 7, all different, and names that a call may give', () => {
  const names = Array.from({ length: 1000 }, () => randomOperationId())
  expect(new Set(names).size).toBe(1000)
  for (const name of names)
    expect(name).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  expect(readOperationId(names[0])).toBe(names[0])
})
