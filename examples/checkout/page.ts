/** What stands on the page: the order, the cards, and the view of the payment. It decides nothing. */
import { cardOf, CARDS } from './cards.ts'
import { byId, element } from './dom.ts'
import { moneyText } from './order.ts'
import type { Order } from './order.ts'
import { WORDS } from './words.ts'
import type { View } from './words.ts'

const form = byId('form', HTMLFormElement)
const cards = byId('cards', HTMLFieldSetElement)
const cover = byId('cover', HTMLElement)
const facts = byId('cover-facts', HTMLElement)
const pay = byId('pay', HTMLButtonElement)
const payWords = byId('pay-words', HTMLElement)
const status = byId('status', HTMLElement)
const tone = byId('tone', SVGElement)
const seal = byId('seal', SVGElement)
const title = byId('status-title', HTMLElement)
const text = byId('status-text', HTMLElement)
const copy = byId('copy', HTMLButtonElement)
const actions = { confirm: byId('confirm', HTMLAnchorElement), cancel: byId('cancel', HTMLButtonElement), copy }

export interface Handlers {
  readonly pay: (card: string) => void
  readonly cancel: () => void
}

/** Fills in what does not change, and says what is pressed. */
export function setUpPage(order: Order, card: string | null, handlers: Handlers): void {
  showOrder(order)
  showCards(card)
  keepRoom()
  byId('main', HTMLElement).dataset['ready'] = 'true'
  form.addEventListener('submit', (event) => {
    event.preventDefault()
    // Safari gives the focus to no button that is clicked.
    if (document.activeElement === document.body) pay.focus({ preventScroll: true })
    handlers.pay(chosenCard())
  })
  actions.cancel.addEventListener('click', handlers.cancel)
  copy.addEventListener('click', () => {
    const reference = facts.querySelector('.reference')
    if (!reference) return
    void navigator.clipboard
      .writeText(reference.textContent)
      .then(() => (copy.textContent = 'Copied'))
      // Not allowed here; the customer can do it by hand.
      .catch(() => getSelection()?.selectAllChildren(reference))
  })
}

/** @param confirmAt where the bank asks */
export function showView(view: View, confirmAt: string | undefined): void {
  const isOther = status.dataset['view'] !== view.name
  status.dataset['tone'] = view.tone
  status.dataset['view'] = view.name
  tone.setAttribute('href', `#tone-${view.tone}`)
  // A live region that gets the same words again is read out again.
  if (title.textContent !== view.title) title.textContent = view.title
  if (text.textContent !== view.text) text.textContent = view.text
  if (payWords.textContent !== view.pay.words) payWords.textContent = view.pay.words
  // Not `disabled`: a keyboard that is on the button would be left nowhere.
  pay.setAttribute('aria-disabled', String(!view.pay.can))
  pay.dataset['busy'] = String(view.pay.isBusy === true)
  if (!view.pay.can && cards.contains(document.activeElement)) pay.focus()
  if (view.action === undefined && cover.contains(document.activeElement)) pay.focus()
  cards.disabled = !view.pay.can
  showCover(view, confirmAt)
  if (!isOther || document.activeElement !== pay) return
  // On a phone the words are below the button that was pressed, and perhaps below the edge.
  status.scrollIntoView({ block: 'nearest' })
  // What can be done now lies before the button, which does nothing: whoever goes on from there would miss it. The whole
  // cover and not its button, so that it is read out first, and a second Enter that was meant for «Pay» presses nothing.
  if (view.action === undefined) return
  cover.focus({ preventScroll: true })
  cover.scrollIntoView({ block: 'nearest' })
}

/** What lies on the cards while there is nothing to choose. */
function showCover({ cover: covering, action, tone: toned }: View, confirmAt: string | undefined): void {
  cover.hidden = covering === undefined
  cards.classList.toggle('covered', covering !== undefined)
  if (!covering) return
  cover.dataset['tone'] = toned
  seal.setAttribute('href', `#tone-${toned}`)
  byId('cover-sum', HTMLElement).textContent = covering.sum
  const rows = covering.facts.map(([name, value]) =>
    element(
      'div',
      {},
      element('dt', {}, name),
      element('dd', name === 'Reference' ? { class: 'reference' } : {}, value),
    ),
  )
  // Left alone if nothing changed, so that a selection in it stays.
  if (facts.textContent !== rows.map((row) => row.textContent).join('')) facts.replaceChildren(...rows)
  for (const [name, button] of Object.entries(actions)) {
    button.hidden = name !== action || (name === 'confirm' && confirmAt === undefined)
  }
  if (confirmAt !== undefined) actions.confirm.href = confirmAt
  if (action !== 'copy') copy.textContent = 'Copy the reference'
}

export function showNetwork(isOnline: boolean): void {
  byId('network', HTMLElement).dataset['online'] = String(isOnline)
}

function chosenCard(): string {
  // Not by FormData, which leaves out what is disabled while a payment is under way.
  return cards.querySelector<HTMLInputElement>('input:checked')?.value ?? CARDS[0].token
}

function showOrder(order: Order): void {
  const money = (amount: number): string => moneyText(amount, order.currency)
  byId('order-number', HTMLElement).textContent = order.number.toUpperCase()
  byId('subtotal', HTMLElement).textContent = money(order.total - order.shipping)
  byId('shipping', HTMLElement).textContent = money(order.shipping)
  byId('total', HTMLElement).textContent = money(order.total)
  byId('items', HTMLElement).replaceChildren(
    ...order.items.map(({ name, about, picture, amount }) => {
      const art = element('span', { class: 'art', 'aria-hidden': 'true' })
      art.innerHTML = `<svg><use href="#${picture}" /></svg>`
      const words = element('span', { class: 'what' }, element('strong', {}, name), element('small', {}, about))
      return element('li', {}, art, words, element('span', { class: 'money' }, money(amount)))
    }),
  )
}

function showCards(chosen: string | null): void {
  const checked = cardOf(chosen)?.token ?? CARDS[0].token
  for (const { token, brand, name, hint } of CARDS) {
    const radio = element('input', { type: 'radio', name: 'card', value: token })
    radio.checked = token === checked
    const mark = element('span', { class: 'mark' }, brand)
    const words = element('span', { class: 'name' }, name)
    cards.append(element('label', {}, radio, mark, words, element('span', { class: 'hint' }, hint)))
  }
}

/** Lays the words of every view, unseen, where those of the current one are: so the place is as high as the highest. */
function keepRoom(): void {
  const rooms = Object.values(WORDS).map((words) =>
    element(
      'div',
      { class: 'room', 'aria-hidden': 'true' },
      element('p', { class: 'title' }, words.title),
      element('p', {}, words.text.replace('{until}', ' until 00:00')),
    ),
  )
  status.querySelector('.rooms')?.append(...rooms)
}
