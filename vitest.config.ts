/**
 * The test projects: `node`, the same kind of tests inside three real browser engines, and `crash-browser`, which runs
 * in Node and kills real browsers. Sources are imported by the package's own name, under the condition `source`.
 */
import { playwright } from '@vitest/browser-playwright'
import { msw } from 'msw/vite'
import { defineConfig } from 'vitest/config'
import { chromiumArgs, type Engine, findBrowser } from './test/support/browsers.ts'
import { spawned } from './test/support/spawn-provider.ts'

const inBrowser = (browser: Engine) => {
  const found = findBrowser(browser)
  // Playwright drives its own builds of all three, and any Chromium; of the others only its own.
  const driven = found?.from === 'playwright' || browser === 'chromium'
  const launchOptions = {
    ...(browser === 'chromium' ? { args: [...chromiumArgs] } : {}),
    ...(found?.from === 'system' ? { executablePath: found.path } : {}),
  }
  return {
    // What Vue's build leaves to the bundler.
    define: {
      __VUE_OPTIONS_API__: 'false',
      __VUE_PROD_DEVTOOLS__: 'false',
      __VUE_PROD_HYDRATION_MISMATCH_DETAILS__: 'false',
    },
    // Serves msw's worker script: no generated file in the repository, and never one of another version.
    plugins: [msw({ mode: 'worker-only' })],
    resolve: { conditions: ['source', 'browser', 'module', 'import', 'default'] },
    // Named beforehand, or vite finds them in mid-run on a cold cache and reloads the page under the tests.
    optimizeDeps: {
      include: [
        'ky',
        'p-retry',
        'idb-keyval',
        'uuid',
        'fast-check',
        'msw',
        'msw/browser',
        'react',
        'react/jsx-dev-runtime',
        'react-dom',
        'react-dom/client',
        'react-dom/server.browser',
        '@testing-library/react',
        'vue',
      ],
    },
    test: {
      name: browser,
      include: ['test/browser/**/*.test.ts'],
      sequence: { groupOrder: 1 },
      browser: {
        enabled: true,
        headless: true,
        ui: false,
        screenshotFailures: false,
        instances: [{ browser }],
        provider: driven ? playwright({ launchOptions }) : spawned(),
      },
    },
  }
}

// Without `import`, which is understood: named, it holds for `require` too, and `pg` would be handed a module for a class.
const inNode = {
  resolve: { conditions: ['source', 'node', 'module'] },
  ssr: { resolve: { conditions: ['source', 'node', 'module'] } },
}
// For what a test imports past vite (a worker thread, a child process that inherits the flags).
const execArgv = ['--conditions=source']

export default defineConfig({
  test: {
    projects: [
      {
        ...inNode,
        test: {
          name: 'node',
          environment: 'node',
          include: ['test/**/*.test.ts'],
          exclude: ['test/browser/**', 'test/crash-browser/**'],
          execArgv,
          // Time is virtual where a test is about time; real processes and disks take what they take on a busy machine.
          testTimeout: 60_000,
          // Much of the time of the longest files is a browser's or a process's; alone they would take twice as long.
          maxWorkers: 2,
          sequence: { groupOrder: 0 },
        },
      },
      inBrowser('chromium'),
      inBrowser('firefox'),
      inBrowser('webkit'),
      {
        ...inNode,
        test: {
          name: 'crash-browser',
          environment: 'node',
          include: ['test/crash-browser/**/*.test.ts'],
          execArgv,
          // A browser starts in seconds, not milliseconds, and two at once on a small machine starve each other.
          testTimeout: 120_000,
          hookTimeout: 60_000,
          fileParallelism: false,
          sequence: { groupOrder: 2 },
        },
      },
    ],
  },
})
