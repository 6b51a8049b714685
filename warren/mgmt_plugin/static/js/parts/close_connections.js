// Closing connections, one or many at once, with a reason that their clients get.

import { del, path } from '../api.js';
import { formatNumber } from '../format.js';
import { html } from '../ui.js';
import { FormDialog, openDialog } from './dialog.js';
import { Field } from './forms.js';
import { tell, warn } from './notice.js';

// Headers of HTTP are Latin-1; what does not fit is replaced rather than refused.
const encodeReason = (text) => text.replace(/[^\x20-\x7e\xa1-\xff]/g, '?');

function CloseDialog({ names, called, titleId, close }) {
  const one = names.length === 1;
  async function submit(form) {
    const reason = form.get('reason').trim();
    const refused = [];
    for (const name of names) {
      try {
        await del(path`connections/${name}`, { headers: reason ? { 'X-Reason': encodeReason(reason) } : {} });
      } catch (error) {
        refused.push(one ? error.message : `${name}: ${error.message}`);
      }
    }
    if (refused.length === names.length) throw new Error(refused.slice(0, 5).join('\n'));
    if (refused.length > 0) warn(`Not all: ${refused.slice(0, 5).join('; ')}`);
    tell(one ? `Closed ${called}.` : `Closed ${formatNumber(names.length - refused.length)} of ${formatNumber(names.length)} connections.`);
    return true;
  }
  return html`<${FormDialog} title=${one ? `Close ${called}?` : `Close ${formatNumber(names.length)} connections?`} titleId=${titleId}
    action=${one ? 'Close connection' : 'Close connections'} danger submit=${submit} close=${close}>
    <p>${one ? 'The client loses its channels and its' : 'The clients lose their channels and their'} unacknowledged deliveries are returned to their queues. Most clients connect again.</p>
    <${Field} label="Reason" name="reason" hint=${`${one ? 'The client' : 'Each client'} and the log of the broker get it.`} />
  <//>`;
}

/** Ask for a reason and close connections by their names; `called`: what the user knows a single one as. */
export const closeConnections = (names, called = names[0]) => openDialog(CloseDialog, { names, called });
