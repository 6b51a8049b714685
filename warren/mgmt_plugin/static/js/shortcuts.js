// Keys that work everywhere except while something is typed.

import { openDialog } from './parts/dialog.js';
import { refreshNow } from './refresh.js';
import { listHref } from './router.js';
import { MENU } from './routes.js';
import { theme } from './theme.js';
import { html, useEffect } from './ui.js';

const PREFIX_MS = 1500;

const goTo = () => MENU.flatMap(([, entries]) => entries).filter(([, , allowed, key]) => key && allowed());

function Help({ titleId, close }) {
  return html`<div>
    <h2 id=${titleId}>Keyboard shortcuts</h2>
    <div class="dialog-body">
      <dl class="shortcuts">
        <div><dt><kbd>/</kbd></dt><dd>Search</dd></div>
        <div><dt><kbd>f</kbd></dt><dd>Filter the list of this page</dd></div>
        <div><dt><kbd>r</kbd></dt><dd>Refresh now</dd></div>
        <div><dt><kbd>t</kbd></dt><dd>Switch between light and dark</dd></div>
        <div><dt><kbd>?</kbd></dt><dd>This help</dd></div>
        ${goTo().map(([, label, , key]) => html`<div key=${key}><dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${label}</dd></div>`)}
      </dl>
    </div>
    <div class="dialog-actions"><button type="button" class="primary" onClick=${() => close()}>Close</button></div>
  </div>`;
}

export const showHelp = () => openDialog(Help);

function switchTheme() {
  const dark = theme.get() === 'dark' || (theme.get() === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  theme.set(dark ? 'light' : 'dark');
}

const SINGLE = {
  '/': () => document.getElementById('search').focus(),
  f: () => document.querySelector('main .filter')?.focus(),
  r: refreshNow,
  t: switchTheme,
  '?': showHelp,
};

export function useShortcuts() {
  useEffect(() => {
    let prefixAt = -Infinity;
    function onKeyDown(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (event.target.closest('input, textarea, select, [contenteditable], dialog')) return;
      if (performance.now() - prefixAt < PREFIX_MS) {
        prefixAt = -Infinity;
        const entry = goTo().find(([, , , key]) => key === event.key);
        if (entry) window.location.hash = listHref(entry[0]);
      } else if (event.key === 'g') {
        prefixAt = performance.now();
      } else if (SINGLE[event.key]) {
        event.preventDefault();
        SINGLE[event.key]();
      }
    }
    document.addEventListener('keydown', onKeyDown);
    return () => document.removeEventListener('keydown', onKeyDown);
  }, []);
}
