// Draws the losses of other runs over that of the shown run: the choice of runs, colours, curves, and the legend.

import { Curve, smoothed } from "./curve.js";
import { by, clean, element } from "./format.js";
import { swatch } from "./legend.js";

/** @typedef {import("./main.js").Page} Page */
/** @typedef {{name: string, colour: string, curve: Curve}} Overlaid */

const COLOURS = ["#e07b39", "#8a63d2", "#2f9e8f", "#c2417c", "#8a8d2b", "#4f7cac", "#a0522d", "#6b7280"];

export class Overlay {
  /** By the name of the run. @type {Map<string, Overlaid>} */ runs = new Map();
  /** The title of each run. @type {Map<string, string>} */ names = new Map();
  /** Each run keeps its colour. @type {Map<string, string>} */ colours = new Map();

  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    this.asked = 0;
  }

  /** The runs to overlay: the chosen ones, and the compared one. */
  wanted() {
    const { overlay, other, run } = this.page.selection;
    return [...new Set([...overlay.split(",").map(decodeURIComponent), other])].filter((id) => id && id !== run);
  }

  /** @param {string} id */
  colour(id) {
    const known = this.colours.get(id);
    if (known) return known;
    const used = [...this.colours.values()];
    const free = COLOURS.find((colour) => !used.includes(colour)) ?? COLOURS[used.length % COLOURS.length];
    this.colours.set(id, free);
    return free;
  }

  /** Shows or hides a run. @param {string} id */
  toggle(id) {
    const chosen = this.wanted();
    const rest = chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id];
    return this.page.select({ overlay: rest.map(encodeURIComponent).join(","), ...(rest.includes(this.page.selection.other) ? {} : { other: "" }) });
  }

  /** Requests missing curves, or all of them again, because a run may have grown. @param {boolean} [again] */
  async load(again = false) {
    const { page } = this;
    if (!page.source.live) return;
    const wanted = this.wanted();
    const asked = ++this.asked;
    const found = await Promise.all(wanted.map(async (id) => {
      const known = this.runs.get(id);
      if (known && !again) return /** @type {const} */ ([id, known]);
      const series = await page.source.series(id).catch(() => null);
      return series ? /** @type {const} */ ([id, { name: this.names.get(id) ?? id, colour: this.colour(id), curve: new Curve(series.facts, series.arrays) }]) : null;
    }));
    if (asked !== this.asked) return;
    this.runs = new Map(found.filter((one) => one !== null));
    this.legend();
    page.draw();
  }

  /** Names and colours, each with a button that takes the run away. */
  legend() {
    const { page } = this;
    const own = this.runs.size ? [element("span", "run", swatch("var(--blue)"), clean(this.names.get(page.selection.run) ?? page.selection.run))] : [];
    const others = [...this.runs].map(([id, { colour }]) => {
      const remove = element("button", "", "×");
      remove.title = "remove this run";
      remove.addEventListener("click", () => this.toggle(id));
      return element("span", "run", swatch(colour), clean(this.names.get(id) ?? id), remove);
    });
    by("overlay").replaceChildren(...own, ...others);
    document.body.dataset.overlaid = [...this.runs.keys()].join(" ");
  }

  /** The lowest and highest loss between two steps. @param {number} from @param {number} to */
  ends(from, to) {
    let [low, high] = [Infinity, -Infinity];
    for (const { curve } of this.runs.values()) {
      for (const i of curve.finite(from, to)) [low, high] = [Math.min(low, curve.low[i]), Math.max(high, curve.high[i])];
    }
    return [low, high];
  }

  /**
   * @param {CanvasRenderingContext2D} g @param {(step: number) => number} x @param {(value: number) => number} y
   * @param {number} from @param {number} to
   */
  draw(g, x, y, from, to) {
    for (const { curve: c, colour } of this.runs.values()) {
      const there = c.finite(from, to);
      const smooth = smoothed(c, this.page.selection.smooth);
      const line = (/** @type {(i: number) => number[]} */ values, /** @type {number} */ alpha, /** @type {number} */ wide) => {
        g.strokeStyle = colour;
        g.globalAlpha = alpha;
        g.lineWidth = wide;
        g.beginPath();
        for (const i of there) for (const value of values(i)) g.lineTo(x(c.start[i] + 0.5), y(value));
        g.stroke();
      };
      line((i) => [c.low[i], c.high[i]], smooth.length ? 0.35 : 0.9, 1);
      if (smooth.length) line((i) => [smooth[i]], 1, 1.6);
      g.globalAlpha = 1;
    }
  }
}
