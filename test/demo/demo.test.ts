/**
 * `./dev demo` as a person or a program meets it: started as a process, judged by what it prints, how it ends and what it
 * leaves behind. What happens on the way is the demo's own subject.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { planOf } from '../../examples/demo/plan.ts'
import { nodeArguments } from '../support/node-program.ts'

const DEMO = fileURLToPath(new URL('../../examples/demo/demo.ts', import.meta.url))
/** It starts fifteen processes, and the machine may have other things to do. */
const PATIENT = { timeout: 90_000 }

let folder: string
/** Where the demo has to put what it needs. */
let temporary: string
/** Every process of the demo writes its id here when it starts. */
let pidFile: string
let demo: ChildProcess | undefined

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-demo-test-'))
  temporary = join(folder, 'tmp')
  mkdirSync(temporary)
  pidFile = join(folder, 'pids')
  writeFileSync(pidFile, '')
})

afterEach(() => {
  demo?.kill('SIGKILL')
  rmSync(folder, { recursive: true, force: true, maxRetries: 3 })
})

test(
  'billonce does everything once through faults and kills, the plain worker does not, and nothing remains',
  PATIENT,
  async () => {
    const { code, stdout, stderr } = await runDemo(['--operations', '40', '--seed', '7', '--json'])
    expect(code, stderr).toBe(0)
    const { killsAfter } = planOf({ operations: 40, seed: 7 })
    const count = expect.any(Number)
    expect(JSON.parse(stdout)).toStrictEqual({
      operations: 40,
      kills: killsAfter.length,
      naive: { requests: count, effects: count, duplicates: count, lost: 0 },
      billonce: { requests: count, effects: 40, duplicates: 0, lost: 0 },
    })
    const { naive } = JSON.parse(stdout) as { naive: { effects: number; duplicates: number } }
    expect(naive.duplicates).toBeGreaterThan(0)
    expect(naive.effects).toBeGreaterThanOrEqual(40 + naive.duplicates)
    // Progress is told meanwhile, and without colours where nobody sees them.
    expect(stderr).toContain(`kill ${killsAfter.length} of ${killsAfter.length}`)
    expect(stderr).not.toContain('\u001B')
    expect(pids()).toHaveLength(1 + 2 * (1 + killsAfter.length))
    expectNothingLeft()
  },
)

test('without --json it ends with a table and a conclusion', PATIENT, async () => {
  const { code, stdout } = await runDemo(['--operations', '12'])
  expect(code).toBe(0)
  for (const label of ['operations', 'requests', 'kills', 'effects', 'charged twice', 'lost', 'money wrongly taken']) {
    expect(stdout).toMatch(new RegExp(`^ +${label}.* \\S+ +\\S+$`, 'm'))
  }
  expect(stdout).toMatch(/money wrongly taken +\$[\d,.]+ +\$0\.00$/m)
  expect(stdout).toContain('billonce did each of the 12 exactly once.')
})

test('the same seed is the same plan, another seed another one', () => {
  const plan = planOf({ seed: 5, operations: 300 })
  expect(planOf({ seed: 5, operations: 300 })).toStrictEqual(plan)
  expect(planOf({ seed: 6, operations: 300 })).not.toStrictEqual(plan)
  expect(plan.work).toHaveLength(300)
  expect(new Set(plan.work.map(({ id }) => id)).size).toBe(300)
  expect(plan.killsAfter).toStrictEqual(plan.killsAfter.toSorted((one, other) => one - other))
  expect(Math.max(...plan.killsAfter)).toBeLessThan(300)
  expect(planOf({ seed: 5, operations: 1 }).killsAfter).toStrictEqual([0])
})

test.each([
  [['--speed', '9'], "Unknown option '--speed'"],
  [['--seed', 'x'], '--seed takes a whole number'],
  [['--operations', '0'], '--operations takes a whole number from 1'],
  [['now'], "Unexpected argument 'now'"],
])('%j is refused with a message, and nothing is started', async (args, message) => {
  const { code, stdout, stderr } = await runDemo(args)
  expect(code).toBe(2)
  expect(stdout).toBe('')
  expect(stderr).toContain(`demo: ${message}`)
  expect(pids()).toHaveLength(1)
  expectNothingLeft()
})

test('--help says what it takes', async () => {
  const { code, stdout } = await runDemo(['--help'])
  expect(code).toBe(0)
  for (const option of ['--operations', '--seed', '--json', '--help']) expect(stdout).toContain(option)
})

test('a worker that cannot run ends it with 1 and with what the worker said', PATIENT, async () => {
  const { code, stdout, stderr } = await runDemo(
    ['--operations', '5', '--json'],
    `if (process.argv[1].endsWith('plain-worker.ts')) { console.error('no such luck'); process.exit(3) }`,
  )
  expect(code).toBe(1)
  expect(stdout).toBe('')
  expect(stderr).toContain('The worker ended with 3')
  expect(stderr).toContain('no such luck')
  expectNothingLeft()
})

test('a billonce that charges twice ends it with 1', PATIENT, async () => {
  const { code, stdout, stderr } = await runDemo(
    ['--operations', '5', '--json'],
    `if (process.argv[1].endsWith('billonce-worker.ts')) {
      const send = fetch
      globalThis.fetch = (input, init) => {
        const request = new Request(input, init)
        request.headers.set('idempotency-key', crypto.randomUUID())
        return send(request)
      }
    }`,
  )
  expect(code).toBe(1)
  expect((JSON.parse(stdout) as { billonce: { duplicates: number } }).billonce.duplicates).toBeGreaterThan(0)
  expect(stderr).toContain('took effect more than once')
  expectNothingLeft()
})

test.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const)('%s ends it in order: no process and no file remains', PATIENT, async (signal, exitCode) => {
  const running = startDemo(['--json'])
  await running.says('kill 1 of')
  running.process.kill(signal)
  const { code, stdout, stderr } = await running.ended
  expect(code).toBe(exitCode)
  expect(stdout).toBe('')
  expect(stderr).toContain('interrupted')
  expectNothingLeft()
})

test('killed itself, it leaves no worker behind', PATIENT, async () => {
  const running = startDemo(['--json'])
  await running.says('kill 1 of')
  running.process.kill('SIGKILL')
  await running.ended
  await expect.poll(() => pids().filter(isAlive), { timeout: 10_000 }).toStrictEqual([])
})

/** @param preloaded code that every process of the demo runs first */
function startDemo(args: readonly string[], preloaded = ''): RunningDemo {
  const preload = join(folder, 'preload.cjs')
  writeFileSync(
    preload,
    `require('node:fs').appendFileSync(${JSON.stringify(pidFile)}, process.pid + '\\n')\n${preloaded}\n`,
  )
  const started = spawn(process.execPath, [...nodeArguments, DEMO, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    // FORCE_COLOR and the like are whoever's who runs the tests.
    env: { PATH: process.env['PATH'], TMPDIR: temporary, NODE_OPTIONS: `--require ${JSON.stringify(preload)}` },
  })
  demo = started
  let stdout = ''
  let stderr = ''
  started.stdout.setEncoding('utf8').on('data', (part: string) => (stdout += part))
  started.stderr.setEncoding('utf8').on('data', (part: string) => (stderr += part))
  return {
    process: started,
    says: (text) => expect.poll(() => stderr, { timeout: 30_000 }).toContain(text),
    ended: once(started, 'close').then(([code]) => ({ code: code as number | null, stdout, stderr })),
  }
}

interface RunningDemo {
  readonly process: ChildProcess
  /** Waits for a text on stderr. */
  says(text: string): Promise<void>
  readonly ended: Promise<{ code: number | null; stdout: string; stderr: string }>
}

function runDemo(args: readonly string[], preloaded?: string): RunningDemo['ended'] {
  return startDemo(args, preloaded).ended
}

function expectNothingLeft(): void {
  expect(readdirSync(temporary)).toStrictEqual([])
  expect(pids().filter(isAlive)).toStrictEqual([])
}

/** Of all processes that the demo has started, itself included. */
function pids(): readonly number[] {
  return readFileSync(pidFile, 'utf8').split('\n').filter(Boolean).map(Number)
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
