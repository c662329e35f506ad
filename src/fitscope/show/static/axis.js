// Draws the axis below the loss, in steps, epochs or time. Positions are always steps, so all views share one cursor; only the marks change.

import { ticks } from "./canvas.js";
import { whole } from "./format.js";

/** @typedef {import("./main.js").Page} Page */
/** @typedef {{step: number, text: string}} Mark */

/** Kinds of axis, by key. @type {[string, string][]} */
export const AXES = [["", "steps"], ["epoch", "epochs"], ["time", "time"]];

/** Round places between two steps, with their texts. @param {Page} page @param {number} from @param {number} to @param {number} about @returns {Mark[]} */
export function marks(page, from, to, about) {
  const points = page.selection.axis === "epoch" ? epochPoints(page) : page.selection.axis === "time" ? (page.head.clock ?? []) : [];
  if (points.length < 2) return ticks(from, to, about).filter(Number.isInteger).map((step) => ({ step, text: whole(step) }));
  const value = (/** @type {number} */ step) => along(points, 0, 1, step);
  const values = page.selection.axis === "time" ? timeTicks(value(from), value(to), about) : ticks(value(from), value(to), about);
  const text = page.selection.axis === "time" ? duration : (/** @type {number} */ v) => `epoch ${Number(v.toFixed(3))}`;
  return values.map((v) => ({ step: along(points, 1, 0, v), text: text(v) }));
}

/** Where each epoch began, and where the next would, as (step, epoch from 1). @param {Page} page @returns {[number, number][]} */
function epochPoints(page) {
  const begun = /** @type {[number, number][]} */ ((page.head.epochs ?? []).map((/** @type {[number, number]} */ [epoch, step]) => [step, epoch + 1]));
  const last = begun.at(-1);
  if (!last) return [];
  const before = begun.at(-2);
  const long = page.head.epoch_steps ?? (before ? (last[0] - before[0]) / (last[1] - before[1]) : page.trained() - last[0]);
  return [...begun, [last[0] + long, last[1] + 1]];
}

/** The interpolated value at a place between points; beyond them, it continues in the same direction. @param {[number, number][]} points @param {number} by which of a pair is known @param {number} to @param {number} at */
function along(points, by, to, at) {
  let i = points.findIndex((point) => point[by] > at);
  i = Math.min(Math.max(i < 0 ? points.length - 1 : i, 1), points.length - 1);
  const [a, b] = [points[i - 1], points[i]];
  return a[to] + ((b[to] - a[to]) * (at - a[by])) / (b[by] - a[by] || 1);
}

const ROUND = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400]; // seconds

/** @param {number} low @param {number} high @param {number} about */
function timeTicks(low, high, about) {
  const each = ROUND.find((seconds) => (high - low) / seconds <= about) ?? 86400 * Math.ceil((high - low) / about / 86400);
  const found = [];
  for (let t = Math.ceil(low / each) * each; t <= high && found.length < 100; t += each) found.push(t);
  return found;
}

/** Seconds in words: 1.5 s, 2 min, 3 h 20 min. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(3))} s`;
  const minutes = Math.round(seconds / 6) / 10;
  if (minutes < 60) return `${Number.isInteger(minutes) ? minutes : minutes.toFixed(1)} min`;
  const whole_ = Math.round(minutes);
  return whole_ % 60 ? `${Math.floor(whole_ / 60)} h ${whole_ % 60} min` : `${whole_ / 60} h`;
}
