/** One pass over what is deliverable: its summary, its progress, and what it leaves alone. */
import type { ResumeProgress } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'
import { broken, CLAIM_MS, journalWith } from './tampering.ts'

virtualTime()

const order = { operationId: 'order-1' }

/** Charges whose one attempt was lost on the way. */
async function leaveOpen(world: ReturnType<typeof setUp>, payments: readonly string[]): Promise<void> {
  const lost = world.another({
    retry: { maxAttempts: 1 },
    fetch: () => Promise.reject(new TypeError('Failed to fetch')),
  })
  for (const [index, paymentMethod] of payments.entries()) {
    await settled(lost.charge({ ...coffee, paymentMethod }, { operationId: `order-${index + 1}` }))
  }
  await lost.close()
}

test('the summary counts what came of each entry', async () => {
  const world = setUp()
  await leaveOpen(world, ['pm_card', 'pm_card', 'pm_declined', 'pm_requires_action', 'pm_processing', 'pm_card'])
  world.receiver.faults.add(status(500, { when: (request) => request.number === 1 }))
  const { billing, receiver } = world
  const summary = await settled(billing.resume())
  expect(summary).toEqual({
    total: 6,
    succeeded: 3,
    accepted: 2,
    rejected: 1,
    canceled: 0,
    unknown: 0,
    waiting: 0,
    failed: 0,
    unreadable: 0,
    needEvidence: { accepted: 2, unknown: 0 },
    elsewhere: [],
  })
  expect(receiver.ledger.effects).toHaveLength(5)
  expect(await settled(billing.resume())).toMatchObject({ total: 0, needEvidence: { accepted: 2, unknown: 0 } })
})

test('accepted and unknown entries are counted and never sent', async () => {
  const { billing, receiver } = setUp()
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_requires_action' }, order))
  receiver.faults.add(status(422, { body: { error: { code: 'idempotency_key_reused' } } }))
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  const sent = receiver.ledger.requests.length
  expect(await settled(billing.resume())).toMatchObject({ total: 0, needEvidence: { accepted: 1, unknown: 1 } })
  const stop = billing.start()
  await pass(3_600_000)
  stop()
  expect(receiver.ledger.requests).toHaveLength(sent)
})

test('entries are sent oldest first', async () => {
  const world = setUp({ client: { concurrency: 1 } })
  await leaveOpen(
    world,
    Array.from({ length: 5 }, () => 'pm_card'),
  )
  await settled(world.billing.resume())
  const keys = []
  for await (const view of world.billing.entries()) keys.push(view.key)
  expect(world.receiver.ledger.requests.map((request) => request.key)).toEqual(keys)
})

test('progress is told to the end, and an observer that throws changes nothing', async () => {
  const world = setUp()
  await leaveOpen(
    world,
    Array.from({ length: 70 }, () => 'pm_card'),
  )
  const told: ResumeProgress[] = []
  const summary = await settled(
    world.billing.resume({
      onProgress: (progress) => {
        told.push(progress)
        throw new Error('observer')
      },
    }),
  )
  expect(summary).toMatchObject({ total: 70, succeeded: 70 })
  expect(told.at(-1)).toEqual({ done: 70, found: 70 })
  expect(told.every((one, index) => index === 0 || one.done >= told[index - 1]!.done)).toBe(true)
  expect(told.every((one) => one.done <= one.found)).toBe(true)
})

test('the second of two resumes at once is told its progress too', async () => {
  const world = setUp({ receiver: { latencyMs: 1000 } })
  await leaveOpen(world, ['pm_card', 'pm_card', 'pm_card'])
  const told: ResumeProgress[] = []
  const one = world.billing.resume()
  const two = world.billing.resume({ onProgress: (progress) => told.push(progress) })
  expect(await settled(Promise.all([one, two]))).toMatchObject([{ succeeded: 3 }, { succeeded: 3 }])
  expect(told.at(-1)).toEqual({ done: 3, found: 3 })
  expect(world.receiver.ledger.requests).toHaveLength(3)
})

test('no more are at work at once than the client allows', async () => {
  const world = setUp({ client: { concurrency: 3 }, receiver: { latencyMs: 1000 } })
  await leaveOpen(
    world,
    Array.from({ length: 12 }, () => 'pm_card'),
  )
  const resumed = world.billing.resume()
  await pass(10)
  expect(world.receiver.ledger.requests).toHaveLength(3)
  expect(await settled(resumed)).toMatchObject({ succeeded: 12 })
})

test('a pass waits for what the receiver asked for, within its deadline, and else leaves it', async () => {
  for (const [seconds, expected] of [
    ['20', { succeeded: 1, waiting: 0 }],
    ['600', { succeeded: 0, waiting: 1 }],
  ] as const) {
    const { billing, another } = setUp({
      receiver: { faults: [status(429, { attempt: 1, headers: { 'Retry-After': seconds } })] },
    })
    await settled(billing.charge(coffee, order))
    expect(await settled(another().resume())).toMatchObject(expected)
  }
})

test('a deadline of its own bounds a pass', async () => {
  const world = setUp({ receiver: { faults: [status(503)] } })
  await leaveOpen(world, ['pm_card'])
  const began = performance.now()
  expect(await settled(world.billing.resume({ deadlineMs: 2000 }))).toMatchObject({ waiting: 1 })
  expect(performance.now() - began).toBeLessThanOrEqual(2000)
})

test('a deadline that is none rejects, as everything that goes wrong does', async () => {
  const { billing } = setUp()
  let resumed: Promise<unknown> | undefined
  expect(() => {
    resumed = billing.resume({ deadlineMs: -1 })
    resumed.catch(() => {})
  }).not.toThrow()
  await expect(resumed).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'deadlineMs' })
})

test('a misspelled option is refused', async () => {
  const { billing } = setUp()
  const options = { deadlineMS: 5 } as object
  await expect((async () => await billing.resume(options))()).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT' })
})

test('an entry for which the journal fails is counted and holds up no other', async () => {
  const world = setUp()
  await leaveOpen(world, ['pm_card', 'pm_card', 'pm_card'])
  let begins = 0
  const journal = journalWith(world.journal, (call, run) => {
    if (call.method === 'replace' && (begins += 1) === 1) throw broken()
    return run()
  })
  const summary = await settled(world.another({ journal }).resume())
  expect(summary).toMatchObject({ total: 3, succeeded: 2, failed: 1 })
  await pass(CLAIM_MS)
  expect(await settled(world.billing.resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(world.receiver.ledger.effects).toHaveLength(3)
})

test('a journal that cannot be listed rejects with a typed error, and the next pass works', async () => {
  const world = setUp()
  await leaveOpen(world, ['pm_card'])
  let fails = true
  const journal = journalWith(world.journal, (call, run) => {
    if (fails && (call.method === 'listDeliverable' || call.method === 'countOpen')) throw broken()
    return run()
  })
  const billing = world.another({ journal })
  await expect(settled(billing.resume())).rejects.toMatchObject({
    code: 'ERR_JOURNAL_UNAVAILABLE',
    sentByThisCall: false,
  })
  fails = false
  expect(await settled(billing.resume())).toMatchObject({ succeeded: 1 })
})

test('rows that this version cannot read are counted and told', async () => {
  const world = setUp()
  await leaveOpen(world, ['pm_card'])
  const journal = journalWith(world.journal, async (call, run) => {
    const result = await run()
    return call.method === 'listDeliverable' ? { ...(result as object), unreadable: 2 } : result
  })
  const billing = world.another({ journal })
  const events: unknown[] = []
  billing.subscribe((event) => events.push(event))
  expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1, unreadable: 2 })
  expect(events).toContainEqual(expect.objectContaining({ type: 'left-alone', why: 'unreadable', count: 2 }))
})

test('while offline a pass leaves all to wait, and costs no attempts', async () => {
  const world = setUp()
  await leaveOpen(world, ['pm_card', 'pm_card'])
  vi.stubGlobal('navigator', { onLine: false })
  try {
    expect(await settled(world.billing.resume({ deadlineMs: 5000 }))).toMatchObject({ total: 2, waiting: 2 })
    expect(world.receiver.ledger.requests).toHaveLength(0)
  } finally {
    vi.unstubAllGlobals()
  }
})

test('a caller who waits and a pass at the same time are one delivery', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const asked = billing.charge(coffee, order)
  await pass(0)
  const [outcome, summary] = await settled(Promise.all([asked, billing.resume()]))
  expect(outcome).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(summary.succeeded).toBe(1)
  expect(receiver.ledger.requests).toHaveLength(2)
})
