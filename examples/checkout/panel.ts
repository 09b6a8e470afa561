/**
 * The developer's panel: the journal of this browser and the ledger of the server, live and side by side, with switches for
 * what can go wrong. It only looks on: the page works the same without it, and a shop has none.
 */
import type { Attempt, EntryView, Outcome } from 'billonce'
import { askServer, billing } from './billing.ts'
import { byId, element } from './dom.ts'
import { moneyText } from './order.ts'
import type { Order } from './order.ts'
import type { FaultName, MadeCharge, PanelRequest, ServerView } from './panel-api.ts'

export interface Panel {
  /** The journal has changed, or may have. */
  refresh(): void
}

const FAULTS: readonly { readonly name: FaultName; readonly words: string }[] = [
  { name: 'lose-reply', words: 'Lose the reply' },
  { name: 'error', words: '500' },
  { name: 'saved-error', words: '500, saved' },
  { name: 'busy', words: '409, twice' },
  { name: 'rate-limit', words: '429, wait 20 s' },
  { name: 'slow', words: 'Four seconds' },
  { name: 'decline', words: 'Decline' },
]

/** How the panel was left is kept, where something can be. */
const OPEN = 'panel-open'

export function setUpPanel(order: Order): Panel {
  const body = byId('panel-body', HTMLElement)
  const requestsTile = tile('requests', 'request', 'requests')
  const chargesTile = tile('charges', 'charge', 'charges')
  const takenTile = tile('taken', 'taken', 'taken')
  const faults = new Map(
    FAULTS.map(({ name, words }) => {
      const button = element('button', { type: 'button', class: 'chip', 'aria-pressed': 'false' }, words)
      button.addEventListener('click', () => {
        void ask({ ask: 'arm', fault: name, on: button.getAttribute('aria-pressed') !== 'true' })
      })
      return [name, button] as const
    }),
  )
  const reach = element('button', { type: 'button', class: 'switch', role: 'switch', 'aria-checked': 'false' })
  reach.append(element('span', {}, 'Server unreachable'), element('span', { class: 'knob', 'aria-hidden': 'true' }))
  reach.addEventListener('click', () => void ask({ ask: 'reach', on: reach.getAttribute('aria-checked') === 'true' }))
  const conclude = element('div', { class: 'buttons' })
  const journal = element('div', { class: 'list' })
  const requests = element('div', { class: 'list' })
  const others = element('div', { class: 'list' })

  body.append(
    element('dl', { class: 'tiles' }, requestsTile.node, chargesTile.node, takenTile.node),
    section('The next charge meets', element('div', { class: 'chips' }, ...faults.values(), reach)),
    section(
      'This page',
      element(
        'div',
        { class: 'buttons' },
        button('Kill it', () => location.reload()),
        button('Open it twice', () => window.open(location.href, '_blank', 'noopener')),
        button('Wipe its storage', () => void wipe()),
        button('Ask the server', () => void askServer().catch(() => {})),
      ),
      conclude,
    ),
    section('Journal of this browser', journal),
    section('Ledger of the server', requests),
    others,
  )
  setUpToggle()

  const showServer = (view: ServerView | undefined): void => {
    const paid = view?.charges.filter(({ standing }) => standing === 'paid') ?? []
    requestsTile.show(view ? String(view.requests.length) : '–')
    chargesTile.show(view ? String(view.charges.filter(({ standing }) => standing !== 'failed').length) : '–')
    takenTile.show(
      view
        ? moneyText(
            paid.reduce((sum, { amount }) => sum + amount, 0),
            order.currency,
          )
        : '–',
    )
    for (const [name, chip] of faults) chip.setAttribute('aria-pressed', String(view?.armed.includes(name) === true))
    reach.setAttribute('aria-checked', String(view?.isReachable === false))
    requests.replaceChildren(
      ...(view ? requestRows(view) : [element('p', { class: 'empty' }, 'No word from the server of this page.')]),
    )
    conclude.replaceChildren(
      ...(view?.charges ?? []).filter(({ standing }) => standing === 'processing').flatMap(concluders),
    )
  }
  const concluders = ({ id }: MadeCharge): Node[] => [
    button('Bank pays', () => void ask({ ask: 'conclude', charge: id, isPaid: true })),
    button('Bank refuses', () => void ask({ ask: 'conclude', charge: id, isPaid: false })),
  ]

  listenToServer(order, showServer)
  const refresh = coalesced(async () => {
    try {
      const mine: EntryView[] = []
      const rest = new Map<string, EntryView>()
      for await (const entry of billing.entries()) {
        if (entry.operationId === order.operationId) mine.push(entry)
        else rest.set(entry.operationId, entry)
      }
      journal.replaceChildren(
        ...(mine.length > 0
          ? mine.toReversed().map(entryCard)
          : [
              element('p', { class: 'empty' }, 'Nothing is noted of this order. The note comes before the first byte.'),
            ]),
      )
      others.replaceChildren(...(rest.size > 0 ? [otherOrders([...rest.values()])] : []))
    } catch (error) {
      const words = error instanceof Error ? error.message : String(error)
      journal.replaceChildren(element('p', { class: 'empty' }, words))
    }
  })
  refresh()
  return { refresh }
}

// --------------------------------------------------------------------------------------------------------- what is shown

function entryCard(entry: EntryView): HTMLElement {
  const why = whyOf(entry.outcome)
  const facts = [`revision ${entry.revision}`, ...(why === undefined ? [] : [why])]
  return element(
    'article',
    { class: 'entry', 'data-state': entry.state },
    element(
      'div',
      { class: 'head' },
      element('strong', { class: 'state' }, entry.state),
      element('span', {}, facts.join(' · ')),
    ),
    element('p', { class: 'key' }, entry.key),
    entry.attempts.length > 0
      ? table(['No.', 'Began', 'Took', 'Reply'], entry.attempts.map(attemptRow))
      : element('p', { class: 'empty' }, 'No attempt yet.'),
  )
}

/** What the journal says beside the state. */
function whyOf(outcome: Outcome): string | undefined {
  switch (outcome.status) {
    case 'succeeded':
      return undefined
    case 'accepted':
      return outcome.progress
    case 'rejected':
      return outcome.rejection.code ?? outcome.rejection.kind
    case 'canceled':
      return `by ${outcome.by}`
    case 'deferred':
    case 'unknown':
      return outcome.reason
  }
}

function attemptRow({ number, beganAtMs, endedAtMs, status, result, why, markedReplay }: Attempt): string[] {
  const word = result === undefined ? 'under way' : why === undefined ? result : `${result}, ${why}`
  const reply = [...(status === undefined ? [] : [String(status)]), word, ...(markedReplay ? ['(replay)'] : [])]
  return [
    String(number),
    timeText(beganAtMs),
    endedAtMs === undefined ? '…' : tookText(endedAtMs - beganAtMs),
    reply.join(' '),
  ]
}

function requestRows({ requests, charges }: ServerView): Node[] {
  if (requests.length === 0) return [element('p', { class: 'empty' }, 'No request of this order has arrived.')]
  return [
    table(
      ['Request', 'Key', 'Did', 'Answer'],
      requests.map(({ number, key, did, answer }) => [String(number), `…${key.slice(-4)}`, did, answer]),
    ),
    ...(charges.length > 0
      ? [
          table(
            ['Charge', 'Key', 'Amount', 'Standing'],
            charges.map(({ id, key, amount, currency, standing }) => [
              id,
              `…${key.slice(-4)}`,
              moneyText(amount, currency),
              standing,
            ]),
          ),
        ]
      : []),
  ]
}

function otherOrders(entries: readonly EntryView[]): HTMLElement {
  return section(
    'Other orders in the journal',
    element(
      'ul',
      { class: 'others' },
      ...entries
        .slice(-5)
        .toReversed()
        .map(({ operationId, state }) => {
          const number = operationId.replace(/^order-/, '')
          const link = element('a', { href: `./?order=${encodeURIComponent(number)}` }, number.toUpperCase())
          return element('li', {}, link, element('span', { class: 'state', 'data-state': state }, state))
        }),
    ),
  )
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): HTMLElement {
  const cells = (name: 'th' | 'td', row: readonly string[]): HTMLElement[] =>
    row.map((cell) => element(name, name === 'th' ? { scope: 'col' } : {}, cell))
  return element(
    'table',
    {},
    element('thead', {}, element('tr', {}, ...cells('th', head))),
    element('tbody', {}, ...rows.map((row) => element('tr', {}, ...cells('td', row)))),
  )
}

function section(title: string, ...children: readonly Node[]): HTMLElement {
  return element('section', {}, element('h3', {}, title), ...children)
}

function button(words: string, press: () => unknown): HTMLButtonElement {
  const made = element('button', { type: 'button' }, words)
  made.addEventListener('click', press)
  return made
}

function tile(name: string, one: string, several: string): { readonly node: HTMLElement; show(value: string): void } {
  const words = element('dt', {}, several)
  const figure = element('dd', { id: `tile-${name}` }, '–')
  return {
    node: element('div', {}, words, figure),
    show: (value) => {
      words.textContent = value === '1' ? one : several
      figure.textContent = value
    },
  }
}

function timeText(atMs: number): string {
  return new Date(atMs).toLocaleTimeString('en-GB')
}

function tookText(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`
}

// ------------------------------------------------------------------------------------------------------- what it does

async function ask(request: PanelRequest): Promise<void> {
  await fetch('./panel/ask', { method: 'POST', body: JSON.stringify(request) }).catch(() => {})
}

/** As a browser that clears its storage, or another device: the order in the address is the same, and so is its key. */
async function wipe(): Promise<void> {
  await billing.close()
  const databases = await indexedDB.databases()
  await Promise.all(
    databases.map(
      ({ name = '' }) =>
        new Promise((resolve) => {
          const deleting = indexedDB.deleteDatabase(name)
          for (const end of ['success', 'error', 'blocked']) deleting.addEventListener(end, resolve)
        }),
    ),
  )
  localStorage.clear()
  location.reload()
}

/** Server-sent events; a page in the background or in the back-forward cache holds no connection. */
function listenToServer(order: Order, show: (view: ServerView | undefined) => void): void {
  let source: EventSource | undefined
  const open = (): void => {
    if (source) return
    source = new EventSource(`./panel/stream?operation=${encodeURIComponent(order.operationId)}`)
    source.addEventListener('message', ({ data }) => show(JSON.parse(String(data)) as ServerView))
    source.addEventListener('error', () => show(undefined))
  }
  const close = (): void => {
    source?.close()
    source = undefined
  }
  show(undefined)
  open()
  window.addEventListener('pageshow', open)
  window.addEventListener('pagehide', close)
}

function setUpToggle(): void {
  const panel = byId('panel', HTMLElement)
  const toggle = byId('panel-toggle', HTMLButtonElement)
  const show = (isOpen: boolean): void => {
    panel.dataset['open'] = String(isOpen)
    toggle.setAttribute('aria-expanded', String(isOpen))
    toggle.textContent = isOpen ? 'Hide' : 'Show'
  }
  toggle.addEventListener('click', () => {
    const isOpen = panel.dataset['open'] !== 'true'
    show(isOpen)
    stored((storage) => storage.setItem(OPEN, String(isOpen)))
  })
  // On a phone it would stand between the customer and the end of the page.
  const isWide = matchMedia('(min-width: 70rem)').matches
  show((stored((storage) => storage.getItem(OPEN)) ?? String(isWide)) === 'true')
}

/** Storage that is forbidden throws when it is touched. */
function stored<T>(work: (storage: Storage) => T): T | undefined {
  try {
    return work(localStorage)
  } catch {
    return undefined
  }
}

/** Runs after a burst of calls, once, and again if there was one meanwhile. */
function coalesced(work: () => Promise<void>): () => void {
  let isRunning = false
  let isWanted = false
  return () => {
    isWanted = true
    if (isRunning) return
    isRunning = true
    void (async () => {
      while (isWanted) {
        isWanted = false
        await work()
      }
      isRunning = false
    })()
  }
}
