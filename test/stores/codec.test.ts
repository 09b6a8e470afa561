/** The stored text of an entry: what a version once wrote is read for ever, what cannot be read is refused. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import type { JournalEntry } from '../../src/model/entry.ts'
import { decodeEntry, encodeEntry } from '../../src/stores/codec.ts'
import { SAMPLE_STATES, sampleEntry } from '../../src/testing/store-suite.ts'

describe.each([1])('format %i', (format) => {
  // Never edited: this is what lies on the disks of users. A new format gets a file beside it.
  const file = join(import.meta.dirname, 'fixtures', `entry-format-${format}.json`)
  const stored = JSON.parse(readFileSync(file, 'utf8')) as JournalEntry[]

  test('every state is in the fixture', () => {
    expect([...new Set(stored.map(({ state }) => state))]).toEqual(SAMPLE_STATES)
    expect(stored.every((entry) => entry.format === format)).toBe(true)
  })

  test('so are entries that were pruned, with evidence, and with a contradiction by a reply and by evidence', () => {
    expect(stored.filter(({ request }) => request.body === null)).toHaveLength(1)
    expect(stored.map(({ evidence }) => evidence.length).filter(Boolean)).toEqual([2, 2])
    const contradictions = stored.flatMap(({ contradiction }) => contradiction ?? [])
    expect(contradictions.map(({ attempt, word }) => [attempt, word])).toEqual([
      [1, 'succeeded'],
      [null, 'refused'],
    ])
  })

  test.each(stored.map((entry) => [entry.state, entry] as const))('%s is read as it is', (_state, entry) => {
    const read = decodeEntry(JSON.stringify(entry))
    expect(read).toEqual(entry)
    expect(decodeEntry(encodeEntry(read))).toEqual(read)
  })
})

test.each(['', 'null', '[]', '{', '{}', '{"format":0}', '{"format":"1"}', '{"format":1}', '{"format":1.5}'])(
  '%j is damaged',
  (text) => {
    expect(() => decodeEntry(text)).toThrow(expect.objectContaining({ fault: 'damaged' }))
  },
)

test('a newer format is refused as such, whatever else is in it', () => {
  expect(() => decodeEntry('{"format":2}')).toThrow(expect.objectContaining({ fault: 'newer-format' }))
})

test.each(SAMPLE_STATES)('%s without any one of its fields is damaged', (state) => {
  const entry = sampleEntry({ state })
  // What is told to a user about an action is the receiver's, and may be nothing.
  const names = Object.keys(entry).filter((name) => name !== 'nextAction')
  for (const name of names) {
    const { [name]: _gone, ...rest } = entry as unknown as Record<string, unknown>
    expect(() => decodeEntry(JSON.stringify(rest)), name).toThrow(expect.objectContaining({ fault: 'damaged' }))
  }
})
