// Shows one layer at one step: the layers that moved most in that batch, the distribution of the layer's values in it, in the
// previous batch and over the training, and the statistics.

import { sheet } from "./canvas.js";
import { MARKS, colourAt, css } from "./colour.js";
import { clean, element, number, percent, whole } from "./format.js";
import { pinned, togglePin } from "./rows.js";
import { neighbours } from "./graph.js";
import { INF, NAN, ONLY_HERE, VALUE } from "./matrix.js";

/** @typedef {import("./main.js").Page} Page */

const WORDS = { activations: "activations", gradients: "gradients", weights: "weights", weight_gradients: "weight gradients", updates: "updates" };

/** @param {HTMLElement} box @param {Page} page @param {any} moment exact numbers, or null @param {any} spread */
export function drawInspector(box, page, moment, spread) {
  const row = page.rows[page.rowIndex(page.selection.layer)];
  if (!row || page.selection.step === null) {
    box.replaceChildren(element("p", "hint", page.head.empty ? "" : "Click a finding above, or a cell of the spectrogram."));
    return;
  }
  const parts = [title(page, row, moment)];
  if (moment?.moved?.length) parts.push(...moved(page, moment.moved));
  const site = mainSite(page, moment);
  if (site) parts.push(...values(page, site));
  if (spread?.arrays?.share) parts.push(element("h3", "", "distribution over training"), distribution(page, spread));
  parts.push(moment ? exactTable(moment) : coarseTable(page));
  box.replaceChildren(...parts);
}

/** @param {Page} page @param {any} row @param {any} moment */
function title(page, row, moment) {
  const at = moment?.sites?.find((/** @type {any} */ s) => s.now)?.now;
  const where = [row.type, `layer ${page.rowIndex(row.name) + 1} of ${page.rows.length}`, row.shape && `output ${row.shape}`];
  const when = `step ${whole(page.selection.step ?? 0)}${at ? ` (epoch ${at.epoch + 1}, batch ${at.batch})` : ""}`;
  const made = element("div", "", element("h2", "", row.name));
  const pin = element("button", "link", pinned(page).includes(row.name) ? "unpin" : "pin");
  pin.title = "pin this layer to the top, or unpin it (t)";
  pin.addEventListener("click", () => void togglePin(page, row.name));
  made.append(element("p", "faint", [...where, when].filter(Boolean).join(" · "), " ", pin), ...connected(page, row.name));
  return made;
}

/** The layers that feed a layer and those that it feeds, each as a button. @param {Page} page @param {string} layer */
function connected(page, layer) {
  const [before, after] = neighbours(page, layer).map((names) => names.slice(0, 12).map((name) => {
    const button = element("button", "link", name);
    button.addEventListener("click", () => void page.select({ layer: name }));
    return button;
  }));
  const line = (/** @type {string} */ said, /** @type {HTMLElement[]} */ buttons) => (buttons.length ? [element("span", "", said), ...buttons] : []);
  return before.length + after.length ? [element("p", "connected", ...line("fed by", before), ...line("feeds", after))] : [];
}

/** The site that the shown measure reads. @param {Page} page @param {any} moment */
function mainSite(page, moment) {
  const kind = page.measure()?.kind;
  const sites = moment?.sites ?? [];
  return sites.find((/** @type {any} */ s) => s.kind === kind) ?? sites.find((/** @type {any} */ s) => s.kind === "activations") ?? sites[0];
}

/** @param {Page} page @param {any} site */
function values(page, site) {
  const { now, before } = site;
  const head = element("h3", "", `${WORDS[/** @type {"gradients"} */ (site.kind)] ?? site.kind} in this batch `);
  head.append(element("i", "", before ? `(grey: step ${whole(before.step)})` : ""));
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", "values"));
  canvas.title = "How many values have which size. Each bar spans a factor of 2; its height is the square root of the number. Dashed: the ends of fp16.";
  requestAnimationFrame(() => histogram(canvas, page, now, before));
  return [signs(now), head, canvas, ...sampled(now)];
}

/** If statistics cover only some values: how many of how many. @param {any} now */
function sampled({ count, shape }) {
  const all = (shape ?? []).reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
  return count && count < all ? [element("p", "faint", `sampled: ${whole(count)} of ${whole(all)} values`)] : [];
}

/** [− 0 + NaN Inf] as a bar. @param {any} now */
function signs(now) {
  const finite = now.count - now.nans - now.infs;
  const shares = [
    ["−", now.negatives, "#4393c3"], ["0", now.zeros, "#8b949e"], ["+", finite - now.negatives - now.zeros, "#d6604d"],
    ["NaN", now.nans, css(MARKS.nan)], ["Inf", now.infs, css(MARKS.inf)],
  ];
  const bar = element("div", "signs");
  for (const [name, count, colour] of /** @type {[string, number, string][]} */ (shares)) {
    if (!count) continue;
    const part = element("span", "", count / now.count > 0.12 ? `${name} ${percent(count / now.count)}` : "");
    part.style.flexGrow = String(Math.max(count / now.count, 0.01));
    part.style.background = colour;
    part.title = `${name}: ${whole(count)} of ${whole(now.count)}`;
    bar.append(part);
  }
  return bar;
}

/** Buckets on a line: −2^15 … −2^-40, 0, 2^-40 … 2^15. @param {HTMLCanvasElement} canvas @param {Page} page @param {any} now @param {any} before */
function histogram(canvas, page, now, before) {
  const { g, w, h } = sheet(canvas);
  const all = [...(now.buckets ?? []), ...(before?.buckets ?? [])].filter((b) => b !== 0);
  const t = page.theme;
  const sizes = all.map((b) => Math.abs(b));
  const [low, high] = all.length ? [Math.min(...sizes) - 1, Math.max(...sizes) + 1] : [120, 130];
  const span = 2 * (high - low + 1) + 1;
  const x = (/** @type {number} */ b) => (b === 0 ? high - low + 1 : b > 0 ? b - low + high - low + 2 : high - -b) * (w / span);
  const bottom = h - 14;
  const bars = (/** @type {any} */ of, /** @type {(b: number) => string} */ colour) => {
    if (!of?.buckets) return;
    const top = Math.max(...of.counts, 1);
    of.buckets.forEach((/** @type {number} */ b, /** @type {number} */ i) => {
      g.fillStyle = colour(b);
      const tall = Math.max(Math.sqrt(of.counts[i] / top) * (bottom - 4), 1);
      g.fillRect(x(b), bottom - tall, Math.max(w / span - 0.6, 1), tall);
    });
  };
  bars(before, () => t.line);
  g.globalAlpha = 0.85;
  bars(now, (b) => (b < 0 ? "#4393c3" : b > 0 ? "#d6604d" : "#8b949e"));
  g.globalAlpha = 1;
  // fp16 holds nothing smaller than 2^-24 and nothing from 2^16 on.
  g.strokeStyle = t.warning;
  g.setLineDash([2, 2]);
  for (const b of [129 - 24, 129 + 16]) {
    if (b <= low || b >= high) continue;
    for (const side of [x(b), x(-b) + w / span]) {
      g.beginPath();
      g.moveTo(side, 2);
      g.lineTo(side, bottom);
      g.stroke();
    }
  }
  g.setLineDash([]);
  g.fillStyle = t.faint;
  g.textAlign = "center";
  const every = Math.max(Math.ceil((high - low) / 3), 1);
  const taken = [x(0) + w / span / 2];
  for (let b = high - 1; b > low; b -= every) {
    for (const side of [b, -b]) {
      const at = x(side) + w / span / 2;
      if (at < 22 || at > w - 22 || taken.some((other) => Math.abs(at - other) < 56)) continue;
      taken.push(at);
      g.fillText(`${side < 0 ? "−" : ""}${number(2 ** (b - 129))}`, at, h - 6);
    }
  }
  g.fillText("0", x(0) + w / span / 2, h - 6);
  if (now.nans + now.infs >= now.count) {
    g.fillStyle = css(now.nans ? MARKS.nan : MARKS.inf);
    g.font = "bold 13px system-ui, sans-serif";
    g.textAlign = "center";
    g.fillText(now.nans ? "all values NaN" : "all values Inf", w / 2, h / 2 - 8);
    g.font = "11px system-ui, sans-serif";
  }
}

/** @param {Page} page @param {any} spread */
function distribution(page, spread) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", "spread"));
  canvas.title = "The same over the steps: from the smallest size (bottom) to the largest (top), both signs together. Brighter: more values.";
  requestAnimationFrame(() => {
    const { g, w, h } = sheet(canvas);
    const { start, last, share } = spread.arrays;
    const wide = start.length;
    if (!wide) return;
    const low = spread.facts.low;
    const many = share.length / wide;
    // Both signs together, by size.
    const sizes = [];
    for (let b = 0; b < many; b++) sizes.push(Math.abs(low + b));
    const seen = new Set();
    for (let i = 0; i < share.length; i++) if (share[i]) seen.add(sizes[i % many]);
    seen.delete(0);
    const used = [...seen];
    const [least, most] = used.length ? [Math.min(...used), Math.max(...used)] : [128, 130];
    const tall = most - least + 1;
    const end = spread.facts.end;
    const from = start[0];
    const x = (/** @type {number} */ step) => ((step - from) / (end - from)) * w;
    const columns = [];
    let peak = 1;
    for (let c = 0; c < wide; c++) {
      const column = new Float64Array(tall + 1);
      for (let b = 0; b < many; b++) {
        const v = share[c * many + b];
        if (v && sizes[b]) column[sizes[b] - least] = Math.min(Math.hypot(column[sizes[b] - least], v), 255);
      }
      columns.push(column);
      peak = Math.max(peak, ...column);
    }
    for (const [c, column] of columns.entries()) {
      const [a, b] = [x(start[c]), x(start[c + 1] ?? end)];
      const seen = Math.max(x(last[c] + 1), a + 2); // nothing was recorded after that
      for (let s = 0; s < tall; s++) {
        if (!column[s]) continue;
        g.fillStyle = colourAt("log2", page.theme.dark, column[s] / peak);
        g.fillRect(a, ((tall - 1 - s) * h) / tall, Math.max(Math.min(b, seen) - a, 1) + 0.4, h / tall + 0.4);
        if (b <= seen) continue;
        g.globalAlpha = 0.25;
        g.fillRect(seen, ((tall - 1 - s) * h) / tall, b - seen, h / tall + 0.4);
        g.globalAlpha = 1;
      }
    }
    const at = page.selection.step;
    if (at !== null) {
      g.fillStyle = page.theme.text;
      g.fillRect(x(at), 0, 1, h);
    }
    g.textAlign = "left";
    g.lineWidth = 3;
    g.strokeStyle = page.theme.panel;
    g.fillStyle = page.theme.text;
    for (const [size, y] of [[most, 8], [least, h - 7]]) {
      g.strokeText(number(2 ** (size - 129)), 3, y); // readable on any background
      g.fillText(number(2 ** (size - 129)), 3, y);
    }
  });
  return canvas;
}

/** The statistics of every site of the layer, now and at the previous step. @param {any} moment */
function exactTable(moment) {
  const table = element("table");
  table.append(tableRow("th", ["", "this", "previous", "change"]));
  const ratios = ["now", "before"].map((when) => ratio(moment.sites, when));
  if (ratios[0] !== null) table.append(tableRow("td", ["update / weight", ...compared(ratios[0], ratios[1], number)]));
  for (const { kind, site, now, before } of moment.sites) {
    const label = short(kind, site);
    const rows = /** @type {[string, any, any][]} */ ([[`${label} RMS`, rms(now), before && rms(before)]]);
    if (kind === "activations" || kind === "gradients") {
      rows.push([`${label} mean`, now.mean, before?.mean], [`${label} lowest`, now.min, before?.min], [`${label} highest`, now.max, before?.max]);
      rows.push([`${label} zeros`, now.zeros / now.count, before && before.zeros / before.count]);
    }
    for (const [what, a, b] of rows) {
      table.append(tableRow("td", [what, ...compared(a, b, what.endsWith(" zeros") ? percent : number)]));
    }
  }
  return table;
}

/** Two numbers (or words) and the change between them. @param {any} a @param {any} b @param {(value: number) => string} form */
function compared(a, b, form) {
  const shown = [a, b].map((v) => (v === null || v === undefined ? "–" : typeof v === "string" ? v : form(v)));
  return [...shown, typeof a === "number" && typeof b === "number" ? change(a, b) : "–"];
}

/** The length of the update of a layer's weights, relative to the weights. @param {any[]} sites @param {string} when @returns {number | string | null} */
function ratio(sites, when) {
  const lengths = ["updates", "weights"].map((kind) => {
    const all = sites.filter((s) => s.kind === kind && s[when]).map((s) => s[when]);
    const broken = all.map(rms).find((r) => typeof r === "string");
    return broken ?? (all.length ? Math.sqrt(all.reduce((sum, s) => sum + s.rms ** 2 * s.count, 0)) : null);
  });
  const [update, weight] = lengths;
  if (update === null || weight === null) return null;
  return typeof update === "string" ? update : typeof weight === "string" ? weight : weight ? update / weight : null;
}

/** @param {any} stats */
const rms = (stats) => (stats.nans ? "NaN" : stats.infs ? "Inf" : stats.rms);

/** A site in two words. @param {string} kind @param {string} site @returns {string} */
function short(kind, site) {
  const own = site.split("/").at(-1) ?? "";
  if (kind === "activations") return "output";
  if (kind === "gradients") return "gradient";
  if (kind.includes("/")) {
    // The rest of a pass or a change is its site.
    const [first, rest] = [kind.slice(0, kind.indexOf("/")), kind.slice(kind.indexOf("/") + 1)];
    return first === "changes" ? `${short(rest, site)} change` : `${first.slice(0, 5)}. ${short(rest, site)}`;
  }
  const words = { weights: own, weight_gradients: `${own} grad`, updates: `${own} update` };
  return words[/** @type {"weights"} */ (kind)] ?? kind;
}

/** @param {number} a @param {number} b */
function change(a, b) {
  if (!b) return a ? "–" : "0 %";
  const share = (a - b) / Math.abs(b);
  if (Math.abs(share) >= 10) return `×${number(a / b)}`;
  const text = (100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0);
  return Number(text) === 0 ? "0 %" : `${share > 0 ? "+" : ""}${text} %`;
}

/** The value from the spectrogram, if no exact one is available. @param {Page} page */
function coarseTable(page) {
  const m = page.shown();
  const table = element("table");
  const row = page.rowIndex(page.selection.layer);
  if (!m || row < 0 || page.selection.step === null) return table;
  const column = m.at(page.selection.step);
  table.append(tableRow("th", ["", "lowest", "highest"]));
  if (column >= 0) table.append(tableRow("td", [page.measure()?.title ?? "", ...ends(m, row, column)]));
  return table;
}

/** @param {import("./matrix.js").Matrix} m @param {number} row @param {number} column */
function ends(m, row, column) {
  const i = row * m.room + column;
  const f = m.flags[i];
  if (f & NAN) return ["NaN", "NaN"];
  if (f & INF) return ["Inf", "Inf"];
  if (!(f & VALUE)) return Array(2).fill(f & ONLY_HERE ? "not in the other run" : "not recorded");
  return [m.word(m.low[i]), m.word(m.high[i])];
}

/** @param {string} tag @param {string[]} cells */
function tableRow(tag, cells) {
  const row = element("tr");
  cells.forEach((cell) => row.append(element(tag, /^(NaN|-?Inf)$/.test(cell) ? "bad" : "", cell)));
  return row;
}

/** @param {Page} page @param {any[]} list */
function moved(page, list) {
  const chips = element("div", "chips");
  for (const { row, sigma } of list) {
    const chip = /** @type {HTMLButtonElement} */ (element("button", sigma === null ? "up" : sigma > 0 ? "up" : "down"));
    chip.textContent = `${clean(row)} ${sigma === null ? "→ NaN" : `${sigma > 0 ? "+" : ""}${sigma.toFixed(1)}σ`}`;
    chip.addEventListener("click", () => page.select({ layer: row }));
    chips.append(chip);
  }
  return [element("h3", "", "layers that changed most in this batch"), chips];
}
