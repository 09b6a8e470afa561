/** The metering buffer: counts in batches, each under one name with exactly the counts that were in it. */
import { BackpressureError, forgetfulJournal, InvalidInputError, JournalUnavailableError } from 'billonce'
import type { BillingClient } from 'billonce'
import { meter } from 'billonce/meter'
import { loseReply, status } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import fc from 'fast-check'
import { describe, expect, test, vi } from 'vitest'
import { addQuantities } from '../../src/model/money.ts'
import { broken, journalWith } from '../engine/tampering.ts'
import { pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'

virtualTime()

const quantitiesOf = ({ ledger }: Receiver): unknown[] => ledger.effects.map(({ params }) => params['quantity'])
const bodiesOf = ({ ledger }: Receiver): Set<string> =>
  new Set(ledger.requests.map(({ key, body }) => `${key} ${body}`))

describe.each([false, true])('a meter, durable: %s', (durable) => {
  const options = { customer: 'cus_1', durable } as const
  const meterOf = (billing: BillingClient, more: object = {}) => {
    const made = durable
      ? meter(billing, 'exports', { ...options, ...more, durable: true })
      : meter(billing, 'exports', { ...options, ...more, durable: false })
    return {
      add: async (quantity?: number | string): Promise<void> => settled(Promise.resolve(made.add(quantity))),
      flush: async (): Promise<void> => settled(made.flush()),
    }
  }

  test('reports what was counted as one operation, after a while, at a number of counts, and when asked', async () => {
    const { billing, receiver } = setUp()
    const exports = meterOf(billing, { flushEveryMs: 5000, flushAt: 10 })
    for (let time = 0; time < 3; time += 1) await exports.add(2)
    await pass(4000)
    expect(receiver.ledger.requests).toHaveLength(0)
    await pass(2000)
    expect(quantitiesOf(receiver)).toEqual([6])
    for (let time = 0; time < 10; time += 1) await exports.add()
    await pass(500)
    expect(quantitiesOf(receiver)).toEqual([6, 10])
    await exports.add(7)
    await exports.flush()
    await pass(100)
    expect(quantitiesOf(receiver)).toEqual([6, 10, 7])
    await exports.flush()
    await pass(60_000)
    expect(receiver.ledger.requests).toHaveLength(3)
    expect(receiver.ledger.effects[0]!.params).toEqual({ meter: 'exports', quantity: 6, customer: 'cus_1' })
  })

  test('a retry sends the same counts under the same key, whatever is counted meanwhile', async () => {
    const { billing, receiver } = setUp({
      receiver: { faults: [loseReply({ attempt: 1 }), status(503, { attempt: 2 })] },
    })
    const exports = meterOf(billing)
    await exports.add(3)
    await exports.flush()
    await exports.add(4)
    await pass(30_000)
    await exports.flush()
    await pass(60_000)
    expect(new Set(quantitiesOf(receiver))).toEqual(new Set([3, 4]))
    expect(receiver.ledger.requests.length).toBeGreaterThan(2)
    expect(bodiesOf(receiver).size).toBe(2)
  })

  test('adds decimals digit for digit', async () => {
    const { billing, receiver } = setUp()
    const exports = meterOf(billing)
    for (const quantity of ['0.1', '0.2', '0.70', 5, '9007199254740993']) await exports.add(quantity)
    await exports.flush()
    await pass(100)
    expect(quantitiesOf(receiver)).toEqual(['9007199254740999'])
  })

  test('says when its first count was made, if asked to', async () => {
    const { billing, receiver } = setUp()
    const exports = meterOf(billing, { dated: true, flushEveryMs: 60_000 })
    await pass(1000)
    const atMs = Date.now()
    await exports.add()
    await pass(30_000)
    await exports.add()
    await pass(60_000)
    expect(receiver.ledger.effects[0]!.params).toMatchObject({
      quantity: 2,
      occurredAt: new Date(atMs).toISOString(),
    })
  })

  test('what is collected is taken when the client is closed, and nothing is counted after it', async () => {
    const { billing, another, receiver } = setUp()
    const exports = meterOf(billing)
    await exports.add(3)
    await settled(billing.close())
    await expect(exports.add(1)).rejects.toMatchObject({ code: 'ERR_CLIENT_CLOSED' })
    const stop = another().start()
    await pass(60_000)
    expect(quantitiesOf(receiver)).toEqual([3])
    stop()
  })

  test('what is counted while the client is being closed is refused or reported', async () => {
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      if (call.method === 'insert') await new Promise((resolve) => setTimeout(resolve, 1000))
      return await run()
    })
    const { billing, another, receiver } = setUp({ journal })
    const idle = meterOf(billing, { id: 'idle' })
    const busy = meterOf(billing, { id: 'busy' })
    const busyCount = busy.add(3)
    await pass(0)
    const closed = billing.close()
    await pass(500)
    const idleCount = idle.add(4).then(
      () => 4,
      () => 0,
    )
    await settled(closed)
    await busyCount
    const counted = 3 + (await idleCount)
    const stop = another().start()
    await pass(60_000)
    expect(quantitiesOf(receiver).reduce<number>((sum, one) => sum + Number(one), 0)).toBe(counted)
    stop()
  })

  test('what was given as metadata may change: batches carry what it was', async () => {
    const { billing, receiver } = setUp()
    const metadata = { region: 'eu' }
    const exports = meterOf(billing, { metadata })
    await exports.add(1)
    metadata.region = 'us'
    await exports.add(2)
    await exports.flush()
    await pass(1000)
    expect(receiver.ledger.effects.map(({ params }) => params)).toEqual([
      { meter: 'exports', quantity: 3, customer: 'cus_1', metadata: { region: 'eu' } },
    ])
  })

  test('a flush ends, however much is counted meanwhile', async () => {
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      if (call.method === 'insert' || call.method === 'replace') await new Promise((resolve) => setTimeout(resolve, 10))
      return await run()
    })
    const { billing, receiver } = setUp({ journal })
    const exports = meterOf(billing, { flushEveryMs: 60_000 })
    let counted = 0
    const count = (): void => {
      counted += 1
      void exports.add(1)
    }
    count()
    const counting = setInterval(count, 3)
    let hasEnded = false
    void exports.flush().then(() => {
      hasEnded = true
    })
    await pass(500)
    clearInterval(counting)
    expect(hasEnded).toBe(true)
    await pass(180_000)
    expect(quantitiesOf(receiver).reduce<number>((sum, one) => sum + Number(one), 0)).toBe(counted)
    expect(receiver.ledger.effects.length).toBeLessThanOrEqual(3)
  })

  test('wrong quantities and options are refused, and nothing is counted', async () => {
    const { billing, receiver } = setUp()
    const exports = meterOf(billing)
    for (const wrong of [-1, 0.5, Number.NaN, '1e3', ''] as const) {
      await expect(exports.add(wrong)).rejects.toBeInstanceOf(InvalidInputError)
    }
    await exports.flush()
    await pass(1000)
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await viewsOf(billing)).toEqual([])
    expect(() => meterOf(billing, { flushAt: 0 })).toThrow('flushAt')
    expect(() => meterOf(billing, { flushEvery: 1 })).toThrow('flushEvery')
    expect(() => meterOf(billing, { customer: 1 })).toThrow('customer')
    expect(() => meter({} as BillingClient, 'exports')).toThrow('billing')
  })
})

describe('in memory', () => {
  test('a batch that could not be written down keeps its name and its counts, and goes first', async () => {
    let isFailing = true
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      const result = await run()
      // Written, but the answer is lost.
      if (call.method === 'insert' && isFailing) throw broken()
      return result
    })
    const { billing, receiver } = setUp({ journal })
    const exports = meter(billing, 'exports')
    exports.add(3)
    await expect(settled(exports.flush())).rejects.toBeInstanceOf(JournalUnavailableError)
    exports.add(4)
    isFailing = false
    await settled(exports.flush())
    await pass(60_000)
    expect(quantitiesOf(receiver)).toEqual([3, 4])
  })

  test('what the limit refused is tried again by itself', async () => {
    const { billing, receiver } = setUp({ client: { maxBacklog: 1 }, receiver: { faults: [status(503)] } })
    const exports = meter(billing, 'exports', { flushEveryMs: 1000 })
    exports.add(1)
    await settled(exports.flush())
    exports.add(2)
    await expect(settled(exports.flush())).rejects.toBeInstanceOf(BackpressureError)
    exports.add(4)
    receiver.faults.clear()
    await pass(120_000)
    expect(quantitiesOf(receiver)).toEqual([1, 2, 4])
  })

  test('a batch that a flush could not write down is tried again by itself, also if nothing more is counted', async () => {
    let isFailing = true
    const journal = journalWith(forgetfulJournal(), (call, run) =>
      isFailing && call.method === 'insert' ? Promise.reject(broken()) : run(),
    )
    const { billing, receiver } = setUp({ journal })
    const exports = meter(billing, 'exports', { flushEveryMs: 1000 })
    exports.add(3)
    await expect(settled(exports.flush())).rejects.toBeInstanceOf(JournalUnavailableError)
    isFailing = false
    await pass(10_000)
    expect(quantitiesOf(receiver)).toEqual([3])
  })

  test('while a journal fails, a flush waits for one try and not for one of each count', async () => {
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      if (call.method !== 'insert') return await run()
      await new Promise((resolve) => setTimeout(resolve, 30_000))
      throw broken()
    })
    const { billing } = setUp({ journal })
    const exports = meter(billing, 'exports', { flushAt: 10 })
    for (let time = 0; time < 500; time += 1) exports.add(1)
    const beganAtMs = Date.now()
    await expect(settled(exports.flush())).rejects.toBeInstanceOf(JournalUnavailableError)
    expect(Date.now() - beganAtMs).toBeLessThanOrEqual(60_000)
  })
})

describe('durable', () => {
  test('counts that came together share a commit', async () => {
    let commits = 0
    const journal = journalWith(forgetfulJournal(), (call, run) => {
      if (call.method === 'insert' || call.method === 'replace') commits += 1
      return run()
    })
    const { billing } = setUp({ journal })
    const exports = meter(billing, 'exports', { durable: true })
    await settled(Promise.all(Array.from({ length: 500 }, async () => exports.add(1))))
    expect(commits).toBeLessThanOrEqual(2)
    expect(await viewsOf(billing)).toMatchObject([{ state: 'pending', attemptsBegun: 0 }])
  })

  test('a count that is in the journal is there after a kill, and goes with the next start', async () => {
    const { billing, another, receiver } = setUp()
    const exports = meter(billing, 'exports', { durable: true, flushEveryMs: 60_000 })
    for (let time = 0; time < 5; time += 1) await settled(exports.add(1))
    // Nothing of this client happens any more; another process takes over.
    const stop = another().start()
    vi.clearAllTimers()
    await pass(0)
    const again = another().start()
    await pass(200_000)
    expect(quantitiesOf(receiver)).toEqual([5])
    stop()
    again()
  })

  test('each count is in exactly one batch, whoever sends it in the middle', async () => {
    const inner = forgetfulJournal()
    const { another, receiver } = setUp({ journal: inner })
    const other = another()
    let replaces = 0
    const journal = journalWith(inner, async (call, run) => {
      if (call.method === 'replace' && (replaces += 1) % 4 === 0) {
        // Its time came while this process was held up, and another one was faster.
        vi.setSystemTime(Date.now() + 60_000)
        await other.resume()
      }
      return await run()
    })
    const exports = meter(another({ journal }), 'exports', { durable: true })
    let counted = 0
    for (let time = 0; time < 40; time += 1) {
      await settled(Promise.all([exports.add(1), exports.add(2)]))
      counted += 3
    }
    await settled(exports.flush())
    await pass(120_000)
    expect(quantitiesOf(receiver).reduce<number>((sum, quantity) => sum + Number(quantity), 0)).toBe(counted)
    expect(receiver.ledger.effects.length).toBeGreaterThan(5)
    expect(bodiesOf(receiver).size).toBe(receiver.ledger.effects.length)
  })

  test.each(['insert', 'replace'] as const)(
    'an answer of %s that was lost is looked for, and counts once',
    async (method) => {
      let isFailing = false
      const journal = journalWith(forgetfulJournal(), async (call, run) => {
        const result = await run()
        if (call.method === method && isFailing) {
          isFailing = false
          throw broken()
        }
        return result
      })
      const { billing, receiver } = setUp({ journal })
      const exports = meter(billing, 'exports', { durable: true })
      if (method === 'replace') await settled(exports.add(1))
      isFailing = true
      await settled(exports.add(2))
      await settled(exports.add(4))
      await settled(exports.flush())
      await pass(60_000)
      expect(quantitiesOf(receiver).reduce<number>((sum, one) => sum + Number(one), 0)).toBe(
        method === 'replace' ? 7 : 6,
      )
    },
  )

  test('a commit that failed counts nothing, and the next count goes on', async () => {
    let isFailing = false
    const journal = journalWith(forgetfulJournal(), (call, run) =>
      isFailing && call.method === 'replace' ? Promise.reject(broken()) : run(),
    )
    const { billing, receiver } = setUp({ journal })
    const exports = meter(billing, 'exports', { durable: true })
    await settled(exports.add(1))
    isFailing = true
    await expect(settled(exports.add(2))).rejects.toBeInstanceOf(JournalUnavailableError)
    isFailing = false
    await settled(exports.add(4))
    await settled(exports.flush())
    await pass(60_000)
    expect(quantitiesOf(receiver)).toEqual([5])
  })

  test.each(['is being sent', 'was canceled'])('counting nothing leaves a batch alone that %s', async (what) => {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 1000 } })
    const exports = meter(billing, 'exports', { durable: true, flushEveryMs: 5000 })
    await settled(exports.add(3))
    const [view] = await viewsOf(billing)
    const other = another()
    if (what === 'was canceled') await settled(other.cancel({ key: view!.key }))
    else {
      // Its time came, and another process was faster.
      vi.setSystemTime(Date.now() + 5000)
      void other.resume()
      await pass(100)
      expect(await viewsOf(billing)).toMatchObject([{ state: 'sending' }])
    }
    await settled(exports.add(0))
    await settled(exports.add('0.00'))
    await settled(exports.add(5))
    await settled(exports.flush())
    await pass(120_000)
    expect(quantitiesOf(receiver).filter((quantity) => quantity !== 0)).toEqual(what === 'was canceled' ? [5] : [3, 5])
    expect(bodiesOf(receiver).size).toBe(receiver.ledger.effects.length)
    if (what === 'was canceled') expect(await billing.find({ key: view!.key })).toMatchObject({ status: 'canceled' })
  })

  test('where the journal cannot be asked whether a count is in it, add throws, and nothing is counted twice', async () => {
    let isFailing = false
    const journal = journalWith(forgetfulJournal(), async (call, run) => {
      if (isFailing && call.method === 'get') throw broken()
      const result = await run()
      // It tried again by itself, and found the version that its own first commit had left.
      return isFailing && call.method === 'replace' ? false : result
    })
    const { billing, receiver } = setUp({ journal })
    const stop = billing.start()
    const exports = meter(billing, 'exports', { durable: true })
    await settled(exports.add(1))
    isFailing = true
    await expect(settled(exports.add(2))).rejects.toBeInstanceOf(JournalUnavailableError)
    isFailing = false
    await settled(exports.add(4))
    await pass(60_000)
    expect(new Set(quantitiesOf(receiver))).toEqual(new Set([3, 4]))
    expect(receiver.ledger.effects).toHaveLength(2)
    stop()
  })

  test('a batch may not be open longer than half of the time its key may be sent', async () => {
    const { billing, another } = setUp()
    const halfMs = (23 * 3_600_000) / 2
    for (const options of [{ durable: true }, { dated: true }] as const) {
      expect(() => meter(billing, 'exports', { ...options, flushEveryMs: halfMs + 1 } as object)).toThrow(
        'flushEveryMs',
      )
      meter(billing, 'exports', { ...options, flushEveryMs: halfMs } as object)
      meter(another({ names: 'own' }), 'exports', { ...options, flushEveryMs: 86_400_000 } as object)
    }
    meter(billing, 'exports', { flushEveryMs: 86_400_000 })
  })

  test('a canceled batch is not sent, and the next count opens another', async () => {
    const { billing, receiver } = setUp()
    const exports = meter(billing, 'exports', { durable: true })
    await settled(exports.add(1))
    const [view] = await viewsOf(billing)
    await settled(billing.cancel({ key: view!.key }))
    await settled(exports.add(2))
    await settled(exports.flush())
    await pass(60_000)
    expect(quantitiesOf(receiver)).toEqual([2])
  })
})

test('quantities add exactly, in whatever order and form', () => {
  const quantity = fc.oneof(
    fc.nat(Number.MAX_SAFE_INTEGER),
    fc.tuple(fc.nat(), fc.stringMatching(/^\d{1,18}$/)).map(([whole, rest]) => `${whole}.${rest}`),
  )
  const scaled = (value: number | string): bigint => {
    const [whole = '', rest = ''] = String(value).split('.')
    return BigInt(whole + rest.padEnd(18, '0'))
  }
  fc.assert(
    fc.property(quantity, quantity, (one, other) => {
      const sum = addQuantities(one, other)
      expect(scaled(sum)).toBe(scaled(one) + scaled(other))
      expect(addQuantities(other, one)).toBe(sum)
    }),
  )
})
