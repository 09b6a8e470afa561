/**
 * Canonical text: one content, one text, whatever order the properties came in (RFC 8785, JSON Canonicalization
 * Scheme). The body that is sent, the fingerprint that is compared and the key that is derived all rest on it.
 * What a field means is left to operation.ts.
 */
import { parse, v5 as uuidV5 } from 'uuid'
import { mustBe, refuse } from '../errors.ts'

export type JsonValue = null | boolean | number | string | readonly JsonValue[] | JsonObject
export interface JsonObject {
  readonly [name: string]: JsonValue
}

/** Digests of the fields a caller asked for, by name; the values themselves cannot be read from it. */
export type Fingerprint = Readonly<Record<string, string>>

/** Deep enough for any metadata, shallow enough that no stack overflows. */
const MAX_DEPTH = 64

/** Digests are UUIDs of this namespace; it never changes, since stored fingerprints are compared with new ones. */
const DIGEST_NAMESPACE: Uint8Array = /* @__PURE__ */ parse('4d0c9a5e-3b0e-5d5c-9a55-0f6a1c8e2b71')

/** A half of a surrogate pair alone. UTF-8 cannot carry it: encoders replace it, and two texts would become one. */
const LONE_SURROGATE = /\p{Surrogate}/u

export function isWellFormed(text: string): boolean {
  return !LONE_SURROGATE.test(text)
}

/**
 * Reads plain data. What JSON cannot carry exactly is refused here instead of being changed silently: functions,
 * symbols, BigInt, NaN and infinities, integers beyond 2^53 - 1, dates, maps, class instances, cycles. Properties that are
 * `undefined` count as absent. The result shares nothing with the input, so a later change to that changes nothing here.
 *
 * @throws {InvalidInputError} naming the path of the value
 */
export function readJson(value: unknown, path: string): JsonValue {
  return readValue(value, path, [])
}

/** The same for an object; arrays and everything else are refused. */
export function readJsonObject(value: unknown, path: string): JsonObject {
  const json = readJson(value, path)
  mustBe(isJsonObject(json), path, 'a plain object')
  return json
}

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function readValue(value: unknown, path: string, above: readonly object[]): JsonValue {
  switch (typeof value) {
    case 'string':
      return readString(value, path)
    case 'boolean':
      return value
    case 'number':
      return readNumber(value, path)
    case 'object':
      return value === null ? null : readContainer(value, path, above)
    default:
      return refuse(path, `is a ${typeof value}, which JSON cannot carry`)
  }
}

function readString(value: string, path: string): string {
  if (!isWellFormed(value)) refuse(path, 'holds half a surrogate pair')
  return value
}

function readNumber(value: number, path: string): number {
  mustBe(Number.isFinite(value), path, 'finite')
  if (Math.abs(value) > Number.MAX_SAFE_INTEGER) refuse(path, 'is beyond 2^53 - 1; give it as a string')
  return value === 0 ? 0 : value
}

function readContainer(value: object, path: string, above: readonly object[]): JsonValue {
  if (above.includes(value)) refuse(path, 'refers to itself')
  if (above.length >= MAX_DEPTH) refuse(path, `is nested more than ${MAX_DEPTH} levels deep`)
  const within = [...above, value]
  if (Array.isArray(value)) {
    // Array.from, not map: a hole in a sparse array has to be seen and refused like `undefined`.
    return Array.from(value as readonly unknown[], (item, index) => readValue(item, `${path}[${index}]`, within))
  }
  mustBe(isPlain(value), path, 'plain data, not an instance of a class')
  const read: Record<string, JsonValue> = Object.create(null) as Record<string, JsonValue>
  for (const [name, item] of Object.entries(value)) {
    readString(name, path)
    if (item !== undefined) read[name] = readValue(item, `${path}.${name}`, within)
  }
  return read
}

/** Plain in any realm: no prototype, or one that has none above it. A reactive proxy around plain data passes. */
function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

/** RFC 8785 text: names sorted by UTF-16 code units; JSON.stringify gives numbers and strings as that RFC wants them. */
export function canonicalText(value: JsonValue): string {
  if (Array.isArray(value)) return `[${value.map(canonicalText).join(',')}]`
  if (!isJsonObject(value)) return JSON.stringify(value)
  const members = Object.keys(value)
    .toSorted()
    .map((name) => `${JSON.stringify(name)}:${canonicalText(value[name] ?? null)}`)
  return `{${members.join(',')}}`
}

/** Digests of short values that come again and again, such as a meter, a currency or a customer. */
const digests = new Map<string, string>()
const MAX_DIGESTS = 4096
const MAX_DIGESTED_LENGTH = 64

/** A digest of a value's canonical text. */
function digestOf(value: JsonValue): string {
  const text = canonicalText(value)
  const known = digests.get(text)
  if (known !== undefined) return known
  const digest = uuidOf(text, DIGEST_NAMESPACE)
  if (digests.size >= MAX_DIGESTS) digests.clear()
  if (text.length <= MAX_DIGESTED_LENGTH) digests.set(text, digest)
  return digest
}

let encoder: TextEncoder | undefined

/** `uuid`'s v5 (SHA-1), which works also without a secure context. As bytes, since `uuid` takes a long way from text to them. */
export function uuidOf(text: string, namespace: Uint8Array): string {
  encoder ??= new TextEncoder()
  return uuidV5(encoder.encode(text), namespace)
}

/** Digests of the named fields; a field that is absent has none. */
export function fingerprintOf(fields: JsonObject, asked: readonly string[]): Fingerprint {
  // Without a prototype, so that a field may have any name.
  const digests = Object.create(null) as Record<string, string>
  for (const name of asked.toSorted()) {
    const value = fields[name]
    if (value !== undefined) digests[name] = digestOf(value)
  }
  return digests
}

/** Names of the fields in which two fingerprints differ, sorted, without those that either call called volatile. */
export function differingFields(
  one: Fingerprint,
  other: Fingerprint,
  volatileFields: readonly string[],
): readonly string[] {
  const names = new Set([...Object.keys(one), ...Object.keys(other)])
  return [...names].filter((name) => one[name] !== other[name] && !volatileFields.includes(name)).toSorted()
}

/**
 * Parses what a receiver sent. A number beyond 2^53 - 1, which JavaScript would round, is given as its text, digit for
 * digit, so that nothing is rounded silently.
 *
 * @returns `undefined` if the text is not JSON
 */
export function parseReceived(text: string): JsonValue | undefined {
  try {
    const value = JSON.parse(text) as JsonValue
    const exact = quoteLargeNumbers(text)
    return exact === text ? value : (JSON.parse(exact) as JsonValue)
  } catch {
    return undefined
  }
}

/** Of a JSON text that is known to be one. Strings are stepped over, however long they are. */
function quoteLargeNumbers(text: string): string {
  const token = /"|-?\d[\d.eE+-]*/g
  let quoted = ''
  let copied = 0
  for (let found = token.exec(text); found; found = token.exec(text)) {
    const [start] = found
    if (start === '"') {
      token.lastIndex = endOfString(text, found.index)
    } else if (Math.abs(Number(start)) > Number.MAX_SAFE_INTEGER) {
      quoted += `${text.slice(copied, found.index)}"${start}"`
      copied = token.lastIndex
    }
  }
  return quoted + text.slice(copied)
}

/** Just behind the quotation mark that ends the string beginning at `start`. */
function endOfString(text: string, start: number): number {
  let end = start
  let backslashes: number
  do {
    end = text.indexOf('"', end + 1)
    backslashes = 0
    while (text[end - 1 - backslashes] === '\\') backslashes += 1
  } while (backslashes % 2 === 1)
  return end + 1
}
