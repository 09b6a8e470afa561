/** Two clients on one journal: tabs, workers, logins. One sender for each entry; and where there are two, one effect. */
import { forgetfulJournal, OperationConflictError } from 'billonce'
import type { BillingClient } from 'billonce'
import { delay, loseReply, status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { coffee, pass, quiet, SCOPE, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'
import { inPage } from './page.ts'
import { CLAIM_MS, expectOneName, journalWith } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }

/** Leaves so many pending charges in the journal. */
async function leavePending(billing: BillingClient, count: number): Promise<void> {
  vi.stubGlobal('navigator', { onLine: false })
  for (let number = 1; number <= count; number += 1) {
    const controller = new AbortController()
    const asked = billing.charge(coffee, { operationId: `order-${number}`, signal: controller.signal }).catch(() => {})
    await quiet()
    controller.abort()
    await asked
  }
  vi.unstubAllGlobals()
}

describe('G46', () => {
  test('two resumes at once are one pass, and each entry is sent once', async () => {
    let listed = 0
    const journal = journalWith(forgetfulJournal(), (call, run) => {
      if (call.method === 'countOpen') listed += 1
      return run()
    })
    const { billing, receiver } = setUp({ journal })
    await leavePending(billing, 20)
    const [one, two] = await settled(Promise.all([billing.resume(), billing.resume()]))
    expect(listed).toBe(1)
    expect(one).toMatchObject({ total: 20, succeeded: 20 })
    expect(two).toEqual(one)
    expect(receiver.ledger.requests).toHaveLength(20)
  })

  test('online, visibilitychange and pageshow in one tick make one attempt for each entry', async () => {
    await inPage(async (page) => {
      const { billing, receiver } = setUp({ receiver: { latencyMs: 2000 } })
      await leavePending(billing, 5)
      vi.stubGlobal('navigator', { onLine: false })
      const stop = billing.start()
      await pass(10_000)
      expect(receiver.ledger.requests).toHaveLength(0)
      vi.stubGlobal('navigator', { onLine: true })
      page.fire('online', 'visibilitychange', 'pageshow')
      await pass(500)
      page.fire('pageshow', 'online')
      const resumed = billing.resume()
      await pass(60_000)
      expect(await settled(resumed)).toMatchObject({ total: 5, succeeded: 5 })
      expect(receiver.ledger.requests).toHaveLength(5)
      expect(receiver.ledger.effects).toHaveLength(5)
      stop()
      await pass(60_000)
      expect(page.listeners()).toBe(0)
    })
  })

  test('a call, a resume and background delivery share one attempt', async () => {
    const { billing, receiver } = setUp({ receiver: { latencyMs: 2000 } })
    await leavePending(billing, 1)
    const stop = billing.start()
    const [outcome, summary] = await settled(Promise.all([billing.charge(coffee, order), billing.resume()]))
    expect(outcome).toMatchObject({ status: 'succeeded', attempts: 1 })
    expect(summary).toMatchObject({ succeeded: 1 })
    expect(receiver.ledger.requests).toHaveLength(1)
    stop()
  })
})

describe('G47: two clients that drain one journal of 50', () => {
  test('send each entry once', async () => {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 100 } })
    await leavePending(billing, 50)
    const [one, two] = await settled(Promise.all([billing.resume(), another().resume()]))
    expect(one).toMatchObject({ total: 50, succeeded: 50 })
    expect(two.succeeded + two.waiting).toBe(two.total)
    expect(receiver.ledger.requests).toHaveLength(50)
    expect(receiver.ledger.effects).toHaveLength(50)
  })

  test('under start() send each entry once', async () => {
    const { billing, another, receiver } = setUp({ receiver: { latencyMs: 100 } })
    await leavePending(billing, 50)
    const stops = [billing, another(), another()].map((client) => client.start())
    await pass(60_000)
    expect(receiver.ledger.requests).toHaveLength(50)
    expect(receiver.ledger.effects).toHaveLength(50)
    for (const stop of stops) stop()
  })

  test('settle each once under one key and one body where claims keep nobody away', async () => {
    const { billing, another, receiver, journal } = setUp({ receiver: { latencyMs: 100 } })
    await leavePending(billing, 50)
    const lockless = journalWith(journal, async (call, run) => (call.method === 'isGone' ? true : await run()))
    const clients = [another({ journal: lockless }), another({ journal: lockless })]
    await settled(Promise.all(clients.map((client) => client.resume())))
    await settled(Promise.all(clients.map((client) => client.resume())))
    expect(receiver.ledger.requests.length).toBeGreaterThan(50)
    expect(receiver.ledger.effects).toHaveLength(50)
    expect(receiver.ledger.duplicates()).toEqual([])
    expect(receiver.ledger.summary().keysWithOtherBytes).toBe(0)
    const views = await viewsOf(billing)
    expect(views.map((view) => view.state)).toEqual(Array.from({ length: 50 }, () => 'succeeded'))
  })
})

describe('G25: a hidden tab, whose timers run once a minute', () => {
  test('keeps its claim over a slow request without a heartbeat, and the tab that looks for work meanwhile sends nothing', async () => {
    // The slow request outlasts the other tab's patience; no timer of the first tab has run in between.
    const { billing, another, receiver, journal } = setUp({ receiver: { faults: [delay(29_000, { attempt: 1 })] } })
    const writes: string[] = []
    const watched = journalWith(journal, async (call, run) => {
      if (call.method === 'replace') writes.push('replace')
      return await run()
    })
    const hidden = another({ journal: watched }).charge(coffee, order)
    await pass(1000)
    const other = another()
    const stop = other.start()
    await pass(20_000)
    expect(await settled(other.resume({ deadlineMs: 5000 }))).toMatchObject({ total: 1, waiting: 1 })
    expect(receiver.ledger.requests).toHaveLength(1)
    // Nothing renewed the claim: it is long enough by itself.
    expect(writes).toEqual([])
    expect(await settled(hidden)).toMatchObject({ status: 'succeeded', attempts: 1 })
    stop()
    expect(receiver.ledger.requests).toHaveLength(1)
    expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded' })
  })

  test('its claim outlasts the minute for which timers may be held back, also between two attempts', async () => {
    const { another, receiver, journal } = setUp({ receiver: { faults: [status(503, { attempt: 1 })] } })
    const first = another({ retry: { baseDelayMs: 30_000 } }).charge(coffee, order)
    await pass(10)
    const [entry] = await journal.history({ scope: SCOPE, kind: 'charge', operationId: order.operationId })
    expect((entry?.claim?.untilMs ?? 0) - Date.now()).toBeGreaterThan(60_000)
    await settled(first)
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

describe('G48: a request that takes longer than anybody thought', () => {
  test('keeps its claim while it is in flight: another client waits for it', async () => {
    const { billing, another, receiver } = setUp({ receiver: { faults: [delay(29_000, { attempt: 1 })] } })
    const one = billing.charge(coffee, order)
    await pass(1000)
    const two = another().charge(coffee, order)
    expect(await settled(two)).toMatchObject({ status: 'succeeded', attempts: 1, source: 'journal' })
    expect(await settled(one)).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('keeps it over the waits between attempts too', async () => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '20' } })] },
    })
    const one = billing.charge(coffee, order)
    await pass(1000)
    const two = another().charge(coffee, order)
    expect(await settled(two)).toMatchObject({ status: 'succeeded', attempts: 2, source: 'journal' })
    expect(await settled(one)).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(receiver.ledger.requests).toHaveLength(2)
  })

  test('taken over in spite of it, it is asked for under the same key, and both settle on one result', async () => {
    const { billing, another, receiver, journal } = setUp({ receiver: { faults: [delay(20_000, { attempt: 1 })] } })
    const lockless = journalWith(journal, async (call, run) => (call.method === 'isGone' ? true : await run()))
    const one = billing.charge(coffee, order)
    await pass(1000)
    const two = another({ journal: lockless, retry: { maxAttempts: 50 } }).charge(coffee, order)
    const outcomes = await settled(Promise.all([one, two]))
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded'])
    expect(receiver.ledger.requests.length).toBeGreaterThan(1)
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
    const [view] = await viewsOf(billing)
    expect(view).toMatchObject({ state: 'succeeded' })
    expect(view?.attempts[0]).toMatchObject({ result: 'succeeded' })
  })

  test('a claim whose holder is gone ends, and the next one sends', async () => {
    const { billing, another, receiver } = setUp({
      client: { fetch: () => new Promise<never>(() => {}), retry: { attemptTimeoutMs: 600_000, deadlineMs: 1000 } },
    })
    void billing.charge(coffee, order)
    await pass(2000)
    const next = another({ fetch: receiver.fetch, retry: { deadlineMs: 2_000_000 } })
    expect(await settled(next.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('a client that is closed between two attempts leaves nobody waiting for it', async () => {
    const { billing, another } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '5' } })] },
    })
    const asked = billing.charge(coffee, order)
    await pass(100)
    await settled(billing.close())
    expect(await settled(asked)).toMatchObject({ status: 'unknown', delivery: 'continues' })
    const began = performance.now()
    expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(performance.now() - began).toBeLessThan(10_000)
  })

  test('a caller who gives up between two attempts leaves nobody waiting for it', async () => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '5' } })] },
    })
    const controller = new AbortController()
    const asked = billing.charge(coffee, { ...order, signal: controller.signal }).catch(() => {})
    await pass(100)
    controller.abort()
    await asked
    await pass(1000)
    const began = performance.now()
    expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(performance.now() - began).toBeLessThan(10_000)
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

describe('G49', () => {
  test('what one account left is not sent under the next one’s login, and stays for the first', async () => {
    const { billing, another, receiver } = setUp({
      client: { scope: 'account_a/live', headers: { authorization: 'Bearer a' } },
    })
    await leavePending(billing, 1)
    const asB = another({ scope: 'account_b/live', headers: { authorization: 'Bearer b' } })
    expect(await settled(asB.resume())).toMatchObject({
      total: 0,
      elsewhere: [{ endpoint: 'https://billing.test/', scope: 'account_a/live', count: 1 }],
    })
    const stop = asB.start()
    await pass(600_000)
    stop()
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await viewsOf(asB)).toEqual([])
    expect(await asB.find({ kind: 'charge', ...order })).toBeUndefined()
    const [mine] = await viewsOf(billing)
    expect(await asB.find({ key: mine!.key })).toBeUndefined()
    await expect(asB.cancel({ key: mine!.key })).rejects.toMatchObject({ code: 'ERR_NOT_CANCELABLE' })
    expect(
      await settled(another({ scope: 'account_a/live', headers: { authorization: 'Bearer a' } }).resume()),
    ).toMatchObject({
      succeeded: 1,
    })
    expect(new Set(receiver.ledger.requests.map((request) => request.account)).size).toBe(1)
  })

  test('equal operation ids of two accounts, and of test and live, do not meet', async () => {
    const { another, receiver } = setUp()
    const outcomes = []
    for (const scope of ['account_a/live', 'account_b/live', 'account_a/test']) {
      outcomes.push(await settled(another({ scope }).charge({ ...coffee, amount: 100 + outcomes.length }, order)))
    }
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded', 'succeeded'])
    expect(new Set(outcomes.map((outcome) => outcome.key)).size).toBe(3)
    expect(receiver.ledger.effects).toHaveLength(3)
  })

  test('credentials of another account hold the entry, also where the client is of the right one', async () => {
    let scope = SCOPE
    const { billing, receiver } = setUp({
      client: { headers: undefined, credentials: () => ({ scope, headers: { authorization: `Bearer ${scope}` } }) },
      receiver: { faults: [loseReply({ attempt: 1 })] },
    })
    scope = 'account_b/live'
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred', reason: 'other-login' })
    const stop = billing.start()
    await pass(600_000)
    stop()
    expect(receiver.ledger.requests).toHaveLength(0)
    scope = SCOPE
    expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('another base address sends none of it, and the same name there is a conflict', async () => {
    const { billing, another, receiver } = setUp()
    await leavePending(billing, 1)
    const moved = another({ baseUrl: 'https://elsewhere.test' })
    expect(await settled(moved.resume())).toMatchObject({
      total: 0,
      elsewhere: [{ endpoint: 'https://billing.test/', scope: SCOPE, count: 1 }],
    })
    const error: unknown = await settled(moved.charge(coffee, order)).catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(OperationConflictError)
    expect(error).toMatchObject({ fields: ['endpoint'] })
    expect(receiver.ledger.requests).toHaveLength(0)
    expect(await moved.find({ kind: 'charge', ...order })).toBeUndefined()
  })

  test('an endpoint with an id keeps it when its address moves', async () => {
    const { another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    const before = another({ endpoint: 'billing-eu', retry: { maxAttempts: 1 } })
    expect(await settled(before.charge(coffee, order))).toMatchObject({ status: 'unknown' })
    const after = another({ endpoint: 'billing-eu', baseUrl: 'https://new.test' })
    expect(await settled(after.resume())).toMatchObject({ succeeded: 1, elsewhere: [] })
    expect(receiver.ledger.requests).toHaveLength(2)
    expectOneName(receiver)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('two endpoints with ids may have the same name; one with and one without may not', async () => {
    const { another, receiver } = setUp()
    expect(await settled(another({ endpoint: 'one' }).charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    expect(await settled(another({ endpoint: 'two' }).charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    await expect(settled(another().charge(coffee, order))).rejects.toMatchObject({ fields: ['endpoint'] })
    expect(receiver.ledger.requests).toHaveLength(2)
  })

  test('what lies elsewhere is told by start() too, without saying whose it is', async () => {
    const { billing, another } = setUp()
    await leavePending(billing, 2)
    const events: unknown[] = []
    const other = another({ scope: 'other/live' })
    const third = another({ baseUrl: 'https://elsewhere.test' })
    for (const client of [other, third]) client.subscribe((event) => events.push(event))
    const stops = [other.start(), third.start()]
    await pass(100)
    for (const stop of stops) stop()
    expect(events).toContainEqual(expect.objectContaining({ type: 'left-alone', why: 'other-scope', count: 2 }))
    expect(events).toContainEqual(expect.objectContaining({ type: 'left-alone', why: 'other-endpoint', count: 2 }))
    expect(JSON.stringify(events)).not.toContain(SCOPE)
  })
})

test('two clients that open one operation at once make one entry, one key and one effect', async () => {
  const { billing, another, receiver } = setUp({ receiver: { latencyMs: 50 } })
  const clients = [billing, ...Array.from({ length: 9 }, () => another())]
  const outcomes = await settled(Promise.all(clients.map((client) => client.charge(coffee, order))))
  expect(outcomes.every((outcome) => outcome.status === 'succeeded')).toBe(true)
  expect(new Set(outcomes.map((outcome) => outcome.key)).size).toBe(1)
  expect(receiver.ledger.requests).toHaveLength(1)
  expect(await viewsOf(billing)).toHaveLength(1)
  await pass(CLAIM_MS)
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('a caller kept waiting by its credentials is told at its deadline what another client did meanwhile', async () => {
  const { billing, another, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'deferred' })
  const held = another({ headers: undefined, credentials: () => new Promise(() => {}) })
  const waiting = held.charge(coffee, { ...order, deadlineMs: 5000 })
  await pass(1000)
  expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  // Not «deferred»: that would say that it is certainly not done.
  expect(await settled(waiting)).toMatchObject({ status: 'succeeded', source: 'journal' })
  expect(receiver.ledger.effects).toHaveLength(1)
})
