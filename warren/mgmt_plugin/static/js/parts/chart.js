// Live line charts. uPlot draws; the legend is ours, because it has to be read and worked with the keyboard.

import { formatByteRate, formatBytes, formatCount, formatTicks, formatTime } from '../format.js';
import { watchColours } from '../theme.js';
import { html, useEffect, useMemo, useRef, useState } from '../ui.js';

/** Seconds that charts go back, with seconds between two samples, as the API takes them. */
const RANGES = [
  { s: 60, step: 5, label: '1 min' },
  { s: 600, step: 5, label: '10 min' },
  { s: 3600, step: 60, label: '1 h' },
  { s: 28800, step: 600, label: '8 h' },
  { s: 86400, step: 1800, label: '1 day' },
];

const FIRST = RANGES[1];
/** What the broker keeps of channels, of exchanges and connections. It keeps totals and queues for a day. */
export const CHANNEL_RANGES = RANGES.slice(0, 2);
export const OBJECT_RANGES = RANGES.slice(0, 3);

/** The range that the query names, of those that are offered. */
export const rangeOf = (query, offered = RANGES) => offered.find((range) => String(range.s) === query.range) ?? FIRST;

/** The part of a query that asks for samples of that range; `kinds`: lengths, msg_rates, data_rates, node_stats. */
export function sampleQuery(range, kinds) {
  return Object.fromEntries(
    kinds.flatMap((kind) => [
      [`${kind}_age`, range.s],
      [`${kind}_incr`, range.step],
    ]),
  );
}

/** Samples of `X_details`, oldest first, as [seconds, value]. */
function samplesOf(details) {
  const samples = details?.samples ?? [];
  return samples.map(({ timestamp, sample }) => [timestamp / 1000, sample]).reverse();
}

/** What was counted -> how fast it was counted, per second. */
function ratesOf(samples) {
  return samples.slice(1).map(([time, count], at) => {
    const [before, countBefore] = samples[at];
    return [time, time > before ? Math.max(0, (count - countBefore) / (time - before)) : 0];
  });
}

/**
 * One line of a chart from the API's `X_details`. `kind` is "level" or "rate" (samples of a counter).
 * `beneath`: other lines may lie upon it. Returns {label, colour, points, value, hidden, beneath}; undefined where the
 * broker counts no such thing.
 */
export function lineOf(details, label, colour, { kind = 'rate', hidden = false, beneath = false, value } = {}) {
  if (!details && value === undefined) return undefined;
  const samples = samplesOf(details);
  const points = kind === 'rate' ? ratesOf(samples) : samples;
  return { label, colour, points, hidden, beneath, value: value ?? (kind === 'rate' ? details?.rate : samples.at(-1)?.[1]) };
}

/** Lines -> uPlot's columns, on the times that any of them has. */
function columnsOf(lines) {
  const times = [...new Set(lines.flatMap((line) => line.points.map(([time]) => time)))].sort((a, b) => a - b);
  const columns = lines.map((line) => {
    const values = new Map(line.points);
    return times.map((time) => values.get(time) ?? null);
  });
  return [times, ...columns];
}

// Steps of an axis of bytes: powers of two make round KiB and MiB.
const BINARY_STEPS = Array.from({ length: 48 }, (_, power) => 2 ** power);
// Steps of the axis of time, in seconds.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];
// Steps of an axis of messages: whole numbers.
const WHOLE_STEPS = Array.from({ length: 14 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const HEIGHT_PX = 190;
// A line that others may lie upon is broad and pale, so that it can be seen beneath them.
const BENEATH = { width: 6, alpha: 0.35 };

const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The colour behind a token of base.css, as canvas understands it in the scheme that is shown. */
function resolveColour(box, token) {
  const probe = document.createElement('i');
  probe.style.color = `var(${token})`;
  box.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color || cssColour(token);
}

/** Hours and minutes, and seconds where ticks are nearer than a minute. */
function timeLabels(_, ticks, axis, space, step) {
  const shown = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23', ...(step < 60 && { second: '2-digit' }) };
  const format = new Intl.DateTimeFormat('en', shown);
  return ticks.map((tick) => format.format(tick * 1000));
}

function draw(box, lines, hidden, format, setCursor) {
  const axis = resolveColour(box, '--muted');
  const grid = { stroke: resolveColour(box, '--line'), width: 1 };
  const font = '11px system-ui, sans-serif';
  return new uPlot(
    {
      width: box.clientWidth || 300,
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 0) * 1.08)] } },
      axes: [
        { stroke: axis, grid: { show: false }, ticks: { ...grid, size: 4 }, font, incrs: TIME_STEPS, values: timeLabels, space: 58, size: 30 },
        {
          stroke: axis,
          grid,
          ticks: { show: false },
          font,
          size: 70,
          space: 24,
          ...((format === formatBytes || format === formatByteRate) && { incrs: BINARY_STEPS }),
          ...(format === formatCount && { incrs: WHOLE_STEPS }),
          values: (_, ticks) => formatTicks(format, ticks),
        },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: resolveColour(box, line.colour),
          width: 1.6,
          ...(line.beneath && BENEATH),
          show: !hidden.has(line.label),
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [(chart) => setCursor(chart.cursor.idx ?? null)] },
    },
    columnsOf(lines),
    box,
  );
}

/** A chart of `lines` (see lineOf; undefined ones are left out), whose values `format` writes. */
export function Chart({ title, lines: given, format }) {
  const lines = given.filter(Boolean);
  const box = useRef(null);
  const chart = useRef(null);
  const [cursor, setCursor] = useState(null);
  const [hidden, setHidden] = useState(() => new Set(lines.filter((line) => line.hidden).map((line) => line.label)));
  const [colours, setColours] = useState(0);
  const [all, setAll] = useState(false);
  const columns = useMemo(() => columnsOf(lines), [given]);
  const names = lines.map((line) => line.label).join();

  useEffect(() => watchColours(() => setColours((count) => count + 1)), []);
  useEffect(() => {
    if (!box.current) return undefined;
    chart.current = draw(box.current, lines, hidden, format, setCursor);
    const resize = new ResizeObserver(() => box.current && chart.current.setSize({ width: box.current.clientWidth, height: HEIGHT_PX }));
    resize.observe(box.current);
    return () => {
      resize.disconnect();
      chart.current.destroy();
    };
  }, [names, colours]);
  useEffect(() => chart.current?.setData(columns), [columns]);

  function toggle(label) {
    const next = new Set(hidden);
    if (!next.delete(label)) next.add(label);
    setHidden(next);
    chart.current.setSeries(lines.findIndex((line) => line.label === label) + 1, { show: !next.has(label) });
  }

  const at = cursor !== null && columns[0][cursor] !== undefined ? cursor : null;
  const shown = (line, index) => (at === null ? line.value : columns[index + 1][at]);
  const summary = lines.map((line) => `${line.label} ${format(line.value)}`).join(', ');
  return html`<figure class="chart">
    <figcaption>
      <span>${title}</span>
      <span class="chart-time">${at === null ? '' : formatTime(columns[0][at] * 1000)}</span>
    </figcaption>
    <div ref=${box} class="chart-area" role="img" aria-label="${title}, now: ${summary}">
      ${columns[0].length < 2 && html`<p class="chart-empty">No samples yet</p>`}
    </div>
    <ul class="legend" aria-label="Lines of ${title}">
      ${lines.map(
        (line, index) =>
          (all || !line.hidden || !hidden.has(line.label)) &&
          html`<li key=${line.label}>
          <button type="button" aria-pressed=${!hidden.has(line.label)} onClick=${() => toggle(line.label)}>
            <i class="dot ${line.colour.slice(2)} ${line.beneath ? 'beneath' : ''}"></i>${line.label} <b>${format(shown(line, index))}</b>
          </button>
        </li>`,
      )}
      ${lines.some((line) => line.hidden) && html`<li><button type="button" aria-expanded=${all} onClick=${() => setAll(!all)}>${all ? 'Less' : 'More…'}</button></li>`}
    </ul>
  </figure>`;
}

export function RangePicker({ range, onPick, offered = RANGES }) {
  return html`<div class="segments" role="group" aria-label="How far charts go back">
    ${offered.map(
      (each) =>
        html`<button key=${each.s} type="button" aria-pressed=${each === range} onClick=${() => onPick(each.s)}>${each.label}</button>`,
    )}
  </div>`;
}
