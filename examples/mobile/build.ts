/**
 * Builds the app in memory: the page as any page is built, and the service worker as one classic script of its own, which gets
 * the list of the app's files. All addresses are relative, so it can be served from any folder.
 */
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'
import type { Rolldown } from 'vite'

export interface AppFile {
  readonly body: string | Uint8Array
  readonly type: string
}

const folder = fileURLToPath(new URL('.', import.meta.url))
const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  webmanifest: 'application/manifest+json; charset=utf-8',
  svg: 'image/svg+xml',
  png: 'image/png',
}

/** The files by path below the app's folder; the page itself is under the empty path. */
export async function buildApp(): Promise<ReadonlyMap<string, AppFile>> {
  const files = new Map<string, AppFile>()
  const add = (path: string, body: string | Uint8Array): void => {
    const type = TYPES[path.split('.').at(-1) ?? '']
    if (type === undefined) throw new Error(`Of what type is ${path}?`)
    files.set(path === 'index.html' ? '' : path, { body, type })
  }
  for (const name of readdirSync(`${folder}public`)) add(name, readFileSync(`${folder}public/${name}`))
  for (const part of await bundle({ input: `${folder}index.html` })) {
    add(part.fileName, part.type === 'chunk' ? part.code : part.source)
  }
  const shell = { version: digestOf(files), files: [...files.keys()] }
  const [worker] = await bundle(
    { input: `${folder}worker.ts`, output: { format: 'iife', entryFileNames: 'worker.js' } },
    { SHELL: JSON.stringify(shell) },
  )
  if (worker?.type !== 'chunk') throw new Error('No worker was built')
  add('worker.js', worker.code)
  return files
}

async function bundle(
  rolldownOptions: Rolldown.RolldownOptions,
  define: Record<string, string> = {},
): Promise<Rolldown.RolldownOutput['output']> {
  const built = await build({
    root: folder,
    base: './',
    configFile: false,
    logLevel: 'warn',
    define,
    // In this repository only, where billonce is read from its sources; an app of yours needs no conditions.
    resolve: { conditions: ['source', 'browser', 'module', 'import', 'default'] },
    build: { write: false, target: 'es2022', modulePreload: { polyfill: false }, rolldownOptions },
  })
  if (Array.isArray(built) || !('output' in built)) throw new Error('vite built something else than one app')
  return built.output
}

/** Changes when a file does. */
function digestOf(files: ReadonlyMap<string, AppFile>): string {
  const hash = createHash('sha256')
  for (const [path, { body }] of files) hash.update(path).update('\0').update(body)
  return hash.digest('hex').slice(0, 12)
}
