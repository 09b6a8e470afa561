/** The numbers in docs/volume.md are the defaults of the code. What it says happens is in test/engine/volume.test.ts and test/crash. */
import { expect, test } from 'vitest'
import { readOptions } from '../../src/options.ts'
import { textOf } from './markdown.ts'

const page = textOf('docs/volume.md').replaceAll(/\s+/g, ' ')
const { concurrency, maxBacklog, policy } = readOptions({ baseUrl: 'https://api.example.com', scope: 'a' })

test.each([
  `${concurrency} by default`,
  `The default is ${maxBacklog.toLocaleString('en-US')}`,
  `\`backgroundBaseDelayMs\` (${policy.backgroundBaseDelayMs / 1000} s)`,
  `\`maxDelayMs\` (${policy.maxDelayMs / 1000} s)`,
  `\`maxBackgroundDelayMs\` (${policy.maxBackgroundDelayMs / 60_000} min)`,
])('it says: %s', (words) => {
  expect(page).toContain(words)
})
