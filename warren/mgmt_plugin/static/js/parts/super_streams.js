// What pages show of super streams: their partitions, how far consumer groups have come in them, and deleting all of it.

import { del, path } from '../api.js';
import { Num } from '../format.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';
import { confirmAction } from './dialog.js';
import { QueueLink } from './links.js';
import { Card, pending } from './page.js';
import { LocalTable } from './table.js';

export const isSuperStream = (exchange) => exchange?.arguments?.['x-super-stream'] === true;

/** Ask, delete the exchange and its partitions; whether that was done. */
export function deleteSuperStream(vhost, name) {
  return confirmAction({
    title: `Delete super stream ${name}?`,
    text: `This deletes the exchange ${name} of vhost ${vhost}, and all its partitions with their messages.`,
    action: 'Delete super stream',
    done: `Super stream ${name} is deleted.`,
    run: () => del(path`stream/super-streams/${vhost}/${name}`),
  });
}

const partitionColumns = (vhost) => [
  { key: 'name', label: 'Stream', sort: 'name', render: (each) => html`<${QueueLink} vhost=${vhost} name=${each.name} />` },
  { key: 'key', label: 'Binding key', render: (each) => html`<span class="mono">${each.routing_key}</span>` },
  { key: 'order', label: 'Order', num: true, render: (each) => (each.order === 'not_found' ? '–' : each.order) },
  { key: 'messages', label: 'Messages', sort: 'messages', num: true, render: (each) => html`<${Num} value=${each.messages} />` },
  { key: 'first', label: 'First offset', num: true, render: (each) => html`<${Num} value=${each.first_offset} />` },
  { key: 'next', label: 'Next offset', num: true, render: (each) => html`<${Num} value=${each.next_offset} />` },
];

const groupColumns = (vhost) => [
  { key: 'name', label: 'Group', sort: 'name', render: (each) => html`<span class="mono">${each.name}</span>` },
  { key: 'queue', label: 'Stream', sort: 'queue', render: (each) => html`<${QueueLink} vhost=${vhost} name=${each.queue} />` },
  { key: 'committed', label: 'Committed', sort: 'committed_offset', num: true, render: (each) => each.committed_offset ?? '–' },
  { key: 'lag', label: 'Behind', sort: 'lag', num: true, render: (each) => html`<${Num} value=${each.lag} />` },
  { key: 'consumers', label: 'Consumers', sort: 'consumers', num: true, render: (each) => html`<${Num} value=${each.consumers} />` },
  { key: 'active', label: 'Served', render: (each) => html`<span class="mono">${each.active_consumer_tag ?? '–'}</span>` },
];

/** The tab of an exchange that is a super stream. */
export function Partitions({ vhost, name }) {
  const poll = usePoll(path`stream/super-streams/${vhost}/${name}`);
  const groups = usePoll(path`warren/stream-groups/${vhost}`);
  const partitions = poll.data?.partitions ?? [];
  const names = new Set(partitions.map((each) => each.name));
  const rows = (groups.data ?? [])
    .filter((each) => names.has(each.queue))
    .sort((one, other) => one.name.localeCompare(other.name));
  return (
    pending(poll) ??
    html`<div class="stack">
      <${Card} title="Partitions" wide>
        <${LocalTable} caption="Partitions of this super stream" columns=${partitionColumns(vhost)} rows=${partitions} rowKey=${(each) => each.name} empty="No stream is bound to it." />
      <//>
      <${Card} title="Consumer groups" wide>
        ${pending(groups) ?? html`<${LocalTable} caption="Consumer groups of its partitions" columns=${groupColumns(vhost)} rows=${rows} rowKey=${(each) => `${each.name} ${each.queue}`} empty="No consumer has named a group (x-group)." />`}
      <//>
    </div>`
  );
}
