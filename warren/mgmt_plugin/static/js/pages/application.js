// The connections and channels of one application: of all clients that call themselves by one name.

import { withQuery } from '../api.js';
import { Bytes, formatNumber, Num, Rate, rateOf } from '../format.js';
import { Card, Facts, Page, pending } from '../parts/page.js';
import { LocalTable } from '../parts/table.js';
import { usePoll } from '../refresh.js';
import { listHref } from '../router.js';
import { html } from '../ui.js';
import { CHANNEL_COLUMNS } from './channels.js';
import { CONNECTION_COLUMNS } from './connections.js';

// As many as a page of the API has at most.
const MOST = 500;

const sum = (rows, valueOf) => rows.reduce((whole, row) => whole + (valueOf(row) ?? 0), 0);

/** The rows of a page whose client has this name: the filter of the API finds those that contain it. */
const named = (poll, name, nameOf) => (poll.data?.items ?? []).filter((row) => nameOf(row) === name);

export default function Application({ name }) {
  const some = { name, page: 1, page_size: MOST };
  const connections = usePoll(withQuery('connections', { ...some, sort: 'connected_at' }), { about: name });
  const channels = usePoll(withQuery('channels', some), { about: name });
  const mine = named(connections, name, (row) => row.user_provided_name);
  const opened = named(channels, name, (row) => row.connection_details?.user_provided_name);
  const complete = [connections, channels].every((poll) => (poll.data?.filtered_count ?? 0) <= MOST);
  const vhosts = [...new Set(mine.map((row) => row.vhost))].sort();
  const users = [...new Set(mine.map((row) => row.user))].sort();
  return html`<${Page} title=${name} crumbs=${[['Connections', listHref(['connections'])]]} marks=${html`<span class="hint">application</span>`}>
    ${
      pending(connections) ??
      html`${!complete && html`<p class="warning-box">More than ${formatNumber(MOST)} have this name. This page covers the first ${formatNumber(MOST)}.</p>`}
      <div class="cards">
        <${Card} title="Together" wide>
          <${Facts} facts=${[
            ['Connections', html`<${Num} value=${mine.length} />`],
            ['Channels', html`<${Num} value=${opened.length} />`],
            ['Consumers', html`<${Num} value=${sum(opened, (row) => row.consumer_count)} />`],
            ['Publish', html`<${Rate} value=${sum(opened, (row) => rateOf(row, 'publish'))} />`],
            ['Deliver and get', html`<${Rate} value=${sum(opened, (row) => rateOf(row, 'deliver_get'))} />`],
            ['Unacked', html`<${Num} value=${sum(opened, (row) => row.messages_unacknowledged)} />`],
            ['From client', html`<${Rate} value=${sum(mine, (row) => row.recv_oct_details?.rate)} bytes />`],
            ['To client', html`<${Rate} value=${sum(mine, (row) => row.send_oct_details?.rate)} bytes />`],
            ['Received', html`<${Bytes} value=${sum(mine, (row) => row.recv_oct)} />`],
            ['Sent', html`<${Bytes} value=${sum(mine, (row) => row.send_oct)} />`],
            ['Vhosts', vhosts.join(', ')],
            ['Users', users.join(', ')],
          ]} />
        <//>
        <${Card} title="Connections" wide>
          <${LocalTable} caption="Connections of this application" columns=${CONNECTION_COLUMNS.filter((column) => !column.hidden)} rows=${mine} rowKey=${(row) => row.name} empty="No client of this name is connected." />
        <//>
        <${Card} title="Channels" wide>
          <${LocalTable} caption="Channels of this application" columns=${CHANNEL_COLUMNS.filter((column) => !column.hidden)} rows=${opened} rowKey=${(row) => row.name} empty="No channel is open." />
        <//>
      </div>`
    }
  <//>`;
}
