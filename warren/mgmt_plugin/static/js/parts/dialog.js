// Modal dialogs as promises. The browser's own <dialog> keeps the focus inside, closes on Escape and gives it back.

import { createStore, useStore } from '../store.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { tell } from './notice.js';

const open = createStore([]);
let last = 0;

/**
 * Show `Content` with `props` and `close`. Resolves with what is given to `close`, undefined when it is dismissed.
 */
export function openDialog(Content, props = {}) {
  return new Promise((resolve) => {
    const id = ++last;
    // Gets the focus back. When the dialog is drawn, another element may have it: that of a page that has just loaded.
    const opener = document.activeElement;
    const close = (answer) => {
      open.set(open.get().filter((entry) => entry.id !== id));
      resolve(answer);
    };
    open.set([...open.get(), { id, Content, props, close, opener }]);
  });
}

function Frame({ entry }) {
  const box = useRef(null);
  const { Content, props, close, opener } = entry;
  useEffect(() => {
    box.current.showModal();
    // What has to be written comes first; choices before it have been made already.
    box.current.querySelector('input:not([type=checkbox], [type=radio]), textarea')?.focus();
    return () => opener?.isConnected && opener.focus();
  }, []);
  return html`<dialog
    ref=${box}
    aria-labelledby="dialog-title-${entry.id}"
    class=${props.wide ? 'wide' : ''}
    onCancel=${(event) => {
      if (event.target !== box.current) return;
      event.preventDefault();
      close();
    }}
  >
    <${Content} ...${props} close=${close} titleId="dialog-title-${entry.id}" />
  </dialog>`;
}

export function DialogHost() {
  return useStore(open).map((entry) => html`<${Frame} key=${entry.id} entry=${entry} />`);
}

export function closeDialogs() {
  for (const entry of [...open.get()].reverse()) entry.close();
}

/**
 * A form in a dialog: `submit` may throw, and its reason is shown above the buttons while the form stays as it is.
 */
export function FormDialog({ title, titleId, action, danger = false, submit, close, children, disabled = false }) {
  const [error, setError] = useState('');
  const [busy, setBusy] = useState(false);
  const refusal = useRef(null);
  // A long form does not show its end.
  useEffect(() => {
    if (error) refusal.current.scrollIntoView({ block: 'nearest' });
  }, [error]);
  async function onSubmit(event) {
    event.preventDefault();
    setBusy(true);
    setError('');
    try {
      close(await submit(new FormData(event.target)));
    } catch (failed) {
      setError(failed.message);
      setBusy(false);
    }
  }
  return html`<form onSubmit=${onSubmit}>
    <h2 id=${titleId}>${title}</h2>
    <div class="dialog-body">${children}</div>
    <p ref=${refusal} class="form-error" role="alert">${error}</p>
    <div class="dialog-actions">
      <button type="button" onClick=${() => close()}>Cancel</button>
      <button type="submit" class=${danger ? 'danger' : 'primary'} disabled=${busy || disabled}>${busy ? 'Working…' : action}</button>
    </div>
  </form>`;
}

function Confirmation({ title, titleId, text, detail, action, run, danger, close }) {
  return html`<${FormDialog} title=${title} titleId=${titleId} action=${action} danger=${danger} submit=${run} close=${close}>
    <p>${text}</p>
    ${detail && html`<p class="hint">${detail}</p>`}
  <//>`;
}

/**
 * Ask before something is lost. `run` does it while the dialog is open; `done` is told afterwards.
 * Resolves true when it was done.
 */
export async function confirmAction({ title, text, detail = '', action, run, done, danger = true }) {
  const answer = await openDialog(Confirmation, {
    title,
    text,
    detail,
    action,
    danger,
    run: async () => {
      await run();
      return true;
    },
  });
  if (answer && done) tell(done);
  return answer === true;
}
