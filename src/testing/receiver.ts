/**
 * The other side of the wire: a billing server in memory that takes each write once. It claims keys, executes, stores
 * replies and replays them, and comes back from a crash, as a receiver should that follows the Idempotency-Key draft. It
 * shares no code with the client, so a mistake there is not made here too. What a write does is routes.ts's; what goes
 * wrong on the way is faults.ts's.
 */
import { systemClock, type ReceiverClock } from './clock.ts'
import {
  createFaults,
  type ConcreteFault,
  type Fault,
  type FaultPlan,
  type Faults,
  type RecoveryPoint,
} from './faults.ts'
import { createLedger, type Ledger, type OpenRequest, type RequestFate } from './ledger.ts'
import {
  echo,
  readParams,
  standardRoutes,
  TEST_PAYMENT_METHODS,
  type ChargeBehavior,
  type Params,
  type Route,
} from './routes.ts'
import { responseOf, unlessAborted, type Delivery, type IncomingRequest, type Reply } from './wire.ts'

/** How a receiver is made. Everything has a default. */
export interface ReceiverOptions {
  /** What goes wrong; more with `receiver.faults.add`. Default nothing. */
  readonly faults?: readonly Fault[]
  /** Default {@link systemClock}, which fake timers drive; `manualClock()` stands still until it is turned. */
  readonly clock?: ReceiverClock
  /** How long a key is remembered, from its first request, milliseconds; default 24 hours. */
  readonly keyRetentionMs?: number
  /**
   * How long the work of a write takes on the receiver's clock, milliseconds; its key is in progress meanwhile. Default 0:
   * done before anything else can arrive.
   */
  readonly latencyMs?: number
  /** Whether a refusal behind the key is kept and replayed; default true. False frees the key, so it is tried afresh. */
  readonly keepsRejections?: boolean
  /** Whether a request without a key is refused with 400; default true. False executes it, every time. */
  readonly requiresKey?: boolean
  /** Reads the key where it is not in a header; default the header `Idempotency-Key`, bare or quoted. */
  readonly keyOf?: (request: IncomingRequest) => string | undefined
  /** Longest key, characters; default 255. A longer one is refused with 400. */
  readonly maxKeyLength?: number
  /**
   * Whose request it is; keys, balances and meters are per account. A table from bearer token to account refuses every other
   * token with 401, before the key. A function may return `undefined` for the same. Default: each token is an
   * account of its own, named by a digest, and no token is the account `anonymous`.
   */
  readonly accounts?: Readonly<Record<string, string>> | ((request: IncomingRequest) => string | undefined)
  /** What payment methods come to, beside {@link TEST_PAYMENT_METHODS}. */
  readonly paymentMethods?: Readonly<Record<string, ChargeBehavior>>
  /** What each credit account starts with, a whole number; default 1,000,000. */
  readonly credits?: number
  /** Writes beside the three standard ones, by path without a leading slash; one of the same path takes its place. */
  readonly routes?: Readonly<Record<string, Route>>
  /** How errors look: `{ error: { code, message, type } }` (default), or problem details (RFC 9457). */
  readonly errorFormat?: 'error' | 'problem-details'
  /** Status of what `check` of a route refuses; default 400. */
  readonly invalidStatus?: 400 | 422
  /** `Retry-After` of a 409 while a key is in progress, whole seconds; default none. */
  readonly busyRetryAfterSeconds?: number
}

/** What a receiver remembers of a key. */
export interface KeyState {
  readonly firstSeenAtMs: number
  readonly recoveryPoint: RecoveryPoint
  /** Whether somebody is at work on it now. */
  readonly inProgress: boolean
  /** The stored reply, once there is one. */
  readonly reply?: Reply
}

/** An idempotent billing server in memory. */
export interface Receiver {
  /**
   * Takes a request as `fetch` would, so it can stand in for it: `createBillingClient({ fetch: receiver.fetch })`. The
   * origin and what stands before the route's path do not matter. A client that aborts is answered no more, while the receiver
   * works on, as over a network. Redirects are followed, refused or handed out as `redirect` of the request says.
   */
  readonly fetch: (input: Request | URL | string, init?: RequestInit) => Promise<Response>
  /** The same without a wire, for adapters: what should be delivered, whatever then delivers it. Rejects only if `keyOf`, `accounts`, `check` or a fault's `when` throws. */
  handle(request: IncomingRequest): Promise<Delivery>
  readonly ledger: Ledger
  readonly faults: Faults
  readonly clock: ReceiverClock
  /** Paths of the writes that it takes, without a leading slash. */
  readonly paths: readonly string[]
  /** What is remembered of a key; `account` may be left out where only one account uses it. */
  keyState(key: string, account?: string): KeyState | undefined
  /**
   * The process dies and is up again at once: every request at work is cut off, what was durable is kept. A key that was in
   * progress is free, and its next request resumes from the recovery point.
   */
  crash(): void
  /** Forgets a key, or all of them, before their time; the ledger keeps what was done. */
  forgetKeys(key?: string): void
  /** As new: no keys, an empty ledger, no faults, balances and meters from the start. The clock goes on. */
  reset(): void
}

/** One key as the receiver keeps it. What is not marked volatile would be in a database, and survives a crash. */
interface KeyRecord {
  readonly key: string | undefined
  readonly account: string
  /** Method, path and exact body: what «same parameters» means here. A real receiver keeps a digest of them. */
  readonly parameters: string
  readonly firstSeenAtMs: number
  recoveryPoint: RecoveryPoint
  reply?: Reply
  /** Volatile: somebody is at work. */
  held?: true
  /** Volatile: the effect is made, and it is still at work for everybody who asks; see `slowConflict`. */
  slow?: { attemptsLeft: number; untilAtMs: number; retryAfterSeconds: number | undefined }
}

/** A request that may look at the key: everything in front of it was in order. */
interface Write {
  readonly route: Route
  readonly params: Params
  readonly account: string
  readonly key: string | undefined
}

const DAY_MS = 24 * 60 * 60 * 1000

/**
 * Makes a receiver. Nothing is opened or started: it works when it is asked.
 *
 * | what arrives | answer |
 * | --- | --- |
 * | unknown path, other method, unreadable or wrong parameters, unknown account | 404, 405, 400 (or 422), 401; the key was not looked at |
 * | no key, an unreadable or too long one | 400 |
 * | a key never seen, or seen longer than `keyRetentionMs` ago | claimed and executed |
 * | a key with other parameters, also while it is in progress | 422 `idempotency_key_reused` |
 * | a key in progress | 409 `idempotency_key_in_progress` |
 * | a finished key, same parameters | the stored status and body, refusals and saved failures too, with `Idempotent-Replayed: true` |
 * | a key left unfinished by a crash | resumed: a made effect is not made again |
 *
 * @example
 * const receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
 * const billing = createBillingClient({ baseUrl: 'https://api.test', scope: 'org_1/test', fetch: receiver.fetch })
 * await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-991' })
 * expect(receiver.ledger.effects).toHaveLength(1)
 * @see draft-ietf-httpapi-idempotency-key-header-07
 */
export function createReceiver(options: ReceiverOptions = {}): Receiver {
  const {
    clock = systemClock(),
    keyRetentionMs = DAY_MS,
    latencyMs = 0,
    keepsRejections = true,
    requiresKey = true,
    keyOf = keyHeaderOf,
    maxKeyLength = 255,
    invalidStatus = 400,
    errorFormat = 'error',
    busyRetryAfterSeconds,
  } = options
  const ledger = createLedger()
  const faults = createFaults(options.faults)
  const keys = new Map<string, KeyRecord>()
  const atWork = new Set<() => void>()
  let routes = routesOf(options)
  let idsGiven = 0
  /** Which process this is, so to say: each crash begins another. */
  let life = 1

  const handle = async (incoming: IncomingRequest): Promise<Delivery> => {
    const path = pathOf(incoming.url)
    const route = routeOf(routes, path)
    const account = accountOf(options.accounts, incoming)
    const key = keyOf(incoming)
    const entry = ledger.open({
      atMs: clock.nowMs(),
      method: incoming.method,
      path,
      ...(route && { kind: route.kind }),
      ...(account !== undefined && { account }),
      ...(key !== undefined && { key }),
      body: incoming.body,
      headers: withoutSecrets(incoming.headers),
    })
    const plan = faults.planFor(entry)
    const delivery = await serve(entry, plan, incoming)
    entry.sent = {
      how: delivery.how,
      ...('status' in delivery && delivery.how !== 'stalled' && { status: delivery.status, body: delivery.body }),
      ...(delivery.how === 'stalled' && delivery.after === 'headers' && { status: delivery.status }),
    }
    return delivery
  }

  const serve = async (entry: OpenRequest, plan: FaultPlan, incoming: IncomingRequest): Promise<Delivery> => {
    if (plan.front) {
      entry.did = plan.front.name === 'lose-request' ? 'lost' : 'turned-away'
      entry.faults.push(plan.front.name)
      return deliveryOf(plan.front, reply(200, ''))
    }
    const write = readWrite(entry, incoming)
    let answer: Reply | 'crashed'
    if ('status' in write) {
      entry.did = 'invalid'
      answer = write
    } else {
      answer = await behindKey(entry, write, plan.inside)
    }
    if (answer === 'crashed') {
      entry.did = 'crashed'
      return { how: 'reset' }
    }
    if (!plan.back) return { how: 'reply', ...answer }
    entry.faults.push(plan.back.name)
    return deliveryOf(plan.back, answer)
  }

  /** What stands before the key: its answers are given before the key is looked at, and are not kept under it. */
  const readWrite = (entry: OpenRequest, incoming: IncomingRequest): Write | Reply => {
    const { account, key } = entry
    const route = routeOf(routes, entry.path)
    if (account === undefined) return problem(401, 'unauthorized', 'These credentials are of no account.')
    if (!route) return problem(404, 'not_found', `There is no ${entry.path} here.`)
    const method = route.method ?? 'POST'
    if (entry.method !== method) return problem(405, 'method_not_allowed', `${method} only.`, { allow: method })
    if (key === undefined && requiresKey) {
      const given = incoming.headers.get('idempotency-key')
      return given === null
        ? problem(400, 'idempotency_key_missing', 'This write needs an Idempotency-Key.')
        : problem(400, 'idempotency_key_invalid', 'The Idempotency-Key cannot be read.')
    }
    if (key !== undefined && key.length > maxKeyLength) {
      return problem(400, 'idempotency_key_invalid', `The Idempotency-Key is longer than ${maxKeyLength} characters.`)
    }
    const params = readParams(entry.body, incoming.headers.get('content-type') ?? '')
    if (!params) return problem(400, 'body_unreadable', 'The body is not a JSON object.')
    const wrong = route.check?.(params)
    if (wrong !== undefined) return problem(invalidStatus, 'parameter_invalid', wrong)
    return { route, params, account, key }
  }

  /** The receiver's table. Between looking at the record and claiming it nothing is awaited: that is the unique constraint. */
  const behindKey = async (
    entry: OpenRequest,
    write: Write,
    inside: readonly ConcreteFault[],
  ): Promise<Reply | 'crashed'> => {
    const nowMs = clock.nowMs()
    const slot = JSON.stringify([write.account, write.key])
    const parameters = JSON.stringify([entry.method, entry.path, entry.body])
    const fault = faultsIn(inside)
    const forgotten = fault('forget-keys')
    if (forgotten) {
      entry.faults.push(forgotten.name)
      if (forgotten.all) keys.clear()
      else keys.delete(slot)
    }

    let record = write.key === undefined ? undefined : keys.get(slot)
    const working = record?.held === true || isSlow(record, nowMs)
    if (record && !working && nowMs - record.firstSeenAtMs >= keyRetentionMs) record = undefined
    if (record && record.parameters !== parameters) {
      entry.did = 'mismatch'
      return problem(422, 'idempotency_key_reused', 'This key was used with other parameters.')
    }
    if (record && working) {
      entry.did = 'busy'
      if (record.slow) record.slow.attemptsLeft -= 1
      return busy(record.slow?.retryAfterSeconds)
    }
    if (record?.recoveryPoint === 'finished' && record.reply) {
      entry.did = 'replayed'
      return { ...record.reply, headers: { ...record.reply.headers, ...dated(), 'idempotent-replayed': 'true' } }
    }

    record ??= { key: write.key, account: write.account, parameters, firstSeenAtMs: nowMs, recoveryPoint: 'started' }
    if (write.key !== undefined) keys.set(slot, record)
    return work(entry, write, record, slot, inside)
  }

  /** From the recovery point to the end. Whoever is here holds the key; a crash takes it away at any `await`. */
  const work = async (
    entry: OpenRequest,
    write: Write,
    record: KeyRecord,
    slot: string,
    inside: readonly ConcreteFault[],
  ): Promise<Reply | 'crashed'> => {
    const fault = faultsIn(inside)
    const bornIn = life
    record.held = true
    const crashes = (point: RecoveryPoint): boolean => {
      const crash = fault('crash')
      if (crash?.at !== point) return false
      entry.faults.push(crash.name)
      crashNow()
      return true
    }

    if (crashes('started')) return 'crashed'
    const slow = fault('delay')
    if (slow) entry.faults.push(slow.name)
    const workMs = slow?.ms ?? latencyMs
    if (workMs > 0) await sleepOrCrash(workMs)
    if (life !== bornIn) return 'crashed'

    entry.did = 'resumed'
    if (record.recoveryPoint === 'started') {
      try {
        entry.did = execute(entry, write, record, inside)
      } catch (error) {
        // A bug in a route of the user's own: said where a person will look, and not kept.
        keys.delete(slot)
        entry.did = 'failed'
        return problem(500, 'route_failed', String(error))
      }
      if (entry.did === 'refused' && !keepsRejections) keys.delete(slot)
    }
    if (crashes('effect-made')) return 'crashed'

    const conflict = fault('slow-conflict')
    delete record.held
    if (conflict && write.key !== undefined) {
      entry.faults.push(conflict.name)
      const { attempts = Infinity, ms = Infinity, retryAfterSeconds } = conflict
      record.slow = { attemptsLeft: attempts - 1, untilAtMs: clock.nowMs() + ms, retryAfterSeconds }
      return busy(retryAfterSeconds)
    }
    record.recoveryPoint = 'finished'
    if (crashes('finished')) return 'crashed'
    // Set by `execute`, now or before the crash that this resumes from.
    return record.reply as Reply
  }

  /** The effect and its reply, in one step, as one transaction would make them. */
  const execute = (
    entry: OpenRequest,
    write: Write,
    record: KeyRecord,
    inside: readonly ConcreteFault[],
  ): RequestFate => {
    const fault = faultsIn(inside)
    const { route, params, account, key } = write
    const failure = fault('saved-failure')
    record.recoveryPoint = 'effect-made'
    if (failure) {
      entry.faults.push(failure.name)
      record.reply = problem(failure.status, 'internal_error', 'Something went wrong here.')
      if (!failure.afterEffect) return 'failed'
    }
    const id = `${route.idPrefix}${String(++idsGiven).padStart(6, '0')}`
    const nowMs = clock.nowMs()
    const result = (route.respond ?? echo)(params, { id, account, nowMs })
    if ('refusal' in result) {
      const { status, code, message } = result.refusal
      record.reply ??= problem(status, code, message)
      return 'refused'
    }
    const receipt = { id, ...result.receipt }
    ledger.made({
      id,
      kind: route.kind,
      account,
      ...(key !== undefined && { key }),
      params,
      receipt,
      atMs: nowMs,
      request: entry.number,
    })
    const wrong = fault('wrong-receipt')
    if (wrong) entry.faults.push(wrong.name)
    record.reply ??= reply(result.status ?? 200, JSON.stringify({ ...receipt, ...wrong?.fields }), {
      'content-type': 'application/json',
    })
    return failure ? 'failed' : 'executed'
  }

  const sleepOrCrash = async (ms: number): Promise<void> => {
    let wake = (): void => {}
    const crashed = new Promise<void>((resolve) => (wake = resolve))
    atWork.add(wake)
    await Promise.race([clock.sleep(ms), crashed])
    atWork.delete(wake)
  }

  const crashNow = (): void => {
    life += 1
    for (const record of keys.values()) {
      delete record.held
      delete record.slow
    }
    for (const wake of atWork) wake()
  }

  /** Whether the work is done and still reported as going on; over as soon as one of its two limits is reached. */
  const isSlow = (record: KeyRecord | undefined, nowMs: number): boolean => {
    if (!record?.slow) return false
    if (record.slow.attemptsLeft > 0 && nowMs < record.slow.untilAtMs) return true
    delete record.slow
    record.recoveryPoint = 'finished'
    return false
  }

  const dated = (): Record<string, string> => ({ date: new Date(clock.nowMs()).toUTCString() })

  const reply = (status: number, body: string, headers: Readonly<Record<string, string>> = {}): Reply => ({
    status,
    headers: { ...dated(), ...headers },
    body,
  })

  const problem = (status: number, code: string, message: string, headers: Record<string, string> = {}): Reply => {
    const type = TYPES_OF_ERROR[status] ?? (status >= 500 ? 'api_error' : 'invalid_request_error')
    return errorFormat === 'error'
      ? reply(status, JSON.stringify({ error: { type, code, message } }), {
          'content-type': 'application/json',
          ...headers,
        })
      : reply(
          status,
          JSON.stringify({ type: `https://billonce.example/problems/${code}`, title: message, status, code }),
          {
            'content-type': 'application/problem+json',
            ...headers,
          },
        )
  }

  const busy = (retryAfterSeconds: number | undefined = busyRetryAfterSeconds): Reply =>
    problem(
      409,
      'idempotency_key_in_progress',
      'A request with this key is in progress.',
      retryAfterSeconds === undefined ? {} : { 'retry-after': String(retryAfterSeconds) },
    )

  return {
    fetch: async (input, init) => fetchFrom(handle, input, init),
    handle,
    ledger,
    faults,
    clock,
    paths: Object.keys(routes),
    keyState: (key, account) => {
      const found = [...keys.values()].filter(
        (record) => record.key === key && (account === undefined || record.account === account),
      )
      const record = found[0]
      if (!record) return undefined
      if (found.length > 1) throw new RangeError('Several accounts use this key; say which is meant')
      return {
        firstSeenAtMs: record.firstSeenAtMs,
        inProgress: record.held === true || isSlow(record, clock.nowMs()),
        recoveryPoint: record.recoveryPoint,
        ...(record.reply && { reply: record.reply }),
      }
    },
    crash: crashNow,
    forgetKeys: (key) => {
      for (const [slot, record] of keys) if (key === undefined || key === record.key) keys.delete(slot)
    },
    reset: () => {
      crashNow()
      keys.clear()
      ledger.clear()
      faults.clear()
      routes = routesOf(options)
      idsGiven = 0
    },
  }
}

const TYPES_OF_ERROR: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  402: 'card_error',
  409: 'idempotency_error',
  422: 'idempotency_error',
}

/** What a fault in front or on the way back makes of a reply. */
function deliveryOf(fault: ConcreteFault, answer: Reply): Delivery {
  switch (fault.name) {
    case 'lose-request':
    case 'lose-reply':
      return { how: 'closed' }
    case 'reset-before':
    case 'reset-after':
      return { how: 'reset' }
    case 'cut-body': {
      const { framing } = fault
      const keepBytes = fault.keepBytes ?? (framing === 'length' ? 10 : new TextEncoder().encode(answer.body).length)
      return { how: 'cut', ...answer, framing, keepBytes }
    }
    case 'stall':
      return { how: 'stalled', ...answer, after: fault.after }
    case 'status': {
      const { date } = answer.headers
      const headers = { ...(date !== undefined && { date }), ...fault.headers }
      return { how: 'reply', status: fault.status, headers, body: fault.body }
    }
    default:
      return { how: 'reply', ...answer }
  }
}

/** Finds a fault of a plan by its name, with that name's own fields. */
function faultsIn(
  inside: readonly ConcreteFault[],
): <Name extends ConcreteFault['name']>(name: Name) => Extract<ConcreteFault, { name: Name }> | undefined {
  return <Name extends ConcreteFault['name']>(name: Name) =>
    inside.find((fault): fault is Extract<ConcreteFault, { name: Name }> => fault.name === name)
}

/**
 * In Node the signal of a `Request` goes dead when the request is collected, even while somebody listens to it (undici
 * follows the caller's signal through a weak reference). So the request lives as long as its signal.
 */
const requestsBySignal = new WeakMap<AbortSignal, Request>()

async function fetchFrom(
  handle: (request: IncomingRequest) => Promise<Delivery>,
  input: Request | URL | string,
  init?: RequestInit,
): Promise<Response> {
  const request = new Request(input, init)
  const signal = init?.signal ?? (input instanceof Request ? input.signal : undefined)
  if (signal && input instanceof Request) requestsBySignal.set(signal, input)
  signal?.throwIfAborted()
  const body = await request.text()
  signal?.throwIfAborted()
  const { method, url, headers, redirect } = request
  const served = handle({ method, url, headers, body }).then((delivery) => responseOf(delivery, signal))
  const response = await unlessAborted(served, signal)

  const location = response.headers.get('location')
  if (![301, 302, 303, 307, 308].includes(response.status) || redirect === 'manual') return response
  if (redirect === 'error') throw new TypeError('fetch failed')
  if (location === null) return response
  // As the Fetch standard has it: 307 and 308 send the same again, the others turn a POST into a GET.
  const again = response.status > 303 || (response.status !== 303 && method !== 'POST')
  return fetchFrom(handle, new URL(location, url), {
    headers,
    ...(again ? { method, body } : {}),
    ...(signal && { signal }),
  })
}

function routesOf(options: ReceiverOptions): Readonly<Record<string, Route>> {
  const { paymentMethods, credits = 1_000_000 } = options
  const standard = standardRoutes({ paymentMethods: { ...TEST_PAYMENT_METHODS, ...paymentMethods }, credits })
  return { ...standard, ...options.routes }
}

/** The route whose path the request's path is or ends in, the longest first; a base path before it does not matter. */
function routeOf(routes: Readonly<Record<string, Route>>, path: string): Route | undefined {
  const fitting = Object.keys(routes).filter((known) => path.endsWith(`/${known}`))
  fitting.sort((a, b) => b.length - a.length)
  return fitting[0] === undefined ? undefined : routes[fitting[0]]
}

function pathOf(url: string): string {
  return new URL(url, 'http://receiver').pathname
}

/**
 * The key of the header, bare or as a structured-field string (RFC 8941, 3.3.3), with parameters after it ignored.
 * `"abc"` and `abc` are the same key.
 */
function keyHeaderOf({ headers }: IncomingRequest): string | undefined {
  const value = headers.get('idempotency-key')?.trim()
  if (value === undefined || value === '') return undefined
  if (!value.startsWith('"')) return value
  const quoted = /^"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:\s*;.*)?$/.exec(value)?.[1]
  return quoted === undefined || quoted === '' ? undefined : quoted.replace(/\\(["\\])/g, '$1')
}

function accountOf(accounts: ReceiverOptions['accounts'], request: IncomingRequest): string | undefined {
  if (typeof accounts === 'function') return accounts(request)
  const token = request.headers.get('authorization')?.replace(/^bearer\s+/i, '')
  if (accounts) return token !== undefined && Object.hasOwn(accounts, token) ? accounts[token] : undefined
  return token === undefined ? 'anonymous' : `account-${digestOf(token)}`
}

/** Two FNV-1a side by side: enough to tell a test's accounts apart without a token in the ledger. */
function digestOf(text: string): string {
  const hashes = [0x811c9dc5, 0x01000193].map((start) => {
    let hash = start
    for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193)
    return (hash >>> 0).toString(16).padStart(8, '0')
  })
  return hashes.join('')
}

const MAY_HOLD_A_SECRET = /authori[sz]ation|cookie|secret|token|api-?key|passw|credential|signature/i

function withoutSecrets(headers: Headers): Record<string, string> {
  return Object.fromEntries(
    [...headers].map(([name, value]) => [name, MAY_HOLD_A_SECRET.test(name) ? '[withheld]' : value]),
  )
}
