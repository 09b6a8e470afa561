/**
 * What a flush costs where nothing but the disk is in the way: 512 bytes over blocks that were written before, by one
 * system call that returns when they are on the disk (O_DSYNC). Where the system has no such flag, a write and an fdatasync.
 */
import { closeSync, constants, fdatasyncSync, fsyncSync, openSync, writeSync } from 'node:fs'

export interface RawFlushes {
  /** Milliseconds of each of so many flushes, one after the other. */
  take(count: number): readonly number[]
  close(): void
}

export function rawFlushes(path: string): RawFlushes {
  const blocks = 4096
  const record = Buffer.alloc(512, 'x')
  const before = openSync(path, 'w')
  writeSync(before, Buffer.alloc(blocks * record.length, '-'))
  fsyncSync(before)
  closeSync(before)
  const flag = constants.O_DSYNC as number | undefined
  const file = openSync(path, constants.O_RDWR | (flag ?? 0))
  let next = 0
  return {
    take(count) {
      return Array.from({ length: count }, () => {
        const began = performance.now()
        writeSync(file, record, 0, record.length, (next++ % blocks) * record.length)
        if (flag === undefined) fdatasyncSync(file)
        return performance.now() - began
      })
    },
    close: () => closeSync(file),
  }
}
