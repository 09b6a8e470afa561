/** Many processes at one SQLite journal, some of which are killed. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { JournalEntry } from '../../src/model/entry.ts'
import { sqliteJournal } from '../../src/stores/sqlite.ts'
import type { JournalStore } from '../../src/stores/store.ts'
import { sampleEntry } from '../../src/testing/store-suite.ts'
import { endPrograms, startProgram } from './programs.ts'

// Disks and processes are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

let folder = ''
let path = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-'))
  path = join(folder, 'journal.sqlite')
})
afterEach(() => {
  endPrograms()
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
})

const peaceful = { code: 0, signal: null, trouble: '' }

async function opened<T>(use: (journal: JournalStore) => Promise<T>): Promise<T> {
  const journal = sqliteJournal({ path })
  try {
    return await use(journal)
  } finally {
    await journal.close()
  }
}

async function everything(journal: JournalStore): Promise<JournalEntry[]> {
  const { entries, unreadable } = await journal.list({}, 1_000_000)
  expect(unreadable).toBe(0)
  return [...entries]
}

function expectIntact(): void {
  const db = new DatabaseSync(path)
  expect(db.prepare('PRAGMA integrity_check').all()).toEqual([{ integrity_check: 'ok' }])
  db.close()
}

test('G50: eight processes with 200 operations each see no lock and settle all', async () => {
  const programs = Array.from({ length: 8 }, (_, index) => startProgram(['bill', path, 200, `p${index}`]))
  expect(await Promise.all(programs.map(({ ended }) => ended))).toEqual(programs.map(() => peaceful))
  expect(programs.map(({ lines }) => lines)).toEqual(programs.map(() => [{ done: 200 }]))
  const entries = await opened(everything)
  expect(entries).toHaveLength(1600)
  expect(new Set(entries.map(({ key }) => key)).size).toBe(1600)
  expect(entries.every(({ state, version }) => state === 'succeeded' && version === 2)).toBe(true)
  expect(await opened((journal) => journal.countOpen())).toEqual([])
  expectIntact()
})

test('G51: two processes that claim in a loop see no lock and never claim the same', async () => {
  const keys = await opened(async (journal) => {
    const entries = Array.from({ length: 300 }, (_, index) => sampleEntry({ operationId: `order-${index}` }))
    await Promise.all(entries.map((entry) => journal.insert(entry, [])))
    return entries.map(({ key }) => key)
  })
  const programs = [startProgram(['claim', path]), startProgram(['claim', path])]
  await Promise.all(programs.map((program) => program.printed(1)))
  writeFileSync(`${path}-go`, '')
  expect(await Promise.all(programs.map(({ ended }) => ended))).toEqual([peaceful, peaceful])
  const claimed = programs.map(({ lines }) => lines[1] as string[])
  expect(claimed.flat().toSorted()).toEqual(keys.toSorted())
  // Both were at work, or it would prove nothing.
  expect(Math.min(...claimed.map(({ length }) => length))).toBeGreaterThan(0)
})

test('G52: sixteen processes open a journal that does not exist yet at the same moment', async () => {
  const rounds = 10
  const programs = Array.from({ length: 16 }, (_, index) => startProgram(['open', folder, rounds, `p${index}`]))
  await Promise.all(programs.map((program) => program.printed(1)))
  for (let round = 0; round < rounds; round++) {
    writeFileSync(join(folder, `go-${round}`), '')
    await Promise.all(programs.map((program) => program.printed(round + 2)))
    path = join(folder, `round-${round}`, 'journal.sqlite')
    expect(await opened(everything)).toHaveLength(16)
  }
  expect(await Promise.all(programs.map(({ ended }) => ended))).toEqual(programs.map(() => peaceful))
})

test('G52: processes that open a journal while others open and close it, and its WAL comes and goes', async () => {
  const programs = Array.from({ length: 2 }, (_, index) => startProgram(['reopen', path, 150, `p${index}`]))
  expect(await Promise.all(programs.map(({ ended }) => ended))).toEqual(programs.map(() => peaceful))
  expect(await opened(everything)).toHaveLength(2 * 150)
})

test('G52: processes that die while they create a journal leave one that opens, or none', async () => {
  for (let round = 0; round < 12; round++) {
    path = join(folder, `round-${round}`, 'journal.sqlite')
    const programs = [0, 1, 2].map((index) => startProgram(['stream', path, 0, `p${index}`]))
    // From before it begins until after it is done; a start takes about a tenth of a second.
    await new Promise((resolve) => setTimeout(resolve, 60 + round * 12))
    for (const program of programs) program.kill()
    await Promise.all(programs.map(({ ended }) => ended))
    const there = (await opened(everything)).map(({ operationId }) => String(operationId))
    for (const [index, { lines }] of programs.entries()) {
      expect(there).toEqual(expect.arrayContaining(lines.map((line) => `p${index}-${String(line)}`)))
    }
    expectIntact()
  }
})

test('G57: what was acknowledged is there after a kill the moment after', async () => {
  for (const count of [1, 2, 300]) {
    const program = startProgram(['crash', path, count, `crash-of-${count}`])
    expect((await program.ended).signal).toBe('SIGKILL')
    const there = (await opened(everything)).filter(({ operationId }) => operationId.startsWith(`crash-of-${count}-`))
    expect(there).toHaveLength(count)
  }
})

test('G57: killed at any point, everything that was acknowledged is there', async () => {
  const acknowledged: string[] = []
  for (let round = 0; round < 5; round++) {
    const programs = [0, 1].map((index) => startProgram(['stream', path, 0, `r${round}p${index}`]))
    // By what was written and not by time, so that a slow disk proves as much.
    await Promise.all(programs.map((program) => program.printed(6 + Math.floor(Math.random() * 40))))
    for (const program of programs) program.kill()
    await Promise.all(programs.map(({ ended }) => ended))
    for (const [index, { lines }] of programs.entries()) {
      acknowledged.push(...lines.map((line) => `r${round}p${index}-${String(line)}`))
    }
    const there = new Set((await opened(everything)).map(({ operationId }) => String(operationId)))
    expect(acknowledged.filter((name) => !there.has(name))).toEqual([])
  }
  expect(acknowledged.length).toBeGreaterThan(50)
  expectIntact()
})

test('G55: an idle journal that nobody closed lets the process end', async () => {
  const program = startProgram(['insert', path])
  expect(await program.ended).toEqual(peaceful)
  expect(program.lines).toEqual([{ inserted: true }])
})

test('the holder of a claim is gone once its process is, and not before', async () => {
  const program = startProgram(['owner', path])
  await program.printed(1)
  const owner = String(program.lines[0])
  await opened(async (journal) => {
    expect(await journal.isGone(owner)).toBe(false)
    program.kill()
    await program.ended
    expect(await journal.isGone(owner)).toBe(true)
    // Cannot be told: another machine, another thread of a process that lives.
    expect(await journal.isGone(`${owner}x`)).toBe(false)
    const [pid, threadId, , ...place] = journal.owner.split('/')
    expect(await journal.isGone([pid, Number(threadId) + 1, '1-1', ...place].join('/'))).toBe(false)
    // This process and thread under another name: what ran before under this process id.
    expect(await journal.isGone([pid, threadId, '1-1', ...place].join('/'))).toBe(true)
  })
})
