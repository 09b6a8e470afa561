/**
 * What a page knows of its operations, in virtual time and without components: when the journal is read, what takes the
 * place of what, and what is let go of.
 */
import type { BillingClient, EntryView } from 'billonce'
import { forgetfulJournal } from 'billonce'
import { loseReply } from 'billonce/testing'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { pageOf, ShownOperation } from '../../src/react/known.ts'
import type { AnyOperationState, Name, ShownList } from '../../src/react/known.ts'
import { broken, journalWith } from '../engine/tampering.ts'
import { coffee, pass, quiet, setUp, settled, virtualTime } from '../support/world.ts'

virtualTime()

const order = { operationId: 'order-1' }
const nameOf = (operationId: string): Name => ({
  kind: 'charge',
  operationId,
  subject: undefined,
  subjectField: undefined,
})
const openStates = ['pending', 'sending', 'accepted', 'unknown'] as const

/** A page as far as it matters here: it can be hidden and shown. */
class FakeDocument extends EventTarget {
  visibilityState: 'visible' | 'hidden' = 'visible'
  readonly defaultView: EventTarget & { BroadcastChannel?: typeof FakeChannel } = new EventTarget()

  turn(to: 'visible' | 'hidden'): void {
    this.visibilityState = to
    this.dispatchEvent(new Event('visibilitychange'))
  }
}

/** All of them are on one line; a message is heard by those that are open, and not by the one that posts. */
class FakeChannel extends EventTarget {
  static open = new Set<FakeChannel>()
  static posted = 0
  readonly name: string
  constructor(name: string) {
    super()
    this.name = name
    FakeChannel.open.add(this)
  }
  postMessage(): void {
    FakeChannel.posted += 1
    for (const channel of FakeChannel.open) if (channel !== this) channel.dispatchEvent(new Event('message'))
  }
  close(): void {
    FakeChannel.open.delete(this)
  }
}

let page: FakeDocument
beforeEach(() => {
  page = new FakeDocument()
  vi.stubGlobal('document', page)
})
afterEach(() => {
  vi.unstubAllGlobals()
})

function shown(billing: BillingClient, operationId = 'order-1') {
  const operation = pageOf(billing).operation(nameOf(operationId))
  const states: AnyOperationState[] = []
  const unmount = pageOf(billing).mount(operation, () => states.push(operation.state))
  return { operation, states, unmount }
}

function listed(billing: BillingClient): { list: ShownList; unmount: () => void } {
  const list = pageOf(billing).list('all', { states: openStates })
  return { list, unmount: pageOf(billing).mount(list, () => {}) }
}

const statusOf = (state: AnyOperationState): string | undefined =>
  'outcome' in state ? state.outcome?.status : undefined

describe('another tab', () => {
  test('settles what is open here: it is seen within two seconds', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const { operation } = shown(billing)
    await quiet()
    expect(statusOf(operation.state)).toBe('unknown')

    await settled(another().resume())
    await pass(1900)
    expect(statusOf(operation.state)).toBe('unknown')
    await pass(200)
    expect(statusOf(operation.state)).toBe('succeeded')
  })

  test('begins what is shown here as nothing: it is read when that window says so, and told once for a burst', async () => {
    page.defaultView.BroadcastChannel = FakeChannel
    FakeChannel.posted = 0
    const { billing, another } = setUp()
    const { operation, unmount } = shown(billing)
    const other = another()
    const there = shown(other, 'order-2')
    await quiet()
    expect(operation.state).toEqual({ phase: 'idle', isReading: false })
    expect(FakeChannel.open.size).toBe(2)

    await settled(other.charge(coffee, order))
    await pass(100)
    expect(statusOf(operation.state)).toBe('succeeded')
    expect(FakeChannel.posted).toBe(1)

    // In the cache for the way back nothing is open, and what was to be told is told before.
    const charging = settled(other.charge(coffee, { operationId: 'order-3' }))
    await quiet()
    page.defaultView.dispatchEvent(new Event('pagehide'))
    await charging
    expect(FakeChannel.posted).toBe(2)
    expect(FakeChannel.open.size).toBe(0)
    page.defaultView.dispatchEvent(new Event('pageshow'))
    expect(FakeChannel.open.size).toBe(2)
    unmount()
    there.unmount()
    expect(FakeChannel.open.size).toBe(0)
  })

  test('is not looked for while the page is hidden, and at once when it is shown again', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const { operation } = shown(billing)
    await quiet()
    page.turn('hidden')
    await settled(another().resume())
    const find = vi.spyOn(billing, 'find')
    await pass(60_000)
    expect(find).not.toHaveBeenCalled()
    expect(vi.getTimerCount()).toBe(0)

    page.turn('visible')
    await quiet()
    expect(statusOf(operation.state)).toBe('succeeded')
  })

  test('began an operation that is shown as idle here: it is seen when the page is shown again', async () => {
    const { billing, another } = setUp()
    const { operation } = shown(billing)
    await quiet()
    expect(operation.state).toEqual({ phase: 'idle', isReading: false })
    page.turn('hidden')
    await settled(another().charge(coffee, order))
    page.turn('visible')
    await quiet()
    expect(statusOf(operation.state)).toBe('succeeded')
  })

  test('is not looked for when what is shown is settled, or nothing is shown', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const { unmount } = shown(billing)
    await quiet()
    expect(vi.getTimerCount()).toBe(1)
    unmount()
    expect(vi.getTimerCount()).toBe(0)

    await settled(another().resume())
    shown(billing)
    await quiet()
    expect(vi.getTimerCount()).toBe(0)
  })
})

describe('what is shown', () => {
  test('is not set back by a reading that began before the call ended', async () => {
    const world = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    const declined = { ...coffee, paymentMethod: 'pm_declined' }
    await settled(world.another({ retry: { maxAttempts: 1 } }).charge(declined, order))
    let release = (): void => {}
    let isSlow = false
    const journal = journalWith(world.journal, async (call, run) => {
      const result = await run()
      if (call.method === 'history' && isSlow) {
        isSlow = false
        await new Promise<void>((resolve) => {
          release = resolve
        })
      }
      return result
    })
    const billing = world.another({ journal })
    const { operation, states, unmount } = shown(billing)
    await quiet()
    expect(statusOf(operation.state)).toBe('unknown')
    isSlow = true
    operation.refresh()
    await quiet()
    const result = await settled(operation.run(() => billing.charge(declined, order)))
    expect(statusOf(result)).toBe('rejected')
    release()
    await quiet()
    expect(statusOf(operation.state)).toBe('rejected')
    expect(states.map(statusOf)).toEqual(['unknown', 'unknown', 'rejected'])
    unmount()
  })

  test('a receipt that could not be written down is not taken back', async () => {
    const world = setUp()
    const journal = journalWith(world.journal, async (call, run) => {
      if (call.method === 'replace') throw broken()
      return await run()
    })
    const billing = world.another({ journal })
    const { operation } = shown(billing)
    const result = await settled(operation.run(() => billing.charge(coffee, order)))
    expect(result).toMatchObject({ phase: 'known', outcome: { status: 'succeeded' } })
    expect(await billing.find({ kind: 'charge', ...order })).toMatchObject({ status: 'unknown' })
    page.turn('visible')
    await quiet()
    expect(statusOf(operation.state)).toBe('succeeded')
  })

  test('while a call works, the journal’s word is there: offline is seen at once', async () => {
    const { billing } = setUp()
    vi.stubGlobal('navigator', { onLine: false })
    const { operation } = shown(billing)
    const running = operation.run(() => billing.charge(coffee, { ...order, deadlineMs: 10_000 }))
    await quiet()
    expect(operation.state).toMatchObject({ phase: 'working', outcome: { status: 'deferred', reason: 'offline' } })
    expect(await settled(running)).toMatchObject({ phase: 'known', outcome: { status: 'deferred', reason: 'offline' } })
  })

  test('an error stays beside what is known, until there is news', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const { operation } = shown(billing)
    await quiet()
    const result = await settled(operation.run(() => billing.charge(coffee, { ...order, revision: 2 })))
    expect(result).toMatchObject({ phase: 'error', error: { code: 'ERR_REVISION_REFUSED' } })
    await pass(10_000)
    expect(operation.state).toMatchObject({
      phase: 'error',
      error: { code: 'ERR_REVISION_REFUSED', sentByThisCall: false },
      outcome: { status: 'unknown', delivery: 'continues' },
    })
    await settled(billing.resume())
    expect(operation.state).toMatchObject({ phase: 'known', outcome: { status: 'succeeded' } })
  })

  test('what is read first after an error is no news', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const operation = pageOf(billing).operation(nameOf('order-1'))
    await settled(operation.run(() => billing.charge(coffee, { ...order, revision: 2 })))
    const { unmount } = shown(billing)
    await quiet()
    expect(operation.state).toMatchObject({ phase: 'error', outcome: { status: 'unknown' } })
    unmount()
  })

  test('the journal’s error goes when the journal is back', async () => {
    const world = setUp()
    let isBroken = true
    const journal = journalWith(world.journal, async (_call, run) => {
      if (isBroken) throw broken()
      return await run()
    })
    const billing = world.another({ journal })
    const { operation } = shown(billing)
    const { list } = listed(billing)
    await pass(100)
    expect(operation.state).toMatchObject({ phase: 'error', error: { code: 'ERR_JOURNAL_UNAVAILABLE' } })
    expect(list.state).toMatchObject({ phase: 'error', error: { code: 'ERR_JOURNAL_UNAVAILABLE' }, entries: [] })
    isBroken = false
    page.turn('visible')
    await pass(100)
    expect(operation.state).toEqual({ phase: 'idle', isReading: false })
    expect(list.state).toEqual({ phase: 'known', entries: [] })
  })

  test('a mistake in code of one’s own is an error without a code', async () => {
    const { billing } = setUp()
    const operation = pageOf(billing).operation(nameOf('order-1'))
    const thrown: unknown[] = [new TypeError('a'), 'text', Object.assign(new Error('b'), { code: 'ENOENT' })]
    for (const one of thrown) {
      const result = await operation.run(() => Promise.reject(one))
      expect(result.phase).toBe('error')
      if (result.phase !== 'error') continue
      expect(result.error).toBeInstanceOf(Error)
      expect(result.error.code).toBeUndefined()
      expect(result.error === one || result.error.cause === one).toBe(true)
    }
  })

  test('a subject that is missing or stray is refused, and nothing is read', async () => {
    const { billing } = setUp()
    const find = vi.spyOn(billing, 'find')
    const names: Name[] = [
      { kind: 'usage', operationId: 'a', subject: undefined, subjectField: 'meter' },
      { kind: 'charge', operationId: 'a', subject: 'exports', subjectField: undefined },
    ]
    for (const name of names) {
      const operation = new ShownOperation(pageOf(billing), name)
      pageOf(billing).mount(operation, () => {})
      await quiet()
      expect(operation.state).toMatchObject({ phase: 'error', error: { code: 'ERR_INVALID_INPUT', field: 'subject' } })
    }
    expect(find).not.toHaveBeenCalled()
  })

  test('two words that contradict each other are seen, also when they are about an earlier revision', async () => {
    const { billing, receiver } = setUp()
    const { operation } = shown(billing)
    await settled(billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, order))
    const second = await settled(billing.charge(coffee, { ...order, revision: 2 }))
    await quiet()
    expect(operation.state).toMatchObject({ phase: 'known', outcome: { status: 'succeeded', key: second.key } })
    expect(receiver.ledger.effects).toHaveLength(1)
    await settled(
      billing.recordEvidence(
        { kind: 'charge', ...order, revision: 1 },
        { source: 'webhook', found: 'applied', receipt: { id: 'ch_late' } },
      ),
    )
    await quiet()
    expect(operation.state).toMatchObject({ phase: 'known', outcome: { status: 'unknown', reason: 'contradicted' } })
  })
})

describe('a listing', () => {
  test('reads once for what changes together, and shows it in order of age', async () => {
    const world = setUp()
    const lists: number[] = []
    const journal = journalWith(world.journal, async (call, run) => {
      if (call.method === 'list') lists.push(Date.now())
      return await run()
    })
    const billing = world.another({ journal, fetch: () => new Promise(() => {}) })
    const { list } = listed(billing)
    await pass(100)
    expect(list.state).toEqual({ phase: 'known', entries: [] })
    lists.length = 0
    for (let number = 1; number <= 30; number += 1) {
      void billing.charge(coffee, { operationId: `order-${number}` })
      await pass(1)
    }
    await pass(1000)
    expect(list.state.entries.map(({ operationId }) => operationId)).toHaveLength(30)
    expect(lists.length).toBeLessThanOrEqual(2)
  })

  test('is the same object while nothing changes', async () => {
    const { billing, another } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
    await settled(another({ retry: { maxAttempts: 1 } }).charge(coffee, order))
    const { list } = listed(billing)
    await pass(100)
    const { entries } = list.state
    expect(entries.map(({ state }: EntryView) => state)).toEqual(['sending'])
    const listing = vi.spyOn(billing, 'entries')
    await pass(20_000)
    expect(listing.mock.calls.length).toBeGreaterThan(5)
    expect(list.state.entries).toBe(entries)
  })
})

describe('what nobody shows', () => {
  test('an event reads nothing', async () => {
    const { billing } = setUp()
    const { unmount } = shown(billing)
    const { unmount: unlist } = listed(billing)
    await pass(100)
    unmount()
    unlist()
    const find = vi.spyOn(billing, 'find')
    const entries = vi.spyOn(billing, 'entries')
    await settled(billing.charge(coffee, order))
    await pass(10_000)
    expect(find).not.toHaveBeenCalled()
    expect(entries).not.toHaveBeenCalled()
  })

  test('listens to nothing: neither to the client nor to the page', async () => {
    const { billing } = setUp()
    const real = billing.subscribe.bind(billing)
    let listening = 0
    vi.spyOn(billing, 'subscribe').mockImplementation((listener) => {
      const stop = real(listener)
      listening += 1
      return () => {
        listening -= 1
        stop()
      }
    })
    const targets = [page, page.defaultView]
    const added = targets.map((target) => vi.spyOn(target, 'addEventListener'))
    const removed = targets.map((target) => vi.spyOn(target, 'removeEventListener'))
    const one = shown(billing)
    const other = shown(billing)
    one.unmount()
    expect(listening).toBe(1)
    other.unmount()
    expect(listening).toBe(0)
    expect(removed.map((spy) => spy.mock.calls)).toEqual(added.map((spy) => spy.mock.calls))
    expect(added.map((spy) => spy.mock.calls.length)).toEqual([1, 3])
  })

  test('is kept up to a number; what runs or is shown is never let go', async () => {
    const { billing } = setUp({ journal: forgetfulJournal() })
    const { operation: first } = shown(billing, 'shown')
    const running = pageOf(billing).operation(nameOf('running'))
    void running.run(() => new Promise(() => {}))
    for (let number = 1; number <= 300; number += 1) shown(billing, `order-${number}`).unmount()
    await quiet()
    expect(pageOf(billing).peekOperation(nameOf('shown'))).toBe(first)
    expect(pageOf(billing).peekOperation(nameOf('running'))).toBe(running)
    expect(pageOf(billing).peekOperation(nameOf('order-300'))).toBeDefined()
    expect(pageOf(billing).peekOperation(nameOf('order-1'))).toBeUndefined()
  })
})
