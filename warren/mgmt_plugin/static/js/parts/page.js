// What every page is made of: its heading, cards, tabs, facts, and what is said when there is nothing to show.

import { formatValue } from '../format.js';
import { HELP } from '../help.js';
import { href, place } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { useId } from './forms.js';

/** crumbs: [[label, href], …] above the heading; actions: buttons beside it. */
export function Page({ title, crumbs = [], marks, actions, children }) {
  useEffect(() => {
    document.title = `${title} – Warren`;
  }, [title]);
  return html`<div class="page">
    ${
      crumbs.length > 0 &&
      html`<nav class="crumbs" aria-label="You are in">${crumbs.map(([label, link]) => html`<a key=${link} href=${link}>${label}</a>`)}</nav>`
    }
    <header class="page-head">
      <h1 tabindex="-1">${title}</h1>
      ${marks}
      <div class="page-actions">${actions}</div>
    </header>
    ${children}
  </div>`;
}

export function Card({ title, actions, children, wide = false }) {
  return html`<section class="card ${wide ? 'wide' : ''}">
    ${(title || actions) && html`<header class="card-head"><h2>${title}</h2><div class="row">${actions}</div></header>`}
    ${children}
  </section>`;
}

/** Tabs are links, so each has an address: tabs are [{id, label, count?}], the first is shown when none is named. */
export function Tabs({ tabs }) {
  const { path, query } = useStore(place);
  const current = currentTab(tabs, query);
  const box = useRef(null);
  // On a narrow screen the tab that is shown comes into sight.
  useEffect(() => {
    const tab = box.current.querySelector('[aria-current]');
    box.current.scrollLeft = tab.offsetLeft - box.current.offsetLeft - (box.current.clientWidth - tab.offsetWidth) / 2;
  }, [current]);
  return html`<nav ref=${box} class="tabs" aria-label="Parts of this page">
    ${tabs.map(
      (
        tab,
      ) => html`<a key=${tab.id} href=${href(path, tab.id === tabs[0].id ? {} : { tab: tab.id })} aria-current=${tab.id === current ? 'page' : undefined}>
        ${tab.label}${tab.count !== undefined && html` <span class="count">${tab.count}</span>`}
      </a>`,
    )}
  </nav>`;
}

export const currentTab = (tabs, query) => (tabs.find((tab) => tab.id === query.tab) ?? tabs[0]).id;

/** The name of a field; where there is help (help.js) it is a button that unfolds it. */
function Term({ name }) {
  const [asked, setAsked] = useState(false);
  const id = useId();
  const text = HELP[name];
  if (!text) return name;
  return html`<button type="button" class="term" title=${text} aria-expanded=${asked} aria-controls=${id} onClick=${() => setAsked(!asked)}>${name}</button>
    <span id=${id} class="hint term-text" hidden=${!asked}>${asked && text}</span>`;
}

/** Pairs of [name, value]; pairs without a value (undefined, null, false, an empty text) are left out. */
export function Facts({ facts }) {
  const shown = facts.filter(([, value]) => value !== undefined && value !== null && value !== false && value !== '');
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div key=${name}><dt><${Term} name=${name} /></dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A table of AMQP fields, with nested values as JSON. */
export function Fields({ values, empty = 'none' }) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return html`<span class="none">${empty}</span>`;
  return html`<dl class="fields">
    ${entries.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${formatValue(value)}</dd></div>`)}
  </dl>`;
}

export function Trouble({ error, gone = 'Not found. It may have been deleted.' }) {
  const text =
    error.status === 404 ? gone : error.status === 401 ? 'Your user may not see this.' : `This cannot be shown: ${error.message}`;
  return html`<p class="trouble" role="alert">${text}</p>`;
}

/** What to show until there is data, or undefined once there is. */
export function pending(poll, gone) {
  if (poll.error && !poll.data) return html`<${Trouble} error=${poll.error} gone=${gone} />`;
  if (!poll.data) return html`<p class="loading" role="status">Loading…</p>`;
  return undefined;
}

const GOOD = new Set(['running', 'leading', 'following', 'ready', 'up', 'done', 'enabled', 'open']);
const BAD = new Set(['gone', 'registered', 'down', 'crashed', 'stopped', 'terminated', 'blocked', 'failed', 'minority', 'error']);

export function State({ value }) {
  if (!value) return html`<span class="none">–</span>`;
  const kind = GOOD.has(value) ? 'good' : BAD.has(value) ? 'bad' : value === 'idle' ? 'quiet' : 'busy';
  return html`<span class="state ${kind}">${value}</span>`;
}

export function Mark({ text, title, kind = '' }) {
  return html`<span class="mark ${kind}" title=${title}>${text}</span>`;
}

/** A progress bar that also says its numbers. `danger`: from which part of the whole it warns. */
export function Meter({ label, value, total, format, danger = 0.85, low = false }) {
  const part = total > 0 ? Math.min(1, value / total) : 0;
  const bad = low ? part < danger : part > danger;
  return html`<div class="meter ${bad ? 'bad' : ''}">
    <meter min="0" max="1" value=${part} aria-label="${label}: ${format(value)} of ${format(total)}" />
    <span title="${format(value)} of ${format(total)}">${format(value)} <small>of ${format(total)}</small></span>
  </div>`;
}
