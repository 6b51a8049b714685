// The login page. It stands in for the page that was asked for: the address stays, so logging in shows that page.

import { Field } from './parts/forms.js';
import { logIn, session } from './session.js';
import { useStore } from './store.js';
import { html, useEffect, useRef, useState } from './ui.js';

export function Login() {
  const { note } = useStore(session);
  const [error, setError] = useState('');
  const [busy, setBusy] = useState(false);
  const form = useRef(null);
  useEffect(() => {
    document.title = 'Log in – Warren';
    form.current.querySelector('input').focus();
  }, []);
  async function onSubmit(event) {
    event.preventDefault();
    const { username, password } = Object.fromEntries(new FormData(event.target));
    setBusy(true);
    setError('');
    try {
      await logIn(username, password);
    } catch (failed) {
      setError(failed.status === 401 ? 'No user has this name and password, or the user may not manage the broker.' : failed.message);
      setBusy(false);
      form.current.querySelector('[type=password]').select();
    }
  }
  return html`<main class="login">
    <form ref=${form} onSubmit=${onSubmit}>
      <img src="favicon.svg" alt="" width="44" height="44" />
      <h1>Warren</h1>
      ${note && html`<p class="hint" role="status">${note}</p>`}
      <${Field} label="Username" name="username" autocomplete="username" required />
      <${Field} label="Password" name="password" type="password" autocomplete="current-password" />
      <p class="form-error" role="alert">${error}</p>
      <button type="submit" class="primary" disabled=${busy}>${busy ? 'Logging in…' : 'Log in'}</button>
    </form>
  </main>`;
}
