/**
 * How the command line fails: a message that says what to do, and an exit code that a script can use.
 */
import { durationOf } from './text.ts'

/** What the process ends with; the help of every command lists them. */
export const EXIT = {
  ok: 0,
  /** Done, and something needs a person: left unknown, contradicted, still waiting. */
  attention: 1,
  usage: 2,
  journal: 3,
  notFound: 4,
  refused: 5,
  /** 128 + SIGINT, as shells have it. */
  interrupted: 130,
} as const

export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

/** What went wrong, in words for the person at the terminal. */
export class CliError extends Error {
  override readonly name = 'CliError'
  readonly exitCode: ExitCode
  /** For scripts, as the library's own errors have them. */
  readonly code: string
  /** What belongs to it as data, such as the candidates of an ambiguous reference. */
  readonly details: Readonly<Record<string, unknown>>

  constructor(exitCode: ExitCode, code: string, message: string, details: Readonly<Record<string, unknown>> = {}) {
    super(message)
    this.exitCode = exitCode
    this.code = code
    this.details = details
  }
}

export function usageError(message: string, details: Readonly<Record<string, unknown>> = {}): CliError {
  return new CliError(EXIT.usage, 'ERR_USAGE', message, details)
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

/** The library's codes. Told apart by code and not by class: a config module may bring its own copy of billonce. */
const EXIT_BY_CODE: Readonly<Record<string, ExitCode>> = {
  ERR_INVALID_INPUT: EXIT.usage,
  ERR_AMBIGUOUS_REFERENCE: EXIT.usage,
  ERR_JOURNAL_UNAVAILABLE: EXIT.journal,
  ERR_NOT_FOUND: EXIT.notFound,
  ERR_EVIDENCE_REFUSED: EXIT.refused,
  ERR_NOT_CANCELABLE: EXIT.refused,
  ERR_REVISION_REFUSED: EXIT.refused,
  ERR_OPERATION_CONFLICT: EXIT.refused,
  ERR_BACKPRESSURE: EXIT.refused,
  ERR_CLIENT_CLOSED: EXIT.interrupted,
  ERR_DELIVERY_ABORTED: EXIT.interrupted,
}

export interface Failure {
  readonly exitCode: ExitCode
  readonly code: string
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
}

/** What an error means to the caller of the program; `undefined` for a bug, which is shown as such. */
export function failureOf(error: unknown): Failure | undefined {
  if (error instanceof CliError) return error
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') return undefined
  const exitCode = EXIT_BY_CODE[error.code]
  if (exitCode === undefined) return undefined
  const details: Record<string, unknown> = {}
  for (const name of ['fault', 'reason', 'retryAfterMs', 'field', 'entry'] as const) {
    const value: unknown = (error as unknown as Record<string, unknown>)[name]
    if (value !== undefined) details[name] = value
  }
  const { retryAfterMs } = details
  const again = typeof retryAfterMs === 'number' ? ` It can be tried again in ${durationOf(retryAfterMs + 999)}.` : ''
  return { exitCode, code: error.code, message: `${error.message}${again}`, details }
}
