/** Cancel, reopen and `sendBeforeMs`: only what is certainly without effect ends so, and the key stays what it was. */
import { forgetfulJournal, NotCancelableError } from 'billonce'
import type { BillingClient, Outcome } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { CLAIM_MS, expectOneName, journalWith } from '../engine/tampering.ts'
import { coffee, pass, quiet, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const ref = { kind: 'charge', ...order }
const HOUR_MS = 3_600_000
const limited = { faults: [status(429, { attempt: 1 })] }

/** A charge that waits: certainly not done. */
async function deferred(billing: BillingClient, params = coffee): Promise<Outcome> {
  const outcome = await settled(billing.charge(params, order))
  expect(outcome).toMatchObject({ status: 'deferred' })
  return outcome
}

describe('cancel()', () => {
  test('ends a pending entry, durably: nothing sends it any more, and naming it again says so', async () => {
    const { billing, another, receiver, events } = setUp({ receiver: limited })
    const { key } = await deferred(billing)
    expect(await settled(billing.cancel(ref))).toMatchObject({ status: 'canceled', by: 'caller', key })
    expect(events).toContainEqual(expect.objectContaining({ type: 'state', from: 'pending', to: 'canceled' }))
    expect(await settled(another().resume())).toMatchObject({ total: 0 })
    expect(await settled(another().charge(coffee, order))).toMatchObject({
      status: 'canceled',
      by: 'caller',
      source: 'journal',
    })
    const stop = another().start()
    await pass(HOUR_MS)
    stop()
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('while a call waits for the network ends its waiting too, within a second or two', async () => {
    const { billing, receiver } = setUp()
    vi.stubGlobal('navigator', { onLine: false })
    try {
      const waiting = billing.charge(coffee, order)
      await pass(5000)
      await settled(billing.cancel(ref))
      const canceledAtMs = Date.now()
      expect(await settled(waiting)).toMatchObject({ status: 'canceled', by: 'caller' })
      expect(Date.now() - canceledAtMs).toBeLessThanOrEqual(2000)
    } finally {
      vi.unstubAllGlobals()
    }
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test('twice is once, by name or by key', async () => {
    const { billing } = setUp({ receiver: limited })
    const { key } = await deferred(billing)
    const [one, two] = await settled(Promise.all([billing.cancel(ref), billing.cancel({ key })]))
    expect([one.status, two.status]).toEqual(['canceled', 'canceled'])
    expect(await settled(billing.cancel(ref))).toMatchObject({ status: 'canceled', by: 'caller' })
  })

  test('of what the journal does not hold is refused', async () => {
    const { billing } = setUp()
    for (const unknown of [ref, { key: '00000000-0000-0000-0000-000000000000' }]) {
      await expect(billing.cancel(unknown)).rejects.toBeInstanceOf(NotCancelableError)
    }
  })

  const refusals: [string, Parameters<typeof setUp>[0], object, string][] = [
    ['succeeded', {}, coffee, 'succeeded'],
    ['rejected', {}, { ...coffee, paymentMethod: 'pm_declined' }, 'rejected'],
    ['accepted', {}, { ...coffee, paymentMethod: 'pm_requires_action' }, 'accepted'],
    ['sending', { receiver: { faults: [status(503)] } }, coffee, 'sending'],
    [
      'unknown',
      { receiver: { faults: [status(422, { body: { error: { code: 'idempotency_key_reused' } } })] } },
      coffee,
      'unknown',
    ],
  ]

  test.each(refusals)(
    'of an entry that is %s is refused, and the entry is not touched',
    async (_what, options, params, state) => {
      const { billing, journal } = setUp(options)
      const outcome = await settled(billing.charge(params as typeof coffee, order))
      const before = await journal.list({}, 10)
      const error: unknown = await billing.cancel(ref).catch((thrown: unknown) => thrown)
      expect(error).toBeInstanceOf(NotCancelableError)
      expect(error).toMatchObject({
        code: 'ERR_NOT_CANCELABLE',
        entry: { key: outcome.key, state },
        sentByThisCall: false,
      })
      expect(await journal.list({}, 10)).toEqual(before)
    },
  )

  test('while its attempt is in flight is refused', async () => {
    const { billing, receiver } = setUp({ receiver: { latencyMs: 1000 } })
    const asked = billing.charge(coffee, order)
    await pass(100)
    await expect(billing.cancel(ref)).rejects.toMatchObject({ entry: { state: 'sending' } })
    expect(await settled(asked)).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('ends the wait of a caller who has it under way, with the outcome', async () => {
    const { billing, another, receiver } = setUp({
      receiver: { faults: [status(429, { attempt: 1, headers: { 'Retry-After': '20' } })] },
    })
    await deferred(billing)
    const waiting = billing.charge(coffee, order)
    await pass(1000)
    expect(await settled(another().cancel(ref))).toMatchObject({ status: 'canceled' })
    expect(await settled(waiting)).toMatchObject({ status: 'canceled', by: 'caller' })
    await pass(60_000)
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('against a begin at the same moment: one of the two wins, and never both', async () => {
    for (let turn = 0; turn < 12; turn += 1) {
      const inner = forgetfulJournal()
      const { billing, another, receiver } = setUp({
        journal: inner,
        receiver: { faults: [status(429, { request: 1 })] },
      })
      await deferred(billing)
      const slow = journalWith(inner, async (_call, run) => {
        for (let step = 0; step < turn; step += 1) await Promise.resolve()
        return await run()
      })
      const [outcome, canceled] = await settled(
        Promise.all([
          billing.charge(coffee, order),
          another({ journal: slow })
            .cancel(ref)
            .catch((error: unknown) => error),
        ]),
      )
      if (canceled instanceof Error) expect(outcome).toMatchObject({ status: 'succeeded' })
      else expect(outcome).toMatchObject({ status: 'canceled' })
      expect(receiver.ledger.effects).toHaveLength(canceled instanceof Error ? 1 : 0)
    }
  })

  test('of an event that is older than the journal is refused: another journal may have sent it', async () => {
    const { billing } = setUp({ receiver: limited })
    const outcome = await settled(billing.charge(coffee, { ...order, eventAtMs: Date.now() - HOUR_MS }))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'continues' })
    await expect(billing.cancel(ref)).rejects.toBeInstanceOf(NotCancelableError)
  })

  test('that the journal could not write is a typed error, and the entry stays', async () => {
    const inner = forgetfulJournal()
    const { billing, another } = setUp({ journal: inner, receiver: limited })
    await deferred(billing)
    const failing = journalWith(inner, (call, run) =>
      call.method === 'replace' ? Promise.reject(new Error('full')) : run(),
    )
    await expect(another({ journal: failing }).cancel(ref)).rejects.toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE' })
    expect(await billing.find(ref)).toMatchObject({ status: 'deferred' })
  })
})

describe('a canceled operation named again', () => {
  test('with reopen goes on under its key', async () => {
    const { billing, another, receiver } = setUp({ receiver: limited })
    const { key } = await deferred(billing)
    await settled(billing.cancel(ref))
    const outcome = await settled(another().charge(coffee, { ...order, reopen: true }))
    expect(outcome).toMatchObject({ status: 'succeeded', key, revision: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  })

  test('with reopen may have another body, which is then the one that is compared and sent', async () => {
    const { billing, receiver } = setUp({ receiver: limited })
    const { key } = await deferred(billing)
    await settled(billing.cancel(ref))
    const dearer = { ...coffee, amount: 900 }
    expect(await settled(billing.charge(dearer, { ...order, reopen: true }))).toMatchObject({
      status: 'succeeded',
      key,
    })
    expect(receiver.ledger.effects).toMatchObject([{ params: { amount: 900 } }])
    await expect(settled(billing.charge(coffee, order))).rejects.toMatchObject({ fields: ['amount'] })
  })

  test('if it was sent after all, the receiver’s comparison still protects', async () => {
    const { billing, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1, afterEffect: true })] } })
    await deferred(billing)
    await settled(billing.cancel(ref))
    const outcome = await settled(billing.charge({ ...coffee, amount: 900 }, { ...order, reopen: true }))
    expect(outcome).toMatchObject({ status: 'unknown', delivery: 'ended', reason: 'key-conflict' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('without reopen and with other parameters is a conflict', async () => {
    const { billing } = setUp({ receiver: limited })
    await deferred(billing)
    await settled(billing.cancel(ref))
    await expect(settled(billing.charge({ ...coffee, amount: 900 }, order))).rejects.toMatchObject({
      fields: ['amount'],
    })
  })

  test('reopen changes nothing for one that is not canceled', async () => {
    const { billing, receiver } = setUp()
    await settled(billing.charge(coffee, { ...order, reopen: true }))
    expect(await settled(billing.charge(coffee, { ...order, reopen: true }))).toMatchObject({
      status: 'succeeded',
      source: 'journal',
    })
    await expect(settled(billing.charge({ ...coffee, amount: 1 }, { ...order, reopen: true }))).rejects.toMatchObject({
      fields: ['amount'],
    })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('does not begin a new window: past the first one it waits for evidence', async () => {
    const { billing, receiver } = setUp({ receiver: limited })
    await deferred(billing)
    await settled(billing.cancel(ref))
    await pass(24 * HOUR_MS)
    expect(await settled(billing.charge(coffee, { ...order, reopen: true }))).toMatchObject({
      status: 'unknown',
      delivery: 'ended',
      reason: 'window-over',
    })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('by two callers at once is one delivery', async () => {
    const { billing, another, receiver } = setUp({ receiver: limited })
    await deferred(billing)
    await settled(billing.cancel(ref))
    const again = { ...order, reopen: true }
    const outcomes = await settled(
      Promise.all([billing.charge(coffee, again), billing.charge(coffee, again), another().charge(coffee, again)]),
    )
    expect(outcomes.map((outcome) => outcome.status)).toEqual(['succeeded', 'succeeded', 'succeeded'])
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  })
})

describe('sendBeforeMs', () => {
  test('a pending charge is canceled, not sent, after an hour', async () => {
    const { billing, another, receiver, events } = setUp({
      receiver: { faults: [status(429, { headers: { 'Retry-After': '7200' } })] },
    })
    const outcome = await deferred(billing)
    expect(outcome).toMatchObject({ sendBeforeAtMs: Date.now() + HOUR_MS })
    const stop = billing.start()
    await pass(3 * HOUR_MS)
    stop()
    expect(await another().find(ref)).toMatchObject({ status: 'canceled', by: 'send-before' })
    expect(events).toContainEqual(expect.objectContaining({ type: 'state', from: 'pending', to: 'canceled' }))
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('it is canceled about when the hour is over, not when its next attempt would be due', async () => {
    const { billing } = setUp({ receiver: { faults: [status(429, { headers: { 'Retry-After': '36000' } })] } })
    await deferred(billing)
    const stop = billing.start()
    await pass(HOUR_MS + 120_000)
    stop()
    expect(await billing.find(ref)).toMatchObject({ status: 'canceled', by: 'send-before' })
  })

  test('usage and credits have none', async () => {
    const { billing, another, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
    await settled(billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1' }))
    await settled(billing.consumeCredits({ amount: 1 }, { operationId: 'job-1' }))
    await pass(5 * HOUR_MS)
    expect(await settled(another().resume())).toMatchObject({ succeeded: 2 })
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('a call may set its own, and a receiver that answers in time gets it', async () => {
    const { billing, another, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
    const short = { ...order, sendBeforeMs: 1000 }
    await settled(billing.charge(coffee, short))
    await settled(billing.charge(coffee, { operationId: 'order-2', sendBeforeMs: 10 * HOUR_MS }))
    await pass(2 * HOUR_MS)
    expect(await settled(another().resume())).toMatchObject({ total: 2, succeeded: 1, canceled: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('what may have been sent is not canceled by it', async () => {
    const { billing, another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(billing.charge(coffee, { ...order, deadlineMs: 1, sendBeforeMs: 1000 }))
    await pass(2 * HOUR_MS)
    const found = await another().find(ref)
    if (found?.status !== 'succeeded') expect(await settled(another().resume())).toMatchObject({ succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('credentials that take longer than it: nothing is sent', async () => {
    const { billing, receiver } = setUp({
      client: {
        headers: undefined,
        credentials: async ({ scope }) => {
          await new Promise((resolve) => setTimeout(resolve, 5000))
          return { scope, headers: {} }
        },
      },
    })
    expect(await settled(billing.charge(coffee, { ...order, sendBeforeMs: 2000 }))).toMatchObject({
      status: 'canceled',
      by: 'send-before',
    })
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test('named again afterwards it is opened again by any call, with a time of its own', async () => {
    const { billing, another, receiver } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
    const { key } = await deferred(billing)
    await pass(2 * HOUR_MS)
    expect(await settled(another().resume())).toMatchObject({ canceled: 1 })
    const dearer = { ...coffee, amount: 900 }
    expect(await settled(another().charge(dearer, order))).toMatchObject({ status: 'succeeded', key })
    expect(receiver.ledger.effects).toMatchObject([{ params: { amount: 900 } }])
  })

  test('named again after its time, the answer is the same whether a pass came by before or not', async () => {
    const answers = []
    for (const isSwept of [true, false]) {
      const { billing, another } = setUp({ receiver: { faults: [status(429, { attempt: 1 })] } })
      await deferred(billing)
      await pass(2 * HOUR_MS)
      if (isSwept) await settled(another().resume())
      answers.push((await settled(billing.charge(coffee, order))).status)
    }
    expect(answers[0]).toBe(answers[1])
  })

  test.each([0, -1, Number.NaN, '1h' as unknown as number])('%s is refused', async (sendBeforeMs) => {
    const { billing } = setUp()
    await expect(billing.charge(coffee, { ...order, sendBeforeMs })).rejects.toMatchObject({ field: 'sendBeforeMs' })
  })

  test('an offline charge that waits too long is not sent when the network is back', async () => {
    vi.stubGlobal('navigator', { onLine: false })
    try {
      const { billing, receiver } = setUp()
      await deferred(billing)
      await pass(2 * HOUR_MS)
      vi.stubGlobal('navigator', { onLine: true })
      expect(await settled(billing.resume())).toMatchObject({ canceled: 1 })
      expect(receiver.ledger.requests).toHaveLength(0)
      await quiet()
      expect(await viewsOf(billing)).toMatchObject([{ state: 'canceled', nextAttemptAtMs: null }])
    } finally {
      vi.unstubAllGlobals()
      await pass(CLAIM_MS)
    }
  })
})
