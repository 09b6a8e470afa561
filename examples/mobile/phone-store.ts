/**
 * What the app itself keeps on the phone: who is signed in, the phone's name, and the visits with their numbers. What is billed
 * is in the journal of billonce, which is another database.
 */
import { createStore } from 'idb-keyval'
import type { UseStore } from 'idb-keyval'

let store: UseStore | undefined

/** Opened on first use, in pages and in the worker. */
export function phoneStore(): UseStore {
  return (store ??= createStore('rounds', 'phone'))
}

const channel = new BroadcastChannel('rounds')

/** Tells the other tabs, or from the worker all of them, that something has changed. */
export function tellOthers(): void {
  channel.postMessage('changed')
}

export function onTold(listener: () => void): void {
  channel.addEventListener('message', listener)
}
