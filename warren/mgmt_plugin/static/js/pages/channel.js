// One channel.

import { path, withQuery } from '../api.js';
import { Num, Rate, rateOf, Since } from '../format.js';
import { CHANNEL_RANGES, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { CONSUMER_COLUMNS, SLOWEST_FIRST } from '../parts/consumers.js';
import { channelTitle, ConnectionLink, ExchangeLink, QueueLink } from '../parts/links.js';
import { RateChart } from '../parts/message_rates.js';
import { Card, Facts, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { listHref, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

// Of one channel: it is the client, and the rates are above.
const OF_A_CHANNEL = new Set(['tag', 'queue', 'prefetch', 'unacked', 'oldest', 'active', 'ack', 'exclusive', 'offset', 'timeout', 'arguments']);
const CONSUMERS = CONSUMER_COLUMNS.filter((column) => OF_A_CHANNEL.has(column.key));

// Few consumers have a place in a stream or a time limit of their own.
const consumerColumns = (rows) =>
  CONSUMERS.filter(
    ({ key }) => (key !== 'offset' || rows.some((row) => row.next_offset !== undefined)) && (key !== 'timeout' || rows.some((row) => row.consumer_timeout)),
  );

const stat = (counter, label) => ({
  key: counter,
  label,
  num: true,
  render: (row) => html`<${Rate} value=${row.stats?.[`${counter}_details`]?.rate ?? rateOf(row, counter)} />`,
});

const PUBLISHES = [
  { key: 'exchange', label: 'Exchange', render: (row) => html`<${ExchangeLink} vhost=${row.exchange.vhost} name=${row.exchange.name} />` },
  stat('publish', 'Publish'),
  stat('confirm', 'Confirm'),
];
const DELIVERIES = [
  { key: 'queue', label: 'Queue', render: (row) => html`<${QueueLink} vhost=${row.queue.vhost} name=${row.queue.name} />` },
  stat('deliver_get', 'Deliver / get'),
  stat('ack', 'Ack'),
];

export default function Channel({ name }) {
  const { query } = useStore(place);
  const range = rangeOf(query, CHANNEL_RANGES);
  const poll = usePoll(withQuery(path`channels/${name}`, sampleQuery(range, ['msg_rates'])));
  const each = poll.data;
  return html`<${Page}
    title=${each ? channelTitle(each) : name} crumbs=${[['Channels', listHref(['channels'])]]} marks=${each && html`<${State} value=${each.state} />`}
    actions=${html`<${RangePicker} offered=${CHANNEL_RANGES} range=${range} onPick=${(s) => setQuery({ range: s })} />`}
  >
    ${
      pending(poll, 'This channel is closed.') ??
      html`<div class="cards">
      <${Card}><${RateChart} stats=${each.message_stats} /><//>
      <${Card} title="Channel">
        <${Facts} facts=${[
          ['Connection', each.connection_details?.name && html`<${ConnectionLink} name=${each.connection_details.name} label=${each.connection_details.user_provided_name} />`],
          ['Addresses', html`<span class="mono">${each.connection_details?.name}</span>`],
          ['Number', each.number],
          ['User', each.user],
          ['Vhost', each.vhost],
          ['Mode', each.transactional ? 'transactions' : each.confirm ? 'publisher confirms' : 'neither confirms nor transactions'],
          ['Prefetch of each consumer', each.prefetch_count || 'no limit'],
          ['Prefetch of the channel', each.global_prefetch_count || 'no limit'],
          ['Unacknowledged', html`<${Num} value=${each.messages_unacknowledged} />`],
          ['Unconfirmed', html`<${Num} value=${each.messages_unconfirmed} />`],
          ['Uncommitted', html`<${Num} value=${each.messages_uncommitted} />`],
          ['Uncommitted acks', html`<${Num} value=${each.acks_uncommitted} />`],
          ['Idle since', each.idle_since && html`<${Since} text=${each.idle_since} />`],
          ['Node', each.node],
        ]} />
      <//>
      <${Card} title="Consumers" wide>
        <${LocalTable} caption="Consumers of this channel" columns=${consumerColumns(each.consumer_details ?? [])} first=${SLOWEST_FIRST} rows=${each.consumer_details ?? []} rowKey=${(row) => row.consumer_tag} empty="Nothing is consumed here." />
      <//>
      ${each.publishes?.length > 0 && html`<${Card} title="Publishes to"><${LocalTable} caption="Exchanges published to" columns=${PUBLISHES} rows=${each.publishes} rowKey=${(row) => row.exchange.name} /><//>`}
      ${each.deliveries?.length > 0 && html`<${Card} title="Is delivered from"><${LocalTable} caption="Queues delivered from" columns=${DELIVERIES} rows=${each.deliveries} rowKey=${(row) => row.queue.name} /><//>`}
    </div>`
    }
  <//>`;
}
