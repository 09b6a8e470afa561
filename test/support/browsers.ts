/**
 * Where the real browsers are on this machine, and how each is started at a page with a profile of its own.
 * Who installs what is missing is `dev`; it asks here (`node test/support/browsers.ts missing`), so that the question
 * is answered in one place.
 */
import { existsSync, readdirSync, realpathSync } from 'node:fs'
import { createRequire } from 'node:module'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'

export type Engine = 'chromium' | 'firefox' | 'webkit'
export const engines: readonly Engine[] = ['chromium', 'firefox', 'webkit']

export interface Browser {
  path: string
  /** `playwright`: a build that Playwright downloaded and can drive; `system`: anything else. */
  from: 'system' | 'playwright'
}

/** For Chromium, by whoever starts it: no traffic of its own, and a sandbox is not to be had as root in a container. */
export const chromiumArgs: readonly string[] = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--no-default-browser-check',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  // Without it every crash of Chromium makes it ask for the system's secret store, which is not there.
  '--password-store=basic',
  // A container's /dev/shm is often 64 MB, too small for Chromium, which then dies in mid-test.
  '--disable-dev-shm-usage',
]

const override: Record<Engine, string> = {
  chromium: 'CHROMIUM_PATH',
  firefox: 'FIREFOX_PATH',
  webkit: 'WEBKIT_PATH',
}

/** Names are looked for in PATH; a star in a path stands for one folder. The first that exists is taken. */
const candidates: Record<Engine, readonly string[]> = {
  chromium: [
    'chromium',
    'chromium-browser',
    'google-chrome-stable',
    'google-chrome',
    '/Applications/Chromium.app/Contents/MacOS/Chromium',
    '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
  ],
  firefox: ['firefox-esr', 'firefox', '/Applications/Firefox.app/Contents/MacOS/firefox'],
  webkit: [
    '/usr/lib/*/webkit2gtk-4.1/MiniBrowser',
    '/usr/lib/*/webkit2gtk-4.0/MiniBrowser',
    '/usr/lib/*/webkitgtk-6.0/MiniBrowser',
    '/usr/libexec/webkit2gtk-4.1/MiniBrowser',
    '/usr/libexec/webkitgtk-6.0/MiniBrowser',
    '/usr/lib/webkit2gtk-4.1/MiniBrowser',
    '/usr/lib64/webkit2gtk-4.1/MiniBrowser',
  ],
}

/** The browser of this engine that tests are to use, or `undefined` where the machine has none. */
export function findBrowser(engine: Engine): Browser | undefined {
  const chosen = process.env[override[engine]]
  if (chosen) {
    // A path given by hand and wrong is an error, not a reason to test something else.
    if (!existsSync(chosen)) throw new Error(`${override[engine]} names ${chosen}, which is not there`)
    return { path: chosen, from: 'system' }
  }
  for (const candidate of candidates[engine]) {
    const path = candidate.startsWith('/') ? expand(candidate).find((path) => existsSync(path)) : inPath(candidate)
    if (path !== undefined && !isSnap(path)) return { path, from: 'system' }
  }
  try {
    const playwright = createRequire(import.meta.url)('playwright') as Record<Engine, { executablePath(): string }>
    const path = playwright[engine].executablePath()
    return existsSync(path) ? { path, from: 'playwright' } : undefined
  } catch {
    // No Playwright, or none for this platform: then it has no browser for us either.
    return undefined
  }
}

/** What has to be there before the browser tests can run; `xvfb` is the display that WebKit draws on. */
export function missingParts(): string[] {
  const missing: string[] = engines.filter((engine) => findBrowser(engine) === undefined)
  const needsDisplay = process.platform === 'linux' && !process.env['DISPLAY']
  // Debian's xvfb only suggests xauth, without which xvfb-run starts nothing.
  if (needsDisplay && (inPath('xvfb-run') === undefined || inPath('xauth') === undefined)) missing.push('xvfb')
  return missing
}

/**
 * The command line that opens `url` in a browser whose whole state lives in `profile`. Unverified: Playwright's own
 * builds of Firefox and WebKit, started in this plain way.
 */
export function commandFor(
  engine: Engine,
  profile: string,
  url: string,
): { command: string; args: string[]; env: Record<string, string> } {
  const browser = findBrowser(engine)
  if (browser === undefined) {
    throw new Error(`No ${engine} found. \`./dev test\` installs it, or name one in ${override[engine]}.`)
  }
  switch (engine) {
    case 'chromium':
      return {
        command: browser.path,
        args: ['--headless', ...chromiumArgs, `--user-data-dir=${profile}`, url],
        env: {},
      }
    case 'firefox':
      return {
        command: browser.path,
        args: ['--headless', '--no-remote', '--profile', profile, url],
        env: { HOME: profile, MOZ_CRASHREPORTER_DISABLE: '1' },
      }
    case 'webkit':
      // Not with --automation: WebKit then forgets the profile when it ends, and a restart would find nothing.
      return {
        command: browser.path,
        args: [url],
        env: {
          HOME: profile,
          XDG_DATA_HOME: join(profile, 'data'),
          XDG_CACHE_HOME: join(profile, 'cache'),
          XDG_CONFIG_HOME: join(profile, 'config'),
          XDG_RUNTIME_DIR: profile,
          GDK_BACKEND: 'x11',
          NO_AT_BRIDGE: '1',
        },
      }
  }
}

/** `fs.globSync` would do, but warns on Node 22. */
function expand(pattern: string): string[] {
  const [above, below] = pattern.split('*')
  if (above === undefined || below === undefined) return [pattern]
  return existsSync(above) ? readdirSync(above).map((folder) => above + folder + below) : []
}

function inPath(name: string): string | undefined {
  return (process.env['PATH'] ?? '')
    .split(delimiter)
    .filter((folder) => folder !== '')
    .map((folder) => join(folder, name))
    .find((path) => existsSync(path))
}

/** Ubuntu's `chromium-browser` and `firefox`: a snap sees no profile under /tmp, so the page would never open. */
function isSnap(path: string): boolean {
  return path.startsWith('/snap/') || realpathSync(path).endsWith('/snap')
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv[2] === 'missing') {
    console.log(missingParts().join(' '))
  } else {
    for (const engine of engines) console.log(`${engine}: ${findBrowser(engine)?.path ?? 'none'}`)
  }
}
