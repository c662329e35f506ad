// Mouse, wheel, keys and menus: each changes the one selection.

import { theme } from "./canvas.js";
import { by } from "./format.js";
import { under } from "./heat.js";
import { drawTip } from "./words.js";

/** @typedef {import("./main.js").Page} Page */

/** @param {Page} page */
export function listen(page) {
  menus(page);
  mouse(page);
  document.addEventListener("keydown", (event) => key(page, event));
  new ResizeObserver(() => page.draw()).observe(by("picture"));
  const repaint = () => {
    page.theme = theme();
    delete by("legend").dataset.key;
    page.draw();
    page.inspect();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  by("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = page.theme.dark ? "light" : "dark";
    repaint();
  });
  by("help").addEventListener("click", () => /** @type {HTMLDialogElement} */ (by("keys")).showModal());
}

/** @param {Page} page */
function menus(page) {
  for (const name of /** @type {const} */ (["run", "measure", "mode", "other"])) {
    const menu = /** @type {HTMLSelectElement} */ (by(name));
    menu.addEventListener("change", () => {
      const value = menu.value;
      if (name === "other") page.select({ other: value, mode: value ? "run" : "absolute" });
      else page.select({ [name]: value });
      menu.blur();
    });
  }
  const find = /** @type {HTMLInputElement} */ (by("find"));
  find.addEventListener("change", () => {
    const wanted = find.value.toLowerCase();
    const row = page.rows.find((r) => r.name.toLowerCase() === wanted) ?? page.rows.find((r) => r.name.toLowerCase().includes(wanted));
    if (wanted && row) page.select({ layer: row.name, step: page.selection.step ?? page.head.step ?? 0 });
    find.value = "";
    find.blur();
  });
}

/** @param {Page} page */
function mouse(page) {
  const heat = /** @type {HTMLCanvasElement} */ (by("heat"));
  const place = (/** @type {MouseEvent} */ event) => {
    const box = heat.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top, wide: box.width };
  };
  const stepAt = (/** @type {number} */ x, /** @type {number} */ wide) => {
    const { from, to } = page.span();
    return from + ((to - from) * x) / wide;
  };
  heat.addEventListener("pointerdown", (event) => {
    const { x } = place(event);
    page.drag = { x0: x, x1: x };
    heat.setPointerCapture(event.pointerId);
  });
  heat.addEventListener("pointermove", (event) => {
    drawTip(page, event);
    if (page.drag) page.drag.x1 = place(event).x;
    page.draw();
  });
  heat.addEventListener("pointerup", (event) => {
    const { x, y, wide } = place(event);
    const drag = page.drag;
    page.drag = null;
    if (drag && Math.abs(drag.x1 - drag.x0) > 5) {
      const [a, b] = [Math.min(drag.x0, drag.x1), Math.max(drag.x0, drag.x1)].map((at) => Math.round(stepAt(Math.min(Math.max(at, 0), wide), wide)));
      if (b > a) page.select({ from: a, to: b });
      return;
    }
    const found = under(heat, page, x, y);
    if (found) page.steps.choose(found);
  });
  heat.addEventListener("pointerleave", () => {
    by("tip").hidden = true;
    page.hover = null;
    page.draw();
  });
  heat.addEventListener("dblclick", () => page.select({ from: null, to: null }));
  heat.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, wide } = place(event);
    page.zoom(stepAt(x, wide), event.deltaY < 0 ? 0.8 : 1.25);
  }, { passive: false });
  by("strip").addEventListener("click", (event) => {
    const box = by("strip").getBoundingClientRect();
    const row = page.rows[Math.floor(((event.clientY - box.top) / box.height) * page.rows.length)];
    if (row) page.select({ layer: row.name, step: page.selection.step ?? page.head.step ?? 0 });
  });
}

/** @param {Page} page @param {KeyboardEvent} event */
function key(page, event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName)) {
    if (event.key === "Escape") target.blur();
    return;
  }
  /** @type {Record<string, () => void>} */
  const actions = {
    j: () => page.moveLayer(1), k: () => page.moveLayer(-1), h: () => void page.steps.move(-1), l: () => void page.steps.move(1),
    n: () => page.findings.move(1), p: () => page.findings.move(-1), "0": () => void page.select({ from: null, to: null }),
    "/": () => by("find").focus(), z: () => void page.zoom(page.selection.step ?? page.all().to, 0.2),
    "?": () => /** @type {HTMLDialogElement} */ (by("keys")).showModal(),
  };
  const act = actions[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
}
