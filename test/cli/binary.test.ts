/** The built binary, as it is installed: packed, with nothing beside it but the library's own dependencies. */
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, statSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { billonce, environmentOf, jsonLines, makeJournal, temporaryFolder } from './cli.ts'

const folder = temporaryFolder()
const installed = folder.file('node_modules/billonce')
const dependencies = ['ky', 'p-retry', 'idb-keyval', 'uuid']

const step = (command: string, args: readonly string[], cwd: string): void => {
  const { status, stdout, stderr } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}\n${stdout}${stderr}`)
}

beforeAll(async () => {
  // In a folder of its own: others may be reading dist.
  const source = folder.file('source')
  mkdirSync(source)
  for (const name of ['src', 'package.json', 'tsconfig.json', 'tsconfig.build.json', 'LICENSE', 'README.md']) {
    cpSync(join(repositoryRoot, name), join(source, name), { recursive: true })
  }
  mkdirSync(join(source, '.ci'))
  cpSync(join(repositoryRoot, '.ci/bundle-cli.mjs'), join(source, '.ci/bundle-cli.mjs'))
  symlinkSync(join(repositoryRoot, 'node_modules'), join(source, 'node_modules'))
  step(process.execPath, ['node_modules/.bin/tsc', '-p', 'tsconfig.build.json'], source)
  step(process.execPath, ['.ci/bundle-cli.mjs'], source)
  step('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', folder.path], source)
  mkdirSync(installed, { recursive: true })
  const { version } = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as { version: string }
  step('tar', ['-xzf', folder.file(`billonce-${version}.tgz`), '-C', installed, '--strip-components=1'], folder.path)
  for (const name of ['ky', 'p-retry', 'idb-keyval', 'uuid', 'is-network-error']) {
    const from = join(repositoryRoot, 'node_modules', name)
    if (existsSync(from)) cpSync(from, folder.file(`node_modules/${name}`), { recursive: true })
  }
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
