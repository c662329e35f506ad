// Loads the page's data from a server that follows the run, or from the file itself (a report).

import { fromBase64, gunzip, unpack } from "./pack.js";

/** @typedef {{run?: string, measure: string, mode: string, other?: string, from?: number, to?: number, columns?: number}} Question */

/** @param {Record<string, any>} query */
const asked = (query) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "" && value !== null);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
};

/** A live server. */
export class Served {
  live = true;

  /** @param {string} path @param {Record<string, any>} query */
  async #get(path, query) {
    const answer = await fetch(`/api/${path}?${asked(query)}`);
    if (!answer.ok) {
      const said = await answer.text();
      throw Object.assign(new Error(said.startsWith("{") ? JSON.parse(said).problem : said), { status: answer.status });
    }
    return answer;
  }

  async runs() {
    return (await this.#get("runs", {})).json();
  }

  /** @returns {Promise<any[]>} */
  async table() {
    return (await this.#get("table", {})).json();
  }

  /** @param {string | undefined} run @returns {Promise<any>} */
  async head(run) {
    return (await this.#get("head", { run })).json();
  }

  /** @param {Question} question */
  async matrix(question) {
    return unpack(await (await this.#get("matrix", question)).arrayBuffer());
  }

  /** All rows at one recorded step. @param {Record<string, any>} question @returns {Promise<import("./pack.js").Packed | null>} */
  async step(question) {
    return unpack(await (await this.#get("step", question)).arrayBuffer());
  }

  /** @param {string | undefined} run */
  async series(run) {
    return unpack(await (await this.#get("series", { run })).arrayBuffer());
  }

  /** @param {Record<string, any>} question @returns {Promise<any>} */
  async moment(question) {
    return (await this.#get("moment", question)).json();
  }

  /** @param {Record<string, any>} question @returns {Promise<any>} */
  async samples(question) {
    return (await this.#get("samples", question)).json();
  }

  /** @param {Record<string, any>} question */
  async distribution(question) {
    return unpack(await (await this.#get("distribution", question)).arrayBuffer());
  }

  /**
   * Calls back with new data, and once when no more comes. The browser's own reconnection knows neither what the
   * page has by then nor why it was refused.
   * @param {Record<string, any>} question @param {(tick: import("./pack.js").Packed, bytes: number) => void} tell @param {() => void} lost
   */
  follow(question, tell, lost) {
    const events = new EventSource(`/api/live?${asked(question)}`);
    let before = Promise.resolve(); // handles events one after another, in order
    const take = async (/** @type {string} */ data) => {
      const tick = unpack(await gunzip(fromBase64(data)));
      if (events.readyState !== EventSource.CLOSED) tell(tick, data.length);
    };
    events.onerror = () => {
      events.close();
      lost();
    };
    events.onmessage = ({ data }) => {
      before = before.then(() => take(data)).catch(reportError);
    };
    return events;
  }
}

/** A report: everything is in the file. */
export class Enclosed {
  live = false;

  /** @param {import("./pack.js").Packed} data */
  constructor(data) {
    this.data = data;
  }

  /** @param {string} text base64 of gzip */
  static async of(text) {
    return new Enclosed(unpack(await gunzip(fromBase64(text))));
  }

  /** @param {string} name @returns {any} */
  #arrays(name) {
    const found = Object.entries(this.data.arrays).filter(([key]) => key.startsWith(`${name}.`));
    return Object.fromEntries(found.map(([key, array]) => [key.slice(name.length + 1), array]));
  }

  async runs() {
    return [];
  }

  /** @returns {Promise<any[]>} */
  async table() {
    return [];
  }

  /** @returns {Promise<any>} */
  async head() {
    return this.data.facts.head;
  }

  /** @param {Question} question */
  async matrix({ measure, mode }) {
    const name = `${measure} ${mode}`;
    const facts = this.data.facts.matrices[name];
    if (!facts) throw new Error(`This file has no ${mode} of ${measure}.`);
    return { facts: { ...facts }, arrays: this.#arrays(name) };
  }

  /** A file has little data that is finer than its picture. @param {Record<string, any>} question @returns {Promise<import("./pack.js").Packed | null>} */
  async step({ measure, mode, step }) {
    const name = `${measure} ${mode} ${step}`;
    const facts = this.data.facts.steps[name];
    return facts ? { facts, arrays: this.#arrays(name) } : null;
  }

  async series() {
    return { facts: { ...this.data.facts.series }, arrays: this.#arrays("series") };
  }

  /** @param {Record<string, any>} question @returns {Promise<any>} */
  async moment({ row, step }) {
    const found = this.data.facts.moments.filter((/** @type {any} */ m) => m.row === row && m.step <= step && step < m.until);
    return found.at(-1) ?? null;
  }

  /** @param {Record<string, any>} question @returns {Promise<any>} */
  async samples({ step }) {
    return this.data.facts.samples?.findLast((/** @type {any} */ s) => s.step <= step) ?? null;
  }

  /** @param {Record<string, any>} question */
  async distribution({ row, measure }) {
    const facts = this.data.facts.distributions[`${row} ${measure}`];
    return facts ? { facts, arrays: this.#arrays(`distribution ${facts.site}`) } : { facts: {}, arrays: {} };
  }

  follow() {
    return null;
  }
}
