/**
 * The test cards: what the page shows of each, and the token that goes into the charge. A page never has the number of a
 * card; its payment provider gives it a token like these.
 */

export interface Card {
  readonly token: string
  readonly brand: string
  readonly name: string
  /** What a test does with it; a page with real cards has no such line. */
  readonly hint: string
}

export const CARDS: readonly [Card, ...Card[]] = [
  { token: 'pm_good', brand: 'Visa', name: '•••• 4242', hint: 'Goes through' },
  { token: 'pm_declined', brand: 'MC', name: '•••• 0002', hint: 'Is declined' },
  { token: 'pm_requires_action', brand: 'Visa', name: '•••• 3220', hint: 'Bank asks to confirm' },
  { token: 'pm_processing', brand: 'SEPA', name: '•••• 3000', hint: 'Takes days to clear' },
  { token: 'pm_lost_reply', brand: 'MC', name: '•••• 5100', hint: 'First reply gets lost' },
  { token: 'pm_slow', brand: 'Visa', name: '•••• 6008', hint: 'Takes four seconds' },
  { token: 'pm_saved_error', brand: 'Amex', name: '•••• 9005', hint: 'Server fails for good' },
]

export function cardOf(token: unknown): Card | undefined {
  return CARDS.find((card) => card.token === token)
}
