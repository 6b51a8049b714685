// The message store: its segments, and how long writing takes.

import { Bytes, formatBytes, formatNumber, Num } from '../format.js';
import { Card, Facts, Meter, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';

export function Spread({ of: spread }) {
  if (!spread) return html`<span class="none">–</span>`;
  return html`<${Facts} facts=${[
    ['Half within', `${formatNumber(spread.p50)} ms`],
    ['99 of 100 within', `${formatNumber(spread.p99)} ms`],
    ['Longest', `${formatNumber(spread.max)} ms`],
    ['Counted', html`<${Num} value=${spread.count} />`],
  ]} />`;
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

export default function Store() {
  const poll = usePoll('warren/store');
  const store = poll.data;
  return html`<${Page} title="Store">
    ${
      pending(poll, 'This broker has no store to show.') ??
      html`${store.trouble && html`<p class="banner alarm" role="alert">The store has stopped: ${store.trouble}</p>`}
    <div class="cards">
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
        <${Spread} of=${store.commit_ms} />
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
      <${Card} title="Segments" wide>
        <${LocalTable} caption="Segments" columns=${COLUMNS} rows=${store.segments ?? []} rowKey=${(segment) => segment.number} first=${{ by: 'number', descending: true }} empty="No segment." />
      <//>
    </div>`
    }
  <//>`;
}
