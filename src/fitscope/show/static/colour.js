// Maps numbers to colours: viridis and RdBu, both safe for colour blindness, and separate colours for the three marks.

/** @typedef {[number, number, number]} RGB */

/** @type {RGB[]} */
const VIRIDIS = [
  [68, 1, 84], [71, 24, 106], [71, 46, 124], [66, 65, 134], [58, 83, 139], [50, 101, 142], [43, 117, 142], [37, 133, 142],
  [31, 149, 139], [34, 165, 132], [53, 183, 121], [85, 198, 103], [122, 209, 81], [165, 219, 54], [210, 226, 27], [253, 231, 37],
];
/** From below (blue) over the middle to above (red). @type {RGB[]} */
const RED_BLUE = [[5, 48, 97], [33, 102, 172], [67, 147, 195], [146, 197, 222], [209, 229, 240], [247, 247, 247], [253, 219, 199], [244, 165, 130], [214, 96, 77], [178, 24, 43], [103, 0, 31]];
/** Likewise for a dark page: the middle is dark. @type {RGB[]} */
const RED_BLUE_DARK = [[146, 197, 255], [94, 160, 222], [56, 118, 178], [36, 78, 122], [26, 44, 66], [24, 27, 33], [66, 36, 34], [122, 52, 44], [178, 78, 58], [226, 116, 86], [255, 186, 160]];

export const MARKS = {
  nan: /** @type {RGB} */ ([255, 0, 179]),
  inf: /** @type {RGB} */ ([255, 95, 31]),
};

/** @param {RGB[]} map @param {number} share @returns {RGB} */
export function rgbAt(map, share) {
  const place = Math.min(Math.max(share, 0), 1) * (map.length - 1);
  const i = Math.min(Math.floor(place), map.length - 2);
  const [a, b] = [map[i], map[i + 1]];
  return /** @type {RGB} */ ([0, 1, 2].map((k) => Math.round(a[k] + (b[k] - a[k]) * (place - i))));
}

/** The background of steps that were not recorded. @param {boolean} dark @returns {RGB} */
export const ground = (dark) => (dark ? [44, 48, 54] : [214, 217, 222]);

/** A colour between recorded steps: mostly the background of steps that were not recorded. @param {RGB} colour @param {boolean} dark @returns {RGB} */
export function paled(colour, dark) {
  const below = ground(dark);
  return /** @type {RGB} */ (colour.map((c, k) => Math.round(below[k] + 0.3 * (c - below[k]))));
}

/** Little-endian RGBA, as ImageData has it. @param {RGB} c */
export const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** @param {RGB} c */
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

/** @param {string} kind of scale @returns {boolean} */
export const isRelative = (kind) => ["past", "change", "start", "run", "cosine"].includes(kind);

/** The colours of a scale. @param {string} kind @param {boolean} dark */
export const mapFor = (kind, dark) => (isRelative(kind) ? (dark ? RED_BLUE_DARK : RED_BLUE) : VIRIDIS);

/** @param {string} kind @param {boolean} dark @param {number} share */
export const colourAt = (kind, dark, share) => css(rgbAt(mapFor(kind, dark), share));

/** Colours by kind of layer. The first match counts. @type {[RegExp, string, string][]} */
const TYPES = [
  [/norm/i, "#9aa4b1", "normalisation"],
  [/conv/i, "#4c78a8", "convolution"],
  [/attention/i, "#b279a2", "attention"],
  [/lstm|gru|rnn|bidirectional/i, "#2f9e8f", "recurrent"],
  [/embedding/i, "#8c6d31", "embedding"],
  [/dense|linear|einsum/i, "#f58518", "dense"],
  [/relu|activation|softmax|sigmoid|tanh|gelu|elu|swish|silu/i, "#54a24b", "activation"],
  [/pool/i, "#e45756", "pooling"],
  [/add|concat|multiply|average|subtract|merge|dot/i, "#d67195", "joining"],
  [/drop|noise/i, "#cfc06a", "dropout"],
  [/input|target|predict|tap/i, "#4a4a4a", "no layer"],
];

/** @param {string} type */
export const typeColour = (type) => TYPES.find(([fits]) => fits.test(type))?.[1] ?? "#8d8d8d";

/** The kinds of layers among some types, with their colours, in the order of their first layer. @param {string[]} types @returns {[string, string][]} */
export function typesOf(types) {
  const found = new Map(types.map((type) => TYPES.find(([fits]) => fits.test(type)) ?? [/./, "#8d8d8d", "other"]).map(([, colour, name]) => [name, colour]));
  return /** @type {[string, string][]} */ ([...found]);
}
