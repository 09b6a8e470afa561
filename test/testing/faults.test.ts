/** Every fault in fetch form, which request it hits, and that chance is fixed by its seed. */
import { describe, expect, test } from 'vitest'
import {
  chaos,
  crashAt,
  createReceiver,
  cutBody,
  delay,
  forgetKeys,
  interceptionPage,
  loseReply,
  loseRequest,
  manualClock,
  redirect,
  resetAfter,
  resetBefore,
  savedFailure,
  slowConflict,
  stall,
  status,
  wrongReceipt,
  type Fault,
  type ReceiverOptions,
} from 'billonce/testing'
import { charge, post, shortOf, type PostOptions } from './post.ts'

function setUp(faults: Fault[], options: ReceiverOptions = {}) {
  const clock = manualClock()
  const receiver = createReceiver({ faults, clock, ...options })
  const ask = async (asked?: PostOptions) => shortOf(await post(receiver.fetch, asked))
  const fates = () => receiver.ledger.requests.map(({ did }) => did)
  return { receiver, clock, ask, fates, ledger: receiver.ledger }
}

const settle = () => new Promise((resolve) => setTimeout(resolve))

describe('the connection', () => {
  test.each([
    ['loseRequest', loseRequest, 'lost', 'closed', 0],
    ['resetBefore', resetBefore, 'turned-away', 'reset', 0],
    ['loseReply', loseReply, 'executed', 'closed', 1],
    ['resetAfter', resetAfter, 'executed', 'reset', 1],
  ] as const)('%s rejects as fetch does, and the next request comes through', async (_, fault, did, how, effects) => {
    const { ask, ledger } = setUp([fault({ attempt: 1 })])
    await expect(ask()).rejects.toThrow(TypeError)
    expect(ledger.effects).toHaveLength(effects)
    expect(ledger.requests[0]).toMatchObject({ did, sent: { how }, faults: [expect.any(String)] })
    expect(await ask()).toEqual({ status: 200, id: 'ch_000001', replayed: effects === 1 })
    expect(ledger.effects).toHaveLength(1)
  })

  test('cutBody gives headers and a part, then the stream fails', async () => {
    const { receiver, ask } = setUp([cutBody({ attempt: 1 })])
    const answer = await post(receiver.fetch)
    expect(answer.status).toBe(200)
    const reader = answer.body?.getReader()
    expect(new TextDecoder().decode((await reader?.read())?.value)).toBe('{"id":"ch_')
    await expect(reader?.read()).rejects.toThrow(TypeError)
    expect(Number(answer.headers.get('content-length'))).toBeGreaterThan(10)
    expect(await ask()).toMatchObject({ status: 200, replayed: true })
  })

  test('cutBody in chunks gives JSON that parses, then the stream fails', async () => {
    const { receiver } = setUp([cutBody({ framing: 'chunked', attempt: 1 })])
    const answer = await post(receiver.fetch)
    const reader = answer.body?.getReader()
    expect(JSON.parse(new TextDecoder().decode((await reader?.read())?.value))).toMatchObject({ id: 'ch_000001' })
    await expect(reader?.read()).rejects.toThrow(TypeError)
    await expect((await post(createReceiver({ faults: [cutBody({ keepBytes: 0 })] }).fetch)).text()).rejects.toThrow(
      TypeError,
    )
  })

  test.each([true, false])('stall is silent until the client gives up; afterEffect %s', async (afterEffect) => {
    const { receiver, ledger } = setUp([stall({ attempt: 1, afterEffect })])
    const giving = new AbortController()
    const asked = post(receiver.fetch, { signal: giving.signal })
    await settle()
    expect(ledger.effects).toHaveLength(afterEffect ? 1 : 0)
    giving.abort('enough')
    await expect(asked).rejects.toBe('enough')
    expect(ledger.requests[0]?.sent).toEqual({ how: 'stalled' })
  })

  test('stall after the headers gives a body that never comes', async () => {
    const { receiver } = setUp([stall({ after: 'headers' })])
    const giving = new AbortController()
    const answer = await post(receiver.fetch, { signal: giving.signal })
    expect(answer.status).toBe(200)
    // By a reader, since Chromium's `text()` makes a TypeError of whatever a stream fails with.
    const read = answer.body?.getReader().read()
    giving.abort(new Error('enough'))
    await expect(read).rejects.toThrow('enough')
  })
})

describe('other answers', () => {
  test.each([
    ['502 of a gateway after the effect', status(502, { attempt: 1, afterEffect: true }), 502, 'text/html', 1],
    ['504 before the effect', status(504, { attempt: 1 }), 504, 'text/html', 0],
    [
      '429',
      status(429, { attempt: 1, headers: { 'Retry-After': '2' }, body: { error: { code: 'slow' } } }),
      429,
      'application/json',
      0,
    ],
    [
      '401 in front of the key',
      status(401, { attempt: 1, body: 'no', contentType: 'text/plain' }),
      401,
      'text/plain',
      0,
    ],
    ['an interception page', interceptionPage({ attempt: 1 }), 200, 'text/html', 0],
    ['nothing at all, 204', status(204, { attempt: 1 }), 204, null, 0],
    ['an empty 200', status(200, { attempt: 1, body: '' }), 200, null, 0],
  ] as const)('%s', async (_, fault, code, type, effects) => {
    const { receiver, ask, ledger } = setUp([fault])
    const answer = await post(receiver.fetch)
    expect(answer.status).toBe(code)
    expect(answer.headers.get('content-type')).toBe(type)
    expect(answer.headers.get('retry-after')).toBe(code === 429 ? '2' : null)
    await answer.text()
    expect(ledger.effects).toHaveLength(effects)
    expect(await ask()).toEqual({ status: 200, id: 'ch_000001', replayed: effects === 1 })
  })

  test('redirects are handed out, refused or followed, as the request says', async () => {
    const to = (code: number) => redirect('/moved/v1/charges', { code, attempt: 1 })
    const manual = setUp([to(307)])
    const answer = await post(manual.receiver.fetch, { redirect: 'manual' })
    expect([answer.status, answer.headers.get('location')]).toEqual([307, '/moved/v1/charges'])
    await expect(post(setUp([to(307)]).receiver.fetch, { redirect: 'error' })).rejects.toThrow(TypeError)

    const followed = setUp([to(308)])
    expect((await post(followed.receiver.fetch)).status).toBe(200)
    expect(followed.ledger.requests[1]).toMatchObject({ method: 'POST', path: '/moved/v1/charges', key: 'k1' })
    const turned = setUp([to(302)])
    expect((await post(turned.receiver.fetch)).status).toBe(405)
    expect(turned.ledger.requests[1]).toMatchObject({ method: 'GET', body: '' })
  })
})

describe('the receiver', () => {
  test.each([false, true])('saves a failure and replays it, marked; afterEffect %s', async (afterEffect) => {
    const { ask, fates, ledger } = setUp([savedFailure(503, { attempt: 1, afterEffect })])
    expect(await ask()).toEqual({ status: 503, code: 'internal_error', replayed: false })
    expect(await ask()).toEqual({ status: 503, code: 'internal_error', replayed: true })
    expect(ledger.effects).toHaveLength(afterEffect ? 1 : 0)
    expect(fates()).toEqual(['failed', 'replayed'])
  })

  test('is busy for so many requests, while its effect is made, then replays', async () => {
    const { receiver, ask, fates, ledger } = setUp([slowConflict({ attempts: 3, attempt: 1, retryAfterSeconds: 7 })])
    for (let at = 0; at < 3; at++) {
      const answer = await post(receiver.fetch)
      expect([answer.status, answer.headers.get('retry-after')]).toEqual([409, '7'])
      expect(ledger.effects).toHaveLength(1)
    }
    expect(await ask()).toEqual({ status: 200, id: 'ch_000001', replayed: true })
    expect(fates()).toEqual(['executed', 'busy', 'busy', 'replayed'])
  })

  test('is busy for so long, and a crash ends it', async () => {
    const { receiver, clock, ask } = setUp([slowConflict({ ms: 40_000, attempt: 1 })])
    for (let at = 0; at < 4; at++) {
      expect(await ask()).toMatchObject({ status: 409 })
      clock.advance(10_000)
    }
    expect(await ask()).toMatchObject({ status: 200, replayed: true })

    expect(await ask({ key: 'k2' })).toMatchObject({ status: 409 })
    expect(receiver.keyState('k2')).toMatchObject({ inProgress: true, recoveryPoint: 'effect-made' })
    receiver.crash()
    expect(await ask({ key: 'k2' })).toEqual({ status: 200, id: 'ch_000002', replayed: false })
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('takes its time', async () => {
    const { clock, ask } = setUp([delay(5000, { attempt: 1 })])
    const first = ask()
    await settle()
    expect(await ask()).toMatchObject({ status: 409 })
    clock.advance(5000)
    expect(await first).toMatchObject({ status: 200, replayed: false })
  })

  test('forgets a key, or all of them', async () => {
    const { ask, ledger } = setUp([forgetKeys({ attempt: 2, key: 'k1' }), forgetKeys({ key: 'k3', all: true })])
    await ask()
    await ask({ key: 'k2' })
    expect(await ask()).toMatchObject({ id: 'ch_000003', replayed: false })
    expect(await ask({ key: 'k2' })).toMatchObject({ replayed: true })
    await ask({ key: 'k3' })
    expect(await ask({ key: 'k2' })).toMatchObject({ id: 'ch_000005', replayed: false })
    expect(ledger.summary().chargedTwice).toEqual({ usd: 20_000 })
  })

  test('gives a wrong receipt, also when asked again; the effect is as asked', async () => {
    const { receiver, ledger } = setUp([wrongReceipt({ attempt: 1, fields: { amount: 1, currency: 'eur' } })])
    for (let at = 0; at < 2; at++) {
      expect(await (await post(receiver.fetch)).json()).toMatchObject({ id: 'ch_000001', amount: 1, currency: 'eur' })
    }
    expect(ledger.effects).toMatchObject([{ params: charge, receipt: { amount: 5000 } }])
  })

  test.each([
    ['started', { did: 'executed', replayed: false, effectsAtCrash: 0 }],
    ['effect-made', { did: 'resumed', replayed: false, effectsAtCrash: 1 }],
    ['finished', { did: 'replayed', replayed: true, effectsAtCrash: 1 }],
  ] as const)('crashes at «%s» and resumes from there', async (point, { did, replayed, effectsAtCrash }) => {
    const { receiver, ask, fates, ledger } = setUp([crashAt(point, { attempt: 1 })])
    await expect(ask()).rejects.toThrow(TypeError)
    expect(ledger.effects).toHaveLength(effectsAtCrash)
    expect(receiver.keyState('k1')).toMatchObject({ recoveryPoint: point, inProgress: false })
    expect(await ask({ body: { ...charge, amount: 1 } })).toMatchObject({ status: 422 })
    expect(await ask()).toEqual({ status: 200, id: 'ch_000001', replayed })
    expect(fates()).toEqual(['crashed', 'mismatch', did])
    expect(ledger.effects).toHaveLength(1)
  })

  test('takes the others down with it when it crashes', async () => {
    const { clock, ask, ledger } = setUp([crashAt('started', { key: 'k2' })], { latencyMs: 1000 })
    const bystander = ask()
    await settle()
    await expect(ask({ key: 'k2' })).rejects.toThrow(TypeError)
    await expect(bystander).rejects.toThrow(TypeError)
    clock.advance(1000)
    expect(ledger.effects).toHaveLength(0)
  })
})

describe('a target', () => {
  const hits = async (fault: Fault, asked: PostOptions[]): Promise<boolean[]> => {
    const { receiver } = setUp([fault])
    const results: boolean[] = []
    for (const options of asked) {
      results.push(
        await post(receiver.fetch, options).then(
          () => false,
          () => true,
        ),
      )
    }
    return results
  }
  const [k1, k2] = [{ key: 'k1' }, { key: 'k2' }]

  test.each([
    ['an attempt of each key', { attempt: 2 }, [k1, k2, k1, k2, k1], [false, false, true, true, false]],
    ['several attempts', { attempt: [1, 3] }, [k1, k1, k1, k1], [true, false, true, false]],
    ['a request of all', { request: 2 }, [k1, k2, k1], [false, true, false]],
    ['a key', { key: 'k2' }, [k1, k2, k1], [false, true, false]],
    ['a kind', { kind: 'usage' }, [k1, { ...k2, path: 'v1/usage' }], [false, true]],
    ['so many times', { times: 2 }, [k1, k2, k1], [true, true, false]],
    ['so many times a key', { timesPerKey: 1 }, [k1, k2, k1, k2], [true, true, false, false]],
    [
      'what a predicate says',
      { when: ({ body }: { body: string }) => body.includes('5000') },
      [k1, { ...k2, body: '{}' }],
      [true, false],
    ],
    ['all conditions together', { key: 'k1', attempt: 2 }, [k1, k2, k2, k1], [false, false, false, true]],
    ['never', { probability: 0 }, [k1, k2], [false, false]],
    ['always', { probability: 1 }, [k1, k2], [true, true]],
    ['everything', {}, [k1, k2], [true, true]],
  ])('hits %s', async (_, target, asked, expected) => {
    expect(await hits(loseRequest(target), asked)).toEqual(expected)
  })

  test('that can never hit is refused', () => {
    expect(() => loseReply({ attempt: 0 })).toThrow(RangeError)
    expect(() => loseReply({ request: [1, 1.5] })).toThrow(RangeError)
    expect(() => loseReply({ times: -1 })).toThrow(RangeError)
    expect(() => loseReply({ probability: 30 })).toThrow(RangeError)
    expect(() => chaos({ probability: Number.NaN })).toThrow(RangeError)
    expect(() => status(101)).toThrow(RangeError)
    expect(() => savedFailure(402)).toThrow(RangeError)
    expect(() => slowConflict({ attempt: 1 })).toThrow(RangeError)
    expect(() => chaos({ faults: [] })).toThrow(RangeError)
  })

  test('is used up only by a request that it hit', async () => {
    const { receiver, ask } = setUp([loseRequest({ attempt: 1 }), loseReply({ times: 1 })])
    await expect(ask()).rejects.toThrow(TypeError)
    await expect(ask()).rejects.toThrow(TypeError)
    expect(receiver.ledger.requests.map(({ faults }) => faults)).toEqual([['lose-request'], ['lose-reply']])
  })

  test('several faults may hit one request: inside and on the way back', async () => {
    const { receiver, ask } = setUp([
      savedFailure(500, { attempt: 1 }),
      loseReply({ attempt: 1 }),
      resetAfter({ attempt: 1 }),
    ])
    await expect(ask()).rejects.toThrow(TypeError)
    expect(receiver.ledger.requests[0]?.faults).toEqual(['saved-failure', 'lose-reply'])
    expect(await ask()).toEqual({ status: 500, code: 'internal_error', replayed: true })
  })

  test('may come and go while the receiver runs, and one fault serves several receivers', async () => {
    const lost = loseReply({ times: 1 })
    for (let at = 0; at < 2; at++) {
      const { receiver, ask } = setUp([lost])
      await expect(ask()).rejects.toThrow(TypeError)
      expect((await ask()).status).toBe(200)
      const busy = status(503)
      receiver.faults.add(busy, status(502))
      expect((await post(receiver.fetch)).status).toBe(503)
      receiver.faults.remove(busy)
      expect((await post(receiver.fetch)).status).toBe(502)
      receiver.faults.clear()
      expect(receiver.faults.list).toEqual([])
      expect((await ask()).status).toBe(200)
    }
  })
})

describe('chance', () => {
  /** Which faults hit each key's attempts, asked in the given order of keys. */
  const run = async (fault: Fault, keys: string[]): Promise<Record<string, string[]>> => {
    const { receiver } = setUp([fault])
    for (const key of keys) {
      await post(receiver.fetch, { key })
        .then((answer) => answer.text())
        .catch(() => {})
    }
    const seen: Record<string, string[]> = {}
    for (const { key = '', faults } of receiver.ledger.requests) (seen[key] ??= []).push(faults.join())
    return seen
  }
  const keys = Array.from({ length: 40 }, (_, at) => `key-${at}`)
  const inTurns = Array.from({ length: 5 }, () => keys).flat()
  const oneByOne = keys.flatMap((key) => Array.from({ length: 5 }, () => key))

  test('is fixed by seed, key and attempt, whatever runs beside it', async () => {
    const first = await run(chaos({ seed: 7 }), inTurns)
    expect(await run(chaos({ seed: 7 }), oneByOne)).toEqual(first)
    expect(await run(chaos({ seed: 8 }), inTurns)).not.toEqual(first)
  })

  test('hits about the share that it should, and another one for each kind of fault', async () => {
    const many = Array.from({ length: 2000 }, (_, at) => `key-${at}`)
    const share = async (fault: Fault) =>
      Object.values(await run(fault, many)).filter(([hit]) => hit !== '').length / 2000
    expect(await share(loseRequest({ probability: 0.25 }))).toBeCloseTo(0.25, 1)
    const lost = await run(loseRequest({ probability: 0.5 }), many)
    const reset = await run(resetBefore({ probability: 0.5 }), many)
    const both = many.filter((key) => lost[key]?.[0] !== '' && reset[key]?.[0] !== '').length
    expect(both / 2000).toBeCloseTo(0.25, 1)
  })

  test('in a mix comes to an end for each key, and uses all of the mix', async () => {
    const { receiver } = setUp([chaos({ probability: 1, timesPerKey: 4 })])
    const seen = new Set<string>()
    for (const key of keys) {
      for (let attempt = 1; attempt <= 4; attempt++) await post(receiver.fetch, { key }).catch(() => {})
      expect((await post(receiver.fetch, { key })).status).toBe(200)
    }
    for (const { faults } of receiver.ledger.requests) for (const name of faults) seen.add(name)
    expect([...seen].sort()).toEqual(
      ['cut-body', 'lose-reply', 'lose-request', 'reset-after', 'reset-before', 'slow-conflict', 'status'].sort(),
    )
    expect(receiver.ledger.effects).toHaveLength(keys.length)
  })

  test('chooses among the faults whose own target holds', async () => {
    const seen = await run(
      chaos({
        probability: 1,
        timesPerKey: 9,
        faults: [loseRequest({ attempt: 1 }), loseReply({ attempt: [2, 3], times: 1 })],
      }),
      ['a', 'a', 'a'],
    )
    expect(seen).toEqual({ a: ['lose-request', 'lose-reply', ''] })
  })
})
