/**
 * What no reply has settled: evidence is taken for one entry, or looked up for all that need it. Judging is the model's;
 * here it is written down, compare-and-set, on top of whatever others wrote meanwhile.
 */
import { EvidenceRefusedError, refuse as refuseInput, titleOf } from '../errors.ts'
import { advance, glimpseOf } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'
import type { Evidence } from '../model/evidence.ts'
import { judge } from '../model/judgement.ts'
import type { EvidenceRefusal, LookUpRules } from '../model/judgement.ts'
import type { ListFilter } from '../stores/store.ts'
import { holderOf } from './claim.ts'
import { about, dialectOf, emitChange, guarded, pagesOf, placeOf } from './context.ts'
import type { Context } from './context.ts'
import { credentialsFor } from './credentials.ts'
import { forEachOf } from './pool.ts'
import { send } from './send.ts'

/** What a look-up found, as `reconcile` takes it. */
export type LookUpAnswer = Evidence | { readonly found: 'unclear' }

export interface ReconcileSummary {
  /** Entries that were looked up: unknown ones and accepted ones. */
  readonly total: number
  readonly succeeded: number
  /** Settled as not applied. */
  readonly rejected: number
  /** The look-up found nothing, which is no proof yet. */
  readonly misses: number
  /** The look-up said nothing either way, or what it said was not taken; `evidence-refused` events say why. */
  readonly unsettled: number
  /** A word contradicts another; a person has to decide. */
  readonly contradicted: number
  /** The look-up threw, or the journal failed. */
  readonly failed: number
}

export interface ReconcileProgress {
  readonly done: number
  readonly found: number
}

const REFUSED: Readonly<Record<EvidenceRefusal, string>> = {
  'receipt-differs': 'the receipt is for another amount or currency',
  'being-sent': 'somebody is sending it',
  'too-soon': 'an attempt may still be at work at the receiver',
  pending: 'it is certainly without effect; cancel it instead',
}

/** Without a dialect that says otherwise, a look-up that finds nothing never means "not applied" by itself. */
const NO_RULES: LookUpRules = { misses: Infinity, delayMs: Infinity }

/**
 * Takes evidence for an entry.
 *
 * @returns the entry after it
 * @throws {EvidenceRefusedError} it cannot be believed, or not yet; the entry was not changed
 */
export async function takeEvidence(context: Context, of: JournalEntry, evidence: Evidence): Promise<JournalEntry> {
  const { store, runtime } = context
  const rules = dialectOf(context, of)?.lookUp ?? NO_RULES
  let entry = of
  for (;;) {
    const judgement = judge(await withoutDeadClaim(context, entry), evidence, rules, runtime.nowMs())
    if ('refuse' in judgement) {
      const { refuse, retryAfterMs } = judgement
      context.events.emit({ type: 'evidence-refused', ...about(context, entry), reason: refuse })
      throw new EvidenceRefusedError(`${titleOf(entry)} does not take the evidence: ${REFUSED[refuse]}.`, {
        reason: refuse,
        retryAfterMs,
        entry: glimpseOf(entry),
      })
    }
    if (judgement.take === 'nothing') return entry
    const next = advance(entry, { kind: 'evidence', evidence, take: judgement.take }, runtime.nowMs())
    if (next === entry) return entry
    if (
      await guarded(
        context,
        'record',
        () => store.replace(next),
        () => ({ sentByThisCall: false, entry }),
      )
    ) {
      context.events.emit({ type: 'evidence', ...about(context, next), source: evidence.source, found: evidence.found })
      emitChange(context, entry, next)
      return next
    }
    const stored = await guarded(context, 'read', () => store.get(entry.endpoint, entry.key))
    if (!stored) return entry
    entry = stored
  }
}

/** A claim whose holder is gone holds up nobody. */
async function withoutDeadClaim(context: Context, entry: JournalEntry): Promise<JournalEntry> {
  const { claim } = entry
  if (!claim || !(await guarded(context, 'read', () => context.store.isGone(holderOf(claim))))) return entry
  return { ...entry, claim: null }
}

/** Looks all up that need evidence, a few at a time; one that fails holds up none of the others. */
export async function runReconcile(
  context: Context,
  lookUp: (entry: JournalEntry) => Promise<LookUpAnswer>,
  onProgress: (progress: ReconcileProgress) => void,
  signal: AbortSignal | undefined,
): Promise<ReconcileSummary> {
  const counts = { succeeded: 0, rejected: 0, misses: 0, unsettled: 0, contradicted: 0, failed: 0 }
  let found = 0
  let done = 0
  const look = async (entry: JournalEntry): Promise<void> => {
    found += 1
    counts[await lookAt(context, entry, lookUp)] += 1
    done += 1
    onProgress({ done, found })
  }
  await forEachOf(needingEvidence(context, signal), () => context.settings.concurrency, look)
  return { total: found, ...counts }
}

async function lookAt(
  context: Context,
  entry: JournalEntry,
  lookUp: (entry: JournalEntry) => Promise<LookUpAnswer>,
): Promise<'succeeded' | 'rejected' | 'misses' | 'unsettled' | 'contradicted' | 'failed'> {
  try {
    const answer = await lookUp(entry)
    if (answer.found === 'unclear') return 'unsettled'
    const after = await takeEvidence(context, entry, answer)
    if (after.contradiction) return 'contradicted'
    if (after.state === 'succeeded' || after.state === 'rejected') return after.state
    return after.misses > entry.misses ? 'misses' : 'unsettled'
  } catch (error) {
    if (error instanceof EvidenceRefusedError) return 'unsettled'
    context.events.emit({ type: 'look-up-failed', ...about(context, entry) })
    return 'failed'
  }
}

async function* needingEvidence(context: Context, signal: AbortSignal | undefined): AsyncGenerator<JournalEntry> {
  const { store } = context
  const filter: ListFilter = { ...placeOf(context), states: ['unknown', 'accepted'] }
  for await (const page of pagesOf(context, 'list', (after) => store.list(filter, 64, after))) {
    for (const entry of page.entries) {
      if (context.closing.aborted || signal?.aborted) return
      if (!entry.contradiction) yield entry
    }
  }
}

export function refuseNoLookUp(): never {
  return refuseInput('lookUp', 'is missing: the dialect cannot ask its receiver')
}

/**
 * Asks the receiver by the dialect of the entry.
 *
 * @throws {InvalidInputError} the dialect cannot ask
 */
export async function lookUpByDialect(context: Context, entry: JournalEntry): Promise<LookUpAnswer> {
  const { settings, runtime } = context
  const dialect = dialectOf(context, entry)
  const definition = context.definitions.get(entry.kind)
  if (!dialect?.lookUp || !definition) return refuseNoLookUp()
  // Nobody finds a write by a key that its receiver did not take.
  if (!entry.keyed) return { found: 'unclear' }
  const at = await credentialsFor(context, entry)
  if ('held' in at) return { found: 'unclear' }
  const reply = await send(
    {
      url: `${settings.baseUrl}${dialect.lookUp.path({ key: entry.key, kind: entry.kind })}`,
      request: { method: 'GET', body: null, contentType: null, keyHeader: null, headers: entry.request.headers },
      freshHeaders: at.headers,
      timeoutMs: settings.policy.attemptTimeoutMs,
      mayOutlive: false,
      mayLeave: () => !context.closing.aborted,
    },
    runtime,
  )
  if (reply === 'not-sent' || reply.kind === 'lost') return { found: 'unclear' }
  const finding = dialect.lookUp.read(reply, { definition, expected: entry.expected })
  return finding.found === 'unclear' ? finding : { source: 'look-up', atMs: runtime.nowMs(), ...finding }
}
