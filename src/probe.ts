/**
 * `probeReceiver`: does a receiver let a page of another origin send what billonce sends, and read what it has to read? It
 * stands apart from the client, so that a page that never asks does not carry it.
 */
import { InvalidInputError, mustBe } from './errors.ts'

export interface ProbeOptions {
  /** The client's `baseUrl`. */
  readonly baseUrl: string
  /** A path of the writes under `baseUrl`; default `v1/charges`. */
  readonly path?: string | undefined
  /**
   * Names of the request headers that the client sends, in any case; default `Authorization`, `Content-Type` and
   * `Idempotency-Key`. Headers of the dialect and of `credentials` belong to them.
   */
  readonly headers?: readonly string[] | undefined
  /**
   * Outside of a page: the origin of the pages that will send, such as `https://shop.example`. There the answers of the
   * receiver can be read one by one, where a browser only says yes or no; so this is the probe for CI.
   */
  readonly origin?: string | undefined
  /** Of each request, in whole milliseconds from 1 to 2^31 - 1; default 10,000. */
  readonly timeoutMs?: number | undefined
  /** Default is the global one. */
  readonly fetch?: typeof fetch | undefined
}

/** `unknown`: it cannot be seen from here. */
export type ProbeAnswer = 'yes' | 'no' | 'unknown'

export interface ProbeReport {
  /** `true` if nothing that a payment needs is missing. What cannot be seen from here is not taken for missing. */
  readonly ok: boolean
  /** Whether anything answered at all. */
  readonly reachable: boolean
  /** `false` if page and receiver have one origin: then nothing has to be allowed. */
  readonly crossOrigin: boolean
  /** Whether pages of this origin may send. */
  readonly originAllowed: ProbeAnswer
  /** By the names that were asked for: whether the preflight allows them. */
  readonly headersAllowed: Readonly<Record<string, ProbeAnswer>>
  /** Whether pages may read them. A reply that does not carry them leaves a page without an answer. */
  readonly headersExposed: Readonly<Record<'Date' | 'Retry-After' | 'Idempotent-Replayed', ProbeAnswer>>
  /** What to change at the receiver, a sentence each; empty if there is nothing. */
  readonly advice: readonly string[]
}

interface Question {
  readonly fetch: typeof fetch
  readonly timeoutMs: number
  readonly url: string
  readonly origin: string
  readonly headers: readonly string[]
}
interface Findings extends Pick<ProbeReport, 'reachable' | 'originAllowed' | 'headersAllowed' | 'headersExposed'> {
  /** Whether the preflight was answered with a redirect, as far as that can be seen. */
  readonly isRedirected?: boolean
}

/** Timers hold no more than this. */
const MAX_TIMER_MS = 2 ** 31 - 1

const READ = ['Date', 'Retry-After', 'Idempotent-Replayed'] as const

/**
 * Asks a receiver what it allows to pages of another origin. Sends GET (and, outside of a page, OPTIONS) without a body, a key
 * or credentials of yours, so it makes no effect (RFC 9110, 9.2.1); the header names are tried with the value `probe`.
 *
 * Run it in the page (a diagnostics page, a support console), or outside with `origin`. What a browser hides stays `unknown`.
 *
 * @throws {InvalidInputError} an option is not usable; nothing was sent
 * @see Fetch standard, «CORS protocol»: which headers a preflight must allow and a page may read
 * @example
 * const report = await probeReceiver({ baseUrl: 'https://api.example.com', origin: 'https://shop.example' })
 * if (!report.ok) throw new Error(report.advice.join('\n'))
 */
export async function probeReceiver(options: ProbeOptions): Promise<ProbeReport> {
  const { question, isPage } = readProbe(options)
  const crossOrigin = question.origin !== '' && new URL(question.url).origin !== question.origin
  const { isRedirected = false, ...findings } = await (isPage ? inPage(question) : outside(question, crossOrigin))
  const advice = isMixed(question)
    ? [`Pages of ${question.origin} may not ask an address without https: give baseUrl one with https.`]
    : !findings.reachable
      ? [`Nothing answered at this address: check baseUrl and network${isPage ? WHAT_ELSE_STOPS_A_PAGE : ''}.`]
      : crossOrigin
        ? adviceOf(question, findings, isRedirected)
        : []
  return { ok: advice.length === 0, crossOrigin, ...findings, advice }
}

/** To a page this looks as if nobody were there. */
const WHAT_ELSE_STOPS_A_PAGE = ', and whether the Content-Security-Policy of this page lets it ask there (connect-src)'

const KNOWN = [
  'baseUrl',
  'fetch',
  'headers',
  'origin',
  'path',
  'timeoutMs',
] as const satisfies readonly (keyof ProbeOptions)[]

function readProbe(options: ProbeOptions): { question: Question; isPage: boolean } {
  mustBe(typeof options === 'object' && options !== null, 'options', 'an object with a baseUrl')
  const stray = Object.keys(options).find((name) => !(KNOWN as readonly string[]).includes(name))
  // A misspelled one would silently leave a default in force.
  if (stray !== undefined) throw new InvalidInputError(stray, `${stray} is not an option.`)
  const {
    headers = ['Authorization', 'Content-Type', 'Idempotency-Key'],
    path = 'v1/charges',
    timeoutMs = 10_000,
  } = options
  const isPage = typeof location !== 'undefined' && options.origin === undefined
  const origin = isPage ? location.origin : options.origin
  const base = addressOf(options.baseUrl, 'baseUrl')
  if (origin !== undefined && addressOf(origin, 'origin').origin !== origin)
    throw new InvalidInputError('origin', 'origin must be an origin, such as https://shop.example.')
  const isName = (name: unknown): boolean => typeof name === 'string' && /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name)
  mustBe(Array.isArray(headers) && headers.every(isName), 'headers', 'an array of names of headers')
  mustBe(options.fetch === undefined || typeof options.fetch === 'function', 'fetch', 'a function')
  // What AbortSignal.timeout does not take would look like a receiver that does not answer.
  if (!Number.isInteger(timeoutMs) || timeoutMs < 1 || timeoutMs > MAX_TIMER_MS)
    throw new InvalidInputError(
      'timeoutMs',
      `timeoutMs must be a whole number of milliseconds from 1 to ${MAX_TIMER_MS}.`,
    )
  const fetching = options.fetch ?? ((...args: Parameters<typeof fetch>) => globalThis.fetch(...args))
  mustBe(typeof path === 'string' && isAt(path, base), 'path', 'a path under baseUrl')
  const url = new URL(path, base.href.endsWith('/') ? base : `${base.href}/`).href
  return { question: { url, origin: origin ?? '', headers, timeoutMs, fetch: fetching }, isPage }
}

/** Not the address of another server, which would be asked instead. */
function isAt(path: string, base: URL): boolean {
  try {
    return new URL(path, base).origin === base.origin
  } catch {
    return false
  }
}

function addressOf(value: string, name: string): URL {
  try {
    const url = new URL(value)
    if (url.protocol === 'https:' || url.protocol === 'http:') return url
  } catch {
    // Said below.
  }
  throw new InvalidInputError(name, `${name} must be an absolute http(s) address.`)
}

// ----------------------------------------------------------------------------------------------------------- in a page

/** A browser answers "may I?" only by letting a request through or not, so what differs between two of them is the answer. */
async function inPage(question: Question): Promise<Findings> {
  const plain = await ask(question, {})
  // A request that asks for nothing may be sent to anybody, and then its reply is there but cannot be read.
  if (!plain && !(await ask(question, { mode: 'no-cors', redirect: 'follow' }))) return nothingFound(question, false)
  const carrying = (names: readonly string[]): RequestInit => ({
    headers: Object.fromEntries(names.map((name) => [name, 'probe'])),
  })
  const all = await ask(question, carrying(question.headers))
  if (!plain && !all) {
    // Not even a plain request may be read: the origin is not allowed, at least not for GET.
    return { ...nothingFound(question, true), originAllowed: 'no' }
  }
  const allowed = async (name: string): Promise<[string, ProbeAnswer]> => [
    name,
    all || (await ask(question, carrying([name]))) ? 'yes' : 'no',
  ]
  const reply = all ?? plain
  // A reply always has a Date (RFC 9110, 6.6.1), so one that is not seen is hidden; the others come with some replies only.
  const exposed = READ.map((name) => [name, reply?.headers.has(name) ? 'yes' : name === 'Date' ? 'no' : 'unknown'])
  return {
    reachable: true,
    isRedirected: !all && isRedirect(plain),
    originAllowed: 'yes',
    headersAllowed: Object.fromEntries(await Promise.all(question.headers.map(allowed))),
    headersExposed: Object.fromEntries(exposed) as Findings['headersExposed'],
  }
}

// ------------------------------------------------------------------------------------------------------- outside of one

/** Plays the browser: asks as its preflight would, and reads what a page would not be shown. */
async function outside(question: Question, crossOrigin: boolean): Promise<Findings> {
  const { headers, origin } = question
  const reply = await ask(question, crossOrigin ? { headers: { origin } } : {})
  if (!reply) return nothingFound(question, false)
  if (!crossOrigin) return nothingFound(question, true)
  const names = headers.map((name) => name.toLowerCase()).toSorted()
  const preflight = await ask(question, {
    method: 'OPTIONS',
    headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': names.join(',') },
  })
  const lets = (from: Response | undefined): boolean => {
    const allowed = from?.headers.get('access-control-allow-origin')
    return allowed === '*' || allowed === origin
  }
  const isAllowed = listIn(preflight, 'access-control-allow-headers')
  const isExposed = listIn(reply, 'access-control-expose-headers')
  // A preflight that is not answered with a 2xx allows nothing, whatever its headers say.
  const passes = preflight !== undefined && preflight.ok && lets(preflight)
  return {
    reachable: true,
    isRedirected: isRedirect(preflight),
    originAllowed: passes && lets(reply) ? 'yes' : 'no',
    headersAllowed: Object.fromEntries(headers.map((name) => [name, passes && isAllowed(name) ? 'yes' : 'no'])),
    headersExposed: Object.fromEntries(
      READ.map((name) => [name, lets(reply) && isExposed(name) ? 'yes' : 'no']),
    ) as Findings['headersExposed'],
  }
}

/** Whether a list of names in a header has a name. A star stands for all but `Authorization`. */
function listIn(response: Response | undefined, header: string): (name: string) => boolean {
  const names = (response?.headers.get(header) ?? '').split(',').map((name) => name.trim().toLowerCase())
  return (name) => names.includes(name.toLowerCase()) || (names.includes('*') && name.toLowerCase() !== 'authorization')
}

// ----------------------------------------------------------------------------------------------------------- for both

/** `undefined` for whatever fetch throws: it does not say why. */
async function ask({ fetch: fetching, timeoutMs, url }: Question, init: RequestInit): Promise<Response | undefined> {
  try {
    const signal = AbortSignal.timeout(timeoutMs)
    const response = await fetching(url, {
      credentials: 'omit',
      cache: 'no-store',
      redirect: 'manual',
      signal,
      ...init,
    })
    await response.body?.cancel()
    return response
  } catch {
    return undefined
  }
}

/** A page is shown of a redirect only that it is one. */
function isRedirect(reply: Response | undefined): boolean {
  return reply !== undefined && (reply.type === 'opaqueredirect' || (reply.status >= 300 && reply.status < 400))
}

/** Browsers let no page with https ask an address without, other than this machine (Mixed Content, W3C). */
function isMixed({ origin, url }: Question): boolean {
  const { hostname, protocol } = new URL(url)
  const isLoopback = /^(127\.[\d.]+|\[::1\]|(.+\.)?localhost)$/.test(hostname)
  return origin.startsWith('https:') && protocol === 'http:' && !isLoopback
}

function nothingFound({ headers }: Question, reachable: boolean): Findings {
  return {
    reachable,
    originAllowed: 'unknown',
    headersAllowed: Object.fromEntries(headers.map((name) => [name, 'unknown'])),
    headersExposed: { Date: 'unknown', 'Retry-After': 'unknown', 'Idempotent-Replayed': 'unknown' },
  }
}

function adviceOf({ headers, origin }: Question, findings: Findings, isRedirected: boolean): string[] {
  const { originAllowed, headersAllowed, headersExposed } = findings
  const no = (answers: Readonly<Record<string, ProbeAnswer>>): string =>
    Object.keys(answers)
      .filter((name) => answers[name] === 'no')
      .join(', ')
  if (isRedirected)
    return [
      'The preflight is answered with a redirect, which no browser follows: give baseUrl the address it leads to.',
    ]
  if (originAllowed === 'no')
    return [
      `Pages of ${origin} may not send or not read the reply: answer preflights (OPTIONS, with a 2xx) and requests, errors too such as 404 and 405 to the GET of this probe, with Access-Control-Allow-Origin: ${origin}`,
    ]
  const advice: string[] = []
  // All of them means rather that there is no preflight: a page sees no difference.
  const isNoneAllowed = headers.length > 1 && headers.every((name) => headersAllowed[name] === 'no')
  if (no(headersAllowed))
    advice.push(
      isNoneAllowed
        ? `No preflight passes: answer OPTIONS with a 2xx, Access-Control-Allow-Origin: ${origin} and Access-Control-Allow-Headers: ${no(headersAllowed)}`
        : `The preflight refuses headers: add to Access-Control-Allow-Headers: ${no(headersAllowed)}`,
    )
  if (no(headersExposed))
    advice.push(`Pages cannot read headers of replies: add to Access-Control-Expose-Headers: ${no(headersExposed)}`)
  return advice
}
