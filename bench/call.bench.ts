/**
 * What one call costs beside what a user would take instead: built-in fetch, ky without its own retry, and ky with p-retry,
 * which write nothing down; and billonce, on a journal that forgets and on an SQLite file, which is flushed before and
 * after each request. All at the same local server, in turn, in one run; the ratios are what counts, since machines differ
 * and swing.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createBillingClient, forgetfulJournal } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import ky from 'ky'
import pRetry from 'p-retry'
import { median, progress, ratios, report } from './report.ts'

const ROUNDS = 7
const BODY = { meter: 'exports', quantity: 1, customer: 'cus_1' }

/** In a process of its own, so that its work is not counted. */
const SERVER = `
  const { createServer } = require('node:http')
  createServer((request, response) => {
    request.resume()
    request.on('end', () => response.setHeader('content-type', 'application/json').end('{"id":"us_1","standing":1}'))
  }).listen(0, '127.0.0.1', function () { process.stdout.write(String(this.address().port)) })`

type Call = (name: string) => Promise<unknown>

interface Subject {
  readonly name: string
  readonly call: Call
  /** Calls per second, a round each, by concurrency. */
  readonly rates: Map<number, number[]>
  readonly cpu: Map<number, number[]>
}

const folder = mkdtempSync(join(tmpdir(), 'billonce-bench-'))
const server = spawn(process.execPath, ['-e', SERVER], { stdio: ['ignore', 'pipe', 'inherit'] })
const [port] = (await once(server.stdout, 'data')) as [Buffer]
const baseUrl = `http://127.0.0.1:${port.toString()}`
const url = `${baseUrl}/v1/usage`
const headers = { 'content-type': 'application/json', authorization: 'Bearer sk_test' }

const plain: Call = async (name) => {
  const response = await fetch(url, {
    method: 'POST',
    body: JSON.stringify(BODY),
    headers: { ...headers, 'idempotency-key': name },
  })
  return await response.json()
}
const withKy: Call = (name) =>
  ky.post(url, { json: BODY, retry: 0, timeout: false, headers: { ...headers, 'idempotency-key': name } }).json()
const billonce = (journal: JournalStore): Call => {
  const billing = createBillingClient({
    baseUrl,
    scope: 'bench',
    headers: { authorization: 'Bearer sk_test' },
    journal,
  })
  return (name) => billing.recordUsage(BODY, { operationId: name })
}
const journals = [forgetfulJournal(), sqliteJournal({ path: join(folder, 'journal.sqlite') })] as const
const subject = (name: string, call: Call): Subject => ({ name, call, rates: new Map(), cpu: new Map() })
const subjects: readonly Subject[] = [
  subject('fetch', plain),
  subject('ky, retry 0', withKy),
  subject('ky + p-retry', (name) => pRetry(() => withKy(name))),
  subject('billonce, forgetful', billonce(journals[0])),
  subject('billonce, SQLite', billonce(journals[1])),
]

try {
  let number = 0
  for (let round = 0; round <= ROUNDS; round += 1) {
    for (const concurrency of [1, 64]) {
      for (const { name, call, rates, cpu } of subjects) {
        const calls = concurrency === 1 ? 60 : 600
        let left = calls
        const cpuBefore = process.cpuUsage()
        const began = performance.now()
        await Promise.all(
          Array.from({ length: concurrency }, async () => {
            while (left > 0) {
              left -= 1
              number += 1
              await call(`bench-${number}`)
            }
          }),
        )
        const ms = performance.now() - began
        const { user, system } = process.cpuUsage(cpuBefore)
        // The first round warms up.
        if (round === 0) continue
        rates.set(concurrency, [...(rates.get(concurrency) ?? []), (calls / ms) * 1000])
        cpu.set(concurrency, [...(cpu.get(concurrency) ?? []), (user + system) / calls])
        progress(`round ${round} of ${ROUNDS}, ${concurrency} at a time: ${name}`)
      }
    }
  }
  progress()
  const base = subjects.find(({ name }) => name === 'ky + p-retry')
  report({
    name: 'call',
    tables: [1, 64].map((concurrency) => ({
      title: `${concurrency === 1 ? 'One at a time' : `${concurrency} at a time`}; time and CPU as ratios to ky + p-retry, which writes nothing down`,
      head: ['client', 'calls/s', 'time', 'CPU'],
      rows: subjects.map(({ name, rates, cpu }) => [
        name,
        median(rates.get(concurrency) ?? []),
        median(ratios(base?.rates.get(concurrency) ?? [], rates.get(concurrency) ?? [])),
        median(ratios(cpu.get(concurrency) ?? [], base?.cpu.get(concurrency) ?? [])),
      ]),
    })),
  })
} finally {
  server.kill()
  for (const journal of journals) await journal.close()
  rmSync(folder, { recursive: true, force: true })
}
