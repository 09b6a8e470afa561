/**
 * docs/unknown.md has a paragraph for every reason that the types have, and for none that they do not. What the reasons come from
 * is in test/unknown/reasons.test.ts.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { readOptions } from '../../src/options.ts'
import { repositoryRoot } from '../support/bundle.ts'
import { blocksOf, rowsOf, textOf } from './markdown.ts'

const guide = textOf('docs/unknown.md')

/** The members of a union of texts, as its source has them; names of other unions are followed. */
function membersOf(file: string, name: string): readonly string[] {
  const source = readFileSync(join(repositoryRoot, 'src', file), 'utf8')
  const after = source.slice(source.indexOf(`export type ${name} =`))
  const body = after.slice(after.indexOf('=') + 1).split(/\n(?:export|const|interface|type|function|\/\*\*)/)[0] ?? ''
  const code = body.replaceAll(/\/\*\*.*?\*\//gs, '')
  const texts = [...code.matchAll(/'([a-z-]+)'/g)].map(([, text = '']) => text)
  return code.includes('NotAccepted') ? [...texts, ...membersOf('model/verdict.ts', 'NotAccepted')] : texts
}

/** The text under a heading, up to the next of the same or a higher level. */
function sectionOf(heading: string): string {
  const lines = guide.split('\n')
  const start = lines.findIndex((line) => line.replace(/^#+ /, '') === heading && line.startsWith('#'))
  expect(start, heading).toBeGreaterThanOrEqual(0)
  const level = /^#+/.exec(lines[start] ?? '')?.[0].length ?? 0
  const rest = lines.slice(start + 1)
  const end = rest.findIndex((line) => (/^(#+) /.exec(line)?.[1]?.length ?? 9) <= level)
  return (end === -1 ? rest : rest.slice(0, end)).join('\n')
}

const reasonsIn = (heading: string): string[] =>
  [...sectionOf(heading).matchAll(/^### `([a-z-]+)`$/gm)].map(([, reason = '']) => reason)

const sending = membersOf('model/entry.ts', 'SendingReason')
const unknown = [...membersOf('model/entry.ts', 'UnknownReason'), 'contradicted']

test('the types are read as they are', () => {
  expect(sending).toContain('in-flight')
  expect(sending).toContain('misrouted')
  expect(unknown).toContain('takes-no-key')
  expect(sending.length + unknown.length).toBe(21)
})

test('each reason has its paragraph, and each paragraph is of a reason', () => {
  expect(reasonsIn('Delivery continues').toSorted()).toEqual(sending.toSorted())
  expect(reasonsIn('Delivery ended').toSorted()).toEqual(unknown.toSorted())
})

describe.each([...sending, ...unknown])('%s', (reason) => {
  test('says what it means, what to show and what to do, and never that it failed', () => {
    const paragraphs = sectionOf(`\`${reason}\``).trim().split('\n\n')
    expect(paragraphs).toHaveLength(3)
    const [means = '', show = '', next = ''] = paragraphs
    expect(means).toMatch(/\.$/)
    const [, sentence = ''] = /^Show: "(.+\.)"$/.exec(show) ?? []
    expect(sentence).not.toBe('')
    expect(sentence).not.toMatch(/fail|declin|not (?:been )?charged|nothing was|try again|error/i)
    expect(next).toMatch(/^Next: .+\.$/s)
  })
})

describe('the tables', () => {
  const first = (heading: string): readonly string[] => rowsOf(guide, heading).map(([cell]) => cell?.slice(1, -1) ?? '')

  test('have every way in which evidence is refused', () => {
    expect(first('What is refused')).toEqual(membersOf('model/judgement.ts', 'EvidenceRefusal'))
  })

  test('have every way in which a revision is refused', () => {
    expect(first('Another card').toSorted()).toEqual(membersOf('errors.ts', 'RevisionRefusal').toSorted())
  })

  test('have every finding', () => {
    expect(first('Evidence')).toEqual(['applied', 'not-applied', 'nothing'])
  })
})

test('the defaults that it names are those of the code', () => {
  const { retention, concurrency, dialect, windowMarginMs } = readOptions({
    baseUrl: 'https://api.example.com',
    scope: 'a',
  })
  const dayMs = 86_400_000
  expect(retention).toEqual({ finalMs: 30 * dayMs, namesMs: { usage: 40 * dayMs } })
  expect(guide).toContain('finalMs: 30 * DAY_MS, // bodies and receipts; the default')
  expect(guide).toContain('namesMs: { usage: 40 * DAY_MS }, // names, by kind; the default')
  expect(guide).toContain(`as many at a time as \`concurrency\` says (${concurrency})`)
  expect(guide).toContain(
    `\`longestRequestMs\` of the dialect has passed (${dialect.longestRequestMs / 60_000} minutes`,
  )
  expect(guide).toContain(`By default that is ${(dayMs - windowMarginMs) / 3_600_000} hours after the\nevent`)
})

test('it has code for a webhook, a look-up, a decision and another card', () => {
  const code = blocksOf(guide, 'ts')
    .map((block) => block.code)
    .join('\n')
  for (const word of [
    'timingSafeEqual',
    'reconcile',
    "source: 'decision'",
    'revision + 1',
    'retryRejected',
    'prune()',
  ]) {
    expect(code).toContain(word)
  }
})

test('the README leads to it', () => {
  expect(textOf('README.md')).toContain('(docs/unknown.md)')
})
