/** Journals that cannot be used, large ones, and readers that go away. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, readdirSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createBillingClient } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver } from 'billonce/testing'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { billonce, copyOf, environmentOf, fromSource, jsonLines, makeJournal, temporaryFolder } from './cli.ts'
import type { Folder } from './cli.ts'

const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
const original = temporaryFolder()
let folder: Folder

beforeAll(() => makeJournal(original.file('journal.sqlite')))
afterAll(() => original.remove())
beforeEach(() => {
  folder = copyOf(original)
})
afterEach(() => folder.remove())

const COMMANDS = [
  ['list'],
  ['show', 'charge:order-991'],
  ['stats'],
  ['export'],
  ['cancel', 'charge:order-waiting'],
  ['evidence', 'charge:order-991', '--not-applied', '--by', 'ana', '--why', 'because'],
  ['prune'],
  ['resume'],
] as const

describe('a missing journal', () => {
  test.each(COMMANDS.map((args) => [args]))('%s creates none', async (args) => {
    const path = folder.file('folder/elsewhere.sqlite')
    const { code, stdout, stderr } = await billonce([...args, '--journal', path])
    expect({ code, stdout }).toEqual({ code: 3, stdout: '' })
    expect(stderr).toContain(`There is no journal at ${path}. Nothing was created.`)
    expect(existsSync(folder.file('folder'))).toBe(false)
  })

  test('the default path is said to be one', async () => {
    const { code, stderr } = await billonce(['list'], { cwd: folder.path })
    expect(code).toBe(3)
    expect(stderr).toMatch(/\.billonce\/journal\.sqlite.*--journal or BILLONCE_JOURNAL/)
    expect(readdirSync(folder.path)).not.toContain('.billonce')
  })

  test('the default path is found', async () => {
    mkdirSync(folder.file('.billonce'))
    writeFileSync(folder.file('.billonce/journal.sqlite'), readFileSync(folder.file('journal.sqlite')))
    expect(jsonLines((await billonce(['list', '--json'], { cwd: folder.path })).stdout)).toHaveLength(13)
  })

  test('a folder is not a journal', async () => {
    expect(await billonce(['list', '--journal', folder.path])).toMatchObject({
      code: 3,
      stderr: expect.stringContaining('is not a file') as string,
    })
  })
})

describe('a file that is no journal of ours is left as it is', () => {
  const spoil: Record<string, [fault: string, how: (path: string) => void]> = {
    empty: ['damaged', (path) => truncateSync(path, 0)],
    'cut off': ['damaged', (path) => truncateSync(path, Math.floor(readFileSync(path).length / 2))],
    text: ['damaged', (path) => writeFileSync(path, 'dear diary\n'.repeat(1000))],
    'another database': [
      'foreign',
      (path) => {
        writeFileSync(path, '')
        const db = new DatabaseSync(path)
        db.exec('CREATE TABLE diary (day TEXT)')
        db.close()
      },
    ],
    'of a newer version': [
      'newer-format',
      (path) => {
        const db = new DatabaseSync(path)
        db.exec('PRAGMA user_version = 99')
        db.close()
      },
    ],
  }
  test.each(Object.keys(spoil))('%s', async (name) => {
    const [fault, how] = spoil[name]!
    const path = folder.file('journal.sqlite')
    how(path)
    const before = readFileSync(path)
    for (const args of [['list'], ['cancel', 'charge:order-waiting']]) {
      const { code, stdout, stderr } = await billonce([...args, '--journal', path, '--json'])
      expect({ code, stdout }).toEqual({ code: 3, stdout: '' })
      expect(JSON.parse(stderr)).toMatchObject({ error: { code: 'ERR_JOURNAL_UNAVAILABLE', fault } })
    }
    expect(readFileSync(path).equals(before)).toBe(true)
  })

  test('locked by somebody else: it waits as long as it is told', async () => {
    const path = folder.file('journal.sqlite')
    const db = new DatabaseSync(path)
    db.exec('PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE')
    const { code, stderr } = await billonce(['list', '--journal', path, '--wait', '300ms', '--json'])
    db.exec('ROLLBACK')
    db.close()
    expect(code).toBe(3)
    expect(JSON.parse(stderr)).toMatchObject({ error: { fault: 'timeout' } })
    expect((await billonce(['list', '--journal', path])).code).toBe(0)
  })

  test('a row of a newer version is counted and left alone', async () => {
    const path = folder.file('journal.sqlite')
    const db = new DatabaseSync(path)
    db.exec(`UPDATE entries SET entry = replace(entry, '"format":1', '"format":9') WHERE operation_id = 'order-991'`)
    db.close()
    const { code, stdout, stderr } = await billonce(['list', '--journal', path, '--json'])
    expect(code).toBe(0)
    expect(jsonLines(stdout)).toHaveLength(12)
    expect(JSON.parse(stderr)).toEqual({ warning: expect.stringContaining('1 row cannot be read') as string })
  })
})

test('what a receiver sent cannot move the cursor', async () => {
  const path = folder.file('journal.sqlite')
  const args = ['--applied', '--receipt', '{"id":"ch_\\u001b[2Jgone"}', '--by', 'ana', '--why', 'x']
  expect((await billonce(['evidence', 'charge:order-recorded', ...args, '--journal', path])).stdout).toContain(
    '\\u001b',
  )
  for (const command of [['list'], ['show', 'charge:order-recorded'], ['show', 'charge:order-recorded', '--body']]) {
    expect((await billonce([...command, '--journal', path])).stdout).not.toContain('\u001b')
  }
})

describe('a journal with thousands of entries', () => {
  const many = temporaryFolder()
  const path = many.file('journal.sqlite')
  const COUNT = 4000

  beforeAll(async () => {
    const journal = sqliteJournal({ path })
    const billing = createBillingClient({
      baseUrl: 'https://api.example.com',
      scope: 'org_42/live',
      journal,
      fetch: createReceiver().fetch,
    })
    for (let from = 0; from < COUNT; from += 500) {
      await Promise.all(
        Array.from({ length: 500 }, (_, index) =>
          billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId: `job-${from + index}` }),
        ),
      )
    }
    await billing.close()
    await journal.close()
  }, 120_000)
  afterAll(() => many.remove())

  test('all of them are read, page by page, in seconds', async () => {
    const begunAtMs = Date.now()
    const [listed, exported, counted] = await Promise.all([
      billonce(['list', '--json', '--journal', path]),
      billonce(['export', '--journal', path]),
      billonce(['stats', '--json', '--journal', path]),
    ])
    expect(jsonLines(listed.stdout)).toHaveLength(COUNT)
    expect(new Set(jsonLines(listed.stdout).map((row) => row['key'])).size).toBe(COUNT)
    expect(exported.stdout.split('\r\n')).toHaveLength(COUNT + 2)
    expect(jsonLines(counted.stdout)[0]).toMatchObject({ total: COUNT })
    expect(Date.now() - begunAtMs).toBeLessThan(20_000)
  })

  test('a person is shown as many as can be read', async () => {
    const { stdout, stderr } = await billonce(['list', '--journal', path])
    expect(stdout.trimEnd().split('\n')).toHaveLength(51)
    expect(stderr).toContain('50 of 4,000 entries')
  })

  const hasBash = process.platform !== 'win32' && spawnSync('bash', ['--version']).status === 0
  test.runIf(hasBash).each(['list --limit 0', 'list --json', 'export'])('%s | head ends quietly', (command) => {
    const program = [process.execPath, ...fromSource].map((part) => `'${part}'`).join(' ')
    const { status, stdout, stderr } = spawnSync(
      'bash',
      ['--norc', '-c', `set -o pipefail; ${program} ${command} --journal '${path}' | head -n 2`],
      { encoding: 'utf8', env: environmentOf() },
    )
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' })
    expect(stdout.trimEnd().split('\n')).toHaveLength(2)
  })
})

describe('a journal of the config module', () => {
  test('is used where no path is named', async () => {
    const config = join(import.meta.dirname, 'programs/journal.ts')
    const env = { PATH_OF_JOURNAL: folder.file('journal.sqlite') }
    const { code, stdout } = await billonce(['list', '--json', '--config', config], { env })
    expect(code).toBe(0)
    expect(jsonLines(stdout)).toHaveLength(13)
  })
})
