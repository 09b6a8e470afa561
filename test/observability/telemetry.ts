/** The real SDKs, exporting into memory. */
import { context, trace } from '@opentelemetry/api'
import type { Meter, Tracer } from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from '@opentelemetry/sdk-metrics'
import type { MetricData } from '@opentelemetry/sdk-metrics'
import { InMemorySpanExporter, SimpleSpanProcessor, TracerProvider } from '@opentelemetry/sdk-trace'
import type { ReadableSpan } from '@opentelemetry/sdk-trace'
import { afterAll, beforeAll } from 'vitest'

export interface Telemetry {
  readonly tracer: Tracer
  readonly meter: Meter
  /** Spans that have ended. */
  readonly spans: () => readonly ReadableSpan[]
  /** How many spans have begun. */
  readonly begun: () => number
  readonly metrics: () => Promise<readonly MetricData[]>
}

export function telemetry(): Telemetry {
  const exporter = new InMemorySpanExporter()
  let begun = 0
  const tracers = new TracerProvider({
    spanProcessors: [
      new SimpleSpanProcessor({ exporter }),
      {
        onStart: () => void (begun += 1),
        onEnd: () => {},
        forceFlush: () => Promise.resolve(),
        shutdown: () => Promise.resolve(),
      },
    ],
  })
  const reader = new PeriodicExportingMetricReader({
    exporter: new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE),
  })
  const meters = new MeterProvider({ readers: [reader] })
  return {
    tracer: tracers.getTracer('test'),
    meter: meters.getMeter('test'),
    spans: () => exporter.getFinishedSpans(),
    begun: () => begun,
    metrics: async () => {
      const { resourceMetrics, errors } = await reader.collect()
      if (errors.length > 0) throw new AggregateError(errors)
      return resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics)
    },
  }
}

/** What is active follows promises, as it does under any Node SDK. */
export function asyncContext(): void {
  beforeAll(() => {
    context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  })
  afterAll(() => {
    context.disable()
    trace.disable()
  })
}
