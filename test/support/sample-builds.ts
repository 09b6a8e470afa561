/**
 * Sample applications (test/package/sample) built from the package as it is installed, in a folder of their own. A build is
 * made when it is first asked for.
 */
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { repositoryRoot } from './bundle.ts'
import { bundle, byEsbuild } from './bundlers.ts'
import type { Built, Bundler, EsbuildForm, Target } from './bundlers.ts'
import { installPackage } from './installed-package.ts'

export interface SampleBuilds {
  /** Holds `node_modules` with the package; a program in it finds billonce as an application would. */
  readonly folder: string
  build(bundler: Bundler, target: Target): Promise<Built>
  /** The program for Node as esbuild makes it in this form; path of the one file. */
  buildServer(form: EsbuildForm): Promise<string>
  remove(): void
}

const ENTRIES: Readonly<Record<Target, string>> = {
  browser: 'page.js',
  worker: 'worker.js',
  'edge-light': 'edge.js',
  workerd: 'edge.js',
  node: 'server.js',
  none: 'edge.js',
}

export function openSamples(): SampleBuilds {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-samples-'))
  installPackage(folder)
  cpSync(join(repositoryRoot, 'test/package/sample'), join(folder, 'sample'), { recursive: true })
  const builds = new Map<string, Promise<Built>>()
  let servers = 0
  return {
    folder,
    build(bundler, target) {
      const name = `${bundler}-${target}`
      let built = builds.get(name)
      if (!built) {
        // Vite and webpack find the page's worker where it is started; to the others it is an entry of its own.
        const isListed = target === 'browser' && (bundler === 'esbuild' || bundler === 'rollup')
        built = bundle(bundler, {
          target,
          entry: join(folder, 'sample', ENTRIES[target]),
          outDir: join(folder, 'built', name),
          more: isListed ? { worker: join(folder, 'sample/worker.js') } : undefined,
        })
        builds.set(name, built)
      }
      return built
    },
    async buildServer(form) {
      const outDir = join(folder, 'built', `server-${(servers += 1)}`)
      await byEsbuild({ target: 'node', entry: join(folder, 'sample/server.js'), outDir }, form)
      return join(outDir, form.format === 'cjs' ? 'app.cjs' : 'app.mjs')
    },
    remove: () => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }),
  }
}
