/**
 * How background delivery paces itself at a receiver that fails: rules without a clock. background.ts follows them, and
 * bench/herd.bench.ts shows what ten thousand clients that do so are to a receiver that comes back.
 *
 * The exponent belongs to a client and its receiver, not to an entry. While it is above zero one entry at a time is sent, and
 * the next waits a random time that doubles with the exponent, after success and failure alike: so a hundred entries ask
 * no more often than one. Each answer lowers it. At zero, entries go one at a time with short waits until some answers came in
 * a row, and from then on without a wait, one more together with each answer, until one fails.
 */

export interface PacePolicy {
  /** The wait is random between 0 and twice this after the first failure, and doubles from there. */
  readonly baseMs: number
  /** No wait is longer, unless the outage is long. */
  readonly capMs: number
  /** No wait is longer, however long the outage. */
  readonly longestMs: number
  /** So many may be under way at once, at most. */
  readonly most: number
}

/** An attempt of background delivery, as the pace sees it. */
export interface Beginning {
  readonly number: number
  /** The receiver was not known to fail. */
  readonly wasOpen: boolean
  /** When the attempt of this entry before it began, in wall time. */
  readonly previousAtMs: number | undefined
}

/**
 * So many answers in a row are waited for before two are sent together again, for each step that the exponent rose, up to
 * three. Clients that have a little left of an outage are done by then; together they would fill the queue of a receiver,
 * which works off what they gave up on all the same (scenario C: 16 in all are too few).
 */
const ALONE = 8

/** An entry that failed more often than this while others were answered is at fault itself, and slows the others no more. */
const BAD = 2

/** In a long outage it takes so many failures for the wait to double beyond the cap. */
const SLOWLY = 12

/** Entries whose own failures are counted. */
const KNOWN = 1000

export class Pace {
  /** Zero while the receiver answers; beyond the cap in fractions. */
  exponent = 0
  #begun = 0
  /** The attempts up to this one were sent together with one that failed, and count no more. */
  #counted = 0
  #answers = 0
  /** How many answers are waited for. */
  #alone = 0
  #room = 1
  #answeredAtMs = -Infinity
  readonly #policy: PacePolicy
  /** Cap and end of the scale, as exponents. */
  readonly #cap: number
  readonly #end: number
  /** How often an entry failed while the receiver answered others. */
  readonly #failures = new Map<string, number>()
  readonly #underWay = new Map<string, Beginning>()

  constructor(policy: PacePolicy) {
    const exponentOf = (ms: number): number => Math.max(1, Math.ceil(Math.log2(ms / Math.max(1, policy.baseMs))))
    this.#policy = policy
    this.#cap = exponentOf(policy.capMs)
    this.#end = Math.max(this.#cap, exponentOf(policy.longestMs))
  }

  /** Whether one entry at a time is sent, with a wait between them. */
  get isSlow(): boolean {
    return this.exponent > 0 || this.#answers < this.#alone
  }

  /** How many may be under way at once. */
  get room(): number {
    return this.isSlow ? 1 : this.#room
  }

  /** An attempt of an entry begins; before it, when did the last one? */
  begin(key: string, previousAtMs: number | undefined): void {
    this.#begun += 1
    this.#underWay.set(key, { number: this.#begun, wasOpen: this.exponent === 0, previousAtMs })
  }

  /**
   * What an entry's own back-off counts if this attempt of it fails: 0 if it failed with the receiver, which the pace slows;
   * how often if others were answered meanwhile; `undefined` if it is none of background delivery's.
   */
  failuresOf(key: string): number | undefined {
    const begun = this.#underWay.get(key)
    return begun && (this.#isOwn(begun) ? (this.#failures.get(key) ?? 0) + 1 : 0)
  }

  /** The attempt of an entry ended, or was not made after all. */
  end(key: string, result: 'failed' | 'answered' | 'none', nowMs: number): void {
    const begun = this.#underWay.get(key)
    this.#underWay.delete(key)
    if (!begun || result === 'none') return
    if (result === 'answered') this.#failures.delete(key)
    else if (this.#isOwn(begun)) {
      const failures = (this.#failures.get(key) ?? 0) + 1
      // Begun anew where there are too many to count; then they are tried a little more often.
      if (this.#failures.size >= KNOWN) this.#failures.clear()
      this.#failures.set(key, failures)
      if (failures > BAD) return
    }
    if (begun.number > this.#counted) this.noticed(result, nowMs)
  }

  /** What became of an attempt of our own, or of another process or tab on the same journal. */
  noticed(result: 'failed' | 'answered', nowMs: number): void {
    if (result === 'failed') {
      this.#counted = this.#begun
      this.#answers = 0
      this.#room = 1
      this.exponent = Math.min(this.#end, this.exponent + (this.exponent < this.#cap ? 1 : 1 / SLOWLY))
      this.#alone = Math.max(this.#alone, ALONE * Math.min(3, Math.ceil(this.exponent)))
      return
    }
    this.#answeredAtMs = nowMs
    this.exponent = Math.max(0, Math.min(Math.floor(this.exponent), this.#cap) - 1)
    this.#answers += 1
    if (this.isSlow) return
    this.#alone = 0
    this.#room = Math.min(this.#policy.most, this.#room + 1)
  }

  /** How long the next one waits, in milliseconds; the cap first, then jitter over the whole range. */
  waitMs(random: () => number): number {
    if (!this.isSlow) return 0
    const { baseMs, capMs, longestMs } = this.#policy
    const exponent = Math.floor(this.exponent)
    const mostMs = exponent > this.#cap ? longestMs : capMs
    return Math.floor(random() * (Math.min(mostMs, baseMs * 2 ** exponent) + 1))
  }

  /** Whether an entry failed for a reason of its own: the receiver answered others, before or since its last attempt. */
  #isOwn({ wasOpen, previousAtMs }: Beginning): boolean {
    return wasOpen || (previousAtMs !== undefined && this.#answeredAtMs > previousAtMs)
  }
}

/** What decides whose turn it is. */
export interface Turn {
  readonly key: string
  /** Something of it may have been done, so its window runs. */
  readonly isInDoubt: boolean
  /** When its last attempt began, or when it was named if there was none, in wall time. */
  readonly sinceMs: number
}

/** The order of turns: those whose window runs before those that were never sent; then whose last attempt is longest ago. */
export function compareTurns(one: Turn, other: Turn): number {
  return Number(other.isInDoubt) - Number(one.isInDoubt) || one.sinceMs - other.sinceMs
}
