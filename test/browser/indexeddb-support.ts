/** What the tests of the IndexedDB journal share: databases of their own, and ways to break IndexedDB under the journal. */
import { indexedDbJournal } from 'billonce/stores/indexeddb'
import { onTestFinished, vi } from 'vitest'
import type { JournalStore } from '../../src/stores/store.ts'

let count = 0

/** A name that no other test uses; what is kept under it is deleted when the test ends. */
export function newName(): string {
  const name = `test-${Date.now()}-${(count += 1)}`
  onTestFinished(async () => {
    vi.restoreAllMocks()
    await deleteDatabase(name)
  })
  return name
}

/** A journal that is closed when the test ends, with a database of its own unless a name is given. */
export function openJournal(name: string = newName(), openTimeoutMs?: number): JournalStore {
  const journal = indexedDbJournal({ name, openTimeoutMs })
  onTestFinished(() => {
    vi.restoreAllMocks()
    return journal.close()
  })
  return journal
}

/** Waits for connections that are still open; Chromium says `blocked` also of those that were closed a moment ago. */
export function deleteDatabase(name: string, factory: IDBFactory = indexedDB): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = factory.deleteDatabase(name)
    request.onsuccess = () => resolve()
    request.onerror = () => reject(request.error)
  })
}

/** A connection past the journal; `upgrade` runs if the version is new. It never lets go by itself. */
export function openRaw(
  name: string,
  version?: number,
  upgrade: (request: IDBOpenDBRequest) => void = () => {},
): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, version)
    request.onupgradeneeded = () => upgrade(request)
    request.onerror = () => reject(request.error)
    request.onsuccess = () => {
      onTestFinished(() => request.result.close())
      resolve(request.result)
    }
  })
}

/** A request that fires nothing, ever. */
export function deadRequest(): IDBOpenDBRequest {
  // Only handlers are set on it.
  return new EventTarget() as IDBOpenDBRequest
}

/** The method as it is before a spy takes its place, to be called with `apply`. */
export function methodOf<T, K extends keyof T>(prototype: T, name: K): T[K] {
  return prototype[name]
}

/** Connections that are opened from here on, in order. */
export function spyOnConnections(): IDBDatabase[] {
  const connections: IDBDatabase[] = []
  const real = methodOf(IDBFactory.prototype, 'open')
  vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(function (this: IDBFactory, ...args) {
    const request = real.apply(this, args)
    request.addEventListener('success', () => connections.push(request.result))
    return request
  })
  return connections
}

export function isClosed(connection: IDBDatabase): boolean {
  try {
    connection.transaction(connection.objectStoreNames[0] ?? '')
    return false
  } catch (error) {
    return (error as Error).name === 'InvalidStateError'
  }
}

/** Calls `broken` with every transaction that the journal makes. */
export function onTransaction(broken: (transaction: IDBTransaction, index: number) => void): {
  readonly count: number
} {
  const real = methodOf(IDBDatabase.prototype, 'transaction')
  const seen = { count: 0 }
  vi.spyOn(IDBDatabase.prototype, 'transaction').mockImplementation(function (this: IDBDatabase, ...args) {
    const transaction = real.apply(this, args)
    if (args[1] === 'readwrite') {
      broken(transaction, seen.count)
      seen.count += 1
    }
    return transaction
  })
  return seen
}

/** Puts another value in the place of a property of a global object until the test ends. */
export function replaceProperty(object: object, name: string, descriptor: PropertyDescriptor): void {
  const before = Object.getOwnPropertyDescriptor(object, name)
  Object.defineProperty(object, name, { ...descriptor, configurable: true })
  onTestFinished(() => {
    if (before) Object.defineProperty(object, name, before)
    else Reflect.deleteProperty(object, name)
  })
}
