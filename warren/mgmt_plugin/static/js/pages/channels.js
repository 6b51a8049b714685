// All channels.

import { path } from '../api.js';
import { Num, Rate, rateOf } from '../format.js';
import { ChannelLink, channelTitle } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { Mark, Page, State } from '../parts/page.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const rate = (key, label, counter, more) => ({
  key,
  label,
  num: true,
  sort: `message_stats.${counter}_details.rate`,
  ...more,
  render: (each) => html`<${Rate} value=${rateOf(each, counter)} />`,
});

function ChannelMode({ of: channel }) {
  if (channel.transactional) return html`<${Mark} text="T" title="transactions" />`;
  return channel.confirm ? html`<${Mark} text="C" title="publisher confirms" />` : html`<span class="none">–</span>`;
}

function channelName(channel) {
  const title = channelTitle(channel);
  return html`<${ChannelLink} name=${channel.name} label=${title} />${title !== channel.name && html`<br /><small title=${channel.name}>${channel.name.split(' -> ', 1)[0]}</small>`}`;
}

export const CHANNEL_COLUMNS = [
  { key: 'name', label: 'Name', sort: 'connection_details.user_provided_name', fixed: true, render: channelName },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'user', label: 'User', sort: 'user', render: (each) => each.user },
  { key: 'mode', label: 'Mode', title: 'C: confirms, T: transactions', render: (each) => html`<${ChannelMode} of=${each} />` },
  { key: 'state', label: 'State', sort: 'state', render: (each) => html`<${State} value=${each.state} />` },
  {
    key: 'consumers',
    label: 'Consumers',
    sort: 'consumer_count',
    num: true,
    render: (each) => html`<${Num} value=${each.consumer_count} />`,
  },
  {
    key: 'prefetch',
    label: 'Prefetch',
    sort: 'prefetch_count',
    num: true,
    render: (each) => (each.global_prefetch_count ? `${each.global_prefetch_count} (global)` : each.prefetch_count || '∞'),
  },
  {
    key: 'unacked',
    label: 'Unacked',
    sort: 'messages_unacknowledged',
    num: true,
    render: (each) => html`<${Num} value=${each.messages_unacknowledged} />`,
  },
  {
    key: 'unconfirmed',
    label: 'Unconfirmed',
    sort: 'messages_unconfirmed',
    num: true,
    render: (each) => html`<${Num} value=${each.messages_unconfirmed} />`,
  },
  {
    key: 'uncommitted',
    label: 'Uncommitted',
    sort: 'messages_uncommitted',
    num: true,
    hidden: true,
    render: (each) => html`<${Num} value=${each.messages_uncommitted} />`,
  },
  rate('publish', 'Publish', 'publish'),
  rate('confirm', 'Confirm', 'confirm', { hidden: true }),
  rate('deliver', 'Deliver', 'deliver_get'),
  rate('ack', 'Ack', 'ack'),
  rate('redeliver', 'Redeliver', 'redeliver', { hidden: true }),
  rate('unroutable', 'Returned', 'return_unroutable', { hidden: true, long: 'Returned as unroutable' }),
  rate('dropped', 'Dropped', 'drop_unroutable', { hidden: true, long: 'Dropped as unroutable' }),
];

export default function Channels() {
  useStore(place);
  const vhost = currentVhost();
  return html`<${Page} title="Channels">
    <${PagedList}
      id="channels" caption="Channels" base=${vhost ? path`vhosts/${vhost}/channels` : 'channels'} columns=${CHANNEL_COLUMNS}
      rowKey=${(each) => each.name} firstSort=${{ by: 'connection_details.user_provided_name', descending: false }} empty="No channel is open."
    />
  <//>`;
}
