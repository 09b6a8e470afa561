/**
 * So many at a time, in order: for passes over the journal, which must neither start everything at once nor wait for each.
 */

/**
 * Does the work for each item, at most `most` at the same time (asked before each), and resolves when all are done; work never
 * rejects.
 */
export async function forEachOf<T>(
  items: AsyncIterable<T>,
  most: () => number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const working = new Set<Promise<void>>()
  for await (const item of items) {
    while (working.size > 0 && working.size >= most()) await Promise.race(working)
    const one: Promise<void> = work(item).finally(() => working.delete(one))
    working.add(one)
  }
  await Promise.all(working)
}
