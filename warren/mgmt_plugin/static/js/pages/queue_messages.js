// The message browser: what is in the queue, without taking anything out or changing an order.

import { get, path, post, withQuery } from '../api.js';
import { Duration, formatBytes, formatNumber, formatTime, When } from '../format.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { ChannelLink, exchangeLabel, QueueLink } from '../parts/links.js';
import { NameField } from '../parts/name_field.js';
import { tell, warn } from '../parts/notice.js';
import { Card, Facts, Mark, Trouble } from '../parts/page.js';
import { Message, timestampMs } from '../parts/payload.js';
import { usePoll } from '../refresh.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useState } from '../ui.js';

const STATES = [
  ['ready', 'Ready'],
  ['unacked', 'Unacked'],
  ['delayed', 'Delayed'],
  ['parked', 'Parked'],
  ['undelivered', 'Undelivered dead letters'],
];
const COUNT = 50;
const TRUNCATE_BYTES = 65536;

// States whose messages a transfer can take.
const TAKEN_FROM = new Set(['ready', 'parked']);
const PROGRESS_MS = 400;
// After so long a transfer is left to the tab that shows it.
const PATIENCE_MS = 10_000;

/** The latest death of a dead letter: {reason, queue, count, ms}; undefined of other messages. */
function deathOf(item) {
  const headers = item.properties?.headers ?? {};
  const [latest] = Array.isArray(headers['x-death']) ? headers['x-death'] : [];
  if (typeof latest?.reason !== 'string') return undefined;
  const ms = typeof latest.time === 'number' ? timestampMs(latest.time) : undefined;
  return { reason: latest.reason, queue: latest.queue, count: latest.count, ms };
}

/** When it was published, in ms: what the broker has kept, or what the publisher has said. */
function bornMs(item) {
  const stamp = item.properties?.timestamp;
  return item.published_at_ms ?? (typeof stamp === 'number' ? timestampMs(stamp) : undefined);
}

function cellsOf(item, withDeaths) {
  const death = deathOf(item);
  return html`<span class="cell age"><${When} ms=${death?.ms ?? bornMs(item) ?? item.arrived_by_ms} /></span>
    ${withDeaths && html`<span class="cell reason">${death ? html`<${Mark} text=${death.count > 1 ? `${death.reason} ${death.count}×` : death.reason} kind="bad" title=${`in ${death.queue}`} />` : html`<span class="none">–</span>`}</span>`}`;
}

const keyOf = (item) => `${item.lane ?? 0}/${item.sequence_number}`;
const placeOf = (item) => ({ sequence_number: item.sequence_number, lane: item.lane ?? 0 });
const messages = (count) => (count === 1 ? '1 message' : `${formatNumber(count)} messages`);

/** Begin a transfer, wait for its end if that comes soon, and say what became of it. */
async function transfer(vhost, name, order, done) {
  let state = await post(path`warren/queues/${vhost}/${name}/transfers`, order);
  const until = Date.now() + PATIENCE_MS;
  while (state.state === 'running' && Date.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, PROGRESS_MS));
    state = await get(path`warren/transfers/${vhost}/${state.id}`);
  }
  if (state.state === 'failed') throw new Error(state.error);
  if (state.state === 'running') tell('The transfer continues: the tab Move shows it.');
  else tell(`${done} ${formatNumber(state.transferred)} of ${formatNumber(state.total)}.`);
  if (state.unroutable > 0) warn(`Stay here, as no queue takes them: ${messages(state.unroutable)}.`);
}

function sendBack(vhost, name, state, count, order) {
  return confirmAction({
    title: `Send ${count} back?`,
    text: `Dead letters of ${name} go to the queue where each of them died first. Others stay here.`,
    detail: 'A message that fails again returns here.',
    action: 'Send back',
    danger: false,
    run: () => transfer(vhost, name, { mode: 'move', state, destination: { origin: true }, ...order }, 'Sent back'),
  });
}

function MoveDialog({ vhost, name, state, seen, count, mode, titleId, close }) {
  const verb = mode === 'copy' ? 'Copy' : 'Move';
  async function submit(form) {
    const order = { mode, state, destination: { queue: form.get('queue') }, ...seen };
    await transfer(vhost, name, order, mode === 'copy' ? 'Copied' : 'Moved');
    return true;
  }
  return html`<${FormDialog} title="${verb} ${messages(count)}" titleId=${titleId} action=${verb} submit=${submit} close=${close}>
    <${NameField} label="To queue" name="queue" required base=${path`queues/${vhost}`} />
  <//>`;
}

function marksOf(item) {
  return html`<span class="marks">
    ${item.redelivered && html`<${Mark} text="redelivered" kind="warn" />`}
    ${item.persistent && html`<${Mark} text="persistent" />`}
    ${item.due_at_ms !== undefined && html`<${Mark} text=${html`<${When} ms=${item.due_at_ms} />`} kind="busy" />`}
    ${item.delivered_ms_ago !== undefined && html`<${Mark} text=${html`out for <${Duration} ms=${item.delivered_ms_ago} />`} kind="busy" />`}
    <span class="num hint">${formatBytes(item.payload_bytes)}</span>
  </span>`;
}

function factsOf(item, vhost) {
  const death = deathOf(item);
  const born = bornMs(item);
  return html`<${Facts} facts=${[
    ['Published', born === undefined ? null : html`${formatTime(born)} <small><${When} ms=${born} /></small>`],
    ['Arrived', item.arrived_by_ms === undefined ? null : html`by ${formatTime(item.arrived_by_ms)} <small><${When} ms=${item.arrived_by_ms} /></small>`],
    ['Died', death?.ms === undefined ? null : html`${formatTime(death.ms)} <small><${When} ms=${death.ms} /></small>`],
    ['Reason', death && (death.count > 1 ? `${death.reason}, ${death.count} times` : death.reason)],
    ['Died in', typeof death?.queue === 'string' ? html`<${QueueLink} vhost=${vhost} name=${death.queue} />` : null],
    ['Exchange', exchangeLabel(item.exchange)],
    ['Routing key', item.routing_key || '(empty)'],
    ['Sequence number', item.sequence_number],
    ['Due', item.due_at_ms === undefined ? null : formatTime(item.due_at_ms)],
    ['Channel', item.channel && html`<${ChannelLink} name=${item.channel} />`],
    ['Consumer tag', item.consumer_tag],
    ['Delivery tag', item.delivery_tag],
  ]} />`;
}

function Paging({ answer, offset, filtered }) {
  const turn = (next) => setQuery({ offset: next > 0 ? next : null });
  // One request looks at a limited number of messages: later ones may pass the filter as well.
  const stopped = filtered && answer.more && answer.items.length < COUNT;
  const until = offset + answer.items.length;
  return html`<nav class="pager" aria-label="Pages of messages">
    <span role="status">${answer.items.length === 0 ? 'No message' : `${formatNumber(offset + 1)}–${formatNumber(until)}`} of ${formatNumber(answer.total)}${
      filtered ? `, ${formatNumber(answer.scan_to)} looked at` : ''
    }</span>
    <span class="row">
      <button type="button" class="small" disabled=${offset === 0} onClick=${() => turn(offset - COUNT)}>Previous</button>
      ${
        stopped
          ? html`<button type="button" class="small" onClick=${() => setQuery({ scan: answer.scan_to, offset: null })}>Look further</button>`
          : html`<button type="button" class="small" disabled=${!answer.more} onClick=${() => turn(offset + COUNT)}>Next</button>`
      }
    </span>
  </nav>`;
}

/** Nothing refreshes by itself here: a list that is read should hold still, and looking at many messages costs the broker. */
export function QueueMessages({ vhost, name, stays = false, takes = true }) {
  const { query } = useStore(place);
  const state = STATES.some(([id]) => id === query.state) ? query.state : 'ready';
  const offset = Number(query.offset) > 0 ? Number(query.offset) : 0;
  const filter = { routing_key: query.key, header: query.header, body: query.body };
  const poll = usePoll(
    withQuery(path`warren/queues/${vhost}/${name}/messages`, { state, offset, scan_from: query.scan, count: COUNT, truncate: TRUNCATE_BYTES, ...filter }),
    { repeat: false, about: JSON.stringify([vhost, name, state, filter]) },
  );
  const [selected, setSelected] = useState(new Set());
  const items = poll.data?.items ?? [];
  // Another queue of this name has other messages with these numbers.
  const queueId = poll.data?.queue_id;
  useEffect(() => setSelected(new Set()), [vhost, name, state, offset, JSON.stringify(filter), queueId]);
  const selectable = takes && TAKEN_FROM.has(state);
  const picked = selectable ? items.filter((item) => selected.has(keyOf(item))) : [];
  const withDeaths = items.some(deathOf);
  const mode = stays ? 'copy' : 'move';
  async function act(asked) {
    if (!(await asked)) return;
    setSelected(new Set());
    poll.reload();
  }
  const seen = () => ({ messages: picked.map(placeOf), queue_id: queueId });
  const sendAll = () => act(sendBack(vhost, name, state, filtered ? 'all that match' : 'all', { queue_id: queueId, filter: { routing_key: query.key ?? '', header: query.header ?? '', body: query.body ?? '' } }));
  const sendPicked = () => act(sendBack(vhost, name, state, messages(picked.length), seen()));
  const movePicked = () => act(openDialog(MoveDialog, { vhost, name, state, seen: seen(), count: picked.length, mode }));
  function toggle(item) {
    const next = new Set(selected);
    if (!next.delete(keyOf(item))) next.add(keyOf(item));
    setSelected(next);
  }
  const allPicked = items.length > 0 && picked.length === items.length;
  function onFilter(event) {
    event.preventDefault();
    const { key, header, body } = Object.fromEntries(new FormData(event.target));
    setQuery({ key, header, body, offset: null, scan: null });
  }
  const filtered = Object.values(filter).some(Boolean);
  const clear = () => setQuery({ key: null, header: null, body: null, offset: null, scan: null });
  return html`<${Card}>
    <div class="toolbar">
      <div class="segments" role="group" aria-label="State of messages">
        ${STATES.map(([id, label]) => html`<button key=${id} type="button" aria-pressed=${id === state} onClick=${() => setQuery({ state: id === 'ready' ? null : id, offset: null, scan: null })}>${label}</button>`)}
      </div>
      <button type="button" class="small" onClick=${poll.reload}>Look again</button>
      ${selectable && !stays && withDeaths && html`<button type="button" class="small primary" onClick=${sendAll}>Send back…</button>`}
      <span class="hint">Looking takes nothing out of the queue.</span>
    </div>
    <form class="form" onSubmit=${onFilter} key=${JSON.stringify(filter)}>
      <${Field} label="Routing key" name="key" defaultValue=${query.key ?? ''} />
      <${Field} label="Header" name="header" placeholder="name=value" defaultValue=${query.header ?? ''} />
      <${Field} label="Body contains" name="body" defaultValue=${query.body ?? ''} />
      <div class="row">
        <button type="submit" class="small">Filter</button>
        ${filtered && html`<button type="button" class="small plain" onClick=${clear}>Show all</button>`}
      </div>
    </form>
    ${poll.error && !poll.data && html`<${Trouble} error=${poll.error} />`}
    ${!poll.data && !poll.error && html`<p class="loading" role="status">Loading…</p>`}
    ${
      poll.data &&
      html`
      ${
        picked.length > 0 &&
        html`<div class="picked" role="group" aria-label="With the selected messages"><b>${picked.length} selected</b>
        ${!stays && picked.every(deathOf) && html`<button type="button" class="small" onClick=${sendPicked}>Send back…</button>`}
        <button type="button" class="small" onClick=${movePicked}>${stays ? 'Copy…' : 'Move…'}</button>
        <button type="button" class="small plain" onClick=${() => setSelected(new Set())}>Select none</button></div>`
      }
      ${
        items.length > 0 &&
        html`<div class="message-head">
        ${selectable && html`<input type="checkbox" aria-label="Select all messages of this page" checked=${allPicked} onChange=${() => setSelected(new Set(allPicked ? [] : items.map(keyOf)))} />`}
        <span class="cell age">${withDeaths ? 'Died' : 'Age'}</span>${withDeaths && html`<span class="cell reason">Reason</span>`}<span>Key and body</span></div>`
      }
      <div class="messages" aria-busy=${poll.busy}>
        ${poll.data.items.length === 0 && html`<p class="empty">${filtered ? (poll.data.more ? 'No message matches so far.' : 'No message matches.') : `No message is ${state}.`}</p>`}
        ${items.map(
          (item) => html`<div class="message-row" key=${`${state} ${item.lane} ${item.sequence_number ?? item.position}`}>
          ${selectable && html`<input type="checkbox" aria-label="Select message ${formatNumber(item.position)}" checked=${selected.has(keyOf(item))} onChange=${() => toggle(item)} />`}
          <${Message} item=${item} cells=${cellsOf(item, withDeaths)} marks=${marksOf(item)} facts=${factsOf(item, vhost)} />
        </div>`,
        )}
      </div>
      <${Paging} answer=${poll.data} offset=${offset} filtered=${filtered} />`
    }
  <//>`;
}
