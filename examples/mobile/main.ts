/**
 * A field technician's app: records visits where there is often no network, and bills each once, whatever becomes of the
 * phone. This puts the parts together; what is billed how is in billing.ts.
 */
import { NotCancelableError } from 'billonce'
import { setUpAccountSheet } from './account-sheet.ts'
import { setUpBench } from './bench.ts'
import { setUpComposer } from './composer.ts'
import { byId, setText } from './dom.ts'
import { keepSession } from './session.ts'
import type { Snapshot } from './session.ts'
import { setUpVisitList } from './visit-list.ts'
import { barOf } from './words.ts'
import type { VisitView } from './words.ts'

const bar = byId('bar', HTMLElement)
const sendNow = byId('send-now', HTMLButtonElement)
const said = byId('said', HTMLElement)
const bench = setUpBench()
const session = keepSession(show)
const account = setUpAccountSheet(() => session.refresh())
const list = setUpVisitList({ withdraw: (view) => void withdraw(view), sendAgain: (view) => void sendAgain(view) })
const composer = setUpComposer({
  async record(visit) {
    const recorded = await session.record(visit)
    // A good moment: there is something to lose now, and a finger on the screen.
    void account.askToKeep()
    return recorded
  },
  withdraw: (view) => void withdraw(view),
})
let shownScope: string | undefined
let stopTelling = (): void => {}

function show(snapshot: Snapshot | undefined): void {
  if (shownScope !== snapshot?.account.scope) {
    shownScope = snapshot?.account.scope
    stopTelling()
    stopTelling = session.current?.billing.subscribe((event) => bench.tell(event)) ?? stopTelling
    composer.reset()
  }
  document.body.dataset['signedIn'] = String(snapshot !== undefined)
  byId('sign-in', HTMLElement).hidden = snapshot !== undefined
  byId('app', HTMLElement).hidden = snapshot === undefined
  byId('status', HTMLElement).hidden = snapshot === undefined
  account.show(snapshot)
  if (!snapshot) return
  const { health } = snapshot
  const now = barOf(health, { nowMs: Date.now(), isOnline: navigator.onLine, isAnswered: snapshot.isAnswered })
  bar.dataset['tone'] = now.tone
  setText(byId('bar-text', HTMLElement), now.text)
  sendNow.hidden = !now.canSendNow
  const others = health.status === 'readable' ? health.openElsewhere : 0
  byId('others', HTMLElement).hidden = others === 0
  setText(
    byId('others-text', HTMLElement),
    others === 1
      ? 'A visit of somebody else waits on this phone until they sign in.'
      : `${others} visits of somebody else wait on this phone until they sign in.`,
  )
  composer.show(snapshot)
  list.show(snapshot.visits)
}

sendNow.addEventListener('click', () => {
  sendNow.disabled = true
  session
    .sendNow()
    // The bar says how it stands.
    .catch(() => {})
    .finally(() => (sendNow.disabled = false))
})

async function withdraw({ entry }: VisitView): Promise<void> {
  if (!entry) return
  try {
    await session.current?.billing.cancel({ key: entry.key })
  } catch (error) {
    if (!(error instanceof NotCancelableError)) throw error
    setText(said, 'It may have been sent already, so it cannot be withdrawn.')
  }
  await session.refresh()
}

/** The office has put right why it refused: the same visit once more, as its next revision. */
async function sendAgain({ entry }: VisitView): Promise<void> {
  if (!entry) return
  // What comes of it is in the journal, and so in the list.
  await session.current?.billing.retryRejected({ key: entry.key }).catch(() => {})
  await session.refresh()
}

// A sheet is closed by its button, by Escape and by a tap beside it.
for (const sheet of document.querySelectorAll('dialog')) {
  sheet.addEventListener('click', (event) => {
    if (event.target === sheet) sheet.close()
  })
  for (const close of sheet.querySelectorAll('.close')) close.addEventListener('click', () => sheet.close())
}

void session.refresh()
// Not needed to record anything, so nothing waits for it: without a worker the app wants a network to open.
navigator.serviceWorker?.register('./worker.js').catch(() => {})
