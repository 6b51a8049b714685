// Taking definitions out, and putting them in after a look at what that would change.

import { path, post, url, withQuery } from '../api.js';
import { formatNumber } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { Select, useId } from '../parts/forms.js';
import { tell } from '../parts/notice.js';
import { Card, Mark, Page } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { html, useRef, useState } from '../ui.js';

const KINDS = { create: 'good', update: 'warn', conflict: 'bad', same: '', skip: '' };

const COLUMNS = [
  { key: 'name', label: 'Name', sort: 'name', render: (row) => html`<span class="name">${row.name}</span>` },
  {
    key: 'action',
    label: 'What happens',
    sort: 'action',
    render: (row) => html`<${Mark} text=${row.action} kind=${KINDS[row.action] ?? ''} />`,
  },
  { key: 'kind', label: 'Kind', sort: 'kind', render: (row) => row.kind },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost ?? '' },
  { key: 'detail', label: 'Detail', long: true, render: (row) => row.detail ?? '' },
];

function useVhostChoice() {
  const vhosts = usePoll('vhosts?columns=name', { repeat: false });
  const [vhost, setVhost] = useState('');
  const names = (vhosts.data ?? []).map((each) => each.name).sort();
  const options = [['', 'the whole broker'], ...names];
  return {
    vhost,
    select: (label, onChange) =>
      html`<${Select} label=${label} value=${vhost} options=${options} onChange=${(event) => {
        setVhost(event.target.value);
        onChange?.(event.target.value);
      }} />`,
  };
}

const definitionsPath = (vhost) => (vhost ? path`definitions/${vhost}` : 'definitions');

function Export() {
  const { vhost, select } = useVhostChoice();
  const file = `definitions-${vhost ? `${vhost.replace(/[^\w.-]+/g, '_')}-` : ''}${new Date().toISOString().slice(0, 10)}.json`;
  return html`<${Card} title="Export">
    <p class="hint">Users, vhosts, permissions, policies, parameters, exchanges, queues and bindings; no messages. The file has password hashes, and URIs with their passwords.</p>
    <div class="form">${select('Of')}<div class="row"><a class="button" href=${url(withQuery(definitionsPath(vhost), { download: file }))} download=${file}>Download ${file}</a></div></div>
  <//>`;
}

function Changes({ answer }) {
  const counts = {};
  for (const change of answer.changes) counts[change.action] = (counts[change.action] ?? 0) + 1;
  const rows = answer.changes.filter((change) => change.action !== 'same');
  return html`<div class="stack">
    <p role="status" class="marks">${Object.entries(counts).map(([action, count]) => html`<${Mark} key=${action} text="${formatNumber(count)} ${action}" kind=${KINDS[action] ?? ''} />`)}</p>
    ${answer.conflicts > 0 && html`<p class="warning-box">Conflicts exist already and differ. An import leaves them as they are.</p>`}
    <${LocalTable} caption="Changes" columns=${COLUMNS} rows=${rows} rowKey=${(row) => JSON.stringify([row.kind, row.vhost, row.name, row.detail])} empty="Everything in the file is here already." />
  </div>`;
}

function Import() {
  const { vhost, select } = useVhostChoice();
  const id = useId();
  const chosen = useRef(null);
  const latest = useRef(0);
  const [file, setFile] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState('');
  // The page shows what the file would change in that vhost: another file or vhost is asked for again.
  async function look(into) {
    const turn = ++latest.current;
    const given = chosen.current;
    setFile(null);
    setAnswer(null);
    setError('');
    if (!given) return;
    try {
      const text = await given.text();
      JSON.parse(text);
      // What was parsed is not sent: numbers beyond 2^53 would be others.
      const definitions = new Blob([text]);
      const found = await post(into ? path`warren/definitions/dry-run/${into}` : 'warren/definitions/dry-run', definitions);
      if (turn !== latest.current) return;
      setAnswer(found);
      setFile({ name: given.name, definitions, vhost: into });
    } catch (failed) {
      if (turn === latest.current) setError(failed instanceof SyntaxError ? `${given.name} is not JSON: ${failed.message}` : failed.message);
    }
  }
  function onFile(event) {
    [chosen.current] = event.target.files;
    look(vhost);
  }
  async function run() {
    await confirmAction({
      title: `Import ${file.name}?`,
      text: `Its definitions are added to ${file.vhost ? `the vhost ${file.vhost}` : 'the broker'}. Users, permissions, policies and parameters of the same name are replaced; queues, exchanges and bindings that are there stay as they are.`,
      action: 'Import',
      run: () => post(definitionsPath(file.vhost), file.definitions),
    }).then((done) => done && (tell(`${file.name} is imported.`), setAnswer(null), setFile(null)));
  }
  return html`<${Card} title="Import">
    <p class="hint">Choosing a file changes nothing yet: first you see what it would change.</p>
    <div class="form">
      ${select('Into', look)}
      <div class="field"><label for=${id}>File</label><input id=${id} type="file" accept=".json,application/json" onChange=${onFile} /></div>
    </div>
    <p class="form-error" role="alert">${error}</p>
    ${answer && html`<${Changes} answer=${answer} />`}
    ${file && html`<div class="row"><button type="button" class="primary" onClick=${run}>Import…</button></div>`}
  <//>`;
}

export default function Definitions() {
  return html`<${Page} title="Definitions"><div class="stack"><${Export} /><${Import} /></div><//>`;
}
