// Unpacks the bytes that show/data/pack.py packs: facts and typed arrays.

/** @typedef {{facts: any, arrays: Record<string, any>}} Packed */

const ARRAYS = { uint8: Uint8Array, float32: Float32Array, float64: Float64Array };

/** @param {ArrayBuffer} buffer @returns {Packed} */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  /** @type {Record<string, any>} */
  const arrays = {};
  let at = 4 + length;
  for (const [name, kind, shape] of header.arrays) {
    const count = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    const bytes = kind === "uint16" ? 2 * count : count * ARRAYS[/** @type {"uint8"} */ (kind)].BYTES_PER_ELEMENT;
    if (kind === "uint16") arrays[name] = summed(new Uint8Array(buffer, at, bytes), count, shape.at(-1));
    else arrays[name] = new ARRAYS[/** @type {"uint8"} */ (kind)](buffer, at, count);
    at += bytes + ((8 - (bytes % 8)) % 8);
  }
  return { facts: header.facts, arrays };
}

/** Restores numbers from differences to the left, or in the first column to above. High bytes come first, then low bytes. @param {Uint8Array} split @param {number} count @param {number} wide */
function summed(split, count, wide) {
  const out = new Uint16Array(count);
  for (let begin = 0, above = 0; begin < count; begin += wide, above = out[begin - wide]) {
    for (let i = begin, left = above; i < begin + wide; i++) {
      const code = (split[i] << 8) | split[count + i];
      out[i] = left += (code >> 1) ^ -(code & 1);
    }
  }
  return out;
}

/** @param {string} text @returns {ArrayBuffer} */
export function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes.buffer;
}

/** @param {ArrayBuffer} data @returns {Promise<ArrayBuffer>} */
export async function gunzip(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
