/** The IndexedDB journal holds the contract of journals. */
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { describe, test } from 'vitest'
import type { StorePlace } from '../../src/testing/store-suite.ts'
import { storeSuite } from '../../src/testing/store-suite.ts'
import { newName, openRaw } from './indexeddb-support.ts'

describe('indexedDbJournal', () => {
  const suite = storeSuite((): StorePlace => {
    const name = newName()
    return {
      keeps: true,
      open: () => indexedDbJournal({ name }),
      async putRaw(entry, text) {
        const database = await openRaw(name)
        const { endpoint, scope, kind, operationId, namedAtMs, key, state } = entry
        const deliverable = state === 'pending' || state === 'sending' ? { deliverable: 1, open: state } : {}
        const row = { text, endpoint, scope, kind, operationId, namedAtMs, key, ...deliverable }
        const transaction = database.transaction('entries', 'readwrite')
        transaction.objectStore('entries').put(row, JSON.stringify([endpoint, key]))
        await new Promise((resolve) => {
          transaction.oncomplete = resolve
        })
        database.close()
      },
      dispose: () => {},
    }
  })
  for (const { name, run } of suite) test(`${name}`, run)
})
