/** `resume`, `reconcile` and `retry` against a real server: what is sent, as whom, and what is left. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { createBillingClient } from 'billonce'
import type { BillingClientOptions } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver, savedFailure, stall, status } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { RunningServer } from 'billonce/testing/server'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { billonce, environmentOf, fromSource, jsonLines, temporaryFolder } from './cli.ts'
import type { Ended, Folder } from './cli.ts'

const TOKEN = 'sk_live_credential'
let folder: Folder
let receiver: Receiver
let server: RunningServer

beforeEach(async () => {
  folder = temporaryFolder()
  receiver = createReceiver({ accounts: { [TOKEN]: 'acct_1' } })
  server = await startServer(receiver)
})
afterEach(async () => {
  await server.close()
  folder.remove()
})

const run = (args: readonly string[], env: Record<string, string> = {}): Promise<Ended> =>
  billonce([...args, '--journal', folder.file('journal.sqlite')], {
    env: { BILLING_AUTH: `authorization: Bearer ${TOKEN}`, ...env },
  })

/** Leaves entries that nobody could send. */
async function leavePending(names: readonly string[], options: Partial<BillingClientOptions> = {}): Promise<void> {
  const journal = sqliteJournal({ path: folder.file('journal.sqlite') })
  const billing = createBillingClient({
    baseUrl: server.url,
    scope: 'org_42/live',
    journal,
    credentials: () => {
      throw new Error('logged out')
    },
    ...options,
  })
  for (const operationId of names) await billing.charge({ amount: 450, currency: 'eur' }, { operationId })
  await billing.close()
  await journal.close()
}

/** Leaves entries in whatever state the faults of the receiver bring them. */
async function charge(names: readonly string[]): Promise<void> {
  await leavePending(names, {
    credentials: ({ scope }) => ({ scope, headers: { authorization: `Bearer ${TOKEN}` } }),
    retry: { maxAttempts: 2, baseDelayMs: 0 },
  })
}

describe('resume', () => {
  test('sends what waits, once, with the credentials of the environment', async () => {
    await leavePending(['order-1', 'order-2'])
    const { code, stdout, stderr } = await run(['resume', '--header-env', 'BILLING_AUTH', '--json'])
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    expect(jsonLines(stdout)).toEqual([
      expect.objectContaining({
        total: 2,
        succeeded: 2,
        waiting: 0,
        failed: 0,
        needAttention: 0,
        isInterrupted: false,
      }),
    ])
    expect(receiver.ledger.effects).toHaveLength(2)
    const again = await run(['resume', '--header-env', 'BILLING_AUTH'])
    expect(again).toMatchObject({ code: 0, stdout: 'Nothing to send: no entry is pending or sending.\n' })
    expect(receiver.ledger.requests).toHaveLength(2)
  })

  test('tells what is left, by exit code and words', async () => {
    await leavePending(['order-1'])
    // A wrong token: not accepted, certainly not done.
    const { code, stdout, stderr } = await run(['resume', '--header', 'authorization: Bearer wrong'])
    expect(code).toBe(1)
    expect(stdout).toMatch(/WAITING/)
    expect(stderr).toContain('1 entry still waiting')
    expect(stdout + stderr).not.toContain('wrong')
    expect(receiver.ledger.effects).toHaveLength(0)
  })

  test('credentials that do not say whose they are go to one scope only', async () => {
    await leavePending(['order-1'])
    await leavePending(['order-2'], { scope: 'org_7/live' })
    const refused = await run(['resume', '--header-env', 'BILLING_AUTH'])
    expect(refused.code).toBe(2)
    expect(refused.stderr).toMatch(/nobody pays another's bill[\s\S]*--scope org_42\/live[\s\S]*--scope org_7\/live/)
    expect(receiver.ledger.requests).toHaveLength(0)
    const one = await run(['resume', '--header-env', 'BILLING_AUTH', '--scope', 'org_7/live', '--json'])
    expect(jsonLines(one.stdout)[0]).toMatchObject({ total: 1, succeeded: 1 })
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('credentials that say whose they are send nothing of others', async () => {
    await leavePending(['order-1'])
    await leavePending(['order-2'], { scope: 'org_7/live' })
    const file = folder.file('credentials.json')
    writeFileSync(file, JSON.stringify({ scope: 'org_42/live', headers: { authorization: `Bearer ${TOKEN}` } }))
    const { code, stdout } = await run(['resume', '--credentials-file', file, '--json'])
    expect(code).toBe(1)
    expect(jsonLines(stdout)[0]).toMatchObject({ total: 2, succeeded: 1, waiting: 1 })
    const states = jsonLines((await run(['list', '--state', 'pending', '--json'])).stdout)
    expect(states).toEqual([expect.objectContaining({ scope: 'org_7/live', reason: 'other-login' })])
  })

  test('an endpoint that is an id needs an address', async () => {
    await leavePending(['order-1'], { endpoint: 'payments' })
    const where = await run(['resume', '--header-env', 'BILLING_AUTH'])
    expect(where.code).toBe(2)
    expect(where.stderr).toContain('--base-url')
    const there = await run(['resume', '--header-env', 'BILLING_AUTH', '--base-url', server.url])
    expect(there.code).toBe(0)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('an endpoint that is an address is sent nowhere else', async () => {
    await leavePending(['order-1'])
    const { code, stderr } = await run(['resume', '--header-env', 'BILLING_AUTH', '--base-url', 'http://127.0.0.1:9/'])
    expect(code).toBe(0)
    expect(stderr).toMatch(/Left alone: 1 entry/)
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test('everything from a config module', async () => {
    await leavePending(['order-1'])
    const config = join(repositoryRoot, 'test/cli/programs/config.ts')
    const env = { BASE_URL: server.url, TOKEN }
    expect((await run(['resume', '--config', config], env)).code).toBe(0)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test.each([
    [['--header-env', 'NOT_THERE'], /has no NOT_THERE/],
    [['--header', `Bearer ${TOKEN}`], /a name, a colon and a value/],
    [['--credentials-file', '/nowhere'], /cannot be read/],
    [['--config', '/nowhere.js'], /cannot be loaded/],
    [['--base-url', 'api.example.com'], /absolute address/],
  ])('%s: nothing is sent, and no message holds a credential', async (args, message) => {
    await leavePending(['order-1'])
    const { code, stdout, stderr } = await run(['resume', ...args])
    expect(code).toBe(2)
    expect(stderr).toMatch(message)
    expect(stdout + stderr).not.toContain(TOKEN)
    expect(receiver.ledger.requests).toHaveLength(0)
  })

  test.skipIf(process.platform === 'win32')(
    'ctrl-c twice stops at once, and the journal keeps what is open',
    async () => {
      receiver.faults.add(stall())
      await leavePending(['order-1'])
      const child = spawn(
        process.execPath,
        [...fromSource, 'resume', '--header-env', 'BILLING_AUTH', '--journal', folder.file('journal.sqlite')],
        { env: environmentOf({ BILLING_AUTH: `authorization: Bearer ${TOKEN}` }) },
      )
      const ended = once(child, 'close')
      await expect.poll(() => receiver.ledger.requests.length, { timeout: 20_000 }).toBe(1)
      child.kill('SIGINT')
      await once(child.stderr, 'data')
      child.kill('SIGINT')
      expect((await ended)[0]).toBe(130)
      expect(jsonLines((await run(['list', '--json'])).stdout)[0]).toMatchObject({ state: 'sending' })
    },
  )
})

describe('reconcile', () => {
  const config = join(repositoryRoot, 'test/cli/programs/config.ts')
  const lookUp = join(repositoryRoot, 'test/cli/programs/look-up.ts')

  beforeEach(async () => {
    receiver.faults.add(savedFailure(500, { afterEffect: true }))
    await charge(['order-1', 'order-2', 'order-3', 'order-4'])
    expect(jsonLines((await run(['list', '--json'])).stdout).map((row) => row['state'])).toEqual(
      Array(4).fill('unknown'),
    )
  })

  test('by a look-up of one’s own, and tells what is left and why', async () => {
    const { code, stdout, stderr } = await run(['reconcile', '--config', lookUp, '--json'])
    expect(code).toBe(1)
    expect(stderr).toBe('')
    expect(jsonLines(stdout)).toEqual([
      expect.objectContaining({
        total: 4,
        succeeded: 1,
        rejected: 0,
        misses: 1,
        unsettled: 1,
        failed: 1,
        needAttention: 3,
        troubles: expect.arrayContaining([
          expect.objectContaining({ why: 'the look-up failed: the provider is down' }),
          expect.objectContaining({ why: 'not taken: receipt-differs' }),
        ]) as unknown[],
      }),
    ])
    const text = await run(['reconcile', '--config', lookUp])
    expect(text.code).toBe(1)
    expect(text.stdout).toMatch(/3 entries need a person:\nSTATE/)
  })

  test('by the dialect’s look-up, over the wire', async () => {
    const asked: (string | undefined)[] = []
    // The same address cannot be asked, so a proxy of ours answers GET and the receiver the rest.
    await server.close()
    const provider = createServer((request, response) => {
      asked.push(`${request.method} ${request.headers.authorization}`)
      response.setHeader('content-type', 'application/json')
      response.end(JSON.stringify({ id: `ch_${request.url?.slice(-4)}`, status: 'succeeded' }))
    })
    provider.listen(server.port, '127.0.0.1')
    await once(provider, 'listening')
    try {
      const url = `http://127.0.0.1:${(provider.address() as AddressInfo).port}`
      const { code, stdout } = await run(['reconcile', '--config', config, '--json'], { BASE_URL: url, TOKEN })
      expect(jsonLines(stdout)[0]).toMatchObject({ total: 4, succeeded: 4, needAttention: 0 })
      expect(code).toBe(0)
      expect(asked).toEqual(Array(4).fill(`GET Bearer ${TOKEN}`))
    } finally {
      provider.close()
    }
  })

  test('without either says what to do', async () => {
    const { code, stderr } = await run(['reconcile', '--header-env', 'BILLING_AUTH'])
    expect(code).toBe(2)
    expect(stderr).toMatch(/lookUp[\s\S]*billonce evidence/)
  })
})

describe('retry', () => {
  test('sends a refused write again as its next revision', async () => {
    receiver.faults.add(
      status(400, {
        times: 1,
        body: { error: { code: 'bad_deploy', message: 'no' } },
        contentType: 'application/json',
      }),
    )
    await charge(['order-1'])
    expect(jsonLines((await run(['list', '--json'])).stdout)[0]).toMatchObject({
      state: 'rejected',
      reason: 'bad_deploy',
    })
    const refused = await run(['retry', 'charge:order-1', '--header-env', 'BILLING_AUTH', '--json'])
    expect(refused.code).toBe(5)
    expect(JSON.parse(refused.stderr)).toMatchObject({
      error: { code: 'ERR_REVISION_REFUSED', reason: 'unrecorded-refusal' },
    })
    const done = await run(['retry', 'charge:order-1', '--header-env', 'BILLING_AUTH', '--despite-unrecorded-refusal'])
    expect(done).toMatchObject({ code: 0, stdout: expect.stringContaining('revision 2 is now succeeded') as string })
    expect(receiver.ledger.effects).toHaveLength(1)
    const twice = await run(['retry', 'charge:order-1', '--header-env', 'BILLING_AUTH'])
    expect(twice.code).toBe(5)
    const shown = await run(['show', 'charge:order-1'])
    expect(shown.stdout).toMatch(/Revisions\n1 +rejected[^\n]*\n2 +succeeded/)
  })
})
