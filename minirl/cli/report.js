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

// `says` stands under each chart: what is drawn, in which unit, and what to watch for.
// On a page of several runs each is a line: of the chart's first number, or of the one named by `of`.
const CHARTS = [
  {title: "Success", keys: {success: "training"}, evals: true, top: 1, zero: true, says: "Share of episodes. " +
    "Training samples freely, on what it practises; a dot is an evaluation, on tasks held out or, by --eval-every, set aside."},
  {title: "Success in evaluations", keys: {evaluated: ""}, top: 1, zero: true, says: "On tasks held out or set aside."},
  {title: "Reward", keys: {reward: "mean", reward_std: "deviation"}, says: "Of a step's episodes. " +
    "Where the deviation goes to 0 all episodes earn alike, and nothing more is learned."},
  {title: "Turns per episode", keys: {turns: "turns"}, zero: true, says: "Mean of a step's episodes."},
  {title: "Rewards of recorded steps", prefix: "reward/", top: 1, zero: true,
    says: "Mean of each part of the reward, from 0 to 1."},
  {title: "Tokens per episode", zero: true,
    keys: {tokens_mean: "mean", tokens_p90: "90th percentile", response_tokens: "sampled"},
    says: "Of the whole conversation, and of the model's own words in it."},
  {title: "Entropy", keys: {entropy: "entropy"}, zero: true,
    says: "Nats a token: how undecided the policy is. Near 0 it explores no more."},
  {title: "Importance ratio", keys: {ratio_mean: "mean", ratio_max: "max"},
    says: "Probability of a sampled token now, over that when it was sampled. The mean should stay near 1."},
  {title: "Clip fraction", keys: {clip_fraction: "clipped"}, zero: true,
    says: "Share of tokens whose ratio is beyond the clip, so that they no longer push."},
  {title: "Loss", keys: {loss: "loss"}, says: "What is minimised. It does not measure progress; success does."},
  {title: "Gradient norm", keys: {grad_norm: "norm"}, zero: true,
    says: "Before it is cut to --optim.grad-clip, mean of a step's updates."},
  {title: "Groups", zero: true, keys: {groups_submitted: "submitted", groups_kept: "kept",
    groups_dropped: "dropped", invalid: "invalid episodes"},
    says: "Those dropped had equal rewards in all their episodes: too easy, or too hard."},
  {title: "Seconds by phase", prefix: "seconds/", of: "seconds/total", zero: true, says: "Of each step."},
  {title: "Stops by kind", prefix: "stop/", zero: true, says: "Episodes of a step, by what ended them."},
  {title: "Why episodes fail", prefix: "error/", zero: true,
    says: "Failed episodes of a step, by how their turns went (OpenWebRL, appendix E)."},
  {title: "Turns that speak of", prefix: "proxy/", zero: true, says: "Share of a step's turns, by their words."},
  {title: "Tokens of such turns", prefix: "proxy_mean/", needs: "proxy/", zero: true,
    says: "Mean length of these responses; none: of those that speak of nothing of the kind."},
  {title: "Long turns of that kind", prefix: "proxy_p90/", needs: "proxy/", zero: true,
    says: "Tokens that 90% of these responses do not exceed."},
  {title: "The judge and the truth", keys: {judged_success: "judged", success: "true"},
    needs: "judged_success", top: 1, zero: true,
    says: "Share of successes as the judge says and as the sites know. If judged success alone rises, it is fooled."},
];
const FIRST = 3;  // charts before the trajectories; the others stand behind them
const BOX = {width: 400, height: 190, left: 48, right: 8, top: 8, bottom: 20};

function learning(id, title, cards) {
  if (!cards.length) return null;
  return make("section", {id}, make("h2", {}, title), make("div", {class: "cards"}, cards));
}

// A chart's lines and evaluations; null if there is nothing to draw.
function card(spec) {
  const {series} = data;
  let keys = Object.entries(spec.keys || {});
  const prefix = data.compared ? `${spec.of || keys[0]?.[0]} of ` : spec.prefix;
  if (data.compared && keys.length > 1) spec = {...spec, title: `${spec.title}, ${keys[0][1]}`};
  if (prefix) {
    keys = Object.keys(series).filter(key => key.startsWith(prefix) && key !== "seconds/total")
      .map(key => [key, key.slice(prefix.length)]);
  }
  // what is 0 throughout says nothing, but for the success
  const has = key => (series[key] || []).some(x => known(x) && (x !== 0 || spec.top));
  const lines = keys.filter(([key]) => has(key)).map(([key, name]) => ({name, values: series[key]}));
  const points = spec.evals ? data.evals.filter(row => known(row.step) && row.n) : [];
  const lacks = spec.needs && !Object.keys(series).some(key => key.startsWith(spec.needs) && has(key));
  if (!lines.length && !points.length || lacks) return null;
  return drawCard(spec, lines, points);
}

function drawCard(spec, lines, points) {
  const {width, height, left, right, top, bottom} = BOX;
  const values = lines.flatMap(line => line.values).concat(points.flatMap(row => [row.low, row.high])).filter(known);
  let low = spec.zero ? 0 : Math.min(...values), high = spec.top || Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - (spec.zero ? 0 : 0.5), high + 0.5];
  const ticks = [low, (low + high) / 2, high];
  const all = steps.concat(points.map(row => row.step));
  const first = Math.min(...all), last = Math.max(...all, first + 1);
  const x = step => left + (step - first) / (last - first) * (width - left - right);
  const y = value => top + (high - value) / (high - low) * (height - top - bottom);

  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title},
    ticks.map(tick => [make("line", {class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick)}),
      make("text", {x: left - 6, y: y(tick) + 3.5, "text-anchor": "end"}, short(tick))]).flat(),
    make("text", {x: left, y: height - 4}, `step ${first}`),
    make("text", {x: width - right, y: height - 4, "text-anchor": "end"}, String(last)),
    lines.flatMap((line, k) => curve(line, k, steps, x, y)),
    points.flatMap(row => [
      make("path", {class: "whisker eval", d: `M${x(row.step)} ${y(row.low)}V${y(row.high)}`}),
      make("circle", {class: "eval", cx: x(row.step), cy: y(row.success), r: 3.5})]));
  return withLegend(spec, lines, points, svg);
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

// A chart with its lines' names and newest values.
function withLegend(spec, lines, points, svg) {
  const percent = share => (100 * share).toFixed(1) + "%";
  const entry = (attributes, name, value) => make("span", {}, make("i", attributes), `${name} `, make("output", {}, value));
  const legend = lines.map((line, k) => entry({class: "key", style: colour(k)}, line.name, short(line.values.findLast(known))));
  const last = points.at(-1);
  if (last) {
    const text = `${percent(last.success)} (${percent(last.low)}–${percent(last.high)})`;
    legend.push(entry({class: "key eval"}, "newest evaluation", text));
  }
  return make("figure", {class: "card", "data-title": spec.title},
    make("figcaption", {}, make("h3", {}, spec.title)), svg, make("div", {class: "legend"}, legend),
    make("p", {}, spec.says));
}

const cards = CHARTS.map(card).filter(Boolean);
document.querySelector("main").append(...[
  learning("curves", "Learning curves", cards.slice(0, FIRST)),
  data.dumps.length ? browser() : null,
  learning("more", "More curves", cards.slice(FIRST))].filter(Boolean));
