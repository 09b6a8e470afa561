/**
 * Whether evidence is believed, and what it then says of an entry. "Applied" is believed if it is for what was asked; "not
 * applied" only when nothing of the entry can still be on its way; "nothing found" is no proof by itself.
 */
import { UnreachableError } from '../errors.ts'
import { isFinal, quietAtMs } from './entry.ts'
import type { JournalEntry } from './entry.ts'
import type { Evidence } from './evidence.ts'
import { echoes } from './operation.ts'

/** How often, and how long after the last attempt, a look-up has to find nothing before that means "not applied". */
export interface LookUpRules {
  readonly misses: number
  /** After the last attempt that may have had its effect, in milliseconds. */
  readonly delayMs: number
}

/** Why evidence was not taken. */
export type EvidenceRefusal =
  /** The receipt is for another amount or currency than the entry's. */
  | 'receipt-differs'
  /** Somebody is sending it right now. */
  | 'being-sent'
  /** An attempt may still be at work at the receiver. */
  | 'too-soon'
  /** The entry is pending, certainly without effect: cancel it instead. */
  | 'pending'

export type Judgement =
  /** `miss`: one more look-up that found nothing. `nothing`: it says nothing new. */
  | { readonly take: 'applied' | 'not-applied' | 'miss' | 'nothing' }
  | { readonly refuse: EvidenceRefusal; readonly retryAfterMs?: number }

/** Attempts are numbered from 1. */
const NO_ATTEMPT = 0

/** A word against a final state is taken too: it becomes a contradiction, which a person's decision then ends. */
export function judge(entry: JournalEntry, evidence: Evidence, rules: LookUpRules, nowMs: number): Judgement {
  switch (evidence.found) {
    case 'applied':
      return echoes(entry.expected, evidence.receipt) ? { take: 'applied' } : { refuse: 'receipt-differs' }
    case 'not-applied':
      return obstacle(entry, nowMs) ?? { take: 'not-applied' }
    case 'nothing': {
      // Where there is a word already, finding nothing says nothing against it.
      if (isFinal(entry)) return { take: 'nothing' }
      if (evidence.conclusive) return obstacle(entry, nowMs) ?? { take: 'not-applied' }
      // A receipt at hand is a word, and a write without a key cannot be found by one: no number of misses undoes that.
      if (!entry.keyed || ('receipt' in entry && entry.receipt !== null)) return { take: 'miss' }
      const isEnough =
        entry.misses + 1 >= rules.misses && nowMs >= (entry.lastAmbiguousAtMs ?? entry.namedAtMs) + rules.delayMs
      return isEnough && !obstacle(entry, nowMs) ? { take: 'not-applied' } : { take: 'miss' }
    }
    default:
      throw new UnreachableError(evidence, 'judge')
  }
}

/** What stands against calling an entry not applied, if anything does: some of it may still be on its way. */
function obstacle(entry: JournalEntry, nowMs: number): Judgement | undefined {
  if (isFinal(entry)) return undefined
  if (entry.state === 'pending') return { refuse: 'pending' }
  if (entry.claim !== null && entry.claim.untilMs > nowMs) {
    return { refuse: 'being-sent', retryAfterMs: entry.claim.untilMs - nowMs }
  }
  const longestMs = entry.lastAmbiguousAtMs === null ? 0 : entry.lastAmbiguousAtMs + entry.longestRequestMs
  // The attempt that was accepted has been answered, so it is not what may still be at work; what was lost beside it is.
  const isListed = entry.state === 'accepted' && entry.droppedInDoubt === 0
  const quietUntilMs = isListed ? quietAtMs(entry, NO_ATTEMPT) : longestMs
  return nowMs < quietUntilMs ? { refuse: 'too-soon', retryAfterMs: quietUntilMs - nowMs } : undefined
}
