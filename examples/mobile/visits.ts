/**
 * Visits as this phone numbers them. A number is taken once and belongs to one visit for good, whatever happens to the page:
 * it is the business event that the billing operation is named after.
 */
import { get, keys, getMany, set, update } from 'idb-keyval'
import { phoneStore } from './phone-store.ts'

export interface Visit {
  /** From 1, over all visits of this phone. */
  readonly number: number
  /** What the operation is called: phone and number. */
  readonly operationId: string
  /** Whose visit it is. */
  readonly scope: string
  readonly customer: string
  readonly site: string
  readonly minutes: number
  readonly endedAtMs: number
  /** Whether the journal has taken it, durably. From then on only the journal knows how it stands. */
  readonly isNoted: boolean
}

const PREFIX = 'visit:'

export async function phoneName(): Promise<string> {
  // Made once and kept beside the numbers: if one is lost so is the other, and no number is given twice under one name.
  await update<string>('phone-name', (name) => name ?? newName(), phoneStore())
  return (await get<string>('phone-name', phoneStore())) ?? ''
}

/** Writes a visit down under the next number. */
export async function addVisit(visit: Omit<Visit, 'number' | 'operationId' | 'isNoted'>): Promise<Visit> {
  const phone = await phoneName()
  let number = 0
  // One transaction, so two tabs never get the same number. A crash before the next line leaves a gap, which does no harm.
  await update<number>('last-number', (last = 0) => (number = last + 1), phoneStore())
  const added: Visit = { ...visit, number, operationId: `visit:${phone}:${number}`, isNoted: false }
  await set(keyOf(number), added, phoneStore())
  return added
}

export async function markNoted(visit: Visit): Promise<void> {
  await set(keyOf(visit.number), { ...visit, isNoted: true }, phoneStore())
}

/** The visits of this scope, the latest first. */
export async function visitsOf(scope: string): Promise<readonly Visit[]> {
  const names = (await keys<string>(phoneStore())).filter((key) => key.startsWith(PREFIX))
  const found = await getMany<Visit | undefined>(names, phoneStore())
  const visits = found.filter((visit) => visit !== undefined)
  return visits.filter((visit) => visit.scope === scope).toSorted((a, b) => b.number - a.number)
}

function keyOf(number: number): string {
  return PREFIX + String(number).padStart(8, '0')
}

function newName(): string {
  return [...crypto.getRandomValues(new Uint8Array(4))].map((byte) => byte.toString(16).padStart(2, '0')).join('')
}
