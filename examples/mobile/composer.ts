/**
 * The card where a visit is recorded: where, how long, one big button. After it the card says what was recorded, and the next
 * visit begins with another press, so that a double tap is never two visits.
 */
import type { Site } from './accounts.ts'
import { byId, element, icon, setText } from './dom.ts'
import type { Snapshot } from './session.ts'
import type { Visit } from './visits.ts'
import { minutesText, standingOf } from './words.ts'
import type { VisitView } from './words.ts'

const STEP = 5
const USUAL = 30
const MOST = 24 * 60

export interface ComposerActions {
  record(visit: Pick<Visit, 'customer' | 'site' | 'minutes'>): Promise<Visit>
  withdraw(view: VisitView): void
}

export interface Composer {
  show(snapshot: Snapshot): void
  /** Another account has signed in. */
  reset(): void
}

export function setUpComposer(actions: ComposerActions): Composer {
  const form = byId('compose', HTMLFormElement)
  const done = byId('done', HTMLElement)
  const tiles = byId('sites', HTMLElement)
  const minutes = byId('minutes', HTMLInputElement)
  const fewer = byId('fewer', HTMLButtonElement)
  const more = byId('more', HTMLButtonElement)
  const button = byId('record', HTMLButtonElement)
  const label = byId('record-label', HTMLElement)
  const problem = byId('problem', HTMLElement)
  const withdraw = byId('done-withdraw', HTMLButtonElement)
  const next = byId('next', HTMLButtonElement)
  const badge = byId('done-badge', HTMLElement)
  let sites: readonly Site[] = []
  let chosen: string | undefined
  let isRecording = false
  /** The visit that the card says something about, instead of the form. */
  let recorded: Visit | undefined
  let shown: VisitView | undefined

  const value = (): number | undefined => {
    const number = Number(minutes.value)
    return Number.isSafeInteger(number) && number >= 1 && number <= MOST ? number : undefined
  }
  const showValue = (): void => {
    const now = value()
    setText(label, now === undefined ? 'Record' : `Record ${minutesText(now)}`)
    fewer.disabled = now !== undefined && now <= 1
    more.disabled = now !== undefined && now >= MOST
    minutes.setAttribute('aria-invalid', String(now === undefined))
  }
  const step = (by: number): void => {
    const now = value() ?? USUAL
    // To the next round number first: 7 becomes 10, not 12.
    const stepped = by > 0 ? Math.floor(now / STEP) * STEP + STEP : Math.ceil(now / STEP) * STEP - STEP
    minutes.value = String(Math.min(MOST, Math.max(1, stepped)))
    say()
    showValue()
  }
  const say = (words = ''): void => {
    setText(problem, words)
    problem.hidden = words === ''
  }
  const toggle = (): void => {
    form.hidden = recorded !== undefined
    done.hidden = recorded === undefined
  }

  fewer.addEventListener('click', () => step(-STEP))
  more.addEventListener('click', () => step(STEP))
  minutes.addEventListener('input', () => {
    say()
    showValue()
  })
  minutes.addEventListener('focus', () => minutes.select())
  tiles.addEventListener('change', (event) => {
    chosen = (event.target as HTMLInputElement).value
    say()
  })

  form.addEventListener('submit', (event) => {
    event.preventDefault()
    const site = sites.find(({ customer }) => customer === chosen)
    const time = value()
    if (isRecording) return
    if (!site) return say('Choose where you were.')
    if (time === undefined) {
      say(`Enter whole minutes, from 1 to ${MOST}.`)
      return minutes.focus()
    }
    isRecording = true
    button.setAttribute('aria-disabled', 'true')
    actions
      .record({ customer: site.customer, site: site.name, minutes: time })
      .then(
        (visit) => {
          recorded = visit
          say()
          // Before it is seen: the card still holds the visit before, and its button would withdraw that one.
          if (latest) showDone(latest)
          toggle()
          next.focus()
          navigator.vibrate?.(12)
        },
        () => say('It could not be saved on this phone, so nothing was recorded. Please try again.'),
      )
      .finally(() => {
        isRecording = false
        button.removeAttribute('aria-disabled')
      })
  })
  next.addEventListener('click', () => {
    recorded = undefined
    chosen = undefined
    minutes.value = String(USUAL)
    showValue()
    toggle()
    button.focus()
    if (latest) show(latest)
  })
  withdraw.addEventListener('click', () => shown && actions.withdraw(shown))
  showValue()

  let latest: Snapshot | undefined
  const show = (snapshot: Snapshot): void => {
    latest = snapshot
    const today = new Date().toDateString()
    const visited = new Set(
      snapshot.visits
        .filter(({ visit, entry }) => entry?.state !== 'canceled' && new Date(visit.endedAtMs).toDateString() === today)
        .map(({ visit }) => visit.customer),
    )
    if (sites !== snapshot.account.sites) {
      sites = snapshot.account.sites
      tiles.replaceChildren(...sites.map(tile))
    }
    // The next one of the round, until somebody chooses.
    chosen ??= (sites.find(({ customer }) => !visited.has(customer)) ?? sites[0])?.customer
    for (const input of tiles.querySelectorAll('input')) {
      input.checked = input.value === chosen
      const been = input.parentElement?.querySelector<HTMLElement>('.been')
      if (been) been.hidden = !visited.has(input.value)
    }
    showDone(snapshot)
  }
  const showDone = (snapshot: Snapshot): void => {
    if (!recorded) return
    const number = recorded.number
    shown = snapshot.visits.find(({ visit }) => visit.number === number)
    if (!shown) return
    const { visit } = shown
    const standing = standingOf(shown, { nowMs: Date.now(), isOnline: navigator.onLine })
    if (done.dataset['look'] !== standing.look) badge.replaceChildren(icon(standing.look))
    done.dataset['look'] = standing.look
    setText(byId('done-title', HTMLElement), standing.words)
    setText(byId('done-what', HTMLElement), `${visit.site}, ${minutesText(visit.minutes)}`)
    setText(byId('done-more', HTMLElement), standing.more)
    const hadFocus = document.activeElement === withdraw
    withdraw.hidden = standing.canWithdraw !== true
    if (hadFocus && withdraw.hidden) next.focus()
  }

  return {
    show,
    reset() {
      recorded = undefined
      shown = undefined
      chosen = undefined
      sites = []
      minutes.value = String(USUAL)
      say()
      showValue()
      toggle()
    },
  }
}

function tile({ customer, name, what }: Site): HTMLElement {
  return element(
    'label',
    { class: 'tile' },
    element('input', { type: 'radio', name: 'site', value: customer }),
    element('span', { class: 'name' }, name),
    element('span', { class: 'what' }, what),
    element('span', { class: 'been', hidden: '' }, icon('tick'), element('span', { class: 'unseen' }, 'visited today')),
  )
}
