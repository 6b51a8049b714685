// The place in the application is the hash: `#/queues/vhost/name?tab=messages`. Segments and query are escaped, so any
// name of the broker makes a link, and a copied link shows the same thing.

import { createStore, readStored, writeStored } from './store.js';

function parse(hash) {
  const [before, after = ''] = splitOnce(hash.replace(/^#\/?/, ''), '?');
  return {
    path: before === '' ? [] : before.split('/').map(unescape),
    query: Object.fromEntries(new URLSearchParams(after)),
  };
}

function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function unescape(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** {path: segments, query: object of texts} */
export const place = createStore(parse(window.location.hash));

window.addEventListener('hashchange', () => place.set(parse(window.location.hash)));

export function href(segments, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = new URLSearchParams(pairs).toString();
  // "" is a name in AMQP (the default exchange), and so keeps its own, empty, segment.
  return `#/${segments.map(encodeURIComponent).join('/')}${text ? `?${text}` : ''}`;
}

export function go(segments, query) {
  window.location.hash = href(segments, query);
}

/** Change the query of the current place without a step in the history: null takes a key away. */
export function setQuery(change) {
  const { path, query } = place.get();
  const next = { ...query, ...change };
  history.replaceState(null, '', href(path, next));
  place.set(parse(window.location.hash));
}

/** The vhost that lists are limited to, "" for all. A page of one object keeps the one that was chosen last. */
export function currentVhost() {
  const { path, query } = place.get();
  return query.vhost ?? (path.length > 1 ? lastVhost() : '');
}

/** The vhost that was chosen last, in this visit or an earlier one. */
export const chosenVhost = () => readStored('vhost', '');

let listVhost = chosenVhost();

function remember({ path, query }) {
  if (path.length === 1) listVhost = query.vhost ?? '';
}

remember(place.get());
place.watch(remember);

/** The vhost of the list that was looked at last. */
export const lastVhost = () => listVhost;

export function chooseVhost(vhost) {
  writeStored('vhost', vhost);
  const { path } = place.get();
  if (path.length > 1) go([path[0]], { vhost });
  else setQuery({ vhost: vhost === '' ? null : vhost, page: null });
}

/** Link to a list, in the vhost that is looked at. */
export function listHref(segments, query = {}) {
  return href(segments, { vhost: currentVhost() || null, ...query });
}
