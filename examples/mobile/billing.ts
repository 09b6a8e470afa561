/**
 * The billing client of an account, the same in the page and in the service worker, and the one place where a visit becomes a
 * billing write.
 */
import { createBillingClient, standard } from 'billonce'
import type { BillingClient } from 'billonce'
import { whoIsSignedIn } from './account.ts'
import { markNoted, visitsOf } from './visits.ts'
import type { Visit } from './visits.ts'

export function billingOf(scope: string): BillingClient {
  return createBillingClient({
    // Page and worker lie in the same folder, wherever that is served.
    baseUrl: new URL('billing', location.href).href,
    endpoint: 'office',
    scope,
    // The phone numbers its own visits, so nobody else can have sent them: the age of a key counts from the first attempt, and
    // a visit that waited for days in a cellar is still sent.
    names: 'own',
    // The office looks at the key first, so its no speaks for every request under the key, also for one that the browser sent
    // again by itself. Only so may a refused visit be sent again without somebody looking it up.
    dialect: standard({ recordedRefusals: { usage: [400] } }),
    // Asked before each attempt. Whoever is signed in by then, a visit goes out with its owner's login or not at all.
    async credentials() {
      const account = await whoIsSignedIn()
      if (!account) throw new Error('Nobody is signed in.')
      return { scope: account.scope, headers: { authorization: `Bearer ${account.token}` } }
    },
  })
}

/** Resolves when the visit is in the journal; its delivery is another matter, and goes on by itself. */
export async function note(billing: BillingClient, visit: Visit): Promise<void> {
  await billing.recordUsage(
    {
      meter: 'service-minutes',
      quantity: visit.minutes,
      customer: visit.customer,
      // Of the event. A clock that is read here would give the same visit another body each time.
      occurredAt: new Date(visit.endedAtMs),
    },
    { operationId: visit.operationId, eventAtMs: visit.endedAtMs, background: true },
  )
  await markNoted(visit)
}

/**
 * The app was killed after a visit was written down and before the journal had it, or before it was marked: named again, it is
 * noted once. What was marked is not named again, because a journal without it has been wiped and may have sent it.
 */
export async function noteWhatIsMissing(billing: BillingClient, scope: string): Promise<void> {
  for (const visit of await visitsOf(scope)) {
    if (!visit.isNoted) await note(billing, visit)
  }
}
