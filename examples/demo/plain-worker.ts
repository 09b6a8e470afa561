/**
 * The worker that most of us have written: fetch, a timeout, retries with back-off, and a file of what is done. It is careful
 * in all that and goes wrong in one place, the key, which is made anew for each try.
 */
import { randomUUID } from 'node:crypto'
import { appendFile, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { LANES, PATIENCE, readWork, type WorkItem } from './work.ts'

const PATHS = { charge: 'v1/charges', usage: 'v1/usage', credits: 'v1/credits/consume' } as const
/** Of 4xx these may go away by themselves; others are bugs, and trying again does not help. */
const WORTH_A_RETRY: readonly number[] = [408, 409, 425, 429]

const [, , baseUrl = '', folder = ''] = process.argv
const doneFile = join(folder, 'done.txt')

const done = new Set((await readFile(doneFile, 'utf8').catch(() => '')).split('\n'))
const all = await readWork(join(folder, 'work.json'))

// What did not get through in all its tries comes again in the next round.
for (let left = all.filter(isLeft); left.length > 0; left = left.filter(isLeft)) {
  const work = left.values()
  await Promise.all(
    Array.from({ length: LANES }, async () => {
      for (const item of work) {
        if (!(await bill(item))) continue
        // After the success, never before it: a crash in between must not lose the operation.
        await appendFile(doneFile, `${item.id}\n`)
        done.add(item.id)
      }
    }),
  )
}

function isLeft(item: WorkItem): boolean {
  return !done.has(item.id)
}

/** @returns whether a receipt came back */
async function bill(item: WorkItem): Promise<boolean> {
  for (let attempt = 1; attempt <= PATIENCE.maxAttempts; attempt++) {
    const status = await post(PATHS[item.kind], item.params)
    if (status !== undefined && status < 300) return true
    if (status !== undefined && status < 500 && !WORTH_A_RETRY.includes(status)) {
      throw new Error(`${item.id} was refused with ${status}`)
    }
    await sleep(Math.random() * PATIENCE.baseDelayMs * 2 ** (attempt - 1))
  }
  return false
}

/** @returns the status, or nothing if no whole answer came */
async function post(path: string, params: object): Promise<number | undefined> {
  try {
    const response = await fetch(`${baseUrl}/${path}`, {
      method: 'POST',
      // Each try has a key of its own, so the receiver cannot know that it is asked for the same thing again.
      headers: { 'content-type': 'application/json', 'idempotency-key': randomUUID() },
      body: JSON.stringify(params),
      signal: AbortSignal.timeout(PATIENCE.attemptTimeoutMs),
    })
    const text = await response.text()
    // Half a receipt is none.
    if (response.ok) JSON.parse(text)
    return response.status
  } catch {
    return undefined
  }
}
