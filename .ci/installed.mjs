// Ends with 0 if node_modules is what package-lock.json says, whoever installed it; `runtime` asks only for what the
// sources need to run, `all` for everything. Compares npm's own note of what it installed, so it takes no npm call.
import { readFileSync } from 'node:fs'

const wanted = process.argv[2] ?? 'all'
try {
  const lock = JSON.parse(readFileSync('package-lock.json', 'utf8')).packages
  // Written by npm as its last act: after an install that was broken off it is missing.
  const installed = JSON.parse(readFileSync('node_modules/.package-lock.json', 'utf8')).packages
  const current = Object.entries(lock)
    .filter(([path, entry]) => path !== '' && !(wanted === 'runtime' && (entry.dev || entry.devOptional)))
    // What is optional may be for another platform.
    .every(([path, entry]) =>
      installed[path] === undefined ? entry.optional === true : installed[path].integrity === entry.integrity,
    )
  process.exitCode = current ? 0 : 1
} catch {
  process.exitCode = 1
}
