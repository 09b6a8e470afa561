/** What a page is to the engine: it can be hidden, shown, taken offline, and it counts who listens to it. */
import { vi } from 'vitest'
import { pass } from '../support/world.ts'

type PageEvent = 'online' | 'pageshow' | 'resume' | 'visibilitychange'
const OF_DOCUMENT: readonly PageEvent[] = ['resume', 'visibilitychange']

export interface Page {
  /** Fires events in one tick, in this order. */
  fire(...names: PageEvent[]): void
  /** Comes out of the back/forward cache. */
  revive(): void
  /** What `navigator.onLine` says from now on. */
  online(is: boolean): void
  /** What `document.visibilityState` says from now on. */
  visible(is: boolean): void
  /** How many listeners there are now. */
  listeners(): number
}

/** Puts a page around what happens in `action`, visible and online at first. */
export async function inPage(action: (page: Page) => Promise<void>): Promise<void> {
  try {
    await action(aPage())
  } finally {
    // What was stopped ends first; the page must be there until then.
    await pass(60_000)
    vi.unstubAllGlobals()
  }
}

function aPage(): Page {
  let listeners = 0
  const counted = (): EventTarget => {
    const target = new EventTarget()
    const add = target.addEventListener.bind(target)
    target.addEventListener = (type, listener, options) => {
      const signal = typeof options === 'object' ? options.signal : undefined
      listeners += 1
      signal?.addEventListener('abort', () => (listeners -= 1), { once: true })
      add(type, listener, options)
    }
    return target
  }
  const window = counted()
  const document = Object.assign(counted(), { visibilityState: 'visible' })
  vi.stubGlobal('window', window)
  vi.stubGlobal('addEventListener', window.addEventListener.bind(window))
  vi.stubGlobal('document', document)
  vi.stubGlobal('navigator', { onLine: true })
  return {
    fire: (...names) => {
      for (const name of names) (OF_DOCUMENT.includes(name) ? document : window).dispatchEvent(new Event(name))
    },
    revive: () => void window.dispatchEvent(Object.assign(new Event('pageshow'), { persisted: true })),
    online: (is) => vi.stubGlobal('navigator', { onLine: is }),
    visible: (is) => {
      document.visibilityState = is ? 'visible' : 'hidden'
    },
    listeners: () => listeners,
  }
}
