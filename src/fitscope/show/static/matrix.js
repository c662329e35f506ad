// A measure over rows and steps as the page holds it: columns of 2^level recorded steps, which can grow at the end.
// A cell has the lowest and highest value that fell into it, as codes, and flags. Two columns merge into one of the
// next level, so a picture that has become too fine is made coarser here, without asking again.

export const VALUE = 1, INF = 2, NAN = 4;
const MOST = 2048;

/** @typedef {{low: Uint16Array, high: Uint16Array, flags: Uint8Array, start: Float64Array}} Columns */

export class Matrix {
  /** @param {any} facts @param {Columns} arrays */
  constructor(facts, arrays) {
    this.facts = facts;
    /** @type {[number, number]} */
    this.code = facts.code;
    /** @type {[string, number, number]} */
    this.scale = facts.scale;
    this.level = facts.level;
    this.first = facts.first;
    this.columns = arrays.start.length;
    this.rows = this.columns ? arrays.flags.length / this.columns : 0;
    this.room = this.columns;
    this.low = arrays.low;
    this.high = arrays.high;
    this.flags = arrays.flags;
    this.start = arrays.start;
    this.end = facts.end;
    this.count = facts.count;
    this.version = 0; // grows whenever columns are added or merged
  }

  /** @param {number} code */
  value(code) {
    return this.code[0] + code * this.code[1];
  }

  /** The column that a step lies in; -1 before the first. @param {number} step */
  at(step) {
    if (!this.columns || step < this.start[0] || step >= this.end) return -1;
    let low = 0;
    let high = this.columns;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.start[middle] <= step) low = middle;
      else high = middle;
    }
    return low;
  }

  /** Where a column ends. @param {number} column */
  stop(column) {
    return column + 1 < this.columns ? this.start[column + 1] : this.end;
  }

  /** Whether what comes fits to what is here. @param {any} facts */
  fits(facts) {
    return facts.level === this.level && facts.first <= this.columns + this.first && facts.first >= this.first
      && facts.rewritten === this.facts.rewritten && facts.generation === this.facts.generation
      && facts.measure === this.facts.measure && facts.mode === this.facts.mode;
  }

  /** Takes in columns from number `facts.first` on. @param {any} facts @param {Columns} new_ */
  append(facts, new_) {
    const from = facts.first - this.first;
    const wide = new_.start.length;
    if (from + wide > this.room) this.#grow(Math.max(Math.ceil((from + wide) * 1.25), 64));
    for (let row = 0; row < this.rows; row++) {
      this.low.set(new_.low.subarray(row * wide, (row + 1) * wide), row * this.room + from);
      this.high.set(new_.high.subarray(row * wide, (row + 1) * wide), row * this.room + from);
      this.flags.set(new_.flags.subarray(row * wide, (row + 1) * wide), row * this.room + from);
    }
    this.start.set(new_.start, from);
    this.columns = from + wide;
    this.version += 1;
    this.end = facts.end;
    this.count = facts.count;
    this.facts = { ...this.facts, ...facts };
  }

  /** Makes two columns one where there are too many. Whether it did. */
  coarsen() {
    if (this.columns <= MOST || this.first) return false;
    const half = Math.ceil(this.columns / 2);
    for (let row = 0; row < this.rows; row++) {
      for (let c = 0; c < half; c++) {
        const [to, a] = [row * this.room + c, row * this.room + 2 * c];
        const b = 2 * c + 1 < this.columns ? a + 1 : a;
        this.low[to] = Math.min(this.low[a], this.low[b]);
        this.high[to] = Math.max(this.high[a], this.high[b]);
        this.flags[to] = this.flags[a] | this.flags[b];
      }
    }
    for (let c = 0; c < half; c++) this.start[c] = this.start[2 * c];
    this.columns = half;
    this.version += 1;
    this.level += 1;
    this.facts.level = this.level;
    return true;
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
    const start = new Float64Array(room);
    start.set(this.start.subarray(0, this.columns));
    [this.low, this.high, this.flags, this.start, this.room] = [low, high, flags, start, room];
  }
}

/**
 * What each pixel shows: of all that falls into it the value farthest from its surroundings, and the worst flag.
 * @param {Matrix} m @param {number} row @param {Int32Array} first of the columns of each pixel, -1 where there is none
 * @param {Int32Array} last @param {Uint16Array} out codes @param {Uint8Array} flags
 */
export function pick(m, row, first, last, out, flags) {
  const wide = first.length;
  const base = row * m.room;
  const low = pick.low.length >= wide ? pick.low : (pick.low = new Uint16Array(wide));
  const high = pick.high.length >= wide ? pick.high : (pick.high = new Uint16Array(wide));
  for (let x = 0; x < wide; x++) {
    let lo = 65535, hi = 0, f = 0;
    if (first[x] >= 0) {
      for (let c = base + first[x]; c <= base + last[x]; c++) {
        if (m.low[c] < lo) lo = m.low[c];
        if (m.high[c] > hi) hi = m.high[c];
        f |= m.flags[c];
      }
    }
    low[x] = lo;
    high[x] = hi;
    flags[x] = f;
  }
  let before = -1;
  for (let x = 0; x < wide; x++) {
    if (!(flags[x] & VALUE)) continue;
    const middle = (low[x] + high[x]) / 2;
    let next = -1;
    if (x + 1 < wide && flags[x + 1] & VALUE) next = (low[x + 1] + high[x + 1]) / 2;
    const around = before < 0 ? (next < 0 ? middle : next) : next < 0 ? before : (before + next) / 2;
    out[x] = high[x] - around >= around - low[x] ? high[x] : low[x];
    before = middle;
  }
}
pick.low = new Uint16Array(0);
pick.high = new Uint16Array(0);

/**
 * The columns that each of `wide` pixels between two steps stands for.
 * @param {Matrix} m @param {number} from @param {number} to @param {number} wide
 */
export function pixels(m, from, to, wide) {
  const first = new Int32Array(wide).fill(-1);
  const last = new Int32Array(wide).fill(-1);
  let c = 0;
  for (let x = 0; x < wide; x++) {
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
