// Permissions and topic permissions, of one user or of one vhost.

import { del, path, put } from '../api.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';
import { confirmAction, FormDialog, openDialog } from './dialog.js';
import { Field } from './forms.js';
import { UserLink, VhostLink } from './links.js';
import { NameField } from './name_field.js';
import { tell } from './notice.js';
import { Card, pending } from './page.js';
import { LocalTable } from './table.js';
import { VhostSelect } from './vhost_select.js';

const regex = (value) => (value === '' ? html`<span class="none">(nothing)</span>` : html`<span class="mono">${value}</span>`);
const OTHER = {
  user: { key: 'user', label: 'User', sort: 'user', render: (row) => html`<${UserLink} name=${row.user} />` },
  vhost: { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => html`<${VhostLink} name=${row.vhost} />` },
};

function Ends({ user, vhost, row }) {
  const given = row ?? {};
  return html`
    ${user === undefined ? html`<${NameField} label="User" name="user" required base="users" defaultValue=${given.user ?? ''} />` : null}
    ${vhost === undefined && html`<${VhostSelect} ...${given.vhost === undefined ? {} : { value: given.vhost }} />`}`;
}

/** What a form with `PermissionFields` says, as the API takes it. */
export const permissionsOf = (form) => ({ configure: form.get('configure'), write: form.get('write'), read: form.get('read') });

export function PermissionFields({ row }) {
  return html`
    <${Field} label="Configure" name="configure" defaultValue=${row?.configure ?? '.*'} hint="Declare and delete." />
    <${Field} label="Write" name="write" defaultValue=${row?.write ?? '.*'} hint="Publish to, bind to." />
    <${Field} label="Read" name="read" defaultValue=${row?.read ?? '.*'} hint="Consume from, bind from." />`;
}

function PermissionDialog({ user, vhost, row, titleId, close }) {
  async function submit(form) {
    const [who, where] = [user ?? form.get('user'), vhost ?? form.get('vhost')];
    await put(path`permissions/${where}/${who}`, permissionsOf(form));
    tell(`Permissions of ${who} in ${where} are set.`);
    return true;
  }
  return html`<${FormDialog} title="Set permissions" titleId=${titleId} action="Set permissions" submit=${submit} close=${close}>
    <p class="hint">Regular expressions over names of queues and exchanges. Empty allows nothing; .* everything.</p>
    <div class="form">
      <${Ends} user=${user} vhost=${vhost} row=${row} />
      <${PermissionFields} row=${row} />
    </div>
  <//>`;
}

function TopicDialog({ user, vhost, row, titleId, close }) {
  async function submit(form) {
    const [who, where] = [user ?? form.get('user'), vhost ?? form.get('vhost')];
    await put(path`topic-permissions/${where}/${who}`, {
      exchange: form.get('exchange'),
      write: form.get('write'),
      read: form.get('read'),
    });
    tell(`Topic permissions of ${who} in ${where} are set.`);
    return true;
  }
  return html`<${FormDialog} title="Set topic permissions" titleId=${titleId} action="Set topic permissions" submit=${submit} close=${close}>
    <p class="hint">Regular expressions over routing keys of one topic exchange. {username} and {vhost} stand for what they say.</p>
    <div class="form">
      <${Ends} user=${user} vhost=${vhost} row=${row} />
      <${NameField} label="Exchange" name="exchange" required base=${vhost === undefined ? 'exchanges' : path`exchanges/${vhost}`} defaultValue=${row?.exchange ?? 'amq.topic'} />
      <${Field} label="Write" name="write" defaultValue=${row?.write ?? '.*'} hint="Publish with such keys." />
      <${Field} label="Read" name="read" defaultValue=${row?.read ?? '.*'} hint="Bind with such keys." />
    </div>
  <//>`;
}

const KINDS = {
  permissions: {
    title: 'Permissions',
    one: 'permissions',
    Dialog: PermissionDialog,
    columns: ['configure', 'write', 'read'],
    none: 'No permissions. A vhost cannot be used without them.',
  },
  'topic-permissions': {
    title: 'Topic permissions',
    one: 'topic permissions',
    Dialog: TopicDialog,
    columns: ['exchange', 'write', 'read'],
    none: 'No topic permissions. Every routing key is allowed.',
  },
};

const LABELS = { configure: 'Configure', write: 'Write', read: 'Read', exchange: 'Exchange' };

/** kind: "permissions" or "topic-permissions"; either `user` or `vhost` is given. */
export function Permissions({ kind, user, vhost }) {
  const { title, one, Dialog, columns, none } = KINDS[kind];
  const poll = usePoll(user !== undefined ? path`users/${user}/` + kind : path`vhosts/${vhost}/` + kind);
  const edit = async (row) => (await openDialog(Dialog, { user: user ?? row?.user, vhost: vhost ?? row?.vhost, row })) && poll.reload();
  async function clear(row) {
    const done = await confirmAction({
      title: `Clear ${one} of ${row.user} in ${row.vhost}?`,
      text:
        kind === 'permissions'
          ? `${row.user} can no longer use the vhost ${row.vhost}.`
          : `${row.user} may then use every routing key of ${row.exchange} that the permissions allow.`,
      action: 'Clear',
      done: 'Cleared.',
      run: () =>
        del(
          kind === 'permissions'
            ? path`permissions/${row.vhost}/${row.user}`
            : path`topic-permissions/${row.vhost}/${row.user}/${row.exchange}`,
        ),
    });
    if (done) poll.reload();
  }
  const all = [
    user !== undefined ? OTHER.vhost : OTHER.user,
    ...columns.map((key) => ({ key, label: LABELS[key], sort: key, render: (row) => regex(row[key]) })),
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) =>
        html`<span class="row end"><button type="button" class="small plain" onClick=${() => edit(row)}>Edit…</button><button type="button" class="small plain" onClick=${() => clear(row)}>Clear…</button></span>`,
    },
  ];
  return html`<${Card} title=${title} actions=${html`<button type="button" class="small" onClick=${() => edit()}>Set…</button>`} wide>
    ${pending(poll) ?? html`<${LocalTable} caption=${title} columns=${all} rows=${poll.data} rowKey=${(row) => JSON.stringify([row.user, row.vhost, row.exchange])} empty=${none} />`}
  <//>`;
}
