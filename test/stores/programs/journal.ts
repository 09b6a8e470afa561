/**
 * One process at a journal, for tests with several of them: `journal.ts <command> <path> [number] [name]`. Prints JSON
 * lines, written at once, so that what was printed is what was acknowledged, also if it is killed the moment after.
 */
import { existsSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import type { JournalEntry } from '../../../src/model/entry.ts'
import { sqliteJournal } from '../../../src/stores/sqlite.ts'
import { sampleEntry } from '../../../src/testing/store-suite.ts'

const [command = '', path = '', number = '0', name = String(process.pid)] = process.argv.slice(2)
const count = Number(number)

function tell(line: unknown): void {
  writeSync(1, `${JSON.stringify(line)}\n`)
}

function named(index: number, state: JournalEntry['state'] = 'sending', version = 1): JournalEntry {
  return sampleEntry({ operationId: `${name}-${index}`, state, version })
}

const SLEEP = new Int32Array(new SharedArrayBuffer(4))
// Where each flush of sixteen processes takes its time, the last in line waits longer than a caller would.
const busyTimeoutMs = 100_000
const journal = sqliteJournal({ path, busyTimeoutMs })

async function run(): Promise<void> {
  switch (command) {
    // Bills `count` operations, a few at a time: written down, then settled.
    case 'bill': {
      let next = 0
      const one = async (): Promise<void> => {
        while (next < count) {
          const index = next++
          const { inserted } = await journal.insert(named(index), [])
          const replaced = await journal.replace(named(index, 'succeeded', 2))
          if (!inserted || !replaced) throw new Error(`Operation ${index} was refused.`)
        }
      }
      await Promise.all([one(), one(), one(), one()])
      tell({ done: count })
      await journal.close()
      break
    }
    // Claims what is deliverable and unclaimed until nothing is left.
    case 'claim': {
      const claimed: string[] = []
      // Both begin together, or one might be through before the other is there.
      await journal.knowsSinceMs('charge')
      tell('ready')
      while (!existsSync(`${path}-go`));
      for (;;) {
        const { entries } = await journal.listDeliverable(sampleEntry(), 1000)
        const free = entries.filter(({ claim }) => claim === null)
        if (free.length === 0) break
        for (const entry of free.slice(0, 5)) {
          const claim = { owner: journal.owner, fence: 1, untilMs: entry.namedAtMs + 60_000 }
          if (await journal.replace({ ...entry, version: entry.version + 1, claim })) claimed.push(entry.key)
        }
      }
      tell(claimed)
      await journal.close()
      break
    }
    // Waits at a barrier for each round and then opens that round's journal, which nobody has created yet.
    case 'open': {
      tell('ready')
      for (let round = 0; round < count; round++) {
        // A short sleep and no hot loop: sixteen of those would leave nothing for whoever opens the barrier.
        while (!existsSync(join(path, `go-${round}`))) Atomics.wait(SLEEP, 0, 0, 0.2)
        const store = sqliteJournal({ path: join(path, `round-${round}`, 'journal.sqlite'), busyTimeoutMs })
        const { inserted } = await store.insert(named(round), [])
        await store.close()
        tell({ round, inserted })
      }
      break
    }
    // Opens the journal, writes one entry and closes it again, so many times.
    case 'reopen': {
      for (let round = 0; round < count; round++) {
        const store = sqliteJournal({ path, busyTimeoutMs })
        await store.insert(named(round), [])
        await store.close()
      }
      break
    }
    // Inserts until it is killed.
    case 'stream': {
      let next = 0
      const one = async (): Promise<void> => {
        for (;;) {
          const index = next++
          await journal.insert(named(index), [])
          tell(index)
        }
      }
      await Promise.all([one(), one(), one()])
      break
    }
    // Dies without warning the moment the last of `count` inserts is acknowledged.
    case 'crash': {
      for (let index = 0; index < count; index++) await journal.insert(named(index), [])
      process.kill(process.pid, 'SIGKILL')
      break
    }
    // One insert, and then nothing that would keep it alive.
    case 'insert': {
      try {
        tell(await journal.insert(named(0), []))
      } catch (error) {
        const { fault, message } = error as { fault?: string; message?: string }
        tell({ fault, message })
      }
      break
    }
    case 'owner': {
      tell(journal.owner)
      await journal.knowsSinceMs('charge')
      setInterval(() => undefined, 1000)
      break
    }
    default:
      throw new Error(`No such command: ${command}`)
  }
}

// Not awaited at the top level, which a bundle in CommonJS cannot have; a failure ends the process all the same.
void run()
