/**
 * G45, G61: what a Vue component hands over is wrapped in proxies. They give the same key and the same bytes as plain data, can
 * be kept in IndexedDB, are never written to, and what becomes of them after the call changes nothing.
 */
import type { BillingClient, BillingClientOptions, JournalStore } from 'billonce'
import { createBillingClient } from 'billonce'
import { createReceiver, loseReply } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { computed, createApp, h, isReactive, nextTick, onMounted, reactive, readonly, ref, watch } from 'vue'
import { openJournal } from './indexeddb-support.ts'

const plainParams = () => ({
  amount: 450,
  currency: 'eur',
  customer: 'cus_1',
  metadata: { cart: [{ sku: 'a', count: 2 }, { sku: 'b' }], note: 'grün', nested: { deep: { list: [1, [2, 3]] } } },
})

let receiver: Receiver
beforeEach(() => {
  receiver = createReceiver()
})

function client(options: Partial<BillingClientOptions> = {}, journal: JournalStore = openJournal()): BillingClient {
  const billing = createBillingClient({
    baseUrl: 'https://billing.test/',
    scope: 'org_42/test',
    journal,
    fetch: (...args) => receiver.fetch(...args),
    retry: { baseDelayMs: 1 },
    ...options,
  })
  onTestFinished(() => billing.close())
  return billing
}

/** What two journals that know nothing of each other sent for the same name: the key and the bytes of each. */
const wire = (): readonly (readonly [string | undefined, string])[] =>
  receiver.ledger.requests.map(({ key, body }) => [key, body] as const)

describe('the same key and bytes as plain data', () => {
  const forms: Record<string, () => object> = {
    'reactive()': () => reactive(plainParams()),
    'ref().value': () => ref(plainParams()).value,
    'readonly(reactive())': () => readonly(reactive(plainParams())),
    'computed().value': () => {
      const source = ref(plainParams())
      return computed(() => source.value).value
    },
    'plain, with reactive metadata': () => ({ ...plainParams(), metadata: reactive(plainParams().metadata) }),
    'reactive, with fields that are refs': () =>
      reactive({ ...plainParams(), amount: ref(450), customer: computed(() => 'cus_1') }),
  }

  test.each(Object.keys(forms))('%s', async (form) => {
    const given = forms[form]?.() as ReturnType<typeof plainParams>
    const plain = await client().charge(plainParams(), { operationId: 'order-1' })
    const wrapped = await client().charge(given, reactive({ operationId: 'order-1' }))
    expect(wrapped).toMatchObject({ status: 'succeeded', key: plain.key, markedReplay: true })
    expect(wire()).toHaveLength(2)
    expect(wire()[1]).toEqual(wire()[0])
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('in the same journal a plain and a wrapped call are one operation, with one request', async () => {
    const billing = client()
    const outcomes = await Promise.all([
      billing.charge(plainParams(), { operationId: 'order-1' }),
      billing.charge(reactive(plainParams()), { operationId: 'order-1' }),
    ])
    expect(new Set(outcomes.map(({ key }) => key)).size).toBe(1)
    expect(wire()).toHaveLength(1)
  })

  test('usage and credits too, with a Date that a proxy holds', async () => {
    const occurredAt = new Date(Date.now() - 60_000)
    const usage = { meter: 'exports', quantity: '0.25', occurredAt, metadata: { job: { id: 7 } } }
    const credits = { amount: 4, account: 'cus_1', metadata: { image: ['img-55'] } }
    for (const wrap of [<T extends object>(value: T) => value, <T extends object>(value: T) => reactive(value) as T]) {
      const billing = client()
      await billing.recordUsage(wrap({ ...usage }), { operationId: 'job-7' })
      await billing.consumeCredits(wrap({ ...credits }), { operationId: 'image-55' })
    }
    expect(wire()).toHaveLength(4)
    expect(wire().slice(2)).toEqual(wire().slice(0, 2))
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('reactive options are read like plain ones: revision, volatile fields, signal, metadata', async () => {
    const controller = new AbortController()
    const billing = client()
    const options = reactive({
      operationId: 'order-1',
      volatileFields: ['paymentMethod' as const],
      revision: 1,
      signal: controller.signal,
      deadlineMs: 10_000,
    })
    const first = await billing.charge(reactive({ ...plainParams(), paymentMethod: 'pm_1' }), options)
    const again = await billing.charge(reactive({ ...plainParams(), paymentMethod: 'pm_2' }), options)
    expect(again).toMatchObject({ status: 'succeeded', key: first.key, source: 'journal' })
    expect(wire()).toHaveLength(1)
  })

  test('a client that was made of reactive options, and is reactive itself, works the same', async () => {
    const journal = openJournal()
    const options = reactive({
      baseUrl: 'https://billing.test/',
      scope: 'org_42/test',
      headers: { authorization: 'Bearer t' },
      retry: { baseDelayMs: 1 },
      fetch: receiver.fetch,
      journal,
    })
    const shop = reactive({ billing: createBillingClient(options as BillingClientOptions) })
    onTestFinished(() => shop.billing.close())
    const outcome = await shop.billing.charge(reactive(plainParams()), { operationId: 'order-1' })
    expect(outcome.status).toBe('succeeded')
    expect(await shop.billing.find({ kind: 'charge', operationId: 'order-1' })).toMatchObject({ status: 'succeeded' })
    expect(await client({}, journal).find(reactive({ kind: 'charge', operationId: 'order-1' }))).toBeDefined()
  })
})

describe('a proxy', () => {
  test('is never written to', async () => {
    const params = reactive({ ...plainParams(), paymentMethod: 'pm_1' })
    const options = reactive({ operationId: 'order-1', volatileFields: ['paymentMethod' as const] })
    let writes = 0
    for (const watched of [params, options]) watch(watched, () => (writes += 1), { deep: true, flush: 'sync' })
    const before = JSON.stringify([params, options])
    await client().charge(params, options)
    expect(JSON.stringify([params, options])).toBe(before)
    expect(writes).toBe(0)
    params.amount += 1
    expect(writes).toBe(1)
  })

  test('that changes after the call changes nothing: not the first attempt, not the retry, not what is kept', async () => {
    receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
    const params = reactive(plainParams())
    const options = reactive({ operationId: 'order-1' })
    const plain = client().charge(plainParams(), { operationId: 'order-1' })
    const billing = client()
    const running = billing.charge(params, options)
    params.amount = 99_999
    params.metadata.cart.push({ sku: 'c' })
    options.operationId = 'order-2'
    const [wanted, outcome] = await Promise.all([plain, running])
    expect(outcome).toMatchObject({ status: 'succeeded', operationId: 'order-1', key: wanted.key })
    expect(new Set(wire().map(([, body]) => body)).size).toBe(1)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(await billing.find({ kind: 'charge', operationId: 'order-2' })).toBeUndefined()
    // Named again with what it was, it is the same; with what became of it, it is refused.
    await expect(billing.charge(plainParams(), { operationId: 'order-1' })).resolves.toMatchObject({
      source: 'journal',
    })
    await expect(billing.charge(params, { operationId: 'order-1' })).rejects.toMatchObject({
      code: 'ERR_OPERATION_CONFLICT',
      fields: ['amount', 'metadata'],
    })
  })

  test('is kept in IndexedDB as text, and what is read back is no proxy', async () => {
    const journal = openJournal()
    const billing = client({ fetch: () => new Promise(() => {}) }, journal)
    await billing.charge(reactive(plainParams()), { operationId: 'order-1', background: true })
    const [entry] = (await journal.list({}, 10)).entries
    expect(JSON.parse(entry?.request.body ?? '')).toEqual(plainParams())
    expect(isReactive(entry)).toBe(false)
  })

  test.each<[string, unknown]>([
    ['a Map', new Map([['a', 1]])],
    ['a function', () => 1],
    ['a BigInt', 1n],
  ])('that holds %s, which JSON cannot carry, is refused before any write', async (_what, value) => {
    const journal = openJournal()
    const params = reactive({ ...plainParams(), metadata: { value } })
    await expect(client({}, journal).charge(params, { operationId: 'order-1' })).rejects.toMatchObject({
      code: 'ERR_INVALID_INPUT',
      field: 'metadata.value',
    })
    expect((await journal.list({}, 10)).entries).toEqual([])
    expect(wire()).toEqual([])
  })
})

test('G61: a component that charges when it is mounted, and is remounted at once, charges once', async () => {
  const billing = client()
  const results: string[] = []
  const Payment = {
    setup() {
      const status = ref('paying')
      const form = reactive(plainParams())
      onMounted(async () => {
        status.value = (await billing.charge(form, { operationId: 'order-1' })).status
        results.push(status.value)
      })
      return () => h('p', status.value)
    },
  }
  const key = ref(1)
  const app = createApp(() => h(Payment, { key: key.value }))
  const container = document.body.appendChild(document.createElement('div'))
  app.mount(container)
  key.value = 2
  await nextTick()
  onTestFinished(() => {
    app.unmount()
    container.remove()
  })
  await expect.poll(() => results).toEqual(['succeeded', 'succeeded'])
  expect(container.textContent).toBe('succeeded')
  expect(wire()).toHaveLength(1)
  expect(receiver.ledger.effects).toHaveLength(1)
})
