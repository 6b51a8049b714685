// The message store: its segments, and how long writing takes.

import { withQuery } from '../api.js';
import { Bytes, formatByteRate, formatBytes, formatNumber, Num } from '../format.js';
import { Chart, lineOf, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { Card, Facts, Meter, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

/** Percentiles of a time, as the API gives them. */
export function Percentiles({ of: times }) {
  if (!times) return html`<span class="none">–</span>`;
  return html`<${Facts} facts=${[
    ['p50', `${formatNumber(times.p50)} ms`],
    ['p99', `${formatNumber(times.p99)} ms`],
    ['Maximum', `${formatNumber(times.max)} ms`],
    ['Samples', html`<${Num} value=${times.count} />`],
  ]} />`;
}

/** Charts of the store, of which the broker keeps the past with that of the node. */
function Charts({ range }) {
  const poll = usePoll(withQuery('nodes', sampleQuery(range, ['node_stats'])));
  const node = poll.data?.[0];
  if (!node) return null;
  const level = (key, label, colour, more) => lineOf(node[`${key}_details`], label, colour, { kind: 'level', value: node[key], ...more });
  const perSecond = (value) => (typeof value === 'number' ? `${formatNumber(value)}/s` : '–');
  return html`<${Card}><${Chart} title="Size on disk" format=${formatBytes} lines=${[level('store_bytes', 'Segments', '--blue', { beneath: true }), level('store_live_bytes', 'Still needed', '--green')]} /><//>
    <${Card}><${Chart} title="Written" format=${formatByteRate} lines=${[lineOf(node.io_write_bytes_details, 'Bytes', '--blue')]} /><//>
    <${Card}><${Chart} title="Operations" format=${perSecond} lines=${[
      lineOf(node.msg_store_write_count_details, 'Batches', '--blue', { beneath: true }),
      lineOf(node.io_sync_count_details, 'Syncs', '--amber'),
      lineOf(node.msg_store_read_count_details, 'Reads', '--violet'),
    ]} /><//>`;
}

const COLUMNS = [
  { key: 'number', label: 'Segment', sort: 'number', render: (segment) => segment.number },
  { key: 'state', label: 'State', sort: 'state', render: (segment) => segment.state },
  {
    key: 'live',
    label: 'Still needed',
    sort: 'live_bytes',
    render: (segment) =>
      html`<${Meter} label="Still needed" value=${segment.live_bytes} total=${segment.bytes} format=${formatBytes} danger=${2} />`,
  },
  {
    key: 'records',
    label: 'Records',
    sort: 'live_records',
    num: true,
    render: (segment) => html`<${Num} value=${segment.live_records} />`,
  },
  { key: 'bytes', label: 'Size', sort: 'bytes', num: true, render: (segment) => html`<${Bytes} value=${segment.bytes} />` },
];

const DAMAGE = [
  { key: 'what', label: 'What', sort: 'what', render: (row) => row.what },
  { key: 'queue', label: 'Queue', sort: 'queue', render: (row) => row.queue ?? '' },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost ?? '' },
  { key: 'file', label: 'File', sort: 'file', render: (row) => row.file ?? `${row.first} to ${row.end - 1}` },
  { key: 'messages', label: 'Messages', sort: 'messages', num: true, render: (row) => html`<${Num} value=${row.messages} />` },
  { key: 'since', label: 'Since', sort: 'since', render: (row) => (row.since ? new Date(row.since).toLocaleString() : '') },
];

export default function Store() {
  const { query } = useStore(place);
  const range = rangeOf(query);
  const poll = usePoll('warren/store');
  const store = poll.data;
  const damage = usePoll('warren/damage').data ?? [];
  return html`<${Page} title="Store" actions=${html`<${RangePicker} range=${range} onPick=${(s) => setQuery({ range: s })} />`}>
    ${
      pending(poll, 'This broker has no store to show.') ??
      html`${store.trouble && html`<p class="banner alarm" role="alert">The store has stopped: ${store.trouble}</p>`}
    <div class="cards">
      <${Charts} range=${range} />
      <${Card} title="On disk">
        <${Meter} label="Still needed" value=${store.live_bytes} total=${store.bytes} format=${formatBytes} danger=${2} />
        <${Facts} facts=${[
          ['Segments', html`<${Num} value=${store.segment_count} />`],
          ['Size', html`<${Bytes} value=${store.bytes} />`],
          ['Still needed', html`<${Bytes} value=${store.live_bytes} />`],
          ['Held in memory', html`<${Bytes} value=${store.resident_bytes} />`],
          ['Compactions', html`<${Num} value=${store.compactions} />`],
          ['Messages only on disk', html`<${Num} value=${store.paged_messages} />`],
        ]} />
      <//>
      <${Card} title="Commits">
        <${Percentiles} of=${store.commit_ms} />
        <${Facts} facts=${[
          ['Batches', html`<${Num} value=${store.batches} />`],
          ['Syncs', html`<${Num} value=${store.syncs} />`],
          ['Reads', html`<${Num} value=${store.reads} />`],
          ['Written and synced', html`<${Bytes} value=${store.synced_bytes} />`],
          ['Durable up to LSN', html`<${Num} value=${store.durable_lsn} />`],
          ['Checkpoint at LSN', html`<${Num} value=${store.checkpoint_lsn} />`],
          ['Epoch', store.epoch],
        ]} />
      <//>
      ${damage.length > 0 && html`<${Card} title="Unreadable or damaged" wide>
        <${LocalTable} caption="Unreadable or damaged" columns=${DAMAGE} rows=${damage} rowKey=${(row) => `${row.what} ${row.vhost} ${row.queue} ${row.file} ${row.first}`} first=${{ by: 'since', descending: false }} empty="Nothing." />
      <//>`}
      <${Card} title="Segments" wide>
        <${LocalTable} caption="Segments" columns=${COLUMNS} rows=${store.segments ?? []} rowKey=${(segment) => segment.number} first=${{ by: 'number', descending: true }} empty="No segment." />
      <//>
    </div>`
    }
  <//>`;
}
