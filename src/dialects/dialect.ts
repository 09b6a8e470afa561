/**
 * The contract of a dialect: how one provider speaks. A dialect is pure; it states facts about its receiver (each with its
 * source) and reads replies, and it never waits, sends or looks at a clock.
 */
import type { JsonObject } from '../model/canonical.ts'
import type { KeyLimits } from '../model/key.ts'
import type { AnyWriteDefinition, EncodedBody } from '../model/operation.ts'
import type { Finding } from '../model/evidence.ts'
import type { LookUpRules } from '../model/judgement.ts'
import type { HttpReply, Verdict } from '../model/verdict.ts'

/** What a dialect needs to know of an entry to read its replies. */
export interface Asked {
  readonly definition: AnyWriteDefinition
  /** The fields a receipt has to repeat, as they were asked. */
  readonly expected: JsonObject
}

/** How a receiver is asked what became of a write. */
export interface DialectLookUp extends LookUpRules {
  /** Where to ask, relative to the base address; asked with GET and the client's credentials. */
  path(about: { readonly key: string; readonly kind: string }): string
  /** What the reply says; `unclear` if it says nothing either way, and then nothing changes. */
  read(reply: HttpReply, asked: Asked): Finding | { readonly found: 'unclear' }
}

export interface Dialect {
  /** Stays the same for ever: entries are read by the dialect they were sent under. */
  readonly name: string
  /** Rises when replies are read differently or the request changes. */
  readonly version: number
  /** The date (YYYY-MM-DD) on which the facts here were last checked against the receiver's documentation. */
  readonly checkedOn: string
  readonly keyLimits: KeyLimits
  /** The header that carries a key. */
  keyHeader(key: string): { readonly name: string; readonly value: string }
  /** Headers frozen with each entry, such as the version of an API. */
  readonly headers: Readonly<Record<string, string>>
  /** How long the receiver remembers a key of this write, in milliseconds, or that it does not say. */
  keyRetentionMs(kind: string): number | 'unpublished'
  /** The longest that the receiver may work on one request, in milliseconds. */
  readonly longestRequestMs: number
  /** `false`: the receiver takes no key for this write, so it is sent once and never again by itself. */
  takesKey(kind: string): boolean
  /** Whether the receiver keeps a rejection under the key; if not, the same key runs again after one. */
  keepsRejections(kind: string): boolean
  /** Path and body of a write, where they differ from the definition's own. */
  encode(definition: AnyWriteDefinition, fields: JsonObject): EncodedBody & { readonly path: string }
  /** How old an event of this write may be for the receiver to accept it, in milliseconds; `undefined`: as old as it likes. */
  acceptanceMs?(kind: string): number | undefined
  /** Absent where the receiver cannot be asked. */
  readonly lookUp?: DialectLookUp | undefined
  /** What a complete reply means. A lost reply needs no dialect: it is unclear. */
  classify(reply: HttpReply, asked: Asked): Verdict
}
