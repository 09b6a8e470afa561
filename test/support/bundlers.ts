/**
 * The bundlers that applications are built with, each set up as its manual says for a target. What comes out is told in the
 * same words for all: the files, and the modules that went into them.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { isBuiltin } from 'node:module'
import { join, resolve } from 'node:path'
import { nodeResolve } from '@rollup/plugin-node-resolve'
import { build as esbuild } from 'esbuild'
import { rollup } from 'rollup'
import { build as vite, defaultClientConditions, defaultServerConditions, type Rolldown } from 'vite'
import webpack from 'webpack'

/**
 * `browser`: a page; `worker`: a web or service worker of its own, under the condition of that name too; `edge-light` and
 * `workerd`: under these conditions and `browser`, as the tools of those platforms set them; `node`; `none`: no condition
 * that names a runtime.
 */
export type Target = 'browser' | 'worker' | 'edge-light' | 'workerd' | 'node' | 'none'
export const bundlerNames = ['vite', 'webpack', 'esbuild', 'rollup'] as const
export type Bundler = (typeof bundlerNames)[number]

export interface BuildRequest {
  readonly target: Target
  /** The source of the application. */
  readonly entry: string
  /** Where the files go. The entry's is `app.js`, for Node `app.mjs` or `app.cjs`. */
  readonly outDir: string
  /** More entries, where the bundler does not find them by itself. */
  readonly more?: Readonly<Record<string, string>> | undefined
}

export interface Built {
  /** Path of the file that the application starts with. */
  readonly main: string
  /** The code of every file. */
  readonly files: ReadonlyMap<string, string>
  /** Paths of the modules in it. */
  readonly modules: readonly string[]
  /** What it asks of its surroundings: modules of Node's, packages that were left out. */
  readonly outside: readonly string[]
}

/** Builds for production. */
export async function bundle(bundler: Bundler, request: BuildRequest): Promise<Built> {
  const { modules, outside } = await builders[bundler](request)
  const names = readdirSync(request.outDir, { recursive: true }).map((name) => String(name).replaceAll('\\', '/'))
  const code = names.filter((name) => /\.[cm]?js$/.test(name))
  const main = code.find((name) => /^app\.[cm]?js$/.test(name))
  if (main === undefined) throw new Error(`${bundler} made ${names.join(', ')}`)
  return {
    main: join(request.outDir, main),
    files: new Map(code.map((name) => [name, readFileSync(join(request.outDir, name), 'utf8')])),
    modules: modules.map((path) => path.replaceAll('\\', '/')),
    outside,
  }
}

type Parts = Pick<Built, 'modules' | 'outside'>
const builders: Readonly<Record<Bundler, (request: BuildRequest) => Promise<Parts>>> = {
  vite: byVite,
  webpack: byWebpack,
  esbuild: byEsbuild,
  rollup: byRollup,
}

const isAtEdge = (target: Target): boolean => target === 'edge-light' || target === 'workerd'
/** Beyond those that the bundler has for a browser. */
const conditionsOf = (target: Target): string[] => {
  if (target === 'edge-light' || target === 'worker') return [target]
  return target === 'workerd' ? ['workerd', 'worker'] : []
}
const inputOf = ({ entry, more }: BuildRequest): Record<string, string> => ({ app: entry, ...more })

async function byVite(request: BuildRequest): Promise<Parts> {
  const { target, entry, outDir } = request
  const isServer = target === 'node' || isAtEdge(target) || target === 'none'
  const modules: string[] = []
  const outside: string[] = []
  const conditions =
    target === 'node'
      ? defaultServerConditions
      : target === 'none'
        ? ['module', 'development|production']
        : [...conditionsOf(target), ...defaultClientConditions]
  const report = (): Rolldown.Plugin => ({
    name: 'report',
    generateBundle(_options, output) {
      for (const part of Object.values(output)) {
        if (part.type !== 'chunk') continue
        modules.push(...part.moduleIds)
        outside.push(...[...part.imports, ...part.dynamicImports].filter((name) => !Object.hasOwn(output, name)))
      }
    },
  })
  await vite({
    root: resolve(entry, '..'),
    configFile: false,
    logLevel: 'error',
    publicDir: false,
    base: './',
    resolve: { conditions: [...conditions] },
    ...(isServer
      ? {
          ssr: {
            noExternal: true as const,
            target: target === 'node' ? ('node' as const) : ('webworker' as const),
            resolve: { conditions: [...conditions] },
          },
        }
      : {}),
    plugins: [report()],
    worker: { format: 'es', plugins: () => [report()] },
    build: {
      ssr: isServer ? entry : false,
      outDir,
      minify: true,
      modulePreload: false,
      rolldownOptions: {
        input: { app: entry },
        output: {
          format: 'es',
          entryFileNames: target === 'node' ? 'app.mjs' : 'app.js',
          ...(isServer ? { codeSplitting: false } : {}),
        },
      },
    },
  })
  // What vite puts in the place of a module of Node's, so that only its use fails.
  outside.push(...modules.filter((id) => id.includes('__vite-browser-external')))
  return { modules, outside }
}

async function byWebpack(request: BuildRequest): Promise<Parts> {
  const { target, entry, outDir } = request
  const modules: string[] = []
  const outside: string[] = []
  const targets = { browser: 'web', node: 'node22', none: 'es2022' } as const
  const compiler = webpack({
    mode: 'production',
    context: resolve(entry, '..'),
    target: target in targets ? targets[target as keyof typeof targets] : 'webworker',
    entry: inputOf(request),
    output: {
      path: outDir,
      filename: target === 'node' ? '[name].cjs' : '[name].js',
      // Where nothing is known of the runtime, there is no other way to load a second file.
      ...(target === 'none' ? { module: true } : {}),
    },
    experiments: { outputModule: target === 'none' },
    devtool: false,
    // Its minifier takes seconds, and there is nothing more to learn from it at the other targets.
    optimization: { minimize: target === 'browser' || target === 'node' },
    resolve: { conditionNames: [...conditionsOf(target), '...'] },
    performance: false,
  })
  if (!compiler) throw new Error('webpack gave no compiler')
  compiler.hooks.compilation.tap('report', (compilation) => {
    compilation.hooks.finishModules.tap('report', (all) => {
      for (const module of all) {
        if (module.type.startsWith('javascript') && 'resource' in module) modules.push(String(module.resource))
        if (module.constructor.name === 'ExternalModule') outside.push(module.identifier())
      }
    })
  })
  const stats = await new Promise<webpack.Stats | undefined>((done, fail) => {
    compiler.run((error, result) => (error ? fail(error) : done(result)))
  })
  await new Promise((done) => {
    compiler.close(done)
  })
  if (stats === undefined || stats.hasErrors() || stats.hasWarnings()) {
    throw new Error(stats?.toString({ all: false, errors: true, warnings: true }))
  }
  return { modules, outside }
}

export interface EsbuildForm {
  readonly format?: 'esm' | 'cjs'
  readonly keepNames?: boolean
  readonly target?: string
}

/** @param form how it is written; ES modules of today unless a test is about something else */
export async function byEsbuild(request: BuildRequest, form: EsbuildForm = {}): Promise<Parts> {
  const { target, outDir } = request
  const { format = 'esm', ...more } = form
  const { metafile } = await esbuild({
    entryPoints: inputOf(request),
    outdir: outDir,
    ...(target === 'node' ? { outExtension: { '.js': format === 'cjs' ? '.cjs' : '.mjs' } } : {}),
    bundle: true,
    minify: true,
    metafile: true,
    format,
    platform: target === 'node' ? 'node' : target === 'none' ? 'neutral' : 'browser',
    // With none given, esbuild adds `module`; with any, only those of the platform are added.
    ...(conditionsOf(target).length > 0 ? { conditions: conditionsOf(target) } : {}),
    logLevel: 'error',
    ...more,
  })
  const outside = Object.values(metafile.inputs).flatMap(({ imports }) =>
    imports.filter(({ external }) => external).map(({ path }) => path),
  )
  return { modules: Object.keys(metafile.inputs).map((path) => resolve(path)), outside }
}

async function byRollup(request: BuildRequest): Promise<Parts> {
  const { target, outDir } = request
  const isBrowser = target !== 'node' && target !== 'none'
  const made = await rollup({
    input: inputOf(request),
    // Else they are only warned of.
    onwarn: (warning) => {
      if (warning.code !== 'UNRESOLVED_IMPORT' || !isBuiltin(warning.exporter ?? '')) throw new Error(warning.message)
    },
    plugins: [
      nodeResolve({
        browser: isBrowser,
        preferBuiltins: target === 'node',
        exportConditions: target === 'node' ? ['node'] : conditionsOf(target),
      }),
    ],
  })
  const { output } = await made.write({
    dir: outDir,
    format: 'es',
    entryFileNames: target === 'node' ? '[name].mjs' : '[name].js',
  })
  await made.close()
  const chunks = output.filter((part) => part.type === 'chunk')
  const own = new Set(chunks.map(({ fileName }) => fileName))
  return {
    modules: chunks.flatMap(({ moduleIds }) => moduleIds),
    outside: chunks
      .flatMap(({ imports, dynamicImports }) => [...imports, ...dynamicImports])
      .filter((name) => !own.has(name)),
  }
}
