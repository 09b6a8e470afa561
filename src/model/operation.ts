/**
 * The writes: what a caller may ask for, how it is checked, what goes into the body and how a receipt is read. Charge, usage
 * and credits are definitions like those a user makes with `defineWrite`; nothing else in the library knows them.
 */
import { mustBe, refuse } from '../errors.ts'
import { canonicalText, fingerprintOf, readJson, readJsonObject } from './canonical.ts'
import type { Fingerprint, JsonObject, JsonValue } from './canonical.ts'
import { HEADER_VALUE } from './headers.ts'
import { readName } from './key.ts'
import { readAmount, readCurrency, readQuantity } from './money.ts'
import type { Receipt } from './verdict.ts'

export interface EncodedBody {
  /** The exact text that is stored and sent; it must come from the fields alone, never from a clock or at random. */
  readonly body: string
  readonly contentType: string
}

/**
 * A billing write. `P` are its parameters, `R` its receipt, `V` the names of those parameters that a call may declare
 * volatile.
 */
export interface WriteDefinition<P extends object = object, R extends Receipt = Receipt, V extends string = string> {
  /** Name of the write, part of the key: 1-255 characters, never changed once used. */
  readonly kind: string
  /** Path under the client's `baseUrl`, without a leading slash. */
  readonly path: string
  readonly method: 'POST' | 'PUT' | 'PATCH'
  /** The parameter that sets apart two operations of one operationId, such as the meter of usage. */
  readonly subject?: string | undefined
  /**
   * Checks the parameters, fills in defaults and returns the fields of the body as plain data. What it adds beyond what the
   * caller asked for is not compared when the operation is named again.
   *
   * @throws {InvalidInputError} for what cannot be sent; nothing has been written or sent then
   */
  readonly readParams: (params: P) => object
  /** Parameters that a call may declare volatile (`volatileFields`): made afresh after a reload, not compared. */
  readonly volatile?: readonly V[] | undefined
  /** Text of the body; default is the fields as canonical JSON with `application/json`. A dialect may override it. */
  readonly encode?: ((fields: JsonObject) => EncodedBody) | undefined
  /** Reads the receipt out of a 2xx JSON object; `undefined` if it is not one, which counts as no clear reply. */
  readonly readReceipt: (reply: JsonObject) => R | undefined
  /** Fields which a receipt repeats if it is for the same thing; one that differs stops the delivery. */
  readonly echoes?: readonly string[] | undefined
  /** The parameter that holds the event's own time, from which the key window counts too. */
  readonly eventTime?: string | undefined
  /** How long a pending entry may wait before it is canceled instead of sent, in milliseconds; default without limit. */
  readonly sendBeforeMs?: number | undefined
}

/** Any definition, where its types do not matter. */
// oxlint-disable-next-line typescript/no-explicit-any -- parameters are contravariant: only `any` takes every definition
export type AnyWriteDefinition = WriteDefinition<any, Receipt, string>

/**
 * Defines a billing write of your own. It gets the same machinery as `charge`: key, journal, retries and outcomes.
 *
 * @throws {InvalidInputError} if the definition is not usable
 */
export function defineWrite<P extends object, R extends Receipt, const V extends string = never>(
  definition: WriteDefinition<P, R, V>,
): WriteDefinition<P, R, V> {
  readName(definition.kind, 'kind')
  for (const name of ['readParams', 'readReceipt'] as const) {
    mustBe(typeof definition[name] === 'function', name, 'a function')
  }
  readPath(definition.path, 'path')
  mustBe(['POST', 'PUT', 'PATCH'].includes(definition.method), 'method', 'POST, PUT or PATCH')
  return definition
}

/**
 * Reads a path under `baseUrl`.
 *
 * @throws {InvalidInputError} if it is absolute, climbs out, or has a query or fragment
 */
export function readPath(value: unknown, field: string): string {
  mustBe(
    typeof value === 'string' &&
      /^[^/?#\s\\][^?#\s\\]*$/.test(value) &&
      !value.split('/').some((part) => /^(?:\.|%2e){1,2}$/i.test(part)) &&
      !/^[a-z][a-z\d+.-]*:/i.test(value),
    field,
    'relative to baseUrl, without query and fragment',
  )
  return value
}

/**
 * Reads what an `encode` made.
 *
 * @throws {InvalidInputError} unless body and content type are strings, and HTTP can carry the content type
 */
export function readEncoded(encoded: EncodedBody): EncodedBody {
  const { body, contentType } = encoded
  if (typeof body !== 'string' || typeof contentType !== 'string' || !contentType || !HEADER_VALUE.test(contentType))
    refuse('encode', 'has to return { body, contentType } that HTTP can carry')
  return { body, contentType }
}

/** What a call asks for, checked and complete: all that is needed to make an entry of it. */
export interface Operation {
  readonly kind: string
  readonly subject: string | null
  readonly fields: JsonObject
  readonly fingerprint: Fingerprint
  /** What a receipt has to repeat. */
  readonly expected: JsonObject
  /** The event's own time as the parameters give it. */
  readonly occurredAtMs: number | undefined
}

/**
 * Reads a call's parameters by its definition.
 *
 * @throws {InvalidInputError} naming the field
 */
export function readOperation<P extends object>(definition: WriteDefinition<P, Receipt, string>, params: P): Operation {
  mustBe(typeof params === 'object' && params !== null, 'params', 'an object')
  // Without a prototype, so that a field may have any name.
  const fields = Object.create(null) as Record<string, JsonValue>
  for (const [name, value] of Object.entries(definition.readParams(params))) {
    if (value !== undefined) fields[name] = readJson(value, name)
  }
  const asked = askedOf(params, fields)
  const subject = definition.subject === undefined ? null : readName(fields[definition.subject], definition.subject)
  const expected = Object.create(null) as Record<string, JsonValue>
  for (const name of definition.echoes ?? []) {
    const value = fields[name]
    if (value !== undefined) expected[name] = value
  }
  const occurredAt = definition.eventTime === undefined ? undefined : fields[definition.eventTime]
  return {
    kind: definition.kind,
    subject,
    fields,
    fingerprint: fingerprintOf(asked, Object.keys(asked)),
    expected,
    occurredAtMs: occurredAt === undefined ? undefined : readTimeMs(occurredAt, definition.eventTime ?? ''),
  }
}

/**
 * What the caller asked for, without the defaults: the fields that the parameters have too, as they were read, and parameters
 * which the body carries under another name.
 */
function askedOf(params: object, fields: JsonObject): JsonObject {
  const given = params as Readonly<Record<string, unknown>>
  const asked = Object.create(null) as Record<string, JsonValue>
  // Inherited ones too, such as the getters of a class: `readParams` sees them as well.
  for (const [name, value] of Object.entries(fields)) if (given[name] !== undefined) asked[name] = value
  for (const [name, value] of Object.entries(given)) if (value !== undefined) asked[name] ??= readJson(value, name)
  return asked
}

/** The body as canonical JSON: the same content gives the same bytes on every device. */
export function encodeJson(fields: JsonObject): EncodedBody {
  return { body: canonicalText(fields), contentType: 'application/json' }
}

/** Whether a receipt repeats what was asked, where it repeats it at all. Currencies do not care about case. */
export function echoes(expected: JsonObject, receipt: Receipt): boolean {
  return Object.entries(expected).every(([name, asked]) => {
    const said = receipt.reply[name]
    return said === undefined || said === null || comparable(said) === comparable(asked)
  })
}

function comparable(value: JsonValue | undefined): string {
  return (typeof value === 'string' ? value : canonicalText(value ?? null)).toLowerCase()
}

// ---------------------------------------------------------------------------------------------------------- charge

export interface ChargeParams {
  /** Minor units of the currency (1250 is 12.50 EUR and 1250 JPY): a whole number from 1 to 2^53 - 1. */
  amount: number
  /** ISO 4217 code, such as `usd`; passed on as it is written. */
  currency: string
  customer?: string | undefined
  /** A token of the receiver, never a card number. */
  paymentMethod?: string | undefined
  description?: string | undefined
  /** Plain data of your own; goes out as it is. */
  metadata?: object | undefined
}

export type ChargeVolatile = 'paymentMethod' | 'description' | 'metadata'

export interface ChargeReceipt extends Receipt {
  /** Minor units; text if the receiver sent a number beyond 2^53 - 1. */
  readonly amount?: number | string
  readonly currency?: string
}

export function chargeWrite(options: {
  readonly anyCurrency: boolean
}): WriteDefinition<ChargeParams, ChargeReceipt, ChargeVolatile> {
  return defineWrite({
    kind: 'charge',
    path: 'v1/charges',
    method: 'POST',
    volatile: ['paymentMethod', 'description', 'metadata'],
    echoes: ['amount', 'currency'],
    sendBeforeMs: 3_600_000,
    readParams(params) {
      refuseUnknown(params, ['amount', 'currency', 'customer', 'paymentMethod', 'description', 'metadata'])
      return {
        amount: readAmount(params.amount, 'amount'),
        currency: readCurrency(params.currency, 'currency', options.anyCurrency),
        customer: readText(params.customer, 'customer'),
        paymentMethod: readText(params.paymentMethod, 'paymentMethod'),
        description: readText(params.description, 'description'),
        metadata: readMetadata(params.metadata),
      }
    },
    readReceipt(reply) {
      const { amount, currency } = reply
      if (!isAbsent(amount) && !isWholeNumber(amount)) return undefined
      if (!isAbsent(currency) && typeof currency !== 'string') return undefined
      const receipt = readReceipt(reply)
      return (
        receipt && { ...receipt, ...(isAbsent(amount) ? {} : { amount }), ...(isAbsent(currency) ? {} : { currency }) }
      )
    },
  })
}

// ----------------------------------------------------------------------------------------------------------- usage

export interface UsageParams {
  /** What is metered, such as `exports`; part of the operation's name. */
  meter: string
  /** A whole number from 0 to 2^53 - 1, or a decimal string such as `'0.25'`. */
  quantity: number | string
  customer?: string | undefined
  /** When it was used: a `Date`, or RFC 3339 text with a zone. Sent only if given, so that a repeat has the same body. */
  occurredAt?: Date | string | undefined
  metadata?: object | undefined
}

export type UsageVolatile = 'metadata'

export interface UsageReceipt extends Receipt {
  /** What the receiver has counted so far, as it reports it. */
  readonly standing?: JsonValue
}

export const usageWrite: WriteDefinition<UsageParams, UsageReceipt, UsageVolatile> = /* @__PURE__ */ defineWrite({
  kind: 'usage',
  path: 'v1/usage',
  method: 'POST',
  subject: 'meter',
  volatile: ['metadata'],
  eventTime: 'occurredAt',
  readParams(params: UsageParams) {
    refuseUnknown(params, ['meter', 'quantity', 'customer', 'occurredAt', 'metadata'])
    return {
      meter: readName(params.meter, 'meter'),
      quantity: readQuantity(params.quantity, 'quantity'),
      customer: readText(params.customer, 'customer'),
      occurredAt:
        params.occurredAt === undefined
          ? undefined
          : new Date(readTimeMs(params.occurredAt, 'occurredAt')).toISOString(),
      metadata: readMetadata(params.metadata),
    }
  },
  readReceipt(reply): UsageReceipt | undefined {
    const receipt = readReceipt(reply)
    return receipt && { ...receipt, ...(isAbsent(reply['standing']) ? {} : { standing: reply['standing'] }) }
  },
})

// --------------------------------------------------------------------------------------------------------- credits

export interface CreditsParams {
  /** Whole credits from 1 to 2^53 - 1. */
  amount: number
  account?: string | undefined
  description?: string | undefined
  metadata?: object | undefined
}

export type CreditsVolatile = 'description' | 'metadata'

export interface CreditsReceipt extends Receipt {
  /** What is left; text if the receiver sent text or a number beyond 2^53 - 1. */
  readonly balance?: number | string
}

export const creditsWrite: WriteDefinition<CreditsParams, CreditsReceipt, CreditsVolatile> =
  /* @__PURE__ */ defineWrite({
    kind: 'credits',
    path: 'v1/credits/consume',
    method: 'POST',
    volatile: ['description', 'metadata'],
    echoes: ['amount'],
    readParams(params: CreditsParams) {
      refuseUnknown(params, ['amount', 'account', 'description', 'metadata'])
      return {
        amount: readAmount(params.amount, 'amount'),
        account: readText(params.account, 'account'),
        description: readText(params.description, 'description'),
        metadata: readMetadata(params.metadata),
      }
    },
    readReceipt(reply): CreditsReceipt | undefined {
      const { amount, balance } = reply
      if (!isAbsent(amount) && !isWholeNumber(amount)) return undefined
      if (!isAbsent(balance) && typeof balance !== 'number' && typeof balance !== 'string') return undefined
      const receipt = readReceipt(reply)
      return receipt && { ...receipt, ...(isAbsent(balance) ? {} : { balance }) }
    },
  })

// --------------------------------------------------------------------------------------------------------- helpers

/** The part of a receipt that all have: a non-empty string `id`, and a `status` that is a string if it is there. */
export function readReceipt(reply: JsonObject): Receipt | undefined {
  const { id, status } = reply
  if (typeof id !== 'string' || id === '') return undefined
  return { id, ...(typeof status === 'string' ? { status } : {}), reply }
}

/** A misspelled parameter must not fall under the table: it would be money or meaning that silently does not go out. */
function refuseUnknown(params: object, known: readonly string[]): void {
  const unknown = Object.keys(params).find((name) => !known.includes(name))
  if (unknown !== undefined) refuse(unknown, 'is not a parameter of this write; your own data goes into metadata')
}

function readText(value: unknown, field: string): string | undefined {
  if (value === undefined) return undefined
  mustBe(typeof value === 'string' && value !== '', field, 'a non-empty string')
  return value
}

function readMetadata(value: unknown): JsonObject | undefined {
  if (value === undefined) return undefined
  return readJsonObject(value, 'metadata')
}

/**
 * A `Date`, or RFC 3339 text. Text without a zone is refused: it would mean another moment on another machine. So is a day
 * that the month does not have, which some engines take for one of the next month, and what is finer than milliseconds,
 * which would be cut off.
 */
function readTimeMs(value: unknown, field: string): number {
  const atMs = value instanceof Date ? value.getTime() : typeof value === 'string' ? parseTime(value) : Number.NaN
  mustBe(!Number.isNaN(atMs), field, 'a Date or RFC 3339 text with a zone, such as 2026-11-30T18:00:00Z')
  return atMs
}

function parseTime(text: string): number {
  const [, year, month, day] =
    /^(\d{4})-(\d\d)-(\d\d)T\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?(?:Z|[+-]\d\d:\d\d)$/.exec(text) ?? []
  const isDay = new Date(Date.UTC(Number(year), Number(month) - 1, Number(day))).getUTCDate() === Number(day)
  return isDay ? Date.parse(text) : Number.NaN
}

function isAbsent(value: JsonValue | undefined): value is null | undefined {
  return value === undefined || value === null
}

/** A whole number, or its text where JavaScript would round it. */
function isWholeNumber(value: JsonValue): value is number | string {
  return Number.isSafeInteger(value) || (typeof value === 'string' && /^-?\d+$/.test(value))
}
