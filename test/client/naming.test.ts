/** One operation, one key, one body: whatever the caller does with ids, options and parameters. */
import { defineWrite, forgetfulJournal, InvalidInputError, OperationConflictError } from 'billonce'
import type { ChargeParams, WriteOptions } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { expectOneName } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const once = { maxAttempts: 1 } as const

test('G02: an outer retry with no memory of the first call goes on under the first key', async () => {
  const { billing, another, receiver } = setUp({
    client: { retry: once },
    receiver: { faults: [loseReply({ attempt: 1 })] },
  })
  const first = await settled(billing.charge({ ...coffee }, { operationId: 'order-1' }))
  expect(first).toMatchObject({ status: 'unknown', delivery: 'continues' })
  const second = await settled(another().charge({ ...coffee }, { operationId: 'order-1' }))
  expect(second).toMatchObject({ status: 'succeeded', key: first.key, markedReplay: true })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G02: another device without the journal of the first derives the same key, and the receiver sees one operation', async () => {
  const { billing, another, receiver } = setUp({
    client: { retry: once },
    receiver: { faults: [loseReply({ attempt: 1 })] },
  })
  const first = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  const second = await settled(another({ journal: forgetfulJournal() }).charge(coffee, { operationId: 'order-1' }))
  expect(second).toMatchObject({ status: 'succeeded', key: first.key })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G03: fields that were declared volatile may differ; what was stored first is what is sent', async () => {
  const { billing, receiver } = setUp({ client: { retry: once }, receiver: { faults: [loseReply({ attempt: 1 })] } })
  const volatile = { operationId: 'order-1', volatileFields: ['paymentMethod', 'metadata'] } as const
  const first = { ...coffee, paymentMethod: 'tok_1', metadata: { at: 1, nonce: 'a' } }
  const second = { ...coffee, paymentMethod: 'tok_2', metadata: { at: 2, nonce: 'b' } }
  const { key } = await settled(billing.charge(first, volatile))
  expect(await settled(billing.charge(second, volatile))).toMatchObject({ status: 'succeeded', key })
  expectOneName(receiver)
  expect(receiver.ledger.effects).toMatchObject([{ params: first }])
})

test('G03: it is enough that one of the two calls declared the field volatile', async () => {
  const volatile = { operationId: 'order-1', volatileFields: ['paymentMethod'] } as const
  const plain = { operationId: 'order-1' }
  for (const [one, other] of [
    [volatile, plain],
    [plain, volatile],
  ] as const) {
    const { billing, receiver } = setUp()
    await settled(billing.charge({ ...coffee, paymentMethod: 'tok_1' }, one))
    const again = await settled(billing.charge({ ...coffee, paymentMethod: 'tok_2' }, other))
    expect(again).toMatchObject({ status: 'succeeded', source: 'journal' })
    expect(receiver.ledger.requests).toHaveLength(1)
  }
})

test('G03: a field that was not declared volatile and differs is a conflict that names it, never a second key', async () => {
  const { billing, receiver, journal } = setUp({
    client: { retry: once },
    receiver: { faults: [status(503, { attempt: 1 })] },
  })
  const first = { ...coffee, paymentMethod: 'tok_secret_1', metadata: { at: 1 } }
  await settled(billing.charge(first, { operationId: 'order-1' }))
  const stored = await journal.list({}, 10)
  const second = { ...coffee, paymentMethod: 'tok_secret_2', metadata: { at: 2 } }
  const error = await settled(
    billing
      .charge(second, { operationId: 'order-1', volatileFields: ['description'] })
      .catch((thrown: unknown) => thrown),
  )
  expect(error).toBeInstanceOf(OperationConflictError)
  expect(error).toMatchObject({
    code: 'ERR_OPERATION_CONFLICT',
    fields: ['metadata', 'paymentMethod'],
    sentByThisCall: false,
    entry: { state: 'sending' },
  })
  expect(String(error)).not.toMatch(/tok_secret/)
  expect(await journal.list({}, 10)).toEqual(stored)
  expect(await settled(billing.charge(first, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
  expect(receiver.ledger.requests).toHaveLength(2)
  expectOneName(receiver)
})

test('volatileFields takes no field that makes the operation what it is', async () => {
  const { billing, receiver } = setUp()
  const options = { operationId: 'order-1', volatileFields: ['amount'] } as unknown as WriteOptions<'metadata'>
  await expect(settled(billing.charge(coffee, options))).rejects.toMatchObject({ field: 'volatileFields' })
  expect(receiver.ledger.requests).toHaveLength(0)
})

test.each([false, true])('G04: one options object for a charge and then for usage, frozen: %s', async (isFrozen) => {
  const { billing, receiver } = setUp()
  const options: WriteOptions<never> = { operationId: 'job-7' }
  if (isFrozen) Object.freeze(options)
  const before = JSON.stringify(options)
  const charge = await settled(billing.charge(coffee, options))
  const usage = await settled(billing.recordUsage({ meter: 'exports', quantity: 1 }, options))
  const credits = await settled(billing.consumeCredits({ amount: 3 }, options))
  expect([charge.status, usage.status, credits.status]).toEqual(['succeeded', 'succeeded', 'succeeded'])
  expect(new Set([charge.key, usage.key, credits.key]).size).toBe(3)
  expect(receiver.ledger.requests.map((request) => request.kind)).toEqual(['charge', 'usage', 'credits'])
  expect(receiver.ledger.effects).toHaveLength(3)
  expect(JSON.stringify(options)).toBe(before)
})

test('G04: a key of the caller’s own is of that call alone', async () => {
  const { billing, receiver } = setUp()
  await settled(billing.charge(coffee, { operationId: 'order-1', idempotencyKey: 'legacy-1' }))
  const next = await settled(billing.charge(coffee, { operationId: 'order-2' }))
  expect(next.key).not.toBe('legacy-1')
  expect(receiver.ledger.requests.map((request) => request.key)).toEqual(['legacy-1', next.key])
})

test('one operationId used for two meters is two operations', async () => {
  const { billing, receiver } = setUp()
  const one = await settled(billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId: 'job-7' }))
  const two = await settled(billing.recordUsage({ meter: 'imports', quantity: 1 }, { operationId: 'job-7' }))
  expect(one.key).not.toBe(two.key)
  expect(receiver.ledger.effects).toHaveLength(2)
})

test('G05: a job that runs again in new processes sends once, and later runs get the stored result', async () => {
  const { another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const runs = []
  for (let run = 1; run <= 4; run += 1) {
    const billing = another({ retry: once })
    runs.push(await settled(billing.charge(coffee, { operationId: 'job-42:charge' })))
    await billing.close()
  }
  expect(runs.map((outcome) => outcome.status)).toEqual(['unknown', 'succeeded', 'succeeded', 'succeeded'])
  expect(runs.map((outcome) => outcome.source)).toEqual(['journal', 'receiver', 'journal', 'journal'])
  expect(receiver.ledger.requests).toHaveLength(2)
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G09: metadata added on the second try is a conflict; the stored operation goes on as it was', async () => {
  const { billing, receiver, journal } = setUp({
    client: { retry: once },
    receiver: { faults: [loseReply({ attempt: 1 })] },
  })
  const first = await settled(billing.charge(coffee, { operationId: 'order-1' }))
  expect(first.status).toBe('unknown')
  const stored = await journal.list({}, 10)
  const withMore = { ...coffee, metadata: { note: 'very private' } }
  const error: unknown = await settled(billing.charge(withMore, { operationId: 'order-1' })).catch(
    (thrown: unknown) => thrown,
  )
  expect(error).toMatchObject({ code: 'ERR_OPERATION_CONFLICT', fields: ['metadata'], sentByThisCall: false })
  expect(String(error)).not.toMatch(/very private/)
  expect(receiver.ledger.requests).toHaveLength(1)
  expect(await journal.list({}, 10)).toEqual(stored)
  expect(await settled(billing.resume())).toMatchObject({ total: 1, succeeded: 1 })
  expect(receiver.ledger.effects).toHaveLength(1)
  expectOneName(receiver)
})

test('G11: changing the parameters while a retry waits changes nothing that is sent', async () => {
  const { billing, another, receiver } = setUp({
    client: { retry: { maxAttempts: 2 } },
    receiver: { faults: [status(503, { attempt: [1, 2] })] },
  })
  const params = { ...coffee, amount: 450 as number, metadata: { items: ['cup'] } }
  const asked = billing.charge(params, { operationId: 'order-1' })
  params.amount = 999_999
  params.metadata.items.push('before the first byte')
  await pass(0)
  expect(receiver.ledger.requests).toHaveLength(1)
  params.metadata.items.push('while the back-off runs')
  expect(await settled(asked)).toMatchObject({ status: 'unknown' })
  params.metadata.items.push('before the resume')
  expect(await settled(another().resume())).toMatchObject({ succeeded: 1 })
  expect(receiver.ledger.requests).toHaveLength(3)
  expectOneName(receiver)
  expect(receiver.ledger.effects).toMatchObject([{ params: { amount: 450, metadata: { items: ['cup'] } } }])
})

test('G12: the order of properties does not matter, and what was stored is what is sent', async () => {
  const { billing, receiver } = setUp({ client: { retry: once }, receiver: { faults: [loseReply({ attempt: 1 })] } })
  const one = { amount: 450, currency: 'eur', customer: 'cus_1', metadata: { a: 1, b: { c: 2, d: [1, 2] } } }
  const other = { metadata: { b: { d: [1, 2], c: 2 }, a: 1 }, customer: 'cus_1', currency: 'eur', amount: 450 }
  await settled(billing.charge(one, { operationId: 'order-1' }))
  expect(await settled(billing.charge(other, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
  expectOneName(receiver)
})

test('G12: the order of a list matters', async () => {
  const { billing, receiver } = setUp()
  const withItems = (...items: string[]): ChargeParams => ({ ...coffee, metadata: { items } })
  await settled(billing.charge(withItems('cup', 'cake'), { operationId: 'order-1' }))
  await expect(settled(billing.charge(withItems('cake', 'cup'), { operationId: 'order-1' }))).rejects.toMatchObject({
    code: 'ERR_OPERATION_CONFLICT',
    fields: ['metadata'],
  })
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('G13: the bodies of all attempts are one body, and nothing in it comes from a clock or at random', async () => {
  const { billing, another, receiver } = setUp({ receiver: { faults: [status(503, { attempt: [1, 2] })] } })
  await settled(billing.recordUsage({ meter: 'exports', quantity: 3 }, { operationId: 'job-7' }))
  await pass(5000)
  await settled(
    another({ journal: forgetfulJournal() }).recordUsage({ meter: 'exports', quantity: 3 }, { operationId: 'job-7' }),
  )
  expect(receiver.ledger.requests).toHaveLength(4)
  expectOneName(receiver)
  expect(receiver.ledger.requests[0]?.body).toBe('{"meter":"exports","quantity":3}')
})

test('G13: an entry of an older version is resumed and named again with its own bytes, although the new version adds a default', async () => {
  const { journal, receiver, another } = setUp({
    receiver: {
      routes: { 'v1/refunds': { kind: 'refund', idPrefix: 're_' } },
      faults: [loseReply({ attempt: 1 })],
    },
  })
  const refund = (defaults: object) =>
    defineWrite({
      kind: 'refund',
      path: 'v1/refunds',
      method: 'POST',
      readParams: (params: { charge: string }) => ({ ...defaults, ...params }),
      readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
    })
  const older = refund({})
  const newer = refund({ reason: 'requested_by_customer' })
  const call = { operationId: 'refund-1' }
  await settled(another({ retry: once }).write(older, { charge: 'ch_1' }, call))
  const upgraded = another({ writes: [newer] })
  expect(await settled(upgraded.resume())).toMatchObject({ succeeded: 1 })
  const again = await settled(upgraded.write(newer, { charge: 'ch_1' }, call))
  expect(again).toMatchObject({ status: 'succeeded', source: 'journal' })
  expect(receiver.ledger.requests).toHaveLength(2)
  expectOneName(receiver)
  expect(receiver.ledger.requests[0]?.body).toBe('{"charge":"ch_1"}')
  expect((await journal.list({}, 10)).entries).toHaveLength(1)
})

test('a key of the caller’s own is sent as it is and kept', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [status(503, { attempt: 1 })] } })
  const options = { operationId: 'order-1', idempotencyKey: 'legacy:order-1' }
  expect(await settled(billing.charge(coffee, options))).toMatchObject({ status: 'succeeded', key: 'legacy:order-1' })
  expect(receiver.ledger.requests.map((request) => request.key)).toEqual(['legacy:order-1', 'legacy:order-1'])
  expect(await settled(billing.charge(coffee, { operationId: 'order-1' }))).toMatchObject({
    key: 'legacy:order-1',
    source: 'journal',
  })
})

test('another key for the same name, and the same key for another name, are conflicts', async () => {
  const { billing, receiver } = setUp()
  await settled(billing.charge(coffee, { operationId: 'order-1', idempotencyKey: 'legacy-1' }))
  const otherKey = billing.charge(coffee, { operationId: 'order-1', idempotencyKey: 'legacy-2' })
  await expect(settled(otherKey)).rejects.toMatchObject({ fields: ['idempotencyKey'] })
  const otherName = billing.charge(coffee, { operationId: 'order-2', idempotencyKey: 'legacy-1' })
  await expect(settled(otherName)).rejects.toMatchObject({ fields: ['operationId'] })
  const otherKind = billing.consumeCredits({ amount: 1 }, { operationId: 'order-1', idempotencyKey: 'legacy-1' })
  await expect(settled(otherKind)).rejects.toMatchObject({ fields: ['kind'] })
  expect(receiver.ledger.requests).toHaveLength(1)
})

test.each(['', 'has space', 'ümlaut', 'q"uote', 'back\\slash', 'x'.repeat(256), 'line\nbreak'])(
  'the key %j is refused before anything is written',
  async (idempotencyKey) => {
    const { billing, receiver, journal } = setUp()
    const asked = settled(billing.charge(coffee, { operationId: 'order-1', idempotencyKey }))
    await expect(asked).rejects.toBeInstanceOf(InvalidInputError)
    expect(receiver.ledger.requests).toHaveLength(0)
    expect((await journal.list({}, 10)).entries).toHaveLength(0)
  },
)
