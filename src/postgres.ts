/**
 * `billonce/postgres`: the journal in PostgreSQL, and what only a journal in a database can do: writing an entry down in a
 * transaction of the caller's own. It opens entries by the same code as every call (engine/open.ts).
 */
import type { BillingClient, WriteOptions } from './api.ts'
import { registerDefinition } from './client.ts'
import { contexts } from './engine/context.ts'
import type { Context } from './engine/context.ts'
import { openEntry } from './engine/open.ts'
import { ClientClosedError, mustBe, refuse } from './errors.ts'
import { Events } from './events.ts'
import { readCall } from './input.ts'
import type {
  AnyWriteDefinition,
  ChargeParams,
  ChargeReceipt,
  ChargeVolatile,
  CreditsParams,
  CreditsReceipt,
  CreditsVolatile,
  UsageParams,
  UsageReceipt,
  UsageVolatile,
  WriteDefinition,
} from './model/operation.ts'
import { outcomeOf, queuedOf } from './model/outcome.ts'
import type { Outcome, Queued } from './model/outcome.ts'
import type { Receipt } from './model/verdict.ts'
import type { PostgresClient } from './stores/postgres.ts'

export { migratePostgresJournal, postgresJournal, postgresJournalSql } from './stores/postgres.ts'
export type {
  PostgresClient,
  PostgresJournalOptions,
  PostgresJournalPlace,
  PostgresPool,
  PostgresPoolClient,
} from './stores/postgres.ts'

/** Options of `enqueueIn`: nothing is waited for, so there is nothing to abort and no deadline. */
export type EnqueueOptions<V extends string = string> = Omit<WriteOptions<V>, 'background' | 'deadlineMs' | 'signal'>

/** The library's own writes by kind. */
export interface OwnWrites {
  readonly charge: { readonly params: ChargeParams; readonly receipt: ChargeReceipt; readonly volatile: ChargeVolatile }
  readonly usage: { readonly params: UsageParams; readonly receipt: UsageReceipt; readonly volatile: UsageVolatile }
  readonly credits: {
    readonly params: CreditsParams
    readonly receipt: CreditsReceipt
    readonly volatile: CreditsVolatile
  }
}

/**
 * Writes an entry down in a transaction of your own, in the database of the journal, so that the order and its charge are born
 * together or not at all: rolled back, there is no entry; committed, it is delivered by whoever runs `start()` or `resume()`
 * on this journal. Nothing is sent by this call. A name that is there already is treated as by any other call, and what is
 * refused leaves the transaction usable.
 *
 * @param billing the client whose journal is `postgresJournal` in the same database
 * @param transaction the client of `pg` on which you ran `BEGIN`; never the pool
 * @param write `'charge'`, `'usage'`, `'credits'`, or a definition of your own
 * @returns `queued`, which holds once you commit, or the outcome that it has already
 * @throws {InvalidInputError} a parameter is not usable, the journal is in no database or another, or no transaction is open
 * @throws {OperationConflictError} the operation exists with other parameters
 * @throws {RevisionRefusedError} the next revision may not be opened now
 * @throws {JournalUnavailableError} the database refused, and the transaction can only be rolled back
 * @throws {ClientClosedError} nothing was written
 * @example
 * await transaction.query('INSERT INTO orders (id) VALUES ($1)', ['order-991'])
 * await enqueueIn(billing, transaction, 'charge', { amount: 5000, currency: 'usd' }, { operationId: 'order-991' })
 * await transaction.query('COMMIT')
 */
export function enqueueIn<Kind extends keyof OwnWrites>(
  billing: BillingClient,
  transaction: PostgresClient,
  write: Kind,
  params: OwnWrites[Kind]['params'],
  options: EnqueueOptions<OwnWrites[Kind]['volatile']>,
): Promise<Outcome<OwnWrites[Kind]['receipt']> | Queued>
export function enqueueIn<P extends object, R extends Receipt, V extends string>(
  billing: BillingClient,
  transaction: PostgresClient,
  write: WriteDefinition<P, R, V>,
  params: NoInfer<P>,
  options: EnqueueOptions<NoInfer<V>>,
): Promise<Outcome<R> | Queued>
export async function enqueueIn(
  billing: BillingClient,
  transaction: PostgresClient,
  write: AnyWriteDefinition | string,
  params: object,
  options: EnqueueOptions,
): Promise<Outcome | Queued> {
  const context = contexts.get(billing)
  mustBe(context, 'billing', 'a client that createBillingClient made')
  const { settings, store, runtime } = context
  if (context.closing.aborted)
    throw new ClientClosedError('The client was closed. Nothing was written and nothing was sent by this call.')
  if (typeof write === 'object') registerDefinition(context, write)
  const definition = typeof write === 'object' ? write : context.definitions.get(write)
  mustBe(definition, 'write', "'charge', 'usage', 'credits' or a definition")
  const { call } = readCall(context, definition, params, options)
  for (const name of ['background', 'deadlineMs', 'signal'])
    if (name in options) refuse(name, 'means nothing where nothing is waited for')
  if (!store.within) refuse('billing', 'has a journal that is in no database')
  // The order is not to fail for what waits; and until it is committed there is nothing to tell but what went wrong.
  const events = new Events()
  events.subscribe((event) => {
    if (['conflict', 'revision-refused', 'storage-fault'].includes(event.type)) context.events.emit(event)
  })
  const within: Context = {
    ...context,
    store: await store.within(transaction),
    events,
    openings: new Map(),
    backlog: undefined,
  }
  const { kind, entry } = await openEntry(within, { ...call, background: true })
  const about = { nowMs: runtime.nowMs(), source: 'journal', durable: settings.store.durable } as const
  return kind === 'answer' ? outcomeOf(entry, about) : queuedOf(entry, about)
}
