/**
 * Pruning: bodies and receipts go when they have been kept long enough, names where they are not needed any more. Only what
 * is final goes, and only whole operations; the journal remembers up to when names of a kind are gone, so that an older event
 * is not taken for a new one.
 */
import { advance, isFinal } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import { guarded, pagesOf, placeOf, revisionsOf } from './context.ts'
import type { Context } from './context.ts'

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
  let bodies = 0
  let operations = 0
  let done = 0
  const filter = { ...placeOf(context), states: ['succeeded', 'rejected', 'canceled'] as const }
  for await (const page of pagesOf(context, 'list', (after) => store.list(filter, 100, after))) {
    for (const entry of page.entries) {
      if (context.closing.aborted) return { bodies, operations }
      done += 1
      // Names of one's own are never let go: nothing would tell an old one that comes again from a new one.
      const namesMs = entry.window.names === 'own' ? undefined : retention.namesMs[entry.kind]
      if (namesMs !== undefined && (await isForgotten(context, entry, nowMs - namesMs))) operations += 1
      else if (isFinal(entry) && entry.request.body !== null && entry.settledAtMs <= nowMs - retention.finalMs) {
        const lean = advance(entry, { kind: 'pruned' }, nowMs)
        if (lean !== entry && (await guarded(context, 'record', () => store.replace(lean)))) bodies += 1
      }
    }
    onProgress(done)
  }
  return { bodies, operations }
}

/** Removes the whole operation of an entry if all of it is final and older than the time; asked for its first revision only. */
async function isForgotten(context: Context, entry: JournalEntry, beforeMs: number): Promise<boolean> {
  const revisions = await revisionsOf(context, entry)
  const isOld = (other: JournalEntry): boolean =>
    isFinal(other) && !other.contradiction && other.settledAtMs <= beforeMs
  if (entry.revision !== revisions[0]?.revision || !revisions.every(isOld)) return false
  return await guarded(context, 'record', () => context.store.remove(revisions))
}
