/**
 * What is bought. A shop's server makes the order and gives it a number; here the page does, and the number holds the moment,
 * so that every device that opens the address has the same order.
 */

export interface Order {
  /** As in the address: `mg3k9x2a`. */
  readonly number: string
  /** The business event, and so the name of the charge. */
  readonly operationId: string
  /** When the customer ordered. A journal that is younger knows that it may not know all. */
  readonly placedAtMs: number
  readonly currency: string
  readonly items: readonly Item[]
  /** Minor units. */
  readonly shipping: number
  /** Minor units. */
  readonly total: number
}

export interface Item {
  readonly name: string
  readonly about: string
  readonly picture: 'pen' | 'notebook' | 'ink' | 'envelope'
  /** Minor units, for all of `count`. */
  readonly amount: number
  readonly count: number
}

type Basket = Pick<Order, 'currency' | 'items' | 'shipping'>

const BASKETS: readonly [Basket, ...Basket[]] = [
  {
    currency: 'eur',
    items: [
      { name: 'Fountain pen', about: 'Fine nib, black', picture: 'pen', amount: 38_00, count: 1 },
      { name: 'Notebook A5', about: 'Dotted, 2 pieces', picture: 'notebook', amount: 19_50, count: 2 },
    ],
    shipping: 4_90,
  },
  {
    currency: 'usd',
    items: [
      { name: 'Bottled ink', about: 'Midnight blue, 50 ml', picture: 'ink', amount: 14_25, count: 1 },
      { name: 'Laid envelopes', about: 'Cream, 25 pieces', picture: 'envelope', amount: 11_75, count: 1 },
    ],
    shipping: 6_00,
  },
  {
    currency: 'jpy',
    items: [
      { name: 'Brush pen', about: 'Soft tip, sepia', picture: 'pen', amount: 1_650, count: 1 },
      { name: 'Pocket notebook', about: 'Plain, 3 pieces', picture: 'notebook', amount: 2_340, count: 3 },
    ],
    shipping: 500,
  },
]

/** The order with this number; `undefined` if there can be none. */
export function orderOf(number: string): Order | undefined {
  const placedAtMs = /^[0-9a-z]{8}$/.test(number) ? Number.parseInt(number, 36) : Number.NaN
  // A number from the future was mistyped: its charge would be younger than the moment it is made.
  if (!(placedAtMs <= Date.now())) return undefined
  const basket = BASKETS[placedAtMs % BASKETS.length] ?? BASKETS[0]
  const total = basket.items.reduce((sum, { amount }) => sum + amount, basket.shipping)
  return { number, operationId: `order-${number}`, placedAtMs, total, ...basket }
}

export function newOrderNumber(): string {
  return Date.now().toString(36)
}

/** `€62.40`, `¥4,490`: each currency with its own number of decimals. */
export function moneyText(amount: number, currency: string): string {
  const format = new Intl.NumberFormat('en', { style: 'currency', currency })
  return format.format(amount / 10 ** (format.resolvedOptions().maximumFractionDigits ?? 2))
}
