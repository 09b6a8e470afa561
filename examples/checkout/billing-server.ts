/**
 * The billing server that the page charges at: the receiver of `billonce/testing` on a real socket, with test cards, a bank
 * that is asked, a look-up for what became of a charge, and faults that the developer's panel switches on.
 */
import { createReceiver, cutBody, delay, savedFailure, slowConflict, status } from 'billonce/testing'
import type {
  Fault,
  FaultRequest,
  FaultTarget,
  LedgerEffect,
  LedgerRequest,
  Params,
  Receiver,
  Route,
} from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { RunningServer } from 'billonce/testing/server'
import type { FaultName, MadeCharge, PanelRequest, SeenRequest, ServerView } from './panel-api.ts'

export interface BillingServer {
  /** The same as long as it lives, also while nothing listens there. */
  readonly url: string
  /** Its ledger says how often somebody was charged. */
  readonly receiver: Receiver
  viewOf(operationId: string): ServerView
  ask(request: PanelRequest): Promise<void>
  /** Calls back after everything that may change a view. */
  onChange(listener: () => void): () => void
  close(): Promise<void>
}

export interface BillingServerOptions {
  /** Where the bank asks the customer. */
  readonly bankUrl: string
  /** Default: one that is free. */
  readonly port?: number
  /** How long a charge takes, in milliseconds. Default 600, as a real one would at best. */
  readonly latencyMs?: number
}

const SLOW_MS = 4_000

export async function startBillingServer(options: BillingServerOptions): Promise<BillingServer> {
  const listeners = new Set<() => void>()
  /** With the receiver's fault; a decline has none, since the charge route itself makes it. */
  const armed = new Map<FaultName, Fault | undefined>()
  /** What the bank said of charges that waited for it. */
  const concluded = new Map<string, boolean>()
  const receiver = createReceiver({
    latencyMs: options.latencyMs ?? 600,
    routes: { 'v1/charges': chargeRoute(options.bankUrl, () => armed.delete('decline')) },
    faults: [
      loseReply({ when: isPaidWith('pm_lost_reply'), timesPerKey: 1 }),
      delay(SLOW_MS, { when: isPaidWith('pm_slow') }),
      savedFailure(500, { when: isPaidWith('pm_saved_error') }),
    ],
  })

  const changed = (): void => {
    for (const listener of listeners) listener()
  }
  const disarm = (name: FaultName): void => {
    const fault = armed.get(name)
    if (fault) receiver.faults.remove(fault)
    armed.delete(name)
  }
  /** A fault that has hit is spent. */
  const spend = (hit: readonly string[]): void => {
    for (const name of hit) {
      const spent = [...armed].find(([, fault]) => fault?.name === name)
      if (spent) disarm(spent[0])
    }
  }
  const standingOf = ({ id, receipt }: LedgerEffect): MadeCharge['standing'] => {
    const word = concluded.get(id)
    if (word !== undefined) return word ? 'paid' : 'failed'
    if (receipt['status'] === 'requires_action') return 'to confirm'
    return receipt['status'] === 'processing' ? 'processing' : 'paid'
  }

  const handle: Receiver['handle'] = async (request) => {
    const looked = /\/v1\/operations\/([^/?]+)$/.exec(request.url)?.[1]
    if (looked !== undefined) return { how: 'reply', ...lookedUp(decodeURIComponent(looked)) }
    const before = receiver.ledger.requests.length
    const delivery = receiver.handle(request)
    changed()
    const delivered = await delivery
    spend(receiver.ledger.requests[before]?.faults ?? [])
    changed()
    return delivered
  }
  /** What became of a key. It says no more than a real server knows: the charge with its standing, a failure, or nothing. */
  const lookedUp = (key: string): { status: number; headers: Record<string, string>; body: string } => {
    const [effect] = receiver.ledger.effectsOf({ key })
    const failed = receiver.keyState(key)?.reply
    const found = effect
      ? { ...effect.receipt, status: STATUS_OF[standingOf(effect)] }
      : failed && { id: `op_${key}`, status: 'failed' }
    return {
      status: found ? 200 : 404,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(found ?? { error: { code: 'not_found' } }),
    }
  }

  const listen = (port: number): Promise<RunningServer> => startServer({ handle }, { port })
  let server: RunningServer | undefined = await listen(options.port ?? 0)
  const { url, port } = server
  /** One change at a time: a port can be taken again only when it has been left. */
  let switching = Promise.resolve()

  return {
    url,
    receiver,
    viewOf(operationId) {
      const requests = receiver.ledger.requestsOf({ name: operationId })
      return {
        isReachable: server !== undefined,
        armed: [...armed.keys()],
        requests: requests.map(seen),
        charges: receiver.ledger.effectsOf({ name: operationId }).map((effect) => ({
          id: effect.id,
          key: effect.key ?? '',
          amount: Number(effect.params['amount']),
          currency: String(effect.params['currency']),
          standing: standingOf(effect),
        })),
      }
    },
    async ask(request) {
      switch (request.ask) {
        case 'arm': {
          disarm(request.fault)
          if (request.on) {
            const fault = request.fault === 'decline' ? undefined : FAULTS[request.fault]()
            armed.set(request.fault, fault)
            if (fault) receiver.faults.add(fault)
          }
          break
        }
        case 'reach':
          switching = switching.then(async () => {
            if (request.on) server ??= await listen(port)
            else await server?.close()
            if (!request.on) server = undefined
          })
          await switching
          break
        case 'conclude':
          // The bank's first word holds: a second click must not turn it.
          if (!concluded.has(request.charge)) concluded.set(request.charge, request.isPaid)
          break
      }
      changed()
    },
    onChange(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    async close() {
      await switching
      await server?.close()
    },
  }
}

const STATUS_OF = {
  paid: 'succeeded',
  'to confirm': 'requires_action',
  processing: 'processing',
  failed: 'failed',
} as const satisfies Record<MadeCharge['standing'], string>

/**
 * Headers come, and not a byte of the body. When nothing comes at all, Chromium and Firefox send the request again by
 * themselves, and the panel would show two requests of one attempt.
 */
function loseReply(target: FaultTarget): Fault {
  return cutBody({ ...target, keepBytes: 0 })
}

/** Each hits one charge. */
const FAULTS: Readonly<Record<Exclude<FaultName, 'decline'>, () => Fault>> = {
  'lose-reply': () => loseReply({ kind: 'charge', times: 1 }),
  error: () => status(500, { kind: 'charge', times: 1 }),
  busy: () => slowConflict({ kind: 'charge', times: 1, attempts: 2, retryAfterSeconds: 1 }),
  'rate-limit': () => status(429, { kind: 'charge', times: 1, headers: { 'retry-after': '20' } }),
  slow: () => delay(SLOW_MS, { kind: 'charge', times: 1 }),
  'saved-error': () => savedFailure(500, { kind: 'charge', times: 1 }),
}

/** The receiver's own charge route knows the same test cards; this one also knows where our bank is. */
function chargeRoute(bankUrl: string, isDeclinedOnce: () => boolean): Route {
  const declined = (code: string, message: string) => ({ refusal: { status: 402, code, message } })
  return {
    kind: 'charge',
    idPrefix: 'ch_',
    check: ({ amount, currency }) =>
      !Number.isSafeInteger(amount) || Number(amount) < 1 || typeof currency !== 'string'
        ? 'amount and currency are needed'
        : undefined,
    respond: (params, { id, nowMs }) => {
      const card = params['paymentMethod']
      if (isDeclinedOnce() || card === 'pm_declined') return declined('card_declined', 'The card was declined.')
      const charge: Params = { ...params, createdAt: new Date(nowMs).toISOString() }
      if (card === 'pm_processing') return { receipt: { ...charge, status: 'processing' } }
      if (card !== 'pm_requires_action') return { receipt: { ...charge, status: 'succeeded' } }
      const about = new URLSearchParams({ payment: id })
      for (const name of ['amount', 'currency']) about.set(name, String(params[name]))
      const nextAction = { type: 'redirect', url: `${bankUrl}?${about.toString()}` }
      return { receipt: { ...charge, status: 'requires_action', nextAction } }
    },
  }
}

function isPaidWith(token: string): (request: FaultRequest) => boolean {
  return ({ body }) => body.includes(`"paymentMethod":"${token}"`)
}

const LOST = { closed: 'lost', reset: 'reset', cut: 'lost', stalled: 'silence' } as const

function seen({ atMs, key, did, sent }: LedgerRequest, index: number): SeenRequest {
  const answer = sent === undefined ? '…' : sent.how === 'reply' ? String(sent.status) : LOST[sent.how]
  return { number: index + 1, atMs, key: key ?? '', did, answer }
}
