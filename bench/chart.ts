/**
 * Draws the charts of the docs, docs/images/bench-*.svg, from what the benches `call` and `herd` wrote last on this machine.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parse, View } from 'vega'
import type { Config, GroupMark, Spec } from 'vega'
import { RESULTS } from './report.ts'

const IMAGES = join(import.meta.dirname, '../docs/images')
/** Told apart without colour vision; the first is ours. */
const OURS = '#0b6bcb'
const COLORS = [OURS, '#d9480f', '#868e96', '#b08900']
const FONT = 'system-ui, sans-serif'
const SHOWN_SECONDS = 300
/** The bottom of the logarithmic scale. */
const LEAST_LOAD = 0.5

interface Results {
  readonly machine: { readonly node: string; readonly platform: string; readonly cores: number }
  readonly tables: readonly { readonly title: string; readonly rows: readonly (readonly (string | number)[])[] }[]
  readonly details: unknown
}

interface HerdDetails {
  readonly results: readonly {
    readonly name: string
    readonly scenarios: readonly {
      readonly scenario: string
      readonly seeds: readonly { readonly load: readonly number[] }[]
    }[]
  }[]
}

function resultsOf(bench: string): Results {
  const file = join(RESULTS, `${bench}.json`)
  if (!existsSync(file)) throw new Error(`There are no results of \`${bench}\`: run \`./dev bench ${bench}\` first.`)
  return JSON.parse(readFileSync(file, 'utf8')) as Results
}

async function draw(name: string, spec: Spec): Promise<void> {
  const config: Config = {
    title: {
      font: FONT,
      anchor: 'start',
      fontSize: 15,
      subtitleFont: FONT,
      subtitleFontSize: 12,
      subtitleColor: '#495057',
      offset: 16,
    },
    axis: {
      labelFont: FONT,
      labelFontSize: 12,
      titleFont: FONT,
      titleFontWeight: 'normal',
      titleFontSize: 12,
      gridColor: '#e9ecef',
      domain: false,
      ticks: false,
      labelPadding: 6,
      titlePadding: 8,
    },
    legend: { labelFont: FONT, labelFontSize: 12, symbolStrokeWidth: 3, symbolType: 'stroke' },
  }
  const view = new View(parse({ background: 'white', padding: 16, ...spec }, config), { renderer: 'none' })
  const file = `bench-${name}.svg`
  writeFileSync(join(IMAGES, file), `${await view.toSVG()}\n`)
  view.finalize()
  console.log(`docs/images/${file}`)
}

/** Scenario B: what comes to a server after an outage of a minute, second by second. */
async function drawHerd(): Promise<void> {
  const { results } = resultsOf('herd').details as HerdDetails
  const shown = results.filter(({ name }) => !name.startsWith('billonce, base'))
  const legendOf = (name: string): string => (name.endsWith('given up') ? `${name}: nearly all are lost` : name)
  const values = shown.flatMap(({ name, scenarios }) =>
    (scenarios.find(({ scenario }) => scenario === 'B')?.seeds[0]?.load ?? [])
      .slice(0, SHOWN_SECONDS)
      .map((load, second) => ({ policy: legendOf(name), second, load: Math.max(load, LEAST_LOAD) })),
  )
  await draw('herd', {
    title: {
      text: 'What a server gets when it is back',
      subtitle:
        'Requests a second of 10,000 clients after an outage of one minute; 1 is what the server can do. Simulated',
    },
    width: 640,
    height: 280,
    data: [{ name: 'table', values }],
    scales: [
      { name: 'x', type: 'linear', domain: [0, SHOWN_SECONDS], range: 'width' },
      { name: 'y', type: 'log', domain: [LEAST_LOAD, 25], range: 'height' },
      { name: 'color', type: 'ordinal', domain: shown.map(({ name }) => legendOf(name)), range: COLORS },
    ],
    axes: [
      { orient: 'left', scale: 'y', values: [0.5, 1, 2, 5, 10, 20], grid: true, title: 'to capacity', format: '~g' },
      { orient: 'bottom', scale: 'x', title: 'seconds after the outage' },
    ],
    legends: [{ stroke: 'color', orient: 'bottom', direction: 'horizontal', columns: 2, offset: 12, labelLimit: 0 }],
    marks: [
      {
        type: 'group',
        from: { facet: { name: 'policies', data: 'table', groupby: 'policy' } },
        marks: [
          {
            type: 'line',
            from: { data: 'policies' },
            encode: {
              enter: {
                x: { scale: 'x', field: 'second' },
                y: { scale: 'y', field: 'load' },
                stroke: { scale: 'color', field: 'policy' },
                strokeWidth: { value: 2 },
              },
            },
          },
        ],
      },
      {
        type: 'rule',
        encode: {
          enter: {
            x: { value: 0 },
            x2: { signal: 'width' },
            y: { scale: 'y', value: 1 },
            stroke: { value: '#212529' },
            strokeDash: { value: [4, 4] },
          },
        },
      },
    ],
  })
}

/** A call beside what one would take instead: one at a time, and 64. */
async function drawCall(): Promise<void> {
  const { tables, machine } = resultsOf('call')
  const [alone, together] = tables
  if (!alone || !together) throw new Error('The results of `call` have no tables.')
  const bars = (table: string, title: string, left: boolean): GroupMark => ({
    type: 'group',
    title: { text: title, anchor: 'start', fontSize: 12, fontWeight: 'normal', offset: 6 },
    encode: { update: { width: { value: 240 }, height: { signal: 'height' } } },
    scales: [
      { name: 'x', type: 'linear', domain: { data: table, field: 'ms' }, range: [0, 200], zero: true },
      {
        name: 'y',
        type: 'band',
        domain: { data: table, field: 'client' },
        range: [0, { signal: 'height' }],
        padding: 0.2,
      },
    ],
    axes: left ? [{ orient: 'left', scale: 'y', labelLimit: 0 }] : [],
    marks: [
      {
        type: 'rect',
        from: { data: table },
        encode: {
          enter: {
            x: { value: 0 },
            x2: { scale: 'x', field: 'ms' },
            y: { scale: 'y', field: 'client' },
            height: { scale: 'y', band: 1 },
            fill: [{ test: "indexof(datum.client, 'billonce') >= 0", value: OURS }, { value: '#adb5bd' }],
          },
        },
      },
      {
        type: 'text',
        from: { data: table },
        encode: {
          enter: {
            x: { scale: 'x', field: 'ms', offset: 6 },
            y: { scale: 'y', field: 'client', band: 0.5 },
            baseline: { value: 'middle' },
            font: { value: FONT },
            fontSize: { value: 11 },
            text: { signal: "format(datum.ms, '.2f')" },
          },
        },
      },
    ],
  })
  const valuesOf = ({ rows }: Results['tables'][number]): object[] => rows.map(([client, ms]) => ({ client, ms }))
  await draw('call', {
    title: {
      text: 'What a call takes',
      subtitle: `Median in ms at a local server, ${machine.cores} cores, Node ${machine.node.replace('v', '')}; only billonce with SQLite writes to a disk`,
    },
    height: 24 * alone.rows.length,
    data: [
      { name: 'alone', values: valuesOf(alone) },
      { name: 'together', values: valuesOf(together) },
    ],
    layout: { padding: 24, columns: 2, bounds: 'full', align: 'each' },
    marks: [bars('alone', 'one at a time', true), bars('together', '64 at a time', false)],
  })
}

await drawHerd()
await drawCall()
