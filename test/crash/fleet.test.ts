/**
 * Four workers without a disk on one journal in PostgreSQL, all at the same operations: two are killed, the server is
 * stopped hard and started again, and every operation has one effect.
 */
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createReceiver, loseReply } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import pg from 'pg'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'
import { isOurServer, startPostgres } from '../support/postgres.ts'
import type { PostgresServer } from '../support/postgres.ts'

const program = fileURLToPath(new URL('programs/fleet-worker.ts', import.meta.url))
const OPERATIONS = 240

let server: PostgresServer
const children = new Set<ChildProcess>()
beforeEach(async () => {
  server = await startPostgres()
}, 60_000)
afterEach(async () => {
  for (const child of children) child.kill('SIGKILL')
  await server.stop()
})

interface Worker {
  readonly kill: () => void
  readonly begun: Promise<unknown>
  readonly ended: Promise<{ readonly output: string; readonly trouble: string; readonly signal: string | null }>
}

function startWorker(url: string, first: number): Worker {
  const child = spawn(
    process.execPath,
    [...nodeArguments, program, server.url, url, String(OPERATIONS), String(first)],
    {
      stdio: ['ignore', 'pipe', 'pipe'],
    },
  )
  children.add(child)
  let output = ''
  let trouble = ''
  child.stdout.on('data', (chunk: Buffer) => {
    output += chunk.toString()
  })
  child.stderr.on('data', (chunk: Buffer) => {
    trouble += chunk.toString()
  })
  const ended = (once(child, 'close') as Promise<[number | null, string | null]>).then(([, signal]) => {
    children.delete(child)
    return { output, trouble, signal }
  })
  return { kill: () => void child.kill('SIGKILL'), begun: Promise.race([once(child.stdout, 'data'), ended]), ended }
}

async function until(isSo: () => boolean): Promise<void> {
  while (!isSo()) await sleep(5)
}

async function statesOfAll(): Promise<readonly unknown[]> {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  const { rows } = await client.query('SELECT state, count(*)::int AS count FROM fleet.billonce_entries GROUP BY state')
  await client.end()
  return rows as unknown[]
}

function expectEachOnce({ ledger }: Receiver): void {
  const names = ledger.effects.map((effect) => (effect.params['metadata'] as { operation: string }).operation)
  expect(names.toSorted()).toEqual(Array.from({ length: OPERATIONS }, (_, index) => `order-${index}`).toSorted())
  expect(new Set(ledger.requests.map(({ key }) => key)).size).toBe(OPERATIONS)
  expect(new Set(ledger.requests.map(({ key, path, body }) => `${key} ${path} ${body}`)).size).toBe(OPERATIONS)
}

const half = (index: number): number => Math.floor((OPERATIONS * index) / 4)

test('four workers at one table, two of them killed: nothing is lost and nothing is done twice', async () => {
  const receiver = createReceiver({ faults: [loseReply({ attempt: 1, probability: 0.1 })] })
  await using http = await startServer(receiver)
  const workers = [0, 1, 2, 3].map((index) => startWorker(http.url, half(index)))
  await Promise.all(workers.map(({ begun }) => begun))
  await until(() => receiver.ledger.effects.length > OPERATIONS / 8)
  workers[0]?.kill()
  await until(() => receiver.ledger.effects.length > OPERATIONS / 4)
  workers[1]?.kill()
  const ends = await Promise.all(workers.map(({ ended }) => ended))
  expect(ends.map(({ signal }) => signal)).toEqual(['SIGKILL', 'SIGKILL', null, null])
  expect(ends.slice(2).map(({ output, trouble }) => [output, trouble])).toEqual([
    ['begun\ndone\n', ''],
    ['begun\ndone\n', ''],
  ])
  expectEachOnce(receiver)
  expect(await statesOfAll()).toEqual([{ state: 'succeeded', count: OPERATIONS }])
}, 120_000)

test.skipIf(!isOurServer)(
  'the server is stopped hard and started again in the middle: nothing is lost and nothing is done twice',
  async () => {
    const receiver = createReceiver()
    await using http = await startServer(receiver)
    const workers = [0, 1, 2, 3].map((index) => startWorker(http.url, half(index)))
    await Promise.all(workers.map(({ begun }) => begun))
    for (const part of [8, 3]) {
      await until(() => receiver.ledger.effects.length > OPERATIONS / part)
      await server.crash()
      const before = receiver.ledger.requests.length
      await sleep(400)
      // What was on its way may arrive; nothing new is sent without a journal.
      const inFlight = 4 * 16
      expect(receiver.ledger.requests.length - before).toBeLessThanOrEqual(inFlight)
      await server.start()
    }
    workers[3]?.kill()
    const ends = await Promise.all(workers.map(({ ended }) => ended))
    expect(ends.slice(0, 3).map(({ output, trouble }) => [output, trouble])).toEqual([
      ['begun\ndone\n', ''],
      ['begun\ndone\n', ''],
      ['begun\ndone\n', ''],
    ])
    expectEachOnce(receiver)
    expect(await statesOfAll()).toEqual([{ state: 'succeeded', count: OPERATIONS }])
  },
  120_000,
)
