// Publishing one message by hand.

import { path, post } from '../api.js';
import { href } from '../router.js';
import { html, useState } from '../ui.js';
import { ArgumentsEditor, Field, readArguments, Select, TextArea } from './forms.js';
import { exchangeKey } from './links.js';
import { Card } from './page.js';

const NUMBERS = new Set(['priority', 'timestamp']);
const PROPERTIES = [
  ['content_type', 'Content type'],
  ['content_encoding', 'Content encoding'],
  ['priority', 'Priority'],
  ['correlation_id', 'Correlation id'],
  ['reply_to', 'Reply to'],
  ['expiration', 'Expiration, ms'],
  ['message_id', 'Message id'],
  ['timestamp', 'Timestamp, s'],
  ['type', 'Type'],
  ['user_id', 'User id'],
  ['app_id', 'App id'],
];
const HEADER_HINTS = [
  { key: 'x-delay', kind: 'number', text: 'Ms to hold the message in every queue it reaches.' },
  { key: 'x-deduplication-header', kind: 'string', text: 'The key by which duplicates are known.' },
];

function propertiesOf(form, headers) {
  const properties = { delivery_mode: Number(form.get('delivery_mode')), headers };
  for (const [key] of PROPERTIES) {
    const text = form.get(key).trim();
    if (text !== '') properties[key] = NUMBERS.has(key) ? Number(text) : text;
  }
  return properties;
}

/** `routingKey` given: the form is of a queue, and the key is that queue's. */
export function PublishForm({ vhost, exchange, routingKey, reload }) {
  const [headers, setHeaders] = useState([]);
  const [outcome, setOutcome] = useState(null);
  const [busy, setBusy] = useState(false);
  async function onSubmit(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    setBusy(true);
    setOutcome(null);
    try {
      const answer = await post(path`exchanges/${vhost}/${exchangeKey(exchange)}/publish`, {
        routing_key: routingKey ?? form.get('routing_key'),
        properties: propertiesOf(form, readArguments(headers)),
        payload: form.get('payload'),
        payload_encoding: form.get('payload_encoding'),
      });
      setOutcome(answer.routed ? { good: true, text: 'Published and routed.' } : { good: false, text: 'Published, but no queue took it.', unroutable: true });
      reload?.();
    } catch (failed) {
      setOutcome({ good: false, text: failed.message });
    } finally {
      setBusy(false);
    }
  }
  return html`<${Card} title="Publish a message">
    <form class="form" onSubmit=${onSubmit}>
      ${routingKey === undefined ? html`<${Field} label="Routing key" name="routing_key" />` : html`<p class="hint wide">Goes to this queue through the default exchange.</p>`}
      <${Select} label="Delivery mode" name="delivery_mode" value="2" options=${[
        ['2', 'Persistent'],
        ['1', 'Transient'],
      ]} />
      <${Select} label="The payload is" name="payload_encoding" value="string" options=${[
        ['string', 'text'],
        ['base64', 'base64 of bytes'],
      ]} />
      <${TextArea} label="Payload" name="payload" />
      <${ArgumentsEditor} legend="Headers" rows=${headers} onChange=${setHeaders} hints=${HEADER_HINTS} />
      <details class="wide">
        <summary>Properties</summary>
        <div class="form">${PROPERTIES.map(([key, label]) => html`<${Field} key=${key} label=${label} name=${key} inputmode=${NUMBERS.has(key) ? 'numeric' : undefined} />`)}</div>
      </details>
      <div class="row">
        <button type="submit" class="primary" disabled=${busy}>Publish</button>
        <span role="status" class=${outcome && !outcome.good ? 'state bad' : outcome ? 'state good' : ''}>${outcome?.text}${outcome?.unroutable && html` <a href=${href(['routing'], { vhost, exchange })}>Show in routing</a>`}</span>
      </div>
    </form>
  <//>`;
}
