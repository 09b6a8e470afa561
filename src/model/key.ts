/**
 * The name of an operation and the idempotency key that is derived from it. One name, one key, on every device and in
 * every version of this library: what is in here never changes for names already in a journal (test/model/key.test.ts
 * holds the vectors).
 */
import { parse, v7 as uuidV7 } from 'uuid'
import { canonicalText, isWellFormed, uuidOf } from './canonical.ts'
import { mustBe, refuse } from '../errors.ts'

declare const operationIdBrand: unique symbol
declare const idempotencyKeyBrand: unique symbol
export type OperationId = string & { readonly [operationIdBrand]: true }
export type IdempotencyKey = string & { readonly [idempotencyKeyBrand]: true }

/** What an operation is known by; a revision of it is a genuinely new try after a definite rejection. */
export interface OperationName {
  /** Whose operations these are: tenant, account, signed-in user, live or test. */
  readonly scope: string
  /** Which write: `charge`, `usage`, `credits`, or a kind of the user's own. */
  readonly kind: string
  /** What sets apart two operations of one id and kind, such as the meter of usage; `null` where nothing does. */
  readonly subject: string | null
  readonly operationId: OperationId
}

/** UUID namespace of derived keys. It never changes. */
const KEY_NAMESPACE: Uint8Array = /* @__PURE__ */ parse('8f0c55a4-27cd-5a0b-8e5b-6a4d4d2a9f10')
/** Version of the derivation, part of what is hashed; a new derivation would take a new number beside this one. */
const KEY_VERSION = 'billonce-key-1'

const MAX_NAME_LENGTH = 255
// oxlint-disable-next-line no-control-regex -- control characters are what is looked for
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/

/**
 * The idempotency key of a revision: UUID v5 (RFC 9562) over the canonical JSON text of version, scope, kind, subject,
 * operationId and revision. A list of JSON strings is unambiguous, so no two names meet; the key is 36 ASCII characters
 * whatever the names hold. Derived and not random, because storage gets wiped, users have two devices and jobs rerun
 * elsewhere: the same event then still has the same key.
 */
export function keyOf(name: OperationName, revision: number): IdempotencyKey {
  const text = canonicalText([KEY_VERSION, name.scope, name.kind, name.subject, name.operationId, revision])
  return uuidOf(text, KEY_NAMESPACE) as IdempotencyKey
}

/**
 * Reads a name that the user chose.
 *
 * @throws {InvalidInputError} unless it is a string of 1 to 255 UTF-16 units without control characters and without halves
 *   of surrogate pairs; nothing is ever cut off
 */
export function readName(value: unknown, field: string): string {
  mustBe(typeof value === 'string' && value !== '', field, 'a non-empty string')
  if (value.length > MAX_NAME_LENGTH) refuse(field, `has ${value.length} characters, more than ${MAX_NAME_LENGTH}`)
  if (CONTROL.test(value) || !isWellFormed(value)) refuse(field, 'holds a control character or half a surrogate pair')
  return value
}

export function readOperationId(value: unknown): OperationId {
  return readName(value, 'operationId') as OperationId
}

/** What a receiver allows as a key; a dialect states it. */
export interface KeyLimits {
  readonly minLength: number
  readonly maxLength: number
}

/**
 * Reads a key that the user brings along from another system: visible ASCII without `"` and `\`, so that it fits a header
 * bare and as a structured-field string (RFC 9651), within the dialect's limits.
 */
export function readIdempotencyKey(value: unknown, limits: KeyLimits): IdempotencyKey {
  const field = 'idempotencyKey'
  const { minLength, maxLength } = limits
  mustBe(
    typeof value === 'string' && /^[!#-[\]-~]+$/.test(value),
    field,
    'visible ASCII without spaces, quotes and backslashes',
  )
  if (value.length < minLength || value.length > maxLength)
    refuse(field, `has ${value.length} characters; this receiver takes ${minLength} to ${maxLength}`)
  return value as IdempotencyKey
}

/**
 * A random name (UUID v7) for those who have no event to name. What is given up with it: a second device, a wiped browser
 * or a job that runs again gets another name, and so a second effect. Make it once, store it with the thing that is being
 * paid for, and pass the stored one.
 */
export function randomOperationId(): OperationId {
  return uuidV7() as OperationId
}

export function sameName(one: OperationName, other: OperationName): boolean {
  return (
    one.scope === other.scope &&
    one.kind === other.kind &&
    one.subject === other.subject &&
    one.operationId === other.operationId
  )
}
