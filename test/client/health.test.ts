import { forgetfulJournal, JournalUnavailableError } from 'billonce'
import { loseReply, status } from 'billonce/testing'
import { expect, test } from 'vitest'
import { journalWith } from '../engine/tampering.ts'
import { coffee, settled, setUp, virtualTime } from '../support/world.ts'

virtualTime()

const nobodyToAsk = { persistence: 'unsupported', usedBytes: undefined, quotaBytes: undefined }
const nothing = { pending: 0, sending: 0, accepted: 0, unknown: 0 }

test('the report counts what is open by state, says since when, and what belongs to others', async () => {
  const { billing, another, receiver } = setUp({ client: { retry: { maxAttempts: 1 } } })
  expect(await billing.journalHealth()).toEqual({
    durable: false,
    ...nobodyToAsk,
    status: 'readable',
    open: nothing,
    oldestOpenAtMs: null,
    openElsewhere: 0,
  })
  await settled(billing.charge(coffee, { operationId: 'done' }))
  const sinceMs = Date.now()
  receiver.faults.add(loseReply({ times: 1 }))
  await settled(billing.charge(coffee, { operationId: 'unclear' }))
  await settled(billing.charge({ ...coffee, paymentMethod: 'pm_processing' }, { operationId: 'at the bank' }))
  receiver.faults.add(status(429, { times: 2 }))
  await settled(billing.charge(coffee, { operationId: 'waits' }))
  const other = another({ scope: 'other/test' })
  await settled(other.charge(coffee, { operationId: 'theirs' }))
  expect(await billing.journalHealth()).toMatchObject({
    status: 'readable',
    open: { pending: 1, sending: 1, accepted: 1, unknown: 0 },
    oldestOpenAtMs: sinceMs,
    openElsewhere: 1,
  })
  expect(await other.journalHealth()).toMatchObject({ open: { ...nothing, pending: 1 }, openElsewhere: 3 })
  expect(receiver.ledger.effects).toHaveLength(3)
})

test('a journal that cannot be read is reported, not thrown, and observers are told', async () => {
  const journal = journalWith(forgetfulJournal(), ({ method }, run) =>
    method === 'countOpen' ? Promise.reject(new JournalUnavailableError('No.', { fault: 'full' })) : run(),
  )
  const { billing, events } = setUp({ journal })
  expect(await billing.journalHealth()).toEqual({
    durable: false,
    ...nobodyToAsk,
    status: 'unavailable',
    fault: 'full',
  })
  expect(events).toMatchObject([{ type: 'storage-fault', step: 'read', fault: 'full' }])
})

test('the place is asked what it promises, and one that cannot answer does no harm', async () => {
  const storage = { persistence: 'persistent', usedBytes: 10, quotaBytes: 1000 } as const
  const asked = setUp({ journal: { ...forgetfulJournal(), storage: () => Promise.resolve(storage) } })
  expect(await asked.billing.journalHealth()).toMatchObject({ ...storage, status: 'readable' })
  const broken = setUp({ journal: { ...forgetfulJournal(), storage: () => Promise.reject(new Error('no')) } })
  expect(await broken.billing.journalHealth()).toMatchObject({ ...nobodyToAsk, status: 'readable' })
  const thrower = (): never => {
    throw new Error('no')
  }
  const worse = setUp({ journal: { ...forgetfulJournal(), storage: thrower } })
  expect(await worse.billing.journalHealth()).toMatchObject({ ...nobodyToAsk, status: 'readable' })
})
