// All exchanges, and the form that adds one.

import { path, put } from '../api.js';
import { Rate, rateOf } from '../format.js';
import { EXCHANGE_ARGUMENTS, UNKNOWN_ARGUMENT } from '../hints.js';
import { FormDialog, openDialog } from '../parts/dialog.js';
import { ArgumentsEditor, Check, Field, readArguments, Select } from '../parts/forms.js';
import { ExchangeLink, Features } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { tell } from '../parts/notice.js';
import { Page } from '../parts/page.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html, useState } from '../ui.js';

const rate = (key, label) => ({
  key,
  label,
  num: true,
  sort: `message_stats.${key}_details.rate`,
  render: (each) => html`<${Rate} value=${rateOf(each, key)} />`,
});

const COLUMNS = [
  {
    key: 'name',
    label: 'Name',
    sort: 'name',
    fixed: true,
    render: (each) => html`<${ExchangeLink} vhost=${each.vhost} name=${each.name} />`,
  },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'type', label: 'Type', sort: 'type', render: (each) => each.type },
  { key: 'features', label: 'Features', render: (each) => html`<${Features} of=${each} />` },
  rate('publish_in', 'In'),
  rate('publish_out', 'Out'),
];

function AddExchange({ titleId, close }) {
  const [rows, setRows] = useState([]);
  const overview = usePoll('overview?columns=exchange_types', { repeat: false });
  const types = (overview.data?.exchange_types ?? [{ name: 'direct' }]).filter((type) => !type.internal_purpose && type.enabled !== false);
  async function submit(form) {
    const [vhost, name] = [form.get('vhost'), form.get('name')];
    await put(path`exchanges/${vhost}/${name}`, {
      type: form.get('type'),
      durable: form.has('durable'),
      auto_delete: form.has('auto_delete'),
      internal: form.has('internal'),
      arguments: readArguments(rows),
    });
    tell(`Exchange ${name} is declared.`);
    return true;
  }
  return html`<${FormDialog} title="Add an exchange" titleId=${titleId} action="Add exchange" submit=${submit} close=${close}>
    <div class="form">
      <${VhostSelect} />
      <${Field} label="Name" name="name" required />
      <${Select} label="Type" name="type" value="direct" options=${types.map((type) => type.name)} />
      <div class="stack">
        <${Check} label="Durable" name="durable" defaultChecked=${true} />
        <${Check} label="Auto-delete" name="auto_delete" hint="Deleted when its last binding is removed." />
        <${Check} label="Internal" name="internal" hint="Only other exchanges may publish to it." />
      </div>
      <${ArgumentsEditor} legend="Arguments" rows=${rows} onChange=${setRows} hints=${EXCHANGE_ARGUMENTS} unknown=${UNKNOWN_ARGUMENT} />
    </div>
  <//>`;
}

export default function Exchanges() {
  useStore(place);
  const vhost = currentVhost();
  const add = async (reload) => (await openDialog(AddExchange, { wide: true })) && reload();
  return html`<${Page} title="Exchanges">
    <${PagedList}
      id="exchanges" caption="Exchanges" base=${vhost ? path`exchanges/${vhost}` : 'exchanges'} columns=${COLUMNS}
      rowKey=${(each) => `${each.vhost}/${each.name}`} firstSort=${{ by: 'name', descending: false }} empty="There is no exchange."
      tools=${(reload) => html`<button type="button" class="primary" onClick=${() => add(reload)}>Add exchange</button>`}
    />
  <//>`;
}
