/** What a page is to the engine: it can be hidden, shown, taken offline, and it counts who listens to it. */
import { vi } from 'vitest'
import { pass } from '../support/world.ts'

type PageEvent = 'online' | 'pageshow' | 'visibilitychange'

export interface Page {
  /** Fires events in one tick, in this order. */
  fire(...names: PageEvent[]): void
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
    const remove = target.removeEventListener.bind(target)
    target.addEventListener = (type, listener, options) => {
      listeners += 1
      add(type, listener, options)
    }
    target.removeEventListener = (type, listener, options) => {
      listeners -= 1
      remove(type, listener, options)
    }
    return target
  }
  const window = counted()
  const document = Object.assign(counted(), { visibilityState: 'visible' })
  vi.stubGlobal('window', window)
  vi.stubGlobal('document', document)
  vi.stubGlobal('navigator', { onLine: true })
  return {
    fire: (...names) => {
      for (const name of names) (name === 'visibilitychange' ? document : window).dispatchEvent(new Event(name))
    },
    online: (is) => vi.stubGlobal('navigator', { onLine: is }),
    visible: (is) => {
      document.visibilityState = is ? 'visible' : 'hidden'
    },
    listeners: () => listeners,
  }
}
