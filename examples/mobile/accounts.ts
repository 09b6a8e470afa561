/** The demo's technicians and where their rounds lead. Data only: the office reads it too. */

export interface Site {
  /** The customer who pays for the minutes. */
  readonly customer: string
  readonly name: string
  readonly what: string
}

export interface Account {
  readonly id: string
  readonly name: string
  readonly round: string
  /** Whose billing operations these are: part of every key, so one account's visits are never another's. */
  readonly scope: string
  readonly token: string
  readonly sites: readonly Site[]
}

export const accounts: readonly Account[] = [
  {
    id: 'maren',
    name: 'Maren Voss',
    round: 'Boilers, harbour',
    scope: 'rounds/test/maren',
    token: 'demo-token-maren',
    sites: [
      { customer: 'harbour-mill', name: 'Harbour Mill', what: 'Boiler room, B2' },
      { customer: 'linden-court', name: 'Linden Court', what: 'Heat pump' },
      { customer: 'st-anne', name: 'St Anne’s School', what: 'Plant room' },
      { customer: 'quay-baths', name: 'Quay Baths', what: 'Pool heating' },
    ],
  },
  {
    id: 'jonas',
    name: 'Jonas Okoro',
    round: 'Lifts, old town',
    scope: 'rounds/test/jonas',
    token: 'demo-token-jonas',
    sites: [
      { customer: 'arcade', name: 'Market Arcade', what: 'Lifts 1 and 2' },
      { customer: 'tower-house', name: 'Tower House', what: 'Goods lift' },
      { customer: 'museum', name: 'Tram Museum', what: 'Platform lift' },
      { customer: 'clinic', name: 'Bridge Clinic', what: 'Bed lift' },
    ],
  },
]
