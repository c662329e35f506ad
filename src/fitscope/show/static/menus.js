// Fills the menus: runs, statistics, colours.

import { AXES } from "./axis.js";
import { SMOOTHINGS } from "./curve.js";
import { by, clean } from "./format.js";
import { Enclosed } from "./source.js";
import { tellRun } from "./words.js";

/** @typedef {import("./main.js").Page} Page */

/** The first run to show: the requested one, or the newest readable one. @param {Page} page @param {any[]} runs */
export function chooseRun(page, runs) {
  const { selection } = page;
  const usable = runs.filter((r) => !r.problem);
  if (!usable.some((r) => r.id === selection.run)) {
    if (selection.run) Object.assign(selection, { layer: "", step: null, from: null, to: null });
    page.missing = selection.run;
    selection.run = usable[0]?.id ?? "";
  }
  fillRuns(page, runs);
}

/** Lists the runs to choose from. The shown run stays, even if it is gone. @param {Page} page @param {any[]} runs */
export function fillRuns(page, runs) {
  const { selection } = page;
  const word = (/** @type {any} */ r) => clean([r.model, runName(r), r.status === "running" ? "●" : ""].filter(Boolean).join(" · "));
  const usable = runs.filter((r) => !r.problem);
  for (const r of usable) page.overlay.names.set(r.id, word(r));
  const gone = selection.run && !usable.some((r) => r.id === selection.run);
  if (gone || page.missing === selection.run) {
    page.missing = gone ? selection.run : "";
    tellRun(page);
  }
  const options = usable.map((r) => new Option(word(r), r.id, false, r.id === selection.run));
  by("run").replaceChildren(...(gone ? [new Option(`${clean(selection.run)} · gone`, selection.run, false, true)] : []), ...options);
  by("run").hidden = by("compare-label").hidden = by("run").childElementCount < 2;
  by("runs-button").hidden = runs.length < 2;
  by("runs-button").textContent = `all ${runs.length} runs`;
  const others = usable.filter((r) => r.id !== selection.run);
  if (!others.some((r) => r.id === selection.other)) selection.other = "";
  by("other").replaceChildren(new Option("–", ""), ...others.map((r) => new Option(word(r), r.id, false, r.id === selection.other)));
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** The name of a run. If fitscope chose it: the start time and the end of the name, which is unique. @param {{id: string, created: number | null}} run */
export function runName({ id, created }) {
  const given = /^\d{8}-\d{6}-\d+-(\w+)$/.exec(id);
  if (!given || !created) return id;
  const at = new Date(1000 * created);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${at.getDate()} ${MONTHS[at.getMonth()]} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} · ${given[1]}`;
}

/** Lists the measures that can be shown, and the modes. @param {Page} page */
export function fillMenus(page) {
  const { head, selection } = page;
  by("smooth").replaceChildren(...SMOOTHINGS.map(([key, title]) => new Option(title, key, false, key === selection.smooth)));
  by("axis").replaceChildren(...AXES.map(([key, title]) => new Option(title, key, false, key === selection.axis)));
  const measure = by("measure");
  measure.replaceChildren(...head.measures.map((/** @type {any} */ m) => new Option(m.title, m.key, false, m.key === selection.measure)));
  const modes = head.modes.filter((/** @type {[string, string]} */ [key]) => (page.source.live ? key !== "run" || selection.other : enclosed(page, key)));
  if (!modes.some((/** @type {[string, string]} */ [key]) => key === selection.mode)) selection.mode = "";
  by("mode").replaceChildren(...modes.map((/** @type {[string, string]} */ [key, title]) => new Option(title, key, false, key === (selection.mode || "absolute"))));
}

/** Whether a report has a mode of the shown measure. @param {Page} page @param {string} mode */
function enclosed(page, mode) {
  return page.source instanceof Enclosed && `${page.selection.measure} ${mode}` in page.source.data.facts.matrices;
}
