// Limits of vhosts and of users: {value: {"max-queues": 10}} per object.

import { del, path, put } from '../api.js';
import { formatNumber } from '../format.js';
import { html } from '../ui.js';
import { confirmAction, FormDialog, openDialog } from './dialog.js';
import { Field, Select } from './forms.js';
import { NameField } from './name_field.js';
import { tell } from './notice.js';
import { Card, pending } from './page.js';
import { LocalTable } from './table.js';
import { VhostSelect } from './vhost_select.js';

const KINDS = {
  vhost: { title: 'Limits of vhosts', limits: ['max-connections', 'max-queues'], what: 'Vhost' },
  user: { title: 'Limits of users', limits: ['max-connections', 'max-channels'], what: 'User' },
};

function LimitDialog({ kind, name, titleId, close }) {
  const { limits, what } = KINDS[kind];
  async function submit(form) {
    const whose = name ?? form.get('whose');
    await put(path`${`${kind}-limits`}/${whose}/${form.get('limit')}`, { value: Number(form.get('value')) });
    tell(`The limit of ${whose} is set.`);
    return true;
  }
  return html`<${FormDialog} title="Set a limit" titleId=${titleId} action="Set limit" submit=${submit} close=${close}>
    <div class="form">
      ${name === undefined && (kind === 'vhost' ? html`<${VhostSelect} name="whose" />` : html`<${NameField} label=${what} name="whose" required base="users" />`)}
      <${Select} label="Limit" name="limit" options=${limits} value=${limits[0]} />
      <${Field} label="Value" name="value" type="number" min="-1" required hint="0 allows none, -1 any number." />
    </div>
  <//>`;
}

/** `name` given: only that vhost or user. */
export function Limits({ kind, name, poll }) {
  const { title, what } = KINDS[kind];
  const rows = (poll.data ?? []).flatMap((entry) =>
    Object.entries(entry.value).map(([limit, value]) => ({ whose: entry[kind], limit, value })),
  );
  const add = async () => (await openDialog(LimitDialog, { kind, name })) && poll.reload();
  async function clear(row) {
    const done = await confirmAction({
      title: `Clear ${row.limit} of ${row.whose}?`,
      text: `Only the limits of the broker then apply to the ${kind} ${row.whose}.`,
      action: 'Clear limit',
      done: 'The limit is cleared.',
      run: () => del(path`${`${kind}-limits`}/${row.whose}/${row.limit}`),
    });
    if (done) poll.reload();
  }
  const columns = [
    ...(name === undefined ? [{ key: 'whose', label: what, sort: 'whose', render: (row) => row.whose }] : []),
    { key: 'limit', label: 'Limit', sort: 'limit', render: (row) => row.limit },
    { key: 'value', label: 'Value', sort: 'value', num: true, render: (row) => (row.value < 0 ? 'any number' : formatNumber(row.value)) },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) => html`<button type="button" class="small plain" onClick=${() => clear(row)}>Clear…</button>`,
    },
  ];
  return html`<${Card} title=${name === undefined ? title : 'Limits'} actions=${html`<button type="button" class="small" onClick=${add}>Set…</button>`}>
    ${pending(poll) ?? html`<${LocalTable} caption=${title} columns=${columns} rows=${rows} rowKey=${(row) => `${row.whose} ${row.limit}`} empty="No limits." />`}
  <//>`;
}
