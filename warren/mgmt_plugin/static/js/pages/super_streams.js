// All super streams, and the form that adds one.

import { path, put } from '../api.js';
import { Num } from '../format.js';
import { QUEUE_ARGUMENTS } from '../hints.js';
import { FormDialog, openDialog } from '../parts/dialog.js';
import { ArgumentsEditor, Field, readArguments, Select } from '../parts/forms.js';
import { ExchangeLink } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { tell } from '../parts/notice.js';
import { Page } from '../parts/page.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html, useState } from '../ui.js';

const sum = (each, key) => each.partitions.reduce((total, partition) => total + partition[key], 0);

const COLUMNS = [
  { key: 'name', label: 'Name', sort: 'name', fixed: true, render: (each) => html`<${ExchangeLink} vhost=${each.vhost} name=${each.name} />` },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'type', label: 'Exchange', sort: 'type', render: (each) => each.type },
  { key: 'partitions', label: 'Partitions', num: true, render: (each) => html`<${Num} value=${each.partition_count} />` },
  { key: 'messages', label: 'Messages', num: true, render: (each) => html`<${Num} value=${sum(each, 'messages')} />` },
];

const WAYS = [
  ['hash', 'Hash of the routing key'],
  ['number', 'Publishers choose: a number'],
  ['keys', 'Publishers choose: own keys'],
];

function AddSuperStream({ titleId, close }) {
  const [rows, setRows] = useState([]);
  const [way, setWay] = useState('hash');
  async function submit(form) {
    const [vhost, name] = [form.get('vhost'), form.get('name')];
    const wanted =
      way === 'keys'
        ? { 'binding-keys': form.get('keys') }
        : { partitions: Number(form.get('partitions')), type: way === 'hash' ? 'x-super-stream' : 'direct' };
    await put(path`stream/super-streams/${vhost}/${name}`, { ...wanted, arguments: readArguments(rows) });
    tell(`Super stream ${name} is there.`);
    return true;
  }
  return html`<${FormDialog} title="Add a super stream" titleId=${titleId} action="Add super stream" submit=${submit} close=${close}>
    <div class="form">
      <${VhostSelect} />
      <${Field} label="Name" name="name" required hint="Of the exchange; its partitions are NAME-0, NAME-1, …" />
      <${Select} label="Partition of a message" name="way" value=${way} options=${WAYS} onChange=${(event) => setWay(event.target.value)} />
      ${
        way === 'keys'
          ? html`<${Field} label="Binding keys" name="keys" required hint="With commas between them: emea,apac" />`
          : html`<${Field} label="Partitions" name="partitions" type="number" min="1" max="1000" required defaultValue="3" />`
      }
      <${ArgumentsEditor} legend="Arguments of the partitions" rows=${rows} onChange=${setRows} hints=${QUEUE_ARGUMENTS.stream} />
    </div>
  <//>`;
}

export default function SuperStreams() {
  useStore(place);
  const vhost = currentVhost();
  const add = async (reload) => (await openDialog(AddSuperStream, { wide: true })) && reload();
  return html`<${Page} title="Super streams">
    <${PagedList}
      id="super_streams" caption="Super streams" base=${vhost ? path`stream/super-streams/${vhost}` : 'stream/super-streams'} columns=${COLUMNS}
      rowKey=${(each) => `${each.vhost}/${each.name}`} firstSort=${{ by: 'name', descending: false }} empty="There is no super stream."
      tools=${(reload) => html`<button type="button" class="primary" onClick=${() => add(reload)}>Add super stream</button>`}
    />
  <//>`;
}
