// The colour scheme: the system's, or the one that was chosen here. Loaded first, so that the page never flashes.

import { createStoredStore } from './store.js';

export const theme = createStoredStore('theme', 'system');

function apply(choice) {
  if (choice === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}

apply(theme.get());
theme.watch(apply);

/** Call `changed` whenever colours may differ, by choice or by the system. Returns how to stop. */
export function watchColours(changed) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  system.addEventListener('change', changed);
  const stop = theme.watch(changed);
  return () => {
    system.removeEventListener('change', changed);
    stop();
  };
}
