/**
 * The bare loop that the SQLite journal is measured against: the same design and the same file (node:sqlite in a thread, WAL,
 * synchronous FULL, group commit of what waits), and nothing else. It makes no entry, checks nothing, looks for nothing that is
 * there already, copes with no other process and with no error. What the journal has to do beyond this is what it costs.
 */
import { randomUUID } from 'node:crypto'
import { Worker } from 'node:worker_threads'
import { sqliteJournal } from 'billonce/stores/sqlite'
import type { Work } from './journal-work.ts'
import { operationOf } from './journal-work.ts'

const THREAD = `
  const { parentPort, workerData, receiveMessageOnPort } = require('node:worker_threads')
  const { DatabaseSync } = require('node:sqlite')
  const db = new DatabaseSync(workerData)
  db.exec('PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 250')
  const statements = [
    db.prepare('INSERT INTO entries (endpoint, key, version, state, prunable_from_ms, is_lean, entry, scope, kind, subject, operation_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)'),
    db.prepare('UPDATE entries SET version = ?, state = ?, prunable_from_ms = ?, is_lean = ?, entry = ? WHERE key = ? AND endpoint = ? AND version = ?'),
  ]
  const begin = db.prepare('BEGIN IMMEDIATE')
  const commit = db.prepare('COMMIT')
  parentPort.on('message', (first) => {
    for (let message = { message: first }; message !== undefined; message = receiveMessageOnPort(parentPort)) {
      let writes = message.message
      for (let more = receiveMessageOnPort(parentPort); more !== undefined; more = receiveMessageOnPort(parentPort)) writes = writes.concat(more.message)
      begin.run()
      for (const [which, values] of writes) statements[which].run(...values)
      commit.run()
      parentPort.postMessage(writes.length)
    }
  })`

export interface BareLoop {
  readonly work: Work
  close(): Promise<void>
}

export async function bareLoop(path: string): Promise<BareLoop> {
  // The journal makes the file, so that the tables and indexes are the same.
  const maker = sqliteJournal({ path })
  await maker.countOpen()
  await maker.close()
  const worker = new Worker(THREAD, { eval: true, workerData: path })
  const waiting: (() => void)[] = []
  worker.on('message', (done: number) => {
    for (const resolve of waiting.splice(0, done)) resolve()
  })
  let outbox: unknown[] = []
  const flush = (): void => {
    worker.postMessage(outbox)
    outbox = []
  }
  const ask = (which: number, values: unknown[]): Promise<void> =>
    new Promise((resolve) => {
      waiting.push(resolve)
      outbox.push([which, values])
      if (outbox.length === 1) setImmediate(flush)
    })
  const { begun, settled } = operationOf()
  const { endpoint, scope, kind, subject } = begun
  const [begunText, settledText] = [JSON.stringify(begun), JSON.stringify(settled)]
  return {
    async work() {
      const key = randomUUID()
      const { operationId } = operationOf().begun
      await ask(0, [endpoint, key, 1, 'sending', null, 0, begunText, scope, kind, subject, operationId])
      await ask(1, [2, 'succeeded', Date.now(), 0, settledText, key, endpoint, 1])
    },
    async close() {
      await worker.terminate()
    },
  }
}
