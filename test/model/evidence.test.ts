/** What evidence does to an entry of every state, and when it is believed at all. */
import { describe, expect, test } from 'vitest'
import { advance, isFinal } from '../../src/model/entry.ts'
import type { EntryEvent, EntryState, JournalEntry } from '../../src/model/entry.ts'
import type { Evidence, EvidenceSource, Finding } from '../../src/model/evidence.ts'
import { judge } from '../../src/model/judgement.ts'
import type { Judgement } from '../../src/model/judgement.ts'
import {
  after,
  began,
  canceled,
  claim,
  ended,
  HOUR_MS,
  named,
  NAMED_AT_MS,
  notSent,
  receipt,
  rejection,
  replied,
} from './entries.ts'

const LATER_MS = NAMED_AT_MS + 10 * HOUR_MS
const rules = { misses: 3, delayMs: HOUR_MS }
const decision: EvidenceSource = { source: 'decision', by: 'Ada', why: 'seen in the dashboard' }

const evidenceOf = (finding: Finding, source: EvidenceSource = { source: 'webhook' }): Evidence => ({
  ...source,
  ...finding,
  atMs: LATER_MS,
})
const applied = (id = 'ch_1'): Finding => ({ found: 'applied', receipt: receipt(id) })
const notApplied: Finding = { found: 'not-applied', rejection: { ...rejection(), kind: 'not-applied' } }
const nothing = (conclusive = false): Finding => ({ found: 'nothing', conclusive })
const event = (finding: Finding, source?: EvidenceSource): EntryEvent => ({
  kind: 'evidence',
  evidence: evidenceOf(finding, source),
  take: finding.found === 'applied' ? 'applied' : 'not-applied',
})

const sending = after(named(), began)
const lost = after(sending, replied(1, 'unclear'))
const ENTRIES = {
  pending: named(),
  sending: lost,
  accepted: after(sending, replied(1, 'accepted')),
  unknown: after(lost, ended),
  succeeded: after(sending, replied(1, 'succeeded')),
  rejected: after(sending, replied(1, 'refused')),
  canceled: after(sending, notSent(1), canceled()),
} as const satisfies Record<EntryState, JournalEntry>

describe('what it does', () => {
  // A `!` is a contradiction: the state stays, the word is kept beside it.
  test.each<[EntryState, string, string, string, string]>([
    //  state       webhook: applied  another id       not applied      decision: not applied
    ['pending', 'succeeded', 'succeeded', 'rejected', 'rejected'],
    ['sending', 'succeeded', 'succeeded', 'rejected', 'rejected'],
    ['accepted', 'succeeded', 'succeeded!', 'rejected', 'rejected'],
    ['unknown', 'succeeded', 'succeeded', 'rejected', 'rejected'],
    ['succeeded', 'succeeded', 'succeeded!', 'succeeded!', 'succeeded!'],
    ['rejected', 'rejected!', 'rejected!', 'rejected', 'rejected'],
    ['canceled', 'canceled!', 'canceled!', 'canceled', 'canceled'],
  ])('%s', (state, ...ends) => {
    const events = [event(applied()), event(applied('ch_2')), event(notApplied), event(notApplied, decision)]
    const got = events.map((one) => {
      const next = advance(ENTRIES[state], one, LATER_MS)
      expect(next.version).toBe(ENTRIES[state].version + 1)
      expect(next.evidence).toHaveLength(1)
      return `${next.state}${next.contradiction ? '!' : ''}`
    })
    expect(got).toEqual(ends)
  })

  test('a decision ends a contradiction, either way, and nothing else does', () => {
    const contradicted = advance(ENTRIES.rejected, event(applied()), LATER_MS)
    expect(contradicted.contradiction).toMatchObject({ word: 'succeeded', attempt: null, receipt: { id: 'ch_1' } })
    expect(advance(contradicted, event(applied()), LATER_MS)).toMatchObject({
      state: 'rejected',
      contradiction: { word: 'succeeded' },
    })
    expect(advance(contradicted, event(applied('ch_9'), decision), LATER_MS)).toMatchObject({
      state: 'succeeded',
      receipt: { id: 'ch_9' },
      contradiction: null,
    })
    expect(advance(contradicted, event(notApplied, decision), LATER_MS)).toMatchObject({
      state: 'rejected',
      rejection: { kind: 'not-applied' },
      contradiction: null,
      evidence: [{ source: 'webhook' }, { source: 'decision', by: 'Ada', why: 'seen in the dashboard' }],
    })
  })

  test('a late reply does not overwrite it', () => {
    const settled = advance(ENTRIES.unknown, event(applied()), LATER_MS)
    expect(advance(settled, replied(1, 'succeeded'), LATER_MS)).toMatchObject({
      state: 'succeeded',
      receipt: { id: 'ch_1' },
      contradiction: null,
    })
    expect(advance(settled, replied(1, 'refused behind the key'), LATER_MS)).toMatchObject({
      state: 'succeeded',
      contradiction: { word: 'refused' },
    })
    const ruledOut = advance(ENTRIES.unknown, event(notApplied), LATER_MS)
    expect(advance(ruledOut, replied(1, 'succeeded'), LATER_MS)).toMatchObject({
      state: 'rejected',
      contradiction: { word: 'succeeded' },
    })
  })

  test('what is kept of it holds no body', () => {
    const next = advance(ENTRIES.unknown, event(applied(), decision), LATER_MS)
    expect(next.evidence).toEqual([
      {
        atMs: LATER_MS,
        source: 'decision',
        found: 'applied',
        by: 'Ada',
        why: 'seen in the dashboard',
        receiptId: 'ch_1',
      },
    ])
  })
})

describe('when it is believed', () => {
  const judged = (entry: JournalEntry, finding: Finding, nowMs = LATER_MS): Judgement =>
    judge(entry, evidenceOf(finding), rules, nowMs)

  test('applied: only for what was asked', () => {
    const other = (reply: object): Finding => ({
      found: 'applied',
      receipt: { id: 'ch_1', reply: { id: 'ch_1', ...reply } },
    })
    for (const entry of Object.values(ENTRIES)) {
      expect(judged(entry, other({ amount: 5000, currency: 'USD' }))).toEqual({ take: 'applied' })
      expect(judged(entry, other({ amount: 5001 }))).toEqual({ refuse: 'receipt-differs' })
      expect(judged(entry, other({ currency: 'eur' }))).toEqual({ refuse: 'receipt-differs' })
    }
  })

  test('not applied: never of a pending entry, of one that is being sent, or while an attempt may be at work', () => {
    expect(judged(ENTRIES.pending, notApplied)).toEqual({ refuse: 'pending' })
    const held = after(named(), { kind: 'began', claim: claim({ untilMs: LATER_MS + 5 }) })
    expect(judged(held, notApplied)).toEqual({ refuse: 'being-sent', retryAfterMs: 5 })
    const quietAtMs = (lost.lastAmbiguousAtMs ?? 0) + lost.longestRequestMs
    expect(judged(lost, notApplied, quietAtMs - 1)).toEqual({ refuse: 'too-soon', retryAfterMs: 1 })
    expect(judged(lost, notApplied, quietAtMs)).toEqual({ take: 'not-applied' })
    expect(judged(ENTRIES.accepted, notApplied)).toEqual({ take: 'not-applied' })
  })

  test('not applied, of what was accepted: at once, unless an attempt before it was lost and may be at work', () => {
    expect(judged(ENTRIES.accepted, notApplied, NAMED_AT_MS + 2000)).toEqual({ take: 'not-applied' })
    const again = after(lost, began, replied(2, 'accepted'))
    const quietAtMs = (again.attempts[0]?.beganAtMs ?? 0) + again.longestRequestMs
    expect(judged(again, notApplied, quietAtMs - 1)).toEqual({ refuse: 'too-soon', retryAfterMs: 1 })
    expect(judged(again, notApplied, quietAtMs)).toEqual({ take: 'not-applied' })
    // Attempts that are no longer listed are not known one by one.
    const long = { ...again, droppedInDoubt: 1, lastAmbiguousAtMs: quietAtMs }
    expect(judged(long, notApplied, quietAtMs)).toMatchObject({ refuse: 'too-soon' })
  })

  test('nothing found: no proof before the delay and the number of misses, unless it is conclusive', () => {
    const quietMs = (lost.lastAmbiguousAtMs ?? 0) + rules.delayMs
    expect(judged(lost, nothing(), quietMs)).toEqual({ take: 'miss' })
    const missed = { ...lost, misses: 2 }
    expect(judged(missed, nothing(), quietMs - 1)).toEqual({ take: 'miss' })
    expect(judged(missed, nothing(), quietMs)).toEqual({ take: 'not-applied' })
    expect(judged(lost, nothing(true), quietMs)).toEqual({ take: 'not-applied' })
    expect(judged(lost, nothing(true), NAMED_AT_MS + 2000)).toMatchObject({ refuse: 'too-soon' })
    expect(judged(ENTRIES.pending, nothing(true))).toEqual({ refuse: 'pending' })
    for (const entry of Object.values(ENTRIES).filter(isFinal))
      expect(judged(entry, nothing(true))).toEqual({ take: 'nothing' })
  })
})

describe('pruning', () => {
  test('lets go of what an entry was about, never of its name, state, receipt id and fingerprint', () => {
    const lean = advance(ENTRIES.succeeded, { kind: 'pruned' }, LATER_MS)
    expect(lean).toMatchObject({
      state: 'succeeded',
      key: ENTRIES.succeeded.key,
      receipt: { id: 'ch_1', reply: {} },
      request: { body: null },
    })
    expect(lean.fingerprint).toEqual(ENTRIES.succeeded.fingerprint)
    expect(advance(ENTRIES.rejected, { kind: 'pruned' }, LATER_MS)).toMatchObject({
      state: 'rejected',
      rejection: { kind: 'declined', code: 'card_declined' },
    })
  })

  test('takes nothing that is open or contradicted', () => {
    for (const state of ['pending', 'sending', 'accepted', 'unknown'] as const)
      expect(advance(ENTRIES[state], { kind: 'pruned' }, LATER_MS)).toBe(ENTRIES[state])
    const contradicted = advance(ENTRIES.rejected, event(applied()), LATER_MS)
    expect(advance(contradicted, { kind: 'pruned' }, LATER_MS)).toBe(contradicted)
  })
})
