/**
 * What a caller gives with a call, checked: wrong input ends here, with nothing written and nothing sent. The options of the
 * client itself are options.ts's, the parameters of a write its definition's.
 */
import type { EntriesFilter, EvidenceInput, OperationRef, WriteOptions } from './api.ts'
import type { Context } from './engine/context.ts'
import type { Call } from './engine/open.ts'
import { mustBe, refuse } from './errors.ts'
import { readJsonObject } from './model/canonical.ts'
import { ENTRY_STATES } from './model/entry.ts'
import type { JournalEntry } from './model/entry.ts'
import type { Evidence, EvidenceSource } from './model/evidence.ts'
import { readIdempotencyKey, readName, readOperationId } from './model/key.ts'
import { readOperation, readReceipt } from './model/operation.ts'
import type { AnyWriteDefinition } from './model/operation.ts'
import { standingOf } from './model/verdict.ts'
import type { Receipt, Rejection } from './model/verdict.ts'
import { readMs, readObject, refuseUnknownOptions } from './options.ts'

const KNOWN = [
  'background',
  'deadlineMs',
  'despiteUnrecordedRefusal',
  'eventAtMs',
  'idempotencyKey',
  'operationId',
  'reopen',
  'revision',
  'sendBeforeMs',
  'signal',
  'volatileFields',
] as const satisfies readonly (keyof WriteOptions)[]

/**
 * Reads a call: its options, its name, and by its definition its parameters.
 *
 * @throws {InvalidInputError} naming the field
 */
export function readCall(
  context: Context,
  definition: AnyWriteDefinition,
  params: object,
  options: WriteOptions,
): { call: Call; signal: AbortSignal | undefined; deadlineMs: number | undefined } {
  refuseUnknownOptions(options, KNOWN, '')
  const { settings } = context
  const { revision, eventAtMs, idempotencyKey, signal, deadlineMs, sendBeforeMs } = options
  const volatileFields = options.volatileFields ?? []
  const allowed = definition.volatile ?? []
  const stray = volatileFields.find((field) => !allowed.includes(field))
  if (stray !== undefined) refuse('volatileFields', `may not hold ${stray} in a ${definition.kind}`)
  mustBe(
    revision === undefined || (Number.isSafeInteger(revision) && revision >= 1),
    'revision',
    'a whole number from 1',
  )
  mustBe(
    eventAtMs === undefined || (typeof eventAtMs === 'number' && Number.isFinite(eventAtMs)),
    'eventAtMs',
    'wall time in milliseconds',
  )
  const given: unknown = signal
  mustBe(
    given === undefined ||
      (typeof given === 'object' &&
        given !== null &&
        typeof (given as AbortSignal).aborted === 'boolean' &&
        typeof (given as AbortSignal).addEventListener === 'function'),
    'signal',
    'an AbortSignal',
  )
  return {
    signal,
    deadlineMs: readMs(deadlineMs, 'deadlineMs', undefined, 1),
    call: {
      definition,
      operationId: readOperationId(options.operationId),
      operation: readOperation(definition, params),
      revision,
      idempotencyKey:
        idempotencyKey === undefined ? undefined : readIdempotencyKey(idempotencyKey, settings.dialect.keyLimits),
      eventAtMs,
      volatileFields: [...volatileFields],
      sendBeforeMs: readMs(sendBeforeMs, 'sendBeforeMs', undefined, 1, Number.MAX_SAFE_INTEGER),
      reopen: options.reopen === true,
      despiteUnrecordedRefusal: options.despiteUnrecordedRefusal === true,
      background: options.background === true,
    },
  }
}

/**
 * Reads evidence. The receipt is read by the definition of the entry's kind, as a reply would be.
 *
 * @throws {InvalidInputError} naming the field
 */
export function readEvidence(context: Context, entry: JournalEntry, given: EvidenceInput): Evidence {
  readObject(given, 'evidence')
  const atMs = context.runtime.nowMs()
  const from = readSource(given)
  switch (given.found) {
    case 'applied': {
      const receipt = readGivenReceipt(context, entry, given.receipt)
      return { ...from, atMs, found: 'applied', receipt }
    }
    case 'not-applied': {
      const { code, message } = given
      const rejection: Rejection = {
        kind: 'not-applied',
        status: 0,
        behindKey: true,
        ...(code === undefined ? {} : { code: readName(code, 'code') }),
        ...(message === undefined ? {} : { message: readName(message, 'message') }),
      }
      return { ...from, atMs, found: 'not-applied', rejection }
    }
    case 'nothing':
      if (from.source !== 'look-up') refuse('found', "may be 'nothing' for a look-up only, else 'not-applied'")
      return { ...from, atMs, found: 'nothing', conclusive: given.conclusive === true }
    default:
      return refuse('found', "must be 'applied', 'not-applied' or 'nothing'")
  }
}

function readGivenReceipt(context: Context, entry: JournalEntry, given: object): Receipt {
  const reply = readJsonObject(given, 'receipt')
  const read = context.definitions.get(entry.kind)?.readReceipt ?? readReceipt
  let receipt: Receipt | undefined
  try {
    receipt = read(reply)
  } catch {
    // The definition did not expect this shape; what it threw may quote the receipt.
  }
  if (!receipt) refuse('receipt', `is not one of a ${entry.kind}; it needs an id at least`)
  const standing = standingOf(receipt)
  if (standing === 'not-applied')
    refuse('receipt', `says ${receipt.status ?? ''}; say found: 'not-applied' if that is its end`)
  if (standing !== 'applied') refuse('receipt', `says ${standing}, which is not concluded`)
  return receipt
}

function readSource(given: EvidenceInput): EvidenceSource {
  switch (given.source) {
    case 'webhook':
    case 'look-up':
      return { source: given.source }
    case 'decision':
      return { source: 'decision', by: readName(given.by, 'by'), why: readName(given.why, 'why') }
    default:
      return refuse('source', "must be 'webhook', 'look-up' or 'decision'")
  }
}

/**
 * Reads a reference.
 *
 * @throws {InvalidInputError} naming the field
 */
export function readRef(ref: OperationRef): OperationRef {
  readObject(ref, 'ref')
  if ('key' in ref) return { key: readName(ref.key, 'key') }
  const { subject, revision } = ref
  return { kind: readName(ref.kind, 'kind'), operationId: readOperationId(ref.operationId), subject, revision }
}

/**
 * Reads a filter: a misspelled name or state would give everything, or nothing.
 *
 * @throws {InvalidInputError} naming it
 */
export function readFilter(filter: EntriesFilter): EntriesFilter {
  refuseUnknownOptions(filter, ['contradicted', 'kind', 'operationId', 'states'], '')
  const { states } = filter
  mustBe(states === undefined || Array.isArray(states), 'states', 'a list')
  const stray = states?.find((state) => !ENTRY_STATES.includes(state))
  if (stray !== undefined) refuse('states', `may not hold ${String(stray)}`)
  return filter
}
