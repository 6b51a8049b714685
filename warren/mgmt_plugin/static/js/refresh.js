// Keeping what is shown up to date. Every poll of the page runs on one timer, which rests while the tab is hidden. A poll
// that fails keeps the data it had; the failure is shown once for the whole page.

import { get } from './api.js';
import { session } from './session.js';
import { createStore, createStoredStore } from './store.js';
import { useCallback, useEffect, useRef, useState } from './ui.js';

export const CHOICES_S = [5, 10, 30, 0];

/** Seconds between two refreshes; 0 is off. */
export const interval = createStoredStore('refresh', 5);
/** Why the last refresh failed, or null. */
export const failure = createStore(null);
/** When the last refresh went well, ms. */
export const freshness = createStore(Date.now());

// How long an answer may take before what is shown counts as old.
const LATE_MS = 5000;

const NOTHING_YET = { data: null, error: null, busy: true };

// Each poll, and whether the timer runs it too.
const polls = new Map();
const failed = new Map();
let timer = null;

function note(poll, reason) {
  if (reason === null) failed.delete(poll);
  else failed.set(poll, reason);
  const [first] = failed.values();
  failure.set(first ?? null);
}

function schedule() {
  clearTimeout(timer);
  timer = null;
  if (interval.get() > 0 && !document.hidden) timer = setTimeout(() => refresh(false), interval.get() * 1000);
}

function refresh(all) {
  if (session.get().state === 'in') for (const [poll, repeats] of [...polls]) if (all || repeats) poll();
  schedule();
}

export const refreshNow = () => refresh(true);

interval.watch(schedule);
document.addEventListener('visibilitychange', () => (document.hidden ? schedule() : refresh(false)));
schedule();

/**
 * Data of one API path, again and again; without `repeat` only at first and when somebody asks for it. null as path asks
 * nothing.
 * Returns {data, error, busy, reload}: `error` only while there is no data to show, or when the object is gone.
 * With another query the old data stays until the new is here: the same list in another order. What is `about` something
 * else, another path if nothing is said, is not shown for it.
 */
export function usePoll(apiPath, { repeat = true, about = apiPath?.split('?', 1)[0] } = {}) {
  const [state, setState] = useState({ about, ...NOTHING_YET });
  const running = useRef(null);
  const asked = useRef(0);

  const load = useCallback(async () => {
    if (apiPath === null) return;
    if (running.current) {
      if (Date.now() - asked.current > LATE_MS) note(load, 'the broker has not answered yet');
      return;
    }
    const abort = new AbortController();
    running.current = abort;
    asked.current = Date.now();
    try {
      const data = await get(apiPath, { signal: abort.signal });
      if (running.current !== abort) return;
      note(load, null);
      freshness.set(Date.now());
      setState({ about, data, error: null, busy: false });
    } catch (error) {
      if (running.current !== abort || error.name === 'AbortError') return;
      // A missing object is not a failure of the refresh: the page says that it is gone.
      note(load, error.status === 404 || error.status === 401 ? null : error.message);
      setState((old) => ({ about, data: error.status === 404 || old.about !== about ? null : old.data, error, busy: false }));
    } finally {
      if (running.current === abort) running.current = null;
    }
  }, [apiPath]);

  useEffect(() => {
    polls.set(load, repeat);
    setState((old) => ({ ...old, busy: true }));
    load();
    return () => {
      polls.delete(load);
      note(load, null);
      running.current?.abort();
      running.current = null;
    };
  }, [load, repeat]);

  // After a change the answer under way may be older than the change.
  const reload = useCallback(() => {
    running.current?.abort();
    running.current = null;
    return load();
  }, [load]);

  return { ...(state.about === about ? state : NOTHING_YET), reload };
}
