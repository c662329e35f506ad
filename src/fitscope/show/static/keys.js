// Handles mouse, wheel, keys and menus: each changes the one selection.

import { theme } from "./canvas.js";
import { by } from "./format.js";
import { under } from "./heat.js";
import { rankTip } from "./ranks.js";
import { matcher, togglePin } from "./rows.js";
import { drawTip, showTip } from "./words.js";

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
  for (const name of /** @type {const} */ (["run", "measure", "mode", "other", "smooth", "axis"])) {
    const menu = /** @type {HTMLSelectElement} */ (by(name));
    menu.addEventListener("change", () => {
      const value = menu.value;
      if (name === "other") page.select({ other: value, mode: value ? "run" : "absolute" });
      else page.select({ [name]: value });
      menu.blur();
    });
  }
  const find = /** @type {HTMLInputElement} */ (by("find"));
  find.value = page.selection.filter;
  find.addEventListener("input", () => void page.select({ filter: find.value }));
  find.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      find.value = "";
      page.select({ filter: "" });
    } else if (event.key === "Enter") {
      const fits = matcher(find.value);
      const row = page.rows.find((r) => r.name === find.value) ?? page.rows.find((r) => fits(r.name)) ?? page.rows.find((r) => fits(r.type));
      if (find.value && row) page.select({ layer: row.name, step: page.selection.step ?? page.head.step ?? 0 });
      find.blur();
    }
  });
  by("hidden-rows").addEventListener("click", () => void page.select({ rows: page.selection.rows ? "" : "all" }));
}

/** @param {Page} page */
function mouse(page) {
  for (const id of ["heat", "loss"]) pointer(page, /** @type {HTMLCanvasElement} */ (by(id)));
  const ranks = /** @type {HTMLCanvasElement} */ (by("ranks"));
  ranks.addEventListener("pointermove", ({ offsetX, offsetY, clientX, clientY }) => showTip(rankTip(page, ranks, offsetX, offsetY), clientX, clientY));
  ranks.addEventListener("pointerleave", () => showTip("", 0, 0));
  by("strip").addEventListener("click", (event) => {
    const box = by("strip").getBoundingClientRect();
    const { order } = page.rowsShown;
    const row = page.rows[order[Math.floor(((event.clientY - box.top) / box.height) * order.length)]];
    if (row) page.select({ layer: row.name, step: page.selection.step ?? page.head.step ?? 0 });
  });
}

/** Zooming, panning and choosing on the spectrogram or the loss, which share their steps. @param {Page} page @param {HTMLCanvasElement} canvas */
function pointer(page, canvas) {
  const heat = canvas.id === "heat";
  const place = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    const left = heat ? 0 : page.gutter;
    return { x: event.clientX - box.left - left, y: event.clientY - box.top, wide: Math.max(box.width - left, 1) };
  };
  const stepAt = (/** @type {number} */ x, /** @type {number} */ wide) => {
    const { from, to } = page.span();
    return from + ((to - from) * Math.min(Math.max(x, 0), wide)) / wide;
  };
  canvas.addEventListener("pointerdown", (event) => {
    const { x } = place(event);
    if (event.shiftKey) page.panning = { x, ...page.span() };
    else page.drag = { x0: x, x1: x };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, wide } = place(event);
    if (heat) drawTip(page, event);
    else page.hover = x < 0 ? null : Math.floor(stepAt(x, wide));
    if (page.drag) page.drag.x1 = x;
    if (page.panning) page.pan(page.panning.from - page.span().from - ((x - page.panning.x) / wide) * (page.panning.to - page.panning.from));
    page.draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const { x, y, wide } = place(event);
    const { drag, panning } = page;
    page.drag = page.panning = null;
    if (panning) return;
    if (drag && Math.abs(drag.x1 - drag.x0) > 5) {
      const [a, b] = [Math.min(drag.x0, drag.x1), Math.max(drag.x0, drag.x1)].map((at) => Math.round(stepAt(at, wide)));
      if (b > a) page.stretch(a, b);
      return;
    }
    if (!heat) return void (x >= 0 && page.select({ step: Math.floor(stepAt(x, wide)) }));
    const found = under(canvas, page, x, y);
    if (found) page.steps.choose(found);
  });
  canvas.addEventListener("pointerleave", () => {
    by("tip").hidden = true;
    page.hover = null;
    page.draw();
  });
  canvas.addEventListener("dblclick", () => page.stretch(null, null));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, wide } = place(event);
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    const { from, to } = page.span();
    if (sideways) page.pan((sideways / wide) * (to - from));
    else page.zoom(stepAt(x, wide), event.deltaY < 0 ? 0.8 : 1.25);
  }, { passive: false });
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
    n: () => page.findings.move(1), p: () => page.findings.move(-1), "0": () => page.stretch(null, null),
    ArrowDown: () => page.moveLayer(1), ArrowUp: () => page.moveLayer(-1), ArrowLeft: () => page.pan(-quarter(page)), ArrowRight: () => page.pan(quarter(page)),
    t: () => void (page.places.has(page.selection.layer) && togglePin(page, page.selection.layer)),
    "+": () => page.zoom(middle(page), 0.5), "-": () => page.zoom(middle(page), 2),
    "/": () => by("find").focus(), z: () => page.zoom(page.selection.step ?? page.all().to, 0.2),
    "?": () => /** @type {HTMLDialogElement} */ (by("keys")).showModal(),
  };
  const act = actions[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
}

/** A quarter of the shown steps. @param {Page} page */
const quarter = (page) => Math.max((page.span().to - page.span().from) / 4, 1);

/** The step to zoom around: the selected step if it is shown, or the middle. @param {Page} page */
function middle(page) {
  const { from, to } = page.span();
  const { step } = page.selection;
  return step !== null && step >= from && step <= to ? step : (from + to) / 2;
}
