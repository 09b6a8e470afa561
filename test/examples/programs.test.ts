/** The examples that are programs, run as their first lines say, on real sockets and real files. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createReceiver, loseReply, savedFailure, stall, status } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'

// Each test starts processes, and a busy machine takes its time over it.
vi.setConfig({ testTimeout: 60_000 })

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-examples-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true, force: true })
})

interface Run {
  readonly code: number | null
  readonly lines: readonly string[]
}

/** Runs an example with a journal of this test's own; SIGTERM is sent when `stopWhen` resolves. */
async function run(name: string, env: Record<string, string> = {}, stopWhen?: Promise<unknown>): Promise<Run> {
  const program = fileURLToPath(new URL(`../../examples/${name}`, import.meta.url))
  const child = spawn(process.execPath, [...nodeArguments, program], {
    cwd: folder,
    env: { ...process.env, BILLONCE_JOURNAL: join(folder, 'journal.sqlite'), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let text = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (part: Buffer) => (text += part.toString()))
  void stopWhen?.then(() => child.kill('SIGTERM'))
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, lines: text.trim().split('\n') }
}

test('first-charge: a lost reply is one charge, and the second run is answered from the journal', async () => {
  expect(await run('first-charge.ts')).toEqual({
    code: 0,
    lines: ['succeeded (receiver); requests: 2, charges made: 1'],
  })
  expect(await run('first-charge.ts')).toEqual({
    code: 0,
    lines: ['succeeded (journal); requests: 0, charges made: 0'],
  })
})

test('after-a-crash: killed on the wire, started again, one charge', async () => {
  const { code, lines } = await run('after-a-crash.ts')
  expect(code, lines.join('\n')).toBe(0)
  expect(lines).toContain('receiver  charges made: 1; killing the worker before it hears of it')
  expect(lines).toContain('worker    started; left open by an earlier process: 1')
  expect(lines).toContain('worker    order-991 succeeded, receipt ch_000001, attempts: 2')
  expect(lines.at(-1)).toBe('receiver  requests: 2, keys: 1, bodies: 1, charges made: 1')
})

test('backend-worker: with a receiver of its own it bills each event once, and the second run bills none', async () => {
  const first = await run('backend-worker.ts')
  expect(first.code, first.lines.join('\n')).toBe(0)
  expect(first.lines.at(-1)).toMatch(/^the test receiver counts requests: \d+, effects: 5, made twice: 0$/)
  const second = await run('backend-worker.ts')
  expect(second.code, second.lines.join('\n')).toBe(0)
  expect(second.lines).toContain('export:job-7: done before (us_000004)')
  expect(second.lines.at(-1)).toBe('the test receiver counts requests: 0, effects: 0, made twice: 0')
})

test('backend-worker: it says for each outcome what is to be done, and the next run goes on', async () => {
  const receiver = createReceiver({
    faults: [
      status(429, {
        headers: { 'retry-after': '1' },
        when: ({ body }) => body.includes('"quantity":31'),
      }),
      savedFailure(500, { kind: 'credits' }),
      loseReply({ kind: 'charge', attempt: 1 }),
    ],
  })
  await using server = await startServer(receiver)
  const env = { BILLING_URL: server.url }
  const { lines } = await run('backend-worker.ts', env)
  expect(lines).toEqual([
    expect.stringMatching(/^invoice:2031-0117: done \(ch_\d+, attempts: 2\)$/),
    'invoice:2031-0118: refused (card_declined); write to the customer',
    'invoice:2031-0119: made, the customer has to confirm it',
    expect.stringMatching(/^export:job-7: done /),
    'export:job-8: not yet (rate-limited); the next run goes on',
    expect.stringMatching(
      /^image:img-55: may be done, a person has to look it up \(recorded-failure, key [\da-f-]{36}\)$/,
    ),
  ])

  receiver.faults.clear()
  const next = await run('backend-worker.ts', env)
  expect(next.lines).toContain('left open by earlier runs: 1, now done: 1, still waiting: 0')
  expect(next.lines).toContain('to be looked up by a person: 1')
  expect(next.lines.find((line) => line.startsWith('export:job-8'))).toMatch(/done before/)
  expect(receiver.ledger.duplicates()).toEqual([])
})

test('backend-worker: stopped by a deploy while a charge is on the wire, the next run takes it up', async () => {
  const receiver = createReceiver({ faults: [stall({ request: 1 })] })
  let arrived = (): void => {}
  const isOnTheWire = new Promise<void>((resolve) => (arrived = resolve))
  await using server = await startServer({
    async handle(request) {
      const delivery = await receiver.handle(request)
      arrived()
      return delivery
    },
  })
  const child = run('backend-worker.ts', { BILLING_URL: server.url }, isOnTheWire)
  // A stalled request would be waited for up to its timeout; the receiver's end is near, so the socket goes first.
  await isOnTheWire
  await server.close()
  const first = await child
  expect(first.lines).toEqual(['stopped; the next run goes on from here'])

  await using again = await startServer(receiver)
  const second = await run('backend-worker.ts', { BILLING_URL: again.url })
  expect(second.lines[0]).toBe('left open by earlier runs: 1, now done: 1, still waiting: 0')
  expect(receiver.ledger.effectsOf({ kind: 'charge' })).toHaveLength(2)
  expect(receiver.ledger.duplicates()).toEqual([])
})
