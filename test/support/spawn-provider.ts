/**
 * A vitest browser provider for engines that Playwright cannot drive as the system has them (Firefox ESR, WebKitGTK):
 * it opens the page of vitest's own runner in the plain browser, and ends the browser afterwards.
 */
import { defineBrowserProvider } from '@vitest/browser'
import type { BrowserProvider, BrowserProviderOption, TestProject } from 'vitest/node'
import type { Engine } from './browsers.ts'
import { SpawnedBrowser } from './spawn-browser.ts'

export const spawned = (): BrowserProviderOption =>
  defineBrowserProvider({
    name: 'spawned',
    supportedBrowser: ['firefox', 'webkit'],
    providerFactory(project: TestProject): BrowserProvider {
      const running = new Set<SpawnedBrowser>()
      // The runner calls these before each file; a provider that does not know them fails every test.
      const noop = async (): Promise<void> => {}
      for (const command of ['__vitest_viewport', '__vitest_cleanup']) {
        project.browser?.registerCommand(command as never, noop as never)
      }
      return {
        name: 'spawned',
        supportsParallelism: false,
        getCommandsContext: () => ({}),
        async openPage(_session, url) {
          const browser = new SpawnedBrowser(project.config.browser.name as Engine)
          running.add(browser)
          await browser.open(url)
        },
        async close() {
          await Promise.all([...running].map((browser) => browser.close()))
          running.clear()
        },
      }
    },
  })
