/** The journal of a browser when the caller names none; `#default-store` leads here under the condition `browser`. */
import { indexedDbJournal } from './indexeddb.ts'
import type { JournalStore } from './store.ts'

export function defaultJournal(): JournalStore {
  return indexedDbJournal()
}
