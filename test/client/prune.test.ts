/** Pruning: it looks at what is due and at nothing else, where the journal can tell what that is. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { forgetfulJournal } from 'billonce'
import type { JournalStore } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import { coffee, setUp, viewsOf } from '../support/world.ts'

vi.setConfig({ testTimeout: 60_000 })

let folder = ''
const opened: JournalStore[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'billonce-'))
})
afterEach(async () => {
  await Promise.all(opened.splice(0).map((journal) => journal.close()))
  rmSync(folder, { recursive: true })
})

const journals: Readonly<Record<string, () => JournalStore>> = {
  'that tells what is due': () => sqliteJournal({ path: join(folder, 'journal.sqlite') }),
  'that does not': () => forgetfulJournal(),
}

describe.each(Object.entries(journals))('a journal %s', (_name, open) => {
  const made = (): { journal: JournalStore; seen: { lists: number; entries: number } } => {
    const inner = open()
    opened.push(inner)
    const seen = { lists: 0, entries: 0 }
    const journal: JournalStore = { ...inner, owner: inner.owner }
    journal.list = (...given) => {
      seen.lists += 1
      return inner.list(...given)
    }
    if (inner.listPrunable) {
      journal.listPrunable = async (of, due, limit, after) => {
        const page = await inner.listPrunable?.(of, due, limit, after)
        seen.entries += page?.entries.length ?? 0
        return page ?? { entries: [], unreadable: 0 }
      }
    }
    return { journal, seen }
  }

  test('loses bodies and names when they are due, once, and what is due is all that is looked at', async () => {
    const { journal, seen } = made()
    const { billing, another } = setUp({ journal })
    for (let number = 0; number < 5; number += 1) {
      await billing.charge(coffee, { operationId: `order-${number}` })
      await billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId: `export-${number}` })
    }
    // Nothing is due yet.
    expect(await billing.prune()).toEqual({ bodies: 0, operations: 0 })
    expect(seen.entries).toBe(0)
    await new Promise((resolve) => setTimeout(resolve, 5))
    const strict = another({ retention: { finalMs: 1, namesMs: { usage: 1 } } })
    expect(await strict.prune()).toEqual({ bodies: 5, operations: 5 })
    expect(await strict.prune()).toEqual({ bodies: 0, operations: 0 })
    if (journal.listPrunable) expect(seen).toEqual({ lists: 0, entries: 10 })
    expect((await viewsOf(strict)).map(({ operationId }) => operationId)).toEqual(
      Array.from({ length: 5 }, (_, number) => `order-${number}`),
    )
  })

  test('keeps names of its own for good, without their bodies', async () => {
    const { journal, seen } = made()
    const { billing } = setUp({
      journal,
      client: { names: 'own', retention: { finalMs: 1, namesMs: { usage: 1 } } },
    })
    await billing.recordUsage({ meter: 'exports', quantity: 1 }, { operationId: 'reading-1' })
    await new Promise((resolve) => setTimeout(resolve, 5))
    expect(await billing.prune()).toEqual({ bodies: 1, operations: 0 })
    expect(await billing.prune()).toEqual({ bodies: 0, operations: 0 })
    if (journal.listPrunable) expect(seen.entries).toBe(1)
    expect(await viewsOf(billing)).toHaveLength(1)
  })
})
