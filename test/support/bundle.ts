/**
 * The browser's build of the sources, made in memory as a user's bundler would make it. What it would have to take
 * from Node is reported, not quietly replaced by an empty module as bundlers do.
 */
import { existsSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build, type Rolldown } from 'vite'

export const repositoryRoot: string = fileURLToPath(new URL('../..', import.meta.url))

export interface Bundle {
  /** File name to code; entries are called `<name>.js` by the names of the input. */
  files: Map<string, string>
  /** `who imports what` for each module of Node's that the build reaches. */
  builtins: string[]
  /** The sources and packages in it, relative to the root. */
  modules: string[]
}

/** @param entries name of the file that comes out -> source under the root; those not there are left out */
export async function bundleForBrowser(
  entries: Record<string, string>,
  options: { minify?: boolean; format?: 'es' | 'iife' } = {},
): Promise<Bundle> {
  const builtins: string[] = []
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
        name: 'report-builtins',
        enforce: 'pre',
        resolveId(id, importer) {
          if (!id.startsWith('node:') && !builtinModules.includes(id)) return null
          builtins.push(`${(importer ?? 'the entry').replace(repositoryRoot, '')} imports ${id}`)
          return { id, external: true }
        },
      },
    ],
    build: {
      write: false,
      target: 'es2022',
      minify: options.minify ?? false,
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
  return {
    files: new Map(chunks.map((chunk) => [chunk.fileName, chunk.code])),
    builtins,
    modules: chunks.flatMap((chunk) => chunk.moduleIds).map((id) => id.replace(repositoryRoot, '')),
  }
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
