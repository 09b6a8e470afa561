/**
 * Clients for what the journal holds: one for each endpoint and scope, made from the entry's own words, the config module and
 * the flags. Where credentials or an address could reach the wrong receiver or owner, it stops and asks.
 */
import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { createBillingClient } from 'billonce'
import type {
  BillingClient,
  BillingClientOptions,
  Credentials,
  CredentialsOption,
  JournalStore,
  LookUp,
} from 'billonce'
import { messageOf, usageError } from './failure.ts'
import type { Group, Place } from './journal.ts'
import { harmless } from './text.ts'

/** What the module of `--config` brings. */
export interface Config {
  readonly options: Partial<BillingClientOptions>
  readonly lookUp: LookUp | undefined
}

const NO_CONFIG: Config = { options: {}, lookUp: undefined }

/** Loads a config module: its default export, or `options`, are client options, and `lookUp` asks the receiver. */
export async function loadConfig(path: string | undefined): Promise<Config> {
  if (path === undefined) return NO_CONFIG
  let module: Record<string, unknown>
  try {
    module = (await import(pathToFileURL(resolve(path)).href)) as Record<string, unknown>
  } catch (error) {
    throw usageError(`The config module ${path} cannot be loaded: ${messageOf(error)}`)
  }
  const given = module['default'] ?? module['options'] ?? (module['lookUp'] === undefined ? undefined : {})
  if (typeof given !== 'object' || given === null) {
    throw usageError(`The config module ${path} must export client options, as its default or as \`options\`.`)
  }
  const { lookUp: inside, ...options } = given as Partial<BillingClientOptions> & { readonly lookUp?: unknown }
  const lookUp = module['lookUp'] ?? inside
  if (lookUp !== undefined && typeof lookUp !== 'function') {
    throw usageError(`\`lookUp\` of the config module ${path} must be a function.`)
  }
  // What it answers is read by the client.
  return { options, lookUp: lookUp as LookUp | undefined }
}

// -------------------------------------------------------------------------------------------------------- credentials

export interface SendingFlags {
  readonly baseUrl?: string | undefined
  readonly header?: readonly string[] | undefined
  readonly headerEnv?: readonly string[] | undefined
  readonly credentialsFile?: string | undefined
}

/** Where to send, and as whom. */
export interface Sending {
  readonly baseUrl: string | undefined
  readonly credentials: CredentialsOption | Readonly<Record<string, string>> | undefined
  /** The credentials do not say whose they are, so they are for one scope of one endpoint only. */
  readonly isForOneGroup: boolean
}

/** Reads the flags; those for credentials take the place of the config module's. */
export async function readSending(flags: SendingFlags, config: Config): Promise<Sending> {
  const baseUrl = flags.baseUrl === undefined ? undefined : readAddress(flags.baseUrl)
  const headers: Record<string, string> = {}
  for (const line of flags.header ?? []) readHeaderLine(line, '--header', headers)
  for (const name of flags.headerEnv ?? []) {
    const line = process.env[name]
    if (line === undefined || line === '') throw usageError(`The environment has no ${name}, which --header-env names.`)
    readHeaderLine(line, `the environment's ${name}`, headers)
  }
  const fromFile = flags.credentialsFile === undefined ? undefined : await readCredentials(flags.credentialsFile)
  Object.assign(headers, fromFile?.headers)
  if (fromFile?.scope !== undefined) {
    const credentials: Credentials = { scope: fromFile.scope, headers }
    return { baseUrl, credentials: () => credentials, isForOneGroup: false }
  }
  if (Object.keys(headers).length > 0) return { baseUrl, credentials: headers, isForOneGroup: true }
  return { baseUrl, credentials: undefined, isForOneGroup: config.options.headers !== undefined }
}

/** `name: value`. No message holds the value. */
function readHeaderLine(line: string, where: string, headers: Record<string, string>): void {
  const colon = line.indexOf(':')
  const name = line.slice(0, Math.max(0, colon)).trim()
  if (!/^[!#$%&'*+.^_`|~\w-]+$/.test(name)) {
    throw usageError(`${where} must be a header such as 'authorization: Bearer …': a name, a colon and a value.`)
  }
  headers[name] = line.slice(colon + 1).trim()
}

async function readCredentials(path: string): Promise<{ headers: Record<string, string>; scope: string | undefined }> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    throw usageError(`The credentials file ${path} cannot be read (${(error as NodeJS.ErrnoException).code}).`)
  }
  const headers: Record<string, string> = {}
  if (!text.trimStart().startsWith('{')) {
    for (const line of text.split(/\r?\n/)) {
      if (line.trim() !== '' && !line.startsWith('#')) readHeaderLine(line, `A line of ${path}`, headers)
    }
    return { headers, scope: undefined }
  }
  const wrong = usageError(
    `The credentials file ${path} must hold lines 'name: value', or JSON { "headers": { … }, "scope": "…" } with texts.`,
  )
  let value: { readonly headers?: unknown; readonly scope?: unknown }
  try {
    value = JSON.parse(text) as typeof value
  } catch {
    // Its message would quote the file.
    throw wrong
  }
  const { headers: given, scope } = value
  if (typeof given !== 'object' || given === null || (scope !== undefined && typeof scope !== 'string')) throw wrong
  for (const [name, one] of Object.entries(given)) {
    if (typeof one !== 'string') throw wrong
    headers[name] = one
  }
  return { headers, scope }
}

function readAddress(text: string): string {
  if (!URL.canParse(text) || !/^https?:$/.test(new URL(text).protocol)) {
    throw usageError('--base-url must be an absolute address, such as https://api.example.com.')
  }
  const { href } = new URL(text)
  return href.endsWith('/') ? href : `${href}/`
}

// -------------------------------------------------------------------------------------------------------------- groups

/** Which entries a command works on, if its flags do not say: those of the config module's client. */
export function placeOf(flags: Place, config: Config): Place {
  const { endpoint, scope, baseUrl } = config.options
  return {
    endpoint: flags.endpoint ?? endpoint ?? (baseUrl === undefined ? undefined : readAddress(baseUrl)),
    scope: flags.scope ?? scope,
  }
}

/**
 * The groups that may be sent with these credentials to this address.
 *
 * @throws {CliError} if it is not certain for which they are
 */
export function sendable<G extends Group>(
  groups: readonly G[],
  sending: Sending,
  config: Config,
): { readonly taken: readonly G[]; readonly left: readonly G[] } {
  const { baseUrl } = sending
  const isTaken = (group: Group): boolean => group.endpointNamed || baseUrl === undefined || group.endpoint === baseUrl
  const taken = groups.filter(isTaken)
  const ids = new Set(taken.filter((group) => group.endpointNamed).map((group) => group.endpoint))
  if (ids.size > 1 && (baseUrl !== undefined || config.options.baseUrl !== undefined)) {
    throw usageError(`One address cannot be that of ${ids.size} endpoints; name one by --endpoint:\n${namesOf(taken)}`)
  }
  if (sending.isForOneGroup && taken.length > 1) {
    throw usageError(
      `These credentials do not say whose they are, and the entries belong to ${taken.length} scopes or endpoints. Name one by --scope and --endpoint, so that nobody pays another's bill:\n${namesOf(taken)}`,
    )
  }
  for (const group of taken) {
    if (group.endpointNamed && addressOf(group, sending, config) === undefined) {
      throw usageError(
        `The endpoint ${group.endpoint} is an id, not an address; say where it is by --base-url or in the config module.`,
      )
    }
  }
  return { taken, left: groups.filter((group) => !isTaken(group)) }
}

function namesOf(groups: readonly Group[]): string {
  return groups
    .slice(0, 10)
    .map(({ scope, endpoint }) => `  --scope ${harmless(scope)} --endpoint ${harmless(endpoint)}`)
    .join('\n')
}

function addressOf(group: Group, sending: Sending | undefined, config: Config): string | undefined {
  if (!group.endpointNamed) return group.endpoint
  return sending?.baseUrl ?? config.options.baseUrl
}

/** Works with a client, and closes it whatever happens. The journal stays open. */
export async function withClient<T>(client: BillingClient, work: (client: BillingClient) => Promise<T>): Promise<T> {
  try {
    return await work(client)
  } finally {
    await client.close()
  }
}

/** A name that no receiver can have (RFC 6761), for clients that do not send. */
const NOWHERE = 'https://billonce.invalid/'

/** The client of a group. Without `sending` it reads and writes the journal only. */
export function clientOf(
  group: Group,
  store: JournalStore,
  config: Config,
  sending?: Sending,
  more: Partial<BillingClientOptions> = {},
): BillingClient {
  const { credentials, headers, ...options } = config.options
  const given = sending?.credentials
  const asWhom: Partial<BillingClientOptions> = !sending
    ? {}
    : given === undefined
      ? { credentials, headers }
      : typeof given === 'function'
        ? { credentials: given }
        : { headers: given }
  return createBillingClient({
    ...options,
    ...more,
    ...asWhom,
    journal: store,
    scope: group.scope,
    baseUrl: addressOf(group, sending, config) ?? NOWHERE,
    endpoint: group.endpointNamed ? group.endpoint : undefined,
  })
}
