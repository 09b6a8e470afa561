/** A worker that keeps one entry under a claim of its own, says so and waits to be ended. */
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { sampleEntry } from '../../src/testing/store-suite.ts'

const journal = indexedDbJournal({ name: new URLSearchParams(location.search).get('name') ?? '' })
const { owner } = journal
const entry = { ...sampleEntry(), claim: { owner: `${owner}#1`, fence: 1, untilMs: Date.now() + 60_000 } }
postMessage({ owner, inserted: (await journal.insert(entry, [])).inserted })
