// The message browser: what is in the queue, without taking anything out or changing an order.

import { path, withQuery } from '../api.js';
import { Duration, formatBytes, formatNumber, formatTime, When } from '../format.js';
import { Field } from '../parts/forms.js';
import { ChannelLink, exchangeLabel } from '../parts/links.js';
import { Card, Facts, Mark, Trouble } from '../parts/page.js';
import { Message } from '../parts/payload.js';
import { usePoll } from '../refresh.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const STATES = [
  ['ready', 'Ready'],
  ['unacked', 'Unacked'],
  ['delayed', 'Delayed'],
  ['parked', 'Parked'],
  ['undelivered', 'Undelivered dead letters'],
];
const COUNT = 50;
const TRUNCATE_BYTES = 65536;

function marksOf(item) {
  return html`<span class="marks">
    ${item.redelivered && html`<${Mark} text="redelivered" kind="warn" />`}
    ${item.persistent && html`<${Mark} text="persistent" />`}
    ${item.due_at_ms !== undefined && html`<${Mark} text=${html`<${When} ms=${item.due_at_ms} />`} kind="busy" />`}
    ${item.delivered_ms_ago !== undefined && html`<${Mark} text=${html`out for <${Duration} ms=${item.delivered_ms_ago} />`} kind="busy" />`}
    <span class="num hint">${formatBytes(item.payload_bytes)}</span>
  </span>`;
}

function factsOf(item) {
  return html`<${Facts} facts=${[
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
export function QueueMessages({ vhost, name }) {
  const { query } = useStore(place);
  const state = STATES.some(([id]) => id === query.state) ? query.state : 'ready';
  const offset = Number(query.offset) > 0 ? Number(query.offset) : 0;
  const filter = { routing_key: query.key, header: query.header, body: query.body };
  const poll = usePoll(
    withQuery(path`warren/queues/${vhost}/${name}/messages`, { state, offset, scan_from: query.scan, count: COUNT, truncate: TRUNCATE_BYTES, ...filter }),
    { repeat: false, about: JSON.stringify([vhost, name, state, filter]) },
  );
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
      <div class="messages" aria-busy=${poll.busy}>
        ${poll.data.items.length === 0 && html`<p class="empty">${filtered ? (poll.data.more ? 'No message matches so far.' : 'No message matches.') : `No message is ${state}.`}</p>`}
        ${poll.data.items.map((item) => html`<${Message} key=${`${state} ${item.sequence_number ?? item.position}`} item=${item} marks=${marksOf(item)} facts=${factsOf(item)} />`)}
      </div>
      <${Paging} answer=${poll.data} offset=${offset} filtered=${filtered} />`
    }
  <//>`;
}
