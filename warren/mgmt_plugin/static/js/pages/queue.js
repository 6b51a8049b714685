// One queue: its tabs and what can be done to it as a whole.

import { del, path, put, withQuery } from '../api.js';
import { formatNumber } from '../format.js';
import { AddBinding, BindingsTable } from '../parts/bindings.js';
import { RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { CONSUMER_COLUMNS, consumerKey, END_COLUMN, SLOWEST_FIRST } from '../parts/consumers.js';
import { confirmAction } from '../parts/dialog.js';
import { Features, QueueState } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { tell, warn } from '../parts/notice.js';
import { Card, currentTab, Page, pending, Tabs } from '../parts/page.js';
import { PublishForm } from '../parts/publish_form.js';
import { usePoll } from '../refresh.js';
import { href, listHref, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';
import { QueueGet } from './queue_get.js';
import { QueueGroups } from './queue_groups.js';
import { QueueMessages } from './queue_messages.js';
import { QueueOverview } from './queue_overview.js';
import { QueueTransfers } from './queue_transfers.js';

// What a drain has claimed: it can be looked at here, and all else is done to the drain.
const holdsClaims = (name) => name.startsWith('amq.drain/');

const CONSUMERS = [...CONSUMER_COLUMNS.filter((column) => !['queue', 'vhost'].includes(column.key)), END_COLUMN];
// Only a stream has offsets.
const READERS = CONSUMERS.map((column) => (column.key === 'offset' ? { ...column, hidden: false } : column));

function Consumers({ queue }) {
  const stream = queue.type === 'stream';
  return html`<${PagedList}
    id=${stream ? 'stream-consumers' : 'queue-consumers'} caption="Consumers of this queue" base=${path`consumers/${queue.vhost}`} extra=${{ queue: queue.name }}
    columns=${stream ? READERS : CONSUMERS} rowKey=${consumerKey} firstSort=${SLOWEST_FIRST} empty="This queue has no consumer."
  />`;
}

function Bindings({ queue, poll }) {
  const { vhost, name } = queue;
  return html`<div class="stack">
    ${poll.data && html`<${Card} title="Bindings"><${BindingsTable} caption="Bindings to this queue" rows=${poll.data} side="source" reload=${poll.reload} empty="No exchange is bound to this queue." /><//>`}
    <${AddBinding} vhost=${vhost} queue=${name} reload=${poll.reload} />
  </div>`;
}

function Actions({ queue, reload }) {
  const { vhost, name } = queue;
  const at = path`queues/${vhost}/${name}`;
  if (holdsClaims(name)) return html`<a class="button" href=${href(['bulk'], { vhost })}>Its drain</a>`;
  async function pause() {
    try {
      if (queue.paused) await del(`warren/${at}/pause`);
      else await put(`warren/${at}/pause`);
      tell(queue.paused ? `${name} delivers again.` : `${name} is paused: it accepts messages and does not deliver them.`);
      reload();
    } catch (error) {
      warn(error.message);
    }
  }
  async function purge() {
    const done = await confirmAction({
      title: `Purge queue ${name}?`,
      text: `This drops all ready messages of ${name} in vhost ${vhost} (${formatNumber(queue.messages_ready)} now). They cannot be restored.`,
      detail: 'Unacknowledged messages stay with their consumers.',
      action: 'Purge queue',
      done: `${name} is purged.`,
      run: () => del(`${at}/contents`),
    });
    if (done) reload();
  }
  async function remove() {
    const done = await confirmAction({
      title: `Delete queue ${name}?`,
      text: `This deletes the queue ${name} of vhost ${vhost}, its bindings and its messages (${formatNumber(queue.messages)} now). ${queue.consumers ? `${queue.consumers} consumers are cancelled.` : ''}`,
      action: 'Delete queue',
      done: `Queue ${name} is deleted.`,
      run: () => del(at),
    });
    if (done) window.location.hash = listHref(['queues']);
  }
  return html`<button type="button" onClick=${pause}>${queue.paused ? 'Resume' : 'Pause'}</button>
    ${queue.type !== 'stream' && html`<button type="button" class="danger" onClick=${purge}>Purge…</button>`}
    <button type="button" class="danger" onClick=${remove}>Delete…</button>`;
}

export default function Queue({ vhost, name }) {
  const { query } = useStore(place);
  const range = rangeOf(query);
  const poll = usePoll(withQuery(path`queues/${vhost}/${name}`, { consumer_details: false, ...sampleQuery(range, ['lengths', 'msg_rates']) }));
  const bindings = usePoll(path`queues/${vhost}/${name}/bindings`, { repeat: query.tab === 'bindings' });
  const queue = poll.data;
  const bound = bindings.data?.filter((each) => each.source !== '');
  const looks = [
    { id: 'overview', label: 'Overview' },
    { id: 'messages', label: 'Messages', count: queue && formatNumber(queue.messages ?? 0) },
  ];
  const works = [
    { id: 'consumers', label: 'Consumers', count: queue && formatNumber(queue.consumers) },
    { id: 'bindings', label: 'Bindings', count: bound && formatNumber(bound.length) },
    { id: 'publish', label: 'Publish' },
    queue?.type === 'stream' ? { id: 'groups', label: 'Groups' } : { id: 'get', label: 'Get' },
    { id: 'move', label: queue?.type === 'stream' ? 'Copy' : 'Move' },
  ];
  const tabs = holdsClaims(name) ? looks : [...looks, ...works];
  const tab = currentTab(tabs, query);
  return html`<${Page}
    title=${name} crumbs=${[
      ['Queues', listHref(['queues'])],
      [`vhost ${vhost}`, href(['queues'], { vhost })],
    ]}
    marks=${queue && html`<${QueueState} of=${queue} /><${Features} of=${queue} />`}
    actions=${html`${tab === 'overview' && html`<${RangePicker} range=${range} onPick=${(s) => setQuery({ range: s })} />`} ${queue && html`<${Actions} queue=${queue} reload=${poll.reload} />`}`}
  >
    ${
      pending(poll, 'There is no such queue.') ??
      html`<${Tabs} tabs=${tabs} />
      ${tab === 'overview' && html`<${QueueOverview} queue=${queue} />`}
      ${tab === 'messages' && html`<${QueueMessages} vhost=${vhost} name=${name} stays=${queue.type === 'stream'} takes=${!holdsClaims(name)} />`}
      ${tab === 'consumers' && html`<${Consumers} queue=${queue} />`}
      ${tab === 'bindings' && html`<${Bindings} queue=${queue} poll=${bindings} />`}
      ${tab === 'publish' && html`<${PublishForm} vhost=${vhost} exchange="" routingKey=${name} reload=${poll.reload} />`}
      ${tab === 'get' && html`<${QueueGet} vhost=${vhost} name=${name} reload=${poll.reload} />`}
      ${tab === 'groups' && html`<${QueueGroups} vhost=${vhost} name=${name} />`}
      ${tab === 'move' && html`<${QueueTransfers} vhost=${vhost} name=${name} stays=${queue.type === 'stream'} />`}`
    }
  <//>`;
}
