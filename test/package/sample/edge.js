/** A function at the edge, or in any runtime that is neither a browser nor Node. */
import { construct, pay } from './sample.js'

globalThis.sample = { construct, pay }
