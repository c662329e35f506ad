// A measure over rows and steps as the page holds it: columns of 2^level recorded steps, which can grow at the end.
// A cell has the lowest and highest value that fell into it, as codes, and flags.

import { meaning } from "./format.js";

export const VALUE = 1, INF = 2, NAN = 4;
export const ONLY_HERE = 8; // in a comparison, the other run has nothing there
const MOST = 2048;

/** @typedef {{low: Uint16Array, spread: Uint16Array, flags: Uint8Array, start: Float64Array, last?: Float64Array}} Columns spread: high - low; last: recorded step of each column, if it has several */

/** @param {Columns} of @returns {Uint16Array} */
function highOf({ low, spread }) {
  const high = new Uint16Array(low.length);
  for (let i = 0; i < low.length; i++) high[i] = low[i] + spread[i];
  return high;
}

export class Matrix {
  /** @param {any} facts @param {Columns} arrays */
  constructor(facts, arrays) {
    this.facts = facts;
    /** @type {[number, number]} */
    this.code = facts.code;
    /** Kind, low, high, and the kind of what is compared. @type {[string, number, number, string]} */
    this.scale = facts.scale;
    this.level = facts.level;
    this.first = facts.first;
    this.columns = arrays.start.length;
    this.rows = this.columns ? arrays.flags.length / this.columns : 0;
    this.room = this.columns;
    this.low = arrays.low;
    this.high = highOf(arrays);
    this.flags = arrays.flags;
    this.start = arrays.start;
    this.last = arrays.last ?? this.start;
    this.end = facts.end;
    this.until = Infinity; // the step after the end of the training, if it has ended
    this.fresh = 0; // the first column that changed since this was set to Infinity
  }

  /** @param {number} code */
  value(code) {
    return this.code[0] + code * this.code[1];
  }

  /** In words. @param {number} code */
  word(code) {
    return meaning(this.scale[0], this.value(code), this.scale[3]);
  }

  /** The column that contains a step, or the previous one; -1 before the first. @param {number} step */
  at(step) {
    if (!this.columns || step < this.start[0]) return -1;
    let low = 0;
    let high = this.columns;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= step) low = middle;
      else high = middle;
    }
    return low;
  }

  /** The first step of the next column. Steps between the last one of this column and it were not recorded. @param {number} column */
  stop(column) {
    return column + 1 < this.columns ? this.start[column + 1] : Math.max(this.until, this.end);
  }

  /** The number of recorded steps in a column. @param {number} column */
  many(column) {
    return column + 1 < this.columns ? 2 ** this.level : Math.min(this.facts.count - (this.first + column) * 2 ** this.level, 2 ** this.level);
  }

  /** The number of recorded steps between two steps. @param {number} from @param {number} to */
  recorded(from, to) {
    let found = 0;
    for (let c = Math.max(this.at(from), 0); c < this.columns && this.start[c] < to; c++) {
      const [a, b] = [this.start[c], this.last[c] + 1];
      const inside = Math.min(b, to) - Math.max(a, from);
      if (inside > 0) found += (this.many(c) * inside) / (b - a);
    }
    return Math.round(found);
  }

  /** Whether new columns continue the existing ones. @param {any} facts */
  fits(facts) {
    return facts.level === this.level && facts.first <= this.columns + this.first && facts.first >= this.first
      && facts.rewritten === this.facts.rewritten && facts.generation === this.facts.generation
      && facts.measure === this.facts.measure && facts.mode === this.facts.mode;
  }

  /** Takes in columns from number `facts.first` on. @param {any} facts @param {Columns} new_ */
  append(facts, new_) {
    const from = facts.first - this.first;
    const wide = new_.start.length;
    const high = highOf(new_);
    if (from + wide > this.room) this.#grow(Math.max(Math.ceil((from + wide) * 1.25), 64));
    for (let row = 0; row < this.rows; row++) {
      this.low.set(new_.low.subarray(row * wide, (row + 1) * wide), row * this.room + from);
      this.high.set(high.subarray(row * wide, (row + 1) * wide), row * this.room + from);
      this.flags.set(new_.flags.subarray(row * wide, (row + 1) * wide), row * this.room + from);
    }
    this.start.set(new_.start, from);
    if (this.last !== this.start) this.last.set(new_.last ?? new_.start, from);
    this.columns = from + wide;
    this.fresh = Math.min(this.fresh, from);
    this.end = facts.end;
    this.facts = { ...this.facts, ...facts };
  }

  /** Whether there are more columns than a screen has pixels: then the server gives fewer. */
  get tooFine() {
    return this.columns > MOST;
  }

  /** @param {number} room */
  #grow(room) {
    const [low, high, flags] = [new Uint16Array(this.rows * room), new Uint16Array(this.rows * room), new Uint8Array(this.rows * room)];
    for (let row = 0; row < this.rows; row++) {
      const [a, b] = [row * this.room, row * this.room + this.columns];
      low.set(this.low.subarray(a, b), row * room);
      high.set(this.high.subarray(a, b), row * room);
      flags.set(this.flags.subarray(a, b), row * room);
    }
    const [start, last] = [new Float64Array(room), new Float64Array(room)];
    start.set(this.start.subarray(0, this.columns));
    last.set(this.last.subarray(0, this.columns));
    [this.last, this.start] = [this.last === this.start ? start : last, start];
    [this.low, this.high, this.flags, this.room] = [low, high, flags, room];
  }
}

/**
 * Computes what each pixel from number `begin` on shows: of all its values the one farthest from the surroundings, and
 * the worst flag. One pass, in whole numbers: this is where a tick's time goes.
 * @param {Matrix} m @param {number} row @param {Int32Array} first of the columns of each pixel, -1 where there is none
 * @param {Int32Array} last @param {Uint16Array} out codes @param {Uint8Array} flags @param {number} begin
 */
export function pick(m, row, first, last, out, flags, begin = 0) {
  const { low, high, flags: seen } = m;
  const base = row * m.room;
  let held = -1, heldLow = 0, heldHigh = 0; // the pixel that waits for the next column; -1: none
  let before = -1; // lowest + highest of the previous pixel; -1: empty
  for (let x = begin; x < first.length; x++) {
    let f = 0, lo = 65535, hi = 0;
    if (first[x] >= 0) {
      const stop = base + last[x];
      for (let c = base + first[x]; c <= stop; c++) {
        const below = low[c] - lo;
        const above = high[c] - hi;
        lo += below & (below >> 31); // the lower and the higher, without a branch that the processor cannot predict
        hi += above & ~(above >> 31);
        f |= seen[c];
      }
    }
    flags[x] = f;
    const after = f & VALUE ? lo + hi : -1;
    if (held >= 0) {
      const own = heldLow + heldHigh;
      const around = before < 0 ? 2 * (after < 0 ? own : after) : before + (after < 0 ? before : after);
      out[held] = heldHigh + ((heldLow - heldHigh) & ((2 * own - around) >> 31));
      before = own;
    } else before = -1;
    held = after < 0 ? -1 : x;
    heldLow = lo;
    heldHigh = hi;
  }
  if (held >= 0) out[held] = before < 0 || heldLow + heldHigh >= before ? heldHigh : heldLow;
}

/**
 * The columns that each of `wide` pixels between two steps stands for.
 * @param {Matrix} m @param {number} from @param {number} to @param {number} wide @param {number} end before which pixel to stop
 */
export function pixels(m, from, to, wide, end = wide) {
  const first = new Int32Array(end).fill(-1);
  const last = new Int32Array(end).fill(-1);
  let c = 0;
  for (let x = 0; x < end; x++) {
    const a = from + ((to - from) * x) / wide;
    const b = from + ((to - from) * (x + 1)) / wide;
    while (c < m.columns && m.stop(c) <= a) c++;
    if (c >= m.columns) break;
    if (m.start[c] >= b) continue;
    let d = c;
    while (d + 1 < m.columns && m.start[d + 1] < b) d++;
    first[x] = c;
    last[x] = d;
  }
  return { first, last };
}

const THIN = 2; // pixels of a recorded step: a thinner one would be invisible
const NARROW = 16; // pixels of a gap that only the lane of recorded steps shows: closer stripes would hide the picture

/**
 * Which of `wide` pixels between two steps have a recorded step in them, or right beside them. The others lie in a gap.
 * @param {Matrix} m @param {number} from @param {number} to @param {number} wide
 */
export function recordedPixels(m, from, to, wide) {
  const seen = new Uint8Array(wide);
  const scale = wide / (to - from);
  for (let c = Math.max(m.at(from), 0); c < m.columns && m.start[c] < to; c++) {
    const a = Math.floor((m.start[c] - from) * scale);
    const next = Math.floor((m.stop(c) - from) * scale);
    let b = Math.max(Math.ceil((m.last[c] + 1 - from) * scale), a + THIN);
    if (next - b < NARROW) b = Math.max(b, next);
    if (b <= 0) continue;
    if (m.many(c) >= b - a || m.level === 0) seen.fill(1, Math.max(a, 0), b);
    else {
      // Fewer steps than pixels: only the places of the first and the last are known.
      seen.fill(1, Math.max(a, 0), Math.max(a + THIN, 0));
      seen.fill(1, Math.max(b - THIN, 0), b);
    }
  }
  return seen;
}
