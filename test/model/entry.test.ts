/** The entry: its states, the only ways from one to the next, and what holds whatever happens in whatever order. */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  advance,
  ENTRY_FORMAT,
  glimpseOf,
  isCertainlyNotDone,
  isClaimedByOther,
  isDeliverable,
  isFinal,
  isInDoubt,
  isOpen,
  isPastSendBefore,
  isWindowOver,
  newEntry,
  quietAtMs,
  windowEndsAtMs,
} from '../../src/model/entry.ts'
import type { EntryEvent, EntryState, JournalEntry } from '../../src/model/entry.ts'
import type { IdempotencyKey } from '../../src/model/key.ts'
import { outcomeOf } from '../../src/model/outcome.ts'
import { decodeEntry, encodeEntry } from '../../src/stores/codec.ts'
import {
  after,
  began,
  canceled,
  claim,
  dated,
  draft,
  ended,
  held,
  HOUR_MS,
  named,
  NAMED_AT_MS,
  notSent,
  ownWindow,
  receipt,
  rejection,
  released,
  replied,
  reopened,
  verdicts,
  wantedAgain,
} from './entries.ts'
import type { VerdictName } from './entries.ts'

test('a new entry is pending and was never tried', () => {
  expect(newEntry(draft(), NAMED_AT_MS)).toEqual({
    ...draft(),
    format: ENTRY_FORMAT,
    version: 1,
    state: 'pending',
    reason: 'not-yet-tried',
    nextAttemptAtMs: NAMED_AT_MS,
    notBeforeMs: 0,
    attemptsBegun: 0,
    attempts: [],
    droppedInDoubt: 0,
    lastAmbiguousAtMs: null,
    claim: null,
    highestWallMs: NAMED_AT_MS,
    contradiction: null,
    evidence: [],
    misses: 0,
  })
})

test('one whose event is older than the journal is sending from the start: another journal may have sent it', () => {
  const entry = named({ mayPredateJournal: true })
  expect(entry).toMatchObject({ state: 'sending', reason: 'not-yet-tried', attemptsBegun: 0 })
  expect(isInDoubt(entry)).toBe(true)
})

describe('states and events', () => {
  const sending = after(named(), began)
  /** The entry, and the attempt that a reply is for. */
  const STARTS = {
    new: [named(), 1],
    'pending again': [after(sending, replied(1, 'not-accepted')), 1],
    sending: [sending, 1],
    'sending, in doubt': [after(sending, replied(1, 'unclear'), began), 2],
    'sending, older than the journal': [after(named({ mayPredateJournal: true }), began), 1],
    'sending, a reply that is late': [after(sending, began, replied(2, 'unclear')), 1],
    accepted: [after(sending, began, replied(2, 'accepted')), 1],
    unknown: [after(sending, ended), 1],
    'unknown, in doubt': [after(sending, replied(1, 'unclear'), began, ended), 2],
    succeeded: [after(sending, began, replied(2, 'succeeded')), 1],
    rejected: [after(sending, replied(1, 'unclear'), began, replied(2, 'refused behind the key')), 1],
    canceled: [after(sending, notSent(1), canceled()), 1],
  } as const satisfies Record<string, readonly [JournalEntry, number]>

  type EventName =
    | VerdictName
    | 'released'
    | 'dated'
    | 'began'
    | 'not-sent'
    | 'held'
    | 'ended'
    | 'canceled'
    | 'reopened'
  const eventOf = (name: EventName, attempt: number): EntryEvent => {
    switch (name) {
      case 'released':
        return released
      case 'dated':
        return dated(NAMED_AT_MS - 1000)
      case 'began':
        return began
      case 'not-sent':
        return notSent(attempt)
      case 'held':
        return held
      case 'ended':
        return ended
      case 'canceled':
        return canceled()
      case 'reopened':
        return reopened
      default:
        return replied(attempt, name)
    }
  }

  // One line for each start, one column for each event: p pending, s sending, a accepted, u unknown, S succeeded,
  // R rejected, C canceled. A capital is final.
  const LETTERS = {
    p: 'pending',
    s: 'sending',
    a: 'accepted',
    u: 'unknown',
    S: 'succeeded',
    R: 'rejected',
    C: 'canceled',
  } as const
  const TABLE = `
                                    | released | dated | began | not-sent | held | ended | canceled | reopened | succeeded | accepted | receipt-differs | unclear | busy | conflict | recorded-failure | not-accepted | refused | refused behind the key
    pending again                   |    p     |    p    |   s   |    p     |  p   |   u   |    C     |    p     |     S     |    a     |        u        |    p    |  p   |    u     |        u         |      p       |    R    |   R
    sending                         |    s     |    s    |   s   |    p     |  s   |   u   |    s     |    s     |     S     |    a     |        u        |    s    |  s   |    u     |        u         |      p       |    R    |   R
    sending, in doubt               |    s     |    s    |   s   |    s     |  s   |   u   |    s     |    s     |     S     |    a     |        u        |    s    |  s   |    u     |        u         |      s       |    s    |   R
    sending, older than the journal |    s     |    s    |   s   |    s     |  s   |   u   |    s     |    s     |     S     |    a     |        u        |    s    |  s   |    u     |        u         |      s       |    s    |   R
    sending, a reply that is late   |    s     |    s    |   s   |    s     |  s   |   u   |    s     |    s     |     S     |    a     |        u        |    s    |  s   |    u     |        u         |      s       |    s    |   R
    accepted                        |    a     |    a    |   a   |    a     |  a   |   a   |    a     |    a     |     S     |    a     |        a        |    a    |  a   |    a     |        a         |      a       |    a    |   a
    unknown                         |    u     |    u    |   u   |    u     |  u   |   u   |    u     |    u     |     S     |    a     |        u        |    u    |  u   |    u     |        u         |      u       |    R    |   R
    unknown, in doubt               |    u     |    u    |   u   |    u     |  u   |   u   |    u     |    u     |     S     |    a     |        u        |    u    |  u   |    u     |        u         |      u       |    u    |   R
    succeeded                       |    S     |    S    |   S   |    S     |  S   |   S   |    S     |    S     |     S     |    S     |        S        |    S    |  S   |    S     |        S         |      S       |    S    |   S
    rejected                        |    R     |    R    |   R   |    R     |  R   |   R   |    R     |    R     |     R     |    R     |        R        |    R    |  R   |    R     |        R         |      R       |    R    |   R
    canceled                        |    C     |    C    |   C   |    C     |  C   |   C   |    C     |    p     |     C     |    C     |        C        |    C    |  C   |    C     |        C         |      C       |    C    |   C`
  const [header, ...lines] = TABLE.trim()
    .split('\n')
    .map((line) => line.split('|').map((cell) => cell.trim()))
  const columns = header!.filter((cell) => cell !== '') as EventName[]
  const cells = lines.flatMap(([start, ...row]) =>
    row.map((letter, index) => ({
      start: start as keyof typeof STARTS,
      event: columns[index]!,
      end: LETTERS[letter as keyof typeof LETTERS],
    })),
  )

  test('the table is whole', () => {
    expect(columns).toHaveLength(Object.keys(verdicts).length + 8)
    expect(lines.map(([start]) => start)).toEqual(Object.keys(STARTS).filter((start) => start !== 'new'))
    for (const [name, [entry]] of Object.entries(STARTS))
      expect(entry.state, name).toBe(name === 'new' ? 'pending' : name.split(/[ ,]/)[0])
  })

  test.each(cells)('$start, $event: $end', ({ start, event, end }) => {
    const [entry, attempt] = STARTS[start]
    const next = advance(frozen(entry), eventOf(event, attempt), NAMED_AT_MS + 60_000)
    expect(next.state).toBe(end)
    expect(next.version).toBe(next === entry ? entry.version : entry.version + 1)
    expect(next.key).toBe(entry.key)
  })

  test.each<[keyof typeof STARTS, EventName, EntryState]>([
    ['new', 'released', 'pending'],
    ['new', 'dated', 'pending'],
    ['new', 'began', 'sending'],
    ['new', 'held', 'pending'],
    ['new', 'ended', 'unknown'],
    ['new', 'canceled', 'canceled'],
    ['new', 'reopened', 'pending'],
  ])('%s, %s: %s', (start, event, end) => {
    expect(advance(STARTS[start][0], eventOf(event, 1), NAMED_AT_MS).state).toBe(end)
  })

  test('what does not fit a state leaves the very same entry, so that nothing is written', () => {
    for (const start of ['accepted', 'unknown', 'succeeded', 'rejected'] as const) {
      for (const event of ['released', 'dated', 'began', 'held', 'ended', 'canceled', 'reopened'] as const)
        expect(advance(STARTS[start][0], eventOf(event, 1), NAMED_AT_MS + 60_000), `${start}, ${event}`).toBe(
          STARTS[start][0],
        )
    }
    for (const event of ['released', 'dated', 'began', 'held', 'ended', 'canceled'] as const)
      expect(advance(STARTS.canceled[0], eventOf(event, 1), NAMED_AT_MS + 60_000)).toBe(STARTS.canceled[0])
    for (const event of ['canceled', 'reopened'] as const)
      expect(advance(STARTS.sending[0], eventOf(event, 1), NAMED_AT_MS + 60_000)).toBe(STARTS.sending[0])
  })

  test('every state is deliverable, final or neither, as it should be', () => {
    const of = (is: (entry: JournalEntry) => boolean): EntryState[] =>
      (['new', 'sending', 'accepted', 'unknown', 'succeeded', 'rejected', 'canceled'] as const)
        .map((start): JournalEntry => STARTS[start][0])
        .filter(is)
        .map((entry) => entry.state)
    expect(of(isDeliverable)).toEqual(['pending', 'sending'])
    expect(of(isFinal)).toEqual(['succeeded', 'rejected', 'canceled'])
    expect(of(isOpen)).toEqual(['pending', 'sending', 'accepted', 'unknown'])
  })

  test('a glimpse for errors is the key and the state, nothing else', () => {
    expect(glimpseOf(STARTS.sending[0])).toEqual({ key: draft().key, state: 'sending' })
  })
})

describe('an attempt', () => {
  test('is counted, dated and claimed before its first byte', () => {
    const by = claim({ owner: 'process-2#1', fence: 7 })
    const entry = advance(named(), { kind: 'began', claim: by }, NAMED_AT_MS + 5)
    expect(entry).toMatchObject({
      state: 'sending',
      reason: 'in-flight',
      version: 2,
      attemptsBegun: 1,
      attempts: [{ number: 1, beganAtMs: NAMED_AT_MS + 5 }],
      lastAmbiguousAtMs: NAMED_AT_MS + 5,
      claim: by,
    })
    expect(entry.attempts[0]).not.toHaveProperty('result')
  })

  test('that never ended is marked when the next one begins, and stays in doubt', () => {
    const entry = after(named(), began, began)
    expect(entry.attempts.map((attempt) => attempt.result)).toEqual(['unrecorded', undefined])
    expect(entry.attemptsBegun).toBe(2)
    expect(isInDoubt(entry, 2)).toBe(true)
  })

  test('that may have been two requests is in doubt after a reply that says not accepted, and its key grows older', () => {
    const first = after(named({ window: { ...named().window, names: 'own', startAtMs: null } }), began)
    const entry = advance(first, { ...replied(1, 'not-accepted'), mayBeOfTwo: true } as EntryEvent, NAMED_AT_MS + 2500)
    expect(entry).toMatchObject({
      state: 'sending',
      reason: 'rate-limited',
      lastAmbiguousAtMs: NAMED_AT_MS + 1000,
      window: { startAtMs: NAMED_AT_MS + 1000 },
      attempts: [{ number: 1, result: 'not-accepted-unproven', why: 'rate-limited' }],
    })
    expect(isInDoubt(entry)).toBe(true)
    expect(quietAtMs(entry, 2)).toBe(NAMED_AT_MS + 1000 + entry.longestRequestMs)
    expect(advance(entry, { kind: 'canceled', by: 'caller' }, NAMED_AT_MS + 3000)).toBe(entry)
    // A word from behind the key speaks for both, and without a key nobody can be asked again.
    expect(after(entry, began, replied(2, 'refused behind the key')).state).toBe('rejected')
    const unkeyed = advance(
      { ...first, keyed: false },
      { ...replied(1, 'not-accepted'), mayBeOfTwo: true } as EntryEvent,
      NAMED_AT_MS + 2500,
    )
    expect(unkeyed).toMatchObject({ state: 'unknown', reason: 'takes-no-key' })
  })

  test('keeps what its reply said and when it ended', () => {
    const event: EntryEvent = {
      kind: 'replied',
      attempt: 1,
      verdict: { kind: 'not-accepted', reason: 'rate-limited' },
      mayBeOfTwo: false,
      facts: { status: 429, requestId: 'req_1' },
      timing: { nextAttemptAtMs: NAMED_AT_MS + 9000, notBeforeMs: NAMED_AT_MS + 8000 },
      claim: null,
    }
    expect(advance(after(named(), began), event, NAMED_AT_MS + 2500)).toMatchObject({
      state: 'pending',
      reason: 'rate-limited',
      nextAttemptAtMs: NAMED_AT_MS + 9000,
      notBeforeMs: NAMED_AT_MS + 8000,
      claim: null,
      attempts: [
        {
          number: 1,
          beganAtMs: NAMED_AT_MS + 1000,
          endedAtMs: NAMED_AT_MS + 2500,
          result: 'not-accepted',
          why: 'rate-limited',
          status: 429,
          requestId: 'req_1',
        },
      ],
    })
  })

  test.each([
    ['not-sent', true],
    ['not-accepted', true],
    ['refused', true],
    ['refused-unproven', false],
    ['unrecorded', false],
    ['succeeded', false],
    ['accepted', false],
    ['receipt-differs', false],
    ['unclear', false],
    ['busy', false],
    ['conflict', false],
    ['recorded-failure', false],
    [undefined, false],
  ] as const)('with the result %s is certainly not done: %s', (result, isProven) => {
    expect(isCertainlyNotDone({ number: 1, beganAtMs: 0, ...(result ? { result } : {}) })).toBe(isProven)
  })

  test.each<[VerdictName, string]>([
    ['unclear', 'no-clear-reply'],
    ['busy', 'busy'],
  ])('that was %s leaves the reason %s', (verdict, reason) => {
    expect(after(named(), began, replied(1, verdict))).toMatchObject({ state: 'sending', reason })
  })

  test('that is not accepted after an ambiguous one says why it waits, and is still open', () => {
    const entry = after(named(), began, replied(1, 'unclear'), began, replied(2, 'not-accepted'))
    expect(entry).toMatchObject({ state: 'sending', reason: 'rate-limited' })
  })
})

describe('back to pending', () => {
  const certain: readonly ((attempt: number) => EntryEvent)[] = [notSent, (attempt) => replied(attempt, 'not-accepted')]
  test('only if every attempt begun is certainly not done', () => {
    fc.assert(
      fc.property(
        fc.array(fc.constantFrom('not-sent', 'not-accepted', 'unclear', 'busy', 'nothing'), {
          minLength: 1,
          maxLength: 8,
        }),
        (ends) => {
          const entry = after(
            named(),
            ...ends.flatMap((end, index) => {
              if (end === 'nothing') return [began]
              return [began, end === 'not-sent' ? notSent(index + 1) : replied(index + 1, end)]
            }),
          )
          const areAllCertain = ends.every((end) => end === 'not-sent' || end === 'not-accepted')
          expect(entry.state).toBe(areAllCertain ? 'pending' : 'sending')
          expect(entry.lastAmbiguousAtMs === null).toBe(areAllCertain)
        },
      ),
    )
  })

  test.each(certain)('a late word that clears the last doubt leads there (%#)', (event) => {
    const doubtful = after(named(), began, began, replied(2, 'not-accepted'))
    expect(doubtful).toMatchObject({ state: 'sending', lastAmbiguousAtMs: NAMED_AT_MS + 1000 })
    expect(advance(doubtful, event(1), NAMED_AT_MS + 60_000)).toMatchObject({
      state: 'pending',
      lastAmbiguousAtMs: null,
    })
  })

  test('an event that another journal may have sent never gets there', () => {
    const entry = after(named({ mayPredateJournal: true }), began, replied(1, 'not-accepted'), began, notSent(2))
    expect(entry.state).toBe('sending')
    expect(after(entry, canceled()).state).toBe('sending')
  })
})

describe('a refusal', () => {
  const refused = (entry: JournalEntry, attempt: number, behindKey: boolean): JournalEntry =>
    advance(entry, replied(attempt, { kind: 'refused', rejection: rejection({ behindKey }) }), NAMED_AT_MS + 60_000)

  test.each([false, true])('alone is believed, behind the key or not (%s)', (behindKey) => {
    expect(refused(after(named(), began), 1, behindKey)).toMatchObject({
      state: 'rejected',
      rejection: { behindKey },
      settledAtMs: NAMED_AT_MS + 60_000,
      attempts: [{ result: 'refused' }],
      claim: null,
    })
  })

  test.each([false, true])(
    'after attempts that certainly did nothing is believed, behind the key or not (%s)',
    (behindKey) => {
      const entry = after(named(), began, notSent(1), began, replied(2, 'not-accepted'), began)
      expect(refused(entry, 3, behindKey).state).toBe('rejected')
    },
  )

  test.each<[string, JournalEntry, number]>([
    ['a lost reply', after(named(), began, replied(1, 'unclear'), began), 2],
    ['a 409', after(named(), began, replied(1, 'busy'), began), 2],
    ['an attempt without a recorded reply', after(named(), began, began), 2],
    ['another journal’s attempt', after(named({ mayPredateJournal: true }), began), 1],
    ['an attempt that fell off the list', dropOne(), 34],
  ])('after %s is believed only from behind the key', (_, entry, attempt) => {
    const unproven = refused(entry, attempt, false)
    expect(unproven).toMatchObject({ state: 'sending', reason: 'refused-unproven' })
    expect(unproven.attempts.at(-1)).toMatchObject({ result: 'refused-unproven' })
    expect(isInDoubt(unproven)).toBe(true)
    expect(refused(entry, attempt, true)).toMatchObject({ state: 'rejected', rejection: { behindKey: true } })
  })

  test('repeated is no evidence: what stands before the key layer repeats itself too', () => {
    let entry = after(named(), began, replied(1, 'unclear'))
    for (let attempt = 2; attempt < 40; attempt += 1) entry = refused(after(entry, began), attempt, false)
    expect(entry).toMatchObject({ state: 'sending', reason: 'refused-unproven' })
    expect(after(entry, ended)).toMatchObject({ state: 'unknown', reason: 'window-over' })
  })

  test('that comes late while another attempt is under way does not end that one’s doubt', () => {
    const entry = refused(after(named(), began, began), 1, false)
    expect(entry).toMatchObject({
      state: 'sending',
      reason: 'in-flight',
      attempts: [{ result: 'refused-unproven' }, {}],
    })
  })

  test('believed late settles what had become unknown', () => {
    const entry = after(named(), began, replied(1, 'unclear'), began, ended)
    expect(refused(entry, 2, false)).toMatchObject({ state: 'unknown', reason: 'window-over' })
    expect(refused(entry, 2, true).state).toBe('rejected')
  })

  test('never makes a no of an entry whose receiver gave a receipt, even one that differs', () => {
    const entry = after(named(), began, began, replied(2, 'receipt-differs'))
    expect(entry).toMatchObject({ state: 'unknown', receipt: { id: 'ch_other' } })
    expect(refused(entry, 1, true)).toMatchObject({ state: 'unknown', receipt: { id: 'ch_other' } })
  })
})

/** 33 attempts have been in doubt, 32 are listed; the 34th is under way. */
function dropOne(): JournalEntry {
  return Array.from({ length: 34 }).reduce<JournalEntry>((entry) => after(entry, began), named())
}

describe('attempts that fall off the list', () => {
  const many = (count: number, end: (attempt: number) => EntryEvent): JournalEntry =>
    Array.from({ length: count }).reduce<JournalEntry>(
      (entry, _, index) => after(entry, began, end(index + 1)),
      named(),
    )

  test('are counted if they may have worked, and the count keeps the doubt', () => {
    let entry = many(40, (attempt) => replied(attempt, 'unclear'))
    expect(entry).toMatchObject({ attemptsBegun: 40, droppedInDoubt: 8 })
    expect(entry.attempts.map((attempt) => attempt.number)).toEqual(Array.from({ length: 32 }, (_, index) => index + 9))
    for (let more = 41; more <= 80; more += 1) entry = after(entry, began, replied(more, 'not-accepted'))
    expect(entry).toMatchObject({ state: 'sending', droppedInDoubt: 40 })
    expect(entry.attempts.every(isCertainlyNotDone)).toBe(true)
    expect(isInDoubt(entry)).toBe(true)
    expect(entry.lastAmbiguousAtMs).not.toBeNull()
  })

  test('are forgotten if they certainly did nothing', () => {
    expect(many(40, (attempt) => replied(attempt, 'not-accepted'))).toMatchObject({
      state: 'pending',
      attemptsBegun: 40,
      droppedInDoubt: 0,
    })
  })

  test('a success that comes for one of them still settles the entry, a late no does not clear its doubt', () => {
    const entry = dropOne()
    expect(after(entry, replied(1, 'succeeded')).state).toBe('succeeded')
    expect(after(entry, replied(1, 'not-accepted'))).toMatchObject({ state: 'sending', droppedInDoubt: 2 })
  })
})

describe('late replies', () => {
  test('to an earlier attempt change neither the claim nor the times of the one under way', () => {
    const by = claim({ owner: 'process-2#1' })
    const before = advance(after(named(), began), { kind: 'began', claim: by }, NAMED_AT_MS + 40_000)
    for (const event of [
      replied(1, 'not-accepted', 1),
      replied(1, 'unclear', 1),
      replied(1, 'refused', 1),
      notSent(1),
    ]) {
      expect(advance(before, event, NAMED_AT_MS + 41_000)).toMatchObject({
        state: 'sending',
        reason: 'in-flight',
        claim: by,
        nextAttemptAtMs: NAMED_AT_MS + 40_000,
      })
    }
  })

  test('to the latest attempt set both', () => {
    const by = claim({ owner: 'process-1#1', fence: 3 })
    const event = { ...replied(1, 'unclear', NAMED_AT_MS + 7000), claim: by }
    expect(advance(after(named(), began), event as EntryEvent, NAMED_AT_MS + 5000)).toMatchObject({
      state: 'sending',
      claim: by,
      nextAttemptAtMs: NAMED_AT_MS + 7000,
    })
  })

  test('replace the mark of an attempt that had no recorded reply', () => {
    const entry = after(named(), began, began, replied(1, 'busy'))
    expect(entry.attempts.map((attempt) => attempt.result)).toEqual(['busy', undefined])
  })

  test('do not rewrite an attempt that has ended', () => {
    const entry = after(named(), began, replied(1, 'unclear'), began, replied(1, 'not-accepted'))
    expect(entry.attempts[0]).toMatchObject({ result: 'unclear', why: 'timeout' })
    expect(entry.state).toBe('sending')
  })

  test.each<[string, JournalEntry]>([
    ['pending', after(named(), began, notSent(1))],
    ['sending', after(named(), began, began)],
    ['unknown', after(named(), began, ended)],
    ['accepted', after(named(), began, began, replied(2, 'accepted'))],
  ])('that say it worked move %s to succeeded', (state, entry) => {
    expect(entry.state).toBe(state)
    expect(after(entry, replied(1, 'succeeded'))).toMatchObject({
      state: 'succeeded',
      receipt: { id: 'ch_1' },
      contradiction: null,
      claim: null,
    })
  })

  test('that say accepted once more leave the first receipt and action', () => {
    const entry = after(named(), began, began, replied(2, 'accepted'))
    const again = after(entry, replied(1, { ...verdicts.accepted, progress: 'processing' }))
    expect(again).toMatchObject({
      state: 'accepted',
      progress: 'requires_action',
      nextAction: { url: 'https://bank.example' },
    })
  })
})

describe('a word that contradicts a final state', () => {
  const rejected = after(named(), began, began, replied(2, 'refused behind the key'))
  const succeeded = after(named(), began, began, replied(2, 'succeeded'))
  const notTried = after(named(), began, notSent(1), canceled())

  test.each<[string, JournalEntry, VerdictName]>([
    ['succeeded after rejected', rejected, 'succeeded'],
    ['accepted after rejected', rejected, 'accepted'],
    ['succeeded after canceled', notTried, 'succeeded'],
    ['accepted after canceled', notTried, 'accepted'],
  ])('%s is kept beside it, and the state stays', (_, entry, verdict) => {
    const next = advance(entry, replied(1, verdict), NAMED_AT_MS + 60_000)
    const { contradiction, version, highestWallMs: _wall, attempts: _attempts, ...rest } = next
    const { contradiction: _none, version: before, highestWallMs: _before, attempts: _old, ...was } = entry
    expect(contradiction).toEqual({
      atMs: NAMED_AT_MS + 60_000,
      attempt: 1,
      word: verdict,
      receipt: (verdicts[verdict] as { receipt: object }).receipt,
      rejection: null,
    })
    expect(rest).toEqual(was)
    expect(version).toBe(before + 1)
  })

  test('another receipt than the one that settled it is one, the same receipt is none', () => {
    expect(after(succeeded, replied(1, { kind: 'succeeded', receipt: receipt('ch_2') }))).toMatchObject({
      state: 'succeeded',
      receipt: { id: 'ch_1' },
      contradiction: { word: 'succeeded', receipt: { id: 'ch_2' } },
    })
    expect(after(succeeded, replied(1, 'succeeded')).contradiction).toBeNull()
    expect(after(succeeded, replied(1, 'accepted')).contradiction).toBeNull()
  })

  test('the first one is kept, also when others follow', () => {
    const entry = after(rejected, replied(1, { kind: 'succeeded', receipt: receipt('ch_2') }), replied(1, 'succeeded'))
    expect(entry.contradiction).toMatchObject({ receipt: { id: 'ch_2' } })
  })

  test.each<[string, JournalEntry]>([
    ['rejected', rejected],
    ['canceled', notTried],
    ['succeeded with another receipt', succeeded],
  ])('a receipt for another amount says that something was made: it contradicts %s', (_, entry) => {
    const next = after(entry, replied(1, 'receipt-differs'))
    expect(next.state).toBe(entry.state)
    expect(next.contradiction).toMatchObject({
      attempt: 1,
      word: 'receipt-differs',
      receipt: { id: 'ch_other' },
      rejection: null,
    })
  })

  test('a refusal from behind the key contradicts a success, one from before it says nothing of other attempts', () => {
    expect(after(succeeded, replied(1, 'refused behind the key'))).toMatchObject({
      state: 'succeeded',
      receipt: { id: 'ch_1' },
      contradiction: { attempt: 1, word: 'refused', receipt: null, rejection: { behindKey: true } },
    })
    expect(after(succeeded, replied(1, 'refused')).contradiction).toBeNull()
  })

  test('a refusal contradicts neither a rejection nor a cancellation', () => {
    for (const entry of [rejected, notTried])
      for (const verdict of ['refused', 'refused behind the key'] as const)
        expect(after(entry, replied(1, verdict)).contradiction).toBeNull()
  })

  test('keeps a canceled entry from being opened again', () => {
    const contradicted = after(notTried, replied(1, 'succeeded'))
    expect(after(contradicted, reopened).state).toBe('canceled')
  })

  test.each<VerdictName>(['unclear', 'busy', 'not-accepted', 'recorded-failure', 'conflict'])(
    'is no reply that was %s',
    (verdict) => {
      for (const entry of [rejected, succeeded, notTried])
        expect(after(entry, replied(1, verdict)).contradiction).toBeNull()
    },
  )
})

describe('the key window', () => {
  const at = (entry: JournalEntry, ms: number): boolean => isWindowOver(entry, NAMED_AT_MS + ms)

  test('of shared names counts from where it was started, and ends to the millisecond', () => {
    const entry = named()
    expect(at(entry, 23 * HOUR_MS - 1)).toBe(false)
    expect(at(entry, 23 * HOUR_MS)).toBe(true)
    expect(windowEndsAtMs(entry)).toBe(NAMED_AT_MS + 23 * HOUR_MS)
  })

  test('of shared names is moved by nothing: attempts, a return to pending, a cancel, a re-opening', () => {
    const events = [
      began,
      notSent(1),
      began,
      replied(2, 'not-accepted'),
      canceled(),
      reopened,
      began,
      replied(3, 'unclear'),
    ]
    events.reduce((entry, event, index) => {
      const next = advance(entry, event, NAMED_AT_MS + HOUR_MS * (index + 1))
      expect(next.window).toEqual(named().window)
      return next
    }, named())
  })

  test('of one’s own names counts from the first attempt', () => {
    const waiting = named({ window: ownWindow })
    expect(windowEndsAtMs(waiting)).toBeNull()
    expect(at(waiting, 1000 * HOUR_MS)).toBe(false)
    const one = advance(waiting, began, NAMED_AT_MS + 100 * HOUR_MS)
    expect(windowEndsAtMs(one)).toBe(NAMED_AT_MS + 123 * HOUR_MS)
    const two = advance(
      advance(one, replied(1, 'unclear'), NAMED_AT_MS + 101 * HOUR_MS),
      began,
      NAMED_AT_MS + 110 * HOUR_MS,
    )
    expect(windowEndsAtMs(two)).toBe(NAMED_AT_MS + 123 * HOUR_MS)
    expect(at(two, 123 * HOUR_MS - 1)).toBe(false)
    expect(at(two, 123 * HOUR_MS)).toBe(true)
  })

  test('of one’s own names is cleared on return to pending, and only then', () => {
    const own = named({ window: ownWindow })
    for (const event of [notSent(1), replied(1, 'not-accepted')])
      expect(after(own, began, event)).toMatchObject({ state: 'pending', window: { startAtMs: null } })
    for (const event of [replied(1, 'unclear'), replied(1, 'busy'), held])
      expect(after(own, began, event).window.startAtMs).toBe(NAMED_AT_MS + 1000)
    const mixed = after(own, began, replied(1, 'unclear'), began, replied(2, 'not-accepted'))
    expect(mixed.window.startAtMs).toBe(NAMED_AT_MS + 1000)
    const again = after(own, began, notSent(1), began)
    expect(again.window.startAtMs).toBe(NAMED_AT_MS + 3000)
  })

  test('counts as over while the clock is more than the margin below the highest time seen', () => {
    const entry = advance(named(), began, NAMED_AT_MS + 5 * HOUR_MS)
    expect(at(entry, 4 * HOUR_MS)).toBe(false)
    expect(at(entry, 4 * HOUR_MS - 1)).toBe(true)
    expect(at(entry, 5 * HOUR_MS)).toBe(false)
    const own = advance(named({ window: ownWindow }), held, NAMED_AT_MS + 5 * HOUR_MS)
    expect(at(own, 4 * HOUR_MS - 1)).toBe(true)
  })

  test('the highest time seen never falls', () => {
    const entry = advance(named(), began, NAMED_AT_MS + 5000)
    const back = advance(entry, replied(1, 'unclear'), NAMED_AT_MS - 5000)
    expect(back.highestWallMs).toBe(NAMED_AT_MS + 5000)
    expect(advance(back, began, NAMED_AT_MS + 6000).highestWallMs).toBe(NAMED_AT_MS + 6000)
  })

  test('over makes even a pending entry unknown, never rejected', () => {
    expect(after(named(), ended)).toMatchObject({ state: 'unknown', reason: 'window-over', receipt: null })
    expect(after(named(), began, replied(1, 'not-accepted'), ended).state).toBe('unknown')
  })
})

describe('sendBefore', () => {
  test('applies to pending entries, from its millisecond on', () => {
    const entry = named()
    expect(isPastSendBefore(entry, NAMED_AT_MS + HOUR_MS - 1)).toBe(false)
    expect(isPastSendBefore(entry, NAMED_AT_MS + HOUR_MS)).toBe(true)
    expect(isPastSendBefore(after(entry, began, replied(1, 'not-accepted')), NAMED_AT_MS + HOUR_MS)).toBe(true)
    expect(isPastSendBefore(named({ sendBeforeAtMs: null }), NAMED_AT_MS + 1000 * HOUR_MS)).toBe(false)
  })

  test('applies to nothing that may have been sent or is settled', () => {
    const late = NAMED_AT_MS + 1000 * HOUR_MS
    for (const entry of [
      after(named(), began),
      named({ mayPredateJournal: true }),
      after(named(), ended),
      after(named(), began, replied(1, 'accepted')),
      after(named(), began, replied(1, 'succeeded')),
      after(named(), canceled()),
    ])
      expect(isPastSendBefore(entry, late), entry.state).toBe(false)
  })
})

describe('cancel and re-open', () => {
  test('a canceled entry says by whom and when, and lets its claim go', () => {
    for (const by of ['caller', 'send-before'] as const)
      expect(advance(named(), canceled(by), NAMED_AT_MS + 5000)).toMatchObject({
        state: 'canceled',
        by,
        settledAtMs: NAMED_AT_MS + 5000,
        claim: null,
      })
  })

  test('re-opened, it is pending under the same key with the body of the new call and its old history', () => {
    const before = after(named(), began, notSent(1), canceled())
    const entry = advance(before, reopened, NAMED_AT_MS + 9000)
    expect(entry).toMatchObject({
      state: 'pending',
      reason: 'not-yet-tried',
      key: before.key,
      version: before.version + 1,
      request: { body: '{"amount":7000,"currency":"usd"}' },
      fingerprint: { amount: 'digest of 7000' },
      expected: { amount: 7000 },
      volatileFields: ['metadata'],
      sendBeforeAtMs: NAMED_AT_MS + 2 * HOUR_MS,
      dialect: { version: 2 },
      nextAttemptAtMs: NAMED_AT_MS + 9000,
      attemptsBegun: 1,
      attempts: before.attempts,
      namedAtMs: before.namedAtMs,
    })
    expect(entry).not.toHaveProperty('by')
    expect(entry).not.toHaveProperty('settledAtMs')
  })

  test('an entry that may have been sent cannot be canceled', () => {
    for (const entry of [after(named(), began), named({ mayPredateJournal: true }), after(named(), began, ended)])
      expect(advance(entry, canceled(), NAMED_AT_MS)).toBe(entry)
  })
})

describe('an entry named again with a time of its event', () => {
  test('counts from the earliest that is known', () => {
    const earlier = advance(named(), dated(NAMED_AT_MS - HOUR_MS), NAMED_AT_MS)
    expect(earlier).toMatchObject({ state: 'pending', eventAtMs: NAMED_AT_MS - HOUR_MS, version: 2 })
    expect(windowEndsAtMs(earlier)).toBe(NAMED_AT_MS + 22 * HOUR_MS)
    for (const later of [NAMED_AT_MS - HOUR_MS, NAMED_AT_MS - HOUR_MS + 1, NAMED_AT_MS + HOUR_MS])
      expect(advance(earlier, dated(later), NAMED_AT_MS)).toBe(earlier)
  })

  test('older than the journal is in doubt from then on, also if it was pending', () => {
    const entry = advance(after(named(), began, notSent(1)), dated(NAMED_AT_MS - HOUR_MS, true), NAMED_AT_MS)
    expect(entry).toMatchObject({ state: 'sending', mayPredateJournal: true })
    expect(advance(entry, canceled(), NAMED_AT_MS)).toBe(entry)
    expect(advance(entry, dated(NAMED_AT_MS, false), NAMED_AT_MS).mayPredateJournal).toBe(true)
  })

  test('of one’s own names counts from its first attempt all the same', () => {
    const own = named({ window: ownWindow })
    expect(advance(own, dated(NAMED_AT_MS - HOUR_MS), NAMED_AT_MS).window.startAtMs).toBeNull()
  })

  test('re-opened, takes the earlier of both times and any doubt', () => {
    const canceledAt = (window: Partial<JournalEntry['window']>): JournalEntry =>
      after(named({ window: { ...draft().window, ...window } }), canceled())
    const again = (wanted: Parameters<typeof wantedAgain>[0]): EntryEvent => ({
      kind: 'reopened',
      wanted: wantedAgain(wanted),
    })
    const early = { ...draft().window, startAtMs: NAMED_AT_MS - HOUR_MS }
    expect(after(canceledAt({}), again({})).window.startAtMs).toBe(NAMED_AT_MS)
    expect(after(canceledAt({}), again({ window: early, eventAtMs: NAMED_AT_MS - HOUR_MS }))).toMatchObject({
      window: early,
      eventAtMs: NAMED_AT_MS - HOUR_MS,
    })
    expect(after(canceledAt({}), again({ mayPredateJournal: true }))).toMatchObject({
      state: 'sending',
      mayPredateJournal: true,
    })
  })
})

describe('a receiver that takes no key', () => {
  const keyless = after(named({ keyed: false }), began)

  test.each<[VerdictName, EntryState]>([
    ['succeeded', 'succeeded'],
    ['accepted', 'accepted'],
    ['refused', 'rejected'],
    ['not-accepted', 'pending'],
    ['unclear', 'unknown'],
    ['busy', 'unknown'],
    ['conflict', 'unknown'],
    ['recorded-failure', 'unknown'],
    ['receipt-differs', 'unknown'],
  ])('is not asked twice: %s leads to %s', (verdict, state) => {
    expect(after(keyless, replied(1, verdict)).state).toBe(state)
  })

  test('the reason says so', () => {
    expect(after(keyless, replied(1, 'unclear'))).toMatchObject({ state: 'unknown', reason: 'takes-no-key' })
    expect(after(keyless, notSent(1))).toMatchObject({ state: 'pending', reason: 'not-yet-tried' })
  })
})

describe('claims', () => {
  const entry = after(named(), { kind: 'began', claim: claim({ owner: 'a#1', untilMs: NAMED_AT_MS + 100 }) })

  test('hold for others until their time, and never for the holder', () => {
    expect(isClaimedByOther(entry, 'b#1', NAMED_AT_MS + 99)).toBe(true)
    expect(isClaimedByOther(entry, 'b#1', NAMED_AT_MS + 100)).toBe(false)
    expect(isClaimedByOther(entry, 'a#1', NAMED_AT_MS)).toBe(false)
    expect(isClaimedByOther(entry, 'a#2', NAMED_AT_MS)).toBe(true)
    expect(isClaimedByOther(named(), 'b#1', NAMED_AT_MS)).toBe(false)
  })

  test('are released by whoever held them, whatever the state, and nothing else changes', () => {
    const { claim: gone, version, ...rest } = advance(entry, released, NAMED_AT_MS)
    const { claim: _claim, version: before, ...was } = entry
    expect([gone, version]).toEqual([null, before + 1])
    expect(rest).toEqual(was)
    expect(advance(named(), released, NAMED_AT_MS).version).toBe(1)
  })

  test('are let go where the entry waits, ends or is settled', () => {
    const claimed = after(named(), began)
    for (const event of [
      held,
      ended,
      replied(1, 'succeeded'),
      replied(1, 'accepted'),
      replied(1, 'refused'),
      replied(1, 'conflict'),
    ])
      expect(advance(claimed, event, NAMED_AT_MS).claim, event.kind).toBeNull()
  })
})

test('an entry that waits for a login keeps what the receiver asked for', () => {
  const asked = { ...replied(1, 'not-accepted'), timing: { nextAttemptAtMs: 50, notBeforeMs: 40 } } as EntryEvent
  const entry = after(named(), began, asked, { kind: 'held', reason: 'no-credentials', nextAttemptAtMs: 45 })
  expect(entry).toMatchObject({ state: 'pending', reason: 'no-credentials', nextAttemptAtMs: 45, notBeforeMs: 40 })
})

// ------------------------------------------------------------------------------------------------- whatever happens

interface Happening {
  readonly event: EntryEvent
  readonly nowMs: number
}

/** Whatever a number of processes, replies and clocks may do to one entry, as data that a counterexample shows. */
const chances = fc.array(
  fc.record({
    what: fc.oneof(
      { weight: 4, arbitrary: fc.constant('began' as const) },
      { weight: 8, arbitrary: fc.constantFrom(...(Object.keys(verdicts) as VerdictName[])) },
      {
        weight: 1,
        arbitrary: fc.constantFrom('not-sent', 'released', 'dated', 'held', 'ended', 'canceled', 'reopened'),
      },
    ),
    which: fc.nat(3),
    id: fc.constantFrom('ch_1', 'ch_2'),
    nowMs: fc.integer({ min: NAMED_AT_MS - 3 * HOUR_MS, max: NAMED_AT_MS + 30 * HOUR_MS }),
  }),
  { maxLength: 60 },
)
type Chance = (typeof chances extends fc.Arbitrary<infer T> ? T : never)[number]

/** An attempt is answered at most once; nothing happens if there is none to answer. */
function happeningOf({ what, which, id, nowMs }: Chance, entry: JournalEntry): Happening | undefined {
  const open = entry.attempts.filter(({ result }) => result === undefined || result === 'unrecorded')
  const attempt = open.at(-1 - (which % Math.max(1, open.length)))?.number
  switch (what) {
    case 'began':
      return { event: began, nowMs }
    case 'released':
      return { event: released, nowMs }
    case 'dated':
      // Names of one's own have no other journal that could have sent them.
      return { event: dated(nowMs, which === 0 && entry.window.names === 'shared'), nowMs }
    case 'held':
      return { event: held, nowMs }
    case 'ended':
      return { event: ended, nowMs }
    case 'canceled':
      return { event: canceled(), nowMs }
    case 'reopened':
      return { event: { kind: 'reopened', wanted: wantedAgain({ window: entry.window }) }, nowMs }
    case 'not-sent':
      return attempt === undefined ? undefined : { event: notSent(attempt), nowMs }
    default: {
      if (attempt === undefined) return undefined
      const verdict = verdicts[what]
      return { event: replied(attempt, 'receipt' in verdict ? { ...verdict, receipt: receipt(id) } : verdict), nowMs }
    }
  }
}

const starts = fc.record({
  keyed: fc.boolean(),
  mayPredateJournal: fc.boolean(),
  window: fc.constantFrom(draft().window, ownWindow),
})

describe('whatever happens in whatever order', () => {
  const always = (check: (before: JournalEntry, after: JournalEntry, happening: Happening) => void): void => {
    fc.assert(
      fc.property(starts, chances, (start, all) => {
        let entry = named(start)
        for (const chance of all) {
          const happening = happeningOf(chance, entry)
          if (!happening) continue
          const next = advance(frozen(entry), happening.event, happening.nowMs)
          check(entry, next, happening)
          entry = next
        }
      }),
      { numRuns: 1000 },
    )
  }
  const saidBy = ({ event }: Happening): string => (event.kind === 'replied' ? event.verdict.kind : event.kind)

  test('a final state never changes, but for a canceled one that is named again', () => {
    always((before, next, happening) => {
      if (before.state === 'succeeded' || before.state === 'rejected') expect(next.state).toBe(before.state)
      if (before.state === 'canceled' && next.state !== 'canceled')
        expect([saidBy(happening), next.state]).toEqual(['reopened', 'pending'])
      if (before.state === 'succeeded' && next.state === 'succeeded') expect(next.receipt).toBe(before.receipt)
      if (before.state === 'rejected' && next.state === 'rejected') expect(next.rejection).toBe(before.rejection)
    })
  })

  test('only a receiver’s word makes an entry succeeded, accepted or rejected', () => {
    always((before, next, happening) => {
      if (next.state === before.state) return
      if (next.state === 'succeeded') expect(saidBy(happening)).toBe('succeeded')
      if (next.state === 'accepted') expect(saidBy(happening)).toBe('accepted')
      if (next.state === 'rejected') expect(saidBy(happening)).toBe('refused')
      if (next.state === 'canceled') expect([before.state, saidBy(happening)]).toEqual(['pending', 'canceled'])
    })
  })

  test('pending and canceled mean that every attempt certainly did nothing', () => {
    always((_, next) => {
      if (next.state !== 'pending' && next.state !== 'canceled') return
      expect(next.mayPredateJournal).toBe(false)
      expect(next.droppedInDoubt).toBe(0)
      // A word that came for a canceled entry is a contradiction, and stands as such.
      if (next.contradiction === null && next.state === 'pending')
        expect(next.attempts.every(isCertainlyNotDone)).toBe(true)
    })
  })

  test('rejected without a word from behind the key means that every attempt certainly did nothing', () => {
    always((before, next) => {
      if (before.state === 'rejected' || next.state !== 'rejected' || next.rejection.behindKey) return
      expect(isInDoubt(next)).toBe(false)
      expect(next.lastAmbiguousAtMs).toBeNull()
    })
  })

  test('a change raises the version by one, and no change is the very same entry', () => {
    always((before, next, { nowMs }) => {
      if (next === before) return
      expect(next.version).toBe(before.version + 1)
      expect(next.highestWallMs).toBe(Math.max(before.highestWallMs, nowMs))
    })
  })

  test('attempts are counted up, and what is known of one is not rewritten', () => {
    always((before, next, happening) => {
      const isBegin = happening.event.kind === 'began' && isDeliverable(before)
      expect(next.attemptsBegun).toBe(before.attemptsBegun + (isBegin ? 1 : 0))
      expect(next.attempts.length).toBe(Math.min(32, next.attemptsBegun))
      expect(next.attempts.map((attempt) => attempt.number)).toEqual(
        Array.from(
          { length: next.attempts.length },
          (_, index) => next.attemptsBegun - next.attempts.length + index + 1,
        ),
      )
      for (const attempt of before.attempts) {
        const now = next.attempts.find((one) => one.number === attempt.number)
        if (now && attempt.result !== undefined && attempt.result !== 'unrecorded') expect(now).toEqual(attempt)
        if (now) expect(now.beganAtMs).toBe(attempt.beganAtMs)
      }
    })
  })

  test('key, name and request stay, but for a re-opening that brings a body of its own', () => {
    always((before, next, happening) => {
      for (const field of [
        'key',
        'scope',
        'kind',
        'subject',
        'operationId',
        'revision',
        'endpoint',
        'namedAtMs',
      ] as const)
        expect(next[field]).toBe(before[field])
      if (happening.event.kind !== 'reopened') expect(next.request).toBe(before.request)
    })
  })

  test('a window never moves forward, and one of its own counts while anything may be remembered', () => {
    always((before, next) => {
      const { names, startAtMs } = next.window
      if (names === 'own' && next.state === 'pending') expect(startAtMs).toBeNull()
      if (names === 'shared' || (next.state === 'sending' && next.attemptsBegun > 0)) expect(startAtMs).not.toBeNull()
      if (before.window.startAtMs !== null && isOpen(next) && !(names === 'own' && next.state === 'pending'))
        expect(startAtMs).toBeLessThanOrEqual(before.window.startAtMs)
    })
  })

  test('a contradiction stays as it is', () => {
    always((before, next) => {
      if (before.contradiction) expect(next.contradiction).toBe(before.contradiction)
    })
  })

  test('an entry without a key is never sent again after an attempt that may have worked', () => {
    always((_, next) => {
      if (next.keyed || next.mayPredateJournal || next.state !== 'sending') return
      const ended = next.attempts.filter((attempt) => attempt.endedAtMs !== undefined)
      expect(ended.every((attempt) => isCertainlyNotDone(attempt) || attempt.result === 'refused-unproven')).toBe(true)
    })
  })

  test('every entry can be kept as text and read back, and has an outcome', () => {
    always((_, next) => {
      expect(decodeEntry(encodeEntry(next))).toEqual(next)
      const { status } = outcomeOf(next, { nowMs: NAMED_AT_MS, source: 'journal', durable: true })
      if (next.contradiction) expect(status).toBe('unknown')
      else expect(status).toBe({ pending: 'deferred', sending: 'unknown' }[next.state as string] ?? next.state)
    })
  })
})

/** Frozen all through, so that a rule that changes what it was given throws. */
function frozen<T>(value: T): T {
  if (typeof value !== 'object' || value === null || Object.isFrozen(value)) return value
  Object.freeze(value)
  Object.values(value).forEach(frozen)
  return value
}

test('an event of no known kind is a bug of ours and is thrown as one', () => {
  expect(() => advance(named(), { kind: 'vanished' } as never, NAMED_AT_MS)).toThrow(
    expect.objectContaining({ name: 'UnreachableError' }),
  )
  const verdict = { kind: 'guessed' } as never
  expect(() => advance(after(named(), began), replied(1, verdict), NAMED_AT_MS)).toThrow(
    expect.objectContaining({ name: 'UnreachableError' }),
  )
})

test('two entries of one name and different revisions share nothing', () => {
  const [one, two] = [named(), named({ revision: 2, key: 'other' as IdempotencyKey })]
  after(one, began)
  expect(two.attempts).toEqual([])
})
