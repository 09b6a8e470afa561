/** The page's billing client, and the three things it does with an order: charge it, see how it stands, ask the bank's word. */
import { createBillingClient, standard } from 'billonce'
import type { BillingClient, LookUp, Outcome } from 'billonce'
import type { Order } from './order.ts'

const baseUrl = document.querySelector<HTMLMetaElement>('meta[name=billing-url]')?.content ?? ''
/** Who is signed in. The scope says whose charge it is, and `credentials` whose login is sent with it. */
const session = { scope: 'paper-and-ink/test/customer-7', token: 'test-token-of-customer-7' }

const ATTEMPT_TIMEOUT_MS = 10_000

export const billing: BillingClient = createBillingClient({
  baseUrl,
  endpoint: 'billing',
  scope: session.scope,
  credentials: () => ({ scope: session.scope, headers: { authorization: `Bearer ${session.token}` } }),
  // A customer looks at this page: an attempt that hangs is given up early, and asked again under the same key.
  retry: { attemptTimeoutMs: ATTEMPT_TIMEOUT_MS },
  dialect: standard({ longestRequestMs: ATTEMPT_TIMEOUT_MS }),
})

export interface ChargeOptions {
  readonly card: string
  /** Which try of this order; another one is made only after a definite no. */
  readonly revision: number | undefined
  /** Whether «Do not pay» was pressed before. */
  readonly reopen: boolean
}

/** Charges the order. However often it is called, by however many tabs: once. */
export async function charge(order: Order, { card, revision, reopen }: ChargeOptions): Promise<Outcome | undefined> {
  const outcome = await billing.charge(
    {
      amount: order.total,
      currency: order.currency,
      customer: 'customer-7',
      paymentMethod: card,
      metadata: { operation: order.operationId },
    },
    {
      operationId: order.operationId,
      eventAtMs: order.placedAtMs,
      revision,
      reopen,
      // A card's token may be another one after a reload. What was stored first is what is sent.
      volatileFields: ['paymentMethod'],
      // Without a network there is nothing to wait for: it is written down, and sent when there is one.
      background: !navigator.onLine,
    },
  )
  return outcome.status === 'queued' ? await standingOf(order) : outcome
}

/** What the journal knows of the order's charge. */
export async function standingOf(order: Order): Promise<Outcome | undefined> {
  const latest = await billing.find({ kind: 'charge', operationId: order.operationId })
  if (!latest || !isSuperseded(latest)) return latest
  // This try was stopped because another one succeeded, and that one is what the customer wants to know about.
  for await (const entry of billing.entries({ kind: 'charge', operationId: order.operationId })) {
    if (entry.state === 'succeeded') return entry.outcome
  }
  return latest
}

function isSuperseded(outcome: Outcome): boolean {
  if (outcome.status === 'canceled') return outcome.by === 'superseded'
  return outcome.status === 'unknown' && outcome.delivery === 'ended' && outcome.reason === 'superseded'
}

/**
 * Asks the server what became of charges that no reply will settle. A shop's server learns it from the bank, by webhook, and
 * answers what it knows.
 *
 * @param which the order to ask about; none: everything that needs it, also what ended in unknown
 */
export async function askServer(which?: Order): Promise<void> {
  const lookUp: LookUp = async ({ key, operationId, state }) => {
    if (which && (operationId !== which.operationId || state !== 'accepted')) return { found: 'unclear' }
    const response = await fetch(`${baseUrl}/v1/operations/${key}`, {
      headers: { authorization: `Bearer ${session.token}` },
    })
    if (!response.ok) return { found: response.status === 404 ? 'nothing' : 'unclear' }
    const receipt = (await response.json()) as { id: string; status: string }
    return receipt.status === 'failed' ? { found: 'not-applied', code: 'failed' } : { found: 'applied', receipt }
  }
  await billing.reconcile(lookUp)
}

/** Where the bank asks the customer, if it is an address that a page may lead to. It is the server's word, so it is read. */
export function bankAddressOf(nextAction: unknown): URL | undefined {
  const given =
    typeof nextAction === 'object' && nextAction !== null && 'url' in nextAction ? nextAction.url : undefined
  if (typeof given !== 'string' || !URL.canParse(given)) return undefined
  const url = new URL(given)
  return url.protocol === 'https:' || url.hostname === '127.0.0.1' ? url : undefined
}
