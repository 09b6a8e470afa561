/** A web worker. */
import { pay } from './sample.js'

addEventListener('message', ({ data }) => void pay(data).then((outcome) => postMessage(outcome)))
