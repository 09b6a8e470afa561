/** A config module as the help shows it: a dialect that can be asked, and credentials. */
import { standard } from 'billonce'
import type { BillingClientOptions } from 'billonce'

export const options: Partial<BillingClientOptions> = {
  baseUrl: process.env['BASE_URL'] ?? '',
  dialect: standard({ lookUp: { path: ({ key }) => `v1/operations/${key}` } }),
  credentials: ({ scope }) => ({ scope, headers: { authorization: `Bearer ${process.env['TOKEN']}` } }),
}
