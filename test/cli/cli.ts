/** The command line as a process of its own, and journals for it to look at. */
import { spawn } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createBillingClient } from 'billonce'
import type { BillingClientOptions } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { createReceiver, savedFailure, status, wrongReceipt } from 'billonce/testing'
import { repositoryRoot } from '../support/bundle.ts'
import { nodeArguments } from '../support/node-program.ts'

export interface Ended {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
  readonly input?: string
  /** In place of the sources. */
  readonly program?: readonly string[]
}

export const fromSource: readonly string[] = [...nodeArguments, join(repositoryRoot, 'src/cli/billonce.ts')]

/** Nothing of the developer's own environment may change what is printed. */
export function environmentOf(more: Readonly<Record<string, string>> = {}): Record<string, string> {
  return { PATH: process.env['PATH'] ?? '', NODE_NO_WARNINGS: '1', ...more }
}

export async function billonce(args: readonly string[], options: RunOptions = {}): Promise<Ended> {
  const child = spawn(process.execPath, [...(options.program ?? fromSource), ...args], {
    env: environmentOf(options.env),
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
  })
  let stdout = ''
  let stderr = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text))
  child.stdin.end(options.input ?? '')
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve))
  return { code, stdout, stderr }
}

/** The lines of `--json` output. */
export function jsonLines(text: string): Record<string, unknown>[] {
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
}

export interface Folder {
  readonly path: string
  file(name: string): string
  remove(): void
}

export function temporaryFolder(): Folder {
  const path = mkdtempSync(join(tmpdir(), 'billonce-cli-'))
  return {
    path,
    file: (name) => join(path, name),
    remove: () => rmSync(path, { recursive: true, force: true }),
  }
}

export const BASE_URL = 'https://api.example.com'
export const SCOPE = 'org_42/live'
/** Stand in bodies, receipts and headers; none of them may be printed unless asked for. */
export const SECRETS = { customer: 'cus_private', description: 'a private word', token: 'sk_live_credential' } as const

/** A journal with entries in every state, one of them contradicted, made as an application would make it. */
export async function makeJournal(path: string): Promise<void> {
  const receiver = createReceiver({
    faults: [
      status(502, { when: ({ body }) => body.includes('gateway') }),
      savedFailure(500, { when: ({ body }) => body.includes('recorded') }),
      wrongReceipt({ when: ({ body }) => body.includes('another amount'), fields: { amount: 1 } }),
      status(429, { when: ({ body }) => body.includes('slow down'), headers: { 'retry-after': '600' } }),
    ],
  })
  const journal = sqliteJournal({ path })
  const client = (options: Partial<BillingClientOptions> = {}): ReturnType<typeof createBillingClient> =>
    createBillingClient({
      baseUrl: BASE_URL,
      scope: SCOPE,
      journal,
      fetch: receiver.fetch,
      retry: { baseDelayMs: 0, maxAttempts: 2 },
      ...(options.credentials ? {} : { headers: { authorization: `Bearer ${SECRETS.token}` } }),
      ...options,
    })
  const billing = client()
  const coffee = { amount: 450, currency: 'eur', customer: SECRETS.customer, description: SECRETS.description } as const
  await billing.charge(coffee, { operationId: 'order-991' })
  await billing.charge(coffee, { operationId: 'order-twice' })
  await billing.charge({ ...coffee, description: 'gateway' }, { operationId: 'order-gateway' })
  await billing.charge({ ...coffee, description: 'recorded' }, { operationId: 'order-recorded' })
  await billing.charge({ ...coffee, description: 'another amount' }, { operationId: 'order-wrong' })
  await billing.charge({ ...coffee, description: 'slow down' }, { operationId: 'order-slow' })
  await billing.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'order-declined' })
  await billing.charge({ ...coffee, paymentMethod: 'pm_requires_action' }, { operationId: 'order-3ds' })
  await billing.recordUsage({ meter: 'exports', quantity: '3.5', customer: SECRETS.customer }, { operationId: 'job:7' })
  await billing.recordUsage({ meter: 'calls', quantity: 12 }, { operationId: 'job:7' })
  await billing.recordEvidence(
    { kind: 'charge', operationId: 'order-twice' },
    { source: 'webhook', found: 'applied', receipt: { id: 'ch_other', amount: 450, currency: 'eur' } },
  )
  const loggedOut = client({
    credentials: () => {
      throw new Error('logged out')
    },
  })
  await loggedOut.charge(coffee, { operationId: 'order-waiting' })
  await loggedOut.charge(coffee, { operationId: 'order-canceled' })
  await loggedOut.cancel({ kind: 'charge', operationId: 'order-canceled' })
  const other = client({ scope: 'org_7/live', endpoint: 'payments' })
  await other.consumeCredits({ amount: 4, account: 'acc_1' }, { operationId: '=HYPERLINK("http://x"),1' })
  for (const one of [billing, loggedOut, other]) await one.close()
  await journal.close()
}

/** A copy that a test may change. */
export function copyOf(from: Folder): Folder {
  const copy = temporaryFolder()
  cpSync(from.path, copy.path, { recursive: true })
  return copy
}
