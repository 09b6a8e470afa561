/**
 * What a customer reads, and what can be pressed: one view for each thing that can be known of a payment. Nothing here says
 * «failed» or «not charged» of what may have worked, and no button pays in another way while it may have.
 */
import { JournalUnavailableError, OperationConflictError, RevisionRefusedError } from 'billonce'
import type { Outcome } from 'billonce'
import { cardOf } from './cards.ts'

interface Words {
  readonly tone: 'calm' | 'wait' | 'good' | 'bad'
  readonly title: string
  /** `{until}` stands for a time, such as « until 18:30», or for nothing. */
  readonly text: string
}

/** All of them in one place, so that the page can keep room for the longest: nothing jumps when the state changes. */
export const WORDS = {
  ready: {
    tone: 'calm',
    title: 'You pay once',
    text: 'Press twice, reload, lose the connection: this order is charged one time.',
  },
  paying: {
    tone: 'wait',
    title: 'Paying…',
    text: 'This takes a moment. Nothing happens twice, whatever you press.',
  },
  'paying-late': {
    tone: 'wait',
    title: 'Still paying…',
    text: 'The answer is late, so we ask again. You will not be charged twice.',
  },
  succeeded: {
    tone: 'good',
    title: 'Paid. Thank you!',
    text: 'Your order is on its way to you. You can close this page.',
  },
  'requires-action': {
    tone: 'wait',
    title: 'One more step',
    text: 'Your bank wants you to confirm this payment.',
  },
  'bank-answers': {
    tone: 'wait',
    title: 'Waiting for your bank',
    text: 'This page says so once your bank has told us. Left too early? Go back there.',
  },
  processing: {
    tone: 'wait',
    title: 'Your bank is working on it',
    text: 'This can take some days. There is nothing left for you to do.',
  },
  rejected: {
    tone: 'bad',
    title: 'The payment was declined',
    text: 'You have not been charged. Please choose another card.',
  },
  'not-confirmed': {
    tone: 'bad',
    title: 'The payment did not go through',
    text: 'You have not been charged. Please choose another card.',
  },
  deferred: {
    tone: 'wait',
    title: 'Not paid yet',
    text: 'We will try again by ourselves{until}. You can leave this page open.',
  },
  'deferred-offline': {
    tone: 'wait',
    title: 'Not paid yet',
    text: 'You are offline. We will try again by ourselves{until}.',
  },
  stopped: {
    tone: 'calm',
    title: 'Nothing was charged',
    text: 'You stopped this payment. You can still pay for the order.',
  },
  'too-late': {
    tone: 'calm',
    title: 'Nothing was charged',
    text: 'It took too long to reach us, so we stopped. You can still pay.',
  },
  checking: {
    tone: 'wait',
    title: 'We are checking your payment',
    text: 'You will not be charged twice. We keep asking, and you can close this page.',
  },
  'checking-offline': {
    tone: 'wait',
    title: 'We are checking your payment',
    text: 'You will not be charged twice. You are offline; we ask when you are back.',
  },
  'looking-into': {
    tone: 'bad',
    title: 'We are looking into your payment',
    text: 'Please do not pay in another way. If you write to us, name the reference.',
  },
  'no-storage': {
    tone: 'bad',
    title: 'Your browser keeps no notes here',
    text: 'Nothing was sent just now. Allow this site to store data, or leave private mode.',
  },
  'no-space': {
    tone: 'bad',
    title: 'Your device has no space left',
    text: 'Nothing was sent just now. Free some, and try again.',
  },
  conflict: {
    tone: 'bad',
    title: 'This order was paid with other details',
    text: 'Nothing was sent just now. Please reload the page, or write to us.',
  },
  'first-try': {
    tone: 'bad',
    title: 'We are looking into your first try',
    text: 'It may have worked after all, so nothing more was sent. Please write to us.',
  },
  broken: {
    tone: 'bad',
    title: 'Something went wrong',
    text: 'Please reload the page: it finds out how things stand.',
  },
} as const satisfies Readonly<Record<string, Words>>

export type ViewName = keyof typeof WORDS

export interface View extends Words {
  /** Which of the words, for styles and tests. */
  readonly name: ViewName
  /** The button that pays: its words, whether it does, and whether something is going on. */
  readonly pay: { readonly words: string; readonly can: boolean; readonly isBusy?: true }
  /** What else can be done. */
  readonly action?: 'confirm' | 'cancel' | 'copy'
  /** What lies on the cards while there is nothing to choose. */
  readonly cover?: Cover
}

export interface Cover {
  /** `€62.40`. */
  readonly sum: string
  readonly facts: readonly (readonly [name: string, value: string])[]
}

/** What the page knows. */
export interface Known {
  /** What the journal or the last call says; `undefined` before the first try. */
  readonly outcome: Outcome | undefined
  /** Why the last look or call could not do its work. */
  readonly failure: unknown
  /** Whether a call of this page is under way. */
  readonly isCalling: boolean
  readonly isOnline: boolean
  /** Whether the customer has come back from the bank. */
  readonly isBackFromBank: boolean
  /** `€62.40`. */
  readonly sum: string
}

export function viewOf({ outcome, failure, isCalling, isOnline, isBackFromBank, sum }: Known): View {
  const canPay = { words: `Pay ${sum}`, can: true }
  if (isCalling && !(outcome && isWorthTelling(outcome, isOnline))) {
    const isLate = outcome?.status === 'unknown' && outcome.reason !== 'in-flight'
    return view(isLate ? 'paying-late' : 'paying', { words: 'Paying…', can: false, isBusy: true })
  }
  if (failure !== undefined) {
    const name = nameOfFailure(failure)
    const isOfStorage = name === 'no-storage' || name === 'no-space'
    return view(name, isOfStorage ? canPay : { words: 'Not possible now', can: false })
  }
  if (!outcome) return view('ready', canPay)
  const cover: Cover = { sum, facts: factsOf(outcome) }
  switch (outcome.status) {
    case 'succeeded':
      return view('succeeded', { words: 'Paid', can: false }, { cover })
    case 'accepted': {
      if (outcome.progress === 'processing') return view('processing', { words: 'On its way', can: false }, { cover })
      const more = { cover, action: 'confirm' } as const
      return isBackFromBank
        ? view('bank-answers', { words: 'Waiting for your bank', can: false, isBusy: true }, more)
        : view('requires-action', { words: 'Waiting for you', can: false }, more)
    }
    case 'rejected':
      return view(outcome.rejection.kind === 'not-applied' ? 'not-confirmed' : 'rejected', canPay)
    case 'deferred': {
      const more = { cover, action: 'cancel', until: untilText(outcome.sendBeforeAtMs) } as const
      return isOnline
        ? view('deferred', { words: 'Trying again soon', can: false, isBusy: true }, more)
        : view('deferred-offline', { words: 'Waiting for a network', can: false }, more)
    }
    case 'canceled':
      return view(outcome.by === 'caller' ? 'stopped' : 'too-late', canPay)
    case 'unknown':
      // It may have worked, so nothing here pays in another way.
      return outcome.delivery === 'continues'
        ? view(isOnline ? 'checking' : 'checking-offline', { words: 'Checking…', can: false, isBusy: true }, { cover })
        : view('looking-into', { words: 'Under review', can: false }, { cover, action: 'copy' })
  }
}

function view(
  name: ViewName,
  pay: View['pay'],
  { until = '', ...more }: Pick<View, 'action' | 'cover'> & { readonly until?: string } = {},
): View {
  const { tone, title, text } = WORDS[name]
  return { name, tone, title, text: text.replace('{until}', until), pay, ...more }
}

/** A receipt where there is one; before that the key, by which the shop finds everything. */
function factsOf(outcome: Outcome): Cover['facts'] {
  if (outcome.status !== 'succeeded' && outcome.status !== 'accepted') return [['Reference', outcome.key]]
  const { id, reply } = outcome.receipt
  const card = cardOf(reply['paymentMethod'])
  const createdAt = reply['createdAt']
  return [
    [outcome.status === 'succeeded' ? 'Receipt' : 'Payment', id],
    ...(card ? [['Card', `${card.brand} ${card.name}`] as const] : []),
    ...(outcome.status === 'succeeded' && typeof createdAt === 'string'
      ? [['Date', dateText(createdAt)] as const]
      : []),
  ]
}

function dateText(date: string): string {
  return new Date(date).toLocaleDateString('en-GB', { dateStyle: 'long' })
}

/** Whether there is more to say than «Paying…» while the page still waits for its call. A no of before is why it calls. */
function isWorthTelling(outcome: Outcome, isOnline: boolean): boolean {
  if (outcome.status === 'deferred' || outcome.status === 'unknown') return !isOnline
  return outcome.status === 'succeeded' || outcome.status === 'accepted'
}

function nameOfFailure(failure: unknown): ViewName {
  if (failure instanceof JournalUnavailableError && !failure.sentByThisCall) {
    return failure.fault === 'full' ? 'no-space' : 'no-storage'
  }
  if (failure instanceof OperationConflictError) return 'conflict'
  return failure instanceof RevisionRefusedError ? 'first-try' : 'broken'
}

function untilText(atMs: number | undefined): string {
  if (atMs === undefined) return ''
  return ` until ${new Date(atMs).toLocaleTimeString('en-GB', { timeStyle: 'short' })}`
}
