/**
 * The report on the journal: can it be read, does it last, what is open in it and since when.
 */
import { JournalUnavailableError } from '../errors.ts'
import type { JournalFault } from '../errors.ts'
import type { OpenState } from '../model/entry.ts'
import { OPEN_STATES } from '../model/entry.ts'
import type { StorageReport } from '../stores/store.ts'
import { guarded } from './context.ts'
import type { Context } from './context.ts'

/** How many entries there are in each state that is not final. */
export type OpenCounts = Readonly<Record<OpenState, number>>

export type JournalHealth = {
  /** `false`: it forgets all when the process or the page ends. */
  readonly durable: boolean
} & StorageReport &
  (
    | {
        readonly status: 'readable'
        /** Of this scope and endpoint. */
        readonly open: OpenCounts
        /** When the oldest of them was named, in wall milliseconds; `null` if nothing is open. */
        readonly oldestOpenAtMs: number | null
        /** Open entries of other scopes and endpoints in the same journal, which this client does not send. */
        readonly openElsewhere: number
      }
    | { readonly status: 'unavailable'; readonly fault: JournalFault }
  )

export async function healthOf(context: Context): Promise<JournalHealth> {
  const { settings, store } = context
  const { endpoint, scope } = settings
  const [storage, journal] = await Promise.all([
    // Whatever it does, also if it throws at once.
    Promise.resolve()
      .then(() => store.storage?.())
      .catch(() => undefined),
    guarded(context, 'read', async () => {
      const counts = await store.countOpen()
      const oldest = await store.list({ endpoint, scope, states: OPEN_STATES }, 1)
      return { counts, oldestOpenAtMs: oldest.entries[0]?.namedAtMs ?? null }
    }).catch((error: unknown) => {
      if (error instanceof JournalUnavailableError) return error
      throw error
    }),
  ])
  const base = {
    durable: store.durable,
    ...(storage ?? { persistence: 'unsupported' as const, usedBytes: undefined, quotaBytes: undefined }),
  }
  if (journal instanceof JournalUnavailableError) return { ...base, status: 'unavailable', fault: journal.fault }
  const open = { pending: 0, sending: 0, accepted: 0, unknown: 0 }
  let openElsewhere = 0
  for (const { endpoint: of, scope: whose, state, count } of journal.counts) {
    if (of === endpoint && whose === scope) open[state] += count
    else openElsewhere += count
  }
  return { ...base, status: 'readable', open, oldestOpenAtMs: journal.oldestOpenAtMs, openElsewhere }
}
