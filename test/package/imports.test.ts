/**
 * What one does not import is not in the bundle: each name of the front door alone, and the client without what it does not
 * need. How large they are is held by .size-limit.json.
 */
import * as billonce from 'billonce'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { build } from 'esbuild'
import { expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'

/** The modules that leave code in a page's bundle with these exports: a file of src, or a package. */
async function modulesOf(names: string): Promise<string[]> {
  const { metafile } = await build({
    stdin: { contents: `export ${names} from './src/index.ts'`, resolveDir: repositoryRoot },
    absWorkingDir: repositoryRoot,
    bundle: true,
    format: 'esm',
    platform: 'browser',
    conditions: ['source', 'browser'],
    metafile: true,
    write: false,
    logLevel: 'error',
  })
  const [output] = Object.values(metafile.outputs)
  return Object.entries(output?.inputs ?? {})
    .filter(([, { bytesInOutput }]) => bytesInOutput > 0)
    .map(([path]) => /^(?:src|node_modules)\/(.*)$/.exec(path)?.[1] ?? path)
    .toSorted()
}

const isOfUuid = (path: string): boolean => path.startsWith('uuid/')

test.each<[name: string, modules: readonly string[]]>([
  ['unwrap', ['errors.ts', 'model/outcome.ts']],
  ['randomOperationId', ['model/key.ts']],
  ['defineWrite', ['errors.ts', 'model/canonical.ts', 'model/key.ts', 'model/operation.ts']],
  ['InvalidInputError', ['errors.ts']],
  [
    'standard',
    [
      'dialects/standard.ts',
      'errors.ts',
      'model/canonical.ts',
      'model/headers.ts',
      'model/operation.ts',
      'model/verdict.ts',
    ],
  ],
  [
    'forgetfulJournal',
    [
      'errors.ts',
      'model/canonical.ts',
      'model/entry.ts',
      'model/key.ts',
      'stores/codec.ts',
      'stores/memory.ts',
      'stores/store.ts',
    ],
  ],
])('%s alone brings what it needs and nothing else', async (name, modules) => {
  const found = await modulesOf(`{ ${name} }`)
  expect(found.filter((path) => !isOfUuid(path))).toEqual(modules)
  // The random name is made by uuid; nothing else here needs it.
  expect(found.some(isOfUuid)).toBe(name === 'randomOperationId')
})

test.each(Object.keys(billonce).filter((name) => name !== 'createBillingClient'))(
  '%s brings nothing of the client',
  async (name) => {
    const ofClient =
      /^(?:engine\/|client|options|input|stores\/(?:default|indexeddb|sqlite)|ky\/|p-retry\/|idb-keyval\/)/
    expect((await modulesOf(`{ ${name} }`)).filter((path) => ofClient.test(path))).toEqual([])
  },
)

test('the client brings its journal and none of the others, no exporter, no test kit and no random names', async () => {
  const modules = await modulesOf('{ createBillingClient }')
  expect(modules).toEqual(expect.arrayContaining(['client.ts', 'engine/deliver.ts', 'stores/indexeddb.ts']))
  const others =
    /^(?:stores\/(?:memory|sqlite|postgres|default-n)|opentelemetry|diagnostics|meter|service-worker|react|testing\/|cli\/|uuid\/.*v7)/
  expect(modules.filter((path) => others.test(path))).toEqual([])
})

test('README states the size that is held', () => {
  const limits = JSON.parse(readFileSync(join(repositoryRoot, '.size-limit.json'), 'utf8')) as {
    import: string
    limit: string
  }[]
  const { limit } = limits.find((one) => one.import === '{ createBillingClient }') ?? { limit: '' }
  expect(readFileSync(join(repositoryRoot, 'README.md'), 'utf8')).toContain(
    `less than ${Math.ceil(Number.parseFloat(limit))} kB (minified, brotli)`,
  )
})

test('importing for its types, or for nothing, brings nothing', async () => {
  expect(await modulesOf('{}')).toEqual([])
})
