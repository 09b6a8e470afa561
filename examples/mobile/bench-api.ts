/** What the developer's sheet and the server say to each other. Types only; an app of yours has nothing of this. */

/** What can go wrong at the office. `unreachable` and `slow` hold until they are switched off, the others hit one request. */
export type Trouble = 'unreachable' | 'slow' | 'lose-reply' | 'refuse'

export interface BenchView {
  readonly on: readonly Trouble[]
  readonly requests: readonly BenchRequest[]
  /** Visits that the office has billed, and their minutes. */
  readonly effects: number
  readonly minutes: number
}

export interface BenchRequest {
  readonly number: number
  readonly atMs: number
  readonly key: string
  readonly account: string
  /** The receiver's word for what it did, such as `executed` or `replayed`. */
  readonly did: string
  /** What came back: a status, or that nothing did. */
  readonly answer: string
}

export interface BenchOrder {
  readonly trouble: Trouble
  readonly on: boolean
}
