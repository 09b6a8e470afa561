/**
 * Small texts: ages, dates, numbers, and what a terminal must not be told. Knows no stream.
 */

const UNITS = [
  ['w', 604_800_000],
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1000],
  ['ms', 1],
] as const

/** Reads `90s`, `2h`, `1.5d`; `undefined` for anything else. */
export function readDurationMs(text: string): number | undefined {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)$/.exec(text.trim()) ?? []
  const unitMs = UNITS.find(([name]) => name === unit)?.[1]
  return number === undefined || unitMs === undefined ? undefined : Number(number) * unitMs
}

/** `4s`, `12m`, `3h 05m`, `9d 02h`: two units at most, so that it stays short. */
export function durationOf(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  const minutes = Math.floor(seconds / 60)
  const hours = Math.floor(minutes / 60)
  const days = Math.floor(hours / 24)
  if (days >= 100) return `${days}d`
  if (days > 0) return `${days}d ${two(hours % 24)}h`
  if (hours > 0) return `${hours}h ${two(minutes % 60)}m`
  if (minutes > 0) return `${minutes}m`
  return `${seconds}s`
}

/** A time as seen from now: `in 4m`, `now`, `3h 05m ago`. */
export function fromNow(atMs: number, nowMs: number): string {
  const ms = atMs - nowMs
  if (Math.abs(ms) < 1000) return 'now'
  return ms > 0 ? `in ${durationOf(ms)}` : `${durationOf(-ms)} ago`
}

export function isoOf(atMs: number): string {
  const date = new Date(atMs)
  return Number.isNaN(date.getTime()) ? String(atMs) : date.toISOString()
}

export function numberOf(value: number): string {
  return value.toLocaleString('en-US')
}

export function plural(count: number, one: string, many: string = one === 'entry' ? 'entries' : `${one}s`): string {
  return `${numberOf(count)} ${count === 1 ? one : many}`
}

/**
 * Text of others made harmless: a code or an id of a receiver may hold escape sequences, and those could move the cursor or
 * turn lines around. They are shown, not obeyed.
 */
export function harmless(text: string): string {
  return text.replaceAll(
    // oxlint-disable-next-line no-control-regex -- exactly these are what it is about
    /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
}

/** Breaks text at spaces. A word that is longer stays whole. */
export function wrapped(text: string, width: number, indent: string = ''): string {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width - indent.length) {
      lines.push(line)
      line = word
    } else line = line === '' ? word : `${line} ${word}`
  }
  return [...lines, line].join(`\n${indent}`)
}

function two(value: number): string {
  return String(value).padStart(2, '0')
}
