// What programs hold that read and write in bulk: claims of drains, snapshots of queues, staged messages.

import { del, path, post, withQuery } from '../api.js';
import { Bytes, Duration, formatNumber, Num, When } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { QueueLink, queueHref, VhostLink } from '../parts/links.js';
import { tell } from '../parts/notice.js';
import { Card, Mark, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { mayAdminister, session } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const messages = (count) => (count === 1 ? '1 message' : `${formatNumber(count)} messages`);
const Vhost = ({ name }) => (mayAdminister() ? html`<${VhostLink} name=${name} />` : name);

/** A table of all that is at a path, in the chosen vhost or in all. `actions(row, reload)` makes the buttons of a row. */
function Listed({ title, base, hint, columns, actions, ...table }) {
  useStore(place);
  const vhost = currentVhost();
  const poll = usePoll(vhost ? `${base}/${encodeURIComponent(vhost)}` : base);
  const act = {
    key: 'act',
    label: html`<span class="unseen">Actions</span>`,
    num: true,
    render: (row) => html`<span class="row end">${actions(row, poll.reload)}</span>`,
  };
  return html`<${Card} title=${title} wide>
    <p class="hint">${hint}</p>
    ${pending(poll) ?? html`<${LocalTable} caption=${title} columns=${[...columns, act]} rows=${poll.data} ...${table} />`}
  <//>`;
}

const vhostColumn = { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => html`<${Vhost} name=${each.vhost} />` };

// --- drains ------------------------------------------------------------------------------------------------------------

const DRAINS = [
  {
    key: 'queue',
    label: 'Queue',
    sort: 'queue',
    render: (each) =>
      each.queue_exists
        ? html`<${QueueLink} vhost=${each.vhost} name=${each.queue} />`
        : html`<span class="name">${each.queue}</span> <${Mark} text="gone" title="The queue is deleted." kind="busy" />`,
  },
  { key: 'name', label: 'Reader', sort: 'name', render: (each) => html`<span class="mono">${each.name}</span>` },
  vhostColumn,
  { key: 'owner', label: 'Opened by', sort: 'owner', render: (each) => each.owner ?? '–' },
  {
    key: 'claimed',
    label: 'Claimed',
    sort: 'claimed',
    num: true,
    render: (each) =>
      html`<a href=${queueHref(each.vhost, each.claims, { tab: 'messages' })}><${Num} value=${each.claimed} /></a>`,
  },
  { key: 'epoch', label: 'Epoch', sort: 'epoch', num: true, render: (each) => each.epoch },
  { key: 'seen', label: 'Last seen', sort: 'last_seen_at', num: true, render: (each) => html`<${When} ms=${each.last_seen_at} />` },
  {
    key: 'lease',
    label: 'Lease',
    sort: 'lease_s',
    num: true,
    title: 'Claims return to the queue after this time without a sign of the reader.',
    render: (each) => (each.lease_s === null ? 'none' : html`<${Duration} ms=${1000 * each.lease_s} />`),
  },
];

async function release(drain, reload) {
  let released = 0;
  const done = await confirmAction({
    title: `Release what ${drain.name} has claimed?`,
    text: `Queue ${drain.queue} gets ${messages(drain.claimed)} back, flagged as redelivered. A reader that has the drain open is shut out.`,
    detail: 'Release claims only if their reader will not return: it may have written some of them, and would find a gap.',
    action: 'Release',
    run: async () => {
      ({ released } = await post(path`warren/drains/${drain.vhost}/${drain.queue}/${drain.name}/release`, {
        seen: drain.epoch,
      }));
    },
  });
  if (!done) return;
  tell(`Released ${messages(released)} of ${drain.name}.`);
  reload();
}

async function deleteDrain(drain, reload) {
  const claims = drain.claimed > 0;
  const done = await confirmAction({
    title: `Delete drain ${drain.name} of ${drain.queue}?`,
    text: claims ? `What it has claimed is lost: ${messages(drain.claimed)}.` : 'It has claimed nothing.',
    detail: claims ? 'Release it first to have them back in the queue.' : '',
    action: claims ? 'Delete with what is claimed' : 'Delete drain',
    done: `Drain ${drain.name} is deleted.`,
    // Only the session that is shown: a reader may have opened the drain again meanwhile.
    run: () =>
      del(
        withQuery(path`warren/drains/${drain.vhost}/${drain.queue}/${drain.name}`, {
          epoch: drain.epoch,
          discard: claims ? 'true' : null,
        }),
      ),
  });
  if (done) reload();
}

function drainActions(drain, reload) {
  return html`<button type="button" class="small" disabled=${drain.claimed === 0 || !drain.queue_exists} onClick=${() => release(drain, reload)}>Release…</button>
    <button type="button" class="small danger" onClick=${() => deleteDrain(drain, reload)}>Delete…</button>`;
}

// --- snapshots ---------------------------------------------------------------------------------------------------------

const SNAPSHOTS = [
  { key: 'queue', label: 'Queue', sort: 'queue', render: (each) => html`<span class="name">${each.queue}</span>` },
  { key: 'snapshot', label: 'Snapshot', sort: 'snapshot', num: true, render: (each) => each.snapshot },
  vhostColumn,
  {
    key: 'state',
    label: 'State',
    sort: 'state',
    render: (each) => html`<${State} value=${each.state} />${each.reason && html`<br /><small>${each.reason}</small>`}`,
  },
  { key: 'count', label: 'Messages', sort: 'count', num: true, render: (each) => html`<${Num} value=${each.count} />` },
  { key: 'bytes', label: 'Bytes', sort: 'bytes', num: true, render: (each) => html`<${Bytes} value=${each.bytes} />` },
  { key: 'user', label: 'By', sort: 'user', render: (each) => each.user },
  { key: 'made', label: 'Begun', sort: 'made_at', num: true, render: (each) => html`<${When} ms=${each.made_at} />` },
  { key: 'expires', label: 'Kept until', sort: 'expires_at', num: true, render: (each) => html`<${When} ms=${each.expires_at} />` },
];

async function deleteSnapshot({ vhost, queue, snapshot }, reload) {
  const done = await confirmAction({
    title: `Delete snapshot ${snapshot} of ${queue}?`,
    text: 'Its readers will fail. The queue stays as it is.',
    action: 'Delete snapshot',
    done: `Snapshot ${snapshot} is deleted.`,
    run: () => del(path`warren/snapshots/${vhost}/${queue}/${snapshot}`),
  });
  if (done) reload();
}

// --- stages ------------------------------------------------------------------------------------------------------------

const STAGES = [
  { key: 'name', label: 'Stage', sort: 'name', render: (each) => html`<span class="name mono">${each.name}</span>` },
  vhostColumn,
  { key: 'user', label: 'By', sort: 'user', render: (each) => each.user },
  { key: 'parts', label: 'Parts', sort: 'parts', num: true, render: (each) => html`<${Num} value=${each.parts} />` },
  { key: 'messages', label: 'Messages', sort: 'messages', num: true, render: (each) => html`<${Num} value=${each.messages} />` },
  { key: 'bytes', label: 'Bytes', sort: 'bytes', num: true, render: (each) => html`<${Bytes} value=${each.bytes} />` },
  { key: 'changed', label: 'Last part', sort: 'changed_at', num: true, render: (each) => html`<${When} ms=${each.changed_at} />` },
  { key: 'needed', label: 'Committed by', render: (each) => html`<span class="mono">${each.needed_by ?? '–'}</span>` },
];

async function discard({ vhost, name, messages: count }, reload) {
  const done = await confirmAction({
    title: `Discard stage ${name}?`,
    text: `What is staged will not be published: ${messages(count)}. A writer that commits it is refused.`,
    action: 'Discard stage',
    done: `Stage ${name} is discarded.`,
    run: () => del(path`warren/stages/${vhost}/${name}`),
  });
  if (done) reload();
}

/** A stage is its user's, and an administrator's; one that is being committed is nobody's. */
function stageActions(stage, reload) {
  if (!mayAdminister() && stage.user !== session.get().name) return null;
  return html`<button type="button" class="small danger" disabled=${stage.needed_by !== null} onClick=${() => discard(stage, reload)}>Discard…</button>`;
}

export default function Bulk() {
  return html`<${Page} title="Bulk data">
    <div class="stack">
      <${Listed} title="Drains" base="warren/drains" hint="Readers that take messages out of a queue: what they have claimed is theirs until they acknowledge it."
        columns=${DRAINS} actions=${drainActions} rowKey=${(each) => JSON.stringify([each.vhost, each.claims])} empty="No queue is being drained." />
      <${Listed} title="Snapshots" base="warren/snapshots" hint="Copies of what waited in a queue, to be read in ranges. The queue continues without them."
        columns=${SNAPSHOTS} rowKey=${(each) => each.snapshot} empty="There is no snapshot."
        actions=${(row, reload) => html`<button type="button" class="small danger" onClick=${() => deleteSnapshot(row, reload)}>Delete…</button>`} />
      <${Listed} title="Stages" base="warren/stages" hint="Messages that a writer has stored and not committed. They are invisible until then, and removed after a day."
        columns=${STAGES} actions=${stageActions} rowKey=${(each) => JSON.stringify([each.vhost, each.name])} empty="Nothing is staged." />
    </div>
  <//>`;
}
