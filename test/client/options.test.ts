/** Options of a client and of a call: what is wrong ends at the door, before anything is written or sent. */
import { createBillingClient, defineWrite, forgetfulJournal, InvalidInputError } from 'billonce'
import type { BillingClientOptions, WriteOptions } from 'billonce'
import { createReceiver, status } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { expectOneName } from '../engine/tampering.ts'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const base = { baseUrl: 'https://billing.test', scope: 'org_1/test', journal: forgetfulJournal() }

describe('createBillingClient', () => {
  test.each<[object, string]>([
    [{ baseUrl: 'billing.test' }, 'baseUrl'],
    [{ baseUrl: '' }, 'baseUrl'],
    [{ baseUrl: 'ftp://billing.test' }, 'baseUrl'],
    [{ baseUrl: 'https://user:pass@billing.test' }, 'baseUrl'],
    [{ baseUrl: 'https://billing.test?key=1' }, 'baseUrl'],
    [{ baseUrl: 'https://billing.test#x' }, 'baseUrl'],
    [{ scope: '' }, 'scope'],
    [{ scope: undefined }, 'scope'],
    [{ scope: 'x'.repeat(256) }, 'scope'],
    [{ scope: 'line\nbreak' }, 'scope'],
    [{ endpoint: '' }, 'endpoint'],
    [{ names: 'mine' }, 'names'],
    [{ concurrency: 0 }, 'concurrency'],
    [{ concurrency: 1.5 }, 'concurrency'],
    [{ retry: { maxAttempts: 0 } }, 'retry.maxAttempts'],
    [{ retry: { maxAttempts: 101 } }, 'retry.maxAttempts'],
    [{ retry: { attemptTimeoutMs: 0 } }, 'retry.attemptTimeoutMs'],
    [{ retry: { baseDelayMs: -1 } }, 'retry.baseDelayMs'],
    [{ retry: { maxRetryAfterMs: 2 ** 31 } }, 'retry.maxRetryAfterMs'],
    [{ retry: { alsoStatuses: [200] } }, 'retry.alsoStatuses'],
    [{ retry: { alsoStatuses: 429 } }, 'retry.alsoStatuses'],
    [{ retry: { maxAttempt: 3 } }, 'retry.maxAttempt'],
    [{ retry: 3 }, 'retry'],
    [{ timeout: 3 }, 'timeout'],
    [{ apiKey: 'sk_live' }, 'apiKey'],
    [{ windowMarginMs: -1 }, 'windowMarginMs'],
    [{ windowMarginMs: 24 * 3_600_000 }, 'retry'],
  ])('refuses %o', (wrong, field) => {
    const make = (): unknown => createBillingClient({ ...base, ...wrong })
    expect(make).toThrow(InvalidInputError)
    expect(make).toThrow(expect.objectContaining({ field, sentByThisCall: false }))
  })

  test.each([undefined, null, 'https://billing.test', 5])('refuses %s for options', (options) => {
    expect(() => createBillingClient(options as unknown as BillingClientOptions)).toThrow(InvalidInputError)
  })

  test.each([null, 'SIGTERM', 5])('no call of a client takes %s for options', async (wrong) => {
    const { billing, receiver } = setUp()
    const options = wrong as unknown as object
    for (const call of [
      () => billing.close(options),
      () => billing.resume(options),
      () => billing.prune(options),
      () => billing.reconcile(() => ({ found: 'unclear' }), options),
      () => billing.entries(options)[Symbol.asyncIterator]().next(),
      () => billing.charge(coffee, wrong as never),
    ]) {
      await expect(call()).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field: 'options' })
    }
    await expect(billing.prune({ onprogress: () => {} } as object)).rejects.toMatchObject({ field: 'onprogress' })
    const all = billing.entries({ states: 'unknown' } as object)[Symbol.asyncIterator]()
    await expect(all.next()).rejects.toMatchObject({ field: 'states' })
    // Not closed by any of them.
    expect(await settled(billing.charge(coffee, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('takes an address with and without a slash at its end for the same endpoint', async () => {
    const receiver = createReceiver()
    const journal = forgetfulJournal()
    for (const baseUrl of ['https://billing.test', 'https://billing.test/', 'HTTPS://BILLING.test:443']) {
      const billing = createBillingClient({ ...base, baseUrl, journal, fetch: receiver.fetch })
      expect(await settled(billing.charge(coffee, { operationId: 'order-1' }))).toMatchObject({ status: 'succeeded' })
    }
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('does not change its options, and does not follow later changes of them', async () => {
    const receiver = createReceiver({ faults: [status(503)] })
    const options = { ...base, journal: forgetfulJournal(), fetch: receiver.fetch, retry: { maxAttempts: 2 } }
    const billing = createBillingClient(options)
    options.retry.maxAttempts = 50
    options.scope = 'org_2/test'
    const outcome = await settled(billing.charge(coffee, { operationId: 'order-1' }))
    expect(outcome).toMatchObject({ status: 'unknown', attempts: 2 })
    const other = createBillingClient({ ...options, scope: 'org_1/test' })
    expect(await other.find({ key: outcome.key })).toMatchObject({ status: 'unknown' })
    Object.freeze(options.retry)
    expect(() => createBillingClient(Object.freeze(options))).not.toThrow()
  })
})

describe('a call', () => {
  test.each<[object, string]>([
    [{}, 'operationId'],
    [{ operationId: '' }, 'operationId'],
    [{ operationId: 5 }, 'operationId'],
    [{ operationId: 'x'.repeat(256) }, 'operationId'],
    [{ operationId: 'tab\t' }, 'operationId'],
    [{ operationId: 'x', operationID: 'y' }, 'operationID'],
    [{ operationId: 'x', idempotency_key: 'y' }, 'idempotency_key'],
    [{ operationId: 'x', timeout: 5 }, 'timeout'],
  ])('refuses the options %o', async (options, field) => {
    const { billing, receiver, journal } = setUp()
    const asked = billing.charge(coffee, options as WriteOptions<never>)
    await expect(asked).rejects.toMatchObject({ code: 'ERR_INVALID_INPUT', field })
    expect(receiver.ledger.requests).toHaveLength(0)
    expect((await journal.list({}, 10)).entries).toHaveLength(0)
  })

  test('rejects, and never throws where nobody awaits', async () => {
    const { billing } = setUp()
    for (const args of [[], [coffee], [null, null], [coffee, undefined], [undefined, { operationId: 'x' }]]) {
      const call = (): Promise<unknown> => (billing.charge as (...given: unknown[]) => Promise<unknown>)(...args)
      await expect(call()).rejects.toBeInstanceOf(InvalidInputError)
    }
  })
})

describe('a write of one’s own', () => {
  const refund = defineWrite({
    kind: 'refund',
    path: 'v1/refunds',
    method: 'POST',
    subject: 'charge',
    volatile: ['note'],
    echoes: ['amount'],
    readParams: (params: { charge: string; amount: number; note?: string }) => params,
    readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply } : undefined),
  })
  const receiver = { routes: { 'v1/refunds': { kind: 'refund', idPrefix: 're_' } } }

  test('goes through the same machinery', async () => {
    const world = setUp({ receiver: { ...receiver, faults: [status(503, { attempt: 1, afterEffect: true })] } })
    const params = { charge: 'ch_1', amount: 5, note: 'a' }
    const options = { operationId: 'case-1', volatileFields: ['note'] } as const
    expect(await settled(world.billing.write(refund, params, options))).toMatchObject({
      status: 'succeeded',
      kind: 'refund',
      attempts: 2,
      receipt: { id: 're_000001' },
    })
    expect(await settled(world.billing.write(refund, { ...params, note: 'b' }, options))).toMatchObject({
      source: 'journal',
    })
    const other = { charge: 'ch_2', amount: 5 }
    expect(await settled(world.billing.write(refund, other, options))).toMatchObject({ receipt: { id: 're_000002' } })
    expect(world.receiver.ledger.effects).toHaveLength(2)
    expect(await world.billing.find({ kind: 'refund', operationId: 'case-1', subject: 'ch_2' })).toMatchObject({
      status: 'succeeded',
    })
  })

  test('may be queued, and may encode its own body', async () => {
    const form = defineWrite({
      ...refund,
      kind: 'form-refund',
      path: 'v1/form-refunds',
      encode: (fields) => ({
        body: new URLSearchParams(
          Object.entries(fields).map(([name, value]) => [name, JSON.stringify(value)]),
        ).toString(),
        contentType: 'application/x-www-form-urlencoded',
      }),
    })
    const world = setUp({
      receiver: {
        routes: { 'v1/form-refunds': { kind: 'form-refund', idPrefix: 'fr_' } },
        faults: [status(503, { attempt: 1 })],
      },
    })
    const options = { operationId: 'case-1', background: true }
    expect(await settled(world.billing.write(form, { charge: 'ch_1', amount: 5 }, options))).toMatchObject({
      status: 'queued',
    })
    await pass(60_000)
    expectOneName(world.receiver)
    expect(world.receiver.ledger.requests).toMatchObject([
      { body: 'charge=%22ch_1%22&amount=5', headers: { 'content-type': 'application/x-www-form-urlencoded' } },
      { body: 'charge=%22ch_1%22&amount=5' },
    ])
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test('whose body or content type HTTP cannot carry is refused, and nothing is written or sent', async () => {
    const odd = [
      { body: 'a', contentType: 'text/plain\r\nx: 1' },
      { body: 'a', contentType: 'text/“plain”' },
      { body: 'a', contentType: '' },
      { body: new Uint8Array(1), contentType: 'text/plain' },
    ]
    for (const encoded of odd) {
      const { billing, journal, receiver: asked } = setUp({ receiver })
      const strange = defineWrite({ ...refund, encode: () => encoded as { body: string; contentType: string } })
      await expect(billing.write(strange, { charge: 'ch_1', amount: 5 }, { operationId: 'x' })).rejects.toMatchObject({
        code: 'ERR_INVALID_INPUT',
        field: 'encode',
      })
      expect(await journal.list({}, 1)).toMatchObject({ entries: [] })
      expect(asked.ledger.requests).toEqual([])
    }
  })

  test('that takes a kind of the library’s, or one that was given, is refused', async () => {
    const { billing, another } = setUp({ receiver })
    const twin = { ...refund, kind: 'charge' }
    const asked = billing.write(twin, { charge: 'ch_1', amount: 5 }, { operationId: 'x' })
    await expect(asked).rejects.toMatchObject({ field: 'kind' })
    const given = another({ writes: [refund] })
    const other = { ...refund, path: 'v1/elsewhere' }
    await expect(given.write(other, { charge: 'c', amount: 5 }, { operationId: 'x' })).rejects.toMatchObject({
      field: 'kind',
    })
    expect(() => another({ writes: [refund, { ...refund }] })).toThrow(InvalidInputError)
    expect(() => another({ writes: [{ ...refund, kind: 'usage' }] })).toThrow(InvalidInputError)
  })

  test('that is no definition is refused', async () => {
    const { billing } = setUp()
    for (const wrong of [
      undefined,
      null,
      {},
      { kind: 'x' },
      { ...refund, path: '/v1/x' },
      { ...refund, method: 'DELETE' },
    ]) {
      const asked = billing.write(wrong as typeof refund, { charge: 'c', amount: 1 }, { operationId: 'x' })
      await expect(asked, JSON.stringify(wrong)).rejects.toBeInstanceOf(InvalidInputError)
    }
  })
})
