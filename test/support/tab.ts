/**
 * A tab of a real browser, as a frame of the page that the test commands: with globals, locks and a journal's owner of its
 * own, on the origin and the storage of all tabs. It can be reloaded and closed in mid-work, and several work at once.
 */
import type { Page, RealBrowser } from './real-browser.ts'

type Code<Result, Argument> = (page: Page, argument: Argument) => Result | Promise<Result>

const tabHtml = `<!doctype html>
<meta charset="utf-8">
<title>tab</title>
<script type="module">
globalThis.page = { billonce: () => import('/billonce.js'), indexeddb: () => import('/indexeddb.js') }
</script>
`

let lastId = 0

export class Tab {
  readonly #browser: RealBrowser
  readonly #id: string = `tab-${(lastId += 1)}`

  constructor(browser: RealBrowser) {
    this.#browser = browser
  }

  /** Starts the function in the tab and does not wait for it. It is sent as text and sees the tab's own globals. */
  async begin<Result, Argument>(code: Code<Result, Argument>, argument?: Argument): Promise<void> {
    const text = JSON.stringify(argument) as string | undefined
    await this.#browser.run(
      (_, [id, script]: readonly [string, string]) => {
        const tab = (document.getElementById(id) as HTMLIFrameElement).contentWindow as unknown as {
          eval: (code: string) => unknown
        }
        tab.eval(script)
      },
      [
        this.#id,
        `globalThis.work = (async () => (${code.toString()})(page, ${text ?? 'undefined'}))(); work.catch(() => {})`,
      ],
    )
  }

  /** What came of the last function. */
  end<Result>(): Promise<Result> {
    return this.#browser.run(
      (_, id): Promise<Result> =>
        ((document.getElementById(id) as HTMLIFrameElement).contentWindow as unknown as { work: Promise<Result> }).work,
      this.#id,
    )
  }

  async run<Result, Argument>(code: Code<Result, Argument>, argument?: Argument): Promise<Result> {
    await this.begin(code, argument)
    return await this.end<Result>()
  }

  /** Loads it anew: whatever it did ends in the middle, as when a user reloads. */
  async reload(): Promise<void> {
    await this.#browser.run(async (_, id) => {
      const frame = document.getElementById(id) as HTMLIFrameElement
      const loaded = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }))
      frame.contentWindow?.location.reload()
      await loaded
    }, this.#id)
  }

  /** Takes it away: its requests are broken off and its locks freed. */
  async close(): Promise<void> {
    await this.#browser.run((_, id) => document.getElementById(id)?.remove(), this.#id)
  }

  /** @internal */
  async load(): Promise<void> {
    await this.#browser.run(async (_, id) => {
      const frame = document.createElement('iframe')
      frame.id = id
      frame.src = '/tab'
      const loaded = new Promise((resolve) => frame.addEventListener('load', resolve, { once: true }))
      document.body.append(frame)
      await loaded
    }, this.#id)
  }
}

export async function openTab(browser: RealBrowser): Promise<Tab> {
  browser.handle('/tab', () => new Response(tabHtml, { headers: { 'content-type': 'text/html' } }))
  const tab = new Tab(browser)
  await tab.load()
  return tab
}
