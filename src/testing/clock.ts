/**
 * The receiver's clock: what time it is there, and how it waits. Turning it forward is how a test gets past a key
 * window without waiting for it. It leaves the client's clock alone: the two are different machines.
 */

/** Time as a receiver sees it. `advance` works on every clock here, so a test reads the same whichever it took. */
export interface ReceiverClock {
  /** Milliseconds since the Unix epoch. */
  nowMs(): number
  /** Resolves when `ms` milliseconds have passed on this clock; at once (but not synchronously) for 0 or less. */
  sleep(ms: number): Promise<void>
  /**
   * Turns the clock forward and wakes those whose time has come, earliest first.
   *
   * @param ms milliseconds, 0 or more
   * @throws {RangeError} for a negative or non-finite `ms`: a receiver's clock does not run backwards
   */
  advance(ms: number): void
}

/** Anything longer overflows a 32-bit timer and fires at once; slept in pieces instead. */
const LONGEST_TIMER_MS = 2 ** 31 - 1

interface Sleeper {
  readonly dueAtMs: number
  readonly wake: () => void
}

/**
 * A clock that stands still until it is turned.
 *
 * @param startMs milliseconds since the Unix epoch; default 2030-01-01T00:00:00Z, so that nothing depends on today
 */
export function manualClock(startMs: number = Date.UTC(2030, 0, 1)): ReceiverClock {
  let nowMs = startMs
  const sleepers = new Set<Sleeper>()
  return {
    nowMs: () => nowMs,
    sleep: (ms) =>
      ms <= 0 ? Promise.resolve() : new Promise((wake) => void sleepers.add({ dueAtMs: nowMs + ms, wake })),
    advance: (ms) => {
      nowMs += checkedStep(ms)
      wakeDue(sleepers, nowMs)
    },
  }
}

/**
 * The machine's clock, which `advance` turns forward by an offset. It reads `Date.now` and `setTimeout` at each call, so
 * a test runner's fake timers drive it too.
 */
export function systemClock(): ReceiverClock {
  let offsetMs = 0
  const sleepers = new Set<Sleeper>()
  const nowMs = (): number => Date.now() + offsetMs
  return {
    nowMs,
    sleep: async (ms) => {
      const dueAtMs = nowMs() + ms
      for (let leftMs = ms; leftMs > 0; leftMs = dueAtMs - nowMs()) {
        await new Promise<void>((resolve) => {
          const sleeper: Sleeper = { dueAtMs, wake: () => settle() }
          const timer = setTimeout(() => settle(), Math.min(leftMs, LONGEST_TIMER_MS))
          const settle = (): void => {
            clearTimeout(timer)
            sleepers.delete(sleeper)
            resolve()
          }
          sleepers.add(sleeper)
        })
      }
    },
    advance: (ms) => {
      offsetMs += checkedStep(ms)
      wakeDue(sleepers, nowMs())
    },
  }
}

function checkedStep(ms: number): number {
  if (!Number.isFinite(ms) || ms < 0) throw new RangeError(`advance takes milliseconds of 0 or more, not ${ms}`)
  return ms
}

function wakeDue(sleepers: Set<Sleeper>, nowMs: number): void {
  const due = [...sleepers].filter((sleeper) => sleeper.dueAtMs <= nowMs).sort((a, b) => a.dueAtMs - b.dueAtMs)
  for (const sleeper of due) {
    sleepers.delete(sleeper)
    sleeper.wake()
  }
}
