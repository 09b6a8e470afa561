/**
 * Begins, settles and refuses twenty entries one after the other, and marks on stdout where each part begins and ends, for a
 * test that counts what the kernel was asked to flush: `lazy.ts <path> <settle>`.
 */
import { writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { JournalEntry } from '../../../src/model/entry.ts'
import { sqliteJournal } from '../../../src/stores/sqlite.ts'
import { sampleEntry } from '../../../src/testing/store-suite.ts'

const [path = '', settle = 'flushed'] = process.argv.slice(2)
const journal = sqliteJournal({ path, settle: settle === 'lazy' ? 'lazy' : 'flushed' })
const mark = (name: string): void => void writeSync(1, `mark ${name}\n`)
const entries = (state: JournalEntry['state'], version: number, from: number): readonly JournalEntry[] =>
  Array.from({ length: 20 }, (_, index) => sampleEntry({ operationId: `order-${from + index}`, state, version }))

for (const entry of entries('sending', 1, 100)) await journal.insert(entry, [])
mark('begin')
for (const entry of entries('sending', 1, 0)) await journal.insert(entry, [])
mark('begun')
mark('receipts')
const beganAtMs = performance.now()
for (const entry of entries('succeeded', 2, 0)) await journal.replace(entry)
const tookMs = Math.ceil(performance.now() - beganAtMs)
await sleep(200)
mark(`waited, after ${tookMs} ms`)
mark('refusals')
for (const entry of entries('rejected', 2, 100)) await journal.replace(entry)
mark('refused')
await journal.close()
