// One connection.

import { path, withQuery } from '../api.js';
import { Bytes, Duration, formatTime, Num, When } from '../format.js';
import { OBJECT_RANGES, RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { closeConnections } from '../parts/close_connections.js';
import { ApplicationLink, ConnectionUser, connectionTitle, isOwnLink, VhostLink } from '../parts/links.js';
import { WireChart } from '../parts/message_rates.js';
import { Card, Facts, Fields, Page, pending, State } from '../parts/page.js';
import { Subscriptions } from '../parts/subscriptions.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { href, listHref, place, setQuery } from '../router.js';
import { mayAdminister } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';
import { CHANNEL_COLUMNS } from './channels.js';

// All channels of a connection have its vhost and its user.
const OWN_CHANNELS = CHANNEL_COLUMNS.filter((column) => !column.hidden && !['vhost', 'user'].includes(column.key));

function tlsFacts(each) {
  return [
    ['TLS', each.ssl ? each.ssl_protocol || 'yes' : 'no'],
    ['Key exchange', each.ssl ? each.ssl_key_exchange : null],
    ['Cipher', each.ssl ? each.ssl_cipher : null],
    ['Hash', each.ssl ? each.ssl_hash : null],
    ['Certificate of the client', each.peer_cert_subject],
    ['Issued by', each.peer_cert_issuer],
    ['Valid', each.peer_cert_validity],
  ];
}

const seconds = (value) => (value === 0 ? 'off' : `${value} s`);

/** What an MQTT or STOMP client has agreed on with the broker. */
function protocolFacts({ mqtt, stomp, vhost }) {
  if (stomp) {
    return [
      ['Session', html`<span class="mono">${stomp.session}</span>`],
      ['Heart-beats to the client', seconds(stomp.heart_beat_sent_s)],
      ['Heart-beats of the client', seconds(stomp.heart_beat_expected_s)],
    ];
  }
  if (!mqtt) return [];
  return [
    ['Client id', html`<a href=${href(['mqtt-sessions', vhost, mqtt.client_id])}>${mqtt.client_id}</a>`],
    ['Keep alive', seconds(mqtt.keep_alive_s)],
    ['Session kept for', mqtt.session_expiry_s === 0 ? 'ends with the connection' : html`<${Duration} ms=${mqtt.session_expiry_s * 1000} />`],
    ['Receive maximum', html`<${Num} value=${mqtt.receive_maximum} />`],
    ['Dropped, QoS 0', html`<${Num} value=${mqtt.dropped_qos_0} />`],
    ['Largest packet', mqtt.maximum_packet_bytes && html`<${Bytes} value=${mqtt.maximum_packet_bytes} />`],
    ['Will', mqtt.will && html`<span class="mono">${mqtt.will.topic}</span>, QoS ${mqtt.will.qos}${mqtt.will.retain ? ', retained' : ''}`],
  ];
}

export default function Connection({ name }) {
  const { query } = useStore(place);
  const range = rangeOf(query, OBJECT_RANGES);
  const poll = usePoll(withQuery(path`connections/${name}`, sampleQuery(range, ['data_rates'])));
  const channels = usePoll(path`connections/${name}/channels`);
  const each = poll.data;
  async function closeIt() {
    if (!(await closeConnections([name], connectionTitle(each)))) return;
    window.location.hash = listHref(['connections']);
  }
  return html`<${Page}
    title=${each ? connectionTitle(each) : name} crumbs=${[['Connections', listHref(['connections'])]]} marks=${each && html`<${State} value=${each.state} />`}
    actions=${each && html`<${RangePicker} offered=${OBJECT_RANGES} range=${range} onPick=${(s) => setQuery({ range: s })} /><button type="button" class="danger" onClick=${closeIt}>Close…</button>`}
  >
    ${
      pending(poll, 'This connection is closed.') ??
      html`<div class="cards">
      <${Card}><${WireChart} of=${each} /><//>
      <${Card} title="Connection">
        <${Facts} facts=${[
          ['Addresses', html`<span class="mono">${each.name}</span>`],
          ['User', html`<${ConnectionUser} of=${each} linked=${mayAdminister()} />`],
          ['Vhost', mayAdminister() ? html`<${VhostLink} name=${each.vhost} />` : each.vhost],
          ['Name given by the client', each.user_provided_name && html`${each.user_provided_name} <${ApplicationLink} name=${each.user_provided_name} label="(all its connections)" />`],
          ['Protocol', each.protocol],
          ...protocolFacts(each),
          ['Authentication', each.auth_mechanism],
          ['Client', !isOwnLink(each) && each.peer_host && `${each.peer_host}:${each.peer_port}`],
          ['Broker', each.host && `${each.host}:${each.port}`],
          ['Opened by', isOwnLink(each) && 'a shovel or federation link of this broker'],
          ['Connected', html`<${When} ms=${each.connected_at} /> <small>${formatTime(each.connected_at)}</small>`],
          ['Heartbeat', each.timeout === 0 ? 'off' : each.timeout && `${each.timeout} s`],
          ['Largest frame', html`<${Bytes} value=${each.frame_max} />`],
          ['Channels', html`<${Num} value=${each.channels} /> of at most <${Num} value=${each.channel_max} />`],
          ['Received', html`<${Bytes} value=${each.recv_oct} />`],
          ['Sent', html`<${Bytes} value=${each.send_oct} />`],
          ['Waiting to be sent', html`<${Num} value=${each.send_pend} />`],
          ['Node', each.node],
          ...tlsFacts(each),
        ]} />
      <//>
      ${(each.mqtt || each.stomp) && html`<${Subscriptions} of=${each} />`}
      <${Card} title="Channels" wide>
        ${channels.data && html`<${LocalTable} caption="Channels of this connection" columns=${OWN_CHANNELS} rows=${channels.data} rowKey=${(row) => row.name} empty="No channel is open." />`}
      <//>
      <${Card} title="What the client says about itself" wide><${Fields} values=${each.client_properties} /><//>
    </div>`
    }
  <//>`;
}
