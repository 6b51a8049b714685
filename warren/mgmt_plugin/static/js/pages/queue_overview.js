// Charts and facts of a queue, what it holds back, and which duplicates it knows.

import { del, path, post } from '../api.js';
import { Bytes, Duration, Num, Rate, Since, When } from '../format.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { ConnectionLink, ExchangeLink, PolicyLink } from '../parts/links.js';
import { LengthChart, RateChart } from '../parts/message_rates.js';
import { tell } from '../parts/notice.js';
import { Card, Facts, Fields } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { href } from '../router.js';
import { html } from '../ui.js';

const INCOMING = [
  { key: 'exchange', label: 'Exchange', render: (row) => html`<${ExchangeLink} vhost=${row.exchange.vhost} name=${row.exchange.name} />` },
  { key: 'publish', label: 'Rate', num: true, render: (row) => html`<${Rate} value=${row.stats?.publish_details?.rate} />` },
];

// The size beside a count, where the broker tells it.
const bytesNote = (value) => typeof value === 'number' && html`<small><${Bytes} value=${value} /></small>`;

const HELD = [
  ['delayed', 'Delayed', 'They are delivered once their time has come.'],
  ['parked', 'Parked', 'They failed too often and wait for somebody to release them.'],
  ['undelivered', 'Undelivered dead letters', 'Their dead letter exchange has not taken them yet; it is tried again.'],
];

function ReleaseDialog({ vhost, name, kind, messages, titleId, close }) {
  async function submit(form) {
    const text = form.get('count').trim();
    const { released } = await post(path`warren/queues/${vhost}/${name}/held/${kind}/release`, {
      count: text === '' ? null : Number(text),
    });
    tell(`${released} released into ${name}.`);
    return true;
  }
  return html`<${FormDialog} title="Release ${kind} messages of ${name}?" titleId=${titleId} action="Release" submit=${submit} close=${close}>
    <p>They become ready and are delivered at once.</p>
    <${Field} label="How many" name="count" type="number" min="1" max=${messages} hint="Empty: all ${messages}." />
  <//>`;
}

function Held({ vhost, name }) {
  const poll = usePoll(path`warren/queues/${vhost}/${name}/held`);
  const rows = HELD.filter(([kind]) => poll.data?.[kind]?.messages > 0);
  if (rows.length === 0) return null;
  async function release(kind, messages) {
    if (await openDialog(ReleaseDialog, { vhost, name, kind, messages })) poll.reload();
  }
  async function purge(kind, messages) {
    const done = await confirmAction({
      title: `Drop the ${kind} messages of ${name}?`,
      text: `This drops ${messages} messages that ${name} holds back. They cannot be restored.`,
      action: 'Drop messages',
      done: `The ${kind} messages of ${name} are dropped.`,
      run: () => del(path`warren/queues/${vhost}/${name}/held/${kind}`),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'kind', label: 'State', render: ([, label, why]) => html`<span title=${why}>${label}</span>` },
    { key: 'messages', label: 'Messages', num: true, render: ([kind]) => html`<${Num} value=${poll.data[kind].messages} />` },
    { key: 'bytes', label: 'Bytes', num: true, render: ([kind]) => html`<${Bytes} value=${poll.data[kind].bytes} />` },
    { key: 'due', label: 'Next due', num: true, render: ([kind]) => html`<${When} ms=${poll.data[kind].next_due_ms} />` },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: ([kind]) => html`<span class="row end">
        <a class="button small plain" href=${href(['queues', vhost, name], { tab: 'messages', state: kind })}>Browse</a>
        ${
          kind !== 'undelivered' &&
          html`<button type="button" class="small" onClick=${() => release(kind, poll.data[kind].messages)}>Release…</button>
        <button type="button" class="small danger" onClick=${() => purge(kind, poll.data[kind].messages)}>Drop…</button>`
        }</span>`,
    },
  ];
  return html`<${Card} title="Held back" wide>
    <${LocalTable} caption="Messages that are held back" columns=${columns} rows=${rows} rowKey=${([kind]) => kind} />
  <//>`;
}

function Deduplication({ vhost, name }) {
  const poll = usePoll(path`warren/queues/${vhost}/${name}/deduplication`);
  if (!poll.data?.enabled) return null;
  async function forget() {
    const done = await confirmAction({
      title: `Forget the keys of ${name}?`,
      text: `${poll.data.keys} keys are forgotten: messages that were duplicates until now are accepted again.`,
      action: 'Forget keys',
      done: `The keys of ${name} are forgotten.`,
      run: () => del(path`warren/queues/${vhost}/${name}/deduplication`),
    });
    if (done) poll.reload();
  }
  return html`<${Card} title="Duplicates" actions=${html`<button type="button" class="small danger" onClick=${forget}>Forget keys…</button>`}>
    <${Facts} facts=${[
      ['Keys remembered', html`<${Num} value=${poll.data.keys} />`],
      ['For', poll.data.window_ms ? html`<${Duration} ms=${poll.data.window_ms} />` : 'as long as there is room'],
      ['Header', html`<span class="mono">${poll.data.header}</span>`],
    ]} />
  <//>`;
}

export function QueueOverview({ queue }) {
  const { vhost, name } = queue;
  const owner = queue.owner_pid_details;
  return html`<div class="cards">
    <${Card}><${LengthChart} of=${queue} /><//>
    <${Card}><${RateChart} stats=${queue.message_stats} /><//>
    <${Held} vhost=${vhost} name=${name} />
    <${Card} title="Queue">
      <${Facts} facts=${[
        ['Type', queue.type ?? 'classic'],
        ['Vhost', vhost],
        ['Durable', queue.durable ? 'yes' : 'no'],
        ['Auto-delete', queue.auto_delete ? 'yes' : 'no'],
        ['Exclusive to', queue.exclusive && owner ? html`<${ConnectionLink} name=${owner.name} label=${owner.user_provided_name} />` : null],
        ['Policy', queue.policy ? html`<${PolicyLink} vhost=${vhost} name=${queue.policy} />` : 'none'],
        ['Operator policy', queue.operator_policy],
        ['Single active consumer', queue.single_active_consumer_tag],
        ['Idle since', queue.idle_since && html`<${Since} text=${queue.idle_since} />`],
        ['First offset', typeof queue.first_offset === 'number' ? html`<${Num} value=${queue.first_offset} />` : null],
        ['Next offset', typeof queue.next_offset === 'number' ? html`<${Num} value=${queue.next_offset} />` : null],
        ['Node', queue.node],
      ]} />
      <h3>Arguments</h3>
      <${Fields} values=${queue.arguments} />
      ${Object.keys(queue.effective_policy_definition ?? {}).length > 0 && html`<h3>From policies</h3><${Fields} values=${queue.effective_policy_definition} />`}
    <//>
    <${Card} title="Contents">
      <${Facts} facts=${[
        ['Ready', html`<${Num} value=${queue.messages_ready} /> ${bytesNote(queue.message_bytes_ready)}`],
        ['Unacked', html`<${Num} value=${queue.messages_unacknowledged} /> ${bytesNote(queue.message_bytes_unacknowledged)}`],
        ['Total', html`<${Num} value=${queue.messages} /> ${bytesNote(queue.message_bytes)}`],
        ['Persistent', html`<${Num} value=${queue.messages_persistent} /> ${bytesNote(queue.message_bytes_persistent)}`],
        ['In memory', html`<${Num} value=${queue.messages_ram} /> ${bytesNote(queue.message_bytes_ram)}`],
        ['Memory of the queue', html`<${Bytes} value=${queue.memory} />`],
        ['Consumers', html`<${Num} value=${queue.consumers} />`],
        ['Consumer capacity', typeof queue.consumer_capacity === 'number' ? `${Math.round(queue.consumer_capacity * 100)} %` : null],
        [
          'Oldest ready message',
          typeof queue.head_message_timestamp === 'number' ? html`<${When} ms=${queue.head_message_timestamp * 1000} />` : null,
        ],
      ]} />
    <//>
    <${Deduplication} vhost=${vhost} name=${name} />
    ${queue.incoming?.length > 0 && html`<${Card} title="Comes from"><${LocalTable} caption="Exchanges that messages came from" columns=${INCOMING} rows=${queue.incoming} rowKey=${(row) => row.exchange.name} /><//>`}
  </div>`;
}
