/** A config module that brings its own journal, as it would for a database. */
import type { BillingClientOptions } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'

export const options: Partial<BillingClientOptions> = {
  journal: sqliteJournal({ path: process.env['PATH_OF_JOURNAL'] }),
}
