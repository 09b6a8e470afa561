/**
 * Writes what lies in the IndexedDB of a user of this version: entries in every state, as a client made them, dumped from a
 * real Chromium with the database around them. One file for each format, never written again once it was released.
 *
 * node --conditions=source test/crash-browser/programs/write-fixture.ts > test/stores/fixtures/indexeddb-format-<n>.json
 */
import { openRealBrowser } from '../../support/real-browser.ts'
import type { Page } from '../../support/real-browser.ts'

/** Runs in the page: one entry for each way that an entry can go. */
async function fill(page: Page) {
  const { createBillingClient } = await page.billonce()
  const { indexedDbJournal } = await page.indexeddb()
  const journal = indexedDbJournal()
  const reply = (status: number, body: object, headers: Record<string, string> = {}): Response =>
    Response.json(body, { status, headers })
  const replies: Record<string, (sent: Record<string, unknown>) => Response> = {
    declined: () => reply(402, { error: { code: 'card_declined', message: 'The card was declined.' } }),
    'requires-action': ({ amount, currency }) =>
      reply(200, {
        id: 'ch_action',
        amount,
        currency,
        status: 'requires_action',
        nextAction: { type: 'redirect', url: 'https://bank.example/3ds' },
      }),
    processing: ({ amount, currency }) => reply(200, { id: 'ch_processing', amount, currency, status: 'processing' }),
    'recorded-failure': () => reply(500, { error: { code: 'broken' } }, { 'idempotent-replayed': 'true' }),
    'another-amount': ({ currency }) => reply(200, { id: 'ch_other', amount: 1, currency }),
    'in-doubt': () => new Response('<h1>Bad gateway</h1>', { status: 502, headers: { 'content-type': 'text/html' } }),
    'settled-by-webhook': () => reply(503, {}),
    decided: () => reply(503, {}),
    'slow-down': () => reply(429, { error: { code: 'rate_limited' } }, { 'retry-after': '60' }),
  }
  const options = {
    baseUrl: 'https://api.example.com',
    journal,
    retry: { maxAttempts: 1 },
    fetch: async (input: RequestInfo | URL, init?: RequestInit) => {
      const sent = (await new Request(input, init).json()) as Record<string, unknown>
      const { order } = sent['metadata'] as { order: string }
      // As it lies there when the browser is killed: begun, with a claim, and no reply.
      if (order === 'on-the-wire') return await new Promise<Response>(() => {})
      const known = replies[order]
      return known ? known(sent) : reply(200, { ...sent, id: `re_${order}`, metadata: undefined })
    },
  }
  const headers = { authorization: 'Bearer t' }
  const billing = createBillingClient({ ...options, scope: 'org_42/test', headers })
  const signedOut = createBillingClient({
    ...options,
    scope: 'org_42/test',
    credentials: () => {
      throw new Error('signed out')
    },
  })
  const charge = (order: string, more: object = {}, by = billing) =>
    by.charge(
      { amount: 1250, currency: 'eur', customer: 'cus_1', description: 'Tee “süß” 🧾', metadata: { order } },
      { operationId: order, ...more },
    )
  for (const order of ['paid', ...Object.keys(replies)]) await charge(order)
  await charge('signed-out', {}, signedOut)
  await charge('canceled', {}, signedOut)
  await billing.cancel({ kind: 'charge', operationId: 'canceled' })
  const receipt = { id: 'ch_webhook', amount: 1250, currency: 'eur' }
  const inCharge = (operationId: string) => ({ kind: 'charge', operationId })
  await billing.recordEvidence(inCharge('settled-by-webhook'), { source: 'webhook', found: 'applied', receipt })
  await charge('contradicted')
  await billing.recordEvidence(inCharge('contradicted'), { source: 'webhook', found: 'not-applied', code: 'reversed' })
  await billing.recordEvidence(inCharge('decided'), {
    source: 'decision',
    by: 'support',
    why: 'It is in the statement of the bank',
    found: 'applied',
    receipt: { id: 'ch_decided', amount: 1250, currency: 'eur' },
  })
  await charge('declined', { revision: 2 })
  await charge('with-own-key', { idempotencyKey: 'legacy-order-7' })
  await billing.recordUsage(
    { meter: 'api-calls', quantity: '0.25', metadata: { order: 'usage' } },
    { operationId: 'usage', eventAtMs: Date.now() - 60_000 },
  )
  await billing.consumeCredits({ amount: 3, metadata: { order: 'credits' } }, { operationId: 'credits' })

  const onTheWire = new Promise<void>((resolve) => {
    billing.subscribe(({ type }) => {
      if (type === 'attempt-began') resolve()
    })
  })
  void charge('on-the-wire')
  await onTheWire

  // What is left after pruning: a name without its body, and a kind of which something was removed.
  const old = createBillingClient({
    ...options,
    scope: 'org_43/test',
    headers,
    retention: { finalMs: 0, namesMs: { usage: 0 } },
  })
  await charge('pruned', {}, old)
  await old.recordUsage(
    { meter: 'api-calls', quantity: 1, metadata: { order: 'forgotten' } },
    { operationId: 'forgotten' },
  )
  await new Promise((resolve) => setTimeout(resolve, 20))
  await old.prune()

  const said: unknown[] = []
  for (const client of [billing, old]) {
    for await (const { operationId, revision, kind, state, outcome } of client.entries()) {
      const { source: _, ...rest } = outcome
      said.push({
        scope: client === old ? 'org_43/test' : 'org_42/test',
        kind,
        operationId,
        revision,
        state,
        outcome: rest,
      })
    }
  }
  await journal.close()
  return { writtenAtMs: Date.now(), said }
}

/** Runs in the page: the database as it lies there. */
async function dump() {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const opening = indexedDB.open('billonce')
    opening.onsuccess = () => resolve(opening.result)
    opening.onerror = () => reject(opening.error)
  })
  const resultOf = <T>(request: IDBRequest<T>): Promise<T> =>
    new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result)
      request.onerror = () => reject(request.error)
    })
  const stores = []
  for (const name of database.objectStoreNames) {
    const store = database.transaction(name).objectStore(name)
    const indexes = [...store.indexNames].map((index) => {
      const { keyPath, unique, multiEntry } = store.index(index)
      return { name: index, keyPath, unique, multiEntry }
    })
    const [keys, values] = await Promise.all([resultOf(store.getAllKeys()), resultOf(store.getAll())])
    stores.push({
      name,
      keyPath: store.keyPath,
      autoIncrement: store.autoIncrement,
      indexes,
      records: keys.map((key, index) => [key, values[index] as unknown]),
    })
  }
  return { version: database.version, stores }
}

await using browser = await openRealBrowser('chromium')
const written = await browser.run(fill)
process.stdout.write(`${JSON.stringify({ ...written, database: await browser.run(dump) }, null, 1)}\n`)
