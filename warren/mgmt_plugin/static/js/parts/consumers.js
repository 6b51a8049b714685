// Columns of a table of consumers.

import { formatDuration } from '../format.js';
import { html } from '../ui.js';
import { ChannelLink, channelTitle, QueueLink } from './links.js';
import { Fields, State } from './page.js';

export const CONSUMER_COLUMNS = [
  { key: 'tag', label: 'Consumer tag', sort: 'consumer_tag', render: (each) => html`<span class="mono">${each.consumer_tag}</span>` },
  {
    key: 'queue',
    label: 'Queue',
    sort: 'queue.name',
    render: (each) => html`<${QueueLink} vhost=${each.queue.vhost} name=${each.queue.name} />`,
  },
  {
    key: 'channel',
    label: 'Channel',
    sort: 'channel_details.name',
    render: (each) => (each.channel_details?.name ? html`<${ChannelLink} name=${each.channel_details.name} label=${channelTitle({ ...each.channel_details, connection_details: each.channel_details })} />` : '–'),
  },
  { key: 'ack', label: 'Acks', render: (each) => (each.ack_required ? 'manual' : 'automatic') },
  { key: 'exclusive', label: 'Exclusive', render: (each) => (each.exclusive ? 'yes' : 'no') },
  {
    key: 'active',
    label: 'Activity',
    render: (each) =>
      each.active === false ? html`<${State} value="waiting" />` : html`<${State} value=${each.activity_status ?? 'up'} />`,
  },
  { key: 'prefetch', label: 'Prefetch', sort: 'prefetch_count', num: true, render: (each) => each.prefetch_count || '∞' },
  { key: 'offset', label: 'Next offset', num: true, render: (each) => each.next_offset ?? '–' },
  {
    key: 'timeout',
    label: 'Timeout',
    num: true,
    render: (each) => (typeof each.consumer_timeout === 'number' ? formatDuration(each.consumer_timeout) : '–'),
  },
  { key: 'arguments', label: 'Arguments', render: (each) => html`<${Fields} values=${each.arguments} />` },
];
