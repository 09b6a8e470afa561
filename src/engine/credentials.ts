/**
 * Whose credentials are at hand: asked afresh for each attempt, bounded in time, and checked against the scope of the entry,
 * so that nobody pays another's bill. They are never stored.
 */
import type { HoldReason, JournalEntry } from '../model/entry.ts'
import { readHeaders } from '../model/headers.ts'
import type { Context } from './context.ts'
import { firstOf } from './waiters.ts'

export interface CredentialsRequest {
  /** The scope of the entry that is to be sent. */
  readonly scope: string
  /** The attempt that is about to be made, from 1. */
  readonly attempt: number
  /** Status of the reply before, such as 401 when a token ran out; absent at the first attempt and after a lost reply. */
  readonly previousStatus?: number
}

export interface Credentials {
  /** Whose these are; other than the entry's scope and nothing is sent. */
  readonly scope: string
  /** Such as `authorization`; never the key header or the content type. */
  readonly headers: Readonly<Record<string, string>>
}

export type CredentialsOption = (request: CredentialsRequest) => Credentials | Promise<Credentials>

export type AtHand = { readonly headers: Readonly<Record<string, string>> } | { readonly held: HoldReason }

/** Asks for the credentials of an entry's next attempt; resolves in bounded time and never rejects. */
export async function credentialsFor(context: Context, entry: JournalEntry): Promise<AtHand> {
  const { settings, runtime } = context
  const previousStatus = entry.attempts.at(-1)?.status
  const request: CredentialsRequest = {
    scope: entry.scope,
    attempt: entry.attemptsBegun + 1,
    ...(previousStatus === undefined ? {} : { previousStatus }),
  }
  const asked = (async (): Promise<AtHand> => {
    const credentials: unknown = await settings.credentials(request)
    if (
      typeof credentials !== 'object' ||
      credentials === null ||
      !('scope' in credentials) ||
      !('headers' in credentials)
    ) {
      return { held: 'no-credentials' }
    }
    if (credentials.scope !== request.scope) return { held: 'other-login' }
    return { headers: readHeaders(credentials.headers, entry.request.keyHeader.name) }
  })().catch((): AtHand => ({ held: 'no-credentials' }))
  // Those that cannot change are there at once.
  if (settings.hasFixedHeaders) return await asked
  const inTime = await firstOf(runtime, asked, runtime.monotonicMs() + settings.credentialsTimeoutMs, undefined)
  return inTime ?? { held: 'no-credentials' }
}
