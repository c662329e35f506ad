// A scalar over the steps (the loss, a metric), growing at its end, and ways to smooth it.

export class Curve {
  /** @param {any} facts @param {any} arrays */
  constructor(facts, arrays) {
    this.facts = facts;
    /** @type {number[]} */ this.start = Array.from(arrays.start ?? []);
    /** @type {number[]} */ this.low = Array.from(arrays.low ?? []);
    /** @type {number[]} */ this.high = Array.from(arrays.high ?? []);
    /** @type {number[]} */ this.broken = Array.from(arrays.broken ?? []);
    /** @type {number[]} */ this.median = [];
    this.level = facts.level;
    this.end = facts.end;
  }

  /** @param {any} facts @param {any} new_ */
  append(facts, new_) {
    for (const name of /** @type {const} */ (["start", "low", "high", "broken"])) {
      this[name].length = facts.first;
      this[name].push(...(new_[name] ?? []));
    }
    this.median.length = Math.min(this.median.length, facts.first);
    this.end = facts.end;
    this.facts = { ...this.facts, ...facts };
  }

  /** The column that contains a step; -1: none. @param {number} step */
  at(step) {
    return step >= this.end ? -1 : this.start.findLastIndex((start) => start <= step);
  }

  /** The columns with a finite value between two steps. @param {number} from @param {number} to */
  finite(from, to) {
    return this.start.flatMap((s, i) => (s <= to && (this.start[i + 1] ?? this.end) >= from && Number.isFinite(this.low[i]) ? [i] : []));
  }

  /** Whether new columns continue the existing ones. @param {any} facts */
  fits(facts) {
    return facts.level === this.level && facts.first <= this.start.length && facts.rewritten === this.facts.rewritten;
  }
}

const REACH = 12; // columns to either side of the running median
const ENOUGH_POINTS = 60; // columns; a smooth line through fewer points would be an invention

/** Ways to smooth, by key: the title, and for a running mean the share that it keeps. @type {[string, string, number][]} */
export const SMOOTHINGS = [["", "running median", 0], ["mean", "running mean", 0.9], ["slow", "slow running mean", 0.98], ["none", "not smoothed", 0]];

/** A smooth line through a curve, NaN where there is none; empty if there are too few points. @param {Curve} c @param {string} kind */
export function smoothed(c, kind) {
  if (c.start.length < ENOUGH_POINTS || kind === "none") return [];
  const stays = SMOOTHINGS.find(([key]) => key === kind)?.[2];
  return stays ? mean(c, stays) : median(c);
}

/** The running median, computed only for new columns. @param {Curve} c */
function median(c) {
  const many = c.start.length;
  for (let i = Math.max(c.median.length - REACH - 1, 0); i < many; i++) {
    const some = [];
    for (let k = Math.max(i - REACH, 0); k <= Math.min(i + REACH, many - 1); k++) {
      const middle = (c.low[k] + c.high[k]) / 2;
      if (Number.isFinite(middle)) some.push(middle);
    }
    some.sort((a, b) => a - b);
    c.median[i] = some.length ? some[some.length >> 1] : Number.NaN;
  }
  return c.median;
}

/** The mean of all earlier values, in which older values count less. @param {Curve} c @param {number} stays */
function mean(c, stays) {
  let [sum, weight] = [0, 0];
  return c.start.map((_, i) => {
    const middle = (c.low[i] + c.high[i]) / 2;
    if (Number.isFinite(middle)) [sum, weight] = [sum * stays + middle, weight * stays + 1];
    return weight ? sum / weight : Number.NaN;
  });
}
