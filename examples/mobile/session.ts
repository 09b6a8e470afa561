/**
 * The signed-in account with its billing client, and what the page shows of it. The page asks the journal anew after each
 * event instead of keeping a copy in step: the worker and other tabs change it too.
 */
import type { BillingClient, EntryView, JournalHealth } from 'billonce'
import { requestSync, resumeInWorker } from 'billonce/service-worker'
import { whoIsSignedIn } from './account.ts'
import type { Account } from './accounts.ts'
import { billingOf, note, noteWhatIsMissing } from './billing.ts'
import { coalesced } from './dom.ts'
import { onTold, tellOthers } from './phone-store.ts'
import { addVisit, visitsOf } from './visits.ts'
import type { Visit } from './visits.ts'
import type { VisitView } from './words.ts'

export interface Snapshot {
  readonly account: Account
  readonly health: JournalHealth
  /** The latest first. */
  readonly visits: readonly VisitView[]
  /** Whether the office answered the last attempt of this page. */
  readonly isAnswered: boolean
}

export interface Session {
  readonly account: Account
  readonly billing: BillingClient
}

export interface SessionKeeper {
  readonly current: Session | undefined
  /** Finds out who is signed in and shows what there is. */
  refresh(): Promise<void>
  /** Writes the visit down; resolves when it is on the phone, and rejects if it is not. */
  record(visit: Pick<Visit, 'customer' | 'site' | 'minutes'>): Promise<Visit>
  /** Tries at once what waits for its next try. */
  sendNow(): Promise<void>
}

/** @param show is called with every change, with nothing when nobody is signed in */
export function keepSession(show: (snapshot: Snapshot | undefined) => void): SessionKeeper {
  let current: Session | undefined
  let stop = (): void => {}
  let isAnswered = true

  const enter = async (account: Account | undefined): Promise<void> => {
    if (account?.scope === current?.account.scope) return
    const left = current?.billing
    stop()
    current = undefined
    // What is on the wire ends and is written down, and no more is begun for the one who has left.
    await left?.close()
    if (!account) return
    const billing = billingOf(account.scope)
    current = { account, billing }
    isAnswered = true
    const stopListening = billing.subscribe((event) => {
      if (event.type === 'attempt-ended') isAnswered = event.status !== undefined
      if (event.type === 'state') tellOthers()
      void refresh()
    })
    // What an earlier visit left open goes out now, and whenever the page comes back to life or online.
    const stopDelivery = billing.start()
    stop = () => {
      stopListening()
      stopDelivery()
    }
    await noteMissing()
  }
  /** Not with every refresh: a journal that fails tells it by an event, which refreshes. */
  const noteMissing = async (): Promise<void> => {
    // A journal that cannot be reached is told by its health, and what it could not take is tried again.
    if (current) await noteWhatIsMissing(current.billing, current.account.scope).catch(() => {})
  }

  const refresh = coalesced(async () => {
    await enter(await whoIsSignedIn())
    if (!current) return show(undefined)
    const { account, billing } = current
    // In this order: what is marked as noted by now is in the journal by then.
    const visits = await visitsOf(account.scope)
    const [health, entries] = await Promise.all([billing.journalHealth(), latestEntries(billing)])
    show({
      account,
      health,
      visits: visits.map((visit) => ({
        visit,
        entry: entries?.get(visit.operationId),
        isReadable: entries !== undefined,
      })),
      isAnswered,
    })
  })

  onTold(() => void refresh())
  for (const type of ['online', 'offline', 'pageshow']) addEventListener(type, () => void refresh())
  document.addEventListener('visibilitychange', () => void refresh())
  // Hours pass, days change, and an attempt that never ended stops being "sending".
  setInterval(() => {
    if (document.visibilityState === 'visible') void noteMissing().then(refresh)
  }, 10_000)
  let registration: ServiceWorkerRegistration | undefined
  const whenWorking = navigator.serviceWorker?.ready.then((ready) => (registration = ready))
  // Not everything is sent when the page goes: a worker may go on for a while.
  addEventListener('pagehide', () => {
    if (registration) resumeInWorker(registration)
  })

  return {
    get current() {
      return current
    },
    refresh,
    async record(visit) {
      if (!current) throw new Error('Nobody is signed in.')
      const { account, billing } = current
      const added = await addVisit({ ...visit, scope: account.scope, endedAtMs: Date.now() })
      // It is written down, so a journal that fails now does not undo it: asking for the visit once more would make it two.
      await note(billing, added).catch(() => {})
      // Should the app be closed or killed before it is sent, the browser wakes the worker, where it can (Chromium).
      void whenWorking?.then((ready) => requestSync(ready))
      tellOthers()
      await refresh()
      return added
    },
    async sendNow() {
      await current?.billing.resume({ deadlineMs: 20_000 })
      await refresh()
    },
  }
}

/** `undefined` if the journal cannot be read; its health tells why. */
async function latestEntries(billing: BillingClient): Promise<ReadonlyMap<string, EntryView> | undefined> {
  const latest = new Map<string, EntryView>()
  try {
    for await (const entry of billing.entries({ kind: 'usage' })) {
      const known = latest.get(entry.operationId)
      if (!known || known.revision < entry.revision) latest.set(entry.operationId, entry)
    }
    return latest
  } catch {
    return undefined
  }
}
