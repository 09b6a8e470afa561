/**
 * Faults on demand: what can go wrong between a client and a receiver, as data, with a constructor for each, and the
 * rule which of them hits which request. What a fault then does is receiver.ts's; how it looks on a wire is wire.ts's
 * and server.ts's.
 */
import type { OpenRequest } from './ledger.ts'

/** Which requests a fault hits. Every field that is given has to hold; with none given it hits every request. */
export interface FaultTarget {
  /** Which request of its account and key, from 1, lost ones counted too; a list means any of them. */
  readonly attempt?: number | readonly number[]
  /** Which request of the receiver, from 1; a list means any of them. */
  readonly request?: number | readonly number[]
  /** Which write: `charge`, `usage`, `credits`, or the kind of a route of your own. */
  readonly kind?: string
  /** The idempotency key, without quotes. */
  readonly key?: string
  readonly account?: string
  /** How many requests it hits at most, a whole number from 1; default without limit. */
  readonly times?: number
  /** How many requests of one key it hits at most, a whole number from 1; default without limit. */
  readonly timesPerKey?: number
  /** Share of requests that it hits, 0 to 1; default 1. The draw is fixed by `seed`, the key and the attempt. */
  readonly probability?: number
  /** Seed of the draw, a whole number; default 1. */
  readonly seed?: number
  /** Anything else. */
  readonly when?: (request: FaultRequest) => boolean
}

/** A request as the predicate of a target sees it. */
export type FaultRequest = Pick<
  OpenRequest,
  'number' | 'attempt' | 'atMs' | 'method' | 'path' | 'kind' | 'account' | 'key' | 'body' | 'headers'
>

/** A fault: what happens, and to which requests. Plain data; one fault may serve several receivers. */
export type Fault = { readonly target: FaultTarget } & FaultKind

/** What can happen. */
export type FaultKind =
  | { readonly name: 'lose-request' }
  | { readonly name: 'reset-before' }
  | { readonly name: 'lose-reply' }
  | { readonly name: 'reset-after' }
  | { readonly name: 'cut-body'; readonly framing: 'length' | 'chunked'; readonly keepBytes: number | undefined }
  | { readonly name: 'stall'; readonly after: 'nothing' | 'headers'; readonly afterEffect: boolean }
  | {
      readonly name: 'status'
      readonly status: number
      readonly headers: Readonly<Record<string, string>>
      readonly body: string
      readonly afterEffect: boolean
    }
  | { readonly name: 'delay'; readonly ms: number }
  | { readonly name: 'saved-failure'; readonly status: number; readonly afterEffect: boolean }
  | {
      readonly name: 'slow-conflict'
      readonly attempts: number | undefined
      readonly ms: number | undefined
      readonly retryAfterSeconds: number | undefined
    }
  | { readonly name: 'forget-keys'; readonly all: boolean }
  | { readonly name: 'wrong-receipt'; readonly fields: Readonly<Record<string, unknown>> }
  | { readonly name: 'crash'; readonly at: RecoveryPoint }
  | { readonly name: 'chaos'; readonly faults: readonly Fault[] }

/** How far a receiver got with a key, as far as it would survive a crash. */
export type RecoveryPoint = 'started' | 'effect-made' | 'finished'

/** The request never arrives: the connection closes, and the receiver knows nothing of it. */
export function loseRequest(target: FaultTarget = {}): Fault {
  return { name: 'lose-request', target: checked(target) }
}

/** The connection is reset before the receiver has looked at the request. */
export function resetBefore(target: FaultTarget = {}): Fault {
  return { name: 'reset-before', target: checked(target) }
}

/** The receiver does all its work, and the reply is lost: the connection closes without a byte. */
export function loseReply(target: FaultTarget = {}): Fault {
  return { name: 'lose-reply', target: checked(target) }
}

/** The receiver does all its work, then the connection is reset. */
export function resetAfter(target: FaultTarget = {}): Fault {
  return { name: 'reset-after', target: checked(target) }
}

/**
 * The receiver does all its work, and the reply breaks off in its body.
 *
 * @param options.framing `length` (default): a `Content-Length` that is not reached. `chunked`: a body without its last
 *   chunk, by default cut after the last byte of the JSON, so that what arrived parses and looks whole
 * @param options.keepBytes how many bytes of the body arrive; default 10 by length, all when chunked
 */
export function cutBody(
  options: FaultTarget & { readonly framing?: 'length' | 'chunked'; readonly keepBytes?: number } = {},
): Fault {
  const { framing = 'length', keepBytes, ...target } = options
  return { name: 'cut-body', framing, keepBytes, target: checked(target) }
}

/**
 * Silence on a connection that stays open, until the client gives up.
 *
 * @param options.after `nothing` (default): not a byte comes. `headers`: status and headers come, the body does not
 * @param options.afterEffect whether the receiver does its work all the same; default true, which is the case that costs money
 */
export function stall(
  options: FaultTarget & { readonly after?: 'nothing' | 'headers'; readonly afterEffect?: boolean } = {},
): Fault {
  const { after = 'nothing', afterEffect = true, ...target } = options
  return { name: 'stall', after, afterEffect, target: checked(target) }
}

/** What {@link status} answers with. */
export interface StatusOptions {
  /** Beside the content type; names in any case. */
  readonly headers?: Readonly<Record<string, string>>
  /** Text, or an object, which becomes JSON; default a gateway's HTML page, empty for 204, 205, 304 and redirects. */
  readonly body?: string | Readonly<Record<string, unknown>>
  /** Default `application/json` for an object, `text/html` for text, none for an empty body. */
  readonly contentType?: string
  /** Whether the receiver did its work behind this answer; default false: it came from something in front of it. */
  readonly afterEffect?: boolean
}

/**
 * Another answer than the receiver's: a gateway's 502 or 504 (`afterEffect: true` if the receiver had finished), a 503
 * with `Retry-After`, a 429, a 401 or 400 of something in front that never looked at the key, a 204, an empty 200.
 *
 * @param code 200 to 599
 */
export function status(code: number, options: FaultTarget & StatusOptions = {}): Fault {
  if (!Number.isInteger(code) || code < 200 || code > 599)
    throw new RangeError(`No HTTP status to answer with: ${code}`)
  const { headers = {}, body, contentType, afterEffect = false, ...target } = options
  const text = body === undefined ? pageOf(code) : typeof body === 'string' ? body : JSON.stringify(body)
  const type = contentType ?? (text === '' ? undefined : typeof body === 'object' ? 'application/json' : 'text/html')
  return {
    name: 'status',
    status: code,
    headers: { ...lowerCased(headers), ...(type === undefined ? {} : { 'content-type': type }) },
    body: text,
    afterEffect,
    target: checked(target),
  }
}

/** A captive portal's or login page: 200 and HTML, from something in front of the receiver. */
export function interceptionPage(target: FaultTarget = {}): Fault {
  return status(200, { ...target, body: '<!doctype html><title>Sign in</title><h1>Sign in to the network</h1>' })
}

/** A redirect of something in front of the receiver; `code` 301, 302, 303, 307 or 308, default 302. */
export function redirect(location: string, options: FaultTarget & { readonly code?: number } = {}): Fault {
  const { code = 302, ...target } = options
  return status(code, { ...target, headers: { location }, body: '' })
}

/** The receiver's work takes so long; the key is in progress meanwhile, and the reply comes at the end of it. */
export function delay(ms: number, target: FaultTarget = {}): Fault {
  return { name: 'delay', ms, target: checked(target) }
}

/**
 * The receiver fails and keeps the failure under the key: later requests get it again, marked as a replay.
 *
 * @param code 500 to 599
 * @param options.afterEffect whether the effect was made before it failed; default false
 */
export function savedFailure(
  code: number = 500,
  options: FaultTarget & { readonly afterEffect?: boolean } = {},
): Fault {
  if (!Number.isInteger(code) || code < 500 || code > 599) throw new RangeError(`A failure is 500 to 599, not ${code}`)
  const { afterEffect = false, ...target } = options
  return { name: 'saved-failure', status: code, afterEffect, target: checked(target) }
}

/**
 * The receiver takes the key, makes the effect and stays at it: this request and those that follow get 409 «in progress»,
 * until so many have been answered or so much time has passed on the receiver's clock. Then the reply is replayed.
 *
 * @param options.attempts how many 409 in all, a whole number from 1
 * @param options.ms how long; with `attempts` too, whichever is over first
 * @param options.retryAfterSeconds `Retry-After` of each 409; default none
 */
export function slowConflict(
  options: FaultTarget & { readonly attempts?: number; readonly ms?: number; readonly retryAfterSeconds?: number },
): Fault {
  const { attempts, ms, retryAfterSeconds, ...target } = options
  if (attempts === undefined && ms === undefined)
    throw new RangeError('slowConflict needs attempts or ms to come to an end')
  return { name: 'slow-conflict', attempts, ms, retryAfterSeconds, target: checked(target) }
}

/** The receiver has forgotten the request's key before its time (`all: true`: every key), and executes it as new. */
export function forgetKeys(options: FaultTarget & { readonly all?: boolean } = {}): Fault {
  const { all = false, ...target } = options
  return { name: 'forget-keys', all, target: checked(target) }
}

/**
 * The receipt says something else than was asked, and the stored reply too; the effect is as asked.
 *
 * @param options.fields what is written over the receipt: `{ amount: 1 }`, `{ currency: 'eur' }`
 */
export function wrongReceipt(options: FaultTarget & { readonly fields: Readonly<Record<string, unknown>> }): Fault {
  const { fields, ...target } = options
  return { name: 'wrong-receipt', fields, target: checked(target) }
}

/**
 * The receiver's process dies at a recovery point of this request and is up again at once: every connection breaks, what
 * was durable is kept, and the next request with the key resumes from there.
 */
export function crashAt(at: RecoveryPoint, target: FaultTarget = {}): Fault {
  return { name: 'crash', at, target: checked(target) }
}

/**
 * A random mix, the same for the same seed whatever runs beside it, with a cap for each key so that things come to an end.
 *
 * @param options.probability share of requests hit, 0 to 1; default 0.3
 * @param options.seed a whole number; default 1
 * @param options.timesPerKey how many requests of one key are hit at most; default 3, fewer than a client's usual 5 attempts
 * @param options.faults what to choose from, each with the same chance where its own target holds; default losses,
 *   resets, cuts, gateway errors and a short conflict: all that a client should get through within one call
 */
export function chaos(options: FaultTarget & { readonly faults?: readonly Fault[] } = {}): Fault {
  const { faults = DEFAULT_MIX, probability = 0.3, seed = 1, timesPerKey = 3, ...target } = options
  if (faults.length === 0) throw new RangeError('chaos needs at least one fault to choose from')
  return { name: 'chaos', faults, target: checked({ ...target, probability, seed, timesPerKey }) }
}

const DEFAULT_MIX: readonly Fault[] = [
  loseRequest(),
  resetBefore(),
  loseReply(),
  resetAfter(),
  cutBody(),
  cutBody({ framing: 'chunked' }),
  status(503),
  status(502, { afterEffect: true }),
  status(504, { afterEffect: true }),
  interceptionPage(),
  slowConflict({ attempts: 1 }),
]

/** The faults of one receiver; they may change while it runs. */
export interface Faults {
  /** Those in force, in order: of two that would do the same thing to one request the earlier one does. */
  readonly list: readonly Fault[]
  add(...faults: Fault[]): void
  /** Takes away faults that were added; unknown ones are left alone. */
  remove(...faults: Fault[]): void
  /** Takes away all faults, and forgets how often each has hit. */
  clear(): void
}

/** A fault without its choice: what `chaos` came down to. */
export type ConcreteFault = Exclude<Fault, { name: 'chaos' }>

/** What happens to one request: at most one thing in front, or any inside and at most one on the way back. */
export interface FaultPlan {
  /** Ends the request before the receiver looks at it. */
  readonly front?: ConcreteFault
  /** Changes what the receiver does. */
  readonly inside: readonly ConcreteFault[]
  /** Changes what becomes of the reply. */
  readonly back?: ConcreteFault
}

/** The faults as the receiver asks them. */
export interface FaultBook extends Faults {
  /** Decides what happens to a request, and counts it; called once for each. */
  planFor(request: FaultRequest): FaultPlan
}

/** Where in a request's life a fault applies. */
export function stageOf(fault: ConcreteFault): 'front' | 'inside' | 'back' {
  switch (fault.name) {
    case 'lose-request':
    case 'reset-before':
      return 'front'
    case 'status':
    case 'stall':
      return fault.afterEffect ? 'back' : 'front'
    case 'lose-reply':
    case 'reset-after':
    case 'cut-body':
      return 'back'
    default:
      return 'inside'
  }
}

/** Faults in force, with how often each has hit. */
export function createFaults(initial: readonly Fault[] = []): FaultBook {
  const list: Fault[] = [...initial]
  const hits = new Map<Fault, { all: number; byKey: Map<string, number> }>()

  const hitsOf = (fault: Fault): { all: number; byKey: Map<string, number> } => {
    const counted = hits.get(fault) ?? { all: 0, byKey: new Map<string, number>() }
    hits.set(fault, counted)
    return counted
  }
  const isHit = (fault: Fault, request: FaultRequest): boolean => {
    const { attempt, request: number, kind, key, account, times, timesPerKey, probability, seed, when } = fault.target
    return (
      (attempt === undefined || [attempt].flat().includes(request.attempt)) &&
      (number === undefined || [number].flat().includes(request.number)) &&
      (kind === undefined || kind === request.kind) &&
      (key === undefined || key === request.key) &&
      (account === undefined || account === request.account) &&
      (times === undefined || hitsOf(fault).all < times) &&
      (timesPerKey === undefined || (hitsOf(fault).byKey.get(keyIdOf(request)) ?? 0) < timesPerKey) &&
      (when === undefined || when(request)) &&
      (probability === undefined || draw(seed ?? 1, fault.name, request) < probability)
    )
  }
  /** The fault itself, or what `chaos` chose; with everything on the way to it, which counts as hit with it. */
  const resolve = (fault: Fault, request: FaultRequest): { fault: ConcreteFault; path: Fault[] } | undefined => {
    if (!isHit(fault, request)) return undefined
    if (fault.name !== 'chaos') return { fault, path: [fault] }
    const fitting = fault.faults.filter((candidate) => isHit(candidate, request))
    const chosen = fitting[Math.floor(draw(fault.target.seed ?? 1, 'choice', request) * fitting.length)]
    const resolved = chosen && resolve(chosen, request)
    return resolved && { fault: resolved.fault, path: [fault, ...resolved.path] }
  }

  return {
    list,
    add: (...faults) => void list.push(...faults),
    remove: (...faults) => {
      for (const fault of faults) if (list.includes(fault)) list.splice(list.indexOf(fault), 1)
    },
    clear: () => {
      list.length = 0
      hits.clear()
    },
    planFor: (request) => {
      const found = list.flatMap((fault) => resolve(fault, request) ?? [])
      const front = found.find(({ fault }) => stageOf(fault) === 'front')
      const inside = found.filter(
        ({ fault }, at) =>
          stageOf(fault) === 'inside' && found.findIndex((other) => other.fault.name === fault.name) === at,
      )
      const back = found.find(({ fault }) => stageOf(fault) === 'back')
      // A request that never got through has no inside and no way back; what would have hit there is kept for the next one.
      const applied = front ? [front] : back ? [...inside, back] : inside
      for (const hit of applied.flatMap(({ path }) => path)) {
        const counted = hitsOf(hit)
        counted.all += 1
        counted.byKey.set(keyIdOf(request), (counted.byKey.get(keyIdOf(request)) ?? 0) + 1)
      }
      if (front) return { front: front.fault, inside: [] }
      return { inside: inside.map(({ fault }) => fault), ...(back ? { back: back.fault } : {}) }
    },
  }
}

function keyIdOf(request: FaultRequest): string {
  return JSON.stringify([request.account, request.key])
}

/**
 * A number from 0 up to 1, fixed by seed, purpose, key and attempt and by nothing else: what runs at the same time or ran
 * before does not change it. The account is left out, since it may be derived from a credential that changes.
 */
function draw(seed: number, purpose: string, request: FaultRequest): number {
  return mulberry32(hash32(JSON.stringify([seed, purpose, request.key ?? request.body, request.attempt])))
}

/** FNV-1a over UTF-16 units; spreads, hides nothing. */
function hash32(text: string): number {
  let hash = 0x811c9dc5
  for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
  return hash >>> 0
}

/** First number of Tommy Ettinger's mulberry32, which mends the weak low bits of the hash. */
function mulberry32(seed: number): number {
  let state = (seed + 0x6d2b79f5) | 0
  state = Math.imul(state ^ (state >>> 15), state | 1)
  state ^= state + Math.imul(state ^ (state >>> 7), state | 61)
  return ((state ^ (state >>> 14)) >>> 0) / 2 ** 32
}

/** A target that can hit: a typing error there is a fault that never comes, and a test that passes for no reason. */
function checked(target: FaultTarget): FaultTarget {
  for (const name of ['attempt', 'request', 'times', 'timesPerKey'] as const) {
    for (const count of [target[name] ?? []].flat()) {
      if (!Number.isInteger(count) || count < 1) throw new RangeError(`${name} counts from 1; ${count} never comes`)
    }
  }
  const { probability } = target
  if (probability !== undefined && !(probability >= 0 && probability <= 1)) {
    throw new RangeError(`probability is 0 to 1, not ${probability}`)
  }
  return target
}

function lowerCased(headers: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
}

function pageOf(code: number): string {
  const empty = code === 204 || code === 205 || (code >= 300 && code < 400)
  return empty ? '' : `<!doctype html><title>${code}</title><h1>${code}</h1><hr>gateway`
}
