/**
 * `resume`, `reconcile` and `retry`: the commands that talk to a receiver.
 */
import type { JournalEntry, JournalStore, LookUp, ReconcileSummary, ResumeSummary } from 'billonce'
import { clientOf, placeOf, sendable, withClient } from './clients.ts'
import type { Config, Sending } from './clients.ts'
import { EXIT, messageOf, usageError } from './failure.ts'
import type { ExitCode } from './failure.ts'
import { entriesOf, groupsOf } from './journal.ts'
import type { Group, Place } from './journal.ts'
import { needOf, rowsTable } from './list.ts'
import type { Output } from './output.ts'
import { startProgress } from './progress.ts'
import { report } from './settle.ts'
import { tableOf } from './table.ts'
import type { Column } from './table.ts'
import { harmless, plural } from './text.ts'
import { needsAttention, rowOf } from './view.ts'
import type { Row } from './view.ts'

export interface Work {
  readonly store: JournalStore
  readonly config: Config
  readonly sending: Sending
  readonly out: Output
}

/** Runs work that the first ctrl-c ends in order, and the second at once. */
async function interruptible<T>(out: Output, work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController()
  const onInterrupt = (): void => {
    if (controller.signal.aborted) process.exit(EXIT.interrupted)
    controller.abort()
    out.note('\nFinishing what is in flight. Again to stop at once; the journal keeps what is not done.')
  }
  process.on('SIGINT', onInterrupt)
  try {
    return await work(controller.signal)
  } finally {
    process.off('SIGINT', onInterrupt)
  }
}

function noteLeft(left: readonly (Group & { readonly count: number })[], out: Output): void {
  for (const { endpoint, scope, count } of left) {
    out.note(`Left alone: ${plural(count, 'entry')} of scope ${harmless(scope)} at ${harmless(endpoint)}.`)
  }
}

function noteWithoutCredentials({ sending, config, out }: Work): void {
  if (sending.credentials === undefined && !config.options.credentials && !config.options.headers) {
    out.note('No credentials were given (--header-env, --credentials-file or --config): sending without.')
  }
}

// -------------------------------------------------------------------------------------------------------------- resume

export async function resume(
  work: Work,
  options: Place & { readonly deadlineMs?: number | undefined; readonly concurrency?: number | undefined },
): Promise<ExitCode> {
  const { store, config, sending, out } = work
  const groups = await groupsOf(store, placeOf(options, config), ['pending', 'sending'])
  const { taken, left } = sendable(groups, sending, config)
  if (taken.length > 0) noteWithoutCredentials(work)
  const results: (Place & ResumeSummary)[] = []
  const total = taken.reduce((sum, { count }) => sum + count, 0)
  const isInterrupted = await interruptible(out, async (signal) => {
    const progress = startProgress('resuming', out.json)
    let before = 0
    try {
      for (const group of taken) {
        if (signal.aborted) break
        const { concurrency } = options
        const more = concurrency === undefined ? {} : { concurrency }
        const summary = await withClient(clientOf(group, store, config, sending, more), (client) => {
          signal.addEventListener('abort', () => void client.close(), { once: true })
          return client.resume({
            deadlineMs: options.deadlineMs,
            onProgress: ({ done }) => progress.update(before + done, total),
          })
        })
        before += summary.total
        results.push({ endpoint: group.endpoint, scope: group.scope, ...summary })
      }
    } finally {
      progress.stop()
    }
    return signal.aborted
  })
  const sum = sumOf(results, RESUMED)
  const need = await needing(store, placeOf(options, config))
  if (out.json) {
    const list = results.map(({ needEvidence: _need, elsewhere: _elsewhere, ...result }) => result)
    await out.printJson({ ...sum, needAttention: need, isInterrupted, groups: list })
  } else if (sum.total === 0) await out.print('Nothing to send: no entry is pending or sending.')
  else await out.print(summaryTable(results, RESUMED, out))
  noteLeft(left, out)
  if (need > 0) out.note(`${needOf(need)}: billonce list --state unknown,contradicted`)
  if (sum.waiting > 0) out.note(`${plural(sum.waiting, 'entry')} still waiting: billonce list --state pending,sending`)
  if (isInterrupted) return EXIT.interrupted
  return sum.waiting + sum.failed + need > 0 ? EXIT.attention : EXIT.ok
}

const RESUMED = ['total', 'succeeded', 'accepted', 'rejected', 'canceled', 'unknown', 'waiting', 'failed'] as const

async function needing(store: JournalStore, place: Place): Promise<number> {
  let count = 0
  for await (const entry of entriesOf(store, place)) if (needsAttention(rowOf(entry))) count += 1
  return count
}

// ----------------------------------------------------------------------------------------------------------- reconcile

export async function reconcile(work: Work, options: Place): Promise<ExitCode> {
  const { store, config, sending, out } = work
  const { lookUp } = config
  const canAsk = config.options.dialect?.lookUp || config.options.olderDialects?.some((dialect) => dialect.lookUp)
  if (!lookUp && !canAsk) {
    throw usageError(
      'Nobody says how to look an entry up. Export `lookUp` from a config module, or a dialect that has one (billonce reconcile --help shows both). What you find out by hand is recorded by billonce evidence.',
    )
  }
  const groups = await groupsOf(store, placeOf(options, config), ['unknown', 'accepted'])
  // A look-up of one's own brings its own address and credentials.
  const { taken, left } = lookUp ? { taken: groups, left: [] } : sendable(groups, sending, config)
  if (!lookUp && taken.length > 0) noteWithoutCredentials(work)
  const results: (Place & ReconcileSummary)[] = []
  const troubles: { readonly key: string; readonly why: string }[] = []
  const watched = lookUp && noting(lookUp, troubles)
  const total = taken.reduce((sum, { count }) => sum + count, 0)
  const isInterrupted = await interruptible(out, async (signal) => {
    const progress = startProgress('looking up', out.json)
    let before = 0
    try {
      for (const group of taken) {
        if (signal.aborted) break
        const summary = await withClient(clientOf(group, store, config, sending), (client) => {
          client.subscribe((event) => {
            if (event.type === 'evidence-refused') troubles.push({ key: event.key, why: `not taken: ${event.reason}` })
          })
          return client.reconcile(watched, {
            signal,
            onProgress: ({ done }) => progress.update(before + done, total),
          })
        })
        before += group.count
        results.push({ endpoint: group.endpoint, scope: group.scope, ...summary })
      }
    } finally {
      progress.stop()
    }
    return signal.aborted
  })
  const sum = sumOf(results, RECONCILED)
  const needy: Row[] = []
  for await (const entry of entriesOf(store, placeOf(options, config))) {
    const row = rowOf(entry)
    if (needsAttention(row)) needy.push(row)
  }
  if (out.json) {
    await out.printJson({ ...sum, needAttention: needy.length, isInterrupted, troubles, groups: results })
  } else {
    if (sum.total === 0) await out.print('Nothing to look up: no entry is unknown or accepted.')
    else await out.print(summaryTable(results, RECONCILED, out))
    for (const { key, why } of troubles.slice(0, MOST)) out.note(`${key}: ${harmless(why)}`)
    if (troubles.length > MOST) out.note(`… and ${plural(troubles.length - MOST, 'more', 'more')}`)
    if (needy.length > 0) {
      await out.print(`\n${needOf(needy.length)}:\n${rowsTable(needy.slice(0, MOST), out, Date.now(), false)}`)
      if (needy.length > MOST) out.note('The others: billonce list --state unknown,contradicted')
    }
  }
  noteLeft(left, out)
  if (isInterrupted) return EXIT.interrupted
  return sum.misses + sum.unsettled + sum.failed + needy.length > 0 ? EXIT.attention : EXIT.ok
}

const RECONCILED = ['total', 'succeeded', 'rejected', 'misses', 'unsettled', 'contradicted', 'failed'] as const
const MOST = 20

/** A look-up that throws changes nothing; why it threw is all that a person can go by. */
function noting(lookUp: LookUp, troubles: { key: string; why: string }[]): LookUp {
  return async (entry) => {
    try {
      return await lookUp(entry)
    } catch (error) {
      troubles.push({ key: entry.key, why: `the look-up failed: ${messageOf(error)}` })
      throw error
    }
  }
}

// --------------------------------------------------------------------------------------------------------------- retry

export async function retry(
  work: Work,
  entry: JournalEntry,
  options: { readonly despiteUnrecordedRefusal: boolean; readonly deadlineMs?: number | undefined },
): Promise<ExitCode> {
  const { store, config, sending, out } = work
  const [group] = sendable([entry], sending, config).taken
  if (!group) {
    throw usageError(`${entry.key} belongs to ${entry.endpoint}, which is not the address that --base-url names.`)
  }
  noteWithoutCredentials(work)
  return await interruptible(out, async (signal) => {
    const outcome = await withClient(clientOf(group, store, config, sending), (client) =>
      client.retryRejected({ key: entry.key }, { ...options, signal }),
    )
    return await report(store, entry, outcome.key, out)
  })
}

// -------------------------------------------------------------------------------------------------------------- helpers

function sumOf<Name extends string>(
  results: readonly Readonly<Record<Name, number>>[],
  names: readonly Name[],
): Record<Name, number> {
  // Of exactly these names.
  return Object.fromEntries(names.map((name) => [name, results.reduce((sum, one) => sum + one[name], 0)])) as Record<
    Name,
    number
  >
}

function summaryTable<Name extends string>(
  results: readonly (Place & Readonly<Record<Name, number>>)[],
  names: readonly Name[],
  out: Output,
): string {
  type Result = Place & Readonly<Record<Name, number>>
  const columns: readonly Column<Result>[] = [
    { head: 'SCOPE', of: (one) => one.scope ?? '', least: 8 },
    { head: 'ENDPOINT', of: (one) => one.endpoint ?? '', least: 10, dropAt: 1 },
    ...names.map((name): Column<Result> => ({
      head: name.toUpperCase(),
      of: (one) => (one[name] === 0 && name !== 'total' ? '' : String(one[name])),
      align: 'right',
      onlyIfAny: true,
    })),
  ]
  return tableOf(columns, results, out.width, (text) => out.paint('bold', text))
}
