"use strict";
// The live page: a stream says what has changed, curves are fetched for the runs that are drawn. Text is only ever set as text.

const STATES = ["running", "waiting", "failed", "damaged", "stopped", "finished"];
const MOST_DRAWN = 12, DRAWN_BY_ITSELF = 6, MOST_CARDS = 24;
const SILENCE = 25000; // milliseconds: the server says that it is there every ten seconds
const DASHES = ["", "8 5", "2 5", "12 4 2 4"];
const COLOURS = Number(getComputedStyle(document.documentElement).getPropertyValue("--colours")); // colours.css says how many

const runs = new Map(), curves = new Map(), rows = new Map(), cards = new Map();
const chosen = new Set(new URLSearchParams(location.hash.slice(1)).getAll("run"));
const compared = { measured: -1, keys: "", tables: [], sorts: new Map() };
const listing = { sort: "state", down: false, state: "", text: "" };
let pending = 0, measured = 0, heard = Date.now(), source = null, planned = 0, phase = "";

const at = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const isUnderWay = (run) => run.state === "running" || run.state === "waiting";
const name = (run, settings = "") => `${run.title ?? run.folder}${settings}${run.seed === undefined ? "" : `, seed ${run.seed}`}`;
const last = (run) => (run.accuracies?.length ? run.accuracies.at(-1)[1] : null);

// A name that may go on in the next line after a plus, and nowhere inside a word: as the report has it.
function breakable(text) {
  return text.split("+").flatMap((part, place) => (place ? ["+", element("wbr"), part] : [part]));
}

function clock(seconds) {
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function ago(time) {
  const seconds = Math.max(0, Date.now() / 1000 - time);
  for (const [size, word] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${word} ago`;
  }
  return seconds < 10 ? "just now" : `${Math.floor(seconds / 10) * 10} s ago`;
}

function where(run) {
  if (run.state === "finished") return plural(run.phases, "phase");
  if (run.phase === undefined) return "";
  const stage = run.stage && run.stage !== "main" ? `${run.stage} ` : "";
  const epoch = run.epoch ? `, ${stage}epoch ${run.epoch}${run.epochs ? `/${run.epochs}` : ""}` : "";
  return `phase ${run.phase} of 0..${run.phases - 1}${epoch}`;
}

// The stream

function connect() {
  source?.close();
  source = new EventSource("events");
  let whole = true;
  source.onopen = () => { whole = true; heard = Date.now(); };
  source.onmessage = (event) => {
    heard = Date.now();
    if (whole) forget();
    whole = false;
    say("live", "live");
    apply(JSON.parse(event.data));
  };
  source.addEventListener("here", () => { heard = Date.now(); });
  source.onerror = () => lose();
}

function lose() {
  say("lost", "connection lost, trying again");
  if (source.readyState === EventSource.CLOSED) setTimeout(connect, 1500);
}

// After a pause the first event is everything, of a server that may be another one.
function forget() {
  for (const known of [runs, curves, rows]) known.clear();
  for (const card of cards.values()) card.drawn = -1;
  delete at("drawn").dataset.said;
  compared.measured = -1;
}

function say(state, text) {
  at("connection").dataset.state = state;
  if (at("said").textContent !== text) at("said").textContent = text;
}

function apply(news) {
  for (const run of news.runs) runs.set(run.id, run);
  for (const id of news.gone) { runs.delete(id); curves.delete(id); chosen.delete(id); }
  ({ pending, measured } = news);
  schedule();
}

function schedule() {
  if (!planned) planned = setTimeout(() => { planned = 0; render(); }, 30);
}

// Which runs are drawn

function drawn() {
  const picked = [...chosen].map((id) => runs.get(id)).filter(Boolean);
  if (picked.length) return picked.slice(0, MOST_DRAWN);
  const readable = [...runs.values()].filter((run) => isUnderWay(run) || run.accuracies?.length || run.epoch);
  readable.sort((a, b) => isUnderWay(b) - isUnderWay(a) || b.touched - a.touched);
  return readable.slice(0, DRAWN_BY_ITSELF).sort((a, b) => name(a).localeCompare(name(b)));
}

function choose(id, wanted) {
  wanted ? chosen.add(id) : chosen.delete(id);
  const query = new URLSearchParams([...chosen].map((each) => ["run", each]));
  history.replaceState(null, "", chosen.size ? `#${query}` : location.pathname);
  schedule();
}

async function fetchJson(address) {
  try {
    const answer = await fetch(address);
    return answer.ok ? await answer.json() : null;
  } catch { return null; } // the stream says that the connection is lost
}

async function fetchCurves(run) {
  const known = curves.get(run.id);
  if (known && (known.version >= run.version || known.asked >= run.version)) return;
  curves.set(run.id, { version: -1, ...known, asked: run.version });
  const found = await fetchJson(`api/runs/${run.id}`);
  const now = curves.get(run.id);
  if (found && now) { curves.set(run.id, { ...found, asked: now.asked }); schedule(); }
  else if (now) now.asked = -1;
}

// Parts of the page

function render() {
  const all = [...runs.values()], underWay = all.filter(isUnderWay), shown = drawn();
  const cardsOf = underWay.sort((a, b) => name(a).localeCompare(name(b))).slice(0, MOST_CARDS);
  for (const run of new Set([...shown, ...cardsOf])) if (run.accuracies) fetchCurves(run);
  document.title = underWay.length ? `(${underWay.length}) bdr watch` : "bdr watch";
  at("empty").hidden = all.length > 0 || pending > 0;
  if (pending && at("connection").dataset.state === "live") say("live", `live, ${plural(pending, "run")} still to be read`);
  renderStates(all);
  renderReport(all);
  renderCards(cardsOf, underWay.length);
  renderPlots(shown);
  compareRuns();
  renderRuns(all);
}

function renderStates(all) {
  const counts = STATES.map((state) => [state, all.filter((run) => run.state === state).length]).filter(([, count]) => count);
  const wanted = [["", all.length], ...counts];
  const said = JSON.stringify([wanted, listing.state]);
  if (at("states").dataset.said === said) return;
  at("states").dataset.said = said;
  at("states").replaceChildren(...wanted.map(([state, count]) => {
    const inside = state ? element("span", { class: "state", "data-state": state }, `${count} ${state}`) : `all ${count}`;
    const button = element("button", { type: "button", "aria-pressed": String(listing.state === state) }, inside);
    button.onclick = () => { listing.state = state; schedule(); };
    return button;
  }));
}

function renderReport(all) {
  const measurable = all.filter((run) => run.accuracies?.length), picked = measurable.filter((run) => chosen.has(run.id));
  const told = picked.length ? picked : measurable;
  at("report").hidden = !told.length;
  at("report").textContent = `Report of ${picked.length ? `${picked.length} chosen` : `all ${told.length}`} ${told.length === 1 ? "run" : "runs"}`;
  at("report").href = picked.length ? `report?${new URLSearchParams(picked.map((run) => ["run", run.id]))}` : "report";
}

function renderCards(shown, count) {
  at("underway").hidden = !count;
  const wanted = new Set(shown.map((run) => run.id));
  for (const [id, card] of cards) if (!wanted.has(id)) { card.box.remove(); cards.delete(id); }
  for (const run of shown) {
    if (!cards.has(run.id)) cards.set(run.id, newCard());
    fillCard(cards.get(run.id), run);
    at("cards").append(...(at("cards").contains(cards.get(run.id).box) ? [] : [cards.get(run.id).box]));
  }
}

function newCard() {
  const part = { title: element("h3"), state: element("span", { class: "state" }), protocol: element("p"), where: element("p", { class: "where" }) };
  part.done = element("div");
  part.track = element("div", { class: "track", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, part.done);
  part.loss = element("dd");
  part.accuracy = element("dd");
  part.average = element("dd");
  part.curve = element("div", { class: "curve" });
  const value = (text, cell) => element("div", {}, element("dt", {}, text), cell);
  const values = element("dl", { class: "values" }, value("loss", part.loss), value("accuracy", part.accuracy), value("average", part.average), part.curve);
  part.box = element("article", { class: "card run" }, element("header", {}, part.title, part.state), part.protocol, part.track, part.where, values);
  return part;
}

function fillCard(card, run) {
  const percent = 100 * (run.share ?? 0);
  card.box.dataset.state = run.state;
  card.box.dataset.run = run.id;
  card.title.textContent = name(run);
  card.state.dataset.state = card.state.textContent = run.state;
  card.protocol.textContent = run.protocol ?? run.folder;
  card.done.style.width = `${percent}%`;
  card.track.setAttribute("aria-valuenow", Math.round(percent));
  card.track.setAttribute("aria-label", `${name(run)}: ${Math.round(percent)} %`);
  const left = run.left === null || run.left === undefined ? "" : ` · ~${clock(run.left)} left`;
  card.where.textContent = run.epoch || run.state === "running" ? `${where(run)}${left}` : run.note || where(run);
  card.loss.textContent = number(run.loss, 3);
  card.accuracy.textContent = number(last(run));
  card.average.textContent = number(run.average);
  const curve = curves.get(run.id);
  if (curve?.loss && card.drawn !== curve.version) {
    card.drawn = curve.version;
    card.curve.replaceChildren(sparkline(curve.loss.loss));
  }
}

// Names for the lines of a plot; runs of one name tell the settings that not all of them have, or else where they are.
function namesApart(shown) {
  const several = new Set(shown.map((run) => run.protocol)).size > 1;
  const named = (run, settings) => name(run, settings) + (several ? `, ${run.protocol}` : "");
  const apart = (run, [key, value]) => shown.some((other) => named(other, "") === named(run, "") && other.settings?.[key] !== value);
  const told = (run) => Object.entries(run.settings ?? {}).filter((setting) => apart(run, setting)).map(([key, value]) => ` ${key}=${value}`).join("");
  const names = shown.map((run) => named(run, told(run)));
  return names.map((mine, index) => (names.filter((other) => other === mine).length > 1 ? `${mine} (${shown[index].folder.slice(-6)})` : mine));
}

// A colour a method and protocol; a way of drawing the line a seed.
function looksOf(shown) {
  const methods = [...new Set(shown.map((run) => `${run.title} ${run.protocol}`))], drawn = methods.map(() => 0);
  return shown.map((run) => {
    const method = methods.indexOf(`${run.title} ${run.protocol}`);
    return { colour: `var(--series-${method % COLOURS})`, dash: DASHES[drawn[method]++ % DASHES.length] };
  });
}

function renderPlots(shown) {
  at("drawn").hidden = !shown.length;
  const said = JSON.stringify([shown.map((run) => [run.id, run.version, curves.get(run.id)?.version]), phase]);
  if (!shown.length || at("drawn").dataset.said === said) return;
  at("drawn").dataset.said = said;
  const picked = shown.some((run) => chosen.has(run.id));
  at("drawn-about").textContent = picked
    ? `The ${plural(shown.length, "run")} chosen below${chosen.size > MOST_DRAWN ? `, the first ${MOST_DRAWN} of ${chosen.size}` : ""}.`
    : `What is under way and what was written last: ${plural(shown.length, "run")}. Choose others in the list below.`;
  const looks = looksOf(shown), names = namesApart(shown);
  const series = shown.map((run, index) => ({ ...looks[index], run, name: names[index] }));
  at("legend").replaceChildren(...series.map(legendEntry));
  const ends = new Set(shown.map((run) => JSON.stringify(curves.get(run.id)?.loss?.ends ?? [])));
  plot(at("plot-accuracy"), series.map((each) => ({ ...each, dots: true, points: each.run.accuracies ?? [] })), { x: "classes seen", name: "Accuracy over the number of classes seen", most: 100, whole: true });
  plot(at("plot-loss"), series.map((each) => ({ ...each, points: lossPoints(each.run) })), { x: "epoch", name: "Loss over all epochs", from: 0, whole: true, marks: ends.size === 1 ? JSON.parse([...ends][0]).map((end) => end + 0.5) : [] });
  renderDestruction(series);
}

function legendEntry(each) {
  const style = `stroke: ${each.colour}; stroke-dasharray: ${each.dash || "none"}`;
  const drawn = shape("svg", { class: "stroke", viewBox: "0 0 28 8", "aria-hidden": "true" }, shape("line", { x1: 1, x2: 27, y1: 4, y2: 4, style }));
  return element("li", {}, drawn, each.name);
}

function lossPoints(run) {
  const found = curves.get(run.id)?.loss;
  return found ? found.epochs.map((epoch, place) => [epoch, found.loss[place]]) : [];
}

// The latest phase that any of the runs is in, unless one was picked.
function renderDestruction(series) {
  const of = (run) => curves.get(run.id)?.destruction ?? [];
  const phases = [...new Set(series.flatMap((each) => of(each.run).map((curve) => curve.phase)))].sort((a, b) => a - b);
  const shown = phases.includes(Number(phase)) && phase !== "" ? Number(phase) : phases.at(-1);
  at("phase").replaceChildren(...phases.map((each) => element("option", { value: each, ...(each === shown ? { selected: "" } : {}) }, `phase ${each}`)));
  at("phase").closest("figure").hidden = !phases.length;
  if (!phases.length) return;
  const points = (run) => {
    const curve = of(run).find((each) => each.phase === shown);
    return curve ? curve.epochs.map((epoch, place) => [epoch, curve.loss[place]]) : [];
  };
  plot(at("plot-destruction"), series.map((each) => ({ ...each, points: points(each.run) })), { x: "epoch of the phase", name: `Loss on old classes during phase ${shown}`, log: true, from: 0 });
}

// The comparison: the tables of `bdr show`

async function compareRuns() {
  const keys = [...chosen].filter((id) => runs.get(id)?.accuracies?.length);
  const query = new URLSearchParams(keys.map((id) => ["run", id])).toString();
  const fresh = compared.measured === measured && compared.keys === query;
  if (fresh || pending) return; // of all runs or of none: tables of those read so far would be taken for the whole
  Object.assign(compared, { measured, keys: query });
  const found = await fetchJson(`api/comparison${query ? `?${query}` : ""}`);
  if (!found) { compared.measured = -1; return; }
  if (query !== compared.keys) return;
  compared.tables = found.tables;
  at("compared-about").textContent = keys.length ? `Of the ${plural(keys.length, "run")} chosen below, as bdr show has them.` : "As bdr show has them: finished runs only, unless none is finished.";
  renderTables();
}

function renderTables() {
  at("compared").hidden = !compared.tables.length;
  const several = compared.tables.length > 1;
  at("tables").replaceChildren(...compared.tables.flatMap((sheet) => [
    several && sheet.title ? element("h3", {}, sheet.title) : null,
    sheet.rows.length ? comparisonTable(sheet) : null,
    sheet.notes.length ? notes(sheet.notes) : null,
  ]).filter(Boolean));
}

function notes(lines) {
  const most = 8, rest = lines.length - most;
  const told = rest > 1 ? [...lines.slice(0, most), `and ${rest} more notes: see the report`] : lines;
  return element("ul", { class: "notes" }, ...told.map((each) => element("li", {}, each)));
}

function measure(text) {
  const found = parseFloat(text.replace("−", "-"));
  return Number.isNaN(found) ? -Infinity : found;
}

function comparisonTable(sheet) {
  const sort = compared.sorts.get(sheet.title) ?? { column: -1, down: true };
  const sorted = [...sheet.rows];
  if (sort.column === 0) sorted.sort((a, b) => a[0].localeCompare(b[0]));
  if (sort.column > 0) sorted.sort((a, b) => measure(a[sort.column]) - measure(b[sort.column]));
  if (sort.down && sort.column >= 0) sorted.reverse();
  const head = sheet.header.map((text, column) => heading(text, column === 0, column === sort.column ? sort.down : null, () => {
    compared.sorts.set(sheet.title, { column, down: column === sort.column ? !sort.down : column > 0 });
    renderTables();
  }));
  const body = sorted.map((cells) => element("tr", {}, ...cells.map((text, column) => column ? withSpread(text) : element("th", { scope: "row", class: "word" }, ...breakable(text)))));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  return element("div", { class: "card" }, element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": sheet.title }, table));
}

function heading(text, word, down, onclick) {
  const button = element("button", { type: "button" }, text);
  button.onclick = onclick;
  return element("th", { scope: "col", class: `column-${text.split(" ")[0]} ${word ? "word" : ""}`, ...(down === null ? {} : { "aria-sort": down ? "descending" : "ascending" }) }, button);
}

function withSpread(text) {
  const [value, spread] = text.split(" ± ");
  return element("td", {}, value, spread ? element("small", {}, ` ± ${spread}`) : null);
}

// All runs

const COLUMNS = {
  state: { word: true, key: (run) => STATES.indexOf(run.state), cell: (run) => element("span", { class: "state", "data-state": run.state }, run.state) },
  method: { word: true, key: (run) => run.title ?? run.folder, cell: methodCell },
  seed: { key: (run) => run.seed ?? -1, cell: (run) => `${run.seed ?? "–"}` },
  protocol: { word: true, key: (run) => run.protocol ?? "", cell: (run) => run.protocol ?? "–" },
  "where it is": { word: true, key: (run) => run.share ?? -1, cell: where },
  accuracy: { down: true, key: (run) => last(run) ?? -1, cell: (run) => number(last(run)) },
  average: { down: true, key: (run) => run.average ?? -1, cell: (run) => number(run.average) },
  loss: { key: (run) => run.loss ?? Infinity, cell: (run) => number(run.loss, 3) },
  written: { down: true, key: (run) => run.touched, cell: (run) => ago(run.touched) },
};

// The method, and below it where the run is: what cannot be read has a place only.
function methodCell(run) {
  const place = element("small", { class: "folder" }, run.folder);
  return run.title === undefined ? place : element("div", {}, element("strong", {}, ...breakable(run.title)), place);
}

const compareKeys = (a, b) => (typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b);

function isListed(run) {
  const text = `${run.state} ${run.title} ${run.protocol} seed ${run.seed} ${run.folder}`.toLowerCase();
  return (!listing.state || run.state === listing.state) && listing.text.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function renderRuns(all) {
  at("listed").hidden = !all.length;
  at("none").hidden = !chosen.size;
  at("none").textContent = `Clear choice of ${chosen.size}`;
  renderHead();
  const { key } = COLUMNS[listing.sort];
  const shown = all.filter(isListed).sort((a, b) => compareKeys(key(a), key(b)) * (listing.down ? -1 : 1) || b.touched - a.touched);
  for (const id of rows.keys()) if (!runs.has(id)) rows.delete(id);
  const wanted = shown.flatMap((run) => rowOf(run));
  const body = at("runs").tBodies[0], present = [...body.children];
  if (wanted.length !== present.length || wanted.some((row, place) => row !== present[place])) {
    const focused = document.activeElement;
    body.replaceChildren(...wanted);
    if (body.contains(focused)) focused.focus();
  }
}

function renderHead() {
  const said = `${listing.sort} ${listing.down}`, head = at("runs").tHead.rows[0];
  if (head.dataset.said === said) return;
  head.dataset.said = said;
  head.replaceChildren(element("td"), ...Object.entries(COLUMNS).map(([text, column]) =>
    heading(text, column.word, text === listing.sort ? listing.down : null, () => {
      listing.down = text === listing.sort ? !listing.down : Boolean(column.down);
      listing.sort = text;
      schedule();
    })));
}

// A row, and one below it where there is something to say; made anew when the run has changed.
function rowOf(run) {
  const known = rows.get(run.id), checked = chosen.has(run.id);
  if (known?.version === run.version) {
    known.box.checked = checked;
    known.written.textContent = ago(run.touched);
    return known.made;
  }
  const box = element("input", { type: "checkbox", "aria-label": `Choose ${name(run)}` });
  box.checked = checked;
  box.disabled = !run.accuracies;
  box.onchange = () => choose(run.id, box.checked);
  const cells = Object.entries(COLUMNS).map(([text, column]) => element("td", { class: `column-${text.split(" ")[0]} ${column.word ? "word" : ""}` }, column.cell(run)));
  const noted = run.note && !isUnderWay(run); // of those the cards speak
  const row = element("tr", { "data-run": run.id, class: noted ? "noted" : "" }, element("td", { class: "choice" }, box), ...cells);
  const note = noted ? [element("tr", { class: "note" }, element("td"), element("td", { colspan: Object.keys(COLUMNS).length }, element("p", {}, run.note)))] : [];
  rows.set(run.id, { version: run.version, box, written: cells[Object.keys(COLUMNS).indexOf("written")], made: [row, ...note] });
  return rows.get(run.id).made;
}

at("filter").oninput = (event) => { listing.text = event.target.value.trim(); schedule(); };
at("none").onclick = () => { chosen.clear(); rows.clear(); choose("", false); };
at("phase").onchange = (event) => { phase = event.target.value; schedule(); };
setInterval(schedule, 10000); // what was written "just now" was not for ever
setInterval(() => { if (Date.now() - heard > SILENCE) { heard = Date.now(); lose(); connect(); } }, 5000);
fetchJson("api/about").then((about) => { if (about) at("roots").textContent = about.roots.join(", "); });
connect();
