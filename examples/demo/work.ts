/**
 * The list of work that both workers of the demo get, and the patience that both have. How each goes about it is its own.
 */
import { readFile } from 'node:fs/promises'
import type { ChargeParams, CreditsParams, UsageParams } from 'billonce'

/** One billing write that is to take effect once; `id` names the business event. */
export type WorkItem =
  | { readonly id: string; readonly kind: 'charge'; readonly params: ChargeParams }
  | { readonly id: string; readonly kind: 'usage'; readonly params: UsageParams }
  | { readonly id: string; readonly kind: 'credits'; readonly params: CreditsParams }

/** Short, since the demo's receiver is near and the watcher's time is dear; in production these are seconds. */
export const PATIENCE = { maxAttempts: 6, attemptTimeoutMs: 500, baseDelayMs: 50 } as const

/** How many operations a worker has under way at the same time. */
export const LANES = 12

/** The file that the demo writes before it starts the workers. */
export async function readWork(file: string): Promise<readonly WorkItem[]> {
  // Written by plan.ts a moment ago, in this type.
  return JSON.parse(await readFile(file, 'utf8')) as readonly WorkItem[]
}
