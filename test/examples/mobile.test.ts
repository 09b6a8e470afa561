/**
 * The app of examples/mobile as a technician meets it: built and served by its own command's code, in a real Chromium with a
 * profile on disk, against an office that counts. What a killed browser makes of it is in test/crash-browser/mobile.test.ts.
 * Left out where the machine has no Chromium. Screenshots are put into test-results/mobile.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import axe from 'axe-core'
import { chromium } from 'playwright'
import type { BrowserContext, CDPSession, Page } from 'playwright'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { startApp } from '../../examples/mobile/serve.ts'
import type { RunningApp } from '../../examples/mobile/serve.ts'
import { chromiumArgs, findBrowser } from '../support/browsers.ts'
import { repositoryRoot } from '../support/bundle.ts'
import { nodeArguments } from '../support/node-program.ts'

const found = findBrowser('chromium')
const pictures = join(repositoryRoot, 'test-results/mobile')
const phone = { width: 390, height: 844 }

/** A busy machine takes its time. */
const eventually = <T>(look: () => T | Promise<T>) => expect.poll(look, { timeout: 30_000 })

let app: RunningApp
let profile = ''
let context: BrowserContext
let page: Page

describe.skipIf(found === undefined)('the mobile app', { timeout: 90_000 }, () => {
  beforeAll(async () => {
    mkdirSync(pictures, { recursive: true })
    app = await startApp()
  }, 60_000)
  afterAll(() => app?.close())

  beforeEach(async () => {
    app.office.receiver.reset()
    for (const trouble of app.office.view().on) app.office.order({ trouble, on: false })
    profile = mkdtempSync(join(tmpdir(), 'billonce-mobile-'))
    await launch()
    page = await open()
  })
  afterEach(async () => {
    await context.close()
    rmSync(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
  })

  /** On disk, since a private window has no Background Sync and cannot install anything. */
  const launch = async (): Promise<void> => {
    context = await chromium.launchPersistentContext(profile, {
      executablePath: found?.path ?? '',
      args: [...chromiumArgs],
      viewport: phone,
      locale: 'en-GB',
    })
    context.setDefaultTimeout(30_000)
  }
  /** Opens the app and waits until the worker could open it without a network. */
  const open = async (): Promise<Page> => {
    const opened = await context.newPage()
    await opened.goto(app.url)
    await opened.waitForFunction(() => navigator.serviceWorker.controller !== null)
    return opened
  }
  const signIn = async (name = 'Maren'): Promise<void> => {
    await page.getByRole('button', { name: new RegExp(name) }).click()
    // Shown once it is written down; a reload before that finds nobody signed in.
    await page.locator('.tile').first().waitFor()
  }
  const button = (name: string | RegExp) => page.getByRole('button', { name, exact: typeof name === 'string' })
  const record = async (site: string, minutes: number): Promise<void> => {
    if (await button('Next visit').isVisible()) await button('Next visit').click()
    // The drawing of the choice lies in its label, which is what a finger hits.
    await page.locator('.tile', { hasText: site }).click()
    await page.getByLabel('minutes', { exact: true }).fill(String(minutes))
    await button(/^Record /).click()
    await button('Next visit').waitFor()
  }
  const bar = () => page.locator('#bar-text').textContent()
  /** What the list says, the latest first. */
  const words = () => page.locator('.day li .words').allTextContents()
  const effects = () => app.office.receiver.ledger.effects
  const devTools = (): Promise<CDPSession> => context.newCDPSession(page)

  test('starts with one command', async () => {
    const program = fileURLToPath(new URL('../../examples/mobile/serve.ts', import.meta.url))
    const child = spawn(process.execPath, [...nodeArguments, program], {
      env: { ...process.env, PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    try {
      const [line] = (await once(child.stdout, 'data')) as [Buffer]
      const [, url = ''] = /^app: (http:\S+)$/m.exec(line.toString()) ?? []
      expect(await (await fetch(url)).text()).toContain('<title>Rounds</title>')
      expect((await fetch(`${url}worker.js`)).headers.get('content-type')).toContain('text/javascript')
    } finally {
      child.kill('SIGKILL')
    }
  })

  test('a visit is recorded with its minutes, its customer and the time it ended', async () => {
    await signIn()
    await record('Linden Court', 75)
    await page.locator('#done-title', { hasText: /^Recorded$/ }).waitFor()
    expect(await words()).toEqual(['Recorded'])
    expect(await bar()).toBe('Nothing waiting · online')
    expect(effects()).toHaveLength(1)
    const { account, params } = effects()[0]!
    expect(account).toBe('maren')
    expect(params).toMatchObject({ meter: 'service-minutes', quantity: 75, customer: 'linden-court' })
    expect(Math.abs(Date.now() - Date.parse(String(params['occurredAt'])))).toBeLessThan(60_000)
  })

  test('pressed twice, Record makes one visit', async () => {
    await signIn()
    await button(/^Record /).dblclick()
    await eventually(words).toEqual(['Recorded'])
    expect(effects()).toHaveLength(1)
  })

  test('offline nothing is sent, the app opens all the same, and online again each visit is recorded once', async () => {
    await signIn()
    await context.setOffline(true)
    for (const [index, site] of ['Harbour Mill', 'Linden Court', 'Quay Baths'].entries()) await record(site, 10 + index)
    expect(await words()).toEqual(Array.from({ length: 3 }, () => 'Saved on this phone'))
    expect(await bar()).toMatch(/^3 waiting, the oldest since \d\d:\d\d · offline$/)

    await page.reload()
    await eventually(words).toEqual(Array.from({ length: 3 }, () => 'Saved on this phone'))
    expect(await bar()).toMatch(/^3 waiting, the oldest since \d\d:\d\d · offline$/)
    // A link with something behind it, as a home screen adds it, is the same app.
    await page.goto(`${app.url}?from=home`)
    await eventually(words).toHaveLength(3)
    expect(app.office.receiver.ledger.requests).toHaveLength(0)

    await context.setOffline(false)
    await eventually(words).toEqual(['Recorded', 'Recorded', 'Recorded'])
    expect(effects().map(({ params }) => params['quantity'])).toEqual(expect.arrayContaining([10, 11, 12]))
    expect(effects()).toHaveLength(3)
  })

  test('with its server gone altogether the app opens from the cache, icons and manifest too', async () => {
    await signIn()
    await record('Harbour Mill', 20)
    await eventually(words).toEqual(['Recorded'])
    const away = await startApp()
    const other = await context.newPage()
    await other.goto(away.url)
    await other.waitForFunction(() => navigator.serviceWorker.controller !== null)
    await away.close()
    await other.reload()
    await other.getByRole('button', { name: /Maren/ }).waitFor()
    const statuses = await other.evaluate(async () => {
      const names = ['./', 'manifest.webmanifest', 'icon.svg', 'icon-192.png', 'icon-512.png']
      return Promise.all(names.map(async (name) => (await fetch(name)).status))
    })
    expect(new Set(statuses)).toEqual(new Set([200]))
  })

  test('a reply that is lost is asked for again under the same key, and the visit is billed once', async () => {
    await signIn()
    app.office.order({ trouble: 'lose-reply', on: true })
    await record('Harbour Mill', 45)
    await eventually(words).toEqual(['Recorded'])
    const { requests } = app.office.receiver.ledger
    expect(requests.length).toBeGreaterThan(1)
    expect(new Set(requests.map(({ key, body }) => `${key} ${body}`)).size).toBe(1)
    expect(effects()).toHaveLength(1)
  })

  test('while the office cannot be reached the bar says so, and «Try now» goes on when it can', async () => {
    await signIn()
    app.office.order({ trouble: 'unreachable', on: true })
    await record('Harbour Mill', 45)
    await eventually(words).toEqual(['Being checked'])
    await eventually(bar).toMatch(/^1 waiting, the oldest since \d\d:\d\d · no answer$/)
    app.office.order({ trouble: 'unreachable', on: false })
    // Background delivery may be faster, and then the button is gone.
    await button('Try now')
      .click({ timeout: 5_000 })
      .catch(() => {})
    await eventually(words).toEqual(['Recorded'])
    expect(effects()).toHaveLength(1)
  })

  test('what the office refuses is not billed, says why, and can be sent again as the same visit', async () => {
    await signIn()
    app.office.order({ trouble: 'refuse', on: true })
    await record('Harbour Mill', 45)
    await eventually(words).toEqual(['Not accepted'])
    expect(await page.locator('#done-more').textContent()).toContain('The contract with this customer has ended.')
    expect(effects()).toHaveLength(0)
    await page.locator('.day summary').click()
    await button('Send again').click()
    await eventually(words).toEqual(['Recorded'])
    expect(effects()).toHaveLength(1)
  })

  test('what waits can be withdrawn, and is never sent', async () => {
    await signIn()
    await context.setOffline(true)
    await record('Harbour Mill', 45)
    await button('Withdraw').click()
    await eventually(words).toEqual(['Withdrawn'])
    await context.setOffline(false)
    await record('Linden Court', 20)
    await eventually(words).toEqual(['Recorded', 'Withdrawn'])
    expect(effects().map(({ params }) => params['customer'])).toEqual(['linden-court'])
  })

  test('after the second visit offline the card is about that one, and withdraws that one', async () => {
    await signIn()
    await context.setOffline(true)
    await record('Harbour Mill', 45)
    await record('Linden Court', 20)
    expect(await page.locator('#done-what').textContent()).toBe('Linden Court, 20 min')
    await page.locator('#done-withdraw').click()
    await eventually(words).toEqual(['Withdrawn', 'Saved on this phone'])
    await context.setOffline(false)
    await eventually(words).toEqual(['Withdrawn', 'Recorded'])
    expect(effects().map(({ params }) => params['customer'])).toEqual(['harbour-mill'])
  })

  test('two accounts on one phone: what one recorded is not sent with the login of the other', async () => {
    await signIn('Maren')
    await context.setOffline(true)
    await record('Harbour Mill', 45)
    await button(/account of Maren Voss/).click()
    expect(await page.locator('#leaving').textContent()).toContain('1 of yours waits on this phone')
    await button('Sign out').click()
    await signIn('Jonas')
    await page.getByText('A visit of somebody else waits on this phone until they sign in.').waitFor()
    await context.setOffline(false)
    await record('Tram Museum', 15)
    await eventually(words).toEqual(['Recorded'])
    // The page and the worker have both had their chance.
    await button('Next visit').click()
    await page.evaluate(async () => {
      const { active } = await navigator.serviceWorker.ready
      active?.postMessage({ type: 'billonce', tag: 'billonce' })
    })
    await record('Tower House', 25)
    await eventually(words).toEqual(['Recorded', 'Recorded'])
    expect(effects().map(({ account, params }) => `${account} ${String(params['customer'])}`)).toEqual([
      'jonas museum',
      'jonas tower-house',
    ])

    await button(/account of Jonas Okoro/).click()
    await button('Sign out').click()
    await signIn('Maren')
    await eventually(words).toEqual(['Recorded'])
    expect(effects().map(({ account }) => account)).toEqual(['jonas', 'jonas', 'maren'])
  })

  test('with the app closed, the browser wakes the worker and it delivers', async () => {
    await signIn()
    await context.setOffline(true)
    await record('Harbour Mill', 45)
    expect(effects()).toHaveLength(0)
    // The tools of another tab fire what the browser fires when a network is there.
    const tab = await context.newPage()
    const tools = await context.newCDPSession(tab)
    const registrations: string[] = []
    tools.on('ServiceWorker.workerRegistrationUpdated', (event) => {
      registrations.push(...event.registrations.map(({ registrationId }) => registrationId))
    })
    await tools.send('ServiceWorker.enable')
    await eventually(() => registrations.length).toBeGreaterThan(0)
    await page.close()
    await context.setOffline(false)
    await tools.send('ServiceWorker.dispatchSyncEvent', {
      origin: new URL(app.url).origin,
      registrationId: registrations[0] ?? '',
      tag: 'billonce',
      lastChance: false,
    })
    await eventually(() => effects().length).toBe(1)
    page = await open()
    await eventually(words).toEqual(['Recorded'])
    expect(effects()).toHaveLength(1)
  })

  test('killed before the journal had it, a visit is noted at the next start, once', async () => {
    await signIn()
    await context.setOffline(true)
    await record('Harbour Mill', 45)
    // What is left when the app dies between its two notes: the visit, and nothing in the journal or not marked as there.
    await page.evaluate(async () => {
      const database = await new Promise<IDBDatabase>((resolve, reject) => {
        const request = indexedDB.open('rounds')
        request.onsuccess = () => resolve(request.result)
        request.onerror = () => reject(request.error)
      })
      const transaction = database.transaction('phone', 'readwrite')
      const store = transaction.objectStore('phone')
      await new Promise<void>((resolve) => {
        store.get('visit:00000001').onsuccess = (event) => {
          const { result } = event.target as IDBRequest<Record<string, unknown>>
          store.put({ ...result, isNoted: false }, 'visit:00000001')
          store.put(
            { ...result, isNoted: false, number: 2, operationId: `${String(result['operationId'])}-2`, minutes: 5 },
            'visit:00000002',
          )
        }
        transaction.oncomplete = () => resolve()
      })
    })
    await page.reload()
    await eventually(words).toEqual(['Saved on this phone', 'Saved on this phone'])
    await context.setOffline(false)
    await eventually(words).toEqual(['Recorded', 'Recorded'])
    expect(
      effects()
        .map(({ params }) => Number(params['quantity']))
        .toSorted((a, b) => a - b),
    ).toEqual([5, 45])
  })

  test('while the journal cannot be opened a visit is kept all the same, and billed once when it can', async () => {
    await signIn()
    await page.addInitScript(() => {
      if (localStorage.getItem('broken') === null) return
      const open = indexedDB.open.bind(indexedDB)
      indexedDB.open = (name, version) => {
        if (name === 'billonce') throw new DOMException('No.', 'SecurityError')
        return open(name, version)
      }
    })
    await page.evaluate(() => localStorage.setItem('broken', 'yes'))
    await page.reload()
    await record('Harbour Mill', 45)
    // The worker, whose journal opens, may have taken it by now, and the page cannot know.
    await eventually(words).toEqual([expect.stringMatching(/^(Saved on this phone|Cannot be read now)$/)])
    await eventually(bar).toBe('The browser’s storage does not answer: nothing can be sent')
    expect(await page.locator('#problem').isVisible()).toBe(false)
    await page.evaluate(() => localStorage.removeItem('broken'))
    await page.reload()
    await eventually(words).toEqual(['Recorded'])
    expect(effects()).toHaveLength(1)
  })

  test('it can be installed', async () => {
    const tools = await devTools()
    const { errors, data } = await tools.send('Page.getAppManifest')
    expect(errors).toEqual([])
    const manifest = JSON.parse(data ?? '{}') as Record<string, unknown>
    expect(manifest).toMatchObject({ short_name: 'Rounds', display: 'standalone', start_url: './', scope: './' })
    const icons = manifest['icons'] as { src: string; sizes: string; purpose: string }[]
    expect(icons.map(({ purpose }) => purpose)).toContain('maskable')
    for (const { src, sizes } of icons.filter((entry) => entry.sizes !== 'any')) {
      const size = await page.evaluate(async (address) => {
        const image = new Image()
        image.src = address
        await image.decode()
        return `${image.naturalWidth}x${image.naturalHeight}`
      }, src)
      expect(size).toBe(sizes)
    }
    await eventually(async () => (await tools.send('Page.getInstallabilityErrors')).installabilityErrors).toEqual([])
    await signIn()
    await button(/account of Maren Voss/).click()
    await button('Install').waitFor()
  })

  test('once there is something to lose it asks for storage that lasts, and shows the answer', async () => {
    await signIn()
    expect(await page.locator('#storage').isVisible()).toBe(false)
    await page.evaluate(() => {
      const asked = window as { asked?: number }
      asked.asked = 0
      const storage = navigator.storage
      storage.persist = () => Promise.resolve(((asked.asked = (asked.asked ?? 0) + 1), true))
      storage.persisted = () => Promise.resolve((asked.asked ?? 0) > 0)
    })
    await record('Harbour Mill', 45)
    await page.getByText('The browser keeps your visits until they are sent.').first().waitFor()
    await record('Linden Court', 45)
    expect(await page.evaluate(() => (window as { asked?: number }).asked)).toBe(1)
  })

  test('by keyboard alone: signs in, chooses, steps, records, and finds the visit', async () => {
    const tabTo = async (name: RegExp): Promise<void> => {
      for (let tabs = 0; tabs < 30; tabs += 1) {
        await page.keyboard.press('Tab')
        const [label, outline] = await page.evaluate(() => {
          const active = document.activeElement
          const seen = active?.matches('input[type=radio]') ? active.parentElement : active
          return [
            active?.getAttribute('aria-label') ?? seen?.textContent ?? '',
            seen ? getComputedStyle(seen).outlineStyle : 'none',
          ]
        })
        if (!name.test(label ?? '')) continue
        expect(outline).toBe('solid')
        return
      }
      throw new Error(`No way to ${name.source}`)
    }
    const focus = () => page.evaluate(() => document.activeElement?.id || document.activeElement?.tagName)
    await tabTo(/Maren/)
    await page.keyboard.press('Enter')
    // What had the focus is hidden now; the focus is at the beginning of what there is instead.
    await eventually(focus).toBe('main')
    await button(/^Record /).waitFor()
    await tabTo(/Harbour Mill/)
    await page.keyboard.press('ArrowDown')
    await tabTo(/5 minutes more/)
    await page.keyboard.press('Enter')
    await tabTo(/^Record 35 min/)
    await page.keyboard.press('Enter')
    await page.locator('#done-title', { hasText: /^Recorded$/ }).waitFor()
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('next')
    await tabTo(/Linden Court.*35 min/)
    await page.keyboard.press('Enter')
    await page.getByText('Visit 1 of this phone · 1 try').waitFor()
    expect(effects().map(({ params }) => params['customer'])).toEqual(['linden-court'])

    // A button that goes when it was pressed leaves the focus on its visit, and one that signs out at the beginning.
    await context.setOffline(true)
    await button('Next visit').click()
    await button(/^Record /).click()
    await button('Next visit').waitFor()
    await tabTo(/Saved on this phone/)
    await page.keyboard.press('Enter')
    await tabTo(/^Withdraw$/)
    await page.keyboard.press('Enter')
    await eventually(words).toEqual(['Withdrawn', 'Recorded'])
    expect(await focus()).toBe('SUMMARY')
    await button(/Maren/).click()
    await tabTo(/Sign out/)
    await page.keyboard.press('Enter')
    await eventually(focus).toBe('main')
  })

  test('minutes that are none are not recorded, and the page says what is wrong', async () => {
    await signIn()
    for (const wrong of ['', '0', '1441', '2.5', 'ten']) {
      await page.getByLabel('minutes', { exact: true }).fill(wrong)
      await button(/^Record/).click()
      await page.getByRole('alert').filter({ hasText: 'Enter whole minutes, from 1 to 1440.' }).waitFor()
    }
    expect(await words()).toEqual([])
  })

  test('the developer’s sheet shows what the office did', async () => {
    await signIn()
    await button('Test bench').click()
    await page.getByRole('switch', { name: /Lose the next reply/ }).click()
    await page.keyboard.press('Escape')
    await record('Harbour Mill', 45)
    await eventually(words).toEqual(['Recorded'])
    await button('Test bench').click()
    await eventually(() => page.locator('#bench-count-effects').textContent()).toBe('1')
    await eventually(() => page.locator('#bench-count-requests').textContent()).toBe('2')
    expect(await page.getByRole('switch', { name: /Lose the next reply/ }).getAttribute('aria-checked')).toBe('false')
    expect(await page.locator('#bench-requests .word').allTextContents()).toEqual([
      expect.stringMatching(/^replayed/),
      expect.stringMatching(/^executed/),
    ])
  })

  describe.each(['light', 'dark'] as const)('%s', (scheme) => {
    /** Rules that axe finds broken. */
    const violations = async (): Promise<string[]> => {
      await page.evaluate(axe.source)
      return page.evaluate(async () => {
        const { axe: checker } = window as unknown as { axe: typeof import('axe-core') }
        const { violations: broken } = await checker.run()
        return broken.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target.join(' ')).join(', ')}`)
      })
    }
    const picture = async (name: string): Promise<void> => {
      // After the last of the movements, none of which is longer.
      await page.waitForFunction(() => document.getAnimations().every(({ playState }) => playState !== 'running'))
      await page.screenshot({ path: join(pictures, `${name}-${scheme}.png`) })
    }

    test('every screen passes axe, fits from 320 px on, and is kept as a picture', async () => {
      await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' })
      const look = async (name: string): Promise<void> => {
        await picture(name)
        expect(await violations(), name).toEqual([])
      }
      await button(/Maren/).waitFor()
      await look('1-sign-in')
      await signIn()
      await button(/^Record /).waitFor()
      await look('2-no-visits')
      await record('Harbour Mill', 45)
      await page.locator('#done-title', { hasText: /^Recorded$/ }).waitFor()
      await look('3-recorded')
      app.office.order({ trouble: 'refuse', on: true })
      await record('Quay Baths', 25)
      await eventually(words).toEqual(['Not accepted', 'Recorded'])
      app.office.order({ trouble: 'unreachable', on: true })
      await record('Linden Court', 75)
      await eventually(words).toContain('Being checked')
      await look('4-no-answer')
      await context.setOffline(true)
      await record('St Anne', 20)
      await button('Next visit').click()
      await page.locator('.day summary').first().click()
      await eventually(bar).toMatch(/offline$/)
      await look('5-offline')
      await button(/account of/).click()
      await look('6-account')
      await page.keyboard.press('Escape')
      await context.setOffline(false)
      await button('Test bench').click()
      await eventually(() => page.locator('#bench-count-effects').textContent()).toBe('1')
      await look('7-bench')
      await page.keyboard.press('Escape')
      for (const width of [320, 360, 430, 1280]) {
        await page.setViewportSize({ width, height: width === 320 ? 568 : 900 })
        expect(await page.evaluate(() => document.documentElement.scrollWidth), `${width} px`).toBeLessThanOrEqual(
          width,
        )
        const small = await page.evaluate(() =>
          [...document.querySelectorAll('button, summary, .tile')]
            .map((node) => ({ text: node.textContent, box: node.getBoundingClientRect() }))
            .filter(({ box }) => box.width > 0 && (box.width < 44 || box.height < 44))
            .map(({ text, box }) => `${text} ${box.width}x${box.height}`),
        )
        expect(small, `${width} px`).toEqual([])
        if (width === 320 || width === 1280) await look(`8-at-${width}`)
      }
    })
  })
})
