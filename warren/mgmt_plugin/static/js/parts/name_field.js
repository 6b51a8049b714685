// A field for the name of a queue, an exchange or a user that exists: it offers names that contain what was typed.

import { get, withQuery } from '../api.js';
import { html, useEffect, useRef, useState } from '../ui.js';
import { Field, useId } from './forms.js';

const TYPING_MS = 200;
const OFFERED = 20;

/** base: API path of the list. Other properties go to the field. Without an answer it is a field like any other. */
export function NameField({ base, ...field }) {
  const [names, setNames] = useState([]);
  const timer = useRef(null);
  const latest = useRef(0);
  const id = useId();
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    latest.current += 1;
    setNames([]);
  }, [base]);
  async function offer(text) {
    const turn = ++latest.current;
    let found = [];
    try {
      const answer = await get(withQuery(base, { name: text, page: 1, page_size: OFFERED, columns: 'name' }));
      found = (answer.items ?? answer).map((each) => each.name).filter(Boolean);
    } catch {
      // Nothing is offered.
    }
    if (turn === latest.current) setNames(found);
  }
  function onInput(event) {
    const text = event.target.value;
    clearTimeout(timer.current);
    timer.current = setTimeout(() => offer(text), TYPING_MS);
  }
  return html`<${Field} ...${field} list=${id} onInput=${onInput} onFocus=${(event) => offer(event.target.value)} />
    <datalist id=${id}>${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>`;
}
