/**
 * A worker on a real SQLite file and real sockets, killed with SIGKILL: at every step it takes, and at random. Whenever it
 * dies, the next start ends with one effect for each operation, one key and the same bytes.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createReceiver, loseReply, status } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'

const program = fileURLToPath(new URL('programs/worker.ts', import.meta.url))
let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-kill-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true, force: true })
})

interface Run {
  readonly isDone: boolean
  readonly signal: NodeJS.Signals | null
}

/** Runs the worker to its end, or until it is killed. */
async function work(url: string, operations: number, how: { dieAt?: string; killAfterMs?: number } = {}): Promise<Run> {
  const child = spawn(
    process.execPath,
    [...nodeArguments, program, join(folder, 'journal.sqlite'), url, String(operations)],
    {
      env: { ...process.env, ...(how.dieAt === undefined ? {} : { DIE_AT: how.dieAt }) },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  )
  let output = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk.toString()
  })
  const ended = once(child, 'close') as Promise<[number | null, NodeJS.Signals | null]>
  if (how.killAfterMs !== undefined) {
    await Promise.race([ended, sleep(how.killAfterMs)])
    child.kill('SIGKILL')
  }
  const [, signal] = await ended
  return { isDone: output.includes('done'), signal }
}

function expectEachOnce(receiver: Receiver, operations: number): void {
  const { effects, requests } = receiver.ledger
  expect(effects.map((effect) => (effect.params['metadata'] as { operation: string }).operation).toSorted()).toEqual(
    Array.from({ length: operations }, (_, index) => `order-${index + 1}`).toSorted(),
  )
  // As many keys as operations, and as many pairs of key and bytes as keys.
  expect(new Set(requests.map((request) => request.key)).size).toBe(operations)
  expect(new Set(requests.map((request) => `${request.key} ${request.path} ${request.body}`)).size).toBe(operations)
}

/** Three operations: three inserts, three requests, three records; then the same again with a lost reply and a 503 between. */
const moments = [
  'insert:1',
  'insert:2',
  'insert:3',
  'fetch:1',
  'fetch:2',
  'fetch:3',
  'replace:1',
  'replace:2',
  'replace:3',
  'replace:5',
].flatMap((step) => [`${step}:before`, `${step}:after`])

test.each(moments)('G06: a worker that dies at %s', async (dieAt) => {
  const receiver = createReceiver({
    faults: [loseReply({ attempt: 1, kind: 'usage' }), status(503, { attempt: 1, kind: 'credits' })],
  })
  await using server = await startServer(receiver)
  const first = await work(server.url, 3, { dieAt })
  expect(first).toEqual({ isDone: false, signal: 'SIGKILL' })
  const second = await work(server.url, 3)
  expect(second).toEqual({ isDone: true, signal: null })
  expectEachOnce(receiver, 3)
  // Everything is known now: another run answers from the journal.
  const before = receiver.ledger.requests.length
  expect(await work(server.url, 3)).toEqual({ isDone: true, signal: null })
  expect(receiver.ledger.requests).toHaveLength(before)
})

test('G05: killed again and again at random, 60 operations take effect once each', async () => {
  // Slower than the first kill is late, so that at least that one comes in the middle, however fast the machine is.
  const receiver = createReceiver({
    latencyMs: 300,
    faults: [loseReply({ probability: 0.2, seed: 7, timesPerKey: 2 })],
  })
  await using server = await startServer(receiver)
  let kills = 0
  for (let run = 0; run < 12; run += 1) {
    const { isDone } = await work(server.url, 60, { killAfterMs: 250 + run * 40 })
    if (isDone) break
    kills += 1
  }
  expect(kills).toBeGreaterThan(0)
  expect((await work(server.url, 60)).isDone).toBe(true)
  expectEachOnce(receiver, 60)
})
