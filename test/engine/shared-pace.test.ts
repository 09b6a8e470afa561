/** Clients on one journal share the pace of background delivery: in an outage they ask hardly more often than one would. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { forgetfulJournal } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { status } from 'billonce/testing'
import { expect, test, vi } from 'vitest'
import { pass, setUp, virtualTime } from '../support/world.ts'

virtualTime()

const setTimeoutForReal = globalThis.setTimeout
const MINUTE_MS = 60_000

interface Outage {
  readonly requests: number
  readonly effects: number
  /** By how long after the outage all were delivered. */
  readonly drainedMs: number
}

/** Fifteen minutes without a receiver, then one that works, for so many clients on one journal with forty entries. */
async function outage(clients: number, journalOf: () => JournalStore, go = pass): Promise<Outage> {
  const journals: JournalStore[] = []
  const open = (): JournalStore => {
    const journal = journalOf()
    journals.push(journal)
    return journal
  }
  const world = setUp({ journal: open(), receiver: { faults: [status(503)] } })
  const all = [world.billing, ...Array.from({ length: clients - 1 }, () => world.another({ journal: open() }))]
  for (let number = 1; number <= 40; number += 1) {
    const queued = world.billing.recordUsage(
      { meter: 'exports', quantity: 1 },
      { operationId: `job-${number}`, background: true },
    )
    await go(0)
    await queued
  }
  const stops = all.map((billing) => billing.start())
  await go(15 * MINUTE_MS)
  const requests = world.receiver.ledger.requests.length
  world.receiver.faults.clear()
  let drainedMs = 0
  while (world.receiver.ledger.effects.length < 40 && drainedMs < 30 * MINUTE_MS) {
    await go(5000)
    drainedMs += 5000
  }
  for (const stop of stops) stop()
  await go(1000)
  const closing = Promise.all(journals.map((journal) => journal.close()))
  await go(1000)
  await closing
  return { requests, effects: world.receiver.ledger.effects.length, drainedMs }
}

/** The disk's answers come in real time, so there is some of it in every bit of virtual time. */
async function passWithDisk(ms: number): Promise<void> {
  for (let passedMs = 0; passedMs <= ms; passedMs += 1000) {
    await vi.advanceTimersByTimeAsync(Math.min(1000, ms - passedMs))
    for (let turn = 0; turn < 3; turn += 1) await new Promise((resolve) => setTimeoutForReal(resolve, 1))
  }
}

test('two and four clients ask little more than one in an outage, and all is delivered once after it', async () => {
  const journal = (): (() => JournalStore) => {
    const one = forgetfulJournal()
    return () => one
  }
  // Several outages, for the waits are random.
  const sum = async (clients: number): Promise<Outage> => {
    const of: Outage[] = []
    for (let time = 0; time < 4; time += 1) of.push(await outage(clients, journal()))
    for (const { effects } of of) expect(effects).toBe(40)
    return {
      requests: of.reduce((total, { requests }) => total + requests, 0),
      effects: 40,
      drainedMs: Math.max(...of.map(({ drainedMs }) => drainedMs)),
    }
  }
  const one = await sum(1)
  const two = await sum(2)
  const four = await sum(4)
  expect(two.requests).toBeLessThan(1.5 * one.requests)
  expect(four.requests).toBeLessThan(2 * one.requests)
  for (const { drainedMs } of [one, two, four]) expect(drainedMs).toBeLessThan(5 * MINUTE_MS)
}, 120_000)

test('two clients on one SQLite file do not ask twice as often in an outage', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-pace-'))
  try {
    let number = 0
    const run = async (clients: number): Promise<Outage> => {
      const path = join(folder, `${(number += 1)}.sqlite`)
      return await outage(clients, () => sqliteJournal({ path }), passWithDisk)
    }
    const one = await run(1)
    const two = await run(2)
    expect(two.requests).toBeLessThan(1.7 * one.requests)
    expect([one.effects, two.effects]).toEqual([40, 40])
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}, 120_000)
