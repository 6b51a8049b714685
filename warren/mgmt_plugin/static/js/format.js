// Numbers and times as people read them. Each component carries the exact value in its title.

import { html } from './ui.js';

const exact = new Intl.NumberFormat('en', { maximumFractionDigits: 3 });
const LARGE = [
  [1e12, 'T'],
  [1e9, 'G'],
  [1e6, 'M'],
  [1e3, 'k'],
];
const LARGE_BYTES = [
  [2 ** 40, 'TiB'],
  [2 ** 30, 'GiB'],
  [2 ** 20, 'MiB'],
  [2 ** 10, 'KiB'],
];

function three(value) {
  return exact.format(value >= 100 ? Math.round(value) : value >= 10 ? Math.round(value * 10) / 10 : Math.round(value * 100) / 100);
}

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);

/** Whole up to 99,999, then with three digits: 1.25 M. */
export function formatNumber(value) {
  if (!isNumber(value)) return '–';
  if (Math.abs(value) < 1e5) return exact.format(Math.round(value * 100) / 100);
  const [size, unit] = LARGE.find(([size]) => Math.abs(value) >= size);
  return `${three(value / size)} ${unit}`;
}

/** All digits: 1,250,000. */
export const formatCount = (value) => (isNumber(value) ? exact.format(Math.round(value * 100) / 100) : '–');

/** A rate in full: 125,000/s. */
export const formatFullRate = (value) => (isNumber(value) && value >= 1e4 ? `${exact.format(Math.round(value))}/s` : formatRate(value));

// From here on the numbers of an axis are too long to be written in full.
const LONG = 1e7;

/** Write the ticks of one axis, all in the same unit. `format` is one of the functions above. */
export function formatTicks(format, ticks) {
  const most = Math.max(0, ...ticks.map(Math.abs));
  const ofBytes = format === formatBytes || format === formatByteRate;
  const perSecond = format === formatByteRate || format === formatRate || format === formatFullRate ? '/s' : '';
  const units = ofBytes ? LARGE_BYTES : most < LONG ? [] : LARGE;
  const [size, unit] = units.find(([size]) => most >= size) ?? [1, ofBytes ? 'B' : ''];
  return ticks.map((tick) => `${exact.format(Math.round((tick / size) * 1000) / 1000)}${unit && ` ${unit}`}${perSecond}`);
}

export function formatBytes(value) {
  if (!isNumber(value)) return '–';
  const found = LARGE_BYTES.find(([size]) => Math.abs(value) >= size);
  return found ? `${three(value / found[0])} ${found[1]}` : `${exact.format(value)} B`;
}

export const formatByteRate = (value) => (isNumber(value) ? `${formatBytes(Math.round(value))}/s` : '–');

export function formatRate(value) {
  if (!isNumber(value)) return '–';
  if (value > 0 && value < 0.1) return '< 0.1/s';
  return `${value < 1e4 ? three(value) : formatNumber(value)}/s`;
}

const STEPS = [
  [86400e3, 'd'],
  [3600e3, 'h'],
  [60e3, 'min'],
  [1e3, 's'],
];

/** A length of time in ms, in its two largest units: 3 d 4 h. */
export function formatDuration(ms) {
  if (!isNumber(ms)) return '–';
  if (ms < 1000) return `${three(ms)} ms`;
  const first = STEPS.findIndex(([size]) => ms >= size);
  const [size, unit] = STEPS[first];
  const whole = Math.floor(ms / size);
  if (first === STEPS.length - 1) return `${three(ms / 1000)} s`;
  const rest = Math.floor((ms % size) / STEPS[first + 1][0]);
  return rest ? `${whole} ${unit} ${rest} ${STEPS[first + 1][1]}` : `${whole} ${unit}`;
}

const clock = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

// Beyond these a Date is invalid, and clients may set any timestamp.
const isMoment = (ms) => isNumber(ms) && Math.abs(ms) <= 8.64e15;

export function formatTime(ms) {
  return isMoment(ms) ? clock.format(new Date(ms)) : '–';
}

export function formatValue(value) {
  if (value === null || value === undefined) return '–';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

const SOME = 5;

/** The first of some names, and how many more there are. */
export const someOf = (names) => names.slice(0, SOME).join(', ') + (names.length > SOME ? ` and ${names.length - SOME} more` : '');

const Nothing = html`<span class="none">–</span>`;

export function Num({ value }) {
  return isNumber(value) ? html`<span class="num" title=${exact.format(value)}>${formatNumber(value)}</span>` : Nothing;
}

export function Bytes({ value }) {
  return isNumber(value) ? html`<span class="num" title="${exact.format(value)} bytes">${formatBytes(value)}</span>` : Nothing;
}

export function Rate({ value, bytes = false }) {
  if (!isNumber(value)) return Nothing;
  const text = bytes ? `${formatBytes(value)}/s` : formatRate(value);
  return html`<span class=${value === 0 ? 'num zero' : 'num'} title="${exact.format(value)} ${bytes ? 'bytes ' : ''}per second">${text}</span>`;
}

export function Duration({ ms }) {
  return isNumber(ms) ? html`<span class="num" title="${exact.format(ms)} ms">${formatDuration(ms)}</span>` : Nothing;
}

/** A moment, as how long ago or how far ahead it is. */
export function When({ ms }) {
  if (!isMoment(ms)) return Nothing;
  const away = Date.now() - ms;
  const text = Math.abs(away) < 1000 ? 'now' : away > 0 ? `${formatDuration(away)} ago` : `in ${formatDuration(-away)}`;
  return html`<time class="num" datetime=${new Date(ms).toISOString()} title=${formatTime(ms)}>${text}</time>`;
}

/** The same for a moment that the API gives as text (`idle_since`). */
export function Since({ text }) {
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? Nothing : html`<${When} ms=${ms} />`;
}

/** `message_stats.publish_details.rate` of an object; 0 where no message has passed yet. */
export function rateOf(object, counter) {
  return (object?.message_stats ?? {})[`${counter}_details`]?.rate ?? 0;
}

/** The value at a dotted path, as the API's `sort` names it. */
export function pick(object, dotted) {
  return dotted.split('.').reduce((part, key) => part?.[key], object);
}
