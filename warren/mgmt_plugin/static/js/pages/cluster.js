// The nodes of the cluster: who leads, who is in sync, who is gone and what to do; its name, and feature flags.

import { adviceOn } from '../alerts.js';
import { path, put } from '../api.js';
import { Bytes, formatDuration, formatNumber, When } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { tell } from '../parts/notice.js';
import { Card, Facts, Mark, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { href } from '../router.js';
import { mayAdminister } from '../session.js';
import { html, useState } from '../ui.js';

const NODES = [
  { key: 'name', label: 'Name', sort: 'node', render: (row) => html`<a class="name" href=${href(['nodes', row.node])}>${row.node}</a>` },
  { key: 'state', label: 'State', sort: 'state', render: (row) => html`<${State} value=${row.state} />` },
  {
    key: 'in_sync',
    label: 'In sync',
    sort: 'in_sync',
    title: 'It has every confirmed message, and confirms wait for it: it may take over.',
    render: (row) => html`<${Mark} text=${row.in_sync ? 'yes' : 'no'} kind=${row.in_sync ? 'good' : 'bad'} />`,
  },
  {
    key: 'lag',
    label: 'Behind',
    sort: 'lag_bytes',
    num: true,
    render: (row) => html`<${Bytes} value=${row.lag_bytes} />${row.lag_s >= 1 && html`<br /><small>${formatDuration(row.lag_s * 1000)}</small>`}`,
  },
  { key: 'gone', label: 'Gone', sort: 'gone_since_ms', render: (row) => html`<${When} ms=${row.gone_since_ms} />` },
  { key: 'address', label: 'Address', render: (row) => html`<span class="mono">${row.address ?? '–'}</span>` },
  { key: 'version', label: 'Version', render: (row) => row.version ?? '–' },
];

function Nodes() {
  const poll = usePoll('cluster/status');
  const status = poll.data;
  if (!status) return html`<${Card} title="Nodes" wide>${pending(poll)}<//>`;
  if (status.role === 'single')
    return html`<${Card} title="Nodes" wide><p class="hint">${status.node} is a broker by itself: there is one copy of its messages. docs/clustering.md says how three nodes keep one each.</p><//>`;
  const missing = status.members.filter((row) => adviceOn(row));
  const etcd = status.election?.etcd.trouble;
  return html`<${Card} title="Nodes" wide>
    ${status.trouble && html`<p class="banner alarm" role="alert">Nothing is confirmed: ${status.trouble}.</p>`}
    ${etcd && html`<p class="banner warning" role="alert">etcd does not answer, so no other node could take over: ${etcd}.</p>`}
    <${Facts} facts=${[
      ['Leader', status.node],
      ['In sync', `${formatNumber(status.in_sync.length)} of ${formatNumber(status.members.length)}, ${formatNumber(status.min_in_sync)} have to be`],
      ['Epoch', formatNumber(status.epoch)],
      ['New leaders', status.election && formatNumber(status.election.takeovers)],
    ]} />
    <${LocalTable} cards caption="Nodes" columns=${NODES} rows=${status.members} rowKey=${(row) => row.node} />
    ${status.members.filter((row) => row.trouble).map((row) => html`<p key=${`trouble of ${row.node}`} class="banner warning" role="alert">${row.node}: ${row.trouble}.</p>`)}
    ${missing.map((row) => html`<p key=${row.node} class="hint"><b>${row.node} is ${row.state}.</b> ${adviceOn(row)}</p>`)}
  <//>`;
}

function ClusterName() {
  const poll = usePoll('cluster-name');
  const [error, setError] = useState('');
  async function onSubmit(event) {
    event.preventDefault();
    const { name } = Object.fromEntries(new FormData(event.target));
    try {
      setError('');
      await put('cluster-name', { name });
      tell(`The cluster is called ${name}.`);
      poll.reload();
    } catch (failed) {
      setError(failed.message);
    }
  }
  return html`<${Card} title="Name">
    ${
      pending(poll) ??
      html`<form class="form" onSubmit=${onSubmit}>
      <${Field} label="Cluster name" name="name" required defaultValue=${poll.data.name} key=${poll.data.name} hint="Clients see it, and federation uses it." />
      <p class="form-error" role="alert">${error}</p>
      <div class="row"><button type="submit">Change the name</button></div>
    </form>`
    }
  <//>`;
}

function FeatureFlags() {
  const poll = usePoll('feature-flags');
  async function enable(flag) {
    const done = await confirmAction({
      title: `Enable ${flag.name}?`,
      text: flag.desc || 'A feature flag.',
      detail: 'It cannot be disabled again.',
      action: 'Enable',
      danger: false,
      done: `${flag.name} is enabled.`,
      run: () => put(path`feature-flags/${flag.name}/enable`, {}),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (flag) => html`<span class="name">${flag.name}</span>` },
    { key: 'state', label: 'State', sort: 'state', render: (flag) => html`<${State} value=${flag.state} />` },
    { key: 'stability', label: 'Stability', sort: 'stability', render: (flag) => flag.stability },
    { key: 'desc', label: 'Description', long: true, render: (flag) => flag.desc },
    {
      key: 'act',
      label: html`<span class="unseen">Enable</span>`,
      num: true,
      render: (flag) =>
        flag.state === 'disabled' && html`<button type="button" class="small" onClick=${() => enable(flag)}>Enable…</button>`,
    },
  ];
  return html`<${Card} title="Feature flags">
    ${pending(poll) ?? html`<${LocalTable} caption="Feature flags" columns=${columns} rows=${poll.data} rowKey=${(flag) => flag.name} first=${{ by: 'name', descending: false }} empty="No feature flags." />`}
  <//>`;
}

export default function Cluster() {
  return html`<${Page} title="Cluster"><div class="stack"><${Nodes} />${mayAdminister() && html`<${ClusterName} /><${FeatureFlags} />`}</div><//>`;
}
