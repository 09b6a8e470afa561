/** `evidence`, `cancel` and `prune`: what a person writes into a journal. */
import { writeFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { billonce, copyOf, jsonLines, makeJournal, temporaryFolder } from './cli.ts'
import type { Ended, Folder } from './cli.ts'

const original = temporaryFolder()
let folder: Folder
const run = (args: readonly string[], input?: string): Promise<Ended> =>
  billonce([...args, '--journal', folder.file('journal.sqlite')], input === undefined ? {} : { input })
const stateOf = async (ref: string): Promise<Record<string, unknown>> =>
  jsonLines((await run(['show', ref, '--json'])).stdout)[0] ?? {}

beforeAll(() => makeJournal(original.file('journal.sqlite')))
afterAll(() => original.remove())
beforeEach(() => {
  folder = copyOf(original)
})
afterEach(() => folder.remove())

const decision = ['--by', 'ana', '--why', 'seen in the dashboard'] as const

describe('evidence', () => {
  test('a decision settles what is unknown, and is kept with its reason', async () => {
    const receipt = '{"id":"ch_1","amount":450,"currency":"eur"}'
    const { code, stdout } = await run([
      'evidence',
      'charge:order-recorded',
      '--applied',
      '--receipt',
      receipt,
      ...decision,
    ])
    expect({ code, stdout }).toEqual({
      code: 0,
      stdout: 'charge:order-recorded revision 1 is now succeeded, receipt ch_1.\n',
    })
    const after = await stateOf('charge:order-recorded')
    expect(after).toMatchObject({
      state: 'succeeded',
      receiptId: 'ch_1',
      evidence: [{ source: 'decision', by: 'ana', why: 'seen in the dashboard' }],
    })
  })

  test('a decision ends a contradiction', async () => {
    const { code, stdout } = await run(
      ['evidence', 'charge:order-twice', '--applied', '--receipt-file', '-', ...decision, '--json'],
      '{"id":"ch_other"}',
    )
    expect(code).toBe(0)
    expect(jsonLines(stdout)[0]).toMatchObject({ state: 'succeeded', receiptId: 'ch_other', changed: true })
  })

  test('from a webhook, with its receipt in a file', async () => {
    writeFileSync(folder.file('receipt.json'), '{"id":"ch_2"}')
    const file = folder.file('receipt.json')
    const args = ['evidence', 'charge:order-3ds', '--webhook', '--applied', '--receipt-file', file]
    // Another receipt than the one it holds.
    const { code, stdout } = await run(args)
    expect({ code, stdout }).toMatchObject({ code: 1, stdout: expect.stringContaining('contradicted') as string })
  })

  test('what is not believed is refused, and nothing changes', async () => {
    const wrong = '{"id":"ch_1","amount":1,"currency":"eur"}'
    const other = await run(['evidence', 'charge:order-recorded', '--applied', '--receipt', wrong, ...decision])
    expect(other.code).toBe(5)
    expect(other.stderr).toContain('another amount or currency')
    const early = await run(['evidence', 'charge:order-gateway', '--not-applied', ...decision, '--json'])
    expect(early.code).toBe(5)
    expect(JSON.parse(early.stderr)).toMatchObject({
      error: { code: 'ERR_EVIDENCE_REFUSED', reason: 'too-soon', retryAfterMs: expect.any(Number) as number },
    })
    const pending = await run(['evidence', 'charge:order-waiting', '--not-applied', ...decision])
    expect(pending.code).toBe(5)
    expect(await stateOf('charge:order-recorded')).toMatchObject({ state: 'unknown', evidence: [] })
  })

  test('a look-up that finds nothing settles nothing by itself', async () => {
    const { code, stdout } = await run(['evidence', 'charge:order-gateway', '--look-up', '--not-found'])
    expect(code).toBe(1)
    expect(stdout).toContain('is still sending')
    expect(await stateOf('charge:order-gateway')).toMatchObject({ misses: 1 })
  })

  test.each([
    [['--applied'], /needs --by/],
    [['--applied', ...decision], /needs the receipt/],
    [['--applied', '--receipt', '{"id":', ...decision], /not JSON/],
    [['--applied', '--receipt', '[]', ...decision], /JSON object/],
    [['--applied', '--receipt', '{}', ...decision], /id/],
    [['--applied', '--receipt-file', '/nowhere/at/all', ...decision], /cannot be read \(ENOENT\)/],
    [['--applied', '--not-applied', ...decision], /one of/],
    [['--not-applied'], /needs --by/],
    [['--not-applied', '--webhook', '--by', 'ana'], /are for a decision/],
    [['--not-found', ...decision], /goes with --look-up/],
  ])('%s is refused as it stands', async (args, message) => {
    const { code, stderr } = await run(['evidence', 'charge:order-recorded', ...args])
    expect({ code, stderr }).toEqual({ code: 2, stderr: expect.stringMatching(message) as string })
  })
})

describe('cancel', () => {
  test('what is pending, durably and more than once', async () => {
    expect(await run(['cancel', 'charge:order-waiting'])).toMatchObject({
      code: 0,
      stdout: 'charge:order-waiting revision 1 is now canceled (caller).\n',
    })
    expect(await run(['cancel', 'charge:order-waiting'])).toMatchObject({
      code: 0,
      stdout: 'charge:order-waiting revision 1 is already canceled (caller).\n',
    })
  })

  test.each(['order-gateway', 'order-991', 'order-recorded', 'order-twice'])('%s is not pending', async (name) => {
    const before = await stateOf(`charge:${name}`)
    const { code, stderr } = await run(['cancel', `charge:${name}`])
    expect(code).toBe(5)
    expect(stderr).toContain('cannot be canceled')
    expect((await stateOf(`charge:${name}`))['state']).toBe(before['state'])
  })

  test('works for an endpoint that is an id, which it does not need to reach', async () => {
    const ref = 'credits:=HYPERLINK("http://x"),1'
    expect((await run(['cancel', ref])).code).toBe(5)
  })
})

describe('prune', () => {
  test('a dry run counts what the real one then does', async () => {
    const args = ['prune', '--final-days', '0', '--usage-days', '0', '--json']
    const dry = jsonLines((await run([...args, '--dry-run'])).stdout)[0]
    expect(jsonLines((await run(['list', '--json'])).stdout)).toHaveLength(13)
    const real = jsonLines((await run(args)).stdout)[0]
    expect(dry).toMatchObject({ dryRun: true, bodies: 4, operations: 2 })
    expect(real).toEqual({ ...dry, dryRun: false })
    // What is contradicted keeps its body, which the decision needs.
    const twice = await run(['show', 'charge:order-twice', '--body', '--json'])
    expect(jsonLines(twice.stdout)[0]?.['body']).toContain('450')
    const pruned = await run(['show', 'charge:order-991', '--body'])
    expect(pruned.stdout).toContain('no longer kept')
    expect((await run(['export', '--operation', 'order-991'])).stdout).toContain('succeeded,,,,,ch_')
  })

  test('by default nothing that is young goes', async () => {
    expect(jsonLines((await run(['prune', '--json'])).stdout)[0]).toMatchObject({ bodies: 0, operations: 0 })
  })
})
