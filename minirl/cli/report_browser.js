// The trajectory browser: a dump, one of its episodes, one of its turns. Loaded before report.js, whose
// tools (`make`, `short`, ...) it uses when it is called.
"use strict";

const place = {dump: -1, episode: 0, turn: 0};
// The turns, and the state in which the episode ended.
const slides = episode => episode.turns.length + 1;
const outcome = episode => !episode.valid ? "invalid" : episode.success ? "success" : "failure";
const seconds = x => !known(x) ? "–" : x < 60 ? x.toFixed(1) + " s" : `${Math.round(x / 60)} min`;

const OUTCOMES = ["failure", "success", "invalid"];

// A dump's episodes from its packed JSON, failures first.
async function unpack(dump) {
  if (!dump.trajectories) {
    const bytes = Uint8Array.from(atob(dump.packed), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const rank = episode => OUTCOMES.indexOf(outcome(episode));
    dump.trajectories = (await new Response(stream).json()).sort((a, b) => rank(a) - rank(b));
  }
  return dump.trajectories;
}

function browser() {
  const choice = make("select", {"aria-label": "dump", onchange: () => go(+choice.value, 0, 0)},
    data.dumps.map((dump, i) => make("option", {value: i}, dump.label)));
  const filter = make("select", {"aria-label": "outcome", onchange: () => fill(filter.value)});
  const note = make("span", {class: "dim"});
  const list = make("nav", {class: "episodes", "aria-label": "episodes"});
  const view = make("article", {class: "view"});

  // The list of the dump's episodes, or of those with one outcome.
  function fill(wanted) {
    list.replaceChildren(...episodeList(data.dumps[place.dump].trajectories, wanted, i => go(place.dump, i, 0)));
    mark();
  }

  function mark() {
    list.querySelectorAll("button").forEach(button =>
      button.setAttribute("aria-current", +button.dataset.episode === place.episode));
  }

  async function go(dump, wantedEpisode, wantedTurn) {
    const {label, broken} = data.dumps[dump];
    const trajectories = await unpack(data.dumps[dump]), n = trajectories.length;
    const episode = within(wantedEpisode, n), turn = n ? within(wantedTurn, slides(trajectories[episode])) : 0;
    const isNew = dump !== place.dump;
    Object.assign(place, {dump, episode, turn});
    if (isNew) {
      choice.value = dump;
      note.textContent = broken ? `${broken} lines cannot be read` : "";
      const count = kind => trajectories.filter(one => outcome(one) === kind).length;
      filter.replaceChildren(make("option", {value: ""}, `all outcomes (${n})`),
        ...OUTCOMES.filter(count).map(kind => make("option", {value: kind}, `${kind} (${count(kind)})`)));
      fill("");
    }
    mark();
    view.replaceChildren(...(n ? episodeView(trajectories[episode], turn, t => go(place.dump, place.episode, t))
      : [make("p", {class: "dim"}, "Nothing here can be shown.")]));
    // The place survives a reload: the page is written again while the run goes on.
    history.replaceState(null, "", `#${label}/${episode}/${turn}`);
  }

  go(...placeFromAddress());
  return make("section", {id: "trajectories"}, make("h2", {}, "Trajectories"),
    make("div", {class: "choose"}, choice, filter, note),
    data.dumps_left_out ? make("p", {class: "dim"}, `${data.dumps_left_out} more dumps lie in the folder ` +
      `"trajectories" and are not in this page.`) : null,
    make("div", {class: "browser"}, list, view));
}

const within = (number, n) => Math.max(0, Math.min(parseInt(number) || 0, n - 1));

// Of a page without a place in its address: the evaluation at the end, or what is newest.
function placeFromAddress() {
  const [label, ...numbers] = location.hash.slice(1).split("/");
  const find = name => data.dumps.findIndex(item => item.label === name);
  if (find(label) >= 0) return [find(label), ...numbers];
  return [find("after_rl") >= 0 ? find("after_rl") : data.dumps.length - 1, 0, 0];
}

function episodeList(trajectories, wanted, choose) {
  const groups = new Map();
  trajectories.forEach((episode, i) => {
    if (wanted && outcome(episode) !== wanted) return;
    const key = episode.group === null ? episode.task.id : `group ${episode.group}`;
    groups.set(key, [...groups.get(key) || [], [episode, i]]);
  });
  return [...groups.values()].map(members => make("div", {class: "group"},
    make("div", {class: "task"}, members[0][0].task.id),
    make("div", {class: "instruction", title: members[0][0].task.instruction}, members[0][0].task.instruction),
    make("div", {class: "members"}, members.map(([episode, i]) => make("button", {
      class: outcome(episode), "data-episode": i, onclick: () => choose(i),
      title: `${outcome(episode)}, ${episode.stop}, reward ${short(episode.reward)}`,
    }, String(episode.member))))));
}

function episodeView(episode, turn, choose) {
  const fact = (name, value) => make("span", {}, make("span", {class: "dim"}, name), " ", value);
  const last = slides(episode) - 1;
  const step = (by, name, sign) => make("button", {"aria-label": name, title: name,
    disabled: turn + by < 0 || turn + by > last, onclick: () => choose(turn + by)}, sign);
  const tokens = episode.turns.reduce((sum, turn) => sum + turn.response_tokens, 0);
  return [
    make("h3", {class: "goal"}, episode.task.instruction),
    make("div", {class: "facts"}, make("span", {class: `badge ${outcome(episode)}`}, outcome(episode)),
      fact("stop", episode.stop), fact("reward", short(episode.reward)),
      known(episode.advantage) ? fact("advantage", short(episode.advantage)) : null,
      fact("turns", String(last)), fact("sampled tokens", short(tokens)), fact("time", seconds(episode.seconds))),
    block("error", episode.error, "bad"),
    make("div", {class: "steps"}, step(-1, "previous turn", "‹"),
      make("span", {class: "where"}, turn === last ? "end" : `turn ${turn + 1} of ${last}`),
      step(1, "next turn", "›")),
    turn === last ? ending(episode) : turnView(episode.turns[turn])].filter(Boolean);
}

// Only a content hash becomes part of an address.
function picture(image) {
  if (!/^[0-9a-f]{16}$/.test(image)) return null;
  const node = make("img", {class: "page", alt: "screenshot", src: `screenshots/${image}.png`});
  node.addEventListener("error", () =>
    node.replaceWith(make("span", {class: "page gone"}, `screenshots/${image}.png is not there: ` +
      "the folder screenshots/ belongs beside this page, and of old steps it was pruned")));
  return node;
}

// A screenshot with the calls' points, beside what was seen, thought, done and answered.
function beside(name, calls, ...words) {
  const image = picture(name);
  const shot = image && make("div", {class: "shot"}, image);
  // The marks are drawn in the picture's own pixels, so that circles stay round.
  if (image) {
    image.addEventListener("load", () =>
      shot.append(marks(calls, image.naturalWidth, image.naturalHeight)));
  }
  return make("div", {class: image ? "turn" : "turn wide"}, shot, make("div", {class: "words"}, ...words));
}

function turnView(turn) {
  const {thought, calls, error} = turn.parsed;
  const argument = ([name, value]) => make("span", {class: "argument"},
    make("span", {class: "dim"}, `${name} `), JSON.stringify(value),
    make("span", {class: "dim"}, isPoint(value) ? " of 1000" : ""));
  const numbers = [`prompt ${short(turn.prompt_tokens)} tokens, response ${short(turn.response_tokens)} tokens` +
    (turn.finish === "length" ? " (cut off)" : ""),
  ...Object.entries(turn.seconds).map(([name, value]) => `${name} ${seconds(value)}`)];
  return beside(turn.images.at(-1), calls,
    turn.url ? make("div", {class: "url mono"}, turn.url) : null,
    block("observation", turn.observation || turn.page_text), block("reasoning", thought, "thought"),
    calls.length ? make("div", {class: "block"}, make("h4", {}, "calls"), make("ol", {class: "calls"},
      calls.map(call => make("li", {}, make("b", {}, call.name), Object.entries(call.arguments).map(argument)))))
      : null,
    block("not understood", error, "bad"), block("feedback", turn.feedback.join("\n")),
    block("response as sampled", turn.text), make("p", {class: "dim small"}, numbers.join(" · ")));
}

function ending(episode) {
  const text = record => Object.keys(record).length ? JSON.stringify(record, null, 1) : "";
  const rows = episode.compared.map(([name, expected, found, right]) =>
    make("tr", {class: right ? "" : "wrong"}, [name, expected, found, right ? "" : "≠"].map(cell => make("td", {}, cell))));
  const table = rows.length ? make("table", {class: "compared"},
    make("tr", {}, ["", "expected", "found", ""].map(title => make("th", {}, title))), rows) : null;
  return beside(episode.final_image, [], block("answer", episode.answer), table,
    rows.length ? null : block("expected", text(episode.task.goal)),
    block(rows.length ? "whole state" : "found", text(episode.final_state)),
    block("verdict", episode.verdict && episode.verdict.rationale));
}

function block(name, text, kind = "") {
  return text ? make("div", {class: `block ${kind}`}, make("h4", {}, name), make("pre", {}, text)) : null;
}

const isPoint = value => Array.isArray(value) && value.length === 2 && value.every(known);

// The points of a call, 0-1000 in both axes: one for a click, two for a drag, the start first.
function points(call) {
  const found = Object.entries(call.arguments).filter(([, value]) => isPoint(value));
  found.sort((a, b) => b[0].startsWith("start") - a[0].startsWith("start"));
  return found.map(([, value]) => value).slice(0, 2);
}

function marks(calls, width, height) {
  const radius = 0.022 * Math.max(width, height);
  const placed = calls.map(call => points(call).map(([x, y]) => [x * width / 1000, y * height / 1000]));
  const numbered = placed.filter(found => found.length).length > 1;
  const mark = (tag, kind, shape) => make(tag, {class: `mark ${kind}`, "stroke-width": radius / 4, ...shape});
  return make("svg", {class: "marks", viewBox: `0 0 ${width} ${height}`}, placed.flatMap((found, i) => {
    if (!found.length) return [];
    const [[cx, cy], end] = found;
    return [end ? mark("path", "drag", {d: arrow([cx, cy], end, radius)}) : "",
      mark("circle", "", {cx, cy, r: radius}),
      numbered ? make("text", {class: "number", x: cx + 1.2 * radius, y: cy - 1.1 * radius,
        "font-size": 1.7 * radius, "stroke-width": radius / 3}, String(i + 1)) : ""];
  }));
}

function arrow([x0, y0], [x1, y1], size) {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [dx, dy] = [(x1 - x0) / length * size, (y1 - y0) / length * size];
  return `M${x0 + dx} ${y0 + dy}L${x1} ${y1}l${-1.4 * dx - 0.8 * dy} ${-1.4 * dy + 0.8 * dx}M${x1} ${y1}` +
    `l${-1.4 * dx + 0.8 * dy} ${-1.4 * dy - 0.8 * dx}`;
}
