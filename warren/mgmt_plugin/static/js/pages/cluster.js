// The name of the cluster, and feature flags.

import { path, put } from '../api.js';
import { confirmAction } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { tell } from '../parts/notice.js';
import { Card, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { html, useState } from '../ui.js';

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
      <${Field} label="Cluster name" name="name" required defaultValue=${poll.data.name} key=${poll.data.name} hint="Clients see it, and federation goes by it." />
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
    { key: 'desc', label: 'What it is', render: (flag) => flag.desc },
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
  return html`<${Page} title="Cluster"><div class="stack"><${ClusterName} /><${FeatureFlags} /></div><//>`;
}
