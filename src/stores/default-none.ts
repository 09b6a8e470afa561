/**
 * The journal where no runtime we know is found. It keeps nothing and refuses every call, so that nothing is ever sent
 * that was not written down; only the caller may choose a journal that forgets.
 */
import { JournalUnavailableError } from '../errors.ts'
import type { JournalStore } from './store.ts'

/** A journal whose every call rejects and names the ways out. Touches nothing. */
export function defaultJournal(): JournalStore {
  const refuse = (): Promise<never> =>
    Promise.reject(
      new JournalUnavailableError(
        'This runtime has no journal by default, and nothing is sent that was not written down first. Name one: ' +
          'journal: sqliteJournal({ path }) from billonce/stores/sqlite for Node, indexedDbJournal() from ' +
          'billonce/stores/indexeddb for browsers, or forgetfulJournal(), which forgets everything when the process ends.',
        { fault: 'unavailable' },
      ),
    )
  return {
    durable: true,
    owner: 'none',
    insert: refuse,
    replace: refuse,
    get: refuse,
    getByKey: refuse,
    history: refuse,
    listDeliverable: refuse,
    countOpen: refuse,
    list: refuse,
    remove: refuse,
    knowsSinceMs: refuse,
    isGone: refuse,
    // Nothing was opened, so there is nothing that could fail to close.
    close: () => Promise.resolve(),
  }
}
