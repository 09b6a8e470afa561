/**
 * What happens to a charge whose process is killed while it is on the wire?
 *
 *     node --conditions=source examples/after-a-crash.ts
 *
 * A receiver on a real socket, a worker in a process of its own. The worker is killed with SIGKILL at the worst moment: the
 * receiver has made the charge, and its reply is not back yet. A second worker then runs the same program.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { createBillingClient, unwrap } from 'billonce'
import { createReceiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'

const [, , baseUrl] = process.argv
if (baseUrl === undefined) await watch()
else await work(baseUrl)

/** The program that gets killed. It knows nothing of crashes: what it does at the second start is what it does at the first. */
async function work(url: string): Promise<void> {
  // The journal is the SQLite file that BILLONCE_JOURNAL names.
  const billing = createBillingClient({ baseUrl: url, scope: 'shop/test' })
  billing.subscribe((event) => {
    if (event.type === 'attempt-began') console.log(`worker    attempt ${event.attempt} of key ${event.key} leaves`)
  })
  // Enough by itself: it sends what was left open. Here the call that follows would do it too, since it has the same name.
  const { total } = await billing.resume()
  console.log(`worker    started; left open by an earlier process: ${total}`)
  const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-991' })
  const receipt = unwrap(outcome)
  console.log(`worker    order-991 ${outcome.status}, receipt ${receipt.id}, attempts: ${outcome.attempts}`)
  await billing.close()
}

/** Starts the receiver and the worker, kills the one, starts it again, and counts. */
async function watch(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-crash-'))
  const receiver = createReceiver()
  let kill: (() => void) | undefined
  const server = await startServer({
    async handle(request) {
      const delivery = await receiver.handle(request)
      // The effect is made and the reply not sent: from here on nobody but the receiver knows about the charge.
      kill?.()
      return delivery
    },
  })
  const start = () =>
    spawn(process.execPath, [...process.execArgv, fileURLToPath(import.meta.url), server.url], {
      stdio: ['ignore', 'inherit', 'inherit'],
      env: { ...process.env, BILLONCE_JOURNAL: join(folder, 'journal.sqlite') },
    })
  try {
    const first = start()
    kill = () => {
      first.kill('SIGKILL')
      kill = undefined
      console.log(`receiver  charges made: ${receiver.ledger.effects.length}; killing the worker before it hears of it`)
    }
    await once(first, 'exit')

    await once(start(), 'exit')
    const { requests, effects } = receiver.ledger
    const keys = new Set(requests.map((request) => request.key)).size
    const bodies = new Set(requests.map((request) => request.body)).size
    console.log(
      `receiver  requests: ${requests.length}, keys: ${keys}, bodies: ${bodies}, charges made: ${effects.length}`,
    )
    if (effects.length !== 1) process.exitCode = 1
  } finally {
    await server.close()
    rmSync(folder, { recursive: true, force: true })
  }
}
