/** docs/postgres.md says what is true: options and defaults, faults, and its SQL runs on a real server. Its TypeScript compiles in readme.test.ts. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { postgresJournal, postgresJournalSql } from 'billonce/postgres'
import pg from 'pg'
import { expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { startPostgres } from '../support/postgres.ts'
import { blocksOf, rowsOf, textOf } from './markdown.ts'

const page = textOf('docs/postgres.md')
const source = (file: string): string => readFileSync(join(repositoryRoot, 'src/stores', file), 'utf8')

test('README leads to it', () => {
  expect(textOf('README.md')).toContain('(docs/postgres.md)')
})

test('the table of options has all of them, with the defaults of the code', () => {
  const told = rowsOf(page, 'The journal in PostgreSQL').map(([name = '', byDefault = '']) => [
    name.replaceAll('`', ''),
    byDefault.replaceAll(/[`,]/g, ''),
  ])
  const code = source('postgres.ts') + source('postgres-schema.ts')
  const names = [...code.matchAll(/^ {2}readonly (\w+)\??: .*\n/gm)].map(([, name = '']) => name)
  for (const [name = '', byDefault = ''] of told) {
    expect(names, name).toContain(name)
    // A pool has no default, and is made in the example.
    if (name === 'pool') continue
    const [, inCode = ''] = new RegExp(`[{ ]${name} = ('?[\\w]+'?)`).exec(code) ?? []
    expect(inCode.replaceAll(/['_]/g, ''), name).toBe(byDefault.replaceAll('_', ''))
  }
  const ofOptions = /export interface PostgresJournalOptions.*?\n\}/s.exec(code)?.[0] ?? ''
  const ofPlace = /export interface PostgresJournalPlace.*?\n\}/s.exec(code)?.[0] ?? ''
  const all = [...(ofOptions + ofPlace).matchAll(/^ {2}readonly (\w+)\??:/gm)].map(([, name = '']) => name)
  expect(told.map(([name = '']) => name).toSorted()).toEqual(all.toSorted())
})

test('the faults in its last table are those that there are', () => {
  const faults = rowsOf(page, 'If this fails, then …').flatMap(([, cell = '']) =>
    [...cell.matchAll(/`([a-z-]+)`/g)].map(([, one]) => one),
  )
  const ofCode = [...source('postgres-work.ts').matchAll(/: \['([a-z]+)', '/g)].map(([, one]) => one)
  expect(new Set(faults)).toEqual(new Set(ofCode))
})

test('the rights that it names are enough', async () => {
  const server = await startPostgres()
  const owner = new pg.Pool({ connectionString: server.url, max: 1 })
  const url = new URL(server.url)
  url.username = 'app'
  const pool = new pg.Pool({ connectionString: url.href })
  try {
    await owner.query(postgresJournalSql({ schema: 'billing' }))
    await owner.query('CREATE ROLE app LOGIN')
    const [block] = blocksOf(page, 'sql')
    await owner.query(block?.code ?? expect.fail('There is no SQL.'))
    const journal = postgresJournal({ pool, schema: 'billing', migrate: false })
    expect(await journal.countOpen()).toEqual([])
    expect(await journal.knowsSinceMs('charge')).toBeGreaterThan(0)
    await journal.close()
  } finally {
    await pool.end()
    await owner.query('DROP OWNED BY app; DROP ROLE app')
    await owner.end()
    await server.stop()
  }
}, 60_000)
