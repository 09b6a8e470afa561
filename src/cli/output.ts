/**
 * The two streams: results on stdout, everything else on stderr. A reader that goes away early (`| head`) ends the output
 * quietly; work that writes the journal or sends goes on.
 */
import { once } from 'node:events'
import { styleText } from 'node:util'
import { harmless } from './text.ts'

type Style = Parameters<typeof styleText>[0]

export interface Output {
  readonly json: boolean
  /** Characters a line of a table may have; without limit where nobody looks. */
  readonly width: number
  /** For running text, which nobody wants to read across a wide screen. */
  readonly textWidth: number
  /** Whether nobody reads stdout any more. */
  readonly isClosed: boolean
  /** Writes a line, or several, to stdout and waits while the reader is slow. */
  print(text: string): Promise<void>
  /** A value as one line of JSON. */
  printJson(value: unknown): Promise<void>
  /** Text on stdout as it is. */
  write(text: string): Promise<void>
  /** A line to stderr; not with `--json`, where stderr holds JSON only. */
  note(text: string): void
  /** The same, and with `--json` a line of JSON: what a script should not miss. */
  warn(text: string): void
  /** Colour, where stdout is a terminal and NO_COLOR is not set. */
  paint(style: Style, text: string): string
}

/** Without a terminal nobody says how wide it is; COLUMNS is what shells and tests say. */
const NO_LIMIT = Number.POSITIVE_INFINITY

export function createOutput(json: boolean): Output {
  const { stdout, stderr } = process
  let isClosed = false
  stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    isClosed = true
  })
  stderr.on('error', () => {})
  const write = async (text: string): Promise<void> => {
    if (isClosed || text === '') return
    if (stdout.write(text)) return
    await Promise.race([once(stdout, 'drain'), once(stdout, 'close')]).catch(() => {})
  }
  const columns = stdout.columns ?? Number(process.env['COLUMNS'] ?? '')
  const width = Number.isInteger(columns) && columns > 0 ? Math.max(columns, 40) : NO_LIMIT
  return {
    json,
    width,
    textWidth: Math.min(width, 100),
    get isClosed() {
      return isClosed
    },
    write,
    print: (text) => write(`${text}\n`),
    printJson: (value) => write(`${JSON.stringify(value)}\n`),
    note(text) {
      if (!json) stderr.write(`${text}\n`)
    },
    warn(text) {
      stderr.write(`${json ? JSON.stringify({ warning: text }) : text}\n`)
    },
    paint: (style, text) => painted(stdout, style, text),
  }
}

/** Asked here and not of styleText, which colours what is no terminal in some versions of Node 22. */
function painted(stream: NodeJS.WriteStream, style: Style, text: string): string {
  const { FORCE_COLOR, NO_COLOR } = process.env
  const isWanted = FORCE_COLOR === undefined ? stream.isTTY && stream.getColorDepth() > 1 : FORCE_COLOR !== '0'
  const isForbidden = NO_COLOR !== undefined && NO_COLOR !== ''
  return isWanted && !isForbidden ? styleText(style, text, { validateStream: false }) : text
}

/** An error, in words or as a line of JSON. */
export function reportError(
  json: boolean,
  failure: { readonly code: string; readonly message: string; readonly details?: Readonly<Record<string, unknown>> },
): void {
  const { code, message, details } = failure
  const text = json
    ? JSON.stringify({ error: { code, message, ...details } })
    : `${painted(process.stderr, 'red', 'billonce:')} ${message.split('\n').map(harmless).join('\n')}`
  process.stderr.write(`${text}\n`)
}
