// A list that the broker filters, sorts and divides into pages. All of its state is in the query of the place.

import { withQuery } from '../api.js';
import { formatNumber } from '../format.js';
import { usePoll } from '../refresh.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { Check } from './forms.js';
import { Trouble } from './page.js';
import { ColumnChooser, DataTable, SortPicker, useColumns } from './table.js';

const PAGE_SIZES = ['25', '50', '100', '250', '500'];
const TYPING_MS = 250;

/** The state of a list as it stands in the query: {vhost, name, regex, page, size, sort}. */
function useListState(firstSort) {
  const { query } = useStore(place);
  return {
    vhost: query.vhost ?? '',
    name: query.name ?? '',
    regex: query.regex === '1',
    page: Number(query.page) > 0 ? Number(query.page) : 1,
    size: PAGE_SIZES.includes(query.size) ? query.size : '50',
    sort: query.sort ? { by: query.sort, descending: query.desc === '1' } : firstSort,
  };
}

function listPath(base, list, extra) {
  return withQuery(base, {
    page: list.page,
    page_size: list.size,
    name: list.name,
    use_regex: list.name ? list.regex : null,
    sort: list.sort?.by,
    sort_reverse: list.sort?.descending ? 'true' : null,
    sort_natural: list.sort ? 'true' : null,
    ...extra,
  });
}

/** An input that reports what was typed once the typing pauses. */
export function FilterInput({ label, value, onFilter }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  function onInput(event) {
    const typed = event.target.value;
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onFilter(typed), TYPING_MS);
  }
  return html`<input type="search" class="filter" aria-label=${label} placeholder=${label} value=${text} onInput=${onInput} spellcheck=${false} autocomplete="off" />`;
}

function Pager({ answer, list }) {
  const pages = Math.max(1, answer.page_count);
  const turn = (page) => setQuery({ page: page === 1 ? null : page });
  const from = answer.item_count === 0 ? 0 : (answer.page - 1) * answer.page_size + 1;
  return html`<nav class="pager" aria-label="Pages of this list">
    <span role="status">${formatNumber(from)}–${formatNumber(from === 0 ? 0 : from + answer.item_count - 1)} of ${formatNumber(answer.filtered_count)}${
      answer.filtered_count !== answer.total_count ? `, ${formatNumber(answer.total_count)} in all` : ''
    }</span>
    <span class="row">
      <button type="button" class="small" disabled=${list.page <= 1} onClick=${() => turn(list.page - 1)}>Previous</button>
      <span>Page ${formatNumber(answer.page)} of ${formatNumber(pages)}</span>
      <button type="button" class="small" disabled=${list.page >= pages} onClick=${() => turn(list.page + 1)}>Next</button>
    </span>
    <label class="row">Rows
      <select value=${list.size} onChange=${(event) => setQuery({ size: event.target.value, page: null })}>
        ${PAGE_SIZES.map((size) => html`<option key=${size} value=${size} selected=${size === list.size}>${size}</option>`)}
      </select>
    </label>
  </nav>`;
}

/** An answer of the broker without pages, as one page. */
function asPage(answer) {
  if (!Array.isArray(answer)) return answer;
  const count = answer.length;
  return {
    items: answer,
    item_count: count,
    filtered_count: count,
    total_count: count,
    page: 1,
    page_count: 1,
    page_size: Math.max(count, 1),
  };
}

/**
 * id: of the columns that are remembered. base: API path. keep(row): which rows of the page to show.
 * extra: of the query. Columns that are shown may add to it (`query`).
 * selection: {selected, onSelect, actions(rows, reload)} adds checkboxes and what to do with them.
 */
export function PagedList({ id, base, caption, columns, rowKey, firstSort, extra = {}, tools, selection, empty, keep = () => true }) {
  const list = useListState(firstSort);
  const chooser = useColumns(id, columns);
  const poll = usePoll(listPath(base, list, Object.assign({}, extra, ...chooser.shown.map((column) => column.query ?? {}))));
  const answer = poll.data && asPage(poll.data);
  // The last page may have gone while somebody looked at it.
  useEffect(() => {
    if (poll.error?.status === 400 && list.page > 1) setQuery({ page: null });
  }, [poll.error]);
  const rows = (answer?.items ?? []).filter(keep);
  const shown = chooser.shown.filter((column) => column.key !== 'vhost' || list.vhost === '');
  const onSort = (sort) => setQuery({ sort: sort.by, desc: sort.descending ? '1' : null, page: null });
  const picked = selection ? rows.filter((row) => selection.selected.has(rowKey(row))) : [];
  return html`<section class="list">
    <div class="toolbar">
      <${FilterInput} label="Filter by name" value=${list.name} onFilter=${(name) => setQuery({ name, page: null })} />
      <${Check} label="Regex" checked=${list.regex} onChange=${(event) => setQuery({ regex: event.target.checked ? '1' : null, page: null })} />
      <span class="space"></span>
      ${tools?.(poll.reload)}
      <${ColumnChooser} columns=${columns} chooser=${chooser} />
      <${SortPicker} columns=${shown} sort=${list.sort} onSort=${onSort} />
    </div>
    ${picked.length > 0 && html`<div class="picked" role="group" aria-label="With the selected rows"><b>${picked.length} selected</b>${selection.actions(picked, poll.reload)}</div>`}
    ${poll.error && (!answer || poll.error.status === 400) && html`<${Trouble} error=${poll.error} />`}
    ${!answer && !poll.error && html`<p class="loading" role="status">Loading…</p>`}
    ${
      answer &&
      html`<${DataTable}
        caption=${caption} cards columns=${shown} rows=${rows} rowKey=${rowKey} sort=${list.sort} busy=${poll.busy}
        selected=${selection?.selected} onSelect=${selection?.onSelect}
        empty=${list.name ? 'No name matches the filter.' : empty}
        onSort=${onSort}
      />
      ${answer.total_count > 0 && html`<${Pager} answer=${answer} list=${list} />`}`
    }
  </section>`;
}
