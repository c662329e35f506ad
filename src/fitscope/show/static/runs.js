// The table of runs: model, settings, state and result of each; sorted by a click on a title, filtered by words.

import { by, clean, element, number, percent, whole } from "./format.js";
import { runName } from "./menus.js";

/** @typedef {import("./main.js").Page} Page */
/** @typedef {{key: string, title: string, value: (run: any) => any, text?: (value: any, run: any) => string}} Column */

/** Notes that are data count as settings. @param {any} run @returns {Record<string, any>} */
const settingsOf = (run) => ({ ...run.settings, ...(run.notes && typeof run.notes === "object" && !Array.isArray(run.notes) ? run.notes : {}) });

/** @param {any} value */
const plain = (value) => (typeof value === "number" ? number(value) : value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** @type {Column[]} */
const FIRST = [
  { key: "created", title: "run", value: (run) => run.created ?? 0, text: (_, run) => [runName(run), ...(run.tags ?? []).map((/** @type {string} */ tag) => `#${tag}`)].join("  ") },
  { key: "model", title: "model", value: (run) => run.model },
];
/** @type {Column[]} */
const RESULTS = [
  { key: "status", title: "status", value: (run) => run.status },
  { key: "step", title: "steps", value: (run) => (run.step === null || run.step === undefined ? null : run.step + 1), text: (value) => whole(value) },
  { key: "loss", title: "last loss", value: (run) => run.loss },
  { key: "findings", title: "findings", value: (run) => run.findings, text: (value, run) => (value ? `${value}: ${run.worst}` : "none") },
  { key: "cost", title: "cost", value: (run) => run.cost, text: (value) => percent(value) },
];
/** @type {Column} */
const NOTES = { key: "notes", title: "notes", value: (run) => (typeof run.notes === "string" ? run.notes : null) };
const ALWAYS = ["optimizer", "learning_rate", "batch_size"]; // settings with a column even if all runs agree

export class RunsTable {
  /** @type {any[]} */ rows = [];
  known = false;
  sort = "created";
  down = true;

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    by("runs-filter").addEventListener("input", () => this.draw());
    by("runs-button").addEventListener("click", () => void this.open());
    by("runs").addEventListener("close", () => delete document.body.dataset.runs);
  }

  async open() {
    /** @type {HTMLDialogElement} */ (by("runs")).showModal();
    this.draw();
    this.rows = await this.page.source.table();
    this.known = true;
    this.draw();
    document.body.dataset.runs = "true";
  }

  /** The columns. Of the settings, only those in which runs differ. @returns {Column[]} */
  columns() {
    const all = this.rows.map(settingsOf);
    const keys = [...new Set(all.flatMap((settings) => Object.keys(settings)))];
    const differ = (/** @type {string} */ key) => new Set(all.map((settings) => JSON.stringify(settings[key]))).size > 1;
    const shown = keys.filter((key) => ALWAYS.includes(key) || differ(key)).slice(0, 12);
    const settings = shown.map((key) => ({ key: `settings.${key}`, title: key.replaceAll("_", " "), value: (/** @type {any} */ run) => settingsOf(run)[key] }));
    return [...FIRST, ...RESULTS, ...settings, ...(this.rows.some(NOTES.value) ? [NOTES] : [])];
  }

  draw() {
    const columns = this.columns();
    const cells = (/** @type {any} */ run) => columns.map(({ value, text }) => {
      const known = value(run);
      return known === null || known === undefined ? "–" : (text ?? plain)(known, run);
    });
    const words = /** @type {HTMLInputElement} */ (by("runs-filter")).value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (/** @type {any} */ run) => {
      const said = [...cells(run), ...Object.entries(settingsOf(run)).map(([key, value]) => `${key}=${plain(value)}`), run.id].join(" ").toLowerCase();
      return words.every((word) => said.includes(word));
    };
    const by_ = columns.find(({ key }) => key === this.sort) ?? columns[0];
    const shown = this.rows.filter(fits).sort((a, b) => compare(by_.value(a), by_.value(b), this.down));
    const head = element("tr", "", element("th", "", "loss"), ...columns.map((column) => this.title(column)));
    const lines = shown.map((run) => this.line(run, cells(run)));
    by("runs-table").replaceChildren(element("thead", "", head), element("tbody", "", ...lines));
    by("runs-count").textContent = this.known ? `${whole(shown.length)} of ${whole(this.rows.length)} runs` : "reading …";
  }

  /** @param {Column} column */
  title({ key, title }) {
    const button = element("button", "", `${title}${this.sort === key ? (this.down ? " ↓" : " ↑") : ""}`);
    button.addEventListener("click", () => {
      [this.down, this.sort] = [this.sort === key ? !this.down : false, key];
      this.draw();
    });
    const made = element("th", "", button);
    if (this.sort === key) made.setAttribute("aria-sort", this.down ? "descending" : "ascending");
    return made;
  }

  /** @param {any} run @param {string[]} cells */
  line(run, cells) {
    const { page } = this;
    const tick = /** @type {HTMLInputElement} */ (element("input"));
    Object.assign(tick, { type: "checkbox", title: "draw its loss over that of the shown run", disabled: run.id === page.selection.run || Boolean(run.problem) });
    tick.checked = run.id === page.selection.run || page.overlay.wanted().includes(run.id);
    tick.addEventListener("change", () => void page.overlay.toggle(run.id));
    const name = element("button", "link", cells[0]);
    name.title = clean(run.problem ?? run.id);
    name.addEventListener("click", () => {
      /** @type {HTMLDialogElement} */ (by("runs")).close();
      page.select({ run: run.id });
    });
    const made = element("tr", "", element("td", "", tick), element("td", "", run.problem ? clean(cells[0]) : name), ...cells.slice(1).map((cell) => element("td", "", cell)));
    made.dataset.run = run.id;
    if (run.severity) made.children[5].classList.add(run.severity);
    if (run.id === page.selection.run) made.setAttribute("aria-current", "true");
    return made;
  }
}

/** Sorts numbers by size and the rest as text. Missing values come last in both directions. @param {any} a @param {any} b @param {boolean} down */
function compare(a, b, down) {
  const [none, other] = [a, b].map((value) => value === null || value === undefined);
  if (none || other) return Number(none) - Number(other);
  const order = typeof a === "number" && typeof b === "number" ? a - b : plain(a).localeCompare(plain(b), "en", { numeric: true });
  return down ? -order : order;
}
