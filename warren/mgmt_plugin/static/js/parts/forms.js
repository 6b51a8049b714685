// Fields and the editor of AMQP arguments.

import { html, useRef, useState } from '../ui.js';
import { nearest } from './nearest.js';

let lastId = 0;

export function useId() {
  const id = useRef(null);
  id.current ??= `field-${++lastId}`;
  return id.current;
}

/**
 * What a form on a page does when it is sent, `run(form)`, once at a time: {onSubmit, busy, error}. What `run` throws is
 * the error until the form is sent again.
 */
export function useSubmit(run) {
  const running = useRef(false);
  const [state, setState] = useState({ busy: false, error: '' });
  async function onSubmit(event) {
    event.preventDefault();
    if (running.current) return;
    running.current = true;
    setState({ busy: true, error: '' });
    let error = '';
    try {
      await run(event.target);
    } catch (failed) {
      error = failed.message;
    }
    running.current = false;
    setState({ busy: false, error });
  }
  return { ...state, onSubmit };
}

/** A labelled input. Other properties go to the <input>. */
export function Field({ label, hint, wide = false, ...input }) {
  const id = useId();
  return html`<div class="field ${wide ? 'wide' : ''}">
    <label for=${id}>${label}</label>
    <input id=${id} type="text" autocomplete="off" spellcheck=${false} aria-describedby=${hint ? `${id}-hint` : undefined} ...${input} />
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;
}

export function TextArea({ label, hint, ...input }) {
  const id = useId();
  return html`<div class="field wide">
    <label for=${id}>${label}</label>
    <textarea id=${id} rows="6" spellcheck=${false} aria-describedby=${hint ? `${id}-hint` : undefined} ...${input} />
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;
}

/**
 * options: texts, or [value, label] pairs. Without onChange `value` is only where it begins: what was chosen since must
 * survive the next refresh.
 */
export function Select({ label, hint, options, value, wide = false, ...input }) {
  const id = useId();
  const held = input.onChange ? { value } : {};
  return html`<div class="field ${wide ? 'wide' : ''}">
    <label for=${id}>${label}</label>
    <select id=${id} aria-describedby=${hint ? `${id}-hint` : undefined} ...${held} ...${input}>
      ${options.map((option) => {
        const [optionValue, text] = Array.isArray(option) ? option : [option, option];
        return html`<option key=${optionValue} value=${optionValue} selected=${optionValue === value}>${text}</option>`;
      })}
    </select>
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;
}

export function Check({ label, hint, ...input }) {
  const id = useId();
  return html`<div class="field check">
    <input id=${id} type="checkbox" aria-describedby=${hint ? `${id}-hint` : undefined} ...${input} />
    <label for=${id}>${label}</label>
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;
}

const KINDS = [
  ['string', 'Text'],
  ['number', 'Number'],
  ['boolean', 'Yes/no'],
  ['json', 'JSON'],
];

const KIND_LABELS = new Map(KINDS);

/** Whether the broker would refuse the type of a row. Values that are JSON may be written as text, too. */
const needsOther = (hint, row) => row.kind !== hint.kind && hint.kind !== 'json';

/** Read a row of the editor. Throws Error that names the key. */
function readRow({ key, kind, text }) {
  if (kind === 'number') {
    const digits = text.trim().replaceAll('_', '');
    const value = Number(digits);
    if (digits === '' || !Number.isFinite(value)) throw new Error(`${key}: "${text}" is not a number`);
    if (/^[-+]?\d+$/.test(digits) && !Number.isSafeInteger(value))
      throw new Error(`${key}: browsers cannot send ${digits} as it is, only whole numbers below 2^53; warren ctl can`);
    return value;
  }
  if (kind === 'boolean') return text === 'true';
  if (kind === 'json') {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`${key}: the value is not JSON`);
    }
  }
  return text;
}

/** Rows of the editor -> arguments. Rows without a key are left out. */
export function readArguments(rows) {
  return Object.fromEntries(rows.filter((row) => row.key.trim() !== '').map((row) => [row.key.trim(), readRow(row)]));
}

/** Arguments -> rows of the editor. */
export function rowsOf(values) {
  return Object.entries(values ?? {}).map(([key, value]) => {
    const kind = typeof value === 'object' ? 'json' : typeof value;
    return { key, kind, text: kind === 'json' ? JSON.stringify(value) : String(value) };
  });
}

function ValueInput({ row, change, label, choices }) {
  if (row.kind === 'boolean') {
    return html`<select aria-label=${label} value=${row.text || 'true'} onChange=${(event) => change({ text: event.target.value })}>
      <option value="true">true</option>
      <option value="false">false</option>
    </select>`;
  }
  const listId = useId();
  return html`<input
      type="text" aria-label=${label} placeholder="value" value=${row.text} spellcheck=${false} autocomplete="off"
      inputmode=${row.kind === 'number' ? 'numeric' : undefined} list=${choices ? listId : undefined}
      onInput=${(event) => change({ text: event.target.value })}
    />${choices && html`<datalist id=${listId}>${choices.map((choice) => html`<option key=${choice} value=${choice} />`)}</datalist>`}`;
}

/** Said of a key that is not known; the known key that was probably meant takes its place when it is pressed. */
function Unknown({ row, text, hints, change }) {
  const near = nearest(hints, row.key);
  return html`<p class="hint">${text}
    ${near && html` Did you mean <button type="button" class="link mono" onClick=${() => change({ key: near.key, kind: near.kind })}>${near.key}</button>?`}</p>`;
}

/**
 * Keys with typed values. `hints`: [{key, kind, text, choices?, group?}] offers known keys and says what they mean, at once
 * if they are on `offer`. `unknown` is said of any other key.
 */
export function ArgumentsEditor({ legend, rows, onChange, hints = [], offer = false, unknown }) {
  const [asked, setAsked] = useState(offer);
  const change = (at, part) => onChange(rows.map((row, index) => (index === at ? { ...row, ...part } : row)));
  const free = hints.filter((hint) => !rows.some((row) => row.key === hint.key));
  const groups = [...new Set(free.map((hint) => hint.group ?? 'Keys'))];
  const listId = useId();
  function add(hint) {
    const text = hint.kind === 'boolean' ? 'true' : (hint.preset ?? '');
    const kept = rows.filter((row) => row.key !== '' || row.text !== '');
    onChange([...kept, { key: hint.key, kind: hint.kind, text }]);
  }
  return html`<fieldset class="arguments">
    <legend>${legend}</legend>
    ${rows.map((row, at) => {
      const hint = hints.find((known) => known.key === row.key);
      return html`<div class="argument" key=${at}>
        <input
          type="text" aria-label="Key ${at + 1}" placeholder="key" value=${row.key} spellcheck=${false} autocomplete="off" list=${listId}
          onInput=${(event) => {
            const known = hints.find((each) => each.key === event.target.value);
            change(at, { key: event.target.value, ...(known && { kind: known.kind }) });
          }}
        />
        <select aria-label="Type of value ${at + 1}" value=${row.kind} onChange=${(event) => change(at, { kind: event.target.value, text: event.target.value === 'boolean' ? 'true' : row.text })}>
          ${KINDS.map(([kind, label]) => html`<option key=${kind} value=${kind}>${label}</option>`)}
        </select>
        <${ValueInput} row=${row} label="Value ${at + 1}" choices=${hint?.choices} change=${(part) => change(at, part)} />
        <button type="button" class="plain" aria-label="Remove ${row.key || 'this row'}" onClick=${() => onChange(rows.filter((_, index) => index !== at))}>×</button>
        ${hint ? html`<p class="hint">${hint.text}${needsOther(hint, row) && html` <b>Choose the type ${KIND_LABELS.get(hint.kind)}.</b>`}</p>` : unknown && row.key.trim() && html`<${Unknown} row=${row} text=${unknown} hints=${free} change=${(part) => change(at, part)} />`}
      </div>`;
    })}
    <datalist id=${listId}>${free.map((hint) => html`<option key=${hint.key} value=${hint.key} />`)}</datalist>
    <div class="row">
      <button type="button" class="small" onClick=${() => onChange([...rows, { key: '', kind: 'string', text: '' }])}>Add a row</button>
      ${free.length > 0 && html`<button type="button" class="small plain" aria-expanded=${asked} onClick=${() => setAsked(!asked)}>${asked ? 'Hide' : 'Show'} known keys</button>`}
    </div>
    ${
      asked &&
      html`<div class="hints">
      ${groups.map(
        (group) => html`<div key=${group}>
          <h3>${group}</h3>
          <ul>
            ${free
              .filter((hint) => (hint.group ?? 'Keys') === group)
              .map(
                (hint) => html`<li key=${hint.key}>
                <button type="button" class="small" onClick=${() => add(hint)}>${hint.key}</button>
                <span class="hint">${hint.text}</span>
              </li>`,
              )}
          </ul>
        </div>`,
      )}
    </div>`
    }
  </fieldset>`;
}
