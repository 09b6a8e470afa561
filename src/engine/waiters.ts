/**
 * Who waits for a delivery and what they allow it. Whoever leaves does not stop it for the others; when nobody is left that
 * wants another attempt, none is made.
 */
import { DONE } from './runtime.ts'
import type { Runtime } from './runtime.ts'

/** What somebody who waits for a delivery allows it. */
export interface Budget {
  readonly attempts: number
  /** Monotonic time. */
  readonly deadlineAtMs: number
  /** `false`: somebody else's claim, a wait and being offline end it at once; background delivery comes back later. */
  readonly isPatient: boolean
}

interface Waiter extends Budget {
  readonly signal: AbortSignal | undefined
  /** The delivery's count of attempts up to which this one allows more. */
  readonly attemptsUntil: number
}

export class Waiters {
  /** How many have ever come. */
  arrivals = 0
  readonly #waiters = new Set<Waiter>()
  readonly #runtime: Runtime
  readonly #closing: AbortSignal
  /** Made when somebody waits for it, which few calls do. */
  #nudge: AbortController | undefined

  constructor(runtime: Runtime, closing: AbortSignal) {
    this.#runtime = runtime
    this.#closing = closing
  }

  /** Fires when somebody comes or goes, so that a wait can be looked at again. Another one after each firing. */
  get nudge(): AbortSignal {
    this.#nudge ??= new AbortController()
    return this.#nudge.signal
  }

  nudgeAll = (): void => {
    const nudge = this.#nudge
    this.#nudge = undefined
    nudge?.abort(DONE)
  }

  /** Whether anybody is there. */
  get isWanted(): boolean {
    return this.#has(() => true)
  }

  get isAnyPatient(): boolean {
    return this.#has((waiter) => waiter.isPatient)
  }

  /** Whether anybody allows another attempt after a wait. */
  allows(attemptsMade: number, waitMs: number): boolean {
    const nowMs = this.#runtime.monotonicMs()
    return this.#has(
      (waiter) =>
        attemptsMade < waiter.attemptsUntil &&
        (waitMs <= 0 || waiter.isPatient) &&
        nowMs + Math.max(0, waitMs) < waiter.deadlineAtMs,
    )
  }

  /**
   * Waits until the delivery is done, the deadline is over or the signal fires, whichever comes first.
   *
   * @throws what the delivery threw
   */
  async wait(
    done: Promise<void>,
    budget: Budget,
    attemptsMade: number,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const waiter: Waiter = { ...budget, signal, attemptsUntil: attemptsMade + budget.attempts }
    this.arrivals += 1
    this.#waiters.add(waiter)
    this.nudgeAll()
    try {
      await firstOf(this.#runtime, done, budget.deadlineAtMs, signal)
    } finally {
      this.#waiters.delete(waiter)
      this.nudgeAll()
    }
  }

  /** One whose signal has fired or whose time is over is gone, also before it has noticed. */
  #has(isWanted: (waiter: Waiter) => boolean): boolean {
    if (this.#closing.aborted) return false
    const nowMs = this.#runtime.monotonicMs()
    for (const waiter of this.#waiters) {
      if (!waiter.signal?.aborted && nowMs < waiter.deadlineAtMs && isWanted(waiter)) return true
    }
    return false
  }
}

/**
 * Waits for work until a deadline (monotonic) or until a signal fires. Work that is left goes on by itself.
 *
 * @returns what the work gave, or `undefined` if something else came first
 */
export function firstOf<T>(
  runtime: Runtime,
  work: Promise<T>,
  deadlineAtMs: number,
  signal: AbortSignal | undefined,
): Promise<T | undefined> {
  const leftMs = deadlineAtMs - runtime.monotonicMs()
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      stop()
      resolve(undefined)
    }
    const stopTimer = leftMs > 0 ? runtime.timer(leftMs, leave) : undefined
    const stop = (): void => {
      stopTimer?.()
      signal?.removeEventListener('abort', leave)
    }
    signal?.addEventListener('abort', leave)
    work.then(
      (value) => {
        stop()
        resolve(value)
      },
      (error: unknown) => {
        stop()
        reject(error)
      },
    )
    // Too late already; but work that is done counts.
    if (leftMs <= 0 || signal?.aborted) void Promise.resolve().then(leave)
  })
}
