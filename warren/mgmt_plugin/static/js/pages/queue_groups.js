// The consumer groups of a stream: how far each has come, and setting it to somewhere else.

import { del, path, put } from '../api.js';
import { Num, When } from '../format.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { tell } from '../parts/notice.js';
import { Card, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';

/** What was typed: an offset, a word, an age, or a time of day on a date. */
function position(text) {
  if (/^\d+$/.test(text)) return { offset: Number(text) };
  if (!text.includes('-')) return { offset: text };
  const ms = new Date(text).getTime();
  if (Number.isNaN(ms)) throw new Error(`“${text}” is not a time. An example: 2026-11-22T08:00.`);
  return { time_ms: ms };
}

function ResetDialog({ vhost, name, group, titleId, close }) {
  async function submit(form) {
    await put(path`warren/streams/${vhost}/${name}/groups/${group}`, position(form.get('position').trim()));
    tell(`Group ${group} continues there.`);
    return true;
  }
  return html`<${FormDialog} title="Set group ${group} to another place?" titleId=${titleId} action="Set" submit=${submit} close=${close}>
    <p>Its consumer is served from there at once.</p>
    <${Field} label="Place" name="position" required hint="An offset, first, last, next, an age (1h) or a time (2026-11-22T08:00)." />
  <//>`;
}

export function QueueGroups({ vhost, name }) {
  const poll = usePoll(path`warren/streams/${vhost}/${name}/groups`);
  async function reset(group) {
    if (await openDialog(ResetDialog, { vhost, name, group })) poll.reload();
  }
  async function forget(group) {
    const done = await confirmAction({
      title: `Forget group ${group}?`,
      text: `The stored offset of ${group} is forgotten. A consumer that names the group starts from scratch.`,
      action: 'Forget group',
      done: `Group ${group} is forgotten.`,
      run: () => del(path`warren/streams/${vhost}/${name}/groups/${group}`),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'name', label: 'Group', sort: 'name', render: (each) => html`<span class="mono">${each.name}</span>` },
    { key: 'committed', label: 'Committed', sort: 'committed_offset', num: true, render: (each) => each.committed_offset ?? '–' },
    { key: 'lag', label: 'Behind', sort: 'lag', num: true, render: (each) => html`<${Num} value=${each.lag} />` },
    { key: 'at', label: 'Stored', num: true, render: (each) => html`<${When} ms=${each.committed_at} />` },
    { key: 'consumers', label: 'Consumers', sort: 'consumers', num: true, render: (each) => html`<${Num} value=${each.consumers} />` },
    { key: 'active', label: 'Served', render: (each) => html`<span class="mono">${each.active_consumer_tag ?? '–'}</span>` },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (each) => html`<span class="row end">
        <button type="button" class="small" onClick=${() => reset(each.name)}>Set…</button>
        <button type="button" class="small danger" disabled=${each.consumers > 0} onClick=${() => forget(each.name)}>Forget…</button>
      </span>`,
    },
  ];
  return html`<${Card} title="Consumer groups" wide>
    ${pending(poll) ?? html`<${LocalTable} caption="Consumer groups of this stream" columns=${columns} rows=${poll.data} rowKey=${(each) => each.name} empty="No consumer has named a group (x-group)." />`}
  <//>`;
}
