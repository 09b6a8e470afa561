/** Spans and metrics, with the real SDKs: what a trace of a busy day shows, and that nothing is left open. */
import { context, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api'
import type { ReadableSpan } from '@opentelemetry/sdk-trace'
import type { MetricData } from '@opentelemetry/sdk-metrics'
import type { BillingEvent, Listener } from 'billonce'
import { instrument, operationContextOf } from 'billonce/opentelemetry'
import { loseReply, stall } from 'billonce/testing'
import { describe, expect, test } from 'vitest'
import { coffee, pass, setUp, settled, virtualTime } from '../support/world.ts'
import { liveThroughADay } from './busy-day.ts'
import { asyncContext, telemetry } from './telemetry.ts'

virtualTime()
asyncContext()

const order = { operationId: 'order-1' }

const of = (spans: readonly ReadableSpan[], key: string, name: RegExp): ReadableSpan[] =>
  spans.filter((span) => span.attributes['billonce.key'] === key && name.test(span.name))

describe('a busy day', () => {
  test('is told by spans: a delivery each, its attempts below it, all of a key linked', async () => {
    const processes = new Map<string, ReturnType<typeof telemetry>>()
    const { keys } = await liveThroughADay((billing, process) => {
      const seen = telemetry()
      processes.set(process, seen)
      instrument(billing, seen)
    })
    const all = [...processes.values()].flatMap((process) => process.spans())
    for (const process of processes.values()) expect(process.begun()).toBe(process.spans().length)

    // A reply that was lost, asked for again.
    const [lost, ...more] = of(all, keys.lost, /^deliver charge$/)
    expect(more).toEqual([])
    expect(lost).toMatchObject({
      kind: SpanKind.INTERNAL,
      status: { code: SpanStatusCode.UNSET },
      attributes: {
        'billonce.kind': 'charge',
        'billonce.revision': 1,
        'billonce.state': 'succeeded',
        'billonce.attempts': 2,
        'billonce.age_ms': expect.any(Number),
        'billonce.headroom_ms': expect.any(Number),
      },
    })
    expect(lost?.events.map(({ name }) => name)).toEqual(['retry-scheduled', 'state'])
    const attempts = of(all, keys.lost, /^attempt charge$/)
    expect(attempts).toMatchObject([
      {
        kind: SpanKind.CLIENT,
        status: { code: SpanStatusCode.ERROR },
        attributes: { 'billonce.attempt': 1, 'billonce.result': 'unclear', 'error.type': 'network' },
      },
      {
        status: { code: SpanStatusCode.UNSET },
        attributes: {
          'billonce.attempt': 2,
          'billonce.result': 'succeeded',
          'billonce.replay': true,
          'http.response.status_code': 200,
        },
      },
    ])
    for (const attempt of attempts) {
      expect(attempt.parentSpanContext?.spanId).toBe(lost?.spanContext().spanId)
      expect(attempt.spanContext().traceId).toBe(lost?.spanContext().traceId)
    }

    expect(of(all, keys.overloaded, /^attempt/)).toMatchObject([
      { attributes: { 'http.response.status_code': 503, 'error.type': 'server-error' } },
      { attributes: { 'billonce.result': 'succeeded' } },
    ])

    // A decline is an answer, not an error.
    expect(of(all, keys.declined, /./)).toMatchObject([
      {
        name: 'attempt charge',
        status: { code: SpanStatusCode.UNSET },
        attributes: { 'billonce.result': 'refused', 'http.response.status_code': 402 },
      },
      {
        name: 'deliver charge',
        status: { code: SpanStatusCode.UNSET },
        attributes: { 'billonce.state': 'rejected', 'billonce.reason': 'declined' },
      },
    ])

    // Two processes, two traces, one link.
    const before = of(processes.get('first')!.spans(), keys.restarted, /^deliver/)
    const after = of(processes.get('second')!.spans(), keys.restarted, /^deliver/)
    expect(before).toMatchObject([{ attributes: { 'billonce.state': 'sending', 'billonce.attempts': 2 } }])
    expect(after).toMatchObject([{ attributes: { 'billonce.state': 'succeeded', 'billonce.attempts': 1 } }])
    expect(before[0]?.spanContext().traceId).not.toBe(after[0]?.spanContext().traceId)
    const links = [...before, ...after].map(({ links: [link] }) => link?.context.traceId)
    const traceId = keys.restarted.replaceAll('-', '')
    expect(links).toEqual([traceId, traceId])
    expect(after[0]?.attributes['billonce.age_ms']).toBeGreaterThanOrEqual(150_000)

    // What could not be written down.
    expect(of(processes.get('third')!.spans(), keys.unrecorded, /./)).toMatchObject([
      {
        name: 'attempt charge',
        status: { code: SpanStatusCode.ERROR },
        attributes: { 'billonce.result': 'unrecorded', 'http.response.status_code': 200 },
      },
      { name: 'deliver charge', events: [{ name: 'storage-fault', attributes: { 'billonce.step': 'record' } }] },
    ])

    // Settled without an attempt: the window's end, then evidence.
    expect(of(all, keys.evidence, /^deliver/).slice(1)).toMatchObject([
      {
        status: { code: SpanStatusCode.ERROR },
        attributes: { 'billonce.state': 'unknown', 'billonce.reason': 'window-over', 'error.type': 'window-over' },
      },
      { status: { code: SpanStatusCode.UNSET }, attributes: { 'billonce.state': 'succeeded' } },
    ])
  })

  test('is counted and measured', async () => {
    const seen = telemetry()
    const told: BillingEvent[] = []
    await liveThroughADay((billing) => {
      instrument(billing, seen)
      billing.subscribe((event) => told.push(event))
    })
    const metrics = await seen.metrics()
    const named = (name: string): MetricData => metrics.find(({ descriptor }) => descriptor.name === name)!
    const sum = (name: string, where: object = {}): number =>
      named(name)
        .dataPoints.filter(({ attributes }) =>
          Object.entries(where).every(([attribute, value]) => attributes[attribute] === value),
        )
        .reduce(
          (total, { value }) => total + (typeof value === 'number' ? value : (value as { count: number }).count),
          0,
        )
    const count = (type: BillingEvent['type']): number => told.filter((event) => event.type === type).length

    expect(sum('billonce.operations.opened')).toBe(8)
    expect(sum('billonce.operations', { 'billonce.kind': 'charge', 'billonce.state': 'succeeded' })).toBe(5)
    expect(sum('billonce.operations', { 'billonce.state': 'rejected', 'billonce.reason': 'declined' })).toBe(1)
    expect(sum('billonce.operations', { 'billonce.state': 'unknown', 'billonce.reason': 'window-over' })).toBe(1)
    expect(sum('billonce.attempts')).toBe(count('attempt-began'))
    expect(sum('billonce.attempts', { 'http.response.status_code': 503 })).toBe(1)
    expect(sum('billonce.attempts', { 'billonce.replay': true })).toBeGreaterThanOrEqual(3)
    expect(sum('billonce.attempts', { 'billonce.result': 'refused' })).toBe(1)
    expect(sum('billonce.retries', { 'billonce.by': 'call' })).toBeGreaterThanOrEqual(3)
    expect(sum('billonce.retries', { 'billonce.by': 'background' })).toBeGreaterThanOrEqual(2)
    expect(sum('billonce.answers', { 'billonce.state': 'succeeded' })).toBe(1)
    expect(sum('billonce.conflicts', { 'billonce.kind': 'charge' })).toBe(1)
    expect(sum('billonce.revisions.refused', { 'billonce.reason': 'earlier-revision-open' })).toBe(1)
    expect(sum('billonce.storage.faults', { 'billonce.step': 'record' })).toBeGreaterThanOrEqual(1)
    expect(sum('billonce.contradictions')).toBe(1)
    expect(sum('billonce.evidence', { 'billonce.source': 'webhook' })).toBe(2)
    expect(sum('billonce.evidence', { 'billonce.source': 'decision' })).toBe(1)
    expect(sum('billonce.attempt.duration')).toBe(count('attempt-ended'))
    expect(sum('billonce.attempt.headroom')).toBe(count('attempt-began'))
    expect(sum('billonce.operation.duration')).toBe(count('delivery-ended'))
    expect(sum('billonce.operation.age')).toBe(sum('billonce.operations'))
    for (const { descriptor } of metrics) {
      expect(descriptor.name).toMatch(/^billonce(\.[a-z_]+)+$/)
      expect(descriptor.unit).toMatch(/^(s|\{[a-z]+\})$/)
      expect(descriptor.description).not.toBe('')
    }
    // A key in a metric would be a series for each charge.
    expect(
      metrics.flatMap(({ dataPoints }) => dataPoints.flatMap((point) => Object.keys(point.attributes))),
    ).not.toContain('billonce.key')
  })
})

test('a delivery belongs to the span of the call that began it', async () => {
  const seen = telemetry()
  const { billing } = setUp()
  instrument(billing, seen)
  const caller = seen.tracer.startSpan('checkout')
  await settled(context.with(trace.setSpan(context.active(), caller), () => billing.charge(coffee, order)))
  caller.end()
  const delivery = seen.spans().find(({ name }) => name === 'deliver charge')
  expect(delivery?.parentSpanContext?.spanId).toBe(caller.spanContext().spanId)
})

test('a span ends when the client is closed and nothing further happens', async () => {
  const seen = telemetry()
  const { billing } = setUp({ receiver: { faults: [stall()] } })
  instrument(billing, seen)
  const call = billing.charge(coffee, order).catch(() => {})
  await pass(10)
  expect(seen.spans()).toEqual([])
  expect(seen.begun()).toBe(2)
  await settled(billing.close())
  await settled(call)
  expect(seen.spans()).toHaveLength(2)
})

test('a span ends when its caller goes, and the entry is left to a later delivery', async () => {
  const seen = telemetry()
  const { billing } = setUp({
    receiver: { faults: [loseReply()] },
    // The second attempt is far off when the caller goes.
    client: { retry: { baseDelayMs: 60_000, maxDelayMs: 60_000 } },
  })
  instrument(billing, seen)
  const gone = new AbortController()
  const call = billing.charge(coffee, { ...order, signal: gone.signal }).catch(() => {})
  await pass(10)
  gone.abort()
  await settled(call)
  await pass(1)
  expect(seen.begun()).toBe(seen.spans().length)
  expect(seen.spans().at(-1)?.attributes).toMatchObject({ 'billonce.state': 'sending', 'billonce.attempts': 1 })
})

test('the returned function ends it, with the spans that are open', async () => {
  const seen = telemetry()
  const { billing } = setUp({ receiver: { faults: [stall({ request: 1 })] } })
  const stop = instrument(billing, seen)
  const call = billing.charge(coffee, order)
  await pass(10)
  stop()
  stop()
  expect(seen.spans().map(({ name }) => name)).toEqual(['attempt charge', 'deliver charge'])
  expect(await settled(call)).toMatchObject({ status: 'succeeded' })
  await settled(billing.charge(coffee, { operationId: 'order-2' }))
  expect(seen.begun()).toBe(2)
})

test('a thousand operations leave nothing open', async () => {
  const seen = telemetry()
  const { billing } = setUp({ receiver: { faults: [loseReply({ probability: 0.3 })] } })
  instrument(billing, seen)
  const calls = Array.from({ length: 1000 }, (_, number) =>
    billing.charge(coffee, { operationId: `order-${number}`, background: number % 2 === 0 }),
  )
  await settled(Promise.allSettled(calls))
  await pass(3_600_000)
  expect(seen.begun()).toBeGreaterThanOrEqual(2000)
  expect(seen.spans()).toHaveLength(seen.begun())
})

test('a tracer or a meter that throws changes nothing', async () => {
  const { billing, receiver } = setUp({ receiver: { faults: [loseReply({ attempt: 1 })] } })
  const seen = telemetry()
  const throwing = <T extends object>(real: T): T =>
    new Proxy(real, {
      get: (target, name) =>
        /^(startSpan|add|record)$/.test(String(name))
          ? () => {
              throw new Error('observer')
            }
          : // Instruments are made before the first event, and throw later.
            String(name).startsWith('create')
            ? (...args: unknown[]) =>
                throwing((Reflect.get(target, name) as (...all: unknown[]) => object).apply(target, args))
            : Reflect.get(target, name),
    })
  instrument(billing, { tracer: throwing(seen.tracer), meter: throwing(seen.meter) })
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded', attempts: 2 })
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('without an SDK nothing happens', async () => {
  const { billing } = setUp()
  const stop = instrument(billing)
  expect(await settled(billing.charge(coffee, order))).toMatchObject({ status: 'succeeded' })
  stop()
})

test('events that a later version adds are let pass', () => {
  const listeners: Listener[] = []
  const seen = telemetry()
  instrument({ subscribe: (listener) => (listeners.push(listener), () => {}) }, seen)
  const later = { type: 'of-tomorrow', secret: 'x', atMs: 1 } as unknown as BillingEvent
  for (const listener of listeners) expect(() => listener(later)).not.toThrow()
  expect(seen.begun()).toBe(0)
})

describe('the context of an operation', () => {
  test('is its key in hex digits', () => {
    expect(operationContextOf('0190A3C4-7b1e-5c43-9d0a-4c1a7e2f8b36')).toEqual({
      traceId: '0190a3c47b1e5c439d0a4c1a7e2f8b36',
      spanId: '0190a3c47b1e5c43',
      traceFlags: 0,
      isRemote: true,
    })
  })

  test.each(['order-991', '00000000-0000-0000-0000-000000000000', 'x'.repeat(255)])('is valid for %s', (key) => {
    const made = operationContextOf(key)
    expect(trace.wrapSpanContext(made).spanContext()).toEqual(made)
    expect(made.traceId).toMatch(/^(?!0{32})[\da-f]{32}$/)
    expect(made.spanId).toMatch(/^(?!0{16})[\da-f]{16}$/)
    expect(operationContextOf(key)).toEqual(made)
  })

  test('of a key of the caller’s own never changes', () => {
    expect(operationContextOf('order-991').traceId).toBe('f31f7dc0d95e5cde89e2c2f99cb5c2c5')
  })
})
