/**
 * The writes that a receiver takes: where each is, what it refuses before it has looked at a key, and what it does once.
 * The three of the standard dialect are routes like any that a user adds. Keys and repeats are receiver.ts's.
 */

/** Parameters of a write as they arrived. */
export type Params = Readonly<Record<string, unknown>>

/** What a route knows when it does its work. */
export interface RouteContext {
  /** The id that the receipt will have. */
  readonly id: string
  readonly account: string
  /** Receiver's clock, milliseconds since the Unix epoch. */
  readonly nowMs: number
}

/** What came of a write: the effect is made and this is its receipt, or it is refused and nothing was done. */
export type RouteResult =
  | { readonly receipt: Params; readonly status?: number }
  | { readonly refusal: { readonly status: number; readonly code: string; readonly message: string } }

/** One write that a receiver takes. */
export interface Route {
  /** What kind of effect it makes: `charge`. */
  readonly kind: string
  /** Put before the number in a receipt's id: `ch_`. */
  readonly idPrefix: string
  /** Default `POST`. */
  readonly method?: string
  /**
   * Looks at the parameters before the key is looked at, as validators do: a message if they are wrong, which answers
   * 400 and is not kept under the key. Default: everything is right.
   */
  readonly check?: (params: Params) => string | undefined
  /**
   * Does the work, once for each key; its answer is kept. `id` is added to the receipt. Default: makes the effect and
   * gives the parameters back as the receipt, with `status: 'succeeded'`.
   */
  readonly respond?: (params: Params, context: RouteContext) => RouteResult
}

/** What a charge with a certain payment method comes to. */
export type ChargeBehavior =
  | { readonly declined: string; readonly message?: string }
  | { readonly status: 'processing' }
  | { readonly status: 'requires_action'; readonly nextAction: Params }

/** Payment methods that are not simply charged; every other one is. */
export const TEST_PAYMENT_METHODS: Readonly<Record<string, ChargeBehavior>> = {
  pm_declined: { declined: 'card_declined', message: 'The card was declined.' },
  pm_expired: { declined: 'expired_card', message: 'The card has expired.' },
  pm_insufficient_funds: { declined: 'insufficient_funds', message: 'The card has insufficient funds.' },
  pm_processing: { status: 'processing' },
  pm_requires_action: {
    status: 'requires_action',
    nextAction: { type: 'redirect', url: 'https://bank.example/authenticate' },
  },
}

/** What the three standard routes need to know. */
export interface StandardRouteOptions {
  /** By payment method, beside {@link TEST_PAYMENT_METHODS}. */
  readonly paymentMethods: Readonly<Record<string, ChargeBehavior>>
  /** What each credit account starts with, a whole number. */
  readonly credits: number
}

/** The three writes of the standard dialect, with the balances and meters that they change. */
export function standardRoutes(options: StandardRouteOptions): Record<string, Route> {
  const balances = new Map<string, number>()
  const meters = new Map<string, string>()
  return {
    'v1/charges': {
      kind: 'charge',
      idPrefix: 'ch_',
      check: ({ amount, currency }) =>
        !isPositiveInteger(amount)
          ? 'amount must be a positive whole number of minor units'
          : typeof currency !== 'string' || !/^[a-z]{3}$/i.test(currency)
            ? 'currency must be a three-letter code'
            : undefined,
      respond: (params, { nowMs }) => {
        const method = String(params['paymentMethod'])
        const behavior = (Object.hasOwn(options.paymentMethods, method) && options.paymentMethods[method]) || {
          status: 'succeeded',
        }
        if ('declined' in behavior) {
          return { refusal: { status: 402, code: behavior.declined, message: behavior.message ?? 'Declined.' } }
        }
        return { receipt: { object: 'charge', ...params, ...behavior, createdAt: new Date(nowMs).toISOString() } }
      },
    },
    'v1/usage': {
      kind: 'usage',
      idPrefix: 'us_',
      check: ({ meter, quantity, occurredAt }) =>
        typeof meter !== 'string' || meter === ''
          ? 'meter must be a name'
          : !Number.isSafeInteger(quantity) && !(typeof quantity === 'string' && /^-?\d+(\.\d+)?$/.test(quantity))
            ? 'quantity must be a whole number or a decimal string'
            : occurredAt !== undefined && (typeof occurredAt !== 'string' || Number.isNaN(Date.parse(occurredAt)))
              ? 'occurredAt must be a date'
              : undefined,
      respond: (params, { account }) => {
        const meter = JSON.stringify([account, params['meter'], params['customer']])
        const used = sumOf(meters.get(meter) ?? '0', String(params['quantity']))
        meters.set(meter, used)
        return { receipt: { object: 'usage', ...params, standing: { meter: params['meter'], used } } }
      },
    },
    'v1/credits/consume': {
      kind: 'credits',
      idPrefix: 'cr_',
      check: ({ amount }) => (isPositiveInteger(amount) ? undefined : 'amount must be a positive whole number'),
      respond: (params, { account }) => {
        const purse = JSON.stringify([account, params['account']])
        const balance = (balances.get(purse) ?? options.credits) - Number(params['amount'])
        if (balance < 0) {
          return { refusal: { status: 402, code: 'insufficient_credits', message: 'There are not that many credits.' } }
        }
        balances.set(purse, balance)
        return { receipt: { object: 'credit_debit', ...params, balance } }
      },
    },
  }
}

/** What a route without `respond` does. */
export function echo(params: Params): RouteResult {
  return { receipt: { ...params, status: 'succeeded' } }
}

/**
 * Reads a body as JSON, or as a form where its content type says so (nested names in brackets, every value text).
 *
 * @returns `undefined` if it is not an object
 */
export function readParams(body: string, contentType: string): Params | undefined {
  if (contentType.startsWith('application/x-www-form-urlencoded')) return readForm(body)
  try {
    const params: unknown = JSON.parse(body)
    return typeof params === 'object' && params !== null && !Array.isArray(params) ? (params as Params) : undefined
  } catch {
    return undefined
  }
}

function readForm(body: string): Params {
  const params: Record<string, unknown> = Object.create(null) as Record<string, unknown>
  for (const [name, value] of new URLSearchParams(body)) {
    const path = name.split(/[[\]]+/).filter((part) => part !== '')
    const last = path.pop()
    if (last === undefined) continue
    let inner = params
    for (const part of path) {
      const next = inner[part]
      inner = (typeof next === 'object' && next !== null ? next : (inner[part] = Object.create(null))) as typeof params
    }
    inner[last] = value
  }
  return params
}

/** The exact sum of two decimal texts; a meter that adds up in floating point shows 0.30000000000000004. */
function sumOf(a: string, b: string): string {
  const places = Math.max(...[a, b].map((text) => (text.split('.')[1] ?? '').length))
  const [first = 0n, second = 0n] = [a, b].map((text) => {
    const [whole = '', fraction = ''] = text.split('.')
    return BigInt(whole + fraction.padEnd(places, '0'))
  })
  const sum = first + second
  const digits = String(sum < 0n ? -sum : sum).padStart(places + 1, '0')
  const text = places === 0 ? digits : `${digits.slice(0, -places)}.${digits.slice(-places)}`
  return sum < 0n ? `-${text}` : text
}

function isPositiveInteger(value: unknown): boolean {
  return Number.isSafeInteger(value) && Number(value) > 0
}
