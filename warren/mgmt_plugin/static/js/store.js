// A value that components can watch.

import { useEffect, useState } from './ui.js';

export function createStore(value) {
  const watchers = new Set();
  return {
    get: () => value,
    set(next) {
      if (next === value) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useStore(store) {
  const [value, setValue] = useState(store.get());
  useEffect(() => {
    setValue(store.get());
    return store.watch(setValue);
  }, [store]);
  return value;
}

/** A store whose value survives the visit. Storage that is full or forbidden only costs the memory. */
export function createStoredStore(key, fallback) {
  const store = createStore(readStored(key, fallback));
  store.watch((value) => writeStored(key, value));
  return store;
}

export function readStored(key, fallback) {
  try {
    const text = localStorage.getItem(`warren.${key}`);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

export function writeStored(key, value) {
  try {
    localStorage.setItem(`warren.${key}`, JSON.stringify(value));
  } catch {
    // Private windows may refuse; the choice then lasts until the page is closed.
  }
}
