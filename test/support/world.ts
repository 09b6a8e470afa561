/**
 * What most tests start from: a receiver that counts effects, a client in front of it, and time that passes only when
 * everybody waits.
 */
import { createBillingClient, forgetfulJournal } from 'billonce'
import type {
  BillingClient,
  BillingClientOptions,
  BillingEvent,
  EntriesFilter,
  EntryView,
  JournalStore,
} from 'billonce'
import { createReceiver } from 'billonce/testing'
import type { Receiver, ReceiverOptions } from 'billonce/testing'
import { afterEach, beforeEach, vi } from 'vitest'
import { seeded } from './seeded.ts'

export interface World {
  readonly receiver: Receiver
  readonly billing: BillingClient
  readonly journal: JournalStore
  readonly events: BillingEvent[]
  /** Another client on the same journal and receiver: another process, tab or login. */
  another: (options?: Partial<BillingClientOptions>) => BillingClient
}

export const BASE_URL = 'https://billing.test/'
export const SCOPE = 'org_42/test'
export const coffee = { amount: 450, currency: 'eur', customer: 'cus_1', paymentMethod: 'pm_card' } as const

/**
 * Fake timers for every test of the file; only those that a page or process would really wait for. And the same chance
 * in every run, or a jitter of next to nothing fails a test once in a hundred: `BILLONCE_TEST_CHANCE` takes another seed.
 */
export function virtualTime(): void {
  const { random } = Math
  beforeEach(() => {
    Math.random = seeded(Number(process.env.BILLONCE_TEST_CHANCE ?? 1))
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'Date', 'performance'] })
  })
  afterEach(() => {
    vi.useRealTimers()
    Math.random = random
  })
}

export function setUp(
  options: { receiver?: ReceiverOptions; client?: Partial<BillingClientOptions>; journal?: JournalStore } = {},
): World {
  const receiver = createReceiver(options.receiver)
  const journal = options.journal ?? forgetfulJournal()
  const clientOptions: BillingClientOptions = {
    baseUrl: BASE_URL,
    scope: SCOPE,
    journal,
    fetch: receiver.fetch,
    headers: { authorization: 'Bearer sk_test' },
    ...options.client,
  }
  const billing = createBillingClient(clientOptions)
  const events: BillingEvent[] = []
  billing.subscribe((event) => events.push(event))
  return {
    receiver,
    billing,
    journal,
    events,
    another: (more = {}) => createBillingClient({ ...clientOptions, ...more }),
  }
}

/** All that the journal holds for a client. */
export async function viewsOf(billing: BillingClient, filter?: EntriesFilter): Promise<EntryView[]> {
  const views: EntryView[] = []
  for await (const view of billing.entries(filter)) views.push(view)
  return views
}

/** Lets everything happen that needs no time, then lets time pass to the next timer, until the promise settles. */
export async function settled<T>(promise: Promise<T>): Promise<T> {
  let isSettled = false
  const watched = promise.finally(() => {
    isSettled = true
  })
  watched.catch(() => {})
  for (let round = 0; round < 100_000; round += 1) {
    await quiet()
    if (isSettled) return await watched
    await vi.advanceTimersToNextTimerAsync()
  }
  throw new Error('The promise did not settle, however much time passed.')
}

/** Lets everything happen that needs no time. */
export async function quiet(): Promise<void> {
  for (let turn = 0; turn < 12; turn += 1) await new Promise((resolve) => setImmediate(resolve))
}

/** Lets this much time pass, with everything that happens in it. */
export async function pass(ms: number): Promise<void> {
  await quiet()
  await vi.advanceTimersByTimeAsync(ms)
  await quiet()
}
