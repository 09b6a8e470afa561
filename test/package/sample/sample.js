/** A charge as any application would make it; which journal it gets is what its bundler chose. */
import { createBillingClient, forgetfulJournal } from 'billonce'

export async function pay({ baseUrl, operationId, forgetful = false }) {
  const billing = createBillingClient({
    baseUrl,
    scope: 'org_42/test',
    headers: { authorization: 'Bearer t' },
    ...(forgetful ? { journal: forgetfulJournal() } : {}),
  })
  try {
    const outcome = await billing.charge({ amount: 5000, currency: 'usd' }, { operationId })
    const { status, source, attempts, durable, key } = outcome
    return { status, source, attempts, durable, key }
  } catch (error) {
    const { name, code, fault, message, sentByThisCall } = error
    return { name, code, fault, message, sentByThisCall }
  } finally {
    await billing.close()
  }
}

/** What an application does first when it starts. */
export async function resume({ baseUrl }) {
  const billing = createBillingClient({ baseUrl, scope: 'org_42/test', headers: { authorization: 'Bearer t' } })
  const { total, succeeded } = await billing.resume()
  await billing.close()
  return { total, succeeded }
}

/** What a render on a server does with it. */
export function construct({ baseUrl }) {
  return createBillingClient({ baseUrl, scope: 'org_42/test', headers: { authorization: 'Bearer t' } })
}
