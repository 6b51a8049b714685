// Moving, copying and sending back messages inside the broker.

import { del, path, post } from '../api.js';
import { formatNumber, When } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { Field, Select, useSubmit } from '../parts/forms.js';
import { exchangeLabel } from '../parts/links.js';
import { NameField } from '../parts/name_field.js';
import { tell, warn } from '../parts/notice.js';
import { Card, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { html, useEffect, useState } from '../ui.js';

const PROGRESS_MS = 1000;
const MODES = [
  ['move', 'Move'],
  ['copy', 'Copy'],
];
const TARGETS = [
  ['queue', 'another queue'],
  ['exchange', 'an exchange'],
  ['origin', 'where they first came from'],
];

function destinationOf(target, form) {
  if (target === 'origin') return { origin: true };
  if (target === 'queue') return { queue: form.get('queue') };
  return { exchange: form.get('exchange'), routing_key: form.get('routing_key') || null };
}

function describe(destination) {
  if (destination.origin) return 'where they came from';
  if (destination.queue !== undefined) return `queue ${destination.queue}`;
  const key = destination.routing_key ?? null;
  return `exchange ${exchangeLabel(destination.exchange)}${key === null ? '' : `, key ${key}`}`;
}

function columns(reload) {
  async function stop(transfer) {
    const running = transfer.state === 'running';
    const run = () => del(path`warren/transfers/${transfer.vhost}/${transfer.id}`);
    try {
      if (!running) await run();
      else
        await confirmAction({
          title: `Stop this transfer from ${transfer.queue}?`,
          text: 'What was transferred stays where it is now; the rest stays here.',
          action: 'Stop transfer',
          done: 'The transfer is stopped.',
          run,
        });
    } catch (error) {
      warn(error.message);
    }
    reload();
  }
  return [
    { key: 'mode', label: 'What', render: (each) => `${each.mode} to ${describe(each.destination)}` },
    {
      key: 'state',
      label: 'State',
      sort: 'state',
      render: (each) => html`<${State} value=${each.state} />${each.error && html`<br /><small>${each.error}</small>`}`,
    },
    {
      key: 'progress',
      label: 'Progress',
      render: (
        each,
      ) => html`<div class="meter"><progress max=${Math.max(each.total ?? each.scanned, 1)} value=${each.scanned} aria-label="Progress" />
        <span>${formatNumber(each.transferred)} transferred <small>of ${formatNumber(each.scanned)} looked at</small></span></div>`,
    },
    { key: 'user', label: 'By', render: (each) => each.user },
    { key: 'started', label: 'Started', sort: 'started_at', num: true, render: (each) => html`<${When} ms=${each.started_at} />` },
    {
      key: 'stop',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (each) =>
        html`<button type="button" class="small ${each.state === 'running' ? 'danger' : 'plain'}" onClick=${() => stop(each)}>${each.state === 'running' ? 'Stop…' : 'Forget'}</button>`,
    },
  ];
}

/** Of a stream, which `stays`, messages are copied only. */
export function QueueTransfers({ vhost, name, stays }) {
  const poll = usePoll(path`warren/transfers/${vhost}`);
  const [target, setTarget] = useState('queue');
  const rows = (poll.data ?? []).filter((each) => each.queue === name);
  const running = rows.some((each) => each.state === 'running');
  // Progress is looked at more often than the rest of the page, and only while there is any.
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(poll.reload, PROGRESS_MS);
    return () => clearInterval(timer);
  }, [running, poll.reload]);

  const { onSubmit, busy, error } = useSubmit(async (sent) => {
    const form = new FormData(sent);
    const filter = Object.fromEntries(
      ['filter_routing_key', 'header', 'body'].map((key) => [key.replace('filter_', ''), form.get(key)]).filter(([, value]) => value),
    );
    const body = {
      mode: form.get('mode'),
      state: form.get('state'),
      destination: destinationOf(target, form),
      count: form.get('count') ? Number(form.get('count')) : null,
      rate: form.get('rate') ? Number(form.get('rate')) : null,
      filter,
    };
    const run = () => post(path`warren/queues/${vhost}/${name}/transfers`, body);
    if (body.mode === 'move') {
      const limits = Object.keys(filter).length
        ? 'The messages that match'
        : body.count
          ? `The first ${body.count} messages`
          : 'All messages';
      await confirmAction({
        title: `Move messages out of ${name}?`,
        text: `${limits} in state ${body.state} go to ${describe(body.destination)}.`,
        action: 'Move',
        danger: false,
        run,
        done: 'The transfer has begun.',
      });
    } else {
      await run();
      tell('The transfer has begun.');
    }
    poll.reload();
  });
  return html`<div class="stack">
    <${Card} title=${stays ? 'Copy messages' : 'Move or copy messages'}>
      <form class="form" onSubmit=${onSubmit}>
        <${Select} label="What to do" name="mode" options=${MODES.filter(([mode]) => !stays || mode === 'copy')} value=${stays ? 'copy' : 'move'} />
        <${Select} label="Which messages" name="state" options=${[
          ['ready', 'ready'],
          ['parked', 'parked'],
        ]} value="ready" />
        <${Select} label="To" value=${target} options=${TARGETS} onChange=${(event) => setTarget(event.target.value)} hint=${target === 'origin' ? 'For dead letters: the queue or exchange that x-death names.' : ''} />
        ${target === 'queue' && html`<${NameField} label="Queue" name="queue" required base=${path`queues/${vhost}`} />`}
        ${target === 'exchange' && html`<${NameField} label="Exchange" name="exchange" required base=${path`exchanges/${vhost}`} /><${Field} label="Routing key" name="routing_key" hint="Empty: the key of each message." />`}
        <${Field} label="At most" name="count" type="number" min="1" hint="Empty: all messages that are there now." />
        <${Field} label="Per second" name="rate" type="number" min="1" hint="Empty: as fast as possible." />
        <details class="wide">
          <summary>Only some of them</summary>
          <div class="form">
            <${Field} label="Routing key" name="filter_routing_key" />
            <${Field} label="Header" name="header" placeholder="name=value" />
            <${Field} label="Body contains" name="body" />
          </div>
        </details>
        <p class="form-error" role="alert">${error}</p>
        <div class="row"><button type="submit" class="primary" disabled=${busy}>Start</button></div>
      </form>
    <//>
    <${Card} title="Transfers from this queue">
      ${pending(poll) ?? html`<${LocalTable} caption="Transfers from this queue" columns=${columns(poll.reload)} rows=${rows} rowKey=${(each) => each.id} first=${{ by: 'started_at', descending: true }} empty="None so far." />`}
    <//>
  </div>`;
}
