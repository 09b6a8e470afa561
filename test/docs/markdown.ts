/** What the tests of the documents read out of them. */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { repositoryRoot } from '../support/bundle.ts'

/** The documents written by hand; docs/api is generated. */
export function documents(): readonly string[] {
  const all = readdirSync(repositoryRoot, { recursive: false }).map(String)
  const inDocs = all.includes('docs') ? readdirSync(join(repositoryRoot, 'docs')).map((name) => `docs/${name}`) : []
  const inExamples = readdirSync(join(repositoryRoot, 'examples'))
    .map((name) => `examples/${name}/README.md`)
    .filter((path) => existsSync(join(repositoryRoot, path)))
  return [...[...all, ...inDocs].filter((path) => path.endsWith('.md')), ...inExamples]
}

export function textOf(path: string): string {
  return readFileSync(join(repositoryRoot, path), 'utf8')
}

export interface Block {
  /** From 1. */
  readonly line: number
  readonly code: string
}

/** The fenced blocks of a language. */
export function blocksOf(text: string, language: string): readonly Block[] {
  const blocks: Block[] = []
  let open: { line: number; isWanted: boolean; code: string[] } | undefined
  for (const [index, line] of text.split('\n').entries()) {
    if (!open && line.startsWith('```')) open = { line: index + 2, isWanted: line === `\`\`\`${language}`, code: [] }
    else if (open && line === '```') {
      if (open.isWanted) blocks.push({ line: open.line, code: open.code.join('\n') })
      open = undefined
    } else open?.code.push(line)
  }
  return blocks
}

/** The cells of the first table after a heading, without its head. */
export function rowsOf(text: string, heading: string): readonly (readonly string[])[] {
  const lines = text.split('\n')
  const start = lines.findIndex((line) => /^#+ /.test(line) && line.replace(/^#+ /, '') === heading)
  const first = lines.findIndex((line, index) => index > start && line.startsWith('|'))
  const rows = lines.slice(first)
  return rows
    .slice(
      2,
      rows.findIndex((line) => !line.startsWith('|')),
    )
    .map((line) =>
      line
        .slice(1, -1)
        .split('|')
        .map((cell) => cell.trim()),
    )
}
