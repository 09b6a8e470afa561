/**
 * The browser's build of the sources, made in memory as a user's bundler would make it, for the pages of our own tests. What
 * an application's bundler makes of the package is in bundlers.ts.
 */
import { existsSync } from 'node:fs'
import { isBuiltin } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build, type Rolldown } from 'vite'

export const repositoryRoot: string = fileURLToPath(new URL('../..', import.meta.url))

export interface Bundle {
  /** File name to code; entries are called `<name>.js` by the names of the input. */
  files: Map<string, string>
}

/** @param entries name of the file that comes out -> source under the root; those not there are left out */
export async function bundleForBrowser(
  entries: Record<string, string>,
  options: { format?: 'es' | 'iife' } = {},
): Promise<Bundle> {
  const input = Object.entries(entries)
    .map(([name, path]) => [name, join(repositoryRoot, path)] as const)
    .filter(([, path]) => existsSync(path))
  if (input.length === 0) throw new Error(`None of ${Object.values(entries).join(', ')} exists`)

  const result = await build({
    root: repositoryRoot,
    configFile: false,
    logLevel: 'error',
    publicDir: false,
    resolve: { conditions: ['source', 'browser', 'module', 'import', 'default'] },
    plugins: [
      {
        name: 'refuse-builtins',
        enforce: 'pre',
        resolveId(id, importer) {
          // Bundlers put an empty module in its place, and only its use would fail.
          if (isBuiltin(id)) throw new Error(`${importer ?? 'The entry'} imports ${id}`)
          return null
        },
      },
    ],
    build: {
      write: false,
      target: 'es2022',
      minify: false,
      modulePreload: false,
      rolldownOptions: {
        input: Object.fromEntries(input),
        // Else a page's build drops the exports of its entries, which nobody seems to use.
        preserveEntrySignatures: 'strict',
        output: { format: options.format ?? 'es', entryFileNames: '[name].js', chunkFileNames: '[name].js' },
      },
    },
  })
  const { output } = result as Rolldown.RolldownOutput
  const chunks = output.filter((part) => part.type === 'chunk')
  return { files: new Map(chunks.map((chunk) => [chunk.fileName, chunk.code])) }
}

let pageBundle: Promise<Bundle> | undefined

/** What {@link openRealBrowser}'s page can import, built once for each test file that asks for it. */
export function bundleForPage(): Promise<Bundle> {
  pageBundle ??= bundleForBrowser({
    billonce: 'src/index.ts',
    indexeddb: 'src/stores/indexeddb.ts',
    'service-worker': 'src/service-worker.ts',
  })
  return pageBundle
}
