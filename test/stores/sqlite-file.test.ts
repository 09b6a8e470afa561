/** The file of the SQLite journal: where it comes from, and that one which is not whole or not ours is refused and left as it is. */
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { sqliteJournal, type SqliteJournalOptions } from '../../src/stores/sqlite.ts'
import type { JournalStore } from '../../src/stores/store.ts'
import type { JournalEntry } from '../../src/model/entry.ts'
import { encodeEntry } from '../../src/stores/codec.ts'
import { sampleEntry } from '../../src/testing/store-suite.ts'
import { startProgram } from './programs.ts'
import { canMountDisk } from '../support/disk.ts'

// Disks and processes are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

let folder = ''
let path = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-'))
  path = join(folder, 'journal.sqlite')
})
const journals: JournalStore[] = []
afterEach(async () => {
  vi.unstubAllEnvs()
  await Promise.all(journals.splice(0).map((journal) => journal.close()))
  rmSync(folder, { recursive: true })
})

function open(options: SqliteJournalOptions = {}): JournalStore {
  const journal = sqliteJournal({ path, ...options })
  journals.push(journal)
  return journal
}

const unavailable = (fault: string): unknown => expect.objectContaining({ code: 'ERR_JOURNAL_UNAVAILABLE', fault })

/** A journal with some entries, closed in peace: one file, no WAL. */
async function fill(count = 50): Promise<void> {
  const journal = sqliteJournal({ path })
  const entries = Array.from({ length: count }, (_, index) => sampleEntry({ operationId: `order-${index}` }))
  await Promise.all(entries.map((entry) => journal.insert(entry, [])))
  await journal.close()
  expect(readdirSync(folder)).toEqual(['journal.sqlite'])
}

/** The same, but its process was killed, so that entries lie in the WAL only. */
async function crash(count = 60): Promise<void> {
  await startProgram(['crash', path, count]).ended
  expect(statSync(`${path}-wal`).size).toBeGreaterThan(0)
}

function overwrite(at: number, bytes: Buffer, file = path): void {
  const handle = openSync(file, 'r+')
  writeSync(handle, bytes, 0, bytes.length, at)
  closeSync(handle)
}

function sql(text: string, file = path): void {
  const db = new DatabaseSync(file)
  db.exec(text)
  db.close()
}

describe('a new journal', () => {
  test('G53: construction touches nothing', async () => {
    path = join(folder, 'deep', 'er', 'journal.sqlite')
    const journal = open()
    expect(journal.durable).toBe(true)
    expect(journal.owner).not.toBe('')
    expect(readdirSync(folder)).toEqual([])
    await journal.close()
    expect(readdirSync(folder)).toEqual([])
  })

  test('its folder and files are the owner’s alone', async () => {
    path = join(folder, 'deep', 'er', 'journal.sqlite')
    await open().insert(sampleEntry(), [])
    const modeOf = (file: string): number => statSync(file).mode & 0o777
    expect([join(folder, 'deep'), join(folder, 'deep', 'er')].map(modeOf)).toEqual([0o700, 0o700])
    expect(readdirSync(join(path, '..'))).toEqual(['journal.sqlite', 'journal.sqlite-shm', 'journal.sqlite-wal'])
    expect([path, `${path}-wal`, `${path}-shm`].map(modeOf)).toEqual([0o600, 0o600, 0o600])
  })

  test('by default it lies where the environment says, else under the working directory', async () => {
    vi.stubEnv('BILLONCE_JOURNAL', join(folder, 'env.sqlite'))
    const journal = sqliteJournal()
    vi.stubEnv('BILLONCE_JOURNAL', '')
    vi.spyOn(process, 'cwd').mockReturnValueOnce(folder)
    const other = sqliteJournal()
    journals.push(journal, other)
    await journal.knowsSinceMs('charge')
    await other.knowsSinceMs('charge')
    expect(readdirSync(folder).filter((name) => !name.includes('-'))).toEqual(['.billonce', 'env.sqlite'])
    expect(existsSync(join(folder, '.billonce', 'journal.sqlite'))).toBe(true)
  })

  test('is durable by WAL with full sync, and marked as ours', async () => {
    await fill(1)
    const db = new DatabaseSync(path, { readOnly: true })
    expect(db.prepare('PRAGMA journal_mode').get()).toEqual({ journal_mode: 'wal' })
    expect(db.prepare('PRAGMA application_id').get()).toEqual({ application_id: 0x62696c6c })
    expect(db.prepare('PRAGMA user_version').get()).toEqual({ user_version: 2 })
    db.close()
  })

  test.each(['', ':memory:', 'file:x?mode=memory', 'a\0b'])('the path %j is refused at construction', (wrong) => {
    expect(() => sqliteJournal({ path: wrong })).toThrow(expect.objectContaining({ code: 'ERR_INVALID_INPUT' }))
  })
})

describe('G53: a place where nothing can be kept', () => {
  test('a path under a file, a folder as the file, a file system that takes none', async () => {
    writeFileSync(join(folder, 'file'), '')
    for (const wrong of [join(folder, 'file', 'journal.sqlite'), folder, '/proc/billonce/journal.sqlite']) {
      const journal = open({ path: wrong })
      await expect(journal.insert(sampleEntry(), [])).rejects.toEqual(unavailable('unavailable'))
      await expect(journal.knowsSinceMs('charge')).rejects.toEqual(unavailable('unavailable'))
    }
  })

  // The owner of everything is not held up by modes; nobody is.
  const uid = process.getuid?.() === 0 ? { uid: 65534 } : {}

  test('a folder that is read-only, and a file that is writable in one', async () => {
    await fill(1)
    chmodSync(path, 0o666)
    chmodSync(folder, 0o555)
    for (const target of [join(folder, 'new.sqlite'), join(folder, 'sub', 'new.sqlite'), path]) {
      const program = startProgram(['insert', target], uid)
      expect(await program.ended).toEqual({ code: 0, signal: null, trouble: '' })
      expect(program.lines).toEqual([expect.objectContaining({ fault: 'unavailable' })])
    }
    chmodSync(folder, 0o755)
    expect(readdirSync(folder)).toEqual(['journal.sqlite'])
  })

  test('a file that is read-only', async () => {
    await fill(1)
    chmodSync(path, 0o444)
    chmodSync(folder, 0o777)
    const program = startProgram(['insert', path], uid)
    await program.ended
    expect(program.lines).toEqual([expect.objectContaining({ fault: 'unavailable' })])
  })

  test('works once the place does', async () => {
    writeFileSync(join(folder, 'file'), '')
    const journal = open({ path: join(folder, 'file', 'journal.sqlite') })
    await expect(journal.insert(sampleEntry(), [])).rejects.toEqual(unavailable('unavailable'))
    rmSync(join(folder, 'file'))
    expect(await journal.insert(sampleEntry(), [])).toEqual({ inserted: true })
  })
})

describe('G54: a file that is not whole, not ours or too new is refused and left as it is', () => {
  const pageSize = 4096
  const forms: Readonly<Record<string, readonly [fault: string, make: () => Promise<void> | void]>> = {
    empty: ['damaged', () => writeFileSync(path, '')],
    'emptied beside its WAL': [
      'damaged',
      async () => {
        await crash()
        truncateSync(path, 0)
      },
    ],
    'gone, its WAL is there': [
      'damaged',
      async () => {
        await crash()
        rmSync(path)
      },
    ],
    'gone, a rollback journal is there': ['damaged', () => writeFileSync(`${path}-journal`, 'x'.repeat(600))],
    'cut off in its last page': [
      'damaged',
      async () => {
        await fill()
        truncateSync(path, statSync(path).size - 100)
      },
    ],
    'cut off after its first page': [
      'damaged',
      async () => {
        await fill()
        truncateSync(path, pageSize)
      },
    ],
    'cut off in its header': [
      'damaged',
      async () => {
        await fill()
        truncateSync(path, 50)
      },
    ],
    'cut off beside a WAL that does not have what is missing': [
      'damaged',
      async () => {
        await fill(200)
        const whole = statSync(path).size
        await crash(1)
        truncateSync(path, whole - 20 * pageSize)
      },
    ],
    'random bytes for a header': [
      'damaged',
      async () => {
        await fill()
        overwrite(0, Buffer.from(crypto.getRandomValues(new Uint8Array(100))))
      },
    ],
    'an impossible page size': [
      'damaged',
      async () => {
        await fill()
        overwrite(16, Buffer.from([3, 3]))
      },
    ],
    'a first page of random bytes behind a good header': [
      'damaged',
      async () => {
        await fill()
        overwrite(100, Buffer.from(crypto.getRandomValues(new Uint8Array(pageSize - 100))))
      },
    ],
    'a WAL with a broken header': [
      'damaged',
      async () => {
        await crash()
        overwrite(0, Buffer.from('nonsense'), `${path}-wal`)
      },
    ],
    'a text': ['damaged', () => writeFileSync(path, 'My shopping list, and it is longer than a header. '.repeat(10))],
    'a database of somebody else': ['foreign', () => sql('CREATE TABLE customers (name)')],
    'a WAL database of somebody else': ['foreign', () => sql('PRAGMA journal_mode = WAL; CREATE TABLE entries (name)')],
    'a database without tables': ['foreign', () => sql('PRAGMA user_version = 1')],
    'a database with the mark of another application': [
      'foreign',
      async () => {
        await fill()
        sql('PRAGMA application_id = 7')
      },
    ],
    'of a newer format': [
      'newer-format',
      async () => {
        await fill()
        sql('PRAGMA user_version = 3')
      },
    ],
    'ours without its tables': [
      'damaged',
      async () => {
        await fill()
        sql('DROP TABLE entries')
      },
    ],
    'ours without what it remembers of removed entries': [
      'damaged',
      async () => {
        await fill()
        sql('DROP TABLE forgotten')
      },
    ],
    'ours without the index that keeps keys apart': [
      'damaged',
      async () => {
        await fill()
        sql('DROP INDEX entries_by_key')
      },
    ],
  }

  test.each(Object.entries(forms))('%s', async (_name, [fault, make]) => {
    await make()
    const contents = (): Record<string, string> =>
      Object.fromEntries(
        readdirSync(folder)
          // What SQLite keeps in shared memory is made anew from the others; an empty WAL says nothing.
          .filter((name) => !name.endsWith('-shm') && (!name.endsWith('-wal') || statSync(join(folder, name)).size > 0))
          .map((name) => [name, readFileSync(join(folder, name)).toString('base64')]),
      )
    const before = contents()
    for (let turn = 0; turn < 2; turn++) {
      const journal = sqliteJournal({ path })
      await expect(journal.insert(sampleEntry(), [])).rejects.toEqual(unavailable(fault))
      await expect(journal.listDeliverable(sampleEntry(), 10)).rejects.toEqual(unavailable(fault))
      await expect(journal.knowsSinceMs('charge')).rejects.toEqual(unavailable(fault))
      await journal.close()
      expect(contents()).toEqual(before)
    }
  })

  test('a page of random bytes is found when it is needed', async () => {
    await fill(200)
    for (let page = 6; page < 40; page++)
      overwrite(page * pageSize, Buffer.from(crypto.getRandomValues(new Uint8Array(pageSize))))
    await expect(open().list({}, 1000)).rejects.toEqual(unavailable('damaged'))
  })

  test('a file cut off while its pages are in the WAL is whole', async () => {
    await crash()
    expect((await open().list({}, 1000)).entries).toHaveLength(60)
  })

  test('a damaged one that was put right works without a restart', async () => {
    await fill(3)
    copyFileSync(path, `${path}.good`)
    truncateSync(path, pageSize)
    const journal = open()
    await expect(journal.list({}, 10)).rejects.toEqual(unavailable('damaged'))
    renameSync(`${path}.good`, path)
    expect((await journal.list({}, 10)).entries).toHaveLength(3)
  })
})

describe('in use', () => {
  test('a write lock that another process keeps is waited for, then a typed error; reads go on meanwhile', async () => {
    await fill(1)
    const other = new DatabaseSync(path)
    other.exec('BEGIN IMMEDIATE')
    const impatient = open({ busyTimeoutMs: 50 })
    await expect(impatient.insert(sampleEntry({ operationId: 'late' }), [])).rejects.toEqual(unavailable('timeout'))
    const patient = open({ busyTimeoutMs: 20_000 })
    let isInserted = false
    const inserting = patient.insert(sampleEntry({ operationId: 'later' }), []).then((result) => {
      isInserted = true
      return result
    })
    for (let turn = 0; turn < 5; turn++) expect((await patient.list({}, 10)).entries).toHaveLength(1)
    expect(isInserted).toBe(false)
    other.exec('COMMIT')
    other.close()
    expect(await inserting).toEqual({ inserted: true })
    expect(await impatient.replace(sampleEntry({ operationId: 'order-0', version: 2 }))).toBe(true)
  })

  test('a file that is removed or replaced under it is not written to any more', async () => {
    const journal = open()
    await journal.insert(sampleEntry(), [])
    mkdirSync(join(folder, 'aside'))
    for (const end of ['', '-wal', '-shm']) renameSync(path + end, join(folder, 'aside', `journal.sqlite${end}`))
    await expect(journal.insert(sampleEntry({ operationId: 'b' }), [])).rejects.toEqual(unavailable('unavailable'))
    // Nor is a new one begun as if nothing had been sent.
    await expect(journal.insert(sampleEntry({ operationId: 'c' }), [])).rejects.toEqual(unavailable('unavailable'))
    expect(readdirSync(folder)).toEqual(['aside'])
  })

  test('a write that fails alone does not fail those that share its commit', async () => {
    const journal = open()
    await journal.knowsSinceMs('charge')
    sql(`CREATE TRIGGER refuse BEFORE INSERT ON entries WHEN new.operation_id = 'bad' BEGIN SELECT raise(ABORT, 'refused'); END;
         CREATE TRIGGER undo BEFORE INSERT ON entries WHEN new.operation_id = 'worse' BEGIN SELECT raise(ROLLBACK, 'refused'); END`)
    const names = ['a', 'bad', 'b', 'worse', 'c']
    const results = await Promise.allSettled(
      names.map((operationId) => journal.insert(sampleEntry({ operationId }), [])),
    )
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled', 'rejected', 'fulfilled'])
    expect((await journal.list({}, 10)).entries.map(({ operationId }) => operationId)).toEqual(['a', 'b', 'c'])
  })

  test('an error at commit is a failure of all that share it, and nothing of it stays', async () => {
    const journal = open()
    await journal.knowsSinceMs('charge')
    // A deferred constraint is found at COMMIT, as a full disk is.
    sql(`CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER doom AFTER INSERT ON entries WHEN new.operation_id = 'doomed' BEGIN INSERT INTO child VALUES (1); END`)
    const names = ['a', 'doomed', 'b']
    const insert = (operationId: string) => journal.insert(sampleEntry({ operationId }), [])
    const results = await Promise.allSettled(names.map(insert))
    expect(results.map(({ status }) => status)).toEqual(['rejected', 'rejected', 'rejected'])
    expect((await journal.list({}, 10)).entries).toEqual([])
    expect(await insert('a')).toEqual({ inserted: true })
  })

  test('a listing of a long journal lets writes through between its slices', async () => {
    const journal = open()
    const rows = 20_000
    await journal.insert(sampleEntry(), [])
    sql(`WITH RECURSIVE n (i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < ${rows})
         INSERT INTO entries (id, endpoint, key, version, scope, kind, subject, operation_id, state, entry)
         SELECT i, endpoint, key || i, version, scope, kind, subject, operation_id || i, state, entry FROM entries, n`)
    const order: string[] = []
    const listing = journal.list({ scope: 'nobody' }, 10).then((page) => {
      order.push('list')
      return page
    })
    await journal.insert(sampleEntry({ operationId: 'meanwhile' }), [])
    order.push('insert')
    expect(await listing).toEqual({ entries: [], unreadable: 0 })
    expect(order).toEqual(['insert', 'list'])
    expect((await journal.list({ operationId: 'meanwhile' }, 10)).entries).toHaveLength(1)
    expect((await journal.list({}, 30_000)).entries).toHaveLength(rows + 1)
  })

  test('open entries among many final ones are listed without going through those', async () => {
    const journal = open()
    await journal.insert(sampleEntry({ state: 'succeeded' }), [])
    sql(`WITH RECURSIVE n (i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
         INSERT INTO entries (id, endpoint, key, version, scope, kind, subject, operation_id, state, entry)
         SELECT i, endpoint, key || i, version, scope, kind, subject, operation_id || i, state, entry FROM entries, n`)
    const entry = sampleEntry({ operationId: 'open', state: 'unknown' })
    await journal.insert(entry, [])
    const { endpoint, scope, kind, operationId } = entry
    for (const filter of [{}, { endpoint, scope }, { kind, operationId }]) {
      const order: string[] = []
      const name = `meanwhile-${Object.keys(filter).join()}`
      const [page] = await Promise.all([
        journal.list({ ...filter, states: ['accepted', 'unknown'] }, 10).finally(() => order.push('list')),
        journal.insert(sampleEntry({ operationId: name }), []).finally(() => order.push('insert')),
      ])
      expect(page).toEqual({ entries: [entry], unreadable: 0 })
      // What goes through the table gives way to writes after its first slice.
      expect(order).toEqual(['list', 'insert'])
    }
  })

  test('a removal that fails in the middle removes nothing, and fails none that share its commit', async () => {
    const journal = open()
    const entries = ['a', 'bad', 'c', 'd'].map((operationId) => sampleEntry({ operationId, state: 'succeeded' }))
    await Promise.all(entries.map((entry) => journal.insert(entry, [])))
    const sinceMs = await journal.knowsSinceMs('charge')
    sql(
      `CREATE TRIGGER refuse BEFORE DELETE ON entries WHEN old.operation_id = 'bad' BEGIN SELECT raise(ABORT, 'refused'); END`,
    )
    const late = entries.slice(0, 3).map((entry) => ({ ...entry, namedAtMs: sinceMs + 60_000 }))
    const results = await Promise.allSettled([
      journal.insert(sampleEntry({ operationId: 'e' }), []),
      journal.remove(late),
      journal.remove(entries.slice(3)),
    ])
    expect(results.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled'])
    const left = (await journal.list({}, 10)).entries.map(({ operationId }) => operationId)
    expect(left).toEqual(['a', 'bad', 'c', 'e'])
    expect(await journal.knowsSinceMs('charge')).toBe(sinceMs)
  })

  test.runIf(canMountDisk())('a full disk is a typed error, and what was acknowledged stays', async () => {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', folder])
    try {
      const journal = open()
      const insert = (index: number) =>
        journal.insert(sampleEntry({ operationId: `order-${index}`, body: 'x'.repeat(20_000) }), [])
      let kept = 0
      await expect(
        (async () => {
          for (; kept < 200; kept++) await insert(kept)
        })(),
      ).rejects.toEqual(unavailable('full'))
      expect(kept).toBeGreaterThan(3)
      expect((await journal.list({}, 1000)).entries).toHaveLength(kept)
      await journal.close()
      expect((await open().list({}, 1000)).entries).toHaveLength(kept)
    } finally {
      await Promise.all(journals.map((one) => one.close()))
      execFileSync('umount', [folder])
    }
  })
})

describe('a file of format 1', () => {
  const settledAtMs = 1_760_000_001_000
  const entries: readonly JournalEntry[] = [
    sampleEntry({ operationId: 'open' }),
    sampleEntry({ operationId: 'full', state: 'succeeded' }),
    sampleEntry({ operationId: 'lean', kind: 'usage', subject: 'exports', state: 'succeeded', body: null }),
    {
      ...sampleEntry({ operationId: 'own', kind: 'usage', subject: 'exports', state: 'succeeded', body: null }),
      window: { names: 'own', startAtMs: 1, lengthMs: 1, marginMs: 1 },
    },
  ]
  const due = { bodiesAtMs: settledAtMs, namesAtMs: { usage: settledAtMs } }

  function write(texts: Readonly<Record<string, string>> = {}): void {
    const db = new DatabaseSync(path)
    db.exec(readFileSync(join(import.meta.dirname, 'fixtures/sqlite-format-1.sql'), 'utf8'))
    db.exec('INSERT INTO journal VALUES (1750000000000)')
    const insert = db.prepare(
      'INSERT INTO entries (endpoint, key, version, scope, kind, subject, operation_id, state, entry) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)',
    )
    for (const one of entries) {
      const { endpoint, key, version, scope, kind, subject, operationId, state } = one
      insert.run(
        endpoint,
        key,
        version,
        scope,
        kind,
        subject,
        operationId,
        state,
        texts[operationId] ?? encodeEntry(one),
      )
    }
    db.close()
  }

  test('is read, and pruning finds in it what is due', async () => {
    write()
    const journal = open()
    expect((await journal.list({}, 10)).entries).toEqual(entries)
    expect(await journal.knowsSinceMs('charge')).toBe(1_750_000_000_000)
    expect((await journal.listPrunable?.(sampleEntry(), due, 10))?.entries).toEqual(entries.slice(1, 3))
    expect(await journal.insert(sampleEntry({ operationId: 'new' }), [])).toEqual({ inserted: true })
  })

  test('is brought up to date once, whoever comes first and however many come at once', async () => {
    write()
    const all = Array.from({ length: 4 }, (_, index) => open({ busyTimeoutMs: 30_000 + index }))
    const pages = await Promise.all(all.map(async (journal) => journal.listPrunable?.(sampleEntry(), due, 10)))
    for (const page of pages) expect(page?.entries).toEqual(entries.slice(1, 3))
  })

  test('with an entry that cannot be read keeps it and is used', async () => {
    write({ full: '{"cut' })
    const journal = open()
    expect(await journal.list({}, 10)).toMatchObject({ unreadable: 1 })
    expect((await journal.listPrunable?.(sampleEntry(), due, 10))?.entries).toEqual(entries.slice(2, 3))
  })
})
