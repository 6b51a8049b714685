// Where the exchanges and queues of a vhost stand in the drawing. Layers go from left to right: an exchange is right of
// every exchange that is bound to it, queues are last. No randomness: the same topology is drawn the same way.

export const NODE_WIDTH = 190;
export const NODE_HEIGHT = 36;
const LAYER_GAP = 130;
const ROW = 46;
const LANE = 18;
const SWEEPS = 8;

export const exchangeId = (name) => `e:${name}`;
export const queueId = (name) => `q:${name}`;
const destinationId = (binding) => (binding.destination_type === 'queue' ? queueId(binding.destination) : exchangeId(binding.destination));
export const edgeId = (from, to) => JSON.stringify([from, to]);

/**
 * Topology of the API -> {nodes: Map id -> node, edges: [{id, from, to, keys}]}. Bindings between the same two are one
 * edge. The default exchange, which is bound to everything, is left out, and so is what has no binding at all.
 */
export function buildGraph(topology) {
  const nodes = new Map();
  const all = new Map([
    ...topology.exchanges.map((exchange) => [exchangeId(exchange.name), { id: exchangeId(exchange.name), kind: 'exchange', ...exchange }]),
    ...topology.queues.map((queue) => [queueId(queue.name), { id: queueId(queue.name), kind: 'queue', ...queue }]),
  ]);
  const edges = new Map();
  for (const binding of topology.bindings) {
    const [from, to] = [exchangeId(binding.source), destinationId(binding)];
    if (binding.source === '' || !all.has(from) || !all.has(to)) continue;
    nodes.set(from, all.get(from));
    nodes.set(to, all.get(to));
    const id = edgeId(from, to);
    const edge = edges.get(id) ?? { id, from, to, keys: [] };
    edge.keys.push(
      binding.routing_key ||
        Object.entries(binding.arguments ?? {})
          .map(([key, value]) => `${key}=${value}`)
          .join(' '),
    );
    edges.set(id, edge);
  }
  return { nodes, edges: [...edges.values()] };
}

function neighbours(edges, forward) {
  const map = new Map();
  for (const { from, to } of edges) {
    const [key, value] = forward ? [from, to] : [to, from];
    if (!map.has(key)) map.set(key, []);
    map.get(key).push(value);
  }
  return map;
}

function reach(start, map) {
  const seen = new Set(start);
  const todo = [...start];
  while (todo.length > 0) {
    for (const next of map.get(todo.pop()) ?? []) {
      if (!seen.has(next)) {
        seen.add(next);
        todo.push(next);
      }
    }
  }
  return seen;
}

/** The part of a graph that leads to or from nodes that `wanted(node)` accepts. */
export function subgraph(graph, wanted) {
  const start = [...graph.nodes.values()].filter(wanted).map((node) => node.id);
  const kept = new Set([...reach(start, neighbours(graph.edges, true)), ...reach(start, neighbours(graph.edges, false))]);
  return {
    nodes: new Map([...graph.nodes].filter(([id]) => kept.has(id))),
    edges: graph.edges.filter(({ from, to }) => kept.has(from) && kept.has(to)),
  };
}

/** Longest way from an exchange that nothing is bound to; exchanges bound in a circle stop the counting. */
function layersOf(graph) {
  const before = neighbours(graph.edges, false);
  const layers = new Map();
  const underWay = new Set();
  function layer(id) {
    if (layers.has(id)) return layers.get(id);
    if (underWay.has(id)) return 0;
    underWay.add(id);
    const found = Math.max(0, ...(before.get(id) ?? []).map((previous) => layer(previous) + 1));
    underWay.delete(id);
    layers.set(id, found);
    return found;
  }
  for (const id of graph.nodes.keys()) layer(id);
  const exchanges = [...graph.nodes.values()].filter((node) => node.kind === 'exchange');
  const last = Math.max(0, ...exchanges.map((node) => layers.get(node.id))) + 1;
  for (const node of graph.nodes.values()) if (node.kind === 'queue') layers.set(node.id, last);
  return { layers, count: last + 1 };
}

/**
 * Edges over more than one layer go through a lane in each layer between, shared by all edges of one exchange, so that no
 * line crosses a node. -> {rows of ids, hops: pairs of neighbours for ordering, lanes: Map edge id -> ids of its lanes}
 */
function fillLayers(graph, layers, count) {
  const rows = Array.from({ length: count }, () => []);
  for (const id of [...graph.nodes.keys()].sort()) rows[layers.get(id)].push(id);
  const hops = new Map();
  const lanes = new Map();
  const hop = (from, to) => hops.set(edgeId(from, to), { from, to });
  for (const { id, from, to } of graph.edges) {
    const through = [];
    for (let layer = layers.get(from) + 1; layer < layers.get(to); layer++) {
      const lane = `lane:${layer}:${from}`;
      if (!rows[layer].includes(lane)) rows[layer].push(lane);
      through.push(lane);
    }
    lanes.set(id, through);
    [from, ...through].forEach((each, at) => hop(each, [...through, to][at]));
  }
  return { rows, hops: [...hops.values()], lanes };
}

const heightOf = (id) => (id.startsWith('lane:') ? LANE : ROW);

/** Order rows by the middle of what they are connected to, back and forth, so that edges cross less. */
function orderRows(rows, hops) {
  const [after, before] = [neighbours(hops, true), neighbours(hops, false)];
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const position = new Map(rows.flatMap((row) => row.map((id, at) => [id, (at + 0.5) / row.length])));
    const forward = sweep % 2 === 0;
    const map = forward ? before : after;
    for (const row of forward ? rows : [...rows].reverse()) {
      const middle = new Map(
        row.map((id) => {
          const near = (map.get(id) ?? []).map((other) => position.get(other));
          return [id, near.length > 0 ? near.reduce((sum, each) => sum + each, 0) / near.length : position.get(id)];
        }),
      );
      row.sort((a, b) => middle.get(a) - middle.get(b));
      row.forEach((id, at) => position.set(id, (at + 0.5) / row.length));
    }
  }
}

/**
 * Tops for things of these heights, in this order and without overlap, as near to the wanted middles as can be (least
 * squares: neighbours that would overlap move together as one block).
 */
function withoutOverlap(wanted, heights) {
  const blocks = [];
  let above = 0;
  wanted.forEach((middle, at) => {
    let block = { first: at, count: 1, sum: middle - heights[at] / 2 - above };
    above += heights[at];
    for (let last = blocks.at(-1); last && last.sum / last.count >= block.sum / block.count; last = blocks.at(-1)) {
      block = { first: last.first, count: last.count + block.count, sum: last.sum + block.sum };
      blocks.pop();
    }
    blocks.push(block);
  });
  const tops = [];
  let used = 0;
  for (const { first, count, sum } of blocks) {
    for (let at = first; at < first + count; at++) {
      tops.push(sum / count + used);
      used += heights[at];
    }
  }
  return tops;
}

/** -> {positions: Map id -> {x, y} of nodes, ways: Map edge id -> [{x, y}] of the lanes it goes through, width, height} */
export function layOut(graph) {
  const { layers, count } = layersOf(graph);
  const { rows, hops, lanes } = fillLayers(graph, layers, count);
  orderRows(rows, hops);
  const after = neighbours(hops, true);
  const middles = new Map();
  // Queues stand close together; from right to left, everything else stands beside what it leads to.
  for (let layer = count - 1; layer >= 0; layer--) {
    const row = rows[layer];
    const wish = (id, at) => {
      const next = (after.get(id) ?? []).map((other) => middles.get(other)).filter((middle) => middle !== undefined);
      return next.length > 0 ? next.reduce((sum, each) => sum + each, 0) / next.length : at * ROW;
    };
    const wanted = new Map(row.map((id, at) => [id, wish(id, at)]));
    row.sort((a, b) => wanted.get(a) - wanted.get(b));
    const tops = withoutOverlap(
      row.map((id) => wanted.get(id)),
      row.map(heightOf),
    );
    row.forEach((id, at) => middles.set(id, tops[at] + heightOf(id) / 2));
  }
  const top = Math.min(...[...middles].map(([id, middle]) => middle - heightOf(id) / 2));
  const bottom = Math.max(...[...middles].map(([id, middle]) => middle + heightOf(id) / 2));
  const places = new Map();
  rows.forEach((row, layer) => {
    for (const id of row) places.set(id, { x: layer * (NODE_WIDTH + LAYER_GAP), y: middles.get(id) - NODE_HEIGHT / 2 - top });
  });
  const ways = new Map([...lanes].map(([id, through]) => [id, through.map((lane) => places.get(lane))]));
  return { positions: places, ways, width: count * (NODE_WIDTH + LAYER_GAP) - LAYER_GAP, height: bottom - top };
}
