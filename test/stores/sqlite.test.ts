/** The journal in an SQLite file: that it holds the contract, and what is special about a file. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, test, vi } from 'vitest'
import { sqliteJournal } from '../../src/stores/sqlite.ts'
import { storeSuite } from '../../src/testing/store-suite.ts'

// Disks and processes are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

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
