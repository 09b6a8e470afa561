/** What a client can be made of, and what is refused before anything is touched. */
import { describe, expect, test } from 'vitest'
import { createBillingClient } from '../src/client.ts'
import { standard } from '../src/dialects/standard.ts'
import { defineWrite, readReceipt, usageWrite } from '../src/model/operation.ts'
import { readOptions } from '../src/options.ts'
import type { BillingClientOptions } from '../src/options.ts'
import { forgetfulJournal } from '../src/stores/memory.ts'

const HOUR_MS = 3_600_000
const journal = forgetfulJournal()
const good: BillingClientOptions = { baseUrl: 'https://api.example.com', scope: 'org_42/live', journal }
const read = (changes: object = {}) => readOptions({ ...good, ...changes })
const refused = (field: string | RegExp): Error =>
  expect.objectContaining({
    code: 'ERR_INVALID_INPUT',
    sentByThisCall: false,
    field: typeof field === 'string' ? field : (expect.stringMatching(field) as string),
  }) as Error

const refund = defineWrite({
  kind: 'refund',
  path: 'v1/refunds',
  method: 'POST',
  readParams: (params: { charge: string }) => params,
  readReceipt,
})

test('the defaults are those that are documented', () => {
  const settings = read()
  expect(settings).toMatchObject({
    baseUrl: 'https://api.example.com/',
    endpoint: 'https://api.example.com/',
    endpointNamed: false,
    scope: 'org_42/live',
    hasFixedHeaders: true,
    credentialsTimeoutMs: 10_000,
    ownsStore: false,
    names: 'shared',
    windowMarginMs: HOUR_MS,
    anyCurrency: false,
    concurrency: 8,
    fetch: undefined,
    policy: {
      maxAttempts: 5,
      attemptTimeoutMs: 30_000,
      deadlineMs: 60_000,
      baseDelayMs: 500,
      maxDelayMs: 30_000,
      maxBackgroundDelayMs: 300_000,
      maxRetryAfterMs: 24 * HOUR_MS,
      alsoStatuses: [],
    },
  })
  expect(settings.store).toBe(journal)
  expect(settings.dialect.name).toBe('standard')
  expect(settings.dialects).toEqual([settings.dialect])
  expect(settings.writes.map((write) => write.kind)).toEqual(['charge', 'usage', 'credits'])
})

test('undefined is the default for every option', () => {
  const {
    store: _,
    dialect: _dialect,
    dialects: _dialects,
    writes: _writes,
    credentials: _credentials,
    ...defaults
  } = read()
  const names = [
    'anyCurrency',
    'concurrency',
    'credentials',
    'credentialsTimeoutMs',
    'dialect',
    'endpoint',
    'fetch',
    'headers',
    'names',
    'olderDialects',
    'retry',
    'windowMarginMs',
    'writes',
  ]
  const undefinedRetry = Object.fromEntries(Object.keys(defaults.policy).map((name) => [name, undefined]))
  expect(read(Object.fromEntries(names.map((name) => [name, undefined])))).toMatchObject(defaults)
  expect(read({ retry: undefinedRetry })).toMatchObject(defaults)
})

test('what is given is taken', async () => {
  const older = standard({ keyFormat: 'quoted' })
  const dialect = standard({ keyRetentionMs: 48 * HOUR_MS })
  const credentials = () => ({ scope: 'org_42/live', headers: {} })
  const fetch = async () => new Response()
  const settings = read({
    endpoint: 'eu',
    credentials,
    credentialsTimeoutMs: 5000,
    dialect,
    olderDialects: [older],
    writes: [refund],
    names: 'own',
    windowMarginMs: 2 * HOUR_MS,
    anyCurrency: true,
    concurrency: 3,
    fetch,
    retry: {
      maxAttempts: 2,
      attemptTimeoutMs: 1000,
      deadlineMs: 5000,
      baseDelayMs: 0,
      maxDelayMs: 10,
      alsoStatuses: [429],
    },
  })
  expect(settings).toMatchObject({
    endpoint: 'eu',
    endpointNamed: true,
    hasFixedHeaders: false,
    credentialsTimeoutMs: 5000,
    names: 'own',
    windowMarginMs: 2 * HOUR_MS,
    anyCurrency: true,
    concurrency: 3,
    fetch,
    policy: {
      maxAttempts: 2,
      attemptTimeoutMs: 1000,
      deadlineMs: 5000,
      baseDelayMs: 0,
      maxDelayMs: 10,
      alsoStatuses: [429],
    },
  })
  expect(settings.credentials).toBe(credentials)
  expect(settings.dialects).toEqual([dialect, older])
  expect(settings.writes.map((write) => write.kind)).toEqual(['charge', 'usage', 'credits', 'refund'])
})

test('headers that never change stand for credentials of the client’s scope', async () => {
  const { credentials } = read({ headers: { Authorization: 'Bearer sk_test', 'X-Trace': 'a' } })
  expect(await credentials({ scope: 'org_42/live', attempt: 1 })).toEqual({
    scope: 'org_42/live',
    headers: { authorization: 'Bearer sk_test', 'x-trace': 'a' },
  })
  const without = read()
  expect(await without.credentials({ scope: 'org_42/live', attempt: 1 })).toEqual({ scope: 'org_42/live', headers: {} })
})

describe('baseUrl', () => {
  test.each([
    ['https://api.example.com', 'https://api.example.com/'],
    ['https://api.example.com/', 'https://api.example.com/'],
    ['HTTPS://API.Example.COM:443', 'https://api.example.com/'],
    ['http://localhost:8080', 'http://localhost:8080/'],
    ['https://api.example.com/billing', 'https://api.example.com/billing/'],
    ['https://api.example.com/billing/', 'https://api.example.com/billing/'],
    ['https://api.example.com/a/../b', 'https://api.example.com/b/'],
    ['https://münchen.example', 'https://xn--mnchen-3ya.example/'],
    ['http://[::1]:3000/x', 'http://[::1]:3000/x/'],
    [new URL('https://api.example.com/v1'), 'https://api.example.com/v1/'],
  ])('%s is %s, so that one address is one endpoint', (baseUrl, normal) => {
    expect(read({ baseUrl })).toMatchObject({ baseUrl: normal, endpoint: normal })
  })

  test.each([
    undefined,
    null,
    '',
    'api.example.com',
    '/v1',
    '//api.example.com',
    'ftp://api.example.com',
    'file:///etc',
    'javascript:alert(1)',
    'data:text/plain,x',
    'https://user@api.example.com',
    'https://user:secret@api.example.com',
    'https://api.example.com?x=1',
    'https://api.example.com/#top',
    'https://',
    {},
    7,
  ])('%j is refused', (baseUrl) => {
    expect(() => read({ baseUrl })).toThrow(refused('baseUrl'))
  })

  test.each(['https://api.example.com/?', 'https://api.example.com/#', 'https://api.example.com/v1?#'])(
    '%s, whose query or fragment is empty, does not swallow the paths behind it',
    (baseUrl) => {
      let normal: string
      try {
        normal = read({ baseUrl }).baseUrl
      } catch (error) {
        expect(error).toMatchObject({ code: 'ERR_INVALID_INPUT' })
        return
      }
      expect(new URL(`${normal}v1/charges`).pathname).toMatch(/\/v1\/charges$/)
    },
  )

  test('a password in it is not in the message', () => {
    expect(() => read({ baseUrl: 'https://user:hunter2@api.example.com' })).toThrow(
      expect.objectContaining({ message: expect.not.stringContaining('hunter2') as string }),
    )
  })
})

describe('each option is refused when it is not usable', () => {
  const fine = (): object => ({ scope: 'org_42/live', headers: {} })
  test.each<[string, readonly unknown[]]>([
    ['scope', [undefined, null, '', 7, 'a\nb', 'x'.repeat(256), 'x\ud83d', {}]],
    ['endpoint', [null, '', 7, 'a\u0000', 'x'.repeat(256)]],
    ['credentials', [null, {}, 'Bearer x', fine()]],
    ['credentialsTimeoutMs', [0, -1, Number.NaN, Infinity, '10', null, 2 ** 31]],
    ['windowMarginMs', [-1, Number.NaN, Infinity, '10', null, 2 ** 31]],
    ['concurrency', [0, -1, 1.5, 101, Number.NaN, '8', null]],
    ['names', [null, '', 'Shared', 'mine', true]],
  ])('%s', (option, values) => {
    for (const value of values) expect(() => read({ [option]: value }), String(value)).toThrow(refused(option))
  })

  test.each<[string, readonly unknown[]]>([
    ['retry', [3, 'none', true]],
    ['retry.maxAttempts', [0, -1, 1.5, 101, Number.NaN, Infinity, '5', null]],
    ['retry.attemptTimeoutMs', [0, -1, Number.NaN, Infinity, '5', null, 2 ** 31]],
    ['retry.deadlineMs', [0, -1, Number.NaN, Infinity, '5', null, 2 ** 31]],
    ['retry.baseDelayMs', [-1, Number.NaN, Infinity, '5', null, 2 ** 31]],
    ['retry.maxDelayMs', [-1, Number.NaN, Infinity, '5', null, 2 ** 31]],
    ['retry.maxBackgroundDelayMs', [-1, Number.NaN, Infinity, '5', null, 2 ** 31]],
    ['retry.maxRetryAfterMs', [-1, Number.NaN, Infinity, '5', null, 24 * HOUR_MS + 1]],
    ['retry.alsoStatuses', [429, '429', ['429'], [399], [500], [429.5], [Number.NaN]]],
  ])('%s', (option, values) => {
    const [, name] = option.split('.')
    for (const value of values) {
      const retry = name === undefined ? value : { [name]: value }
      expect(() => read({ retry }), String(value)).toThrow(refused(option))
    }
  })

  test.each<[string, readonly unknown[]]>([
    ['dialect', ['stripe', {}, standard]],
    ['olderDialects', ['standard', standard(), [null], [{}]]],
    [
      'writes',
      ['refund', refund, [null], [{}], [{ ...refund, readParams: undefined }], [{ ...refund, readReceipt: 'id' }]],
    ],
    ['journal', ['file.sqlite', {}]],
    ['fetch', ['fetch', {}]],
    ['anyCurrency', ['no', 1]],
  ])('%s, also by those who have no types', (option, values) => {
    for (const value of values)
      expect(() => read({ [option]: value }), String(value)).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_INPUT' }),
      )
  })

  test.each([undefined, null, 'https://api.example.com', 7])('options that are no object: %j', (options) => {
    expect(() => readOptions(options as never)).toThrow(refused('options'))
    expect(() => createBillingClient(options as never)).toThrow(refused('options'))
  })
})

describe('headers', () => {
  test.each(['Content-Type', 'content-length', 'Content-Encoding', 'Transfer-Encoding', 'Host', 'Idempotency-Key'])(
    'may not hold %s: it belongs to the stored request',
    (name) => {
      expect(() => read({ headers: { [name]: 'x' } })).toThrow(refused(`headers.${name.toLowerCase()}`))
    },
  )

  test('may not hold the key header that a dialect of one’s own has', () => {
    const dialect = { ...standard(), keyHeader: (key: string) => ({ name: 'PayPal-Request-Id', value: key }) }
    expect(() => read({ dialect, headers: { 'paypal-request-id': 'x' } })).toThrow(refused('headers.paypal-request-id'))
    expect(() => read({ dialect, headers: { 'idempotency-key': 'x' } })).toThrow(refused('headers.idempotency-key'))
  })

  test.each([
    ['x y', 'a'],
    ['', 'a'],
    ['x-name', 'a\nb'],
    ['x-name', 'naïve…'],
    ['x-name', 7],
    ['x-name', undefined],
  ])('may not hold what HTTP cannot carry: %j: %j', (name, value) => {
    expect(() => read({ headers: { [name]: value } })).toThrow(refused(/^headers\./))
  })

  test('that are refused are not quoted', () => {
    expect(() => read({ headers: { authorization: 'Bearer hunter2\n2' } })).toThrow(
      expect.objectContaining({ message: expect.not.stringContaining('hunter2') as string }),
    )
  })

  test.each([
    ['Idempotency-Key', 'x'],
    ['idempotency-key', 'x'],
    ['Content-Type', 'text/plain'],
    ['content-length', '7'],
    ['x-version', 'a\nb'],
  ])('frozen by a dialect may hold no more of it: %s', (name, value) => {
    const headers = { [name]: value }
    for (const dialectOf of [() => standard({ headers }), () => ({ ...standard(), headers })])
      expect(() => read({ dialect: dialectOf() })).toThrow(refused(`headers.${name.toLowerCase()}`))
    expect(() => read({ dialect: standard({ headers: { 'api-version': '2026-01-01' } }) })).not.toThrow()
  })

  test('and credentials exclude each other', () => {
    expect(() => read({ headers: {}, credentials: () => ({ scope: 'org_42/live', headers: {} }) })).toThrow(
      refused('headers'),
    )
  })
})

describe('names that are not known are refused: a default would silently stay in force', () => {
  test.each([
    'baseURL',
    'base_url',
    'timeout',
    'apiKey',
    'store',
    'prefixUrl',
    'hooks',
    'maxAttempts',
    'idempotencyKey',
    '',
  ])('%j', (name) => {
    expect(() => read({ [name]: 1 })).toThrow(refused(name))
    expect(() => createBillingClient({ ...good, [name]: undefined })).toThrow(refused(name))
  })

  test.each([
    ['ky', { limit: 3 }],
    ['ky', { statusCodes: [503] }],
    ['ky', { methods: ['post'] }],
    ['ky', { retryOnTimeout: true }],
    ['ky and got', { backoffLimit: 3000 }],
    ['p-retry', { retries: 3 }],
    ['p-retry', { minTimeout: 100, maxTimeout: 1000, factor: 2 }],
    ['p-retry', { forever: true }],
    ['axios-retry', { retryDelay: () => 0 }],
    ['axios-retry', { shouldResetTimeout: true }],
    ['Stripe', { maxNetworkRetries: 2 }],
  ])('G33: retry options of %s: %o', (_, retry) => {
    expect(() => read({ retry })).toThrow(refused(`retry.${Object.keys(retry)[0]}`))
  })

  test.each([3, false, 'always'])('G33: the retry option of a library that takes %j', (retry) => {
    expect(() => read({ retry })).toThrow(refused('retry'))
  })
})

describe('writes', () => {
  test.each([
    ['one of the library’s kinds', [usageWrite]],
    ['the same twice', [refund, { ...refund }]],
  ])('of one kind are refused: %s', (_, writes) => {
    expect(() => read({ writes })).toThrow(refused('writes'))
  })

  test('are checked as defineWrite checks them', () => {
    expect(() => read({ writes: [{ ...refund, path: '/v1/refunds' }] })).toThrow(refused('path'))
    expect(() => read({ writes: [{ ...refund, method: 'DELETE' }] })).toThrow(refused('method'))
  })
})

describe('a policy has to fit the time the receiver remembers a key', () => {
  test('the margin is never less than the longest request of the receiver', () => {
    expect(read({ windowMarginMs: 0 }).windowMarginMs).toBe(120_000)
    expect(read({ windowMarginMs: 0, dialect: standard({ longestRequestMs: 300_000 }) }).windowMarginMs).toBe(300_000)
    expect(read({ windowMarginMs: 180_000 }).windowMarginMs).toBe(180_000)
  })

  test.each<[string, object]>([
    ['a margin as long as the retention', { windowMarginMs: 24 * HOUR_MS }],
    ['a retention shorter than the default margin', { dialect: standard({ keyRetentionMs: HOUR_MS }) }],
    [
      'a retention of what is left after the margin',
      { dialect: standard({ keyRetentionMs: 200_000 }), windowMarginMs: 0 },
    ],
    ['background waits longer than the window', { retry: { maxBackgroundDelayMs: 23 * HOUR_MS + 1 } }],
    ['a call longer than the window', { retry: { deadlineMs: 24 * HOUR_MS, attemptTimeoutMs: 24 * HOUR_MS } }],
    [
      'a receiver that publishes nothing',
      { dialect: standard({ keyRetentionMs: 'unpublished' }), windowMarginMs: 12 * HOUR_MS },
    ],
    ['a receiver that works too long', { dialect: standard({ keyRetentionMs: HOUR_MS, longestRequestMs: HOUR_MS }) }],
  ])('%s is refused', (_, changes) => {
    expect(() => read(changes)).toThrow(refused('retry'))
    expect(() => createBillingClient({ ...good, ...changes })).toThrow(refused('retry'))
  })

  test.each<[string, object]>([
    ['background waits as long as the window', { retry: { maxBackgroundDelayMs: 23 * HOUR_MS } }],
    [
      'five minutes of waits in what six minutes leave',
      { dialect: standard({ keyRetentionMs: 420_000 }), windowMarginMs: 0 },
    ],
    [
      'a minute, for a policy that is short',
      {
        dialect: standard({ keyRetentionMs: 180_000 }),
        windowMarginMs: 0,
        retry: { maxBackgroundDelayMs: 10_000, deadlineMs: 20_000, attemptTimeoutMs: 5000 },
      },
    ],
  ])('%s fits', (_, changes) => {
    expect(() => read(changes)).not.toThrow()
  })

  test('each write is looked at: a receiver may remember the keys of one kind for a shorter time', () => {
    const dialect = { ...standard(), keyRetentionMs: (kind: string) => (kind === 'refund' ? HOUR_MS : 24 * HOUR_MS) }
    expect(() => read({ dialect })).not.toThrow()
    expect(() => read({ dialect, writes: [refund] })).toThrow(
      expect.objectContaining({ field: 'retry', message: expect.stringContaining('refund') as string }),
    )
  })

  test('a receiver whose keys are shorter than ours is refused, or every write would be', () => {
    expect(() => read({ dialect: standard({ maxKeyLength: 35 }) })).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_INPUT' }),
    )
    expect(() => read({ dialect: standard({ maxKeyLength: 36 }) })).not.toThrow()
  })
})

test('options are not changed, and what is changed in them later changes nothing', () => {
  const headers = { authorization: 'Bearer sk_test' }
  const retry = { maxAttempts: 2, alsoStatuses: [429] }
  const writes = [refund]
  const given = Object.freeze({ ...good, headers: Object.freeze(headers), retry, writes })
  const settings = readOptions(given)
  retry.maxAttempts = 99
  retry.alsoStatuses.push(422)
  writes.push({ ...refund, kind: 'another' })
  expect(settings.policy).toMatchObject({ maxAttempts: 2, alsoStatuses: [429] })
  expect(settings.writes).toHaveLength(4)
})
