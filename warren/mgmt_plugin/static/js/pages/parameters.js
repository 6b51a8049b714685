// Parameters and global parameters, as they are stored.

import { del, path, put } from '../api.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field, TextArea } from '../parts/forms.js';
import { withoutPasswords } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { tell } from '../parts/notice.js';
import { Page } from '../parts/page.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { mayAdminister } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

function readJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The value is not JSON: ${error.message}`);
  }
}

const pathOf = (row, global) => (global ? path`global-parameters/${row.name}` : path`parameters/${row.component}/${row.vhost}/${row.name}`);

function ParameterDialog({ row, global, titleId, close }) {
  async function submit(form) {
    const target = row ?? Object.fromEntries(form);
    const { component, vhost, name } = target;
    await put(pathOf(target, global), { ...(global ? {} : { component, vhost }), name, value: readJson(form.get('value')) });
    tell(`The parameter ${name} is set.`);
    return true;
  }
  return html`<${FormDialog} title=${row ? `Change ${row.name}` : `Add a ${global ? 'global ' : ''}parameter`} titleId=${titleId} action="Set parameter" submit=${submit} close=${close}>
    <div class="form">
      ${!row && !global && html`<${VhostSelect} /><${Field} label="Component" name="component" required placeholder="shovel" />`}
      ${!row && html`<${Field} label="Name" name="name" required />`}
      <${TextArea} label="Value, as JSON" name="value" rows="8" required defaultValue=${row ? JSON.stringify(row.value, null, 2) : '{}'} />
    </div>
  <//>`;
}

function ParameterList({ title, base, global = false }) {
  const poll = usePoll(base);
  const edit = async (row) => (await openDialog(ParameterDialog, { row, global, wide: true })) && poll.reload();
  async function remove(row) {
    const done = await confirmAction({
      title: `Delete parameter ${row.name}?`,
      text: global
        ? `This deletes the global parameter ${row.name}.`
        : `This deletes the ${row.component} parameter ${row.name} of ${row.vhost}, and stops its work.`,
      action: 'Delete parameter',
      done: `The parameter ${row.name} is deleted.`,
      run: () => del(pathOf(row, global)),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (row) => html`<span class="name">${row.name}</span>` },
    ...(global
      ? []
      : [
          { key: 'component', label: 'Component', sort: 'component', render: (row) => row.component },
          { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost },
        ]),
    { key: 'value', label: 'Value', long: true, render: (row) => html`<span class="mono">${withoutPasswords(JSON.stringify(row.value))}</span>` },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) =>
        html`<span class="row end"><button type="button" class="small plain" onClick=${() => edit(row)}>Edit…</button><button type="button" class="small plain" onClick=${() => remove(row)}>Delete…</button></span>`,
    },
  ];
  return html`<section class="stack">
    <h2>${title}</h2>
    <${LocalList} poll=${poll} caption=${title} columns=${columns} namesOf=${(row) => [row.name, row.component ?? '']} first=${{ by: 'name', descending: false }} empty="None."
      rowKey=${(row) => JSON.stringify([row.component, row.vhost, row.name])} keep=${(row) => global || !currentVhost() || row.vhost === currentVhost()}
      tools=${html`<button type="button" onClick=${() => edit()}>Add ${global ? 'global ' : ''}parameter</button>`} />
  </section>`;
}

export default function Parameters() {
  useStore(place);
  return html`<${Page} title="Parameters">
    <${ParameterList} title="Parameters of vhosts" base="parameters" />
    ${mayAdminister() && html`<${ParameterList} title="Global parameters" base="global-parameters" global />`}
  <//>`;
}
