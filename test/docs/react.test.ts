/** docs/react.md is true of the code: its component is the one that the browsers run, its phases and numbers are these. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { repositoryRoot } from '../support/bundle.ts'
import { blocksOf, rowsOf, textOf } from './markdown.ts'

const guide = textOf('docs/react.md')
const sourceOf = (path: string): string => readFileSync(join(repositoryRoot, path), 'utf8')

// What it does when it runs is in test/browser/react.test.ts.
test('the first block is the example, to the letter', () => {
  const [first] = blocksOf(guide, 'tsx')
  expect(`${first?.code}\n`).toBe(sourceOf('examples/react-checkout.tsx'))
})

test('each phase has its row', () => {
  const phases = [...sourceOf('src/react.ts').matchAll(/readonly phase: '(\w+)'/g)].map(([, phase]) => phase)
  expect(rowsOf(guide, 'What is known').map(([phase]) => phase?.slice(1, -1))).toEqual(phases)
})

test('the numbers are those of the code', () => {
  const known = sourceOf('src/react/known.ts')
  const numberOf = (name: string): number =>
    Number(new RegExp(`^const ${name} = ([\\d_]+)$`, 'm').exec(known)?.[1]?.replace('_', ''))
  expect(guide).toContain(`the journal is read every ${numberOf('POLL_MS') / 1000} s`)
  expect(guide).toContain(`${numberOf('BURST_MS')} ms after the first`)
  expect(guide).toContain(`the latest ${numberOf('KEPT')} operations`)
})

test('the README leads to it', () => {
  expect(textOf('README.md')).toContain('(docs/react.md)')
})
