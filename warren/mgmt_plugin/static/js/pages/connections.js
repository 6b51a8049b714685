// All connections.

import { path } from '../api.js';
import { Bytes, Num, Rate, When } from '../format.js';
import { closeConnections } from '../parts/close_connections.js';
import { ConnectionLink, ConnectionUser, connectionTitle } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { Mark, Page, State } from '../parts/page.js';
import { currentVhost, place } from '../router.js';
import { mayAdminister } from '../session.js';
import { useStore } from '../store.js';
import { html, useEffect, useState } from '../ui.js';

const client = (connection) => {
  const { product, version, platform } = connection.client_properties ?? {};
  return [product, version, platform && `(${platform})`].filter(Boolean).join(' ');
};

export const CONNECTION_COLUMNS = [
  {
    key: 'name',
    label: 'Name',
    sort: 'user_provided_name',
    fixed: true,
    render: (each) => {
      const title = connectionTitle(each);
      return html`<${ConnectionLink} name=${each.name} label=${title} />${title !== each.name && html`<br /><small>${each.name}</small>`}`;
    },
  },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'user', label: 'User', sort: 'user', render: (each) => html`<${ConnectionUser} of=${each} linked=${mayAdminister()} />` },
  { key: 'state', label: 'State', sort: 'state', render: (each) => html`<${State} value=${each.state} />` },
  {
    key: 'tls',
    label: 'TLS',
    sort: 'ssl',
    render: (each) => (each.ssl ? html`<${Mark} text="TLS" kind="good" title=${each.ssl_protocol} />` : html`<span class="none">no</span>`),
  },
  { key: 'protocol', label: 'Protocol', sort: 'protocol', hidden: true, render: (each) => each.protocol },
  { key: 'channels', label: 'Channels', sort: 'channels', num: true, render: (each) => html`<${Num} value=${each.channels} />` },
  {
    key: 'recv',
    label: 'From client',
    sort: 'recv_oct_details.rate',
    num: true,
    render: (each) => html`<${Rate} value=${each.recv_oct_details?.rate} bytes />`,
  },
  {
    key: 'send',
    label: 'To client',
    sort: 'send_oct_details.rate',
    num: true,
    render: (each) => html`<${Rate} value=${each.send_oct_details?.rate} bytes />`,
  },
  {
    key: 'recv_total',
    label: 'Received',
    sort: 'recv_oct',
    num: true,
    hidden: true,
    render: (each) => html`<${Bytes} value=${each.recv_oct} />`,
  },
  {
    key: 'send_total',
    label: 'Sent',
    sort: 'send_oct',
    num: true,
    hidden: true,
    render: (each) => html`<${Bytes} value=${each.send_oct} />`,
  },
  { key: 'client', label: 'Client', hidden: true, render: client },
  { key: 'auth', label: 'Authentication', sort: 'auth_mechanism', hidden: true, render: (each) => each.auth_mechanism ?? '–' },
  { key: 'frame', label: 'Largest frame', sort: 'frame_max', num: true, hidden: true, render: (each) => html`<${Bytes} value=${each.frame_max} />` },
  {
    key: 'heartbeat',
    label: 'Heartbeat',
    sort: 'timeout',
    num: true,
    hidden: true,
    render: (each) => (each.timeout === undefined ? '–' : `${each.timeout} s`),
  },
  { key: 'connected', label: 'Connected', sort: 'connected_at', num: true, render: (each) => html`<${When} ms=${each.connected_at} />` },
];

export default function Connections() {
  useStore(place);
  const vhost = currentVhost();
  const [selected, setSelected] = useState(new Set());
  useEffect(() => setSelected(new Set()), [vhost]);
  async function closeAll(connections, reload) {
    if (!(await closeConnections(connections.map((each) => each.name), connectionTitle(connections[0])))) return;
    setSelected(new Set());
    reload();
  }
  const actions = (connections, reload) => html`
    <button type="button" class="small danger" onClick=${() => closeAll(connections, reload)}>Close…</button>
    <button type="button" class="small plain" onClick=${() => setSelected(new Set())}>Select none</button>`;
  return html`<${Page} title="Connections">
    <${PagedList}
      id="connections" caption="Connections" base=${vhost ? path`vhosts/${vhost}/connections` : 'connections'} columns=${CONNECTION_COLUMNS}
      rowKey=${(each) => each.name} firstSort=${{ by: 'user_provided_name', descending: false }} empty="There is no connection."
      selection=${{ selected, onSelect: setSelected, actions }}
    />
  <//>`;
}
