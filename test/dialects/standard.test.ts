/**
 * What replies mean in the standard dialect: each row of its table alone, and the same row where an earlier attempt may have
 * worked.
 */
import { describe, expect, test, vi } from 'vitest'
import type { Asked } from '../../src/dialects/dialect.ts'
import { standard } from '../../src/dialects/standard.ts'
import type { StandardOptions } from '../../src/dialects/standard.ts'
import { chargeWrite, creditsWrite, defineWrite, usageWrite } from '../../src/model/operation.ts'
import type { AnyWriteDefinition } from '../../src/model/operation.ts'
import type { EntryState } from '../../src/model/entry.ts'
import { factsOf, retryAfterMsOf } from '../../src/model/verdict.ts'
import type { HttpReply, Verdict } from '../../src/model/verdict.ts'
import { after, began, named, replied } from '../model/entries.ts'

const charge = chargeWrite({ anyCurrency: false })
const RECEIVED_AT_MS = Date.UTC(2026, 10, 30, 12)

interface Sent {
  readonly headers?: Readonly<Record<string, string>>
  readonly type?: string
  readonly body?: unknown
}

function reply(status: number, { headers = {}, type = 'application/json', body = {} }: Sent = {}): HttpReply {
  return {
    kind: 'http',
    status,
    isRedirect: status === 0 || (status >= 300 && status < 400),
    headers: { ...(type === '' ? {} : { 'content-type': type }), ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
    receivedAtMs: RECEIVED_AT_MS,
  }
}

const asked: Asked = { definition: charge, expected: { amount: 5000, currency: 'usd' } }
const classify = (of: HttpReply, options?: StandardOptions, ask = asked): Verdict => standard(options).classify(of, ask)

const good = { id: 'ch_1', status: 'succeeded', amount: 5000, currency: 'usd' }
const error = (code?: string, type?: string): object => ({ error: { code, type, message: 'Words that nobody reads' } })
const problem = (type: string, more: object = {}): Sent => ({
  type: 'application/problem+json',
  body: { type, title: 'Words', detail: 'More words', ...more },
})
const html: Sent = { type: 'text/html; charset=utf-8', body: '<html><title>Sign in</title></html>' }
const replayed = { 'idempotent-replayed': 'true' }

interface Row {
  readonly what: string
  readonly reply: HttpReply
  readonly verdict: object
  /** The state it leads to as the reply to the only attempt. */
  readonly alone: EntryState
  /** The same after an attempt whose reply was lost. */
  readonly afterLost: EntryState
}
const rows = (verdict: object, alone: EntryState, afterLost: EntryState, all: Record<string, HttpReply>): Row[] =>
  Object.entries(all).map(([what, of]) => ({ what, reply: of, verdict, alone, afterLost }))

const unclear = (why: string): object => ({ kind: 'unclear', why })
const notAccepted = (reason: string): object => ({ kind: 'not-accepted', reason })
const refused = (rejection: object): object => ({ kind: 'refused', rejection })

const TABLE: readonly Row[] = [
  ...rows({ kind: 'succeeded', receipt: { id: 'ch_1' } }, 'succeeded', 'succeeded', {
    '200 with a receipt': reply(200, { body: good }),
    '201 with a receipt': reply(201, { body: good }),
    '200 with a receipt that does not repeat amount and currency': reply(200, { body: { id: 'ch_1' } }),
    '200 with the currency in other letters': reply(200, { body: { ...good, currency: 'USD' } }),
    '200 with a status of the receiver’s own': reply(200, { body: { ...good, status: 'captured' } }),
    '200 marked as a replay': reply(200, { body: good, headers: replayed }),
  }),
  ...rows({ kind: 'accepted', progress: 'requires_action' }, 'accepted', 'accepted', {
    '200 that requires action': reply(200, { body: { ...good, status: 'requires_action', nextAction: { url: 'u' } } }),
    '201 that requires action': reply(201, { body: { id: 'ch_1', status: 'requires_action' } }),
  }),
  ...rows({ kind: 'accepted', progress: 'processing' }, 'accepted', 'accepted', {
    '200 in processing, with an id': reply(200, { body: { ...good, status: 'processing' } }),
  }),
  ...rows({ kind: 'receipt-differs', receipt: { id: 'ch_1' } }, 'unknown', 'unknown', {
    '200 with another amount': reply(200, { body: { ...good, amount: 50 } }),
    '200 with another currency': reply(200, { body: { ...good, currency: 'eur' } }),
    '200 that requires action for another amount': reply(200, {
      body: { ...good, amount: 1, status: 'requires_action' },
    }),
  }),
  ...rows(unclear('not-a-receipt'), 'sending', 'sending', {
    'G19: 200 with a login page': reply(200, html),
    'G19: 200 with JSON of another shape': reply(200, { body: { ok: true } }),
    'G19: 200 with an empty body': reply(200, { body: '' }),
    'G19: 204': reply(204, { type: '', body: '' }),
    'G19: 200 with a receipt that says it is text': reply(200, { type: 'text/plain', body: good }),
    'G19: 200 with a receipt and no content type': reply(200, { type: '', body: good }),
    '200 cut off': reply(200, { body: JSON.stringify(good).slice(0, -5) }),
    '200 with a list': reply(200, { body: [good] }),
    '200 with null': reply(200, { body: 'null' }),
    '200 with an empty id': reply(200, { body: { ...good, id: '' } }),
    '200 with a number for an id': reply(200, { body: { ...good, id: 7 } }),
    '200 with an error in it': reply(200, { body: error('card_declined') }),
    '202 with a receipt': reply(202, { body: good }),
    '202 with nothing': reply(202, { type: '', body: '' }),
    '200 in processing, without an id': reply(200, { body: { status: 'processing' } }),
  }),
  ...rows(unclear('server-error'), 'sending', 'sending', {
    'G17: 500': reply(500, { body: error('oops') }),
    'G17: 502 with a gateway’s page': reply(502, html),
    'G17: 503': reply(503, { type: '', body: '' }),
    'G17: 504': reply(504, html),
    '501': reply(501),
    '599': reply(599),
    'G20: 408': reply(408),
    '408 with an error': reply(408, { body: error('timeout') }),
    '500 with a mismatch code': reply(500, { body: error('idempotency_key_reused') }),
    '500 that says it is no replay': reply(500, { headers: { 'idempotent-replayed': 'false' } }),
    '500 that says one should retry': reply(500, { headers: { 'stripe-should-retry': 'true' } }),
  }),
  ...rows(unclear('redirect'), 'sending', 'sending', {
    '301': reply(301),
    '303 with a receipt': reply(303, { body: good }),
    '307': reply(307),
    '308': reply(308, html),
    'a redirect that a browser does not show': reply(0, { type: '', body: '' }),
  }),
  ...rows({ kind: 'recorded-failure' }, 'unknown', 'unknown', {
    'G16: 500 marked as a replay': reply(500, { body: error('oops'), headers: replayed }),
    'G16: 503 marked in other letters': reply(503, { headers: { 'idempotent-replayed': ' TRUE ' } }),
    '500 that says one should not retry': reply(500, { headers: { 'stripe-should-retry': 'false' } }),
  }),
  ...rows({ kind: 'busy' }, 'sending', 'sending', {
    'G15: 409 with a code for in progress': reply(409, { body: error('idempotency_key_in_progress') }),
    'G15: 409 empty': reply(409, { type: '', body: '' }),
    'G15: 409 with HTML': reply(409, html),
    '409 with a code of the receiver’s own': reply(409, { body: error('lock_timeout') }),
    '409 as Stripe has it': reply(409, { body: error('idempotency_key_in_use', 'idempotency_error') }),
    '409 as the draft has it': reply(409, problem('https://developer.example.com/idempotency')),
  }),
  ...rows({ kind: 'conflict' }, 'unknown', 'unknown', {
    'G10: 409 with a mismatch code': reply(409, { body: error('idempotency_key_reused') }),
    'G10: 400 with a mismatch code': reply(400, { body: error('idempotency_key_reused') }),
    'G10: 422 with a mismatch code': reply(422, { body: error('idempotency_key_reused') }),
    '422 marked as a replay with a mismatch code': reply(422, {
      body: error('idempotency_key_reused'),
      headers: replayed,
    }),
  }),
  ...rows(notAccepted('unauthorized'), 'pending', 'sending', {
    '401 with an error': reply(401, { body: error('invalid_token') }),
    '401 with nothing': reply(401, { type: '', body: '' }),
    '403 with an error': reply(403, { body: error('forbidden') }),
    '403 with HTML': reply(403, html),
    '407': reply(407, html),
  }),
  ...rows(notAccepted('rate-limited'), 'pending', 'sending', {
    'G20: 429': reply(429, { body: error('rate_limit') }),
    'G20: 429 with HTML': reply(429, html),
  }),
  ...rows(notAccepted('too-early'), 'pending', 'sending', { 'G20: 425': reply(425) }),
  ...rows(notAccepted('misrouted'), 'pending', 'sending', {
    '404 with HTML': reply(404, html),
    '405 with nothing': reply(405, { type: '', body: '' }),
    '415 with text': reply(415, { type: 'text/plain', body: 'Unsupported' }),
    '421 with JSON that is no error': reply(421, { body: { message: 'Misdirected' } }),
    '426 with HTML': reply(426, html),
  }),
  ...rows(refused({ kind: 'declined', code: 'card_declined', status: 402, behindKey: true }), 'rejected', 'rejected', {
    '402 with JSON on a charge': reply(402, { body: error('card_declined') }),
  }),
  ...rows(refused({ kind: 'invalid', behindKey: false }), 'rejected', 'sending', {
    '400 with an error': reply(400, { body: error('amount_too_small') }),
    '404 with an error': reply(404, { body: error('no_such_customer') }),
    '405 with an error': reply(405, { body: error('method') }),
    '410 with an error': reply(410, { body: error('gone') }),
    '412 with a problem': reply(412, problem('https://api.example.com/problems/precondition')),
    '413 with an error': reply(413, { body: error('too_large') }),
    '415 with a problem': reply(415, problem('about:blank')),
    '421 with an error': reply(421, { body: error('tenant_moved') }),
    '422 with an error': reply(422, { body: error('invalid_currency') }),
    '422 with an error of one word': reply(422, { body: { error: 'invalid_request', error_description: 'Words' } }),
    '426 with an error': reply(426, { body: error('upgrade') }),
    '451 with an error': reply(451, { body: error('embargo') }),
  }),
  ...rows(refused({ kind: 'invalid', behindKey: true }), 'rejected', 'rejected', {
    '422 with an error, marked as a replay': reply(422, { body: error('invalid_currency'), headers: replayed }),
    '400 with an error, marked as a replay': reply(400, { body: error('amount_too_small'), headers: replayed }),
  }),
  ...rows(unclear('unreadable-refusal'), 'sending', 'sending', {
    '400 with a gateway’s page': reply(400, html),
    '400 empty': reply(400, { type: '', body: '' }),
    '402 with HTML': reply(402, html),
    '402 with JSON that is no error': reply(402, { body: { message: 'Payment required' } }),
    '413 with HTML': reply(413, html),
    '422 cut off': reply(422, { body: '{"error":{"code":"invalid' }),
    '422 with an empty error': reply(422, { body: { error: '' } }),
    '422 with an error that says it is text': reply(422, { type: 'text/plain', body: error('invalid') }),
    '422 with a list of errors': reply(422, { body: { errors: [{ code: 'invalid' }] } }),
    '431': reply(431, html),
  }),
]

describe('each row', () => {
  test.each(TABLE)('$what', ({ reply: of, verdict }) => {
    expect(classify(of)).toMatchObject(verdict)
  })

  test.each(TABLE)('$what, alone: $alone', ({ reply: of, alone }) => {
    expect(after(named(), began, replied(1, classify(of))).state).toBe(alone)
  })

  test.each(TABLE)('$what, after a lost reply: $afterLost', ({ reply: of, afterLost }) => {
    const entry = after(named(), began, replied(1, 'unclear'), began, replied(2, classify(of)))
    expect(entry.state).toBe(afterLost)
  })

  test('no verdict but a receipt or a readable refusal settles anything', () => {
    for (const { what, reply: of } of TABLE) {
      const { kind } = classify(of)
      const { state } = after(named(), began, replied(1, classify(of)))
      if (state === 'succeeded') expect(kind, what).toBe('succeeded')
      if (state === 'rejected') expect(kind, what).toBe('refused')
    }
  })

  test('every status there is has a verdict, with a readable error and without', () => {
    for (let status = 200; status < 600; status += 1) {
      for (const sent of [{}, html, { body: error('some_code') }, { type: '', body: '' }]) {
        const { kind } = classify(reply(status, sent))
        if (status >= 300 && status < 400) expect(kind, String(status)).toBe('unclear')
        if (kind === 'succeeded') expect(status).toBeLessThan(300)
        if (kind === 'refused')
          expect([status >= 400 && status < 500, sent]).toEqual([true, { body: error('some_code') }])
      }
    }
  })
})

describe('a key used with other parameters', () => {
  // As receivers write it: Stripe, Square, Adyen's and the draft's style of problem types, and common middleware.
  const MISMATCH: [string, Sent][] = [
    ['Stripe', { body: error(undefined, 'idempotency_error') }],
    ['Square’s code', { body: error('IDEMPOTENCY_KEY_REUSED', 'INVALID_REQUEST_ERROR') }],
    ['a problem type: already used', problem('https://api.example.com/problems/idempotency-key-already-used')],
    ['a problem type: mismatch', problem('https://api.example.com/problems/idempotency-key-mismatch')],
    ['a problem type: reused', problem('urn:example:problem:idempotency-key-reused')],
    ['a problem of no type with a code', problem('about:blank', { code: 'idempotency_key_reused' })],
    ['a code: different parameters', { body: error('idempotencyKeyUsedWithDifferentParameters') }],
    ['a code: used with', { body: error('idempotency-key-used-with-other-body') }],
    ['a code: payload mismatch', { body: error('request_payload_mismatch') }],
    ['a code: parameter mismatch', { body: error('PARAMETER_MISMATCH') }],
    ['an error of one word', { body: { error: 'idempotency_key_reused', message: 'Words' } }],
    ['a code beside an error in words', { body: { error: 'Unprocessable Entity', code: 'idempotency_key_reused' } }],
  ]

  test.each(MISMATCH)('is a conflict at 400, 409 and 422: %s', (_, sent) => {
    for (const status of [400, 409, 422])
      expect(classify(reply(status, sent)), String(status)).toEqual({ kind: 'conflict' })
  })

  test.each<[string, Sent]>([
    [
      'the example of the draft',
      problem('https://developer.example.com/idempotency', { title: 'Idempotency-Key is already used' }),
    ],
    ['a problem type that leads to a page further down', problem('https://developer.example.com/idempotency/docs')],
    ['a conflict of keys', { body: error('idempotency_key_conflict') }],
    ['a conflict', { body: error('IDEMPOTENCY_CONFLICT', 'invalid_request_error') }],
    ['BlueSnap', { body: error('SAME_IDEMPOTENCY_KEY_WAS_ALREADY_IN_USE_WITH_PREVIOUS_DIFFERENT_REQUEST') }],
    ['a code without separators', { body: error('IdempotencyKeyAlreadyExists') }],
  ])('at 422, where the draft has nothing else of keys, is never a plain refusal: %s', (_, sent) => {
    expect(['conflict', 'busy']).toContain(classify(reply(422, sent)).kind)
  })

  test.each([200, 401, 403, 429, 500])('is read at no other status: %i', (status) => {
    expect(classify(reply(status, { body: error('idempotency_key_reused') })).kind).not.toBe('conflict')
  })

  test.each<[string, Sent]>([
    ['a key that is missing', { body: error('idempotency_key_missing') }],
    ['a key that is too long', { body: error('IDEMPOTENCY_KEY_MAX_LENGTH_LIMIT_EXCEEDED') }],
    ['a key of the wrong form', { body: error('INVALID_IDEMPOTENCY_KEY') }],
    ['the draft’s 400', problem('https://developer.example.com/idempotency', { title: 'Idempotency-Key is missing' })],
    ['another mismatch', { body: error('currency_mismatch') }],
    ['another reuse', { body: error('card_reuse_not_allowed') }],
  ])('is not what a 400 says of %s', (_, sent) => {
    expect(classify(reply(400, sent)).kind).toBe('refused')
  })

  test.each([
    'idempotency_key_in_use',
    'idempotency_key_in_progress',
    'idempotency_request_in_flight',
    'idempotency_concurrent_request',
  ])('is not what a 409 says with %s, whatever its type is', (code) => {
    expect(classify(reply(409, { body: error(code, 'idempotency_error') }))).toEqual({ kind: 'busy' })
  })

  test('G10: is told by codes, never by words', () => {
    const words = 'This Idempotency-Key was already used with different parameters: idempotency_key_reused'
    for (const body of [{ error: { message: words } }, { error: { code: 'invalid', message: words } }])
      for (const status of [400, 422]) expect(classify(reply(status, { body })).kind).toBe('refused')
    expect(classify(reply(409, { body: { error: { message: words } } })).kind).toBe('busy')
    const changed = { error: { code: 'idempotency_key_reused', message: 'card declined, please retry, 503' } }
    expect(classify(reply(422, { body: changed }))).toEqual({ kind: 'conflict' })
  })
})

describe('a rejection', () => {
  const rejectionOf = (of: HttpReply, options?: StandardOptions, ask = asked): object => {
    const verdict = classify(of, options, ask)
    if (verdict.kind !== 'refused') throw new Error(`It is ${verdict.kind}.`)
    return verdict.rejection
  }

  test.each<[string, Sent, object]>([
    [
      'error with code and message',
      { body: { error: { code: 'a', type: 'b', message: 'c' } } },
      { code: 'a', message: 'c' },
    ],
    ['error with a type only', { body: { error: { type: 'b' } } }, { code: 'b' }],
    ['error of one word', { body: { error: 'a', error_description: 'c' } }, { code: 'a', message: 'c' }],
    [
      'error of one word beside a code',
      { body: { error: 'Bad Request', code: 'a', message: 'c' } },
      { code: 'a', message: 'c' },
    ],
    ['an empty error object', { body: { error: {} } }, {}],
    ['code and message that are no text', { body: { error: { code: 7, message: { en: 'c' } } } }, {}],
    ['problem details', problem('https://e.example/p'), { code: 'https://e.example/p', message: 'More words' }],
    [
      'problem details with a code',
      problem('https://e.example/p', { code: 'a' }),
      { code: 'a', message: 'More words' },
    ],
    [
      'problem details without detail',
      { type: 'application/problem+json', body: { title: 'Words' } },
      { message: 'Words' },
    ],
    [
      'problem details under plain JSON',
      { body: { type: 'about:blank', title: 'Words' } },
      { code: 'about:blank', message: 'Words' },
    ],
  ])('is read from %s', (_, sent, words) => {
    expect(rejectionOf(reply(422, sent))).toEqual({
      kind: 'invalid',
      ...words,
      status: 422,
      behindKey: false,
      reply: JSON.parse(JSON.stringify(sent.body)) as unknown,
    })
  })

  test('is a decline at 402 only', () => {
    expect(rejectionOf(reply(402, { body: error('card_declined') }))).toMatchObject({ kind: 'declined' })
    expect(rejectionOf(reply(422, { body: error('card_declined') }))).toMatchObject({ kind: 'invalid' })
  })

  test.each<[string, AnyWriteDefinition, number, StandardOptions, boolean]>([
    ['a charge, 402', charge, 402, {}, true],
    ['a charge, 422', charge, 422, {}, false],
    ['credits, 402', creditsWrite, 402, {}, false],
    ['usage, 402', usageWrite, 402, {}, false],
    ['credits, 402, by option', creditsWrite, 402, { recordedRefusals: { credits: [402, 422] } }, true],
    ['credits, 422, by option', creditsWrite, 422, { recordedRefusals: { credits: [402, 422] } }, true],
    ['a charge, 402, by an option for another kind', charge, 402, { recordedRefusals: { credits: [402] } }, true],
    ['a charge, 402, by an option that takes it out', charge, 402, { recordedRefusals: { charge: [] } }, false],
  ])('came from behind the key or not: %s', (_, definition, status, options, behindKey) => {
    const ask = { definition, expected: {} }
    expect(rejectionOf(reply(status, { body: error('no') }), options, ask)).toMatchObject({ behindKey })
    expect(rejectionOf(reply(status, { body: error('no'), headers: replayed }), options, ask)).toMatchObject({
      behindKey: true,
    })
  })

  test('of a kind with the name of something that every object has is read like any other', () => {
    const definition = defineWrite({
      kind: 'constructor',
      path: 'v1/x',
      method: 'POST',
      readParams: () => ({}),
      readReceipt: () => undefined,
    })
    const ask = { definition, expected: {} }
    expect(rejectionOf(reply(422, { body: error('no') }), {}, ask)).toMatchObject({ behindKey: false })
    expect(standard({ paths: {} }).encode(definition, {}).path).toBe('v1/x')
  })
})

describe('the content type', () => {
  test.each([
    'application/json',
    'application/json; charset=utf-8',
    'application/json;charset=UTF-8',
    'APPLICATION/JSON',
    'Application/Json ; charset="utf-8"',
    'application/vnd.api+json',
    'application/hal+JSON;v=1',
    'application/problem+json',
  ])('%s is JSON', (type) => {
    expect(classify(reply(200, { type, body: good })).kind).toBe('succeeded')
    expect(classify(reply(402, { type, body: error('card_declined') })).kind).toBe('refused')
  })

  test.each([
    'text/html',
    'text/plain',
    'application/xml',
    'application/jsonp',
    'application/x-json',
    'json',
    '',
    'text/json',
  ])('%j is not', (type) => {
    expect(classify(reply(200, { type, body: good }))).toEqual({ kind: 'unclear', why: 'not-a-receipt' })
    expect(classify(reply(402, { type, body: error('card_declined') }))).toEqual({
      kind: 'unclear',
      why: 'unreadable-refusal',
    })
  })
})

describe('receipts', () => {
  test('G66: numbers beyond 2^53 - 1 come as text, digit for digit', () => {
    const body =
      '{"id":"ch_1","amount":5000,"currency":"usd","network":{"trace":1234567890123456789},"seq":9007199254740993}'
    expect(classify(reply(200, { body }))).toMatchObject({
      kind: 'succeeded',
      receipt: { amount: 5000, reply: { network: { trace: '1234567890123456789' }, seq: '9007199254740993' } },
    })
    const credits = { definition: creditsWrite as AnyWriteDefinition, expected: {} }
    expect(classify(reply(200, { body: '{"id":"cr_1","balance":9007199254740993}' }), {}, credits)).toMatchObject({
      receipt: { balance: '9007199254740993' },
    })
  })

  test('an amount beyond 2^53 - 1 is another amount than any that can be asked', () => {
    const expected = { amount: Number.MAX_SAFE_INTEGER }
    const of = (amount: string): Verdict =>
      classify(reply(200, { body: `{"id":"ch_1","amount":${amount}}` }), {}, { ...asked, expected })
    expect(of('9007199254740991').kind).toBe('succeeded')
    expect(of('9007199254740993').kind).toBe('receipt-differs')
  })

  test('what the customer has to do is passed on as it came', () => {
    for (const nextAction of [{ type: 'redirect', url: 'https://bank.example' }, 'https://bank.example', null])
      expect(classify(reply(200, { body: { ...good, status: 'requires_action', nextAction } }))).toMatchObject({
        nextAction,
      })
    expect(classify(reply(200, { body: { ...good, status: 'requires_action' } }))).not.toHaveProperty('nextAction')
  })

  test('a definition that throws on a reply, or finds no receipt in it, makes it unclear', () => {
    const throwing = {
      ...charge,
      readReceipt: () => {
        throw new TypeError('undefined is not an object')
      },
    }
    for (const definition of [throwing, { ...charge, readReceipt: () => undefined }])
      expect(classify(reply(200, { body: good }), {}, { ...asked, definition })).toEqual({
        kind: 'unclear',
        why: 'not-a-receipt',
      })
  })
})

describe('Retry-After', () => {
  const DATE = 'Mon, 30 Nov 2026 12:00:00 GMT'
  const LATER = 'Mon, 30 Nov 2026 12:01:30 GMT'
  const of = (retryAfter: string, headers: Record<string, string> = {}): number | undefined =>
    retryAfterMsOf(reply(503, { headers: { 'retry-after': retryAfter, ...headers } }))

  test.each([
    ['0', 0],
    ['2', 2000],
    [' 120 ', 120_000],
    ['1.5', 1500],
    ['2147483', 2_147_483_000],
    ['2147484', 2_147_484_000],
    ['9999999999', 9_999_999_999_000],
    ['99999999999999999999', Number.MAX_SAFE_INTEGER],
  ])('%j seconds is %i ms', (value, ms) => {
    expect(of(value)).toBe(ms)
  })

  test.each([LATER, 'Monday, 30-Nov-26 12:01:30 GMT', 'Mon Nov 30 12:01:30 2026'])('%s is a date', (value) => {
    expect(of(value, { date: DATE })).toBe(90_000)
  })

  test('a date counts from the reply’s own Date, so that a wrong clock here does not matter', () => {
    expect(of(LATER, { date: 'Mon, 30 Nov 2026 12:01:00 GMT' })).toBe(30_000)
    expect(of(LATER)).toBe(90_000)
    expect(of(LATER, { date: 'yesterday' })).toBe(90_000)
  })

  test('a date of the form that names no zone is in UTC, wherever this runs (RFC 9110, 5.6.7)', () => {
    vi.stubEnv('TZ', 'America/New_York')
    try {
      expect(of('Mon Nov 30 12:01:30 2026', { date: DATE })).toBe(90_000)
    } finally {
      vi.unstubAllEnvs()
    }
  })

  test('a date that is over is no wait', () => {
    expect(of('Mon, 30 Nov 2026 11:00:00 GMT', { date: DATE })).toBe(0)
    expect(of('Thu, 01 Jan 1970 00:00:00 GMT')).toBe(0)
  })

  test.each(['', ' ', 'soon', '5 minutes', '1e3', '0x10', '120, 120', 'NaN', 'Infinity', '١٢'])(
    '%j is not readable',
    (value) => {
      expect(of(value)).toBeUndefined()
    },
  )

  test.each(['-5', '+5', 'try again in 10', 'retry 30', '- 1'])(
    '%j is not readable either, though engines make dates of it',
    (value) => {
      expect(of(value)).toBeUndefined()
    },
  )

  test.each<[number, Sent]>([
    [200, html],
    [202, { body: good }],
    [302, {}],
    [408, {}],
    [409, {}],
    [400, html],
    [401, {}],
    [403, {}],
    [404, html],
    [425, {}],
    [429, {}],
    [500, {}],
    [503, {}],
  ])('is heeded with a %i that is tried again', (status, sent) => {
    for (const [value, retryAfterMs] of [
      ['2', 2000],
      [LATER, 90_000],
    ] as const)
      expect(classify(reply(status, { ...sent, headers: { 'retry-after': value, date: DATE } }))).toMatchObject({
        retryAfterMs,
      })
    expect(classify(reply(status, sent))).not.toHaveProperty('retryAfterMs')
  })
})

describe('facts for outcomes and logs', () => {
  test('are the status, the mark of a replay and the request’s id', () => {
    expect(factsOf(reply(200))).toEqual({ status: 200 })
    expect(factsOf(reply(200, { headers: { ...replayed, 'request-id': 'req_1' } }))).toEqual({
      status: 200,
      markedReplay: true,
      requestId: 'req_1',
    })
    expect(factsOf(reply(500, { headers: { 'x-request-id': 'r' } }))).toEqual({ status: 500, requestId: 'r' })
    expect(factsOf({ kind: 'lost', why: 'timeout' })).toEqual({})
  })

  test.each(['false', '1', 'yes', ''])('%j marks no replay', (value) => {
    expect(factsOf(reply(200, { headers: { 'idempotent-replayed': value } }))).not.toHaveProperty('markedReplay')
  })
})

describe('the request', () => {
  test('has the key bare or as a structured-field string', () => {
    const key = '0b5b2f6e-5d5c-5a55-9a55-0f6a1c8e2b71'
    expect(standard().keyHeader(key)).toEqual({ name: 'idempotency-key', value: key })
    expect(standard({ keyFormat: 'quoted' }).keyHeader(key)).toEqual({ name: 'idempotency-key', value: `"${key}"` })
  })

  test.each<[AnyWriteDefinition, string]>([
    [charge, 'v1/charges'],
    [usageWrite, 'v1/usage'],
    [creditsWrite, 'v1/credits/consume'],
  ])('is JSON with the parameters’ own names, by option to another path (%#)', (definition, path) => {
    const { kind } = definition
    expect(standard().encode(definition, { b: 1, a: 'é' })).toEqual({
      body: '{"a":"é","b":1}',
      contentType: 'application/json',
      path,
    })
    expect(standard({ paths: { [kind]: 'v2/other' } }).encode(definition, {}).path).toBe('v2/other')
    expect(standard({ paths: { somethingElse: 'v2/other' } }).encode(definition, {}).path).toBe(path)
  })

  test('has the body that a definition encodes itself', () => {
    const definition = { ...charge, encode: () => ({ body: 'a=1', contentType: 'application/x-www-form-urlencoded' }) }
    expect(standard().encode(definition, {})).toMatchObject({
      body: 'a=1',
      contentType: 'application/x-www-form-urlencoded',
    })
  })
})

describe('what it states', () => {
  test('by default', () => {
    const dialect = standard()
    expect(dialect).toMatchObject({
      name: 'standard',
      version: 1,
      keyLimits: { minLength: 1, maxLength: 255 },
      longestRequestMs: 120_000,
      headers: {},
    })
    expect(dialect.checkedOn).toMatch(/^\d{4}-\d\d-\d\d$/)
    for (const kind of ['charge', 'usage', 'credits', 'refund']) {
      expect(dialect.keyRetentionMs(kind)).toBe(86_400_000)
      expect(dialect.takesKey(kind)).toBe(true)
      expect(dialect.keepsRejections(kind)).toBe(true)
    }
  })

  test('by option', () => {
    const dialect = standard({
      keyRetentionMs: 'unpublished',
      longestRequestMs: 300_000,
      maxKeyLength: 45,
      headers: { 'api-version': '2026-01-01' },
      keepsRejections: false,
      withoutKey: ['usage'],
    })
    expect(dialect).toMatchObject({
      keyLimits: { minLength: 1, maxLength: 45 },
      longestRequestMs: 300_000,
      headers: { 'api-version': '2026-01-01' },
    })
    expect(dialect.keyRetentionMs('charge')).toBe('unpublished')
    expect(dialect.keepsRejections('charge')).toBe(false)
    expect([dialect.takesKey('usage'), dialect.takesKey('charge')]).toEqual([false, true])
  })

  test.each<[keyof StandardOptions, unknown]>([
    ['keyRetentionMs', 0],
    ['keyRetentionMs', -1],
    ['keyRetentionMs', Number.NaN],
    ['keyRetentionMs', 'for ever'],
    ['longestRequestMs', 0],
    ['longestRequestMs', -1],
    ['longestRequestMs', Number.NaN],
  ])('refuses %s %s', (option, value) => {
    expect(() => standard({ [option]: value })).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_INPUT', field: option }),
    )
  })

  test('refuses a retention without end, which no journal can keep as a number', () => {
    expect(() => standard({ keyRetentionMs: Infinity })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_INPUT' }))
  })
})
