/** The list of visits: a node for each, made once and changed in place, so that what is open stays open and focus stays put. */
import { byId, element, icon, setText } from './dom.ts'
import { dayText, minutesText, standingOf, timeText } from './words.ts'
import type { VisitView } from './words.ts'

export interface VisitList {
  show(visits: readonly VisitView[]): void
}

export interface VisitActions {
  withdraw(view: VisitView): void
  sendAgain(view: VisitView): void
}

interface Item {
  readonly node: HTMLLIElement
  show(view: VisitView): void
}

export function setUpVisitList(actions: VisitActions): VisitList {
  const days = byId('days', HTMLElement)
  const empty = byId('no-visits', HTMLElement)
  const items = new Map<number, Item>()
  return {
    show(visits) {
      empty.hidden = visits.length > 0
      const nowMs = Date.now()
      const groups = new Map<string, VisitView[]>()
      for (const view of visits) {
        const day = dayText(view.visit.endedAtMs, nowMs)
        groups.set(day, [...(groups.get(day) ?? []), view])
      }
      const sections = [...groups].map(([day, views]) => {
        const section = sectionOf(days, day)
        place(
          section.list,
          views.map((view) => {
            let item = items.get(view.visit.number)
            if (!item) items.set(view.visit.number, (item = itemOf(view, actions)))
            item.show(view)
            return item.node
          }),
        )
        const total = views
          .filter((view) => !['refused', 'withdrawn'].includes(standing(view).look))
          .reduce((sum, { visit }) => sum + visit.minutes, 0)
        setText(section.total, minutesText(total))
        return section.node
      })
      place(days, sections)
    },
  }
}

function sectionOf(days: HTMLElement, day: string): { node: HTMLElement; list: HTMLElement; total: HTMLElement } {
  const found = [...days.children].find((child) => child instanceof HTMLElement && child.dataset['day'] === day)
  const node =
    found instanceof HTMLElement
      ? found
      : element(
          'section',
          { class: 'day', 'data-day': day },
          element('h3', {}, element('span', {}, day), element('span', { class: 'total' })),
          element('ol', {}),
        )
  const [list, total] = [node.querySelector('ol'), node.querySelector<HTMLElement>('.total')]
  if (!list || !total) throw new Error('A day without a list')
  return { node, list, total }
}

/** Puts the nodes in this order and nothing else; one that is where it belongs is not touched. */
function place(parent: Element, nodes: readonly Element[]): void {
  nodes.forEach((node, index) => {
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null)
  })
  while (parent.children.length > nodes.length) parent.lastElementChild?.remove()
}

function standing(view: VisitView): ReturnType<typeof standingOf> {
  return standingOf(view, { nowMs: Date.now(), isOnline: navigator.onLine })
}

function itemOf({ visit }: VisitView, actions: VisitActions): Item {
  const badge = element('span', { class: 'badge' })
  const words = element('span', { class: 'words' })
  const more = element('p', {})
  const facts = element('p', { class: 'facts' })
  const withdraw = element('button', { type: 'button', class: 'quiet' }, 'Withdraw')
  const again = element('button', { type: 'button', class: 'quiet' }, 'Send again')
  const summary = element(
    'summary',
    {},
    badge,
    element(
      'span',
      { class: 'what' },
      element('span', { class: 'site' }, visit.site),
      element('span', { class: 'minutes' }, minutesText(visit.minutes)),
      element('span', { class: 'when' }, `${timeText(visit.endedAtMs)} · `, words),
    ),
    icon('chevron'),
  )
  const node = element(
    'li',
    {},
    element('details', { name: 'visit' }, summary, element('div', { class: 'more' }, more, facts, withdraw, again)),
  )
  let shown: VisitView | undefined
  withdraw.addEventListener('click', () => shown && actions.withdraw(shown))
  again.addEventListener('click', () => shown && actions.sendAgain(shown))
  return {
    node,
    show(view) {
      shown = view
      const { entry } = view
      const now = standing(view)
      if (node.dataset['look'] !== now.look) badge.replaceChildren(icon(now.look))
      node.dataset['look'] = now.look
      setText(words, now.words)
      setText(more, now.more)
      const tries = entry?.attemptsBegun ?? 0
      setText(
        facts,
        `Visit ${visit.number} of this phone${tries > 0 ? ` · ${tries} ${tries === 1 ? 'try' : 'tries'}` : ''}`,
      )
      const pressed = [withdraw, again].find((button) => button === document.activeElement)
      withdraw.hidden = now.canWithdraw !== true
      again.hidden = now.canSendAgain !== true
      // A keyboard that was on it would be left nowhere.
      if (pressed?.hidden) summary.focus()
    },
  }
}
