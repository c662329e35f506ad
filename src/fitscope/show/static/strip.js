// Draws the model as a strip along the layer axis: the colour of each layer's type, names of layers or of blocks with their
// brackets, the graph of connections if it branches, and a dot for each layer with a finding.

import { fitted, sheet } from "./canvas.js";
import { typeColour } from "./colour.js";
import { clean } from "./format.js";
import { LANE, drawGraph, layout } from "./graph.js";

/** @typedef {import("./main.js").Page} Page */

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawStrip(canvas, page) {
  const { g, w, h } = sheet(canvas);
  const rows = page.rowsShown.order.map((i) => page.rows[i]);
  if (!rows.length) return;
  const each = h / rows.length;
  const y = (/** @type {number} */ row) => (row + 0.5) * each;
  const t = page.theme;
  rows.forEach((row, i) => {
    g.fillStyle = typeColour(row.type);
    g.fillRect(w - 14, i * each, 10, Math.max(each - (each > 4 ? 1 : 0.3), 0.7));
  });
  const graph = layout(page);
  if (graph.wide) drawGraph(g, page, graph, w - 16, each);
  canvas.dataset.lanes = [...graph.lanes].map(([place, lane]) => `${rows[place].name}:${lane}`).join(" ");
  names(g, page, w - 20 - graph.wide * LANE, each, y);
  const worst = new Map();
  for (const f of page.head.findings) if (f.row !== null && !(worst.get(f.row) === "error")) worst.set(f.row, f.severity);
  rows.forEach((row, i) => {
    if (!worst.has(row.name)) return;
    g.fillStyle = t[/** @type {"error"} */ (worst.get(row.name))];
    g.beginPath();
    g.arc(5, y(i), 3.2, 0, 7);
    g.fill();
  });
}

/**
 * @param {CanvasRenderingContext2D} g @param {Page} page @param {number} right @param {number} each
 * @param {(row: number) => number} y
 */
function names(g, page, right, each, y) {
  const t = page.theme;
  const chosen = page.placeOf(page.selection.layer);
  const rows = page.rowsShown.order.map((i) => page.rows[i]);
  g.textAlign = "right";
  const blocks = each < 10 ? grouped(page) : [];
  const free = (/** @type {number} */ at) => chosen < 0 || Math.abs(at - y(chosen)) > 11;
  g.fillStyle = t.faint;
  if (blocks.length > 1) {
    let before = -99;
    for (const { name, first, last } of blocks) {
      const at = (y(first) + y(last)) / 2;
      if (last > first) bracket(g, right + 4, y(first), y(last), t.line);
      if (at - before < 11 || !free(at)) continue;
      before = at;
      g.fillText(fitted(g, clean(name), right - 14), right, at);
    }
  } else {
    const every = Math.max(Math.ceil(11 / each), 1);
    rows.forEach((row, i) => {
      if (i % every === 0 && i !== chosen && free(y(i))) g.fillText(fitted(g, clean(row.name), right - 14), right, y(i));
    });
  }
  if (chosen >= 0) {
    g.font = "bold 12px system-ui, sans-serif";
    g.fillStyle = t.text;
    g.fillText(fitted(g, clean(rows[chosen].name), right - 14), right, y(chosen));
    g.font = "11px system-ui, sans-serif";
  }
}

/** Rows of one block that follow one another. @param {Page} page */
function grouped(page) {
  /** @type {{name: string, first: number, last: number}[]} */
  const found = [];
  page.rowsShown.order.forEach((number, i) => {
    const row = page.rows[number];
    const name = row.block || row.name;
    const last = found.at(-1);
    if (last && row.block && last.name === name) last.last = i;
    else found.push({ name, first: i, last: i });
  });
  return found.filter((block) => block.last > block.first || found.length < 40);
}

/** @param {CanvasRenderingContext2D} g @param {number} x @param {number} a @param {number} b @param {string} colour */
function bracket(g, x, a, b, colour) {
  g.strokeStyle = colour;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(x + 3, a);
  g.lineTo(x, a);
  g.lineTo(x, b);
  g.lineTo(x + 3, b);
  g.stroke();
}
