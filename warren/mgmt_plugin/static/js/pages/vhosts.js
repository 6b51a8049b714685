// All vhosts.

import { Num, Rate, rateOf, someOf } from '../format.js';
import { openDialog } from '../parts/dialog.js';
import { VhostLink } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { Mark, Page, State } from '../parts/page.js';
import { VhostDialog } from '../parts/vhost_form.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';

const states = (vhost) => [...new Set(Object.values(vhost.cluster_state ?? {}))];

const columns = (permissions) => [
  {
    key: 'name',
    label: 'Name',
    sort: 'name',
    render: (vhost) => html`<${VhostLink} name=${vhost.name} />${vhost.description && html`<br /><small>${vhost.description}</small>`}`,
  },
  {
    key: 'tags',
    label: 'Tags',
    render: (vhost) =>
      html`<span class="marks">${(vhost.tags ?? []).map((tag) => html`<${Mark} key=${tag} text=${tag} />`)}${vhost.tracing && html`<${Mark} text="tracing" kind="warn" />`}</span>`,
  },
  {
    key: 'users',
    label: 'Users',
    long: true,
    render: (vhost) => permissions.data && someOf(permissions.data.filter((row) => row.vhost === vhost.name).map((row) => row.user)),
  },
  { key: 'state', label: 'State', render: (vhost) => states(vhost).map((state) => html`<${State} key=${state} value=${state} />`) },
  {
    key: 'ready',
    label: 'Ready',
    sort: 'messages_ready',
    num: true,
    render: (vhost) => html`<${Num} value=${vhost.messages_ready ?? 0} />`,
  },
  {
    key: 'unacked',
    label: 'Unacked',
    sort: 'messages_unacknowledged',
    num: true,
    render: (vhost) => html`<${Num} value=${vhost.messages_unacknowledged ?? 0} />`,
  },
  { key: 'total', label: 'Total', sort: 'messages', num: true, render: (vhost) => html`<${Num} value=${vhost.messages ?? 0} />` },
  {
    key: 'publish',
    label: 'In',
    sort: 'message_stats.publish_details.rate',
    num: true,
    render: (vhost) => html`<${Rate} value=${rateOf(vhost, 'publish')} />`,
  },
  {
    key: 'deliver',
    label: 'Out',
    sort: 'message_stats.deliver_get_details.rate',
    num: true,
    render: (vhost) => html`<${Rate} value=${rateOf(vhost, 'deliver_get')} />`,
  },
  {
    key: 'recv',
    label: 'From clients',
    sort: 'recv_oct_details.rate',
    num: true,
    render: (vhost) => html`<${Rate} value=${vhost.recv_oct_details?.rate} bytes />`,
  },
  {
    key: 'send',
    label: 'To clients',
    sort: 'send_oct_details.rate',
    num: true,
    render: (vhost) => html`<${Rate} value=${vhost.send_oct_details?.rate} bytes />`,
  },
];

export default function Vhosts() {
  const poll = usePoll('vhosts');
  const permissions = usePoll('permissions');
  const add = async () => (await openDialog(VhostDialog)) && poll.reload();
  return html`<${Page} title="Virtual hosts">
    <${LocalList} poll=${poll} caption="Virtual hosts" columns=${columns(permissions)} rowKey=${(vhost) => vhost.name} first=${{ by: 'name', descending: false }}
      tools=${html`<button type="button" class="primary" onClick=${add}>Add vhost</button>`} />
  <//>`;
}
