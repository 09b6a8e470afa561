/**
 * How does a worker bill what happened, so that a crash, a deploy or a second run bills nothing twice?
 *
 *     node --conditions=source examples/backend-worker.ts
 *
 * It first takes up what an earlier run left open, then goes through its list, and says for each event what came of it.
 * Run it again: the events that are done are answered from the journal, without a request. It bills at BILLING_URL, or
 * without one at a test receiver of its own, which loses replies and declines one card.
 */
import { createBillingClient, OperationConflictError } from 'billonce'
import type { Outcome } from 'billonce'
import { chaos, createReceiver } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'

/** What happened. Each event has a name in the business, and that name is what makes it billable once. */
type BusinessEvent =
  | {
      readonly kind: 'invoice-due'
      readonly invoice: string
      readonly customer: string
      readonly amountMinor: number
      readonly currency: string
      readonly card: string
      /** Kept with the invoice, and raised when the customer gives another card after a refusal. */
      readonly tries: number
    }
  | { readonly kind: 'export-finished'; readonly job: string; readonly customer: string; readonly rows: number }
  | { readonly kind: 'image-rendered'; readonly image: string; readonly customer: string; readonly credits: number }

// A table of your database. Nothing in it comes from the clock of this run, or the second run would ask for something else.
const events: readonly BusinessEvent[] = [
  {
    kind: 'invoice-due',
    invoice: '2031-0117',
    customer: 'cus_ada',
    amountMinor: 4900,
    currency: 'eur',
    card: 'pm_card',
    tries: 1,
  },
  {
    kind: 'invoice-due',
    invoice: '2031-0118',
    customer: 'cus_ben',
    amountMinor: 12_000,
    currency: 'eur',
    card: 'pm_declined',
    tries: 1,
  },
  {
    kind: 'invoice-due',
    invoice: '2031-0119',
    customer: 'cus_cleo',
    amountMinor: 900,
    currency: 'eur',
    card: 'pm_requires_action',
    tries: 1,
  },
  { kind: 'export-finished', job: 'job-7', customer: 'cus_ada', rows: 1200 },
  { kind: 'export-finished', job: 'job-8', customer: 'cus_ben', rows: 31 },
  { kind: 'image-rendered', image: 'img-55', customer: 'cus_ada', credits: 4 },
]

const receiver = createReceiver({ faults: [chaos({ probability: 0.6, seed: 4 })] })
const server = process.env['BILLING_URL'] === undefined ? await startServer(receiver) : undefined

const billing = createBillingClient({
  baseUrl: process.env['BILLING_URL'] ?? server?.url ?? '',
  // The address of the test receiver is another one each time; the id stays, and with it the names in the journal.
  endpoint: 'billing',
  scope: 'acme/test',
  headers: { authorization: `Bearer ${process.env['BILLING_KEY'] ?? 'sk_test_acme'}` },
})

// A deploy says SIGTERM. The waiting ends, the operation does not: the next run takes it up.
const stopping = new AbortController()
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stopping.abort())

try {
  const { total, succeeded, waiting, needEvidence } = await billing.resume()
  if (total > 0) console.log(`left open by earlier runs: ${total}, now done: ${succeeded}, still waiting: ${waiting}`)
  if (needEvidence.unknown > 0) console.log(`to be looked up by a person: ${needEvidence.unknown}`)

  for (const event of events) {
    if (stopping.signal.aborted) break
    try {
      console.log(`${nameOf(event)}: ${wordsFor(await bill(event))}`)
    } catch (error) {
      // The same name with other parameters is a mistake in our data. It must not hold up the rest of the list; all other
      // errors (no journal, stopped) end the run, since the next event would meet them too.
      if (!(error instanceof OperationConflictError)) throw error
      console.error(`${nameOf(event)}: was billed before with another ${error.fields.join(', ')}`)
      process.exitCode = 1
    }
  }
} catch (error) {
  if (!stopping.signal.aborted) throw error
  console.log('stopped; the next run goes on from here')
} finally {
  await billing.close()
  await server?.close()
}
if (server) {
  const { requests, effects, duplicates } = receiver.ledger.summary()
  console.log(`the test receiver counts requests: ${requests}, effects: ${effects}, made twice: ${duplicates}`)
}

/** The operationId: the event, not the run and not the attempt. */
function nameOf(event: BusinessEvent): string {
  switch (event.kind) {
    case 'invoice-due':
      return `invoice:${event.invoice}`
    case 'export-finished':
      return `export:${event.job}`
    case 'image-rendered':
      return `image:${event.image}`
  }
}

function bill(event: BusinessEvent): Promise<Outcome> {
  const options = { operationId: nameOf(event), signal: stopping.signal }
  const { customer } = event
  switch (event.kind) {
    case 'invoice-due': {
      const { amountMinor: amount, currency, card: paymentMethod, tries: revision } = event
      return billing.charge({ amount, currency, customer, paymentMethod }, { ...options, revision })
    }
    case 'export-finished':
      return billing.recordUsage({ meter: 'exported_rows', quantity: event.rows, customer }, options)
    case 'image-rendered':
      return billing.consumeCredits({ amount: event.credits, account: customer }, options)
  }
}

/** What is to be done about each outcome. The compiler says so when one is missing. */
function wordsFor(outcome: Outcome): string {
  switch (outcome.status) {
    case 'succeeded':
      return outcome.source === 'journal'
        ? `done before (${outcome.receipt.id})`
        : `done (${outcome.receipt.id}, attempts: ${outcome.attempts})`
    case 'accepted':
      // Made, and not concluded. It is not sent again; the receiver's webhook says how it ends.
      return `made, ${outcome.progress === 'requires_action' ? 'the customer has to confirm it' : 'the bank is at it'}`
    case 'rejected':
      // A definite no. With another card this is the next revision, which the invoice keeps as `tries`.
      return `refused (${outcome.rejection.code ?? outcome.rejection.kind}); write to the customer`
    case 'deferred':
      // Certainly not done: no login, rate limit, wrong address. The next run tries again.
      return `not yet (${outcome.reason}); the next run goes on`
    case 'canceled':
      return 'not done: it waited too long to be sent'
    case 'unknown':
      // Never a failure. Charging in another way now may be the second charge.
      return outcome.delivery === 'continues'
        ? `no answer yet (${outcome.reason}); the next run asks again under the same key`
        : `may be done, a person has to look it up (${outcome.reason}, key ${outcome.key})`
  }
}
