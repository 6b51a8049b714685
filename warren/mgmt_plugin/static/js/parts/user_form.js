// Adding a user, or changing password and tags of one.

import { get, path, put } from '../api.js';
import { html, useState } from '../ui.js';
import { FormDialog } from './dialog.js';
import { Check, Field, Select } from './forms.js';
import { tell } from './notice.js';
import { PermissionFields, permissionsOf } from './permissions.js';
import { VhostSelect } from './vhost_select.js';

const TAGS = [
  ['management', 'uses these pages for the vhosts it may use'],
  ['policymaker', 'also sets policies and parameters there'],
  ['monitoring', 'sees everything, nodes too'],
  ['administrator', 'may do everything'],
  ['impersonator', 'may publish with the user id of another'],
];

export const tagsOf = (user) =>
  (Array.isArray(user?.tags) ? user.tags : String(user?.tags ?? '').split(',')).map((tag) => tag.trim()).filter(Boolean);

async function passwordOf(form, user) {
  const kind = form.get('kind');
  if (kind === 'keep') {
    // Another user may have changed the password since the dialog opened.
    const { password_hash, hashing_algorithm } = await get(path`users/${user.name}`);
    return { password_hash, ...(hashing_algorithm && { hashing_algorithm }) };
  }
  if (kind === 'none') return { password_hash: '' };
  if (kind === 'hash') return { password_hash: form.get('hash') };
  if (form.get('password') !== form.get('again')) throw new Error('The two passwords differ.');
  return { password: form.get('password') };
}

export function UserDialog({ user, titleId, close }) {
  const known = TAGS.map(([tag]) => tag);
  const own = tagsOf(user);
  const [kind, setKind] = useState(user ? 'keep' : 'password');
  const [vhost, setVhost] = useState('');
  const kinds = [
    ...(user ? [['keep', 'Leave it as it is']] : []),
    ['password', 'Set a password'],
    ['hash', 'Set a password hash'],
    ['none', 'No password: no login with one'],
  ];
  async function submit(form) {
    const name = user?.name ?? form.get('name');
    const others = form
      .get('others')
      .split(',')
      .map((tag) => tag.trim())
      .filter(Boolean);
    const tags = [...known.filter((tag) => form.has(`tag-${tag}`)), ...others].join(',');
    await put(path`users/${name}`, { ...(await passwordOf(form, user)), tags });
    if (vhost) await put(path`permissions/${vhost}/${name}`, permissionsOf(form));
    const then = vhost ? `It may use ${vhost}.` : 'It needs permissions for a vhost.';
    tell(user ? `User ${name} is changed.` : `User ${name} is added. ${then}`);
    return true;
  }
  return html`<${FormDialog} title=${user ? `Change user ${user.name}` : 'Add a user'} titleId=${titleId} action=${user ? 'Change' : 'Add user'} submit=${submit} close=${close}>
    <div class="form">
      ${!user && html`<${Field} label="Name" name="name" required />`}
      <${Select} label="Password" name="kind" value=${kind} options=${kinds} onChange=${(event) => setKind(event.target.value)} />
      ${kind === 'password' && html`<${Field} label="New password" name="password" type="password" autocomplete="new-password" required /><${Field} label="Again" name="again" type="password" autocomplete="new-password" required />`}
      ${kind === 'hash' && html`<${Field} label="Hash" name="hash" required hint="base64 of salt and hash" />`}
      <fieldset class="column-list">
        <legend>Tags</legend>
        ${TAGS.map(([tag, means]) => html`<${Check} key=${tag} label=${tag} name="tag-${tag}" defaultChecked=${own.includes(tag)} hint=${means} />`)}
      </fieldset>
      <${Field} label="Other tags" name="others" defaultValue=${own.filter((tag) => !known.includes(tag)).join(', ')} hint="Separated by commas." />
      ${
        !user &&
        html`<${VhostSelect} all="none yet" value=${vhost} onChange=${(event) => setVhost(event.target.value)} hint="Where it may work." />
        ${vhost && html`<${PermissionFields} />`}`
      }
    </div>
  <//>`;
}
