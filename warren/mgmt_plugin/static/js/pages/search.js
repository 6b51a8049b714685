// Everything that a search finds.

import { withQuery } from '../api.js';
import { resultHref, resultTitle } from '../parts/links.js';
import { FilterInput } from '../parts/list.js';
import { Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const LIMIT = 200;
const COLUMNS = [
  { key: 'name', label: 'Name', sort: 'name', render: (item) => html`<a class="name" href=${resultHref(item)}>${resultTitle(item)}</a>` },
  { key: 'kind', label: 'Kind', sort: 'kind', render: (item) => item.kind },
  { key: 'vhost', label: 'Vhost', sort: 'vhost', render: (item) => item.vhost ?? '' },
  { key: 'detail', label: 'Detail', long: true, render: (item) => (item.kind === 'connection' ? item.name : (item.detail ?? '')) },
];

export default function Search() {
  const { query } = useStore(place);
  const text = (query.q ?? '').trim();
  const poll = usePoll(text ? withQuery('warren/search', { q: text, limit: LIMIT }) : null);
  return html`<${Page} title="Search">
    <div class="toolbar"><${FilterInput} label="Part of a name" value=${text} onFilter=${(q) => setQuery({ q })} /></div>
    ${
      text &&
      (pending(poll) ??
        html`<${LocalTable} caption="Results" columns=${COLUMNS} rows=${poll.data.items} rowKey=${(item) => JSON.stringify([item.kind, item.vhost, item.name, item.detail])} empty="No name matches." />
        ${poll.data.more && html`<p class="hint">There are more; type more of the name.</p>`}`)
    }
  <//>`;
}
