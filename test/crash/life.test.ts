/** The life of a process that bills: it ends when it has nothing to wait for, drains on SIGTERM, and may be frozen. */
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver, delay, loseReply, status } from 'billonce/testing'
import type { Fault, Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'

interface Life {
  readonly receiver: Receiver
  readonly path: string
  readonly url: string
  readonly child: ChildProcess
  /** Resolves when the worker has queued everything. */
  readonly queued: Promise<unknown>
  readonly ended: Promise<readonly [code: number | null, signal: NodeJS.Signals | null]>
}

async function live(
  operations: number,
  faults: Fault[],
  how: string,
  body: (life: Life) => Promise<void>,
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-life-'))
  const path = join(folder, 'made', 'journal.sqlite')
  const receiver = createReceiver({ faults })
  const server = await startServer(receiver)
  const program = fileURLToPath(new URL('programs/life.ts', import.meta.url))
  const child = spawn(process.execPath, [...nodeArguments, program, path, server.url, String(operations), how], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>
  try {
    await body({ receiver, path, url: server.url, child, ended, queued: once(child.stdout ?? child, 'data') })
  } finally {
    child.kill('SIGKILL')
    await ended
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  }
}

/** What the next start delivers. */
async function startAgain({ path, url }: Life): Promise<void> {
  const journal = sqliteJournal({ path })
  const billing = createBillingClient({ baseUrl: url, scope: 'org_42/test', headers: {}, journal })
  const stop = billing.start()
  await expect.poll(async () => (await journal.countOpen()).length, { timeout: 40_000, interval: 100 }).toBe(0)
  stop()
  await billing.close()
  await journal.close()
}

test('a worker with nothing to wait for ends by itself, without close(), and its file is its owner’s alone', async () => {
  await live(5, [], '', async ({ ended, receiver, path }) => {
    expect(await ended).toEqual([0, null])
    expect(receiver.ledger.effects).toHaveLength(5)
    expect(statSync(path).mode & 0o777).toBe(0o600)
    expect(statSync(join(path, '..')).mode & 0o777).toBe(0o700)
  })
})

test('a worker whose server is down ends too; what it queued is delivered by the next start', async () => {
  await live(3, [status(503)], '', async (life) => {
    expect(await life.ended).toEqual([0, null])
    expect(life.receiver.ledger.effects).toHaveLength(0)
    life.receiver.faults.clear()
    await startAgain(life)
    expect(life.receiver.ledger.effects).toHaveLength(3)
  })
})

test('on SIGTERM the application’s own handler drains in time, and the rest is delivered by the next start', async () => {
  await live(20, [delay(6000)], 'drain', async (life) => {
    await life.queued
    const began = performance.now()
    life.child.kill('SIGTERM')
    expect(await life.ended).toEqual([0, null])
    // It waits for half a second; what is in flight would take 6 s.
    expect(performance.now() - began).toBeLessThan(5000)
    life.receiver.faults.clear()
    await startAgain(life)
    expect(life.receiver.ledger.effects).toHaveLength(20)
  })
})

test('without a handler of the application’s, SIGTERM ends the worker: the library installs none (G55)', async () => {
  await live(1, [delay(5000)], '', async ({ queued, child, ended }) => {
    await queued
    child.kill('SIGTERM')
    expect(await ended).toEqual([null, 'SIGTERM'])
  })
})

test('frozen while its request is under way and thawed when the connection is gone, it asks again: one effect (G56)', async () => {
  await live(1, [loseReply({ attempt: 1 })], 'stay', async ({ queued, child, receiver }) => {
    await queued
    await expect.poll(() => receiver.ledger.requests.length, { timeout: 10_000, interval: 1 }).toBeGreaterThan(0)
    child.kill('SIGSTOP')
    await sleep(3000)
    child.kill('SIGCONT')
    await expect.poll(() => receiver.ledger.requests.length, { timeout: 20_000 }).toBeGreaterThan(1)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(new Set(receiver.ledger.requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
  })
})
