/**
 * One pass over what is deliverable, oldest first. It puts stored entries into the same loop that new ones go through;
 * a restart is not a second path. Used by `resume()` and by background delivery.
 */
import type { DeliverableEntry, EntryState } from '../model/entry.ts'
import { isDeliverable, nextLookAtMs } from '../model/entry.ts'
import { leaseMs } from './claim.ts'
import { guarded, pagesOf, placeOf } from './context.ts'
import type { Context } from './context.ts'
import { endOf } from './deliver.ts'
import type { Delivered } from './deliver.ts'
import type { OpenCount, Page, Taking } from '../stores/store.ts'
import { forEachOf } from './pool.ts'

/** What a pass did. The first numbers count entries that were deliverable when it began. */
export interface ResumeSummary {
  readonly total: number
  readonly succeeded: number
  readonly accepted: number
  readonly rejected: number
  readonly canceled: number
  /** Delivery ended without an answer; evidence is needed. */
  readonly unknown: number
  /** Still deliverable: waiting for the receiver's time, a login, the network, or another process that works on them. */
  readonly waiting: number
  /** The journal failed for these; they are as they were. */
  readonly failed: number
  /** Rows that this version cannot read; they are as they were. */
  readonly unreadable: number
  /** Open entries of this scope and endpoint that are never sent: they need evidence. */
  readonly needEvidence: { readonly accepted: number; readonly unknown: number }
  /** Deliverable entries of other endpoints and scopes, which only a client for those sends. */
  readonly elsewhere: readonly { readonly endpoint: string; readonly scope: string; readonly count: number }[]
}

export interface ResumeProgress {
  /** Entries that this pass is done with. */
  readonly done: number
  /** Deliverable entries found so far. */
  readonly found: number
}

export interface Pass {
  readonly deliver: (entry: DeliverableEntry) => Promise<Delivered>
  /** How many at a time; asked before each. */
  readonly most: () => number
  /** Which entries are taken up; the others count as waiting. */
  readonly due: Taking['due']
  /** Whether an entry is one of those that the pass is about, and may be taken up now. Default: all. */
  readonly isMine?: ((entry: DeliverableEntry) => boolean | 'later') | undefined
  readonly onProgress?: ((progress: ResumeProgress) => void) | undefined
  readonly signal?: AbortSignal | undefined
}

const PAGE = 64

/** What a pass tells background delivery beside its summary. */
export interface PassResult extends ResumeSummary {
  readonly nextAttemptAtMs: number | undefined
}

/**
 * Makes one pass.
 *
 * @throws {JournalUnavailableError} the journal could not be listed
 */
export async function runPass(context: Context, pass: Pass): Promise<PassResult> {
  const { settings, store, runtime, events } = context
  const counts = { succeeded: 0, accepted: 0, rejected: 0, canceled: 0, unknown: 0, waiting: 0, failed: 0 }
  let found = 0
  let done = 0
  let unreadable = 0
  let nextAttemptAtMs: number | undefined
  let unknownKinds = 0
  let isHandedOut = false
  const isOver = (): boolean => context.closing.aborted || pass.signal?.aborted === true
  const comeBackAt = (atMs: number): void => {
    nextAttemptAtMs = Math.min(nextAttemptAtMs ?? Infinity, atMs)
  }

  const take = async (entry: DeliverableEntry): Promise<void> => {
    const isKnown = context.definitions.has(entry.kind)
    if (!isKnown) unknownKinds += 1
    if (!isKnown || isOver()) {
      counts.waiting += 1
      return
    }
    const isMine = pass.isMine?.(entry) ?? true
    if (isMine !== true || !isDue(context, entry, pass.due)) {
      counts.waiting += 1
      if (isMine) comeBackAt(nextLookAtMs(entry))
      return
    }
    try {
      // Its call delivers it itself, and then this joins.
      await context.openings.get(entry.key)?.ended
      const delivered = await pass.deliver(entry)
      const after = delivered.entry
      if (!isDeliverable(after)) {
        counts[after.state] += 1
        return
      }
      counts.waiting += 1
      // What was due and could not be tried (offline, no login, another's claim) is looked at when something happens, or
      // with the next look at all; coming back at once would be a hot loop.
      if (delivered.attemptsMade > 0 || after.nextAttemptAtMs > runtime.nowMs()) comeBackAt(nextLookAtMs(after))
    } catch {
      // Told by an event already; the entry is as it was, and the others are not held up.
      counts.failed += 1
    }
  }

  const open = await guarded(context, 'list', () => store.countOpen())
  const deliverable = async function* (): AsyncGenerator<DeliverableEntry> {
    const taking: Taking = {
      owner: context.owner(),
      most: settings.concurrency,
      holdMs: leaseMs(context),
      kinds: [...context.definitions.keys()],
      due: pass.due,
    }
    const read = (after?: string): Promise<Page> => store.listDeliverable(placeOf(context), PAGE, after, taking)
    for await (const page of pagesOf(context, 'list', read)) {
      if (page.left) {
        isHandedOut = true
        unknownKinds += page.left.strange
        comeBackAt(page.left.nextAtMs ?? Infinity)
      }
      unreadable += page.unreadable
      found += page.entries.length
      pass.onProgress?.({ done, found })
      yield* page.entries.filter(isDeliverable)
      if (isOver()) return
    }
  }
  await forEachOf(deliverable(), pass.most, async (entry) => {
    await take(entry)
    done += 1
    pass.onProgress?.({ done, found })
  })

  const isHere = (one: OpenCount): boolean => one.endpoint === settings.endpoint && one.scope === settings.scope
  const countHere = (state: EntryState): number => open.find((one) => isHere(one) && one.state === state)?.count ?? 0
  // What others are at work on, or what is not due, is not handed out, and waits all the same.
  const others = isHandedOut ? Math.max(0, countHere('pending') + countHere('sending') - found) : 0
  const elsewhere = deliverableElsewhere(open.filter((one) => !isHere(one)))
  for (const { endpoint, count } of elsewhere) {
    events.emit({
      type: 'left-alone',
      why: endpoint === settings.endpoint ? 'other-scope' : 'other-endpoint',
      count,
      atMs: runtime.nowMs(),
    })
  }
  if (unknownKinds > 0)
    events.emit({ type: 'left-alone', why: 'unknown-kind', count: unknownKinds, atMs: runtime.nowMs() })
  if (unreadable > 0) events.emit({ type: 'left-alone', why: 'unreadable', count: unreadable, atMs: runtime.nowMs() })
  return {
    total: found + others,
    ...counts,
    waiting: counts.waiting + others,
    unreadable,
    needEvidence: { accepted: countHere('accepted') + counts.accepted, unknown: countHere('unknown') + counts.unknown },
    elsewhere,
    nextAttemptAtMs,
  }
}

/** Whether an entry is to be tried now, or to be ended: when that is planned, or as soon as the receiver allows. */
export function isDue(context: Context, entry: DeliverableEntry, due: Taking['due']): boolean {
  if (due === 'any') return true
  const atMs = due === 'planned' ? entry.nextAttemptAtMs : entry.notBeforeMs
  return context.runtime.nowMs() >= atMs || endOf(context, entry) !== undefined
}

function deliverableElsewhere(others: readonly OpenCount[]): { endpoint: string; scope: string; count: number }[] {
  const sums = new Map<string, { endpoint: string; scope: string; count: number }>()
  for (const { endpoint, scope, state, count } of others) {
    if (state !== 'pending' && state !== 'sending') continue
    const id = JSON.stringify([endpoint, scope])
    sums.set(id, { endpoint, scope, count: (sums.get(id)?.count ?? 0) + count })
  }
  return [...sums.values()]
}
