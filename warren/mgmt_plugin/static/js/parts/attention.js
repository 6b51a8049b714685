// What an operator should look at first: alarms, and the queues that grow, lack a consumer or have old messages. Each says
// what to do. The broker looks at every queue for it, so it is asked less often than for the rest of a page.

import { ALERT_COLUMNS, alertsOf } from '../alerts.js';
import { Duration, formatNumber, Num } from '../format.js';
import { usePoll } from '../refresh.js';
import { listHref } from '../router.js';
import { mayMonitor } from '../session.js';
import { html, useEffect, useState } from '../ui.js';
import { QueueLink, queueHref } from './links.js';
import { Card, Mark, pending } from './page.js';
import { DataTable } from './table.js';

const EVERY_MS = 15_000;
// The charts of the overview should be in sight, too.
const FIRST = 5;

const NAME = {
  key: 'name',
  label: 'Queue',
  render: (each) => html`<${QueueLink} vhost=${each.vhost} name=${each.name} /> <small>${each.vhost}</small>`,
};
const NAME_AND_MARK = { ...NAME, render: (each) => html`${NAME.render(each)} ${each.paused && html`<${Mark} text="paused" kind="busy" />`}` };
const MESSAGES = { key: 'messages', label: 'Messages', num: true, render: (each) => html`<${Num} value=${each.messages} />` };
const OLDEST = {
  key: 'oldest',
  label: 'Oldest',
  num: true,
  render: (each) => html`${each.oldest_at_least && 'over '}<${Duration} ms=${each.oldest_ms} />`,
};
const GROWN = { key: 'grown', label: 'In 10 min', num: true, render: (each) => html`<span class="num">+${formatNumber(each.grown)}</span>` };
// Why its messages wait, by what the broker says.
const WHY = {
  paused: () => 'paused',
  no_consumer: () => 'no consumer',
  consumers_full: (count) => (count === '1' ? 'its consumer is full' : `all ${count} consumers are full`),
  too_few_consumers: (count) => (count === '1' ? '1 consumer, not full' : `${count} consumers, not all full`),
};
const REASON = {
  key: 'why',
  label: 'Why',
  render: (each) => html`<a href=${queueHref(each.vhost, each.name, { tab: 'consumers' })}>${WHY[each.why]?.(formatNumber(each.consumers)) ?? each.why}</a>`,
};

const KINDS = [
  {
    key: 'growing',
    title: 'Growing',
    good: 'No queue grows.',
    advice: 'More comes in than consumers take. A full consumer is slow, or needs a higher prefetch. If they are not full, start more.',
    columns: [NAME, GROWN, MESSAGES, REASON],
  },
  {
    key: 'without_consumer',
    title: 'Without a consumer',
    good: 'Every queue with messages has a consumer.',
    advice: 'Start the application that reads it. If nothing is meant to read it, give it a time to live or a length limit.',
    columns: [NAME_AND_MARK, MESSAGES, OLDEST],
  },
  {
    key: 'old',
    title: 'Oldest message over 10 min',
    good: 'No message waits for more than 10 minutes.',
    advice: 'A consumer hangs, or too few consume. Look at Oldest unacked of its consumers, and at the log of the application.',
    columns: [NAME, OLDEST, MESSAGES, REASON],
  },
];

function Alarms() {
  const nodes = usePoll(`nodes?columns=${ALERT_COLUMNS}`);
  if (!nodes.data) return null;
  const alerts = nodes.data.flatMap((node) => alertsOf(node).map((alert) => ({ node: node.name, ...alert })));
  if (alerts.length === 0) return html`<p><${Mark} text="no alarm" kind="good" /></p>`;
  return html`<ul class="stack">${alerts.map(({ node, what, advice }) => html`<li key=${`${node} ${what}`}><b>${node} ${what}</b> ${advice}</li>`)}</ul>`;
}

function Kind({ kind: { title, advice, columns }, found }) {
  const [all, setAll] = useState(false);
  return html`<section class="attention">
    <h3>${title} <span class="count">${formatNumber(found.count)}</span></h3>
    <p class="hint">${advice}</p>
    <${DataTable} cards caption="Queues: ${title}" columns=${columns} rows=${all ? found.items : found.items.slice(0, FIRST)} rowKey=${(each) => JSON.stringify([each.vhost, each.name])} />
    ${!all && found.items.length > FIRST && html`<p><button type="button" class="small" onClick=${() => setAll(true)}>Show ${found.items.length}</button></p>`}
    ${all && found.count > found.items.length && html`<p class="hint">The worst ${found.items.length}. <a href=${listHref(['queues'], { sort: 'messages', desc: '1' })}>All queues by length</a></p>`}
  </section>`;
}

export function Attention({ vhost }) {
  const poll = usePoll(vhost ? `warren/attention/${encodeURIComponent(vhost)}` : 'warren/attention', { repeat: false });
  useEffect(() => {
    const timer = setInterval(() => document.hidden || poll.reload(), EVERY_MS);
    return () => clearInterval(timer);
  }, [poll.reload]);
  const troubled = poll.data && KINDS.filter(({ key }) => poll.data[key].count > 0);
  const calm = poll.data && KINDS.filter(({ key }) => poll.data[key].count === 0);
  return html`<${Card} title=${vhost ? `What to look at in ${vhost}` : 'What to look at'} wide>
    ${mayMonitor() && html`<${Alarms} />`}
    ${
      pending(poll) ??
      html`${troubled.length > 0 && html`<div class="cards">${troubled.map((kind) => html`<${Kind} key=${kind.key} kind=${kind} found=${poll.data[kind.key]} />`)}</div>`}
      ${calm.length > 0 && html`<p class="hint">${calm.map(({ good }) => good).join(' ')}</p>`}`
    }
  <//>`;
}
