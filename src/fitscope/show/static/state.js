// Keeps one selection for the whole page (run, measure, layer, step, stretch of steps) in the address.

/**
 * @typedef {object} Selection
 * @property {string} run
 * @property {string} other the run to compare with
 * @property {string} measure
 * @property {string} mode
 * @property {string} layer
 * @property {string} overlay runs whose loss is shown too, separated by commas
 * @property {string} smooth how the loss is smoothed
 * @property {string} axis what the axis counts: steps, epochs or time
 * @property {string} filter of layers
 * @property {string} pins layers on top, separated by commas
 * @property {string} rows "all": also rows without anything to show
 * @property {number | null} step
 * @property {number | null} from the stretch that is shown, null for all
 * @property {number | null} to
 */

const TEXTS = /** @type {const} */ (["run", "other", "measure", "mode", "layer", "overlay", "smooth", "axis", "filter", "pins", "rows"]);
const NUMBERS = /** @type {const} */ (["step", "from", "to"]);

/** @returns {Selection} */
export function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  /** @type {any} */
  const found = {};
  for (const name of TEXTS) found[name] = given.get(name) ?? "";
  for (const name of NUMBERS) {
    const text = given.get(name);
    found[name] = text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
  }
  return found;
}

/** @param {Selection} selection */
export function toAddress(selection) {
  const pairs = [...TEXTS, ...NUMBERS].map((name) => [name, selection[name]]);
  const kept = pairs.filter(([, value]) => value !== "" && value !== null).map(([name, value]) => [String(name), String(value)]);
  try {
    history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  } catch {
    // A frame in a notebook has no address.
  }
}
