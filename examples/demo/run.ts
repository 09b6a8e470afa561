/**
 * One run of the plan: a receiver on a real socket, a worker in a process of its own that is killed and started again, and
 * what the receiver's ledger says afterwards. Who the worker is and what is thought of the result is demo.ts's.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { businessNameOf, createReceiver, type Receiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import type { Plan } from './plan.ts'

export interface RunOptions {
  readonly plan: Plan
  /** The worker's program. */
  readonly program: URL
  /** Where the worker finds `work.json` and keeps what it has to keep. */
  readonly folder: string
  /** Ends the run; it then rejects with the signal's reason, and no process is left. */
  readonly signal: AbortSignal
  /** Told of each kill, with how many requests were under way. */
  readonly onKill: (kill: { readonly number: number; readonly inFlight: number }) => void
  /** Given a look at the numbers, before anything happens. */
  readonly onStart: (numbers: () => Numbers) => void
}

/** How far it is. */
export interface Numbers {
  /** Operations that have taken effect, each counted once. */
  readonly reached: number
  readonly requests: number
  readonly effects: number
  readonly kills: number
  /** Operations that have taken effect more than once. */
  readonly duplicates: number
}

/** What came of it, by the receiver's ledger. */
export interface RunResult extends Numbers {
  /** Operations without effect. */
  readonly lost: number
  /** What was charged beyond the first charge of each operation, minor units by currency. */
  readonly chargedTwice: Readonly<Record<string, number>>
  /** Keys under which more than one body came. */
  readonly keysWithOtherBytes: number
}

/** What the receiver needs for one write. */
const WORK_MS = 40
/** Until a supervisor has noticed that its worker died. */
const RESTART_MS = 150
/** A run that takes longer hangs. */
const LIMIT = { baseMs: 60_000, perOperationMs: 200 }

/**
 * Runs a worker until it has done its work.
 *
 * @throws if the worker ends with an error, or does not end
 */
export async function run(options: RunOptions): Promise<RunResult> {
  const { plan, program, folder, onKill, onStart } = options
  const limitMs = LIMIT.baseMs + LIMIT.perOperationMs * plan.work.length
  const limit = AbortSignal.timeout(limitMs)
  const signal = AbortSignal.any([options.signal, limit])
  const receiver = createReceiver({ faults: plan.faults, latencyMs: WORK_MS })
  const tally = tallyOf(receiver)
  let worker: ChildProcess | undefined
  let inFlight = 0
  let kills = 0

  const strikeIfDue = (): void => {
    if (!worker || worker.killed || tally().reached < (plan.killsAfter[kills] ?? Infinity)) return
    worker.kill('SIGKILL')
    kills += 1
    onKill({ number: kills, inFlight })
  }
  // A kill comes as a request arrives, or when its work is done and before the answer leaves. So it is always in the middle
  // of something: this one request, at the least, gets no answer.
  const handle: Receiver['handle'] = async (request) => {
    const sender = worker
    inFlight += 1
    strikeIfDue()
    const delivery = await receiver.handle(request)
    if (worker === sender) strikeIfDue()
    inFlight -= 1
    return delivery
  }

  const server = await startServer({ handle })
  try {
    onStart(() => ({ ...tally(), kills }))
    for (;;) {
      worker = startWorker(program, [server.url, folder])
      const errors = tailOf(worker)
      // oxlint-disable-next-line no-await-in-loop -- one life after the other
      const [code, killedBy] = (await once(worker, 'close', { signal })) as [number | null, string | null]
      if (code === 0) break
      if (!worker.killed) throw new Error(`The worker ended with ${code ?? killedBy}.\n${errors()}`)
      await sleep(RESTART_MS, undefined, { signal })
    }
    // Requests that the worker gave up waiting for may still take effect, and then count.
    while (inFlight > 0) await sleep(10, undefined, { signal })
  } catch (error) {
    if (limit.aborted && !options.signal.aborted) throw new Error(`The worker was not done after ${limitMs / 1000} s.`)
    throw error
  } finally {
    if (worker) await stop(worker)
    await server.close()
  }

  const { ledger } = receiver
  const { chargedTwice, keysWithOtherBytes } = ledger.summary()
  const names = new Set(ledger.effects.map((effect) => businessNameOf(effect)))
  const lost = plan.work.filter((item) => !names.has(item.id)).length
  return { ...tally(), kills, lost, chargedTwice, keysWithOtherBytes }
}

/** Counts as it goes along; the ledger itself adds up from the start each time it is asked. */
function tallyOf({ ledger }: Receiver): () => Omit<Numbers, 'kills'> {
  const times = new Map<string, number>()
  let effects = 0
  let duplicates = 0
  return () => {
    for (; effects < ledger.effects.length; effects += 1) {
      const effect = ledger.effects[effects]
      const name = (effect && businessNameOf(effect)) ?? ''
      const before = times.get(name) ?? 0
      if (before === 1) duplicates += 1
      times.set(name, before + 1)
    }
    return { reached: times.size, requests: ledger.requests.length, effects, duplicates }
  }
}

function startWorker(program: URL, args: readonly string[]): ChildProcess {
  const guard = new URL('follow-parent.ts', import.meta.url).href
  return spawn(process.execPath, [...process.execArgv, '--import', guard, fileURLToPath(program), ...args], {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  })
}

/** The end of what a worker has to say, for the message if it fails. */
function tailOf(worker: ChildProcess): () => string {
  let text = ''
  worker.stderr?.setEncoding('utf8').on('data', (part: string) => (text = (text + part).slice(-4000)))
  return () => text.trim()
}

async function stop(worker: ChildProcess): Promise<void> {
  if (worker.pid === undefined || worker.exitCode !== null || worker.signalCode !== null) return
  worker.kill('SIGKILL')
  await once(worker, 'exit')
}
