// Counts what a run of `dev` left in test-results: `note STEP` one step's tests, `line` the line that CI reads, and
// without an argument the summary for people. A step that failed without a failed test (types, lint, a test file that
// does not load, a run that died) counts as one failure, so that a broken run never reads «0 failed».
import { existsSync, readFileSync } from 'node:fs'

const folder = 'test-results'
const [, , what, name] = process.argv

if (what === 'note') {
  const tests = testsOf(name)
  console.log(tests === undefined ? '' : counts(tests))
} else {
  const total = { passed: 0, failed: 0, skipped: 0 }
  const failedSteps = []
  const steps = existsSync(`${folder}/steps.tsv`) ? readFileSync(`${folder}/steps.tsv`, 'utf8').trim().split('\n') : []
  for (const [result, step] of steps.filter(Boolean).map((line) => line.split('\t'))) {
    const tests = testsOf(step) ?? { passed: 0, failed: 0, skipped: 0 }
    total.passed += tests.passed
    total.skipped += tests.skipped
    total.failed += result === 'failed' ? Math.max(tests.failed, 1) : tests.failed
    if (result === 'failed') failedSteps.push(step)
  }
  // Nothing ran at all: that is not a success.
  if (steps.filter(Boolean).length === 0) total.failed = 1
  if (what === 'line') {
    console.log(`${total.passed} passed, ${total.failed} failed`)
  } else {
    console.log(`\n${counts(total)}${failedSteps.length > 0 ? `: ${failedSteps.join(', ')}` : ''}`)
    if (failedSteps.length > 0) console.log(`The output of every step is in ${folder}/.`)
  }
  process.exitCode = total.failed === 0 ? 0 : 1
}

function counts({ passed, failed, skipped }) {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`
}

/** Of a step that ran vitest, else undefined; the file name is made as in `dev`. */
function testsOf(step) {
  const path = `${folder}/${step.toLowerCase().replace(/[^a-z0-9]+/g, '-')}.json`
  if (!existsSync(path)) return undefined
  const report = JSON.parse(readFileSync(path, 'utf8'))
  return {
    passed: report.numPassedTests,
    failed: report.numFailedTests,
    skipped: report.numPendingTests + report.numTodoTests,
  }
}
