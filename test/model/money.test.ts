/** Amounts, quantities and currencies: taken exactly, or not at all. */
import { describe, expect, test } from 'vitest'
import { readAmount, readCurrency, readQuantity } from '../../src/model/money.ts'

const refused = (field: string): Error =>
  expect.objectContaining({ code: 'ERR_INVALID_INPUT', field, sentByThisCall: false }) as Error

describe('G65: an amount is a positive whole number of minor units', () => {
  test.each([1, 2, 1999, 2 ** 31, Number.MAX_SAFE_INTEGER, 100.0])('%s passes unchanged', (amount) => {
    expect(readAmount(amount, 'amount')).toBe(amount)
  })

  test.each([
    19.99 * 100,
    80.6 * 100,
    0.1 + 0.2,
    0.5,
    1e21,
    2 ** 53,
    -0,
    0,
    -1,
    Number.NaN,
    Infinity,
    -Infinity,
    '100',
    '',
    5n,
    null,
    undefined,
    true,
    [100],
    { amount: 100 },
    new Number(100),
    new Date(100),
  ])('%s is refused', (amount) => {
    expect(() => readAmount(amount, 'amount')).toThrow(refused('amount'))
  })
})

describe('G66: amounts and quantities around 2^53', () => {
  test('the last safe integer passes, those after it and BigInt are refused', () => {
    expect(readAmount(9007199254740991, 'amount')).toBe(9007199254740991)
    expect(readQuantity(9007199254740991, 'quantity')).toBe(9007199254740991)
    // eslint-disable-next-line no-loss-of-precision -- that it is lost is the point
    for (const value of [9007199254740992, 9007199254740993, 9007199254740991n, 9007199254740993n]) {
      expect(() => readAmount(value, 'amount')).toThrow(refused('amount'))
      expect(() => readQuantity(value, 'quantity')).toThrow(refused('quantity'))
    }
  })

  test('a quantity as text is carried digit for digit', () => {
    expect(readQuantity('9007199254740993', 'quantity')).toBe('9007199254740993')
    expect(readQuantity('90071992547409930000', 'quantity')).toBe('90071992547409930000')
  })
})

describe('a quantity', () => {
  test.each([0, 1, 42, '0', '0.25', '0.10', '1.000000000000000001', '999999999999999999999999999999', '10'])(
    '%j passes unchanged',
    (quantity) => {
      expect(readQuantity(quantity, 'quantity')).toBe(quantity)
    },
  )

  test.each([
    0.25,
    -0,
    Number.NaN,
    Infinity,
    '',
    ' 1',
    '1 ',
    '01',
    '1.',
    '.5',
    '+1',
    '1e3',
    '1,5',
    '0x10',
    '٣',
    '1\n',
    'NaN',
    '0.1234567890123456789',
    '1000000000000000000000000000000',
    null,
    undefined,
    [1],
  ])('%j is refused', (quantity) => {
    expect(() => readQuantity(quantity, 'quantity')).toThrow(refused('quantity'))
  })
})

describe('G64: a currency', () => {
  test.each(['usd', 'USD', 'jpy', 'kwd', 'eur', 'ISK'])('%s is passed on as it is written', (currency) => {
    expect(readCurrency(currency, 'currency', false)).toBe(currency)
  })

  test.each(['Usd', 'us', 'usdt', '', ' usd', 'usd\n', '€', 'zzz', 'QQQ', null, undefined, 840, ['usd'], 'ＵＳＤ'])(
    '%j is refused',
    (currency) => {
      expect(() => readCurrency(currency, 'currency', false)).toThrow(refused('currency'))
    },
  )

  test('codes that the runtime does not know pass by choice, unchanged', () => {
    for (const code of ['zzz', 'credits', 'USDC', 'gold_coins', 'x-1', 'Usd'])
      expect(readCurrency(code, 'currency', true)).toBe(code)
    for (const code of ['', 'a b', 'a"b', 'é', 'x'.repeat(33), null, 7])
      expect(() => readCurrency(code, 'currency', true)).toThrow(refused('currency'))
  })

  test('the message says how to pass a code on that is not known', () => {
    expect(() => readCurrency('zzz', 'currency', false)).toThrow('anyCurrency')
  })

  test('a runtime that does not know its currencies is trusted with three letters', () => {
    const { supportedValuesOf } = Intl
    try {
      Object.assign(Intl, { supportedValuesOf: undefined })
      expect(readCurrency('zzz', 'currency', false)).toBe('zzz')
      expect(() => readCurrency('zz', 'currency', false)).toThrow(refused('currency'))
    } finally {
      Object.assign(Intl, { supportedValuesOf })
    }
  })
})
