/**
 * A browser process that surely ends. It is started plainly, without a driver, in a process group of its own, and a
 * small watcher outside of our process ends the group and removes the profile as soon as we are gone, however we went.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { commandFor, type Engine } from './browsers.ts'

/**
 * Its input closes when we close it, exit or are killed, so it needs no word from us. Each line names the process
 * group that lives now; an empty line says that none does (a number may be given to somebody else later).
 */
const watcherScript = `
trap '' INT TERM HUP
group=
while read -r line; do group=$line; done
[ -z "$group" ] || kill -s KILL -- "-$group"
tries=0
while [ -e "$1" ] && [ "$tries" -lt 50 ]; do
  rm -rf -- "$1" || sleep 0.1
  tries=$((tries + 1))
done
`

// After a kill Firefox would open the tabs of before beside ours, and after some kills ask for its safe mode.
const firefoxPreferences = `
user_pref('browser.sessionstore.resume_from_crash', false);
user_pref('toolkit.startup.max_resumed_crashes', -1);
user_pref('browser.shell.checkDefaultBrowser', false);
user_pref('browser.aboutwelcome.enabled', false);
user_pref('datareporting.policy.dataSubmissionEnabled', false);
user_pref('app.update.auto', false);
`

export class SpawnedBrowser {
  readonly engine: Engine
  /** The folder of everything the browser keeps; it outlives {@link kill} and goes with {@link close}. */
  readonly profile: string
  readonly #watcher: ChildProcess
  #child: ChildProcess | undefined

  readonly #moreArgs: readonly string[]

  constructor(engine: Engine, moreArgs: readonly string[] = []) {
    this.engine = engine
    this.#moreArgs = moreArgs
    this.profile = mkdtempSync(join(tmpdir(), `billonce-${engine}-`))
    if (engine === 'firefox') writeFileSync(join(this.profile, 'user.js'), firefoxPreferences)
    this.#watcher = spawn('sh', ['-c', watcherScript, 'sh', this.profile], {
      detached: true,
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    // Neither may keep a test process alive that forgot to close, nor end it with an EPIPE.
    this.#watcher.unref()
    const input = this.#watcher.stdin as Socket
    input.unref()
    input.on('error', () => {})
  }

  /** Opens the page; resolves when the process runs, which says nothing yet about the page. */
  async open(url: string): Promise<void> {
    if (this.#child !== undefined) throw new Error(`${this.engine} already runs`)
    const { command, args, env } = commandFor(this.engine, this.profile, url)
    const log = openSync(this.#logPath, 'a')
    try {
      const child = spawn(command, [...this.#moreArgs, ...args], {
        detached: true,
        stdio: ['ignore', 'ignore', log],
        env: { ...process.env, ...env },
      })
      child.unref()
      await once(child, 'spawn')
      this.#child = child
      this.#watcher.stdin?.write(`${child.pid}\n`)
    } finally {
      closeSync(log)
    }
  }

  /** SIGKILL to the whole group, as a crash or the system's out-of-memory killer would; resolves when all are gone. */
  async kill(): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child?.pid === undefined) return
    const ended = child.exitCode !== null || child.signalCode !== null
    child.ref()
    const exit = ended ? undefined : once(child, 'exit')
    try {
      process.kill(-child.pid, 'SIGKILL')
    } catch {
      // ESRCH: the group has ended by itself.
    }
    await exit
    // The profile may be opened again only when nobody writes to it any more.
    for (let waits = 0; waits < 200 && groupLives(child.pid); waits += 1) await sleep(10)
    this.#watcher.stdin?.write('\n')
  }

  /** Ends the browser and removes its profile. */
  async close(): Promise<void> {
    await this.kill()
    if (this.#watcher.exitCode !== null || this.#watcher.signalCode !== null) return
    this.#watcher.ref()
    const exit = once(this.#watcher, 'exit')
    this.#watcher.stdin?.end()
    await exit
  }

  /** What a failed start says, for the message of the test that waited for it. */
  get lastWords(): string {
    try {
      return readFileSync(this.#logPath, 'utf8').slice(-2000)
    } catch {
      return ''
    }
  }

  get #logPath(): string {
    return join(this.profile, 'stderr.log')
  }
}

function groupLives(group: number): boolean {
  try {
    process.kill(-group, 0)
  } catch {
    return false
  }
  if (process.platform !== 'linux') return true
  // In a container without an init process the dead are not collected: they still have a number, but write nothing.
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .some((pid) => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
        // «pid (name) state parent group»; the name may hold blanks and brackets.
        const [state, , itsGroup] = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
        return itsGroup === String(group) && state !== 'Z' && state !== 'X'
      } catch {
        return false
      }
    })
}
