// Chooses the shown rows and their order: rows that match the filter and have something to show, with pinned ones on top.

/** @typedef {import("./main.js").Page} Page */

/** @type {WeakMap<import("./matrix.js").Matrix, {columns: number, filled: boolean[]}>} */
const filledRows = new WeakMap();

/** Whether anything was recorded, for each row. @param {import("./matrix.js").Matrix} m */
function filled(m) {
  const known = filledRows.get(m);
  if (known?.columns === m.columns) return known.filled;
  const found = [...Array(m.rows).keys()].map((row) => known?.filled[row] || m.flags.subarray(row * m.room, row * m.room + m.columns).some((flag) => flag > 0));
  filledRows.set(m, { columns: m.columns, filled: found });
  return found;
}

/** A filter as a test of a text: a regular expression, or plain text while the expression is incomplete. @param {string} text */
export function matcher(text) {
  try {
    const pattern = new RegExp(text, "i");
    return (/** @type {string} */ name) => pattern.test(name);
  } catch {
    return (/** @type {string} */ name) => name.toLowerCase().includes(text.toLowerCase());
  }
}

/** The layers pinned to the top. @param {Page} page */
export const pinned = (page) => page.selection.pins.split(",").filter(Boolean).map(decodeURIComponent);

/** Pins a layer to the top, or unpins it. @param {Page} page @param {string} layer */
export function togglePin(page, layer) {
  const now = pinned(page);
  const then = now.includes(layer) ? now.filter((name) => name !== layer) : [...now, layer];
  return page.select({ pins: then.map(encodeURIComponent).join(",") });
}

/**
 * The shown rows, by their numbers in the model's order. `hidden`: the number of rows left out because they are empty. If nothing is
 * left, all are shown. `none`: the filter fits no row.
 * @param {Page} page @returns {{order: number[], pins: number, hidden: number, none: boolean}}
 */
export function visible(page) {
  const { filter, rows: which } = page.selection;
  const all = page.rows.map((_, i) => i);
  const fits = matcher(filter);
  const fitting = filter ? all.filter((i) => fits(page.rows[i].name) || fits(page.rows[i].type)) : all;
  const chosen = fitting.length ? fitting : all;
  const m = page.matrix;
  const there = m && m.rows === page.rows.length ? filled(m) : null;
  const some = there && which !== "all" ? chosen.filter((i) => there[i]) : chosen;
  const kept = some.length ? some : chosen;
  const names = new Set(pinned(page));
  const pins = all.filter((i) => names.has(page.rows[i].name));
  return { order: [...pins, ...kept.filter((i) => !names.has(page.rows[i].name))], pins: pins.length, hidden: some.length ? chosen.length - some.length : 0, none: !fitting.length };
}
