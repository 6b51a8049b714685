// One user.

import { del, path } from '../api.js';
import { confirmAction, openDialog } from '../parts/dialog.js';
import { Limits } from '../parts/limits.js';
import { Card, Facts, Mark, Page, pending } from '../parts/page.js';
import { Permissions } from '../parts/permissions.js';
import { tagsOf, UserDialog } from '../parts/user_form.js';
import { usePoll } from '../refresh.js';
import { go, href } from '../router.js';
import { session } from '../session.js';
import { html } from '../ui.js';

export default function User({ name }) {
  const poll = usePoll(path`users/${name}`);
  const limits = usePoll(path`user-limits/${name}`);
  const user = poll.data;
  const change = async () => (await openDialog(UserDialog, { user })) && poll.reload();
  async function remove() {
    const done = await confirmAction({
      title: `Delete user ${name}?`,
      text: `${name} can no longer log in. Its permissions are deleted, too.`,
      detail: name === session.get().name ? 'This is the user you are logged in with.' : '',
      action: 'Delete user',
      done: `User ${name} is deleted.`,
      run: () => del(path`users/${name}`),
    });
    if (done) go(['users']);
  }
  return html`<${Page} title=${name} crumbs=${[['Users', href(['users'])]]}
    actions=${user && html`<button type="button" onClick=${change}>Change password or tags…</button><button type="button" class="danger" onClick=${remove}>Delete…</button>`}>
    ${
      pending(poll, 'There is no such user.') ??
      html`<div class="cards">
      <${Card} title="User">
        <${Facts} facts=${[
          [
            'Tags',
            html`<span class="marks">${tagsOf(user).map((tag) => html`<${Mark} key=${tag} text=${tag} />`)}${tagsOf(user).length === 0 && 'none'}</span>`,
          ],
          ['Password', user.password_hash ? 'yes' : 'no'],
          ['Hash', user.hashing_algorithm],
        ]} />
      <//>
      <${Limits} kind="user" name=${name} poll=${limits} />
      <${Permissions} kind="permissions" user=${name} />
      <${Permissions} kind="topic-permissions" user=${name} />
    </div>`
    }
  <//>`;
}
