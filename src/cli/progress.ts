/**
 * Progress of long work on stderr: a live line on a terminal, a line every few seconds elsewhere, nothing with `--json`.
 */
import { SingleBar } from 'cli-progress'

export interface Progress {
  update(done: number, total: number): void
  stop(): void
}

const EVERY_MS = 3000
/** What is done sooner needs no bar. */
const PATIENCE_MS = 400

export function startProgress(what: string, isQuiet: boolean): Progress {
  if (isQuiet) return { update: () => {}, stop: () => {} }
  return process.stderr.isTTY ? liveLine(what) : sparseLines(what)
}

function liveLine(what: string): Progress {
  const startedAtMs = Date.now()
  let bar: SingleBar | undefined
  return {
    update(done, total) {
      if (!bar) {
        if (Date.now() - startedAtMs < PATIENCE_MS) return
        bar = new SingleBar({
          format: `${what} {bar} {value}/{total}  {duration_formatted}`,
          stream: process.stderr,
          barsize: 24,
          barCompleteChar: '█',
          barIncompleteChar: '░',
          // A process that is killed could not put them back.
          hideCursor: false,
          linewrap: true,
          clearOnComplete: true,
          gracefulExit: false,
          fps: 10,
        })
        bar.start(Math.max(total, done), done)
      }
      bar.setTotal(Math.max(total, done))
      bar.update(done)
    },
    stop() {
      bar?.stop()
    },
  }
}

function sparseLines(what: string): Progress {
  let lastAtMs = Date.now()
  return {
    update(done, total) {
      const nowMs = Date.now()
      if (nowMs - lastAtMs < EVERY_MS) return
      lastAtMs = nowMs
      process.stderr.write(`${what} ${done}/${Math.max(total, done)}\n`)
    },
    stop() {},
  }
}
