import type { BillingClient, Outcome, Queued } from 'billonce'
import { useOpenOperations, useOperation } from 'billonce/react'
import { useState } from 'react'

export function Checkout(props: { billing: BillingClient; order: string }) {
  const [card, setCard] = useState('pm_card')
  const { state, start } = useOperation(props.billing, 'charge', { operationId: `order-${props.order}` })

  const outcome = 'outcome' in state ? state.outcome : undefined
  const mayPay =
    state.phase === 'idle'
      ? !state.isReading
      : state.phase !== 'working' && (!outcome || outcome.status === 'rejected' || outcome.status === 'canceled')
  const confirmAt = outcome?.status === 'accepted' ? addressOf(outcome.nextAction) : undefined

  const pay = () =>
    start(
      { amount: 5000, currency: 'eur', paymentMethod: card },
      {
        // The one way to a second charge, and only after a definite no. A shop keeps the number with the order.
        revision: outcome?.status === 'rejected' ? outcome.revision + 1 : outcome?.revision,
        reopen: outcome?.status === 'canceled',
        // A card token is made afresh after a reload. What was stored first is what is sent.
        volatileFields: ['paymentMethod'],
      },
    )

  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        if (mayPay) void pay()
      }}
    >
      <label>
        Card{' '}
        <select value={card} onChange={(event) => setCard(event.target.value)}>
          <option value="pm_card">Visa 4242</option>
          <option value="pm_declined">Visa 0002</option>
          <option value="pm_requires_action">Visa 3220</option>
        </select>
      </label>
      {/* Not `disabled`: a keyboard that is on it would be left nowhere. */}
      <button aria-disabled={!mayPay}>Pay € 50.00</button>
      <p role="status">
        {state.phase === 'working' && 'Paying… Nothing happens twice, whatever you press.'}
        {state.phase === 'error' && 'That did not work just now. '}
        {state.phase !== 'working' && outcome && sentenceOf(outcome)}
      </p>
      {confirmAt && <a href={confirmAt}>Confirm at your bank</a>}
    </form>
  )
}

function sentenceOf(outcome: Outcome | Queued): string {
  switch (outcome.status) {
    case 'succeeded':
      return 'Paid. Thank you.'
    case 'accepted':
      return outcome.progress === 'processing'
        ? 'Your bank is working on it.'
        : 'Your bank wants you to confirm this payment.'
    case 'rejected':
      return 'The payment was declined. Please choose another card.'
    case 'queued':
    case 'deferred':
      return 'Not paid yet. We will try again by ourselves.'
    case 'canceled':
      return 'Nothing was charged.'
    case 'unknown':
      return outcome.delivery === 'continues'
        ? 'We are checking your payment. You will not be charged twice.'
        : 'We are looking into your payment. Please do not pay in another way.'
  }
}

/** The receiver's own word, so nothing is taken for granted. */
function addressOf(nextAction: unknown): string | undefined {
  if (typeof nextAction !== 'object' || nextAction === null || !('url' in nextAction)) return undefined
  return typeof nextAction.url === 'string' && nextAction.url.startsWith('https://') ? nextAction.url : undefined
}

export function OpenPayments(props: { billing: BillingClient }) {
  const { entries } = useOpenOperations(props.billing, { kind: 'charge' })
  return (
    <ul>
      {entries.map(({ key, operationId, outcome }) => (
        <li key={key}>
          {operationId}: {sentenceOf(outcome)}
        </li>
      ))}
    </ul>
  )
}
