/**
 * Applications built by the bundlers that people use (test/package/bundlers.test.ts says what is in the bundles), run in
 * real browsers: in a page, in the worker that it starts, and in one that was built for workers alone.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { createReceiver } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { engines } from '../support/browsers.ts'
import { bundlerNames } from '../support/bundlers.ts'
import { openRealBrowser } from '../support/real-browser.ts'
import type { Page, RealBrowser } from '../support/real-browser.ts'
import { openSamples } from '../support/sample-builds.ts'
import type { SampleBuilds } from '../support/sample-builds.ts'

// Builds are made when they are first asked for, on a machine that also runs a browser.
vi.setConfig({ testTimeout: 240_000, hookTimeout: 120_000 })

let samples: SampleBuilds
beforeAll(() => {
  samples = openSamples()
})
afterAll(() => samples.remove())

interface Paid {
  status: string
  source: string
  durable: boolean
  key: string
}

interface Sample {
  pay(order: object): Promise<Paid>
  payInWorker(order: object): Promise<Paid>
}

/** A browser with an application of a bundler, served at `/built/`, before a receiver that counts. */
async function openApplication(
  engine: (typeof engines)[number],
): Promise<{ browser: RealBrowser; receiver: Receiver }> {
  const browser = await openRealBrowser(engine)
  const receiver = createReceiver()
  browser.handle('/v1/', (request) => receiver.fetch(request))
  browser.handle('/built/', async (request) => {
    const [, , bundler = '', target = '', ...path] = new URL(request.url).pathname.split('/')
    const { files } = await samples.build(bundler as 'vite', target as 'browser')
    const code = files.get(path.join('/'))
    return new Response(code, {
      status: code === undefined ? 404 : 200,
      headers: { 'content-type': 'text/javascript' },
    })
  })
  return { browser, receiver }
}

/** Runs in the page: loads the application as its page would, then pays, and again from its worker. */
async function payInPageAndWorker(_page: Page, { path, type }: { path: string; type: string }) {
  const script = document.createElement('script')
  script.type = type
  script.src = path
  await new Promise((resolve, reject) => {
    script.onload = resolve
    script.onerror = () => reject(new Error(`${path} does not load`))
    document.head.append(script)
  })
  const { sample } = globalThis as unknown as { sample: Sample }
  const order = (operationId: string) => ({ baseUrl: location.origin, operationId })
  const inPage = await sample.pay(order('order-1'))
  const sameInWorker = await sample.payInWorker(order('order-1'))
  const inWorker = await sample.payInWorker(order('order-2'))
  const databases = (await indexedDB.databases()).map(({ name }) => name)
  return { inPage, sameInWorker, inWorker, databases }
}

/** Runs in the page: pays from a worker that was built by itself. */
async function payInWorkerOf(_page: Page, path: string): Promise<Paid> {
  // As a module, since not every bundler makes a script; one that did runs as a module too.
  const worker = new Worker(path, { type: 'module' })
  try {
    return await new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data as Paid)
      worker.onerror = ({ message }) => reject(new Error(`${path}: ${message}`))
      worker.postMessage({ baseUrl: location.origin, operationId: 'order-3' })
    })
  } finally {
    worker.terminate()
  }
}

describe.each(engines)('G71: %s', (engine) => {
  test.each(bundlerNames)('a page and its worker, built by %s, charge once each from one journal', async (bundler) => {
    await samples.build(bundler, 'browser')
    const { browser, receiver } = await openApplication(engine)
    await using _closing = browser
    const type = bundler === 'webpack' ? 'text/javascript' : 'module'
    const paid = await browser.run(payInPageAndWorker, { path: `/built/${bundler}/browser/app.js`, type })
    expect(paid).toMatchObject({
      inPage: { status: 'succeeded', source: 'receiver', durable: true },
      sameInWorker: { status: 'succeeded', source: 'journal', key: paid.inPage.key },
      inWorker: { status: 'succeeded', source: 'receiver', durable: true },
      databases: ['billonce'],
    })
    expect(receiver.ledger.effects).toHaveLength(2)
    // A worker of its own build, under the condition `worker`, has the same journal of the same origin.
    expect(await browser.run(payInWorkerOf, `/built/${bundler}/worker/app.js`)).toMatchObject({
      status: 'succeeded',
      source: 'receiver',
      durable: true,
    })
    expect(receiver.ledger.effects).toHaveLength(3)
  })

  test('G70: what a render on the server has charged already is not charged again by the page that takes over', async () => {
    const { browser, receiver } = await openApplication(engine)
    await using _closing = browser
    const program = spawn(
      process.execPath,
      [(await samples.build('esbuild', 'node')).main, 'pay', browser.origin, 'order-1'],
      {
        cwd: mkdtempSync(join(samples.folder, 'render-')),
        env: { NODE_NO_WARNINGS: '1' },
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    )
    let text = ''
    program.stdout.setEncoding('utf8').on('data', (part: string) => (text += part))
    await once(program, 'close')
    expect(JSON.parse(text)).toMatchObject({ status: 'succeeded', source: 'receiver', durable: true })
    const paid = await browser.run(payInPageAndWorker, { path: '/built/esbuild/browser/app.js', type: 'module' })
    expect(paid.inPage).toMatchObject({ status: 'succeeded', source: 'receiver' })
    expect(receiver.ledger.effects.filter(({ key }) => key === paid.inPage.key)).toHaveLength(1)
    const charges = receiver.ledger.requests.filter(({ key }) => key === paid.inPage.key)
    expect(charges).toHaveLength(2)
    expect(charges[1]?.body).toBe(charges[0]?.body)
  })
})
