/** What the developer's panel and the server say to each other. Types only; a shop has nothing of this. */

/** What can go wrong once, with the next charge that arrives. */
export type FaultName = 'lose-reply' | 'error' | 'busy' | 'rate-limit' | 'slow' | 'decline' | 'saved-error'

/** What the billing server knows of one order. */
export interface ServerView {
  /** Whether anything listens at the billing server's address. */
  readonly isReachable: boolean
  /** Faults that wait for a request. */
  readonly armed: readonly FaultName[]
  readonly requests: readonly SeenRequest[]
  readonly charges: readonly MadeCharge[]
}

export interface SeenRequest {
  /** From 1, over the requests of this order. */
  readonly number: number
  readonly atMs: number
  readonly key: string
  /** The receiver's word for what it did, such as `executed` or `replayed`. */
  readonly did: string
  /** What went back: a status, or how the reply was lost; `…` while the server is at work. */
  readonly answer: string
}

export interface MadeCharge {
  readonly id: string
  readonly key: string
  /** Minor units. */
  readonly amount: number
  readonly currency: string
  readonly standing: 'paid' | 'to confirm' | 'processing' | 'failed'
}

/** What the panel asks for. */
export type PanelRequest =
  | { readonly ask: 'arm'; readonly fault: FaultName; readonly on: boolean }
  | { readonly ask: 'reach'; readonly on: boolean }
  /** The bank's word on a charge that waits for it. */
  | { readonly ask: 'conclude'; readonly charge: string; readonly isPaid: boolean }
