// Shovels: what moves messages from one place to another, and how it fares.

import { del, path, put } from '../api.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field, Select } from '../parts/forms.js';
import { withoutPasswords } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { tell } from '../parts/notice.js';
import { Page, State } from '../parts/page.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { mayMonitor } from '../session.js';
import { useStore } from '../store.js';
import { html, useState } from '../ui.js';

const ENDS = [
  ['queue', 'queue'],
  ['exchange', 'exchange'],
];
const list = (uri) => (Array.isArray(uri) ? uri.join(', ') : uri);
const sides = { src: 'From', dest: 'To' };

/** "queue q at amqp://host", without the password that a URI may carry. */
function endOf(value, side) {
  const uri = withoutPasswords(String(list(value[`${side}-uri`]) ?? ''));
  const key = value[`${side}-exchange-key`];
  const what =
    value[`${side}-queue`] !== undefined
      ? `queue ${value[`${side}-queue`]}`
      : `exchange ${value[`${side}-exchange`] ?? value[`${side}-address`] ?? ''}${key ? ` (${key})` : ''}`;
  return html`${what}<br /><small class="mono">${uri}</small>`;
}

function End({ side, value }) {
  const [end, setEnd] = useState(value?.[`${side}-exchange`] !== undefined ? 'exchange' : 'queue');
  return html`<fieldset class="arguments">
    <legend>${sides[side]}</legend>
    <div class="form">
      <${Field} label="URI" name="${side}-uri" required defaultValue=${list(value?.[`${side}-uri`]) ?? 'amqp://'} hint="amqp://user:password@host/vhost; amqp:// alone is this broker." />
      <${Select} label="Kind" options=${ENDS} value=${end} onChange=${(event) => setEnd(event.target.value)} />
      ${
        end === 'queue'
          ? html`<${Field} key="queue" label="Queue" name="${side}-queue" required defaultValue=${value?.[`${side}-queue`] ?? ''} />`
          : html`<${Field} key="exchange" label="Exchange" name="${side}-exchange" defaultValue=${value?.[`${side}-exchange`] ?? ''} /><${Field} label="Routing key" name="${side}-exchange-key" defaultValue=${value?.[`${side}-exchange-key`] ?? ''} />`
      }
    </div>
  </fieldset>`;
}

const NUMBERS = ['src-prefetch-count', 'reconnect-delay'];

function valueOf(form, before) {
  const ends = ['src', 'dest'].flatMap((side) => ['uri', 'queue', 'exchange', 'exchange-key'].map((part) => `${side}-${part}`));
  const shown = [...ends, ...NUMBERS, 'src-delete-after'];
  const kept = Object.fromEntries(Object.entries(before ?? {}).filter(([key]) => !shown.includes(key)));
  const value = { ...kept, 'ack-mode': form.get('ack-mode') };
  for (const key of ends) {
    const text = form.get(key);
    if (text === null || (key.endsWith('-key') && text === '')) continue;
    value[key] = key.endsWith('-uri') && text.includes(',') ? text.split(',').map((uri) => uri.trim()) : text;
  }
  for (const key of NUMBERS) if (form.get(key)) value[key] = Number(form.get(key));
  const until = form.get('src-delete-after').trim();
  if (until) value['src-delete-after'] = /^\d+$/.test(until) ? Number(until) : until;
  return value;
}

function ShovelDialog({ row, titleId, close }) {
  const value = row?.value;
  async function submit(form) {
    const [vhost, name] = [row?.vhost ?? form.get('vhost'), row?.name ?? form.get('name')];
    await put(path`parameters/shovel/${vhost}/${name}`, { component: 'shovel', vhost, name, value: valueOf(form, value) });
    tell(`The shovel ${name} is set.`);
    return true;
  }
  return html`<${FormDialog} title=${row ? `Change shovel ${row.name}` : 'Add a shovel'} titleId=${titleId} action="Set shovel" submit=${submit} close=${close}>
    <div class="form">
      ${!row && html`<${VhostSelect} /><${Field} label="Name" name="name" required />`}
      <${End} side="src" value=${value} />
      <${End} side="dest" value=${value} />
      <${Select} label="Acknowledges" name="ack-mode" value=${value?.['ack-mode'] ?? 'on-confirm'} options=${[
        ['on-confirm', 'once the target confirmed'],
        ['on-publish', 'once it published'],
        ['no-ack', 'never'],
      ]} />
      <${Field} label="Prefetch" name="src-prefetch-count" type="number" min="1" defaultValue=${value?.['src-prefetch-count'] ?? ''} hint="1000 unless given." />
      <${Field} label="Reconnects after, s" name="reconnect-delay" type="number" min="0" defaultValue=${value?.['reconnect-delay'] ?? ''} />
      <${Field} label="Ends after" name="src-delete-after" defaultValue=${value?.['src-delete-after'] ?? ''} hint="never, queue-length, or a number of messages." />
    </div>
  <//>`;
}

export default function Shovels() {
  useStore(place);
  const poll = usePoll('parameters/shovel');
  // Who sets shovels may lack the tag that shows how they fare.
  const status = usePoll(mayMonitor() ? 'shovels' : null);
  const statusOf = (row) => (status.data ?? []).find((each) => each.name === row.name && each.vhost === row.vhost);
  const edit = async (row) => (await openDialog(ShovelDialog, { row, wide: true })) && poll.reload();
  async function remove(row) {
    const done = await confirmAction({
      title: `Delete shovel ${row.name}?`,
      text: `It stops, and messages stay where they are.`,
      action: 'Delete shovel',
      done: `The shovel ${row.name} is deleted.`,
      run: () => del(path`parameters/shovel/${row.vhost}/${row.name}`),
    });
    if (done) poll.reload();
  }
  const restart = (row) =>
    confirmAction({
      title: `Restart shovel ${row.name}?`,
      text: 'It connects again at both ends.',
      action: 'Restart',
      danger: false,
      done: `The shovel ${row.name} is restarted.`,
      run: () => del(path`shovels/vhost/${row.vhost}/${row.name}/restart`),
    }).then((done) => done && status.reload());
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (row) => html`<span class="name">${row.name}</span>` },
    { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost },
    {
      key: 'state',
      label: 'State',
      render: (row) =>
        html`<${State} value=${statusOf(row)?.state ?? (mayMonitor() ? 'unknown' : null)} />${statusOf(row)?.reason && html`<br /><small>${statusOf(row).reason}</small>`}`,
    },
    { key: 'from', label: 'From', long: true, render: (row) => endOf(row.value, 'src') },
    { key: 'to', label: 'To', long: true, render: (row) => endOf(row.value, 'dest') },
    { key: 'since', label: 'Since', render: (row) => statusOf(row)?.timestamp ?? '–' },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) =>
        html`<span class="row end"><button type="button" class="small plain" onClick=${() => edit(row)}>Edit…</button><button type="button" class="small plain" onClick=${() => restart(row)}>Restart…</button><button type="button" class="small plain" onClick=${() => remove(row)}>Delete…</button></span>`,
    },
  ];
  return html`<${Page} title="Shovels">
    <p class="hint">A shovel takes messages from one place and publishes them at another, on this broker or between two. To move messages once, use Move of the queue.</p>
    <${LocalList} poll=${poll} caption="Shovels" columns=${columns} rowKey=${(row) => JSON.stringify([row.vhost, row.name])} first=${{ by: 'name', descending: false }} empty="No shovel."
      keep=${(row) => !currentVhost() || row.vhost === currentVhost()} tools=${html`<button type="button" class="primary" onClick=${() => edit()}>Add shovel</button>`} />
  <//>`;
}
