/**
 * The service worker: the app's files from a cache, so that it opens without a network, and the delivery of what is open when
 * the browser wakes the worker, with the app closed too.
 */
import { resumeOnSync } from 'billonce/service-worker'
import { whoIsSignedIn } from './account.ts'
import { billingOf, noteWhatIsMissing } from './billing.ts'
import { tellOthers } from './phone-store.ts'

/** What the build puts in: the files of the app, relative to this script, and a digest of them. */
declare const SHELL: { readonly version: string; readonly files: readonly string[] }

/** What is not in TypeScript's library of pages. */
interface WaitEvent extends Event {
  waitUntil(work: Promise<unknown>): void
}
interface FetchEvent extends WaitEvent {
  readonly request: Request
  respondWith(answer: Promise<Response>): void
}
const worker = self as unknown as { readonly clients: { claim(): Promise<void> } }

const PREFIX = 'rounds-shell-'
const CACHE = PREFIX + SHELL.version
const folder = new URL('./', location.href)
const shell = new Set(SHELL.files.map((file) => new URL(file, folder).href))

// A new version waits until the app is closed (no skipWaiting): one page never gets files of two versions.
addEventListener('install', (event) => {
  ;(event as WaitEvent).waitUntil(
    caches.open(CACHE).then((cache) => cache.addAll([...shell].map((file) => new Request(file, { cache: 'reload' })))),
  )
})

addEventListener('activate', (event) => {
  ;(event as WaitEvent).waitUntil(
    (async () => {
      const old = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE)
      await Promise.all(old.map((name) => caches.delete(name)))
      // The first visit is covered too, not only the second.
      await worker.clients.claim()
    })(),
  )
})

addEventListener('fetch', (event) => {
  const fetched = event as FetchEvent
  const { request } = fetched
  const url = new URL(request.url)
  url.search = ''
  url.hash = ''
  // Everything else goes its way untouched, above all what is billed: a cache must never answer for the office.
  if (request.method !== 'GET' || !shell.has(url.href)) return
  fetched.respondWith(fromCache(url.href, request))
})

async function fromCache(file: string, request: Request): Promise<Response> {
  const cache = await caches.open(CACHE)
  return (await cache.match(file)) ?? fetch(request)
}

resumeOnSync(async () => {
  const account = await whoIsSignedIn()
  if (!account) return undefined
  const billing = billingOf(account.scope)
  billing.subscribe(({ type }) => {
    if (type === 'state') tellOthers()
  })
  try {
    await noteWhatIsMissing(billing, account.scope)
    return billing
  } catch (error) {
    await billing.close()
    throw error
  }
})
