// The docs in the browser: search, light and dark, the menu on a phone, copy buttons. Every page works without this script, but for the search.
"use strict";
(() => {
  /** @typedef {{to: string, page: string, title: string, text: string, low: string[]}} Row a section: address, page, heading, text; lower case */

  const root = document.body.dataset.root || "";
  /** @param {string} id */
  const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
  const query = /** @type {HTMLInputElement} */ (element("site-query")), results = element("site-results");

  // ---- light and dark
  element("site-theme").onclick = () => {
    const page = document.documentElement;
    const dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    page.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", page.dataset.theme); } catch { /* a file may not store anything */ }
  };

  // ---- the menu on a phone
  element("site-menu").onclick = () => {
    element("site-menu").setAttribute("aria-expanded", String(document.body.classList.toggle("menu")));
  };
  document.querySelector("#site-sidebar [aria-current]")?.scrollIntoView({ block: "nearest" });

  // ---- copy buttons
  for (const block of document.querySelectorAll("pre[data-language]")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.onclick = async () => {
      await navigator.clipboard?.writeText(block.querySelector("code")?.textContent || "");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    block.append(button);
  }

  // ---- the section that is being read
  const entries = new Map([...document.querySelectorAll("aside a")].map((a) => [(a.getAttribute("href") || "").slice(1), a]));
  const heads = [...entries.keys()].map(element);
  const mark = () => {
    const now = heads.findLast((head) => head.getBoundingClientRect().top < 120) || heads[0];
    for (const [id, a] of entries) id === now?.id ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current");
  };
  if (heads.length) { addEventListener("scroll", mark, { passive: true }); mark(); }

  // ---- search: every word has to be in a section; a word in a heading counts most, then in the page's title, then in the text.
  /** @type {Promise<Row[]> | null} */
  let loading = null;
  const load = () => loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = `${root}search.js`;
    script.onload = () => {
      const rows = /** @type {{fitscopeDocs: string[][]}} */ (/** @type {unknown} */ (window)).fitscopeDocs;
      done(rows.map(([to, page, title, text]) => (
        { to, page, title, text, low: [title.toLowerCase(), page.toLowerCase(), text.toLowerCase()] })));
    };
    script.onerror = failed;
    document.head.append(script);
  });

  /** @param {string} text @param {number} at */
  const startsWord = (text, at) => at === 0 || !/[\p{L}\p{N}_]/u.test(text[at - 1]);

  /** @param {Row} row @param {string[]} words */
  function score(row, words) {
    let sum = 0;
    for (const word of words) {
      let best = 0;
      row.low.forEach((text, i) => {
        const at = text.indexOf(word);
        if (at >= 0) best = Math.max(best, [40, 12, 4][i] * (startsWord(text, at) ? 2 : 1) * (text === word ? 2 : 1));
      });
      if (!best) return 0;
      sum += best;
    }
    const whole = words.join(" ");
    if (words.length > 1) row.low.forEach((text, i) => { if (text.includes(whole)) sum += [60, 20, 15][i]; });
    return sum;
  }

  /** @param {HTMLElement} node @param {string} text @param {string[]} words */
  function marked(node, text, words) {
    const pattern = new RegExp(`(${words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
    text.split(pattern).forEach((part, i) => {
      const piece = i % 2 ? document.createElement("mark") : document.createTextNode(part);
      if (i % 2) piece.textContent = part;
      node.append(piece);
    });
  }

  /** @param {Row} row @param {string[]} words */
  function excerpt(row, words) {
    const at = Math.max(0, Math.min(...words.map((word) => row.low[2].indexOf(word)).filter((i) => i >= 0), row.text.length) - 50);
    if (at >= row.text.length) return row.text.slice(0, 160);
    return (at ? "…" : "") + row.text.slice(at, at + 180);
  }

  async function search() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { results.hidden = true; return; }
    const rows = await load();
    const scored = rows.map((row) => ({ row, score: score(row, words) })).filter((one) => one.score);
    const found = scored.sort((a, b) => b.score - a.score).slice(0, 12);
    results.replaceChildren(...found.map(({ row }) => {
      const item = document.createElement("li"), a = document.createElement("a"), small = document.createElement("small");
      a.href = root + row.to;
      marked(a, row.title === row.page ? row.page : `${row.page} › ${row.title}`, words);
      marked(small, excerpt(row, words), words);
      a.append(small);
      item.append(a);
      return item;
    }));
    if (!found.length) {
      const none = document.createElement("p");
      none.textContent = `Nothing found for “${query.value}”.`;
      results.append(none);
    }
    results.hidden = false;
    choose(0);
  }

  /** @param {number} i */
  function choose(i) {
    const links = [...results.querySelectorAll("a")];
    links.forEach((a, n) => a.setAttribute("aria-selected", String(n === i)));
    links[i]?.scrollIntoView({ block: "nearest" });
  }

  query.onfocus = () => { load(); if (query.value) search(); };
  query.oninput = search;
  query.onkeydown = (event) => {
    const links = [...results.querySelectorAll("a")];
    const now = links.findIndex((a) => a.getAttribute("aria-selected") === "true");
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      choose(Math.max(0, Math.min(links.length - 1, now + (event.key === "ArrowDown" ? 1 : -1))));
      event.preventDefault();
    } else if (event.key === "Enter") links[now]?.click();
    else if (event.key === "Escape") { results.hidden = true; query.blur(); }
  };
  document.addEventListener("click", (event) => {
    if (!element("site-search").contains(/** @type {Node} */ (event.target))) results.hidden = true;
  });
  results.addEventListener("click", () => { results.hidden = true; });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName || "")) { query.focus(); event.preventDefault(); }
  });
})();
