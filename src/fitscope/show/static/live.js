// Follows a growing run: the server sends new data. If the connection fails, the page reports it and reconnects.

import { tellRun } from "./words.js";

/** The arrays of one part of a tick, by name. @param {Record<string, any>} arrays @param {string} part */
const arraysOf = (arrays, part) => Object.fromEntries(Object.entries(arrays).filter(([key]) => key.startsWith(`${part}.`)).map(([key, value]) => [key.slice(part.length + 1), value]));

export class Live {
  /** @param {import("./main.js").Page} page */
  constructor(page) {
    this.page = page;
    /** @type {EventSource | null} */ this.events = null;
    this.failures = 0;
    this.spreading = false; // whether a request for a grown distribution is under way
  }

  stop() {
    this.events?.close();
    clearTimeout(this.retry);
  }

  /** Subscribes to everything newer than the page has. */
  follow() {
    const { page } = this;
    this.stop();
    if (!page.source.live) return;
    const { run, measure, mode, other } = page.selection;
    const { matrix, curve } = page; // no matrix before the first rows, or if only the loss is watched
    this.events = /** @type {EventSource | null} */ (page.source.follow(
      {
        run, measure, mode: mode || "absolute", other, level: matrix?.level ?? 0, first: Math.max((matrix?.columns ?? 0) - 1, 0),
        loss_level: curve?.level ?? 0, loss_first: Math.max((curve?.start.length ?? 0) - 1, 0),
      },
      (tick, bytes) => this.tick(tick, bytes), () => this.lost({}),
    ));
  }

  /** Takes new data. @param {import("./pack.js").Packed} tick @param {number} bytes */
  tick(tick, bytes) {
    const { page } = this;
    const began = performance.now();
    this.failures = 0;
    const { matrix, loss, lanes, ...facts } = tick.facts;
    if ((facts.layers ?? page.rows.length) !== page.rows.length || (matrix && page.matrix && !page.matrix.fits(matrix))) return void this.again();
    if (loss && page.curve && !page.curve.fits(loss)) return void this.again();
    if (lanes) {
      const known = new Set(page.head.lanes.map((/** @type {any} */ lane) => lane.name));
      const new_ = new Map(lanes.map((/** @type {any} */ lane) => [lane.name, lane]));
      const same = lanes.every((/** @type {any} */ lane) => known.has(lane.name)) && lanes.length < known.size;
      facts.lanes = same ? page.head.lanes.map((/** @type {any} */ lane) => new_.get(lane.name) ?? lane) : lanes;
    }
    if (matrix) page.matrix?.append(matrix, /** @type {any} */ (arraysOf(tick.arrays, "matrix")));
    if (loss) page.curve?.append(loss, arraysOf(tick.arrays, "loss"));
    page.take(facts);
    if (page.matrix?.tooFine || (page.curve && page.curve.start.length > 4096)) return void this.again();
    page.drawNow();
    if (page.outgrown() && !this.spreading) {
      this.spreading = true;
      page.inspect().finally(() => (this.spreading = false));
    }
    document.body.dataset.tick = String(Number(document.body.dataset.tick ?? 0) + 1);
    document.body.dataset.tickBytes = String(bytes);
    document.body.dataset.tickMs = (performance.now() - began).toFixed(1);
  }

  /** Loads everything again: rows appeared or changed, a new attempt started, or the picture became too fine. */
  async again() {
    this.events?.close();
    try {
      if (!(await this.page.fetch())) return;
    } catch (problem) {
      return this.lost(problem);
    }
    this.follow();
    this.page.inspect();
    this.page.draw();
  }

  /** Reports that the server does not answer, or its error, and retries with growing delays. @param {any} problem */
  lost({ status, message }) {
    this.stop();
    this.page.trouble = { status: status === 404 ? "✖ cannot be read" : "✖ connection lost", text: status === 403 ? "The server was restarted: open the address that it printed." : status ? message : "The server does not answer. The page may be out of date." };
    tellRun(this.page);
    this.retry = setTimeout(() => this.again(), Math.min(500 * 2 ** this.failures++, 15_000));
  }
}
