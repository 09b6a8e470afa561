/** A client that does nothing but ask: tests of the receiver look at it from the wire. */

export const charge = { amount: 5000, currency: 'usd', customer: 'cus_1', metadata: { operation: 'order-1' } }

export interface PostOptions {
  path?: string
  key?: string | null
  body?: unknown
  token?: string
  method?: string
  headers?: Record<string, string>
  signal?: AbortSignal
  redirect?: RequestRedirect
  base?: string
}

/** Posts a charge under the key `k1` unless told otherwise. `key: null` sends none; a string as body is sent as it is. */
export function post(fetch: typeof globalThis.fetch, options: PostOptions = {}): Promise<Response> {
  const { path = 'v1/charges', key = 'k1', body = charge, token, method = 'POST', base = 'https://api.test' } = options
  return fetch(`${base}/${path}`, {
    method,
    headers: {
      'content-type': 'application/json',
      ...(key === null ? {} : { 'idempotency-key': key }),
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...options.headers,
    },
    ...(method === 'GET' ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    ...(options.signal && { signal: options.signal }),
    ...(options.redirect && { redirect: options.redirect }),
  })
}

/** Status, error code if there is one, receipt id if there is one, and whether it is marked as a replay. */
export async function shortOf(
  response: Response,
): Promise<{ status: number; code?: string; id?: string; replayed: boolean }> {
  const body = (await response.json()) as { id?: string; code?: string; error?: { code: string } }
  const code = body.error?.code ?? body.code
  return {
    status: response.status,
    ...(code !== undefined && { code }),
    ...(body.id !== undefined && { id: body.id }),
    replayed: response.headers.get('idempotent-replayed') === 'true',
  }
}
