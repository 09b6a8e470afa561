/** Nothing personal, no body and no credential in anything that leaves by events, spans, metrics or channels. */
import diagnosticsChannel from 'node:diagnostics_channel'
import type { BillingEvent } from 'billonce'
import { publish } from 'billonce/diagnostics-channel'
import { instrument } from 'billonce/opentelemetry'
import { expect, test } from 'vitest'
import { virtualTime } from '../support/world.ts'
import { liveThroughADay, SECRETS } from './busy-day.ts'
import { telemetry } from './telemetry.ts'

virtualTime()

/** Every field that an event may have. A new one is looked at first, then put here. */
const FIELDS = [
  'ageMs',
  'atMs',
  'attempt',
  'attempts',
  'by',
  'count',
  'durationMs',
  'fault',
  'fields',
  'found',
  'from',
  'headroomMs',
  'key',
  'kind',
  'markedReplay',
  'nextAttemptAtMs',
  'reason',
  'result',
  'revision',
  'source',
  'state',
  'status',
  'step',
  'to',
  'type',
  'why',
  'windowEndsAtMs',
  'word',
]

test('a busy day leaks nothing', async () => {
  const events: BillingEvent[] = []
  const messages: unknown[] = []
  const listener = (message: unknown): void => void messages.push(message)
  diagnosticsChannel.subscribe('billonce:event', listener)
  const seen = telemetry()
  const { receiver } = await liveThroughADay((billing) => {
    billing.subscribe((event) => events.push(event))
    instrument(billing, seen)
    publish(billing)
  })
  diagnosticsChannel.unsubscribe('billonce:event', listener)
  const spans = seen.spans().map((span) => ({
    name: span.name,
    attributes: span.attributes,
    events: span.events,
    links: span.links,
    status: span.status,
  }))
  const told = { events, messages, spans, metrics: await seen.metrics() }

  // The secrets did go over the wire (the ledger withholds the credential), so these are the words to look for.
  const sent = JSON.stringify(receiver.ledger.requests)
  for (const secret of ['[withheld]', 'cus_secret', 'description-secret', 'metadata-secret', 'meter-secret', '4711']) {
    expect(sent).toContain(secret)
  }
  expect(new Set(events.map(({ type }) => type)).size).toBeGreaterThanOrEqual(11)
  expect(spans.length).toBeGreaterThan(15)
  expect(messages).toHaveLength(events.length)
  for (const [where, what] of Object.entries(told)) {
    const text = JSON.stringify(what)
    for (const secret of SECRETS) expect(text, `${secret} in ${where}`).not.toContain(secret)
  }
  expect(
    [...new Set(events.flatMap((event) => Object.keys(event)))].filter((field) => !FIELDS.includes(field)),
  ).toEqual([])
})
