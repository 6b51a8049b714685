// How messages find their queues: the bindings of one vhost drawn, and where a given message would go.

import { path, post } from '../api.js';
import { formatNumber } from '../format.js';
import { ArgumentsEditor, Field, readArguments, useSubmit } from '../parts/forms.js';
import { Graph } from '../parts/graph.js';
import { buildGraph, edgeId, exchangeId, queueId, subgraph } from '../parts/graph_layout.js';
import { DestinationLink, ExchangeLink, exchangeLabel, QueueLink } from '../parts/links.js';
import { FilterInput } from '../parts/list.js';
import { Card, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { currentVhost, lastVhost, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useState } from '../ui.js';

const LARGEST = 300;
// A topology with more bindings is megabytes: it is fetched again only on request.
const FOLLOWED = 1000;

const COLUMNS = [
  { key: 'source', label: 'From', sort: 'source', render: (each) => html`<${ExchangeLink} vhost=${each.vhost} name=${each.source} />` },
  { key: 'key', label: 'Routing key', sort: 'routing_key', render: (each) => html`<span class="mono">${each.routing_key}</span>` },
  {
    key: 'destination',
    label: 'To',
    sort: 'destination',
    render: (each) => html`<${DestinationLink} of=${each} />`,
  },
  { key: 'type', label: 'Goes to a', sort: 'destination_type', render: (each) => each.destination_type },
  {
    key: 'arguments',
    label: 'Arguments',
    render: (each) => (Object.keys(each.arguments ?? {}).length ? html`<span class="mono">${JSON.stringify(each.arguments)}</span>` : ''),
  },
];

/** Nodes and edges of an answer of the route question. */
function hitsOf(answer) {
  const hits = new Set();
  for (const step of answer?.path ?? []) {
    const to = step.destination_type === 'queue' ? queueId(step.destination) : exchangeId(step.destination);
    const from = exchangeId(step.exchange);
    hits.add(from).add(to).add(edgeId(from, to));
  }
  return hits;
}

function RouteForm({ vhost, exchanges, answer, onAnswer }) {
  const [rows, setRows] = useState([]);
  const { onSubmit, busy, error } = useSubmit(async (form) => {
    const { exchange, key } = Object.fromEntries(new FormData(form));
    onAnswer(null);
    onAnswer(await post(path`warren/route/${vhost}`, { exchange, routing_key: key, headers: readArguments(rows) }));
  });
  return html`<${Card} title="Where would this message go?">
    <form class="form" onSubmit=${onSubmit} onReset=${() => {
      setRows([]);
      onAnswer(null);
    }}>
      <${Field} label="Exchange" name="exchange" list="route-exchanges" hint="Empty: the default exchange." defaultValue=${place.get().query.exchange ?? ''} />
      <datalist id="route-exchanges">${exchanges.map((exchange) => html`<option key=${exchange.name} value=${exchange.name} />`)}</datalist>
      <${Field} label="Routing key" name="key" />
      <details class="wide"><summary>Headers</summary><${ArgumentsEditor} legend="Headers" rows=${rows} onChange=${setRows} /></details>
      <p class="form-error" role="alert">${error}</p>
      <div class="row"><button type="submit" class="primary" disabled=${busy}>Show</button>${answer && html`<button type="reset" class="plain">Clear</button>`}</div>
    </form>
    <div role="status">
      ${
        answer &&
        (answer.unroutable
          ? html`<p class="warning-box">Nowhere: no queue would take it.</p>`
          : html`<p>It goes to ${formatNumber(answer.queues.length)} ${answer.queues.length === 1 ? 'queue' : 'queues'}${answer.subscribers.length > 0 ? `, and to ${formatNumber(answer.subscribers.length)} MQTT clients without one` : ''}:</p>
            <ul class="route">
              ${answer.queues.map((name) => html`<li key=${name}><${QueueLink} vhost=${vhost} name=${name} /></li>`)}
              ${answer.subscribers.map((destination) => html`<li key=${destination}><${DestinationLink} of=${{ vhost, destination, destination_type: 'subscriber' }} /></li>`)}
            </ul>
            <details><summary>Step by step</summary><ol>${(answer.path ?? []).map((step, at) => html`<li key=${at}>${exchangeLabel(step.exchange)} → ${step.destination_type} ${step.destination}${step.routing_key ? `, bound with ${step.routing_key}` : ''}</li>`)}</ol></details>`)
      }
    </div>
  <//>`;
}

function Views({ view }) {
  return html`<div class="segments" role="group" aria-label="Show bindings as">
    <button type="button" aria-pressed=${view === 'graph'} onClick=${() => setQuery({ view: null })}>Drawing</button>
    <button type="button" aria-pressed=${view === 'table'} onClick=${() => setQuery({ view: 'table' })}>Table</button>
  </div>`;
}

function Topology({ vhost, topology, query }) {
  const [answer, setAnswer] = useState(null);
  const view = query.view === 'table' ? 'table' : 'graph';
  const filter = (query.name ?? '').toLowerCase();
  let graph = buildGraph(topology);
  if (query.exchange) graph = subgraph(graph, (node) => node.id === exchangeId(query.exchange));
  if (filter) graph = subgraph(graph, (node) => node.name.toLowerCase().includes(filter));
  const bindings = topology.bindings
    .filter(
      (each) =>
        each.source !== '' &&
        graph.nodes.has(exchangeId(each.source)) &&
        graph.nodes.has(each.destination_type === 'queue' ? queueId(each.destination) : exchangeId(each.destination)),
    )
    .map((each) => ({ ...each, vhost }));
  return html`
    <${RouteForm} vhost=${vhost} exchanges=${topology.exchanges} answer=${answer} onAnswer=${setAnswer} />
    <div>
      <div class="toolbar">
        <${FilterInput} label="Filter by name" value=${query.name ?? ''} onFilter=${(name) => setQuery({ name })} />
        ${query.exchange && html`<button type="button" class="small" onClick=${() => setQuery({ exchange: null })}>Only around ${exchangeLabel(query.exchange)} ×</button>`}
        <span class="space"></span>
        <span class="hint" role="status">${formatNumber(graph.nodes.size)} exchanges and queues, ${formatNumber(bindings.length)} bindings</span>
        <${Views} view=${view} />
      </div>
      ${view === 'table' && html`<${LocalTable} caption="Bindings" columns=${COLUMNS} rows=${bindings} first=${{ by: 'source', descending: false }} empty="No binding." rowKey=${(each) => JSON.stringify([each.source, each.destination_type, each.destination, each.routing_key, each.arguments])} />`}
      ${view === 'graph' && graph.nodes.size === 0 && html`<p class="empty">${filter || query.exchange ? 'Nothing matches, or what matches has no binding.' : 'This vhost has no bindings but those of the default exchange.'}</p>`}
      ${view === 'graph' && graph.nodes.size > LARGEST && html`<p class="empty">${formatNumber(graph.nodes.size)} exchanges and queues are too many to draw. Filter by name to see at most ${LARGEST}, or look at the table.</p>`}
      ${view === 'graph' && graph.nodes.size > 0 && graph.nodes.size <= LARGEST && html`<${Graph} vhost=${vhost} graph=${graph} hits=${hitsOf(answer)} />`}
    </div>`;
}

export default function Routing() {
  const { query } = useStore(place);
  const vhosts = usePoll(query.vhost ? null : 'vhosts?columns=name');
  const vhost = currentVhost();
  // The drawing is of one vhost: without one in the address, the last one, or the first.
  useEffect(() => {
    const names = vhosts.data?.map((each) => each.name) ?? [];
    if (!vhost && names.length > 0) setQuery({ vhost: names.includes(lastVhost()) ? lastVhost() : names.includes('/') ? '/' : names[0] });
  }, [vhost, vhosts.data]);
  const [followed, setFollowed] = useState(true);
  const poll = usePoll(vhost ? path`warren/topology/${vhost}` : null, { repeat: followed });
  useEffect(() => {
    if (poll.data) setFollowed(poll.data.bindings.length <= FOLLOWED);
  }, [poll.data]);
  return html`<${Page} title=${vhost ? `Routing in ${vhost}` : 'Routing'}>
    ${pending(poll, 'There is no such vhost.') ?? html`<${Topology} key=${vhost} vhost=${vhost} topology=${poll.data} query=${query} />`}
  <//>`;
}
