/** What a call may do with what the journal holds of its name. */
import { describe, expect, test } from 'vitest'
import { OperationConflictError, RevisionRefusedError } from '../../src/errors.ts'
import { newEntry } from '../../src/model/entry.ts'
import type { EntryDraft, EntryEvent, JournalEntry } from '../../src/model/entry.ts'
import { keyOf } from '../../src/model/key.ts'
import type { IdempotencyKey, OperationId } from '../../src/model/key.ts'
import { openingOf } from '../../src/model/opening.ts'
import type { Wanted } from '../../src/model/opening.ts'
import { after, began, canceled, draft, ended, NAMED_AT_MS, notSent, rejection, replied } from './entries.ts'

const NOW_MS = NAMED_AT_MS + 60_000
const base = draft()

const wanted = (changes: Partial<Wanted> = {}): Wanted => ({
  scope: base.scope,
  kind: base.kind,
  subject: base.subject,
  operationId: base.operationId,
  endpoint: base.endpoint,
  endpointNamed: base.endpointNamed,
  revision: undefined,
  idempotencyKey: undefined,
  fingerprint: base.fingerprint,
  volatileFields: [],
  names: 'shared',
  despiteUnrecordedRefusal: false,
  reopen: false,
  keepsRejections: true,
  ...changes,
})

const entry = (revision: number, events: readonly EntryEvent[], changes: Partial<EntryDraft> = {}): JournalEntry =>
  after(newEntry(draft({ revision, ...changes }), NAMED_AT_MS), ...events)

/** The ways to each state. */
const WAYS = {
  pending: [],
  sending: [began],
  unknown: [began, ended],
  accepted: [began, replied(1, 'accepted')],
  succeeded: [began, replied(1, 'succeeded')],
  rejected: [began, replied(1, 'refused behind the key')],
  canceled: [canceled('caller')],
} as const satisfies Record<JournalEntry['state'], readonly EntryEvent[]>

const rejected = (revision: number, behindKey = true): JournalEntry =>
  entry(revision, [began, replied(1, { kind: 'refused', rejection: rejection({ behindKey }) })])

function thrownBy(action: () => unknown): unknown {
  try {
    action()
  } catch (error) {
    return error
  }
  return undefined
}
const conflictOf = (found: readonly JournalEntry[], want: Wanted): OperationConflictError => {
  const error = thrownBy(() => openingOf(found, want, NOW_MS))
  expect(error).toBeInstanceOf(OperationConflictError)
  return error as OperationConflictError
}
const refusalOf = (found: readonly JournalEntry[], want: Wanted, nowMs = NOW_MS): RevisionRefusedError => {
  const error = thrownBy(() => openingOf(found, want, nowMs))
  expect(error).toBeInstanceOf(RevisionRefusedError)
  return error as RevisionRefusedError
}

describe('a name that the journal does not hold', () => {
  test.each([
    [undefined, 1],
    [1, 1],
    [4, 4],
  ])(
    'opens as asked: revision %s becomes %i, since for what the journal does not hold the caller vouches',
    (asked, revision) => {
      expect(openingOf([], wanted({ revision: asked }), NOW_MS)).toEqual({ kind: 'open', revision })
    },
  )
})

describe('a name that it holds, named without a revision', () => {
  test.each([
    ['pending', 'deliver'],
    ['sending', 'deliver'],
    ['unknown', 'answer'],
    ['accepted', 'answer'],
    ['succeeded', 'answer'],
    ['rejected', 'answer'],
    ['canceled', 'answer'],
  ] as const)('%s: %s', (state, kind) => {
    const there = entry(1, WAYS[state])
    expect(there.state).toBe(state)
    for (const revision of [undefined, 1])
      expect(openingOf([there], wanted({ revision }), NOW_MS)).toEqual({ kind, entry: there })
  })

  test('means the latest revision, in whatever order the journal gives them', () => {
    const [one, two, ten] = [rejected(1), rejected(2), entry(10, [])]
    for (const found of [
      [one, two, ten],
      [ten, two, one],
      [two, ten, one],
    ])
      expect(openingOf(found, wanted(), NOW_MS)).toEqual({ kind: 'deliver', entry: ten })
  })

  test('an older revision that is named gets its own outcome', () => {
    expect(openingOf([rejected(1), entry(2, [])], wanted({ revision: 1 }), NOW_MS)).toMatchObject({
      kind: 'answer',
      entry: { revision: 1, state: 'rejected' },
    })
  })
})

describe('other parameters', () => {
  test.each(Object.keys(WAYS) as JournalEntry['state'][])(
    'conflict with a %s entry, which names the fields',
    (state) => {
      const there = entry(1, WAYS[state])
      const error = conflictOf([there], wanted({ fingerprint: { ...base.fingerprint, amount: 'x', customer: 'y' } }))
      expect(error).toMatchObject({
        code: 'ERR_OPERATION_CONFLICT',
        fields: ['amount', 'customer'],
        entry: { key: there.key, state },
        sentByThisCall: false,
      })
      expect(error.message).toContain(there.key)
      expect(error.message).not.toMatch(/5000|usd|digest/)
    },
  )

  test('the message says what to do about a rejected one: the next revision', () => {
    const want = wanted({ fingerprint: { amount: 'x' } })
    expect(conflictOf([rejected(1)], want).message).toContain('revision')
    expect(conflictOf([entry(1, [])], want).message).toContain('operationId')
  })

  test('in fields that are volatile in either call are none', () => {
    const want = wanted({ fingerprint: { ...base.fingerprint, paymentMethod: 'made afresh' } })
    const there = entry(1, [began], { fingerprint: { ...base.fingerprint, paymentMethod: 'the first' } })
    expect(conflictOf([there], want).fields).toEqual(['paymentMethod'])
    const volatileFields = ['paymentMethod']
    expect(openingOf([there], { ...want, volatileFields }, NOW_MS).kind).toBe('deliver')
    expect(openingOf([{ ...there, volatileFields }], want, NOW_MS).kind).toBe('deliver')
  })

  test('are not compared with the next revision: that one is another try', () => {
    const want = wanted({ revision: 2, fingerprint: { amount: 'another', paymentMethod: 'another card' } })
    expect(openingOf([rejected(1)], want, NOW_MS)).toEqual({ kind: 'open', revision: 2 })
  })
})

describe('the next revision', () => {
  test.each([2, 3, 17])('opens as %i when every one before was rejected', (revision) => {
    expect(openingOf([rejected(1)], wanted({ revision }), NOW_MS)).toEqual({ kind: 'open', revision })
  })

  test.each(['pending', 'sending', 'unknown', 'accepted'] as const)(
    'is refused while one before is %s: it may have worked or may still work',
    (state) => {
      const there = entry(1, WAYS[state])
      for (const force of [false, true]) {
        const want = wanted({
          revision: 2,
          despiteUnrecordedRefusal: force,
          reopen: force,
          names: force ? 'own' : 'shared',
        })
        expect(refusalOf([there], want)).toMatchObject({
          code: 'ERR_REVISION_REFUSED',
          reason: 'earlier-revision-open',
          entry: { key: there.key, state },
          sentByThisCall: false,
          retryAfterMs: undefined,
        })
      }
    },
  )

  test('is refused while any one before is open, also if the latest was rejected', () => {
    expect(refusalOf([entry(1, WAYS.unknown), rejected(2)], wanted({ revision: 3 })).reason).toBe(
      'earlier-revision-open',
    )
  })

  test('is refused after a canceled one, which says how to go on', () => {
    const error = refusalOf([entry(1, WAYS.canceled)], wanted({ revision: 2 }))
    expect(error.reason).toBe('earlier-revision-canceled')
    expect(error.message).toContain('reopen: true')
  })

  test('is answered with a success that the journal holds, whichever revision it was', () => {
    const success = entry(1, WAYS.succeeded)
    for (const found of [[success], [success, rejected(2)], [rejected(2), success]])
      expect(openingOf(found, wanted({ revision: 3 }), NOW_MS)).toEqual({ kind: 'answer', entry: success })
    expect(openingOf([entry(3, WAYS.succeeded)], wanted({ revision: 2 }), NOW_MS)).toMatchObject({ kind: 'answer' })
  })

  test('cannot be lower than one that is there', () => {
    for (const state of ['pending', 'rejected', 'unknown'] as const)
      expect(refusalOf([entry(3, WAYS[state])], wanted({ revision: 2 })).reason).toBe('not-the-next')
  })
})

describe('a refusal that did not come from behind the key', () => {
  const want = wanted({ revision: 2 })

  test('does not let the next revision open: another device’s attempt may have worked', () => {
    const error = refusalOf([rejected(1, false)], want)
    expect(error).toMatchObject({ reason: 'unrecorded-refusal', entry: { state: 'rejected' } })
    expect(error.message).toContain('despiteUnrecordedRefusal')
  })

  test.each<[string, Partial<Wanted>]>([
    ['names of one’s own', { names: 'own' }],
    ['a caller who vouches', { despiteUnrecordedRefusal: true }],
  ])('does with %s', (_, changes) => {
    expect(openingOf([rejected(1, false)], { ...want, ...changes }, NOW_MS)).toEqual({ kind: 'open', revision: 2 })
  })

  test('concerns the latest one: those before it were judged when it opened', () => {
    expect(openingOf([rejected(1, false), rejected(2, true)], wanted({ revision: 3 }), NOW_MS).kind).toBe('open')
    expect(refusalOf([rejected(1, true), rejected(2, false)], wanted({ revision: 3 })).reason).toBe(
      'unrecorded-refusal',
    )
  })
})

describe('a receiver that frees its keys on a rejection', () => {
  const want = wanted({ revision: 2, keepsRejections: false })
  // The lost attempt began one second after the naming; the receiver may work on it for two minutes.
  const doubtful = entry(1, [began, replied(1, 'unclear'), began, replied(2, 'refused behind the key')])
  const freeAtMs = NAMED_AT_MS + 1000 + 120_000

  test('opens the next revision no sooner than its longest request after the last ambiguous attempt began', () => {
    expect(doubtful).toMatchObject({ state: 'rejected', lastAmbiguousAtMs: NAMED_AT_MS + 1000 })
    expect(refusalOf([doubtful], want, freeAtMs - 1)).toMatchObject({ reason: 'too-soon', retryAfterMs: 1 })
    expect(refusalOf([doubtful], want, NOW_MS).retryAfterMs).toBe(freeAtMs - NOW_MS)
    expect(openingOf([doubtful], want, freeAtMs)).toEqual({ kind: 'open', revision: 2 })
  })

  test('opens it at once when no attempt was ambiguous', () => {
    expect(openingOf([rejected(1)], want, NOW_MS)).toEqual({ kind: 'open', revision: 2 })
  })

  test('opens it at once where rejections are kept under the key', () => {
    expect(openingOf([doubtful], { ...want, keepsRejections: true }, NOW_MS)).toEqual({ kind: 'open', revision: 2 })
  })
})

describe('a contradicted revision', () => {
  const contradicted = entry(1, [began, began, replied(2, 'refused behind the key'), replied(1, 'succeeded')])

  test.each<[string, readonly JournalEntry[], Partial<Wanted>]>([
    ['the same revision', [contradicted], {}],
    ['the same, by its number', [contradicted], { revision: 1 }],
    ['the next one', [contradicted], { revision: 2, despiteUnrecordedRefusal: true, names: 'own' }],
    ['a later one that is there', [contradicted, entry(2, [])], {}],
    ['a later one that is there, by its number', [contradicted, entry(2, [began])], { revision: 2 }],
    ['the next one after a later success', [contradicted, entry(2, WAYS.succeeded)], { revision: 3 }],
  ])('is the answer to %s', (_, found, changes) => {
    expect(contradicted).toMatchObject({ state: 'rejected', contradiction: { word: 'succeeded' } })
    expect(openingOf(found, wanted(changes), NOW_MS)).toEqual({ kind: 'answer', entry: contradicted })
  })

  test('that was canceled is not opened again', () => {
    const late = entry(1, [began, notSent(1), canceled('send-before'), replied(1, 'succeeded')])
    expect(openingOf([late], wanted({ reopen: true }), NOW_MS)).toEqual({ kind: 'answer', entry: late })
  })
})

describe('a canceled entry named again', () => {
  test.each([
    ['send-before', false, 'reopen'],
    ['send-before', true, 'reopen'],
    ['caller', true, 'reopen'],
    ['caller', false, 'answer'],
  ] as const)('by %s, reopen %s: %s', (by, reopen, kind) => {
    const there = entry(1, [canceled(by)])
    expect(openingOf([there], wanted({ reopen }), NOW_MS)).toEqual({ kind, entry: there })
  })

  test('takes another body when it opens again, since nothing left', () => {
    const there = entry(1, [canceled('send-before')])
    expect(openingOf([there], wanted({ fingerprint: { amount: 'another' } }), NOW_MS)).toEqual({
      kind: 'reopen',
      entry: there,
    })
  })

  test.each(Object.keys(WAYS).filter((state) => state !== 'canceled') as JournalEntry['state'][])(
    'reopen does nothing for one that is %s',
    (state) => {
      expect(openingOf([entry(1, WAYS[state])], wanted({ reopen: true }), NOW_MS).kind).not.toBe('reopen')
    },
  )
})

describe('a key of the caller’s own', () => {
  const key = 'migrated-1' as IdempotencyKey
  const there = entry(1, [began], { key })

  test('that is the stored one joins, and so does a call without it', () => {
    for (const idempotencyKey of [key, undefined])
      expect(openingOf([there], wanted({ idempotencyKey }), NOW_MS)).toEqual({ kind: 'deliver', entry: there })
  })

  test.each(Object.keys(WAYS) as JournalEntry['state'][])('that differs from the stored one conflicts, %s', (state) => {
    const other = entry(1, WAYS[state])
    expect(conflictOf([other], wanted({ idempotencyKey: key, reopen: true })).fields).toEqual(['idempotencyKey'])
  })

  test('that belongs to another name conflicts, and says in what', () => {
    const others: [Partial<EntryDraft>, string[]][] = [
      [{ operationId: 'order-1' as OperationId }, ['operationId']],
      [{ kind: 'credits' }, ['kind']],
      [{ scope: 'org_7/live' }, ['scope']],
      [{ subject: 'exports', kind: 'usage' }, ['kind', 'subject']],
    ]
    for (const [changes, fields] of others) {
      const found = entry(1, [], { ...changes, key })
      expect(conflictOf([found], wanted({ idempotencyKey: key })).fields).toEqual(fields)
      // The name itself is there too.
      expect(conflictOf([entry(1, []), found], wanted({ idempotencyKey: key })).fields).toEqual(fields)
    }
  })

  test('that another name has at another receiver is no conflict here', () => {
    const other = entry(1, [], { operationId: 'order-1' as OperationId, endpoint: 'https://other.example.com/', key })
    expect(openingOf([other], wanted({ idempotencyKey: key }), NOW_MS)).toEqual({ kind: 'open', revision: 1 })
  })

  test('of one revision cannot be that of the next', () => {
    const before = entry(1, WAYS.rejected, { key })
    expect(conflictOf([before], wanted({ revision: 2, idempotencyKey: key })).fields).toContain('idempotencyKey')
    const another = 'migrated-2' as IdempotencyKey
    expect(openingOf([before], wanted({ revision: 2, idempotencyKey: another }), NOW_MS)).toEqual({
      kind: 'open',
      revision: 2,
    })
  })
})

test('a key of one’s own that is what the next revision would derive keeps that revision from opening under it', () => {
  const before = entry(1, WAYS.rejected, { key: keyOf(wanted(), 2) })
  expect(conflictOf([before], wanted({ revision: 2 })).fields).toContain('revision')
  expect(openingOf([before], wanted({ revision: 3 }), NOW_MS)).toEqual({ kind: 'open', revision: 3 })
})

describe('the same name under another endpoint', () => {
  const elsewhere = (endpointNamed: boolean, events: readonly EntryEvent[] = []): JournalEntry =>
    entry(1, events, { endpoint: 'https://old.example.com/', endpointNamed })

  test.each([
    [false, false],
    [false, true],
    [true, false],
  ])('conflicts unless both were given ids (stored %s, wanted %s)', (stored, endpointNamed) => {
    for (const revision of [undefined, 1, 2])
      expect(conflictOf([elsewhere(stored)], wanted({ endpointNamed, revision })).fields).toEqual(['endpoint'])
  })

  test('is another operation if both were', () => {
    const want = wanted({ endpoint: 'eu', endpointNamed: true })
    const other = entry(1, WAYS.succeeded, { endpoint: 'us', endpointNamed: true })
    expect(openingOf([other], want, NOW_MS)).toEqual({ kind: 'open', revision: 1 })
    const here = entry(1, [], { endpoint: 'eu', endpointNamed: true })
    expect(openingOf([other, here], want, NOW_MS)).toEqual({ kind: 'deliver', entry: here })
  })

  test('conflicts also if the name is here too', () => {
    expect(conflictOf([entry(1, []), elsewhere(false)], wanted()).fields).toEqual(['endpoint'])
  })

  test('does not mix up revisions or contradictions of two named endpoints', () => {
    const want = wanted({ endpoint: 'eu', endpointNamed: true, revision: 2 })
    const contradicted = entry(1, [began, began, replied(2, 'refused behind the key'), replied(1, 'succeeded')], {
      endpoint: 'us',
      endpointNamed: true,
    })
    expect(openingOf([contradicted], want, NOW_MS)).toEqual({ kind: 'open', revision: 2 })
  })
})

test('one operationId for two kinds or two subjects is two operations', () => {
  const usage = (subject: string): Partial<EntryDraft> => {
    const name = { scope: base.scope, kind: 'usage', subject, operationId: base.operationId }
    return { ...name, key: keyOf(name, 1) }
  }
  const keys = [base.key, usage('exports').key, usage('imports').key]
  expect(new Set(keys).size).toBe(3)
  const exports = entry(1, [], usage('exports'))
  expect(openingOf([], wanted({ kind: 'usage', subject: 'imports' }), NOW_MS)).toEqual({ kind: 'open', revision: 1 })
  expect(openingOf([exports], wanted({ kind: 'usage', subject: 'exports' }), NOW_MS)).toMatchObject({ kind: 'deliver' })
})
