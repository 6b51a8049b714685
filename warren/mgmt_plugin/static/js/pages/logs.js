// The last lines of the log, live: what the broker has in memory of them. Only administrators see it.

import { get, withQuery } from '../api.js';
import { formatTime } from '../format.js';
import { Check, Select } from '../parts/forms.js';
import { FilterInput } from '../parts/list.js';
import { Mark, Page, Trouble } from '../parts/page.js';
import { DataTable } from '../parts/table.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useState } from '../ui.js';

const EVERY_MS = 2000;
const COUNT = 500;
const LEVELS = ['debug', 'info', 'warning', 'error'];
const KINDS = { warning: 'warn', error: 'bad' };
// Shown in columns of their own.
const COMMON = new Set(['number', 'time', 'level', 'logger', 'event']);

function fieldsOf(line) {
  return Object.entries(line)
    .filter(([key]) => !COMMON.has(key))
    .map(([key, value]) => html`<span key=${key} class="log-field"><span class="hint">${key}=</span>${String(value)}</span> `);
}

/** The time of day, and below it the date. */
function Moment({ text }) {
  const [date, time] = formatTime(Date.parse(text)).split(', ');
  return html`<time class="num" datetime=${text} title=${text}>${time}<br /><small>${date}</small></time>`;
}

const COLUMNS = [
  { key: 'time', label: 'Time', num: true, render: (line) => html`<${Moment} text=${line.time} />` },
  {
    key: 'line',
    label: 'Event',
    render: (line) => html`<${Mark} text=${line.level} kind=${KINDS[line.level] ?? ''} /> <b>${line.event}</b><br /><span class="mono">${fieldsOf(line)}</span>`,
  },
];

/** The lines that fit, newest first, asked for again and again while it is `live`. */
function useLines(filter, live) {
  const key = JSON.stringify(filter);
  const [state, setState] = useState({ key, lines: null, error: null });
  useEffect(() => {
    const abort = new AbortController();
    let timer = null;
    let last;
    let lines = [];
    async function ask() {
      if (!document.hidden) {
        try {
          const answer = await get(withQuery('warren/logs', { ...filter, count: COUNT, after: last }), { signal: abort.signal });
          // A broker that has begun again counts from 0.
          if (last !== undefined && answer.last < last) lines = [];
          last = answer.last;
          lines = [...answer.lines.reverse(), ...lines].slice(0, COUNT);
          setState({ key, lines, error: null });
        } catch (error) {
          if (abort.signal.aborted) return;
          setState({ key, lines: lines.length > 0 ? lines : null, error });
        }
      }
      if (live) timer = setTimeout(ask, EVERY_MS);
    }
    ask();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, live]);
  return state.key === key ? state : { lines: null, error: null };
}

export default function Logs() {
  const { query } = useStore(place);
  const [live, setLive] = useState(true);
  const level = LEVELS.includes(query.level) ? query.level : 'debug';
  const audit = query.audit === '1';
  const { lines, error } = useLines({ level, audit: audit ? 'true' : null, q: query.q }, live);
  return html`<${Page} title="Logs" actions=${html`<button type="button" aria-pressed=${live} onClick=${() => setLive(!live)}>${live ? 'Pause' : 'Continue'}</button>`}>
    <p class="hint">The last lines of this node, newest first. Audit lines say who changed what. The log itself goes to stderr, and keeps more.</p>
    <div class="toolbar">
      <${FilterInput} label="Text in a line" value=${query.q ?? ''} onFilter=${(q) => setQuery({ q })} />
      <${Select} label="From level" value=${level} options=${LEVELS} onChange=${(event) => setQuery({ level: event.target.value === 'debug' ? null : event.target.value })} />
      <${Check} label="Audit lines only" checked=${audit} onChange=${(event) => setQuery({ audit: event.target.checked ? '1' : null })} />
    </div>
    ${error && html`<${Trouble} error=${error} />`}
    ${!lines && !error && html`<p class="loading" role="status">Loading…</p>`}
    ${lines && html`<${DataTable} caption="Lines of the log" columns=${COLUMNS} rows=${lines} rowKey=${(line) => line.number} empty="No such line is kept." />`}
  <//>`;
}
