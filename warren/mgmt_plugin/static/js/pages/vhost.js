// One vhost.

import { del, path, withQuery } from '../api.js';
import { formatNumber } from '../format.js';
import { RangePicker, rangeOf, sampleQuery } from '../parts/chart.js';
import { confirmAction, openDialog } from '../parts/dialog.js';
import { Limits } from '../parts/limits.js';
import { LengthChart, RateChart, WireChart } from '../parts/message_rates.js';
import { Card, Facts, Mark, Page, pending } from '../parts/page.js';
import { Permissions } from '../parts/permissions.js';
import { VhostDialog } from '../parts/vhost_form.js';
import { usePoll } from '../refresh.js';
import { go, href, place, setQuery } from '../router.js';
import { useStore } from '../store.js';
import { html } from '../ui.js';

export default function Vhost({ name }) {
  const { query } = useStore(place);
  const range = rangeOf(query);
  const poll = usePoll(withQuery(path`vhosts/${name}`, sampleQuery(range, ['lengths', 'msg_rates', 'data_rates'])));
  const limits = usePoll(path`vhost-limits/${name}`);
  const vhost = poll.data;
  const change = async () => (await openDialog(VhostDialog, { vhost })) && poll.reload();
  async function remove() {
    const done = await confirmAction({
      title: `Delete vhost ${name}?`,
      text: `This deletes everything in ${name}: its exchanges, its queues with their messages (${formatNumber(vhost.messages ?? 0)} now), its bindings, policies and permissions. Its connections are closed.`,
      action: 'Delete vhost',
      done: `Vhost ${name} is deleted.`,
      run: () => del(path`vhosts/${name}`),
    });
    if (done) go(['vhosts']);
  }
  return html`<${Page} title=${name} crumbs=${[['Virtual hosts', href(['vhosts'])]]} marks=${vhost?.tracing && html`<${Mark} text="tracing" kind="warn" />`}
    actions=${vhost && html`<${RangePicker} range=${range} onPick=${(s) => setQuery({ range: s })} /><button type="button" onClick=${change}>Change…</button><button type="button" class="danger" onClick=${remove}>Delete…</button>`}>
    ${
      pending(poll, 'There is no such vhost.') ??
      html`<div class="cards">
      <${Card}><${LengthChart} of=${vhost} /><//>
      <${Card}><${RateChart} stats=${vhost.message_stats} /><//>
      <${Card}><${WireChart} of=${vhost} /><//>
      <${Card} title="Vhost">
        <${Facts} facts=${[
          ['Description', vhost.description],
          ['Tags', (vhost.tags ?? []).join(', ')],
          ['Tracing', vhost.tracing ? 'on' : 'off'],
          ['Default queue type', vhost.default_queue_type === 'undefined' ? null : vhost.default_queue_type],
        ]} />
        <div class="row">
          <a class="button small" href=${href(['queues'], { vhost: name })}>Queues</a>
          <a class="button small" href=${href(['exchanges'], { vhost: name })}>Exchanges</a>
          <a class="button small" href=${href(['routing'], { vhost: name })}>Routing</a>
          <a class="button small" href=${href(['policies'], { vhost: name })}>Policies</a>
        </div>
      <//>
      <${Limits} kind="vhost" name=${name} poll=${limits} />
      <${Permissions} kind="permissions" vhost=${name} />
      <${Permissions} kind="topic-permissions" vhost=${name} />
    </div>`
    }
  <//>`;
}
