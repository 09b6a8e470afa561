/** A config module with a look-up of its own, which finds something else for each operation. */
import type { LookUp } from 'billonce'

export const lookUp: LookUp = ({ operationId }) => {
  switch (operationId) {
    case 'order-1':
      return { found: 'applied', receipt: { id: 'ch_1', amount: 450, currency: 'eur' } }
    case 'order-2':
      return { found: 'nothing' }
    case 'order-3':
      return { found: 'applied', receipt: { id: 'ch_3', amount: 1, currency: 'eur' } }
    default:
      throw new Error('the provider is down')
  }
}
