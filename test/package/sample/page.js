/** A page, with a worker as a bundler's manual says to start one. */
import { pay } from './sample.js'

globalThis.sample = {
  pay,
  payInWorker(order) {
    const worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module' })
    return new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data)
      worker.onerror = ({ message }) => reject(new Error(`The worker: ${message}`))
      worker.postMessage(order)
    }).finally(() => worker.terminate())
  },
}
