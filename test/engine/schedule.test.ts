/** When to try again, and whether that fits the time a receiver remembers a key. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { standard } from '../../src/dialects/standard.ts'
import { backoffMs, keyWindowMs, longestCallMs, nextStep } from '../../src/engine/schedule.ts'
import type { RetryPolicy, Step, Turn } from '../../src/engine/schedule.ts'
import type { JournalEntry } from '../../src/model/entry.ts'
import type { Verdict } from '../../src/model/verdict.ts'
import { after, began, HOUR_MS, named, NAMED_AT_MS, replied, verdicts } from '../model/entries.ts'
import type { VerdictName } from '../model/entries.ts'
import { seeded } from '../support/seeded.ts'

const policy: RetryPolicy = {
  maxAttempts: 5,
  attemptTimeoutMs: 30_000,
  deadlineMs: 60_000,
  baseDelayMs: 500,
  maxDelayMs: 30_000,
  backgroundBaseDelayMs: 1000,
  maxBackgroundDelayMs: 300_000,
  maxRetryAfterMs: 24 * HOUR_MS,
  alsoStatuses: [],
}
const NOW_MS = NAMED_AT_MS + 60_000
const LAST = 1 - 2 ** -53

const entryAfter = (verdict: Verdict, attemptsBegun = 1): JournalEntry =>
  Array.from({ length: attemptsBegun }).reduce<JournalEntry>(
    (entry, _, index) => after(entry, began, replied(index + 1, verdict)),
    named(),
  )
const step = (verdict: Verdict, turn: Partial<Turn> = {}, random = (): number => LAST, of = policy): Step =>
  nextStep(
    { entry: entryAfter(verdict), verdict, facts: {}, attemptsMade: 1, failures: 1, nowMs: NOW_MS, ...turn },
    of,
    random,
  )
const unclear = (retryAfterMs?: number): Verdict => ({
  kind: 'unclear',
  why: 'server-error',
  ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
})

describe('back-off', () => {
  test.each([
    [1, 500],
    [2, 1000],
    [3, 2000],
    [6, 16_000],
    [7, 30_000],
    [12, 30_000],
    [1000, 30_000],
  ])('after attempt %i lies anywhere from 0 to %i ms', (attempt, most) => {
    expect(backoffMs(attempt, 500, 30_000, () => 0)).toBe(0)
    expect(backoffMs(attempt, 500, 30_000, () => LAST)).toBe(most)
    expect(backoffMs(attempt, 500, 30_000, () => 0.5)).toBeCloseTo(most / 2, -1)
  })

  test('is a whole number of milliseconds within its cap, whatever the numbers are', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 1_000_000 }),
        fc.nat(2 ** 31 - 1),
        fc.nat(2 ** 31 - 1),
        fc.double({ min: 0, max: LAST, noNaN: true }),
        (attempt, baseMs, capMs, chance) => {
          const ms = backoffMs(attempt, baseMs, capMs, () => chance)
          expect(Number.isSafeInteger(ms)).toBe(true)
          expect(ms).toBeGreaterThanOrEqual(0)
          expect(ms).toBeLessThanOrEqual(Math.min(capMs, baseMs * 2 ** Math.min(attempt - 1, 60)))
        },
      ),
    )
  })

  test('G23: clients at the cap stay apart, since the cap comes before the jitter', () => {
    const clients = Array.from({ length: 1000 }, (_, client) => seeded(client * 7919 + 1))
    for (let attempt = 6; attempt <= 12; attempt += 1) {
      const most = Math.min(30_000, 500 * 2 ** (attempt - 1))
      const delays = clients.map((random) => backoffMs(attempt, 500, 30_000, random))
      const times = new Map<number, number>()
      for (const delay of delays) times.set(delay, (times.get(delay) ?? 0) + 1)
      expect(Math.max(...times.values()), `attempt ${attempt}`).toBeLessThan(20)
      // Each tenth of the range has its part of the clients.
      for (let tenth = 0; tenth < 10; tenth += 1) {
        const within = delays.filter((delay) => delay >= (most * tenth) / 10 && delay < (most * (tenth + 1)) / 10)
        expect(within.length, `attempt ${attempt}, tenth ${tenth}`).toBeGreaterThan(60)
        expect(within.length).toBeLessThan(140)
      }
      expect(Math.max(...delays)).toBeLessThanOrEqual(most)
    }
  })

  test('within a call counts the call’s attempts, in the background those of the entry', () => {
    const verdict = unclear()
    const { next, parked } = step(verdict, { entry: entryAfter(verdict, 20), attemptsMade: 2, failures: 20 })
    expect(next).toEqual({ nextAttemptAtMs: NOW_MS + 1000, notBeforeMs: 0 })
    expect(parked).toEqual({ nextAttemptAtMs: NOW_MS + 300_000, notBeforeMs: 0 })
  })
})

describe('whether a call goes on by itself', () => {
  test.each<[VerdictName, boolean]>([
    ['unclear', true],
    ['busy', true],
    ['not-accepted', false],
    ['refused', false],
    ['refused behind the key', false],
    ['conflict', false],
    ['recorded-failure', false],
    ['receipt-differs', false],
    ['succeeded', false],
    ['accepted', false],
  ])('after %s: %s', (verdict, mayGoOn) => {
    expect(step(verdicts[verdict]).mayGoOn).toBe(mayGoOn)
  })

  test('after a refusal that is not believed it does not', () => {
    const entry = after(named(), began, replied(1, 'unclear'), began, replied(2, 'refused'))
    expect(entry.state).toBe('sending')
    expect(step(verdicts.refused, { entry, facts: { status: 422 } }).mayGoOn).toBe(false)
  })

  test('statuses are added by choice, and settle nothing: what is final stays so', () => {
    const also = { ...policy, alsoStatuses: [429, 422] }
    const goesOn = (verdict: VerdictName, status: number): boolean =>
      step(verdicts[verdict], { facts: { status } }, undefined, also).mayGoOn
    expect(goesOn('not-accepted', 429)).toBe(true)
    expect(goesOn('not-accepted', 401)).toBe(false)
    expect(goesOn('refused', 422)).toBe(false)
    expect(goesOn('conflict', 422)).toBe(false)
  })

  test('a keyless entry does not go on after a lost reply', () => {
    const entry = after(named({ keyed: false }), began, replied(1, 'unclear'))
    expect(step(verdicts.unclear, { entry }).mayGoOn).toBe(false)
  })
})

describe('Retry-After', () => {
  test.each<Verdict['kind']>(['unclear', 'busy', 'not-accepted'])(
    'is heeded after %s, in a call and in the background',
    (kind) => {
      const verdict = { ...verdicts[kind as VerdictName], retryAfterMs: 2000 } as Verdict
      const { next, parked } = step(verdict, {}, () => 0)
      expect(next).toEqual({ nextAttemptAtMs: NOW_MS + 2000, notBeforeMs: NOW_MS + 2000 })
      expect(parked).toEqual(next)
    },
  )

  test('is never shortened, and those who were told the same come back one by one', () => {
    const at = Array.from({ length: 1000 }, (_, client) => step(unclear(2000), {}, seeded(client * 7919 + 1)).next)
    for (const { nextAttemptAtMs, notBeforeMs } of at) {
      expect(notBeforeMs).toBe(NOW_MS + 2000)
      expect(nextAttemptAtMs).toBeGreaterThanOrEqual(NOW_MS + 2000)
      expect(nextAttemptAtMs).toBeLessThanOrEqual(NOW_MS + 2500)
    }
    expect(new Set(at.map((timing) => timing.nextAttemptAtMs)).size).toBeGreaterThan(300)
  })

  test.each([2_147_483_000, 2_147_484_000, 9_999_999_999_000, Number.MAX_SAFE_INTEGER])(
    'G22: %i ms is clamped to 24 hours, under what a timer holds',
    (retryAfterMs) => {
      for (const timing of [step(unclear(retryAfterMs)).next, step(unclear(retryAfterMs)).parked]) {
        expect(timing.notBeforeMs).toBe(NOW_MS + 24 * HOUR_MS)
        expect(timing.nextAttemptAtMs - NOW_MS).toBeLessThan(2 ** 31 - 1)
        expect(timing.nextAttemptAtMs - NOW_MS).toBeLessThanOrEqual(24 * HOUR_MS + policy.baseDelayMs)
      }
    },
  )

  test('is clamped to less by choice', () => {
    expect(step(unclear(HOUR_MS), {}, () => 0, { ...policy, maxRetryAfterMs: 5000 }).next.notBeforeMs).toBe(
      NOW_MS + 5000,
    )
  })

  test('with fractions of a millisecond is rounded up', () => {
    expect(step(unclear(0.4), {}, () => 0).next.notBeforeMs).toBe(NOW_MS + 1)
  })

  test('G22: of zero, or a date that is over, does not make a burst of what would have been a back-off', () => {
    const entry = entryAfter(unclear(0), 5)
    const { next, parked } = step(unclear(0), { entry, attemptsMade: 5 })
    expect(next.nextAttemptAtMs).toBeGreaterThan(NOW_MS)
    expect(parked.nextAttemptAtMs).toBeGreaterThan(NOW_MS)
  })

  test('every wait is one that a timer holds, whatever is asked and however the policy is set', () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0, max: Number.MAX_SAFE_INTEGER, noNaN: true }),
        fc.integer({ min: 1, max: 100 }),
        fc.nat(2 ** 31 - 1),
        fc.nat(24 * HOUR_MS),
        fc.double({ min: 0, max: LAST, noNaN: true }),
        fc.boolean(),
        (retryAfterMs, attemptsMade, delayMs, maxRetryAfterMs, chance, isAsked) => {
          const of = {
            ...policy,
            baseDelayMs: delayMs,
            maxDelayMs: delayMs,
            maxBackgroundDelayMs: delayMs,
            maxRetryAfterMs,
          }
          const { next, parked } = step(isAsked ? unclear(retryAfterMs) : unclear(), { attemptsMade }, () => chance, of)
          for (const { nextAttemptAtMs, notBeforeMs } of [next, parked]) {
            expect(Number.isSafeInteger(nextAttemptAtMs)).toBe(true)
            expect(nextAttemptAtMs).toBeGreaterThanOrEqual(NOW_MS)
            expect(nextAttemptAtMs - NOW_MS).toBeLessThanOrEqual(2 ** 31 - 1)
            expect(notBeforeMs).toBeLessThanOrEqual(nextAttemptAtMs)
          }
        },
      ),
    )
  })
})

describe('what has to fit', () => {
  test.each<[string, number | 'unpublished', number, number]>([
    ['what the receiver says, less the margin', 24 * HOUR_MS, HOUR_MS, 23 * HOUR_MS],
    ['half a day where it says nothing, less the margin', 'unpublished', HOUR_MS, 11 * HOUR_MS],
    ['nothing, where the margin is as long', HOUR_MS, HOUR_MS, 0],
  ])('the window is %s', (_, keyRetentionMs, marginMs, windowMs) => {
    expect(keyWindowMs(standard({ keyRetentionMs }), 'charge', marginMs)).toBe(windowMs)
  })

  test.each<[string, Partial<RetryPolicy>, number]>([
    ['the deadline and the attempt that has begun before it', {}, 90_000],
    ['all attempts and waits, where they are shorter', { maxAttempts: 2, attemptTimeoutMs: 1000 }, 2500],
    ['one attempt, where there is one', { maxAttempts: 1 }, 30_000],
    ['waits up to their cap', { maxAttempts: 4, attemptTimeoutMs: 1, baseDelayMs: 1000, maxDelayMs: 1500 }, 4004],
    ['no waits at all', { maxAttempts: 3, attemptTimeoutMs: 100, baseDelayMs: 0 }, 300],
  ])('a call lasts at most %s', (_, changes, ms) => {
    expect(longestCallMs({ ...policy, ...changes })).toBe(ms)
  })
})
