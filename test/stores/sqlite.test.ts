/** The journal in an SQLite file: that it holds the contract, and what is special about a file. */
import { execFile, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { promisify } from 'node:util'
import { describe, expect, test, vi } from 'vitest'
import { sqliteJournal } from '../../src/stores/sqlite.ts'
import { sampleEntry, storeSuite } from '../../src/testing/store-suite.ts'
import { nodeArguments } from '../support/node-program.ts'

// Disks and processes are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

const canTrace = spawnSync('strace', ['-f', '-o', '/dev/null', 'true']).status === 0
if (!canTrace) process.stderr.write('SKIPPED: flushes were not counted, strace is missing or not allowed here\n')

describe('sqliteJournal', () => {
  const suite = storeSuite(() => {
    const folder = mkdtempSync(join(tmpdir(), 'billonce-'))
    const path = join(folder, 'journal.sqlite')
    let busyTimeoutMs = 30_000
    return {
      // Another setting each time, so that each is a thread and a connection of its own, as of another process.
      open: () => sqliteJournal({ path, busyTimeoutMs: busyTimeoutMs++ }),
      keeps: true,
      // oxlint-disable-next-line typescript/require-await
      async putRaw(entry, text) {
        const db = new DatabaseSync(path)
        db.prepare(
          'INSERT INTO entries (endpoint, key, version, scope, kind, subject, operation_id, state, entry) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)',
        ).run(
          entry.endpoint,
          entry.key,
          entry.version,
          entry.scope,
          entry.kind,
          entry.subject,
          entry.operationId,
          entry.state,
          text,
        )
        db.close()
      },
      dispose: () => rmSync(folder, { recursive: true }),
    }
  })
  for (const { name, run } of suite) test(`${name}`, run)
})

test('the event loop turns before all that was answered together goes on', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-'))
  const journal = sqliteJournal({ path: join(folder, 'journal.sqlite') })
  try {
    await journal.countOpen()
    let turn = 0
    let isOver = false
    const countTurns = (): void => {
      turn += 1
      if (!isOver) setImmediate(countTurns)
    }
    setImmediate(countTurns)
    const goneOn = new Map<number, number>()
    const insert = async (index: number): Promise<void> => {
      const operationId = `order-${index}`
      expect(await journal.insert(sampleEntry({ key: randomUUID(), operationId }), [])).toEqual({ inserted: true })
      goneOn.set(turn, (goneOn.get(turn) ?? 0) + 1)
    }
    await Promise.all(Array.from({ length: 400 }, (_, index) => insert(index)))
    isOver = true
    // Twice 32, should another answer come in the same turn.
    expect(Math.max(...goneOn.values())).toBeLessThanOrEqual(64)
  } finally {
    await journal.close()
    rmSync(folder, { recursive: true })
  }
})

describe("settle: 'lazy'", () => {
  test('a receipt is there for others at once and after closing', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'billonce-'))
    try {
      const path = join(folder, 'journal.sqlite')
      const entry = sampleEntry({ state: 'sending' })
      const settled = { ...sampleEntry({ state: 'succeeded' }), version: 2 }
      const lazy = sqliteJournal({ path, settle: 'lazy' })
      const other = sqliteJournal({ path })
      await lazy.insert(entry, [])
      expect(await lazy.replace(settled)).toBe(true)
      expect(await other.get(entry.endpoint, entry.key)).toEqual(settled)
      await lazy.close()
      await other.close()
      const later = sqliteJournal({ path })
      expect(await later.get(entry.endpoint, entry.key)).toEqual(settled)
      await later.close()
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  test.skipIf(!canTrace)(
    'receipts alone wait for a flush, at most 50 ms; what begins and what is refused is flushed',
    async () => {
      const folder = mkdtempSync(join(tmpdir(), 'billonce-'))
      try {
        const counts = { flushed: 0, lazy: 0 }
        let mostLazy = 0
        for (const settle of ['flushed', 'lazy'] as const) {
          const trace = join(folder, `${settle}.trace`)
          const traced = [...nodeArguments, program('lazy'), join(folder, `${settle}.sqlite`), settle]
          const calls = ['-f', '-s', '400', '-e', 'trace=fsync,fdatasync,write', '-o', trace]
          await promisify(execFile)('strace', [...calls, process.execPath, ...traced])
          // From mark to mark: what was flushed meanwhile.
          const lines = readFileSync(trace, 'utf8').split('\n')
          const isFlush = (line: string): boolean =>
            /(?:fsync|fdatasync)(?:\(| resumed)/.test(line) && line.endsWith(' = 0')
          const between = (from: string, to: string): number =>
            lines
              .slice(
                lines.findIndex((line) => line.includes(`mark ${from}`)),
                lines.findIndex((line) => line.includes(`mark ${to}`)),
              )
              .filter(isFlush).length
          counts[settle] = between('receipts', 'waited')
          // One every 50 ms, of which a busy machine has more; a checkpoint adds two.
          const [, tookMs = 0] = / after (\d+) ms/.exec(lines.find((line) => line.includes('mark waited')) ?? '') ?? []
          mostLazy = 4 + Number(tookMs) / 50
          expect(between('begin', 'begun')).toBeGreaterThanOrEqual(20)
          expect(between('refusals', 'refused')).toBeGreaterThanOrEqual(20)
          // The one after the last receipt came by itself.
          expect(between('receipts', 'waited')).toBeGreaterThanOrEqual(1)
        }
        expect(counts.flushed).toBeGreaterThanOrEqual(20)
        expect(counts.lazy).toBeLessThan(Math.max(counts.flushed / 2, mostLazy))
      } finally {
        rmSync(folder, { recursive: true })
      }
    },
  )
})

function program(name: string): string {
  return join(import.meta.dirname, 'programs', `${name}.ts`)
}
