// Shows the samples of the selected batch, the worst first, each with its loss on earlier visits.

import { sheet } from "./canvas.js";
import { element, number, whole } from "./format.js";
import { fromBase64 } from "./pack.js";

/** @param {HTMLElement} box @param {import("./main.js").Page} page @param {any} found */
export function drawSamples(box, page, found) {
  const samples = found?.samples ?? [];
  box.hidden = !samples.length;
  if (!samples.length) return;
  const table = element("table");
  const head = element("tr");
  const pictured = samples.some((/** @type {any} */ sample) => sample.picture);
  for (const title of [...(pictured ? [""] : []), "sample", "truth", "predicted", "p", "loss", "loss on earlier visits"]) head.append(element("th", title ? "" : "picture", title));
  table.append(head);
  for (const sample of samples) {
    const row = element("tr");
    if (pictured) row.append(element("td", "picture", ...(sample.picture ? [picture(sample.picture)] : [])));
    row.append(
      element("td", "", sample.id === null ? `row ${sample.sample}` : `#${sample.id}`), element("td", "", sample.truth),
      element("td", sample.wrong ? "bad" : "", sample.predicted), element("td", "", sample.p === null ? "–" : sample.p.toFixed(2)),
      element("td", "", number(sample.loss)),
    );
    const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", "visits"));
    row.append(element("td", "", canvas));
    requestAnimationFrame(() => spark(canvas, page, sample.history));
    table.append(row);
  }
  box.replaceChildren(element("h3", "", `worst samples of the batch at step ${whole(found.step)}`), table);
}

/** The inputs of a sample. @param {{wide: number, high: number, rgb: string}} of */
function picture({ wide, high, rgb }) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas"));
  [canvas.width, canvas.height] = [wide, high];
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = g.createImageData(wide, high);
  const bytes = new Uint8Array(fromBase64(rgb));
  for (let i = 0; i < wide * high; i++) image.data.set([bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2], 255], 4 * i);
  g.putImageData(image, 0, 0);
  return canvas;
}

/** A table of words and numbers. @param {HTMLElement} box @param {{title: string, columns: string[], rows: any[][]}} table */
export function drawTable(box, { title, columns, rows }) {
  const made = element("table");
  const numbers = columns.map((_, i) => rows.some((cells) => typeof cells[i] === "number" || /^[-+]?(\d|NaN|Inf)/.test(String(cells[i]))));
  const line = (/** @type {string} */ tag, /** @type {any[]} */ cells) => {
    const row = element("tr");
    for (const [i, cell] of cells.entries()) {
      const style = `${/^(✖|NaN)/.test(String(cell)) ? "bad" : ""} ${numbers[i] ? "" : "words"}`.trim();
      row.append(element(tag, style, typeof cell === "number" ? number(cell) : String(cell ?? "–")));
    }
    return row;
  };
  made.append(line("th", columns), ...rows.map((cells) => line("td", cells)));
  box.replaceChildren(...(document.getElementById("title") ? [] : [element("h3", "", title)]), made);
  box.hidden = false;
}

/** @param {HTMLCanvasElement} canvas @param {import("./main.js").Page} page @param {[number, number][]} history */
function spark(canvas, page, history) {
  const { g, w, h } = sheet(canvas);
  const losses = history.map(([, loss]) => loss).filter((loss) => Number.isFinite(loss));
  if (losses.length < 2) return;
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  g.strokeStyle = page.theme.blue;
  g.beginPath();
  losses.forEach((loss, i) => {
    const [x, y] = [(i / (losses.length - 1)) * (w - 2) + 1, h - 3 - ((loss - low) / (high - low || 1)) * (h - 6)];
    if (i) g.lineTo(x, y);
    else g.moveTo(x, y);
  });
  g.stroke();
}
