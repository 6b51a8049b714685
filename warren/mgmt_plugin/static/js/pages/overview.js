// The broker at a glance.

import { post, withQuery } from '../api.js';
import { Bytes, Duration, formatBytes, formatFullRate, formatNumber, formatTime, Num, Rate } from '../format.js';
import { Attention } from '../parts/attention.js';
import { Chart, lineOf, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { confirmAction } from '../parts/dialog.js';
import { LengthChart, RateChart } from '../parts/message_rates.js';
import { Card, Mark, Meter, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { href, listHref, place, setQuery } from '../router.js';
import { mayAdminister, mayMonitor } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const COUNTS = [
  ['connections', 'Connections', ['connections']],
  ['channels', 'Channels', ['channels']],
  ['exchanges', 'Exchanges', ['exchanges']],
  ['queues', 'Queues', ['queues']],
  ['consumers', 'Consumers', ['consumers']],
];

const CHURN = [
  ['connection_created', 'Connections opened', '--blue'],
  ['connection_closed', 'Connections closed', '--amber'],
  ['channel_created', 'Channels opened', '--teal', true],
  ['channel_closed', 'Channels closed', '--violet', true],
  ['queue_created', 'Queues created', '--green'],
  ['queue_deleted', 'Queues deleted', '--red'],
  ['queue_declared', 'Queues declared', '--grey', true],
];

const NODE_COLUMNS = [
  { key: 'name', label: 'Name', sort: 'name', render: (node) => html`<a class="name" href=${href(['nodes', node.name])}>${node.name}</a>` },
  { key: 'memory', label: 'Memory', render: (node) => meter('Memory', node.mem_used, node.mem_limit, formatBytes) },
  {
    key: 'disk',
    label: 'Free disk',
    render: (node) =>
      html`<${Bytes} value=${node.disk_free} />${node.disk_free_limit > 0 && html`<br /><small>alarm below ${formatBytes(node.disk_free_limit)}</small>`}`,
  },
  { key: 'fds', label: 'File descriptors', render: (node) => meter('File descriptors', node.fd_used, node.fd_total, formatNumber) },
  { key: 'sockets', label: 'Sockets', render: (node) => meter('Sockets', node.sockets_used, node.sockets_total, formatNumber) },
  { key: 'uptime', label: 'Uptime', num: true, render: (node) => html`<${Duration} ms=${node.uptime} />` },
  {
    key: 'alarms',
    label: 'Alarms',
    render: (node) =>
      node.running === false
        ? html`<${Mark} text=${node.state ?? 'not running'} kind="bad" />`
        : node.role === 'follower'
        ? html`<${Mark} text=${node.state} kind=${node.in_sync ? 'good' : ''} />`
        : html`${node.replicas_alarm && html`<${Mark} text="too few nodes" kind="bad" />`} ${node.mem_alarm && html`<${Mark} text="memory" kind="bad" />`} ${node.disk_free_alarm && html`<${Mark} text="disk" kind="bad" />`}
      ${!node.mem_alarm && !node.disk_free_alarm && !node.replicas_alarm && html`<${Mark} text="none" kind="good" />`}`,
  },
];

function meter(label, value, total, format) {
  return value === undefined ? '–' : html`<${Meter} label=${label} value=${value} total=${total} format=${format} />`;
}

const LISTENER_COLUMNS = [
  { key: 'protocol', label: 'Protocol', sort: 'protocol', render: (listener) => listener.protocol },
  { key: 'address', label: 'Address', sort: 'ip_address', render: (listener) => html`<span class="mono">${listener.ip_address}</span>` },
  { key: 'port', label: 'Port', sort: 'port', num: true, render: (listener) => listener.port },
  { key: 'tls', label: 'TLS', render: (listener) => (listener.tls || /ssl|https|datas/.test(listener.protocol) ? 'yes' : 'no') },
];

function Counts({ overview }) {
  return html`<dl class="counts">
    ${COUNTS.map(
      ([key, label, target]) => html`<div key=${key}>
      <dt><a href=${listHref(target)}>${label}</a></dt>
      <dd><${Num} value=${overview.object_totals?.[key] ?? 0} /></dd>
    </div>`,
    )}
    <div><dt>Published</dt><dd><${Rate} value=${overview.message_stats?.publish_details?.rate ?? 0} /></dd></div>
    <div><dt>Delivered</dt><dd><${Rate} value=${overview.message_stats?.deliver_get_details?.rate ?? 0} /></dd></div>
  </dl>`;
}

function HeldLinks({ held, reload }) {
  const release = () =>
    confirmAction({
      title: 'Release links?',
      text: 'Shovels, federation links and tables begin to run. If the broker that they are from runs too, they take its messages and its tables.',
      action: 'Release links',
      done: 'The links are released.',
      run: () => post('warren/links/release', {}),
    }).then((done) => done && reload());
  return html`<${Card} title="Links are held" actions=${mayAdminister() && html`<button type="button" class="small" onClick=${release}>Release links…</button>`}>
    <p class="hint">Shovels, federation links and tables do not run, since ${formatTime(held.since_ms)}: ${held.reason}.</p>
  <//>`;
}

function Nodes() {
  const poll = usePoll('nodes');
  return html`<${Card} title="Nodes" wide>
    ${pending(poll) ?? html`<${LocalTable} caption="Nodes" columns=${NODE_COLUMNS} rows=${poll.data} rowKey=${(node) => node.name} />`}
  <//>`;
}

export default function Overview() {
  const { query } = useStore(place);
  const range = rangeOf(query);
  const vhost = query.vhost;
  const poll = usePoll(withQuery('overview', sampleQuery(range, ['lengths', 'msg_rates'])));
  const one = usePoll(vhost ? withQuery(`vhosts/${encodeURIComponent(vhost)}`, sampleQuery(range, ['lengths', 'msg_rates'])) : null);
  const overview = poll.data;
  // With a vhost chosen the charts are of that vhost; what is counted below is always of the whole broker.
  const charted = vhost ? one.data && { queue_totals: one.data, message_stats: one.data.message_stats } : overview;
  const churn = overview?.churn_rates;
  return html`<${Page} title="Overview" actions=${html`<${RangePicker} range=${range} onPick=${(s) => setQuery({ range: s })} />`}>
    ${
      pending(poll) ??
      html`<${Counts} overview=${overview} />
      ${vhost && html`<p class="hint">These counts are of the whole broker.</p>`}
      <div class="cards">
        ${overview.links_held && html`<${HeldLinks} held=${overview.links_held} reload=${poll.reload} />`}
        <${Attention} key=${`attention ${vhost}`} vhost=${vhost} />
        <div class="cards wide">
          <${Card}><${LengthChart} key=${vhost} of=${charted?.queue_totals} title=${vhost ? `Queued messages in ${vhost}` : 'Queued messages'} /><//>
          <${Card}><${RateChart} key=${vhost} stats=${charted?.message_stats} title=${vhost ? `Message rates in ${vhost}` : 'Message rates'} /><//>
        </div>
        ${mayMonitor() && html`<${Nodes} />`}
        <div class="cards wide">
        ${
          overview.listeners?.length > 0 &&
          html`<${Card} title="Listeners">
          <${LocalTable} caption="Listeners" columns=${LISTENER_COLUMNS} rows=${overview.listeners} rowKey=${(each) => `${each.protocol} ${each.ip_address} ${each.port}`} />
        <//>`
        }
        ${
          churn &&
          html`<${Card}><${Chart}
          title="Churn" format=${formatFullRate}
          lines=${CHURN.map(([key, label, colour, hidden]) => lineOf(churn[`${key}_details`], label, colour, { hidden }))}
        /><//>`
        }
        ${
          mayAdminister() &&
          html`<${Card} title="Definitions" actions=${html`<a class="button small" href=${listHref(['definitions'])}>Export or import</a>`}>
          <p class="hint">Vhosts, users, permissions, policies, exchanges, queues and bindings as one file. An import shows first what it would change.</p>
        <//>`
        }
        </div>
      </div>`
    }
  <//>`;
}
