// Retained messages, of one vhost or of all: looked at and cleared.

import { del, path, withQuery } from '../api.js';
import { Bytes, formatNumber, When } from '../format.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Field } from '../parts/forms.js';
import { PagedList } from '../parts/list.js';
import { tell } from '../parts/notice.js';
import { Fields, Page, pending } from '../parts/page.js';
import { Payload } from '../parts/payload.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

function LookDialog({ vhost, topic, titleId, close }) {
  const poll = usePoll(path`warren/retained/${vhost}/${topic}`);
  const each = poll.data;
  return html`<div>
    <h2 id=${titleId}>${topic}</h2>
    ${
      pending(poll, 'Nothing is retained for this topic now.') ??
      html`<${Payload} payload=${each.payload} encoding=${each.payload_encoding} payloadBytes=${each.payload_bytes} /><${Fields} values=${each.properties} />`
    }
    <div class="row end"><button type="button" onClick=${() => close()}>Close</button></div>
  </div>`;
}

function ClearDialog({ vhost, titleId, close }) {
  async function submit(form) {
    const { cleared, refused } = await del(withQuery(path`warren/retained/${vhost || form.get('vhost')}`, { filter: form.get('filter').trim() }));
    const kept = refused > 0 ? `, and ${formatNumber(refused)} kept that you may not clear` : '';
    tell(`${formatNumber(cleared)} cleared${kept}.`);
    return true;
  }
  return html`<${FormDialog} title="Clear retained messages" titleId=${titleId} action="Clear" danger submit=${submit} close=${close}>
    <p>Clients that subscribe later get nothing for these topics until something is published there again.</p>
    ${!vhost && html`<${VhostSelect} />`}
    <${Field} label="Topic filter" name="filter" required hint="sensors/+/temperature, or # for all" />
  <//>`;
}

const columns = (look, clear) => [
  {
    key: 'topic',
    label: 'Topic',
    sort: 'topic',
    fixed: true,
    render: (each) => html`<button type="button" class="link mono" onClick=${() => look(each)}>${each.topic}</button>`,
  },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (each) => each.vhost },
  { key: 'size', label: 'Payload', sort: 'payload_bytes', num: true, render: (each) => html`<${Bytes} value=${each.payload_bytes} />` },
  { key: 'qos', label: 'QoS', sort: 'qos', num: true, render: (each) => each.qos },
  { key: 'published', label: 'Published', sort: 'published_at', num: true, render: (each) => html`<${When} ms=${each.published_at} />` },
  { key: 'expires', label: 'Expires', sort: 'expires_at', num: true, render: (each) => (each.expires_at ? html`<${When} ms=${each.expires_at} />` : 'never') },
  {
    key: 'act',
    label: html`<span class="unseen">Actions</span>`,
    num: true,
    fixed: true,
    render: (each) => html`<span class="row end"><button type="button" class="small danger" onClick=${() => clear(each)}>Clear…</button></span>`,
  },
];

export default function Retained() {
  useStore(place);
  const vhost = currentVhost();
  let reload = () => {};
  const look = (each) => openDialog(LookDialog, { vhost: each.vhost, topic: each.topic, wide: true });
  async function clear(each) {
    const done = await confirmAction({
      title: `Clear what is retained for ${each.topic}?`,
      text: 'Clients that subscribe later get nothing for this topic until something is published there again.',
      action: 'Clear',
      done: `Nothing is retained for ${each.topic}.`,
      run: () => del(path`warren/retained/${each.vhost}/${each.topic}`),
    });
    if (done) reload();
  }
  const clearSome = async () => (await openDialog(ClearDialog, { vhost })) && reload();
  return html`<${Page} title=${vhost ? `Retained messages in ${vhost}` : 'Retained messages'}>
    <${PagedList}
      id="retained" caption="Retained messages" base=${vhost ? path`warren/retained/${vhost}` : 'warren/retained'} columns=${columns(look, clear)}
      rowKey=${(each) => JSON.stringify([each.vhost, each.topic])} firstSort=${{ by: 'topic', descending: false }} empty="Nothing is retained."
      tools=${(again) => {
        reload = again;
        return html`<button type="button" class="danger" onClick=${clearSome}>Clear by filter…</button>`;
      }}
    />
  <//>`;
}
