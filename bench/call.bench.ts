/**
 * What one call costs beside what a user would take instead, which writes nothing down, and what each layer of it costs. All
 * at the same local server, in turn, in one run; the ratios are what counts, since machines differ and swing.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import axios from 'axios'
import axiosRetry from 'axios-retry'
import { createBillingClient, forgetfulJournal } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import ky from 'ky'
import pRetry from 'p-retry'
import Stripe from 'stripe'
import { rawFlushes } from './raw-flush.ts'
import { median, progress, quantile, ratios, report } from './report.ts'
import type { Cell } from './report.ts'

const ROUNDS = Number(process.env['BENCH_ROUNDS'] ?? 9)
const CALLS = { 1: 150, 64: 960 } as const
/** Rounds that are not counted, until what runs is compiled. */
const WARM_UP_ROUNDS = 4
const CONCURRENCIES = [1, 64] as const
type Concurrency = (typeof CONCURRENCIES)[number]

/** In a process of its own, so that its work is not counted. */
const SERVER = `
  const { createServer } = require('node:http')
  createServer((request, response) => {
    request.resume()
    request.on('end', () => response.setHeader('content-type', 'application/json').end('{"id":"us_1","standing":1}'))
  }).listen(0, '127.0.0.1', function () { process.stdout.write(String(this.address().port)) })`

type Call = (number: number) => Promise<unknown>

interface Subject {
  readonly name: string
  readonly call: Call
  /** A round each: the median latency in ms, calls per second, CPU of the process with all its threads in us per call. */
  readonly rounds: Record<Concurrency, { p50Ms: number[]; rate: number[]; cpuUs: number[] }>
}

const folder = mkdtempSync(join(tmpdir(), 'billonce-bench-'))
const server = spawn(process.execPath, ['-e', SERVER], { stdio: ['ignore', 'pipe', 'inherit'] })
const [port] = (await once(server.stdout, 'data')) as [Buffer]
const baseUrl = `http://127.0.0.1:${port.toString()}`
const url = `${baseUrl}/v1/usage`
const headers = { 'content-type': 'application/json', authorization: 'Bearer sk_test' }

/** As usage is: one meter, small counts, many customers. */
const bodyOf = (number: number): { meter: string; quantity: number; customer: string } => ({
  meter: 'exports',
  quantity: 1 + (number % 9),
  customer: `cus_${number % 2000}`,
})
const nameOf = (number: number): string => `bench-${number}`

const plain: Call = async (number) => {
  const body = JSON.stringify(bodyOf(number))
  const response = await fetch(url, {
    method: 'POST',
    body,
    headers: { ...headers, 'idempotency-key': nameOf(number) },
  })
  return await response.json()
}
const withKy: Call = (number) => {
  const own = { ...headers, 'idempotency-key': nameOf(number) }
  return ky.post(url, { json: bodyOf(number), retry: 0, timeout: false, headers: own }).json()
}
const retrying = axios.create({ adapter: 'http' })
axiosRetry(retrying, { retries: 3, retryCondition: () => true })
const withAxios: Call = async (number) =>
  (await retrying.post<unknown>(url, bodyOf(number), { headers: { ...headers, 'idempotency-key': nameOf(number) } }))
    .data
type StripeHttpClient = NonNullable<NonNullable<ConstructorParameters<typeof Stripe>[1]>['httpClient']>
const withStripe = (httpClient: StripeHttpClient): Call => {
  const stripe = new Stripe('sk_test', {
    host: '127.0.0.1',
    port: port.toString(),
    protocol: 'http',
    telemetry: false,
    httpClient,
  })
  return (number) => {
    const { meter, quantity, customer } = bodyOf(number)
    const payload = { stripe_customer_id: customer, value: String(quantity) }
    return stripe.billing.meterEvents.create({ event_name: meter, payload }, { idempotencyKey: nameOf(number) })
  }
}
const billonce = (journal: JournalStore): Call => {
  const billing = createBillingClient({
    baseUrl,
    scope: 'bench',
    headers: { authorization: 'Bearer sk_test' },
    journal,
  })
  return (number) => billing.recordUsage(bodyOf(number), { operationId: nameOf(number) })
}
const forgetful = forgetfulJournal()
const durable = sqliteJournal({ path: join(folder, 'journal.sqlite') })
const lazy = sqliteJournal({ path: join(folder, 'lazy.sqlite'), settle: 'lazy' })

const subject = (name: string, call: Call): Subject => ({
  name,
  call,
  rounds: { 1: { p50Ms: [], rate: [], cpuUs: [] }, 64: { p50Ms: [], rate: [], cpuUs: [] } },
})
const BASE = 'ky (retry 0) + p-retry'
const [rawFetch, kyAlone, base, engine, sqlite, ...others] = [
  subject('fetch', plain),
  subject('ky, retry 0', withKy),
  subject(BASE, (number) => pRetry(() => withKy(number))),
  subject('billonce, forgetful journal', billonce(forgetful)),
  subject('billonce, SQLite journal', billonce(durable)),
  subject('billonce, SQLite, settle lazy', billonce(lazy)),
  subject('axios + axios-retry', withAxios),
  subject('stripe, fetch client', withStripe(Stripe.createFetchHttpClient())),
  subject('stripe, node:http client', withStripe(Stripe.createNodeHttpClient())),
] as const
const subjects: readonly Subject[] = [rawFetch, kyAlone, base, engine, sqlite, ...others]
const flush = rawFlushes(join(folder, 'raw'))

try {
  let number = 0
  const flushMs: number[] = []
  for (let round = 1 - WARM_UP_ROUNDS; round <= ROUNDS; round += 1) {
    for (const concurrency of CONCURRENCIES) {
      // Each round begins with another, so that none always comes after the same.
      const turn = (round + WARM_UP_ROUNDS) % subjects.length
      for (const { name, call, rounds } of [...subjects.slice(turn), ...subjects.slice(0, turn)]) {
        const calls = CALLS[concurrency]
        const tookMs: number[] = []
        let left = calls
        const cpuBefore = process.cpuUsage()
        const began = performance.now()
        await Promise.all(
          Array.from({ length: concurrency }, async () => {
            while (left > 0) {
              left -= 1
              number += 1
              const at = performance.now()
              await call(number)
              tookMs.push(performance.now() - at)
            }
          }),
        )
        const ms = performance.now() - began
        const { user, system } = process.cpuUsage(cpuBefore)
        if (round < 1) continue
        rounds[concurrency].p50Ms.push(median(tookMs))
        rounds[concurrency].rate.push((calls / ms) * 1000)
        rounds[concurrency].cpuUs.push((user + system) / calls)
        progress(`round ${round} of ${ROUNDS}, ${concurrency} at a time: ${name}`)
      }
    }
    if (round > 0) flushMs.push(median(flush.take(100)))
  }
  progress()

  const to = (of: Subject, concurrency: Concurrency, what: 'p50Ms' | 'cpuUs' | 'rate', below: Subject = base): number =>
    median(ratios(of.rounds[concurrency][what], below.rounds[concurrency][what]))
  const aloneFloor = kyAlone.rounds[1].p50Ms.map((ms, round) => ms + 2 * (flushMs[round] ?? Number.NaN))
  const alone = (of: Subject): number => median(ratios(of.rounds[1].p50Ms, aloneFloor))
  const [lazySettle, , stripeFetch] = others
  const layers: readonly (readonly [string, Subject, Subject | undefined])[] = [
    ['fetch', rawFetch, undefined],
    ['+ ky', kyAlone, rawFetch],
    ['+ p-retry', base, kyAlone],
    ['+ the engine, on the forgetful journal, less p-retry', engine, base],
    ['+ the SQLite journal, two flushes', sqlite, engine],
  ]
  const difference = (what: 'p50Ms' | 'cpuUs', concurrency: Concurrency, one: Subject, less?: Subject): Cell =>
    median(one.rounds[concurrency][what].map((value, round) => value - (less?.rounds[concurrency][what][round] ?? 0)))

  report({
    name: 'call',
    tables: [
      ...CONCURRENCIES.map((concurrency) => ({
        title: `${concurrency === 1 ? 'One at a time' : `${concurrency} at a time`}; ratios to ${BASE}, which writes nothing down`,
        head: ['client', 'p50 ms', 'ratio', 'CPU us', 'ratio', 'calls/s', 'ratio'],
        rows: subjects.map((one) => [
          one.name,
          median(one.rounds[concurrency].p50Ms),
          to(one, concurrency, 'p50Ms'),
          median(one.rounds[concurrency].cpuUs),
          to(one, concurrency, 'cpuUs'),
          median(one.rounds[concurrency].rate),
          to(one, concurrency, 'rate'),
        ]),
      })),
      {
        title: 'What each layer adds',
        head: ['layer', 'ms alone', 'CPU us alone', 'CPU us at 64'],
        rows: [
          ...layers.map(([name, one, less]) => [
            name,
            difference('p50Ms', 1, one, less),
            difference('cpuUs', 1, one, less),
            difference('cpuUs', 64, one, less),
          ]),
          ['one raw flush of 512 bytes, for comparison', median(flushMs), '', ''],
        ],
      },
    ],
    goals: [
      { name: '64 at a time: p50 / ky + p-retry', measured: to(sqlite, 64, 'p50Ms'), atMost: 1.15 },
      { name: '64 at a time: CPU / ky + p-retry', measured: to(sqlite, 64, 'cpuUs'), atMost: 1.3 },
      { name: "64 at a time: rate / stripe's fetch client", measured: to(sqlite, 64, 'rate', stripeFetch), atLeast: 1 },
      { name: 'alone: p50 / (ky + 2 raw flushes)', measured: alone(sqlite), atMost: 1.5 },
      { name: 'alone, settle lazy: p50 / (ky + 2 raw flushes)', measured: alone(lazySettle), atMost: 1.5 },
    ],
    details: {
      rounds: Object.fromEntries(subjects.map(({ name, rounds }) => [name, rounds])),
      flushMs,
      flushP99Ms: quantile(flush.take(500), 0.99),
    },
  })
} finally {
  server.kill()
  flush.close()
  for (const journal of [forgetful, durable, lazy]) await journal.close()
  rmSync(folder, { recursive: true, force: true })
}
