/** A durable meter whose process is killed again and again: what was counted is reported, each count in one batch. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver, loseReply } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'

const KILLS = 8

function lastOf(output: string, words: string): number {
  return Math.max(
    0,
    ...Array.from(output.matchAll(new RegExp(`^${words} (\\d+)$`, 'gm')), ([, number]) => Number(number)),
  )
}

test('killed again and again, nothing that was counted is missing, and nothing is counted twice', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-meter-'))
  const path = join(folder, 'journal.sqlite')
  const receiver = createReceiver({ faults: [loseReply({ probability: 0.2, seed: 5 })] })
  const server = await startServer(receiver)
  const said = { begun: 0, counted: 0 }
  try {
    for (let kill = 0; kill < KILLS; kill += 1) {
      const program = fileURLToPath(new URL('programs/meter.ts', import.meta.url))
      const child = spawn(process.execPath, [...nodeArguments, program, path, server.url], {
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      let output = ''
      child.stdout.on('data', (chunk: Buffer) => {
        output += chunk.toString()
      })
      // By what was done and not by time, so that a slow machine does as much.
      while (lastOf(output, 'counted exports') < 6 + 4 * kill) await sleep(1)
      child.kill('SIGKILL')
      await once(child, 'close')
      for (const name of ['exports', 'imports']) {
        said.begun += lastOf(output, `begun ${name}`)
        said.counted += lastOf(output, `counted ${name}`)
      }
    }
    receiver.faults.clear()
    const journal = sqliteJournal({ path })
    // The same account: a server remembers keys for each.
    const headers = { authorization: 'Bearer sk_test' }
    const billing = createBillingClient({ baseUrl: server.url, scope: 'org_42/test', headers, journal })
    await expect.poll(async () => (await billing.resume()).total, { timeout: 30_000 }).toBe(0)
    const { effects, requests } = receiver.ledger
    const reported = effects.reduce((sum, { params }) => sum + Number(params['quantity']), 0)
    expect(said.counted).toBeGreaterThan(KILLS * 10)
    // Of those under way at a kill, two at a time, nobody knows.
    expect(reported).toBeGreaterThanOrEqual(said.counted)
    expect(reported).toBeLessThanOrEqual(said.begun)
    expect(new Set(requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(effects.length)
    expect(effects.length).toBeGreaterThan(KILLS)
    await billing.close()
    await journal.close()
  } finally {
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  }
}, 120_000)
