/** Which journal a runtime gets that names none. */
import { existsSync } from 'node:fs'
import { expect, test } from 'vitest'
import { defaultJournal as journalOfNode } from '../../src/stores/default-node.ts'
import { defaultJournal as journalOfNobody } from '../../src/stores/default-none.ts'
import { sampleEntry } from '../../src/testing/store-suite.ts'

test('in Node it is a durable one, and nothing is touched before it is used', async () => {
  const wasThere = existsSync('.billonce')
  const journal = journalOfNode()
  expect(journal.durable).toBe(true)
  await journal.close()
  expect(existsSync('.billonce')).toBe(wasThere)
})

test('in an unknown runtime every call is refused and names the ways out', async () => {
  const journal = journalOfNobody()
  const entry = sampleEntry()
  const calls = [
    journal.insert(entry, []),
    journal.replace(entry),
    journal.get(entry.endpoint, entry.key),
    journal.getByKey(entry.key),
    journal.history(entry),
    journal.listDeliverable(entry, 1),
    journal.countOpen(),
    journal.list({}, 1),
    journal.remove([entry]),
    journal.knowsSinceMs('charge'),
    journal.isGone('somebody'),
  ]
  for (const call of calls) {
    await expect(call).rejects.toMatchObject({
      code: 'ERR_JOURNAL_UNAVAILABLE',
      fault: 'unavailable',
      message: expect.stringMatching(/sqliteJournal.*indexedDbJournal.*forgetfulJournal/) as string,
    })
  }
  await journal.close()
})
