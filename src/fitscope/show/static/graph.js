// Draws the model as a graph along the layer axis: every layer has a lane, and lines lead to it from the layers that feed it. The main path
// stays in the lane beside the strip; a branch takes the next free lane until its end, as in the history of a repository.

import { typeColour } from "./colour.js";

/** @typedef {import("./main.js").Page} Page */
/** @typedef {{lanes: Map<number, number>, edges: [number, number][], wide: number}} Graph the lane of each place on show, edges between places, and how many lanes there are */

const MOST_LANES = 8;
export const LANE = 9; // pixels

/** The shown places that feed a row, directly or through hidden rows. @param {Page} page @param {number} row @param {Map<number, number>} places @param {Set<number>} met @returns {number[]} */
function sourcesOf(page, row, places, met = new Set()) {
  const found = /** @type {number[]} */ ([]);
  for (const name of page.rows[row].after) {
    const from = page.rowIndex(name);
    if (from < 0 || met.has(from)) continue;
    met.add(from);
    const place = places.get(from);
    found.push(...(place === undefined ? sourcesOf(page, from, places, met) : [place]));
  }
  return [...new Set(found)];
}

/** The connections among the shown rows, and their lanes. A plain chain has no lanes. @param {Page} page @returns {Graph} */
export function layout(page) {
  const { order } = page.rowsShown;
  const places = new Map(order.map((row, place) => [row, place]));
  // A pinned row may stand above its inputs: leave out such an edge.
  const sources = order.map((row, place) => sourcesOf(page, row, places).filter((from) => from < place));
  const edges = sources.flatMap((from, place) => from.map((one) => /** @type {[number, number]} */ ([one, place])));
  const feeds = new Map(edges.map(([from]) => [from, 0]));
  for (const [from] of edges) feeds.set(from, (feeds.get(from) ?? 0) + 1);
  const lanes = /** @type {Map<number, number>} */ (new Map());
  if (!sources.some((from) => from.length > 1) && ![...feeds.values()].some((many) => many > 1)) return { lanes, edges: [], wide: 0 };
  const until = new Map(edges); // place → the last place that it feeds: edges are in the order of their ends, so the last one wins
  const taken = /** @type {(number | null)[]} */ ([]); // by lane: the place whose output runs in it
  sources.forEach((from, place) => {
    if (!from.length && !until.has(place)) return;
    const ending = from.filter((one) => until.get(one) === place).map((one) => /** @type {number} */ (lanes.get(one)));
    const free = taken.indexOf(null);
    const lane = ending.length ? Math.min(...ending) : free < 0 ? taken.length : free;
    for (const ended of ending) taken[ended] = null;
    taken[lane] = until.has(place) ? place : null;
    lanes.set(place, lane);
  });
  return { lanes, edges, wide: Math.min(taken.length, MOST_LANES) };
}

/**
 * Draws the graph. The edges to and from the selected layer stand out.
 * @param {CanvasRenderingContext2D} g @param {Page} page @param {Graph} graph @param {number} right @param {number} each
 */
export function drawGraph(g, page, graph, right, each) {
  const t = page.theme;
  const chosen = page.placeOf(page.selection.layer);
  const x = (/** @type {number} */ place) => right - 4 - Math.min(graph.lanes.get(place) ?? 0, MOST_LANES - 1) * LANE;
  const y = (/** @type {number} */ place) => (place + 0.5) * each;
  const bend = Math.min(each, 14);
  const rank = (/** @type {[number, number]} */ [from, to]) => (to === chosen ? 1 : from === chosen ? 2 : 0);
  for (const edge of graph.edges.toSorted((a, b) => rank(a) - rank(b))) {
    const [from, to] = edge;
    g.strokeStyle = [t.faint, t.blue, t.warning][rank(edge)];
    g.lineWidth = rank(edge) ? 2 : 1;
    g.beginPath();
    g.moveTo(x(from), y(from));
    g.lineTo(x(from), y(to) - bend);
    g.quadraticCurveTo(x(from), y(to) - bend / 3, x(to), y(to));
    g.stroke();
  }
  g.lineWidth = 1;
  const dot = Math.min(3, each / 2.5);
  for (const place of graph.lanes.keys()) {
    g.fillStyle = typeColour(page.rows[page.rowsShown.order[place]].type);
    g.beginPath();
    g.arc(x(place), y(place), dot, 0, 7);
    g.fill();
  }
}

/** The layers that feed a layer, and those that it feeds, by name. @param {Page} page @param {string} layer @returns {[string[], string[]]} */
export function neighbours(page, layer) {
  const row = page.rows[page.rowIndex(layer)];
  const known = (/** @type {string} */ name) => page.places.has(name);
  return [(row?.after ?? []).filter(known), page.rows.filter(({ after }) => after.includes(layer)).map(({ name }) => name)];
}
