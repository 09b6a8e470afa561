/** Starts the programs of this folder as processes of their own. */
import { spawn } from 'node:child_process'
import { join } from 'node:path'

export interface Program {
  readonly pid: number
  /** What it printed so far, a parsed line each. */
  readonly lines: readonly unknown[]
  /** Resolves once so many lines were printed. */
  printed(count: number): Promise<void>
  kill(): void
  /** How it ended; what it wrote to stderr is in `trouble`. */
  readonly ended: Promise<{ readonly code: number | null; readonly signal: string | null; readonly trouble: string }>
}

/** Where this Node does not strip types by itself (22.13 to 22.17) it has to be told to. */
const FLAGS = [
  '--conditions=source',
  '--no-warnings',
  ...(process.features.typescript ? [] : ['--experimental-strip-types']),
]

const running = new Set<() => void>()

/** Ends what a test that failed left behind; one that waits at a barrier would do so for ever. */
export function endPrograms(): void {
  for (const kill of running) kill()
}

export function startProgram(args: readonly (string | number)[], options: { readonly uid?: number } = {}): Program {
  const file = join(import.meta.dirname, 'programs', 'journal.ts')
  const child = spawn(process.execPath, [...FLAGS, file, ...args.map(String)], {
    ...options,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const kill = (): void => void child.kill('SIGKILL')
  running.add(kill)
  child.on('close', () => running.delete(kill))
  const lines: unknown[] = []
  const waiting: { readonly count: number; readonly resolve: () => void }[] = []
  let rest = ''
  let trouble = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    const parts = (rest + text).split('\n')
    rest = parts.pop() ?? ''
    lines.push(...parts.map((part): unknown => JSON.parse(part)))
    for (const { count, resolve } of waiting) if (lines.length >= count) resolve()
  })
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    trouble += text
  })
  const ended = new Promise<{ code: number | null; signal: string | null; trouble: string }>((resolve) => {
    child.on('close', (code, signal) => resolve({ code, signal, trouble }))
  })
  return {
    pid: child.pid ?? 0,
    lines,
    printed: (count) =>
      new Promise((resolve, reject) => {
        if (lines.length >= count) resolve()
        else waiting.push({ count, resolve })
        void ended.then((end) => reject(new Error(`It ended after ${lines.length} lines: ${JSON.stringify(end)}`)))
      }),
    kill,
    ended,
  }
}
