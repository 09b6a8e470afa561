/**
 * So many at a time, in order: for passes over the journal, which must neither start everything at once nor wait for each.
 */

/** Does the work for each item, at most `most` at the same time, and resolves when all are done; work never rejects. */
export async function forEachOf<T>(
  items: AsyncIterable<T>,
  most: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const working = new Set<Promise<void>>()
  for await (const item of items) {
    if (working.size >= most) await Promise.race(working)
    const one: Promise<void> = work(item).finally(() => working.delete(one))
    working.add(one)
  }
  await Promise.all(working)
}

/** Runs at most `most` at a time, in the order they came; for work that comes by itself and not from a list. */
export function limiter(most: number): (action: () => Promise<void>) => Promise<void> {
  let running = 0
  const waiting: (() => void)[] = []
  return async (action) => {
    if (running >= most) await new Promise<void>((resolve) => waiting.push(resolve))
    else running += 1
    try {
      await action()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else running -= 1
    }
  }
}
