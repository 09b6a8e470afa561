/**
 * The order of system calls, as the kernel saw it: the journal's sync has returned before the first byte of the request
 * leaves, for a first attempt and for a second one. Needs strace (Linux); where it is missing or not allowed the test is
 * skipped and says so.
 */
import { execFile, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { createReceiver, status } from 'billonce/testing'
import { startServer } from 'billonce/testing/server'
import { expect, test } from 'vitest'
import { nodeArguments } from '../support/node-program.ts'

const canTrace = spawnSync('strace', ['-f', '-o', '/dev/null', 'true']).status === 0
if (!canTrace)
  process.stderr.write('SKIPPED: the order of system calls was not checked, strace is missing or not allowed here\n')

/** What happened, in the order in which the kernel finished or began it. */
function readTrace(text: string): ('sync' | 'request' | 'journal-write')[] {
  return text.split('\n').flatMap((line) => {
    // A call that was interrupted by another thread's stands in two lines; a sync counts where it returned.
    if (/(?:fsync|fdatasync)(?:\(| resumed)/.test(line) && line.endsWith(' = 0')) return ['sync' as const]
    if (/"POST \/v1\//.test(line)) return ['request' as const]
    if (/pwrite64\(/.test(line)) return ['journal-write' as const]
    return []
  })
}

test.skipIf(!canTrace)('G06: nothing of the journal is unsynced when the first byte of a request leaves', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'billonce-order-'))
  try {
    const receiver = createReceiver({ faults: [status(503, { attempt: 1 })] })
    await using server = await startServer(receiver)
    const program = fileURLToPath(new URL('programs/worker.ts', import.meta.url))
    const trace = join(folder, 'trace')
    await promisify(execFile)('strace', [
      '-f',
      '-s',
      '40',
      '-e',
      'trace=fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg',
      '-o',
      trace,
      process.execPath,
      ...nodeArguments,
      program,
      join(folder, 'journal.sqlite'),
      server.url,
      '1',
    ])
    const events = readTrace(readFileSync(trace, 'utf8'))
    const requests = events.flatMap((event, index) => (event === 'request' ? [index] : []))
    expect(requests).toHaveLength(2)
    let since = 0
    for (const request of requests) {
      const before = events.slice(since, request)
      // Something was written for this attempt, and it was synced after the last write.
      expect(before).toContain('journal-write')
      expect(before.lastIndexOf('sync')).toBeGreaterThan(before.lastIndexOf('journal-write'))
      since = request + 1
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
