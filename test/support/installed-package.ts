/** The package as npm would install it: built from the sources, packed, and unpacked where an application would find it. */
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { repositoryRoot } from './bundle.ts'

/** What it needs to run; what else is in `node_modules` of the repository is not there. */
const dependencies = ['ky', 'p-retry', 'is-network-error', 'idb-keyval', 'uuid']

/**
 * Installs it into `<folder>/node_modules/billonce`, with its dependencies beside it and nothing else.
 *
 * @returns the folder of the package
 */
export function installPackage(folder: string): string {
  // In a folder of its own: others may be reading dist.
  const source = join(folder, 'package-source')
  mkdirSync(source, { recursive: true })
  for (const name of ['src', 'package.json', 'tsconfig.json', 'tsconfig.build.json', 'LICENSE', 'README.md']) {
    cpSync(join(repositoryRoot, name), join(source, name), { recursive: true })
  }
  mkdirSync(join(source, '.ci'))
  cpSync(join(repositoryRoot, '.ci/bundle-cli.mjs'), join(source, '.ci/bundle-cli.mjs'))
  symlinkSync(join(repositoryRoot, 'node_modules'), join(source, 'node_modules'))
  step(process.execPath, ['node_modules/.bin/tsc', '-p', 'tsconfig.build.json'], source)
  step(process.execPath, ['.ci/bundle-cli.mjs'], source)
  step('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', folder], source)
  const { version } = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as { version: string }
  rmSync(source, { recursive: true })

  const installed = join(folder, 'node_modules/billonce')
  mkdirSync(installed, { recursive: true })
  step('tar', ['-xzf', join(folder, `billonce-${version}.tgz`), '-C', installed, '--strip-components=1'], folder)
  for (const name of dependencies) {
    const from = join(repositoryRoot, 'node_modules', name)
    if (existsSync(from)) cpSync(from, join(folder, 'node_modules', name), { recursive: true })
  }
  return installed
}

function step(command: string, args: readonly string[], cwd: string): void {
  const { status, stdout, stderr } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}\n${stdout}${stderr}`)
}
