// Writes the text of the page: the line of facts, the findings, the caption of the spectrogram, and the tooltip.

import { by, clean, element, percent, whole } from "./format.js";
import { under } from "./heat.js";
import { drawKey, drawScale } from "./legend.js";

/** @typedef {import("./main.js").Page} Page */

const SIGNS = { error: "✖", warning: "▲", note: "●" };
const STATUS = { running: "● live", complete: "✓ complete", interrupted: "▲ interrupted", failed: "✖ failed" };

const NOTHING = /** @type {[string, string, string]} */ (["good", "✓ No findings", "the run was not diagnosed"]);
const WAITING = /** @type {[string, string, string]} */ (["", "● Waiting for the first steps", "they appear here as soon as they are recorded"]);
const EMPTY = /** @type {[string, string, string]} */ (["warning", "▲ Nothing was recorded", "the run ended before its first step was captured"]);

const DAMAGED = /** @type {[string, string, string]} */ (["error", "✖ Nothing can be read", "the files that hold the steps of this run are damaged"]);

/** A card that is not a button. @param {string} cls @param {string} title @param {string} text */
const card = (cls, title, text) => element("div", `finding plain ${cls}`, element("b", "", title), element("span", "", text));

/** Writes the line of facts and the findings. @param {Page} page */
export function tellRun(page) {
  const { head } = page;
  by("name").textContent = !head.id ? "reading …" : page.source.live && by("run").childElementCount > 1 ? "" : clean([head.model, head.id].filter(Boolean).join(" / "));
  by("status").textContent = page.trouble?.status ?? STATUS[/** @type {"running"} */ (head.status)] ?? clean(head.status ?? "");
  by("status").dataset.status = page.trouble ? "failed" : head.status;
  const facts = [head.step !== null && head.step !== undefined && `step ${whole(head.step)}`, head.epoch !== null && head.epoch !== undefined && `epoch ${head.epoch + 1}`];
  if (head.speed && head.status === "running") facts.push(`${head.speed.toPrecision(2)} steps/s`);
  if (head.cost) facts.push(`capture costs ${percent(head.cost)}`);
  if (head.compiled) facts.push(`compiled in ${head.compiled.toPrecision(2)} s`);
  if (head.cadence) facts.push(clean(head.cadence));
  if (head.identity) facts.push(clean(head.identity));
  if (head.backend) facts.push(clean(head.backend));
  by("facts").textContent = facts.filter(Boolean).join(" · ");
  for (const id of ["name", "facts"]) by(id).title = by(id).textContent ?? ""; // the full text as a tooltip, because the line may be cut
  by("facts").dataset.step = String(head.step ?? "");
  const problems = [...(head.problems ?? [])];
  if (page.missing) problems.unshift(page.missing === page.selection.run ? `The run ${page.missing} no longer exists or cannot be read. The page shows its last known state.` : `There is no run ${page.missing} here. The page shows the newest run.`);
  if (page.trouble) problems.unshift(page.trouble.text);
  by("problems").hidden = !problems.length;
  by("problems").textContent = problems.map((/** @type {string} */ p) => `▲ ${clean(p)}`).join("   ");
  const told = JSON.stringify([head.findings, head.checked, head.empty && [head.status, head.damaged]]);
  if (told === page.told) return;
  page.told = told;
  const cards = head.findings.map((/** @type {any} */ f) => {
    const card = element("button", `finding ${f.severity}`);
    const title = `${SIGNS[/** @type {"error"} */ (f.severity)]} ${f.title} · step ${whole(f.step)}`;
    card.append(element("b", "", title), element("span", "", f.text), element("span", "cure", f.cure ? `→ ${f.cure}` : ""));
    if (f.curve?.length > 1) card.append(sparkline(f));
    const follows = f.follows?.length ? ` Leads to: ${f.follows.join(", ")}.` : "";
    card.title = clean(`${f.title}, step ${whole(f.step)}: ${f.text} ${f.cure}${follows}`);
    card.addEventListener("click", () => page.findings.show(f));
    return card;
  });
  if (!cards.length && head.id) {
    const [cls, title, text] = !head.empty ? NOTHING : head.damaged ? DAMAGED : head.status === "running" ? WAITING : EMPTY;
    cards.push(card(cls, title, head.empty ? text : clean(head.checked ?? text)));
  }
  by("verdict").replaceChildren(...cards);
}

/** The evidence of a finding as a small curve, on a log scale if it spans powers of ten. @param {any} f */
function sparkline(f) {
  const values = f.curve.map((/** @type {[number, number]} */ [, value]) => value);
  const log = Math.min(...values) > 0 && Math.max(...values) > 100 * Math.min(...values);
  const scaled = log ? values.map(Math.log) : values;
  const [low, high] = [Math.min(...scaled), Math.max(...scaled)];
  const [first, last] = [Math.min(f.curve[0][0], f.step), Math.max(f.curve.at(-1)[0], f.step)]; // a NaN comes after its evidence
  const x = (/** @type {number} */ step) => 1 + (118 * (step - first)) / (last - first || 1);
  const y = (/** @type {number} */ value) => 17 - (16 * (value - low)) / (high - low || 1);
  const make = (/** @type {string} */ tag, /** @type {Record<string, string>} */ attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const picture = make("svg", { class: "evidence", viewBox: "0 0 120 18", preserveAspectRatio: "none", role: "img", "aria-label": clean(f.curve_of) });
  const at = x(f.step).toFixed(1);
  picture.append(make("line", { x1: at, x2: at, y1: "0", y2: "18" }));
  picture.append(make("polyline", { points: f.curve.map((/** @type {[number, number]} */ [step], /** @type {number} */ i) => `${x(step).toFixed(1)},${y(scaled[i]).toFixed(1)}`).join(" ") }));
  return picture;
}

/** The caption: what the spectrogram shows, and what its colours mean. @param {Page} page */
export function drawCaption(page) {
  const m = page.shown();
  const { from, to } = page.span();
  const wide = by("heat").clientWidth || 1;
  const each = (to - from) / wide;
  document.body.dataset.span = `${from} ${to}`;
  document.body.dataset.shown = m ? `${m.facts.measure} ${m.facts.mode} ${m.level}` : "";
  const there = m ? m.recorded(from, Math.min(to, page.trained())) : 0;
  by("span").textContent = m ? [`step ${whole(from)} … ${whole(Math.max(Math.min(to - 1, page.head.step ?? to), from))}`, ...recordedWords(there, Math.min(to, page.trained()) - from, each)].join(" · ") : "";
  const { hidden } = page.rowsShown;
  const all = page.selection.rows === "all";
  if (page.rowsShown.none) by("span").textContent += ` · no layer fits “${clean(page.selection.filter)}”, so all are shown`;
  by("hidden-rows").hidden = !hidden && !all;
  by("hidden-rows").textContent = all ? "hide empty rows" : `${whole(hidden)} empty ${hidden === 1 ? "row" : "rows"} hidden`;
  if (m) drawScale(by("legend"), m, page.theme.dark, there < Math.min(to, page.trained()) - from);
  drawKey(by("key"), page);
}

/** The share of the shown steps that was recorded, and the steps of one pixel. @param {number} there recorded steps @param {number} steps @param {number} each steps of a pixel */
function recordedWords(there, steps, each) {
  const all = Math.max(Math.round(steps), 1);
  const share = each * Math.min(there / all, 1); // recorded steps of a pixel
  const words = [there >= all ? "every step recorded" : `${whole(there)} of ${whole(all)} steps recorded`];
  if (share > 1) words.push(`1 pixel = ${share < 10 ? share.toFixed(1) : whole(share)} recorded steps, showing the largest outlier`);
  return words;
}

/** @param {[number, number]} steps */
const between = ([a, b]) => (b > a ? `steps ${whole(a)}–${whole(b)}` : `step ${whole(a)}`);

/** Shows the value under the mouse. @param {Page} page @param {MouseEvent} event */
export function drawTip(page, event) {
  const heat = /** @type {HTMLCanvasElement} */ (by("heat"));
  const place = heat.getBoundingClientRect();
  const found = under(heat, page, event.clientX - place.left, event.clientY - place.top);
  page.hover = null;
  if (!found) return showTip("", 0, 0);
  const { matrix: m, row, steps } = found;
  page.hover = found.column < 0 ? steps[0] : m.start[found.column];
  const step = page.steps.point(found, () => drawTip(page, event));
  if (step !== null) page.hover = step;
  const value = { nan: "NaN", inf: "Inf", low: m.word(found.code), high: m.word(found.code), none: found.alone ? "not in the other run" : "not recorded" }[found.mark];
  const born = /NaN|Inf/.test(value) ? page.head.births?.[page.rows[row].name]?.[page.measure()?.kind] : undefined;
  const said = [clean(page.rows[row].name), step === null ? between(steps) : `step ${whole(step)}`, value];
  if (found.between !== null) said.splice(1, 0, `step ${whole(found.between)} not recorded; before it`);
  if (born !== undefined) said.push(`since step ${whole(born)}`);
  else if (steps[1] > steps[0] && found.ends[0] < found.ends[1]) said.push(`(${between(steps)}: ${m.word(found.ends[0])} … ${m.word(found.ends[1])})`);
  showTip(said.join("  "), event.clientX, event.clientY);
}

/** Shows a text next to the mouse; hides it without a text. @param {string} text @param {number} x @param {number} y */
export function showTip(text, x, y) {
  const tip = by("tip");
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.left = `${Math.max(Math.min(x + 12, window.innerWidth - tip.offsetWidth - 8), 0)}px`;
  tip.style.top = `${y + 14}px`;
}
