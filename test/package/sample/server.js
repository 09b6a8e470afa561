/** A program for Node: `pay` or `resume`, the receiver's address, and the operation. */
import { pay, resume } from './sample.js'

async function main([what, baseUrl, operationId]) {
  const answer = what === 'resume' ? await resume({ baseUrl }) : await pay({ baseUrl, operationId })
  process.stdout.write(
    JSON.stringify({ ...answer, sqliteInMainThread: process.moduleLoadList.includes('NativeModule sqlite') }),
  )
}

void main(process.argv.slice(2))
