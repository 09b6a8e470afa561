/**
 * What holds always, whatever goes wrong: random faults at each attempt, processes that die at random, journals that fail at
 * random, callers who abort, cancel and call again at once. In the end each operation has exactly one effect, or none where
 * it was declined or canceled; all its requests carry one key and one body; and no answer said more than was known.
 */
import { forgetfulJournal } from 'billonce'
import type { BillingClient, Outcome, Queued } from 'billonce'
import {
  createReceiver,
  cutBody,
  delay,
  interceptionPage,
  loseReply,
  loseRequest,
  redirect,
  resetAfter,
  resetBefore,
  slowConflict,
  stall,
  status,
} from 'billonce/testing'
import type { Fault, FaultTarget, Receiver } from 'billonce/testing'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { aProcess, broken, CLAIM_MS, journalWith } from '../engine/tampering.ts'
import type { Process } from '../engine/tampering.ts'
import { coffee, pass, quiet, settled, virtualTime } from '../support/world.ts'

virtualTime()

const FAULTS: Readonly<Record<string, (target: FaultTarget) => Fault>> = {
  'lose the request': loseRequest,
  'reset before': resetBefore,
  'lose the reply': loseReply,
  'reset after': resetAfter,
  'cut by length': cutBody,
  'cut in chunks': (target) => cutBody({ ...target, framing: 'chunked' }),
  503: (target) => status(503, target),
  '502 after the effect': (target) => status(502, { ...target, afterEffect: true }),
  '504 with a wait': (target) => status(504, { ...target, headers: { 'Retry-After': '3' }, afterEffect: true }),
  429: (target) => status(429, { ...target, headers: { 'Retry-After': '2' } }),
  401: (target) => status(401, target),
  404: (target) => status(404, target),
  'a gateway’s 400': (target) => status(400, target),
  'a validator’s 400': (target) => status(400, { ...target, body: { error: { code: 'later', message: 'no' } } }),
  'a login page': interceptionPage,
  'a redirect': (target) => redirect('https://elsewhere.test/', target),
  'in progress': (target) => slowConflict({ ...target, attempts: 2 }),
  'slow work': (target) => delay(12_000, target),
  silence: (target) => stall(target),
}

interface Step {
  readonly kind:
    | 'call'
    | 'call twice'
    | 'background'
    | 'abort'
    | 'resume'
    | 'start'
    | 'kill'
    | 'close'
    | 'cancel'
    | 'pass'
  readonly client: number
  readonly operation: number
  readonly ms: number
}

interface Plan {
  /** By operation, what goes wrong at its first requests. */
  readonly faults: readonly (readonly (string | undefined)[])[]
  readonly isDeclined: readonly boolean[]
  readonly steps: readonly Step[]
  /** Which of each hundred calls of a journal fail, and on which side of their effect. */
  readonly failures: readonly { readonly at: number; readonly side: 'before' | 'after' }[]
  /** What a journal's call takes, in milliseconds. */
  readonly journalMs: number
  /** What the receiver's work takes, in milliseconds; while it lasts a process may die with a request in flight. */
  readonly workMs: number
}

const OPERATIONS = 3
const CLIENTS = 3

const aFault = fc.option(fc.constantFrom(...Object.keys(FAULTS)), { nil: undefined, freq: 3 })
const aStep: fc.Arbitrary<Step> = fc.record({
  kind: fc.constantFrom<Step['kind'][]>(
    ...([
      'call',
      'call',
      'call',
      'call twice',
      'background',
      'abort',
      'resume',
      'start',
      'kill',
      'close',
      'cancel',
      'pass',
    ] as const),
  ),
  client: fc.nat({ max: CLIENTS - 1 }),
  operation: fc.nat({ max: OPERATIONS - 1 }),
  ms: fc.constantFrom(0, 0, 1, 20, 400, 3000, 40_000, 200_000),
})
const aPlan: fc.Arbitrary<Plan> = fc.record({
  faults: fc.array(fc.array(aFault, { maxLength: 8 }), { minLength: OPERATIONS, maxLength: OPERATIONS }),
  isDeclined: fc.array(fc.boolean(), { minLength: OPERATIONS, maxLength: OPERATIONS }),
  steps: fc.array(aStep, { minLength: 1, maxLength: 14 }),
  failures: fc.array(fc.record({ at: fc.nat({ max: 99 }), side: fc.constantFrom('before', 'after') }), {
    maxLength: 4,
  }),
  journalMs: fc.constantFrom(0, 0, 1, 5),
  workMs: fc.constantFrom(0, 500),
})

test(
  'an operation takes effect exactly once, or not at all where it was declined or canceled',
  { timeout: 300_000 },
  async () => {
    await fc.assert(fc.asyncProperty(aPlan, holds), { numRuns: Number(process.env['EXACTLY_ONCE_RUNS'] ?? 400) })
  },
)

async function holds(plan: Plan): Promise<void> {
  const receiver = createReceiver({ faults: plan.faults.flatMap(faultsOf), latencyMs: plan.workMs })
  const inner = forgetfulJournal()
  let isCalm = false
  let calls = 0
  const journal = journalWith(inner, async (_call, run) => {
    const failure = isCalm ? undefined : plan.failures.find(({ at }) => at === calls % 100)
    calls += 1
    if (plan.journalMs > 0) await new Promise((resolve) => setTimeout(resolve, plan.journalMs))
    if (failure?.side === 'before') throw broken()
    const result = await run()
    if (failure) throw broken()
    return result
  })
  const newProcess = (): Process => aProcess({ receiver, journal })
  const processes = Array.from({ length: CLIENTS }, newProcess)
  /** Promises that have to settle, with the process that gave them. */
  const given: { readonly process: Process; readonly promise: Promise<unknown> }[] = []
  /** What was found wrong in an answer, also in one that a process gave before it died. */
  const wrong: unknown[] = []
  const watch = (process: Process, promise: Promise<unknown>): void => {
    // Timers of the dead go on here, but nobody hears what they say.
    const note = (error: unknown): unknown => process.isDead() || wrong.push(error)
    given.push({ process, promise: promise.catch(note) })
  }

  const call = (process: Process, operation: number, more: object = {}): void => {
    const promise = process.billing.charge(paramsOf(plan, operation), { operationId: `order-${operation}`, ...more })
    watch(
      process,
      promise.then((outcome) => isTrue(receiver, plan, operation, outcome), isKnownError),
    )
  }
  for (const { kind, client, operation, ms } of plan.steps) {
    const process = processes[client]!
    if (kind === 'call' || kind === 'call twice') call(process, operation)
    if (kind === 'call twice') call(process, operation)
    if (kind === 'background') call(process, operation, { background: true })
    if (kind === 'abort') {
      const controller = new AbortController()
      call(process, operation, { signal: controller.signal })
      setTimeout(() => controller.abort(), ms)
    }
    if (kind === 'resume') watch(process, process.billing.resume().catch(isKnownError))
    if (kind === 'start') process.billing.start()
    if (kind === 'cancel') {
      const canceled = process.billing.cancel({ kind: 'charge', operationId: `order-${operation}` })
      watch(
        process,
        canceled.then((outcome) => isTrue(receiver, plan, operation, outcome), isKnownError),
      )
    }
    if (kind === 'kill') {
      process.kill()
      processes[client] = newProcess()
    }
    if (kind === 'close') {
      watch(process, process.billing.close())
      processes[client] = newProcess()
    }
    if (kind === 'pass') await pass(ms)
    else await quiet()
  }
  // Long enough for every deadline, lease and attempt of the living.
  await pass(400_000)
  isCalm = true
  const living = given.filter(({ process }) => !process.isDead()).map(({ promise }) => promise)
  await settled(Promise.all(living))
  if (wrong.length > 0) throw wrong[0]
  for (const process of processes) {
    await settled(process.billing.close())
    process.kill()
  }

  receiver.faults.clear()
  const last = newProcess()
  await pass(CLAIM_MS)
  for (let round = 0; round < 5; round += 1) {
    if ((await settled(last.billing.resume())).waiting === 0) break
    await pass(CLAIM_MS)
  }
  for (let operation = 0; operation < OPERATIONS; operation += 1)
    await endsWell(receiver, plan, last.billing, operation)
  expect(receiver.ledger.duplicates()).toEqual([])
  expect(receiver.ledger.summary().keysWithOtherBytes).toBe(0)
  const { entries } = await inner.list({}, 100)
  expect(new Set(entries.map((entry) => entry.operationId)).size).toBe(entries.length)
  await settled(last.billing.close())
}

/** After all that: the operation is named once more by a client that nothing goes wrong for. */
async function endsWell(receiver: Receiver, plan: Plan, billing: BillingClient, operation: number): Promise<void> {
  const outcome = await settled(billing.charge(paramsOf(plan, operation), { operationId: `order-${operation}` }))
  const requests = requestsOf(receiver, operation)
  expect(new Set(requests.map((request) => request.key)).size, 'one key').toBeLessThanOrEqual(1)
  expect(new Set(requests.map((request) => request.body)).size, 'one body').toBeLessThanOrEqual(1)
  const effects = effectsOf(receiver, operation)
  const isDeclined = plan.isDeclined[operation] === true
  if (outcome.status === 'canceled' || outcome.status === 'rejected') expect(effects).toBe(0)
  else expect([outcome.status, effects]).toEqual(['succeeded', 1])
  if (isDeclined) expect(effects).toBe(0)
}

/** What an answer says has to be so at the receiver, at the moment it is given. */
function isTrue(receiver: Receiver, plan: Plan, operation: number, outcome: Outcome | Queued): void {
  const effects = effectsOf(receiver, operation)
  switch (outcome.status) {
    case 'succeeded':
      expect(effects).toBe(1)
      expect(plan.isDeclined[operation]).toBe(false)
      return
    case 'rejected':
    case 'canceled':
    case 'deferred':
      expect(effects, outcome.status).toBe(0)
      return
    case 'unknown':
      // Nothing that happens here ends a delivery without an answer.
      expect(outcome).toMatchObject({ delivery: 'continues' })
      return
    default:
      return
  }
}

function isKnownError(error: unknown): void {
  const code = error instanceof Error && 'code' in error ? error.code : String(error)
  expect(['ERR_JOURNAL_UNAVAILABLE', 'ERR_CLIENT_CLOSED', 'ERR_DELIVERY_ABORTED', 'ERR_NOT_CANCELABLE']).toContain(code)
}

/** What goes wrong at the requests of one operation, whichever process sends them. */
function faultsOf(names: readonly (string | undefined)[], operation: number): Fault[] {
  return names.flatMap((name, index) => {
    const make = name === undefined ? undefined : FAULTS[name]
    return make ? [make({ attempt: index + 1, when: (request) => request.body.includes(markOf(operation)) })] : []
  })
}

const markOf = (operation: number): string => `"cus_${operation}"`

function paramsOf(plan: Plan, operation: number): typeof coffee {
  const paymentMethod = plan.isDeclined[operation] ? 'pm_declined' : 'pm_card'
  return { ...coffee, customer: `cus_${operation}`, paymentMethod } as unknown as typeof coffee
}

const requestsOf = (receiver: Receiver, operation: number): typeof receiver.ledger.requests =>
  receiver.ledger.requests.filter((request) => request.body.includes(markOf(operation)))

const effectsOf = (receiver: Receiver, operation: number): number =>
  receiver.ledger.effects.filter((effect) => effect.params['customer'] === `cus_${operation}`).length
