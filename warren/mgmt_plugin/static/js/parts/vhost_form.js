// Adding a vhost, or changing one.

import { path, put } from '../api.js';
import { html } from '../ui.js';
import { FormDialog } from './dialog.js';
import { Check, Field, Select } from './forms.js';
import { tell } from './notice.js';

export function VhostDialog({ vhost, titleId, close }) {
  async function submit(form) {
    const name = vhost?.name ?? form.get('name');
    await put(path`vhosts/${name}`, {
      description: form.get('description'),
      tags: form.get('tags'),
      tracing: form.has('tracing'),
      default_queue_type: form.get('type') || 'undefined',
    });
    tell(vhost ? `Vhost ${name} is changed.` : `Vhost ${name} is added.`);
    return true;
  }
  const type = ['classic', 'quorum', 'stream'].includes(vhost?.default_queue_type) ? vhost.default_queue_type : '';
  const types = [['', 'of the broker'], 'classic', 'quorum', 'stream'];
  return html`<${FormDialog} title=${vhost ? `Change vhost ${vhost.name}` : 'Add a vhost'} titleId=${titleId} action=${vhost ? 'Change' : 'Add vhost'} submit=${submit} close=${close}>
    <div class="form">
      ${!vhost && html`<${Field} label="Name" name="name" required />`}
      <${Field} label="Description" name="description" defaultValue=${vhost?.description ?? ''} />
      <${Field} label="Tags" name="tags" defaultValue=${(vhost?.tags ?? []).join(',')} hint="Separated by commas." />
      <${Select} label="Default queue type" name="type" value=${type} options=${types} />
      <${Check} label="Tracing" name="tracing" defaultChecked=${vhost?.tracing === true} hint="Copies every message to amq.rabbitmq.trace. It costs throughput." />
    </div>
  <//>`;
}
