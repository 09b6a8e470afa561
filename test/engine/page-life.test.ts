/**
 * The life of a page: frozen and woken, killed in mid-request, gone while its request is on the way. Time is virtual; real
 * engines do the same in test/crash-browser/page-life.test.ts.
 */
import type { BillingClient, JournalStore } from 'billonce'
import { status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'
import { inPage } from './page.ts'
import { expectOneName, journalWith } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }
const HOUR_MS = 3_600_000

/** A journal in which a page that let go of its lock is known not to work on its entries. */
const lockless = (journal: JournalStore): JournalStore =>
  journalWith(journal, async (call, run) => (call.method === 'isGone' ? true : await run()))

/** Another tab, to which the frozen one's claim is nothing. */
const otherTab = ({ another, journal }: World): BillingClient => another({ journal: lockless(journal) })

/** A tab that is frozen between the durable begin of its attempt and the request, for as long as `meanwhile` takes. */
function frozenTab(world: World, meanwhile: () => Promise<void>): { tab: BillingClient; requests: () => number } {
  let requests = 0
  let isBegun = false
  const journal = journalWith(world.journal, async (call, run) => {
    const result = await run()
    const [entry] = call.args as [{ state?: string } | undefined]
    if (!isBegun && (call.method === 'insert' || call.method === 'replace') && entry?.state === 'sending') {
      isBegun = true
      await meanwhile()
    }
    return result
  })
  const tab = world.another({
    journal,
    fetch: (input, init) => {
      requests += 1
      return world.receiver.fetch(input, init)
    },
  })
  return { tab, requests: () => requests }
}

describe('a frozen tab that wakes up with old ideas does no harm', () => {
  test('what another tab has finished meanwhile is not sent again', async () => {
    const world = setUp()
    const { tab, requests } = frozenTab(world, async () => {
      await otherTab(world).resume()
      vi.setSystemTime(Date.now() + 31_000)
    })
    expect(await settled(tab.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(requests()).toBe(0)
    expect(world.receiver.ledger.requests).toHaveLength(1)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test('what was declined meanwhile and paid with another card is not sent again', async () => {
    const world = setUp()
    const declined = { ...coffee, paymentMethod: 'pm_declined' }
    const { tab, requests } = frozenTab(world, async () => {
      const other = otherTab(world)
      expect(await other.resume()).toMatchObject({ rejected: 1 })
      expect(await other.charge(coffee, { ...order, revision: 2 })).toMatchObject({ status: 'succeeded' })
      vi.setSystemTime(Date.now() + 31_000)
    })
    await settled(tab.charge(declined, order))
    expect(requests()).toBe(0)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expect(await settled(tab.find({ kind: 'charge', ...order }) as Promise<unknown>)).toMatchObject({
      status: 'succeeded',
      revision: 2,
    })
  })

  test('after a night it finds its key too old and sends nothing', async () => {
    const world = setUp()
    const { tab, requests } = frozenTab(world, async () => {
      vi.setSystemTime(Date.now() + 25 * HOUR_MS)
      await Promise.resolve()
    })
    expect(await settled(tab.consumeCredits({ amount: 4 }, order))).toMatchObject({
      status: 'unknown',
      reason: 'window-over',
    })
    expect(requests()).toBe(0)
  })

  test('frozen for longer than a request may wait to leave, it sends nothing with what it knew, and then sends afresh', async () => {
    const world = setUp()
    const { tab, requests } = frozenTab(world, async () => {
      vi.setSystemTime(Date.now() + 31_000)
      await Promise.resolve()
    })
    const told: (string | undefined)[] = []
    tab.subscribe((event) => event.type === 'attempt-ended' && told.push(event.result))
    await settled(tab.charge(coffee, order))
    expect(told[0]).toBe('not-sent')
    await settled(tab.resume())
    expect(requests()).toBe(1)
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(tab)).toMatchObject([{ state: 'succeeded', attemptsBegun: 2 }])
  })

  test('frozen for a moment, it may ask what another tab asked already: the same key, one effect', async () => {
    const world = setUp()
    const { tab } = frozenTab(world, async () => {
      await otherTab(world).resume()
      vi.setSystemTime(Date.now() + 5000)
    })
    expect(await settled(tab.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(world.receiver.ledger.effects).toHaveLength(1)
    expectOneName(world.receiver)
  })

  test('frozen between two attempts, it finds the entry settled and sends nothing', async () => {
    const world = setUp({ receiver: { faults: [status(503, { attempt: 1 })] } })
    const asked = world.another({ retry: { baseDelayMs: 20_000 } }).charge(coffee, order)
    await quiet()
    expect(world.receiver.ledger.requests).toHaveLength(1)
    expect(await settled(otherTab(world).resume())).toMatchObject({ succeeded: 1 })
    expect(await settled(asked)).toMatchObject({ status: 'succeeded' })
    expect(world.receiver.ledger.requests).toHaveLength(2)
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })
})

describe('G63: a request that the system killed', () => {
  /** An entry that has been tried so often that its next back-off may be minutes long. */
  async function leaveTriedOften(world: World): Promise<void> {
    world.receiver.faults.add(status(503, { times: 12 }))
    for (let pass = 1; pass <= 12; pass += 1) {
      const often = world.another({ retry: { maxAttempts: 1 } })
      if (pass === 1) await settled(often.charge(coffee, order))
      else await settled(often.resume())
    }
    expect(await viewsOf(world.billing)).toMatchObject([{ state: 'sending', attemptsBegun: 12 }])
  }

  test.each(['visibilitychange', 'pageshow', 'resume'] as const)(
    'and of which the page hears only after %s is asked for again at once, not after the back-off of an outage',
    async (event) => {
      await inPage(async (page) => {
        const world = setUp()
        await leaveTriedOften(world)
        let kill = (): void => {}
        let fetches = 0
        const tab = world.another({
          fetch: async (input, init) => {
            fetches += 1
            if (fetches > 1) return await world.receiver.fetch(input, init)
            await world.receiver.fetch(input, init)
            return await new Promise<never>((_, reject) => {
              kill = () => reject(new TypeError('Load failed'))
            })
          },
        })
        const stop = tab.start()
        await pass(100)
        page.visible(false)
        page.fire('visibilitychange')
        await pass(20_000)
        page.visible(true)
        page.fire(event)
        await pass(50)
        kill()
        await pass(2500)
        expect(fetches).toBe(2)
        expect(await viewsOf(tab)).toMatchObject([{ state: 'succeeded', attemptsBegun: 14 }])
        expect(world.receiver.ledger.effects).toHaveLength(1)
        expectOneName(world.receiver)
        stop()
      })
    },
  )

  test('is no decline: the caller is told unknown, and that it goes on', async () => {
    await inPage(async () => {
      const { billing } = setUp({
        client: { retry: { maxAttempts: 1 }, fetch: () => Promise.reject(new TypeError('Load failed')) },
      })
      expect(await settled(billing.charge(coffee, order))).toMatchObject({
        status: 'unknown',
        delivery: 'continues',
        reason: 'no-clear-reply',
      })
    })
  })
})

describe('a request may outlive its page (keepalive)', () => {
  const usage = (bytes: number, filler = 'x') => ({
    meter: 'km',
    quantity: 1,
    metadata: { note: filler.repeat(bytes) },
  })

  /** A client in a page, and for each request whether it may go on when the page is gone. */
  function watched(receiver: Parameters<typeof setUp>[0] = {}) {
    const world = setUp(receiver)
    const outliving: boolean[] = []
    const billing = world.another({
      retry: { baseDelayMs: 1 },
      fetch: (input, init) => {
        outliving.push(init?.keepalive === true)
        return world.receiver.fetch(input, init)
      },
    })
    return { ...world, billing, outliving }
  }

  test('in a page, and not where there is none', async () => {
    const { billing, outliving } = watched()
    await settled(billing.charge(coffee, order))
    expect(outliving).toEqual([false])
    await inPage(async () => {
      await settled(billing.charge(coffee, { operationId: 'order-2' }))
    })
    expect(outliving).toEqual([false, true])
  })

  test('not if its body is large, counted in bytes', async () => {
    await inPage(async () => {
      const { billing, outliving } = watched()
      const bodies = [usage(30_000), usage(33_000), usage(10_000, '€'), usage(11_000, '€')]
      for (const [index, body] of bodies.entries()) {
        await settled(billing.recordUsage(body, { operationId: `trip-${index}` }))
      }
      expect(outliving).toEqual([true, false, true, false])
    })
  })

  test('not if those in flight have used up our half of the room, which comes back with each reply', async () => {
    await inPage(async () => {
      const { billing, outliving } = watched({ receiver: { latencyMs: 100 } })
      const many = Array.from({ length: 8 }, (_, index) =>
        billing.recordUsage(usage(5000), { operationId: `trip-${index}` }),
      )
      await settled(Promise.all(many))
      expect(outliving.filter(Boolean)).toHaveLength(6)
      await settled(billing.recordUsage(usage(30_000), { operationId: 'trip-8' }))
      expect(outliving.at(-1)).toBe(true)
    })
  })

  test('not after a lost connection, since another script may have used up the room; after any other answer again', async () => {
    await inPage(async () => {
      const world = setUp({ receiver: { faults: [status(503, { request: 1 })] } })
      const outliving: boolean[] = []
      const billing = world.another({
        retry: { baseDelayMs: 1 },
        fetch: async (input, init) => {
          const keepalive = init?.keepalive === true
          outliving.push(keepalive)
          if (keepalive && outliving.length === 1) throw new TypeError('Failed to fetch')
          return await world.receiver.fetch(input, init)
        },
      })
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 3 })
      expect(outliving).toEqual([true, false, true])
      expect(world.receiver.ledger.effects).toHaveLength(1)
    })
  })

  test('of which a page that is back hears nothing is asked for again after a moment, not after the whole timeout', async () => {
    await inPage(async (page) => {
      const { another, receiver } = setUp()
      let fetches = 0
      const billing = another({
        fetch: async (input, init) => {
          fetches += 1
          const reply = await receiver.fetch(input, init)
          return fetches === 1 ? await new Promise<never>(() => {}) : reply
        },
      })
      const asked = billing.charge(coffee, order)
      await pass(5000)
      page.fire('pageshow')
      await pass(4000)
      expect(fetches).toBe(1)
      page.revive()
      await pass(4000)
      expect(fetches).toBe(2)
      expect(await settled(asked)).toMatchObject({ status: 'succeeded', attempts: 2 })
      expect(receiver.ledger.effects).toHaveLength(1)
      expect(page.listeners()).toBe(0)
    })
  })
})
