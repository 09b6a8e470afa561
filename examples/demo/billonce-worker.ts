/**
 * A worker on billonce: takes up what the process before it left unfinished, then goes through its list. It does not retry,
 * makes no keys and keeps no list of what is done: that is what the library is for.
 */
import { join } from 'node:path'
import { createBillingClient, type Outcome } from 'billonce'
import { sqliteJournal } from 'billonce/stores/sqlite'
import { LANES, PATIENCE, readWork, type WorkItem } from './work.ts'

const [, , baseUrl = '', folder = ''] = process.argv

const journal = sqliteJournal({ path: join(folder, 'journal.sqlite') })
const billing = createBillingClient({ baseUrl, scope: 'demo/test', journal, retry: PATIENCE })

// What was under way when the last process died goes out again: the same key, the same bytes.
await billing.resume()

const work = (await readWork(join(folder, 'work.json'))).values()
await Promise.all(
  Array.from({ length: LANES }, async () => {
    for (const item of work) {
      // What was done before is answered from the journal, without a request.
      const outcome = await bill(item)
      if (outcome.status !== 'succeeded') console.error(`${item.id}: ${outcome.status}`)
    }
  }),
)

// Calls give up after some attempts; what they left open is still in the journal. A server would call `start()` once instead.
while ((await billing.resume()).waiting > 0);

await billing.close()
await journal.close()

/** The operationId is the business event, so it is the same in every process and at every try. */
function bill(item: WorkItem): Promise<Outcome> {
  const options = { operationId: item.id }
  switch (item.kind) {
    case 'charge':
      return billing.charge(item.params, options)
    case 'usage':
      return billing.recordUsage(item.params, options)
    case 'credits':
      return billing.consumeCredits(item.params, options)
  }
}
