/**
 * Pruning: bodies and receipts go when they have been kept long enough, names where they are not needed any more. Only what
 * is final goes, and only whole operations; the journal remembers up to when names of a kind are gone, so that an older event
 * is not taken for a new one.
 */
import { advance, isFinal } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import { guarded, pagesOf, placeOf, revisionsOf } from './context.ts'
import type { Context } from './context.ts'
import type { Page, Prunable } from '../stores/store.ts'

export interface PruneSummary {
  /** Entries whose body and receipt were dropped; their names stay. */
  readonly bodies: number
  /** Operations of which nothing is left. */
  readonly operations: number
}

/** Prunes one scope and endpoint, page by page, so that nobody waits for it. */
export async function runPrune(context: Context, onProgress: (done: number) => void): Promise<PruneSummary> {
  const { settings, store, runtime } = context
  const { retention } = settings
  const nowMs = runtime.nowMs()
  const place = placeOf(context)
  const namesAtMs = Object.fromEntries(Object.entries(retention.namesMs).map(([kind, ms]) => [kind, nowMs - ms]))
  const due: Prunable = { bodiesAtMs: nowMs - retention.finalMs, namesAtMs }
  const pageAfter = (after: string | undefined): Promise<Page> =>
    store.listPrunable
      ? store.listPrunable(place, due, PAGE, after)
      : store.list({ ...place, states: ['succeeded', 'rejected', 'canceled'] }, PAGE, after)
  let bodies = 0
  let operations = 0
  let done = 0
  for await (const { entries } of pagesOf(context, 'list', pageAfter)) {
    // Together, so that a journal can take the changes of a page in one commit; and no more at a time, so that it holds up nobody.
    await Promise.all(
      entries.map(async (entry) => {
        if (context.closing.aborted) return
        const what = await pruned(context, entry, due)
        if (what === 'operation') operations += 1
        if (what === 'body') bodies += 1
      }),
    )
    if (context.closing.aborted) break
    done += entries.length
    onProgress(done)
  }
  return { bodies, operations }
}

/** Entries that are pruned at once. */
const PAGE = 100

/** @returns what went */
async function pruned(context: Context, entry: JournalEntry, due: Prunable): Promise<'operation' | 'body' | undefined> {
  // Names of one's own are never let go: nothing would tell an old one that comes again from a new one.
  const namesAtMs = entry.window.names === 'own' ? undefined : due.namesAtMs[entry.kind]
  if (namesAtMs !== undefined && (await isForgotten(context, entry, namesAtMs))) return 'operation'
  if (!isFinal(entry) || entry.request.body === null || entry.settledAtMs > due.bodiesAtMs) return undefined
  const lean = advance(entry, { kind: 'pruned' }, context.runtime.nowMs())
  const isKept = lean !== entry && (await guarded(context, 'record', () => context.store.replace(lean)))
  return isKept ? 'body' : undefined
}

/** Removes the whole operation of an entry if all of it is final and older than the time; asked for its first revision only. */
async function isForgotten(context: Context, entry: JournalEntry, beforeMs: number): Promise<boolean> {
  // One that is not old itself keeps its operation, whatever the others are.
  if (!isFinal(entry) || entry.settledAtMs > beforeMs) return false
  const revisions = await revisionsOf(context, entry)
  const isOld = (other: JournalEntry): boolean =>
    isFinal(other) && !other.contradiction && other.settledAtMs <= beforeMs
  if (entry.revision !== revisions[0]?.revision || !revisions.every(isOld)) return false
  return await guarded(context, 'record', () => context.store.remove(revisions))
}
