// The choice of a vhost in a form.

import { usePoll } from '../refresh.js';
import { currentVhost } from '../router.js';
import { html } from '../ui.js';
import { Select } from './forms.js';

/** `all` adds a choice with the value "". Until the names are here a form without a vhost cannot be sent. */
export function VhostSelect({ label = 'Vhost', name = 'vhost', all, ...more }) {
  const vhosts = usePoll('vhosts?columns=name', { repeat: false });
  const current = currentVhost();
  const names = vhosts.data?.map((vhost) => vhost.name).sort() ?? (current ? [current] : []);
  const chosen = current || (all ? '' : names.includes('/') ? '/' : names[0]);
  return html`<${Select} label=${label} name=${name} value=${chosen} required=${!all} options=${[...(all ? [['', all]] : []), ...names]} ...${more} />`;
}
