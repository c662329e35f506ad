// Finds single steps where one column of the picture stands for many: the step that a pixel shows, all layers at that step, and the next step.

import { drawDepth } from "./depth.js";
import { by } from "./format.js";
import { Matrix } from "./matrix.js";

/** @typedef {import("./heat.js").Spot} Spot */

const KEEP = 64;

export class Steps {
  /** @param {import("./main.js").Page} page */
  constructor(page) {
    this.page = page;
    /** All rows at a step. @type {Map<number, Matrix>} */ this.known = new Map();
    /** The spot under the mouse, and its step once that is known. @type {{key: string, step: number | null}} */ this.pointed = { key: "", step: null };
    this.moves = 0; // moves requested by keys and not yet made
    this.moving = false;
  }

  clear() {
    this.known.clear();
    this.pointed.key = "";
  }

  /** All rows at a step: in the picture, or in a requested matrix. @param {number | null} step null: the newest */
  rowsAt(step) {
    const m = this.page.shown();
    const single = m?.level && step !== null ? this.known.get(step) : null;
    const column = step === null || !m ? -1 : m.at(step);
    return single ? { m: single, column: 0 } : { m, column: column < 0 ? (m?.columns ?? 0) - 1 : column };
  }

  /** Makes sure that all rows at the selected step are loaded. */
  want() {
    const { step } = this.page.selection;
    if (step !== null && this.page.shown()?.level && !this.known.has(step)) this.ask({ step });
  }

  /** Requests a single step: its number, and all rows at it. @param {Record<string, any>} question @returns {Promise<number | null>} */
  async ask(question) {
    const { selection, asked, source } = this.page;
    const { run, measure, mode, other } = selection;
    const found = await source.step({ run, measure, mode: mode || "absolute", other, ...question }).catch(() => null);
    if (!found || asked !== this.page.asked) return null;
    const { step } = found.facts;
    if (this.known.size > KEEP) this.known.clear();
    if (measure) for (const at of [step, question.by ? step : question.step ?? step]) this.known.set(at, new Matrix(found.facts, /** @type {any} */ (found.arrays)));
    drawDepth(by("depth"), this.page); // only the depth profile shows it
    return step;
  }

  /** The step that a spot shows. @param {Spot} spot @returns {Promise<number | null>} null: not known more closely */
  async of({ matrix: m, row, column, mark, steps }) {
    if (column < 0) return steps[0];
    return m.level ? this.ask({ row: this.page.rows[row].name, level: m.level, column: m.first + column, mark }) : m.start[column];
  }

  /** The step of a spot if it is known. Otherwise null, and calls `tell` when it is. @param {Spot} spot @param {() => void} tell */
  point(spot, tell) {
    const { matrix: m, row, column, mark } = spot;
    if (column < 0 || !m.level) return column < 0 ? spot.steps[0] : m.start[column];
    const key = `${m.level} ${m.first + column} ${row} ${mark}`;
    if (this.pointed.key === key) return this.pointed.step;
    this.pointed = { key, step: null };
    clearTimeout(this.resting);
    this.resting = setTimeout(async () => {
      const step = await this.of(spot);
      if (this.pointed.key !== key || step === null) return;
      this.pointed.step = step;
      if (this.page.hover === null) return;
      tell();
      this.page.draw();
    }, 40);
    return null;
  }

  /** Selects what a pixel shows. @param {Spot} spot */
  async choose(spot) {
    const { page } = this;
    const { asked } = page;
    const layer = page.rows[spot.row].name;
    const step = await this.of(spot);
    if (asked !== page.asked) return;
    // A file does not have every step: of those in the pixel, take one with data.
    const near = page.head.findings.find((/** @type {any} */ f) => f.row === layer && f.step >= spot.steps[0] && f.step <= spot.steps[1]);
    page.select({ layer, step: step ?? near?.step ?? spot.matrix.start[spot.column] });
  }

  /** Moves by recorded steps. Keys pressed during a request count. @param {number} by */
  async move(by) {
    this.moves += by;
    if (this.moving) return;
    this.moving = true;
    while (this.moves) {
      const now = this.moves;
      this.moves = 0;
      const step = await this.#further(now);
      if (step !== null) this.page.select({ step });
    }
    this.moving = false;
  }

  /** @param {number} by @returns {Promise<number | null>} */
  async #further(by) {
    const { page } = this;
    const m = page.shown();
    const { step } = page.selection;
    if (step === null && page.source.live) return page.head.step;
    const at = m && step !== null ? m.at(step) : -1;
    const between = m && by < 0 && at >= 0 && step !== null && m.start[at] < step; // the previous recorded step is one back
    const to = at + by + (between ? 1 : 0);
    if (m && m.level === 0 && at >= 0 && to >= 0 && to < m.columns) return m.start[to];
    if (page.source.live) return this.ask({ step, by });
    return m ? m.start[Math.min(Math.max(at < 0 ? m.columns - 1 : to, 0), m.columns - 1)] : null;
  }
}
