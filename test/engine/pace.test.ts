/** The rules by which background delivery slows down and speeds up again. */
import { describe, expect, test } from 'vitest'
import { compareTurns, Pace } from '../../src/engine/pace.ts'

const policy = { baseMs: 1000, capMs: 30_000, longestMs: 300_000, most: 8 } as const
const LAST = 1 - 2 ** -53
const longestWaitMs = (pace: Pace): number => pace.waitMs(() => LAST)

function paceOf(): { pace: Pace; fails: (key?: string) => void; answers: (times?: number) => void } {
  const pace = new Pace(policy)
  let nowMs = 0
  let number = 0
  const make = (key: string, result: 'failed' | 'answered'): void => {
    pace.begin(key, nowMs)
    pace.end(key, result, (nowMs += 1))
  }
  return {
    pace,
    fails: (key = `failed-${(number += 1)}`) => make(key, 'failed'),
    answers(times = 1) {
      for (let time = 0; time < times; time += 1) make(`answered-${(number += 1)}`, 'answered')
    },
  }
}

test('each failure doubles the longest wait up to the cap, and each answer takes one step back', () => {
  const { pace, fails, answers } = paceOf()
  const waits = [1, 2, 3, 4, 5, 6].map(() => (fails(), longestWaitMs(pace)))
  expect(waits).toEqual([2000, 4000, 8000, 16_000, 30_000, 30_000])
  expect([1, 2, 3, 4].map(() => (answers(), longestWaitMs(pace)))).toEqual([16_000, 8000, 4000, 2000])
  expect(pace.waitMs(() => 0)).toBe(0)
})

test('in a long outage the waits grow on, slowly, and the first answer brings them back below the cap', () => {
  const { pace, fails, answers } = paceOf()
  for (let time = 0; time < 12; time += 1) fails()
  expect(longestWaitMs(pace)).toBe(30_000)
  for (let time = 0; time < 100; time += 1) fails()
  expect(longestWaitMs(pace)).toBe(300_000)
  answers()
  expect(longestWaitMs(pace)).toBe(16_000)
})

test('those that were sent together count once', () => {
  const pace = new Pace(policy)
  for (const key of ['a', 'b', 'c']) pace.begin(key, undefined)
  for (const key of ['a', 'b', 'c']) pace.end(key, 'failed', 1)
  expect(longestWaitMs(pace)).toBe(2000)
})

test('after an outage one at a time goes until 24 answers came in a row, then one more together with each', () => {
  const { pace, fails, answers } = paceOf()
  for (let time = 0; time < 5; time += 1) fails()
  answers(23)
  expect(pace.room).toBe(1)
  expect(longestWaitMs(pace)).toBe(1000)
  answers()
  expect([pace.room, longestWaitMs(pace)]).toEqual([2, 0])
  answers(20)
  expect(pace.room).toBe(8)
  fails()
  expect(pace.room).toBe(1)
})

describe('an entry’s own back-off', () => {
  test('counts only what failed while others were answered', () => {
    const pace = new Pace(policy)
    pace.begin('a', undefined)
    expect(pace.failuresOf('a')).toBe(1)
    pace.end('a', 'failed', 1)
    // Nobody was answered since: it is the receiver.
    pace.begin('a', 1)
    expect(pace.failuresOf('a')).toBe(0)
    pace.end('a', 'failed', 2)
    pace.noticed('answered', 3)
    pace.begin('a', 2)
    expect(pace.failuresOf('a')).toBe(2)
    pace.end('a', 'failed', 4)
    expect(pace.failuresOf('another')).toBeUndefined()
  })

  test('is all there is for one that fails again and again while others are answered: it slows them no more', () => {
    const { pace, fails, answers } = paceOf()
    for (let time = 0; time < 10; time += 1) {
      answers(30)
      fails('bad')
    }
    answers(7)
    expect(pace.room).toBe(8)
  })
})

test('first those whose window runs, then those whose last attempt is longest ago', () => {
  const line = [
    { key: 'new', isInDoubt: false, sinceMs: 1 },
    { key: 'late', isInDoubt: true, sinceMs: 9 },
    { key: 'early', isInDoubt: true, sinceMs: 5 },
  ]
  expect(line.toSorted(compareTurns).map(({ key }) => key)).toEqual(['early', 'late', 'new'])
})
