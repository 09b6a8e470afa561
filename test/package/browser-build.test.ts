/**
 * What a browser would load: that it reaches nothing of Node's, and how large it is. The size that is promised is held
 * by size-limit on the built package; here it is only told, with what it is made of.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { describe, expect, test } from 'vitest'
import { bundleForBrowser, repositoryRoot } from '../support/bundle.ts'

const there = (path: string): boolean => existsSync(join(repositoryRoot, path))

// Each entry that a page may import, as the only one of its build.
describe.each([
  'src/index.ts',
  'src/stores/indexeddb.ts',
  'src/service-worker.ts',
  'src/testing/index.ts',
  'src/testing/msw.ts',
])('%s', (entry) => {
  test.runIf(there(entry))('reaches nothing of Node', async () => {
    const { builtins, files, modules } = await bundleForBrowser({ entry })
    expect(builtins).toEqual([])
    expect(modules.filter((path) => path.includes('default-node') || path.includes('sqlite'))).toEqual([])
    for (const [name, code] of files) expect(code, name).not.toMatch(/(from|import|require)\s*\(?\s*['"]node:/)
  })
})

// The check itself can fail: this file is for Node and imports it.
test('what does need Node is seen to need it', async () => {
  const { builtins } = await bundleForBrowser({ entry: 'src/testing/server.ts' })
  expect(builtins.length).toBeGreaterThan(0)
})

test.runIf(there('src/index.ts'))('the size of a browser’s client with its journal', async () => {
  const { files } = await bundleForBrowser({ billonce: 'src/index.ts' }, { minify: true })
  const code = [...files.values()].join('')
  const sizes = { minified: code.length, gzip: gzipSync(code).length, brotli: brotliCompressSync(code).length }
  console.log(
    `${[...files.keys()].join(', ')}: ${Object.entries(sizes)
      .map(([name, bytes]) => `${name} ${bytes} B`)
      .join(', ')}`,
  )
  expect(sizes.brotli).toBeGreaterThan(0)
})
