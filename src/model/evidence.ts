/**
 * Evidence: what somebody found out about an entry that no reply has settled: a verified webhook, a look-up, a person's
 * decision. Whether it is believed is judgement.ts's, what follows is entry.ts's.
 */
import type { Receipt, Rejection } from './verdict.ts'

/** Where evidence comes from. */
export type EvidenceSource =
  /** A message of the receiver whose signature you have checked. */
  | { readonly source: 'webhook' }
  /** You, or `reconcile`, asked the receiver. */
  | { readonly source: 'look-up' }
  /** A person decided: `by` names the person or the role, `why` says what the decision rests on. Both are kept. */
  | { readonly source: 'decision'; readonly by: string; readonly why: string }

/** What was found. */
export type Finding =
  /** It took effect. */
  | { readonly found: 'applied'; readonly receipt: Receipt }
  /** The receiver, or a person, says that it took no effect and will take none. */
  | { readonly found: 'not-applied'; readonly rejection: Rejection }
  /**
   * Nothing was found. That is no proof: it counts as not applied after the delay and as often as the dialect states, or at
   * once if it is `conclusive`, because the receiver documents that what it does not find is not there.
   */
  | { readonly found: 'nothing'; readonly conclusive: boolean }

export type Evidence = EvidenceSource & Finding & { readonly atMs: number }

/** What is kept of evidence: who said what, and when. */
export interface EvidenceRecord {
  readonly atMs: number
  readonly source: EvidenceSource['source']
  readonly found: Finding['found']
  readonly by: string | null
  readonly why: string | null
  readonly receiptId: string | null
}

export function recordOf(evidence: Evidence): EvidenceRecord {
  const decision = evidence.source === 'decision' ? evidence : undefined
  return {
    atMs: evidence.atMs,
    source: evidence.source,
    found: evidence.found,
    by: decision?.by ?? null,
    why: decision?.why ?? null,
    receiptId: evidence.found === 'applied' ? evidence.receipt.id : null,
  }
}
