/** What a service worker does with the events it is woken for; in real browsers this is test/crash-browser/service-worker.test.ts. */
import type { BillingClient } from 'billonce'
import { requestSync, resumeInWorker, resumeOnSync } from 'billonce/service-worker'
import type { ResumeOnSyncOptions } from 'billonce/service-worker'
import { stall, status } from 'billonce/testing'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { pass, quiet, setUp, settled, virtualTime } from '../support/world.ts'
import type { World } from '../support/world.ts'

virtualTime()
afterEach(() => vi.unstubAllGlobals())

const usage = { meter: 'km', quantity: 3 }

/** A worker's global scope; firing gives what `waitUntil` was given, or `undefined` for an event that nobody took. */
function aWorker(
  makeClient: () => BillingClient | undefined | Promise<BillingClient | undefined>,
  options?: ResumeOnSyncOptions,
) {
  const scope = new EventTarget()
  vi.stubGlobal('addEventListener', scope.addEventListener.bind(scope))
  resumeOnSync(makeClient, options)
  const fire = (type: string, fields: object): Promise<unknown> | undefined => {
    let work: Promise<unknown> | undefined
    const waitUntil = (promise: Promise<unknown>): void => {
      work = promise
    }
    scope.dispatchEvent(Object.assign(new Event(type), { waitUntil, ...fields }))
    work?.catch(() => {})
    return work
  }
  return {
    sync: (tag = 'billonce') => fire('sync', { tag }),
    periodicSync: (tag = 'billonce') => fire('periodicsync', { tag }),
    message: (data: unknown) => fire('message', { data }),
  }
}

/** Leaves usage pending, as a page does that is signed out. */
async function leavePending({ another }: World, operationId = 'trip-1'): Promise<void> {
  const signedOut = another({ headers: undefined, credentials: () => Promise.reject(new Error('signed out')) })
  expect(await settled(signedOut.recordUsage(usage, { operationId }))).toMatchObject({ status: 'deferred' })
}

describe('resumeOnSync', () => {
  test('delivers on sync and periodicsync of its tag and on the message of resumeInWorker, and closes its client', async () => {
    const world = setUp()
    const made: BillingClient[] = []
    const worker = aWorker(() => {
      const billing = world.another()
      made.push(billing)
      return billing
    })
    const messages: unknown[] = []
    const active = { postMessage: (data: unknown) => messages.push(data) }
    expect(resumeInWorker({ active } as unknown as ServiceWorkerRegistration)).toBe(true)
    const wakes = [() => worker.sync(), () => worker.periodicSync(), () => worker.message(messages[0])]
    for (const [index, wake] of wakes.entries()) {
      await leavePending(world, `trip-${index}`)
      await settled(wake() ?? Promise.reject(new Error('not taken')))
      expect(world.receiver.ledger.effects).toHaveLength(index + 1)
      await expect(made.at(-1)?.recordUsage(usage, { operationId: 'late' })).rejects.toMatchObject({
        code: 'ERR_CLIENT_CLOSED',
      })
    }
    for (const other of [
      worker.sync('other'),
      worker.periodicSync('other'),
      worker.message(undefined),
      worker.message('billonce'),
      worker.message({ type: 'billonce', tag: 'other' }),
      worker.message({ type: 'other', tag: 'billonce' }),
    ]) {
      expect(other).toBeUndefined()
    }
    expect(made).toHaveLength(3)
  })

  test('an event fails while something deliverable is left, so that the browser fires it again; a message does not', async () => {
    const world = setUp({ receiver: { faults: [status(429, { times: 2 })] } })
    await leavePending(world)
    const worker = aWorker(() => world.another())
    await expect(settled(worker.sync() ?? quiet())).rejects.toThrow('1 entries are left')
    await settled(worker.message({ type: 'billonce', tag: 'billonce' }) ?? quiet())
    expect(world.receiver.ledger.effects).toHaveLength(0)
    await settled(worker.sync() ?? quiet())
    expect(world.receiver.ledger.effects).toHaveLength(1)
  })

  test('nobody signed in: nothing is sent and the event is over; a client that cannot be made fails it', async () => {
    const world = setUp()
    await leavePending(world)
    await settled(aWorker(() => undefined).sync() ?? quiet())
    const failing = aWorker(() => Promise.reject(new Error('no database')))
    await expect(settled(failing.sync() ?? quiet())).rejects.toThrow('no database')
    expect(world.receiver.ledger.requests).toHaveLength(0)
  })

  test('a pass over more than it can do in its time ends, and the rest is left to the next event', async () => {
    const world = setUp({ receiver: { faults: [stall({ times: 16 })] }, client: { concurrency: 1 } })
    for (let trip = 1; trip <= 20; trip += 1) await leavePending(world, `trip-${trip}`)
    const worker = aWorker(() => world.another(), { deadlineMs: 20_000 })
    const beganAtMs = performance.now()
    await expect(settled(worker.sync() ?? quiet())).rejects.toThrow('20 entries are left')
    expect(performance.now() - beganAtMs).toBeLessThanOrEqual(20_000 + 30_000 + 5_000)
  })

  test('who asks during a pass gets another one after it, however many ask', async () => {
    const world = setUp()
    await leavePending(world, 'trip-1')
    let passes = 0
    const worker = aWorker(async () => {
      passes += 1
      await new Promise((resolve) => setTimeout(resolve, 1000))
      return world.another()
    })
    const first = worker.sync()
    await pass(1000)
    await settled(first ?? quiet())
    const second = worker.sync()
    await leavePending(world, 'trip-2')
    const third = worker.sync()
    expect(worker.message({ type: 'billonce', tag: 'billonce' })).toBeDefined()
    expect(worker.sync()).toBe(third)
    await settled(Promise.all([second, third]))
    expect(passes).toBe(3)
    expect(world.receiver.ledger.effects).toHaveLength(2)
  })
})

describe('requestSync', () => {
  const registrationWith = (sync: unknown): ServiceWorkerRegistration =>
    ({ sync, active: null }) as unknown as ServiceWorkerRegistration

  test('registers the tag, and says so', async () => {
    const tags: string[] = []
    const register = (tag: string): Promise<void> => {
      tags.push(tag)
      return Promise.resolve()
    }
    expect(await requestSync(registrationWith({ register }))).toBe(true)
    expect(await requestSync(registrationWith({ register }), { tag: 'shop' })).toBe(true)
    expect(tags).toEqual(['billonce', 'shop'])
  })

  test('where there is none, or the browser refuses, it says so and does not reject', async () => {
    expect(await requestSync(registrationWith(undefined))).toBe(false)
    const register = (): Promise<void> => Promise.reject(new DOMException('no', 'NotAllowedError'))
    expect(await requestSync(registrationWith({ register }))).toBe(false)
    expect(resumeInWorker(registrationWith(undefined))).toBe(false)
  })
})
