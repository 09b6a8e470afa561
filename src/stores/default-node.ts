/** The journal that a client in Node has if none is named. Where it lies is sqlite.ts's. */
import { sqliteJournal } from './sqlite.ts'
import type { JournalStore } from './store.ts'

/** The SQLite file at `BILLONCE_JOURNAL`, else `.billonce/journal.sqlite` under the working directory. Touches nothing yet. */
export function defaultJournal(): JournalStore {
  return sqliteJournal()
}
