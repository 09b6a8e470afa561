import { createBillingClient } from 'billonce'
import { createReceiver, loseReply } from 'billonce/testing'

// A billing server in memory. It makes the charge, and then its first reply gets lost on the way back.
const receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
const baseUrl = 'https://api.example.com'
const billing = createBillingClient({ baseUrl, scope: 'org_42/test', fetch: receiver.fetch })

const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId: 'order-991' })
const { requests, effects } = receiver.ledger
console.log(`${outcome.status} (${outcome.source}); requests: ${requests.length}, charges made: ${effects.length}`)

await billing.close()
