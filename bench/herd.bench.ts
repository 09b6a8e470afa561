/**
 * What many clients are to a receiver that comes back after an outage: simulated, seeded, with the engine's own rules of pace
 * and back-off, beside what users would have instead. The receiver was down for a minute; nothing is ever given up
 * unless the policy says so.
 *
 * A, in step: 10,000 clients, one operation each at t = 0; 500 a second are served, a refusal costs a tenth of that.
 * B, steady: 10,000 clients, 1,000 operations a second together; 1,500 a second are served, a refusal costs a tenth.
 * C: as B, but the receiver queues ten seconds of work, and clients give up a try after five: it does the work nevertheless.
 */
import { backoffMs } from '../src/engine/schedule.ts'
import { compareTurns, Pace } from '../src/engine/pace.ts'
import type { PacePolicy, Turn } from '../src/engine/pace.ts'
import { readOptions } from '../src/options.ts'
import { progress, report } from './report.ts'

const CLIENTS = 10_000
const DOWN_MS = 60_000
const LATENCY_MS = 50
const TIMEOUT_MS = 5000
const REST_MS = 250
const SEEDS = [1, 2, 3]

interface Scenario {
  readonly name: 'A' | 'B' | 'C'
  readonly capacity: number
  /** Operations a second of all clients; 0: one each at t = 0. */
  readonly perSecond: number
  readonly queues: boolean
  readonly lastsMs: number
}

const SCENARIOS: readonly Scenario[] = [
  { name: 'A', capacity: 500, perSecond: 0, queues: false, lastsMs: 300_000 },
  { name: 'B', capacity: 1500, perSecond: 1000, queues: false, lastsMs: 480_000 },
  { name: 'C', capacity: 1500, perSecond: 1000, queues: true, lastsMs: 480_000 },
]

// ------------------------------------------------------------------------------------------------------- the simulation

interface Operation {
  readonly bornAtMs: number
  attempts: number
  lastAttemptAtMs: number | undefined
  nextAttemptAtMs: number
  isInFlight: boolean
}

interface Client {
  /** Something of this client's is to be looked at, or has been born. */
  born(operation: Operation): void
}

interface World {
  now(): number
  readonly random: () => number
  at(ms: number, action: () => void): void
  /** One attempt; calls back with what the client sees of it. */
  send(operation: Operation, ended: (isAnswered: boolean) => void): void
  giveUp(operation: Operation): void
}

type Policy = (world: World) => Client

interface Measured {
  readonly peak: number
  readonly good: number
  readonly drainS: number
  readonly perOperation: number
  /** The part of the operations born in the outage that was given up. */
  readonly lost: number
  readonly inOutage: number
  /** Requests in each second after the outage, to capacity. */
  readonly load: readonly number[]
}

/** A binary heap of things to do, in order of time, then of asking. */
class Agenda {
  nowMs = 0
  #number = 0
  readonly #heap: { readonly atMs: number; readonly number: number; readonly action: () => void }[] = []

  at(atMs: number, action: () => void): void {
    const heap = this.#heap
    const item = { atMs, number: (this.#number += 1), action }
    let index = heap.length
    heap.push(item)
    while (index > 0) {
      const above = (index - 1) >> 1
      const parent = heap[above]
      if (!parent || parent.atMs < atMs || (parent.atMs === atMs && parent.number < item.number)) break
      heap[index] = parent
      index = above
    }
    heap[index] = item
  }

  /** @returns whether there was something to do before the end */
  step(endMs: number): boolean {
    const heap = this.#heap
    const [first] = heap
    if (!first || first.atMs >= endMs) return false
    const last = heap.pop()
    if (last && last !== first) {
      let index = 0
      for (;;) {
        let below = 2 * index + 1
        let child = heap[below]
        const other = heap[below + 1]
        if (!child) break
        if (other && isBefore(other, child)) {
          below += 1
          child = other
        }
        if (!isBefore(child, last)) break
        heap[index] = child
        index = below
      }
      heap[index] = last
    }
    this.nowMs = first.atMs
    first.action()
    return true
  }
}

interface Timed {
  readonly atMs: number
  readonly number: number
}

function isBefore(one: Timed, other: Timed): boolean {
  return one.atMs < other.atMs || (one.atMs === other.atMs && one.number < other.number)
}

/** Mulberry32: small, seeded, even enough for waits. */
function seeded(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

function simulate(scenario: Scenario, policy: Policy, seed: number): Measured {
  const { capacity, perSecond, queues, lastsMs } = scenario
  const agenda = new Agenda()
  const random = seeded(seed)
  const arrivals: number[] = []
  let requests = 0
  let inOutage = 0
  let served = 0
  let servedInFirstMinute = 0
  let lost = 0
  let lastOfOutageMs = 0
  let openOfOutage = 0
  /** Work that may be done at once, for a receiver that refuses; a tenth of a second of it is saved up at most. */
  let credit = capacity / 10
  let creditAtMs = DOWN_MS
  /** When a receiver that queues has done what it has. */
  let idleAtMs = DOWN_MS

  const isOfOutage = (operation: Operation): boolean => operation.bornAtMs < DOWN_MS
  const answered = (operation: Operation): void => {
    served += 1
    if (agenda.nowMs < 2 * DOWN_MS) servedInFirstMinute += 1
    if (isOfOutage(operation)) {
      openOfOutage -= 1
      lastOfOutageMs = agenda.nowMs
    }
  }
  /** When the reply is there; `undefined` if the receiver refuses or cannot be reached. */
  const replyAtMs = (): number | undefined => {
    const now = agenda.nowMs
    if (now < DOWN_MS) return undefined
    if (queues) {
      if (idleAtMs - now > 10_000) {
        idleAtMs += 100 / capacity
        return undefined
      }
      idleAtMs = Math.max(idleAtMs, now) + 1000 / capacity
      return idleAtMs + LATENCY_MS
    }
    credit = Math.min(capacity / 10, credit + ((now - creditAtMs) * capacity) / 1000)
    creditAtMs = now
    if (credit < 1) {
      credit -= 0.1
      return undefined
    }
    credit -= 1
    return now + LATENCY_MS
  }
  const world: World = {
    now: () => agenda.nowMs,
    random,
    at: (ms, action) => agenda.at(Math.max(ms, agenda.nowMs), action),
    send(operation, ended) {
      const now = agenda.nowMs
      requests += 1
      if (now < DOWN_MS) inOutage += 1
      else {
        const second = Math.floor((now - DOWN_MS) / 1000)
        arrivals[second] = (arrivals[second] ?? 0) + 1
      }
      operation.attempts += 1
      operation.lastAttemptAtMs = now
      operation.isInFlight = true
      const repliedAtMs = replyAtMs()
      const isInTime = repliedAtMs !== undefined && repliedAtMs - now <= TIMEOUT_MS
      const endAtMs = isInTime ? repliedAtMs : now + (repliedAtMs === undefined ? LATENCY_MS : TIMEOUT_MS)
      agenda.at(endAtMs, () => {
        operation.isInFlight = false
        if (isInTime) answered(operation)
        ended(isInTime)
      })
    },
    giveUp(operation) {
      if (!isOfOutage(operation)) return
      lost += 1
      openOfOutage -= 1
    },
  }

  let born = 0
  let ofOutage = 0
  const clients = Array.from({ length: CLIENTS }, () => policy(world))
  const bear = (client: Client): void => {
    born += 1
    const operation: Operation = {
      bornAtMs: agenda.nowMs,
      attempts: 0,
      lastAttemptAtMs: undefined,
      nextAttemptAtMs: 0,
      isInFlight: false,
    }
    if (isOfOutage(operation)) {
      openOfOutage += 1
      ofOutage += 1
    }
    client.born(operation)
  }
  const bearSteadily = (client: Client): void => {
    // Each client's operations come at random, all of them together at the rate of the scenario.
    const pauseMs = -Math.log(1 - random()) * ((CLIENTS / perSecond) * 1000)
    agenda.at(agenda.nowMs + pauseMs, () => {
      bear(client)
      bearSteadily(client)
    })
  }
  for (const client of clients) {
    if (perSecond === 0) agenda.at(0, () => bear(client))
    else bearSteadily(client)
  }
  while (agenda.step(lastsMs)) {
    // In step with the scenario alone.
    if (perSecond === 0 && openOfOutage === 0) break
  }
  const load = Array.from(arrivals, (count) => (count ?? 0) / capacity)
  return {
    peak: Math.max(0, ...load),
    good: servedInFirstMinute / (capacity * 60),
    drainS: openOfOutage === 0 ? (lastOfOutageMs - DOWN_MS) / 1000 : Infinity,
    perOperation: requests / Math.max(1, perSecond === 0 ? born : served),
    lost: lost / ofOutage,
    inOutage,
    load,
  }
}

// --------------------------------------------------------------------------------------------------------- the policies

/** Each operation for itself: tried again after a wait, `most` times or for ever. */
function perOperation(nextMs: (attempt: number, random: () => number) => number, most = Infinity): Policy {
  return (world) => ({
    born(operation) {
      const attempt = (): void =>
        world.send(operation, (isAnswered) => {
          if (isAnswered) return
          if (operation.attempts >= most) world.giveUp(operation)
          else world.at(world.now() + nextMs(operation.attempts, world.random), attempt)
        })
      attempt()
    },
  })
}

/** Background delivery as in engine/background.ts, by its rules: engine/pace.ts and the entries' own back-off. */
function paced(policy: PacePolicy): Policy {
  return (world) => {
    const pace = new Pace(policy)
    const open = new Map<string, Operation>()
    let inFlight = 0
    let isPausing = false
    let timer = 0
    let number = 0

    const turnOf = ([key, { attempts, lastAttemptAtMs, bornAtMs }]: [string, Operation]): Turn => ({
      key,
      isInDoubt: attempts > 0,
      sinceMs: lastAttemptAtMs ?? bornAtMs,
    })
    const lookIn = (ms: number): void => {
      const mine = (timer += 1)
      world.at(world.now() + ms, () => {
        if (mine !== timer) return
        isPausing = false
        look()
      })
    }
    const send = (key: string, operation: Operation): void => {
      inFlight += 1
      pace.begin(key, operation.lastAttemptAtMs)
      world.send(operation, (isAnswered) => {
        inFlight -= 1
        if (isAnswered) open.delete(key)
        else {
          const failures = pace.failuresOf(key) ?? 0
          operation.nextAttemptAtMs =
            failures === 0 ? 0 : world.now() + backoffMs(failures, defaults.baseDelayMs, policy.longestMs, world.random)
        }
        pace.end(key, isAnswered ? 'answered' : 'failed', world.now())
        const pauseMs = pace.waitMs(world.random)
        if (pauseMs === 0) return look()
        isPausing = true
        lookIn(pauseMs)
      })
    }
    const look = (): void => {
      if (isPausing || inFlight >= pace.room) return
      const due = [...open].filter(([, one]) => !one.isInFlight && one.nextAttemptAtMs <= world.now())
      if (pace.isSlow) due.sort((one, other) => compareTurns(turnOf(one), turnOf(other)))
      for (const [key, operation] of due.slice(0, pace.room - inFlight)) send(key, operation)
      if (inFlight > 0 || open.size === 0) return
      const nextAtMs = Math.min(...Array.from(open.values(), (operation) => operation.nextAttemptAtMs))
      lookIn(Math.max(REST_MS, nextAtMs - world.now()))
    }
    return {
      born(operation) {
        open.set(String((number += 1)), operation)
        look()
      },
    }
  }
}

const fullJitter = (attempt: number, random: () => number): number => backoffMs(attempt, 1000, 30_000, random)

/** The defaults of a client; options.ts has them. */
const { policy: defaults, concurrency } = readOptions({ baseUrl: 'https://api.example.com', scope: 'bench' })
const shipped: PacePolicy = {
  baseMs: defaults.backgroundBaseDelayMs,
  capMs: defaults.maxDelayMs,
  longestMs: defaults.maxBackgroundDelayMs,
  most: concurrency,
}

const OURS = 'billonce, as shipped'
const POLICIES: readonly { readonly name: string; readonly policy: Policy }[] = [
  { name: OURS, policy: paced(shipped) },
  { name: `billonce, base ${shipped.baseMs / 2} ms`, policy: paced({ ...shipped, baseMs: shipped.baseMs / 2 }) },
  { name: 'full jitter for each operation', policy: perOperation(fullJitter) },
  {
    name: 'no jitter',
    policy: perOperation((attempt) => Math.min(30_000, 1000 * 2 ** (attempt - 1))),
  },
  {
    // As clients of payment providers do by default: half a second, doubled up to two, a quarter of it at random.
    name: 'two retries, then given up',
    policy: perOperation((attempt, random) => Math.min(2000, 500 * 2 ** (attempt - 1)) * (0.75 + random() / 4), 3),
  },
]

/** The worst of the seeds. */
const worst = (of: readonly Measured[], name: Exclude<keyof Measured, 'load'>): number => {
  const values = of.map((one) => one[name])
  return name === 'good' ? Math.min(...values) : Math.max(...values)
}

const results = POLICIES.map(({ name, policy }) => ({
  name,
  scenarios: SCENARIOS.map((scenario) => ({
    scenario: scenario.name,
    seeds: SEEDS.map((seed) => {
      progress(`${name}: ${scenario.name}, seed ${seed}`)
      return simulate(scenario, policy, seed)
    }),
  })),
}))
progress()

const never = (seconds: number): string => (Number.isFinite(seconds) ? `${seconds.toFixed(0)} s` : 'never')
const percent = (part: number): string => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`
const ofOurs = (scenario: Scenario['name'], name: Exclude<keyof Measured, 'load'>): number =>
  worst(results[0]?.scenarios.find((one) => one.scenario === scenario)?.seeds ?? [], name)

report({
  name: 'herd',
  tables: SCENARIOS.map(({ name: scenario, lastsMs }) => ({
    title: `${scenario}: the worst of ${SEEDS.length} seeds; peak and good as ratios to capacity; "never": not within ${(lastsMs - DOWN_MS) / 1000} s`,
    head: ['policy', 'peak', 'good', 'drained', 'requests/op', 'in the outage', 'lost'],
    rows: results.map(({ name, scenarios }) => {
      const seeds = scenarios.find((one) => one.scenario === scenario)?.seeds ?? []
      return [
        name,
        worst(seeds, 'peak'),
        worst(seeds, 'good'),
        worst(seeds, 'lost') > 0.5 ? '-' : never(worst(seeds, 'drainS')),
        worst(seeds, 'perOperation'),
        worst(seeds, 'inOutage'),
        percent(worst(seeds, 'lost')),
      ]
    }),
  })),
  goals: [
    { name: 'A: peak after the outage / capacity', measured: ofOurs('A', 'peak'), atMost: 1.4 },
    { name: 'B: peak after the outage / capacity', measured: ofOurs('B', 'peak'), atMost: 1.6 },
    { name: 'C: peak after the outage / capacity', measured: ofOurs('C', 'peak'), atMost: 1.4 },
    { name: 'B: served in the first minute / capacity', measured: ofOurs('B', 'good'), atLeast: 0.88 },
    { name: 'C: served in the first minute / capacity', measured: ofOurs('C', 'good'), atLeast: 0.88 },
    { name: 'B: drained after, s', measured: ofOurs('B', 'drainS'), atMost: 180 },
    { name: 'C: drained after, s', measured: ofOurs('C', 'drainS'), atMost: 130 },
    { name: 'B: requests for each operation', measured: ofOurs('B', 'perOperation'), atMost: 1.4 },
    {
      name: 'lost',
      measured: Math.max(ofOurs('A', 'lost'), ofOurs('B', 'lost'), ofOurs('C', 'lost')),
      atMost: 0,
    },
  ],
  details: { shipped, results },
})
