/** `list`, `show`, `stats` and `export`: what is read, how it looks, and what is never printed. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { billonce, environmentOf, fromSource, jsonLines, makeJournal, SECRETS, temporaryFolder } from './cli.ts'

const folder = temporaryFolder()
const journal = folder.file('journal.sqlite')
const onIt = (...args: string[]): ReturnType<typeof billonce> => billonce([...args, '--journal', journal])

beforeAll(() => makeJournal(journal))
afterAll(() => folder.remove())

describe('list', () => {
  test('what needs a person comes first, of all scopes and endpoints', async () => {
    const { code, stdout, stderr } = await onIt('list', '--wide')
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
    const states = stdout.split('\n').map((line) => line.split(/\s+/)[0])
    expect(states.slice(0, 8)).toEqual([
      'STATE',
      'contradicted',
      'unknown',
      'unknown',
      'accepted',
      'sending',
      'pending',
      'pending',
    ])
    expect(stdout).toMatch(/contradicted +two-receipts +charge +order-twice/)
    expect(stdout).toMatch(/org_7\/live +payments/)
  })

  test('80 columns are enough', async () => {
    const { stdout } = await billonce(['list'], { env: { COLUMNS: '80', BILLONCE_JOURNAL: journal } })
    const lines = stdout.trimEnd().split('\n')
    expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(80)
    expect(lines[0]).toMatch(/^STATE +REASON +KIND +OPERATION .*AGE +KEY$/)
    expect(lines.find((line) => line.includes('order-gateway'))).toMatch(
      /^sending +no-clear-reply +charge +order-gateway +2 +\d+s +[\da-f]{8}…$/,
    )
  })

  test('each filter narrows it', async () => {
    const names = async (...args: string[]): Promise<unknown[]> =>
      jsonLines((await onIt('list', '--json', ...args)).stdout).map((row) => row['operationId'])
    expect(await names('--state', 'unknown,contradicted')).toEqual(['order-twice', 'order-wrong', 'order-recorded'])
    expect(await names('--state', 'succeeded', '--kind', 'charge')).toEqual(['order-991'])
    expect(await names('--scope', 'org_7/live')).toEqual(['=HYPERLINK("http://x"),1'])
    expect(await names('--endpoint', 'payments')).toHaveLength(1)
    expect(await names('--operation', 'job:7')).toEqual(['job:7', 'job:7'])
    expect(await names('--older-than', '2h')).toEqual([])
    expect(await names('--sort', 'oldest', '--limit', '2')).toEqual(['order-991', 'order-twice'])
  })

  test('JSON has one shape', async () => {
    const rows = jsonLines((await onIt('list', '--json')).stdout)
    expect(rows).toHaveLength(13)
    for (const row of rows) {
      expect(Object.keys(row)).toEqual([
        'key',
        'endpoint',
        'scope',
        'kind',
        'subject',
        'operationId',
        'revision',
        'state',
        'reason',
        'attempts',
        'namedAtMs',
        'eventAtMs',
        'settledAtMs',
        'nextAttemptAtMs',
        'windowEndsAtMs',
        'sendBeforeAtMs',
        'receiptId',
      ])
    }
  })

  test('a script can ask by the exit code', async () => {
    expect((await onIt('list', '--state', 'unknown', '--exit-code')).code).toBe(1)
    expect((await onIt('list', '--state', 'unknown', '--older-than', '1d', '--exit-code')).code).toBe(0)
    expect((await onIt('stats', '--exit-code')).code).toBe(1)
    expect((await onIt('stats', '--kind', 'usage', '--exit-code')).code).toBe(0)
  })
})

describe('show', () => {
  test.each([
    ['charge:order-gateway', /asks again\s+under the same key/, /unclear +server-error +502/],
    ['charge:order-recorded', /billonce\s+reconcile/, /recorded-failure/],
    ['charge:order-wrong', /another\s+amount\s+or\s+currency/, /receipt +ch_/],
    ['charge:order-twice', /On record it is succeeded.*receipt\s+ch_other/s, /refund one of them/s],
    ['charge:order-slow', /slow down/, /canceled if not sent by/],
    ['charge:order-waiting', /No credentials were at hand/, /billonce cancel/],
    ['charge:order-declined', /rejected +card_declined/, /billonce retry/],
    ['charge:order-3ds', /accepted +requires_action/, /3-D Secure/],
    ['charge:order-canceled', /canceled +caller/, /reopen/],
    ['charge:order-991', /It took effect, once/, /450 eur/],
  ])('%s says what it means and what to do', async (ref, one, other) => {
    const { code, stdout } = await billonce(['show', ref], { env: { COLUMNS: '100', BILLONCE_JOURNAL: journal } })
    expect(code).toBe(0)
    expect(stdout).toMatch(one)
    expect(stdout).toMatch(other)
  })

  test('an entry has three names', async () => {
    const byName = jsonLines((await onIt('show', 'charge:order-991', '--json')).stdout)[0]
    const key = String(byName?.['key'])
    for (const ref of [key, key.slice(0, 8), `${key.slice(0, 8)}…`]) {
      const again = jsonLines((await onIt('show', ref, '--json')).stdout)[0]
      expect(again).toEqual(byName)
    }
    expect(byName).toMatchObject({ state: 'succeeded', amount: 450, currency: 'eur', attemptList: [{ number: 1 }] })
    expect(byName).not.toHaveProperty('body')
  })

  test('a name that fits several is refused with all of them', async () => {
    const { code, stderr, stdout } = await onIt('show', 'usage:job:7')
    expect(code).toBe(2)
    expect(stdout).toBe('')
    expect(stderr).toMatch(/subject exports[\s\S]*subject calls|subject calls[\s\S]*subject exports/)
    const narrowed = await onIt('show', 'usage:job:7', '--subject', 'exports', '--json')
    expect(jsonLines(narrowed.stdout)[0]).toMatchObject({ subject: 'exports', quantity: '3.5' })
  })

  test('what is not there is not found', async () => {
    const { code, stderr } = await onIt('show', 'charge:nobody', '--json')
    expect(code).toBe(4)
    expect(JSON.parse(stderr)).toMatchObject({ error: { code: 'ERR_NOT_FOUND' } })
  })

  test('the body and the receipt only with --body', async () => {
    const asked = await onIt('show', 'charge:order-991', '--body')
    expect(asked.stdout).toContain(SECRETS.description)
    expect(asked.stdout).toContain(SECRETS.customer)
    const json = jsonLines((await onIt('show', 'charge:order-991', '--body', '--json')).stdout)[0]
    expect(JSON.parse(String(json?.['body']))).toMatchObject({ customer: SECRETS.customer })
  })
})

test('no other output holds a body, a receipt or a credential', async () => {
  const outputs = await Promise.all([
    onIt('list', '--wide'),
    onIt('list', '--json'),
    onIt('stats', '--json'),
    onIt('export'),
    onIt('export', '--json'),
    ...['order-991', 'order-twice', 'order-wrong', 'order-declined', 'order-3ds'].flatMap((name) => [
      onIt('show', `charge:${name}`),
      onIt('show', `charge:${name}`, '--json'),
    ]),
  ])
  for (const { code, stdout, stderr } of outputs) {
    expect(code).toBe(0)
    for (const secret of Object.values(SECRETS)) expect(stdout + stderr).not.toContain(secret)
    expect(stdout).not.toMatch(/nextAction|createdAt|paymentMethod/)
  }
  // And none is there to be printed.
  expect(readFileSync(journal, 'latin1')).not.toContain(SECRETS.token)
})

test('stats adds up', async () => {
  const [counts] = jsonLines((await onIt('stats', '--json')).stdout)
  expect(counts).toMatchObject({
    total: 13,
    needAttention: 3,
    unreadable: 0,
    states: {
      contradicted: 1,
      unknown: 2,
      accepted: 1,
      sending: 1,
      pending: 2,
      rejected: 1,
      canceled: 1,
      succeeded: 4,
    },
  })
  const narrow = await billonce(['stats'], { env: { COLUMNS: '80', BILLONCE_JOURNAL: journal } })
  expect(Math.max(...narrow.stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(80)
})

describe('export', () => {
  test('CSV by RFC 4180, and no formulas', async () => {
    const { stdout } = await onIt('export')
    expect(stdout.endsWith('\r\n')).toBe(true)
    expect(stdout.replaceAll('\r\n', '')).not.toMatch(/[\r\n]/)
    const lines = stdout.split('\r\n')
    expect(lines[0]).toBe(
      'kind,operation,subject,revision,state,reason,amount,currency,quantity,receipt_id,named_at,settled_at,attempts,key,scope,endpoint',
    )
    expect(lines).toHaveLength(15)
    expect(lines[1]).toMatch(/^charge,order-991,,1,succeeded,,450,eur,,ch_\w+,\d{4}-[\d-]+T[\d:.]+Z,\d{4}/)
    expect(lines.find((line) => line.startsWith('credits'))).toContain(`"'=HYPERLINK(""http://x""),1",,1,succeeded`)
    expect(lines.find((line) => line.includes(',exports,'))).toMatch(/succeeded,,,,3\.5,/)
    // A sum over what succeeded must not hold what is in doubt.
    expect(lines.find((line) => line.includes('order-twice'))).toContain(',contradicted,two-receipts,450,')
  })

  test('by time, to a file that appears when it is whole', async () => {
    const file = folder.file('out.csv')
    const { code, stdout, stderr } = await onIt('export', '--from', '2020-01-01', '--by', 'settled', '-o', file)
    expect({ code, stdout }).toEqual({ code: 0, stdout: '' })
    expect(stderr).toContain('7 entries exported')
    expect(readFileSync(file, 'utf8').split('\r\n')).toHaveLength(9)
    expect((await onIt('export', '--to', '2020-01-01')).stdout.split('\r\n')).toHaveLength(2)
  })

  test('JSON lines', async () => {
    const lines = jsonLines((await onIt('export', '--format', 'json')).stdout)
    expect(lines).toHaveLength(13)
    expect(lines[0]).toMatchObject({ operation: 'order-991', amount: 450, currency: 'eur', quantity: null })
  })
})

describe('colour', () => {
  test('none where nobody looks', async () => {
    expect((await onIt('list')).stdout).not.toContain('\u001b')
    expect((await onIt('show', 'charge:order-twice')).stdout).not.toContain('\u001b')
  })

  // `script` gives the program a terminal.
  const hasScript = spawnSync('script', ['--version']).status === 0
  const onTerminal = (env: Record<string, string>): string => {
    const command = [process.execPath, ...fromSource, 'list'].map((part) => `'${part}'`).join(' ')
    return spawnSync('script', ['-qec', command, '/dev/null'], {
      env: environmentOf({ BILLONCE_JOURNAL: journal, TERM: 'xterm-256color', ...env }),
      encoding: 'utf8',
    }).stdout
  }
  test.runIf(hasScript)('on a terminal, but not under NO_COLOR', () => {
    expect(onTerminal({})).toContain('\u001b[31m')
    expect(onTerminal({ NO_COLOR: '1' })).not.toContain('\u001b[')
  })
})

describe('the command line itself', () => {
  test('help says how, with examples and exit codes', async () => {
    const help = await billonce(['--help'])
    expect(help.code).toBe(0)
    expect(help.stdout).toMatch(/Exit codes:[\s\S]*5 +refused/)
    for (const name of [
      'list',
      'show',
      'stats',
      'export',
      'evidence',
      'cancel',
      'prune',
      'resume',
      'reconcile',
      'retry',
    ]) {
      const { code, stdout } = await billonce([name, '--help'])
      expect(code).toBe(0)
      expect(stdout).toMatch(new RegExp(`Examples?:\\n +\\$ billonce ${name}`))
    }
  })

  test('its version is that of the package', async () => {
    expect((await billonce(['--version'])).stdout).toMatch(/^\d+\.\d+\.\d+/)
  })

  test.each([
    [['lst'], /unknown command 'lst'[\s\S]*Did you mean list/],
    [['list', '--state', 'lost'], /lost is not a state/],
    [['list', '--older-than', 'yesterday'], /must be a duration/],
    [['show'], /missing required argument/],
    [['list', '--nope'], /unknown option/],
    [['export', '--from', 'last week'], /must be a date/],
  ])('%s is refused', async (args, message) => {
    const { code, stdout, stderr } = await billonce([...args, '--journal', journal])
    expect(code).toBe(2)
    expect(stdout).toBe('')
    expect(stderr).toMatch(message)
    const inJson = await billonce([...args, '--journal', journal, '--json'])
    expect(JSON.parse(inJson.stderr)).toMatchObject({ error: { code: 'ERR_USAGE' } })
  })
})
