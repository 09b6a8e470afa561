/**
 * How does a checkout page charge once, whatever happens to the page? The order is the name of the charge. What is known of it
 * is in the journal, so the page asks there whenever it is loaded or something has changed, and says what it finds.
 */
import type { Outcome } from 'billonce'
import { askServer, bankAddressOf, billing, charge, standingOf } from './billing.ts'
import { moneyText, newOrderNumber, orderOf } from './order.ts'
import type { Order } from './order.ts'
import { setUpPage, showNetwork, showView } from './page.ts'
import { setUpPanel } from './panel.ts'
import { viewOf } from './words.ts'

/** How long a new order waits for the journal. */
const JOURNAL_WAIT_MS = 500
/** How often the bank's word is asked for while the customer looks at the page. */
const ASK_EVERY_MS = 2_000

const address = new URL(location.href)
const order = await orderOfAddress()
/** Other tabs of this shop, which share the journal and not its events. */
const tabs = new BroadcastChannel('paper-and-ink')

let outcome: Outcome | undefined
let failure: unknown
let calls = 0
/** Looks cross each other and calls; what was found out later holds. */
let lastFound = 0
let found = 0

setUpPage(order, address.searchParams.get('card'), {
  pay: (card) => void pay(card),
  // If it has left meanwhile there is nothing to cancel, and the journal says how it stands.
  cancel: () => void run(() => billing.cancel({ kind: 'charge', operationId: order.operationId }).catch(look)),
})
const panel = setUpPanel(order)

// Every step of an entry, by calls of this page and by background delivery, is told as an event. Those that are about looking
// itself are not answered with another look.
billing.subscribe(({ type }) => {
  if (type === 'storage-fault' || type === 'left-alone') return
  panel.refresh()
  if (type !== 'state' && type !== 'held' && type !== 'attempt-ended') return
  void run(look)
  tabs.postMessage(type)
})
tabs.addEventListener('message', () => {
  panel.refresh()
  void run(look)
})
for (const name of ['online', 'offline', 'pageshow']) window.addEventListener(name, () => void run(look))
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') void run(look)
})
// A payment that the customer is sent to the bank with, or that takes days: the journal waits for somebody's word.
setInterval(() => {
  if (outcome?.status === 'accepted' && document.visibilityState === 'visible') void ask()
}, ASK_EVERY_MS)

// What an earlier visit left open goes out now, and whenever the page comes back to life or online.
billing.start()
await run(look)
if (outcome?.status === 'accepted') void ask()

/** As often as somebody likes: all of it is one charge. */
async function pay(card: string): Promise<void> {
  if (!viewNow().pay.can && calls === 0) return
  // A second try of the order is the one way to a second charge, and it comes only after a definite no. Its number is kept
  // with the order, since a journal can be wiped; a shop keeps it on its server.
  const known = outcome?.status === 'rejected' ? outcome.revision + 1 : outcome?.revision
  const revision = Math.max(known ?? 1, Number(address.searchParams.get('try') ?? 1))
  if (calls === 0) remember({ card, ...(revision > 1 ? { try: String(revision) } : {}) })
  const reopen = outcome?.status === 'canceled'
  calls += 1
  failure = undefined
  show()
  try {
    const charged = await charge(order, { card, revision, reopen })
    calls -= 1
    await run(() => Promise.resolve(charged))
  } catch (error) {
    calls -= 1
    await run(() => Promise.reject(error))
  }
}

function look(): Promise<Outcome | undefined> {
  return standingOf(order)
}

async function ask(): Promise<void> {
  // It tells by events what it found. If the server cannot be reached it is asked again soon.
  await askServer(order).catch(() => {})
}

async function run(action: () => Promise<Outcome | undefined>): Promise<void> {
  const number = ++lastFound
  const done = await action().then(
    (value) => ({ value }),
    (error: unknown) => ({ error }),
  )
  if (number < found) return
  found = number
  if ('value' in done) outcome = done.value
  failure = 'error' in done ? done.error : undefined
  show()
}

function viewNow() {
  return viewOf({
    outcome,
    failure,
    isCalling: calls > 0,
    isOnline: navigator.onLine,
    isBackFromBank: address.searchParams.has('back'),
    sum: moneyText(order.total, order.currency),
  })
}

function show(): void {
  const isToConfirm = outcome?.status === 'accepted' && outcome.progress === 'requires_action'
  showView(viewNow(), isToConfirm ? bankAddress(outcome) : undefined)
  showNetwork(navigator.onLine)
}

/** With the way back to this order. */
function bankAddress(of: Outcome | undefined): string | undefined {
  const url = of?.status === 'accepted' ? bankAddressOf(of.nextAction) : undefined
  if (!url) return undefined
  const back = new URL(address)
  back.searchParams.set('back', 'bank')
  url.searchParams.set('back', back.href)
  return url.href
}

/** The order that the address names, or a new one. */
async function orderOfAddress(): Promise<Order> {
  const named = orderOf(address.searchParams.get('order') ?? '')
  if (named) return named
  // The journal first: an order that is older than the journal may have been paid from another one. One that does not answer
  // holds up nobody; the order is then taken for older, which is the safe side.
  const opened = billing.find({ kind: 'charge', operationId: 'none' }).catch(() => {})
  await Promise.race([opened, new Promise((resolve) => setTimeout(resolve, JOURNAL_WAIT_MS))])
  const made = orderOf(newOrderNumber())
  if (!made) throw new Error('The clock of this device stands before 1973')
  address.search = ''
  remember({ order: made.number })
  return made
}

/** In the address, so that a reload, another tab or another device is at the same order. */
function remember(values: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(values)) address.searchParams.set(name, value)
  history.replaceState(null, '', address)
}
