// The search of the top bar: a combobox whose results are links.

import { get, withQuery } from './api.js';
import { go } from './router.js';
import { resultHref, resultTitle } from './parts/links.js';
import { html, useEffect, useRef, useState } from './ui.js';

const TYPING_MS = 200;
const SHOWN = 8;

export function SearchBox() {
  const [text, setText] = useState('');
  const [items, setItems] = useState([]);
  const [open, setOpen] = useState(false);
  const [active, setActive] = useState(-1);
  const box = useRef(null);

  useEffect(() => {
    setActive(-1);
    if (text.trim() === '') return setItems([]);
    const abort = new AbortController();
    const timer = setTimeout(async () => {
      let found = [];
      try {
        found = (await get(withQuery('warren/search', { q: text.trim(), limit: SHOWN }), { signal: abort.signal })).items;
      } catch {
        if (abort.signal.aborted) return;
      }
      // Whatever was chosen meanwhile, was chosen among other results.
      setActive(-1);
      setItems(found);
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text]);

  useEffect(() => {
    const outside = (event) => !box.current.contains(event.target) && setOpen(false);
    document.addEventListener('pointerdown', outside);
    return () => document.removeEventListener('pointerdown', outside);
  }, []);

  function leave() {
    setOpen(false);
    setText('');
  }

  function onKeyDown(event) {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      if (items.length > 0) setActive((active + (event.key === 'ArrowDown' ? 1 : items.length + (active < 0 ? 0 : -1))) % items.length);
      setOpen(true);
    } else if (event.key === 'Escape') {
      if (open) setOpen(false);
      else setText('');
    } else if (event.key === 'Enter') {
      event.preventDefault();
      if (active >= 0) window.location.hash = resultHref(items[active]);
      else if (text.trim() !== '') go(['search'], { q: text.trim() });
      leave();
    }
  }

  const shown = open && text.trim() !== '';
  return html`<div class="search" ref=${box} role="search">
    <input
      id="search" type="search" role="combobox" aria-label="Search everything" placeholder="Search  ( / )" autocomplete="off" spellcheck=${false}
      aria-expanded=${shown && items.length > 0} aria-controls="search-results" aria-autocomplete="list"
      aria-activedescendant=${active >= 0 ? `search-result-${active}` : undefined}
      value=${text}
      onInput=${(event) => {
        setText(event.target.value);
        setOpen(true);
      }}
      onFocus=${() => setOpen(true)} onKeyDown=${onKeyDown}
    />
    ${
      shown &&
      html`<div class="search-panel">
      <ul id="search-results" role="listbox" aria-label="Results">
        ${items.map(
          (
            item,
            at,
          ) => html`<li key=${`${item.kind}/${item.vhost}/${item.name}/${at}`} id="search-result-${at}" role="option" aria-selected=${at === active}>
            <a href=${resultHref(item)} tabindex="-1" onClick=${leave}><span class="kind">${item.kind}</span><span class="name" title=${item.name}>${resultTitle(item)}</span>${item.vhost && html`<span class="hint">${item.vhost}</span>`}</a>
          </li>`,
        )}
      </ul>
      <p class="hint" role="status">${items.length === 0 ? 'Nothing found so far.' : 'Enter shows everything that was found.'}</p>
    </div>`
    }
  </div>`;
}
