// Getting messages as a client does: for real.

import { path, post } from '../api.js';
import { formatBytes } from '../format.js';
import { confirmAction } from '../parts/dialog.js';
import { Field, Select, useSubmit } from '../parts/forms.js';
import { exchangeLabel } from '../parts/links.js';
import { Card, Facts, Mark } from '../parts/page.js';
import { Message } from '../parts/payload.js';
import { href } from '../router.js';
import { html, useState } from '../ui.js';

const MODES = [
  ['ack_requeue_true', 'Nack, requeue: back into the queue, marked as redelivered'],
  ['ack_requeue_false', 'Automatic ack: removed from the queue'],
  ['reject_requeue_true', 'Reject, requeue: back into the queue, counted as failed'],
  ['reject_requeue_false', 'Reject: dead-lettered or dropped'],
];
const REMOVING = new Set(['ack_requeue_false', 'reject_requeue_false']);

export function QueueGet({ vhost, name, reload }) {
  const [messages, setMessages] = useState(null);
  const { onSubmit, busy, error } = useSubmit(async (form) => {
    const { ackmode, count, encoding } = Object.fromEntries(new FormData(form));
    const run = async () => {
      setMessages(await post(path`queues/${vhost}/${name}/get`, { ackmode, count: Number(count), encoding, truncate: 50000 }));
      reload();
    };
    if (REMOVING.has(ackmode)) {
      await confirmAction({
        title: `Take ${count} messages out of ${name}?`,
        text:
          ackmode === 'ack_requeue_false'
            ? 'The messages shown here are removed from the queue.'
            : 'The messages shown here are dead-lettered, or dropped if there is no dead letter exchange.',
        action: 'Take out',
        run,
      });
    } else {
      await run();
    }
  });
  return html`<div class="stack">
    <p class="warning-box">This takes messages out as a consumer does. Even if they are requeued, their order and their redelivered mark may change.
      To only look, use <a href=${href(['queues', vhost, name], { tab: 'messages' })}>Messages</a>.</p>
    <${Card} title="Get messages">
      <form class="form" onSubmit=${onSubmit}>
        <${Select} label="Acknowledgement" name="ackmode" options=${MODES} value="ack_requeue_true" wide />
        <${Field} label="How many" name="count" type="number" min="1" max="1000" defaultValue="1" required />
        <${Select} label="Bodies" name="encoding" options=${[
          ['auto', 'as text where they are'],
          ['base64', 'as base64'],
        ]} value="auto" />
        <p class="form-error" role="alert">${error}</p>
        <div class="row"><button type="submit" class="primary" disabled=${busy}>Get</button></div>
      </form>
    <//>
    ${
      messages &&
      html`<div class="messages" role="region" aria-label="Messages that were taken">
      <p role="status">${messages.length === 0 ? 'The queue has no ready message.' : `${messages.length} taken, ${messages.at(-1).message_count} were left.`}</p>
      ${messages.map(
        (item, at) => html`<${Message}
          key=${at} unfolded=${messages.length === 1}
          item=${{ ...item, position: at + 1, truncated: item.payload_encoding === 'string' && item.payload.length < item.payload_bytes && new TextEncoder().encode(item.payload).length < item.payload_bytes }}
          marks=${html`<span class="marks">${item.redelivered && html`<${Mark} text="redelivered" kind="warn" />`}<span class="num hint">${formatBytes(item.payload_bytes)}</span></span>`}
          facts=${html`<${Facts} facts=${[
            ['Exchange', exchangeLabel(item.exchange)],
            ['Routing key', item.routing_key || '(empty)'],
          ]} />`}
        />`,
      )}
    </div>`
    }
  </div>`;
}
