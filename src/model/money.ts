/**
 * Amounts and quantities. Money is whole minor units of its currency and goes out as it came in: nothing here multiplies,
 * divides or rounds.
 */
import { mustBe, refuse } from '../errors.ts'

/**
 * Reads an amount in minor units (1250 is 12.50 EUR and 1250 JPY).
 *
 * @throws {InvalidInputError} unless it is a whole number from 1 to 2^53 - 1
 */
export function readAmount(value: unknown, field: string): number {
  mustBe(
    typeof value === 'number' && Number.isSafeInteger(value) && value >= 1,
    field,
    'a whole number of minor units from 1 to 2^53 - 1',
  )
  return value
}

/**
 * Reads a quantity: a whole number from 0 to 2^53 - 1, or a decimal string such as `'0.25'` or `'90071992547409930'`
 * (digits, then at most 18 decimals), which is passed on digit for digit.
 */
export function readQuantity(value: unknown, field: string): number | string {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 && !Object.is(value, -0)) return value
  if (typeof value === 'string' && /^(?:0|[1-9]\d{0,29})(?:\.\d{1,18})?$/.test(value)) return value
  return refuse(field, "must be a whole number from 0 to 2^53 - 1, or a decimal string such as '0.25'")
}

/**
 * The sum of two quantities, digit for digit.
 *
 * @returns a number if it is whole and below 2^53, else a decimal string without needless zeros
 * @throws {InvalidInputError} more digits than a quantity may have
 */
export function addQuantities(one: number | string, other: number | string): number | string {
  const [first, second] = [String(one).split('.'), String(other).split('.')]
  const decimals = Math.max(first[1]?.length ?? 0, second[1]?.length ?? 0)
  const scaled = ([whole = '', rest = '']: readonly string[]): bigint => BigInt(whole + rest.padEnd(decimals, '0'))
  const digits = String(scaled(first) + scaled(second)).padStart(decimals + 1, '0')
  const whole = digits.slice(0, digits.length - decimals)
  const rest = digits.slice(digits.length - decimals).replace(/0+$/, '')
  if (rest === '' && Number.isSafeInteger(Number(whole))) return Number(whole)
  return readQuantity(rest === '' ? whole : `${whole}.${rest}`, 'quantity')
}

/**
 * Reads an ISO 4217 code, in upper or lower case; it is passed on as it is written. Which codes there are is asked of the
 * runtime (`Intl.supportedValuesOf`); one that does not know is trusted with any three letters.
 *
 * @param anyCurrency `true` lets codes pass that the runtime does not know, unchanged: tokens, points, house currencies
 */
export function readCurrency(value: unknown, field: string, anyCurrency: boolean): string {
  if (anyCurrency && typeof value === 'string' && /^[A-Za-z0-9_-]{1,32}$/.test(value)) return value
  mustBe(typeof value === 'string' && /^(?:[A-Z]{3}|[a-z]{3})$/.test(value), field, "an ISO 4217 code such as 'usd'")
  const known = knownCurrencies()
  if (known && !known.has(value.toUpperCase())) {
    refuse(field, `'${value}' is not a currency this runtime knows; anyCurrency: true passes it on`)
  }
  return value
}

let currencies: ReadonlySet<string> | undefined

function knownCurrencies(): ReadonlySet<string> | undefined {
  if (typeof Intl === 'undefined' || typeof Intl.supportedValuesOf !== 'function') return undefined
  currencies ??= new Set(Intl.supportedValuesOf('currency'))
  return currencies
}
