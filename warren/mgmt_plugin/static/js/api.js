// Requests to the broker. The session cookie says who asks; the CSRF token goes with every request, lives in this module
// only and is never stored.

const BASE = new URL('../api/', import.meta.url);

let csrfToken = null;
let onUnauthorized = () => {};
let renewToken = async () => false;

export function setCsrfToken(token) {
  csrfToken = token;
}

/**
 * `refused` is called after a 401; `renew` asks for the CSRF token again, which may have changed, and resolves with
 * whether it is that of the same user.
 */
export function setSessionHandlers(refused, renew) {
  onUnauthorized = refused;
  renewToken = renew;
}

export class ApiError extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** A path whose values are escaped: path`queues/${vhost}/${name}`. */
export function path(texts, ...values) {
  return texts.reduce((whole, text, index) => whole + encodeURIComponent(values[index - 1]) + text);
}

/** `base?a=1&b=2`, without what is null, undefined or empty. */
export function withQuery(base, query) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = pairs.map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`).join('&');
  return text ? `${base}${base.includes('?') ? '&' : '?'}${text}` : base;
}

/**
 * Throws ApiError where a whole name is "." or "..": browsers take these segments, escaped too, for steps between folders,
 * and what would be asked for, or deleted, is something else.
 */
export function url(apiPath) {
  const step = apiPath.split('?', 1)[0].split('/').find((segment) => segment === '.' || segment === '..');
  if (step) throw new ApiError(400, `browsers cannot ask for what is called “${step}”; warren ctl can`);
  return new URL(apiPath, BASE).href;
}

async function send(method, apiPath, body, headers, signal) {
  const address = url(apiPath);
  const all = { Accept: 'application/json', ...headers };
  // Reading needs no token; it tells the broker not to have the browser ask for a password when the session has ended.
  if (csrfToken) all['X-CSRF-Token'] = csrfToken;
  if (body !== undefined) all['Content-Type'] = 'application/json';
  try {
    return await fetch(address, {
      method,
      headers: all,
      body: body === undefined || body instanceof Blob ? body : JSON.stringify(body),
      credentials: 'same-origin',
      cache: 'no-store',
      signal,
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'the broker does not answer');
  }
}

async function reasonOf(response) {
  try {
    const body = await response.json();
    const reason = typeof body.reason === 'string' ? body.reason : JSON.stringify(body.reason ?? body.error ?? body);
    return reason || `HTTP ${response.status}`;
  } catch {
    return `HTTP ${response.status} ${response.statusText}`.trim();
  }
}

/**
 * Ask the broker. Returns {data, location}; data is null where the answer has no body.
 * `body` goes as JSON, a Blob as it is. Throws ApiError with the broker's reason; status 0 means that nobody answered.
 */
export async function request(method, apiPath, { body, headers, signal, quiet401 = false } = {}) {
  let response = await send(method, apiPath, body, headers, signal);
  if (response.status === 403 && method !== 'GET') {
    // Another tab may have logged in since, and with it the token changed. A change is never repeated as another user.
    const before = csrfToken;
    const same = await renewToken();
    if (csrfToken && csrfToken !== before) {
      if (!same) throw new ApiError(403, 'another user has logged in meanwhile: nothing was changed');
      response = await send(method, apiPath, body, headers, signal);
    }
  }
  if (response.ok) {
    const text = await response.text();
    const json = text && (response.headers.get('Content-Type') ?? '').includes('json');
    return { data: json ? JSON.parse(text) : null, location: response.headers.get('Location') };
  }
  const reason = await reasonOf(response);
  if (response.status === 401 && !quiet401) onUnauthorized();
  throw new ApiError(response.status, reason);
}

export const get = async (apiPath, options) => (await request('GET', apiPath, options)).data;
export const post = async (apiPath, body, options) => (await request('POST', apiPath, { ...options, body })).data;
export const put = async (apiPath, body, options) => (await request('PUT', apiPath, { ...options, body })).data;
export const del = async (apiPath, options) => (await request('DELETE', apiPath, options)).data;
