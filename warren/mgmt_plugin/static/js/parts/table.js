// Tables: sorting, choosing columns, selecting rows. Columns are
// {key, label, render(row), sort?: dotted path, num?: bool, long?: bool (values), hidden?: bool (until chosen),
// fixed?: bool, title?: text, query?: what the list has to be asked for beside}. A column whose label is not a text has
// the buttons of its row. Headings without a title have the help of their field (help.js).
// On a narrow screen each row of a list is a card: its name, its numbers, the rest, long values, its buttons.

import { readStored, writeStored } from '../store.js';
import { formatNumber, pick } from '../format.js';
import { HELP } from '../help.js';
import { html, useEffect, useRef, useState } from '../ui.js';

function Heading({ column, sort, onSort }) {
  const classes = column.num ? 'numeric' : '';
  const title = column.title ?? HELP[column.label];
  if (!column.sort || !onSort) return html`<th scope="col" class=${classes} title=${title}>${column.label}</th>`;
  const active = sort?.by === column.sort;
  const order = active ? (sort.descending ? 'descending' : 'ascending') : undefined;
  // Numbers are looked at largest first.
  const next = active ? { by: column.sort, descending: !sort.descending } : { by: column.sort, descending: column.num === true };
  return html`<th scope="col" class=${classes} aria-sort=${order}>
    <button type="button" class="sort" title=${title ?? `Sort by ${column.label}`} onClick=${() => onSort(next)}>
      ${column.label}<span class="arrow" aria-hidden="true">${active ? (sort.descending ? '▾' : '▴') : ''}</span>
    </button>
  </th>`;
}

function cellClass(column) {
  if (typeof column.label !== 'string') return 'numeric act';
  return column.long ? 'long' : column.num ? 'numeric' : '';
}

function SelectAll({ keys, selected, onSelect }) {
  const box = useRef(null);
  const count = keys.filter((key) => selected.has(key)).length;
  useEffect(() => {
    box.current.indeterminate = count > 0 && count < keys.length;
  });
  return html`<th scope="col" class="pick">
    <input ref=${box} type="checkbox" aria-label="Select all rows of this page" checked=${count > 0 && count === keys.length}
      onChange=${() => onSelect(count === keys.length ? new Set() : new Set(keys))} />
  </th>`;
}

/**
 * rowKey(row) names a row; `selected` (a Set of keys) and onSelect(set) add a column of checkboxes. `empty` is said
 * instead of no rows. `cards`: rows become cards on a narrow screen.
 */
export function DataTable({ cards = false, caption, columns, rows, rowKey, sort, onSort, selected, onSelect, empty = 'Nothing here', busy = false }) {
  const keys = rows.map(rowKey);
  function toggle(key) {
    const next = new Set(selected);
    if (!next.delete(key)) next.add(key);
    onSelect(next);
  }
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
  return html`<div class="table-box ${cards ? 'as-cards' : ''}" role="region" aria-label=${caption} tabindex="0">
    <table aria-busy=${busy}>
      <caption class="unseen">${caption}</caption>
      <thead>
        <tr>
          ${selected && html`<${SelectAll} keys=${keys} selected=${selected} onSelect=${onSelect} />`}
          ${columns.map((column) => html`<${Heading} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map((row, at) => {
          const key = keys[at];
          return html`<tr key=${key} class=${selected?.has(key) ? 'selected' : ''}>
            ${selected && html`<td class="pick"><input type="checkbox" aria-label="Select ${row.name ?? key}" checked=${selected.has(key)} onChange=${() => toggle(key)} /></td>`}
            ${columns.map((column, index) =>
              index === 0
                ? html`<th key=${column.key} scope="row" class=${column.num ? 'numeric' : ''}>${column.render(row)}</th>`
                : html`<td key=${column.key} class=${cellClass(column)} data-label=${typeof column.label === 'string' ? column.label : undefined}>${column.render(row)}</td>`,
            )}
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

/** Sorting where headings are not shown, on a narrow screen. */
export function SortPicker({ columns, sort, onSort }) {
  // Columns that sort alike are one choice.
  const sorted = columns.filter((column, at) => column.sort && columns.findIndex((each) => each.sort === column.sort) === at);
  const by = sorted.find((column) => column.sort === sort?.by);
  const onChange = (event) => {
    const column = sorted.find((each) => each.sort === event.target.value);
    onSort({ by: column.sort, descending: column.num === true });
  };
  return html`<div class="sort-picker">
    <span aria-hidden="true">Sort by</span>
    <select aria-label="Sort by" value=${by?.sort} onChange=${onChange}>
      ${!by && html`<option value="" selected>…</option>`}
      ${sorted.map((column) => html`<option key=${column.key} value=${column.sort} selected=${column === by}>${column.label}</option>`)}
    </select>
    ${by && html`<button type="button" onClick=${() => onSort({ by: by.sort, descending: !sort.descending })}>${sort.descending ? 'descending' : 'ascending'}</button>`}
  </div>`;
}

/** The columns that the visitor has chosen for the table `id`, and how to choose. */
export function useColumns(id, columns) {
  const [chosen, setChosen] = useState(() => readStored(`columns.${id}`, {}));
  const isShown = (column) => column.fixed || (chosen[column.key] ?? !column.hidden);
  function choose(key, shown) {
    const next = { ...chosen, [key]: shown };
    writeStored(`columns.${id}`, next);
    setChosen(next);
  }
  function reset() {
    writeStored(`columns.${id}`, {});
    setChosen({});
  }
  return { shown: columns.filter(isShown), isShown, choose, reset };
}

export function ColumnChooser({ columns, chooser }) {
  return html`<${Menu} label="Columns">
    <fieldset class="column-list">
      <legend class="unseen">Columns to show</legend>
      ${columns
        .filter((column) => !column.fixed)
        .map(
          (column) => html`<label key=${column.key}>
          <input type="checkbox" checked=${chooser.isShown(column)} onChange=${(event) => chooser.choose(column.key, event.target.checked)} />
          ${column.long ?? column.label}
        </label>`,
        )}
    </fieldset>
    <button type="button" class="small" onClick=${chooser.reset}>Default columns</button>
  <//>`;
}

/** A button that unfolds a panel; Escape and a click elsewhere fold it. */
export function Menu({ label, children, align = 'right' }) {
  const box = useRef(null);
  useEffect(() => {
    const outside = (event) => {
      if (!box.current.contains(event.target)) box.current.open = false;
    };
    document.addEventListener('pointerdown', outside);
    return () => document.removeEventListener('pointerdown', outside);
  }, []);
  function onKeyDown(event) {
    if (event.key !== 'Escape' || !box.current.open) return;
    event.stopPropagation();
    box.current.open = false;
    box.current.querySelector('summary').focus();
  }
  return html`<details ref=${box} class="menu ${align}" onKeyDown=${onKeyDown}>
    <summary>${label}</summary>
    <div class="menu-panel">${children}</div>
  </details>`;
}

const collator = new Intl.Collator('en', { numeric: true });

function compare(a, b) {
  if (a === b) return 0;
  if (a === undefined || a === null) return 1;
  if (b === undefined || b === null) return -1;
  return typeof a === 'number' && typeof b === 'number' ? a - b : collator.compare(String(a), String(b));
}

// Each refresh draws all rows that are shown: thousands take a browser longer than the time until the next one.
const SHOWN_AT_ONCE = 500;

// The number of columns that fit a narrow screen side by side, and of those with numbers, which never wrap.
const WITHOUT_CARDS = 3;
const NUMBERS_WITHOUT_CARDS = 1;
// More cards can be sorted.
const FEW = 5;

/** A table of rows that are all here: sorts by itself, and shows more when it is asked. `first` is {by, descending}. */
export function LocalTable({ rows, first, ...table }) {
  const [sort, setSort] = useState(first ?? null);
  const sorted = sort ? [...rows].sort((a, b) => compare(pick(a, sort.by), pick(b, sort.by)) * (sort.descending ? -1 : 1)) : rows;
  const [most, setMost] = useState(SHOWN_AT_ONCE);
  const numbers = table.columns.filter((column) => column.num).length;
  const cards = table.columns.length > WITHOUT_CARDS || numbers > NUMBERS_WITHOUT_CARDS || table.columns.some((column) => column.long);
  return html`${cards && rows.length > FEW && html`<${SortPicker} columns=${table.columns} sort=${sort} onSort=${setSort} />`}
    <${DataTable} cards=${cards} ...${table} rows=${sorted.slice(0, most)} sort=${sort} onSort=${setSort} />
    ${
      rows.length > most &&
      html`<p class="pager"><span role="status">The first ${formatNumber(most)} of ${formatNumber(rows.length)}</span>
      <button type="button" class="small" onClick=${() => setMost(most + SHOWN_AT_ONCE)}>Show more</button></p>`
    }`;
}
