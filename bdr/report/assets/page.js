"use strict";
// One script, no library, no request: the theme, the tables, the legends, and files of the plots.
(() => {
  const root = document.documentElement, KEY = "bdr-theme";
  // a page from a file may have no storage; it then follows the system
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const remember = theme => { try { localStorage.setItem(KEY, theme); } catch { /* follows the system next time */ } };
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function nameSwitch(button) {
    button.textContent = isDark() ? "Light page" : "Dark page";
  }

  // "68.37 ± 0.21", "+2.10", "−1.5", "< 0.001" and "11,220,000" are numbers; a dash is none
  function number(text) {
    const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[<>\s]*([-+]?\d+(?:\.\d+)?)/);
    return found ? Number(found[1]) : null;
  }
  const empty = text => /^[–\s]*$/.test(text);
  function order(a, b, numeric) {
    return numeric ? number(a) - number(b) : a.localeCompare(b, undefined, { numeric: true });
  }
  function sort(header) {
    const row = header.parentElement, column = [...row.children].indexOf(header);
    const body = header.closest("table").tBodies[0], lines = [...body.rows];
    const said = line => line.cells[column].textContent.trim();
    const values = lines.map(said).filter(text => !empty(text));
    const numeric = values.every(text => number(text) !== null) && !header.classList.contains("word");
    // numbers are mostly looked at from the largest down, names from the first on
    const first = numeric ? "descending" : "ascending";
    const other = numeric ? "ascending" : "descending";
    const next = header.getAttribute("aria-sort") === first ? other : first;
    const sign = next === "ascending" ? 1 : -1;
    lines.sort((a, b) => (empty(said(a)) - empty(said(b))) || (empty(said(a)) ? 0 : sign * order(said(a), said(b), numeric)));
    body.append(...lines);
    for (const each of row.children) if (each.hasAttribute("aria-sort")) each.setAttribute("aria-sort", each === header ? next : "none");
  }

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const part of all(`figure .plot g.s${button.dataset.series}`, button.closest(".chapter"))) part.toggleAttribute("hidden", !shown);
  }

  function save(name, type, content) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  // a file has no page around it to take its colours from: it brings the light ones along, on white
  function drawing(plot) {
    const copy = plot.cloneNode(true), [, , width, height] = plot.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const style = document.createElementNS(copy.namespaceURI, "style"), paper = document.createElementNS(copy.namespaceURI, "rect");
    style.textContent = document.getElementById("plot-style").textContent;
    for (const [key, value] of Object.entries({ width, height, fill: "#ffffff" })) paper.setAttribute(key, value);
    copy.querySelector("title").after(style, paper);
    return new XMLSerializer().serializeToString(copy);
  }
  // the first cell of a row is stored only where it changes
  function table(text) {
    let first = "";
    return text.split("\n").map(line => {
      if (!line.startsWith(",")) first = line.match(/^("(?:[^"]|"")*"|[^,]*)/)[0];
      return line.startsWith(",") ? first + line : line;
    }).join("\n");
  }
  function download(button) {
    const figure = button.closest("figure"), name = figure.dataset.name;
    if (button.dataset.save === "csv") save(`${name}.csv`, "text/csv", table(figure.querySelector("template").content.textContent));
    else save(`${name}.svg`, "image/svg+xml", drawing(figure.querySelector("svg.plot")));
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector(".switch");
    nameSwitch(button);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => nameSwitch(button));
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      nameSwitch(button);
    });
    document.addEventListener("click", event => {
      const pressed = event.target.closest("button");
      if (!pressed) return;
      if (pressed.matches("th button")) sort(pressed.closest("th"));
      if (pressed.dataset.series) toggle(pressed);
      if (pressed.dataset.save) download(pressed);
    });
    // a link into a folded chapter opens it
    const unfold = () => {
      const target = document.getElementById(location.hash.slice(1));
      if (target?.matches("details")) target.open = true;
    };
    addEventListener("hashchange", unfold);
    unfold();
  });
})();
