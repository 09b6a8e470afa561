/**
 * What a person sees: lines that stay, a line that moves, a table, colours. On a terminal it is lively, anywhere else plain
 * text. What is to be said is demo.ts's.
 */
import { styleText } from 'node:util'
import type { WriteStream } from 'node:tty'

type Style = Parameters<typeof styleText>[0]
/** Adds a colour or weight, or does nothing where that would be noise. */
export type Paint = (style: Style, text: string) => string

/** Colours for a terminal, unless NO_COLOR is set (no-color.org). */
export function paintFor(stream: WriteStream): Paint {
  const isColored = stream.isTTY && !process.env['NO_COLOR'] && process.env['TERM'] !== 'dumb'
  return (style, text) => (isColored ? styleText(style, text, { validateStream: false }) : text)
}

/** A look at how far something is. */
export interface Step {
  readonly done: number
  readonly total: number
  /** What else there is to say, the most important first; what does not fit is left out. */
  readonly notes: readonly Cell[]
}

/** A text with its colour; apart, since colours are no part of its width. */
export interface Cell {
  readonly text: string
  readonly style?: Style
}

export interface Progress {
  /** A line that stays. */
  say(text: string): void
  /** Shows how far it is from now on, until it is stopped. */
  follow(label: string, look: () => Step): void
  /** Leaves the last state as a line that stays. */
  stop(): void
}

const LIVE_MS = 100
const PLAIN_MS = 1000

/** A moving line with a bar on a terminal, a line every second elsewhere. */
export function progressOn(stream: WriteStream): Progress {
  const paint = paintFor(stream)
  const isLive = stream.isTTY && process.env['TERM'] !== 'dumb'
  const wipe = isLive ? '\r\u001B[K' : ''
  let timer: NodeJS.Timeout | undefined
  let line: () => string = () => ''

  const redraw = (): void => void stream.write(isLive ? wipe + line() : `${line()}\n`)
  const say = (text: string): void => {
    stream.write(`${wipe}${text}\n`)
    if (timer && isLive) redraw()
  }
  return {
    say,
    follow: (label, look) => {
      line = () => (isLive ? liveLine(label, look(), stream.columns || 80, paint) : plainLine(label, look()))
      timer = setInterval(redraw, isLive ? LIVE_MS : PLAIN_MS)
      if (isLive) redraw()
    },
    stop: () => {
      if (!timer) return
      clearInterval(timer)
      timer = undefined
      say(line())
    },
  }
}

function liveLine(label: string, { done, total, notes }: Step, columns: number, paint: Paint): string {
  const width = columns >= 90 ? 30 : 12
  const full = Math.round((width * done) / Math.max(1, total))
  const bar = paint('cyan', '█'.repeat(full)) + paint('gray', '░'.repeat(width - full))
  const shown: Cell[] = [{ text: `${String(done).padStart(String(total).length)} of ${total}` }, ...notes]
  // A line that the terminal has to break could not be wiped.
  const room = columns - label.length - width - 5
  while (shown.length > 0 && shown.map(({ text }) => text).join(' · ').length > room) shown.pop()
  const texts = shown.map(({ text, style }) => (style === undefined ? text : paint(style, text)))
  return `  ${paint('bold', label)} ${bar} ${texts.join(' · ')}`
}

function plainLine(label: string, { done, total, notes }: Step): string {
  return `  ${label}: ${[`${done} of ${total}`, ...notes.map(({ text }) => text)].join(', ')}`
}

/** One row: a label, and a cell for each column with its colour. */
export interface Row {
  readonly label: string
  readonly cells: readonly Cell[]
}

/** Labels to the left, cells to the right. */
export function tableOf(heads: readonly string[], rows: readonly Row[], paint: Paint): string {
  const labelWidth = Math.max(...rows.map(({ label }) => label.length))
  const widths = heads.map((head, at) => Math.max(head.length, ...rows.map(({ cells }) => cells[at]?.text.length ?? 0)))
  const rule = '─'.repeat(labelWidth + widths.reduce((sum, width) => sum + width + 4, 0))
  const lines = rows.map(({ label, cells }) => {
    const padded = cells.map(({ text, style }, at) => {
      const spaces = ' '.repeat((widths[at] ?? 0) - text.length + 4)
      return spaces + (style === undefined ? text : paint(style, text))
    })
    return label.padEnd(labelWidth) + padded.join('')
  })
  const head =
    ' '.repeat(labelWidth) +
    heads.map((text, at) => ' '.repeat(4 + (widths[at] ?? 0) - text.length) + paint('bold', text)).join('')
  return [head, paint('gray', rule), ...lines].map((line) => `  ${line}\n`).join('')
}
