// Bindings of a queue or an exchange: what there is, adding one, removing one.

import { del, path, post } from '../api.js';
import { html, useState } from '../ui.js';
import { confirmAction } from './dialog.js';
import { ArgumentsEditor, Field, readArguments, Select, useSubmit } from './forms.js';
import { DestinationLink, ExchangeLink, exchangeKey, exchangeLabel } from './links.js';
import { FilterInput } from './list.js';
import { NameField } from './name_field.js';
import { tell } from './notice.js';
import { Card, Fields } from './page.js';
import { LocalTable } from './table.js';

// More bindings have a filter.
const FILTERED = 20;

const letterOf = (type) => (type === 'queue' ? 'q' : 'e');
const labelOf = (type, name) => (type === 'queue' ? `queue ${name}` : `exchange ${exchangeLabel(name)}`);

function remove(binding, reload) {
  const { vhost, source, destination, destination_type: type } = binding;
  return confirmAction({
    title: 'Remove this binding?',
    text: `From exchange ${exchangeLabel(source)} to ${labelOf(type, destination)}, routing key “${binding.routing_key}”.`,
    detail: 'Messages that only this binding routes will be dropped or returned.',
    action: 'Remove binding',
    done: 'The binding is removed.',
    run: () =>
      del(path`bindings/${vhost}/e/${exchangeKey(source)}/${letterOf(type)}/${destination}/` + encodeURIComponent(binding.properties_key)),
  }).then((done) => done && reload());
}

function columns(side, reload) {
  const other =
    side === 'source'
      ? {
          key: 'source',
          label: 'From',
          sort: 'source',
          render: (each) => html`<${ExchangeLink} vhost=${each.vhost} name=${each.source} />`,
        }
      : {
          key: 'destination',
          label: 'To',
          sort: 'destination',
          render: (each) => html`<${DestinationLink} of=${each} />`,
        };
  return [
    other,
    {
      key: 'key',
      label: 'Routing key',
      long: true,
      sort: 'routing_key',
      render: (each) =>
        each.routing_key === '' ? html`<span class="none">(empty)</span>` : html`<span class="mono">${each.routing_key}</span>`,
    },
    { key: 'arguments', label: 'Arguments', long: true, render: (each) => html`<${Fields} values=${each.arguments} empty="" />` },
    {
      key: 'remove',
      label: html`<span class="unseen">Remove</span>`,
      num: true,
      render: (each) =>
        each.source !== '' &&
        each.destination_type !== 'subscriber' &&
        html`<button type="button" class="small plain" aria-label="Remove the binding ${each.source} to ${each.destination}" onClick=${() => remove(each, reload)}>Remove</button>`,
    },
  ];
}

/** side: "source" shows where bindings come from, "destination" where they go. */
export function BindingsTable({ caption, rows, side, reload, empty }) {
  const [filter, setFilter] = useState('');
  const has = (text) => text.toLowerCase().includes(filter.toLowerCase());
  const shown = filter ? rows.filter((each) => has(each[side]) || has(each.routing_key)) : rows;
  return html`${rows.length > FILTERED && html`<div class="toolbar"><${FilterInput} label="Filter by name or key" value=${filter} onFilter=${setFilter} /></div>`}<${LocalTable}
    caption=${caption} columns=${columns(side, reload)} rows=${shown} empty=${filter ? 'No binding matches the filter.' : empty} first=${{ by: side, descending: false }}
    rowKey=${(each) => `${each.source} ${each.destination_type} ${each.destination} ${each.properties_key}`}
  />`;
}

/** One end is given: {vhost, queue} binds to that queue, {vhost, exchange} from that exchange, or to it. */
export function AddBinding({ vhost, queue, exchange, reload }) {
  const [rows, setRows] = useState([]);
  const [direction, setDirection] = useState('to-queue');
  const { onSubmit, busy, error } = useSubmit(async (form) => {
    const { other, key } = Object.fromEntries(new FormData(form));
    const [source, type, destination] =
      queue !== undefined
        ? [other, 'queue', queue]
        : direction === 'from-exchange'
          ? [other, 'exchange', exchange]
          : [exchange, direction === 'to-queue' ? 'queue' : 'exchange', other];
    await post(path`bindings/${vhost}/e/${exchangeKey(source)}/${letterOf(type)}/${destination}`, {
      routing_key: key,
      arguments: readArguments(rows),
    });
    tell(`Bound ${exchangeLabel(source)} to ${destination}.`);
    setRows([]);
    form.reset();
    reload();
  });
  const DIRECTIONS = [
    ['to-queue', 'to a queue'],
    ['to-exchange', 'to an exchange'],
    ['from-exchange', 'from an exchange'],
  ];
  const otherLabel =
    queue !== undefined || direction === 'from-exchange' ? 'From exchange' : direction === 'to-queue' ? 'To queue' : 'To exchange';
  return html`<${Card} title="Add a binding">
    <form class="form" onSubmit=${onSubmit}>
      ${queue === undefined && html`<${Select} label="Direction" value=${direction} options=${DIRECTIONS} onChange=${(event) => setDirection(event.target.value)} />`}
      <${NameField} label=${otherLabel} name="other" required base=${otherLabel === 'To queue' ? path`queues/${vhost}` : path`exchanges/${vhost}`} />
      <${Field} label="Routing key" name="key" hint="Topic: * is one word, # any number of words." />
      <${ArgumentsEditor} legend="Arguments" rows=${rows} onChange=${setRows} hints=${[{ key: 'x-match', kind: 'string', choices: ['all', 'any', 'all-with-x', 'any-with-x'], text: 'Of headers exchanges: whether all or any of the arguments have to match.' }]} />
      <p class="form-error" role="alert">${error}</p>
      <div class="row"><button type="submit" class="primary" disabled=${busy}>Bind</button></div>
    </form>
  <//>`;
}
