// Draws the curves and the trajectory browser from the JSON in the page. Text from models and web pages is
// only ever set as text: `make` creates every element, and nothing parses HTML or follows a URL of the data.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "text"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== ""));
  return node;
}

const steps = data.series.step || [];
const known = x => typeof x === "number";
const colour = k => `--c: var(--c${k % 10})`;

function short(x) {
  if (!known(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e4) return size >= 1e6 ? (x / 1e6).toFixed(1) + "M" : (x / 1e3).toFixed(1) + "k";
  if (size !== 0 && size < 1e-3) return x.toExponential(1);
  return String(+x.toPrecision(size < 1 ? 3 : 4));
}

// ---- Curves ------------------------------------------------------------------------------------

const CHARTS = [
  {title: "Success", keys: {success: "training"}, evals: true, top: 1, zero: true},
  {title: "Reward", keys: {reward: "mean", reward_std: "deviation"}},
  {title: "Rewards of recorded steps", prefix: "reward/", top: 1, zero: true},
  {title: "Tokens per episode", zero: true,
    keys: {tokens_mean: "mean", tokens_p90: "90th percentile", response_tokens: "sampled"}},
  {title: "Turns per episode", keys: {turns: "turns"}, zero: true},
  {title: "Entropy", keys: {entropy: "entropy"}, zero: true},
  {title: "Importance ratio", keys: {ratio_mean: "mean", ratio_max: "max"}},
  {title: "Clip fraction", keys: {clip_fraction: "clipped"}, zero: true},
  {title: "Loss", keys: {loss: "loss"}},
  {title: "Gradient norm", keys: {grad_norm: "norm"}, zero: true},
  {title: "Groups", zero: true, keys: {groups_submitted: "submitted", groups_kept: "kept",
    groups_dropped: "dropped", invalid: "invalid episodes"}},
  {title: "Seconds by phase", prefix: "seconds/", stacked: true, zero: true},
  {title: "Stops by kind", prefix: "stop/", stacked: true, zero: true},
  {title: "Why episodes fail", prefix: "error/", stacked: true, zero: true},
  {title: "Turns that speak of ...", prefix: "proxy/", zero: true},
  {title: "Their tokens, mean", prefix: "proxy_mean/", zero: true},
  {title: "Their tokens, 90th percentile", prefix: "proxy_p90/", zero: true},
  {title: "The judge and the truth", keys: {judged_success: "judged", success: "true"},
    needs: "judged_success", top: 1, zero: true},
];
const ORDER = ["rollout", "train", "sync", "done", "max_steps", "format_error", "length"];
const BOX = {width: 400, height: 190, left: 42, right: 8, top: 8, bottom: 20};

function learning() {
  const cards = CHARTS.map(card).filter(Boolean);
  if (!cards.length) return null;
  return make("section", {id: "curves"}, make("h2", {}, "Learning curves"),
    make("div", {class: "cards"}, cards));
}

// A chart's lines and evaluations; null if there is nothing to draw.
function card(spec) {
  const {series} = data;
  let keys = Object.entries(spec.keys || {});
  if (spec.prefix) {
    keys = Object.keys(series).filter(key => key.startsWith(spec.prefix) && key !== "seconds/total")
      .map(key => [key, key.slice(spec.prefix.length)]);
    const rank = name => ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length;
    keys.sort((a, b) => rank(a[1]) - rank(b[1]));
  }
  const has = key => (series[key] || []).some(known);
  const heights = steps.map(() => 0);
  const lines = keys.filter(([key]) => has(key)).map(([key, name]) => {
    const values = series[key], bases = [...heights];
    if (spec.stacked) values.forEach((value, i) => { heights[i] += value || 0; });
    return {name, values, bases, tops: spec.stacked ? [...heights] : values};
  });
  const points = spec.evals ? data.evals.filter(row => known(row.step)) : [];
  if (!lines.length && !points.length || spec.needs && !has(spec.needs)) return null;
  return drawCard(spec, lines, points);
}

function drawCard(spec, lines, points) {
  const {width, height, left, right, top, bottom} = BOX;
  const values = lines.flatMap(line => line.tops).concat(points.flatMap(row => [row.low, row.high])).filter(known);
  let low = spec.zero ? 0 : Math.min(...values), high = spec.top || Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - (spec.zero ? 0 : 0.5), high + 0.5];
  const ticks = niceTicks(low, high);
  if (!spec.top) [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
  const all = steps.concat(points.map(row => row.step));
  const first = Math.min(...all), last = Math.max(...all, first + 1);
  const x = step => left + (step - first) / (last - first) * (width - left - right);
  const y = value => top + (high - value) / (high - low) * (height - top - bottom);

  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title},
    ticks.map(tick => [make("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
      make("text", {x: left - 6, y: y(tick) + 3.5, "text-anchor": "end"}, short(tick))]).flat(),
    make("text", {x: left, y: height - 4}, `step ${first}`),
    make("text", {x: width - right, y: height - 4, "text-anchor": "end"}, String(last)),
    lines.flatMap((line, k) => spec.stacked ? area(line, k, steps, x, y) : curve(line, k, steps, x, y)),
    points.flatMap(row => [
      make("path", {class: "whisker eval", d: `M${x(row.step)} ${y(row.low)}V${y(row.high)}`}),
      make("circle", {class: "eval", cx: x(row.step), cy: y(row.success), r: 3.5})]));
  return withLegend(spec, lines, points, svg, x, all);
}

function area(line, k, steps, x, y) {
  const upper = steps.map((step, i) => `${x(step)} ${y(line.tops[i])}`);
  const lower = steps.map((step, i) => `${x(step)} ${y(line.bases[i])}`).reverse();
  return [make("path", {class: "area", style: colour(k), d: `M${upper.concat(lower).join("L")}Z`})];
}

// A gap in the values is a gap in the line; a value between two gaps is a dot.
function curve({values}, k, steps, x, y) {
  let path = "";
  const dots = [];
  values.forEach((value, i) => {
    if (!known(value)) return;
    const joined = known(values[i - 1]);
    path += `${joined ? "L" : "M"}${x(steps[i])} ${y(value)}`;
    if (!joined && !known(values[i + 1])) {
      dots.push(make("circle", {class: "dot", style: colour(k), cx: x(steps[i]), cy: y(value), r: 2}));
    }
  });
  return [make("path", {class: "line", style: colour(k), d: path}), ...dots];
}

function niceTicks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const from = Math.floor(low / step + 1e-9), count = Math.ceil(high / step - from + 0.999);
  return Array.from({length: count}, (_, i) => +((from + i) * step).toPrecision(12));
}

// The legend doubles as the read-out: it shows the values under the pointer, else the newest.
function withLegend(spec, lines, points, svg, x, all) {
  const at = make("span", {class: "at dim"}), evalOutput = make("output");
  const outputs = lines.map(() => make("output"));
  const legend = make("div", {class: "legend"}, lines.map((line, k) =>
    make("span", {}, make("i", {class: "key", style: colour(k)}), line.name, " ", outputs[k])),
  points.length ? make("span", {}, make("i", {class: "key eval"}), "held out ", evalOutput) : null);
  const show = (step, hovered) => {
    at.textContent = hovered ? `step ${step}` : "";
    const i = steps.indexOf(step);
    lines.forEach((line, k) => { outputs[k].textContent = short(line.values[i]); });
    const row = points.filter(point => point.step <= step).pop();
    const percent = share => (100 * share).toFixed(1) + "%";
    evalOutput.textContent = row ? `${percent(row.success)} (${percent(row.low)}–${percent(row.high)})` : "–";
  };
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect();
    const position = (event.clientX - frame.left) / frame.width * BOX.width;
    show(all.reduce((a, b) => Math.abs(x(b) - position) < Math.abs(x(a) - position) ? b : a), true);
  });
  svg.addEventListener("pointerleave", () => show(Math.max(...all), false));
  show(Math.max(...all), false);
  return make("figure", {class: "card", "data-title": spec.title},
    make("figcaption", {}, make("h3", {}, spec.title), at), svg, legend);
}

document.querySelector("main").append(...[learning(), data.dumps.length ? browser() : null].filter(Boolean));
