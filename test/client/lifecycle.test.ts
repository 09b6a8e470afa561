/** The life of a client in its process: close, start and stop, and that nothing is touched, kept or thrown on the side. */
import { mkdtempSync, readdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createBillingClient, ClientClosedError, forgetfulJournal, JournalUnavailableError } from 'billonce'
import type { BillingClient } from 'billonce'
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { createReceiver, delay, loseReply, status } from 'billonce/testing'
import { describe, expect, test, vi } from 'vitest'
import { broken, CLAIM_MS, expectOneName, journalWith, slowJournal } from '../engine/tampering.ts'
import { BASE_URL, coffee, pass, quiet, SCOPE, setUp, settled, viewsOf, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }

/** What rejects with nobody there while `action` runs. */
async function unhandledIn(action: () => Promise<void>): Promise<unknown[]> {
  const unhandled: unknown[] = []
  const before = process.listeners('unhandledRejection')
  process.removeAllListeners('unhandledRejection')
  process.on('unhandledRejection', (reason) => unhandled.push(reason))
  try {
    await action()
    await quiet()
  } finally {
    process.removeAllListeners('unhandledRejection')
    for (const listener of before) process.on('unhandledRejection', listener)
  }
  return unhandled
}

describe('close()', () => {
  test('waits for the attempt in flight, records what came of it, and begins no other', async () => {
    const { billing, receiver, another } = setUp({ receiver: { faults: [delay(5000, { attempt: 1 })] } })
    const asked = billing.charge(coffee, order)
    await pass(1000)
    let isClosed = false
    const closed = billing.close().then(() => (isClosed = true))
    await pass(3000)
    expect(isClosed).toBe(false)
    await settled(closed)
    expect(await settled(asked)).toMatchObject({ status: 'succeeded' })
    expect(await another().find({ kind: 'charge', ...order })).toMatchObject({ status: 'succeeded' })
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('ends a wait between attempts at once; the entry is left to the next start', async () => {
    const { billing, receiver, another } = setUp({
      receiver: { faults: [status(503, { attempt: 1, headers: { 'Retry-After': '30' } })] },
    })
    const asked = billing.charge(coffee, order)
    await pass(1000)
    const at = performance.now()
    await settled(billing.close())
    expect(await settled(asked)).toMatchObject({ status: 'unknown', delivery: 'continues', attempts: 1 })
    expect(performance.now()).toBe(at)
    await pass(CLAIM_MS)
    expect(receiver.ledger.requests).toHaveLength(1)
    expect(await settled(another().resume())).toMatchObject({ succeeded: 1 })
  })

  test('in the middle of an opening settles the call, and sends nothing after it', async () => {
    for (const atMs of [0, 10, 25, 35, 45]) {
      const { billing, receiver, another } = setUp({ journal: slowJournal(forgetfulJournal(), 20) })
      const asked = billing.charge(coffee, order).catch((error: unknown) => error as Error)
      await pass(atMs)
      await settled(billing.close())
      const sent = receiver.ledger.requests.length
      const answer = await settled(asked)
      if (answer instanceof Error) expect(answer).toBeInstanceOf(ClientClosedError)
      else expect(['succeeded', 'deferred', 'unknown']).toContain(answer.status)
      await pass(CLAIM_MS)
      expect(receiver.ledger.requests).toHaveLength(sent)
      expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
      expect(receiver.ledger.effects).toHaveLength(1)
    }
  })

  test('with background calls in the queue leaves them in the journal', async () => {
    const { billing, receiver, another } = setUp({ client: { concurrency: 1 }, receiver: { latencyMs: 1000 } })
    for (let number = 1; number <= 5; number += 1) {
      await settled(billing.charge(coffee, { operationId: `order-${number}`, background: true }))
    }
    await settled(billing.close())
    const sent = receiver.ledger.requests.length
    expect(sent).toBeLessThan(5)
    await pass(60_000)
    expect(receiver.ledger.requests).toHaveLength(sent)
    expect(await settled(another().resume())).toMatchObject({ succeeded: 5 - sent })
    expect(receiver.ledger.effects).toHaveLength(5)
  })

  test('stops background delivery and a pass under way', async () => {
    const { billing, receiver, another } = setUp({ client: { concurrency: 1 } })
    const lost = another({ retry: { maxAttempts: 1 }, fetch: () => Promise.reject(new TypeError('Failed to fetch')) })
    for (let number = 1; number <= 4; number += 1)
      await settled(lost.charge(coffee, { operationId: `order-${number}` }))
    receiver.faults.add(delay(1000))
    billing.start()
    const resumed = billing.resume()
    await pass(500)
    await settled(billing.close())
    expect(await settled(resumed)).toMatchObject({ total: 4 })
    const sent = receiver.ledger.requests.length
    expect(sent).toBeLessThan(4)
    await pass(600_000)
    expect(receiver.ledger.requests).toHaveLength(sent)
    expect(vi.getTimerCount()).toBe(0)
  })

  test('may be called again, and then every call is refused without a trace', async () => {
    const { billing, receiver, journal } = setUp()
    await settled(Promise.all([billing.close(), billing.close()]))
    await settled(billing.close())
    const calls: (() => Promise<unknown>)[] = [
      () => billing.charge(coffee, order),
      () => billing.charge(coffee, { ...order, background: true }),
      () => billing.recordUsage({ meter: 'm', quantity: 1 }, order),
      () => billing.consumeCredits({ amount: 1 }, order),
      () => billing.resume(),
      () => billing.cancel({ kind: 'charge', ...order }),
    ]
    for (const call of calls) {
      const error: unknown = await settled(call().catch((thrown: unknown) => thrown))
      expect(error).toBeInstanceOf(ClientClosedError)
      expect(error).toMatchObject({ code: 'ERR_CLIENT_CLOSED', sentByThisCall: false })
    }
    expect(() => billing.start()).toThrow(ClientClosedError)
    expect(receiver.ledger.requests).toHaveLength(0)
    expect((await journal.list({}, 10)).entries).toHaveLength(0)
  })

  test('does not close a journal that was given', async () => {
    const { billing, another } = setUp()
    await settled(billing.close())
    expect(await settled(another().charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  })

  test('is what `await using` calls', async () => {
    const { receiver, journal } = setUp()
    let kept: BillingClient | undefined
    {
      await using billing = createBillingClient({ baseUrl: BASE_URL, scope: SCOPE, journal, fetch: receiver.fetch })
      kept = billing
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    }
    await expect(kept.charge(coffee, order)).rejects.toBeInstanceOf(ClientClosedError)
  })
})

describe('G37: what goes wrong in the background', () => {
  test('with the server down and the store failing, for a minute, goes to events and nowhere else', async () => {
    const logged = ['log', 'warn', 'error'].map((name) => vi.spyOn(console, name as 'log'))
    let isFailing = false
    const events: string[] = []
    const unhandled = await unhandledIn(async () => {
      const inner = forgetfulJournal()
      const { billing, another } = setUp({ journal: inner, receiver: { faults: [loseReply()] } })
      await settled(billing.charge(coffee, { ...order, deadlineMs: 100 }))
      const journal = journalWith(inner, (_call, run) => (isFailing ? Promise.reject(broken()) : run()))
      const started = another({ journal })
      started.subscribe((event) => events.push(event.type))
      started.start()
      isFailing = true
      void started.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1', background: true }).catch(() => {})
      await pass(60_000)
      isFailing = false
      await pass(60_000)
      for (let number = 1; number <= 20; number += 1) {
        isFailing = number % 2 === 0
        await pass(1700)
      }
      isFailing = false
      await settled(started.close())
    })
    expect(unhandled).toEqual([])
    expect(events).toContain('storage-fault')
    for (const spy of logged) expect(spy).not.toHaveBeenCalled()
    vi.restoreAllMocks()
  })

  test('a promise that was dropped rejects once, and the branches inside never do', async () => {
    const unhandled = await unhandledIn(async () => {
      const journal = journalWith(forgetfulJournal(), () => Promise.reject(broken()))
      const { billing } = setUp({ journal })
      void billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1' })
      void billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'job-1', background: true })
      await pass(60_000)
    })
    expect(unhandled).toHaveLength(2)
    expect(unhandled.every((error) => error instanceof JournalUnavailableError)).toBe(true)
  })

  test('two callers of one failing delivery each get its error, and nobody else', async () => {
    const unhandled = await unhandledIn(async () => {
      let isFailing = false
      const journal = journalWith(forgetfulJournal(), (call, run) =>
        isFailing && call.method === 'replace' ? Promise.reject(broken()) : run(),
      )
      const { billing } = setUp({ journal, receiver: { faults: [status(503)] } })
      const calls = [billing.charge(coffee, order), billing.charge(coffee, order)]
      calls.forEach((call) => void call.catch(() => {}))
      isFailing = true
      const results = await settled(Promise.allSettled(calls))
      expect(results.every((result) => result.status === 'rejected')).toBe(true)
    })
    expect(unhandled).toEqual([])
  })

  test('an aborted caller, a deadline and a closed client leave no rejection behind', async () => {
    const unhandled = await unhandledIn(async () => {
      let isFailing = false
      const journal = journalWith(forgetfulJournal(), (_call, run) => (isFailing ? Promise.reject(broken()) : run()))
      const { billing } = setUp({ journal, receiver: { faults: [status(503)], latencyMs: 100 } })
      const controller = new AbortController()
      billing.charge(coffee, { ...order, signal: controller.signal }).catch(() => {})
      billing.charge(coffee, { operationId: 'order-2', deadlineMs: 50 }).catch(() => {})
      await pass(60)
      isFailing = true
      controller.abort()
      await pass(60_000)
      await settled(billing.close())
    })
    expect(unhandled).toEqual([])
  })
})

describe('G55', () => {
  test('no listener is added to the process, by import, construction, delivery and close', async () => {
    const names = [
      'SIGTERM',
      'SIGINT',
      'SIGHUP',
      'exit',
      'beforeExit',
      'uncaughtException',
      'unhandledRejection',
      'message',
    ]
    const counts = (): number[] => names.map((name) => process.listenerCount(name))
    const before = counts()
    const exit = vi.spyOn(process, 'exit').mockImplementation((() => {}) as never)
    const { billing } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    expect(counts()).toEqual(before)
    const stop = billing.start()
    await settled(billing.charge(coffee, { ...order, background: true }))
    await pass(60_000)
    expect(counts()).toEqual(before)
    stop()
    await settled(billing.close())
    expect(counts()).toEqual(before)
    expect(exit).not.toHaveBeenCalled()
    exit.mockRestore()
  })
})

describe('G56: a process that was frozen', () => {
  test('with a request in flight ends the attempt when it goes on, and asks again under the same key', async () => {
    const receiver = createReceiver()
    let fetches = 0
    const { billing } = setUp({
      client: {
        fetch: async (input, init) => {
          fetches += 1
          const answer = await receiver.fetch(input, init)
          // The connection went down while the process stood still; nothing ever arrives on it.
          return fetches === 1 ? await new Promise<never>(() => {}) : answer
        },
      },
    })
    const asked = billing.charge(coffee, order)
    await quiet()
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(await viewsOf(billing)).toMatchObject([{ state: 'sending', attemptsBegun: 1 }])
    // Nothing runs for a minute, and then every timer is late.
    vi.setSystemTime(Date.now() + 60_000)
    const first = await settled(asked)
    if (first.status !== 'succeeded') {
      expect(first).toMatchObject({ status: 'unknown', delivery: 'continues' })
      expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
    }
    expect(fetches).toBe(2)
    expect(receiver.ledger.effects).toHaveLength(1)
    expectOneName(receiver)
  })

  test('a handler that returned without awaiting left a durable entry, which the next invocation finishes', async () => {
    const { billing, another, receiver } = setUp({ client: { fetch: () => new Promise<never>(() => {}) } })
    void billing.charge(coffee, order)
    await quiet()
    expect(await viewsOf(billing)).toMatchObject([{ state: 'sending' }])
    await pass(CLAIM_MS)
    expect(await settled(another({ fetch: receiver.fetch }).resume())).toMatchObject({ succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

describe('G69: a page without a secure context', () => {
  test('charges, resumes and makes ids without randomUUID and subtle', async () => {
    const getRandomValues = crypto.getRandomValues.bind(crypto)
    vi.stubGlobal('crypto', { getRandomValues })
    try {
      expect(crypto.subtle).toBeUndefined()
      const { randomOperationId } = await import('billonce')
      const { billing, another, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
      const operationId = randomOperationId()
      expect(operationId).toMatch(/^[0-9a-f-]{36}$/)
      expect(randomOperationId()).not.toBe(operationId)
      const outcome = await settled(billing.charge(coffee, { operationId }))
      expect(outcome).toMatchObject({ status: 'succeeded', key: expect.stringMatching(/^[0-9a-f-]{36}$/) })
      expect(await settled(another().resume())).toMatchObject({ total: 0 })
      expect(receiver.ledger.effects).toHaveLength(1)
    } finally {
      vi.unstubAllGlobals()
    }
  })
})

describe('G70: importing and constructing', () => {
  test('touch no timer, no database, no listener, no random source and no network', async () => {
    const touched: string[] = []
    const trap = (name: string): object =>
      new Proxy(() => {}, {
        get: (_target, property) => {
          // A runtime may ask what a thing is; using it is another matter.
          if (typeof property === 'symbol') return undefined
          touched.push(`${name}.${property}`)
          return () => {}
        },
        apply: () => {
          touched.push(`${name}()`)
        },
      })
    for (const name of ['indexedDB', 'window', 'document', 'navigator', 'localStorage', 'caches', 'fetch']) {
      vi.stubGlobal(name, trap(name))
    }
    const timers = vi.getTimerCount()
    vi.resetModules()
    try {
      const fresh = await import('billonce')
      const { indexedDbJournal: freshJournal } = await import('billonce/stores/indexeddb')
      expect(touched).toEqual([])
      const client = fresh.createBillingClient({ baseUrl: BASE_URL, scope: SCOPE })
      fresh.createBillingClient({ baseUrl: BASE_URL, scope: SCOPE, journal: freshJournal() })
      client.subscribe(() => {})
      expect(touched).toEqual([])
      expect(vi.getTimerCount()).toBe(timers)
    } finally {
      vi.unstubAllGlobals()
      vi.resetModules()
    }
  })

  test('touch no file: the default journal is opened by the first call', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'billonce-untouched-'))
    vi.stubEnv('BILLONCE_JOURNAL', join(folder, 'deep', 'journal.sqlite'))
    try {
      const client = createBillingClient({ baseUrl: BASE_URL, scope: SCOPE, fetch: createReceiver().fetch })
      client.subscribe(() => {})
      await pass(60_000)
      expect(readdirSync(folder)).toEqual([])
      await client.close()
      expect(readdirSync(folder)).toEqual([])
    } finally {
      vi.unstubAllEnvs()
    }
  })

  test('a charge without a usable store is a typed error, and nothing is sent', async () => {
    const receiver = createReceiver()
    const client = createBillingClient({
      baseUrl: BASE_URL,
      scope: SCOPE,
      journal: indexedDbJournal(),
      fetch: receiver.fetch,
    })
    const error: unknown = await settled(client.charge(coffee, order).catch((thrown: unknown) => thrown))
    expect(error).toBeInstanceOf(JournalUnavailableError)
    expect(error).toMatchObject({ sentByThisCall: false })
    expect(receiver.ledger.requests).toHaveLength(0)
  })
})
