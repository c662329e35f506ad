// The page: asks for the run, draws it, and keeps one selection through all views.

import { theme } from "./canvas.js";
import { Curve } from "./curve.js";
import { drawDepth } from "./depth.js";
import { Findings } from "./findings.js";
import { by, clean, element } from "./format.js";
import { drawHeat } from "./heat.js";
import { drawInspector } from "./inspector.js";
import { listen } from "./keys.js";
import { Live } from "./live.js";
import { drawLanes, drawLoss } from "./lossplot.js";
import { Matrix } from "./matrix.js";
import { chooseRun, fillMenus, fillRuns } from "./menus.js";
import { Overlay } from "./overlay.js";
import { drawRanks } from "./ranks.js";
import { visible } from "./rows.js";
import { RunsTable } from "./runs.js";
import { drawSamples, drawTable } from "./samples.js";
import { Enclosed, Served } from "./source.js";
import { fromAddress, toAddress } from "./state.js";
import { Steps } from "./steps.js";
import { drawStrip } from "./strip.js";
import { drawCaption, showTip, tellRun } from "./words.js";

/** @typedef {{name: string, type: string, block: string, shape: string, after: string[]}} Row */
/** @typedef {import("./state.js").Selection} Selection */

export class Page {
  // The head of the shown run.
  /** @type {any} */ head = { findings: [], lanes: [], measures: [], modes: [] };
  /** @type {Row[]} */ rows = [];
  /** @type {Map<string, number>} */ places = new Map();
  /** @type {Matrix | null} */ matrix = null;
  /** @type {Matrix | null} */ detail = null;
  /** @type {Curve | null} */ curve = null;
  /** @type {any} */ moment = null;
  /** @type {any} */ spread = null;
  spreadOf = "";
  told = "";
  stripped = "";
  rowsShown = { order: /** @type {number[]} */ ([]), pins: 0, hidden: 0, none: false };
  reach = 0;

  /** @param {Served | Enclosed} source */
  constructor(source) {
    this.source = source;
    this.selection = fromAddress();
    this.theme = theme();
    /** @type {number | null} */ this.hover = null;
    /** @type {{x0: number, x1: number} | null} */ this.drag = null;
    /** @type {{x: number, from: number, to: number} | null} */ this.panning = null;
    this.live = new Live(this);
    this.findings = new Findings(this);
    this.steps = new Steps(this);
    this.overlay = new Overlay(this);
    this.missing = ""; // the requested run, if it is missing
    /** Why the page is not up to date. @type {{status: string, text: string} | null} */ this.trouble = null;
    this.gutter = 168;
    this.waiting = false;
    // Requests are numbered: an answer is dropped if a newer request was sent.
    this.turn = 0;
    this.asked = 0;
    this.inspected = 0;
  }

  /** Removes everything of the run from the page. */
  forget() {
    this.head = { findings: [], lanes: [], measures: [], modes: [] };
    this.rows = [];
    this.places.clear();
    this.steps.clear();
    this.matrix = this.detail = this.curve = this.moment = this.spread = null;
    this.inspected += 1;
    this.asked += 1;
    this.spreadOf = this.told = this.stripped = "";
    this.reach = 0;
    by("samples").hidden = true;
  }

  // ---- the shown data ----------------------------------------------------------------------------------

  /** All recorded steps, or the chosen stretch. */
  span() {
    const all = this.all();
    const { from, to } = this.selection;
    return from !== null && to !== null && to > from ? { from, to } : all;
  }

  all() {
    const starts = [this.matrix?.start[0], this.curve?.start[0]].filter((s) => s !== undefined);
    const from = starts.length ? Math.min(.../** @type {number[]} */ (starts)) : 0;
    const others = [...this.overlay.runs.values()].map(({ curve }) => curve.end);
    const end = Math.max(this.matrix?.end ?? 0, this.curve?.end ?? 0, ...others, from + 1);
    if (this.head.status !== "running") return { from, to: end };
    // While a run grows, its last pixel is still filling up: the picture moves by whole pixels, not at every tick.
    const pixel = (end - from) / Math.max(by("heat").clientWidth, 1);
    if (end > this.reach || end < this.reach - 2 * pixel) this.reach = end + pixel;
    return { from, to: this.reach };
  }

  /** The next step of the training, if known. */
  trained() {
    return Math.max(this.matrix?.end ?? 0, this.curve?.end ?? 0);
  }

  /** The finest matrix that covers the stretch. */
  shown() {
    const found = this.covering();
    if (found) found.until = this.trained();
    return found;
  }

  covering() {
    const d = this.detail;
    const { from, to } = this.span();
    if (d && d.columns && this.selection.from !== null && d.start[0] <= Math.max(from, this.matrix?.start[0] ?? 0) && d.facts.until >= Math.min(to, this.matrix?.end ?? to)) return d;
    return this.matrix;
  }

  /** @param {string | null} name */
  rowIndex(name) {
    return name === null ? -1 : (this.places.get(name) ?? -1);
  }

  /** The place of a layer among the shown rows; -1: none. @param {string | null} name */
  placeOf(name) {
    return this.rowsShown.order.indexOf(this.rowIndex(name));
  }

  measure() {
    return this.head.measures.find((/** @type {any} */ m) => m.key === this.selection.measure);
  }

  // ---- requests -----------------------------------------------------------------------------------------

  async open() {
    const { source } = this;
    if (source.live) chooseRun(this, await source.runs());
    void this.overlay.load();
    if (!(await this.fetch())) return;
    const first = this.head.findings[0];
    if (this.selection.step === null && this.head.selected) Object.assign(this.selection, this.head.selected);
    if (this.selection.step === null && first?.row) Object.assign(this.selection, { layer: first.row, step: first.step });
    toAddress(this.selection);
    if (this.head.table) drawTable(by("samples"), this.head.table);
    this.drawNow();
    document.body.dataset.ready = "true";
    this.inspect();
    this.live.follow();
  }

  /** Loads everything that the page shows. Returns whether no newer request came in the meantime. */
  async fetch() {
    const { source, selection } = this;
    const turn = ++this.turn;
    const head = await source.head(selection.run || undefined);
    if (turn !== this.turn) return false;
    this.trouble = null;
    this.take(head);
    const { shown, findings, measures } = this.head;
    if (shown && !selection.measure) [selection.measure, selection.mode] = shown;
    if (!this.measure()) selection.measure = findings[0]?.measure ?? "";
    if (!this.measure()) selection.measure = measures[0]?.key ?? ""; // no measure: the run has only a loss, or nothing yet
    fillMenus(this);
    const [series] = await Promise.all([source.series(selection.run || undefined), this.load()]);
    if (turn !== this.turn) return false;
    this.curve = new Curve(series.facts, series.arrays);
    return true;
  }

  /** @param {any} head */
  take(head) {
    this.head = { ...this.head, ...head };
    if (head.rows) {
      this.rows = head.rows;
      this.places = new Map(this.rows.map((row, i) => [row.name, i]));
      this.rowsShown = visible(this); // a key may come before the picture
      by("layers").replaceChildren(...this.rows.map((row) => new Option(clean(row.name), row.name)));
      if (!document.getElementById("title")) document.title = `${clean(head.model ?? head.id)} · fitscope`;
    }
    tellRun(this);
  }

  async load() {
    const { run, measure, mode, other } = this.selection;
    this.detail = null;
    if (!measure) return;
    const asked = ++this.asked;
    const { facts, arrays } = await this.source.matrix({ run, measure, mode: mode || "absolute", other });
    if (asked !== this.asked) return;
    this.matrix = new Matrix(facts, /** @type {any} */ (arrays));
    this.steps.clear();
    this.zoomIn();
  }

  /** Requests more columns if the shown stretch is coarser than the screen. */
  zoomIn() {
    const { run, measure, mode, other, from, to } = this.selection;
    clearTimeout(this.later);
    if (!this.source.live || from === null || to === null || !this.matrix || this.matrix.level === 0) return;
    const { asked } = this;
    const later = this.later = setTimeout(async () => {
      const wide = to - from;
      const found = await this.source.matrix({ run, measure, mode: mode || "absolute", other, from: from - wide, to: to + wide }).catch(() => null);
      if (!found || asked !== this.asked || later !== this.later) return;
      const { facts, arrays } = found;
      facts.until = Math.min(to + wide, facts.end);
      this.detail = new Matrix(facts, /** @type {any} */ (arrays));
      this.draw();
    }, 80);
  }

  // ---- choosing ---------------------------------------------------------------------------------------

  /** @param {Partial<Selection>} change */
  async select(change) {
    const before = { ...this.selection };
    Object.assign(this.selection, change);
    if (["run", "measure", "filter", "pins", "rows"].some((key) => key in change)) showTip("", 0, 0); // another row may be under the mouse
    toAddress(this.selection);
    const { selection } = this;
    if (selection.run !== before.run) {
      this.live.stop();
      Object.assign(selection, { layer: "", step: null, from: null, to: null });
      this.missing = "";
      this.forget();
      tellRun(this);
      this.drawNow();
      return this.open().catch((problem) => this.live.lost(problem));
    }
    if (selection.measure !== before.measure || selection.mode !== before.mode || selection.other !== before.other) {
      fillMenus(this);
      try {
        await this.load();
      } catch (problem) {
        if (this.source.live) return this.live.lost(problem);
        throw problem;
      }
      this.live.follow();
    } else if (selection.from !== before.from || selection.to !== before.to) this.zoomIn();
    if (selection.overlay !== before.overlay || selection.other !== before.other) void this.overlay.load();
    this.inspect();
    this.draw();
  }

  /** Loads the exact numbers of the selected cell; the newest request wins. */
  async inspect() {
    const { run, layer, step, measure } = this.selection;
    this.steps.want();
    if (!this.places.has(layer) || step === null) return this.draw();
    const number = ++this.inspected;
    const key = `${layer} ${measure} ${this.head.generation}`;
    const known = this.spreadOf === key && !this.outgrown();
    const [moment, spread] = await Promise.all([
      this.source.moment({ run, row: layer, step, measure }).catch(() => null),
      known ? this.spread : this.source.distribution({ run, row: layer, measure }).catch(() => null),
    ]);
    if (this.inspected !== number) return;
    [this.moment, this.spread, this.spreadOf] = [moment, spread, spread ? key : ""];
    document.body.dataset.inspected = `${layer} ${step} ${measure}`;
    drawInspector(by("inspector"), this, this.moment, this.spread);
    if (!this.head.samples) return;
    const samples = await this.source.samples({ run, step }).catch(() => null); // the slowest request, and nothing waits for it
    if (this.inspected === number) drawSamples(by("samples"), this, samples);
  }

  /** Whether a run has grown so much that its distribution over the training must be drawn again. */
  outgrown() {
    const { start } = this.spread?.arrays ?? {};
    return this.source.live && start?.length && this.head.step - this.spread.facts.end > (this.spread.facts.end - start[0]) / 16;
  }

  /** @param {number} rows */
  moveLayer(rows) {
    const { order } = this.rowsShown;
    const at = this.placeOf(this.selection.layer);
    const next = this.rows[order[Math.min(Math.max(at + rows, 0), order.length - 1)]];
    if (next) this.select({ layer: next.name, step: this.selection.step ?? this.head.step });
  }

  /** @param {number} step in the middle @param {number} factor */
  zoom(step, factor) {
    const { from, to } = this.span();
    const all = this.all();
    const wide = Math.max((to - from) * factor, 4);
    if (wide >= all.to - all.from) return this.stretch(null, null);
    const share = Math.min(Math.max((step - from) / (to - from), 0), 1);
    const begin = Math.min(Math.max(step - share * wide, all.from), all.to - wide);
    return this.stretch(Math.round(begin), Math.round(begin + wide));
  }

  /** Moves the shown stretch by this many steps, within the run. @param {number} steps */
  pan(steps) {
    const { from, to } = this.span();
    const all = this.all();
    const begin = Math.round(Math.min(Math.max(from + steps, all.from), all.to - (to - from)));
    if (this.selection.from !== null) this.stretch(begin, begin + Math.round(to - from));
  }

  /** Shows other steps. The selection stays. @param {number | null} from @param {number | null} to */
  stretch(from, to) {
    Object.assign(this.selection, { from, to });
    toAddress(this.selection);
    this.zoomIn();
    this.draw();
  }

  // ---- drawing ----------------------------------------------------------------------------------------

  draw() {
    if (this.waiting || !document.body.dataset.ready) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.drawNow();
    });
  }

  drawNow() {
    this.gutter = by("strip").clientWidth || (by("lanes").hidden ? 62 : 112); // the lanes have names
    this.rowsShown = visible(this);
    const invalid = String(this.rowsShown.none);
    if (by("find").getAttribute("aria-invalid") !== invalid) by("find").setAttribute("aria-invalid", invalid);
    drawLoss(by("loss"), this);
    drawLanes(by("lanes"), this);
    drawRanks(by("ranks"), this);
    this.strip();
    drawHeat(by("heat"), this);
    drawDepth(by("depth"), this);
    drawCaption(this);
    if (!this.moment || !this.places.has(this.selection.layer)) drawInspector(by("inspector"), this, this.moment, this.spread);
    const current = this.findings.current();
    for (const [i, card] of [...by("verdict").children].entries()) card.setAttribute("aria-current", String(i === current));
  }

  /** Draws the strip, which changes only with the layers, the selection, the findings or the window. */
  strip() {
    const canvas = /** @type {HTMLCanvasElement} */ (by("strip"));
    const key = [this.head.id, this.head.generation, this.rowsShown.order, this.selection.layer, this.told, canvas.clientWidth, canvas.clientHeight, devicePixelRatio, this.theme.dark].join(" ");
    if (key === this.stripped) return;
    this.stripped = key;
    drawStrip(canvas, this);
  }

}

async function start() {
  const enclosed = document.getElementById("data");
  const source = enclosed ? await Enclosed.of((enclosed.textContent ?? "").trim()) : new Served();
  const page = new Page(source);
  const parts = source instanceof Enclosed ? source.data.facts.parts : null;
  if (parts) {
    document.body.dataset.parts = parts.join(" ");
    for (const id of ["loss", "lanes", "ranks", "strip", "heat", "depth", "caption", "inspector", "verdict", "samples"]) by(id).hidden = !parts.includes(id);
    by("spectrogram").hidden = !["strip", "heat", "depth"].some((id) => parts.includes(id));
    by("picture").hidden = by("spectrogram").hidden && !parts.includes("loss");
  }
  listen(page);
  for (;;) {
    try {
      await page.open();
      break;
    } catch (problem) {
      by("verdict").replaceChildren(element("div", "finding error", element("b", "", "✖ No data yet"), element("span", "", String(problem))));
      document.body.dataset.ready = "failed";
      page.told = "";
      if (!source.live) throw problem;
      await new Promise((resolve) => setTimeout(resolve, 2000)); // a training may be about to begin
    }
  }
  if (!source.live) return;
  new RunsTable(page);
  const refresh = async () => {
    fillRuns(page, await source.runs());
    await page.overlay.load(true);
  };
  const quietly = () => void refresh().catch(() => {}); // the page already shows that the server is gone
  setInterval(quietly, 15_000);
  document.addEventListener("visibilitychange", quietly);
}

start();
