/**
 * `prune`: lets go of what has been kept long enough, or only counts it.
 */
import type { BillingClientOptions, JournalStore, PruneSummary } from 'billonce'
import { clientOf, placeOf, withClient } from './clients.ts'
import type { Config } from './clients.ts'
import { EXIT } from './failure.ts'
import type { ExitCode } from './failure.ts'
import { entriesOf, groupsOf } from './journal.ts'
import type { Group, Place } from './journal.ts'
import type { Output } from './output.ts'
import { startProgress } from './progress.ts'
import { tableOf } from './table.ts'
import { numberOf } from './text.ts'

export interface PruneFlags extends Place {
  readonly finalDays?: number | undefined
  readonly usageDays?: number | undefined
  readonly dryRun?: boolean | undefined
}

const DAY_MS = 86_400_000
/** The client's own defaults; a dry run has to count by the same. */
const FINAL_MS = 30 * DAY_MS
const NAMES_MS = { usage: 40 * DAY_MS }

type Result = Place & PruneSummary

export async function prune(store: JournalStore, config: Config, flags: PruneFlags, out: Output): Promise<ExitCode> {
  const retention = retentionOf(config.options.retention, flags)
  const groups = await groupsOf(store, placeOf(flags, config), ['succeeded', 'rejected', 'canceled'])
  const total = groups.reduce((sum, { count }) => sum + count, 0)
  const results: Result[] = []
  const progress = startProgress('pruning', out.json)
  let before = 0
  try {
    for (const group of groups) {
      const summary = flags.dryRun
        ? await counted(store, group, retention)
        : await pruned(store, config, group, retention, (done) => progress.update(before + done, total))
      before += group.count
      results.push({ endpoint: group.endpoint, scope: group.scope, ...summary })
    }
  } finally {
    progress.stop()
  }
  const bodies = results.reduce((sum, one) => sum + one.bodies, 0)
  const operations = results.reduce((sum, one) => sum + one.operations, 0)
  if (out.json) {
    await out.printJson({ dryRun: flags.dryRun === true, bodies, operations, groups: results })
    return EXIT.ok
  }
  if (results.length === 0) {
    await out.print('Nothing to prune: no entry is final.')
    return EXIT.ok
  }
  await out.print(
    tableOf<Result>(
      [
        { head: 'SCOPE', of: (one) => one.scope ?? '', least: 8 },
        { head: 'ENDPOINT', of: (one) => one.endpoint ?? '', least: 10, dropAt: 1 },
        { head: 'BODIES DROPPED', of: (one) => numberOf(one.bodies), align: 'right' },
        { head: 'OPERATIONS REMOVED', of: (one) => numberOf(one.operations), align: 'right' },
      ],
      results,
      out.width,
      (text) => out.paint('bold', text),
    ),
  )
  if (flags.dryRun) out.note('A dry run: nothing was changed.')
  return EXIT.ok
}

interface Retention {
  readonly finalMs: number
  readonly namesMs: Readonly<Record<string, number>>
}

function retentionOf(given: BillingClientOptions['retention'], { finalDays, usageDays }: PruneFlags): Retention {
  return {
    finalMs: finalDays === undefined ? (given?.finalMs ?? FINAL_MS) : finalDays * DAY_MS,
    namesMs: {
      ...NAMES_MS,
      ...given?.namesMs,
      ...(usageDays === undefined ? {} : { usage: usageDays * DAY_MS }),
    },
  }
}

async function pruned(
  store: JournalStore,
  config: Config,
  group: Group,
  retention: Retention,
  onProgress: (done: number) => void,
): Promise<PruneSummary> {
  return withClient(clientOf(group, store, config, undefined, { retention }), (client) => client.prune({ onProgress }))
}

/** The same rules, counted: bodies of what is final for long enough, and whole operations of kinds whose names go. */
async function counted(
  store: JournalStore,
  { endpoint, scope }: Group,
  { finalMs, namesMs }: Retention,
): Promise<PruneSummary> {
  const nowMs = Date.now()
  const operations = new Map<string, { goes: boolean; bodies: number }>()
  for await (const entry of entriesOf(store, { endpoint, scope })) {
    const id = JSON.stringify([entry.kind, entry.subject, entry.operationId])
    const operation = operations.get(id) ?? { goes: true, bodies: 0 }
    operations.set(id, operation)
    const isKept = !('settledAtMs' in entry) || entry.contradiction !== null
    const keepMs = Object.hasOwn(namesMs, entry.kind) ? (namesMs[entry.kind] ?? Infinity) : Infinity
    if (isKept || entry.settledAtMs > nowMs - keepMs) operation.goes = false
    if (!isKept && entry.request.body !== null && entry.settledAtMs <= nowMs - finalMs) operation.bodies += 1
  }
  let removed = 0
  let bodies = 0
  for (const operation of operations.values()) {
    if (operation.goes) removed += 1
    else bodies += operation.bodies
  }
  return { bodies, operations: removed }
}
