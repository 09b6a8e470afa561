/** What the documents show is true of the code: blocks compile, commands and links exist, defaults and names are these. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import * as billonce from 'billonce'
import ts from 'typescript'
import { describe, expect, test } from 'vitest'
import { readOptions } from '../../src/options.ts'
import { repositoryRoot } from '../support/bundle.ts'
import { blocksOf, documents, rowsOf, textOf } from './markdown.ts'

/** What the blocks take as given: a client, an application around it. */
const GIVEN = `
  import type { BillingClient, ChargeReceipt, Outcome } from 'billonce'
  declare global {
    const billing: BillingClient
    const outcome: Outcome<ChargeReceipt>
    const session: { readonly scope: string; readonly token: string; refresh(): Promise<void> }
    function freshToken(): string
    function showThanks(receiptId: string): void
    function askTheCustomer(nextAction: unknown): void
    function showProcessing(): void
    function askForAnotherCard(code: string | undefined, revision: number): void
    function showNotYet(reason: string, sendBeforeAtMs: number | undefined): void
    function showNothingHappened(): void
    function showWeAreChecking(delivery: 'continues' | 'ended', key: string): void
    function tellSupport(key: string, reason: string): void
    const Checkout: typeof import('./examples/react-checkout.tsx').Checkout
  }
`

test('every TypeScript block compiles', () => {
  const files = new Map(
    documents().flatMap((path) =>
      ['ts', 'tsx'].flatMap((language) =>
        blocksOf(textOf(path), language).map(
          ({ line, code }) => [join(repositoryRoot, `${path} line ${line}.${language}`), code] as const,
        ),
      ),
    ),
  )
  expect(files.size).toBeGreaterThan(5)
  files.set(join(repositoryRoot, 'given.ts'), GIVEN)
  expect(mistakesIn(files)).toEqual([])
}, 120_000)

test('a block that does not compile is noticed', () => {
  const path = join(repositoryRoot, 'wrong.ts')
  const code = "await billing.charge({ amount: 1, currency: 'eur' }, { operationId: 'a', volatileFields: ['amount'] })"
  const files = new Map([
    [path, code],
    [join(repositoryRoot, 'given.ts'), GIVEN],
  ])
  expect(mistakesIn(files)).toEqual([expect.stringContaining('wrong.ts')])
}, 120_000)

// What it does when it runs is in test/examples/programs.test.ts.
test('the first block is the first example, to the letter', () => {
  const [first] = blocksOf(textOf('README.md'), 'ts')
  expect(`${first?.code}\n`).toBe(readFileSync(join(repositoryRoot, 'examples/first-charge.ts'), 'utf8'))
})

test('every command exists', () => {
  const help = readFileSync(join(repositoryRoot, 'dev'), 'utf8')
  const commandLine = readFileSync(join(repositoryRoot, 'src/cli/program.ts'), 'utf8')
  const scripts = Object.keys((JSON.parse(textOf('package.json')) as { scripts: object }).scripts)
  const lines = documents().flatMap((path) => blocksOf(textOf(path), 'bash').flatMap(({ code }) => code.split('\n')))
  expect(lines.length).toBeGreaterThan(2)
  for (const line of lines) {
    const [program = '', ...args] = line.replace(/\s+#.*$/, '').split(' ')
    if (program === './dev') expect(help, line).toMatch(new RegExp(`^  ${args[0]}\\)$`, 'm'))
    else if (program === 'node') expect(existsSync(join(repositoryRoot, args.at(-1) ?? '')), line).toBe(true)
    else if (program === 'npm' && args[0] === 'run') expect(scripts, line).toContain(args[1])
    else if (program === 'npx' && args[0] === 'billonce') {
      expect(commandLine, line).toContain(`.command('${args[1]}')`)
      for (const [flag] of line.matchAll(/ --[a-z-]+/g)) {
        expect(commandLine, line).toMatch(new RegExp(`['| ]${flag.trim()}[ ']`))
      }
    } else expect.fail(`What is ${line}?`)
  }
})

test('the drawing in CONTRIBUTING is of files that are there', () => {
  const [drawing] = blocksOf(textOf('CONTRIBUTING.md'), 'text')
  const files = [...(drawing?.code.matchAll(/[\w/-]+\.ts\b/g) ?? [])].map(([path]) => path)
  expect(files.length).toBeGreaterThan(10)
  for (const file of files) expect(existsSync(join(repositoryRoot, 'src', file)), file).toBe(true)
})

test('the examples start as their first lines say', () => {
  for (const path of ['backend-worker.ts', 'after-a-crash.ts', 'checkout/serve.ts', 'mobile/serve.ts']) {
    expect(textOf(`examples/${path}`)).toContain(` *     node --conditions=source examples/${path}\n`)
  }
})

test('every link within the repository leads somewhere', () => {
  for (const path of documents()) {
    const text = textOf(path)
    for (const [, target = ''] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(target)) continue
      const [file = '', anchor] = target.split('#')
      const of = file === '' ? path : join(dirname(path), file)
      expect(existsSync(join(repositoryRoot, of)), `${path}: ${target}`).toBe(true)
      if (anchor !== undefined) expect(anchorsOf(textOf(of)), `${path}: ${target}`).toContain(anchor)
    }
  }
})

describe('README', () => {
  const readme = textOf('README.md')

  test('names the defaults of the retry policy', () => {
    const { policy } = readOptions({ baseUrl: 'https://api.example.com', scope: 'a' })
    const said = rowsOf(readme, 'Retries').map(([name, value]) => [name?.slice(1, -1), value])
    expect(Object.fromEntries(said)).toEqual(
      Object.fromEntries(
        Object.entries(policy).map(([name, value]) => [
          name,
          typeof value === 'number' ? value.toLocaleString('en-US') : 'none',
        ]),
      ),
    )
  })

  test('names the errors', () => {
    const errors = Object.values(billonce).filter(
      (value): value is typeof billonce.BillingError =>
        typeof value === 'function' && value.prototype instanceof billonce.BillingError,
    )
    const said = rowsOf(readme, 'Errors').map(([name]) => name?.slice(1, -1))
    const thrown = errors.map((error) => error.name)
    expect(new Set(said)).toEqual(new Set(thrown))
    for (const [name = '', code = ''] of rowsOf(readme, 'Errors')) {
      const source = readFileSync(join(repositoryRoot, 'src/errors.ts'), 'utf8')
      const after = source.slice(source.indexOf(`class ${name.slice(1, -1)}`))
      expect(/readonly code = '(\w+)'/.exec(after)?.[1], name).toBe(code.slice(1, -1))
    }
  })

  test('names the events', () => {
    const source = readFileSync(join(repositoryRoot, 'src/events.ts'), 'utf8')
    const types = [...source.matchAll(/readonly type: '([a-z-]+)'/g)].map(([, type]) => type)
    expect(rowsOf(readme, 'Events').map(([type]) => type?.slice(1, -1))).toEqual(types)
  })

  test('names the outcomes', () => {
    const said = rowsOf(readme, 'What a call returns').map(([first]) => /`(\w+)`/.exec(first ?? '')?.[1])
    const source = readFileSync(join(repositoryRoot, 'src/model/outcome.ts'), 'utf8')
    const statuses = [...source.matchAll(/readonly status: '(\w+)'/g)].map(([, status]) => status)
    // `queued` comes from background calls only, and has a sentence of its own.
    expect(new Set([...said, 'queued'])).toEqual(new Set(statuses))
  })
})

test('the changelog says of each version what became of the journal and of the keys', () => {
  const [, ...versions] = textOf('CHANGELOG.md').split(/^## /m)
  expect(versions.length).toBeGreaterThan(0)
  for (const version of versions) {
    expect(version).toMatch(/^Journal format: \d+, (?:new|unchanged|changed)\. Keys and fingerprints: .+\.$/m)
  }
})

/** What the compiler finds in these files, read as modules of this repository, against its sources. */
function mistakesIn(files: ReadonlyMap<string, string>): string[] {
  const config = ts.readConfigFile(join(repositoryRoot, 'tsconfig.json'), (path) => readFileSync(path, 'utf8'))
  const { options } = ts.parseJsonConfigFileContent(config.config, ts.sys, repositoryRoot)
  const host = ts.createCompilerHost(options)
  const onDisk = { ...host }
  host.fileExists = (path) => files.has(path) || onDisk.fileExists(path)
  host.readFile = (path) => files.get(path) ?? onDisk.readFile(path)
  host.getSourceFile = (path, how, onError, again) => {
    const code = files.get(path)
    if (code === undefined) return onDisk.getSourceFile(path, how, onError, again)
    return ts.createSourceFile(path, code, how, true)
  }
  const program = ts.createProgram([...files.keys()], options, host)
  return [...files.keys()].flatMap((path) => {
    const file = program.getSourceFile(path)
    const found = file && [...program.getSyntacticDiagnostics(file), ...program.getSemanticDiagnostics(file)]
    return (found ?? []).map(({ messageText, start = 0 }) => {
      const line = (file?.getLineAndCharacterOfPosition(start).line ?? 0) + 1
      return `${path.replace(`${repositoryRoot}`, '')}+${line}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`
    })
  })
}

/** As GitHub makes them. */
function anchorsOf(text: string): readonly string[] {
  return text
    .split('\n')
    .filter((line) => /^#+ /.test(line))
    .map((line) =>
      line
        .replace(/^#+ /, '')
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
        .replaceAll(' ', '-'),
    )
}
