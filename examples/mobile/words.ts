/** How things stand, in the words of those who use the app. Pure. */
import type { EntryView, JournalHealth } from 'billonce'
import type { Visit } from './visits.ts'

/** What the list shows of a visit; also the name of its drawing. */
export type Look = 'saved' | 'sending' | 'checking' | 'recorded' | 'refused' | 'withdrawn' | 'ask'

export interface Standing {
  readonly look: Look
  /** A few words, such as "Saved on this phone". */
  readonly words: string
  /** A sentence for those who open it. */
  readonly more: string
  readonly canWithdraw?: boolean
  readonly canSendAgain?: boolean
}

/** An attempt that has no end after this long is nobody's any more: its page was killed. */
const ATTEMPT_MS = 35_000

/** A visit, and what the journal holds of it. */
export interface VisitView {
  readonly visit: Visit
  /** The latest revision; absent if the journal holds none, or cannot be read. */
  readonly entry: EntryView | undefined
  readonly isReadable: boolean
}

export function standingOf(
  { visit, entry, isReadable }: VisitView,
  world: { readonly nowMs: number; readonly isOnline: boolean },
): Standing {
  if (!entry && visit.isNoted && !isReadable) {
    return {
      look: 'checking',
      words: 'Cannot be read now',
      more: 'The browser’s storage does not answer. The visit is noted, and goes on when the storage is back.',
    }
  }
  if (!entry) {
    return visit.isNoted
      ? {
          look: 'ask',
          words: 'Ask the office',
          more: 'This phone has lost its note of it. The office knows whether it has it.',
        }
      : {
          look: 'saved',
          words: 'Saved on this phone',
          more: 'It waits until the browser’s storage takes it for sending.',
        }
  }
  const { outcome } = entry
  const last = entry.attempts.at(-1)
  if (
    entry.state === 'sending' &&
    world.isOnline &&
    last &&
    last.endedAtMs === undefined &&
    world.nowMs - last.beganAtMs < ATTEMPT_MS
  ) {
    return { look: 'sending', words: 'Sending', more: 'It is on its way to the office.' }
  }
  switch (outcome.status) {
    case 'succeeded':
      return { look: 'recorded', words: 'Recorded', more: `The office has it. Receipt ${outcome.receipt.id}.` }
    case 'deferred':
      return {
        look: 'saved',
        words: 'Saved on this phone',
        more: WAITS[outcome.reason] ?? (world.isOnline ? 'It goes out in a moment.' : (WAITS.offline ?? '')),
        canWithdraw: true,
      }
    case 'rejected':
      return {
        look: 'refused',
        words: 'Not accepted',
        more: `The office said: ${outcome.rejection.message ?? 'no reason'} It is not billed.`,
        canSendAgain: true,
      }
    case 'canceled':
      return {
        look: 'withdrawn',
        words: outcome.by === 'caller' ? 'Withdrawn' : 'Too old',
        more:
          outcome.by === 'caller'
            ? 'You took it back before it was sent. It is not billed.'
            : 'The office accepts no visit this old. It is not billed.',
      }
    case 'accepted':
      return {
        look: 'recorded',
        words: 'Received',
        more: `The office is working on it. Receipt ${outcome.receipt.id}.`,
      }
    case 'unknown':
      return outcome.delivery === 'continues'
        ? {
            look: 'checking',
            words: 'Being checked',
            more: 'No answer has come back, so it may be recorded already. We ask again; it counts once.',
          }
        : {
            look: 'ask',
            words: 'Ask the office',
            more: `It may be recorded. The office finds it under ${outcome.key}.`,
          }
  }
}

/** Why something waits. */
const WAITS: Readonly<Partial<Record<string, string>>> = {
  offline: 'It goes out when there is a network.',
  'other-login': 'It goes out when its owner signs in.',
  'no-credentials': 'It goes out when its owner signs in.',
  unauthorized: 'The office does not accept this login.',
  forbidden: 'The office does not accept this login.',
  'rate-limited': 'The office is busy and asked us to come back later.',
}

export interface Bar {
  readonly tone: 'good' | 'wait' | 'bad'
  readonly text: string
  readonly canSendNow: boolean
}

export function barOf(
  health: JournalHealth,
  world: { readonly nowMs: number; readonly isOnline: boolean; readonly isAnswered: boolean },
): Bar {
  if (health.status === 'unavailable') {
    return { tone: 'bad', text: 'The browser’s storage does not answer: nothing can be sent', canSendNow: false }
  }
  const waiting = health.open.pending + health.open.sending
  const network = !world.isOnline ? 'offline' : world.isAnswered || waiting === 0 ? 'online' : 'no answer'
  if (waiting > 0) {
    const since =
      health.oldestOpenAtMs === null ? '' : `, the oldest since ${momentText(health.oldestOpenAtMs, world.nowMs)}`
    return {
      tone: 'wait',
      text: `${waiting} waiting${since} · ${network}`,
      canSendNow: world.isOnline && !world.isAnswered,
    }
  }
  if (health.open.unknown > 0) {
    return { tone: 'bad', text: `${health.open.unknown} to ask the office about · ${network}`, canSendNow: false }
  }
  return { tone: world.isOnline ? 'good' : 'wait', text: `Nothing waiting · ${network}`, canSendNow: false }
}

/** What the browser says about keeping what is not sent yet. */
export function storageText(persistence: JournalHealth['persistence']): string {
  switch (persistence) {
    case 'persistent':
      return 'The browser keeps your visits until they are sent.'
    case 'not-granted':
      return 'The browser has not promised to keep unsent visits when space runs low.'
    default:
      return 'This browser does not say whether it keeps unsent visits when space runs low.'
  }
}

export function minutesText(minutes: number): string {
  const hours = Math.floor(minutes / 60)
  const rest = minutes % 60
  if (hours === 0) return `${rest} min`
  return rest === 0 ? `${hours} h` : `${hours} h ${rest} min`
}

/** `10:42` of today, `Mon 10:42` of another day. */
export function momentText(atMs: number, nowMs: number): string {
  return dayText(atMs, nowMs) === 'Today'
    ? timeText(atMs)
    : `${new Date(atMs).toLocaleDateString('en-GB', { weekday: 'short' })} ${timeText(atMs)}`
}

export function timeText(atMs: number): string {
  return new Date(atMs).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })
}

/** The heading of a day in the list. */
export function dayText(atMs: number, nowMs: number): string {
  const day = new Date(atMs).toDateString()
  if (day === new Date(nowMs).toDateString()) return 'Today'
  if (day === new Date(nowMs - 86_400_000).toDateString()) return 'Yesterday'
  return new Date(atMs).toLocaleDateString('en-GB', { weekday: 'long', day: 'numeric', month: 'long' })
}
