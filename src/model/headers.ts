/**
 * Headers that a user or a dialect adds to a request: what may be set there at all. The key, the content type and what
 * tells of the body belong to the stored request.
 */
import { mustBe, refuse } from '../errors.ts'

/** What would change the meaning of the stored bytes, or the key. */
const FORBIDDEN = ['content-type', 'content-length', 'content-encoding', 'transfer-encoding', 'host', 'idempotency-key']

/** RFC 9110, 5.6.2 and 5.5: a token; visible characters, spaces and tabs, without spaces at the ends. */
const NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/
export const HEADER_VALUE: RegExp = /^(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?$/

/**
 * Reads headers, from an object or from anything that gives pairs, such as `Headers`.
 *
 * @param keyHeaderName the header that carries the key, which cannot be set either
 * @returns names in lower case
 * @throws {InvalidInputError} naming the header, never its value
 */
export function readHeaders(given: unknown, keyHeaderName: string): Readonly<Record<string, string>> {
  mustBe(typeof given === 'object' && given !== null, 'headers', 'an object of strings')
  const read: Record<string, string> = {}
  for (const [name, value] of pairsOf(given)) {
    const lower = name.toLowerCase()
    if (lower === keyHeaderName.toLowerCase() || FORBIDDEN.includes(lower)) {
      refuse(`headers.${lower}`, 'belongs to the stored request and cannot be set')
    }
    if (!NAME.test(lower) || typeof value !== 'string' || !HEADER_VALUE.test(value)) {
      refuse(`headers.${lower}`, 'is not a string that HTTP can carry')
    }
    read[lower] = value
  }
  return read
}

function pairsOf(given: object): [string, unknown][] {
  return Symbol.iterator in given ? [...(given as Iterable<[string, unknown]>)] : Object.entries(given)
}
