// Explains colours, bars and lines: the scale and marks of the spectrogram, the types of the layers, the depth profile.

import { sheet } from "./canvas.js";
import { MARKS, colourAt, css, typesOf } from "./colour.js";
import { hasUsual } from "./depth.js";
import { by, element, meaning, whole } from "./format.js";
import { ROOM, hasRelief } from "./relief.js";

/** A small patch of colour. @param {string} colour @param {string} [cls] */
export function swatch(colour, cls = "") {
  const made = element("span", `swatch ${cls}`.trim());
  if (colour) made.style.background = colour;
  return made;
}

/** The scale of the spectrogram, and its marks. @param {HTMLElement} box @param {import("./matrix.js").Matrix} m @param {boolean} dark @param {boolean} gaps whether some steps were not recorded */
export function drawScale(box, m, dark, gaps) {
  const key = `${m.scale} ${dark} ${gaps}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const [kind, low, high, of] = m.scale;
  const bar = /** @type {HTMLCanvasElement} */ (element("canvas"));
  box.replaceChildren(
    element("span", "", meaning(kind, low, of), bar, meaning(kind, high, of)),
    element("span", "", swatch(css(MARKS.nan)), "NaN"), element("span", "", swatch(css(MARKS.inf)), "Inf"),
    element("span", "", swatch("var(--missing)"), kind === "run" ? "not in the other run, or not recorded" : "not recorded"),
    ...(gaps ? [element("span", "", swatch("", "pale"), "pale: between recorded steps")] : []),
  );
  const { g, w, h } = sheet(bar);
  if (!w) delete box.dataset.key; // the frame is not on the screen yet: draw again when it has a size
  for (let x = 0; x < w; x++) {
    g.fillStyle = colourAt(kind, dark, x / (w - 1));
    g.fillRect(x, 0, 1.2, h);
  }
}

/** The layer types in the strip, and the bars beside the spectrogram. @param {HTMLElement} box @param {import("./main.js").Page} page */
export function drawKey(box, page) {
  const { m, column } = page.steps.rowsAt(page.hover ?? page.selection.step);
  const step = m && column >= 0 ? (m.level ? (page.hover ?? page.selection.step ?? m.last[column]) : m.start[column]) : null;
  const types = typesOf(page.rowsShown.order.map((i) => page.rows[i].type));
  const when = step === null ? "" : `each layer at step ${whole(step)}${m?.scale[0] === "log2" ? " (log)" : ""}`;
  const course = !m || by("heat").hidden || !hasRelief(m.scale[0]) ? "" : by("heat").clientHeight / page.rowsShown.order.length >= ROOM ? "line in each row: the layer over time, between its usual lowest and highest value" : "lighter, darker: above, below the layer’s median";
  const graph = /** @type {HTMLElement} */ (by("strip")).dataset.lanes ? "lines beside the names: connections; inputs of the selected layer are blue, outputs orange" : "";
  const key = JSON.stringify([types, when, hasUsual(page), course, graph]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const parts = types.map(([name, colour]) => element("span", "", swatch(colour), name));
  if (when) parts.push(element("span", "", swatch("", "bar"), when), ...(hasUsual(page) ? [element("span", "", swatch("", "usual"), "its median over the run")] : []));
  for (const said of [course, graph]) if (said) parts.push(element("span", "", said));
  box.replaceChildren(...parts);
}
