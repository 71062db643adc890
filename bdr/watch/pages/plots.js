"use strict";
// Line plots as SVG that follow the page's colours. A series: {name, colour, dash, points: [[x, y], ...], dots}.

const SVG = "http://www.w3.org/2000/svg";
const SIZE = { width: 420, height: 270, left: 46, right: 14, top: 10, bottom: 44 };

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function niceSteps(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(+at.toPrecision(12));
  return found;
}

function logSteps(low, high) {
  const found = [], inside = high / low > 200 ? [1] : high / low > 20 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    found.push(...inside.map((each) => each * 10 ** power));
  }
  return found.filter((each) => each >= low * 0.999 && each <= high * 1.001);
}

function extent(values, fallback) {
  if (!values.length) return fallback;
  const low = Math.min(...values), high = Math.max(...values);
  return low === high ? [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)] : [low, high];
}

const short = (value) => (Math.abs(value) >= 10000 ? `${+(value / 1000).toPrecision(3)}k` : `${+value.toPrecision(4)}`);

function scales(series, options) {
  const all = series.flatMap((each) => each.points);
  let [left, right] = extent(all.map((point) => point[0]), [0, 1]);
  let [low, high] = extent(all.map((point) => point[1]), [0, 1]);
  if (options.from !== undefined) low = Math.min(options.from, low);
  const room = (high - low) * 0.06;
  [low, high] = [options.from === low ? low : low - room, Math.min(high + room, options.most ?? Infinity)];
  if (options.log && left <= 0) left = Math.min(...all.map((point) => point[0]).filter((x) => x > 0), right / 100);
  const across = options.log ? Math.log10 : (x) => x;
  const wide = SIZE.width - SIZE.left - SIZE.right, tall = SIZE.height - SIZE.top - SIZE.bottom;
  const x = (at) => SIZE.left + (wide * (across(at) - across(left))) / (across(right) - across(left));
  const y = (at) => SIZE.top + tall * (1 - (at - low) / (high - low));
  return { x, y, left, right, low, high };
}

function axes(scale, options) {
  const bottom = SIZE.height - SIZE.bottom, parts = [];
  for (const at of niceSteps(scale.low, scale.high, 5)) {
    parts.push(shape("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: scale.y(at), y2: scale.y(at) }));
    parts.push(shape("text", { x: SIZE.left - 8, y: scale.y(at) + 4, "text-anchor": "end" }, short(at)));
  }
  const ticks = options.log ? logSteps(scale.left, scale.right) : niceSteps(scale.left, scale.right, 6);
  for (const at of ticks.filter((each) => !options.whole || Number.isInteger(each))) {
    const edge = scale.x(at) > SIZE.width - SIZE.right - 12; // a long number would be cut off there
    parts.push(shape("text", { x: scale.x(at) + (edge ? 8 : 0), y: bottom + 19, "text-anchor": edge ? "end" : "middle" }, short(at)));
  }
  parts.push(shape("line", { class: "axis", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: bottom, y2: bottom }));
  const middle = (SIZE.left + SIZE.width - SIZE.right) / 2;
  parts.push(shape("text", { x: middle, y: SIZE.height - 4, "text-anchor": "middle" }, options.x));
  return parts;
}

function path(points, scale) {
  let drawn = "", lifted = true;
  for (const [x, y] of points) {
    if (y === null) { lifted = true; continue; }
    drawn += `${lifted ? "M" : "L"}${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`;
    lifted = false;
  }
  return drawn;
}

function nearest(points, x, across) {
  let best = null;
  for (const point of points) {
    if (best === null || Math.abs(across(point[0]) - across(x)) < Math.abs(across(best[0]) - across(x))) best = point;
  }
  return best;
}

// Draws into an element, in place of what was there; the pointer shows the values at a place.
function plot(element, series, options) {
  const told = series.map((each) => ({ ...each, points: each.points.filter((p) => p[1] !== null && (!options.log || p[0] > 0)) }));
  const scale = scales(told, options);
  const bottom = SIZE.height - SIZE.bottom;
  const drawing = shape("svg", { class: "plot", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": options.name });
  drawing.append(...axes(scale, options));
  for (const at of options.marks ?? []) {
    drawing.append(shape("line", { class: "mark", x1: scale.x(at), x2: scale.x(at), y1: SIZE.top, y2: bottom }));
  }
  for (const each of told) {
    const style = `stroke: ${each.colour};${each.dash ? ` stroke-dasharray: ${each.dash}` : ""}`;
    drawing.append(shape("path", { class: "line", d: path(each.points, scale), style }));
    const dotted = each.dots || each.points.length === 1 ? each.points : each.points.slice(-1);
    for (const [x, y] of dotted) {
      drawing.append(shape("circle", { cx: scale.x(x), cy: scale.y(y), r: each.dots ? 3 : 3.5, style: `fill: ${each.colour}` }));
    }
  }
  const box = document.createElement("div");
  box.className = "plotted";
  box.append(drawing);
  element.replaceChildren(box);
  follow(box, drawing, told, scale, options);
}

function follow(box, drawing, series, scale, options) {
  const across = options.log ? Math.log10 : (x) => x;
  const cursor = shape("line", { class: "cursor", y1: SIZE.top, y2: SIZE.height - SIZE.bottom });
  const hint = document.createElement("div");
  hint.className = "hint";
  const leave = () => { cursor.remove(); hint.remove(); };
  box.addEventListener("pointerleave", leave);
  box.addEventListener("pointermove", (event) => {
    const frame = drawing.getBoundingClientRect();
    const inside = ((event.clientX - frame.left) / frame.width) * SIZE.width;
    const share = (inside - SIZE.left) / (SIZE.width - SIZE.left - SIZE.right);
    if (share < -0.02 || share > 1.02 || !series.some((each) => each.points.length)) return leave();
    const [from, to] = [across(scale.left), across(scale.right)];
    const at = options.log ? 10 ** (from + share * (to - from)) : from + share * (to - from);
    const found = series.map((each) => [each, nearest(each.points, at, across)]).filter(([, point]) => point);
    const x = nearest(found.map(([, point]) => point), at, across)[0];
    cursor.setAttribute("x1", scale.x(x));
    cursor.setAttribute("x2", scale.x(x));
    drawing.append(cursor);
    hint.replaceChildren(line(`${options.x} ${short(x)}`), ...found.slice(0, 8).map(([each, point]) => line(`${short(point[1])}  ${each.name}`, each.colour)));
    hint.style.left = share > 0.5 ? "" : `${(scale.x(x) / SIZE.width) * 100 + 3}%`;
    hint.style.right = share > 0.5 ? `${100 - (scale.x(x) / SIZE.width) * 100 + 3}%` : "";
    box.append(hint);
  });
}

function line(text, colour) {
  const made = document.createElement("p");
  if (colour) {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour;
    made.append(swatch);
  }
  made.append(text);
  return made;
}

// A curve without axes, as large as a word.
function sparkline(values) {
  const told = values.filter((each) => each !== null && each > 0).slice(-80).map(Math.log); // the first epochs dwarf the rest
  const [low, high] = extent(told, [0, 1]);
  const points = told.map((each, at) => `${((at / Math.max(1, told.length - 1)) * 100).toFixed(1)},${(30 - ((each - low) / (high - low)) * 28 - 1).toFixed(1)}`);
  const drawn = shape("polyline", { points: points.join(" "), fill: "none", stroke: "currentColor", "stroke-width": 2, "vector-effect": "non-scaling-stroke" });
  return shape("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn);
}
