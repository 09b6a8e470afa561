/** The built binary, as it is installed: packed, with nothing beside it but the library's own dependencies. */
import { spawnSync } from 'node:child_process'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { installPackage } from '../support/installed-package.ts'
import { billonce, environmentOf, jsonLines, makeJournal, temporaryFolder } from './cli.ts'

const folder = temporaryFolder()
const installed = folder.file('node_modules/billonce')
const dependencies = ['ky', 'p-retry', 'idb-keyval', 'uuid']

beforeAll(async () => {
  installPackage(folder.path)
  await makeJournal(folder.file('journal.sqlite'))
}, 120_000)
afterAll(() => folder.remove())

const binary = join(installed, 'dist/cli/billonce.js')

test('it works, from the package alone', async () => {
  const run = (...args: string[]): ReturnType<typeof billonce> =>
    billonce([...args, '--journal', folder.file('journal.sqlite')], { program: [binary], cwd: folder.path })
  expect((await run('--version')).stdout).toMatch(/^\d+\.\d+\.\d+/)
  const listed = await run('list', '--json')
  expect(listed.stderr).toBe('')
  expect(jsonLines(listed.stdout)).toHaveLength(13)
  expect((await run('list')).stdout).toMatch(/^STATE +REASON/)
  expect((await run('export')).stdout).toContain(`'=HYPERLINK`)
  const args = ['--applied', '--receipt', '{"id":"ch_1"}', '--by', 'ana', '--why', 'found']
  expect((await run('evidence', 'charge:order-recorded', ...args)).code).toBe(0)
  expect((await run('cancel', 'charge:order-991')).code).toBe(5)
  expect((await run('lst')).code).toBe(2)
})

test.skipIf(process.platform === 'win32')('it can be started by its name', () => {
  expect(statSync(binary).mode & 0o111).toBe(0o111)
  const { PATH = '' } = process.env
  const env = { ...environmentOf(), PATH: `${join(process.execPath, '..')}:${PATH}` }
  expect(spawnSync(binary, ['--help'], { encoding: 'utf8', env }).stdout).toContain('Usage: billonce')
})

test('the package asks for four dependencies and carries the licences of the rest', () => {
  const manifest = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8')) as {
    dependencies: Record<string, string>
  }
  expect(Object.keys(manifest.dependencies).toSorted()).toEqual(dependencies.toSorted())
  const licences = readFileSync(join(installed, 'dist/cli/THIRD-PARTY-LICENSES.txt'), 'utf8')
  for (const name of ['commander', 'cli-table3', 'cli-progress', 'csv-stringify', 'string-width']) {
    expect(licences).toMatch(new RegExp(`^${name} \\d`, 'm'))
  }
  const code = readFileSync(binary, 'utf8')
  expect(code).toMatch(/from ["']billonce["']/)
  expect(code).not.toContain(repositoryRoot)
})
