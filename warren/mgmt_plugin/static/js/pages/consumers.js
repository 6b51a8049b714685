// All consumers, the slowest first.

import { path } from '../api.js';
import { CONSUMER_COLUMNS, consumerKey, END_COLUMN, SLOWEST_FIRST } from '../parts/consumers.js';
import { PagedList } from '../parts/list.js';
import { Page } from '../parts/page.js';
import { currentVhost, place } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

const COLUMNS = [...CONSUMER_COLUMNS, END_COLUMN];

export default function Consumers() {
  useStore(place);
  const vhost = currentVhost();
  return html`<${Page} title="Consumers">
    <${PagedList}
      id="consumers" caption="Consumers" base=${vhost ? path`consumers/${vhost}` : 'consumers'} columns=${COLUMNS}
      rowKey=${consumerKey} firstSort=${SLOWEST_FIRST} empty="There is no consumer."
    />
  <//>`;
}
