/**
 * Tables for a terminal: no frames, headings, columns as wide as what is in them. Where the terminal is too narrow, columns
 * that matter least are left out, and then the ones that can are cut with an ellipsis.
 */
import Table from 'cli-table3'
import { harmless } from './text.ts'

export interface Column<T> {
  readonly head: string
  readonly of: (row: T) => string
  /** Colour of a cell, around text that is cut already. */
  readonly paint?: (row: T, text: string) => string
  readonly align?: 'right'
  /** The higher, the sooner it is left out; absent: never. */
  readonly dropAt?: number
  /** It may be cut to as few characters. */
  readonly least?: number
  /** Left out if all its cells are empty. */
  readonly onlyIfAny?: true
}

const GAP = 2

/** The lines of a table, without a line break at the end. */
export function tableOf<T>(
  columns: readonly Column<T>[],
  rows: readonly T[],
  width: number,
  paintHead: (text: string) => string = (text) => text,
): string {
  let shown = columns
    .map((column) => ({ column, cells: rows.map((row) => harmless(column.of(row))) }))
    .filter(({ column, cells }) => !column.onlyIfAny || cells.some((cell) => cell !== ''))
    .map(({ column, cells }) => ({
      column,
      cells,
      natural: cells.reduce((most, cell) => Math.max(most, widthOf(cell)), column.head.length),
    }))
  const leastOf = (all: typeof shown): number =>
    all.reduce((sum, { column, natural }) => sum + Math.min(natural, column.least ?? natural) + GAP, -GAP)
  while (leastOf(shown) > width) {
    const drop = shown.reduce((most, { column }) => Math.max(most, column.dropAt ?? 0), 0)
    if (drop === 0) break
    shown = shown.filter(({ column }) => column.dropAt !== drop)
  }
  const widths = shown.map(({ natural }) => natural)
  let excess = widths.reduce((sum, one) => sum + one + GAP, -GAP) - width
  while (excess > 0) {
    // The widest gives first, so that two long columns end about equal.
    const can = shown.map(({ column }, index) => (widths[index] ?? 0) - (column.least ?? Number.POSITIVE_INFINITY))
    const room = can.filter((one) => one > 0)
    if (room.length === 0) break
    const widest = shown.reduce(
      (best, _, index) => ((can[index] ?? 0) > 0 && (widths[index] ?? 0) > (widths[best] ?? -1) ? index : best),
      -1,
    )
    widths[widest] = (widths[widest] ?? 0) - 1
    excess -= 1
  }
  const cell = (text: string, index: number): string => {
    const most = widths[index] ?? 0
    return widthOf(text) > most ? `${startOf(text, most - 1)}…` : text
  }
  const pad = (index: number): string => (shown[index]?.column.align === 'right' ? ' '.repeat(GAP) : '')
  const lines = [
    shown.map(({ column }, index) => paintHead(cell(column.head, index)) + pad(index)),
    ...rows.map((row, at) =>
      shown.map(({ column, cells }, index) => {
        const text = cell(cells[at] ?? '', index)
        return (column.paint ? column.paint(row, text) : text) + pad(index)
      }),
    ),
  ]
  const parts: string[] = []
  for (let from = 0; from < lines.length; from += CHUNK) {
    const table = new Table({
      chars: NO_FRAME,
      style: { head: [], border: [], 'padding-left': 0, 'padding-right': 0, compact: true },
      colWidths: widths.map((one) => one + GAP),
      colAligns: shown.map(({ column }) => column.align ?? 'left'),
      wordWrap: false,
    })
    table.push(...lines.slice(from, from + CHUNK))
    parts.push(table.toString())
  }
  return parts
    .join('\n')
    .split('\n')
    .map((line) => line.trimEnd())
    .join('\n')
}

/** The time cli-table3 takes for a table grows with the square of its rows. */
const CHUNK = 100

const segmenter = new Intl.Segmenter()
const WIDE =
  /\p{Emoji_Presentation}|\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Hangul}|[\uff01-\uff60]/u

/** How many cells of a terminal a text takes. */
function widthOf(text: string): number {
  if (/^[\x20-\x7e…]*$/.test(text)) return text.length
  let width = 0
  for (const { segment } of segmenter.segment(text)) width += WIDE.test(segment) ? 2 : 1
  return width
}

/** As much of a text as fits. */
function startOf(text: string, width: number): string {
  let start = ''
  for (const { segment } of segmenter.segment(text)) {
    if (widthOf(start + segment) > width) break
    start += segment
  }
  return start
}

const NO_FRAME = {
  top: '',
  'top-mid': '',
  'top-left': '',
  'top-right': '',
  bottom: '',
  'bottom-mid': '',
  'bottom-left': '',
  'bottom-right': '',
  left: '',
  'left-mid': '',
  mid: '',
  'mid-mid': '',
  right: '',
  'right-mid': '',
  middle: '',
} as const

/** `label  value` lines, the labels equally wide. */
export function fieldsOf(
  fields: readonly (readonly [label: string, value: string])[],
  paintLabel: (text: string) => string = (text) => text,
): string {
  const widest = fields.reduce((most, [label]) => Math.max(most, label.length), 0)
  return fields.map(([label, value]) => `${paintLabel(label.padEnd(widest))}  ${value}`).join('\n')
}
