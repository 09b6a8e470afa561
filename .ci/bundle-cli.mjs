// Bundles the command line into one file, with the libraries that only it needs, so that the library's own dependencies stay
// four. billonce itself stays outside: the file asks for it by name and gets the package that it lies in. The licences of
// what is inside are put beside it. Takes the folder to write to; default dist/cli.
import { chmodSync, existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { builtinModules } from 'node:module'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vite'

const root = fileURLToPath(new URL('..', import.meta.url))
const outDir = resolve(process.argv[2] ?? join(root, 'dist/cli'))

const { output } = await build({
  root,
  configFile: false,
  logLevel: 'warn',
  publicDir: false,
  ssr: { noExternal: true, target: 'node' },
  build: {
    ssr: join(root, 'src/cli/billonce.ts'),
    outDir,
    emptyOutDir: false,
    target: 'node22',
    // For people to read when something goes wrong.
    minify: false,
    rolldownOptions: {
      // cli-table3 asks for @colors/colors and does without.
      external: [/^billonce(\/|$)/, /^node:/, ...builtinModules, /^@colors\/colors/],
      // No paths of the machine that built it.
      experimental: { attachDebugInfo: 'none' },
      output: { format: 'es', entryFileNames: 'billonce.js', codeSplitting: false },
    },
  },
})

const [chunk, ...others] = output
if (chunk?.type !== 'chunk' || others.length > 0) throw new Error('The command line must be one file.')
chmodSync(join(outDir, 'billonce.js'), 0o755)

const folders = new Set(
  chunk.moduleIds.flatMap(
    (id) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(id.replaceAll('\\', '/'))?.[0] ?? [],
  ),
)
const texts = [...folders]
  .sort((one, other) => (one < other ? -1 : 1))
  .map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one))
    // A licence without its text may not be passed on.
    if (!file || !existsSync(join(folder, file))) throw new Error(`${name} has no licence text.`)
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), 'utf8').trim()}\n`
  })
writeFileSync(
  join(outDir, 'THIRD-PARTY-LICENSES.txt'),
  `billonce.js contains these packages.\n\n${texts.join(`\n${'-'.repeat(80)}\n\n`)}`,
)
