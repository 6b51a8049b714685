// One MQTT session, with its subscriptions.

import { path } from '../api.js';
import { Num } from '../format.js';
import { ConnectionLink, QueueLink } from '../parts/links.js';
import { Card, Facts, Page, pending } from '../parts/page.js';
import { MQTT_SUBSCRIPTIONS } from '../parts/subscriptions.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { listHref } from '../router.js';
import { html } from '../ui.js';
import { endSession, Expiry, SessionState } from './mqtt_sessions.js';

export default function MqttSession({ vhost, name }) {
  const poll = usePoll(path`warren/mqtt-sessions/${vhost}/${name}`);
  const each = poll.data;
  async function end() {
    if (await endSession(each)) window.location.hash = listHref(['mqtt-sessions']);
  }
  return html`<${Page}
    title=${name} crumbs=${[['MQTT sessions', listHref(['mqtt-sessions'])]]} marks=${each && html`<${SessionState} of=${each} />`}
    actions=${each && html`<button type="button" class="danger" onClick=${end}>End…</button>`}
  >
    ${
      pending(poll, 'This session is over.') ??
      html`<div class="cards">
      <${Card} title="Session">
        <${Facts} facts=${[
          ['Vhost', each.vhost],
          ['User', each.user],
          ['Protocol', each.protocol],
          ['Connection', each.connection_details && html`<${ConnectionLink} name=${each.connection_details.name} label=${each.connection_details.name} />`],
          ['Kept for', html`<${Expiry} of=${each} />`],
          ['Waiting', html`<${Num} value=${each.messages_ready} />`],
          ['Unacked', html`<${Num} value=${each.messages_unacknowledged} />`],
          ['Queues', each.queues.length > 0 && each.queues.map((queue) => html`<div key=${queue}><${QueueLink} vhost=${each.vhost} name=${queue} /></div>`)],
        ]} />
      <//>
      <${Card} title="Subscriptions" wide>
        <${LocalTable} caption="Subscriptions of this session" columns=${MQTT_SUBSCRIPTIONS} rows=${each.subscriptions} rowKey=${(row) => `${row.qos} ${row.filter}`} empty="It has subscribed to nothing." />
      <//>
    </div>`
    }
  <//>`;
}
