/**
 * `billonce/opentelemetry`: spans and metrics of a client, made from its events and from nothing else; so they cannot hold
 * what events do not hold. Where they go is the user's OpenTelemetry SDK's.
 *
 * A span is a delivery: what this process did for an entry in one go. An operation that outlives its process has several,
 * in several traces; they find each other by a link that is derived from the key ({@link operationContextOf}).
 */
import { context, metrics, SpanKind, SpanStatusCode, trace, TraceFlags } from '@opentelemetry/api'
import type { Attributes, Meter, Span, SpanContext, Tracer } from '@opentelemetry/api'
import { v5 as uuidV5 } from 'uuid'
import type { BillingClient } from './api.ts'
import type { BillingEvent } from './events.ts'

export interface InstrumentOptions {
  /** Default is the global one, by the name `billonce`. */
  readonly tracer?: Tracer | undefined
  /** Default is the global one, by the name `billonce`. */
  readonly meter?: Meter | undefined
}

/**
 * Traces and measures what a client does. Call it once for each client, as soon as it is made.
 *
 * Spans:
 *
 * - `deliver {kind}` (internal): from the first attempt of a delivery until it settles the entry or leaves it to a later
 *   one. Its parent is what is active where the delivery begins: the caller's span for a call, that of `resume()`, or that
 *   in which `start()` was called. An entry that is settled without an attempt (by evidence, `cancel`, the end of its key's
 *   window) gives a span without duration. It is an error if the outcome is unknown or contradicted.
 * - `attempt {kind}` (client), its child: one request. It is an error unless the receiver took it, refused it, or asked to
 *   come back; `error.type` says why.
 *
 * Attributes: `billonce.key`, `billonce.kind`, `billonce.revision`; of a delivery `billonce.state`, `billonce.reason`,
 * `billonce.attempts`, `billonce.age_ms`, `billonce.headroom_ms`; of an attempt `billonce.attempt`, `billonce.result`,
 * `billonce.why`, `billonce.replay`, `http.response.status_code`. What else happens during a delivery (`retry-scheduled`,
 * `held`, `storage-fault`, `contradiction`, …) is an event of its span.
 *
 * Metrics, all with `billonce.kind` where the event is about an entry:
 *
 * | name | instrument, unit | attributes |
 * | --- | --- | --- |
 * | `billonce.operations.opened` | counter, `{operation}`: entries that were made | |
 * | `billonce.operations` | counter, `{operation}`: entries that came to a state in which nothing is sent | `billonce.state`, `billonce.reason` |
 * | `billonce.answers` | counter, `{call}`: calls answered from the journal | `billonce.state` |
 * | `billonce.attempts` | counter, `{attempt}` | `billonce.result`, `billonce.replay`, `http.response.status_code` |
 * | `billonce.retries` | counter, `{retry}`: further attempts that were scheduled | `billonce.by` |
 * | `billonce.holds` | counter, `{hold}` | `billonce.reason` |
 * | `billonce.conflicts` | counter, `{conflict}`: calls refused because the operation exists otherwise | |
 * | `billonce.revisions.refused` | counter, `{call}` | `billonce.reason` |
 * | `billonce.evidence` | counter, `{evidence}` | `billonce.source`, `billonce.found` |
 * | `billonce.evidence.refused` | counter, `{evidence}` | `billonce.reason` |
 * | `billonce.contradictions` | counter, `{contradiction}` | `billonce.word` |
 * | `billonce.storage.faults` | counter, `{fault}` | `billonce.step`, `billonce.fault` |
 * | `billonce.entries.left_alone` | gauge, `{entry}`: as last seen | `billonce.reason` |
 * | `billonce.attempt.duration` | histogram, `s` | `billonce.result` |
 * | `billonce.attempt.headroom` | histogram, `s`: left of the key's window when an attempt begins | |
 * | `billonce.operation.duration` | histogram, `s`: a delivery | `billonce.state` |
 * | `billonce.operation.age` | histogram, `s`: since the naming, when it settles | `billonce.state` |
 *
 * An entry that was unknown and is settled later is counted in both states. Keys are in spans only, never in metrics. What is
 * remembered is dropped with the delivery it belongs to.
 *
 * @param billing the client; only its `subscribe` is used
 * @returns ends it, and the spans that are open; calling it again does nothing
 * @see OpenTelemetry, «Semantic conventions» (names, units, `error.type`)
 * @example
 * ```ts
 * import { createBillingClient } from 'billonce'
 * import { instrument } from 'billonce/opentelemetry'
 *
 * const billing = createBillingClient(options)
 * const stop = instrument(billing)
 * ```
 */
export function instrument(billing: Pick<BillingClient, 'subscribe'>, options: InstrumentOptions = {}): () => void {
  const tracing = new Tracing(options.tracer ?? trace.getTracer('billonce'))
  const measure = measuring(options.meter ?? metrics.getMeter('billonce'))
  const stopListening = billing.subscribe((event) => {
    const delivery = tracing.take(event)
    measure(event, delivery)
  })
  return () => {
    stopListening()
    tracing.end()
  }
}

/** For keys that are no UUIDs: their trace id is the UUID v5 of the key in this namespace. It never changes. */
const TRACE_NAMESPACE = 'b5a0f9d2-6b1e-5c43-9d0a-4c1a7e2f8b36'

/**
 * The span context that stands for an operation wherever it is delivered: each `deliver` span links to it, in every process.
 * No span has it; a backend that searches links by trace id finds all deliveries of a key.
 *
 * The trace id is the key's 32 hex digits; for a key of the caller's own that is no UUID, those of the UUID v5 of the key in
 * the namespace `b5a0f9d2-6b1e-5c43-9d0a-4c1a7e2f8b36`. The span id is the first half of the trace id.
 *
 * @param key an idempotency key, as outcomes and events name it
 */
export function operationContextOf(key: string): SpanContext {
  const isUuid = /^[\da-f]{8}-[\da-f]{4}-[1-8][\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/i.test(key)
  const traceId = (isUuid ? key : uuidV5(key, TRACE_NAMESPACE)).replaceAll('-', '').toLowerCase()
  return { traceId, spanId: traceId.slice(0, 16), traceFlags: TraceFlags.NONE, isRemote: true }
}

// ------------------------------------------------------------------------------------------------------------ spans

interface Delivery {
  readonly span: Span
  readonly beganAtMs: number
  readonly attempts: Map<number, Span>
}

type AboutEntry = Extract<BillingEvent, { readonly type: 'state' | 'attempt-began' | 'delivery-ended' }>

/** What a delivery that ended took; for the metrics. */
interface Ended {
  readonly durationMs: number
}

class Tracing {
  readonly #tracer: Tracer
  /** Deliveries under way by key. Each ends with `delivery-ended`, so there are never more than the client has. */
  readonly #deliveries = new Map<string, Delivery>()

  constructor(tracer: Tracer) {
    this.#tracer = tracer
  }

  take(event: BillingEvent): Ended | undefined {
    switch (event.type) {
      case 'attempt-began':
        this.#beginAttempt(event)
        return undefined
      case 'attempt-ended':
        this.#endAttempt(event)
        return undefined
      case 'delivery-ended':
        return this.#endDelivery(event)
      case 'state':
        // During a delivery its end says the same, after the last attempt.
        if (isParked(event.to) || this.#deliveries.has(event.key)) this.#note(event)
        else this.#settle(event)
        return undefined
      default:
        this.#note(event)
        return undefined
    }
  }

  end(): void {
    for (const { span, attempts } of this.#deliveries.values()) {
      for (const attempt of attempts.values()) attempt.end()
      span.end()
    }
    this.#deliveries.clear()
  }

  #begin(event: AboutEntry): Delivery {
    const span = this.#tracer.startSpan(`deliver ${event.kind}`, {
      kind: SpanKind.INTERNAL,
      links: [{ context: operationContextOf(event.key), attributes: { 'billonce.key': event.key } }],
      attributes: entryAttributes(event),
    })
    return { span, beganAtMs: monotonicMs(), attempts: new Map() }
  }

  #beginAttempt(event: Extract<BillingEvent, { readonly type: 'attempt-began' }>): void {
    const delivery = this.#deliveries.get(event.key) ?? this.#begin(event)
    this.#deliveries.set(event.key, delivery)
    const attempt = this.#tracer.startSpan(
      `attempt ${event.kind}`,
      {
        kind: SpanKind.CLIENT,
        attributes: {
          ...entryAttributes(event),
          'billonce.attempt': event.attempt,
          ...headroom(event.headroomMs),
        },
      },
      trace.setSpan(context.active(), delivery.span),
    )
    delivery.attempts.set(event.attempt, attempt)
  }

  #endAttempt(event: Extract<BillingEvent, { readonly type: 'attempt-ended' }>): void {
    const attempts = this.#deliveries.get(event.key)?.attempts
    const span = attempts?.get(event.attempt)
    if (!attempts || !span) return
    attempts.delete(event.attempt)
    span.setAttributes({
      'billonce.result': event.result,
      'billonce.replay': event.markedReplay === true,
      ...(event.why === undefined ? {} : { 'billonce.why': event.why }),
      ...statusCode(event.status),
    })
    if (isFailure(event.result)) {
      span.setAttribute('error.type', event.why ?? event.result)
      span.setStatus({ code: SpanStatusCode.ERROR })
    }
    span.end()
  }

  #endDelivery(event: Extract<BillingEvent, { readonly type: 'delivery-ended' }>): Ended | undefined {
    const delivery = this.#deliveries.get(event.key)
    if (!delivery) return undefined
    this.#deliveries.delete(event.key)
    for (const attempt of delivery.attempts.values()) attempt.end()
    delivery.span.setAttribute('billonce.attempts', event.attempts)
    finish(delivery.span, event, event.state)
    return { durationMs: monotonicMs() - delivery.beganAtMs }
  }

  /** Without an attempt of its own: evidence, a cancel, or an end because the time is over. */
  #settle(event: Extract<BillingEvent, { readonly type: 'state' }>): void {
    finish(this.#begin(event).span, event, event.to)
  }

  #note(event: BillingEvent): void {
    const key = 'key' in event ? event.key : undefined
    const span = key === undefined ? undefined : this.#deliveries.get(key)?.span
    if (!span) return
    span.addEvent(event.type, noteAttributes(event))
    // Unlike other notes this one is about the outcome.
    if (event.type === 'contradiction') fail(span, 'contradicted')
  }
}

function finish(span: Span, event: AboutEntry & { readonly reason?: string }, state: string): void {
  span.setAttributes({
    'billonce.state': state,
    ...(event.reason === undefined ? {} : { 'billonce.reason': event.reason }),
    'billonce.age_ms': event.ageMs,
    ...headroom(event.headroomMs),
  })
  if (state === 'unknown') fail(span, event.reason ?? state)
  span.end()
}

function fail(span: Span, type: string): void {
  span.setAttribute('error.type', type)
  span.setStatus({ code: SpanStatusCode.ERROR })
}

function isParked(state: string): boolean {
  return state === 'pending' || state === 'sending'
}

/** A decline is an answer and not a failure, and so is being asked to come back. */
function isFailure(result: string): boolean {
  const answers = ['succeeded', 'accepted', 'refused', 'not-accepted', 'not-accepted-unproven', 'busy', 'not-sent']
  return !answers.includes(result)
}

function entryAttributes(event: AboutEntry): Attributes {
  return { 'billonce.key': event.key, 'billonce.kind': event.kind, 'billonce.revision': event.revision }
}

function headroom(headroomMs: number | null): Attributes {
  return headroomMs === null ? {} : { 'billonce.headroom_ms': headroomMs }
}

function statusCode(status: number | undefined): Attributes {
  return status === undefined ? {} : { 'http.response.status_code': status }
}

/** Named one by one: what a later event adds is not in a trace before somebody has thought about it. */
function noteAttributes(event: BillingEvent): Attributes {
  switch (event.type) {
    case 'state':
      return { 'billonce.state': event.to, ...(event.reason === undefined ? {} : { 'billonce.reason': event.reason }) }
    case 'retry-scheduled':
      return { 'billonce.by': event.by, 'billonce.wait_ms': Math.max(0, event.nextAttemptAtMs - event.atMs) }
    case 'held':
    case 'evidence-refused':
    case 'revision-refused':
      return { 'billonce.reason': event.reason }
    case 'storage-fault':
      return { 'billonce.step': event.step, 'billonce.fault': event.fault }
    case 'contradiction':
      return { 'billonce.word': event.word }
    case 'evidence':
      return { 'billonce.source': event.source, 'billonce.found': event.found }
    case 'conflict':
      return { 'billonce.fields': [...event.fields] }
    default:
      return {}
  }
}

function monotonicMs(): number {
  return performance.now()
}

// ---------------------------------------------------------------------------------------------------------- metrics

/** From a fast reply to the longest attempt. */
const ATTEMPT_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]
/** From a fast reply to a day. */
const OPERATION_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 21_600, 86_400]
/** From minutes to the windows that receivers have: a day, a month. */
const HEADROOM_BUCKETS = [0, 60, 300, 900, 3600, 7200, 14_400, 28_800, 57_600, 86_400, 604_800, 2_592_000]

function measuring(meter: Meter): (event: BillingEvent, ended: Ended | undefined) => void {
  const counter = (name: string, unit: string, description: string) =>
    meter.createCounter(`billonce.${name}`, { unit: `{${unit}}`, description })
  const histogram = (name: string, description: string, explicitBucketBoundaries: number[]) =>
    meter.createHistogram(`billonce.${name}`, { unit: 's', description, advice: { explicitBucketBoundaries } })

  const opened = counter('operations.opened', 'operation', 'Entries that were made.')
  const operations = counter('operations', 'operation', 'Entries that came to a state in which nothing is sent.')
  const answers = counter('answers', 'call', 'Calls answered from the journal, without a request.')
  const attempts = counter('attempts', 'attempt', 'Attempts that ended.')
  const retries = counter('retries', 'retry', 'Further attempts that were scheduled.')
  const holds = counter('holds', 'hold', 'Entries that had to wait for the network or a login.')
  const conflicts = counter('conflicts', 'conflict', 'Calls refused because the operation exists otherwise.')
  const revisionsRefused = counter('revisions.refused', 'call', 'Calls refused because a revision may not be opened.')
  const evidence = counter('evidence', 'evidence', 'Evidence that was taken.')
  const evidenceRefused = counter('evidence.refused', 'evidence', 'Evidence that was not taken.')
  const contradictions = counter('contradictions', 'contradiction', 'Words that contradict another; a person decides.')
  const faults = counter('storage.faults', 'fault', 'Steps of the journal that failed.')
  const leftAlone = meter.createGauge('billonce.entries.left_alone', {
    unit: '{entry}',
    description: 'Deliverable entries that this client does not send, as last seen.',
  })
  const attemptDuration = histogram('attempt.duration', 'How long attempts took.', ATTEMPT_BUCKETS)
  const attemptHeadroom = histogram('attempt.headroom', 'Left of the key’s window at an attempt.', HEADROOM_BUCKETS)
  const operationDuration = histogram('operation.duration', 'How long deliveries took.', OPERATION_BUCKETS)
  const operationAge = histogram('operation.age', 'From the naming until it settled.', OPERATION_BUCKETS)

  return (event, ended) => {
    const kind: Attributes = 'kind' in event && event.kind !== undefined ? { 'billonce.kind': event.kind } : {}
    switch (event.type) {
      case 'state': {
        if (event.from === undefined) opened.add(1, kind)
        if (isParked(event.to)) return
        const state = { ...kind, 'billonce.state': event.to }
        operations.add(1, { ...state, ...(event.reason === undefined ? {} : { 'billonce.reason': event.reason }) })
        operationAge.record(event.ageMs / 1000, state)
        return
      }
      case 'answered':
        return answers.add(1, { ...kind, 'billonce.state': event.state })
      case 'attempt-began':
        if (event.headroomMs !== null) attemptHeadroom.record(event.headroomMs / 1000, kind)
        return
      case 'attempt-ended': {
        const result = { ...kind, 'billonce.result': event.result }
        attempts.add(1, { ...result, 'billonce.replay': event.markedReplay === true, ...statusCode(event.status) })
        attemptDuration.record(event.durationMs / 1000, result)
        return
      }
      case 'delivery-ended':
        if (ended) operationDuration.record(ended.durationMs / 1000, { ...kind, 'billonce.state': event.state })
        return
      case 'retry-scheduled':
        return retries.add(1, { ...kind, 'billonce.by': event.by })
      case 'held':
        return holds.add(1, { ...kind, 'billonce.reason': event.reason })
      case 'conflict':
        return conflicts.add(1, kind)
      case 'revision-refused':
        return revisionsRefused.add(1, { ...kind, 'billonce.reason': event.reason })
      case 'evidence':
        return evidence.add(1, { ...kind, 'billonce.source': event.source, 'billonce.found': event.found })
      case 'evidence-refused':
        return evidenceRefused.add(1, { ...kind, 'billonce.reason': event.reason })
      case 'contradiction':
        return contradictions.add(1, { ...kind, 'billonce.word': event.word })
      case 'storage-fault':
        return faults.add(1, { ...kind, 'billonce.step': event.step, 'billonce.fault': event.fault })
      case 'left-alone':
        return leftAlone.record(event.count, { 'billonce.reason': event.why })
      default:
        // Types of a later version: this one does not measure them.
        return
    }
  }
}
