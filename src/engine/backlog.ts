/**
 * How much of this client's scope and endpoint waits to be delivered, so that calls in the background can be refused before a
 * disk is full. The journal counts now and then; between two counts what this client adds is added up.
 */
import { guarded } from './context.ts'
import type { Context } from './context.ts'

/** A count holds so long, unless what came since reaches the limit. */
const HOLDS_MS = 5000
/** At the limit the journal is asked no more often than this. */
const PAUSE_MS = 250

export interface Backlog {
  /** Makes room for one more, unless so many wait already. */
  admit(context: Context): Promise<boolean>
  /** Nothing was added after all. */
  release(): void
}

export function backlogOf(limit: number): Backlog {
  let count = 0
  let countedAtMs = -Infinity
  let counting: Promise<void> | undefined

  const countAgain = async (context: Context): Promise<void> => {
    const { endpoint, scope } = context.settings
    const before = count
    const all = await guarded(context, 'list', () => context.store.countOpen())
    const here = all.filter((one) => one.endpoint === endpoint && one.scope === scope)
    const waiting = here.filter(({ state }) => state === 'pending' || state === 'sending')
    // What was added meanwhile may or may not be among them.
    count = waiting.reduce((sum, one) => sum + one.count, 0) + (count - before)
    countedAtMs = context.runtime.monotonicMs()
  }

  return {
    async admit(context) {
      const ageMs = context.runtime.monotonicMs() - countedAtMs
      if (ageMs > (count < limit ? HOLDS_MS : PAUSE_MS)) {
        counting ??= countAgain(context).finally(() => {
          counting = undefined
        })
        await counting
      }
      if (count >= limit) return false
      count += 1
      return true
    },
    release() {
      count -= 1
    },
  }
}
