// Draws the lane of ranks: a row for each process, or for some of a thousand, coloured by the time of its steps against the others.

import { fitted, sheet } from "./canvas.js";
import { css, ground, mapFor, rgbAt } from "./colour.js";
import { by, number, whole } from "./format.js";

/** @typedef {import("./main.js").Page} Page */
/** @typedef {{count: number, rows: [number, number][], steps: number[], cells: string, seconds: number | null, skew: (number | null)[], stopped: number[][]}} Ranks */

const RANK_DOUBLINGS = 2; // doublings of the median at either end of the scale

/** The codes of all cells, row by row. @type {{text: string, codes: Uint8Array}} */
const rankCells = { text: "", codes: new Uint8Array() };

/** @param {Ranks} ranks */
function rankCodes(ranks) {
  if (rankCells.text !== ranks.cells) {
    rankCells.text = ranks.cells;
    rankCells.codes = Uint8Array.from(atob(ranks.cells), (c) => c.charCodeAt(0));
  }
  return rankCells.codes;
}

/** The height of a row. @param {number} rows */
const rankHeight = (rows) => (rows <= 4 ? 13 : rows <= 8 ? 10 : Math.max(Math.floor(80 / rows), 3));

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawRanks(canvas, page) {
  /** @type {Ranks | null | undefined} */
  const ranks = page.head.ranks;
  canvas.hidden = !ranks;
  if (!ranks) return;
  const tall = rankHeight(ranks.rows.length);
  canvas.style.height = `${tall * ranks.rows.length + 3}px`;
  const { g, w } = sheet(canvas);
  const [left, right] = [page.gutter, w - rankMargin()];
  const { from, to } = page.span();
  const t = page.theme;
  const x = (/** @type {number} */ step) => left + ((step - from) / (to - from)) * (right - left);
  const map = mapFor("run", t.dark);
  g.fillStyle = css(ground(t.dark));
  g.fillRect(left, 0, right - left, tall * ranks.rows.length);
  const wide = ranks.steps.length;
  const all = rankCodes(ranks);
  ranks.rows.forEach((_, row) => {
    for (let i = 1; i < wide; i++) {
      const code = all[row * wide + i];
      const [a, b] = [Math.max(x(ranks.steps[i - 1]), left), Math.min(x(ranks.steps[i]), right)];
      if (!code || b <= left || a >= right) continue;
      g.fillStyle = css(rgbAt(map, (code - 1) / 254));
      g.fillRect(a, row * tall, b - a, tall - (tall > 6 ? 1 : 0));
    }
  });
  rankNames(g, ranks, tall, left, right, t);
}

/** Draws the margin next to the picture, with the skew. */
const rankMargin = () => by("depth").clientWidth || 0;

/**
 * @param {CanvasRenderingContext2D} g @param {Ranks} ranks @param {number} tall @param {number} left @param {number} right
 * @param {import("./canvas.js").Theme} t
 */
function rankNames(g, ranks, tall, left, right, t) {
  const every = Math.max(Math.ceil(11 / tall), 1);
  const apart = ranks.skew.map((skew) => Math.abs(skew ?? 0));
  const worst = apart.indexOf(Math.max(...apart));
  ranks.rows.forEach(([first, last], row) => {
    const y = Math.min(Math.max((row + 0.5) * tall, 6), tall * ranks.rows.length - 6);
    const [stopped, more] = ranks.stopped[row];
    const near = Math.abs(row - worst) < every && row !== worst;
    if (stopped === undefined && (near || (row % every && row !== worst))) return;
    g.textAlign = "right";
    g.fillStyle = stopped === undefined ? t.faint : t.warning;
    const name = first === last ? `rank ${first}` : `ranks ${first}–${last}`;
    g.fillText(fitted(g, stopped === undefined ? name : `rank ${stopped}${more === undefined ? "" : ", …"} stopped`, left - 8), left - 6, y);
    g.textAlign = "left";
    g.fillStyle = row === worst ? t.text : t.faint;
    if (ranks.skew[row] !== null && rankMargin() > 60) g.fillText(signedSeconds(/** @type {number} */ (ranks.skew[row])), right + 6, y);
  });
}

/** Seconds behind (+) or ahead (−). @param {number} seconds */
const signedSeconds = (seconds) => `${seconds < 0 ? "−" : "+"}${number(Math.abs(seconds))} s`;

/** The cell under the pointer, in words. @param {Page} page @param {HTMLCanvasElement} canvas @param {number} px @param {number} py @returns {string} */
export function rankTip(page, canvas, px, py) {
  /** @type {Ranks | null | undefined} */
  const ranks = page.head.ranks;
  if (!ranks) return "";
  const row = Math.floor(py / rankHeight(ranks.rows.length));
  const [left, right] = [page.gutter, canvas.clientWidth - rankMargin()];
  const { from, to } = page.span();
  const step = from + ((px - left) / (right - left)) * (to - from);
  const i = ranks.steps.findIndex((at) => at >= step);
  if (row < 0 || row >= ranks.rows.length || px < left || px > right || i < 1) return "";
  const [first, last] = ranks.rows[row];
  const name = first === last ? `rank ${first}` : `ranks ${first}–${last}, the one farthest from the others`;
  const code = rankCodes(ranks)[row * ranks.steps.length + i];
  const compared = code ? `${number(2 ** (((code - 1) / 254) * 2 * RANK_DOUBLINGS - RANK_DOUBLINGS))} × the usual time of a step (${number(ranks.seconds ?? NaN)} s)` : "nothing recorded";
  const skew = ranks.skew[row];
  const behind = skew === null ? "" : ` · ${number(Math.abs(skew))} s ${skew < 0 ? "ahead of" : "behind"} the median now`;
  const stopped = ranks.stopped[row].length ? ` · stopped: ${ranks.stopped[row].slice(0, 8).join(", ")}` : "";
  return `${name} · steps ${whole(ranks.steps[i - 1])}–${whole(ranks.steps[i])} · ${compared}${behind}${stopped}`;
}
