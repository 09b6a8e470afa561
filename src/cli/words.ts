/**
 * What a state means and what to do next, in words for whoever is on call.
 */
import type { JournalEntry, SendingReason, PendingReason, UnknownReason } from 'billonce'
import { fromNow, harmless, isoOf } from './text.ts'
import { stateOf } from './view.ts'
import type { ShownState } from './view.ts'

/** What the state says of the money. */
export function meaningOf(entry: JournalEntry): string {
  return MEANINGS[stateOf(entry)]
}

const MEANINGS: Readonly<Record<ShownState, string>> = {
  pending: 'Certainly without effect so far. It will be sent.',
  sending: 'May have taken effect. It is sent again under the same key until there is an answer.',
  accepted: 'The receiver made it and has not concluded it. It is never sent again.',
  unknown: 'May have taken effect. Nothing is sent any more; it waits for evidence.',
  succeeded: 'It took effect, once.',
  rejected: 'A definite no: without effect.',
  canceled: 'Ended before it was sent: without effect.',
  contradicted: 'Two words contradict each other. Nothing more is sent for this operation until a person decides.',
}

/** Why it is in this state. */
export function whyOf(entry: JournalEntry): string | undefined {
  if (entry.contradiction) return undefined
  switch (entry.state) {
    case 'pending':
    case 'sending':
      return WAITS[entry.reason]
    case 'unknown':
      return ENDED[entry.reason]
    case 'accepted':
      return entry.progress === 'requires_action'
        ? 'The customer has to do something first, such as 3-D Secure.'
        : 'The receiver is still processing it.'
    case 'canceled':
      return {
        caller: 'Somebody canceled it.',
        'send-before': 'It waited longer than it was allowed to.',
        'too-late': 'The receiver does not accept an event this old.',
        superseded: 'Another revision of the operation succeeded.',
      }[entry.by]
    case 'rejected':
      return {
        declined: 'The receiver processed it and said no.',
        invalid: 'The receiver would not process it as it is.',
        'not-applied': 'Evidence showed that it never took effect.',
      }[entry.rejection.kind]
    case 'succeeded':
      return undefined
    default:
      return entry satisfies never
  }
}

const WAITS: Readonly<Record<PendingReason | SendingReason, string>> = {
  'not-yet-tried': 'It has not been tried yet.',
  'not-sent': 'The last attempt was stopped before it left.',
  'in-flight': 'An attempt began and no reply is recorded: it is under way, or its process died.',
  'no-clear-reply': 'The last attempt brought no clear reply: a timeout, a lost connection, a 5xx.',
  busy: 'The receiver says that the same key is still at work there.',
  'refused-unproven': 'It was refused, but from in front of the key layer, and an earlier attempt may have worked.',
  offline: 'There was no network.',
  'other-login': 'The credentials at hand were for another scope.',
  'no-credentials': 'No credentials were at hand.',
  unauthorized: 'The receiver did not accept the credentials (401, 403, 407).',
  'rate-limited': 'The receiver asked to slow down (429).',
  'too-early': 'The receiver said that it came too early (425).',
  misrouted: 'The address seems wrong: a 404 or the like from something that is not the receiver.',
}

const ENDED: Readonly<Record<UnknownReason, string>> = {
  'window-over': 'The receiver may have forgotten the key by now, so sending again could be a second effect.',
  'recorded-failure': 'The receiver saved a failure under the key and replays it; asking again changes nothing.',
  'key-conflict': 'The receiver knows the key with other parameters: two operations were given one name.',
  'receipt-differs': 'The receipt is for another amount or currency than was asked for.',
  'dialect-missing': 'No dialect is at hand that could read the replies to it.',
  'may-predate-journal': 'Its event is older than this journal, so another journal may have sent it.',
  'takes-no-key': 'The receiver takes no key for this write, so it is not asked twice.',
  superseded:
    'Another revision of the operation succeeded, so this one, which may have worked too, is not sent any more.',
}

/** The two words that do not go together. */
export function contradictionOf(entry: JournalEntry): string | undefined {
  const { contradiction } = entry
  if (!contradiction) return undefined
  const held =
    entry.state === 'succeeded' || entry.state === 'accepted'
      ? `it is ${entry.state} with receipt ${harmless(entry.receipt.id)}`
      : entry.state === 'rejected'
        ? `it is rejected${entry.rejection.code === undefined ? '' : ` (${harmless(entry.rejection.code)})`}`
        : `it is ${entry.state}`
  const source = contradiction.attempt === null ? 'evidence' : `the reply to attempt ${contradiction.attempt}`
  const said = {
    succeeded: 'said that it took effect',
    accepted: 'said that it was made',
    'receipt-differs': 'brought a receipt for another amount or currency',
    refused: 'said that it took no effect',
  }[contradiction.word]
  const receipt = contradiction.receipt ? `, receipt ${harmless(contradiction.receipt.id)}` : ''
  const code = contradiction.rejection?.code === undefined ? '' : ` (${harmless(contradiction.rejection.code)})`
  return `On record ${held}; on ${isoOf(contradiction.atMs)} ${source} ${said}${receipt}${code}.`
}

/** What to do next, with the command to do it by. */
export function nextStepOf(entry: JournalEntry, nowMs: number): string {
  const ref = entry.key
  const look = `Look it up at the receiver by its key or name, then record what you found: billonce evidence ${ref} --applied --receipt '{"id":"…"}' (or --not-applied) --by <you> --why <how you know>.`
  if (entry.contradiction) {
    const two =
      entry.contradiction.receipt && 'receipt' in entry && entry.receipt
        ? ' There may be two effects: refund one of them at the receiver.'
        : ''
    return `Find out at the receiver what holds, and decide: billonce evidence ${ref} --applied --receipt '{"id":"…"}' (or --not-applied) --by <you> --why <how you know>.${two}`
  }
  switch (entry.state) {
    case 'pending':
      return `Nothing, if a process of yours runs start() or resume(); else: billonce resume. It can still be canceled: billonce cancel ${ref}.`
    case 'sending': {
      const over =
        entry.window.startAtMs === null ? '' : ` (${fromNow(entry.window.startAtMs + entry.window.lengthMs, nowMs)})`
      return `Do not charge in another way. A running start(), or billonce resume, asks again under the same key; if there is no answer before the key window ends${over} it becomes unknown.`
    }
    case 'accepted':
      return entry.progress === 'requires_action'
        ? `Let the customer finish what the receiver asks for. A webhook or billonce reconcile then settles it.`
        : `Wait for the receiver: a webhook or billonce reconcile settles it.`
    case 'unknown':
      if (entry.reason === 'receipt-differs') {
        return `Something was made, for another amount or currency: put it right at the receiver, then record how it ended: billonce evidence ${ref} --applied --receipt '{"id":"…"}' (or --not-applied, if it was undone) --by <you> --why <how you know>.`
      }
      return entry.reason === 'key-conflict'
        ? `Fix the naming: another operation has this operationId. ${look}`
        : `Do not charge in another way. billonce reconcile asks the receiver, if it can be asked. ${look}`
    case 'rejected':
      return entry.request.body === null
        ? 'Nothing. Another try is a new call with the next revision.'
        : `Nothing. If the refusal was a mistake, such as a bad deploy: billonce retry ${ref} sends it again as the next revision.`
    case 'canceled':
      return 'Nothing. If it is wanted after all, the application names it again (with reopen: true if it was canceled by somebody).'
    case 'succeeded':
      return 'Nothing.'
    default:
      return entry satisfies never
  }
}
