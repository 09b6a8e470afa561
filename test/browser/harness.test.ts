/**
 * The harness itself: that a project runs in the engine it is named after, and as a page that a shop would have.
 */
import { expect, test } from 'vitest'
import { server } from 'vitest/browser'

test('the project runs in the engine that it is named after', () => {
  const agent = navigator.userAgent
  const engine = agent.includes('Firefox/') ? 'firefox' : agent.includes('Chrome/') ? 'chromium' : 'webkit'
  expect(engine).toBe(server.browser)
})

test('the page is a secure context with what the journal and its claims rest on', () => {
  expect(isSecureContext).toBe(true)
  expect(typeof indexedDB.open).toBe('function')
  expect(typeof navigator.locks.request).toBe('function')
})
