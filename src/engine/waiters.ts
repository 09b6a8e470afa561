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
  #nudge = new AbortController()

  constructor(runtime: Runtime, closing: AbortSignal) {
    this.#runtime = runtime
    this.#closing = closing
  }

  /** Fires when somebody comes or goes, so that a wait can be looked at again. Another one after each firing. */
  get nudge(): AbortSignal {
    return this.#nudge.signal
  }

  nudgeAll = (): void => {
    this.#nudge.abort(DONE)
    this.#nudge = new AbortController()
  }

  /** Whether anybody is there. */
  get isWanted(): boolean {
    return this.#those().length > 0
  }

  get isAnyPatient(): boolean {
    return this.#those().some((waiter) => waiter.isPatient)
  }

  /** Whether anybody allows another attempt after a wait. */
  allows(attemptsMade: number, waitMs: number): boolean {
    const nowMs = this.#runtime.monotonicMs()
    return this.#those().some(
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
  #those(): readonly Waiter[] {
    if (this.#closing.aborted) return []
    const nowMs = this.#runtime.monotonicMs()
    return [...this.#waiters].filter((waiter) => !waiter.signal?.aborted && nowMs < waiter.deadlineAtMs)
  }
}

/**
 * Waits for work until a deadline (monotonic) or until a signal fires. Work that is left goes on by itself.
 *
 * @returns what the work gave, or `undefined` if something else came first
 */
export async function firstOf<T>(
  runtime: Runtime,
  work: Promise<T>,
  deadlineAtMs: number,
  signal: AbortSignal | undefined,
): Promise<T | undefined> {
  const left = new AbortController()
  try {
    return await Promise.race([
      work,
      runtime.sleep(deadlineAtMs - runtime.monotonicMs(), left.signal).then(() => undefined),
      ...(signal ? [fired(signal, left.signal).then(() => undefined)] : []),
    ])
  } finally {
    left.abort(DONE)
  }
}

/** Resolves when the signal fires, and lets go of it when the caller has left. */
async function fired(signal: AbortSignal, left: AbortSignal): Promise<void> {
  if (signal.aborted) return
  await new Promise<void>((resolve) => {
    const settle = (): void => {
      signal.removeEventListener('abort', settle)
      left.removeEventListener('abort', settle)
      resolve()
    }
    signal.addEventListener('abort', settle)
    left.addEventListener('abort', settle)
  })
}
