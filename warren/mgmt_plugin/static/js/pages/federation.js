// Federation: upstreams, and the links that policies make of them.

import { del, path, put } from '../api.js';
import { confirmAction, FormDialog, openDialog } from '../parts/dialog.js';
import { Check, Field, Select } from '../parts/forms.js';
import { ExchangeLink, QueueLink, withoutPasswords } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { tell } from '../parts/notice.js';
import { Card, Page, pending, State } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { VhostSelect } from '../parts/vhost_select.js';
import { usePoll } from '../refresh.js';
import { currentVhost, listHref, place } from '../router.js';
import { mayMonitor } from '../session.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const NUMBERS = [
  ['prefetch-count', 'Prefetch'],
  ['reconnect-delay', 'Reconnects after, s'],
  ['max-hops', 'Most hops (exchanges)'],
  ['expires', 'Upstream queue expires, ms'],
  ['message-ttl', 'Its message TTL, ms'],
];
const TEXTS = [
  ['exchange', 'Exchange there'],
  ['queue', 'Queue there'],
  ['consumer-tag', 'Consumer tag'],
];
const hidden = (uri) => withoutPasswords(Array.isArray(uri) ? uri.join(', ') : String(uri ?? ''));

function UpstreamDialog({ row, titleId, close }) {
  const value = row?.value ?? {};
  async function submit(form) {
    const [vhost, name] = [row?.vhost ?? form.get('vhost'), row?.name ?? form.get('name')];
    const uris = form
      .get('uri')
      .split(',')
      .map((uri) => uri.trim());
    const next = {
      ...value,
      uri: uris.length > 1 ? uris : uris[0],
      'ack-mode': form.get('ack-mode'),
      'trust-user-id': form.has('trust-user-id'),
    };
    for (const [key] of [...NUMBERS, ...TEXTS]) delete next[key];
    for (const [key] of NUMBERS) if (form.get(key)) next[key] = Number(form.get(key));
    for (const [key] of TEXTS) if (form.get(key)) next[key] = form.get(key);
    await put(path`parameters/federation-upstream/${vhost}/${name}`, { component: 'federation-upstream', vhost, name, value: next });
    tell(`The upstream ${name} is set.`);
    return true;
  }
  return html`<${FormDialog} title=${row ? `Change upstream ${row.name}` : 'Add an upstream'} titleId=${titleId} action="Set upstream" submit=${submit} close=${close}>
    <div class="form">
      ${!row && html`<${VhostSelect} /><${Field} label="Name" name="name" required />`}
      <${Field} label="URI" name="uri" required defaultValue=${Array.isArray(value.uri) ? value.uri.join(', ') : (value.uri ?? 'amqp://')} hint="Several are separated by commas." />
      <${Select} label="Acknowledges" name="ack-mode" value=${value['ack-mode'] ?? 'on-confirm'} options=${[
        ['on-confirm', 'once it is confirmed here'],
        ['on-publish', 'once it is published here'],
        ['no-ack', 'never'],
      ]} />
      ${NUMBERS.map(([key, label]) => html`<${Field} key=${key} label=${label} name=${key} type="number" min="0" defaultValue=${value[key] ?? ''} />`)}
      ${TEXTS.map(([key, label]) => html`<${Field} key=${key} label=${label} name=${key} defaultValue=${value[key] ?? ''} />`)}
      <${Check} label="Trust user ids" name="trust-user-id" defaultChecked=${value['trust-user-id'] === true} />
    </div>
  <//>`;
}

const LINKS = [
  {
    key: 'what',
    label: 'Queue or exchange',
    render: (link) =>
      link.type === 'queue' || link.queue
        ? html`<${QueueLink} vhost=${link.vhost} name=${link.queue} />`
        : html`<${ExchangeLink} vhost=${link.vhost} name=${link.exchange} />`,
  },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (link) => link.vhost },
  { key: 'upstream', label: 'Upstream', sort: 'upstream', render: (link) => link.upstream },
  {
    key: 'status',
    label: 'State',
    sort: 'status',
    render: (link) =>
      html`<${State} value=${link.status} />${link.error && html`<br /><small>${typeof link.error === 'string' ? link.error : JSON.stringify(link.error)}</small>`}`,
  },
  { key: 'uri', label: 'URI', long: true, render: (link) => html`<span class="mono">${hidden(link.uri)}</span>` },
  { key: 'since', label: 'Since', sort: 'timestamp', render: (link) => link.timestamp },
];

export default function Federation() {
  useStore(place);
  const poll = usePoll('parameters/federation-upstream');
  const links = usePoll(mayMonitor() ? 'federation-links' : null);
  const here = (row) => !currentVhost() || row.vhost === currentVhost();
  const edit = async (row) => (await openDialog(UpstreamDialog, { row, wide: true })) && poll.reload();
  async function remove(row) {
    const done = await confirmAction({
      title: `Delete upstream ${row.name}?`,
      text: `Its links stop. Messages that are here already stay.`,
      action: 'Delete upstream',
      done: `The upstream ${row.name} is deleted.`,
      run: () => del(path`parameters/federation-upstream/${row.vhost}/${row.name}`),
    });
    if (done) poll.reload();
  }
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (row) => html`<span class="name">${row.name}</span>` },
    { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (row) => row.vhost },
    { key: 'uri', label: 'URI', long: true, render: (row) => html`<span class="mono">${hidden(row.value.uri)}</span>` },
    { key: 'hops', label: 'Hops', num: true, render: (row) => row.value['max-hops'] ?? '–' },
    { key: 'ack', label: 'Acknowledges', render: (row) => row.value['ack-mode'] ?? 'on-confirm' },
    {
      key: 'act',
      label: html`<span class="unseen">Actions</span>`,
      num: true,
      render: (row) =>
        html`<span class="row end"><button type="button" class="small plain" onClick=${() => edit(row)}>Edit…</button><button type="button" class="small plain" onClick=${() => remove(row)}>Delete…</button></span>`,
    },
  ];
  return html`<${Page} title="Federation">
    <p class="hint">Upstreams are other brokers. A <a href=${listHref(['policies'])}>policy</a> with federation-upstream or federation-upstream-set says which exchanges and queues are federated.</p>
    <${LocalList} poll=${poll} caption="Upstreams" columns=${columns} rowKey=${(row) => JSON.stringify([row.vhost, row.name])} first=${{ by: 'name', descending: false }} empty="No upstream."
      keep=${here} tools=${html`<button type="button" class="primary" onClick=${() => edit()}>Add upstream</button>`} />
    ${mayMonitor() && html`<${Card} title="Links">
      ${pending(links, 'This broker says nothing about links.') ?? html`<${LocalTable} caption="Links" columns=${LINKS} rows=${links.data.filter(here)} rowKey=${(link) => JSON.stringify([link.vhost, link.type, link.exchange, link.queue, link.upstream, link.id])} empty="No link." />`}
    <//>`}
  <//>`;
}
