/**
 * What came back from the wire, and what it means, whoever sent it. How one provider's replies are read is the dialect's;
 * what follows for an entry is entry.ts.
 */
import type { JsonObject, JsonValue } from './canonical.ts'

/** What one attempt brought back. */
export type Reply = HttpReply | LostReply

export interface HttpReply {
  readonly kind: 'http'
  /** The status code; 0 for a redirect that a browser does not show. */
  readonly status: number
  /** True for 3xx, which is never followed. */
  readonly isRedirect: boolean
  /** The headers a dialect may look at, names in lower case. */
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
  /** Wall time at which the reply was complete. */
  readonly receivedAtMs: number
}

/** No whole reply: nothing is known about the effect. */
export interface LostReply {
  readonly kind: 'lost'
  readonly why: 'network' | 'timeout' | 'undecodable'
}

/**
 * What a receiver says of a write it took. The whole reply stays readable; whole numbers beyond 2^53 - 1 stand in it as
 * their text.
 */
export interface Receipt {
  /** The receiver's id of the effect. */
  readonly id: string
  /** The receiver's own word, such as `succeeded`, `requires_action` or `processing`. */
  readonly status?: string
  readonly reply: JsonObject
}

/** A definite no: without effect. */
export interface Rejection {
  /**
   * `declined`: the receiver processed it and said no, such as a card that was declined. `invalid`: it would not process it
   * as it is. `not-applied`: evidence showed later that it never took effect.
   */
  readonly kind: 'declined' | 'invalid' | 'not-applied'
  /** The receiver's own code, such as `card_declined`; its list is never closed. */
  readonly code?: string
  /** The receiver's own words. They may be personal; they are kept in the journal and in no log. */
  readonly message?: string
  readonly status: number
  /**
   * Whether the refusal came from behind the receiver's key layer, so that it speaks for every attempt under the key. What
   * stands before that layer (a validator, a gateway) may refuse although another attempt worked.
   */
  readonly behindKey: boolean
  /** The whole reply. */
  readonly reply?: JsonObject
}

export type Progress = 'requires_action' | 'processing'

const PROGRESS: readonly string[] = ['requires_action', 'processing'] satisfies Progress[]
/** Words for a write that ended without effect. */
const WITHOUT_EFFECT: readonly string[] = ['failed', 'declined', 'canceled', 'cancelled', 'voided']

/** What the status of a receipt says: made and not concluded, ended without effect, or (also without a status) applied. */
export function standingOf(receipt: object): Progress | 'not-applied' | 'applied' {
  const status: unknown = 'status' in receipt ? receipt.status : undefined
  if (typeof status !== 'string') return 'applied'
  if (PROGRESS.includes(status)) return status as Progress
  return WITHOUT_EFFECT.includes(status) ? 'not-applied' : 'applied'
}

/** Why a receiver did not take an attempt up at all. */
export type NotAccepted = 'unauthorized' | 'rate-limited' | 'too-early' | 'misrouted'

/** What one reply means. */
export type Verdict =
  | { readonly kind: 'succeeded'; readonly receipt: Receipt }
  | {
      readonly kind: 'accepted'
      readonly receipt: Receipt
      readonly progress: Progress
      readonly nextAction?: JsonValue
    }
  /** The receipt is for another amount or currency than was asked: somebody has to look. */
  | { readonly kind: 'receipt-differs'; readonly receipt: Receipt }
  /** Nothing is known about the effect; asking again under the same key is safe. */
  | { readonly kind: 'unclear'; readonly why: Unclear; readonly retryAfterMs?: number }
  /** The same key is at work at the receiver. */
  | { readonly kind: 'busy'; readonly retryAfterMs?: number }
  /** The receiver knows the key with other parameters: a bug in naming. */
  | { readonly kind: 'conflict' }
  /** The receiver saved a failure under the key and replays it: asking again changes nothing. */
  | { readonly kind: 'recorded-failure' }
  /** Certainly not done, and worth asking again later. */
  | { readonly kind: 'not-accepted'; readonly reason: NotAccepted; readonly retryAfterMs?: number }
  | { readonly kind: 'refused'; readonly rejection: Rejection }

export type Unclear = LostReply['why'] | 'server-error' | 'redirect' | 'not-a-receipt' | 'unreadable-refusal'

/** Facts about a reply that an outcome or a log may show beside its verdict. */
export interface ReplyFacts {
  readonly status?: number
  /** The receiver marked the reply as a replay of one it gave before. */
  readonly markedReplay?: true
  /** The receiver's id of the request, for its support. */
  readonly requestId?: string
}

export function factsOf(reply: Reply): ReplyFacts {
  if (reply.kind === 'lost') return {}
  const requestId = reply.headers['request-id'] ?? reply.headers['x-request-id']
  return {
    status: reply.status,
    ...(isMarkedReplay(reply) ? { markedReplay: true } : {}),
    ...(requestId === undefined ? {} : { requestId }),
  }
}

/** `Idempotent-Replayed: true`, as Stripe and others mark a reply that was stored (Stripe API, «Idempotent requests»). */
export function isMarkedReplay(reply: HttpReply): boolean {
  return reply.headers['idempotent-replayed']?.trim().toLowerCase() === 'true'
}

/**
 * `Retry-After` in both forms, seconds or an HTTP date (RFC 9110, 10.2.3), as milliseconds from the reply on; `undefined`
 * if absent or not readable. A date is taken against the reply's own `Date`, so that a wrong clock here does not matter.
 */
export function retryAfterMsOf(reply: HttpReply): number | undefined {
  const value = reply.headers['retry-after']?.trim()
  if (value === undefined || value === '') return undefined
  if (/^\d+(?:\.\d+)?$/.test(value)) return Math.min(Number(value) * 1000, Number.MAX_SAFE_INTEGER)
  const atMs = parseHttpDate(value)
  if (atMs === undefined) return undefined
  return Math.max(0, atMs - (parseHttpDate(reply.headers['date']?.trim() ?? '') ?? reply.receivedAtMs))
}

/** The three forms of an HTTP date (RFC 9110, 5.6.7), all of them in UTC; engines would make dates of much else. */
function parseHttpDate(text: string): number | undefined {
  const isFixed = /^[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT$/.test(text)
  const isRfc850 = /^[A-Z][a-z]{5,8}, \d\d-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d GMT$/.test(text)
  const isAsctime = /^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}$/.test(text)
  if (!isFixed && !isRfc850 && !isAsctime) return undefined
  const atMs = Date.parse(isAsctime ? `${text} GMT` : text)
  return Number.isNaN(atMs) ? undefined : atMs
}
