/**
 * The crash harness itself: what a page has stored is still there after the browser was killed and started again.
 * It needs nothing of billonce, so a failure here is the harness's or the engine's.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { engines } from '../support/browsers.ts'
import { BrowserGoneError, openRealBrowser } from '../support/real-browser.ts'
import { SpawnedBrowser } from '../support/spawn-browser.ts'

describe.each(engines)('%s', (engine) => {
  test('a record that was stored before the request is there after the kill', async () => {
    await using browser = await openRealBrowser(engine)
    browser.handle('/v1/charges', async () => {
      // The moment that matters: stored, request on the wire, no reply. It must not be awaited by the page's own call.
      await browser.kill()
    })
    expect(await browser.run(() => isSecureContext)).toBe(true)

    const lost = browser.run(async (_, record) => {
      const database = await new Promise<IDBDatabase>((resolve, reject) => {
        const opening = indexedDB.open('harness', 1)
        opening.onupgradeneeded = () => opening.result.createObjectStore('records')
        opening.onsuccess = () => resolve(opening.result)
        opening.onerror = () => reject(opening.error)
      })
      await new Promise<void>((resolve, reject) => {
        const transaction = database.transaction('records', 'readwrite', { durability: 'strict' })
        transaction.objectStore('records').put(record, 'key')
        transaction.oncomplete = () => resolve()
        transaction.onerror = () => reject(transaction.error)
      })
      await fetch('/v1/charges', { method: 'POST', body: record, headers: { 'idempotency-key': 'key' } })
    }, 'kept')
    await expect(lost).rejects.toThrow(BrowserGoneError)
    expect(browser.requests).toMatchObject([
      { method: 'POST', path: '/v1/charges', body: 'kept', headers: { 'idempotency-key': 'key' } },
    ])

    await browser.launch()
    const found = await browser.run(async () => {
      const database = await new Promise<IDBDatabase>((resolve, reject) => {
        const opening = indexedDB.open('harness', 1)
        opening.onsuccess = () => resolve(opening.result)
        opening.onerror = () => reject(opening.error)
      })
      return new Promise<unknown>((resolve) => {
        const reading = database.transaction('records').objectStore('records').get('key')
        reading.onsuccess = () => resolve(reading.result)
      })
    })
    expect(found).toBe('kept')
  })

  test('replies, resets and errors of the page come back as they are', async () => {
    await using browser = await openRealBrowser(engine)
    browser.handle('/v1/', async (request) => Response.json({ got: await request.json() }, { status: 402 }))
    browser.handle('/v1/reset', (_, exchange) => exchange.reset())
    const reply = await browser.run(
      async (_, body) => {
        const response = await fetch('/v1/charges', { method: 'POST', body: JSON.stringify(body) })
        return { status: response.status, body: (await response.json()) as unknown }
      },
      { amount: 1250 },
    )
    expect(reply).toEqual({ status: 402, body: { got: { amount: 1250 } } })
    const failed = await browser.run(async () => {
      try {
        await fetch('/v1/reset', { method: 'POST' })
        return 'answered'
      } catch (error) {
        return (error as Error).name
      }
    })
    expect(failed).toBe('TypeError')
    await expect(
      browser.run(() => {
        throw new RangeError('of the page')
      }),
    ).rejects.toThrow('RangeError: of the page')
  })
})

test('nothing is left of a browser that was closed', async () => {
  const browser = new SpawnedBrowser('chromium')
  await browser.open('about:blank')
  expect(existsSync(browser.profile)).toBe(true)
  await browser.close()
  expect(existsSync(browser.profile)).toBe(false)
})

test('nothing is left of a browser whose test run was killed', async () => {
  const module = new URL('../support/spawn-browser.ts', import.meta.url).href
  const owner = spawn(
    process.execPath,
    [
      // Node 22.13 to 22.17 run TypeScript only when told to.
      ...(process.features.typescript ? [] : ['--experimental-strip-types']),
      '--input-type=module',
      '--eval',
      `import { SpawnedBrowser } from ${JSON.stringify(module)}
       const browser = new SpawnedBrowser('chromium')
       await browser.open('about:blank')
       console.log(browser.profile)
       setInterval(() => {}, 1000)`,
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  const profile = String((await once(owner.stdout, 'data'))[0]).trim()
  await expect
    .poll(() => existsSync(`${profile}/Local State`) || existsSync(`${profile}/Default`), { timeout: 20_000 })
    .toBe(true)
  owner.kill('SIGKILL')
  await expect.poll(() => existsSync(profile), { timeout: 20_000 }).toBe(false)
})
