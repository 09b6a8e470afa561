/**
 * Who is signed in on this phone. In IndexedDB, because the service worker has to know it too and cannot read localStorage. The
 * tokens are demo tokens; an app of yours would keep a short-lived one here, or ask its server, which has set a cookie.
 */
import { del, get, set } from 'idb-keyval'
import { accounts } from './accounts.ts'
import type { Account } from './accounts.ts'
import { phoneStore } from './phone-store.ts'

const KEY = 'signed-in'

/** The account that is signed in; `undefined` when nobody is. Read anew each time: another tab may have changed it. */
export async function whoIsSignedIn(): Promise<Account | undefined> {
  const id = await get<string>(KEY, phoneStore())
  return accounts.find((account) => account.id === id)
}

export async function signIn(account: Account): Promise<void> {
  await set(KEY, account.id, phoneStore())
}

export async function signOut(): Promise<void> {
  await del(KEY, phoneStore())
}
