/** The developer's sheet: what can go wrong at the office, what it has billed, and what this page's billing client tells. */
import type { BillingEvent } from 'billonce'
import type { BenchOrder, BenchView, Trouble } from './bench-api.ts'
import { byId, element, setText } from './dom.ts'

const SWITCHES: readonly { readonly trouble: Trouble; readonly words: string; readonly hint: string }[] = [
  { trouble: 'unreachable', words: 'Office unreachable', hint: 'Connections are cut before it reads anything' },
  { trouble: 'slow', words: 'Slow office', hint: 'Each visit takes it five seconds' },
  { trouble: 'lose-reply', words: 'Lose the next reply', hint: 'It bills the visit, and nobody hears of it' },
  { trouble: 'refuse', words: 'Refuse the next visit', hint: 'A definite no, such as of a contract that has ended' },
]
const POLL_MS = 1_000
const KEPT = 30

export interface Bench {
  tell(event: BillingEvent): void
}

export function setUpBench(): Bench {
  const sheet = byId('bench-sheet', HTMLDialogElement)
  const requests = byId('bench-requests', HTMLElement)
  const events = byId('bench-events', HTMLElement)
  const told: HTMLElement[] = []
  const switches = new Map(
    SWITCHES.map(({ trouble, words, hint }) => {
      const button = element(
        'button',
        { type: 'button', class: 'switch', role: 'switch', 'aria-checked': 'false' },
        element('span', { class: 'label' }, words, element('small', {}, hint)),
        element('span', { class: 'knob', 'aria-hidden': 'true' }),
      )
      button.addEventListener('click', () => {
        void ask({ trouble, on: button.getAttribute('aria-checked') !== 'true' })
      })
      return [trouble, button] as const
    }),
  )
  byId('bench-switches', HTMLElement).append(...switches.values())

  const show = (view: BenchView | undefined): void => {
    setText(byId('bench-count-requests', HTMLElement), view ? String(view.requests.length) : '–')
    setText(byId('bench-count-effects', HTMLElement), view ? String(view.effects) : '–')
    setText(byId('bench-count-minutes', HTMLElement), view ? String(view.minutes) : '–')
    for (const [trouble, button] of switches) {
      button.setAttribute('aria-checked', String(view?.on.includes(trouble) === true))
      button.disabled = view === undefined
    }
    const rows = (view?.requests ?? []).toReversed().slice(0, KEPT).map(requestRow)
    const nothing = view ? 'No request has arrived.' : 'The server of this page does not answer.'
    requests.replaceChildren(...(rows.length > 0 ? rows : [element('li', { class: 'nothing' }, nothing)]))
  }
  const ask = async (order?: BenchOrder): Promise<void> => {
    try {
      const response = await fetch('bench', order ? { method: 'POST', body: JSON.stringify(order) } : {})
      show(response.ok ? ((await response.json()) as BenchView) : undefined)
    } catch {
      show(undefined)
    }
  }
  let timer: ReturnType<typeof setInterval> | undefined
  byId('open-bench', HTMLButtonElement).addEventListener('click', () => {
    sheet.showModal()
    void ask()
    clearInterval(timer)
    timer = setInterval(() => void ask(), POLL_MS)
  })
  sheet.addEventListener('close', () => clearInterval(timer))

  return {
    tell(event) {
      const key = 'key' in event && event.key !== undefined ? event.key : ''
      told.unshift(row(event.atMs, event.type, factsOf(event), key))
      told.length = Math.min(told.length, KEPT)
      events.replaceChildren(...told)
    },
  }
}

function requestRow({ atMs, key, account, did, answer }: BenchView['requests'][number]): HTMLElement {
  return row(atMs, did, `${answer}${account === '' ? '' : `, ${account}`}`, key)
}

function row(atMs: number, word: string, facts: string, key: string): HTMLElement {
  return element(
    'li',
    {},
    element('time', {}, new Date(atMs).toLocaleTimeString('en-GB')),
    element('span', { class: 'word' }, word, ...(facts === '' ? [] : [element('small', {}, facts)])),
    element('code', {}, key.slice(0, 8)),
  )
}

function factsOf(event: BillingEvent): string {
  switch (event.type) {
    case 'state':
      return `${event.from ?? 'new'} → ${event.to}${event.reason === undefined ? '' : `, ${event.reason}`}`
    case 'attempt-began':
      return `attempt ${event.attempt}`
    case 'attempt-ended':
      return [event.result, event.why, event.status].filter((part) => part !== undefined).join(', ')
    case 'held':
      return event.reason
    case 'left-alone':
      return `${event.count}, ${event.why}`
    case 'storage-fault':
      return `${event.step}, ${event.fault}`
    default:
      return ''
  }
}
