// One node: what it uses, what it listens on, and how its reactor fares.

import { adviceOn } from '../alerts.js';
import { path, withQuery } from '../api.js';
import { Bytes, Duration, formatBytes, formatCount, formatNumber, Num, When } from '../format.js';
import { Chart, lineOf, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { Card, Facts, Fields, Mark, Meter, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { listHref, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';
import { Percentiles } from './store.js';

// The broker's parts of its memory that are not empty, under RabbitMQ's names in the API.
const MEMORY_NAMES = {
  connection_readers: ['Messages received in part', 'Of clients that are still sending them.'],
  connection_writers: ['Waiting to be sent', 'Until clients read it.'],
  queue_procs: ['Classic queues', 'With the messages that they hold in memory.'],
  quorum_queue_procs: ['Quorum queues', 'With the messages that they hold in memory.'],
  stream_queue_procs: ['Streams', 'With the messages that they hold in memory.'],
  code: ['Program', 'Python, the engine and its libraries as they were at the start, before anything was restored.'],
  mgmt_db: ['Statistics', 'The past of totals, queues, connections and others, for charts.'],
  other_system: ['Connections and the rest', 'Connections, channels, bindings, indexes of messages, and freed memory that is kept for reuse.'],
};
const MEMORY = [
  {
    key: 'name',
    label: 'Part',
    sort: 'name',
    render: (row) => html`${row.name}${row.text && html`<br /><small>${row.text}</small>`}`,
  },
  { key: 'bytes', label: 'Bytes', sort: 'bytes', num: true, render: (row) => html`<${Bytes} value=${row.bytes} />` },
  { key: 'share', label: 'Share', sort: 'bytes', num: true, render: (row) => `${formatNumber(row.percent)} %` },
];
const APPLICATIONS = [
  { key: 'name', label: 'Name', sort: 'name', render: (row) => row.name },
  { key: 'version', label: 'Version', render: (row) => row.version },
  { key: 'description', label: 'Description', long: true, render: (row) => row.description },
];

const list = (value) => (Array.isArray(value) ? value.join(', ') : value);

function Memory({ name }) {
  const poll = usePoll(path`nodes/${name}/memory`);
  const parts = poll.data?.memory;
  if (!parts || typeof parts !== 'object') return null;
  const found = Object.entries(parts).filter(([, bytes]) => typeof bytes === 'number' && bytes > 0);
  const whole = found.reduce((sum, [, bytes]) => sum + bytes, 0);
  const rows = found.map(([part, bytes]) => {
    const [name, text] = MEMORY_NAMES[part] ?? [part.replaceAll('_', ' ')];
    return { name, text, bytes, percent: Math.round((10_000 * bytes) / whole) / 100 };
  });
  return html`<${Card} title="What takes the memory"><p class="hint">${formatBytes(whole)} of resident memory in all.</p><${LocalTable} caption="Memory by part" columns=${MEMORY} rows=${rows} rowKey=${(row) => row.name} first=${{ by: 'bytes', descending: true }} /><//>`;
}

function Reactor() {
  const poll = usePoll('warren/reactor');
  const reactor = poll.data;
  if (!reactor) return null;
  return html`<${Card} title="Reactor">
    <p class="hint">One turn handles everything that is ready at once; a long turn holds up every connection.</p>
    <${Percentiles} of=${reactor.turn_ms} />
    <${Facts} facts=${[
      ['Turns', html`<${Num} value=${reactor.turns} />`],
      ['Connections', html`<${Num} value=${reactor.connections} />`],
      ['Connections that crashed', html`<${Num} value=${reactor.crashes} />`],
    ]} />
  <//>`;
}

/** Another node of the cluster: what its leader knows of it. Its resources are its own to tell. */
function Follower({ node }) {
  return html`<${Card} title="As its leader sees it">
    <${Facts} facts=${[
      ['State', html`<${State} value=${node.state} />`],
      ['In sync', node.in_sync ? 'yes' : 'no'],
      ['Behind', node.lag_bytes === null ? null : html`<${Bytes} value=${node.lag_bytes} />`],
      ['Gone', node.gone_since_ms && html`<${When} ms=${node.gone_since_ms} />`],
      ['Address', node.address],
      ['Version', node.version],
    ]} />
    <p class="hint">${adviceOn(node)} Its memory, disk and settings are in its own metrics, at its own address.</p>
  <//>`;
}

export default function Node({ name }) {
  const { query } = useStore(place);
  const range = rangeOf(query);
  const poll = usePoll(withQuery(path`nodes/${name}`, sampleQuery(range, ['node_stats'])));
  const node = poll.data;
  const alarms = node && [node.mem_alarm && 'memory', node.disk_free_alarm && 'disk'].filter(Boolean);
  return html`<${Page} title=${name} crumbs=${[['Overview', listHref([])]]} marks=${alarms?.map((alarm) => html`<${Mark} key=${alarm} text="${alarm} alarm" kind="bad" />`)}
    actions=${html`<${RangePicker} range=${range} onPick=${(s) => setQuery({ range: s })} />`}>
    ${
      pending(poll, 'There is no such node.') ??
      (node.role === 'follower' ? html`<${Follower} node=${node} />` : undefined) ??
      html`<div class="cards">
      ${node.mem_used_details?.samples && html`<${Card}><${Chart} title="Memory" format=${formatBytes} lines=${[lineOf(node.mem_used_details, 'Used', '--blue', { kind: 'level', value: node.mem_used })]} /><//>`}
      ${node.disk_free_details?.samples && html`<${Card}><${Chart} title="Free disk" format=${formatBytes} lines=${[lineOf(node.disk_free_details, 'Free', '--green', { kind: 'level', value: node.disk_free })]} /><//>`}
      ${
        node.fd_used_details?.samples &&
        html`<${Card}><${Chart} title="File descriptors and sockets" format=${formatCount} lines=${[
          lineOf(node.fd_used_details, 'File descriptors', '--blue', { kind: 'level', value: node.fd_used }),
          lineOf(node.sockets_used_details, 'Sockets', '--amber', { kind: 'level', value: node.sockets_used }),
        ]} /><//>`
      }
      <${Card} title="Resources">
        <${Facts} facts=${[
          ['Memory', html`<${Meter} label="Memory" value=${node.mem_used} total=${node.mem_limit} format=${formatBytes} />`],
          ['Free disk', html`<${Bytes} value=${node.disk_free} /> <small>alarm below ${formatBytes(node.disk_free_limit)}</small>`],
          [
            'File descriptors',
            node.fd_total === undefined
              ? null
              : html`<${Meter} label="File descriptors" value=${node.fd_used} total=${node.fd_total} format=${formatNumber} />`,
          ],
          [
            'Sockets',
            node.sockets_total === undefined
              ? null
              : html`<${Meter} label="Sockets" value=${node.sockets_used} total=${node.sockets_total} format=${formatNumber} />`,
          ],
          ['Uptime', html`<${Duration} ms=${node.uptime} />`],
          ['Process', node.os_pid],
          ['Processors', node.processors],
          ['Statistics', node.rates_mode],
        ]} />
      <//>
      <${Reactor} />
      <${Memory} name=${name} />
      <${Card} title="Files">
        <${Facts} facts=${[
          ['Data', html`<span class="mono">${node.db_dir}</span>`],
          ['Configuration', node.config_files?.length > 0 ? html`<span class="mono">${list(node.config_files)}</span>` : 'no file'],
          ['Logs', html`<span class="mono">${list(node.log_files)}</span>`],
          ['Plugins', list(node.enabled_plugins)],
          [
            'Ways to log in',
            (node.auth_mechanisms ?? [])
              .filter((each) => each.enabled)
              .map((each) => each.name)
              .join(', '),
          ],
        ]} />
        ${node.contexts?.length > 0 && html`<h3>HTTP</h3>${node.contexts.map((context) => html`<${Fields} key=${`${context.description}${context.port}`} values=${{ [context.description]: `port ${context.port}, ${context.path}` }} />`)}`}
      <//>
      ${
        node.applications?.length > 0 &&
        html`<${Card} wide><details><summary>Software <span class="count">${node.applications.length}</span></summary><${LocalTable} caption="Software" columns=${APPLICATIONS} rows=${node.applications} rowKey=${(row) => row.name} /></details><//>`
      }
    </div>`
    }
  <//>`;
}
