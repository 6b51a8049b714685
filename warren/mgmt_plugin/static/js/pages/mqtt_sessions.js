// MQTT sessions: of clients that are connected, and those that wait for clients that are away.

import { del, path } from '../api.js';
import { Duration, Num } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { ConnectionLink } from '../parts/links.js';
import { PagedList } from '../parts/list.js';
import { Mark, Page } from '../parts/page.js';
import { currentVhost, href, place } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

/** Ask and end a session; true when it is over. */
export function endSession({ vhost, client_id: client, connected }) {
  return confirmAction({
    title: `End the session of ${client}?`,
    text: connected
      ? 'This disconnects the client, and deletes its subscriptions and the messages that wait for it. It may connect again.'
      : 'This deletes its subscriptions and the messages that wait for it. The client starts from scratch when it connects again.',
    action: 'End session',
    done: `The session of ${client} is over.`,
    run: () => del(path`warren/mqtt-sessions/${vhost}/${client}`),
  });
}

export const SessionState = ({ of: each }) =>
  each.connected ? html`<${Mark} text="connected" kind="good" />` : html`<${Mark} text="away" title="The client is not connected; its session waits for it." kind="busy" />`;

export function Expiry({ of: each }) {
  if (each.expiry_s === 0) return 'ends with the connection';
  return each.expiry_s === null ? '–' : html`<${Duration} ms=${each.expiry_s * 1000} />`;
}

const columns = (end) => [
  {
    key: 'client_id',
    label: 'Client id',
    sort: 'client_id',
    fixed: true,
    render: (each) => html`<a class="name" href=${href(['mqtt-sessions', each.vhost, each.client_id])}>${each.client_id}</a>`,
  },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'state', label: 'Client', sort: 'connected', render: (each) => html`<${SessionState} of=${each} />` },
  {
    key: 'connection',
    label: 'Connection',
    render: (each) =>
      each.connection_details
        ? html`<${ConnectionLink} name=${each.connection_details.name} label=${each.connection_details.name} /> <small>${each.protocol}</small>`
        : '–',
  },
  { key: 'user', label: 'User', sort: 'user', render: (each) => each.user ?? '–' },
  { key: 'expiry', label: 'Kept for', sort: 'expiry_s', render: (each) => html`<${Expiry} of=${each} />` },
  { key: 'ready', label: 'Waiting', sort: 'messages_ready', num: true, render: (each) => html`<${Num} value=${each.messages_ready} />` },
  { key: 'unacked', label: 'Unacked', sort: 'messages_unacknowledged', num: true, render: (each) => html`<${Num} value=${each.messages_unacknowledged} />` },
  {
    key: 'act',
    label: html`<span class="unseen">Actions</span>`,
    num: true,
    fixed: true,
    render: (each) => html`<span class="row end"><button type="button" class="small danger" onClick=${() => end(each)}>End…</button></span>`,
  },
];

export default function MqttSessions() {
  useStore(place);
  const vhost = currentVhost();
  let reload = () => {};
  const end = async (each) => (await endSession(each)) && reload();
  return html`<${Page} title="MQTT sessions">
    <${PagedList}
      id="mqtt_sessions" caption="MQTT sessions" base=${vhost ? path`warren/mqtt-sessions/${vhost}` : 'warren/mqtt-sessions'} columns=${columns(end)}
      rowKey=${(each) => `${each.vhost}/${each.client_id}`} firstSort=${{ by: 'client_id', descending: false }} empty="There is no MQTT session."
      tools=${(again) => {
        reload = again;
        return null;
      }}
    />
  <//>`;
}
