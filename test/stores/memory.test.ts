/** The journal that forgets holds the contract too. */
import { describe, expect, test } from 'vitest'
import { forgetfulJournal } from '../../src/stores/memory.ts'
import { storeSuite } from '../../src/testing/store-suite.ts'

describe('forgetfulJournal', () => {
  const suite = storeSuite(() => {
    const store = forgetfulJournal()
    return { open: () => store, keeps: false, dispose: () => undefined }
  })
  for (const { name, run } of suite) test(`${name}`, run)

  test('it says that it forgets', () => {
    expect(forgetfulJournal().durable).toBe(false)
  })
})
