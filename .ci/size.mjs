// Holds what a page loads to the limits of .size-limit.json, and the limits to what is measured: a limit with slack would let
// the next change grow into it unseen. Looks at dist, so it comes after the build.
import { spawnSync } from 'node:child_process'

/** As many bytes may a limit be above what is measured: tools that are a little newer compress a little otherwise. */
const SLACK_BYTES = 300

const { stdout, stderr } = spawnSync(process.execPath, ['node_modules/size-limit/bin.js', '--json'], {
  encoding: 'utf8',
})
let sizes
try {
  sizes = JSON.parse(stdout)
} catch {
  throw new Error(`size-limit told no sizes:\n${stdout}${stderr}`)
}
for (const { name, size, sizeLimit } of sizes) {
  const wanted = (Math.ceil(size / 100) / 10).toFixed(1)
  const problem =
    size > sizeLimit
      ? `FAILED: over its limit of ${sizeLimit / 1000} kB`
      : sizeLimit - size > SLACK_BYTES
        ? `FAILED: it got smaller; lower its limit in .size-limit.json from ${sizeLimit / 1000} to ${wanted} kB`
        : undefined
  console.log(`${(size / 1000).toFixed(2)} kB  ${name}${problem ? `  ${problem}` : ''}`)
  if (problem) process.exitCode = 1
}
