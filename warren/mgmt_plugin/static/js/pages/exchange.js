// One exchange.

import { del, path, withQuery } from '../api.js';
import { OBJECT_RANGES, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { AddBinding, BindingsTable } from '../parts/bindings.js';
import { confirmAction } from '../parts/dialog.js';
import { exchangeLabel, Features, PolicyLink, QueueLink } from '../parts/links.js';
import { RateChart } from '../parts/message_rates.js';
import { Card, currentTab, Facts, Fields, Page, pending, Tabs } from '../parts/page.js';
import { PublishForm } from '../parts/publish_form.js';
import { deleteSuperStream, isSuperStream, Partitions } from '../parts/super_streams.js';
import { LocalTable } from '../parts/table.js';
import { formatNumber, Rate } from '../format.js';
import { usePoll } from '../refresh.js';
import { href, listHref, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const OUTGOING = [
  { key: 'queue', label: 'Queue', render: (row) => html`<${QueueLink} vhost=${row.queue.vhost} name=${row.queue.name} />` },
  { key: 'publish', label: 'Rate', num: true, render: (row) => html`<${Rate} value=${row.stats?.publish_details?.rate} />` },
];

function Summary({ exchange, name }) {
  return html`<div class="cards">
    <${Card}><${RateChart} stats=${exchange.message_stats} /><//>
    <${Card} title="Exchange">
      <${Facts} facts=${[
        ['Type', exchange.type],
        ['Vhost', exchange.vhost],
        ['Durable', exchange.durable ? 'yes' : 'no'],
        ['Auto-delete', exchange.auto_delete ? 'yes' : 'no'],
        ['Internal', exchange.internal ? 'yes' : 'no'],
        ['Policy', exchange.policy && html`<${PolicyLink} vhost=${exchange.vhost} name=${exchange.policy} />`],
        ['Arguments', html`<${Fields} values=${exchange.arguments} />`],
      ]} />
      ${name === 'amq.default' && html`<p class="hint">The default exchange routes to the queue whose name is the routing key. It cannot be bound or deleted.</p>`}
    <//>
    ${exchange.outgoing?.length > 0 && html`<${Card} title="Routes to"><${LocalTable} caption="Queues that messages went to" columns=${OUTGOING} rows=${exchange.outgoing} rowKey=${(row) => row.queue.name} /><//>`}
  </div>`;
}

function Bindings({ vhost, name, outgoing, incoming }) {
  const reload = () => {
    outgoing.reload();
    incoming.reload();
  };
  const isDefault = name === 'amq.default';
  return html`<div class="stack">
    ${outgoing.data && html`<${Card} title="From this exchange"><${BindingsTable} caption="Bindings from this exchange" rows=${outgoing.data} side="destination" reload=${reload} empty="Nothing is bound to this exchange." /><//>`}
    ${!isDefault && incoming.data && html`<${Card} title="To this exchange"><${BindingsTable} caption="Bindings to this exchange" rows=${incoming.data} side="source" reload=${reload} empty="No exchange is bound to it." /><//>`}
    ${!isDefault && html`<${AddBinding} vhost=${vhost} exchange=${name} reload=${reload} />`}
  </div>`;
}

export default function Exchange({ vhost, name }) {
  const { query } = useStore(place);
  const range = rangeOf(query, OBJECT_RANGES);
  const poll = usePoll(withQuery(path`exchanges/${vhost}/${name}`, sampleQuery(range, ['msg_rates'])));
  // There may be thousands: they are followed only where they are shown.
  const repeat = query.tab === 'bindings';
  const outgoing = usePoll(path`exchanges/${vhost}/${name}/bindings/source`, { repeat });
  const incoming = usePoll(path`exchanges/${vhost}/${name}/bindings/destination`, { repeat });
  const title = exchangeLabel(name);
  const tabs = [
    { id: 'overview', label: 'Overview' },
    {
      id: 'bindings',
      label: 'Bindings',
      count: outgoing.data && incoming.data ? formatNumber(outgoing.data.length + (name === 'amq.default' ? 0 : incoming.data.length)) : undefined,
    },
    ...(isSuperStream(poll.data) ? [{ id: 'partitions', label: 'Partitions' }] : []),
    { id: 'publish', label: 'Publish' },
  ];
  const tab = currentTab(tabs, query);
  const own = !name.startsWith('amq.');
  async function remove() {
    const done = await confirmAction({
      title: `Delete exchange ${name}?`,
      text: `This deletes the exchange ${name} of vhost ${vhost} and its bindings. Queues and their messages stay.`,
      action: 'Delete exchange',
      done: `Exchange ${name} is deleted.`,
      run: () => del(path`exchanges/${vhost}/${name}`),
    });
    if (done) window.location.hash = listHref(['exchanges']);
  }
  async function removeAll() {
    if (await deleteSuperStream(vhost, name)) window.location.hash = listHref(['super-streams']);
  }
  return html`<${Page}
    title=${title} crumbs=${[
      ['Exchanges', listHref(['exchanges'])],
      [`vhost ${vhost}`, href(['exchanges'], { vhost })],
    ]}
    marks=${poll.data && html`<span class="hint">${poll.data.type}</span><${Features} of=${poll.data} />`}
    actions=${html`
      ${tab === 'overview' && html`<${RangePicker} offered=${OBJECT_RANGES} range=${range} onPick=${(s) => setQuery({ range: s })} />`}
      <a class="button" href=${href(['routing'], { vhost, exchange: name })}>Show in routing</a>
      ${isSuperStream(poll.data) && html`<button type="button" class="danger" onClick=${removeAll}>Delete with partitions…</button>`}
      ${own && html`<button type="button" class="danger" onClick=${remove}>Delete…</button>`}`}
  >
    ${
      pending(poll, 'There is no such exchange.') ??
      html`<${Tabs} tabs=${tabs} />
      ${tab === 'overview' && html`<${Summary} exchange=${poll.data} name=${name} />`}
      ${tab === 'bindings' && html`<${Bindings} vhost=${vhost} name=${name} outgoing=${outgoing} incoming=${incoming} />`}
      ${tab === 'partitions' && html`<${Partitions} vhost=${vhost} name=${name} />`}
      ${tab === 'publish' && html`<${PublishForm} vhost=${vhost} exchange=${name} reload=${poll.reload} />`}`
    }
  <//>`;
}
