/**
 * A day on which about everything happens that observers are told of: lost replies, an overloaded receiver, a decline, a
 * conflict, a journal that fails, a process that ends and another that goes on, evidence, a contradiction.
 */
import { createBillingClient, forgetfulJournal } from 'billonce'
import type { BillingClient, BillingClientOptions, JournalStore } from 'billonce'
import { createReceiver, loseReply, status } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { CLAIM_MS, journalWith } from '../engine/tampering.ts'
import { BASE_URL, pass, settled } from '../support/world.ts'

/** All that no observer may see. */
export const SECRETS = [
  'token-secret',
  'operation-secret',
  'scope-secret',
  'cus_secret',
  'pm_secret',
  'description-secret',
  'metadata-secret',
  'meter-secret',
  'account-secret',
  'cause-secret',
  'message-secret',
  'person-secret',
  'request-id-secret',
  'receipt-secret',
  'card_declined',
  'The card was declined',
  'billing.test',
  '4711',
]

const charge = {
  amount: 4711,
  currency: 'eur',
  customer: 'cus_secret',
  paymentMethod: 'pm_secret',
  description: 'description-secret',
  metadata: { note: 'metadata-secret' },
} as const

export interface BusyDay {
  readonly receiver: Receiver
  /** Keys by what happened to them. */
  readonly keys: Readonly<Record<'lost' | 'overloaded' | 'declined' | 'restarted' | 'unrecorded' | 'evidence', string>>
}

/**
 * Lives through the day.
 *
 * @param observe is given each client as soon as it is made, and which process it stands for
 */
export async function liveThroughADay(observe: (billing: BillingClient, process: string) => void): Promise<BusyDay> {
  const receiver = createReceiver({
    faults: [
      loseReply({ request: 1 }),
      status(503, {
        request: 3,
        headers: { 'x-request-id': 'request-id-secret' },
        body: { message: 'message-secret' },
      }),
      loseReply({ when: ({ body }) => body.includes('receipt-secret-1'), times: 2 }),
      loseReply({ when: ({ body }) => body.includes('receipt-secret-2') }),
    ],
  })
  const journal = forgetfulJournal()
  let isFailing = false
  const failing = journalWith(journal, ({ method }, run) =>
    isFailing && method === 'replace' ? Promise.reject(new Error('cause-secret')) : run(),
  )
  const options = (of: JournalStore): BillingClientOptions => ({
    baseUrl: BASE_URL,
    scope: 'scope-secret/test',
    journal: of,
    fetch: receiver.fetch,
    headers: { authorization: 'Bearer token-secret' },
    retry: { maxAttempts: 2 },
  })
  const process = (name: string, of: JournalStore = journal): BillingClient => {
    const billing = createBillingClient(options(of))
    observe(billing, name)
    return billing
  }
  const first = process('first')
  const name = (id: string): { operationId: string } => ({ operationId: `operation-secret-${id}` })
  const lost = await settled(first.charge(charge, name('lost')))
  const overloaded = await settled(first.charge(charge, name('overloaded')))
  const declined = await settled(first.charge({ ...charge, paymentMethod: 'pm_declined' }, name('declined')))
  await settled(first.recordUsage({ meter: 'meter-secret', quantity: 3, customer: 'cus_secret' }, name('usage')))
  await settled(first.consumeCredits({ amount: 1, account: 'account-secret' }, name('credits')))

  // Twice the same is once, another amount is refused.
  await settled(first.charge(charge, name('lost')))
  await settled(first.charge({ ...charge, amount: 4712, customer: 'cus_secret-2' }, name('lost')).catch(() => {}))

  // No reply to either attempt; the process ends, and another one goes on where it stopped.
  const withReceipt = (number: number) => ({ ...charge, description: `receipt-secret-${number}` })
  const restarted = await settled(first.charge(withReceipt(1), name('restarted')))
  await settled(first.charge(withReceipt(1), { ...name('restarted'), revision: 2 }).catch(() => {}))
  await settled(first.close())
  await pass(CLAIM_MS)
  const second = process('second')
  await settled(second.resume())

  // The reply comes and cannot be written down.
  const third = process('third', failing)
  isFailing = true
  const unrecorded = await settled(third.charge(charge, name('unrecorded')))
  isFailing = false
  await pass(CLAIM_MS)
  await settled(second.resume())

  // Its key's window ends without an answer; then a webhook settles it, and another contradicts that.
  const open = await settled(second.charge(withReceipt(2), name('evidence')))
  await pass(48 * 3_600_000)
  await settled(second.resume())
  const receipt = { id: 'ch_receipt-secret', amount: 4711, currency: 'eur' }
  await settled(second.recordEvidence({ key: open.key }, { source: 'webhook', found: 'applied', receipt }))
  const no = { found: 'not-applied', code: 'card_declined', message: 'message-secret' } as const
  await settled(second.recordEvidence({ key: open.key }, { source: 'webhook', ...no }))
  await settled(
    second.recordEvidence(
      { key: open.key },
      { source: 'decision', by: 'person-secret', why: 'message-secret', found: 'applied', receipt },
    ),
  )
  return {
    receiver,
    keys: {
      lost: lost.key,
      overloaded: overloaded.key,
      declined: declined.key,
      restarted: restarted.key,
      unrecorded: unrecorded.key,
      evidence: open.key,
    },
  }
}
