/**
 * The thread of the SQLite journal starts from a server's bundle too: also from one that is minified, keeps names by a
 * helper, or is written for an old language level, where its function must still stand on its own.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { build } from 'vite'

// Disks and processes are slow on a machine that is busy; that is not what is tested.
vi.setConfig({ testTimeout: 120_000, hookTimeout: 60_000 })

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

const forms = {
  plain: {},
  minified: { minify: true },
  'with kept names': { keepNames: true },
  'minified with kept names': { minify: true, keepNames: true },
  'minified for an old level': { minify: true, target: 'es2017' },
  'as one CommonJS file': { format: 'cjs' },
} as const satisfies Readonly<Record<string, { minify?: true; keepNames?: true; target?: string; format?: 'cjs' }>>

test.each(Object.entries(forms))('%s', async (_name, form) => {
  const {
    minify = false,
    keepNames = false,
    target = 'node22',
    format = 'es',
  } = { ...form } as {
    minify?: boolean
    keepNames?: boolean
    target?: string
    format?: 'es' | 'cjs'
  }
  await build({
    configFile: false,
    logLevel: 'error',
    ssr: { noExternal: true },
    resolve: { conditions: ['source', 'node', 'module', 'import', 'default'] },
    build: {
      ssr: true,
      outDir: folder,
      target,
      minify,
      rolldownOptions: {
        input: join(import.meta.dirname, 'programs', 'journal.ts'),
        output: { format, keepNames, entryFileNames: `server.${format === 'es' ? 'mjs' : 'cjs'}` },
      },
    },
  })
  const file = join(folder, `server.${format === 'es' ? 'mjs' : 'cjs'}`)
  const text = execFileSync(process.execPath, [file, 'insert', join(folder, 'journal.sqlite')], { encoding: 'utf8' })
  expect(JSON.parse(text)).toEqual({ inserted: true })
})
