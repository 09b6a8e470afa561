/**
 * Journals and clients that fail where a test wants them to: a call of the journal that throws or takes its time, and a
 * process that is gone from one step to the next.
 */
import { createBillingClient, JournalUnavailableError } from 'billonce'
import type { BillingClient, BillingClientOptions, JournalStore } from 'billonce'
import type { Receiver } from 'billonce/testing'
import { expect } from 'vitest'
import { BASE_URL, SCOPE } from '../support/world.ts'

export type Method = Exclude<keyof JournalStore, 'durable' | 'owner'>

/** One call of a journal, as `around` sees it. */
export interface StoreCall {
  readonly method: Method
  readonly args: readonly unknown[]
  /** Over all calls of this journal, from 1. */
  readonly number: number
}

/** The same journal with something around each of its calls; `run` does what was asked. */
export function journalWith(
  journal: JournalStore,
  around: (call: StoreCall, run: () => Promise<unknown>) => Promise<unknown>,
): JournalStore {
  let number = 0
  return new Proxy(journal, {
    get(target, name) {
      const value: unknown = Reflect.get(target, name)
      if (typeof value !== 'function') return value
      return (...args: unknown[]) => {
        number += 1
        return around({ method: name as Method, args, number }, async () => await value.apply(target, args))
      }
    },
  })
}

export const broken = (): JournalUnavailableError =>
  new JournalUnavailableError('The disk is gone.', { fault: 'unavailable' })

/** A journal whose calls take `ms` each, before and after they take effect. */
export function slowJournal(journal: JournalStore, ms: number): JournalStore {
  const wait = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
  return journalWith(journal, async (_call, run) => {
    await wait()
    const result = await run()
    await wait()
    return result
  })
}

/** Where a process dies: at a call of its journal, before or after that took effect, or at its fetch. */
export interface Death {
  readonly at: Method | 'fetch'
  /** Which call of that method, from 1. */
  readonly call: number
  /** `before`: nothing of the step happens. `after`: it happens, and the process never hears of it. */
  readonly side: 'before' | 'after'
}

export interface Process {
  readonly billing: BillingClient
  /** From now on nothing that this client does has any effect, and nothing answers it. */
  readonly kill: () => void
  readonly isDead: () => boolean
}

/** A client in a process of its own, which may die: then it stops between two steps, as if it had been killed. */
export function aProcess(
  of: { receiver: Receiver; journal: JournalStore },
  options: Partial<BillingClientOptions> = {},
  death?: Death,
): Process {
  let isDead = false
  const counts: Record<string, number> = {}
  const never = (): Promise<never> => new Promise<never>(() => {})
  const step = async <T>(at: Method | 'fetch', run: () => Promise<T>): Promise<T> => {
    if (isDead) return await never()
    const call = (counts[at] = (counts[at] ?? 0) + 1)
    const isLast = death?.at === at && death.call === call
    if (isLast && death.side === 'before') {
      isDead = true
      return await never()
    }
    const result = run()
    if (isLast) isDead = true
    // A call that was under way when the process died takes effect, and nobody is told.
    const value = await result
    return isDead ? await never() : value
  }
  const journal = journalWith(of.journal, (call, run) => step(call.method, run))
  const billing = createBillingClient({
    baseUrl: BASE_URL,
    scope: SCOPE,
    headers: { authorization: 'Bearer sk_test' },
    journal,
    fetch: (input, init) => step('fetch', () => of.receiver.fetch(input, init)),
    ...options,
  })
  return {
    billing,
    kill: () => {
      isDead = true
    },
    isDead: () => isDead,
  }
}

/** Longer than any claim of a dead client lasts under the default options. */
export const CLAIM_MS = 150_000

/** What holds always: at most one effect for one name, and one key with one body. */
export function expectOneName(receiver: Receiver): void {
  const { requests } = receiver.ledger
  expect(new Set(requests.map((request) => request.key)).size, 'one key').toBe(1)
  expect(new Set(requests.map((request) => request.body)).size, 'one body').toBe(1)
  expect(new Set(requests.map((request) => request.path)).size, 'one path').toBe(1)
  expect(new Set(requests.map((request) => request.headers['content-type'])).size, 'one type').toBe(1)
  expect(requests.every((request) => request.body.length > 0)).toBe(true)
}
