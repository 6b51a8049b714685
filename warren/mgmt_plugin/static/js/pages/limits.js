// Limits of all vhosts and users.

import { Limits } from '../parts/limits.js';
import { Page } from '../parts/page.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';

export default function LimitsPage() {
  const vhosts = usePoll('vhost-limits');
  const users = usePoll('user-limits');
  return html`<${Page} title="Limits">
    <div class="cards"><${Limits} kind="vhost" poll=${vhosts} /><${Limits} kind="user" poll=${users} /></div>
  <//>`;
}
