// All queues and streams: filter, sort, choose, add, and purge or delete many at once.

import { del, path, put } from '../api.js';
import { Bytes, formatNumber, Num, Rate, rateOf, Since } from '../format.js';
import { QUEUE_ARGUMENTS, UNKNOWN_ARGUMENT } from '../hints.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { ArgumentsEditor, Check, Field, readArguments, Select } from '../parts/forms.js';
import { Features, QueueLink, QueueState } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { tell, warn } from '../parts/notice.js';
import { Page } from '../parts/page.js';
import { Sparkline } from '../parts/sparkline.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useState } from '../ui.js';

const number = (key, label, more) => ({ key, label, num: true, sort: key, ...more, render: (each) => html`<${Num} value=${each[key]} />` });
const bytes = (key, label, more) => ({
  key,
  label,
  num: true,
  sort: key,
  hidden: true,
  ...more,
  render: (each) => html`<${Bytes} value=${each[key]} />`,
});
const rate = (counter, label, more) => ({
  key: counter,
  label,
  num: true,
  sort: `message_stats.${counter}_details.rate`,
  ...more,
  render: (each) => html`<${Rate} value=${rateOf(each, counter)} />`,
});

const COLUMNS = [
  { key: 'name', label: 'Name', sort: 'name', fixed: true, render: (each) => html`<${QueueLink} vhost=${each.vhost} name=${each.name} />` },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'type', label: 'Type', sort: 'type', render: (each) => each.type ?? 'classic' },
  { key: 'features', label: 'Features', render: (each) => html`<${Features} of=${each} />` },
  {
    key: 'state',
    label: 'State',
    sort: 'state',
    render: (each) => html`<${QueueState} of=${each} />`,
  },
  number('messages_ready', 'Ready'),
  number('messages_unacknowledged', 'Unacked'),
  number('messages', 'Total'),
  {
    key: 'trend',
    label: 'Trend',
    title: 'The total over the last ten minutes',
    num: true,
    query: { lengths_age: 600, lengths_incr: 60 },
    render: (each) => html`<${Sparkline} details=${each.messages_details} what="messages" />`,
  },
  rate('publish', 'In'),
  rate('deliver_get', 'Out'),
  rate('ack', 'Ack', { long: 'Ack rate', hidden: true }),
  rate('redeliver', 'Redeliver', { hidden: true }),
  number('consumers', 'Consumers'),
  {
    key: 'capacity',
    label: 'Capacity',
    title: 'How much of the time consumers could take a message',
    num: true,
    sort: 'consumer_capacity',
    hidden: true,
    render: (each) => (typeof each.consumer_capacity === 'number' ? `${Math.round(each.consumer_capacity * 100)} %` : '–'),
  },
  number('messages_delayed', 'Delayed', { hidden: true }),
  bytes('message_bytes', 'Bytes'),
  bytes('message_bytes_ready', 'Bytes ready'),
  bytes('message_bytes_unacknowledged', 'Bytes unacked'),
  bytes('message_bytes_persistent', 'Bytes persistent'),
  bytes('memory', 'Memory'),
  number('messages_persistent', 'Persistent', { hidden: true }),
  { key: 'idle', label: 'Idle since', sort: 'idle_since', hidden: true, render: (each) => html`<${Since} text=${each.idle_since} />` },
  { key: 'node', label: 'Node', sort: 'node', hidden: true, render: (each) => each.node },
];

const TYPES = [
  ['', 'default of the vhost'],
  ['classic', 'classic'],
  ['quorum', 'quorum'],
  ['stream', 'stream'],
];
const TYPE_HINTS = {
  quorum: 'Durable, every message stored, a delivery limit of 20.',
  stream: 'Durable, every message stored and kept: consumers read from any place.',
};

function AddQueue({ titleId, close }) {
  const [rows, setRows] = useState([]);
  const [type, setType] = useState('');
  async function submit(form) {
    const [vhost, name] = [form.get('vhost'), form.get('name')];
    const values = readArguments(rows);
    if (type) values['x-queue-type'] = type;
    await put(path`queues/${vhost}/${name}`, {
      durable: type in TYPE_HINTS || form.has('durable'),
      auto_delete: !(type in TYPE_HINTS) && form.has('auto_delete'),
      arguments: values,
    });
    tell(`Queue ${name} is declared.`);
    return true;
  }
  return html`<${FormDialog} title="Add a queue" titleId=${titleId} action="Add queue" submit=${submit} close=${close}>
    <div class="form">
      <${VhostSelect} />
      <${Field} label="Name" name="name" required />
      <${Select} label="Type" value=${type} options=${TYPES} onChange=${(event) => setType(event.target.value)}
        hint=${TYPE_HINTS[type] ?? ''} />
      ${
        !(type in TYPE_HINTS) &&
        html`<div class="stack">
        <${Check} label="Durable" name="durable" defaultChecked=${true} hint="Survives a restart." />
        <${Check} label="Auto-delete" name="auto_delete" hint="Deleted when its last consumer ends." />
      </div>`
      }
      <${ArgumentsEditor} legend="Arguments" rows=${rows} onChange=${setRows} hints=${QUEUE_ARGUMENTS[type || 'classic']} unknown=${UNKNOWN_ARGUMENT} />
    </div>
  <//>`;
}

const keyOf = (queue) => JSON.stringify([queue.vhost, queue.name]);

/** Do something to every queue, and say which ones refused. Throws only when all of them did. */
async function each(queues, run, done) {
  const refused = [];
  for (const queue of queues) {
    try {
      await run(queue);
    } catch (error) {
      refused.push(`${queue.name}: ${error.message}`);
    }
  }
  if (refused.length === queues.length) throw new Error(refused.slice(0, 5).join('\n'));
  if (refused.length > 0) warn(`Not all: ${refused.slice(0, 5).join('; ')}`);
  tell(`${done} ${formatNumber(queues.length - refused.length)} of ${formatNumber(queues.length)}.`);
}

function listed(queues) {
  const names = queues
    .slice(0, 8)
    .map((queue) => queue.name)
    .join(', ');
  return queues.length > 8 ? `${names} and ${queues.length - 8} more` : names;
}

export default function Queues() {
  useStore(place);
  const vhost = currentVhost();
  const [selected, setSelected] = useState(new Set());
  useEffect(() => setSelected(new Set()), [vhost]);
  const add = async (reload) => (await openDialog(AddQueue, { wide: true })) && reload();
  async function many(queues, reload, { verb, title, text, run, done }) {
    const finished = await confirmAction({ title, text, detail: listed(queues), action: verb, run: () => each(queues, run, done) });
    if (finished) setSelected(new Set());
    reload();
  }
  const count = (queues) => `${queues.length} ${queues.length === 1 ? 'queue' : 'queues'}`;
  const actions = (queues, reload) => {
    const messages = queues.reduce((sum, queue) => sum + (queue.messages ?? 0), 0);
    return html`
      <button type="button" class="small danger" onClick=${() =>
        many(queues, reload, {
          verb: 'Purge',
          title: `Purge ${count(queues)}?`,
          text: `This drops the ready messages of these queues (${formatNumber(messages)} messages now). They cannot be restored. Streams refuse it.`,
          run: (queue) => del(path`queues/${queue.vhost}/${queue.name}/contents`),
          done: 'Purged',
        })}>Purge…</button>
      <button type="button" class="small danger" onClick=${() =>
        many(queues, reload, {
          verb: 'Delete',
          title: `Delete ${count(queues)}?`,
          text: `This deletes these queues, their bindings and their messages (${formatNumber(messages)} messages now).`,
          run: (queue) => del(path`queues/${queue.vhost}/${queue.name}`),
          done: 'Deleted',
        })}>Delete…</button>
      <button type="button" class="small plain" onClick=${() => setSelected(new Set())}>Select none</button>`;
  };
  return html`<${Page} title="Queues and streams">
    <${PagedList}
      id="queues" caption="Queues and streams" base=${vhost ? path`queues/${vhost}` : 'queues'} columns=${COLUMNS} rowKey=${keyOf}
      firstSort=${{ by: 'name', descending: false }} empty="There is no queue."
      selection=${{ selected, onSelect: setSelected, actions }}
      tools=${(reload) => html`<button type="button" class="primary" onClick=${() => add(reload)}>Add queue</button>`}
    />
  <//>`;
}
