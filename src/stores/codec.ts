/**
 * The text under which an entry is kept, with its format number. A newer format is refused and left alone, an older one is
 * read for ever; the shape is checked, since what lies on a disk comes from outside.
 */
import { JournalUnavailableError } from '../errors.ts'
import { isJsonObject, isWellFormed } from '../model/canonical.ts'
import type { JsonObject, JsonValue } from '../model/canonical.ts'
import { ENTRY_FORMAT } from '../model/entry.ts'
import type { JournalEntry } from '../model/entry.ts'

export function encodeEntry(entry: JournalEntry): string {
  const wrong = problemOf(entry as unknown as JsonObject)
  // What could not be read again must not be written: better no reply on record than an entry that is lost.
  if (wrong !== undefined) throw new Error(`An entry was not written: ${wrong}.`)
  return JSON.stringify(entry)
}

/**
 * Reads a stored entry.
 *
 * @throws {JournalUnavailableError} with fault `newer-format` or `damaged`; the text itself is not quoted, it holds a body
 */
export function decodeEntry(text: string): JournalEntry {
  const entry = parse(text)
  if (!isJsonObject(entry)) throw damaged('it is not an object')
  const { format } = entry
  if (typeof format !== 'number' || !Number.isInteger(format) || format < 1) throw damaged('it has no format number')
  if (format > ENTRY_FORMAT) {
    throw new JournalUnavailableError(
      `A stored entry has format ${format}, of a newer version of billonce; this one reads up to ${ENTRY_FORMAT}. Update billonce. ${LEFT}`,
      { fault: 'newer-format' },
    )
  }
  const wrong = problemOf(entry)
  if (wrong !== undefined) throw damaged(wrong)
  // Checked field by field above.
  return entry as unknown as JournalEntry
}

function problemOf(entry: JsonObject): string | undefined {
  const wrong = wrongOf(entry, SHAPE)
  if (wrong !== undefined) return `its ${wrong} is wrong`
  const wrongOfState = wrongOf(entry, STATES[entry['state'] as JournalEntry['state']])
  return wrongOfState === undefined ? undefined : `its ${wrongOfState} does not fit its state`
}

/** A loop without a list of its own: each entry comes by here at each of its steps. */
function wrongOf(entry: JsonObject, shape: Readonly<Record<string, Check>>): string | undefined {
  for (const name in shape) if (shape[name]?.(entry[name]) !== true) return name
  return undefined
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (cause) {
    // The cause is dropped: engines quote the text in it.
    void cause
    throw damaged('it is not JSON')
  }
}

function damaged(what: string): JournalUnavailableError {
  return new JournalUnavailableError(`A stored entry cannot be read: ${what}. ${LEFT}`, { fault: 'damaged' })
}

const LEFT = 'It was left as it is.'

type Check = (value: JsonValue | undefined) => boolean

const isText: Check = (value) => typeof value === 'string' && value !== '' && isWellFormed(value)
const isString: Check = (value) => typeof value === 'string'
const isWhole: Check = (value) => Number.isSafeInteger(value)
const isTime: Check = (value) => typeof value === 'number' && Number.isFinite(value)
const isFlag: Check = (value) => typeof value === 'boolean'
const isList: Check = (value) => Array.isArray(value)
const orNull =
  (check: Check): Check =>
  (value) =>
    value === null || check(value)
/** An object that has these fields; others it may have too. */
const like = (shape: Readonly<Record<string, Check>>): Check => {
  return (value) => isJsonObject(value) && wrongOf(value, shape) === undefined
}
const isReceipt = like({ id: isText, reply: isJsonObject })
const isAttempt = like({ number: isWhole, beganAtMs: isTime })

const SHAPE: Readonly<Record<string, Check>> = {
  version: isWhole,
  key: isText,
  endpoint: isText,
  endpointNamed: isFlag,
  scope: isText,
  kind: isText,
  subject: orNull(isText),
  operationId: isText,
  revision: (value) => typeof value === 'number' && Number.isSafeInteger(value) && value >= 1,
  request: like({
    method: isText,
    path: isText,
    contentType: isText,
    body: orNull(isString),
    headers: isJsonObject,
    keyHeader: like({ name: isText, value: isText }),
  }),
  fingerprint: isJsonObject,
  expected: isJsonObject,
  volatileFields: isList,
  dialect: like({ name: isText, version: isWhole }),
  keyed: isFlag,
  longestRequestMs: isTime,
  namedAtMs: isTime,
  eventAtMs: orNull(isTime),
  mayPredateJournal: isFlag,
  window: like({
    names: (value) => value === 'shared' || value === 'own',
    startAtMs: orNull(isTime),
    lengthMs: isTime,
    marginMs: isTime,
  }),
  sendBeforeAtMs: orNull(isTime),
  acceptUntilAtMs: orNull(isTime),
  evidence: isList,
  misses: isWhole,
  attemptsBegun: isWhole,
  attempts: (value) => Array.isArray(value) && value.every(isAttempt),
  droppedInDoubt: isWhole,
  lastAmbiguousAtMs: orNull(isTime),
  claim: orNull(like({ owner: isText, fence: isWhole, untilMs: isTime })),
  highestWallMs: isTime,
  contradiction: orNull(like({ word: isText, receipt: orNull(isReceipt) })),
  state: (value) => typeof value === 'string' && Object.hasOwn(STATES, value),
}

const STATES: Readonly<Record<JournalEntry['state'], Readonly<Record<string, Check>>>> = {
  pending: { reason: isText, nextAttemptAtMs: isTime, notBeforeMs: isTime },
  sending: { reason: isText, nextAttemptAtMs: isTime, notBeforeMs: isTime },
  accepted: { receipt: isReceipt, progress: isText },
  unknown: { reason: isText, receipt: orNull(isReceipt) },
  succeeded: { receipt: isReceipt, settledAtMs: isTime },
  rejected: {
    rejection: like({ kind: isText, behindKey: isFlag }),
    settledAtMs: isTime,
  },
  canceled: { by: isText, settledAtMs: isTime },
}
