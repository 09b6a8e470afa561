/**
 * A process of Node as a holder of claims, for the journals that processes share: its name, and whether the holder of another
 * name is certainly gone.
 */

/** Under a global name, so that two copies of this library in one process are one owner. */
const OWNER = Symbol.for('billonce.owner')

interface Holder {
  /** The machine; in a container also the space in which its process ids count, as two may have one name and one file. */
  readonly place: string
  readonly pid: number
  readonly threadId: number
}

export function ownerOfProcess(): string {
  const site = globalThis as { [OWNER]?: string }
  site[OWNER] ??= textOf(holderHere())
  return site[OWNER]
}

function textOf({ place, pid, threadId }: Holder): string {
  return `${pid}/${threadId}/${crypto.getRandomValues(new Uint32Array(2)).join('-')}/${place}`
}

function holderHere(): Holder {
  const threadId = builtin('node:worker_threads')?.threadId ?? 0
  return { place: `${builtin('node:os')?.hostname() ?? ''}/${pidSpace()}`, pid: globalThis.process?.pid ?? 0, threadId }
}

function pidSpace(): string {
  try {
    return builtin('node:fs')?.readlinkSync('/proc/self/ns/pid') ?? ''
  } catch {
    // Not on Linux, or no /proc.
    return ''
  }
}

/**
 * Whether a holder is certainly gone. A process id may have been given to a new process meanwhile; then the old one looks
 * alive, and its lease decides, which is late but safe. The other way round cannot be: an id is free only once its process
 * is gone. Another machine or thread cannot be asked at all.
 */
export function isGone(owner: string): boolean {
  const own = ownerOfProcess()
  if (owner === own) return false
  const [, pid = '', threadId = '', place = ''] = /^(\d+)\/(\d+)\/[\d-]+\/(.*)$/s.exec(owner) ?? []
  const here = holderHere()
  if (pid === '' || place !== here.place) return false
  // The same thread of the same process id with another random part: this process came after it.
  if (Number(pid) === here.pid) return Number(threadId) === here.threadId
  try {
    globalThis.process.kill(Number(pid), 0)
    return false
  } catch (error) {
    return (error as { code?: unknown }).code === 'ESRCH'
  }
}

/** A module of Node's, or `undefined` where this is not Node. */
export function builtin<Id extends 'node:fs' | 'node:os' | 'node:path' | 'node:worker_threads'>(
  id: Id,
): ReturnType<typeof process.getBuiltinModule<Id>> | undefined {
  return 'process' in globalThis ? globalThis.process.getBuiltinModule?.(id) : undefined
}
