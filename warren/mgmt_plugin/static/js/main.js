// Starts the application: asks who is here, then shows the login or the shell.

import { Login } from './login.js';
import { closeDialogs, DialogHost } from './parts/dialog.js';
import { Notices } from './parts/notice.js';
import { chosenVhost, go, place } from './router.js';
import { routeOf } from './routes.js';
import { resumeSession, session } from './session.js';
import { Shell } from './shell.js';
import { useStore } from './store.js';
import { html, render, useEffect } from './ui.js';

function App() {
  const { state } = useStore(session);
  useEffect(() => {
    if (state === 'out') closeDialogs();
  }, [state]);
  if (state === 'unknown') return html`<p class="starting" role="status">Loading…</p>`;
  return html`${state === 'in' ? html`<${Shell} />` : html`<${Login} />`}<${DialogHost} /><${Notices} />`;
}

// A visit without an address begins in the vhost that was chosen last.
if (window.location.hash === '' && chosenVhost() !== '') go([], { vhost: chosenVhost() });
render(html`<${App} />`, document.getElementById('app'));
resumeSession();
// The page is fetched while the broker says who is here.
routeOf(place.get().path)
  ?.load()
  .catch(() => {});
