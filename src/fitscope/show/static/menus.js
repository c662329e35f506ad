// What there is to choose from in the menus: runs, statistics, colours.

import { by, clean } from "./format.js";
import { Enclosed } from "./source.js";

/** @typedef {import("./main.js").Page} Page */

/** The runs to choose from. @param {Page} page @param {any[]} runs */
export function fillRuns(page, runs) {
  const word = (/** @type {any} */ r) => clean([r.model, r.id, r.status === "running" ? "●" : ""].filter(Boolean).join(" · "));
  const usable = runs.filter((r) => !r.problem);
  const chosen = usable.find((r) => r.id === page.selection.run) ?? usable[0];
  page.selection.run = chosen?.id ?? "";
  by("run").replaceChildren(...usable.map((r) => new Option(word(r), r.id, false, r === chosen)));
  by("run").hidden = usable.length < 2;
  by("compare-label").hidden = usable.length < 2;
  const others = usable.filter((r) => r !== chosen);
  if (!others.some((r) => r.id === page.selection.other)) page.selection.other = "";
  by("other").replaceChildren(new Option("–", ""), ...others.map((r) => new Option(word(r), r.id, false, r.id === page.selection.other)));
}

/** What can be shown, and how. @param {Page} page */
export function fillMenus(page) {
  const { head, selection } = page;
  const measure = by("measure");
  measure.replaceChildren(...head.measures.map((/** @type {any} */ m) => new Option(m.title, m.key, false, m.key === selection.measure)));
  const modes = head.modes.filter((/** @type {[string, string]} */ [key]) => (page.source.live ? key !== "run" || selection.other : enclosed(page, key)));
  if (!modes.some((/** @type {[string, string]} */ [key]) => key === selection.mode)) selection.mode = "";
  by("mode").replaceChildren(...modes.map((/** @type {[string, string]} */ [key, title]) => new Option(title, key, false, key === (selection.mode || "absolute"))));
}

/** Whether a report has a mode of the measure on show. @param {Page} page @param {string} mode */
function enclosed(page, mode) {
  return page.source instanceof Enclosed && `${page.selection.measure} ${mode}` in page.source.data.facts.matrices;
}
