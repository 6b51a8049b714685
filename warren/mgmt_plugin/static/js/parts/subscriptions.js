// What clients of MQTT and STOMP have subscribed to.

import { path } from '../api.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';
import { QueueLink } from './links.js';
import { Card, pending } from './page.js';
import { LocalTable } from './table.js';

const yes = (value) => (value ? 'yes' : 'no');

export const MQTT_SUBSCRIPTIONS = [
  { key: 'filter', label: 'Topic filter', sort: 'filter', render: (each) => html`<span class="mono">${each.filter}</span>` },
  { key: 'qos', label: 'QoS', sort: 'qos', num: true, render: (each) => each.qos },
  { key: 'no_local', label: 'Own messages', render: (each) => yes(!each.no_local) },
  { key: 'retain', label: 'Retain as published', render: (each) => yes(each.retain_as_published) },
  { key: 'identifier', label: 'Identifier', num: true, render: (each) => each.identifier ?? '–' },
];

const stompSubscriptions = (vhost) => [
  { key: 'id', label: 'Id', sort: 'id', render: (each) => html`<span class="mono">${each.id}</span>` },
  { key: 'destination', label: 'Destination', sort: 'destination', render: (each) => html`<span class="mono">${each.destination}</span>` },
  { key: 'queue', label: 'Queue', render: (each) => html`<${QueueLink} vhost=${vhost} name=${each.queue} />` },
  { key: 'ack', label: 'Acknowledges', sort: 'ack', render: (each) => each.ack },
];

/** The subscriptions of a connection that is one of MQTT or STOMP. */
export function Subscriptions({ of: connection }) {
  const poll = usePoll(path`connections/${connection.name}/subscriptions`);
  const isMqtt = connection.mqtt !== undefined;
  return html`<${Card} title="Subscriptions" wide>
    ${
      pending(poll) ??
      html`<${LocalTable}
        caption="Subscriptions of this connection" columns=${isMqtt ? MQTT_SUBSCRIPTIONS : stompSubscriptions(connection.vhost)} rows=${poll.data}
        rowKey=${(row) => (isMqtt ? `${row.qos} ${row.filter}` : row.id)} empty="It has subscribed to nothing."
      />`
    }
  <//>`;
}
