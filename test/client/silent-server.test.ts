/** G58 with a real server and a real file: twenty thousand reports of usage while the server accepts and never answers. */
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver } from 'billonce/testing'
import { expect, test } from 'vitest'

const OPERATIONS = 20_000

setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

function heapMegabytes(): number {
  collectGarbage()
  return process.memoryUsage().heapUsed / 2 ** 20
}

test('20,000 reports to a server that never answers keep few sockets and little memory, and all arrive once it does', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-silent-'))
  const receiver = createReceiver()
  let isSilent = true
  let sockets = 0
  let mostSockets = 0
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      if (isSilent) return
      const { method = 'POST', url = '/', headers } = request
      const body = Buffer.concat(chunks)
      void receiver
        .fetch(`http://localhost${url}`, { method, body, headers: headers as Record<string, string> })
        .then(async (reply) => {
          response.writeHead(reply.status, Object.fromEntries(reply.headers)).end(await reply.text())
        })
    })
  })
  server.on('connection', (socket) => {
    sockets += 1
    mostSockets = Math.max(mostSockets, sockets)
    socket.on('close', () => (sockets -= 1))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const journal = sqliteJournal({ path: join(folder, 'journal.sqlite') })
  const billing = createBillingClient({
    baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    scope: 'org_42/test',
    headers: {},
    journal,
    concurrency: 32,
    retry: { attemptTimeoutMs: 1000, backgroundBaseDelayMs: 5, baseDelayMs: 5 },
  })
  try {
    const stop = billing.start()
    const before = heapMegabytes()
    for (let number = 0; number < OPERATIONS; number += 500) {
      await Promise.all(
        Array.from({ length: 500 }, async (_, index) =>
          billing.recordUsage(
            { meter: 'exports', quantity: 1 },
            { operationId: `job-${number + index}`, background: true },
          ),
        ),
      )
    }
    const grownMegabytes = heapMegabytes() - before
    // An entry is about 1.5 kB; kept in memory, all of them would be 30 MB and more.
    expect(grownMegabytes).toBeLessThan(8)
    expect(mostSockets).toBeLessThanOrEqual(32)
    isSilent = false
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 150_000, interval: 250 }).toBe(OPERATIONS)
    // One that timed out may still be closing while the next one opens.
    expect(mostSockets).toBeLessThanOrEqual(64)
    stop()
  } finally {
    await billing.close({ withinMs: 2000 })
    await journal.close()
    server.closeAllConnections()
    server.close()
    rmSync(folder, { recursive: true, force: true })
  }
}, 200_000)
