/** Background delivery: it goes on until the key's window ends, wakes with the page, waits as asked, and holds up nobody. */
import { defineWrite, standard } from 'billonce'
import type { BillingEvent } from 'billonce'
import { delay, loseReply, status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { CLAIM_MS, expectOneName, journalWith } from './tampering.ts'
import { inPage } from './page.ts'

virtualTime()

const order = { operationId: 'order-1' }
const HOUR_MS = 3_600_000
const once = { maxAttempts: 1 } as const

/** Leaves a charge in the journal whose one attempt was lost before it had an effect. */
async function leaveSending(world: ReturnType<typeof setUp>): Promise<void> {
  const lost = world.another({ retry: once, fetch: () => Promise.reject(new TypeError('Failed to fetch')) })
  expect(await settled(lost.charge(coffee, order))).toMatchObject({ status: 'unknown', delivery: 'continues' })
  await lost.close()
}

describe('G18: an entry whose key the receiver may have forgotten', () => {
  test.each([
    ['22 h 50 min', 22 * HOUR_MS + 50 * 60_000, 'succeeded'],
    ['23 h', 23 * HOUR_MS, 'unknown'],
    ['23 h 50 min', 23 * HOUR_MS + 50 * 60_000, 'unknown'],
    ['23 h 59 min', 23 * HOUR_MS + 59 * 60_000, 'unknown'],
    ['24 h 1 min', 24 * HOUR_MS + 60_000, 'unknown'],
    ['24 h 10 min', 24 * HOUR_MS + 10 * 60_000, 'unknown'],
    ['9 days', 9 * 24 * HOUR_MS, 'unknown'],
  ])('aged %s is sent only inside the window', async (_age, ageMs, state) => {
    const world = setUp()
    await leaveSending(world)
    await pass(ageMs)
    const { billing, receiver, events } = world
    const summary = await settled(billing.resume())
    expect(summary).toMatchObject({ total: 1, [state]: 1 })
    expect(receiver.ledger.requests).toHaveLength(state === 'succeeded' ? 1 : 0)
    if (state === 'succeeded') return
    expect(summary.needEvidence).toEqual({ accepted: 0, unknown: 1 })
    expect(events).toContainEqual(
      expect.objectContaining({ type: 'state', from: 'sending', to: 'unknown', reason: 'window-over' }),
    )
    expect(await settled(billing.charge(coffee, order))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'window-over',
      source: 'journal',
    })
    const stop = world.another().start()
    await pass(HOUR_MS)
    stop()
    expect(receiver.ledger.requests).toHaveLength(0)
    const next = settled(billing.charge(coffee, { ...order, revision: 2 }))
    await expect(next).rejects.toMatchObject({ reason: 'earlier-revision-open' })
  })

  test('counts from the event where it is older than the naming', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(503)] } })
    const eventAtMs = Date.now()
    await pass(20 * HOUR_MS)
    // The journal is a day older than nothing: the event is older than its naming and younger than the journal.
    await settled(billing.charge(coffee, { ...order, eventAtMs }))
    const [view] = await viewsOf(billing)
    expect(view).toMatchObject({ windowEndsAtMs: eventAtMs + 23 * HOUR_MS, eventAtMs })
    await pass(3 * HOUR_MS)
    receiver.faults.clear()
    expect(await settled(billing.resume())).toMatchObject({ unknown: 1 })
    expect(receiver.ledger.effects).toHaveLength(0)
  })

  test('is looked at once more just before the fetch, after credentials that took their time', async () => {
    const world = setUp()
    await leaveSending(world)
    await pass(22.99 * HOUR_MS)
    const slow = world.another({
      headers: undefined,
      credentialsTimeoutMs: HOUR_MS,
      credentials: async ({ scope }) => {
        await new Promise((resolve) => setTimeout(resolve, 40_000))
        return { scope, headers: {} }
      },
    })
    expect(await settled(slow.resume({ deadlineMs: HOUR_MS }))).toMatchObject({ total: 1, unknown: 1 })
    expect(world.receiver.ledger.requests).toHaveLength(0)
  })

  test('ends where the clock has gone back by more than the margin: then no clock says how old the key is', async () => {
    const world = setUp()
    await leaveSending(world)
    vi.setSystemTime(Date.now() - HOUR_MS - 60_000)
    expect(await settled(world.another().resume())).toMatchObject({ unknown: 1 })
    expect(world.receiver.ledger.requests).toHaveLength(0)
  })

  test('of a receiver that does not say how long it remembers is sent for 12 hours less the margin', async () => {
    for (const [ageMs, state] of [
      [10.9 * HOUR_MS, 'succeeded'],
      [11.1 * HOUR_MS, 'unknown'],
    ] as const) {
      const world = setUp({ client: { dialect: standard({ keyRetentionMs: 'unpublished' }) } })
      await leaveSending(world)
      await pass(ageMs)
      expect(await settled(world.billing.resume())).toMatchObject({ [state]: 1 })
    }
  })

  test('of names of one’s own counts from the first attempt that was not proven refused', async () => {
    const { billing, receiver, another } = setUp({
      client: { names: 'own', dialect: standard() },
      receiver: { faults: [status(429, { attempt: 1 })] },
    })
    const usage = { operationId: 'reading-1' }
    const report = { meter: 'water', quantity: 3 }
    expect(await settled(billing.recordUsage(report, usage))).toMatchObject({ status: 'deferred' })
    const [view] = await viewsOf(billing)
    expect(view).toMatchObject({ windowEndsAtMs: null })
    await pass(9 * 24 * HOUR_MS)
    expect(await settled(another().resume())).toMatchObject({ succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

test('an outage is tried again until the window ends, with growing waits, and then waits for evidence', async () => {
  const { billing, receiver, events } = setUp({ receiver: { faults: [status(503)] } })
  const stop = billing.start()
  const queued = await settled(
    billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1', background: true }),
  )
  expect(queued).toMatchObject({ status: 'queued' })
  await pass(22 * HOUR_MS)
  const { requests } = receiver.ledger
  // At the cap a wait is random between nothing and five minutes.
  expect(requests.length).toBeGreaterThan(250)
  expect(requests.length).toBeLessThan(1500)
  expect(await billing.find({ key: queued.key })).toMatchObject({ status: 'unknown', delivery: 'continues' })
  await pass(3 * HOUR_MS)
  expect(await billing.find({ key: queued.key })).toMatchObject({ delivery: 'ended', reason: 'window-over' })
  const last = requests.at(-1)!.atMs
  expect(last).toBeLessThan(requests[0]!.atMs + 23 * HOUR_MS)
  const sent = requests.length
  await pass(48 * HOUR_MS)
  expect(requests).toHaveLength(sent)
  expectOneName(receiver)
  expect(events).toContainEqual(expect.objectContaining({ type: 'state', to: 'unknown', reason: 'window-over' }))
  stop()
}, 60_000)

test('an outage that ends within the window ends with one effect', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(502, { afterEffect: true })] } })
  const stop = billing.start()
  await settled(billing.charge(coffee, { ...order, background: true }))
  await pass(10 * HOUR_MS)
  receiver.faults.clear()
  await pass(HOUR_MS)
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
  stop()
}, 60_000)

test('what a call leaves open is taken up by start() when it is due, and not with the next look at all', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [status(429, { attempt: 1, headers: { 'retry-after': '3' } })] },
  })
  const stop = billing.start()
  await pass(60_000)
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred', reason: 'rate-limited' })
  await pass(2000)
  expect(receiver.ledger.requests).toHaveLength(1)
  await pass(5000)
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded' })
  stop()
})

test('a background call is delivered at once, also without start()', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  expect(await settled(billing.charge(coffee, { ...order, background: true }))).toMatchObject({
    status: 'queued',
    attempts: 0,
  })
  await pass(5000)
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(await settled(billing.charge(coffee, { ...order, background: true }))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.requests).toHaveLength(2)
})

test('a background call while offline is queued, and goes when the network is back', async () => {
  await inPage(async (page) => {
    const { billing, receiver } = setUp()
    const stop = billing.start()
    page.online(false)
    expect(await settled(billing.charge(coffee, { ...order, background: true }))).toMatchObject({ status: 'queued' })
    await pass(20 * 60_000)
    expect(receiver.ledger.requests).toHaveLength(0)
    page.online(true)
    page.fire('online')
    await pass(100)
    expect(receiver.ledger.effects).toHaveLength(1)
    stop()
  })
})

test('Retry-After is kept to in the background, by wake-ups and by restarts too', async () => {
  await inPage(async (page) => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '600' } })] },
    })
    const stops = [billing.start()]
    await settled(billing.charge(coffee, { ...order, background: true }))
    await pass(60_000)
    page.fire('online', 'pageshow', 'visibilitychange')
    stops.push(another().start())
    await pass(480_000)
    page.fire('pageshow')
    await pass(30_000)
    expect(receiver.ledger.requests).toHaveLength(1)
    await pass(90_000)
    expect(receiver.ledger.requests).toHaveLength(2)
    expect(receiver.ledger.effects).toHaveLength(1)
    for (const stop of stops) stop()
  })
})

test('a 429 in the background waits for its time and then goes', async () => {
  const { billing, receiver } = setUp({
    receiver: { faults: [status(429, { attempt: [1, 2], headers: { 'Retry-After': '120' } })] },
  })
  const stop = billing.start()
  await settled(billing.charge(coffee, { ...order, background: true }))
  await pass(100_000)
  expect(receiver.ledger.requests).toHaveLength(1)
  await pass(300_000)
  expect(receiver.ledger.requests).toHaveLength(3)
  expect(receiver.ledger.effects).toHaveLength(1)
  stop()
})

test('start() takes up what is there, and again each time; the function it returned stops it', async () => {
  const world = setUp({ receiver: { faults: [status(503)] } })
  await leaveSending(world)
  const { billing, receiver } = world
  const stop = billing.start()
  const again = billing.start()
  await pass(60_000)
  expect(receiver.ledger.requests.length).toBeGreaterThan(2)
  stop()
  stop()
  again()
  await pass(1000)
  const sent = receiver.ledger.requests.length
  await pass(HOUR_MS)
  expect(receiver.ledger.requests).toHaveLength(sent)
  expect(vi.getTimerCount()).toBe(0)
  receiver.faults.clear()
  const later = billing.start()
  await pass(1000)
  expect(receiver.ledger.effects).toHaveLength(1)
  later()
})

test('the function that start() returned lets go of the page at once, also while an attempt is in flight', async () => {
  await inPage(async (page) => {
    const world = setUp({ receiver: { latencyMs: 20_000 } })
    await leaveSending(world)
    const stop = world.billing.start()
    await pass(1000)
    expect(page.listeners()).toBeGreaterThan(0)
    stop()
    expect(page.listeners()).toBe(0)
    await pass(20_000)
    expect(await world.billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded' })
  })
})

test('what another process leaves in the journal is found within a minute', async () => {
  const world = setUp()
  const stop = world.billing.start()
  await pass(10_000)
  await leaveSending(world)
  await pass(60_000)
  expect(world.receiver.ledger.effects).toHaveLength(1)
  stop()
})

test('G59: one that always fails holds up nobody', async () => {
  const fails = { when: (request: { body: string }) => request.body.includes('"cus_bad"') }
  const { billing, receiver } = setUp({ receiver: { faults: [status(500, fails)] } })
  const stop = billing.start()
  for (let number = 1; number <= 50; number += 1) {
    const params = number === 1 ? { ...coffee, customer: 'cus_bad' } : coffee
    await settled(billing.charge(params, { operationId: `order-${number}`, background: true }))
  }
  await pass(30_000)
  expect(receiver.ledger.effects).toHaveLength(49)
  await pass(600_000)
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'unknown', delivery: 'continues' })
  receiver.faults.clear()
  receiver.faults.add(status(400, { ...fails, body: { error: { code: 'no' } } }))
  await pass(600_000)
  // The 500s may have worked, so a 400 from in front of the key layer is no evidence; it is never deleted silently.
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({
    status: 'unknown',
    reason: 'refused-unproven',
  })
  stop()
})

describe('G63: a page in the background', () => {
  test('whose request was killed although the receiver finished asks once more when it is visible, and tells the next caller', async () => {
    await inPage(async (page) => {
      const { billing, receiver } = setUp({
        client: { retry: { ...once, backgroundBaseDelayMs: 300_000 } },
        receiver: { faults: [loseReply({ attempt: 1 })] },
      })
      const stop = billing.start()
      await pass(0)
      page.visible(false)
      const outcome = await settled(billing.charge(coffee, order))
      expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues' })
      await pass(30_000)
      const sent = receiver.ledger.requests.length
      page.visible(true)
      page.fire('visibilitychange', 'pageshow')
      await pass(100)
      expect(receiver.ledger.requests.length).toBeLessThanOrEqual(sent + 1)
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
      expect(receiver.ledger.requests).toHaveLength(2)
      expect(receiver.ledger.effects).toHaveLength(1)
      expectOneName(receiver)
      stop()
    })
  })

  test('becoming hidden wakes nothing', async () => {
    await inPage(async (page) => {
      const world = setUp({
        client: { retry: { backgroundBaseDelayMs: 300_000 } },
        receiver: { faults: [status(503)] },
      })
      await leaveSending(world)
      const stop = world.billing.start()
      await pass(0)
      const sent = world.receiver.ledger.requests.length
      page.visible(false)
      page.fire('visibilitychange')
      await pass(200)
      expect(world.receiver.ledger.requests).toHaveLength(sent)
      stop()
      await pass(60_000)
      expect(page.listeners()).toBe(0)
    })
  })

  test('a caller who still waits gets the result when the page is visible again', async () => {
    await inPage(async (page) => {
      const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
      const asked = billing.charge(coffee, order)
      await quiet()
      page.online(false)
      page.visible(false)
      await pass(30_000)
      expect(receiver.ledger.requests).toHaveLength(1)
      page.online(true)
      page.visible(true)
      page.fire('online', 'visibilitychange', 'pageshow')
      expect(await settled(asked)).toMatchObject({ status: 'succeeded', attempts: 2 })
      expect(receiver.ledger.effects).toHaveLength(1)
    })
  })
})

describe('an idle client leaves the journal alone', () => {
  /** How often the journal is listed in ten minutes of background delivery. */
  async function lookups(prepare: (world: ReturnType<typeof setUp>) => Promise<void>): Promise<number> {
    const world = setUp()
    await prepare(world)
    let lists = 0
    const journal = journalWith(world.journal, (call, run) => {
      if (call.method === 'listDeliverable') lists += 1
      return run()
    })
    const stop = world.another({ journal }).start()
    await pass(600_000)
    stop()
    return lists
  }

  test('while nothing is there', async () => {
    expect(await lookups(async () => {})).toBeLessThanOrEqual(25)
  })

  test('while the device is offline', async () => {
    await inPage(async (page) => {
      const lists = await lookups(async (world) => {
        await leaveSending(world)
        page.online(false)
      })
      expect(lists).toBeLessThanOrEqual(60)
    })
  })

  test('while the only entry is of a kind that it does not know', async () => {
    const note = defineWrite({
      kind: 'note',
      path: 'v1/notes',
      method: 'POST',
      readParams: (params: { text: string }) => params,
      readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
    })
    const lists = await lookups(async (world) => {
      const other = world.another({ retry: once, fetch: () => Promise.reject(new TypeError('Failed to fetch')) })
      expect(await settled(other.write(note, { text: 'x' }, order))).toMatchObject({ status: 'unknown' })
      await other.close()
    })
    expect(lists).toBeLessThanOrEqual(60)
  })

  test('while another client is at work on the only entry', async () => {
    const lists = await lookups(async (world) => {
      world.receiver.faults.add(delay(500_000))
      const other = world.another({ retry: { attemptTimeoutMs: 550_000, deadlineMs: 1000 } })
      await settled(other.charge(coffee, order))
    })
    expect(lists).toBeLessThanOrEqual(60)
  })
})

test('an entry of a kind without a definition is left alone and told, and goes once there is one', async () => {
  const routes = { 'v1/notes': { kind: 'note', idPrefix: 'no_' } }
  const { another, billing, receiver, events } = setUp({ receiver: { routes, faults: [status(503, { attempt: 1 })] } })
  const note = defineWrite({
    kind: 'note',
    path: 'v1/notes',
    method: 'POST',
    readParams: (params: { text: string }) => params,
    readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
  })
  await settled(another({ retry: once }).write(note, { text: 'x' }, order))
  expect(await settled(billing.resume())).toMatchObject({ total: 1, waiting: 1 })
  expect(events).toContainEqual(expect.objectContaining({ type: 'left-alone', why: 'unknown-kind' }))
  expect(await settled(another({ writes: [note] }).resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('an entry of a dialect that is not there waits for evidence', async () => {
  const world = setUp()
  await leaveSending(world)
  const other = world.another({ dialect: { ...standard(), version: 2 } })
  expect(await settled(other.resume())).toMatchObject({ total: 1, unknown: 1 })
  expect(world.receiver.ledger.requests).toHaveLength(0)
  expect(await other.find({ kind: 'charge', ...order })).toMatchObject({ reason: 'dialect-missing', delivery: 'ended' })
})

test('an entry of an older dialect is sent and read by that one', async () => {
  const world = setUp()
  await leaveSending(world)
  let readBy = 0
  const older = standard()
  const other = world.another({
    dialect: { ...standard(), version: 2 },
    olderDialects: [
      {
        ...older,
        classify: (reply, asked) => {
          readBy += 1
          return older.classify(reply, asked)
        },
      },
    ],
  })
  expect(await settled(other.resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(readBy).toBe(1)
})

test('a write for which the receiver takes no key is sent once, and never again by itself', async () => {
  for (const fault of [loseReply({ request: 1 }), status(503, { request: 1 }), status(409, { request: 1 })]) {
    const { billing, another, receiver } = setUp({
      client: { dialect: standard({ withoutKey: ['usage'] }) },
      receiver: { requiresKey: false, faults: [fault] },
    })
    const usage = [{ meter: 'm', quantity: 1 }, { operationId: 'job-1' }] as const
    expect(await settled(billing.recordUsage(...usage))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'takes-no-key',
    })
    expect(await settled(another().recordUsage(...usage))).toMatchObject({ reason: 'takes-no-key' })
    expect(await settled(another().resume())).toMatchObject({ total: 0 })
    expect(receiver.ledger.requests).toHaveLength(1)
  }
})

test('a write without a key that was left in flight by a dead client is not sent again', async () => {
  const { another, receiver } = setUp({
    client: { dialect: standard({ withoutKey: ['usage'] }) },
    receiver: { requiresKey: false },
  })
  const usage = [{ meter: 'm', quantity: 1 }, { operationId: 'job-1' }] as const
  const dead = another({ fetch: () => new Promise<never>(() => {}), retry: { attemptTimeoutMs: 60_000 } })
  void dead.recordUsage(...usage)
  await pass(1000)
  const joiner = another().recordUsage(...usage)
  await pass(30_000)
  expect(receiver.ledger.requests).toHaveLength(0)
  await settled(joiner)
  await pass(2 * CLAIM_MS)
  expect(await settled(another().recordUsage(...usage))).toMatchObject({ status: 'unknown', delivery: 'ended' })
  expect(receiver.ledger.requests).toHaveLength(0)
})

test('a write without a key that was refused or not accepted may go again', async () => {
  const { billing, receiver } = setUp({
    client: { dialect: standard({ withoutKey: ['usage'] }) },
    receiver: { requiresKey: false, faults: [status(429, { request: 1 })] },
  })
  const usage = [{ meter: 'm', quantity: 1 }, { operationId: 'job-1' }] as const
  expect(await settled(billing.recordUsage(...usage))).toMatchObject({ status: 'deferred' })
  expect(await settled(billing.recordUsage(...usage))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('an outage is not answered by a storm: one receiver, one pace', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(503)] } })
  for (let number = 1; number <= 100; number += 1) {
    vi.stubGlobal('navigator', { onLine: false })
    await settled(
      billing.charge(coffee, { operationId: `order-${number}`, background: true, sendBeforeMs: 10 * HOUR_MS }),
    )
    vi.unstubAllGlobals()
  }
  await pass(120_000)
  const before = receiver.ledger.requests.length
  const stop = billing.start()
  await pass(300_000)
  stop()
  // A hundred entries that each kept a back-off of their own would ask over a thousand times.
  expect(receiver.ledger.requests.length - before).toBeLessThan(200)
})

test('calls in the background during an outage join the queue instead of each trying for itself', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(503)] } })
  const stop = billing.start()
  for (let number = 1; number <= 300; number += 1) {
    const usage = { operationId: `job-${number}`, background: true }
    await settled(billing.recordUsage({ meter: 'm', quantity: 1 }, usage))
    await pass(1000)
  }
  expect(receiver.ledger.requests.length).toBeLessThan(600)
  receiver.faults.clear()
  await pass(3_600_000)
  expect(receiver.ledger.effects).toHaveLength(300)
  stop()
})

test('events of a pass say what it did', async () => {
  const world = setUp({ receiver: { faults: [status(503, { attempt: 1 })] } })
  await leaveSending(world)
  const stop = world.billing.start()
  await pass(HOUR_MS)
  stop()
  const types = world.events.map((event: BillingEvent) => event.type)
  expect(types.filter((type) => type === 'attempt-began')).toHaveLength(2)
  expect(world.events).toContainEqual(expect.objectContaining({ type: 'retry-scheduled', by: 'background' }))
  expect(world.events).toContainEqual(expect.objectContaining({ type: 'state', from: 'sending', to: 'succeeded' }))
})
