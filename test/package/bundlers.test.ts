/**
 * Applications built by the bundlers that people use, from the package as npm would install it: the right journal for each
 * runtime, nothing of Node's where there is no Node, and the bundles run. What a browser makes of them is in
 * test/crash-browser/bundles.test.ts.
 */
import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { isBuiltin } from 'node:module'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { EdgeVM } from '@edge-runtime/vm'
import { createReceiver, stall } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { build as esbuild } from 'esbuild'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { bundlerNames } from '../support/bundlers.ts'
import type { Bundler, EsbuildForm, Target } from '../support/bundlers.ts'
import { openSamples } from '../support/sample-builds.ts'
import type { SampleBuilds } from '../support/sample-builds.ts'

// Minifiers are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 180_000, hookTimeout: 120_000 })

let samples: SampleBuilds
beforeAll(() => {
  samples = openSamples()
})
afterAll(() => samples.remove())

const JOURNALS = {
  browser: 'indexeddb',
  worker: 'indexeddb',
  'edge-light': 'none',
  workerd: 'none',
  none: 'none',
  node: 'sqlite',
} as const satisfies Readonly<Record<Target, string>>
const DEFAULTS = { indexeddb: 'default-browser', sqlite: 'default-node', none: 'default-none' } as const

describe.each(bundlerNames)('G71: %s', (bundler) => {
  test.each(Object.entries(JOURNALS) as [Target, keyof typeof DEFAULTS][])(
    'for %s takes the journal %s, and nothing that is not there',
    async (target, journal) => {
      const { files, modules, outside } = await samples.build(bundler, target)
      const stores = modules.flatMap((path) => /\/billonce\/dist\/stores\/([\w-]+)\.js$/.exec(path)?.[1] ?? [])
      expect(new Set(stores.filter((name) => name.startsWith('default-')))).toEqual(new Set([DEFAULTS[journal]]))
      const of = (name: string): boolean => stores.some((store) => store.startsWith(name))
      expect({ indexeddb: of('indexeddb'), sqlite: of('sqlite') }).toEqual({
        indexeddb: journal === 'indexeddb',
        sqlite: journal === 'sqlite',
      })
      if (target === 'node') return
      expect(outside).toEqual([])
      for (const [name, code] of files) expect(code, name).not.toMatch(/["'`]node:/)
    },
  )
})

describe('G71: what a page may import', () => {
  const manifest = (): { exports: object; peerDependencies: object } =>
    JSON.parse(readFileSync(join(samples.folder, 'node_modules/billonce/package.json'), 'utf8')) as never

  /** Modules of Node's that a page's bundle of this subpath would ask for. */
  const importing = async (subpath: string): Promise<string[]> => {
    const { metafile } = await esbuild({
      stdin: { contents: `export * from '${subpath.replace(/^\./, 'billonce')}'`, resolveDir: samples.folder },
      bundle: true,
      format: 'esm',
      platform: 'browser',
      write: false,
      metafile: true,
      // What an application brings along itself is not looked into.
      external: ['node:*', ...Object.keys(manifest().peerDependencies)],
      logLevel: 'error',
    })
    const imports = Object.values(metafile.inputs).flatMap((input) => input.imports)
    return imports.filter(({ external, path }) => external && isBuiltin(path)).map(({ path }) => path)
  }

  test('each subpath but the server of the test kit reaches nothing of Node', async () => {
    const subpaths = Object.keys(manifest().exports).filter((name) => name !== './package.json')
    expect(subpaths).toContain('./stores/sqlite')
    for (const subpath of subpaths) {
      if (subpath !== './testing/server') expect(await importing(subpath), subpath).toEqual([])
    }
  })

  // The check itself can fail: this one is for Node and imports it.
  test('what does need Node is seen to need it', async () => {
    expect(await importing('./testing/server')).toContain('node:http')
  })
})

describe('a bundle for Node', () => {
  const forms: [string, () => Promise<string>][] = [
    ...bundlerNames.map((bundler): [string, () => Promise<string>] => [
      bundler,
      async () => (await samples.build(bundler, 'node')).main,
    ]),
    ...(
      [
        ['esbuild as CommonJS', { format: 'cjs' }],
        ['esbuild with kept names', { keepNames: true }],
        ['esbuild for an old level', { target: 'es2017', keepNames: true }],
      ] as [string, EsbuildForm][]
    ).map(([name, form]): [string, () => Promise<string>] => [name, () => samples.buildServer(form)]),
  ]

  test.each(forms)('G06: by %s charges from one file, is killed on the wire, and resumes', async (_name, build) => {
    const file = await build()
    // Far from any node_modules, and started from another folder than its own.
    const folder = mkdtempSync(join(tmpdir(), 'billonce-alone-'))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }))
    const app = join(folder, 'app')
    const work = join(folder, 'work')
    mkdirSync(app)
    mkdirSync(work)
    copyFileSync(file, join(app, basename(file)))
    const receiver = createReceiver({ faults: [stall({ attempt: 1 })] })
    await using server = await startServer(receiver)
    const run = (...args: string[]): ChildProcess =>
      spawn(process.execPath, [join(app, basename(file)), ...args], {
        cwd: work,
        env: { PATH: process.env['PATH'], NODE_NO_WARNINGS: '1' },
        stdio: ['ignore', 'pipe', 'inherit'],
      })

    const killed = run('pay', server.url, 'order-1')
    await expect.poll(() => receiver.ledger.effects.length, { timeout: 60_000 }).toBe(1)
    const gone = once(killed, 'exit')
    killed.kill('SIGKILL')
    await gone
    expect(readdirSync(work)).toEqual(['.billonce'])
    expect(existsSync(join(work, '.billonce/journal.sqlite'))).toBe(true)

    // The file is opened by the thread alone, which started from the bundle.
    const inThread = { sqliteInMainThread: false }
    expect(await answerOf(run('resume', server.url))).toEqual({ total: 1, succeeded: 1, ...inThread })
    const again = await answerOf(run('pay', server.url, 'order-1'))
    expect(again).toMatchObject({ status: 'succeeded', source: 'journal', attempts: 2, durable: true, ...inThread })
    const { requests, effects } = receiver.ledger
    expect(effects).toHaveLength(1)
    expect(requests.map(({ key, body }) => [key, body])).toEqual(Array(2).fill([requests[0]?.key, requests[0]?.body]))
  })
})

describe('without a bundler', () => {
  const inFolder = (name: string, program: string): ChildProcess => {
    const folder = mkdtempSync(join(samples.folder, 'program-'))
    writeFileSync(join(folder, name), program)
    return spawn(process.execPath, [join(folder, name)], {
      cwd: folder,
      env: { PATH: process.env['PATH'] },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
  }

  test('CommonJS gets it by require, with every subpath for Node, and charges durably', async () => {
    const receiver = createReceiver()
    await using server = await startServer(receiver)
    const program = inFolder(
      'program.cjs',
      `const { createBillingClient } = require('billonce')
       const { sqliteJournal } = require('billonce/stores/sqlite')
       const { createReceiver } = require('billonce/testing')
       require('billonce/stores/indexeddb')
       require('billonce/testing/server')
       require('billonce/diagnostics-channel')
       const journal = sqliteJournal({ path: 'journal.sqlite' })
       const billing = createBillingClient({ baseUrl: ${JSON.stringify(server.url)}, scope: 'org_42/test', journal })
       billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' }).then(async (outcome) => {
         await billing.close()
         await journal.close()
         process.stdout.write(JSON.stringify({ status: outcome.status, durable: outcome.durable }))
       })`,
    )
    let warnings = ''
    program.stderr?.setEncoding('utf8').on('data', (text: string) => (warnings += text))
    expect(await answerOf(program)).toEqual({ status: 'succeeded', durable: true })
    expect(warnings).toBe('')
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  /** Says what importing and constructing did to the process. */
  const render = (baseUrl: string): string => `
    const touched = []
    const watch = (object, name, label = name) => {
      const real = object[name]
      object[name] = function (...args) {
        // The loader reads what is imported.
        if (!/\\/node_modules\\/.*\\.js(on)?$/.test(String(args[0]))) touched.push(label + ' ' + String(args[0]))
        return real.apply(this, args)
      }
    }
    for (const name of ['setTimeout', 'setInterval', 'setImmediate', 'fetch']) watch(globalThis, name)
    for (const name of ['on', 'once', 'addListener', 'prependListener']) watch(process, name, 'process.' + name)
    const { default: fs } = await import('node:fs')
    for (const name of ['openSync', 'open', 'mkdirSync', 'writeFileSync', 'appendFileSync', 'readlinkSync']) watch(fs, name, 'fs.' + name)
    // Pipes that are there from here on; Node's own loader asks for the second.
    void [process.stdout, process.stderr]
    const seen = () => ({ listeners: process.eventNames().length, resources: process.getActiveResourcesInfo().sort().join() })
    const before = seen()
    const { createBillingClient } = await import('billonce')
    const billing = createBillingClient({ baseUrl: ${JSON.stringify(baseUrl)}, scope: 'org_42/test' })
    billing.subscribe(() => {})
    const after = seen()
    const answer = {
      touched: [...touched],
      changed: JSON.stringify(before) === JSON.stringify(after) ? [] : [before, after],
      threads: process.report.getReport().workers.length,
      sqlite: process.moduleLoadList.filter((name) => /sqlite/.test(name)),
      files: fs.readdirSync('.').sort(),
      globals: ['window', 'document', 'indexedDB'].filter((name) => name in globalThis),
    }
    const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-1' }).catch((error) => error)
    process.stdout.write(JSON.stringify({ ...answer, answered: outcome.status ?? [outcome.code, outcome.fault, outcome.sentByThisCall] }))
  `

  test.each([
    ['the entry of Node', [], 'succeeded', 1],
    // What a test runner in DOM mode, or a bundle for the page that is also rendered on the server, gives to Node.
    ['the entry of a browser', ['--conditions=browser'], ['ERR_JOURNAL_UNAVAILABLE', 'unavailable', false], 0],
    [
      'the entry of a runtime at the edge',
      ['--conditions=edge-light'],
      ['ERR_JOURNAL_UNAVAILABLE', 'unavailable', false],
      0,
    ],
  ] as const)(
    'G70: a render on a server that imports %s and makes a client touches nothing',
    async (_name, flags, answered, effects) => {
      const receiver = createReceiver()
      await using server = await startServer(receiver)
      const folder = mkdtempSync(join(samples.folder, 'render-'))
      writeFileSync(join(folder, 'render.mjs'), render(server.url))
      const program = spawn(process.execPath, [...flags, join(folder, 'render.mjs')], {
        cwd: folder,
        env: { PATH: process.env['PATH'], NODE_NO_WARNINGS: '1' },
        stdio: ['ignore', 'pipe', 'inherit'],
      })
      expect(await answerOf(program)).toEqual({
        touched: [],
        changed: [],
        threads: 0,
        sqlite: [],
        files: ['render.mjs'],
        globals: [],
        answered,
      })
      expect(receiver.ledger.effects).toHaveLength(effects)
    },
  )
})

describe('at the edge', () => {
  const edges: [Bundler, Target][] = bundlerNames.flatMap((bundler) =>
    (['edge-light', 'workerd', 'none'] as const).map((target): [Bundler, Target] => [bundler, target]),
  )

  test.each(edges)(
    'G70: a bundle by %s for %s touches nothing, refuses a call without a journal, and charges with one that forgets',
    async (bundler, target) => {
      const { files } = await samples.build(bundler, target)
      const [code = ''] = files.values()
      const receiver = createReceiver()
      await using server = await startServer(receiver)
      const vm = new EdgeVM()
      vm.evaluate(`
        globalThis.touched = []
        for (const name of ['fetch', 'setTimeout', 'setInterval', 'addEventListener']) {
          const real = globalThis[name]
          globalThis[name] = (...args) => { touched.push(name); return real(...args) }
        }`)
      // It is a script to this machine; what is left of an ES module is the word at its end.
      vm.evaluate(code.replace(/\bexport\s*\{[^}]*\};?\s*$/, ''))
      const baseUrl = JSON.stringify(server.url)
      vm.evaluate(`sample.construct({ baseUrl: ${baseUrl} })`)
      expect(vm.evaluate('[...touched]')).toEqual([])
      const refused = await vm.evaluate<Promise<object>>(`sample.pay({ baseUrl: ${baseUrl}, operationId: 'order-1' })`)
      expect(refused).toMatchObject({
        code: 'ERR_JOURNAL_UNAVAILABLE',
        fault: 'unavailable',
        message: expect.stringMatching(/forgetfulJournal/) as string,
        sentByThisCall: false,
      })
      expect(vm.evaluate('touched.includes("fetch")')).toBe(false)
      expect(receiver.ledger.requests).toHaveLength(0)
      const paid = await vm.evaluate<Promise<object>>(
        `sample.pay({ baseUrl: ${baseUrl}, operationId: 'order-1', forgetful: true })`,
      )
      expect(paid).toMatchObject({ status: 'succeeded', source: 'receiver', durable: false })
      expect(receiver.ledger.effects).toHaveLength(1)
    },
  )
})

/** What a program printed, once it has ended. */
async function answerOf(program: ChildProcess): Promise<unknown> {
  let text = ''
  program.stdout?.setEncoding('utf8').on('data', (part: string) => (text += part))
  const [code] = (await once(program, 'close')) as [number | null]
  if (code !== 0) throw new Error(`The program ended with ${code}: ${text}`)
  return JSON.parse(text)
}
