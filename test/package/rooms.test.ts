/**
 * Which room may know which: reads every import in src and names the arrows that point the wrong way. The rooms and
 * what they are for stand in CONTRIBUTING; a new kind of arrow is first a decision there, then a line here.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join, posix } from 'node:path'
import ts from 'typescript'
import { expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'

interface Arrow {
  /** Relative to src, such as `engine/open.ts`. */
  from: string
  /** The same for a file of ours; else the package, the subpath import or the `node:` module. */
  to: string
  typesOnly: boolean
}

/** Packages and who alone may import them. A driver that leaks into a second file cannot be replaced any more. */
const packageOwners: Record<string, readonly string[]> = {
  ky: ['engine/send.ts'],
  'p-retry': ['engine/deliver.ts'],
  'idb-keyval': ['stores/indexeddb.ts'],
  uuid: ['model/canonical.ts', 'model/key.ts', 'opentelemetry.ts', 'stores/postgres-statements.ts'],
  'node:sqlite': ['stores/sqlite.ts', 'stores/sqlite-worker.ts'],
  // The pool is the user's own, and its type is what is needed of it.
  pg: [],
  msw: ['testing/msw.ts'],
  react: ['react.ts'],
  '@opentelemetry/api': ['opentelemetry.ts'],
  commander: ['cli/program.ts'],
  'cli-table3': ['cli/table.ts'],
  'cli-progress': ['cli/progress.ts'],
  'csv-stringify': ['cli/export.ts'],
}

/** What is wrong with the arrow, or `undefined`. */
function fault({ from, to, typesOnly }: Arrow): string | undefined {
  const room = roomOf(from)
  const owners = packageOwners[packageOf(to)]
  if (owners !== undefined) return owners.includes(from) ? undefined : `only ${owners.join(' and ')} may import it`
  if (to === '#default-store') return from === 'options.ts' || from === 'client.ts' ? undefined : 'only options may'
  if (to === 'billonce' || to.startsWith('billonce/')) {
    return room === 'testing' || room === 'cli' ? undefined : 'only testing and cli use the package as a user would'
  }
  if (to.startsWith('node:')) {
    const free = room === 'cli' || from === 'testing/server.ts' || /^stores\/(sqlite|default-node)/.test(from)
    return free || typesOnly ? undefined : 'nothing that a browser reaches may import Node'
  }
  if (!isOurs(to)) return 'this package is nobody’s; say in packageOwners whose it is'

  const target = roomOf(to)
  if (target === 'errors') return undefined
  switch (room) {
    case 'errors':
      // Errors speak of entries and outcomes, which are only named there.
      return target === 'model' && typesOnly ? undefined : 'errors import nothing but types of model'
    case 'events':
      return target === 'model' || typesOnly ? undefined : 'events import model only'
    case 'model':
      return target === 'model' ? undefined : 'model knows only model and errors'
    case 'dialects':
      if (target === 'model' || to === 'dialects/dialect.ts') return undefined
      return target === 'dialects' ? 'dialects do not know each other' : 'a dialect knows model and its contract'
    case 'stores': {
      if (target === 'model' || ['stores/store.ts', 'stores/codec.ts', 'stores/owner.ts'].includes(to)) return undefined
      // The default of a runtime is one of the journals.
      if (target === 'stores' && from.startsWith('stores/default-')) return undefined
      // A journal of several files keeps them under its own name: sqlite.ts, sqlite-worker.ts.
      if (target === 'stores' && journalOf(to) === journalOf(from)) return undefined
      return target === 'stores' ? 'journals do not know each other' : 'a journal knows model and its contract'
    }
    case 'engine':
      if (target === 'engine' || target === 'model' || target === 'events') return undefined
      if (to === 'dialects/dialect.ts' || to === 'stores/store.ts') {
        return typesOnly ? undefined : 'engine takes only types of the contracts'
      }
      return 'engine knows model, events and the two contracts'
    case 'api':
      return typesOnly ? undefined : 'what a client offers is types only'
    case 'options':
    case 'input':
    case 'client':
      if (['engine', 'model', 'events', 'options', 'input', 'api'].includes(target)) return undefined
      if (to === 'dialects/standard.ts' || to === 'dialects/dialect.ts' || to === 'stores/store.ts') return undefined
      return typesOnly ? undefined : `${room} knows engine, model, events, the contracts and the standard dialect`
    case 'probe':
      return 'the probe knows errors only'
    case 'index':
      if (['api', 'client', 'options', 'events', 'model', 'dialects', 'probe'].includes(target)) return undefined
      if (to === 'stores/store.ts' || to === 'stores/memory.ts') return undefined
      return typesOnly ? undefined : 'the front door leads to what needs no driver'
    case 'opentelemetry':
    case 'diagnostics-channel':
      return typesOnly ? undefined : 'an observer sees events, and takes nothing but types'
    case 'postgres':
      // What is offered beside the client: its own journal, and the way of a call up to the entry.
      return ['api', 'client', 'engine', 'events', 'input', 'model'].includes(target) || to === 'stores/postgres.ts'
        ? undefined
        : 'what a database can do knows the way of a call and its journal'
    case 'meter':
      return ['api', 'engine', 'input', 'model', 'options'].includes(target)
        ? undefined
        : 'a meter knows the way of a call up to the entry'
    case 'service-worker':
      return typesOnly && target === 'api' ? undefined : 'a worker is handed its client, and takes nothing but types'
    case 'react':
      // It holds a client in its hand like any user; what it throws itself are the errors of the front door.
      return target === 'react' || typesOnly ? undefined : 'a binding takes nothing but types and errors'
    case 'testing':
    case 'cli':
      return target === room ? undefined : `${room} imports the package by its public names`
    default:
      return `${room} is no room`
  }
}

test('no import points the wrong way', () => {
  const wrong = arrows()
    .map((arrow) => ({ ...arrow, why: fault(arrow) }))
    .filter(({ why }) => why !== undefined)
    .map(({ from, to, typesOnly, why }) => `${from} → ${to}${typesOnly ? ' (types)' : ''}: ${why}`)
  expect(wrong).toEqual([])
})

// A word that is explained by a word that it explains: then neither can be read first, types or not.
test('model is read in one direction', () => {
  const inModel = arrows().filter(({ from, to }) => roomOf(from) === 'model' && roomOf(to) === 'model' && isOurs(to))
  const next = (path: string): string[] => inModel.filter(({ from }) => from === path).map(({ to }) => to)
  const circles = new Set<string>()
  const walk = (path: readonly string[]): void => {
    for (const to of next(path[path.length - 1] ?? '')) {
      if (to === path[0]) circles.add([...path, to].join(' → '))
      else if (!path.includes(to)) walk([...path, to])
    }
  }
  for (const from of new Set(inModel.map((arrow) => arrow.from))) walk([from])
  expect([...circles]).toEqual([])
})

test('the front door only exports', () => {
  if (!sources().includes('index.ts')) return
  const other = parse('index.ts')
    .statements.filter((statement) => !ts.isExportDeclaration(statement))
    .map((statement) => statement.getText())
  expect(other).toEqual([])
})

// A clock or a random source inside a rule is a rule that no test can repeat. The engine has its world from runtime.ts.
test('what decides does not look at the outside world', () => {
  const worldly =
    /^(Date\.now|Math\.random|performance|fetch|setTimeout|setInterval|navigator|document|window|process|localStorage|indexedDB|crypto)$/
  const seen: string[] = []
  const rooms = ['model', 'dialects', 'engine']
  for (const path of sources().filter((file) => rooms.includes(roomOf(file)) && file !== 'engine/runtime.ts')) {
    const file = parse(path)
    const visit = (node: ts.Node): void => {
      const name =
        ts.isPropertyAccessExpression(node) && ts.isIdentifier(node.expression)
          ? [`${node.expression.text}.${node.name.text}`, node.expression.text].find((text) => worldly.test(text))
          : ts.isCallExpression(node) && ts.isIdentifier(node.expression) && worldly.test(node.expression.text)
            ? node.expression.text
            : ts.isNewExpression(node) && node.expression.getText() === 'Date' && !node.arguments?.length
              ? 'new Date()'
              : undefined
      if (name !== undefined) {
        seen.push(`${path}:${file.getLineAndCharacterOfPosition(node.getStart()).line + 1} ${name}`)
      }
      ts.forEachChild(node, visit)
    }
    visit(file)
  }
  expect(seen).toEqual([])
})

// The table above is code, and code can be wrong: a few arrows whose answer is known.
test.each<[from: string, to: string, typesOnly: boolean, allowed: boolean]>([
  ['engine/send.ts', 'ky', false, true],
  ['engine/open.ts', 'ky', false, false],
  ['engine/deliver.ts', 'p-retry', false, true],
  ['engine/resume.ts', 'p-retry', true, false],
  ['engine/open.ts', 'stores/store.ts', true, true],
  ['engine/open.ts', 'stores/store.ts', false, false],
  ['engine/open.ts', 'dialects/standard.ts', true, false],
  ['model/entry.ts', 'engine/open.ts', true, false],
  ['stores/indexeddb.ts', 'idb-keyval', false, true],
  ['stores/memory.ts', 'stores/sqlite.ts', true, false],
  ['stores/sqlite-worker.ts', 'stores/sqlite.ts', false, true],
  ['stores/postgres.ts', 'stores/owner.ts', false, true],
  ['stores/postgres-work.ts', 'stores/sqlite.ts', true, false],
  ['stores/postgres.ts', 'pg', true, false],
  ['stores/sqlite.ts', 'node:sqlite', false, true],
  ['client.ts', 'node:fs', false, false],
  ['opentelemetry.ts', '@opentelemetry/api', false, true],
  ['engine/deliver.ts', '@opentelemetry/api', true, false],
  ['opentelemetry.ts', 'api.ts', true, true],
  ['opentelemetry.ts', 'engine/deliver.ts', false, false],
  ['diagnostics-channel.ts', 'events.ts', false, false],
  ['service-worker.ts', 'api.ts', true, true],
  ['service-worker.ts', 'client.ts', false, false],
  ['react.ts', 'react', false, true],
  ['react/known.ts', 'react', false, false],
  ['react/known.ts', 'api.ts', true, true],
  ['react.ts', 'engine/deliver.ts', false, false],
  ['client.ts', 'react/known.ts', false, false],
  ['testing/receiver.ts', 'model/key.ts', true, false],
  ['testing/journal-first.ts', 'billonce', false, true],
  ['client.ts', 'left-pad', false, false],
])('%s → %s, types only: %s, is allowed: %s', (from, to, typesOnly, allowed) => {
  expect(fault({ from, to, typesOnly }) === undefined).toBe(allowed)
})

function roomOf(path: string): string {
  return path.includes('/') ? path.slice(0, path.indexOf('/')) : path.replace(/\.ts$/, '')
}

function journalOf(path: string): string {
  return posix.basename(path, '.ts').replace(/-.*/, '')
}

function packageOf(to: string): string {
  return to
    .split('/')
    .slice(0, to.startsWith('@') ? 2 : 1)
    .join('/')
}

function isOurs(to: string): boolean {
  return to.endsWith('.ts')
}

function sources(): string[] {
  const folder = join(repositoryRoot, 'src')
  if (!existsSync(folder)) return []
  return readdirSync(folder, { recursive: true })
    .map((path) => String(path).replaceAll('\\', '/'))
    .filter((path) => path.endsWith('.ts'))
}

function parse(path: string): ts.SourceFile {
  return ts.createSourceFile(
    path,
    readFileSync(join(repositoryRoot, 'src', path), 'utf8'),
    ts.ScriptTarget.Latest,
    true,
  )
}

function arrows(): Arrow[] {
  return sources().flatMap((from) => {
    const found: Arrow[] = []
    const add = (specifier: ts.Node | undefined, typesOnly: boolean): void => {
      if (specifier === undefined || !ts.isStringLiteralLike(specifier)) return
      const { text } = specifier
      const to = text.startsWith('.') ? posix.join(posix.dirname(from), text) : text
      found.push({ from, to, typesOnly })
    }
    const visit = (node: ts.Node): void => {
      if (ts.isImportDeclaration(node)) add(node.moduleSpecifier, isTypesOnly(node.importClause))
      else if (ts.isExportDeclaration(node)) add(node.moduleSpecifier, node.isTypeOnly || allTypes(node.exportClause))
      else if (ts.isImportTypeNode(node))
        add(ts.isLiteralTypeNode(node.argument) ? node.argument.literal : undefined, true)
      else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
        add(node.arguments[0], false)
      }
      ts.forEachChild(node, visit)
    }
    visit(parse(from))
    return found
  })
}

function isTypesOnly(clause: ts.ImportClause | undefined): boolean {
  if (clause === undefined) return false
  if (clause.isTypeOnly) return true
  return clause.name === undefined && allTypes(clause.namedBindings)
}

function allTypes(names: ts.NamedImportBindings | ts.NamedExportBindings | undefined): boolean {
  if (names === undefined || !(ts.isNamedImports(names) || ts.isNamedExports(names))) return false
  return names.elements.length > 0 && names.elements.every((element) => element.isTypeOnly)
}
