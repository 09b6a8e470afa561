/**
 * The office that bills the visits: the receiver of `billonce/testing` on a real socket, with troubles that the developer's
 * sheet switches on. Its ledger says what was billed.
 */
import { createReceiver, cutBody, delay, status } from 'billonce/testing'
import type { Fault, LedgerRequest, Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { accounts } from './accounts.ts'
import type { BenchOrder, BenchView, Trouble } from './bench-api.ts'

export interface Office {
  readonly receiver: Receiver
  /** Where it listens, without a slash at the end. */
  readonly url: string
  /** Whether connections get through to it. */
  readonly isReachable: boolean
  view(): BenchView
  order(order: BenchOrder): void
  close(): Promise<void>
}

const SLOW_MS = 5_000

/** Nothing but headers come, and not a byte of the body. If nothing came at all, browsers would send the request again by themselves. */
const FAULTS: Readonly<Record<Exclude<Trouble, 'unreachable'>, () => Fault>> = {
  'lose-reply': () => cutBody({ keepBytes: 0, times: 1 }),
  slow: () => delay(SLOW_MS),
  refuse: () =>
    status(400, {
      times: 1,
      body: { error: { code: 'contract_ended', message: 'The contract with this customer has ended.' } },
    }),
}

/** Who may send, and as whom: the receiver refuses every other token. */
export const officeAccounts: Readonly<Record<string, string>> = Object.fromEntries(
  accounts.map(({ token, id }) => [token, id]),
)

export async function startOffice(): Promise<Office> {
  const receiver = createReceiver({ accounts: officeAccounts })
  const server = await startServer(receiver)
  const armed = new Map<Trouble, { readonly fault: Fault | undefined; readonly afterRequest: number }>()

  const disarm = (trouble: Trouble): void => {
    const fault = armed.get(trouble)?.fault
    if (fault) receiver.faults.remove(fault)
    armed.delete(trouble)
  }
  /** What was to hit one request and has is over. */
  const forgetSpent = (): void => {
    for (const [trouble, { fault, afterRequest }] of armed) {
      const hasHit = receiver.ledger.requests
        .slice(afterRequest)
        .some(({ faults }) => fault && faults.includes(fault.name))
      if (fault?.target.times !== undefined && hasHit) disarm(trouble)
    }
  }
  return {
    receiver,
    url: server.url,
    get isReachable() {
      return !armed.has('unreachable')
    },
    view() {
      forgetSpent()
      const { requests, effects } = receiver.ledger
      return {
        on: [...armed.keys()],
        requests: requests.map(seen),
        effects: effects.length,
        minutes: effects.reduce((sum, { params }) => sum + Number(params['quantity']), 0),
      }
    },
    order({ trouble, on }) {
      disarm(trouble)
      if (!on) return
      const fault = trouble === 'unreachable' ? undefined : FAULTS[trouble]()
      if (fault) receiver.faults.add(fault)
      armed.set(trouble, { fault, afterRequest: receiver.ledger.requests.length })
    },
    close: () => server.close(),
  }
}

const LOST = {
  closed: 'nothing came back',
  reset: 'nothing came back',
  cut: 'the reply was lost',
  stalled: 'silence',
} as const

function seen({ number, atMs, key, account, did, sent }: LedgerRequest): BenchView['requests'][number] {
  const answer = sent === undefined ? 'at work' : sent.how === 'reply' ? String(sent.status) : LOST[sent.how]
  return { number, atMs, key: key ?? '', account: account ?? '', did, answer }
}
