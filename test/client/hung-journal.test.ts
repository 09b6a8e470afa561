/** A journal that never answers holds up no caller beyond the caller's own signal and deadline, and nothing is sent. */
import { forgetfulJournal } from 'billonce'
import type { Outcome } from 'billonce'
import { expect, test } from 'vitest'
import { journalWith, slowJournal } from '../engine/tampering.ts'
import type { Method } from '../engine/tampering.ts'
import { coffee, pass, setUp, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }

/** What came within a minute. */
async function soon(asked: Promise<unknown>): Promise<unknown> {
  return await Promise.race([asked, pass(60_000).then(() => 'still waiting')])
}

function hungAt(method: Method): ReturnType<typeof setUp> {
  const journal = journalWith(forgetfulJournal(), (call, run) =>
    call.method === method ? new Promise<never>(() => {}) : run(),
  )
  return setUp({ journal })
}

test.each(['insert', 'knowsSinceMs'] as const)('an abort ends a call whose journal hangs at %s', async (method) => {
  const { billing, receiver } = hungAt(method)
  const controller = new AbortController()
  const options = { ...order, eventAtMs: Date.now(), signal: controller.signal }
  const asked = billing.charge(coffee, options).catch((error: unknown) => error)
  await pass(1000)
  controller.abort()
  expect(await soon(asked)).toMatchObject({ code: 'ERR_DELIVERY_ABORTED', sentByThisCall: false })
  await pass(60_000)
  expect(receiver.ledger.requests).toHaveLength(0)
})

test.each(['insert', 'knowsSinceMs'] as const)('the deadline ends a call whose journal hangs at %s', async (method) => {
  const { billing, receiver } = hungAt(method)
  const options = { ...order, eventAtMs: Date.now(), deadlineMs: 5000 }
  const asked = billing.charge(coffee, options).catch((error: unknown) => error)
  expect(await soon(asked)).toMatchObject({
    code: 'ERR_JOURNAL_UNAVAILABLE',
    fault: 'timeout',
    sentByThisCall: false,
  })
  expect(receiver.ledger.requests).toHaveLength(0)
})

test('a receipt reaches its caller by the deadline although the journal hangs at writing it down', async () => {
  const { billing, receiver } = hungAt('replace')
  const outcome = await soon(billing.charge(coffee, { ...order, deadlineMs: 5000 }))
  expect(['succeeded', 'unknown']).toContain((outcome as Outcome).status)
  expect(receiver.ledger.effects).toHaveLength(1)
})

test.each(['get', 'isGone', 'history', 'replace'] as const)(
  'the deadline and an abort end a wait for another client, where the journal hangs at %s',
  async (method) => {
    for (const way of ['deadline', 'abort'] as const) {
      const { billing, another, journal, receiver } = setUp({ receiver: { latencyMs: 25_000 } })
      const first = billing.charge(coffee, order)
      await pass(1000)
      const hung = journalWith(journal, (call, run) => (call.method === method ? new Promise<never>(() => {}) : run()))
      const controller = new AbortController()
      const options = way === 'deadline' ? { deadlineMs: 3000 } : { signal: controller.signal }
      const asked = another({ journal: hung })
        .charge(coffee, { ...order, ...options })
        .catch((error: unknown) => error)
      await pass(2000)
      if (way === 'abort') controller.abort()
      expect(await soon(asked), way).not.toBe('still waiting')
      expect(await first).toMatchObject({ status: 'succeeded' })
      expect(receiver.ledger.requests).toHaveLength(1)
    }
  },
)

test('close() does not wait for ever for a journal that hangs', async () => {
  for (const method of ['insert', 'replace', 'get'] as const) {
    const { billing } = hungAt(method)
    billing.charge(coffee, order).catch(() => {})
    await pass(100)
    expect(await soon(billing.close()), method).not.toBe('still waiting')
  }
})

test.each([true, false])(
  'a call that ended before its entry was written vouches only for what stays so (background: %s)',
  async (background) => {
    for (const way of ['deadline', 'abort'] as const) {
      const { billing, receiver } = setUp({ journal: slowJournal(forgetfulJournal(), 2000) })
      const controller = new AbortController()
      const options = way === 'deadline' ? { deadlineMs: 1000 } : { signal: controller.signal }
      const asked = billing.charge(coffee, { ...order, background, ...options }).catch((error: unknown) => error)
      await pass(500)
      if (way === 'abort') controller.abort()
      const error = await soon(asked)
      expect(error).toMatchObject({ sentByThisCall: false })
      // The write under way goes through all the same.
      expect(String(error)).not.toMatch(/before anything was written/)
      await pass(60_000)
      expect(receiver.ledger.requests, way).toHaveLength(0)
    }
  },
)
