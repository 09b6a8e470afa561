/** An application's service worker: it asks the server of the page who is signed in, and delivers for that one. */
import { createBillingClient } from 'billonce'
import { resumeOnSync } from 'billonce/service-worker'

const scope = self as unknown as { skipWaiting(): Promise<void>; clients: { claim(): Promise<void> } }
addEventListener('install', () => void scope.skipWaiting())
addEventListener('activate', (event) =>
  (event as unknown as { waitUntil(work: Promise<void>): void }).waitUntil(scope.clients.claim()),
)

resumeOnSync(
  async () => {
    const response = await fetch('/session')
    if (!response.ok) return undefined
    const login = (await response.json()) as { scope: string; token: string }
    return createBillingClient({
      baseUrl: location.origin,
      scope: 'org_42/test',
      credentials: () => ({ scope: login.scope, headers: { authorization: `Bearer ${login.token}` } }),
    })
  },
  { deadlineMs: 20_000 },
)
