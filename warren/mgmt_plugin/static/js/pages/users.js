// All users.

import { someOf } from '../format.js';
import { openDialog } from '../parts/dialog.js';
import { UserLink } from '../parts/links.js';
import { LocalList } from '../parts/local_list.js';
import { Mark, Page } from '../parts/page.js';
import { tagsOf, UserDialog } from '../parts/user_form.js';
import { usePoll } from '../refresh.js';
import { html } from '../ui.js';

export default function Users() {
  const users = usePoll('users');
  const permissions = usePoll('permissions');
  const vhostsOf = (name) => permissions.data.filter((row) => row.user === name).map((row) => row.vhost);
  async function add() {
    if (!(await openDialog(UserDialog))) return;
    users.reload();
    permissions.reload();
  }
  const columns = [
    { key: 'name', label: 'Name', sort: 'name', render: (user) => html`<${UserLink} name=${user.name} />` },
    {
      key: 'tags',
      label: 'Tags',
      render: (user) => html`<span class="marks">${tagsOf(user).map((tag) => html`<${Mark} key=${tag} text=${tag} />`)}</span>`,
    },
    {
      key: 'vhosts',
      label: 'May use',
    long: true,
      render: (user) => permissions.data && (someOf(vhostsOf(user.name)) || html`<${Mark} text="no vhost" kind="warn" />`),
    },
    { key: 'password', label: 'Password', render: (user) => (user.password_hash ? 'yes' : 'no') },
  ];
  return html`<${Page} title="Users">
    <${LocalList} poll=${users} caption="Users" columns=${columns} rowKey=${(user) => user.name} first=${{ by: 'name', descending: false }}
      tools=${html`<button type="button" class="primary" onClick=${add}>Add user</button>`} />
  <//>`;
}
