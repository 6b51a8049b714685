// Links to objects of the broker, and the marks that say at a glance what an object is.

import { href, listHref } from '../router.js';
import { html } from '../ui.js';
import { Mark, State } from './page.js';

/** The default exchange has no name in AMQP; the API and links call it amq.default. */
export const exchangeKey = (name) => (name === '' ? 'amq.default' : name);
export const exchangeLabel = (name) => (name === '' || name === 'amq.default' ? '(default exchange)' : name);

export const queueHref = (vhost, name, query) => href(['queues', vhost, name], query);
export const exchangeHref = (vhost, name) => href(['exchanges', vhost, exchangeKey(name)]);

const PARTS_MAX = 16;

/** A name that breaks after its separators, where its column is narrow, rather than within a word. */
function breakable(name) {
  const parts = name.split(/(?<=[._/:-])(?=[^._/:-])/);
  return parts.length > PARTS_MAX ? name : parts.map((part, at) => (at === 0 ? part : html`<wbr />${part}`));
}

export function QueueLink({ vhost, name }) {
  return html`<a class="name" href=${queueHref(vhost, name)}>${breakable(name)}</a>`;
}

export function ExchangeLink({ vhost, name }) {
  return html`<a class="name" href=${exchangeHref(vhost, name)}>${breakable(exchangeLabel(name))}</a>`;
}

const SUBSCRIBER = /^mqtt-subscription-(.*)qos0$/s;

/** Where a binding leads: to a queue, an exchange, or an MQTT client that has no queue for what it gets. */
export function DestinationLink({ of: { vhost, destination, destination_type: type } }) {
  if (type === 'queue') return html`<${QueueLink} vhost=${vhost} name=${destination} />`;
  if (type === 'exchange') return html`<${ExchangeLink} vhost=${vhost} name=${destination} /> <small>exchange</small>`;
  const client = SUBSCRIBER.exec(destination)?.[1] ?? destination;
  return html`<a class="name" href=${href(['mqtt-sessions', vhost, client])}>${client}</a> <small>MQTT</small>`;
}

export function ConnectionLink({ name, label }) {
  return html`<a class="name" href=${href(['connections', name])}>${label || name}</a>`;
}

/** Whether a connection is a shovel's or federation's of this broker, which has no user of its own. */
export const isOwnLink = (connection) => connection.type === 'direct';

/** What operators call a connection: the name that its client gave, its product, or where it comes from. */
export const connectionTitle = ({ name, user_provided_name: given, client_properties: properties }) =>
  [given, properties?.connection_name, properties?.product].find((each) => typeof each === 'string' && each !== '') ?? name;

/** All connections of the client that calls itself `name`. */
export function ApplicationLink({ name, label = name }) {
  return html`<a href=${href(['applications', name])}>${label}</a>`;
}

/** Whose connection it is. `linked`: lead to the page of the user. */
export function ConnectionUser({ of: connection, linked }) {
  if (isOwnLink(connection)) return html`<span class="none">this broker</span>`;
  return linked ? html`<${UserLink} name=${connection.user} />` : connection.user;
}

/** What a queue does now; a running queue in which nothing has happened lately is idle. */
export function QueueState({ of: queue }) {
  const state = queue.paused ? 'paused' : queue.state === 'running' && queue.idle_since ? 'idle' : queue.state;
  return html`<${State} value=${state} />`;
}

export function ChannelLink({ name, label }) {
  return html`<a class="name" href=${href(['channels', name])}>${label || name}</a>`;
}

/** What operators call a channel: the name of its client, if it has given one, and the number. */
export const channelTitle = ({ name, number, connection_details: connection }) =>
  connection?.user_provided_name ? `${connection.user_provided_name} (${number})` : name;

export function UserLink({ name }) {
  return html`<a class="name" href=${href(['users', name])}>${name}</a>`;
}

export function VhostLink({ name }) {
  return html`<a class="name" href=${href(['vhosts', name])}>${name}</a>`;
}

export function PolicyLink({ vhost, name }) {
  return html`<a class="name" href=${listHref(['policies'], { vhost, name })}>${name}</a>`;
}

/** A text with URIs, without the passwords that these may carry. */
export const withoutPasswords = (text) => text.replace(/\/\/([^:@/]*):[^@/]*@/g, '//$1@').replace(/([?&]password=)[^&"\s]*/g, '$1…');

/** What operators call a search result: of a connection that is its user and the name that its client gave. */
export const resultTitle = ({ kind, name, detail }) => (kind === 'connection' && detail ? detail : name);

/** Where a search result leads. */
export function resultHref({ kind, vhost, name, detail }) {
  switch (kind) {
    case 'queue':
      return queueHref(vhost, name);
    case 'exchange':
      return exchangeHref(vhost, name);
    case 'connection':
      return href(['connections', name]);
    case 'channel':
      return href(['channels', name]);
    case 'user':
      return href(['users', name]);
    case 'vhost':
      return href(['vhosts', name]);
    case 'policy':
      return href(['policies'], { vhost, name });
    default:
      // A consumer: the detail is its queue, then its channel.
      return queueHref(vhost, detail.replace(/ \S+ -> \S+ \(\d+\)$/, ''), { tab: 'consumers' });
  }
}

// Clients choose the keys of arguments: names that an object inherits, as `__proto__`, are not marks.
const ARGUMENT_MARKS = new Map([
  ['x-message-ttl', 'TTL'],
  ['x-expires', 'Exp'],
  ['x-max-length', 'Lim'],
  ['x-max-length-bytes', 'LimB'],
  ['x-dead-letter-exchange', 'DLX'],
  ['x-dead-letter-routing-key', 'DLK'],
  ['x-max-priority', 'Pri'],
  ['x-single-active-consumer', 'SAC'],
  ['x-overflow', 'Ovfl'],
  ['x-delivery-limit', 'DL'],
  ['x-message-deduplication', 'Dedup'],
  ['x-key-shared', 'Key'],
  ['x-storage', 'Mem'],
]);

/** Durability, lifetime, arguments and policy of a queue or an exchange. */
export function Features({ of: object }) {
  const known = Object.keys(object.arguments ?? {}).filter((key) => key !== 'x-queue-type');
  const marked = known.filter((key) => ARGUMENT_MARKS.has(key));
  const others = known.filter((key) => !ARGUMENT_MARKS.has(key));
  const say = (key) => `${key}: ${JSON.stringify(object.arguments[key])}`;
  return html`<span class="marks">
    ${object.durable && html`<${Mark} text="D" title="durable" />`}
    ${object.auto_delete && html`<${Mark} text="AD" title="auto-delete" />`}
    ${object.exclusive && html`<${Mark} text="Excl" title="exclusive" />`}
    ${object.internal && html`<${Mark} text="I" title="internal: no publishing from clients" />`}
    ${object.paused && html`<${Mark} text="paused" title="deliveries are paused" kind="busy" />`}
    ${marked.map((key) => html`<${Mark} key=${key} text=${ARGUMENT_MARKS.get(key)} title=${say(key)} />`)}
    ${others.length > 0 && html`<${Mark} text="Args" title=${others.map(say).join('\n')} />`}
    ${object.policy && html`<${Mark} text=${object.policy} title="policy ${object.policy}" kind="policy" />`}
    ${object.operator_policy && html`<${Mark} text=${object.operator_policy} title="operator policy ${object.operator_policy}" kind="policy" />`}
  </span>`;
}
