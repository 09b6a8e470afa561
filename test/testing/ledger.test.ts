/** What the ledger can be asked. */
import { describe, expect, test } from 'vitest'
import { businessNameOf, createReceiver, forgetKeys, loseReply, loseRequest, manualClock } from 'billonce/testing'
import { charge, post } from './post.ts'

describe('the ledger', () => {
  test('sees a client that makes a new key for each try charge twice', async () => {
    const { fetch, ledger } = createReceiver({ faults: [loseReply({ request: 1 })] })
    await post(fetch, { key: 'first' }).catch(() => post(fetch, { key: 'second' }))
    await post(fetch, { key: 'other', body: { ...charge, metadata: { operation: 'order-2' } } })
    expect(ledger.duplicates()).toMatchObject([
      { name: 'order-1', kind: 'charge', account: 'anonymous', effects: [{ key: 'first' }, { key: 'second' }] },
    ])
    expect(ledger.summary()).toMatchObject({
      effects: 3,
      duplicates: 1,
      charged: { usd: 15_000 },
      chargedTwice: { usd: 5000 },
    })
  })

  test('goes by key where there is no business name', async () => {
    const { fetch, ledger } = createReceiver({ faults: [forgetKeys({ attempt: 2 })] })
    const nameless = { body: { amount: 5, currency: 'usd' } }
    await post(fetch, nameless)
    await post(fetch, nameless)
    await post(fetch, { ...nameless, key: 'k2' })
    expect(ledger.duplicates()).toMatchObject([{ name: 'k1', effects: [{}, {}] }])
    expect(businessNameOf({ params: { metadata: null }, key: 'k' })).toBe('k')
    expect(businessNameOf({ params: { metadata: { operation: 7 } } })).toBeUndefined()
  })

  test('takes names of your own, and keeps kinds and accounts apart', async () => {
    const { fetch, ledger } = createReceiver({ accounts: { a: 'A', b: 'B' } })
    await post(fetch, { token: 'a', key: '1' })
    await post(fetch, { token: 'b', key: '2' })
    await post(fetch, { token: 'a', key: '3', path: 'v1/credits/consume' })
    expect(ledger.duplicates()).toEqual([])
    await post(fetch, { token: 'a', key: '4', body: { ...charge, metadata: { operation: 'order-2' } } })
    expect(ledger.duplicates(({ params }) => String(params['customer']))).toMatchObject([
      { name: 'cus_1', kind: 'charge', account: 'A', effects: [{ key: '1' }, { key: '4' }] },
    ])
    expect(ledger.duplicates(() => undefined)).toEqual([])
  })

  test('finds requests and effects by kind, key, account and name', async () => {
    const { fetch, ledger } = createReceiver({ faults: [loseRequest({ attempt: 1, key: 'k1' })] })
    await post(fetch).catch(() => post(fetch))
    await post(fetch, { key: 'u', path: 'v1/usage', body: { meter: 'm', quantity: 1 } })
    await post(fetch, { key: 'bad', body: '[' })
    expect(ledger.requestsOf({ name: 'order-1' })).toHaveLength(2)
    expect(ledger.requestsOf({ key: 'bad', kind: 'charge' })).toMatchObject([{ did: 'invalid' }])
    expect(ledger.effectsOf({ kind: 'usage' })).toMatchObject([{ key: 'u' }])
    expect(ledger.effectsOf({ name: 'order-1', account: 'anonymous' })).toHaveLength(1)
    expect(ledger.effectsOf({ name: 'order-2' })).toEqual([])
    expect(ledger.summary().fates).toEqual({ lost: 1, executed: 2, invalid: 1 })
  })

  test('keeps exact bytes, times and what went back', async () => {
    const clock = manualClock(1000)
    const { fetch, ledger } = createReceiver({ clock })
    const body = '{ "amount": 5.0e1,\n"currency":"usd" }'
    const answer = await post(fetch, { body, headers: { 'x-api-key': 's3cret', traceparent: '00-1' } })
    expect(ledger.requests).toMatchObject([
      {
        atMs: 1000,
        method: 'POST',
        path: '/v1/charges',
        body,
        headers: { 'x-api-key': '[withheld]', traceparent: '00-1' },
        sent: { how: 'reply', status: 200, body: await answer.text() },
      },
    ])
  })

  test('does not add up wrongly: a sum beyond 2^53 - 1 is an error', async () => {
    const { fetch, ledger } = createReceiver()
    await post(fetch, { key: 'a', body: { ...charge, amount: Number.MAX_SAFE_INTEGER } })
    expect(ledger.summary().charged).toEqual({ usd: Number.MAX_SAFE_INTEGER })
    await post(fetch, { key: 'b', body: { ...charge, amount: 1 } })
    expect(() => ledger.summary()).toThrow(RangeError)
  })

  test('begins again when cleared, while keys are kept', async () => {
    const { fetch, ledger } = createReceiver()
    await post(fetch)
    ledger.clear()
    await post(fetch)
    expect(ledger.effects).toHaveLength(0)
    expect(ledger.requests).toMatchObject([{ number: 1, attempt: 1, did: 'replayed' }])
  })
})
