// Shows structure within a row, which a fixed scale of eleven powers of ten hides in a healthy layer. The hue keeps its meaning in
// every run. A row that is tall enough has a line over it, the layer over time; in a thin row lightness tells how far a value is from
// the row's median.

import { mapFor, paled, rgbAt } from "./colour.js";
import { VALUE } from "./matrix.js";

/** @typedef {import("./matrix.js").Matrix} Matrix */
/** @typedef {{columns: number, middle: Int32Array, reach: Int32Array}} Usual of each row, in codes: its median (-1: nothing there), and how far it wanders from it */
/** @typedef {{fine: Uint16Array, tables: (Uint32Array | null)[]}} Shades for every code its colour; every colour in every shade, pale and full */

const HALF = 16; // steps of lightness to either side
const FINE = 512; // colours of a scale
const SAMPLE = 128; // columns that define the usual value of a row
const STRENGTH = 0.4; // the share of white or black in the lightest and the darkest shade
const LEAST = { log2: 32, share: 655, cosine: 655 }; // codes that a row must vary by at least: half a doubling, or a hundredth
export const ROOM = 15; // pixels of a row that its line needs
/** The start of the plain colours in a table, neither lighter nor darker. */
export const PLAIN = HALF * FINE;

/** @type {WeakMap<Matrix, Usual>} */
const usualOf = new WeakMap();

/** @type {{key: string, made: Shades | null}} */
let shades = { key: "", made: null };

/** Whether a scale is absolute, so that a healthy row may have one colour throughout. @param {string} kind */
export const hasRelief = (kind) => kind in LEAST;

/**
 * The median of each row and how far the row varies. A growing run changes them seldom, and in the same way for a page that followed it and one
 * that is opened later: the columns that count are the largest power of 1.25 of them.
 * @param {Matrix} m @returns {Usual}
 */
export function usual(m) {
  const before = usualOf.get(m);
  const columns = m.columns ? Math.floor(1.25 ** Math.floor(Math.log(m.columns) / Math.log(1.25) + 1e-9)) : 0;
  if (before?.columns === columns) return before;
  const least = LEAST[/** @type {"log2"} */ (m.scale[0])] ?? LEAST.log2;
  const [middle, reach] = [new Int32Array(m.rows).fill(-1), new Int32Array(m.rows).fill(least)];
  const every = Math.max(columns / SAMPLE, 1);
  for (let row = 0; row < m.rows; row++) {
    const some = /** @type {number[]} */ ([]);
    for (let c = 0; c < columns; c += every) {
      const i = row * m.room + Math.floor(c);
      if (m.flags[i] & VALUE) some.push((m.low[i] + m.high[i]) >> 1);
    }
    if (!some.length) continue;
    some.sort((a, b) => a - b);
    const at = (/** @type {number} */ share) => some[Math.min(Math.floor(share * some.length), some.length - 1)];
    middle[row] = at(0.5);
    reach[row] = Math.max(middle[row] - at(0.04), at(0.96) - middle[row], least);
  }
  const found = { columns, middle, reach };
  usualOf.set(m, found);
  return found;
}

/** The colours of a matrix; the pale ones only if they are needed. @param {Matrix} m @param {boolean} dark @param {boolean} pale */
export function shadesOf(m, dark, pale) {
  const key = `${m.scale} ${m.code} ${dark}`;
  const kind = m.scale[0];
  const made = shades.key === key && shades.made ? shades.made : { fine: fineOf(m), tables: [null, shaded(kind, dark, false)] };
  if (pale) made.tables[0] ??= shaded(kind, dark, true);
  shades = { key, made };
  return { fine: made.fine, tables: /** @type {Uint32Array[]} */ ([made.tables[0] ?? made.tables[1], made.tables[1]]) };
}

/** The index of the scale's colour for every code. @param {Matrix} m */
function fineOf({ code: [offset, step], scale: [, low, high] }) {
  const fine = new Uint16Array(65536);
  const [begin, end] = [low, high].map((value) => Math.min(Math.max(Math.round((value - offset) / step), 0), 65536));
  const each = ((FINE - 1) * step) / (high - low);
  for (let i = begin; i < end; i++) fine[i] = (i * step + offset - low) / step * each + 0.5;
  return fine.fill(FINE - 1, end);
}

/** Every colour of a scale in every shade. @param {string} kind @param {boolean} dark @param {boolean} pale */
function shaded(kind, dark, pale) {
  const map = mapFor(kind, dark);
  const out = new Uint32Array((2 * HALF + 1) * FINE);
  for (let i = 0; i < FINE; i++) {
    const plain = rgbAt(map, i / (FINE - 1));
    const [r, g, b] = pale ? paled(plain, dark) : plain;
    for (let s = -HALF; s <= HALF; s++) {
      const [share, to] = [(STRENGTH * Math.abs(s)) / HALF, s > 0 ? 255 : 0];
      out[PLAIN + s * FINE + i] = rgba(r + (to - r) * share, g + (to - g) * share, b + (to - b) * share);
    }
  }
  return out;
}

/** Little-endian, as ImageData has it. @param {number} r @param {number} g @param {number} b */
const rgba = (r, g, b) => ((255 << 24) | ((b + 0.5) << 16) | ((g + 0.5) << 8) | (r + 0.5)) >>> 0;

/** The start of the shade of a code in a table. @param {number} code @param {number} middle @param {number} reach */
export function shadeAt(code, middle, reach) {
  const s = (((code - middle) * HALF) / reach) | 0;
  return PLAIN + (s < -HALF ? -HALF : s > HALF ? HALF : s) * FINE;
}

/**
 * Draws the course of a row over its band of the picture, where it was recorded: between its usual lowest and highest value.
 * @param {ImageData} image @param {{top: number, bottom: number, begin: number}} band @param {{codes: Uint16Array, flags: Uint8Array, seen: Uint8Array}} values
 * @param {number} middle @param {number} reach
 */
export function drawCourse(image, { top, bottom, begin }, { codes, flags, seen }, middle, reach) {
  const out = new Uint32Array(image.data.buffer);
  const wide = image.width;
  const room = (bottom - top) * 0.68; // the rest keeps the plain colour
  let before = -1;
  for (let x = begin; x < wide; x++) {
    if (flags[x] !== VALUE || !seen[x]) {
      before = -1;
      continue;
    }
    const apart = (codes[x] - middle) / (2 * reach);
    const here = Math.round((top + bottom - 1) / 2 - room * (apart > 0.5 ? 0.5 : apart < -0.5 ? -0.5 : apart));
    const end = before < 0 ? here : before;
    for (let y = Math.min(here, end); y <= Math.max(here, end); y++) out[y * wide + x] = inked(out[y * wide + x]);
    before = here;
  }
}

/** White over dark colours, black over light ones. @param {number} colour */
function inked(colour) {
  const [r, g, b] = [colour & 255, (colour >> 8) & 255, (colour >> 16) & 255];
  const to = 2 * r + 5 * g + b > 1350 ? 0 : 255;
  return rgba(r + (to - r) * 0.8, g + (to - g) * 0.8, b + (to - b) * 0.8);
}
