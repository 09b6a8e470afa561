/**
 * What every journal has to hold: each promise of the contract in stores/store.ts as a case that any test runner can run,
 * in Node or in a browser. It knows no runner and no place; how a file or a database gets damaged is left to the tests of
 * that place.
 */
import type {
  EntryState,
  IdempotencyKey,
  JournalEntry,
  JournalStore,
  ListFilter,
  OperationId,
  Page,
  Seen,
} from 'billonce'

/** A place where a journal is kept, empty when it is handed over. */
export interface StorePlace {
  /**
   * Opens the journal of this place; opened again it has the same content. Several may be open at once, as in several tabs
   * or processes. A journal that forgets (`keeps: false`) gives the same store each time.
   */
  open(): Promise<JournalStore> | JournalStore
  /** Whether entries outlive the closing of all stores of this place. */
  readonly keeps: boolean
  /**
   * Puts a row as another version would have left it: found by the names and the state of `entry`, with `text` for the
   * stored entry. Without it the case about unreadable rows is left out.
   */
  putRaw?(entry: JournalEntry, text: string): Promise<void>
  /** Takes the place away. All stores opened by the suite are closed before. */
  dispose(): Promise<void> | void
}

export interface SuiteCase {
  readonly name: string
  /** Rejects with an `Error` that says what was wrong. Each run uses a place of its own. */
  readonly run: () => Promise<void>
}

/**
 * The cases that a journal has to pass, ours or yours.
 *
 * @param newPlace makes a new and empty place; called once for each case
 * @example
 * for (const { name, run } of storeSuite(() => myPlace())) test(name, run)
 */
export function storeSuite(newPlace: () => StorePlace | Promise<StorePlace>): readonly SuiteCase[] {
  const caseOf = ([name, body]: readonly [string, (site: Site) => Promise<void>]): SuiteCase => ({
    name,
    run: async () => {
      const place = await newPlace()
      const opened: JournalStore[] = []
      const open = async (): Promise<JournalStore> => {
        const store = await place.open()
        opened.push(store)
        return store
      }
      try {
        await body({ place, open })
      } finally {
        await Promise.all(opened.map((store) => store.close()))
        await place.dispose()
      }
    },
  })
  return Object.entries(CASES).map(caseOf)
}

/** What a sample may differ in; the fields of its state are filled in. */
export interface Sample {
  readonly scope?: string
  readonly kind?: string
  readonly subject?: string | null
  readonly operationId?: string
  readonly revision?: number
  readonly endpoint?: string
  readonly key?: string
  readonly version?: number
  readonly state?: EntryState
  readonly namedAtMs?: number
  readonly body?: string | null
}

/** A whole entry for tests. Its key follows from its names unless one is given. */
export function sampleEntry(sample: Sample = {}): JournalEntry {
  const {
    scope = 'org_1/test',
    kind = 'charge',
    subject = null,
    operationId = 'order-1',
    revision = 1,
    endpoint = 'https://api.example.com/',
    key = `key/${JSON.stringify([scope, kind, subject, operationId, revision])}`,
    version = 1,
    state = 'pending',
    namedAtMs = 1_760_000_000_000,
    body = '{"amount":1250,"currency":"eur"}',
  } = sample
  const base = {
    format: 1,
    version,
    key: key as IdempotencyKey,
    endpoint,
    endpointNamed: false,
    scope,
    kind,
    subject,
    operationId: operationId as OperationId,
    revision,
    request: {
      method: 'POST',
      path: 'v1/charges',
      keyHeader: { name: 'Idempotency-Key', value: key },
      contentType: 'application/json',
      headers: { 'api-version': '2026-01-01' },
      body,
    },
    fingerprint: { amount: 'a', currency: 'c' },
    expected: { amount: 1250, currency: 'eur' },
    volatileFields: [],
    dialect: { name: 'standard', version: 1 },
    keyed: true,
    longestRequestMs: 120_000,
    namedAtMs,
    eventAtMs: null,
    mayPredateJournal: false,
    window: { names: 'shared' as const, startAtMs: namedAtMs, lengthMs: 82_800_000, marginMs: 3_600_000 },
    sendBeforeAtMs: null,
    acceptUntilAtMs: null,
    attemptsBegun: 0,
    attempts: [],
    droppedInDoubt: 0,
    lastAmbiguousAtMs: null,
    claim: null,
    highestWallMs: namedAtMs,
    contradiction: null,
    evidence: [],
    misses: 0,
  }
  const receipt = { id: 'ch_1', status: 'succeeded', reply: { id: 'ch_1', amount: 1250 } }
  const settledAtMs = namedAtMs + 1000
  switch (state) {
    case 'pending':
      return { ...base, state, reason: 'not-yet-tried', nextAttemptAtMs: namedAtMs, notBeforeMs: 0 }
    case 'sending':
      return {
        ...base,
        attemptsBegun: 1,
        attempts: [{ number: 1, beganAtMs: namedAtMs }],
        lastAmbiguousAtMs: namedAtMs,
        claim: { owner: 'somebody', fence: 1, untilMs: namedAtMs + 40_000 },
        state,
        reason: 'in-flight',
        nextAttemptAtMs: namedAtMs,
        notBeforeMs: 0,
      }
    case 'accepted':
      return { ...base, state, receipt, progress: 'processing', nextAction: null }
    case 'unknown':
      return { ...base, state, reason: 'window-over', receipt: null }
    case 'succeeded':
      return { ...base, state, receipt, settledAtMs }
    case 'rejected':
      return {
        ...base,
        state,
        rejection: { kind: 'declined', code: 'card_declined', status: 402, behindKey: true },
        settledAtMs,
      }
    case 'canceled':
      return { ...base, state, by: 'caller', settledAtMs }
  }
}

/** The states that a sample can be in, each once. */
export const SAMPLE_STATES: readonly EntryState[] = [
  'pending',
  'sending',
  'accepted',
  'unknown',
  'succeeded',
  'rejected',
  'canceled',
]

interface Site {
  readonly place: StorePlace
  readonly open: () => Promise<JournalStore>
}

const CASES: Readonly<Record<string, (site: Site) => Promise<void>>> = {
  'an entry comes back as it was put in, in every state': async ({ open }) => {
    const store = await open()
    for (const [index, state] of SAMPLE_STATES.entries()) {
      const entry = sampleEntry({ operationId: `order-${index}`, state })
      same(await store.insert(entry, []), { inserted: true }, `insert in state ${state}`)
      same(await store.get(entry.endpoint, entry.key), entry, `get in state ${state}`)
    }
    for (const entry of grown()) {
      await insert(store, entry)
      same(await store.get(entry.endpoint, entry.key), entry, `get of ${entry.operationId}`)
    }
    same(await store.get('https://api.example.com/', 'no such key'), undefined, 'get of an absent key')
    same(await store.getByKey('no such key'), [], 'getByKey of an absent key')
    same(
      await store.history({ scope: 'org_1/test', kind: 'charge', operationId: 'no' }),
      [],
      'history of an absent name',
    )
  },

  'insert takes an entry only if its name is exactly as seen': async ({ open }) => {
    const store = await open()
    const first = sampleEntry({ state: 'rejected', version: 3 })
    const second = sampleEntry({ revision: 2 })
    same(
      await store.insert(first, [seenOf(second)]),
      { inserted: false, found: [] },
      'insert that saw what is not there',
    )
    await insert(store, first)
    same(await store.insert(second, []), { inserted: false, found: [first] }, 'next revision, seen nothing')
    const stale = { ...seenOf(first), version: 2 }
    same(
      await store.insert(second, [stale]),
      { inserted: false, found: [first] },
      'next revision, seen an older version',
    )
    const twice = [seenOf(first), seenOf(second)]
    same(await store.insert(second, twice), { inserted: false, found: [first] }, 'next revision, seen too much')
    same(await store.get(second.endpoint, second.key), undefined, 'what a refused insert left')
    same(await store.insert(second, [seenOf(first)]), { inserted: true }, 'next revision, seen as it is')
    const found = await store.insert(sampleEntry({ revision: 3 }), [seenOf(first)])
    sameSet(found.inserted ? [] : found.found, [first, second], 'all revisions are found')
  },

  'insert takes an entry only if its endpoint and key are as seen': async ({ open }) => {
    const store = await open()
    const held = sampleEntry({ key: 'brought along' })
    await insert(store, held)
    const otherName = sampleEntry({ operationId: 'order-2', key: 'brought along' })
    same(await store.insert(otherName, []), { inserted: false, found: [held] }, 'the same key under another name')
    const otherPlace = sampleEntry({
      operationId: 'order-2',
      key: 'brought along',
      endpoint: 'https://other.example.com/',
    })
    same(await store.insert(otherPlace, []), { inserted: true }, 'the same key and another name at another endpoint')
    sameSet(await store.getByKey('brought along'), [held, otherPlace], 'getByKey')
    same(await store.get(otherPlace.endpoint, 'brought along'), otherPlace, 'get by endpoint')
  },

  'an insert never writes over an entry, whatever was seen': async ({ open }) => {
    const store = await open()
    const held = sampleEntry({ state: 'succeeded', version: 4 })
    await insert(store, held)
    const again = sampleEntry({ body: 'other' })
    same(await store.insert(again, [seenOf(held)]), { inserted: false, found: [held] }, 'insert over what was seen')
    same(await store.get(held.endpoint, held.key), held, 'the entry that was there')
  },

  'a name is found under every endpoint': async ({ open }) => {
    const store = await open()
    const here = sampleEntry()
    const there = sampleEntry({ endpoint: 'https://moved.example.com/' })
    await insert(store, here)
    same(await store.insert(there, []), { inserted: false, found: [here] }, 'the same name at another endpoint')
    same(await store.insert(there, [seenOf(here)]), { inserted: true }, 'the same, seen')
    sameSet(await store.history(here), [here, there], 'history')
  },

  'another scope, kind, subject or id is another name': async ({ open }) => {
    const store = await open()
    const entries = [
      sampleEntry(),
      sampleEntry({ scope: 'org_2/test' }),
      sampleEntry({ kind: 'credits' }),
      sampleEntry({ kind: 'usage', subject: 'api-calls' }),
      sampleEntry({ kind: 'usage', subject: 'gigabytes' }),
      sampleEntry({ kind: 'usage', subject: 'null' }),
      sampleEntry({ kind: 'usage', subject: null }),
      sampleEntry({ operationId: 'Order-1' }),
      sampleEntry({ operationId: 'order-1 ' }),
    ]
    for (const entry of entries) await insert(store, entry)
    for (const entry of entries) same(await store.get(entry.endpoint, entry.key), entry, 'get')
    sameSet(
      await store.history({ scope: 'org_1/test', kind: 'usage', operationId: 'order-1' }),
      entries.slice(3, 7),
      'all subjects',
    )
    same(
      await store.history({ scope: 'org_2/test', kind: 'charge', operationId: 'order-1' }),
      [entries[1]],
      'own scope',
    )
  },

  'odd names and bodies come back as they are': async ({ open }) => {
    const store = await open()
    const names = [
      'é',
      'e\u0301',
      '中文 🧾',
      `'";--\``,
      '%',
      '_',
      '\\',
      '../..',
      '__proto__',
      'null',
      '0',
      ' ',
      'x'.repeat(255),
      'y'.repeat(10_000),
    ]
    const body = `{"note":"\u0000\u2028 🧾 ${'z'.repeat(300_000)}"}`
    const named = names.map((name) =>
      sampleEntry({ scope: name, kind: name, subject: name, operationId: name, endpoint: name }),
    )
    const entries = [...named, sampleEntry({ body })]
    for (const entry of entries) await insert(store, entry)
    for (const entry of entries) {
      same(await store.get(entry.endpoint, entry.key), entry, 'get')
      same(await store.history(entry), [entry], 'history')
      same(await store.listDeliverable(entry, 10), { entries: [entry], unreadable: 0 }, 'listDeliverable')
    }
    sameSet(
      await store.countOpen(),
      entries.map(({ endpoint, scope, state }) => ({ endpoint, scope, state, count: 1 })),
      'countOpen',
    )
  },

  'no separator makes two names meet': async ({ open }) => {
    const store = await open()
    const entries = ['|', ':', '/', ' ', ',', '"', '","', '\\', '\u00a0', '\uffff', '.'].flatMap((mark) => [
      sampleEntry({ scope: `a${mark}b`, kind: 'c', operationId: 'd', endpoint: `e${mark}f`, key: 'g' }),
      sampleEntry({ scope: 'a', kind: `b${mark}c`, operationId: 'd', endpoint: 'e', key: `f${mark}g` }),
      sampleEntry({ scope: 'a', kind: 'b', operationId: `c${mark}d`, endpoint: 'e', key: `f${mark}${mark}g` }),
      sampleEntry({
        scope: 'a',
        kind: 'b',
        subject: `c${mark}d`,
        operationId: `${mark}e`,
        endpoint: 'e',
        key: `${mark}g`,
      }),
    ])
    for (const entry of entries) await insert(store, entry)
    for (const entry of entries) {
      same(await store.history(entry), [entry], 'history')
      same(await store.get(entry.endpoint, entry.key), entry, 'get')
    }
  },

  'of fifty inserts of one entry at once exactly one wins': async ({ open }) => {
    const stores = [await open(), await open()]
    const entry = sampleEntry()
    const results = await Promise.all(times(50, (index) => pick(stores, index).insert(entry, [])))
    same(results.filter(({ inserted }) => inserted).length, 1, 'number of winners')
    for (const result of results) if (!result.inserted) same(result.found, [entry], 'what the others found')
    same(await collect((after) => pick(stores, 0).list({}, 100, after)), [entry], 'what is there')
  },

  'of inserts of one name at once, each under a key and an endpoint of its own, exactly one wins': async ({ open }) => {
    const stores = [await open(), await open()]
    for (let round = 0; round < 5; round++) {
      const entries = times(10, (index) =>
        sampleEntry({ operationId: `order-${round}`, key: `key ${round} ${index}`, endpoint: `place ${index % 3}` }),
      )
      const results = await Promise.all(entries.map((entry, index) => pick(stores, index).insert(entry, [])))
      same(results.filter(({ inserted }) => inserted).length, 1, 'number of winners')
      const winner = entries[results.findIndex(({ inserted }) => inserted)]
      for (const result of results) if (!result.inserted) same(result.found, [winner], 'what the others found')
      same(await pick(stores, 0).history(sampleEntry({ operationId: `order-${round}` })), [winner], 'what is there')
    }
  },

  'fifty inserts of different entries at once all win': async ({ open }) => {
    const stores = [await open(), await open()]
    const entries = times(50, (index) => sampleEntry({ operationId: `order-${index}` }))
    const results = await Promise.all(entries.map((entry, index) => pick(stores, index).insert(entry, [])))
    same(
      results,
      times(50, () => ({ inserted: true })),
      'results',
    )
    sameSet(await collect((after) => pick(stores, 0).list({}, 7, after)), entries, 'what is there')
  },

  'replace is a compare-and-set on the version': async ({ open }) => {
    const store = await open()
    const first = sampleEntry()
    same(await store.replace(sampleEntry({ version: 2 })), false, 'replace of an absent entry')
    same(await store.get(first.endpoint, first.key), undefined, 'what it left')
    await insert(store, first)
    const neighbour = sampleEntry({ operationId: 'order-2' })
    await insert(store, neighbour)
    for (const version of [1, 3, 0])
      same(await store.replace(sampleEntry({ version, state: 'sending' })), false, `version ${version} over 1`)
    same(await store.get(first.endpoint, first.key), first, 'what a refused replace left')
    same(await store.replace(sampleEntry({ version: 2, state: 'sending' })), true, 'version 2 over 1')
    same(await store.replace(sampleEntry({ version: 2, state: 'succeeded' })), false, 'version 2 over 2')
    same(
      await store.replace(sampleEntry({ version: 3, endpoint: 'https://other.example.com/' })),
      false,
      'the same key at another endpoint',
    )
    same(await store.get(first.endpoint, first.key), sampleEntry({ version: 2, state: 'sending' }), 'get')
    same(await store.get(neighbour.endpoint, neighbour.key), neighbour, 'its neighbour')
  },

  'of fifty replaces at once exactly one wins': async ({ open }) => {
    const stores = [await open(), await open()]
    await insert(pick(stores, 0), sampleEntry())
    const wanted = times(50, (index) => sampleEntry({ version: 2, state: 'sending', body: `body ${index}` }))
    const results = await Promise.all(wanted.map((entry, index) => pick(stores, index).replace(entry)))
    same(results.filter(Boolean).length, 1, 'number of winners')
    same(
      await pick(stores, 1).get(sampleEntry().endpoint, sampleEntry().key),
      wanted[results.indexOf(true)],
      'what is there',
    )
  },

  'what one store wrote another sees at once': async ({ open }) => {
    const one = await open()
    const other = await open()
    await insert(one, sampleEntry())
    same(await other.get(sampleEntry().endpoint, sampleEntry().key), sampleEntry(), 'an insert')
    same(await other.replace(sampleEntry({ version: 2, state: 'succeeded' })), true, 'replace by the other')
    same(await one.replace(sampleEntry({ version: 2, state: 'sending' })), false, 'replace by the one')
    same((await one.get(sampleEntry().endpoint, sampleEntry().key))?.state, 'succeeded', 'a replace')
    same(await one.knowsSinceMs('charge'), await other.knowsSinceMs('charge'), 'birth')
  },

  'nothing is shared with callers': async ({ open }) => {
    const store = await open()
    const entry = sampleEntry({ state: 'sending' })
    await insert(store, entry)
    spoil(entry)
    const pristine = sampleEntry({ state: 'sending' })
    const read = async (): Promise<unknown[]> => [
      await store.get(pristine.endpoint, pristine.key),
      ...(await store.getByKey(pristine.key)),
      ...(await store.history(pristine)),
      ...(await store.list({}, 10)).entries,
      ...(await store.listDeliverable(pristine, 10)).entries,
    ]
    same(
      await read(),
      times(5, () => pristine),
      'after the inserted object was changed',
    )
    for (const given of await read()) spoil(given as JournalEntry)
    same(
      await read(),
      times(5, () => pristine),
      'after the objects given out were changed',
    )
  },

  'deliverable entries are listed in the order of naming, only those of the endpoint and scope': async ({ open }) => {
    const store = await open()
    const mine = await fill(store, 8, {})
    await fill(store, 3, { scope: 'org_2/test' })
    await fill(store, 2, { endpoint: 'https://other.example.com/', kind: 'credits' })
    for (const state of SAMPLE_STATES.slice(2)) await insert(store, sampleEntry({ operationId: state, state }))
    const sending = sampleEntry({ operationId: 'late', state: 'sending', namedAtMs: 1_760_000_999_000 })
    await insert(store, sending)
    same(
      await store.listDeliverable({ endpoint: sending.endpoint, scope: sending.scope }, 100),
      { entries: [...mine, sending], unreadable: 0 },
      'all',
    )
    for (const limit of [1, 2, 3, 4, 8, 9]) {
      same(
        await collect((after) => store.listDeliverable(sending, limit, after), limit),
        [...mine, sending],
        `in pages of ${limit}`,
      )
    }
    same(await store.listDeliverable({ endpoint: 'no', scope: 'no' }, 10), { entries: [], unreadable: 0 }, 'of nobody')
    const countOf = (endpoint: string, scope: string, state: EntryState, count: number): unknown => ({
      endpoint,
      scope,
      state,
      count,
    })
    sameSet(
      await store.countOpen(),
      [
        countOf(sending.endpoint, sending.scope, 'pending', 8),
        countOf(sending.endpoint, sending.scope, 'sending', 1),
        countOf(sending.endpoint, sending.scope, 'accepted', 1),
        countOf(sending.endpoint, sending.scope, 'unknown', 1),
        countOf(sending.endpoint, 'org_2/test', 'pending', 3),
        countOf('https://other.example.com/', sending.scope, 'pending', 2),
      ],
      'countOpen',
    )
  },

  'pages stay in place while entries are settled between them': async ({ open }) => {
    const store = await open()
    const other = await open()
    const entries = await fill(store, 25, {})
    const of = sampleEntry()
    const settle = async (entry: JournalEntry): Promise<void> =>
      same(
        await store.replace({
          ...sampleEntry({ ...entry, state: 'succeeded', version: entry.version + 1 }),
          namedAtMs: entry.namedAtMs,
        }),
        true,
        'settle',
      )
    const first = await store.listDeliverable(of, 10)
    same(first.entries, entries.slice(0, 10), 'first page')
    // All of the page just given, as a pass of delivery does, and two that are still to come.
    for (const entry of [...entries.slice(0, 10), ...entries.slice(12, 14)]) await settle(entry)
    check(typeof first.next === 'string', 'a cursor is text')
    const second = await other.listDeliverable(of, 10, first.next)
    same(second.entries, [...entries.slice(10, 12), ...entries.slice(14, 22)], 'second page')
    for (const entry of second.entries) await settle(entry)
    await insert(store, sampleEntry({ operationId: 'new', namedAtMs: 1_770_000_000_000 }))
    const third = await store.listDeliverable(of, 3, second.next)
    same(third.entries, entries.slice(22), 'third page')
    const left = await collect((after) => store.listDeliverable(of, 10, after))
    same(
      left.map(({ operationId }) => operationId),
      [...entries.slice(22).map(({ operationId }) => operationId), 'new'],
      'what is left',
    )
  },

  'an entry that leaves and comes back is counted right': async ({ open }) => {
    const store = await open()
    const of = sampleEntry()
    await insert(store, sampleEntry())
    for (const [index, state] of (['canceled', 'pending', 'sending', 'unknown', 'succeeded'] as const).entries()) {
      same(await store.replace(sampleEntry({ version: index + 2, state })), true, `to ${state}`)
      const count = state === 'pending' || state === 'sending' ? 1 : 0
      same((await store.listDeliverable(of, 10)).entries.length, count, `listed when ${state}`)
      const { endpoint, scope } = of
      const open = ['canceled', 'succeeded'].includes(state) ? [] : [{ endpoint, scope, state, count: 1 }]
      same(await store.countOpen(), open, `counted when ${state}`)
    }
  },

  'list filters by every field and pages over all states': async ({ open }) => {
    const store = await open()
    const entries: JournalEntry[] = []
    for (const [index, state] of SAMPLE_STATES.entries()) {
      for (const [place, scope] of ['org_1/test', 'org_2/test'].entries()) {
        entries.push(
          sampleEntry({
            operationId: `order-${index}`,
            kind: index % 2 === 0 ? 'charge' : 'credits',
            endpoint: index < 4 ? 'one' : 'two',
            scope,
            state,
            namedAtMs: 1_760_000_000_000 + index * 10 + place,
          }),
        )
      }
    }
    for (const entry of entries) await insert(store, entry)
    const filters: readonly ListFilter[] = [
      {},
      { endpoint: 'one' },
      { scope: 'org_2/test' },
      { kind: 'credits' },
      { operationId: 'order-3' },
      { states: ['succeeded', 'rejected', 'canceled'] },
      { states: ['pending'] },
      { states: ['pending', 'sending', 'accepted', 'unknown'] },
      { states: ['unknown', 'accepted', 'canceled'] },
      { endpoint: 'one', scope: 'org_1/test', states: ['sending', 'unknown', 'accepted'] },
      { endpoint: 'one', scope: 'org_2/test', kind: 'charge', operationId: 'order-2', states: ['accepted', 'unknown'] },
      { scope: 'org_1/test', kind: 'credits', states: ['sending', 'unknown'] },
      { operationId: 'order-3', states: ['unknown'] },
      { states: [] },
      { endpoint: undefined, states: undefined },
      { endpoint: 'two', scope: 'org_1/test', kind: 'charge', states: ['succeeded', 'canceled'] },
      { endpoint: 'one', operationId: 'order-6' },
      { scope: 'org_3/test' },
    ]
    for (const filter of filters) {
      const wanted = entries.filter((entry) => fits(entry, filter))
      for (const limit of [1, 5, 100]) {
        const given = await collect((after) => store.list(filter, limit, after), limit)
        sameSet(given, wanted, `list ${JSON.stringify(filter)} in pages of ${limit}`)
        const one = given.filter((entry) => entry.endpoint === 'one' && entry.scope === 'org_1/test')
        same(
          one,
          one.toSorted((a, b) => a.namedAtMs - b.namedAtMs),
          'the order within one endpoint and scope',
        )
      }
    }
  },

  'it knows all names since its birth, which is constant and lies in the past': async ({ place, open }) => {
    const before = Date.now()
    const store = await open()
    const sinceMs = await store.knowsSinceMs('charge')
    // The wall clock may be set while the suite runs; a second is allowed for.
    check(sinceMs >= before - 1000 && sinceMs <= Date.now() + 1000, `since ${sinceMs}, opened at ${before}`)
    same(await store.knowsSinceMs('no such kind'), sinceMs, 'of another kind')
    await insert(store, sampleEntry())
    same(await store.knowsSinceMs('charge'), sinceMs, 'after an insert')
    if (!place.keeps) return
    await store.close()
    await new Promise((resolve) => setTimeout(resolve, 5))
    same(await (await open()).knowsSinceMs('charge'), sinceMs, 'after reopening')
  },

  'what is due for pruning is found, if the journal can tell: each once, and not what is open': async ({ open }) => {
    const store = await open()
    if (!store.listPrunable) return
    const list = store.listPrunable.bind(store)
    const usage = { kind: 'usage', subject: 'exports' } as const
    const charges = Array.from({ length: 7 }, (_, index) =>
      sampleEntry({
        operationId: `order-${index}`,
        state: index % 2 === 0 ? 'succeeded' : 'rejected',
        // Some settled in the same millisecond.
        namedAtMs: 1_760_000_000_000 + Math.floor(index / 3),
      }),
    )
    const meters = Array.from({ length: 5 }, (_, index) =>
      sampleEntry({ ...usage, operationId: `export-${index}`, state: 'succeeded', body: index < 2 ? '{}' : null }),
    )
    const late = sampleEntry({ operationId: 'late', state: 'succeeded', namedAtMs: 1_770_000_000_000 })
    const lean = sampleEntry({ operationId: 'lean', state: 'succeeded', body: null })
    const elsewhere = sampleEntry({ operationId: 'elsewhere', state: 'succeeded', scope: 'org_2/test' })
    for (const entry of [
      ...charges,
      ...meters,
      late,
      lean,
      elsewhere,
      sampleEntry({ operationId: 'open', state: 'unknown' }),
    ])
      await insert(store, entry)
    const of = sampleEntry()
    const found = async (due: Parameters<typeof list>[1], limit: number): Promise<readonly JournalEntry[]> =>
      collect((after) => list(of, due, limit, after))
    const atMs = 1_760_000_010_000
    for (const limit of [1, 3, 100]) {
      const none = { bodiesAtMs: 0, namesAtMs: {} }
      sameSet(await found(none, limit), [], `nothing due, ${limit} at a time`)
      const bodies = { bodiesAtMs: atMs, namesAtMs: {} }
      sameSet(await found(bodies, limit), [...charges, ...meters.slice(0, 2)], `bodies, ${limit} at a time`)
      const names = { bodiesAtMs: 0, namesAtMs: { usage: atMs } }
      sameSet(await found(names, limit), meters, `names of usage, ${limit} at a time`)
      const both = { bodiesAtMs: atMs, namesAtMs: { usage: atMs, charge: atMs } }
      sameSet(await found(both, limit), [...charges, ...meters, lean], `both, ${limit} at a time`)
    }
    // What has been pruned or removed is not due again.
    const [first, second] = charges
    if (!first || !second) throw new Error('There are seven.')
    same(await store.remove([first]), true, 'remove')
    const pruned = { ...second, version: second.version + 1, request: { ...second.request, body: null } }
    same(await store.replace(pruned), true, 'replace')
    const left = await found({ bodiesAtMs: atMs, namesAtMs: {} }, 100)
    sameSet(left, [...charges.slice(2), ...meters.slice(0, 2)], 'what is left')
  },

  'remove takes all of the entries in these versions, or none': async ({ open }) => {
    const store = await open()
    const of = { state: 'succeeded', version: 3 } as const
    const there = [sampleEntry(of), sampleEntry({ ...of, revision: 2 }), sampleEntry({ ...of, operationId: 'order-2' })]
    for (const [index, entry] of there.entries())
      same(await store.insert(entry, there.slice(0, index % 2).map(seenOf)), { inserted: true }, `insert ${index}`)
    const sinceMs = await store.knowsSinceMs('charge')
    const wrong: Readonly<Record<string, JournalEntry>> = {
      'that is not there': sampleEntry({ ...of, operationId: 'order-3' }),
      'in an older version': sampleEntry({ ...of, operationId: 'order-2', version: 2 }),
      'in a newer version': sampleEntry({ ...of, operationId: 'order-2', version: 4 }),
      'at another endpoint': sampleEntry({ ...of, operationId: 'order-2', endpoint: 'https://other.example.com/' }),
    }
    for (const [what, one] of Object.entries(wrong)) {
      const late = { ...one, namedAtMs: 9_000_000_000_000 }
      same(await store.remove([...there.slice(0, 2), late]), false, `remove with one ${what}, the last`)
      same(await store.remove([late, ...there.slice(0, 2)]), false, `remove with one ${what}, the first`)
      same(await store.remove([late]), false, `remove of one ${what}`)
    }
    sameSet(await collect((after) => store.list({}, 10, after)), there, 'what a refused remove left')
    same(await store.knowsSinceMs('charge'), sinceMs, 'what it knows after a refused remove')
    same(await store.remove([]), true, 'remove of nothing')
    same(await store.remove(there.slice(0, 2)), true, 'remove of an operation')
    same(await store.remove(there.slice(0, 2)), false, 'the same again')
    same(await collect((after) => store.list({}, 10, after)), there.slice(2), 'what is left')
  },

  'what was removed is nowhere, and its name is free again': async ({ open }) => {
    const store = await open()
    const other = await open()
    const neighbour = sampleEntry({ kind: 'usage', subject: 'gigabytes', operationId: 'order-1' })
    await insert(store, neighbour)
    const { endpoint, scope } = neighbour
    // Only what is final is removed by the engine; a journal decides nothing about that.
    for (const state of SAMPLE_STATES) {
      const entry = sampleEntry({ kind: 'usage', subject: 'api-calls', state })
      await insert(store, entry)
      same(await other.remove([entry]), true, `remove in state ${state}`)
      same(await store.get(entry.endpoint, entry.key), undefined, 'get')
      same(await store.getByKey(entry.key), [], 'getByKey')
      same(await store.history(entry), [neighbour], 'history')
      same((await store.list({}, 10)).entries, [neighbour], 'list')
      same(
        (await store.list({ states: [state] }, 10)).entries,
        state === 'pending' ? [neighbour] : [],
        'list of a state',
      )
      same(await store.listDeliverable(entry, 10), { entries: [neighbour], unreadable: 0 }, 'listDeliverable')
      same(await store.countOpen(), [{ endpoint, scope, state: 'pending', count: 1 }], 'countOpen')
      same(await store.replace({ ...entry, version: 2 }), false, 'replace')
    }
    const again = sampleEntry({ kind: 'usage', subject: 'api-calls', body: 'again' })
    await insert(other, again)
    same(await store.get(again.endpoint, again.key), again, 'get of the same name, inserted again')
    sameSet(await store.history(again), [neighbour, again], 'history of the same name, inserted again')
  },

  'it remembers of each kind the latest naming that was removed': async ({ place, open }) => {
    const store = await open()
    const bornAtMs = await store.knowsSinceMs('charge')
    const entryOf = (kind: string, operationId: string, namedAtMs: number): JournalEntry =>
      sampleEntry({ kind, operationId, namedAtMs, state: 'succeeded' })
    // After its birth, as namings are, but for those that came with a clock that was wrong.
    const charges = [entryOf('charge', 'a', bornAtMs + 5000), entryOf('charge', 'b', bornAtMs + 9000.5)]
    const earlier = entryOf('charge', 'c', bornAtMs + 7000)
    const credits = entryOf('credits', 'a', bornAtMs + 6000)
    const ancient = entryOf('usage', 'a', 1_000)
    const kept = entryOf('charge', 'd', bornAtMs + 20_000)
    for (const entry of [...charges, earlier, credits, ancient, kept]) await insert(store, entry)
    same(await store.remove([...charges, credits]), true, 'remove of two kinds')
    same(await store.remove([earlier]), true, 'remove of an earlier one')
    same(await store.remove([ancient]), true, 'remove of one from before its birth')
    const read = async (from: JournalStore): Promise<readonly number[]> => [
      await from.knowsSinceMs('charge'),
      await from.knowsSinceMs('credits'),
      await from.knowsSinceMs('usage'),
      await from.knowsSinceMs('no such kind'),
    ]
    const wanted = [bornAtMs + 9000.5, bornAtMs + 6000, bornAtMs, bornAtMs]
    same(await read(store), wanted, 'since when it knows')
    same(await read(await open()), wanted, 'since when another knows')
    await insert(store, charges[0] as JournalEntry)
    same(await store.remove(charges.slice(0, 1)), true, 'remove of one that was inserted again')
    same(await read(store), wanted, 'since when it knows after that')
    same((await store.list({}, 10)).entries, [kept], 'what is there')
    if (!place.keeps) return
    await store.close()
    const again = await open()
    same(await read(again), wanted, 'since when it knows, opened again')
    same((await again.list({}, 10)).entries, [kept], 'what is there, opened again')
    same(await again.history(earlier), [], 'history, opened again')
  },

  'odd kinds are remembered apart': async ({ open }) => {
    const store = await open()
    const bornAtMs = await store.knowsSinceMs('charge')
    const kinds = ['__proto__', 'constructor', ' ', 'meta', ':', 'é', 'e\u0301', `'";--`, 'Charge']
    const entries = kinds.map((kind, index) =>
      sampleEntry({ kind, state: 'canceled', namedAtMs: bornAtMs + 1000 + index }),
    )
    for (const entry of entries) await insert(store, entry)
    // Together, as several clients would: each is remembered, whatever shares its commit.
    const results = await Promise.all(entries.map((entry) => store.remove([entry])))
    same(
      results,
      entries.map(() => true),
      'results',
    )
    for (const { kind, namedAtMs } of entries) same(await store.knowsSinceMs(kind), namedAtMs, `of ${kind}`)
    same(await store.knowsSinceMs('charge'), bornAtMs, 'of a kind of which none was removed')
  },

  'removes that come together each count for their kind': async ({ open }) => {
    const stores = [await open(), await open()]
    const store = pick(stores, 0)
    const bornAtMs = await store.knowsSinceMs('charge')
    const entries = times(20, (index) =>
      // The latest neither first nor last.
      sampleEntry({
        operationId: `order-${index}`,
        state: 'rejected',
        namedAtMs: bornAtMs + 1000 + ((index + 7) % 20),
      }),
    )
    for (const entry of entries) await insert(store, entry)
    const results = await Promise.all(entries.map((entry, index) => pick(stores, index).remove([entry])))
    same(
      results,
      entries.map(() => true),
      'results',
    )
    same(await store.knowsSinceMs('charge'), bornAtMs + 1019, 'since when it knows')
    same(await store.list({}, 100), { entries: [], unreadable: 0 }, 'what is left')
  },

  'of a replace, a remove and others like them at once exactly one wins': async ({ open }) => {
    const stores = [await open(), await open()]
    for (let round = 0; round < 10; round++) {
      const entry = sampleEntry({ operationId: `order-${round}`, state: 'rejected' })
      const neighbour = sampleEntry({ operationId: `neighbour-${round}`, state: 'rejected' })
      await insert(pick(stores, 0), entry)
      await insert(pick(stores, 0), neighbour)
      const next = { ...entry, version: 2 }
      // Both orders, in both stores.
      const calls = times(8, (index) => {
        const store = pick(stores, index + round)
        return (index + (round % 3)) % 3 === 0 ? store.replace(next) : store.remove([neighbour, entry])
      })
      const results = await Promise.all(calls)
      same(results.filter(Boolean).length, 1, 'number of winners')
      const isRemoved = (results.indexOf(true) + (round % 3)) % 3 !== 0
      same(await pick(stores, 1).get(entry.endpoint, entry.key), isRemoved ? undefined : next, 'what is there')
      const left = await pick(stores, 1).get(neighbour.endpoint, neighbour.key)
      same(left, isRemoved ? undefined : neighbour, 'its neighbour')
    }
  },

  'an insert that saw what is removed at the same time finds it as it was or gone': async ({ open }) => {
    const stores = [await open(), await open()]
    for (let round = 0; round < 10; round++) {
      const entry = sampleEntry({ operationId: `order-${round}`, state: 'rejected' })
      const next = sampleEntry({ operationId: `order-${round}`, revision: 2 })
      await insert(pick(stores, 0), entry)
      const insertion = pick(stores, round).insert(next, [seenOf(entry)])
      const removal = pick(stores, round + 1).remove([entry])
      const result = await insertion
      same(await removal, true, 'remove')
      same(result.inserted ? [] : result.found, [], 'what a refused insert found')
      same(await pick(stores, 0).history(entry), result.inserted ? [next] : [], 'what is there')
    }
  },

  'entries survive closing and opening, if the journal keeps': async ({ place, open }) => {
    const store = await open()
    same(store.durable, place.keeps, 'durable')
    const entries = await fill(store, 5, {})
    const settled = sampleEntry({ ...entries[0], version: 2, state: 'succeeded' })
    same(await store.replace(settled), true, 'replace')
    const page = await store.list({}, 2)
    if (!place.keeps) return
    await store.close()
    const again = await open()
    sameSet(await collect((after) => again.list({}, 2, after)), [settled, ...entries.slice(1)], 'what is there')
    same((await again.listDeliverable(settled, 10)).entries, entries.slice(1), 'deliverable')
    same((await again.list({}, 10, page.next)).entries, entries.slice(2), 'where the listing goes on')
  },

  'after close every call is refused with fault closed': async ({ open }) => {
    const store = await open()
    await insert(store, sampleEntry())
    const lastCall = store.replace(sampleEntry({ version: 2, state: 'succeeded' }))
    const closing = store.close()
    same(await lastCall, true, 'a call that was open when it was closed')
    await closing
    await store.close()
    const entry = sampleEntry({ operationId: 'order-2' })
    const calls: Readonly<Record<string, () => Promise<unknown>>> = {
      insert: () => store.insert(entry, []),
      replace: () => store.replace(entry),
      get: () => store.get(entry.endpoint, entry.key),
      getByKey: () => store.getByKey(entry.key),
      history: () => store.history(entry),
      listDeliverable: () => store.listDeliverable(entry, 1),
      countOpen: () => store.countOpen(),
      list: () => store.list({}, 1),
      remove: () => store.remove([sampleEntry({ version: 2, state: 'succeeded' })]),
      knowsSinceMs: () => store.knowsSinceMs('charge'),
    }
    for (const [name, call] of Object.entries(calls)) await refuses(call, 'closed', name)
  },

  'a store closed before its first use has no effect and is closed': async ({ open }) => {
    const store = await open()
    await store.close()
    await refuses(() => store.knowsSinceMs('charge'), 'closed', 'knowsSinceMs')
  },

  'closing one store leaves the others open': async ({ place, open }) => {
    if (!place.keeps) return
    const one = await open()
    const other = await open()
    await insert(one, sampleEntry())
    await one.close()
    same(await other.get(sampleEntry().endpoint, sampleEntry().key), sampleEntry(), 'get')
    same(await other.replace(sampleEntry({ version: 2 })), true, 'replace')
  },

  'owner is one for all in this process, and not gone': async ({ open }) => {
    const one = await open()
    const other = await open()
    check(typeof one.owner === 'string' && one.owner !== '', 'owner is a text')
    same(other.owner, one.owner, 'owner of the other')
    same(await one.isGone(one.owner), false, 'whether it is gone itself')
    for (const stranger of ['', 'somebody', '1', 'x'.repeat(1000)])
      same(await one.isGone(stranger), false, 'whether a stranger is gone')
  },

  'rows that cannot be read are counted, block their own name only, and stay as they are': async ({ place, open }) => {
    if (place.putRaw === undefined) return
    const store = await open()
    const readable = sampleEntry({ operationId: 'order-2' })
    await insert(store, readable)
    const newer = sampleEntry({ namedAtMs: 1_760_000_000_001 })
    await place.putRaw(newer, JSON.stringify({ ...newer, format: 999 }))
    const torn = sampleEntry({ operationId: 'order-3', namedAtMs: 1_760_000_000_002 })
    await place.putRaw(torn, '{"format":1,"vers')
    const read = async (): Promise<void> => {
      same(await store.list({}, 10), { entries: [readable], unreadable: 2 }, 'list')
      same(await store.listDeliverable(readable, 10), { entries: [readable], unreadable: 2 }, 'listDeliverable')
      const counted = await countUnreadable((after) => store.list({}, 1, after))
      same(counted, 2, 'list in pages of one')
      await refuses(() => store.get(newer.endpoint, newer.key), 'newer-format', 'get of a newer one')
      await refuses(() => store.get(torn.endpoint, torn.key), 'damaged', 'get of a torn one')
      await refuses(() => store.history(newer), 'newer-format', 'history of a newer one')
      await refuses(() => store.getByKey(newer.key), 'newer-format', 'getByKey of a newer one')
    }
    await read()
    await refuses(() => store.insert(newer, []), 'newer-format', 'insert over a newer one')
    await refuses(() => store.insert(sampleEntry({ revision: 2 }), []), 'newer-format', 'next revision of a newer one')
    await refuses(() => store.insert(torn, []), 'damaged', 'insert over a torn one')
    await insert(store, sampleEntry({ operationId: 'order-4', state: 'succeeded', scope: 'org_2/test' }))
    same((await store.listDeliverable(readable, 10)).unreadable, 2, 'unreadable afterwards')
    await refuses(() => store.get(newer.endpoint, newer.key), 'newer-format', 'the newer one afterwards')
  },
}

// --------------------------------------------------------------------------------------------------------- helpers

async function insert(store: JournalStore, entry: JournalEntry): Promise<void> {
  same(await store.insert(entry, []), { inserted: true }, `insert of ${entry.operationId}`)
}

/** Entries as they get with time. */
function grown(): readonly JournalEntry[] {
  const [pruned, found, contradicted] = ['pruned', 'found', 'contradicted'].map((operationId) =>
    sampleEntry({ operationId, state: 'succeeded' }),
  ) as [JournalEntry, JournalEntry, JournalEntry]
  const rejection = { kind: 'not-applied', status: 0, behindKey: true } as const
  return [
    { ...pruned, request: { ...pruned.request, body: null, headers: {} }, expected: {} },
    {
      ...found,
      acceptUntilAtMs: 1_760_100_000_000,
      misses: 2,
      evidence: [
        { atMs: 1.5, source: 'look-up', found: 'nothing', by: null, why: null, receiptId: null },
        { atMs: 2, source: 'decision', found: 'applied', by: 'Ann', why: 'on the statement', receiptId: 'ch_1' },
      ],
    },
    { ...contradicted, contradiction: { atMs: 3, attempt: null, word: 'refused', receipt: null, rejection } },
  ]
}

/** Entries `order-0` and so on, each named a little later than the one before. */
async function fill(store: JournalStore, count: number, sample: Sample): Promise<JournalEntry[]> {
  const entries = times(count, (index) =>
    sampleEntry({ ...sample, operationId: `order-${index}`, namedAtMs: 1_760_000_000_000 + index }),
  )
  for (const entry of entries) await insert(store, entry)
  return entries
}

async function collect(page: (after: string | undefined) => Promise<Page>, limit = Infinity): Promise<JournalEntry[]> {
  const entries: JournalEntry[] = []
  await walk(page, (one) => {
    check(one.entries.length <= limit, `a page of ${one.entries.length} entries, the limit is ${limit}`)
    same(one.unreadable, 0, 'unreadable')
    entries.push(...one.entries)
  })
  return entries
}

async function countUnreadable(page: (after: string | undefined) => Promise<Page>): Promise<number> {
  let count = 0
  await walk(page, (one) => {
    count += one.unreadable
  })
  return count
}

async function walk(page: (after: string | undefined) => Promise<Page>, visit: (page: Page) => void): Promise<void> {
  let after: string | undefined
  for (let turn = 0; turn < 1000; turn++) {
    const one = await page(after)
    visit(one)
    if (one.next === undefined) return
    after = one.next
  }
  throw new Error('The pages have no end.')
}

function fits(entry: JournalEntry, filter: ListFilter): boolean {
  const isField = (name: 'endpoint' | 'scope' | 'kind' | 'operationId'): boolean =>
    filter[name] === undefined || filter[name] === entry[name]
  return (
    isField('endpoint') &&
    isField('scope') &&
    isField('kind') &&
    isField('operationId') &&
    (filter.states?.includes(entry.state) ?? true)
  )
}

function seenOf({ endpoint, key, version }: JournalEntry): Seen {
  return { endpoint, key, version }
}

/** Changes an entry in depth, as a careless caller could. */
function spoil(entry: JournalEntry): void {
  const open = entry as unknown as {
    version: number
    request: { body: string }
    attempts: unknown[]
    fingerprint: Record<string, string>
  }
  open.version = 99
  open.request.body = 'spoiled'
  open.attempts.push('spoiled')
  open.fingerprint['spoiled'] = 'yes'
}

function times<T>(count: number, make: (index: number) => T): T[] {
  return Array.from({ length: count }, (_, index) => make(index))
}

function pick<T>(list: readonly T[], index: number): T {
  return list[index % list.length] as T
}

function check(holds: boolean, what: string): void {
  if (!holds) throw new Error(what)
}

function same(actual: unknown, expected: unknown, what: string): void {
  const [one, other] = [textOf(actual), textOf(expected)]
  check(one === other, `${what}:\n  is        ${cut(one)}\n  should be ${cut(other)}`)
}

/** Where the contract promises no order. */
function sameSet(actual: readonly unknown[], expected: readonly unknown[], what: string): void {
  same(actual.map(textOf).toSorted(), expected.map(textOf).toSorted(), what)
}

function cut(text: string): string {
  return text.length > 2000 ? `${text.slice(0, 2000)} …` : text
}

/** Equal for equal values, whatever the order of properties; absent and `undefined` are the same. */
function textOf(value: unknown): string {
  return (
    JSON.stringify(value, (_, part: unknown) =>
      typeof part === 'object' && part !== null && !Array.isArray(part)
        ? Object.fromEntries(Object.entries(part).toSorted(([a], [b]) => (a < b ? -1 : 1)))
        : part,
    ) ?? 'undefined'
  )
}

async function refuses(call: () => Promise<unknown>, fault: string, what: string): Promise<void> {
  let answer: unknown
  try {
    answer = await call()
  } catch (error) {
    const { code, fault: given } = error as { code?: unknown; fault?: unknown }
    check(
      code === 'ERR_JOURNAL_UNAVAILABLE' && given === fault,
      `${what}: refused with ${String(given)} (${String(error)}), should be ${fault}`,
    )
    return
  }
  throw new Error(`${what}: gave ${cut(textOf(answer))}, should have been refused with fault ${fault}`)
}
