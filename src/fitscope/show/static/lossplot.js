// Draws the loss of every batch: a thin line from the lowest to the highest loss of a pixel, a bold smoothed one, and other runs.
// Below it are lanes: the steps of each finding. Both share the spectrogram's steps.

import { marks } from "./axis.js";
import { fitted, sheet, ticks } from "./canvas.js";
import { MARKS, css } from "./colour.js";
import { smoothed } from "./curve.js";
import { by, number, whole } from "./format.js";
import { recordedPixels } from "./matrix.js";

/** @typedef {import("./main.js").Page} Page */

const APART = 9; // pixels between two marks of epochs
const FEW = 80; // with at most this many points in view, each gets a dot: a line through one point is invisible

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawLoss(canvas, page) {
  const { g, w, h } = sheet(canvas);
  const c = page.curve;
  const left = page.gutter;
  const { from, to } = page.span();
  const t = page.theme;
  const bottom = h - 16;
  if (!c || page.head.empty) return;
  const x = (/** @type {number} */ step) => left + ((step - from) / (to - from)) * (w - left);
  const inside = c.start.flatMap((s, i) => (s <= to && (c.start[i + 1] ?? c.end) >= from ? [i] : []));
  let [low, high] = page.overlay.ends(from, to);
  g.strokeStyle = t.line;
  g.fillStyle = t.faint;
  g.textAlign = "center";
  const axis = marks(page, from, to, (w - left) / 90);
  document.body.dataset.axis = `${axis[0]?.text} … ${axis.at(-1)?.text}`;
  for (const { step, text } of axis) {
    stroke(g, [[x(step), 4], [x(step), bottom]]);
    const room = g.measureText(text).width / 2;
    g.fillText(text, Math.min(Math.max(x(step), left + room), w - room), bottom + 9);
  }
  epochs(g, page.head.epochs ?? [], x, left, w, bottom, t.faint);
  if (!inside.length && low > high) {
    g.fillText("no loss was recorded", (left + w) / 2, h / 2);
    readout(page);
    return;
  }
  const finite = inside.filter((i) => Number.isFinite(c.low[i]));
  for (const i of finite) [low, high] = [Math.min(low, c.low[i]), Math.max(high, c.high[i])];
  const log = low > 0 && high / low > 8;
  const f = log ? Math.log10 : (/** @type {number} */ v) => v;
  if (high === low) [low, high] = [low - Math.abs(low) / 10 - 1e-12, high + Math.abs(high) / 10 + 1e-12];
  const [a, b] = [f(low), f(high)];
  const y = (/** @type {number} */ v) => bottom - 3 - ((f(v) - a) / (b - a)) * (bottom - 12);
  g.textAlign = "right";
  for (const value of log ? decades(low, high) : ticks(low, high, 5)) {
    if (y(value) < 4 || y(value) > bottom) continue;
    g.strokeStyle = t.line;
    stroke(g, [[left, y(value)], [w, y(value)]]);
    g.fillText(number(value), left - 6, y(value));
  }
  g.save();
  g.beginPath();
  g.rect(left, 0, w - left, h);
  g.clip();
  page.overlay.draw(g, x, y, from, to);
  g.strokeStyle = t.blue;
  g.lineWidth = 1;
  const at = (/** @type {number} */ i) => x(c.start[i] + 0.5); // the middle of a step, as the spectrogram draws it
  stroke(g, finite.flatMap((i) => [[at(i), y(c.low[i])], [at(i), y(c.high[i])]]));
  if (finite.length <= FEW) dots(g, finite.map((i) => [at(i), y(c.high[i])]), t.blue);
  const smooth = smoothed(c, page.selection.smooth);
  g.strokeStyle = t.bold;
  g.lineWidth = 1.8;
  stroke(g, finite.filter((i) => Number.isFinite(smooth[i])).map((i) => [at(i), y(smooth[i])]));
  g.fillStyle = css(MARKS.nan);
  for (const i of inside) if (c.broken[i]) g.fillRect(x(c.start[i]) - 0.5, bottom - 5, Math.max(x(c.start[i + 1] ?? c.end) - x(c.start[i]), 1.5), 5);
  cursor(g, page, x, h);
  g.restore();
  readout(page);
  g.save();
  g.translate(9, bottom / 2);
  g.rotate(-Math.PI / 2);
  g.textAlign = "center";
  g.fillStyle = t.faint;
  g.fillText(`${c.facts.title ?? "loss per batch"}${log ? " (log)" : ""}`, 0, 0);
  g.restore();
}

/** Writes the loss and the learning rate at the cursor above the picture, so that they hide no part of the loss. @param {Page} page */
function readout(page) {
  const said = atCursor(page);
  const box = by("readout");
  if (box.textContent !== said) box.textContent = said; // otherwise each drawing would lay out the page again
}

/** @param {Page} page */
function atCursor(page) {
  const step = page.hover ?? page.selection.step;
  const c = page.curve;
  if (!c || step === null) return "";
  const i = c.at(step);
  const exact = i >= 0 && (c.level > 0 || c.start[i] === step);
  const value = !exact ? "not recorded" : c.broken[i] ? "NaN" : c.low[i] === c.high[i] ? number(c.low[i]) : `${number(c.low[i])} … ${number(c.high[i])}`;
  const curve = page.head.lanes.find((/** @type {any} */ lane) => lane.curve?.length)?.curve;
  const rate = curve ? ` · learning rate ${number(rateAt(curve, step))}` : typeof page.head.rate === "number" ? ` · learning rate ${number(page.head.rate)} at the start` : "";
  return `step ${whole(step)} · ${c.facts.title ?? "loss"} ${value}${rate}`;
}

/**
 * Where each epoch begins, with its number if there is room.
 * @param {CanvasRenderingContext2D} g @param {[number, number][]} begun @param {(step: number) => number} x
 * @param {number} left @param {number} right @param {number} bottom @param {string} colour
 */
function epochs(g, begun, x, left, right, bottom, colour) {
  let [mark, label] = [-99, -99]; // the positions of the last mark and label
  g.strokeStyle = g.fillStyle = colour;
  g.textAlign = "left";
  g.setLineDash([1, 3]);
  for (const [epoch, step] of begun) {
    const at = x(step);
    if (at < left || at > right || at - mark < APART) continue;
    mark = at;
    stroke(g, [[at, 2], [at, bottom]]);
    if (at - label < 60 || at > right - 50) continue;
    label = at;
    g.fillText(`epoch ${epoch + 1}`, at + 3, 7);
  }
  g.setLineDash([]);
  g.textAlign = "center";
}

/** @param {CanvasRenderingContext2D} g @param {number[][]} points @param {string} colour */
function dots(g, points, colour) {
  g.fillStyle = colour;
  for (const [px, py] of points) {
    g.beginPath();
    g.arc(px, py, 2.2, 0, 7);
    g.fill();
  }
}

/** @param {CanvasRenderingContext2D} g @param {number[][]} points */
function stroke(g, points) {
  g.beginPath();
  points.forEach(([px, py], i) => (i ? g.lineTo(px, py) : g.moveTo(px, py)));
  g.stroke();
}

/** @param {number} low @param {number} high */
function decades(low, high) {
  const found = [];
  const fine = Math.log10(high / low) < 2.5;
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const k of fine ? [1, 2, 5] : [1]) found.push(k * 10 ** e);
  }
  return found.filter((v) => v >= low * 0.99 && v <= high * 1.01);
}

/** @param {CanvasRenderingContext2D} g @param {Page} page @param {(step: number) => number} x @param {number} h */
function cursor(g, page, x, h) {
  const { from, to } = page.span();
  g.lineWidth = 1;
  for (const [step, dash] of /** @type {[number | null, number[]][]} */ ([[page.selection.step, []], [page.hover, [3, 3]]])) {
    if (step === null || step < from || step > to) continue;
    g.strokeStyle = page.theme.faint;
    g.setLineDash(dash);
    stroke(g, [[x(step), 0], [x(step), h]]);
  }
  g.setLineDash([]);
}

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawLanes(canvas, page) {
  const lanes = page.head.lanes.filter((/** @type {any} */ lane) => lane.spans.length || lane.curve?.length);
  const m = page.shown();
  const gaps = m !== null && m.columns > 0 && m.facts.count < page.trained() - page.all().from;
  const tall = (lanes.length + (gaps ? 1 : 0)) * 13;
  canvas.style.height = `${tall}px`;
  const { g, w } = sheet(canvas);
  const left = page.gutter;
  const { from, to } = page.span();
  const t = page.theme;
  const x = (/** @type {number} */ step) => left + ((step - from) / (to - from)) * (w - left);
  lanes.forEach((/** @type {any} */ lane, /** @type {number} */ i) => {
    g.textAlign = "right";
    g.fillStyle = t.faint;
    const name = lane.curve ? `${lane.name} ${number(rateAt(lane.curve, page.hover ?? page.selection.step))}` : lane.name;
    g.fillText(fitted(g, name, left - 8), left - 6, i * 13 + 6.5);
    g.strokeStyle = t.line;
    stroke(g, [[left, i * 13 + 12.5], [w, i * 13 + 12.5]]);
    g.fillStyle = t[/** @type {"error"} */ (lane.severity)];
    if (lane.curve) rates(g, lane.curve, (step) => Math.min(Math.max(x(step), left), w), i * 13 + 2, t.blue);
    for (const [begin, end] of lane.spans) {
      const [a, b] = [Math.max(x(begin), left), Math.min(x(end), w)];
      if (b >= left && a <= w) g.fillRect(Math.min(a, w - 2), i * 13 + 2, Math.max(b - a, 2), 8);
    }
  });
  if (gaps) recordedLane(g, page, lanes.length * 13, w);
  cursor(g, page, x, tall);
}

/** Marks each recorded step, fainter if the pixel also has steps that were not recorded. @param {CanvasRenderingContext2D} g @param {Page} page @param {number} top @param {number} right */
function recordedLane(g, page, top, right) {
  const left = page.gutter;
  const m = page.shown();
  if (!m) return;
  const { from, to } = page.span();
  g.textAlign = "right";
  g.fillStyle = page.theme.faint;
  g.fillText(fitted(g, "recorded steps", left - 8), left - 6, top + 6.5);
  const wide = Math.max(Math.round(right - left), 1);
  const scale = (to - from) / wide;
  recordedPixels(m, from, to, wide).forEach((seen, x) => {
    if (!seen) return;
    const share = Math.min(m.recorded(Math.floor(from + x * scale), Math.ceil(from + (x + 1) * scale)) / Math.max(scale, 1), 1);
    g.globalAlpha = 0.45 + 0.55 * share;
    g.fillRect(left + x, top + 3, 1, 6);
  });
  g.globalAlpha = 1;
}

/** The rate at a step; the newest rate without a step. @param {[number, number][]} curve @param {number | null} step */
const rateAt = (curve, step) => (curve.findLast(([at]) => step === null || at <= step) ?? curve[0])[1];

/**
 * A learning rate as steps in a lane, its highest on top; as doublings where it spans many.
 * @param {CanvasRenderingContext2D} g @param {[number, number][]} curve @param {(step: number) => number} x @param {number} top @param {string} colour
 */
function rates(g, curve, x, top, colour) {
  const values = curve.map(([, rate]) => rate);
  const positive = values.filter((rate) => rate > 0);
  const log = positive.length === values.length && Math.max(...values) > 8 * Math.min(...values);
  const f = log ? Math.log2 : (/** @type {number} */ v) => v;
  const [low, high] = [f(Math.min(...values)), f(Math.max(...values))];
  const y = (/** @type {number} */ rate) => top + 8 - (high > low ? (f(rate) - low) / (high - low) : 0.5) * 7;
  g.strokeStyle = colour;
  g.lineWidth = 1.2;
  stroke(g, curve.flatMap(([step, rate], i) => (i ? [[x(step), y(curve[i - 1][1])], [x(step), y(rate)]] : [[x(step), y(rate)]])));
  g.lineWidth = 1;
}
