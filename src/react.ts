/**
 * `billonce/react`: hooks that show an operation and begin it, and that keep its promise over unmount, remount and reload.
 * Nothing is sent by rendering or mounting; what was begun goes on when the component has gone. What is known is kept
 * outside of the components, in react/known.ts.
 */
import { useCallback, useSyncExternalStore } from 'react'
import type { BillingClient, WriteOptions } from './api.ts'
import { InvalidInputError } from './errors.ts'
import type { OpenState } from './model/entry.ts'
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
import type { Outcome, Queued } from './model/outcome.ts'
import type { Receipt } from './model/verdict.ts'
import { pageOf, peekPageOf, refuseStraySubject, UNLISTED, UNREAD } from './react/known.ts'
import type { Name, OpenOperationsState, OperationError } from './react/known.ts'

export type { OpenOperationsState, OperationError } from './react/known.ts'

/** Names an operation of a certain write. */
export interface OperationName {
  /** The business event, as in the options of a call: `order-991`. */
  readonly operationId: string
  /** The value of the parameter that is part of the name, such as the meter of usage; for writes that have one, and no other. */
  readonly subject?: string | undefined
}

/** What is known of an operation, told apart by `phase`. */
export type OperationState<R extends Receipt = Receipt> =
  /**
   * Nothing is known of it. While `isReading` the journal has not answered yet, also on a server and until the page is
   * hydrated: an earlier visit may have begun it, so do not offer to pay yet.
   */
  | { readonly phase: 'idle'; readonly isReading: boolean }
  /** A call of this page is under way. `outcome` is what the journal says meanwhile, if anything. */
  | { readonly phase: 'working'; readonly outcome: Outcome<R> | Queued | undefined }
  | SettledState<R>

/** What a call came to. `known` is not an end by itself: an outcome that is open is updated when it changes. */
export type SettledState<R extends Receipt = Receipt> =
  | { readonly phase: 'known'; readonly outcome: Outcome<R> | Queued }
  /**
   * The last call threw, or the journal could not be read. It says nothing against the operation: `outcome` is what is known
   * of that, and `error.sentByThisCall` what the call can vouch for. Gone with the next call, or when there is news.
   */
  | { readonly phase: 'error'; readonly error: OperationError; readonly outcome: Outcome<R> | Queued | undefined }

/** Options of a call, without the name, which the hook has. */
export type StartOptions<V extends string = string> = Omit<WriteOptions<V>, 'operationId'>

export interface Operation<P extends object, R extends Receipt, V extends string> {
  readonly state: OperationState<R>
  /**
   * Begins the operation, or joins it; for event handlers, never while rendering. Called twice it is one operation, like every
   * call of the same name. It goes on when the component is unmounted; only `options.signal` ends the waiting.
   *
   * After a rejection another try is `{ revision: outcome.revision + 1 }`.
   *
   * @returns what the call came to; never rejects, so it may be dropped in a handler
   */
  readonly start: (params: P, options?: StartOptions<V>) => Promise<SettledState<R>>
}

/**
 * One operation: what is known of it, and how it is begun.
 *
 * The state belongs to the client and the name, not to the component: all components that name the same operation see the
 * same, and one that is mounted later sees the call that is under way, or what it came to. After a reload it is what the
 * journal holds. It follows the events of the client, and what other windows with these hooks say; what else is at work on the
 * journal is seen when the page is shown again, and within 2 s while the outcome is open (queued, deferred, accepted, unknown)
 * and the page is visible.
 *
 * Mounting sends nothing; `client.start()` delivers what an earlier visit left open.
 *
 * @param write `'charge'`, `'usage'`, `'credits'`, or a definition made by `defineWrite`
 * @example
 * const { state, start } = useOperation(billing, 'charge', { operationId: `order-${order.number}` })
 */
export function useOperation(
  client: BillingClient,
  write: 'charge',
  name: OperationName,
): Operation<ChargeParams, ChargeReceipt, ChargeVolatile>
export function useOperation(
  client: BillingClient,
  write: 'usage',
  name: OperationName & { readonly subject: string },
): Operation<UsageParams, UsageReceipt, UsageVolatile>
export function useOperation(
  client: BillingClient,
  write: 'credits',
  name: OperationName,
): Operation<CreditsParams, CreditsReceipt, CreditsVolatile>
export function useOperation<P extends object, R extends Receipt, V extends string>(
  client: BillingClient,
  write: WriteDefinition<P, R, V>,
  name: OperationName,
): Operation<P, R, V>
export function useOperation(
  client: BillingClient,
  write: BuiltIn | AnyWriteDefinition,
  name: OperationName,
): AnyOperation {
  const kind = typeof write === 'string' ? write : write.kind
  const subjectField = typeof write === 'string' ? SUBJECT_FIELDS[write] : write.subject
  const { operationId, subject } = name
  const read = useCallback(
    () => peekPageOf(client)?.peekOperation({ kind, operationId, subject, subjectField })?.state ?? UNREAD,
    [client, kind, operationId, subject, subjectField],
  )
  const subscribe = useCallback(
    (onChange: () => void) => {
      const page = pageOf(client)
      return page.mount(page.operation({ kind, operationId, subject, subjectField }), onChange)
    },
    [client, kind, operationId, subject, subjectField],
  )
  const start = useCallback<AnyOperation['start']>(
    (params, options) => {
      const called: Name = { kind, operationId, subject, subjectField }
      return pageOf(client)
        .operation(called)
        .run(() => call(client, write, called, params, options))
    },
    [client, write, kind, operationId, subject, subjectField],
  )
  return { state: useSyncExternalStore(subscribe, read, unread), start }
}

/** Which of the open operations `useOpenOperations` gives; all conditions have to hold. */
export interface OpenOperationsFilter {
  readonly kind?: string | undefined
  readonly operationId?: string | undefined
  /** Default all four. */
  readonly states?: readonly OpenState[] | undefined
}

/**
 * The open operations of the client's scope and endpoint, oldest first, as the journal has them; and again whenever that
 * changes. Changes that come together are read together.
 *
 * What other windows with these hooks do is read when they say so; what else is at work on the journal when the page is shown
 * again, and every 2 s while something is in the list and the page is visible. Empty on a server. A final entry with a word against it is not open; ask `client.entries({ contradicted: true })`.
 */
export function useOpenOperations(client: BillingClient, filter: OpenOperationsFilter = {}): OpenOperationsState {
  const { kind, operationId, states = OPEN_STATES } = filter
  // The filter is usually a new object with each rendering, so it is known by its text.
  const text = JSON.stringify([kind ?? null, operationId ?? null, states])
  const read = useCallback(() => peekPageOf(client)?.peekList(text)?.state ?? UNLISTED, [client, text])
  const subscribe = useCallback(
    (onChange: () => void) => {
      const page = pageOf(client)
      const [ofKind, ofOperationId, ofStates] = JSON.parse(text) as [string | null, string | null, readonly OpenState[]]
      const wanted = { kind: ofKind ?? undefined, operationId: ofOperationId ?? undefined, states: ofStates }
      return page.mount(page.list(text, wanted), onChange)
    },
    [client, text],
  )
  return useSyncExternalStore(subscribe, read, unlisted)
}

type BuiltIn = 'charge' | 'usage' | 'credits'
// oxlint-disable-next-line typescript/no-explicit-any -- what fits the write is said by the overloads
type AnyOperation = Operation<any, any, string>

const OPEN_STATES: readonly OpenState[] = ['pending', 'sending', 'accepted', 'unknown']
const SUBJECT_FIELDS: Readonly<Record<BuiltIn, string | undefined>> = {
  charge: undefined,
  usage: 'meter',
  credits: undefined,
}

const unread = (): typeof UNREAD => UNREAD
const unlisted = (): OpenOperationsState => UNLISTED

async function call(
  client: BillingClient,
  write: BuiltIn | AnyWriteDefinition,
  name: Name,
  params: object,
  options: StartOptions | undefined,
): Promise<Outcome | Queued> {
  refuseStraySubject(name)
  const { operationId, subject, subjectField } = name
  // Without parameters at all the client says what is wrong.
  const given = (params as Readonly<Record<string, unknown>> | undefined) ?? {}
  if (subjectField !== undefined && given[subjectField] !== subject) {
    throw new InvalidInputError(subjectField, `${subjectField} is not the subject that this operation is named by.`)
  }
  const all = { ...options, operationId }
  switch (write) {
    // The overloads say which parameters and options fit which write; the client checks them.
    case 'charge':
      return await client.charge(params as ChargeParams, all as WriteOptions<ChargeVolatile>)
    case 'usage':
      return await client.recordUsage(params as UsageParams, all as WriteOptions<UsageVolatile>)
    case 'credits':
      return await client.consumeCredits(params as CreditsParams, all as WriteOptions<CreditsVolatile>)
    default:
      return await client.write(write, params, all)
  }
}
