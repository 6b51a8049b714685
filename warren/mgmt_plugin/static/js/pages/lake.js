// Tables of a lake that the broker keeps: what they follow, how far they are, and their parameters.

import { del, path, put } from '../api.js';
import { Duration, Num, When } from '../format.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field, Select, TextArea } from '../parts/forms.js';
import { QueueLink } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { tell } from '../parts/notice.js';
import { Page, State } from '../parts/page.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { mayAdminister, mayMonitor } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

// What the form has; whatever else a parameter says stays as it is.
const TEXTS = [
  ['registry', 'Schema registry', 'https://…, for Avro and Protobuf, without a login.'],
  ['subject', 'Subject there', 'Whose newest schema holds, instead of a schema.'],
  ['message', 'Protobuf message', 'As in shop.Order.'],
  ['interval', 'Commits every', 'As in 500ms, 30s or 5m. 60s unless given.'],
  ['start', 'Begins at', 'first, next, an offset, or an age such as 1h; of a new table.'],
  ['keep', 'Keeps snapshots for', 'As in 12h or 7d. 1d unless given.'],
];
const TAKEN = ['stream', 'queue', 'to', 'format', 'catalog', 'body', 'schema', ...TEXTS.map(([key]) => key)];
const shown = (catalog) => (typeof catalog === 'object' ? (catalog?.uri ?? '') : (catalog ?? ''));

function catalogOf(form, before) {
  const [uri, warehouse] = [form.get('catalog').trim(), form.get('warehouse').trim()];
  if (!uri) return undefined;
  if (!warehouse) return uri;
  return typeof before === 'object' ? { ...before, uri, warehouse } : { uri, warehouse };
}

function schemaOf(text) {
  if (!text.trim().startsWith('{')) return text.trim();
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The schema is not JSON: ${error.message}`);
  }
}

function valueOf(form, before) {
  const value = Object.fromEntries(Object.entries(before ?? {}).filter(([key]) => !TAKEN.includes(key)));
  value[form.get('kind')] = form.get('source');
  value.to = form.get('to').trim();
  value.format = form.get('format');
  value.body = form.get('body');
  const catalog = catalogOf(form, before?.catalog);
  if (catalog !== undefined) value.catalog = catalog;
  if (form.get('schema').trim()) value.schema = schemaOf(form.get('schema'));
  for (const [key] of TEXTS) if (form.get(key).trim()) value[key] = form.get(key).trim();
  return value;
}

function TableDialog({ row, titleId, close }) {
  const value = row?.value ?? {};
  async function submit(form) {
    const [vhost, name] = [row?.vhost ?? form.get('vhost'), row?.name ?? form.get('name')];
    await put(path`parameters/lake/${vhost}/${name}`, { component: 'lake', vhost, name, value: valueOf(form, row?.value) });
    tell(`The table ${name} is set.`);
    return true;
  }
  const schema = typeof value.schema === 'object' ? JSON.stringify(value.schema, null, 2) : (value.schema ?? '');
  return html`<${FormDialog} title=${row ? `Change table ${row.name}` : 'Add a table'} titleId=${titleId} action="Set table" submit=${submit} close=${close}>
    <div class="form">
      ${!row && html`<${VhostSelect} /><${Field} label="Name" name="name" required hint="Of the parameter." />`}
      <${Select} label="Follows" name="kind" value=${value.queue === undefined ? 'stream' : 'queue'} options=${[
        ['stream', 'a stream or super stream'],
        ['queue', 'a queue, which is drained'],
      ]} />
      <${Field} label="Stream or queue" name="source" required defaultValue=${value.stream ?? value.queue ?? ''} />
      <${Select} label="Format" name="format" value=${value.format ?? 'iceberg'} options=${[
        ['iceberg', 'Iceberg'],
        ['delta', 'Delta'],
      ]} />
      <${Field} label="Table" name="to" required defaultValue=${value.to ?? ''} hint="/DIRECTORY/NAMESPACE.TABLE, NAMESPACE.TABLE of a catalogue; of Delta a directory or URL. Below what lake_places allows." />
      <${Field} label="Catalogue" name="catalog" defaultValue=${shown(value.catalog)} hint="Of Iceberg: a URL, or the name of one in the broker's environment, which also has its credentials." />
      <${Field} label="Warehouse" name="warehouse" defaultValue=${value.catalog?.warehouse ?? ''} hint="Where the catalogue puts its tables." />
      <${Select} label="Bodies" name="body" value=${value.body ?? 'bytes'} options=${[
        ['bytes', 'bytes, as they are'],
        ['json', 'columns of JSON'],
        ['avro', 'columns of Avro'],
        ['protobuf', 'columns of Protobuf'],
      ]} />
      ${TEXTS.map(([key, label, hint]) => html`<${Field} key=${key} label=${label} name=${key} hint=${hint} defaultValue=${value[key] ?? ''} />`)}
      <${TextArea} label="Schema" name="schema" defaultValue=${schema} hint="JSON, or the path of a file that the broker may read." />
    </div>
  <//>`;
}

const brokenAtSlashes = (text) => text.split(/(?<=\/)/).map((part) => html`${part}<wbr />`);
const SOURCE = (row) => row.value?.stream ?? row.value?.queue ?? '';

export default function Lake() {
  useStore(place);
  const poll = usePoll('parameters/lake');
  // Who restarts tables may lack the tag that shows how they fare.
  const status = usePoll(mayMonitor() ? 'lake' : null);
  const statusOf = (row) => (status.data ?? []).find((each) => each.name === row.name && each.vhost === row.vhost) ?? {};
  const edit = async (row) => (await openDialog(TableDialog, { row, wide: true })) && poll.reload();
  async function remove(row) {
    const done = await confirmAction({
      title: `Delete table ${row.name}?`,
      text: 'It stops following. The table stays; adding it again resumes.',
      action: 'Delete',
      done: `The table ${row.name} has stopped following.`,
      run: () => del(path`parameters/lake/${row.vhost}/${row.name}`),
    });
    if (done) poll.reload();
  }
  const restart = (row) =>
    confirmAction({
      title: `Restart table ${row.name}?`,
      text: 'It restarts at its current place: nothing is lost or doubled.',
      action: 'Restart',
      danger: false,
      done: `The table ${row.name} is restarted.`,
      run: () => del(path`lake/vhost/${row.vhost}/${row.name}/restart`),
    }).then((done) => done && status.reload());
  const columns = [
    {
      key: 'name',
      label: 'Name',
      sort: 'name',
      render: (row) => html`<span class="name">${row.name}</span><br /><small>follows <${QueueLink} vhost=${row.vhost} name=${SOURCE(row)} /></small>`,
    },
    { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost },
    {
      key: 'state',
      label: 'State',
      render: (row) =>
        html`<${State} value=${statusOf(row).state ?? (mayMonitor() ? 'unknown' : null)} />${statusOf(row).reason && html`<br /><small>${statusOf(row).reason}</small>`}`,
    },
    {
      key: 'table',
      label: 'Table',
      render: (row) => html`<span class="name">${brokenAtSlashes(row.value?.to ?? '')}</span><br /><small class="mono">${row.value?.format ?? 'iceberg'} ${shown(row.value?.catalog)}</small>`,
    },
    {
      key: 'waiting',
      label: 'Waiting',
      num: true,
      render: (row) => html`<${Num} value=${statusOf(row).waiting} />${statusOf(row).lag_s > 0 && html`<br /><small>for <${Duration} ms=${statusOf(row).lag_s * 1000} /></small>`}`,
    },
    {
      key: 'rows',
      label: 'Rows',
      num: true,
      render: (row) => html`<${Num} value=${statusOf(row).rows} />${statusOf(row).refused > 0 && html`<br /><small><${Num} value=${statusOf(row).refused} /> refused</small>`}`,
    },
    { key: 'committed', label: 'Last commit', render: (row) => html`<${When} ms=${statusOf(row).committed_at ?? undefined} />` },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) =>
        html`<span class="row end">${mayAdminister() && html`<button type="button" class="small plain" onClick=${() => edit(row)}>Edit…</button>`}<button type="button" class="small plain" onClick=${() => restart(row)}>Restart…</button><button type="button" class="small plain" onClick=${() => remove(row)}>Delete…</button></span>`,
    },
  ];
  return html`<${Page} title="Lake">
    <p class="hint">Tables that the broker keeps in a data lake: each message of a stream, or of a queue that is drained, becomes one row. Rows are counted since the broker began.</p>
    <${LocalList} poll=${poll} caption="Tables" columns=${columns} rowKey=${(row) => JSON.stringify([row.vhost, row.name])} first=${{ by: 'name', descending: false }} empty="No table."
      keep=${(row) => !currentVhost() || row.vhost === currentVhost()} tools=${mayAdminister() && html`<button type="button" class="primary" onClick=${() => edit()}>Add table</button>`} />
  <//>`;
}
