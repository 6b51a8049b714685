// Bodies of messages, as JSON, text or hex.

import { formatTime } from '../format.js';
import { html, useMemo, useState } from '../ui.js';

const HEX_SHOWN = 4096;

/** The bytes of a body as the API gives it. */
function bytesOf(payload, encoding) {
  if (encoding !== 'base64') return new TextEncoder().encode(payload);
  return Uint8Array.from(atob(payload), (letter) => letter.charCodeAt(0));
}

function maybeText(bytes) {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

function maybeJson(text) {
  if (text === null || !/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

/** Offset, sixteen bytes, and what of them can be read. */
function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_SHOWN); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const text = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > HEX_SHOWN) lines.push('…');
  return lines.join('\n');
}

/** One line that says what the body is. */
function previewOf(payload, encoding) {
  if (payload === '') return '(empty)';
  const text = encoding === 'base64' ? maybeText(bytesOf(payload.slice(0, 400 - (400 % 4)), encoding)) : payload.slice(0, 300);
  return text === null ? '(binary)' : text.replace(/\s+/g, ' ');
}

export function Payload({ payload, encoding, truncated = false, payloadBytes }) {
  const { bytes, text, json } = useMemo(() => {
    const all = bytesOf(payload, encoding);
    const asText = maybeText(all);
    return { bytes: all, text: asText, json: truncated ? null : maybeJson(asText) };
  }, [payload, encoding]);
  const views = [json !== null && ['json', 'JSON'], text !== null && ['text', 'Text'], ['hex', 'Hex']].filter(Boolean);
  const [chosen, setChosen] = useState(null);
  const view = views.some(([id]) => id === chosen) ? chosen : views[0][0];
  return html`<div>
    <div class="row">
      <div class="segments" role="group" aria-label="Show the body as">
        ${views.map(([id, label]) => html`<button key=${id} type="button" aria-pressed=${id === view} onClick=${() => setChosen(id)}>${label}</button>`)}
      </div>
      <small>${payloadBytes} bytes${truncated ? `, the first ${bytes.length} shown` : ''}</small>
    </div>
    <pre class="payload ${view}" tabindex="0" aria-label="Body">${view === 'json' ? json : view === 'text' ? text : hexDump(bytes)}</pre>
  </div>`;
}

/** A message that unfolds, at once if it is `unfolded`: `cells` and `marks` are shown in its line, `facts` inside. */
export function Message({ item, cells, marks, facts, unfolded = false }) {
  const [open, setOpen] = useState(unfolded);
  const { headers = {}, ...properties } = item.properties ?? {};
  return html`<details class="message" open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>
      ${item.position !== undefined && html`<span class="num hint">#${item.position}</span>`}
      ${cells}
      <span class="name">${item.routing_key === '' ? html`<span class="none">(no key)</span>` : item.routing_key}</span>
      <span class="preview">${previewOf(item.payload, item.payload_encoding)}</span>
      ${marks}
    </summary>
    ${
      open &&
      html`<div class="message-body">
      <div><${Payload} payload=${item.payload} encoding=${item.payload_encoding} truncated=${item.truncated} payloadBytes=${item.payload_bytes} /></div>
      <div>${facts}${section('Properties', properties)}${section('Headers', headers)}</div>
    </div>`
    }
  </details>`;
}

/** A timestamp of AMQP in ms. It is in seconds; some clients write ms. */
export const timestampMs = (value) => (value > 1e11 ? value : value * 1000);

function shownValue(key, value) {
  if (key === 'timestamp' && typeof value === 'number') return `${value}, ${formatTime(timestampMs(value))}`;
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

const section = (title, values) =>
  Object.keys(values).length > 0 &&
  html`<h3>${title}</h3>
    <dl class="fields">${Object.entries(values).map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${shownValue(key, value)}</dd></div>`)}</dl>`;
