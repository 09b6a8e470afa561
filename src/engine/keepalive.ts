/**
 * How much of the room that browsers give to requests which outlive their page (`keepalive`) is ours. send.ts takes a share and
 * gives it back; which attempts ask for one is said in deliver.ts.
 */

/**
 * A keepalive request is refused, as a network error, when its body and those in flight of the same page come to more than 64 KiB
 * (Fetch standard, «HTTP-network-or-cache fetch», inflightKeepaliveBytes). Other scripts share this room, and Chromium holds
 * it until a reply is read to its end, so no more than half of it is ever ours.
 */
const SHARE_BYTES = 32 * 1024

/** Of all clients in the page. */
let inFlightBytes = 0

/** @returns gives the share back; `undefined` if the body does not fit into what is left */
export function takeShare(body: string): (() => void) | undefined {
  const bytes = new TextEncoder().encode(body).length
  if (inFlightBytes + bytes > SHARE_BYTES) return undefined
  inFlightBytes += bytes
  return () => {
    inFlightBytes -= bytes
  }
}
