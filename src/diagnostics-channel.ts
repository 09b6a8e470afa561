/**
 * `billonce/diagnostics-channel`: the events of a client on Node's `diagnostics_channel`, for agents and loggers that do
 * not hold the client. Node only; loading it elsewhere does nothing, calling it says so.
 */
import type { BillingClient } from './api.ts'
import { BillingError } from './errors.ts'
import type { BillingEvent } from './events.ts'

/**
 * The channels: `billonce:event` has every event, `billonce:<type>` those of one type, such as `billonce:contradiction`.
 * The message is the event itself, as `subscribe` gives it.
 */
export type BillingChannel = 'billonce:event' | `billonce:${BillingEvent['type']}`

/** What a channel of this name carries. */
export type BillingMessage<C extends BillingChannel = 'billonce:event'> = C extends 'billonce:event'
  ? BillingEvent
  : C extends `billonce:${infer T}`
    ? Extract<BillingEvent, { readonly type: T }>
    : never

/** This runtime has no `diagnostics_channel`: a browser, or a Node before 22.3. Nothing was subscribed. */
export class DiagnosticsChannelUnavailableError extends BillingError {
  override readonly name = 'DiagnosticsChannelUnavailableError'
  readonly code = 'ERR_NO_DIAGNOSTICS_CHANNEL'
}

/**
 * Publishes the events of a client, at the moment they are told, to whoever has subscribed to the channel by then. Without
 * subscribers nothing is published, and an event costs a look at two channels.
 *
 * Several clients of a process share the channels. No message holds a body, a credential, an operationId or a scope. A
 * subscriber that throws does not reach the payment; Node raises what it threw as an `uncaughtException`, as it does for
 * every channel.
 *
 * @param billing the client; only its `subscribe` is used
 * @returns ends it; calling it again does nothing
 * @throws {DiagnosticsChannelUnavailableError} this runtime has none; nothing was subscribed
 * @see Node.js, «Diagnostics Channel»
 * @example
 * ```ts
 * import { subscribe } from 'node:diagnostics_channel'
 * import { publish, type BillingMessage } from 'billonce/diagnostics-channel'
 *
 * const stop = publish(billing)
 * subscribe('billonce:contradiction', (message) => {
 *   const { key, word } = message as BillingMessage<'billonce:contradiction'>
 *   page(`Two words about ${key}: ${word}`)
 * })
 * ```
 */
export function publish(billing: Pick<BillingClient, 'subscribe'>): () => void {
  // Not an import: a bundle for a browser could not resolve it, and this module has to load there.
  const channels = globalThis.process?.getBuiltinModule?.('node:diagnostics_channel')
  if (!channels) {
    throw new DiagnosticsChannelUnavailableError(
      'This runtime has no diagnostics_channel; use subscribe() of the client. Nothing was subscribed.',
    )
  }
  const every = channels.channel('billonce:event' satisfies BillingChannel)
  return billing.subscribe((event) => {
    // Node keeps channels by name, and weakly where nobody subscribes: so they are asked for, not held.
    const own = channels.channel(`billonce:${event.type}` satisfies BillingChannel)
    if (own.hasSubscribers) own.publish(event)
    if (every.hasSubscribers) every.publish(event)
  })
}
