/**
 * The standard dialect: JSON over HTTP with an `Idempotency-Key` header, as the draft
 * draft-ietf-httpapi-idempotency-key-header-07 and most billing APIs have it. The table of replies is read from top to
 * bottom within a status; what is marked or coded stands before what is general.
 */
import { mustBe } from '../errors.ts'
import { isJsonObject, parseReceived } from '../model/canonical.ts'
import type { JsonObject } from '../model/canonical.ts'
import { readHeaders } from '../model/headers.ts'
import { echoes, encodeJson, readPath } from '../model/operation.ts'
import type { AnyWriteDefinition } from '../model/operation.ts'
import { isMarkedReplay, retryAfterMsOf, standingOf } from '../model/verdict.ts'
import type { HttpReply, NotAccepted, Rejection, Verdict } from '../model/verdict.ts'
import type { Asked, Dialect, DialectLookUp } from './dialect.ts'

export interface StandardOptions {
  /** Paths under `baseUrl` by kind, such as `{ charge: 'v2/payments' }`; default is the definition's own. */
  readonly paths?: Readonly<Record<string, string>> | undefined
  /**
   * How the key stands in the header: `bare`, as most receivers take it, or `quoted`, a structured-field string as the
   * draft has it. Default `bare`.
   */
  readonly keyFormat?: 'bare' | 'quoted' | undefined
  /** How long the receiver remembers a key, in milliseconds, or that it does not say. Default 24 hours. */
  readonly keyRetentionMs?: number | 'unpublished' | undefined
  /** The longest that the receiver may work on one request, in milliseconds. Default 2 minutes. */
  readonly longestRequestMs?: number | undefined
  /** The longest key the receiver takes, in characters. Default 255. */
  readonly maxKeyLength?: number | undefined
  /** Headers frozen with each entry, such as the version of an API. Never credentials: they are stored. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /**
   * Statuses whose refusals come from behind the receiver's key layer, by kind: a refusal with one of them, with a JSON
   * error, is believed also after an ambiguous attempt. Default `{ charge: [402] }`, and
   * that stays for charges unless they are named.
   */
  readonly recordedRefusals?: Readonly<Record<string, readonly number[]>> | undefined
  /** Whether the receiver keeps a rejection under its key. Default `true`. */
  readonly keepsRejections?: boolean | undefined
  /** How old an event may be for the receiver to accept it, in milliseconds, by kind, such as `{ usage: 86_400_000 }`. Default without limit. */
  readonly acceptanceMs?: Readonly<Record<string, number>> | undefined
  /** How the receiver is asked what became of a write. Default: it cannot be asked. */
  readonly lookUp?: StandardLookUp | undefined
  /** Kinds for which the receiver takes no key. Default none. */
  readonly withoutKey?: readonly string[] | undefined
}

/** A receiver that answers `GET` of a path with the receipt of the write, or with 404 and a JSON error if it has none. */
export interface StandardLookUp {
  /** Path under `baseUrl`, such as `({ key }) => 'v1/operations/' + key`. */
  readonly path: (about: { readonly key: string; readonly kind: string }) => string
  /** How often it has to find nothing before that counts as not applied. Default 3. */
  readonly misses?: number | undefined
  /** And how long after the last attempt, in milliseconds. Default 1 hour. */
  readonly delayMs?: number | undefined
}

const KEY_HEADER = 'idempotency-key'
/** The draft sets none; most receivers document this. */
const MAX_KEY_LENGTH = 255

/**
 * Makes the standard dialect.
 *
 * @throws {InvalidInputError} if an option is not usable
 */
export function standard(options: StandardOptions = {}): Dialect {
  const { keyRetentionMs = 86_400_000, longestRequestMs = 120_000 } = options
  const recordedRefusals = new Map(Object.entries({ charge: [402], ...options.recordedRefusals }))
  if (keyRetentionMs !== 'unpublished') checkMs(keyRetentionMs, 'keyRetentionMs')
  checkMs(longestRequestMs, 'longestRequestMs')
  const headers = readHeaders(options.headers ?? {}, KEY_HEADER)
  const acceptance = new Map(Object.entries(options.acceptanceMs ?? {}))
  for (const [kind, ms] of acceptance) checkMs(ms, `acceptanceMs.${kind}`)
  const paths = new Map(
    Object.entries(options.paths ?? {}).map(([kind, path]) => [kind, readPath(path, `paths.${kind}`)]),
  )
  return {
    name: 'standard',
    version: 1,
    checkedOn: '2026-11-30',
    keyLimits: { minLength: 1, maxLength: options.maxKeyLength ?? MAX_KEY_LENGTH },
    headers,
    longestRequestMs,
    keyRetentionMs: () => keyRetentionMs,
    takesKey: (kind) => !(options.withoutKey ?? []).includes(kind),
    keepsRejections: () => options.keepsRejections ?? true,
    keyHeader: (key) => ({ name: KEY_HEADER, value: options.keyFormat === 'quoted' ? `"${key}"` : key }),
    encode: (definition, fields) => ({
      ...(definition.encode ?? encodeJson)(fields),
      path: paths.get(definition.kind) ?? definition.path,
    }),
    acceptanceMs: (kind) => acceptance.get(kind),
    lookUp: options.lookUp && lookUpOf(options.lookUp),
    classify: (reply, asked) => classify(reply, asked, recordedRefusals.get(asked.definition.kind) ?? []),
  }
}

function checkMs(ms: number, field: string): void {
  mustBe(ms > 0 && Number.isFinite(ms), field, 'a positive number of milliseconds')
}

/** A receipt that says how it ended, or a 404 in JSON; everything else says nothing. */
function lookUpOf({ path, misses = 3, delayMs = 3_600_000 }: StandardLookUp): DialectLookUp {
  mustBe(Number.isInteger(misses) && misses >= 1, 'lookUp.misses', 'a whole number from 1')
  mustBe(delayMs >= 0 && Number.isFinite(delayMs), 'lookUp.delayMs', 'a number of milliseconds from 0')
  return {
    path: (about) => readPath(path(about), 'lookUp.path'),
    misses,
    delayMs,
    read(reply, asked) {
      const json = readJsonBody(reply)
      if (reply.status === 404 && readError(reply)) return { found: 'nothing', conclusive: false }
      const receipt = reply.status === 200 && json ? readSafely(asked.definition, json) : undefined
      const standing = receipt && standingOf(receipt)
      if (!receipt || standing === 'processing' || standing === 'requires_action') return { found: 'unclear' }
      if (standing === 'applied') return { found: 'applied', receipt }
      const rejection: Rejection = {
        kind: 'not-applied',
        code: receipt.status ?? '',
        status: reply.status,
        behindKey: true,
      }
      return { found: 'not-applied', rejection }
    },
  }
}

/** What a reply means; the order of the rows is the order of the checks. */
function classify(reply: HttpReply, asked: Asked, recordedRefusals: readonly number[]): Verdict {
  const { status } = reply
  if (reply.isRedirect) return unclear('redirect', reply)
  if (status >= 200 && status < 300) return readSuccess(reply, asked)
  if (status >= 500) {
    const isFinalFailure =
      isMarkedReplay(reply) || reply.headers['stripe-should-retry']?.trim().toLowerCase() === 'false'
    return isFinalFailure ? { kind: 'recorded-failure' } : unclear('server-error', reply)
  }
  if (status === 408) return unclear('server-error', reply)

  const error = readError(reply)
  if (status === 400 || status === 409 || status === 422) {
    if (error?.about === 'mismatch') return { kind: 'conflict' }
    if (error?.about === 'in-progress') return { kind: 'busy', ...retryAfter(reply) }
  }
  // 409 is the same key still at work (Idempotency-Key draft 07, 2.7). Waiting is safe; a new key would be a second charge.
  if (status === 409) return { kind: 'busy', ...retryAfter(reply) }

  const refusal = NOT_ACCEPTED[status]
  if (refusal) return { kind: 'not-accepted', reason: refusal, ...retryAfter(reply) }
  if (!error) {
    return MISROUTED.includes(status)
      ? { kind: 'not-accepted', reason: 'misrouted', ...retryAfter(reply) }
      : unclear('unreadable-refusal', reply)
  }
  return { kind: 'refused', rejection: rejectionOf(reply, error, recordedRefusals) }
}

const NOT_ACCEPTED: Readonly<Record<number, NotAccepted>> = {
  401: 'unauthorized',
  403: 'unauthorized',
  407: 'unauthorized',
  425: 'too-early',
  429: 'rate-limited',
}

/** A wrong address, unless an error that can be read says that it is the receiver itself who refuses. */
const MISROUTED: readonly number[] = [404, 405, 415, 421, 426]

function readSuccess(reply: HttpReply, asked: Asked): Verdict {
  const json = readJsonBody(reply)
  // 202 and "processing" without an id promise nothing that could be looked up later.
  const receipt = json && readSafely(asked.definition, json)
  if (!receipt || reply.status === 202) return unclear('not-a-receipt', reply)
  const standing = standingOf(receipt)
  // One that says it failed is no success, and no refusal of this request either: somebody has to look.
  if (!echoes(asked.expected, receipt) || standing === 'not-applied') return { kind: 'receipt-differs', receipt }
  if (standing === 'applied') return { kind: 'succeeded', receipt }
  const nextAction = json['nextAction']
  return { kind: 'accepted', receipt, progress: standing, ...(nextAction === undefined ? {} : { nextAction }) }
}

/** A definition of a user's own may throw on a shape it did not expect: then it is not a receipt, and nothing worse. */
function readSafely(definition: AnyWriteDefinition, json: JsonObject): ReturnType<AnyWriteDefinition['readReceipt']> {
  try {
    return definition.readReceipt(json)
  } catch {
    return undefined
  }
}

interface ReceivedError {
  readonly code: string | undefined
  readonly message: string | undefined
  /** What the error says about the key, if anything. */
  readonly about: 'mismatch' | 'in-progress' | undefined
  readonly reply: JsonObject
}

/** A JSON object with `error`, or problem details (RFC 9457). */
function readError(reply: HttpReply): ReceivedError | undefined {
  const json = readJsonBody(reply)
  if (!json) return undefined
  const isProblem =
    mediaType(reply) === 'application/problem+json' ||
    (typeof json['type'] === 'string' && typeof json['title'] === 'string')
  const error = json['error']
  if (isProblem) return errorOf(reply.status, json, [json['code'], json['type']], json['detail'] ?? json['title'])
  if (isJsonObject(error)) return errorOf(reply.status, json, [error['code'], error['type']], error['message'])
  if (typeof error === 'string' && error !== '')
    return errorOf(reply.status, json, [json['code'], error], json['message'] ?? json['error_description'])
  return undefined
}

function errorOf(status: number, reply: JsonObject, codes: readonly unknown[], message: unknown): ReceivedError {
  const words = codes.filter((code): code is string => typeof code === 'string' && code !== '')
  return {
    code: words[0],
    message: typeof message === 'string' ? message : undefined,
    // The code first, which says more than the type beside it.
    about: words.map((word) => aboutKey(word, status)).find((about) => about !== undefined),
    reply,
  }
}

/**
 * What a code or a problem type says about the key: that it was used with other parameters, such as `idempotency_key_reused`
 * or `https://…/idempotency-key-mismatch`, or that it is still at work, such as `idempotency_key_in_use`. Message text
 * is never looked at, nor the host of an address, and for the words that decide only its last part.
 */
function aboutKey(code: string, status: number): ReceivedError['about'] {
  const path = code.replace(/^[a-z][a-z\d+.-]*:\/\/[^/]*/i, '')
  const words = wordsOf(path.split(/[/#]/).findLast((part) => part !== '') ?? '')
  if (/(?:^|_)(?:parameters?|request|payload|body)_mismatch(?:_|$)/.test(words)) return 'mismatch'
  if (words.includes('idempoten')) {
    if (/reuse|mismatch|different|already_?used|used_?with|idempotency_error/.test(words)) return 'mismatch'
    if (/in_?use|in_?progress|in_?flight|concurrent|processing|outstanding/.test(words)) return 'in-progress'
    // A conflict at 409 may be either, and waiting is safe.
    if (status !== 409 && words.includes('conflict')) return 'mismatch'
  }
  // The draft has 422 for a key with other parameters and nothing else about keys; what complains of the key itself is a
  // refusal like any other.
  const isOfKey =
    wordsOf(path).includes('idempoten') && !/missing|required|invalid|malformed|too_?long|length/.test(words)
  return status === 422 && isOfKey ? 'mismatch' : undefined
}

function wordsOf(text: string): string {
  return text.toLowerCase().replaceAll(/[^a-z]+/g, '_')
}

function rejectionOf(reply: HttpReply, error: ReceivedError, recordedRefusals: readonly number[]): Rejection {
  return {
    kind: reply.status === 402 ? 'declined' : 'invalid',
    ...(error.code === undefined ? {} : { code: error.code }),
    ...(error.message === undefined ? {} : { message: error.message }),
    status: reply.status,
    behindKey: isMarkedReplay(reply) || recordedRefusals.includes(reply.status),
    reply: error.reply,
  }
}

function readJsonBody(reply: HttpReply): JsonObject | undefined {
  const type = mediaType(reply)
  if (type !== 'application/json' && !type.endsWith('+json')) return undefined
  const json = parseReceived(reply.body)
  return isJsonObject(json) ? json : undefined
}

function mediaType(reply: HttpReply): string {
  return (reply.headers['content-type'] ?? '').split(';')[0]?.trim().toLowerCase() ?? ''
}

function unclear(why: Extract<Verdict, { kind: 'unclear' }>['why'], reply: HttpReply): Verdict {
  return { kind: 'unclear', why, ...retryAfter(reply) }
}

function retryAfter(reply: HttpReply): { retryAfterMs?: number } {
  const retryAfterMs = retryAfterMsOf(reply)
  return retryAfterMs === undefined ? {} : { retryAfterMs }
}
