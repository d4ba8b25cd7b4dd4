// Draws the report from the JSON in the page. Text from models and web pages is only ever set as text:
// `make` below creates every element, and nothing here parses HTML or follows a URL from the data.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// ---- Small tools -------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "circle", "rect", "text"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(child => child !== null && child !== ""));
  return node;
}

const percent = x => (100 * x).toFixed(1) + "%";
const known = x => typeof x === "number";

function short(x) {
  if (!known(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e6) return (x / 1e6).toFixed(1) + "M";
  if (size >= 1e4) return (x / 1e3).toFixed(1) + "k";
  if (size !== 0 && size < 1e-3) return x.toExponential(1);
  return String(+x.toPrecision(size < 1 ? 3 : 4));
}

function duration(seconds) {
  if (seconds < 60) return seconds.toFixed(1) + " s";
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function setting(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// ---- Header and evaluations --------------------------------------------------------------------

function header() {
  const facts = [data.recipe && `recipe ${data.recipe}`, `${data.steps_done} steps`];
  if (data.seconds) facts.push(`${duration(data.seconds)} of training`);
  facts.push(`written ${data.written}`);
  const chips = data.key_settings.map(key =>
    make("span", {class: "chip"}, make("span", {class: "dim"}, key), " ", setting(data.settings[key])));
  const rows = Object.entries(data.settings).map(([key, value]) =>
    make("tr", {}, make("td", {class: "dim"}, key), make("td", {class: "mono"}, setting(value))));
  return make("header", {},
    make("h1", {}, data.name),
    make("p", {class: "dim"}, facts.filter(Boolean).join(" · ")),
    make("div", {class: "chips"}, chips),
    rows.length ? make("details", {}, make("summary", {}, `All ${rows.length} settings`),
      make("table", {class: "settings"}, rows)) : null);
}

// Evaluations in the middle of training belong to the curve; without any other, the first and last stay.
// Those of eval.py, which name their checkpoint, are all shown.
function milestones() {
  const named = data.evals.filter(row => row.checkpoint || !/(^|[ _])step[ _]*\d+$/.test(row.label));
  if (named.length || data.evals.length < 2) return named.length ? named : data.evals;
  return [data.evals[0], data.evals[data.evals.length - 1]];
}

function evaluations() {
  const rows = milestones();
  if (!rows.length) return null;
  const aborted = rows.some(row => known(row.invalid));
  const titles = ["phase", "success", "95% interval", "episodes", ...(aborted ? ["aborted"] : [])];
  const body = rows.map(row => cells(row.label, row.n ? percent(row.success) : "–",
    `${percent(row.low)} to ${percent(row.high)}`, String(row.n), ...(aborted ? [short(row.invalid)] : [])));
  return make("section", {id: "evaluations"}, make("h2", {}, "Held-out success"),
    make("div", {class: "beside"}, numbers(titles, body), bars(rows)), reasons(rows));
}

function numbers(titles, body) {
  return make("table", {class: "numbers"}, make("tr", {}, ...titles.map(name => make("th", {}, name))), body);
}

function cells(name, value, ...more) {
  return make("tr", {}, make("td", {}, name), make("td", {class: "strong"}, value),
    ...more.map(text => make("td", {}, text)));
}

// Of the newest evaluation that counted them: why its episodes failed, and what its turns speak of.
function reasons(rows) {
  const row = rows.filter(row => row.errors && row.errors.length || row.proxies && row.proxies.length).pop();
  if (!row) return null;
  const share = x => known(x) ? percent(x) : "–";
  const errors = row.errors.map(e => cells(e.category, share(e.share), String(e.count), share(e.paper)));
  const proxies = row.proxies.map(p => cells(p.name, share(p.rate), short(p.mean), short(p.p90)));
  const tables = [[["failed for", "share", "episodes", "paper's share"], errors],
    [["turns that speak of", "share", "mean tokens", "90th percentile"], proxies]];
  return make("details", {class: "reasons", open: true},
    make("summary", {}, `Why episodes of ${row.label} failed, what turns say`),
    make("div", {class: "beside"},
      tables.filter(([, body]) => body.length).map(([titles, body]) => numbers(titles, body))));
}

// One horizontal bar per evaluation, with its interval as a whisker.
function bars(rows) {
  const height = 30, left = 165, width = 300;
  const x = value => left + value * width;
  const svg = make("svg", {viewBox: `0 0 ${left + width + 20} ${rows.length * height + 20}`, class: "bars",
    role: "img", "aria-label": "held-out success with 95% intervals"});
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(make("line", {class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: rows.length * height}));
    svg.append(make("text", {x: x(tick), y: rows.length * height + 14, "text-anchor": "middle"},
      `${100 * tick}%`));
  }
  rows.forEach((row, i) => {
    const middle = i * height + height / 2;
    const label = row.label.replace(/^eval_/, "");
    const name = label.length > 18 ? label.slice(0, 17) + "…" : label;
    svg.append(
      make("text", {class: "name", x: left - 10, y: middle + 4, "text-anchor": "end"}, name),
      make("rect", {class: "bar", x: left, y: middle - 8, width: Math.max(1, row.success * width), height: 16,
        rx: 2}),
      make("path", {class: "whisker", d: `M${x(row.low)} ${middle}H${x(row.high)}` +
        `M${x(row.low)} ${middle - 4}v8M${x(row.high)} ${middle - 4}v8`}));
  });
  return svg;
}

// ---- Curves ------------------------------------------------------------------------------------

const CHARTS = [
  {title: "Success", keys: {success: "training"}, evals: true, top: 1, zero: true},
  {title: "Reward", keys: {reward: "mean", reward_std: "deviation"}},
  {title: "Tokens per episode", keys: {tokens_mean: "mean", tokens_p90: "90th percentile",
    response_tokens: "sampled"}, zero: true},
  {title: "Turns per episode", keys: {turns: "turns"}, zero: true},
  {title: "Entropy", keys: {entropy: "entropy"}, zero: true},
  {title: "Importance ratio", keys: {ratio_mean: "mean", ratio_max: "max"}},
  {title: "Clip fraction", keys: {clip_fraction: "clipped"}, zero: true},
  {title: "Loss", keys: {loss: "loss"}},
  {title: "Gradient norm", keys: {grad_norm: "norm"}, zero: true},
  {title: "Groups", keys: {groups_submitted: "submitted", groups_kept: "kept", groups_dropped: "dropped",
    invalid: "invalid episodes"}, zero: true},
  {title: "Seconds by phase", prefix: "seconds/", stacked: true, zero: true},
  {title: "Stops by kind", prefix: "stop/", stacked: true, zero: true},
  {title: "Why episodes fail", prefix: "error/", stacked: true, zero: true},
  {title: "Turns that speak of ...", prefix: "proxy/", zero: true},
  {title: "Their tokens, mean", prefix: "proxy_mean/", zero: true},
  {title: "Their tokens, 90th percentile", prefix: "proxy_p90/", zero: true},
  {title: "The judge and the truth", keys: {judged_success: "judged", success: "true"}, needs: "judged_success",
    top: 1, zero: true},
];
const ORDER = ["rollout", "train", "sync", "done", "max_steps", "format_error", "length"];

function learning() {
  const cards = CHARTS.map(card).filter(Boolean);
  if (!cards.length) return null;
  const stride = data.curves.stride;
  const thinned = stride > 1 ? make("p", {class: "dim"}, `One step in ${stride} is drawn.`) : null;
  return make("section", {id: "curves"}, make("h2", {}, "Learning curves"), thinned,
    make("div", {class: "cards"}, cards));
}

function card(spec) {
  const series = data.curves.series;
  let keys = Object.entries(spec.keys || {});
  if (spec.prefix) {
    keys = Object.keys(series).filter(key => key.startsWith(spec.prefix) && key !== "seconds/total")
      .map(key => [key, key.slice(spec.prefix.length)]);
    const rank = name => ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length;
    keys.sort((a, b) => rank(a[1]) - rank(b[1]));
  }
  const lines = keys.filter(([key]) => (series[key] || []).some(known))
    .map(([key, name]) => ({key, name, values: series[key]}));
  const points = spec.evals ? data.evals.filter(row => known(row.step)) : [];
  if (!lines.length && !points.length || spec.needs && !(series[spec.needs] || []).some(known)) return null;
  return drawCard(spec, lines, points);
}

function drawCard(spec, lines, points) {
  const steps = data.curves.steps;
  const [width, height, left, right, top, bottom] = [400, 190, 42, 8, 8, 20];
  const bases = stack(lines, spec.stacked);
  const tops = lines.flatMap((line, k) => line.values.map((v, i) => known(v) ? v + bases[k][i] : null));
  const values = tops.concat(points.flatMap(row => [row.low, row.high])).filter(known);
  let low = spec.zero ? 0 : Math.min(...values), high = spec.top || Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - (spec.zero ? 0 : 0.5), high + 0.5];
  const ticks = niceTicks(low, high);
  if (!spec.top) [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
  const all = steps.concat(points.map(row => row.step));
  const first = Math.min(...all), last = Math.max(...all, first + 1);
  const x = step => left + (step - first) / (last - first) * (width - left - right);
  const y = value => top + (high - value) / (high - low) * (height - top - bottom);

  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title});
  for (const tick of ticks) {
    svg.append(make("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
      make("text", {x: left - 6, y: y(tick) + 3.5, "text-anchor": "end"}, short(tick)));
  }
  svg.append(make("text", {x: left, y: height - 4}, `step ${first}`),
    make("text", {x: width - right, y: height - 4, "text-anchor": "end"}, String(last)));
  lines.forEach((line, k) => svg.append(...curve(line.values, bases[k], steps, x, y, k, spec.stacked)));
  for (const row of points) {
    svg.append(make("path", {class: "whisker eval", d: `M${x(row.step)} ${y(row.low)}V${y(row.high)}`}),
      make("circle", {class: "eval", cx: x(row.step), cy: y(row.success), r: 3.5}));
  }
  return withLegend(spec, lines, points, svg, x, {left, right, top, bottom, width, height});
}

// Where each line's area begins: 0, or on top of the lines before it.
function stack(lines, stacked) {
  const height = data.curves.steps.map(() => 0);
  return lines.map(line => height.map((base, i) => {
    if (!stacked) return 0;
    height[i] += line.values[i] || 0;
    return base;
  }));
}

// A gap in the values is a gap in the line; a value between two gaps is a dot.
function curve(values, bases, steps, x, y, k, stacked) {
  if (stacked) {
    const upper = steps.map((step, i) => `${x(step)} ${y(bases[i] + (values[i] || 0))}`);
    const lower = steps.map((step, i) => `${x(step)} ${y(bases[i])}`).reverse();
    return [make("path", {class: `area c${k % 10}`, d: `M${upper.concat(lower).join("L")}Z`})];
  }
  let path = "";
  const dots = [];
  values.forEach((value, i) => {
    if (!known(value)) return;
    const joined = known(values[i - 1]);
    path += `${joined ? "L" : "M"}${x(steps[i])} ${y(value)}`;
    if (!joined && !known(values[i + 1])) {
      dots.push(make("circle", {class: `dot c${k % 10}`, cx: x(steps[i]), cy: y(value), r: 2}));
    }
  });
  return [make("path", {class: `line c${k % 10}`, d: path}), ...dots];
}

function niceTicks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.floor(low / step + 1e-9); i * step < high + step * 0.999; i++) {
    ticks.push(+(i * step).toPrecision(12));
  }
  return ticks;
}

// The legend doubles as the read-out: it shows the values under the pointer, else the newest.
function withLegend(spec, lines, points, svg, x, box) {
  const steps = data.curves.steps;
  const at = make("span", {class: "at dim"});
  const outputs = lines.map(() => make("output", {}));
  const evalOutput = make("output", {});
  const legend = make("div", {class: "legend"},
    lines.map((line, k) =>
      make("span", {}, make("i", {class: `key c${k % 10}`}), line.name, " ", outputs[k])),
    points.length ? make("span", {}, make("i", {class: "key eval"}), "held out ", evalOutput) : null);
  const rule = make("line", {class: "rule", y1: box.top, y2: box.height - box.bottom, visibility: "hidden"});
  svg.append(rule);

  function show(step, hovered) {
    const i = steps.indexOf(step);
    at.textContent = hovered ? `step ${step}` : "";
    lines.forEach((line, k) => { outputs[k].textContent = short(line.values[i]); });
    const row = points.filter(point => point.step <= step).pop();
    evalOutput.textContent = !row ? "–" :
      `${percent(row.success)} (${percent(row.low)}–${percent(row.high)})`;
    rule.setAttribute("x1", x(step));
    rule.setAttribute("x2", x(step));
    rule.setAttribute("visibility", hovered ? "visible" : "hidden");
  }
  const newest = Math.max(...steps, ...points.map(row => row.step));
  const candidates = [...new Set(steps.concat(points.map(row => row.step)))];
  svg.addEventListener("pointermove", event => {
    const frame = svg.getBoundingClientRect();
    const position = (event.clientX - frame.left) / frame.width * box.width;
    show(candidates.reduce((a, b) => Math.abs(x(b) - position) < Math.abs(x(a) - position) ? b : a), true);
  });
  svg.addEventListener("pointerleave", () => show(newest, false));
  show(newest, false);
  return make("figure", {class: "card", "data-title": spec.title},
    make("figcaption", {}, make("h3", {}, spec.title), at), svg, legend);
}

// ---- Page --------------------------------------------------------------------------------------

const report = document.getElementById("report");
report.append(...[header(), evaluations(), learning()].filter(Boolean));
if (data.dumps.length) report.append(browser());
