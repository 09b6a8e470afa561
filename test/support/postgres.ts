/**
 * A real PostgreSQL for a test file: a server of its own on a temporary directory and a free port, which may be stopped hard
 * and started again; or, if BILLONCE_TEST_POSTGRES names one (postgres://…), a database on that. Also PgBouncer in
 * front of it, and a proxy that cuts connections. Run by itself it prints what is missing to start one, for ./dev.
 */
import { spawn, spawnSync } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { connect, createServer } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

/** Where another server may be named. */
const ELSEWHERE = process.env['BILLONCE_TEST_POSTGRES']

export interface PostgresServer {
  readonly url: string
  readonly port: number
  /** Stops it as a power cut would; only where it is ours. */
  crash(): Promise<void>
  start(): Promise<void>
  /** Takes it away with all its data. */
  stop(): Promise<void>
}

/** Whether the server is ours to stop. */
export const isOurServer: boolean = ELSEWHERE === undefined || ELSEWHERE === ''

export const missingMessage =
  'PostgreSQL is not installed here. Install it (Debian: apt-get install postgresql), or name a server that may be used for tests in BILLONCE_TEST_POSTGRES=postgres://user:password@host:port/database.'

/** Where the programs of the server are, the newest; Debian keeps them out of the PATH. */
function findServer(): string | undefined {
  const debian = '/usr/lib/postgresql'
  const versions = existsSync(debian) ? readdirSync(debian).toSorted((one, other) => Number(other) - Number(one)) : []
  const folders = [
    ...versions.map((version) => join(debian, version, 'bin')),
    ...(process.env['PATH'] ?? '').split(delimiter),
  ]
  return folders.find((folder) => existsSync(join(folder, 'initdb')) && existsSync(join(folder, 'postgres')))
}

/** PgBouncer's program, if it is installed. */
export function findBouncer(): string | undefined {
  const folders = ['/usr/sbin', ...(process.env['PATH'] ?? '').split(delimiter)]
  return folders.map((folder) => join(folder, 'pgbouncer')).find((path) => existsSync(path))
}

/** The server refuses to run as root, so then it runs as the user that its package brought. */
function asUser(): { readonly prefix: readonly string[]; readonly uid?: number } {
  if (process.getuid?.() !== 0) return { prefix: [] }
  const id = spawnSync('id', ['-u', 'postgres'], { encoding: 'utf8' })
  if (id.status !== 0) throw new Error('Root may not run PostgreSQL, and there is no user postgres.')
  return { prefix: ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups'], uid: Number(id.stdout) }
}

/** Runs until its stdin is closed, which is also when this process dies in whatever way. */
const KEEPER = `signal=$1; shift; exec 3<&0; "$@" </dev/null 3<&- & pid=$!; (cat <&3 >/dev/null; kill -$signal $pid 2>/dev/null) & wait $pid`

function keep(signal: 'QUIT' | 'TERM', command: readonly string[], cwd: string): ChildProcess {
  const { prefix } = asUser()
  const [program = '', ...args] = [...prefix, 'sh', '-c', KEEPER, 'keeper', signal, ...command]
  return spawn(program, args, { cwd, stdio: ['pipe', 'ignore', 'ignore'] })
}

export async function startPostgres(settings: readonly string[] = []): Promise<PostgresServer> {
  if (ELSEWHERE !== undefined && ELSEWHERE !== '') return await databaseElsewhere(ELSEWHERE)
  const bin = findServer()
  if (bin === undefined) throw new Error(missingMessage)
  const folder = temporaryFolder('billonce-postgres-')
  const data = join(folder, 'data')
  const { prefix } = asUser()
  const [program = '', ...args] = [
    ...prefix,
    join(bin, 'initdb'),
    '-D',
    data,
    ...'-U postgres -A trust -E UTF8 --locale=C --no-sync'.split(' '),
  ]
  const made = spawnSync(program, args, { cwd: folder, encoding: 'utf8' })
  if (made.status !== 0) throw new Error(`initdb: ${made.stderr}`)
  const port = await freePort()
  const url = `postgres://postgres@127.0.0.1:${port}/postgres`
  const log = join(folder, 'log')
  const command = [
    join(bin, 'postgres'),
    ...`-D ${data} -p ${port} -k ${folder} -h 127.0.0.1`.split(' '),
    ...settings
      .concat('log_destination=stderr', 'logging_collector=on', `log_directory=${folder}`, 'log_filename=log')
      .flatMap((setting) => ['-c', setting]),
  ]
  let server: ChildProcess | undefined
  const start = async (): Promise<void> => {
    server = keep('QUIT', command, folder)
    await answering(url, () => (existsSync(log) ? readFileSync(log, 'utf8') : ''))
  }
  const crash = async (): Promise<void> => {
    const running = server
    if (running === undefined || running.exitCode !== null) return
    const ended = once(running, 'exit')
    // SIGQUIT to the server: an immediate shutdown, recovered from the log at the next start.
    running.stdin?.end()
    await ended
  }
  await start()
  return {
    url,
    port,
    start,
    crash,
    async stop() {
      await crash()
      rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
    },
  }
}

/** A database of one's own on a server that somebody else runs. */
async function databaseElsewhere(url: string): Promise<PostgresServer> {
  const name = `billonce_test_${crypto.randomUUID().replaceAll('-', '')}`
  const run = async (text: string): Promise<void> => {
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    await client.query(text)
    await client.end()
  }
  await run(`CREATE DATABASE ${name} ENCODING 'UTF8' TEMPLATE template0`)
  const own = new URL(url)
  own.pathname = `/${name}`
  const notOurs = (): Promise<void> =>
    Promise.reject(new Error('The server in BILLONCE_TEST_POSTGRES is not ours to stop.'))
  return {
    url: own.href,
    port: Number(own.port || 5432),
    start: notOurs,
    crash: notOurs,
    stop: () => run(`DROP DATABASE ${name} WITH (FORCE)`),
  }
}

export interface Bouncer {
  readonly url: string
  stop(): Promise<void>
}

/** PgBouncer in transaction mode in front of a server. */
export async function startBouncer(server: PostgresServer): Promise<Bouncer> {
  const program = findBouncer()
  if (program === undefined) throw new Error('PgBouncer is not installed here (Debian: apt-get install pgbouncer).')
  const folder = temporaryFolder('billonce-bouncer-')
  const port = await freePort()
  const behind = new URL(server.url)
  const config = join(folder, 'pgbouncer.ini')
  const password = behind.password === '' ? '' : ` password=${decodeURIComponent(behind.password)}`
  writeFileSync(
    config,
    `[databases]
bounced = host=${behind.hostname} port=${server.port} dbname=${behind.pathname.slice(1)} user=${behind.username}${password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_check_delay = 0
`,
  )
  chmodSync(config, 0o644)
  const bouncer = keep('TERM', [program, '-q', config], folder)
  const url = `postgres://anybody@127.0.0.1:${port}/bounced`
  await answering(url, () => '')
  return {
    url,
    async stop() {
      const ended = once(bouncer, 'exit')
      bouncer.stdin?.end()
      await ended
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

export interface Proxy {
  readonly url: string
  /** Cuts both sides of a connection as soon as the client has sent this text and the server has it; so many times. */
  cutAfter(text: string, times?: number): void
  /** Answers of the server to what has this text are held back, for ever. */
  swallowAfter(text: string): void
  /** How often it has cut. */
  readonly cuts: number
  stop(): Promise<void>
}

/** A proxy in front of a server, which loses answers: what was asked is done, and nobody is told. */
export async function startProxy(server: PostgresServer): Promise<Proxy> {
  let rule: { text: string; left: number; how: 'cut' | 'swallow' } | undefined
  let cuts = 0
  const sockets = new Set<Socket>()
  const listener = createServer((client) => {
    const behind = connect(server.port, new URL(server.url).hostname)
    let isDeaf = false
    for (const socket of [client, behind]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => {
        sockets.delete(socket)
        client.destroy()
        behind.destroy()
      })
    }
    client.on('data', (chunk) => {
      if (rule !== undefined && rule.left > 0 && chunk.includes(rule.text)) {
        rule.left -= 1
        cuts += 1
        isDeaf = true
        // The first word of the answer shows that the server has done it.
        if (rule.how === 'cut') behind.once('data', () => setTimeout(() => client.destroy(), 20))
      }
      behind.write(chunk)
    })
    behind.on('data', (chunk) => {
      if (!isDeaf) client.write(chunk)
    })
  })
  listener.listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const url = new URL(server.url)
  url.hostname = '127.0.0.1'
  url.port = String((listener.address() as AddressInfo).port)
  return {
    url: url.href,
    cutAfter: (text, times = 1) => void (rule = { text, left: times, how: 'cut' }),
    swallowAfter: (text) => void (rule = { text, left: 1, how: 'swallow' }),
    get cuts() {
      return cuts
    },
    async stop() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => listener.close(resolve))
    },
  }
}

function temporaryFolder(prefix: string): string {
  const folder = mkdtempSync(join(tmpdir(), prefix))
  const { uid } = asUser()
  if (uid !== undefined) chownSync(folder, uid, -1)
  return folder
}

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const { port } = listener.address() as AddressInfo
  await new Promise((resolve) => listener.close(resolve))
  return port
}

async function answering(url: string, why: () => string): Promise<void> {
  const untilMs = performance.now() + 60_000
  for (;;) {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => {})
    try {
      await client.connect()
      await client.query('SELECT 1')
      await client.end()
      return
    } catch (error) {
      await client.end().catch(() => {})
      if (performance.now() > untilMs)
        throw new Error(`It does not answer: ${String(error)}\n${why()}`, { cause: error })
      await sleep(50)
    }
  }
}

if (process.argv[1] === import.meta.filename && isOurServer) {
  const missing = [findServer() ?? 'postgresql', findBouncer() ?? 'pgbouncer'].filter((part) => !part.startsWith('/'))
  process.stdout.write(missing.join(' '))
}
