// A site as people know them: lists with filters, item pages, forms, menus. One function makes one widget:
// its node, and `update`, which shows the state in it. A page is built once when it is entered, so that what
// has the focus, or is being dragged or scrolled, stays where it is when the state changes.
//
// What the machine does not know, an open menu or the month that a calendar shows, lives in the nodes.

let shown = null; // the page that was built last: {id, widgets}

function label(action, text = action.label) {
  return element("span", "label", text);
}

function take(action, value) {
  dispatch(action.id, given(action, value));
}

function can(action, value) {
  return enabled(action, given(action, value));
}

// What the action's effect has written: the value that a choice, a slider or a field shows.
function written(action) {
  const effect = action.effects.find((one) => one.ref !== null || one.op === "toggle");
  return effect === undefined ? null : read(state.signature, effect.path) ?? null;
}

function control(tag, id, className) {
  const made = element(tag, className);
  if (tag === "button") made.type = "button";
  made.id = id;
  return made;
}

// --- widgets ----------------------------------------------------------------------------------------

function button(action) {
  const node = control("button", action.element, action.is_quiet ? "button quiet" : "button");
  node.append(label(action));
  node.addEventListener("click", () => take(action));
  return { node, update: () => { node.disabled = !can(action); } };
}

function banner(action) {
  const node = element("div", world.consent === "modal" ? "banner modal" : "banner");
  const accept = control("button", action.element, "button");
  accept.append(label(action));
  accept.addEventListener("click", () => take(action));
  node.append(element("p", "", "May this site remember that you were here?"), accept);
  return { node, update: () => { node.hidden = !can(action); } };
}

function checkbox(action) {
  const node = element("label", "check");
  const box = control("input", action.element, "");
  box.type = "checkbox";
  node.append(box, label(action));
  box.addEventListener("click", (event) => { event.preventDefault(); });
  box.addEventListener("click", () => setTimeout(() => take(action)));
  const isOn = () => action.effects.some((one) => one.op === "toggle")
    ? written(action) === true
    : action.effects.some((one) => one.op === "set" && same(read(state.signature, one.path) ?? null, one.value));
  return { node, update: () => { box.checked = isOn(); box.disabled = !can(action); } };
}

// A button that opens a list, of which one is chosen. `entries`: what it offers, [text, run, isOn] each.
function popup(id, text, entries, opensUnderPointer) {
  const node = element("div", "popup");
  const opener = control("button", id, "opener");
  const list = element("div", "options");
  list.id = id + "-options";
  list.hidden = true;
  opener.append(element("span", "label", text), element("span", "value", ""));
  node.append(opener, list);
  opener.addEventListener("click", () => {
    const opens = opensUnderPointer || list.hidden;
    for (const other of document.querySelectorAll(".options")) other.hidden = true;
    list.hidden = !opens;
  });
  if (opensUnderPointer) {
    opener.addEventListener("mouseenter", () => { list.hidden = false; });
    node.addEventListener("mouseleave", () => { list.hidden = true; });
  }
  for (const entry of entries) {
    entry.node.addEventListener("click", () => { list.hidden = true; entry.run(); });
    list.append(entry.node);
  }
  return { node, opener, list };
}

function choice(action) {
  const entries = action.bind.values.map((value, index) => {
    const node = element("button", "option", sayValue(value));
    node.type = "button";
    node.dataset.index = String(index);
    return { node, value, run: () => take(action, value) };
  });
  const { node, opener } = popup(action.element, action.label, entries, false);
  const update = () => {
    const value = written(action);
    opener.lastChild.textContent = value === null ? "any" : sayValue(value);
    for (const entry of entries) {
      entry.node.disabled = !can(action, entry.value);
      entry.node.setAttribute("aria-selected", String(same(entry.value, value)));
    }
  };
  return { node, update };
}

// "price:desc" -> "price, highest first"
function sayValue(value) {
  const [name, direction] = String(value).split(":");
  if (direction === "asc") return name + ", lowest first";
  return direction === "desc" ? name + ", highest first" : name;
}

// Menus that actions share: one opener, an entry for each, and entries that do nothing.
function menu(actions) {
  const entries = actions.map((action) => {
    const node = control("button", action.item, "option");
    node.classList.add(action.item);
    node.append(label(action));
    return { node, action, run: () => take(action) };
  });
  const known = new Set(actions.map((action) => action.item));
  for (const option of actions[0].options.filter((one) => !known.has(one.item))) {
    const node = control("button", option.item, "option");
    node.classList.add(option.item);
    node.append(element("span", "label", option.text));
    entries.push({ node, action: null, run: () => {} });
  }
  const isHover = actions[0].kind === "hover";
  const { node } = popup(actions[0].element, isHover ? "Explore" : "Menu", entries, isHover);
  const update = () => {
    for (const entry of entries) if (entry.action !== null) entry.node.disabled = !can(entry.action);
  };
  return { node, update };
}

function textBox(action, className) {
  const node = element("label", className);
  const box = control("input", action.element, "");
  box.type = "text";
  box.autocomplete = "off";
  node.append(label(action), box);
  return { node, box };
}

function field(action) {
  const { node, box } = textBox(action, "field");
  box.addEventListener("input", () => { if (box.value !== "") take(action, box.value); });
  const update = () => {
    const value = written(action);
    if (document.activeElement !== box) box.value = typeof value === "string" ? value : "";
    box.disabled = !can(action, "x");
  };
  box.addEventListener("blur", update);
  return { node, update };
}

// The first record whose title holds what was typed.
function search(action) {
  const { node, box } = textBox(action, "field search");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const wanted = box.value.trim().toLowerCase();
    const records = action.bind === null ? [] : boundRecords(action.bind);
    const hit = records.find((record) => wanted !== "" && record.title.toLowerCase().includes(wanted));
    if (hit !== undefined) take(action, hit.id);
    node.classList.toggle("missed", hit === undefined);
  });
  return { node, update: () => {} };
}

function slider(action) {
  const node = element("label", "field");
  const range = control("input", action.element, "");
  const values = action.bind === null ? [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10] : action.bind.values;
  // all the way to the left is no value yet, and none again
  Object.assign(range, { type: "range", min: "0", max: String(values.length), step: "1", value: "0" });
  const chosen = () => values[Number(range.value) - 1];
  const value = element("span", "value", "");
  const head = element("span", "head");
  head.append(label(action), value);
  node.append(head, range);
  const update = () => {
    const at = values.findIndex((one) => same(one, written(action)));
    if (action.bind !== null) range.value = String(at + 1);
    value.textContent = at < 0 ? "any" : String(values[at]);
    range.disabled = !can(action, values[0]);
  };
  range.addEventListener("input", () => { value.textContent = String(chosen() ?? "any"); });
  range.addEventListener("change", () => chosen() === undefined ? update() : take(action, chosen()));
  return { node, update };
}

function date(action) {
  const node = element("div", "popup date");
  const opener = control("button", action.element, "opener");
  const panel = element("div", "options panel");
  panel.id = action.element + "-panel";
  panel.hidden = true;
  opener.append(label(action), element("span", "value", ""));
  node.append(opener, panel);
  // without a binding: the one day that the file names
  const number = (name) => String(action.parameters[name] ?? 1).padStart(2, "0");
  const only = () => [`${action.parameters.year ?? 2026}-${number("month")}-${number("day")}`];
  const days = action.bind === null ? only() : action.bind.values;
  const months = [...new Set(days.map((day) => day.slice(0, 7)))];
  const buttons = (className, values, run) => values.map((value) => {
    const made = element("button", className, className === "day" ? String(Number(value.slice(8))) : value);
    made.type = "button";
    made.dataset.value = value;
    made.addEventListener("click", () => run(value));
    return made;
  });
  const turn = (month) => {
    const head = element("div", "months");
    head.append(...buttons("month", months, turn));
    const grid = element("div", "days");
    const run = (day) => { panel.hidden = true; take(action, day); };
    grid.append(...buttons("day", days.filter((day) => day.startsWith(month)), run));
    for (const one of head.children) one.setAttribute("aria-selected", String(one.dataset.value === month));
    panel.replaceChildren(head, grid);
  };
  opener.addEventListener("click", () => {
    const opens = panel.hidden;
    for (const other of document.querySelectorAll(".options")) other.hidden = true;
    panel.hidden = !opens;
    turn((written(action) || days[0]).slice(0, 7));
  });
  const update = () => {
    opener.lastChild.textContent = written(action) ?? "choose";
    opener.disabled = !can(action, days[0]);
  };
  return { node, update };
}

// A list of records with all actions that open one of them, the first possible one counting, and with the
// action, if there is one, that notes which row a scrolled list begins with.
function list(id, opens, scrolls) {
  const node = element("div", "list");
  node.id = id;
  const rows = new Map();
  const bind = (opens[0] ?? scrolls[0]).bind;
  const open = (record) => {
    const action = opens.find((one) => can(one, record.id));
    if (action !== undefined) take(action, record.id);
  };
  for (const record of bind === null ? [] : world.data[bind.collection]) {
    const row = element("button", "row data-id-" + record.id);
    row.type = "button";
    if (record.shape) row.append(drawing(record.shape, record.fill));
    const words = element("span", "words");
    words.append(element("span", "title", record.title), element("span", "facts", factsOf(record)));
    row.append(words);
    row.addEventListener("click", () => open(record));
    rows.set(record.id, row);
  }
  let still = 0; // where the list was left when its rows changed, which is nobody's scrolling
  for (const action of scrolls) {
    node.classList.add("scrolls");
    node.addEventListener("scroll", () => {
      if (node.scrollTop === still) return;
      still = -1;
      const top = node.getBoundingClientRect().top + node.clientTop;
      const first = [...node.children].find((row) => row.getBoundingClientRect().top >= top - 1);
      const id = first && [...rows].find(([, row]) => row === first)[0];
      if (id !== undefined && id !== written(action) && can(action, id)) take(action, id);
    });
  }
  const update = () => {
    const records = bind === null ? [] : boundRecords(bind);
    const wanted = records.map((record) => rows.get(record.id));
    if (wanted.length !== node.children.length || wanted.some((row, i) => row !== node.children[i])) {
      node.replaceChildren(...wanted);
      still = node.scrollTop;
    }
    for (const record of records) {
      const possible = opens.filter((one) => can(one, record.id));
      const row = rows.get(record.id);
      row.className = ["row", "data-id-" + record.id, ...possible.map((one) => one.item)].join(" ");
      row.setAttribute("aria-disabled", String(possible.length === 0));
    }
  };
  return { node, update };
}

function factsOf(record) {
  return Object.entries(world.facts[record.collection] ?? {})
    .map(([name, unit]) => typeof record[name] === "boolean"
      ? (record[name] ? name : "not " + name)
      : unit.replace("{}", String(record[name])))
    .join(" \u00b7 ");
}

// --- the page -----------------------------------------------------------------------------------------

// The items that the page knows of, by the ids in its signature.
function cards() {
  const node = element("div", "cards");
  const update = () => {
    const ids = Object.entries(state.signature).filter(([name, id]) => name.startsWith("selected_") && id);
    const records = Object.values(world.data).flat();
    const found = ids.map(([, id]) => records.find((record) => record.id === id)).filter((one) => one);
    node.replaceChildren(...found.map((record) => {
      const card = element("section", "card");
      if (record.shape) card.append(drawing(record.shape, record.fill));
      const words = element("div", "words");
      words.append(element("h2", "", record.title), element("p", "facts", factsOf(record)));
      card.append(words);
      return card;
    }));
  };
  return { node, update };
}

// What a review shows: everything that has been filled in.
function summary() {
  const node = element("dl", "summary");
  const update = () => {
    const filled = Object.entries(state.signature)
      .filter(([name, value]) => !/^(selected|matched)_|_(id|applied|searched|order|kind)$/.test(name) &&
        value !== null && value !== "" && value !== false && typeof value !== "object");
    node.replaceChildren(...filled.flatMap(([name, value]) => [
      element("dt", "", name.replace(/_\d+$/, "").replaceAll("_", " ")),
      element("dd", "", value === true ? "yes" : String(value)),
    ]));
    node.hidden = filled.length === 0;
  };
  return { node, update };
}

// The first page's face: what the site is called, what it has, and a few of those things' pictures.
function hero() {
  const node = element("section", "hero");
  const strip = element("div", "strip");
  for (const records of Object.values(world.data)) {
    for (const record of records.slice(0, 5)) if (record.shape) strip.append(drawing(record.shape, record.fill));
  }
  node.append(element("p", "big", world.brand), element("p", "facts", Object.keys(world.data).join(" \u00b7 ")), strip);
  return { node, update: () => {} };
}

const ENTRIES = ["choice", "slider", "checkbox", "search", "date", "field"];
const MAKERS = { button, banner, checkbox, choice, field, search, slider, date };

function build(page) {
  const widgets = [];
  const regions = Object.fromEntries(["top", "side", "main", "foot"].map((name) => [name, element("div", name)]));
  const put = (region, widget) => { widgets.push(widget); regions[region].append(widget.node); };
  const actions = page.actions;
  const hasList = actions.some((action) => action.kind === "row" || action.kind === "scroll");
  put("main", page.is_first ? hero() : cards());
  const done = new Set();
  for (const action of actions) {
    if (done.has(action)) continue;
    const alike = actions.filter((one) => one.element === action.element && !done.has(one));
    if (action.kind === "row" || action.kind === "scroll") {
      const rows = alike.filter((one) => one.kind === "row");
      const scrolls = alike.filter((one) => one.kind === "scroll");
      put("main", list(action.element, rows, scrolls));
      for (const one of [...rows, ...scrolls]) done.add(one);
    } else if (action.kind === "menu" || action.kind === "hover") {
      const shared = alike.filter((one) => one.kind === action.kind);
      put(page.is_first ? "main" : "side", menu(shared));
      for (const one of shared) done.add(one);
    } else {
      const region = action.kind === "banner" ? "top" : ENTRIES.includes(action.kind) ? (hasList ? "side" : "main")
        : page.is_first && action.is_navigation ? "main" : "foot";
      put(region, MAKERS[action.kind](action));
      done.add(action);
    }
  }
  if (!hasList && !page.is_first && !actions.some((action) => ENTRIES.includes(action.kind))) put("main", summary());
  const header = element("header", "");
  header.append(element("span", "brand", world.brand), element("h1", "", page.is_first ? "Welcome" : page.title));
  if (page.message !== null) {
    const message = element("section", "done");
    message.append(drawing("tick", world.style.accent), element("p", "", page.message));
    regions.main.prepend(message);
  }
  const middle = element("div", "middle filters-" + world.layout);
  if (regions.side.children.length > 0) middle.append(regions.side);
  middle.append(regions.main);
  regions.main.classList.toggle("first", page.is_first);
  regions.foot.hidden = regions.foot.children.length === 0;
  document.title = page.title;
  document.body.replaceChildren(header, middle, regions.foot, regions.top);
  return widgets;
}

function draw() {
  if (shown === null || shown.page !== state.page) {
    shown = { page: state.page, widgets: build(world.pages[state.page]) };
  }
  for (const widget of shown.widgets) widget.update();
}

draw();
