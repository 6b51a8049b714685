// Short messages about what was just done, read out by screen readers and gone after a while.

import { createStore, useStore } from '../store.js';
import { html } from '../ui.js';

const SHOWN_MS = 5000;
const notices = createStore([]);
let last = 0;

function close(id) {
  notices.set(notices.get().filter((notice) => notice.id !== id));
}

function add(kind, text) {
  const id = ++last;
  notices.set([...notices.get().slice(-2), { id, kind, text }]);
  // An error stays until it is closed: nobody should miss why something did not happen.
  if (kind === 'done') setTimeout(() => close(id), SHOWN_MS);
}

export const tell = (text) => add('done', text);
export const warn = (text) => add('error', text);

export function Notices() {
  const list = useStore(notices);
  return html`<div class="notices" role="status" aria-live="polite">
    ${list.map(
      (notice) => html`<div key=${notice.id} class="notice ${notice.kind}">
        <span>${notice.text}</span>
        <button type="button" class="plain" aria-label="Close this message" onClick=${() => close(notice.id)}>×</button>
      </div>`,
    )}
  </div>`;
}
