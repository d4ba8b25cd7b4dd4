// The trajectory browser: a dump, one of its episodes, one of its turns. Loaded before report.js, whose
// tools (`make`, `short`, ...) it uses when it is called.
"use strict";

const place = {dump: 0, episode: 0, turn: 0};

function browser() {
  const section = make("section", {id: "trajectories"}, make("h2", {}, "Trajectories"));
  const choice = make("select", {"aria-label": "dump", onchange: () => go(+choice.value, 0, 0)},
    data.dumps.map((dump, i) => make("option", {value: i}, dump.label)));
  const note = make("span", {class: "dim"});
  const list = make("nav", {class: "episodes", "aria-label": "episodes"});
  const view = make("article", {class: "view"});
  const left = data.dumps_left_out ? make("p", {class: "dim"},
    `${data.dumps_left_out} more dumps lie in the folder "trajectories" and are not in this page.`) : null;
  section.append(make("div", {class: "choose"}, choice, note), left || "",
    make("div", {class: "browser"}, list, view));

  function go(dump, episode, turn) {
    const newDump = dump !== place.dump || !list.hasChildNodes();
    Object.assign(place, {dump, episode, turn});
    choice.value = dump;
    const {label, trajectories} = data.dumps[dump];
    if (newDump) {
      note.textContent = dumpNote(data.dumps[dump]);
      list.replaceChildren(...episodeList(trajectories, i => go(place.dump, i, 0)));
    }
    list.querySelectorAll("button").forEach(button =>
      button.setAttribute("aria-current", +button.dataset.episode === episode));
    view.replaceChildren(...(trajectories.length
      ? episodeView(trajectories[episode], turn, t => go(place.dump, place.episode, t))
      : [make("p", {class: "dim"}, "Nothing here can be shown.")]));
    // The place survives a reload: the page is written again while the run goes on.
    history.replaceState(null, "", `#${label}/${episode}/${turn}`);
  }

  document.addEventListener("keydown", event => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    const meant = !event.ctrlKey && !event.metaKey && !event.altKey && event.target.tagName !== "SELECT";
    if (!by || !meant) return;
    const shown = data.dumps[place.dump].trajectories[place.episode];
    const turn = place.turn + by;
    if (shown && turn >= 0 && turn < slides(shown)) {
      event.preventDefault();
      go(place.dump, place.episode, turn);
    }
  });
  go(...placeFromAddress());
  return section;
}

function placeFromAddress() {
  const [label, episode, turn] = location.hash.slice(1).split("/");
  const dump = data.dumps.findIndex(item => item.label === label);
  if (dump < 0) return [data.dumps.length - 1, 0, 0];
  const shown = data.dumps[dump].trajectories;
  const e = Math.min(Math.max(0, parseInt(episode) || 0), Math.max(0, shown.length - 1));
  const last = shown.length ? slides(shown[e]) - 1 : 0;
  return [dump, e, Math.min(Math.max(0, parseInt(turn) || 0), last)];
}

function dumpNote(dump) {
  const shown = dump.trajectories.length;
  const words = [shown === dump.total ? `${shown} episodes` : `the first ${shown} of ${dump.total} episodes`];
  if (dump.broken) words.push(`${dump.broken} lines cannot be read`);
  return words.join(", ");
}

// The turns, and the state in which the episode ended.
const slides = episode => episode.turns.length + 1;
const outcome = episode => !episode.valid ? "invalid" : episode.success ? "success" : "failure";

function episodeList(trajectories, choose) {
  const groups = new Map();
  trajectories.forEach((episode, i) => {
    const key = episode.group === null ? episode.task : `group ${episode.group}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push([episode, i]);
  });
  return [...groups.values()].map(members => make("div", {class: "group"},
    make("div", {class: "task", title: members[0][0].instruction}, members[0][0].task),
    make("div", {class: "instruction"}, members[0][0].instruction),
    make("div", {class: "members"}, members.map(([episode, i]) => make("button", {
      class: outcome(episode), "data-episode": i, onclick: () => choose(i),
      title: `member ${episode.member}: ${outcome(episode)}, ${episode.stop}, ` +
        `reward ${short(episode.reward)}`,
    }, String(episode.member))))));
}

function episodeView(episode, turn, choose) {
  const fact = (name, value) => make("span", {class: "fact"}, make("span", {class: "dim"}, name), " ", value);
  const facts = [
    make("span", {class: `badge ${outcome(episode)}`}, outcome(episode)),
    fact("stop", episode.stop), fact("reward", short(episode.reward)),
    known(episode.advantage) ? fact("advantage", short(episode.advantage)) : null,
    fact("turns", String(episode.turns.length)), fact("sampled tokens", short(episode.response_tokens)),
    fact("time", duration(episode.seconds))];
  const last = slides(episode) - 1;
  const step = (by, name, sign) => make("button", {"aria-label": name, title: name,
    disabled: turn + by < 0 || turn + by > last, onclick: () => choose(turn + by)}, sign);
  const where = turn === last ? "end" : `turn ${turn + 1} of ${last}`;
  return [
    make("h3", {class: "goal"}, episode.instruction),
    make("div", {class: "facts"}, facts),
    block("error", episode.error, "bad"),
    make("div", {class: "steps"}, step(-1, "previous turn", "‹"), make("span", {class: "where"}, where),
      step(1, "next turn", "›"), filmstrip(episode, turn, choose)),
    turn === last ? ending(episode) : turnView(episode.turns[turn])].filter(Boolean);
}

function filmstrip(episode, turn, choose) {
  const images = episode.turns.map(item => item.image).concat(episode.final_image);
  return make("div", {class: "film"}, images.map((image, i) => make("button", {
    "aria-current": i === turn, title: i === images.length - 1 ? "end" : `turn ${i + 1}`,
    onclick: () => choose(i)}, picture(image, "thumb") || "", make("span", {},
    i === images.length - 1 ? "end" : String(i + 1)))));
}

// Only a content hash becomes part of an address.
function picture(image, kind) {
  if (!/^[0-9a-f]{16}$/.test(image)) return null;
  const node = make("img", {class: kind, alt: "screenshot", src: `screenshots/${image}.png`});
  node.addEventListener("error", () =>
    node.replaceWith(make("span", {class: `${kind} gone`}, "screenshot removed")));
  return node;
}

function turnView(turn) {
  const shot = make("div", {class: "shot"});
  const image = picture(turn.image, "page");
  if (image) {
    shot.append(image);
    // The marks are drawn in the picture's own pixels, so that circles stay round.
    image.addEventListener("load", () =>
      shot.append(marks(turn.calls, image.naturalWidth, image.naturalHeight)));
  }
  const tokens = `prompt ${short(turn.prompt_tokens)} tokens, ` +
    `response ${short(turn.response_tokens)} tokens` + (turn.finish === "length" ? " (cut off)" : "");
  const seconds = Object.entries(turn.seconds).map(([name, value]) => `${name} ${duration(value)}`);
  return make("div", {class: image ? "turn" : "turn wide"}, image ? shot : null, make("div", {class: "words"},
    turn.url ? make("div", {class: "url mono"}, turn.url) : null,
    block("observation", turn.observation), block("reasoning", turn.thought, "thought"),
    turn.calls.length ? make("div", {class: "block"}, make("h4", {}, "calls"), make("ol", {class: "calls"},
      turn.calls.map(call => make("li", {}, callText(call))))) : null,
    block("not understood", turn.error, "bad"), block("feedback", turn.feedback.join("\n")),
    block("response as sampled", turn.text),
    make("p", {class: "dim small"}, [tokens, ...seconds].join(" · "))));
}

function ending(episode) {
  const image = picture(episode.final_image, "page");
  return make("div", {class: image ? "turn" : "turn wide"},
    image ? make("div", {class: "shot"}, image) : null,
    make("div", {class: "words"}, block("answer", episode.answer),
      block("state that was judged", episode.final_state === "{}" ? "" : episode.final_state),
      make("p", {class: "dim small"}, `The episode ended with ${episode.stop}.`)));
}

function block(name, text, kind = "") {
  return text ? make("div", {class: `block ${kind}`}, make("h4", {}, name), make("pre", {}, text)) : null;
}

function callText(call) {
  const shown = Object.entries(call.arguments).map(([name, value]) =>
    make("span", {class: "argument"}, make("span", {class: "dim"}, `${name} `), JSON.stringify(value)));
  return [make("b", {}, call.name), ...shown];
}

// ---- Marks -------------------------------------------------------------------------------------

// The points of a call, 0-1000 in both axes: one for a click, two for a drag, the start first.
function points(call) {
  const isPoint = value => Array.isArray(value) && value.length === 2 && value.every(known);
  const found = Object.entries(call.arguments).filter(([, value]) => isPoint(value));
  found.sort((a, b) => b[0].startsWith("start") - a[0].startsWith("start"));
  return found.map(([, value]) => value).slice(0, 2);
}

function marks(calls, width, height) {
  const svg = make("svg", {class: "marks", viewBox: `0 0 ${width} ${height}`});
  const radius = 0.022 * Math.max(width, height);
  const placed = calls.map(points);
  const numbered = placed.filter(found => found.length).length > 1;
  placed.forEach((found, i) => {
    const at = found.map(([x, y]) => [x * width / 1000, y * height / 1000]);
    if (at.length === 2) svg.append(arrow(at[0], at[1], radius));
    at.slice(0, 1).forEach(([x, y]) => svg.append(
      make("circle", {class: "halo", cx: x, cy: y, r: radius, "stroke-width": radius / 2.2}),
      make("circle", {class: "mark", cx: x, cy: y, r: radius, "stroke-width": radius / 4})));
    if (at.length && numbered) {
      svg.append(make("text", {class: "number", x: at[0][0] + 1.2 * radius, y: at[0][1] - 1.1 * radius,
        "font-size": 1.7 * radius, "stroke-width": radius / 3}, String(i + 1)));
    }
  });
  return svg;
}

function arrow([x0, y0], [x1, y1], size) {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const [dx, dy] = [(x1 - x0) / length * size, (y1 - y0) / length * size];
  const head = `M${x1} ${y1}l${-1.4 * dx - 0.8 * dy} ${-1.4 * dy + 0.8 * dx}M${x1} ${y1}` +
    `l${-1.4 * dx + 0.8 * dy} ${-1.4 * dy - 0.8 * dx}`;
  const path = `M${x0 + dx} ${y0 + dy}L${x1} ${y1}${head}`;
  return make("g", {}, make("path", {class: "halo", d: path, "stroke-width": size / 2.2}),
    make("path", {class: "mark drag", d: path, "stroke-width": size / 4}));
}
