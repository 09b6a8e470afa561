/**
 * What a call may do with what the journal holds of its name: open a revision, deliver what is there, answer, or be refused.
 * Pure; engine/open.ts carries it out.
 */
import { OperationConflictError, RevisionRefusedError, titleOf } from '../errors.ts'
import { differingFields } from './canonical.ts'
import type { Fingerprint } from './canonical.ts'
import { glimpseOf, isDeliverable, isPastSendBefore } from './entry.ts'
import type { DeliverableEntry, JournalEntry } from './entry.ts'
import { keyOf, sameName } from './key.ts'
import type { IdempotencyKey, OperationName } from './key.ts'

export interface Wanted extends OperationName {
  readonly endpoint: string
  readonly endpointNamed: boolean
  /** `undefined`: the latest that the journal holds, else 1. */
  readonly revision: number | undefined
  /** A key of the caller's own. */
  readonly idempotencyKey: IdempotencyKey | undefined
  readonly fingerprint: Fingerprint
  readonly volatileFields: readonly string[]
  /** `shared`: a refusal from in front of the key layer leaves an attempt that nobody here knows of. */
  readonly names: 'shared' | 'own'
  readonly despiteUnrecordedRefusal: boolean
  readonly reopen: boolean
  /** Whether the receiver keeps a rejection under its key. */
  readonly keepsRejections: boolean
}

export type Opening =
  | { readonly kind: 'open'; readonly revision: number }
  | { readonly kind: 'reopen'; readonly entry: JournalEntry }
  | { readonly kind: 'deliver'; readonly entry: DeliverableEntry }
  | { readonly kind: 'answer'; readonly entry: JournalEntry }

/**
 * Decides.
 *
 * @throws {OperationConflictError} other parameters, another key, another endpoint
 * @throws {RevisionRefusedError} a next revision is a new key, and the old one may have worked
 */
export function openingOf(found: readonly JournalEntry[], wanted: Wanted, nowMs: number): Opening {
  const named = found.filter((entry) => sameName(entry, wanted))
  refuseOtherName(found, named, wanted)
  refuseOtherEndpoint(named, wanted)
  const revisions = named
    .filter((entry) => entry.endpoint === wanted.endpoint)
    .toSorted((one, other) => one.revision - other.revision)
  const latest = revisions.at(-1)
  if (!latest) return { kind: 'open', revision: wanted.revision ?? 1 }

  const contradicted = revisions.find((entry) => entry.contradiction !== null)
  if (contradicted) return { kind: 'answer', entry: contradicted }
  const revision = wanted.revision ?? latest.revision
  const there = revisions.find((entry) => entry.revision === revision)
  // Once one has succeeded, that is the answer, unless the call asks for what became of a certain other one.
  const succeeded = revisions.find((entry) => entry.state === 'succeeded')
  const isAnsweredBy = wanted.revision === undefined || !there || isDeliverable(there) || there.state === 'canceled'
  if (succeeded && succeeded !== there && isAnsweredBy) return { kind: 'answer', entry: succeeded }
  return there ? openingOfExisting(there, wanted, nowMs) : openingOfNext(revisions, latest, revision, wanted, nowMs)
}

function openingOfExisting(there: JournalEntry, wanted: Wanted, nowMs: number): Opening {
  if (wanted.idempotencyKey !== undefined && wanted.idempotencyKey !== there.key)
    throw conflict(there, ['idempotencyKey'])
  // What was canceled before it was sent may be wanted after all; nothing left, so the body may be a new one.
  // One that is past its time is as good as canceled, whether or not somebody came by to write that down.
  if (isPastSendBefore(there, nowMs)) return { kind: 'reopen', entry: there }
  if (there.state === 'canceled' && (there.by === 'send-before' || wanted.reopen))
    return { kind: 'reopen', entry: there }
  const fields = differingFields(there.fingerprint, wanted.fingerprint, [
    ...there.volatileFields,
    ...wanted.volatileFields,
  ])
  if (fields.length > 0) throw conflict(there, fields)
  return isDeliverable(there) ? { kind: 'deliver', entry: there } : { kind: 'answer', entry: there }
}

function openingOfNext(
  revisions: readonly JournalEntry[],
  latest: JournalEntry,
  revision: number,
  wanted: Wanted,
  nowMs: number,
): Opening {
  const key = wanted.idempotencyKey ?? keyOf(wanted, revision)
  const taken = revisions.find((entry) => entry.key === key)
  if (taken) throw conflict(taken, ['idempotencyKey', 'revision'])
  if (revision < latest.revision) {
    throw refused(latest, 'not-the-next', `the journal holds revision ${latest.revision}`)
  }
  const open = revisions.find((entry) => entry.state !== 'rejected')
  if (open) {
    throw open.state === 'canceled'
      ? refused(
          open,
          'earlier-revision-canceled',
          `revision ${open.revision} was canceled; reopen: true takes it up again`,
        )
      : refused(
          open,
          'earlier-revision-open',
          `revision ${open.revision} is ${open.state} and may have worked or still work; settle it first`,
        )
  }
  if (
    latest.state === 'rejected' &&
    !latest.rejection.behindKey &&
    wanted.names === 'shared' &&
    !wanted.despiteUnrecordedRefusal
  ) {
    throw refused(
      latest,
      'unrecorded-refusal',
      'the refusal does not speak for other devices, whose attempt may have worked; look it up, then pass despiteUnrecordedRefusal: true',
    )
  }
  const freeAtMs =
    wanted.keepsRejections || latest.lastAmbiguousAtMs === null ? 0 : latest.lastAmbiguousAtMs + latest.longestRequestMs
  if (nowMs < freeAtMs) {
    throw refused(latest, 'too-soon', 'an attempt may still be at work at the receiver', freeAtMs - nowMs)
  }
  return { kind: 'open', revision }
}

/** A key of the caller's own that belongs to another name already. */
function refuseOtherName(found: readonly JournalEntry[], named: readonly JournalEntry[], wanted: Wanted): void {
  const other = found.find((entry) => !named.includes(entry) && entry.endpoint === wanted.endpoint)
  if (other)
    throw conflict(
      other,
      (['kind', 'operationId', 'scope', 'subject'] as const).filter((field) => other[field] !== wanted[field]),
    )
}

/** The same name under another address may be the same effect at the same receiver, unless both were given ids. */
function refuseOtherEndpoint(named: readonly JournalEntry[], wanted: Wanted): void {
  const elsewhere = named.find(
    (entry) => entry.endpoint !== wanted.endpoint && !(entry.endpointNamed && wanted.endpointNamed),
  )
  if (elsewhere) throw conflict(elsewhere, ['endpoint'])
}

function conflict(entry: JournalEntry, fields: readonly string[]): OperationConflictError {
  const way =
    entry.state === 'rejected' ? 'Another try is the next revision.' : 'Another write needs another operationId.'
  return new OperationConflictError(
    `${titleOf(entry)} is ${entry.state} in the journal; this call differs in ${fields.join(', ')}. ${way}`,
    { fields, entry: glimpseOf(entry) },
  )
}

function refused(
  entry: JournalEntry,
  reason: RevisionRefusedError['reason'],
  why: string,
  retryAfterMs?: number,
): RevisionRefusedError {
  return new RevisionRefusedError(`${titleOf(entry)} gets no next revision now: ${why}.`, {
    reason,
    retryAfterMs,
    entry: glimpseOf(entry),
  })
}
