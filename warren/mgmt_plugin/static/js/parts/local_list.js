// A list that is fetched whole: the filter works here, on the names.

import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';
import { FilterInput } from './list.js';
import { pending } from './page.js';
import { LocalTable } from './table.js';

/** poll: of usePoll; namesOf(row): the texts that the filter looks at. Other properties go to the table. */
export function LocalList({ poll, tools, namesOf = (row) => [row.name], keep = () => true, ...table }) {
  const { query } = useStore(place);
  const filter = (query.name ?? '').toLowerCase();
  const rows = (poll.data ?? []).filter(
    (row) => keep(row) && (!filter || namesOf(row).some((name) => String(name).toLowerCase().includes(filter))),
  );
  return html`<section class="list">
    <div class="toolbar">
      <${FilterInput} label="Filter by name" value=${query.name ?? ''} onFilter=${(name) => setQuery({ name })} />
      <span class="space"></span>
      ${tools}
    </div>
    ${pending(poll) ?? html`<${LocalTable} ...${table} rows=${rows} empty=${filter ? 'No name matches the filter.' : table.empty} />`}
  </section>`;
}
