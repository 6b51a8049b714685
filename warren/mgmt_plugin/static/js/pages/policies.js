// Policies and operator policies, and what they apply to.

import { del, path, put, withQuery } from '../api.js';
import { OPERATOR_POLICY_KEYS, POLICY_KEYS } from '../hints.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { ArgumentsEditor, Field, readArguments, rowsOf, Select } from '../parts/forms.js';
import { ExchangeLink, QueueLink } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { tell } from '../parts/notice.js';
import { Fields, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { mayAdminister } from '../session.js';
import { useStore } from '../store.js';
import { html, useState } from '../ui.js';

const APPLY_TO = [
  ['all', 'queues and exchanges'],
  ['queues', 'queues'],
  ['classic_queues', 'classic queues'],
  ['quorum_queues', 'quorum queues'],
  ['streams', 'streams'],
  ['exchanges', 'exchanges'],
];
const QUEUES_ONLY = APPLY_TO.filter(([value]) => value.endsWith('queues') || value === 'streams');

const KINDS = {
  policies: { title: 'Policies', one: 'policy', hints: POLICY_KEYS, applyTo: APPLY_TO, field: 'policy' },
  'operator-policies': {
    title: 'Operator policies',
    one: 'operator policy',
    hints: OPERATOR_POLICY_KEYS,
    applyTo: QUEUES_ONLY,
    field: 'operator_policy',
  },
};

function PolicyDialog({ kind, policy, titleId, close }) {
  const { one, hints, applyTo } = KINDS[kind];
  const [rows, setRows] = useState(policy ? rowsOf(policy.definition) : [{ key: '', kind: 'string', text: '' }]);
  async function submit(form) {
    const [vhost, name] = [policy?.vhost ?? form.get('vhost'), policy?.name ?? form.get('name')];
    await put(path`${kind}/${vhost}/${name}`, {
      pattern: form.get('pattern'),
      'apply-to': form.get('apply-to'),
      priority: Number(form.get('priority') || 0),
      definition: readArguments(rows),
    });
    tell(`The ${one} ${name} is set.`);
    return true;
  }
  return html`<${FormDialog} title=${policy ? `Change ${one} ${policy.name}` : `Add ${kind === 'policies' ? 'a policy' : 'an operator policy'}`} titleId=${titleId} action="Set policy" submit=${submit} close=${close}>
    <div class="form">
      ${!policy && html`<${VhostSelect} /><${Field} label="Name" name="name" required />`}
      <${Field} label="Pattern" name="pattern" required defaultValue=${policy?.pattern ?? ''} placeholder="^orders\\." hint="A regular expression; it matches anywhere in the name." />
      <${Select} label="Applies to" name="apply-to" options=${applyTo} value=${policy?.['apply-to'] ?? (kind === 'policies' ? 'all' : 'queues')} />
      <${Field} label="Priority" name="priority" type="number" defaultValue=${policy?.priority ?? 0} hint="Only the matching policy with the highest priority applies." />
      <${ArgumentsEditor} legend="Definition" rows=${rows} onChange=${setRows} hints=${hints} offer unknown="The broker refuses keys that it does not know." />
    </div>
  <//>`;
}

const MATCHES = [
  {
    key: 'name',
    label: 'Name',
    sort: 'name',
    render: (row) =>
      row.kind === 'queue'
        ? html`<${QueueLink} vhost=${row.vhost} name=${row.name} />`
        : html`<${ExchangeLink} vhost=${row.vhost} name=${row.name} />`,
  },
  { key: 'kind', label: 'Kind', sort: 'kind', render: (row) => row.kind },
];

/** The broker says of each queue and exchange which policy it has; that is what is shown, not the pattern tried again. */
function MatchesDialog({ kind, policy, titleId, close }) {
  const { field } = KINDS[kind];
  const query = { columns: `name,vhost,${field}` };
  const queues = usePoll(withQuery(path`queues/${policy.vhost}`, query), { repeat: false });
  const exchanges = usePoll(kind === 'policies' ? withQuery(path`exchanges/${policy.vhost}`, query) : null, { repeat: false });
  const applied = (poll, what) => (poll.data ?? []).filter((each) => each[field] === policy.name).map((each) => ({ ...each, kind: what }));
  const rows = [...applied(queues, 'queue'), ...applied(exchanges, 'exchange')];
  return html`<div>
    <h2 id=${titleId}>Matches of ${policy.name}</h2>
    <div class="dialog-body" onClick=${(event) => event.target.closest('a') && close()}>
      ${
        pending(queues) ??
        (kind === 'policies' ? pending(exchanges) : undefined) ??
        html`<${LocalTable} caption="Queues and exchanges" columns=${MATCHES} rows=${rows} rowKey=${(row) => `${row.kind} ${row.name}`} first=${{ by: 'name', descending: false }}
        empty="No matches, or higher-priority policies win." />`
      }
    </div>
    <div class="dialog-actions"><button type="button" class="primary" onClick=${() => close()}>Close</button></div>
  </div>`;
}

function PolicyList({ kind, vhost }) {
  const { title, one } = KINDS[kind];
  const poll = usePoll(vhost ? path`${kind}/${vhost}` : kind);
  const edit = async (policy) => (await openDialog(PolicyDialog, { kind, policy, wide: true })) && poll.reload();
  async function remove(policy) {
    const done = await confirmAction({
      title: `Delete ${one} ${policy.name}?`,
      text: `Its settings end at once for all queues and exchanges of ${policy.vhost}.`,
      action: 'Delete policy',
      done: `The ${one} ${policy.name} is deleted.`,
      run: () => del(path`${kind}/${policy.vhost}/${policy.name}`),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (policy) => html`<span class="name">${policy.name}</span>` },
    { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (policy) => policy.vhost },
    { key: 'pattern', label: 'Pattern', sort: 'pattern', render: (policy) => html`<span class="mono">${policy.pattern}</span>` },
    { key: 'apply', label: 'Applies to', sort: 'apply-to', render: (policy) => policy['apply-to'].replace('_', ' ') },
    { key: 'definition', label: 'Definition', long: true, render: (policy) => html`<${Fields} values=${policy.definition} />` },
    { key: 'priority', label: 'Priority', sort: 'priority', num: true, render: (policy) => policy.priority },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (
        policy,
      ) => html`<span class="row end"><button type="button" class="small plain" onClick=${() => openDialog(MatchesDialog, { kind, policy })}>Matches</button>
        ${(kind === 'policies' || mayAdminister()) && html`<button type="button" class="small plain" onClick=${() => edit(policy)}>Edit…</button><button type="button" class="small plain" onClick=${() => remove(policy)}>Delete…</button>`}</span>`,
    },
  ];
  return html`<section class="stack">
    <h2>${title}</h2>
    <${LocalList} poll=${poll} caption=${title} columns=${columns} rowKey=${(policy) => JSON.stringify([policy.vhost, policy.name])} first=${{ by: 'name', descending: false }} empty="None."
      tools=${(kind === 'policies' || mayAdminister()) && html`<button type="button" class=${kind === 'policies' ? 'primary' : ''} onClick=${() => edit()}>Add ${one}</button>`} />
  </section>`;
}

export default function Policies() {
  useStore(place);
  const vhost = currentVhost();
  return html`<${Page} title="Policies">
    <p class="hint">Settings for all queues and exchanges whose names match. Operator policies limit the values that users may set: the smaller number applies.</p>
    <${PolicyList} kind="policies" vhost=${vhost} />
    ${mayAdminister() && html`<${PolicyList} kind="operator-policies" vhost=${vhost} />`}
  <//>`;
}
