/**
 * The contract of a journal: what the engine needs of a place to keep entries. A journal decides nothing about entries; it
 * keeps them, compares versions, and says when a change is durable. The suite in testing/store-suite.ts holds every
 * promise made here, for our journals and for yours.
 *
 * All methods reject with JournalUnavailableError when they could not do their work; then nothing was changed, or it
 * is not known whether it was (a commit whose answer was lost): calling again is safe, since versions are compared.
 */
import { isFinal } from '../model/entry.ts'
import type { EntryState, JournalEntry, OpenState } from '../model/entry.ts'

/** Which entries `list` gives; all conditions have to hold. */
export interface ListFilter {
  readonly endpoint?: string | undefined
  readonly scope?: string | undefined
  readonly kind?: string | undefined
  readonly operationId?: string | undefined
  readonly states?: readonly EntryState[] | undefined
}

/** Up to which times of settlement pruning goes, in wall time. */
export interface Prunable {
  readonly bodiesAtMs: number
  /** By kind; of kinds that are not in here names stay for good. */
  readonly namesAtMs: Readonly<Record<string, number>>
}

export interface OpenCount {
  readonly endpoint: string
  readonly scope: string
  readonly state: OpenState
  readonly count: number
}

/**
 * Whether a browser has promised to keep this site's data: `not-granted` means that it may clear it, `unsupported` that it
 * cannot be asked (no https, an older browser, or a place that is no browser's).
 */
export type Persistence = 'persistent' | 'not-granted' | 'unsupported'

export interface StorageReport {
  readonly persistence: Persistence
  /** What all data of this site takes, in bytes, as the browser estimates it; `undefined` where it does not tell. */
  readonly usedBytes: number | undefined
  /** What all data of this site may take, in bytes, as the browser estimates it; `undefined` where it does not tell. */
  readonly quotaBytes: number | undefined
}

/** Who asks for deliverable entries to work on them, and for which. */
export interface Taking {
  /** The owner of a claim, with `#` and number. */
  readonly owner: string
  /** How many it begins at once; more would wait with it while others could do them. */
  readonly most: number
  /** For how long they are handed to nobody else, unless a change of the entry ends that before. */
  readonly holdMs: number
  /** Kinds that the owner can deliver; others are left to those who can. */
  readonly kinds: readonly string[]
  /** What is due: everything, what the receiver did not ask to wait for, or what is planned for now. */
  readonly due: 'any' | 'not-before' | 'planned'
}

/** Where a listing goes on; opaque outside the journal that made it, plain text. */
export type Cursor = string

export interface Page {
  /** In the order of first naming, oldest first, for one endpoint and scope. */
  readonly entries: readonly JournalEntry[]
  /** Absent when there is no more. */
  readonly next?: Cursor | undefined
  /** Rows that this version cannot read, such as entries of a newer format; they stay as they are. */
  readonly unreadable: number
  /** With the last page, from a journal that hands out entries: what it did not. */
  readonly left?:
    | {
        /** Deliverable entries of kinds that were not asked for. */
        readonly strange: number
        /** When one of those that were asked for is due and free; absent if there is none. */
        readonly nextAtMs?: number | undefined
      }
    | undefined
}

export type InsertResult =
  | { readonly inserted: true }
  /** Entries of the same name (scope, kind, subject, operationId; all revisions and endpoints) and any entry with the same endpoint and key. */
  | { readonly inserted: false; readonly found: readonly JournalEntry[] }

/** What the caller of `insert` believes to be there. */
export type Seen = Pick<JournalEntry, 'endpoint' | 'key' | 'version'>

export interface JournalClock {
  /** Makes sure that it was looked at a short while ago. */
  look(): Promise<void>
  /** Its time in wall milliseconds when this process's clock shows `localMs`, as far as is known. */
  atMs(localMs: number): number
}

export interface JournalStore {
  /** `false` for a journal that forgets all when the process ends; only the caller may choose one. */
  readonly durable: boolean
  /**
   * This process or tab as a holder of claims: the same for all clients in it, another after a restart. The owner in a claim
   * is this, `#`, and the number of the client within.
   */
  readonly owner: string
  /**
   * Inserts an entry in one atomic step if what the journal holds of its name, and of its endpoint and key, is exactly
   * `seen` (the same entries in the same versions); otherwise changes nothing and gives what is there.
   * Resolves when durable, not before.
   */
  insert(entry: JournalEntry, seen: readonly Seen[]): Promise<InsertResult>
  /**
   * Replaces the entry of the same endpoint and key if the stored version is `entry.version - 1`; otherwise changes nothing.
   * Resolves when durable, not before.
   *
   * @returns whether it was replaced
   */
  replace(entry: JournalEntry): Promise<boolean>
  /** The entry with this key; never one that is not durable yet. */
  get(endpoint: string, key: string): Promise<JournalEntry | undefined>
  /** Entries with this key under any endpoint. */
  getByKey(key: string): Promise<readonly JournalEntry[]>
  /** All revisions, under all subjects and endpoints, of an operation. */
  history(name: {
    readonly scope: string
    readonly kind: string
    readonly operationId: string
  }): Promise<readonly JournalEntry[]>
  /**
   * Deliverable entries (pending, sending) of one endpoint and scope, the oldest naming first. Its cost does not grow with
   * the number of entries that are not deliverable.
   *
   * @param taking given where the entries are to be worked on. A journal that many processes share then hands out entries:
   *   only what is due and what nobody else is at work on, and each to one of those who ask. That spares them the race for the
   *   same entries and decides nothing: `replace` does. Others take no notice of it.
   */
  listDeliverable(
    of: { readonly endpoint: string; readonly scope: string },
    limit: number,
    after?: Cursor,
    taking?: Taking,
  ): Promise<Page>
  /**
   * How many open entries (pending, sending, accepted, unknown) there are by endpoint, scope and state. Its cost grows with
   * the open entries only, not with what is final.
   */
  countOpen(): Promise<readonly OpenCount[]>
  /** Any entries; may read the whole journal, unless an endpoint, a scope and open states only are asked for. */
  list(filter: ListFilter, limit: number, after?: Cursor): Promise<Page>
  /**
   * Final entries of one endpoint and scope that are due for pruning: those with a body, settled at or before `bodiesAtMs`, and
   * those of a kind in `namesAtMs`, settled at or before the time given there. It may give more than those. Its cost grows with
   * what is due, not with what is final; a journal without it is pruned by reading all that is final.
   */
  listPrunable?(
    of: { readonly endpoint: string; readonly scope: string },
    due: Prunable,
    limit: number,
    after?: Cursor,
  ): Promise<Page>
  /**
   * Removes whole operations' entries in one atomic step, if all are there in these versions; otherwise removes none. The
   * journal remembers for each kind the latest `namedAtMs` that it removed.
   *
   * @returns whether they were removed
   */
  remove(entries: readonly JournalEntry[]): Promise<boolean>
  /**
   * Since when the journal knows all names of a kind, in wall time: when it was created, or the latest naming that `remove`
   * took, whichever is later. An older event may have been sent before.
   */
  knowsSinceMs(kind: string): Promise<number>
  /**
   * Calls back when there is something that `listDeliverable` would hand out, such as what another process wrote down; not
   * for ever again for what was handed out. Keeps no process alive.
   *
   * @returns ends it
   */
  watchDeliverable?(
    of: { readonly endpoint: string; readonly scope: string },
    kinds: () => readonly string[],
    onDeliverable: () => void,
  ): () => void
  /**
   * The clock that all who share the journal go by, if it has one: leases, windows and waits are compared between machines,
   * and their own clocks differ.
   */
  readonly clock?: JournalClock | undefined
  /**
   * The same journal inside a transaction of the caller's own, if it knows transactions: what is changed through it is there
   * when the caller commits, and never was if the caller rolls back. No call of it fails a statement of the transaction for
   * what the journal holds.
   *
   * @throws {InvalidInputError} it is no open transaction in the database of this journal
   */
  within?(transaction: object): Promise<JournalStore>
  /** Whether a process or tab (an `owner`, without `#` and number) is certainly gone; `false` where it cannot be told, then its lease decides. */
  isGone(owner: string): Promise<boolean>
  /** What the place says about itself, without opening the journal; only where there is somebody to ask. */
  storage?(): Promise<StorageReport>
  /** Lets go of files, handles and threads; open calls settle first. Later calls reject with fault `closed`. */
  close(): Promise<void>
}

/** When it was settled, if pruning will ever have something to do with it: names of one's own stay, and so does what is in dispute. */
export function prunableFromMs(entry: JournalEntry): number | null {
  if (!isFinal(entry) || entry.contradiction) return null
  return entry.request.body === null && entry.window.names === 'own' ? null : entry.settledAtMs
}

/** Whether what is there is exactly what the caller of `insert` saw. */
export function isAsSeen(found: readonly JournalEntry[], seen: readonly Seen[]): boolean {
  const isSeen = (entry: JournalEntry): boolean =>
    seen.some((one) => one.endpoint === entry.endpoint && one.key === entry.key && one.version === entry.version)
  return found.length === seen.length && found.every(isSeen)
}

export function matches(entry: JournalEntry, filter: ListFilter): boolean {
  const states: readonly EntryState[] | undefined = filter.states
  return (
    (filter.endpoint === undefined || entry.endpoint === filter.endpoint) &&
    (filter.scope === undefined || entry.scope === filter.scope) &&
    (filter.kind === undefined || entry.kind === filter.kind) &&
    (filter.operationId === undefined || entry.operationId === filter.operationId) &&
    (states === undefined || states.includes(entry.state))
  )
}
