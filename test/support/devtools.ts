/**
 * Chromium's DevTools protocol over one socket, for the few things that only it can bring about: a sync event, a tab that is
 * closed or frozen. The browser has to be started with `--remote-debugging-port=0`.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export const devToolsArgs: readonly string[] = ['--remote-debugging-port=0']

type Params = Record<string, unknown>

export interface DevTools extends Disposable {
  /** Sends one command, to the browser or to what a session is attached to, and gives its result. */
  send<T = Params>(method: string, params?: Params, sessionId?: string): Promise<T>
  /** A session with the page whose address begins so. */
  attach(address: string): Promise<{ sessionId: string; targetId: string }>
  /** Params of the events of this name that have come, oldest first. */
  seen(method: string): readonly Params[]
}

export async function connectDevTools(profile: string): Promise<DevTools> {
  const socket = new WebSocket(await addressIn(profile))
  const waiting = new Map<number, { resolve: (result: never) => void; reject: (reason: Error) => void }>()
  const events: { method: string; params: Params }[] = []
  let lastId = 0
  socket.addEventListener('message', ({ data }) => {
    const message = JSON.parse(String(data)) as {
      id?: number
      result?: never
      error?: { message: string }
      method?: string
      params?: Params
    }
    if (message.method !== undefined) events.push({ method: message.method, params: message.params ?? {} })
    if (message.id === undefined) return
    const { resolve, reject } = waiting.get(message.id) ?? {}
    waiting.delete(message.id)
    if (message.error) reject?.(new Error(message.error.message))
    else resolve?.(message.result as never)
  })
  socket.addEventListener('close', () => {
    for (const { reject } of waiting.values()) reject(new Error('The browser has gone'))
  })
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve)
    socket.addEventListener('error', () => reject(new Error('No DevTools')))
  })
  const send = <T>(method: string, params: Params = {}, sessionId?: string): Promise<T> => {
    const id = ++lastId
    socket.send(JSON.stringify({ id, method, params, ...(sessionId === undefined ? {} : { sessionId }) }))
    return new Promise<T>((resolve, reject) => {
      waiting.set(id, { resolve, reject })
    })
  }
  return {
    send,
    async attach(address) {
      const { targetInfos } = await send<{ targetInfos: { type: string; url: string; targetId: string }[] }>(
        'Target.getTargets',
      )
      const target = targetInfos.find(({ type, url }) => type === 'page' && url.startsWith(address))
      if (!target) throw new Error(`No page at ${address}, but ${targetInfos.map(({ url }) => url).join(', ')}`)
      const { targetId } = target
      const { sessionId } = await send<{ sessionId: string }>('Target.attachToTarget', { targetId, flatten: true })
      return { sessionId, targetId }
    },
    seen: (method) => events.filter((event) => event.method === method).map(({ params }) => params),
    [Symbol.dispose]: () => socket.close(),
  }
}

/** The browser writes where it listens into its profile, somewhat after its start; a killed one leaves an old address. */
async function addressIn(profile: string): Promise<string> {
  for (let tries = 0; ; tries += 1) {
    try {
      const [port, path] = readFileSync(join(profile, 'DevToolsActivePort'), 'utf8').trim().split('\n')
      await fetch(`http://127.0.0.1:${port}/json/version`)
      return `ws://127.0.0.1:${port}${path}`
    } catch (error) {
      if (tries > 100) throw error
      await sleep(100)
    }
  }
}
