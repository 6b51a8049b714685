// The drawing of a routing graph: moved by dragging and the arrow keys, scaled by pinching, Ctrl and the wheel, + and -.

import { formatNumber, formatRate } from '../format.js';
import { html, useEffect, useMemo, useRef, useState } from '../ui.js';
import { layOut, NODE_HEIGHT, NODE_WIDTH } from './graph_layout.js';
import { exchangeHref, queueHref } from './links.js';

const SMALLEST = 0.08;
const LARGEST = 3;
const READABLE = 0.8;
const LETTERS = 25;
const LABELLED_EDGES = 80;
const DRAG_PX = 4;

const short = (text, letters = LETTERS) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);
const clamp = (scale) => Math.min(LARGEST, Math.max(SMALLEST, scale));

function detailOf(node) {
  if (node.kind === 'exchange') return `${node.type}, ${formatRate(node.publish_in_rate ?? 0)} in`;
  return `${formatNumber(node.messages ?? 0)} messages, ${formatRate(node.deliver_rate ?? 0)} out`;
}

function Node({ vhost, node, at, hit, dim }) {
  const link = node.kind === 'queue' ? queueHref(vhost, node.name) : exchangeHref(vhost, node.name);
  return html`<a href=${link} class="node ${node.kind} ${hit ? 'hit' : ''} ${dim ? 'dim' : ''}" transform="translate(${at.x} ${at.y})">
    <title>${node.kind} ${node.name}</title>
    <rect width=${NODE_WIDTH} height=${NODE_HEIGHT} rx=${node.kind === 'queue' ? 4 : 18} />
    <text x=${node.kind === 'queue' ? 10 : 16} y="15">${short(node.name)}</text>
    <text class="small" x=${node.kind === 'queue' ? 10 : 16} y="29">${detailOf(node)}</text>
  </a>`;
}

function curve(x1, y1, x2, y2) {
  // A binding against the direction of reading (exchanges bound in a circle) goes around in a wide bow.
  const bow = x2 > x1 ? (x2 - x1) / 2 : 120;
  return `C${x1 + bow} ${y1} ${x2 - bow} ${y2} ${x2} ${y2}`;
}

/** `way`: the lanes that the edge goes through, straight from side to side. */
function Edge({ edge, from, to, way, rate, hit, dim, labelled }) {
  const middle = (place) => place.y + NODE_HEIGHT / 2;
  let at = { x: from.x + NODE_WIDTH, y: middle(from) };
  let line = `M${at.x} ${at.y}`;
  for (const lane of way) {
    line += ` ${curve(at.x, at.y, lane.x, middle(lane))} H${lane.x + NODE_WIDTH}`;
    at = { x: lane.x + NODE_WIDTH, y: middle(lane) };
  }
  line += ` ${curve(at.x, at.y, to.x, middle(to))}`;
  const label = edge.keys.length > 1 ? `${short(edge.keys[0], 14)} +${edge.keys.length - 1}` : short(edge.keys[0], 18);
  return html`<g class="edge ${hit ? 'hit' : ''} ${dim ? 'dim' : ''}">
    <title>${edge.keys.map((key) => key || '(empty key)').join('\n')}</title>
    <path d=${line} stroke-width=${1 + Math.log10(1 + (rate ?? 0))} />
    ${labelled && html`<text x=${to.x - 8} y=${middle(to) - 4} text-anchor="end">${label}</text>`}
  </g>`;
}

/** hits: Set of ids of nodes and edges to bring out, into sight too; the others step back. */
export function Graph({ vhost, graph, hits }) {
  const frame = useRef(null);
  const svg = useRef(null);
  const [view, setView] = useState(null);
  const pointers = useRef(new Map());
  const dragged = useRef(false);
  const shape = [...graph.nodes.keys()].join() + graph.edges.map((edge) => edge.id).join();
  const { positions, ways, width, height } = useMemo(() => layOut(graph), [shape]);

  function show(smallest) {
    const { clientWidth, clientHeight } = svg.current;
    const k = Math.max(smallest, Math.min((clientWidth - 40) / width, (clientHeight - 40) / height, 1.2));
    const middle = (room, size) => Math.max(20, (room - size * k) / 2);
    setView({ k, x: middle(clientWidth, width), y: middle(clientHeight, height) });
  }
  const fit = () => show(SMALLEST);
  // What would be too small to read begins at its upper left instead.
  useEffect(() => show(READABLE), [shape]);

  /** Bring a part of the drawing into sight; of one that is too large to read its left end. */
  function showPart(places) {
    const [left, top] = [Math.min(...places.map(({ x }) => x)), Math.min(...places.map(({ y }) => y))];
    const right = Math.max(...places.map(({ x }) => x)) + NODE_WIDTH;
    const bottom = Math.max(...places.map(({ y }) => y)) + NODE_HEIGHT;
    const { clientWidth, clientHeight } = svg.current;
    const fitting = Math.min((clientWidth - 40) / (right - left), (clientHeight - 40) / (bottom - top), 1.2);
    const k = Math.max(READABLE, fitting);
    const start = (room, from, to) => Math.max(20, (room - (to - from) * k) / 2) - from * k;
    setView({ k, x: start(clientWidth, left, right), y: start(clientHeight, top, bottom) });
    frame.current.scrollIntoView({ block: 'nearest' });
  }
  useEffect(() => {
    const found = [...graph.nodes.keys()].filter((id) => hits.has(id)).map((id) => positions.get(id));
    if (found.length > 0) showPart(found);
  }, [[...hits].join(), shape]);

  function zoom(factor, at) {
    const { clientWidth, clientHeight } = svg.current;
    const [px, py] = at ?? [clientWidth / 2, clientHeight / 2];
    setView((old) => {
      const k = clamp(old.k * factor);
      return { k, x: px - ((px - old.x) * k) / old.k, y: py - ((py - old.y) * k) / old.k };
    });
  }
  const move = (dx, dy) => setView((old) => ({ ...old, x: old.x + dx, y: old.y + dy }));
  function pointOf(event) {
    const box = svg.current.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  function onWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), pointOf(event));
  }
  function onPointerDown(event) {
    pointers.current.set(event.pointerId, { start: pointOf(event), last: pointOf(event) });
    if (pointers.current.size === 1) dragged.current = false;
  }
  function onPointerMove(event) {
    const mine = pointers.current.get(event.pointerId);
    if (!mine) return;
    const now = pointOf(event);
    const [dx, dy] = [now[0] - mine.last[0], now[1] - mine.last[1]];
    if (!dragged.current) {
      if (Math.hypot(now[0] - mine.start[0], now[1] - mine.start[1]) < DRAG_PX) return;
      // Captured only now: a captured pointer never clicks a link.
      dragged.current = true;
      svg.current.setPointerCapture(event.pointerId);
    }
    const other = [...pointers.current.entries()].find(([id]) => id !== event.pointerId)?.[1].last;
    if (other) {
      const before = Math.hypot(mine.last[0] - other[0], mine.last[1] - other[1]);
      const after = Math.hypot(now[0] - other[0], now[1] - other[1]);
      if (before > 0) zoom(after / before, [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
    } else move(dx, dy);
    mine.last = now;
  }
  const onPointerUp = (event) => pointers.current.delete(event.pointerId);
  function onClick(event) {
    if (dragged.current) event.preventDefault();
    dragged.current = false;
  }
  const KEYS = {
    ArrowLeft: () => move(60, 0),
    ArrowRight: () => move(-60, 0),
    ArrowUp: () => move(0, 60),
    ArrowDown: () => move(0, -60),
    '+': () => zoom(1.25),
    '=': () => zoom(1.25),
    '-': () => zoom(0.8),
    0: fit,
  };
  function onKeyDown(event) {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    KEYS[event.key]();
  }

  const lit = hits.size > 0;
  const labelled = graph.edges.length <= LABELLED_EDGES;
  return html`<div ref=${frame} class="graph">
    <svg
      ref=${svg} tabindex="0" role="group" aria-label="Drawing of exchanges and queues. The table says the same." onWheel=${onWheel} onPointerDown=${onPointerDown} onPointerMove=${onPointerMove}
      onPointerUp=${onPointerUp} onPointerCancel=${onPointerUp} onPointerLeave=${onPointerUp} onClickCapture=${onClick} onKeyDown=${onKeyDown}
      onDragStart=${(event) => event.preventDefault()}
    >
      ${
        view &&
        html`<g transform="translate(${view.x} ${view.y}) scale(${view.k})">
        ${graph.edges.map(
          (edge) => html`<${Edge}
          key=${edge.id} edge=${edge} from=${positions.get(edge.from)} to=${positions.get(edge.to)} way=${ways.get(edge.id)} rate=${graph.nodes.get(edge.to).publish_rate}
          hit=${hits.has(edge.id)} dim=${lit && !hits.has(edge.id)} labelled=${labelled && view.k > 0.45}
        />`,
        )}
        ${[...graph.nodes.values()].map((node) => html`<${Node} key=${node.id} vhost=${vhost} node=${node} at=${positions.get(node.id)} hit=${hits.has(node.id)} dim=${lit && !hits.has(node.id)} />`)}
      </g>`
      }
    </svg>
    <div class="graph-tools">
      <button type="button" class="small" aria-label="Larger" onClick=${() => zoom(1.25)}>+</button>
      <button type="button" class="small" aria-label="Smaller" onClick=${() => zoom(0.8)}>−</button>
      <button type="button" class="small" onClick=${fit}>Fit</button>
    </div>
  </div>`;
}
