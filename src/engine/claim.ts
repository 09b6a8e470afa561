/**
 * Claims: who works on an entry, so that others spare themselves the request. They save traffic; what keeps a second sender
 * harmless is one key and one body.
 */
import type { Claim, JournalEntry } from '../model/entry.ts'
import type { Context } from './context.ts'

/** Longer than a hidden tab's timers are held back (a minute), so that a throttled holder does not lose its claim. */
const SLACK_MS = 60_000

/** How long a claim lasts beyond what it is for. */
export function leaseMs(context: Context): number {
  return context.settings.policy.attemptTimeoutMs + SLACK_MS
}

/** A claim of this client for work that goes on until a time: one attempt's timeout longer, and some. */
export function claimUntil(context: Context, entry: JournalEntry, atMs: number): Claim {
  return {
    owner: context.owner(),
    // Versions rise with every change, so this rises with every taking.
    fence: entry.version + 1,
    untilMs: atMs + leaseMs(context),
  }
}

/** The process or tab that holds a claim, without the number of the client in it. */
export function holderOf(claim: Claim): string {
  return claim.owner.slice(0, claim.owner.lastIndexOf('#'))
}
