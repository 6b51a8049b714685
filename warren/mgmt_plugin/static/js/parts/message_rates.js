// Charts of how many messages wait, how fast they move and how many bytes that takes, for objects with RabbitMQ's counters.

import { formatByteRate, formatCount, formatFullRate } from '../format.js';
import { html } from '../ui.js';
import { Chart, lineOf } from './chart.js';

// [counter, label, colour, hidden at first]
const COUNTERS = [
  ['publish', 'Publish', '--blue'],
  ['publish_in', 'Publish in', '--blue'],
  ['publish_out', 'Publish out', '--violet'],
  ['confirm', 'Confirm', '--teal', true],
  ['deliver_get', 'Deliver and get', '--amber'],
  ['deliver', 'Deliver (manual ack)', '--pink', true],
  ['deliver_no_ack', 'Deliver (auto ack)', '--grey', true],
  ['get', 'Get (manual ack)', '--violet', true],
  ['get_no_ack', 'Get (auto ack)', '--grey', true],
  ['get_empty', 'Get (empty)', '--grey', true],
  ['ack', 'Ack', '--green'],
  ['redeliver', 'Redeliver', '--red'],
  ['return_unroutable', 'Unroutable (returned)', '--red', true],
  ['drop_unroutable', 'Unroutable (dropped)', '--pink', true],
  ['disk_reads', 'Disk reads', '--grey', true],
  ['disk_writes', 'Disk writes', '--grey', true],
];

export function RateChart({ stats, title = 'Message rates' }) {
  const lines = COUNTERS.map(([counter, label, colour, hidden]) => lineOf(stats?.[`${counter}_details`], label, colour, { hidden }));
  return lines.some(Boolean)
    ? html`<${Chart} title=${title} lines=${lines} format=${formatFullRate} />`
    : html`<figure class="chart"><figcaption>${title}</figcaption><p class="empty">No message has passed yet.</p></figure>`;
}

/** `of` carries messages, messages_ready, messages_unacknowledged with their details. */
export function LengthChart({ of: object, title = 'Queued messages' }) {
  const level = (key, label, colour, more) =>
    lineOf(object?.[`${key}_details`], label, colour, { kind: 'level', value: object?.[key] ?? 0, ...more });
  // Without unacknowledged messages the total is what is ready.
  const lines = [
    level('messages', 'Total', '--red', { beneath: true }),
    level('messages_ready', 'Ready', '--amber'),
    level('messages_unacknowledged', 'Unacked', '--blue'),
  ];
  return html`<${Chart} title=${title} lines=${lines} format=${formatCount} />`;
}

/** `of` carries recv_oct and send_oct with their details: a connection, or a vhost with all of its own. */
export function WireChart({ of: object }) {
  const lines = [lineOf(object.recv_oct_details, 'From clients', '--blue'), lineOf(object.send_oct_details, 'To clients', '--amber')];
  return html`<${Chart} title="Bytes on the wire" format=${formatByteRate} lines=${lines} />`;
}
