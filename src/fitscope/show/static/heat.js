// Draws the training spectrogram: layers × steps. Of all values that fall into a pixel it shows the one farthest from its
// surroundings, so one odd batch is visible at every zoom. NaN, Inf and "not recorded" are separate marks. Between recorded
// steps it draws the previous value pale, because nothing was recorded there.

import { sheet } from "./canvas.js";
import { MARKS, ground, packed, paled } from "./colour.js";
import { INF, NAN, ONLY_HERE, VALUE, pick, pixels, recordedPixels } from "./matrix.js";
import { PLAIN, ROOM, drawCourse, hasRelief, shadeAt, shadesOf, usual } from "./relief.js";

/** @typedef {import("./main.js").Page} Page */

/** The last painted picture: moving the cursor only draws over it. @type {{matrix: any, key: string, image: ImageData | null, ended: number}} */
let painted = { matrix: null, key: "", image: null, ended: 0 };

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawHeat(canvas, page) {
  const { g, w, h, ratio } = sheet(canvas);
  const m = page.shown();
  if (!m || !m.rows || w < 2) return;
  const [wide, high] = [canvas.width, canvas.height];
  const { from, to } = page.span();
  const { order } = page.rowsShown;
  const key = `${from} ${to} ${wide} ${high} ${page.theme.dark} ${usual(m).columns} ${order}`;
  const ended = Math.min(Math.ceil(((m.until - from) / (to - from)) * wide), wide); // later pixels are after the end of the training
  const same = painted.matrix === m && painted.key === key;
  if (!same || m.fresh < m.columns || ended !== painted.ended) {
    const image = painted.image?.width === wide && painted.image.height === high ? painted.image : g.createImageData(wide, high);
    paint(m, order, { from, to, ended }, image, page.theme.dark, same ? m.fresh : 0, same ? painted.ended : 0);
    painted = { matrix: m, key, image, ended };
    m.fresh = Infinity;
  }
  g.putImageData(/** @type {ImageData} */ (painted.image), 0, 0);
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  drawOver(g, w, h, page);
}

/**
 * @param {import("./matrix.js").Matrix} m @param {number[]} order the rows on show @param {{from: number, to: number, ended: number}} span @param {ImageData} image painted over
 * @param {boolean} dark @param {number} fresh the first column that the image does not show yet @param {number} before the pixel at which the training ended by then
 */
function paint(m, order, span, image, dark, fresh, before) {
  const { width: wide, height: high } = image;
  const out = new Uint32Array(image.data.buffer);
  const { first, last } = pixels(m, span.from, span.to, wide);
  const seen = recordedPixels(m, span.from, span.to, wide);
  const { fine, tables } = shadesOf(m, dark, seen.includes(0));
  const { middle, reach } = usual(m);
  const relief = hasRelief(m.scale[0]);
  const tall = high / order.length >= ROOM;
  const none = packed(ground(dark));
  const marks = [MARKS.nan, MARKS.inf].map((colour) => [packed(paled(colour, dark)), packed(colour)]);
  // What a pixel shows depends on its neighbours too.
  const column = fresh ? last.findIndex((last_) => last_ >= fresh) : 0;
  const changed = fresh && before !== span.ended ? Math.min(column < 0 ? wide : column, before, span.ended) : column;
  if (changed < 0) return;
  const [begin, picked] = [Math.max(changed - 1, 0), Math.max(changed - 2, 0)];
  const codes = new Uint16Array(wide);
  const flags = new Uint8Array(wide);
  const line = new Uint32Array(wide);
  const worst = new Uint8Array(wide);
  order.forEach((row, place) => {
    const [top, bottom] = [Math.floor((place * high) / order.length), Math.floor(((place + 1) * high) / order.length)];
    // If there are more rows than pixels, several share one, which shows the worst of them.
    const shared = place > 0 && top === Math.floor(((place - 1) * high) / order.length);
    pick(m, row, first, last, codes, flags, picked);
    const colour = (/** @type {number} */ x) => tables[seen[x]][(relief && !tall ? shadeAt(codes[x], middle[row], reach[row]) : PLAIN) + fine[codes[x]]];
    for (let x = begin; x < wide; x++) {
      const f = flags[x];
      if (f === VALUE && !shared) {
        worst[x] = 2;
        line[x] = colour(x);
        continue;
      }
      const rank = rankOf(first[x], f);
      if (shared && rank <= worst[x]) continue;
      worst[x] = rank;
      line[x] = rank > 2 ? marks[4 - rank][seen[x]] : rank === 2 ? colour(x) : x < span.ended ? hatched(none, x, top, dark) : 0;
    }
    const drawn = begin ? line.subarray(begin) : line;
    for (let y = top; y < Math.max(bottom, top + 1); y++) out.set(drawn, y * wide + begin);
    if (relief && tall) drawCourse(image, { top, bottom, begin }, { codes, flags, seen }, middle[row], reach[row]);
  });
}

/** Not recorded: striped, so that it is no colour of the scale. @param {number} none @param {number} x @param {number} y @param {boolean} dark */
const hatched = (none, x, y, dark) => ((x + y) & 7) < 2 ? (dark ? packed([64, 69, 77]) : packed([192, 196, 203])) : none;

/** Lines, marks and the cursor. @param {CanvasRenderingContext2D} g @param {number} w @param {number} h @param {Page} page */
function drawOver(g, w, h, page) {
  const { from, to } = page.span();
  const { order, pins } = page.rowsShown;
  const rows = order.length;
  const x = (/** @type {number} */ step) => ((step - from) / (to - from)) * w;
  const y = (/** @type {number} */ row) => ((row + 0.5) / rows) * h;
  const at = page.placeOf(page.selection.layer);
  const middle = (/** @type {number} */ step) => x(step + 0.5); // it may be many pixels wide
  g.lineWidth = 1;
  if (pins && pins < rows) {
    g.fillStyle = page.theme.text;
    g.fillRect(0, (pins / rows) * h - 1, w, 2);
  }
  if (at >= 0) {
    g.strokeStyle = "rgb(255 255 255 / .75)";
    line(g, 0, y(at), w, y(at));
  }
  const step = page.selection.step;
  if (step !== null && step >= from && step <= to) {
    g.strokeStyle = "rgb(255 255 255 / .75)";
    line(g, middle(step), 0, middle(step), h);
    if (at >= 0) box(g, middle(step), y(at));
  }
  for (const finding of page.head.findings) {
    const row = page.placeOf(finding.row);
    if (row >= 0 && finding.step >= from && finding.step <= to) flag(g, x(finding.step), y(row), finding.severity === "error");
  }
  if (page.drag) {
    g.fillStyle = "rgb(255 255 255 / .25)";
    g.fillRect(Math.min(page.drag.x0, page.drag.x1), 0, Math.abs(page.drag.x1 - page.drag.x0), h);
  }
}

/** @param {CanvasRenderingContext2D} g @param {number} a @param {number} b @param {number} c @param {number} d */
function line(g, a, b, c, d) {
  g.beginPath();
  g.moveTo(a, b);
  g.lineTo(c, d);
  g.stroke();
}

/** @param {CanvasRenderingContext2D} g @param {number} x @param {number} y */
function box(g, x, y) {
  g.lineWidth = 2;
  g.strokeStyle = "#fff";
  g.strokeRect(x - 5, y - 5, 10, 10);
  g.lineWidth = 1;
  g.strokeStyle = "#000";
  g.strokeRect(x - 6.5, y - 6.5, 13, 13);
}

/** Marks where a fault began: a pennant next to the cell, pointing at it. @param {CanvasRenderingContext2D} g @param {number} x @param {number} y @param {boolean} error */
function flag(g, x, y, error) {
  const away = x > 14 ? -1 : 1; // the pennant must not hide the cell
  g.beginPath();
  g.moveTo(x + away * 3, y);
  g.lineTo(x + away * 11, y - 5);
  g.lineTo(x + away * 11, y + 5);
  g.closePath();
  g.fillStyle = error ? "#d1242f" : "#fff";
  g.fill();
  g.lineWidth = 1.3;
  g.strokeStyle = error ? "#fff" : "#000";
  g.stroke();
}

/**
 * @typedef {object} Spot what one pixel shows
 * @property {import("./matrix.js").Matrix} matrix
 * @property {number} row
 * @property {number} column of the shown value; -1 if nothing was recorded
 * @property {"nan" | "inf" | "low" | "high" | "none"} mark which value of that column
 * @property {number} code of the value
 * @property {[number, number]} ends lowest and highest code in the pixel
 * @property {[number, number]} steps first and last
 * @property {boolean} alone whether the compared run has nothing there
 * @property {number | null} between the step under the place, if it lies between recorded ones
 */

const RANKS = /** @type {const} */ (["none", "none", "high", "inf", "nan"]);

/** The spot under a place on the canvas, by the rules of painting. @param {HTMLCanvasElement} canvas @param {Page} page @param {number} px @param {number} py @returns {Spot | null} */
export function under(canvas, page, px, py) {
  const m = page.shown();
  if (!m || !m.rows) return null;
  const { from, to } = page.span();
  const [wide, high] = [canvas.width, canvas.height];
  const x = Math.min(Math.max(Math.floor((px / canvas.clientWidth) * wide), 0), wide - 1);
  const y = Math.min(Math.max(Math.floor((py / canvas.clientHeight) * high), 0), high - 1);
  const end = Math.min(x + 2, wide); // what a pixel shows depends on its neighbours
  const { first, last } = pixels(m, from, to, wide, end);
  const { order } = page.rowsShown;
  const bottom = Math.ceil(((y + 1) * order.length) / high) - 1;
  const [codes, flags] = [new Uint16Array(end), new Uint8Array(end)];
  let [row, worst, code, seen] = [order[bottom], -1, 0, 0];
  for (const r of order.slice(Math.min(Math.ceil((y * order.length) / high), bottom), bottom + 1)) {
    pick(m, r, first, last, codes, flags, Math.max(x - 1, 0));
    const rank = rankOf(first[x], flags[x]);
    if (rank > worst) [row, worst, code, seen] = [r, rank, codes[x], flags[x]];
  }
  const pointed = Math.floor(from + ((to - from) * (x + 0.5)) / wide);
  return { matrix: m, row, code, alone: Boolean(seen & ONLY_HERE), ...inPixel(m, row, first[x], last[x], worst, code), steps: first[x] < 0 ? [pointed, 0] : [m.start[first[x]], m.last[last[x]]], between: first[x] >= 0 && !recordedPixels(m, from, to, wide)[x] ? pointed : null };
}

/** Which of a pixel's columns the pixel shows. @param {import("./matrix.js").Matrix} m @param {number} row @param {number} first @param {number} last @param {number} rank @param {number} code */
function inPixel(m, row, first, last, rank, code) {
  let [column, mark] = [first, /** @type {Spot["mark"]} */ (RANKS[rank])];
  const ends = /** @type {[number, number]} */ ([65535, 0]);
  for (let c = last; c >= first && first >= 0; c--) {
    const i = row * m.room + c;
    if (m.flags[i] & VALUE) [ends[0], ends[1]] = [Math.min(ends[0], m.low[i]), Math.max(ends[1], m.high[i])];
    if (rank === 4 ? m.flags[i] & NAN : rank === 3 ? m.flags[i] & INF : m.flags[i] & VALUE && (m.low[i] === code || m.high[i] === code)) column = c;
  }
  if (mark === "high" && m.high[row * m.room + column] !== code) mark = "low";
  return { column, mark, ends };
}

/** The row that a pixel with several rows shows: the worst. @param {number} column -1: none @param {number} f flags */
const rankOf = (column, f) => (column < 0 ? 0 : f & NAN ? 4 : f & INF ? 3 : f & VALUE ? 2 : 1);
