// Columns of a table of consumers. The broker counts deliveries and acks of channels: where consumers share a channel, the
// rate has a note.

import { del, path } from '../api.js';
import { Duration, Num, Rate } from '../format.js';
import { refreshNow } from '../refresh.js';
import { html } from '../ui.js';
import { closeConnections } from './close_connections.js';
import { confirmAction } from './dialog.js';
import { ChannelLink, channelTitle, ConnectionLink, connectionTitle, QueueLink } from './links.js';
import { Fields, Mark, State } from './page.js';

const Shared = ({ stats }) =>
  stats?.consumers > 1 && html`<br /><small title="The consumers of its channel together">of ${stats.consumers}</small>`;

const title = (channel) => channelTitle({ ...channel, connection_details: channel });

function channelRate(counter) {
  return ({ channel_stats: stats }) =>
    html`<${Rate} value=${stats?.[counter]} /><${Shared} stats=${stats} />`;
}

/** Whether it gets nothing more until it acknowledges something. */
const isFull = (each) => each.ack_required && each.prefetch_count > 0 && each.messages_unacknowledged >= each.prefetch_count;

export const CONSUMER_COLUMNS = [
  {
    key: 'queue',
    label: 'Queue',
    sort: 'queue.name',
    fixed: true,
    render: (each) => html`<${QueueLink} vhost=${each.queue.vhost} name=${each.queue.name} />`,
  },
  {
    key: 'tag',
    label: 'Consumer tag',
    sort: 'consumer_tag',
    long: true,
    fixed: true,
    render: (each) => html`<span class="mono">${each.consumer_tag}</span>`,
  },
  { key: 'vhost', label: 'Vhost', sort: 'queue.vhost', render: (each) => each.queue.vhost },
  {
    key: 'channel',
    label: 'Channel',
    sort: 'channel_details.name',
    render: ({ channel_details: channel }) =>
      channel?.name
        ? html`<${ChannelLink} name=${channel.name} label=${title(channel)} /><br />
          <small class="num"><${ConnectionLink} name=${channel.connection_name} label=${`${channel.peer_host}:${channel.peer_port}`} /></small>`
        : '–',
  },
  { key: 'user', label: 'User', sort: 'channel_details.user', render: (each) => each.channel_details?.user ?? '–' },
  { key: 'prefetch', label: 'Prefetch', sort: 'prefetch_count', num: true, render: (each) => each.prefetch_count || '∞' },
  {
    key: 'unacked',
    label: 'Unacked',
    sort: 'messages_unacknowledged',
    num: true,
    render: (each) =>
      html`${isFull(each) && html`<${Mark} text="full" title="It gets no message until it acknowledges one." kind="busy" /> `}<${Num} value=${each.messages_unacknowledged} />`,
  },
  {
    key: 'oldest',
    label: 'Oldest unacked',
    sort: 'oldest_unacknowledged_ms',
    num: true,
    render: (each) => html`<${Duration} ms=${each.oldest_unacknowledged_ms} />`,
  },
  { key: 'deliver', label: 'Out', sort: 'channel_stats.deliver_rate', num: true, render: channelRate('deliver_rate') },
  { key: 'acked', label: 'Ack', sort: 'channel_stats.ack_rate', num: true, render: channelRate('ack_rate') },
  {
    key: 'idle',
    label: 'Idle',
    sort: 'channel_stats.idle_ms',
    num: true,
    render: ({ channel_stats: stats }) => html`<${Duration} ms=${stats?.idle_ms} /><${Shared} stats=${stats} />`,
  },
  {
    key: 'active',
    label: 'Activity',
    render: (each) =>
      each.active === false ? html`<${State} value="waiting" />` : html`<${State} value=${each.activity_status ?? 'up'} />`,
  },
  { key: 'ack', label: 'Acks', hidden: true, render: (each) => (each.ack_required ? 'manual' : 'automatic') },
  { key: 'exclusive', label: 'Exclusive', hidden: true, render: (each) => (each.exclusive ? 'yes' : 'no') },
  { key: 'offset', label: 'Next offset', num: true, hidden: true, render: (each) => each.next_offset ?? '–' },
  { key: 'timeout', label: 'Timeout', num: true, hidden: true, render: (each) => html`<${Duration} ms=${each.consumer_timeout || null} />` },
  { key: 'arguments', label: 'Arguments', hidden: true, render: (each) => html`<${Fields} values=${each.arguments} />` },
];

/** What ends a slow consumer: it is cancelled, or its connection closed. The client decides whether it comes again. */
export const END_COLUMN = {
  key: 'act',
  label: html`<span class="unseen">Actions</span>`,
  fixed: true,
  num: true,
  render: (each) =>
    each.channel_details?.connection_name &&
    html`<button type="button" class="small plain" title="Cancel it, and leave its connection open" onClick=${() => cancelOne(each)}>Cancel…</button><br />
      <button type="button" class="small plain" title="Close its connection" onClick=${() => closeOne(each.channel_details)}>Close…</button>`,
};

async function cancelOne({ consumer_tag: tag, queue, channel_details: channel }) {
  const done = await confirmAction({
    title: `Cancel consumer ${tag}?`,
    text: `This takes the consumer off the queue ${queue.name}. Its connection, its channel and other consumers stay.`,
    detail:
      'The client can still acknowledge what it has. A client that does not announce consumer_cancel_notify is not told. An auto-delete queue is deleted with its last consumer.',
    action: 'Cancel consumer',
    done: `Consumer ${tag} is cancelled.`,
    run: () => del(path`consumers/${queue.vhost}/${channel.connection_name}/${channel.number}/${tag}`),
  });
  if (done) refreshNow();
}

async function closeOne(channel) {
  const called = connectionTitle({ ...channel, name: channel.connection_name });
  if (await closeConnections([channel.connection_name], called)) refreshNow();
}

/** A key of a row: tags are unique in a channel only. */
export const consumerKey = (row) => `${row.channel_details?.name} ${row.consumer_tag}`;

/** Lists begin with the consumers that wait longest to acknowledge. */
export const SLOWEST_FIRST = { by: 'oldest_unacknowledged_ms', descending: true };
