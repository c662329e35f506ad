// Formats numbers and names as text, and makes elements. Everything from a run enters the page as text, never as HTML.

/** @template {HTMLElement} T @param {string} id @returns {T} */
export const by = (id) => /** @type {T} */ (document.getElementById(id));

/** A whole number with commas. (The browser's own function takes tens of milliseconds the first time.) @param {number} n */
export const whole = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");

/** Three digits: 0.123, 12.3, 4.6e-5. @param {number | string | null | undefined} x */
export function number(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x === "string") return x;
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "Inf" : "-Inf";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e-3 && size < 1e4) return String(Number(x.toPrecision(3)));
  return x.toExponential(1).replace("e+", "e");
}

/** @param {number} share */
export function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1 %";
  if (share > 0.999 && share < 1) return ">99.9 %";
  const digits = share === 0 || share === 1 || (share >= 0.1 && share <= 0.99) ? 0 : 1;
  return `${(100 * share).toFixed(digits)} %`;
}

/** A number of a matrix as text. @param {string} kind of scale @param {number} value @param {string} of the kind of what is compared */
export function meaning(kind, value, of = kind) {
  if (kind === "share") return percent(value);
  if (kind === "cosine") return value.toFixed(3);
  if (kind === "past") return `${signed(value, 1)}σ`;
  if (kind === "log2") return value <= -128 ? "0" : number(2 ** value);
  if (of === "share") return `${signed(100 * value, 0)} pp`; // percentage points
  return of === "log2" ? times(value) : signed(value, 2);
}

/** @param {number} value @param {number} digits */
const signed = (value, digits) => `${value > 0 ? "+" : ""}${value.toFixed(digits)}`;

/** Doublings as a factor. @param {number} doublings */
export function times(doublings) {
  const factor = 2 ** Math.abs(doublings);
  const text = factor >= 100 ? number(factor) : factor.toFixed(factor < 10 ? 2 : 0);
  return `${doublings < 0 ? "÷" : "×"}${text}`;
}

/** Text with control characters and direction marks spelled out. @param {unknown} text */
export function clean(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`);
}

/**
 * Makes an element with text or children in it.
 * @param {string} tag @param {string} [cls] @param {...(Node | string)} inside @returns {HTMLElement}
 */
export function element(tag, cls = "", ...inside) {
  const made = document.createElement(tag);
  if (cls) made.className = cls;
  made.append(...inside.map((part) => (typeof part === "string" ? clean(part) : part)));
  return made;
}
