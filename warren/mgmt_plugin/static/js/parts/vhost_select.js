// The choice of a vhost in a form.

import { usePoll } from '../refresh.js';
import { currentVhost } from '../router.js';
import { html } from '../ui.js';
import { Select } from './forms.js';

/** `all` adds a choice with the value "". */
export function VhostSelect({ label = 'Vhost', name = 'vhost', all, ...more }) {
  const vhosts = usePoll('vhosts?columns=name', { repeat: false });
  const names = (vhosts.data ?? []).map((vhost) => vhost.name).sort();
  const chosen = currentVhost() || (all ? '' : names.includes('/') ? '/' : names[0]);
  return html`<${Select} label=${label} name=${name} value=${chosen} options=${[...(all ? [['', all]] : []), ...names]} ...${more} />`;
}
