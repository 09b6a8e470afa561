/**
 * The hooks in real pages, under StrictMode, on a real IndexedDB: what is sent, what takes effect, and what a component sees
 * that comes, goes and comes back. When the journal is read is in test/react/known.test.ts.
 */
import { cleanup, fireEvent, render, screen, waitFor } from '@testing-library/react'
import type { BillingClient, BillingClientOptions } from 'billonce'
import { createBillingClient, defineWrite } from 'billonce'
import { useOpenOperations, useOperation } from 'billonce/react'
import type { OpenOperationsState, Operation, OperationState, SettledState, StartOptions } from 'billonce/react'
import { createReceiver, loseReply } from 'billonce/testing'
import type { Receiver } from 'billonce/testing'
import { createElement, StrictMode, useEffect } from 'react'
import type { ReactElement } from 'react'
import { hydrateRoot } from 'react-dom/client'
import { renderToString } from 'react-dom/server.browser'
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest'
import { Checkout, OpenPayments } from '../../examples/react-checkout.tsx'
import { newName, openJournal } from './indexeddb-support.ts'
import type { PageWire } from './react-page.ts'

const coffee = { amount: 450, currency: 'eur', paymentMethod: 'pm_card' } as const

let unhandled: unknown[]
const onUnhandled = (event: PromiseRejectionEvent): void => void unhandled.push(event.reason)
beforeEach(() => {
  unhandled = []
  window.addEventListener('unhandledrejection', onUnhandled)
})
afterEach(() => {
  cleanup()
  window.removeEventListener('unhandledrejection', onUnhandled)
  // G37: whatever a call came to, nothing was thrown into nowhere.
  expect(unhandled).toEqual([])
})

interface World {
  readonly receiver: Receiver
  readonly billing: BillingClient
  /** Another client on the same database: the page after a reload, or another tab. */
  readonly reloaded: (options?: Partial<BillingClientOptions>) => BillingClient
  /** Requests that the page has sent, whether or not they have arrived. */
  readonly sent: { count: number }
  /** Holds requests on the wire until it is called. */
  readonly release: () => void
}

function setUp(options: { receiver?: Receiver; isHeld?: boolean; client?: Partial<BillingClientOptions> } = {}): World {
  const receiver = options.receiver ?? createReceiver()
  const name = newName()
  const sent = { count: 0 }
  let release = (): void => {}
  const gate = options.isHeld
    ? new Promise<void>((resolve) => {
        release = resolve
      })
    : Promise.resolve()
  const make = (more: Partial<BillingClientOptions> = {}): BillingClient => {
    const billing = createBillingClient({
      baseUrl: 'https://billing.test/',
      scope: 'org_42/test',
      journal: openJournal(name),
      headers: { authorization: 'Bearer t' },
      fetch: async (...args) => {
        sent.count += 1
        await gate
        return await receiver.fetch(...args)
      },
      retry: { baseDelayMs: 1, maxDelayMs: 5 },
      ...more,
    })
    onTestFinished(async () => {
      release()
      await billing.close()
    })
    return billing
  }
  return { receiver, billing: make(options.client), reloaded: make, sent, release }
}

/** Of the component of the documents. Its button is never `disabled`, so that it keeps the focus. */
const mayPay = (button: HTMLButtonElement): boolean => button.ariaDisabled === 'false'

const inStrictMode = (element: ReactElement): ReactElement => createElement(StrictMode, null, element)

function wordOf(state: OperationState): string {
  switch (state.phase) {
    case 'idle':
      return state.isReading ? 'reading' : 'idle'
    case 'working':
      return 'working'
    case 'known':
      return state.outcome.status
    case 'error':
      return `${state.error.code} beside ${state.outcome?.status ?? 'nothing'}`
  }
}

interface PayProps {
  readonly billing: BillingClient
  readonly operationId?: string
  readonly amount?: number
  readonly paymentMethod?: string
  readonly options?: StartOptions<never>
  /** Each word as it was rendered. */
  readonly words?: string[]
  readonly results?: SettledState[]
}

/** A button that pays and says what is known. */
function Pay({ billing, operationId = 'order-1', options, words, results, ...params }: PayProps): ReactElement {
  const { state, start } = useOperation(billing, 'charge', { operationId })
  const word = wordOf(state)
  words?.push(word)
  const pay = async (): Promise<void> => {
    const result = await start({ ...coffee, ...params }, options)
    results?.push(result)
  }
  return createElement('button', { onClick: () => void pay() }, word)
}

const button = (): HTMLElement => screen.getByRole('button')
const says = (word: string): Promise<void> => waitFor(() => expect(button().textContent).toBe(word), { timeout: 5000 })

describe('StrictMode', () => {
  test('mounting sends nothing; a click is one request and one effect', async () => {
    const { billing, receiver, sent } = setUp()
    render(inStrictMode(createElement(Pay, { billing })))
    expect(button().textContent).toBe('reading')
    await says('idle')
    expect(sent.count).toBe(0)
    fireEvent.click(button())
    expect(button().textContent).toBe('working')
    await says('succeeded')
    expect(sent.count).toBe(1)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('G61: a charge begun in an effect, which StrictMode runs twice, is one request and one effect', async () => {
    const { billing, receiver, sent } = setUp()
    let effects = 0
    const PayOnMount = (): ReactElement => {
      const { state, start } = useOperation(billing, 'charge', { operationId: 'order-1' })
      useEffect(() => {
        effects += 1
        void start(coffee)
      }, [start])
      return createElement('button', null, wordOf(state))
    }
    render(inStrictMode(createElement(PayOnMount)))
    await says('succeeded')
    expect(effects).toBe(2)
    expect(sent.count).toBe(1)
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

test('G60: a double click is one operation, and both are told what it came to', async () => {
  const { billing, receiver, sent } = setUp()
  const results: SettledState[] = []
  render(inStrictMode(createElement(Pay, { billing, results })))
  fireEvent.click(button())
  fireEvent.click(button())
  await says('succeeded')
  await waitFor(() => expect(results).toHaveLength(2))
  const keys = results.map((result) => result.phase === 'known' && result.outcome.key)
  expect(new Set(keys).size).toBe(1)
  // A third after success is answered from the journal.
  fireEvent.click(button())
  await waitFor(() => expect(results).toHaveLength(3))
  expect(sent.count).toBe(1)
  expect(receiver.ledger.effects).toHaveLength(1)
})

describe('a component that is unmounted', () => {
  test('while the charge is on the wire does not stop it; the next one sees it run, and then what it came to', async () => {
    const { billing, receiver, sent, release } = setUp({ isHeld: true })
    const errors = vi.spyOn(console, 'error')
    const words: string[] = []
    const first = render(inStrictMode(createElement(Pay, { billing, words })))
    fireEvent.click(button())
    await waitFor(() => expect(sent.count).toBe(1))
    first.unmount()
    const rendered = words.length

    render(inStrictMode(createElement(Pay, { billing })))
    expect(button().textContent).toBe('working')
    release()
    await says('succeeded')
    expect(sent.count).toBe(1)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(words).toHaveLength(rendered)
    expect(errors).not.toHaveBeenCalled()
  })

  test('and comes back after the end sees the outcome at once', async () => {
    const { billing, receiver, sent, release } = setUp({ isHeld: true })
    const first = render(inStrictMode(createElement(Pay, { billing })))
    fireEvent.click(button())
    await waitFor(() => expect(sent.count).toBe(1))
    first.unmount()
    release()
    await waitFor(() => expect(receiver.ledger.effects).toHaveLength(1))
    await waitFor(async () =>
      expect(await billing.find({ kind: 'charge', operationId: 'order-1' })).toMatchObject({ status: 'succeeded' }),
    )
    const words: string[] = []
    render(inStrictMode(createElement(Pay, { billing, words })))
    await says('succeeded')
    expect(new Set(words)).toEqual(new Set(['succeeded']))
    expect(sent.count).toBe(1)
  })

  test('does not say that nothing was begun before it has looked again: another tab may have begun it', async () => {
    const { billing, reloaded, sent } = setUp()
    const first = render(inStrictMode(createElement(Pay, { billing })))
    await says('idle')
    first.unmount()
    await reloaded().charge(coffee, { operationId: 'order-1' })
    const words: string[] = []
    render(inStrictMode(createElement(Pay, { billing, words })))
    await says('succeeded')
    expect(new Set(words)).toEqual(new Set(['reading', 'succeeded']))
    expect(sent.count).toBe(1)
  })

  test('shows the error of a call again when it comes back', async () => {
    const { billing } = setUp()
    const first = render(inStrictMode(createElement(Pay, { billing, amount: 0.5 })))
    await says('idle')
    fireEvent.click(button())
    await says('ERR_INVALID_INPUT beside nothing')
    first.unmount()
    render(inStrictMode(createElement(Pay, { billing })))
    expect(button().textContent).toBe('ERR_INVALID_INPUT beside nothing')
    fireEvent.click(button())
    await says('succeeded')
  })
})

test('all components that name an operation see the same, whoever began it', async () => {
  const { billing, sent } = setUp()
  render(inStrictMode(createElement('div', null, createElement(Pay, { billing }), createElement(Pay, { billing }))))
  const [one, other] = screen.getAllByRole('button')
  fireEvent.click(one!)
  expect([one!.textContent, other!.textContent]).toEqual(['working', 'working'])
  await waitFor(() => expect([one!.textContent, other!.textContent]).toEqual(['succeeded', 'succeeded']))
  expect(sent.count).toBe(1)
})

describe('after a reload', () => {
  test('what is open is shown as such, nothing is sent by mounting, and it is live', async () => {
    const receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
    const { billing, reloaded, sent } = setUp({ receiver, client: { retry: { maxAttempts: 1 } } })
    const before = render(inStrictMode(createElement(Pay, { billing })))
    fireEvent.click(button())
    await says('unknown')
    before.unmount()
    await billing.close()

    const after = reloaded()
    const words: string[] = []
    render(inStrictMode(createElement(Pay, { billing: after, words })))
    await says('unknown')
    expect(new Set(words)).toEqual(new Set(['reading', 'unknown']))
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect(sent.count).toBe(1)

    after.start()
    await says('succeeded')
    expect(sent.count).toBe(2)
    expect(receiver.ledger.effects).toHaveLength(1)
  })

  test('what is settled is shown as such, and a click on it asks the journal only', async () => {
    const { billing, reloaded, sent } = setUp()
    await billing.charge(coffee, { operationId: 'order-1' })
    await billing.close()
    const results: SettledState[] = []
    render(inStrictMode(createElement(Pay, { billing: reloaded(), results })))
    await says('succeeded')
    fireEvent.click(button())
    await waitFor(() => expect(results).toMatchObject([{ phase: 'known', outcome: { source: 'journal' } }]))
    expect(sent.count).toBe(1)
  })

  test('what another tab settles is seen without an event', async () => {
    const receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
    const { billing, reloaded, sent } = setUp({ receiver, client: { retry: { maxAttempts: 1 } } })
    render(inStrictMode(createElement(Pay, { billing })))
    fireEvent.click(button())
    await says('unknown')
    await reloaded().resume()
    await says('succeeded')
    expect(sent.count).toBe(2)
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

test('what another window begins and ends is shown here too, though nothing was known of it and nobody looks', async () => {
  const { billing, reloaded, sent } = setUp()
  const words: string[] = []
  const here = render(inStrictMode(createElement(Pay, { billing, words })))
  await says('idle')
  const other = render(inStrictMode(createElement(Pay, { billing: reloaded() })))
  const [mine, theirs] = [here, other].map(({ container }) => container.querySelector('button')!)
  await waitFor(() => expect(theirs!.textContent).toBe('idle'))
  fireEvent.click(theirs!)
  await waitFor(() => expect(mine!.textContent).toBe('succeeded'), { timeout: 10_000 })
  expect(words).not.toContain('working')
  expect(sent.count).toBe(1)
})

test('a declined charge is tried again with another card as the next revision', async () => {
  const { billing, receiver } = setUp()
  const view = render(inStrictMode(createElement(Pay, { billing, paymentMethod: 'pm_declined' })))
  fireEvent.click(button())
  await says('rejected')
  // Without a revision it is the same operation, which was declined.
  fireEvent.click(button())
  await says('rejected')
  expect(receiver.ledger.requests).toHaveLength(1)

  view.rerender(inStrictMode(createElement(Pay, { billing, options: { revision: 2 } })))
  fireEvent.click(button())
  fireEvent.click(button())
  await says('succeeded')
  expect(receiver.ledger.requests).toHaveLength(2)
  expect(receiver.ledger.effects).toHaveLength(1)
  expect(new Set(receiver.ledger.requests.map(({ key }) => key)).size).toBe(2)
})

test('a call for a declined try does not hide that another tab has paid with the next one', async () => {
  const { billing, reloaded, receiver } = setUp()
  const other = reloaded()
  await other.charge({ ...coffee, paymentMethod: 'pm_declined' }, { operationId: 'order-1' })
  await other.charge(coffee, { operationId: 'order-1', revision: 2 })
  const words: string[] = []
  render(inStrictMode(createElement(Pay, { billing, words, paymentMethod: 'pm_declined', options: { revision: 1 } })))
  await says('succeeded')
  fireEvent.click(button())
  await waitFor(() => expect(words).toContain('rejected'))
  await says('succeeded')
  expect(receiver.ledger.effects).toHaveLength(1)
})

test('another amount under the same name is refused, and what is known stays', async () => {
  const { billing, receiver } = setUp()
  const view = render(inStrictMode(createElement(Pay, { billing })))
  fireEvent.click(button())
  await says('succeeded')
  view.rerender(inStrictMode(createElement(Pay, { billing, amount: 451 })))
  fireEvent.click(button())
  await says('ERR_OPERATION_CONFLICT beside succeeded')
  expect(receiver.ledger.requests).toHaveLength(1)
})

test('without a journal the error is shown, nothing is sent, and a call comes through when it is back', async () => {
  const { billing, receiver, sent } = setUp()
  const open = vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(() => {
    throw new DOMException('Denied', 'SecurityError')
  })
  render(inStrictMode(createElement(Pay, { billing })))
  await says('ERR_JOURNAL_UNAVAILABLE beside nothing')
  const calls = open.mock.calls.length
  fireEvent.click(button())
  await waitFor(() => expect(open.mock.calls.length).toBeGreaterThan(calls))
  await says('ERR_JOURNAL_UNAVAILABLE beside nothing')
  expect(sent.count).toBe(0)

  open.mockRestore()
  fireEvent.click(button())
  await says('succeeded')
  expect(receiver.ledger.effects).toHaveLength(1)
})

describe('a component that turns', () => {
  test('to another operation shows nothing of the one before, and begins the other', async () => {
    const { billing, receiver } = setUp()
    const words: string[] = []
    const view = render(inStrictMode(createElement(Pay, { billing })))
    fireEvent.click(button())
    await says('succeeded')
    view.rerender(inStrictMode(createElement(Pay, { billing, operationId: 'order-2', words })))
    expect(button().textContent).toBe('reading')
    await says('idle')
    expect(words).not.toContain('succeeded')
    fireEvent.click(button())
    await says('succeeded')
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('while the first is on the wire is not told what that came to', async () => {
    const { billing, sent, release, receiver } = setUp({ isHeld: true })
    const words: string[] = []
    const view = render(inStrictMode(createElement(Pay, { billing })))
    fireEvent.click(button())
    await waitFor(() => expect(sent.count).toBe(1))
    view.rerender(inStrictMode(createElement(Pay, { billing, operationId: 'order-2', words })))
    await says('idle')
    release()
    await waitFor(() => expect(receiver.ledger.effects).toHaveLength(1))
    await new Promise((resolve) => setTimeout(resolve, 100))
    expect(new Set(words)).toEqual(new Set(['reading', 'idle']))
    view.rerender(inStrictMode(createElement(Pay, { billing })))
    await says('succeeded')
  })

  test('to another client, another login, shows what that one knows', async () => {
    const { billing, reloaded } = setUp()
    await billing.charge(coffee, { operationId: 'order-1' })
    const other = reloaded({ scope: 'org_43/test' })
    const view = render(inStrictMode(createElement(Pay, { billing })))
    await says('succeeded')
    const words: string[] = []
    view.rerender(inStrictMode(createElement(Pay, { billing: other, words })))
    await says('idle')
    expect(words).not.toContain('succeeded')
  })
})

test('usage goes by its meter, and a write of one’s own by its definition', async () => {
  const refund = defineWrite({
    kind: 'refund',
    path: 'v1/refunds',
    method: 'POST',
    readParams: (params: { charge: string }) => ({ charge: params.charge }),
    readReceipt: (reply) => (typeof reply['id'] === 'string' ? { id: reply['id'], reply, isRefund: true } : undefined),
  })
  const receiver = createReceiver({ routes: { 'v1/refunds': { kind: 'refund', idPrefix: 're_' } } })
  const { billing } = setUp({ receiver })
  const seen: { usage?: Operation<never, never, never>['state'] } = {}
  const Both = (): ReactElement => {
    const usage = useOperation(billing, 'usage', { operationId: 'job-7', subject: 'exports' })
    const own = useOperation(billing, refund, { operationId: 'job-7' })
    seen.usage = usage.state as never
    const isRefund =
      own.state.phase === 'known' && own.state.outcome.status === 'succeeded' && own.state.outcome.receipt.isRefund
    return createElement(
      'button',
      {
        onClick: () => {
          void usage.start({ meter: 'exports', quantity: 3 })
          void own.start({ charge: 'ch_1' })
        },
      },
      `${wordOf(usage.state)} ${wordOf(own.state)} ${isRefund}`,
    )
  }
  render(inStrictMode(createElement(Both)))
  await says('idle idle false')
  fireEvent.click(button())
  await says('succeeded succeeded true')
  expect(receiver.ledger.effects).toHaveLength(2)

  const WrongMeter = (): ReactElement => {
    const usage = useOperation(billing, 'usage', { operationId: 'job-8', subject: 'exports' })
    return createElement(
      'button',
      { onClick: () => void usage.start({ meter: 'imports', quantity: 1 }) },
      wordOf(usage.state),
    )
  }
  cleanup()
  render(inStrictMode(createElement(WrongMeter)))
  await says('idle')
  fireEvent.click(button())
  await says('ERR_INVALID_INPUT beside nothing')
  expect(receiver.ledger.effects).toHaveLength(2)
})

describe('useOpenOperations', () => {
  const List = ({
    billing,
    kind,
    states,
  }: {
    billing: BillingClient
    kind?: string
    states?: OpenOperationsState[]
  }): ReactElement => {
    const open = useOpenOperations(billing, { kind })
    states?.push(open)
    return createElement(
      'button',
      null,
      `${open.phase} ${open.entries.map(({ operationId }) => operationId).join(' ')}`,
    )
  }

  test('lists what is open, live, until all is settled', async () => {
    const { billing, release, receiver } = setUp({ isHeld: true })
    render(inStrictMode(createElement(List, { billing })))
    await says('known ')
    await billing.charge(coffee, { operationId: 'a', background: true })
    await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'b', background: true })
    await says('known a b')
    release()
    await says('known ')
    expect(receiver.ledger.effects).toHaveLength(2)
  })

  test('lists what a page before left open, by kind', async () => {
    const receiver = createReceiver({ faults: [loseReply({ attempt: 1 })] })
    const { billing, reloaded } = setUp({ receiver, client: { retry: { maxAttempts: 1 } } })
    await billing.charge(coffee, { operationId: 'a' })
    await billing.recordUsage({ meter: 'm', quantity: 1 }, { operationId: 'b' })
    await billing.close()
    const after = reloaded()
    const view = render(inStrictMode(createElement(List, { billing: after, kind: 'usage' })))
    expect(button().textContent).toBe('reading ')
    await says('known b')
    view.rerender(inStrictMode(createElement(List, { billing: after })))
    await says('known a b')
    await after.resume()
    await says('known ')
  })

  test('thirty at once are a handful of readings', async () => {
    const { billing } = setUp()
    const states: OpenOperationsState[] = []
    render(inStrictMode(createElement(List, { billing, states })))
    await says('known ')
    const list = vi.spyOn(billing, 'entries')
    await Promise.all(
      Array.from({ length: 30 }, (_, index) => billing.charge(coffee, { operationId: `order-${index}` })),
    )
    await says('known ')
    expect(list.mock.calls.length).toBeLessThan(15)
  })

  test('without a journal says so', async () => {
    const { billing } = setUp()
    vi.spyOn(IDBFactory.prototype, 'open').mockImplementation(() => {
      throw new DOMException('Denied', 'SecurityError')
    })
    const states: OpenOperationsState[] = []
    render(inStrictMode(createElement(List, { billing, states })))
    await says('error ')
    expect(states.at(-1)).toMatchObject({
      phase: 'error',
      error: { code: 'ERR_JOURNAL_UNAVAILABLE', fault: 'unavailable' },
    })
  })
})

describe('rendered on a server', () => {
  test('G70: the page hydrates without a warning, reads the journal only then, and sends nothing', async () => {
    const { billing, sent } = setUp()
    await billing.charge(coffee, { operationId: 'order-991' })
    const App = (): ReactElement =>
      inStrictMode(
        createElement(
          'main',
          null,
          createElement(Checkout, { billing, order: '991' }),
          createElement(OpenPayments, { billing }),
        ),
      )
    const transaction = vi.spyOn(IDBDatabase.prototype, 'transaction')
    const listeners = vi.spyOn(EventTarget.prototype, 'addEventListener')
    const subscribe = vi.spyOn(billing, 'subscribe')
    const html = renderToString(createElement(App))
    expect(transaction).not.toHaveBeenCalled()
    expect(listeners).not.toHaveBeenCalled()
    expect(subscribe).not.toHaveBeenCalled()
    expect(html).toContain('aria-disabled="true"')
    expect(html).not.toContain('Paid')
    vi.restoreAllMocks()

    const errors = vi.spyOn(console, 'error')
    const recovered: unknown[] = []
    const container = document.body.appendChild(document.createElement('div'))
    container.innerHTML = html
    const root = hydrateRoot(container, createElement(App), { onRecoverableError: (error) => recovered.push(error) })
    onTestFinished(() => {
      root.unmount()
      container.remove()
    })
    await waitFor(() => expect(container.textContent).toContain('Paid. Thank you.'))
    expect(recovered).toEqual([])
    expect(errors).not.toHaveBeenCalled()
    expect(sent.count).toBe(1)
  })
})

describe('the component of the documents', () => {
  const app = (client: BillingClient): ReactElement =>
    inStrictMode(createElement(Checkout, { billing: client, order: '991' }))
  const status = (): string | null => screen.getByRole('status').textContent
  const pay = (): HTMLButtonElement => screen.getByRole('button', { name: /Pay/ })
  const choose = (card: string): void =>
    void fireEvent.change(screen.getByLabelText(/Card/), { target: { value: card } })

  test('pays, is declined, pays with another card, and knows it after a reload', async () => {
    const { billing, reloaded, receiver } = setUp()
    const first = render(app(billing))
    expect(mayPay(pay())).toBe(false)
    await waitFor(() => expect(mayPay(pay())).toBe(true))
    choose('pm_declined')
    fireEvent.click(pay())
    await waitFor(() => expect(status()).toContain('declined'))
    choose('pm_card')
    pay().focus()
    fireEvent.click(pay())
    await waitFor(() => expect(status()).toBe('Paid. Thank you.'))
    expect(mayPay(pay())).toBe(false)
    expect(document.activeElement).toBe(pay())
    fireEvent.click(pay())
    expect(status()).toBe('Paid. Thank you.')
    expect(receiver.ledger.effects).toHaveLength(1)
    first.unmount()

    render(app(reloaded()))
    await waitFor(() => expect(status()).toBe('Paid. Thank you.'))
    expect(mayPay(pay())).toBe(false)
    expect(receiver.ledger.requests).toHaveLength(2)
  })

  test('G62: offers the bank’s page again after a reload, and no second charge', async () => {
    const { billing, reloaded, receiver } = setUp()
    const first = render(app(billing))
    await waitFor(() => expect(mayPay(pay())).toBe(true))
    choose('pm_requires_action')
    fireEvent.click(pay())
    await waitFor(() => expect(screen.getByRole('link')).toHaveProperty('href', 'https://bank.example/authenticate'))
    first.unmount()
    render(app(reloaded()))
    await waitFor(() => expect(screen.getByRole('link')).toHaveProperty('href', 'https://bank.example/authenticate'))
    expect(mayPay(pay())).toBe(false)
    expect(receiver.ledger.requests).toHaveLength(1)
  })

  test('pays after a cancel, and after an error of the journal', async () => {
    const { billing, receiver } = setUp()
    const online = vi.spyOn(navigator, 'onLine', 'get').mockReturnValue(false)
    render(app(billing))
    await waitFor(() => expect(mayPay(pay())).toBe(true))
    fireEvent.click(pay())
    await waitFor(async () => {
      expect(await billing.cancel({ kind: 'charge', operationId: 'order-991' })).toMatchObject({ status: 'canceled' })
    })
    await waitFor(() => expect(status()).toBe('Nothing was charged.'), { timeout: 5000 })
    online.mockRestore()
    const open = vi.spyOn(IDBDatabase.prototype, 'transaction').mockImplementation(() => {
      throw new DOMException('Gone', 'UnknownError')
    })
    fireEvent.click(pay())
    await waitFor(() => expect(status()).toContain('That did not work just now.'))
    expect(receiver.ledger.requests).toHaveLength(0)
    open.mockRestore()
    fireEvent.click(pay())
    await waitFor(() => expect(status()).toBe('Paid. Thank you.'))
    expect(receiver.ledger.effects).toHaveLength(1)
  })
})

describe('a page that is gone while its charge is on the wire', () => {
  test('is followed by one that says so, goes on by itself, and shows the one charge', async () => {
    const receiver = createReceiver()
    const requests: { key: string | null; body: string }[] = []
    let isHeld = true
    const wire: PageWire = {
      database: newName(),
      async post(url, headers, body) {
        const request = new Request(url, {
          method: 'POST',
          headers: headers.map(([name, value]) => [name, value]),
          body,
        })
        requests.push({ key: request.headers.get('idempotency-key'), body })
        const response = await receiver.fetch(request)
        // The effect is made, and nobody is told.
        if (isHeld) return await new Promise<never>(() => {})
        return { status: response.status, headers: [...response.headers], body: await response.text() }
      },
    }
    Object.assign(window, { pageWire: wire })
    const first = await openPage()
    await waitFor(() => expect(mayPay(payIn(first))).toBe(true), { timeout: 10_000 })
    payIn(first).click()
    await waitFor(() => expect(receiver.ledger.effects).toHaveLength(1), { timeout: 10_000 })
    expect(first.contentDocument?.body.textContent).toContain('Paying…')
    first.remove()

    isHeld = false
    const second = await openPage()
    await waitFor(() => expect(second.contentDocument?.body.textContent).toContain('Paid. Thank you.'), {
      timeout: 20_000,
    })
    expect(mayPay(payIn(second))).toBe(false)
    expect(receiver.ledger.effects).toHaveLength(1)
    expect(requests).toHaveLength(2)
    expect(requests[1]).toEqual(requests[0])
    second.remove()
  }, 60_000)

  async function openPage(): Promise<HTMLIFrameElement> {
    const frame = document.body.appendChild(document.createElement('iframe'))
    onTestFinished(() => frame.remove())
    const script = frame.contentDocument!.createElement('script')
    script.type = 'module'
    script.textContent = `import(${JSON.stringify(new URL('./react-page.ts', import.meta.url).href)})`
    frame.contentDocument!.body.append(script)
    await waitFor(() => expect(frame.contentDocument?.querySelector('button')).toBeTruthy(), { timeout: 20_000 })
    return frame
  }

  const payIn = (frame: HTMLIFrameElement): HTMLButtonElement => frame.contentDocument!.querySelector('button')!
})
