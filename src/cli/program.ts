/**
 * The commands, their flags and their help. What each does is in the file of its name.
 */
import { readFileSync } from 'node:fs'
import { Command, CommanderError, InvalidArgumentError, Option } from 'commander'
import type { JournalEntry } from 'billonce'
import { loadConfig, readSending } from './clients.ts'
import type { Config, SendingFlags } from './clients.ts'
import { exportEntries } from './export.ts'
import { EXIT, failureOf } from './failure.ts'
import type { ExitCode } from './failure.ts'
import { entryOf, openJournal } from './journal.ts'
import type { Journal, RefOptions } from './journal.ts'
import { list, stats } from './list.ts'
import type { Conditions, Order } from './list.ts'
import { createOutput, reportError } from './output.ts'
import type { Output } from './output.ts'
import { prune } from './prune.ts'
import type { PruneFlags } from './prune.ts'
import { reconcile, resume, retry } from './send.ts'
import { cancel, evidence } from './settle.ts'
import type { EvidenceFlags } from './settle.ts'
import { show } from './show.ts'
import { readDurationMs } from './text.ts'
import { SHOWN_STATES } from './view.ts'
import type { ShownState } from './view.ts'

/** Flags that every command has. */
interface Globals {
  readonly journal?: string
  readonly config?: string
  readonly json?: true
  readonly wait: number
}

interface Session {
  readonly journal: Journal
  readonly config: Config
  readonly out: Output
  readonly nowMs: number
}

const EXIT_CODES = `Exit codes:
  0  done, and nothing needs you
  1  done, and something needs attention: left unknown or waiting, contradicted,
     or found by --exit-code
  2  the command line, the config module or a file it names cannot be used
  3  the journal is missing, locked, damaged, not ours, or of a newer version;
     it was left as it is
  4  the journal holds no such entry
  5  refused: the evidence is not believed, or the entry cannot be canceled or
     retried; nothing was changed
  130  interrupted`

/** Runs the command line. @returns the exit code */
export async function run(argv: readonly string[]): Promise<ExitCode> {
  // Asked before anything is parsed, so that a wrong command line is reported in JSON too.
  const isJson = argv.includes('--json')
  let exitCode: ExitCode = EXIT.ok
  const program = programOf((code) => {
    exitCode = code
  })
  try {
    await program.parseAsync([...argv])
    return exitCode
  } catch (error) {
    if (error instanceof CommanderError) {
      if (error.exitCode === 0) return EXIT.ok
      // Commander has shown the help already.
      if (error.code !== 'commander.help') {
        reportError(isJson, { code: 'ERR_USAGE', message: error.message.replace(/^error: /, '') })
      }
      return EXIT.usage
    }
    const failure = failureOf(error)
    if (failure) {
      reportError(isJson, failure)
      return failure.exitCode
    }
    reportError(isJson, {
      code: 'ERR_BUG',
      message: `This should not happen; please report it. ${error instanceof Error ? error.stack : String(error)}`,
    })
    return EXIT.usage
  }
}

function programOf(end: (code: ExitCode) => void): Command {
  const program = new Command('billonce')
    .description(
      'Looks after a billonce journal: what is open, what is unknown and why, and how it is settled.\nNo command prints a request body or a receipt unless --body asks for it; credentials are never stored.',
    )
    .version(versionOf(), '-V, --version')
    .option('-j, --journal <path>', 'the journal file (default: BILLONCE_JOURNAL, else .billonce/journal.sqlite)')
    .option('-c, --config <module>', 'a module with client options: dialect, writes, credentials, lookUp, journal')
    .option('--json', 'JSON on stdout, one object or one line for each entry; errors as JSON on stderr')
    .addOption(
      new Option('--wait <duration>', 'how long to wait for a locked journal')
        .argParser(durationArg)
        .default(5000, '5s'),
    )
    .configureHelp({ showGlobalOptions: true, sortSubcommands: false })
    .configureOutput({ outputError: () => {} })
    .showSuggestionAfterError()
    .exitOverride()
    .addHelpText(
      'after',
      `
Name an entry by its key, the first 8 characters of it, or kind:operationId.

Start here:
  $ billonce stats                               what there is
  $ billonce list --state unknown,contradicted   what needs a person
  $ billonce show charge:order-991               what happened, what to do next

${EXIT_CODES}`,
    )

  /** Runs an action with the journal open, and closes it whatever happens. */
  const inSession =
    <Flags>(work: (session: Session, flags: Flags, args: readonly string[]) => Promise<ExitCode>) =>
    async (...given: unknown[]): Promise<void> => {
      // Commander calls with the arguments, the options and the command.
      const command = given.at(-1) as Command
      const flags = command.optsWithGlobals<Globals & Flags>()
      const out = createOutput(flags.json === true)
      const config = await loadConfig(flags.config)
      const journal = await openJournal({
        path: flags.journal,
        given: config.options.journal,
        waitMs: flags.wait,
      })
      try {
        end(await work({ journal, config, out, nowMs: Date.now() }, flags, command.args))
      } finally {
        await journal.close()
      }
    }

  addReading(program, inSession)
  addWriting(program, inSession)
  addSending(program, inSession)
  return program
}

type InSession = <Flags>(
  work: (session: Session, flags: Flags, args: readonly string[]) => Promise<ExitCode>,
) => (...given: unknown[]) => Promise<void>

// ------------------------------------------------------------------------------------------------------------- reading

interface FilterFlags {
  readonly endpoint?: string
  readonly scope?: string
  readonly kind?: string
  readonly state?: readonly ShownState[]
  readonly operation?: string
  readonly olderThan?: number
}

function addReading(program: Command, inSession: InSession): void {
  filters(program.command('list'))
    .description('Lists entries, those that need a person first, then the newest')
    .option('-n, --limit <n>', 'at most so many; 0 for all (default: 50, and all with --json)', wholeArg)
    .addOption(
      new Option('--sort <order>', 'what comes first').choices(['problems', 'newest', 'oldest']).default('problems'),
    )
    .option('-w, --wide', 'all columns, whole keys, nothing cut off')
    .option('--exit-code', 'end with 1 if any entry fits')
    .addHelpText(
      'after',
      `
Examples:
  $ billonce list
  $ billonce list --state unknown,contradicted --wide
  $ billonce list --state pending,sending --older-than 2h --exit-code
  $ billonce list --json | jq -r 'select(.attempts > 3) | .key'`,
    )
    .action(
      inSession<FilterFlags & { limit?: number; sort: Order; wide?: true; exitCode?: true }>(
        async ({ journal, out, nowMs }, flags) => {
          const { limit, sort, wide, exitCode } = flags
          const options = { ...conditionsOf(flags), limit, order: sort, wide: wide === true }
          const count = await list(journal.store, options, out, nowMs)
          return exitCode && count > 0 ? EXIT.attention : EXIT.ok
        },
      ),
    )

  refs(program.command('show'))
    .description('Shows everything about one entry: attempts, evidence, and what to do next')
    .option('--body', 'also the request body, the receipt and what the receiver replied; may be personal data')
    .addHelpText(
      'after',
      `
Examples:
  $ billonce show charge:order-991
  $ billonce show 1f0c2a9b
  $ billonce show usage:export:job-7 --subject exports --json`,
    )
    .action(
      inSession<RefOptions & { body?: true }>(async ({ journal, out, nowMs }, flags, [ref = '']) => {
        const entry = await entryOf(journal.store, ref, flags)
        await show(journal.store, entry, { body: flags.body === true }, out, nowMs)
        return EXIT.ok
      }),
    )

  filters(program.command('stats'))
    .description('Counts entries by scope, endpoint, kind and state')
    .option('--exit-code', 'end with 1 if an entry needs a person')
    .addHelpText(
      'after',
      `
Examples:
  $ billonce stats
  $ billonce stats --json | jq .needAttention`,
    )
    .action(
      inSession<FilterFlags & { exitCode?: true }>(async ({ journal, out, nowMs }, flags) => {
        const isNeeded = await stats(journal.store, conditionsOf(flags), out, nowMs)
        return flags.exitCode && isNeeded ? EXIT.attention : EXIT.ok
      }),
    )

  filters(program.command('export'))
    .description('Exports entries for finance, oldest first')
    .addOption(
      new Option('-f, --format <format>', 'csv, or json for JSON lines').choices(['csv', 'json']).default('csv'),
    )
    .option('-o, --output <file>', 'a file, which appears when it is whole (default: stdout)')
    .option('--from <date>', 'from this time on, such as 2026-11-01 (UTC) or 2026-11-01T00:00:00+01:00', dateArg)
    .option('--to <date>', 'before this time', dateArg)
    .addOption(
      new Option('--by <time>', 'which time --from and --to mean').choices(['named', 'settled']).default('named'),
    )
    .option('--bom', 'a byte order mark in front, for spreadsheets that need one for UTF-8')
    .addHelpText(
      'after',
      `
Amounts are in minor units, as they were sent: 1250 is 12.50 EUR. They are empty
once a body has been pruned. CSV is as RFC 4180 has it. A field that begins with
= + - or @ gets an apostrophe in front, so that no spreadsheet takes it for a
formula.

Examples:
  $ billonce export --from 2026-11-01 --to 2026-12-01 --by settled -o nov.csv
  $ billonce export --state succeeded --kind charge --json \\
      | jq -s 'map(.amount) | add'`,
    )
    .action(
      inSession<
        FilterFlags & {
          format: 'csv' | 'json'
          output?: string
          from?: number
          to?: number
          by: 'named' | 'settled'
          bom?: true
          json?: true
        }
      >(async ({ journal, out, nowMs }, flags) => {
        const { format, output, from: fromMs, to: toMs, by, bom } = flags
        const options = {
          ...conditionsOf(flags),
          format: flags.json ? 'json' : format,
          output,
          fromMs,
          toMs,
          by,
          bom: bom === true,
        } as const
        await exportEntries(journal.store, options, out, nowMs)
        return EXIT.ok
      }),
    )
}

function filters(command: Command): Command {
  return places(command)
    .option('--kind <kind>', 'charge, usage, credits, or a kind of your own')
    .option('--state <states>', `one or more, with commas: ${SHOWN_STATES.join(', ')}`, statesArg)
    .option('--operation <id>', 'this operationId')
    .option('--older-than <duration>', 'named longer ago than 90s, 15m, 2h, 3d or 1w', durationArg)
}

function conditionsOf({ endpoint, scope, kind, state, operation, olderThan }: FilterFlags): Conditions {
  return { endpoint, scope, kind, states: state, operation, olderThanMs: olderThan }
}

// ------------------------------------------------------------------------------------------------------------- writing

function addWriting(program: Command, inSession: InSession): void {
  refs(program.command('evidence'))
    .description('Records what you found out about an entry, and settles it. Nothing is sent')
    .option('--applied', 'it took effect; needs its receipt')
    .option('--receipt <json>', `the receipt as the receiver gives it, such as '{"id":"ch_1"}'`)
    .option('--receipt-file <file>', 'the same from a file; - for stdin')
    .option('--not-applied', 'it took no effect and will take none')
    .option('--code <code>', 'why, in the receiver’s words, with --not-applied')
    .option('--not-found', 'the look-up found nothing; no proof by itself')
    .option('--conclusive', 'with --not-found: the receiver documents that what it does not find is not there')
    .option('--by <who>', 'a decision: who decides')
    .option('--why <text>', 'a decision: what it rests on')
    .option('--webhook', 'instead of a decision: a webhook whose signature was checked')
    .option('--look-up', 'instead of a decision: the receiver was asked')
    .addHelpText(
      'after',
      `
A receipt for another amount or currency is refused, and so is --not-applied
while an attempt may still be at work. A word against a settled entry is kept
beside it and shown as contradicted; a decision ends that.

Examples:
  $ billonce evidence charge:order-991 --applied --receipt '{"id":"ch_1"}' \\
      --by ana --why 'found in the dashboard'
  $ billonce evidence 1f0c2a9b --not-applied --by ana --why 'ticket 4711'
  $ billonce evidence 1f0c2a9b --look-up --applied --receipt-file ch_1.json`,
    )
    .action(
      inSession<RefOptions & EvidenceFlags>(async ({ journal, config, out }, flags, [ref = '']) =>
        evidence(journal.store, config, await entryOf(journal.store, ref, flags), flags, out),
      ),
    )

  refs(program.command('cancel'))
    .description('Cancels a pending entry, which is certainly without effect. Nothing is sent')
    .addHelpText(
      'after',
      `
Anything else is refused (exit code 5): what may have been sent cannot be taken
back here.

Example:
  $ billonce cancel charge:order-991`,
    )
    .action(
      inSession<RefOptions>(async ({ journal, config, out }, flags, [ref = '']) =>
        cancel(journal.store, config, await entryOf(journal.store, ref, flags), out),
      ),
    )

  places(program.command('prune'))
    .description('Drops bodies and receipts of what has long been final, and later the names of usage')
    .option('--final-days <n>', 'keep bodies and receipts so long after the end (default: 30)', daysArg)
    .option('--usage-days <n>', 'keep names of usage so long after the end (default: 40)', daysArg)
    .option('--dry-run', 'count only')
    .addHelpText(
      'after',
      `
Nothing that is open or contradicted goes, and the names of charges and credits
stay for good: a backfill a year later must not take effect again. \`retention\`
of the config module counts where no flag does.

Examples:
  $ billonce prune --dry-run
  $ billonce prune --final-days 90`,
    )
    .action(inSession<PruneFlags>(async ({ journal, config, out }, flags) => prune(journal.store, config, flags, out)))
}

// ------------------------------------------------------------------------------------------------------------- sending

const CREDENTIALS = `Credentials:
  --header-env BILLING_AUTH   the environment's BILLING_AUTH holds a line,
                              such as 'authorization: Bearer …'
  --credentials-file <file>   such lines, or JSON with the scope they are for:
                              { "headers": { … }, "scope": "org_42/live" }
  --header 'name: value'      is seen by everybody who can list processes
Headers that do not say whose they are go to one scope of one endpoint only;
name it by --scope and --endpoint. Give --base-url where the endpoint is an id;
an endpoint that is an address is sent to that address.`

const CONFIG = `A config module, billonce.config.js:
  import { standard } from 'billonce'
  import { refund } from './refund.js' // made by defineWrite

  export default {
    baseUrl: 'https://api.example.com',
    dialect: standard({ lookUp: { path: ({ key }) => 'v1/writes/' + key } }),
    writes: [refund], // writes of your own cannot be sent without
    credentials: ({ scope }) => ({
      scope,
      headers: { authorization: 'Bearer ' + process.env.BILLING_TOKEN },
    }),
  }
  // Instead of a look-up of the dialect:
  export const lookUp = async (entry) => {
    const charge = await myProvider.findByKey(entry.key)
    if (!charge) return { found: 'nothing' }
    return { found: 'applied', receipt: charge }
  }`

interface DeliveryFlags {
  readonly deadline?: number
}

function addSending(program: Command, inSession: InSession): void {
  sending(places(program.command('resume')))
    .description('Sends what is pending or sending, once over, under the same keys')
    .option('--deadline <duration>', 'for each entry, over all its attempts (default: 60s)', durationArg)
    .option('--concurrency <n>', 'entries at the same time (default: 8)', wholeArg)
    .addHelpText(
      'after',
      `\n${CREDENTIALS}\n\n${CONFIG}\n
Examples:
  $ billonce resume --header-env BILLING_AUTH --scope org_42/live
  $ billonce resume --config billonce.config.js`,
    )
    .action(
      inSession<SendingFlags & DeliveryFlags & { endpoint?: string; scope?: string; concurrency?: number }>(
        async ({ journal, config, out }, flags) => {
          const { endpoint, scope, deadline, concurrency } = flags
          const work = { store: journal.store, config, sending: await readSending(flags, config), out }
          return resume(work, { endpoint, scope, deadlineMs: deadline, concurrency })
        },
      ),
    )

  sending(places(program.command('reconcile')))
    .description('Asks the receiver what became of unknown and accepted entries, and records what it says')
    .addHelpText(
      'after',
      `\nHow it is asked comes from the config module: a dialect with a look-up,
or \`lookUp\`.\n
${CREDENTIALS}\n\n${CONFIG}\n
Example:
  $ billonce reconcile --config billonce.config.js`,
    )
    .action(
      inSession<SendingFlags & { endpoint?: string; scope?: string }>(async ({ journal, config, out }, flags) => {
        const work = { store: journal.store, config, sending: await readSending(flags, config), out }
        return reconcile(work, { endpoint: flags.endpoint, scope: flags.scope })
      }),
    )

  sending(refs(program.command('retry')))
    .description('Sends a rejected entry again as its next revision, with its stored body and a new key')
    .option('--deadline <duration>', 'over all attempts (default: 60s)', durationArg)
    .option('--despite-unrecorded-refusal', 'although the refusal came from in front of the receiver’s key layer')
    .addHelpText(
      'after',
      `\nFor writes that were refused by mistake, such as by a bad deploy. Refused itself
(exit code 5) unless the entry is rejected and is the latest revision.\n\n${CREDENTIALS}\n
Example:
  $ billonce retry usage:export:job-7 --header-env BILLING_AUTH`,
    )
    .action(
      inSession<RefOptions & SendingFlags & DeliveryFlags & { despiteUnrecordedRefusal?: true }>(
        async ({ journal, config, out }, flags, [ref = '']) => {
          const work = { store: journal.store, config, sending: await readSending(flags, config), out }
          const entry: JournalEntry = await entryOf(journal.store, ref, flags)
          const despiteUnrecordedRefusal = flags.despiteUnrecordedRefusal === true
          return retry(work, entry, { despiteUnrecordedRefusal, deadlineMs: flags.deadline })
        },
      ),
    )
}

function sending(command: Command): Command {
  return command
    .option('--base-url <url>', 'where to send, if the endpoint is an id')
    .option('--header <line>', 'a header for every request; may be repeated', appendArg)
    .option('--header-env <name>', 'the same from the environment; may be repeated', appendArg)
    .option('--credentials-file <file>', 'the same from a file')
}

// ------------------------------------------------------------------------------------------------------ flags by groups

function places(command: Command): Command {
  return command
    .option('--endpoint <endpoint>', 'only this receiver: its address, or the id it was given')
    .option('--scope <scope>', 'only operations of this scope')
}

function refs(command: Command): Command {
  return places(command.argument('<ref>', 'a key, its first characters, or kind:operationId'))
    .option('--subject <subject>', 'where operations of several subjects have one name, such as the meter')
    .option('--revision <n>', 'another than the latest', revisionArg)
}

function durationArg(text: string): number {
  const ms = readDurationMs(text)
  if (ms === undefined) throw new InvalidArgumentError('It must be a duration such as 90s, 15m, 2h, 3d or 1w.')
  return ms
}

function wholeArg(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('It must be a whole number.')
  return Number(text)
}

function revisionArg(text: string): number {
  const revision = wholeArg(text)
  if (revision < 1) throw new InvalidArgumentError('Revisions count from 1.')
  return revision
}

function daysArg(text: string): number {
  if (!/^\d{1,5}(?:\.\d+)?$/.test(text)) throw new InvalidArgumentError('It must be a number of days.')
  return Number(text)
}

function dateArg(text: string): number {
  const ms = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN
  if (Number.isNaN(ms)) throw new InvalidArgumentError('It must be a date such as 2026-11-01 or a time in ISO 8601.')
  return ms
}

function statesArg(text: string): readonly ShownState[] {
  return text.split(',').map((given) => {
    const state = SHOWN_STATES.find((one) => one === given.trim())
    if (!state) throw new InvalidArgumentError(`${given.trim()} is not a state. States: ${SHOWN_STATES.join(', ')}.`)
    return state
  })
}

function appendArg(text: string, before: readonly string[] | undefined): readonly string[] {
  return [...(before ?? []), text]
}

function versionOf(): string {
  const text = readFileSync(new URL(import.meta.resolve('billonce/package.json')), 'utf8')
  return (JSON.parse(text) as { readonly version: string }).version
}
