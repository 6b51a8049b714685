// Who uses the page, and what their tags allow. The broker decides every request; this only hides what it would refuse.

import { del, get, post, setCsrfToken, setSessionHandlers } from './api.js';
import { createStore } from './store.js';

/** {state: "unknown" | "in" | "out", name, tags, note}. `note` says why the login page is shown again. */
export const session = createStore({ state: 'unknown', name: '', tags: [], note: '' });

function enter(answer) {
  setCsrfToken(answer.csrf_token);
  session.set({ state: 'in', name: answer.name, tags: answer.tags, note: '' });
}

function leave(note) {
  setCsrfToken(null);
  session.set({ state: 'out', name: '', tags: [], note });
}

/** Resolves with whether the same user is here still. */
async function renew() {
  try {
    const answer = await get('warren/session', { quiet401: true });
    const { name, tags } = session.get();
    if (answer.name === name && answer.tags.join() === tags.join()) setCsrfToken(answer.csrf_token);
    else enter(answer);
    return answer.name === name;
  } catch (error) {
    if (error.status === 401 && session.get().state === 'in') leave('The session has ended. Log in to continue at the same page.');
    return false;
  }
}

// RabbitMQ's API answers 401 also to a known user who may not see something: only the session itself tells which it is.
setSessionHandlers(renew, renew);

export async function resumeSession() {
  try {
    enter(await get('warren/session', { quiet401: true }));
  } catch (error) {
    leave(error.status === 401 ? '' : `The pages cannot begin: ${error.message}.`);
  }
}

/** Throws ApiError when the broker refuses. */
export async function logIn(username, password) {
  enter(await post('warren/session', { username, password }, { quiet401: true }));
}

/** Throws ApiError when the broker did not end the session: who is not logged out must not be told so. */
export async function logOut() {
  try {
    await del('warren/session', { quiet401: true });
  } catch (error) {
    if (error.status !== 401) throw error;
  }
  leave('You are logged out.');
}

const has = (...wanted) => wanted.some((tag) => session.get().tags.includes(tag));
export const mayAdminister = () => has('administrator');
export const mayMonitor = () => has('administrator', 'monitoring');
export const maySetPolicies = () => has('administrator', 'policymaker');
