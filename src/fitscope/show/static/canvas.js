// Makes canvases at the screen's own resolution, and reads the colours of the theme.

/** @typedef {{g: CanvasRenderingContext2D, w: number, h: number, ratio: number}} Sheet w and h in CSS pixels */

/** @param {HTMLCanvasElement} canvas @returns {Sheet} cleared, with CSS pixels as its unit */
export function sheet(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [w, h] = [canvas.clientWidth, canvas.clientHeight];
  const [wide, high] = [Math.max(Math.round(w * ratio), 1), Math.max(Math.round(h * ratio), 1)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  return { g, w, h, ratio };
}

/** @typedef {{dark: boolean, text: string, faint: string, line: string, panel: string, back: string, blue: string, error: string, warning: string, note: string, missing: string, bold: string}} Theme */

/** @returns {Theme} */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const named = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
  return {
    dark: named("dark") === "1", text: named("text"), faint: named("faint"), line: named("line"), panel: named("panel"), back: named("back"),
    blue: named("blue"), error: named("error"), warning: named("warning"), note: named("note"), missing: named("missing"), bold: named("bold"),
  };
}

/** About this many round numbers between two numbers. @param {number} low @param {number} high @param {number} about */
export function ticks(low, high, about) {
  const raw = (high - low) / Math.max(about, 1);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw) ?? raw;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high && found.length < 100; t += step) found.push(t);
  return found;
}

/** The text, cut in the middle so that it fits. @param {CanvasRenderingContext2D} g @param {string} text @param {number} wide */
export function fitted(g, text, wide) {
  if (g.measureText(text).width <= wide) return text;
  for (let n = text.length - 1; n > 1; n--) {
    const cut = `${text.slice(0, Math.ceil(n / 2))}…${text.slice(text.length - Math.floor(n / 2))}`;
    if (g.measureText(cut).width <= wide) return cut;
  }
  return "…";
}
