/** The bank's page: it asks the customer, tells the server that takes the charge, and leads back to the shop. */
import { byId } from './dom.ts'
import { moneyText } from './order.ts'
import type { PanelRequest } from './panel-api.ts'

const asked = new URLSearchParams(location.search)
const charge = asked.get('payment') ?? ''
const shop = shopAddress(asked.get('back'))

byId('amount', HTMLElement).textContent = moneyText(Number(asked.get('amount')), asked.get('currency') ?? 'eur')
byId('payment', HTMLElement).textContent = charge
byId('back', HTMLAnchorElement).href = shop
byId('yes', HTMLButtonElement).addEventListener('click', () => void decide(true))
byId('no', HTMLButtonElement).addEventListener('click', () => void decide(false))

async function decide(isPaid: boolean): Promise<void> {
  const request: PanelRequest = { ask: 'conclude', charge, isPaid }
  try {
    const response = await fetch('./panel/ask', { method: 'POST', body: JSON.stringify(request) })
    if (!response.ok) throw new Error(`The bank answered ${response.status}`)
    location.assign(shop)
  } catch {
    byId('said', HTMLElement).textContent = 'We could not be reached. Please try again.'
  }
}

/** A bank does not send its customers wherever an address says. */
function shopAddress(given: string | null): string {
  const url = new URL(given ?? './', location.href)
  return url.origin === location.origin ? url.href : new URL('./', location.href).href
}
