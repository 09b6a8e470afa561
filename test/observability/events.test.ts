/** What events say beyond the steps of a charge: ages, headroom, refusals, replays, and that all that begins also ends. */
import type { BillingEvent, StateReason } from 'billonce'
import { loseReply } from 'billonce/testing'
import { describe, expect, expectTypeOf, test, vi } from 'vitest'
import { journalWith } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { liveThroughADay } from './busy-day.ts'

virtualTime()

const order = { operationId: 'order-1' }

type Of<T extends BillingEvent['type']> = Extract<BillingEvent, { type: T }>

const ofType = <T extends BillingEvent['type']>(events: readonly BillingEvent[], type: T): Of<T>[] =>
  events.filter((event): event is Of<T> => event.type === type)

describe('ages', () => {
  test('each event about an entry says how old it is and how long its key lasts', async () => {
    const { billing, events } = setUp({ receiver: { faults: [loseReply()] }, client: { retry: { maxAttempts: 1 } } })
    await settled(billing.charge(coffee, order))
    const [{ windowEndsAtMs, namedAtMs } = { windowEndsAtMs: 0, namedAtMs: 0 }] = await viewsOf(billing)
    await pass(3_600_000)
    await settled(billing.resume())
    for (const event of events) {
      if (event.type === 'left-alone' || event.type === 'storage-fault') continue
      expect(event.ageMs).toBe(event.atMs - namedAtMs)
      expect(event.headroomMs).toBe(windowEndsAtMs! - event.atMs)
    }
    expect(ofType(events, 'attempt-began').map(({ ageMs }) => ageMs >= 3_600_000)).toEqual([false, true])
  })

  test('past the window the headroom is nothing, not less', async () => {
    const { billing, events } = setUp({ receiver: { faults: [loseReply()] } })
    await settled(billing.charge(coffee, order))
    await pass(100 * 3_600_000)
    await settled(billing.resume())
    expect(ofType(events, 'state').at(-1)).toMatchObject({ to: 'unknown', reason: 'window-over', headroomMs: 0 })
  })

  test('a clock that ran backwards makes no age negative', async () => {
    const { billing, events } = setUp({ receiver: { faults: [loseReply()] } })
    await settled(billing.charge(coffee, order))
    vi.setSystemTime(Date.now() - 3 * 86_400_000)
    await settled(billing.resume())
    expect(Math.min(...events.map((event) => ('ageMs' in event ? (event.ageMs ?? 0) : 0)))).toBe(0)
  })
})

describe('what is refused or answered here', () => {
  test('a conflict names the fields, not their values', async () => {
    const { billing, events } = setUp()
    const { key } = await settled(billing.charge(coffee, order))
    await expect(settled(billing.charge({ ...coffee, amount: 9999, customer: 'cus_2' }, order))).rejects.toMatchObject({
      code: 'ERR_OPERATION_CONFLICT',
    })
    expect(ofType(events, 'conflict')).toEqual([
      {
        type: 'conflict',
        key,
        kind: 'charge',
        revision: 1,
        fields: ['amount', 'customer'],
        atMs: expect.any(Number),
        ageMs: expect.any(Number),
        headroomMs: expect.any(Number),
      },
    ])
  })

  test('a revision that may not be opened is told, with the reason', async () => {
    const { billing, events } = setUp({ receiver: { faults: [loseReply()] } })
    const { key } = await settled(billing.charge(coffee, order))
    await settled(billing.charge(coffee, { ...order, revision: 2 }).catch(() => {}))
    await settled(billing.retryRejected({ key }).catch(() => {}))
    expect(ofType(events, 'revision-refused')).toMatchObject([{ key, revision: 1, reason: 'earlier-revision-open' }])
  })

  test('a call that is answered from the journal is told, and sends nothing', async () => {
    const { billing, events, receiver } = setUp()
    await settled(billing.charge(coffee, order))
    expect(ofType(events, 'answered')).toEqual([])
    await settled(billing.charge(coffee, order))
    expect(ofType(events, 'answered')).toMatchObject([{ state: 'succeeded', revision: 1 }])
    expect(receiver.ledger.requests).toHaveLength(1)
  })
})

describe('reasons', () => {
  test('a final state says of what kind it is', async () => {
    const { billing, events } = setUp()
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_processing' }, { operationId: 'order-2' }))
    expect(
      ofType(events, 'state')
        .filter(({ to }) => to !== 'sending')
        .map(({ to, reason }) => [to, reason]),
    ).toEqual([
      ['rejected', 'declined'],
      ['accepted', 'processing'],
    ])
    expectTypeOf<NonNullable<Of<'state'>['reason']>>().toEqualTypeOf<StateReason>()
  })

  test('a canceled entry says what canceled it', async () => {
    const { billing, events } = setUp({
      client: { credentials: () => Promise.reject(new Error('none')), headers: undefined },
    })
    await settled(billing.charge(coffee, order))
    await settled(billing.cancel({ kind: 'charge', ...order }))
    expect(ofType(events, 'state').at(-1)).toMatchObject({ to: 'canceled', reason: 'caller' })
  })
})

describe('all that begins also ends', () => {
  test('each attempt once, each delivery that tried once, and in order', async () => {
    const events: (BillingEvent & { process: string })[] = []
    await liveThroughADay((billing, process) => billing.subscribe((event) => events.push({ ...event, process })))
    const open = new Map<string, number>()
    const under = new Map<string, Set<number>>()
    for (const event of events) {
      if (!('key' in event) || event.key === undefined) continue
      const id = `${event.process} ${event.key}`
      if (event.type === 'attempt-began') {
        open.set(id, (open.get(id) ?? 0) + 1)
        under.set(id, (under.get(id) ?? new Set()).add(event.attempt))
      } else if (event.type === 'attempt-ended') {
        expect(under.get(id)?.delete(event.attempt)).toBe(true)
      } else if (event.type === 'delivery-ended') {
        expect(under.get(id)?.size).toBe(0)
        expect(event.attempts).toBe(open.get(id))
        open.delete(id)
      }
    }
    expect([...open]).toEqual([])
  })

  test('an attempt whose reply cannot be written down ends as unrecorded, also where the call throws', async () => {
    const world = setUp({ receiver: { faults: [loseReply({ request: 2 })] } })
    let isFailing = false
    const journal = journalWith(world.journal, ({ method }, run) =>
      isFailing && method === 'replace' ? Promise.reject(new Error('full')) : run(),
    )
    const billing = world.another({ journal })
    const events: BillingEvent[] = []
    billing.subscribe((event) => events.push(event))
    isFailing = true
    await settled(billing.charge(coffee, order))
    await settled(billing.charge(coffee, { operationId: 'order-2' }).catch(() => {}))
    expect(ofType(events, 'attempt-ended')).toMatchObject([
      { result: 'unrecorded', status: 200 },
      { result: 'unrecorded' },
    ])
    expect(ofType(events, 'storage-fault')[0]).toMatchObject({
      step: 'record',
      kind: 'charge',
      revision: 1,
      ageMs: expect.any(Number),
      headroomMs: expect.any(Number),
    })
    expect(ofType(events, 'delivery-ended')).toHaveLength(2)
  })

  test('an attempt that was stopped before it left ends as not sent', async () => {
    const world = setUp()
    // The commit takes longer than the claim that it takes: somebody else may be at it by then.
    const journal = journalWith(world.journal, async ({ method }, run) => {
      const result = await run()
      if (method === 'insert') await new Promise((resolve) => setTimeout(resolve, 120_000))
      return result
    })
    const billing = world.another({ journal, retry: { attemptTimeoutMs: 1000 } })
    const events: BillingEvent[] = []
    billing.subscribe((event) => events.push(event))
    await settled(billing.charge(coffee, { ...order, deadlineMs: 600_000 }))
    expect(ofType(events, 'attempt-ended')[0]).toMatchObject({ attempt: 1, result: 'not-sent' })
    expect(ofType(events, 'delivery-ended')).toHaveLength(1)
    expect(world.receiver.ledger.requests).toHaveLength(0)
  })

  test('a wait without an attempt is no delivery', async () => {
    const { billing, events } = setUp({
      client: { credentials: () => Promise.reject(new Error('none')), headers: undefined },
    })
    await settled(billing.charge(coffee, order))
    await settled(billing.resume())
    expect(ofType(events, 'held').length).toBeGreaterThanOrEqual(1)
    expect(ofType(events, 'delivery-ended')).toEqual([])
  })
})
