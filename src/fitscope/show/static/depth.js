// Draws the depth profile next to the spectrogram: every layer at the cursor's step, with the layer's usual value as a line.

import { sheet } from "./canvas.js";
import { MARKS, css, isRelative } from "./colour.js";
import { meaning } from "./format.js";
import { INF, NAN, VALUE } from "./matrix.js";
import { usual } from "./relief.js";

/** @typedef {import("./main.js").Page} Page */

const WORDY = 200; // pixels of a profile that has room for its values
const ENOUGH = 8; // columns that a meaningful median needs

/** Whether there is a usual value to compare with. @param {Page} page */
export const hasUsual = (page) => (page.shown()?.columns ?? 0) >= ENOUGH;

/** @param {HTMLCanvasElement} canvas @param {Page} page */
export function drawDepth(canvas, page) {
  const { g, w, h } = sheet(canvas);
  const shown = page.shown();
  const { m, column } = page.steps.rowsAt(page.hover ?? page.selection.step);
  if (!m || !m.rows || !shown) return;
  const t = page.theme;
  const { order } = page.rowsShown;
  const each = h / order.length;
  const [kind, low, high] = m.scale;
  const zero = isRelative(kind) ? w / 2 : 0;
  const x = (/** @type {number} */ v) => Math.min(Math.max((v - low) / (high - low), 0), 1) * (w - 2);
  order.forEach((row, place) => {
    const i = row * m.room + column;
    const flags = m.flags[i];
    const top = place * each;
    const tall = Math.max(each - (each > 3 ? 1 : 0), 0.7);
    if (flags & (NAN | INF)) {
      g.fillStyle = css(flags & NAN ? MARKS.nan : MARKS.inf);
      g.fillRect(0, top, w, tall);
    } else if (flags & VALUE) {
      const hi = m.value(m.high[i]);
      const lo = m.value(m.low[i]);
      const value = isRelative(kind) && Math.abs(lo) > Math.abs(hi) ? lo : hi;
      g.fillStyle = page.rows[row]?.name === page.selection.layer ? t.text : t.blue;
      g.fillRect(Math.min(zero, x(value)), top, Math.max(Math.abs(x(value) - zero), 1), tall);
      if (w > WORDY && each >= 12) barValue(g, meaning(kind, value, m.scale[3]), x(value), top + each / 2, w, t);
    }
  });
  if (!hasUsual(page)) return;
  const { middle } = usual(shown);
  g.strokeStyle = t.warning;
  g.lineWidth = 1.2;
  g.beginPath();
  let pen = false;
  for (const [place, row] of order.entries()) {
    if (middle[row] < 0) {
      pen = false;
      continue;
    }
    const [px, py] = [x(shown.value(middle[row])), (place + 0.5) * each];
    if (pen) g.lineTo(px, py);
    else g.moveTo(px, py);
    pen = true;
  }
  g.stroke();
}

/** Writes a value next to the end of its bar, or inside it if there is no room. @param {CanvasRenderingContext2D} g @param {string} text @param {number} end @param {number} y @param {number} w @param {import("./canvas.js").Theme} t */
function barValue(g, text, end, y, w, t) {
  const inside = end + g.measureText(text).width + 8 > w;
  g.textAlign = inside ? "right" : "left";
  g.fillStyle = inside ? t.back : t.text;
  g.fillText(text, end + (inside ? -6 : 6), y);
}
