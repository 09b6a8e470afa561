/**
 * How does a checkout page charge once, whatever happens to the page? It charges with the order as the name, says in the
 * customer's words what is known, and asks the journal again whenever it is loaded.
 */
import { createBillingClient, JournalUnavailableError, OperationConflictError, RevisionRefusedError } from 'billonce'
import type { Outcome } from 'billonce'

const order = new URLSearchParams(location.search).get('order') ?? ''
const operation = { kind: 'charge', operationId: `order-${order}` } as const
/** Who is signed in. The scope says whose charge it is, and `credentials` whose login is sent with it. */
const session = { scope: 'paper-and-ink/test/customer-7', token: 'test-token-of-customer-7' }

const billing = createBillingClient({
  baseUrl: document.querySelector<HTMLMetaElement>('meta[name=billing-url]')?.content ?? '',
  endpoint: 'billing',
  scope: session.scope,
  credentials: () => ({ scope: session.scope, headers: { authorization: `Bearer ${session.token}` } }),
})

const form = byId('checkout', HTMLFormElement)
const fields = byId('fields', HTMLFieldSetElement)
const card = byId('card', HTMLSelectElement)
const pay = byId('pay', HTMLButtonElement)
const state = byId('state', HTMLElement)
const actions = byId('actions', HTMLElement)
const confirm = byId('confirm', HTMLAnchorElement)
const cancel = byId('cancel', HTMLButtonElement)
byId('order-number', HTMLElement).textContent = order

/** What is known of the charge; `undefined` before the first try. */
let latest: Outcome | undefined

form.addEventListener('submit', (event) => {
  event.preventDefault()
  void run(charge)
})
cancel.addEventListener('click', () => void run(() => billing.cancel(operation)))
// Another tab may have gone on with it, and only the journal knows.
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') void run(look)
})
window.addEventListener('pageshow', () => void run(look))
// Background delivery works on this charge too: it tells by events, and what it means is read from the journal.
billing.subscribe((event) => {
  if (event.type === 'state' && event.from !== undefined && event.key === latest?.key) void run(look)
})

// What an earlier visit left open goes out now, and whenever the page comes back to life or online.
billing.start()

async function charge(): Promise<Outcome | undefined> {
  show({ title: 'Paying…', text: 'Please wait a moment. Nothing happens twice, whatever you press.', tone: 'wait' })
  const outcome = await billing.charge(
    { amount: 5000, currency: 'eur', customer: 'customer-7', paymentMethod: card.value },
    {
      operationId: operation.operationId,
      // The one way to a second charge, and only after a definite no. A shop keeps the number with the order.
      revision: latest?.status === 'rejected' ? latest.revision + 1 : latest?.revision,
      // A card token is made afresh after a reload. What was stored first is what is sent.
      volatileFields: ['paymentMethod'],
      // «Do not pay» was pressed, and now «Pay» is.
      reopen: latest?.status === 'canceled',
      // Without a network there is nothing to wait for: it is written down, and sent when there is one.
      background: !navigator.onLine,
    },
  )
  return outcome.status === 'queued' ? await look() : outcome
}

function look(): Promise<Outcome | undefined> {
  return billing.find(operation)
}

async function run(action: () => Promise<Outcome | undefined>): Promise<void> {
  try {
    const outcome = await action()
    if (outcome) showOutcome(outcome)
  } catch (error) {
    showError(error)
  }
}

function showOutcome(outcome: Outcome): void {
  latest = outcome
  switch (outcome.status) {
    case 'succeeded':
      show({ title: 'Paid. Thank you!', text: `Your receipt is ${outcome.receipt.id}.`, tone: 'good' })
      break
    case 'accepted':
      if (outcome.progress === 'requires_action') {
        show({
          title: 'One more step',
          text: 'Your bank wants you to confirm this payment.',
          tone: 'wait',
          confirmAt: addressOf(outcome.nextAction),
        })
      } else {
        show({
          title: 'Your bank is working on it',
          text: 'The payment is on its way. We will write to you when it is complete.',
          tone: 'wait',
        })
      }
      break
    case 'rejected':
      show({
        title: 'The payment was declined',
        text: 'You have not been charged. Please choose another card.',
        tone: 'bad',
        again: 'Pay € 50.00 with this card',
      })
      break
    case 'deferred':
      show({
        title: 'Not paid yet',
        text: navigator.onLine
          ? `We will try again by ourselves${untilWords(outcome.sendBeforeAtMs)}. You can leave this page open.`
          : `You are offline. The payment goes out when you are back online${untilWords(outcome.sendBeforeAtMs)}.`,
        tone: 'wait',
        cancelable: true,
      })
      break
    case 'canceled':
      show({
        title: 'Not paid',
        text:
          outcome.by === 'caller'
            ? 'You have not been charged.'
            : 'It took too long to reach us, so we did not charge you.',
        tone: 'bad',
        again: 'Pay € 50.00',
      })
      break
    case 'unknown':
      // It may have worked. No button that could pay in another way.
      show(
        outcome.delivery === 'continues'
          ? {
              title: 'We are checking your payment',
              text: 'The answer has not come back yet. We keep asking; you will not be charged twice, and you can close this page.',
              tone: 'wait',
            }
          : {
              title: 'We are looking into your payment',
              text: `Please do not pay in another way. Write to us and name ${outcome.key}.`,
              tone: 'bad',
            },
      )
      break
  }
}

function showError(error: unknown): void {
  if (error instanceof JournalUnavailableError && !error.sentByThisCall) {
    show({
      title: 'This browser cannot keep a note of the payment',
      text: 'So nothing was sent just now. Allow this site to store data, or leave the private window, then try again.',
      tone: 'bad',
      again: 'Pay € 50.00',
    })
  } else if (error instanceof OperationConflictError) {
    show({
      title: 'This order was paid for with other details',
      text: 'Nothing was sent just now. Please reload the page or write to us.',
      tone: 'bad',
    })
  } else if (error instanceof RevisionRefusedError) {
    show({
      title: 'We are looking into your first try',
      text: 'It may have worked after all, so nothing more was sent. Please write to us before you pay again.',
      tone: 'bad',
    })
  } else {
    show({ title: 'Something went wrong', text: 'Please reload the page: it finds out how things stand.', tone: 'bad' })
    console.error(error)
  }
}

interface View {
  readonly title: string
  readonly text: string
  readonly tone: 'good' | 'wait' | 'bad'
  /** The button that pays, with these words; without it nothing can be paid now. */
  readonly again?: string
  readonly cancelable?: boolean
  readonly confirmAt?: string | undefined
}

function show(view: View): void {
  state.dataset['tone'] = view.tone
  byId('state-title', HTMLElement).textContent = view.title
  byId('state-text', HTMLElement).textContent = view.text
  // The button that was pressed is about to be disabled, and a keyboard must not be left nowhere.
  if (view.again === undefined && form.contains(document.activeElement)) state.focus()
  fields.disabled = view.again === undefined
  // A form that can do nothing any more is only in the way.
  form.hidden = view.tone === 'good' || view.confirmAt !== undefined
  pay.textContent = view.again ?? 'Pay € 50.00'
  cancel.hidden = view.cancelable !== true
  confirm.hidden = view.confirmAt === undefined
  if (view.confirmAt !== undefined) confirm.href = view.confirmAt
  actions.hidden = cancel.hidden && confirm.hidden
}

/** The receiver's own word, so nothing is taken for granted. */
function addressOf(nextAction: unknown): string | undefined {
  if (typeof nextAction !== 'object' || nextAction === null || !('url' in nextAction)) return undefined
  return typeof nextAction.url === 'string' && nextAction.url.startsWith('https://') ? nextAction.url : undefined
}

function untilWords(atMs: number | undefined): string {
  if (atMs === undefined) return ''
  return `, until ${new Date(atMs).toLocaleTimeString([], { timeStyle: 'short' })}`
}

function byId<T extends HTMLElement>(id: string, type: abstract new (...args: never[]) => T): T {
  const found = document.getElementById(id)
  if (!(found instanceof type)) throw new Error(`The page has no ${id}`)
  return found
}
