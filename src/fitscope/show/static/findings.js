// Knows which finding is selected, and jumps to another one.

/** The facts of a finding that stay the same while a run grows. @param {any} finding */
const nameOf = ({ rule, title, step, row, site }) => [rule, title, step, row, site].join("\n");

export class Findings {
  /** @param {import("./main.js").Page} page */
  constructor(page) {
    this.page = page;
    this.jumped = ""; // the finding that the user jumped to
  }

  /** Which finding is selected: the one jumped to, or the first in the selected cell; -1: none. Several may share a cell. */
  current() {
    const { layer, step } = this.page.selection;
    const here = (/** @type {any} */ f) => f.step === step && (f.row ?? layer) === layer;
    const jumped = this.page.head.findings.findIndex((/** @type {any} */ f) => here(f) && nameOf(f) === this.jumped);
    return jumped >= 0 ? jumped : this.page.head.findings.findIndex((/** @type {any} */ f) => here(f) && f.row);
  }

  /** @param {number} to which finding, from the current one */
  move(to) {
    const { findings } = this.page.head;
    const now = this.current();
    if (findings.length) this.show(findings[now < 0 ? 0 : (now + to + findings.length) % findings.length]);
  }

  /** Jumps to a finding. @param {any} finding */
  show(finding) {
    const { from, to } = this.page.span();
    const outside = finding.step < from || finding.step > to;
    this.jumped = nameOf(finding);
    this.page.select({
      layer: finding.row ?? this.page.selection.layer, step: finding.step,
      ...(finding.measure && this.page.head.measures.some((/** @type {any} */ m) => m.key === finding.measure) ? { measure: finding.measure } : {}),
      ...(outside ? { from: null, to: null } : {}),
      ...(finding.row && this.page.placeOf(finding.row) < 0 ? { filter: "" } : {}),
    });
  }
}
