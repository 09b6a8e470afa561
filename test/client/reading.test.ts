/** `find` and `entries`: what the journal holds, of this scope and endpoint only, and never a body. */
import { AmbiguousReferenceError, InvalidInputError } from 'billonce'
import type { EntryState } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { broken, journalWith } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }

test('find gives the outcome by name or by key, and nothing for what is not there', async () => {
  const { billing, another } = setUp()
  const outcome = await settled(billing.charge(coffee, order))
  const expected = { status: 'succeeded', key: outcome.key, source: 'journal', receipt: { id: 'ch_000001' } }
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject(expected)
  expect(await another().find({ key: outcome.key })).toMatchObject(expected)
  expect(await billing.find({ kind: 'charge', operationId: 'order-2' })).toBeUndefined()
  expect(await billing.find({ kind: 'usage', ...order })).toBeUndefined()
  expect(await billing.find({ kind: 'charge', ...order, revision: 2 })).toBeUndefined()
  expect(await billing.find({ key: 'other' })).toBeUndefined()
})

test('a reference that fits several subjects is refused and names them; with the subject it is not', async () => {
  const { billing } = setUp()
  for (const meter of ['exports', 'imports']) {
    await settled(billing.recordUsage({ meter, quantity: 1 }, { operationId: 'job-7' }))
  }
  const ref = { kind: 'usage', operationId: 'job-7' }
  const error: unknown = await billing.find(ref).catch((thrown: unknown) => thrown)
  expect(error).toBeInstanceOf(AmbiguousReferenceError)
  expect(error).toMatchObject({ code: 'ERR_AMBIGUOUS_REFERENCE', subjects: ['exports', 'imports'] })
  await expect(billing.cancel(ref)).rejects.toBeInstanceOf(AmbiguousReferenceError)
  expect(await billing.find({ ...ref, subject: 'imports' })).toMatchObject({ status: 'succeeded' })
  expect(await billing.find({ ...ref, subject: 'nothing' })).toBeUndefined()
})

test('find tells each state by the outcome of its name', async () => {
  const { billing, receiver } = setUp({ client: { retry: { maxAttempts: 1 } } })
  const name = (operationId: string): { kind: string; operationId: string } => ({ kind: 'charge', operationId })
  await settled(billing.charge(coffee, { operationId: 'succeeded' }))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'rejected' }))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_processing' }, { operationId: 'accepted' }))
  receiver.faults.add(status(429, { times: 2 }))
  await settled(billing.charge(coffee, { operationId: 'deferred' }))
  await settled(billing.charge(coffee, { operationId: 'canceled' }))
  await settled(billing.cancel(name('canceled')))
  receiver.faults.add(loseReply({ times: 1 }))
  await settled(billing.charge(coffee, { operationId: 'unknown' }))
  for (const expected of ['succeeded', 'rejected', 'accepted', 'deferred', 'canceled', 'unknown']) {
    expect(await billing.find(name(expected))).toMatchObject({ status: expected, source: 'journal', revision: 1 })
  }
  expect(await billing.find(name('accepted'))).toMatchObject({ progress: 'processing' })
  expect(await billing.find(name('unknown'))).toMatchObject({ delivery: 'continues', reason: 'no-clear-reply' })
})

test('entries gives all of them, oldest first, over many pages', async () => {
  const { billing, another } = setUp()
  const other = another({ scope: 'other/test' })
  await settled(other.charge(coffee, { operationId: 'not-mine' }))
  for (let number = 1; number <= 230; number += 1) {
    await settled(billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: `job-${number}` }))
  }
  const views = await viewsOf(billing)
  expect(views.map((view) => view.operationId)).toEqual(Array.from({ length: 230 }, (_, index) => `job-${index + 1}`))
  expect(await viewsOf(other)).toMatchObject([{ operationId: 'not-mine' }])
})

test('entries filters by kind, name and state, all at once', async () => {
  const { billing, receiver } = setUp({ client: { retry: { maxAttempts: 1 } } })
  await settled(billing.charge(coffee, order))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'order-2' }))
  await settled(billing.consumeCredits({ amount: 1 }, order))
  receiver.faults.add(status(503))
  await settled(billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1' }))
  const idsOf = async (filter: Parameters<typeof viewsOf>[1]): Promise<string[]> =>
    (await viewsOf(billing, filter)).map((view) => `${view.kind}:${view.operationId}`)
  expect(await idsOf({ kind: 'charge' })).toEqual(['charge:order-1', 'charge:order-2'])
  expect(await idsOf({ operationId: 'order-1' })).toEqual(['charge:order-1', 'credits:order-1'])
  expect(await idsOf({ states: ['rejected', 'sending'] })).toEqual(['charge:order-2', 'usage:job-1'])
  expect(await idsOf({ kind: 'charge', operationId: 'order-1', states: ['succeeded'] })).toEqual(['charge:order-1'])
  expect(await idsOf({ kind: 'charge', states: ['sending'] })).toEqual([])
  expect(await idsOf({ states: [] })).toEqual([])
})

test('a view says what support asks for, and holds no body and no credential', async () => {
  const { billing } = setUp({
    client: { headers: { authorization: 'Bearer secret-token' } },
    receiver: { faults: [status(503, { attempt: 1, headers: { 'X-Request-Id': 'req_1' } })] },
  })
  const outcome = await settled(billing.charge({ ...coffee, description: 'very private' }, order))
  const [view] = await viewsOf(billing)
  expect(view).toMatchObject({
    key: outcome.key,
    kind: 'charge',
    subject: null,
    operationId: 'order-1',
    revision: 1,
    state: 'succeeded',
    eventAtMs: null,
    attemptsBegun: 2,
    nextAttemptAtMs: null,
    attempts: [
      { number: 1, status: 503, result: 'unclear', why: 'server-error', requestId: 'req_1' },
      { number: 2, status: 200, result: 'succeeded' },
    ],
  })
  const { outcome: inside, ...rest } = view!
  expect(JSON.stringify(rest)).not.toMatch(/very private|secret-token|cus_1/)
  expect(inside).toEqual({ ...outcome, source: 'journal' })
})

test('what is given out cannot be used to change what is stored', async () => {
  const { billing } = setUp()
  const outcome = await settled(billing.charge(coffee, order))
  if (outcome.status !== 'succeeded') throw new Error('not succeeded')
  ;(outcome.receipt as { id: string }).id = 'changed'
  ;(outcome.receipt.reply as Record<string, unknown>)['amount'] = 1
  expect(await billing.find({ key: outcome.key })).toMatchObject({
    receipt: { id: 'ch_000001', reply: { amount: 450 } },
  })
})

test('reading stays possible while another call is under way, and sends nothing', async () => {
  const { billing, receiver } = setUp({ receiver: { latencyMs: 1000 } })
  const asked = billing.charge(coffee, order)
  await pass(100)
  expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'unknown', reason: 'in-flight' })
  await settled(asked)
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('a reference that is none is refused', async () => {
  const { billing } = setUp()
  for (const ref of [
    {},
    { kind: 'charge' },
    { operationId: 'x' },
    { kind: '', operationId: 'x' },
    { key: '' },
    null,
    'key',
  ]) {
    await expect(billing.find(ref as never), JSON.stringify(ref)).rejects.toBeInstanceOf(InvalidInputError)
  }
})

test('a misspelled state or filter is refused instead of giving everything or nothing', async () => {
  const { billing } = setUp()
  await settled(billing.charge(coffee, order))
  await expect(viewsOf(billing, { states: ['success' as EntryState] })).rejects.toBeInstanceOf(InvalidInputError)
  await expect(viewsOf(billing, { state: 'succeeded' } as object)).rejects.toBeInstanceOf(InvalidInputError)
})

test('a journal that cannot be read is a typed error and an event', async () => {
  const world = setUp()
  await settled(world.billing.charge(coffee, order))
  const billing = world.another({ journal: journalWith(world.journal, () => Promise.reject(broken())) })
  const events: unknown[] = []
  billing.subscribe((event) => events.push(event))
  for (const read of [
    () => billing.find({ kind: 'charge', ...order }),
    () => billing.find({ key: 'k' }),
    () => viewsOf(billing),
    () => billing.cancel({ key: 'k' }),
  ]) {
    await expect(read()).rejects.toMatchObject({ code: 'ERR_JOURNAL_UNAVAILABLE', sentByThisCall: false })
  }
  expect(events).toContainEqual(expect.objectContaining({ type: 'storage-fault', step: 'read' }))
})
