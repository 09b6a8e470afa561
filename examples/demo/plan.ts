/**
 * What is going to happen, all of it from one seed: the work, the faults, the moments of the kills. Nothing happens here.
 */
import {
  chaos,
  cutBody,
  delay,
  loseReply,
  loseRequest,
  resetAfter,
  resetBefore,
  status,
  type Fault,
} from 'billonce/testing'
import { PATIENCE, type WorkItem } from './work.ts'

export interface Plan {
  readonly work: readonly WorkItem[]
  /** Of the receiver; the same for both workers. */
  readonly faults: readonly Fault[]
  /** A worker is killed for the n-th time in mid-request once so many operations have taken effect. */
  readonly killsAfter: readonly number[]
}

/** What all charges are in. */
export const CURRENCY = 'usd'

/** Share of requests that meet a fault. */
export const FAULT_SHARE = 0.25

const KILLS = 6

/** The same for the same seed and number. */
export function planOf({ seed, operations }: { seed: number; operations: number }): Plan {
  const random = randomFrom(seed)
  return {
    work: Array.from({ length: operations }, (_, index) => workItem(index, random)),
    faults: [
      chaos({
        seed,
        probability: FAULT_SHARE,
        faults: [
          loseRequest(),
          resetBefore(),
          status(503),
          loseReply(),
          resetAfter(),
          cutBody(),
          cutBody({ framing: 'chunked' }),
          // Slower than the workers' patience: whoever asks again under the same key is told 409, it is in progress.
          delay(PATIENCE.attemptTimeoutMs * 1.5),
        ],
      }),
    ],
    killsAfter: killsAfter(operations, random),
  }
}

function workItem(index: number, random: () => number): WorkItem {
  const number = String(index + 1).padStart(4, '0')
  const customer = `cus_${between(1, 40, random)}`
  // `metadata.operation` is how the ledger tells what the business takes for one thing; the receiver itself goes by keys.
  const named = (id: string): { id: string; metadata: { operation: string } } => ({ id, metadata: { operation: id } })
  switch (between(1, 3, random)) {
    case 1: {
      const { id, metadata } = named(`export-${number}`)
      const quantity = between(1, 500, random)
      return { id, kind: 'usage', params: { meter: 'exported_rows', quantity, customer, metadata } }
    }
    case 2: {
      const { id, metadata } = named(`render-${number}`)
      return { id, kind: 'credits', params: { amount: between(1, 20, random), account: customer, metadata } }
    }
    default: {
      const { id, metadata } = named(`order-${number}`)
      const amount = between(500, 20_000, random)
      return {
        id,
        kind: 'charge',
        params: { amount, currency: CURRENCY, customer, paymentMethod: 'pm_card', metadata },
      }
    }
  }
}

/** One in each part of the way, so that they do not come all at once; at the start there is not much to lose yet. */
function killsAfter(operations: number, random: () => number): readonly number[] {
  const kills = Math.min(KILLS, operations)
  return Array.from({ length: kills }, (_, index) => Math.floor((0.95 * operations * (index + random())) / kills))
}

function between(least: number, most: number, random: () => number): number {
  return least + Math.floor(random() * (most - least + 1))
}

/** Numbers from 0 up to 1: Tommy Ettinger's mulberry32. */
function randomFrom(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
