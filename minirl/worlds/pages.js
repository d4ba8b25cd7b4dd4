// A site as people know them: a head with links, lists with filters, item pages, forms, a foot. `world.plan`, which
// the skin decides, says what stands where; the skin's style sheet does the rest. A page is built once when it is
// entered, so that what has the focus, or is being dragged or scrolled, stays where it is when the state changes.
//
// What leads nowhere in the machine, a link in the foot, opens a note and changes no state.

let shown = null; // the page that was built last: {page, widgets}

function nodeOf(tag, className, ...children) {
  const made = element(tag, className);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

// --- a record's parts -----------------------------------------------------------------------------------

function partsOf(record) {
  const facts = Object.entries(world.facts[record.collection] ?? {}).filter(([name]) => record[name] != null);
  const said = (name, unit) => { // without the name that some begin with, which stands beside it
    const text = unit.replace("{}", String(record[name]));
    return text.startsWith(name + " ") ? text.slice(name.length + 1) : text;
  };
  const isNumber = ([name]) => typeof record[name] === "number";
  const isFlag = ([name]) => typeof record[name] === "boolean";
  return {
    numbers: facts.filter(isNumber).map(([name, unit]) => [name, said(name, unit)]),
    flags: facts.filter(isFlag).map(([name]) => [name, record[name]]),
    words: facts.filter((fact) => !isNumber(fact) && !isFlag(fact)).map(([name, unit]) => [name, said(name, unit)]),
  };
}

const flag = ([name, isOn]) => isOn ? element("b", "flag on", name) : element("s", "flag off", name);
const words = (parts) => parts.words.map(([, text]) => element("em", "kind", text));
const number = ([name, text]) => nodeOf("span", "number", text.includes(name) ? null : element("small", "", name + " "),
  element("strong", "", text));
const titleOf = (record) => Object.assign(element("a", "title", record.title), { href: "#" });
const by = (record) => record.by ? nodeOf("cite", "by", record.by, ", ", element("i", "", record.place)) : null;
const when = (record) => record.date ? Object.assign(element("time", "", record.date), { dateTime: record.date }) : null;

// How each skin draws one record of a list; [tag of the list, tag of the record, its children].
const ITEMS = {
  table: ["tbody", "tr", (r, p) => [
    nodeOf("td", "picture", scene(r)), nodeOf("td", "", titleOf(r)),
    ...p.words.map(([, text]) => element("td", "", text)),
    ...p.numbers.map(([, text]) => element("td", "number", text)),
    ...p.flags.map(([, isOn]) => element("td", isOn ? "flag on" : "flag off", isOn ? "yes" : "no"))]],
  feed: ["div", "article", (r, p) => [
    nodeOf("header", "", face(r.by ?? r.title), nodeOf("div", "", nodeOf("h3", "", titleOf(r)), by(r), when(r))),
    r.text ? element("p", "text", r.text) : null, scene(r),
    nodeOf("p", "numbers", ...words(p), ...p.numbers.map(number), ...p.flags.map(flag))]],
  magazine: ["div", "article", (r, p) => [
    scene(r), nodeOf("p", "kicker", ...words(p)), nodeOf("h3", "", titleOf(r)),
    r.text ? element("p", "text", r.text) : null,
    nodeOf("p", "numbers", ...p.numbers.map(number), ...p.flags.map(flag)), by(r)]],
  portal: ["div", "section", (r, p) => [
    nodeOf("h3", "", titleOf(r), " ", ...words(p)), scene(r),
    nodeOf("dl", "", ...p.numbers.flatMap(([name, text]) => [element("dt", "", name), element("dd", "", text)]),
      ...p.flags.flatMap(([name, isOn]) => [element("dt", "", name), element("dd", "", isOn ? "yes" : "no")]))]],
};

function itemOf(record) {
  const [, tag, children] = ITEMS[world.plan.skin];
  return nodeOf(tag, "row data-id-" + record.id, ...children(record, partsOf(record)).filter((one) => one !== null));
}

// --- lists ----------------------------------------------------------------------------------------------

// A list's box and the node that its rows stand in; a table's head is told by its first record.
function frameOf(records) {
  const [tag] = ITEMS[world.plan.skin];
  const body = element(tag, "rows");
  if (tag !== "tbody" || records.length === 0) return { frame: body, body };
  const { words: kinds, numbers: amounts, flags } = partsOf(records[0]);
  const heads = (facts, className) => facts.map(([name]) => element("th", className, name));
  const head = nodeOf("thead", "", nodeOf("tr", "", element("th", "", ""), element("th", "", "name"), ...heads(kinds, ""),
    ...heads(amounts, "number"), ...heads(flags, "")));
  return { frame: nodeOf("table", "", nodeOf("caption", "", records[0].collection), head, body), body };
}

// A list of records with all actions that open one of them, the first possible one counting, and with the
// action, if there is one, that notes which row a scrolled list begins with. A long list is shown page by page, as
// far as "more" was asked for, or as far as the window was scrolled ("endless"), and from its beginning again as
// soon as anything changes.
function list(id, opens, scrolls) {
  const bind = (opens[0] ?? scrolls[0]).bind;
  const all = bind === null ? [] : world.data[bind.collection];
  const { frame, body } = frameOf(all);
  const node = nodeOf("div", "list", frame), rows = new Map(), count = element("p", "count", "");
  node.id = id;
  const open = (record) => {
    const action = opens.find((one) => can(one, record.id));
    if (action !== undefined) take(action, record.id);
  };
  for (const record of all) {
    const row = itemOf({ ...record, collection: bind.collection });
    row.addEventListener("click", (event) => { event.preventDefault(); open(record); });
    rows.set(record.id, row);
  }
  let still = 0; // where the list was left when its rows changed, which is nobody's scrolling
  for (const action of scrolls) {
    node.classList.add("scrolls");
    node.addEventListener("scroll", () => {
      if (node.scrollTop === still) return;
      still = -1;
      const top = node.getBoundingClientRect().top + node.clientTop;
      const first = [...body.children].find((row) => row.getBoundingClientRect().top >= top - 1);
      const id = first && [...rows].find(([, row]) => row === first)[0];
      if (id !== undefined && id !== written(action) && can(action, id)) take(action, id);
    });
  }
  const { size, kind } = scrolls.length > 0 || world.paging.kind === "all" ? { size: Infinity } : world.paging;
  const pager = element("nav", "pager");
  if (kind === "endless") pager.append(press(`${id}-end`, "page", "Back to the top", () => scrollTo(0, 0)));
  let grow = () => {}; // shows more while the list's end is in the window
  const scrolled = () => node.isConnected ? grow() : removeEventListener("scroll", scrolled);
  if (kind === "endless") addEventListener("scroll", scrolled);
  const show = (records, page) => {
    const pages = Math.ceil(records.length / size);
    const seen = records.slice(kind === "pages" ? page * size : 0, (page + 1) * size);
    const wanted = seen.map((record) => rows.get(record.id));
    if (wanted.length !== body.children.length || wanted.some((row, i) => row !== body.children[i])) {
      body.replaceChildren(...wanted);
      still = node.scrollTop;
    }
    count.textContent = `${records.length} of ${all.length} ${bind === null ? "" : bind.collection}`;
    const turn = (name, text, to) =>
      Object.assign(press(`${id}-${name}`, "page", text, () => show(records, to)), { disabled: to === page });
    if (kind === "more") pager.replaceChildren(...(page + 1 < pages ? [turn("more", "Show more", page + 1)] : []));
    if (kind === "pages") {
      pager.replaceChildren(...[...Array(pages).keys()].map((to) => turn(`page-${to}`, String(to + 1), to)));
    }
    pager.hidden = pages < 2;
    if (kind !== "endless") return;
    grow = () => {
      if (pager.getBoundingClientRect().top < innerHeight && page + 1 < pages) show(records, page + 1);
    };
    grow();
  };
  const update = () => {
    const records = bind === null ? [] : boundRecords(bind);
    show(records, 0);
    for (const record of records) {
      const possible = opens.filter((one) => can(one, record.id));
      const row = rows.get(record.id);
      row.className = ["row", "data-id-" + record.id, ...possible.map((one) => one.item)].join(" ");
      row.setAttribute("aria-disabled", String(possible.length === 0));
    }
  };
  return { node: nodeOf("section", "listing", count, node, pager), update };
}

// --- blocks of a page -----------------------------------------------------------------------------------

// A node whose children are made anew only when what they show has changed.
function showing(node, find, make) {
  let last = "[]";
  const update = () => {
    const found = find();
    if (JSON.stringify(found) === last) return;
    last = JSON.stringify(found);
    node.replaceChildren(...found.flatMap(make));
  };
  return { node, update };
}

// What the session has noted beside an item: the pieces in a cart, the day of a booking.
function notes(path) {
  const noted = path.length > 1 ? read(state.signature, path.slice(0, -1)) : null;
  return Object.entries(noted ?? {}).filter(([name, value]) => name !== "item" && value !== null && value !== false);
}

const said = ([name, value]) => [element("dt", "", name.replace(/_\d+$/, "").replaceAll("_", " ")),
  element("dd", "", value === true ? "yes" : String(value))];

// The items that the page knows of: what is selected, and what its actions wait for in the session's notes.
function cards() {
  const records = Object.values(world.data).flat();
  const waits = world.pages[state.page].actions.flatMap((one) => one.preconditions.map(({ path }) => path));
  const paths = [...Object.keys(state.signature).filter((name) => name.startsWith("selected_")).map((name) => [name]),
    ...waits.filter((path) => path.length > 1 && path.at(-1) === "item")];
  const find = () => [...new Map(paths.map((path) => [read(state.signature, path), path]))]
    .map(([id, path]) => [records.find((record) => record.id === id), notes(path)]).filter(([record]) => record);
  const make = ([record, noted]) => [detail(record), noted.length > 0 ? nodeOf("dl", "summary", ...noted.flatMap(said)) : []];
  return showing(element("div", paths.some((path) => path.length > 1) ? "cards waits" : "cards"), find, (one) => make(one).flat());
}

function detail(record) {
  const parts = partsOf(record);
  const facts = [...parts.words, ...parts.numbers, ...parts.flags.map(([name, isOn]) => [name, isOn ? "yes" : "no"])];
  const table = nodeOf("table", "facts", nodeOf("tbody", "", ...facts.map(([name, text]) =>
    nodeOf("tr", "", element("th", "", name), element("td", "", text)))));
  const more = nodeOf("details", "extra", element("summary", "", "Who is behind it"),
    record.by ? nodeOf("address", "", face(record.by), by(record), " ", when(record)) : "Nobody knows.");
  return nodeOf("article", "detail", nodeOf("figure", "", scene(record)),
    nodeOf("div", "info", element("h2", "", record.title), by(record),
      record.text ? element("p", "text", record.text) : null, table, record.text ? more : null));
}

// What a review shows: everything that has been filled in, or only the `amounts`.
function summary(amounts = false) {
  const find = () => Object.entries(state.signature)
    .filter(([name, value]) => !/^(selected|matched)_|_(id|applied|searched|order|kind)$/.test(name) &&
      value !== null && value !== "" && value !== false && (amounts ? typeof value === "number" : typeof value !== "object"));
  return showing(element("dl", "summary"), find, said);
}

const samples = (from, to) => Object.values(world.data).flatMap((records) => records.slice(from, to));

const BLOCKS = {
  // a few records as the skin draws them; a click leads to where all are
  shelf(page) {
    const some = samples(0, world.plan.shelf);
    const { frame, body } = frameOf(some.filter((one) => one.collection === some[0].collection));
    for (const record of some.filter((one) => body.tagName !== "TBODY" || one.collection === some[0].collection)) {
      const row = itemOf(record), way = page.actions.find((one) => one.target === record.collection.toUpperCase());
      row.addEventListener("click", (event) => { event.preventDefault(); if (way) take(way); });
      body.append(row);
    }
    return nodeOf("section", "shelf", element("h2", "", "New here"), frame);
  },
  steps: () => nodeOf("section", "steps", element("h2", "", "How it works"),
    nodeOf("ol", "", ...world.words.steps.map((text) => element("li", "", text)))),
  reviews: () => nodeOf("section", "reviews", element("h2", "", "What others say"),
    ...world.words.reviews.map(([name, text]) => nodeOf("blockquote", "", element("q", "", text), face(name), element("cite", "", name)))),
  people: () => nodeOf("section", "people", element("h2", "", "Who is here"),
    nodeOf("ul", "", ...world.words.reviews.map(([name]) => nodeOf("li", "", face(name), element("span", "", name))))),
  hours: () => nodeOf("section", "hours", element("h2", "", "Our desks"), nodeOf("table", "", nodeOf("tbody", "",
    ...world.words.towns.map((town, i) => nodeOf("tr", "", element("th", "", town), element("td", "", `${8 + i}:00 to 17:00`)))))),
  news: () => nodeOf("section", "news", element("h2", "", "In short"), nodeOf("ul", "",
    ...world.words.links.slice(0, 5).map(([name, text]) => nodeOf("li", "", element("strong", "", name), ": ", text)))),
};

function blocks(names, page) {
  return names.map((name) => BLOCKS[name](page));
}

function note(title, text) {
  const close = press("", "button quiet", "Close", () => made.remove());
  const made = nodeOf("aside", "options dialog note", element("h3", "", title), element("p", "", text), close);
  for (const other of document.querySelectorAll(".note")) other.remove();
  document.body.append(made);
}

function links(from, to) {
  return world.words.links.slice(from, to).map(([name, text]) => {
    const made = Object.assign(element("a", "link", name), { href: "#" });
    made.addEventListener("click", (event) => { event.preventDefault(); note(name, text); });
    return nodeOf("li", "", made);
  });
}

function foot() {
  const columns = [[5, 8, "About us"], [8, 11, "Help"], [11, 14, "More"]].map(([from, to, title]) =>
    nodeOf("nav", "", element("h4", "", title), nodeOf("ul", "", ...links(from, to))));
  return nodeOf("footer", "extra", ...columns, nodeOf("address", "", element("strong", "", world.brand),
    element("p", "", world.words.motto), element("small", "", world.words.towns.join(", "))), element("hr", ""),
    nodeOf("p", "legal", element("small", "", `${world.brand}: an invented site.`)));
}

function top(page, ways) {
  const tools = [["user", "Account", "You are here as a guest."], ["heart", "Favourites", "You have no favourites yet."]]
    .map(([name, title, text]) => Object.assign(press("", "tool", icon(name), () => note(title, text)), { title }));
  return nodeOf("header", "top",
    nodeOf("div", "brand", icon(world.plan.icon), element("span", "", world.brand)),
    nodeOf("nav", "site", nodeOf("ul", "", ...ways.map((node) => nodeOf("li", "", node)), ...links(0, 5))),
    nodeOf("div", "tools extra", ...tools));
}

function hero() {
  const pictures = samples(0, 3).slice(0, 3).map(scene);
  return nodeOf("section", "hero", nodeOf("div", "words", element("h1", "", world.brand), element("p", "", world.words.motto),
    element("p", "extra", `In short: ${Object.keys(world.data).join(", ")}.`)), nodeOf("div", "strip", ...pictures));
}

// --- the page ------------------------------------------------------------------------------------------

const ENTRIES = ["choice", "select", "radio", "tabs", "upload", "autocomplete", "drop", "slider", "checkbox", "search", "date", "field"];
const MAKERS = { button, link, banner, confirm, window: windowLink, checkbox, choice, select, radio, tabs, upload,
  autocomplete, drop, field, search, slider, date };

// The page's widgets, and their nodes by the role that they play in it.
function parts(page) {
  const widgets = [], nodes = { list: [], way: [], menu: [], back: [], entry: [], action: [], notice: [] }, done = new Set();
  const put = (role, widget, action = null) => { widgets.push({ ...widget, action }); nodes[role].push(widget.node); };
  for (const action of page.actions) {
    if (done.has(action)) continue;
    const alike = page.actions.filter((one) => one.element === action.element && !done.has(one));
    if (action.kind === "row" || action.kind === "scroll") {
      const rows = alike.filter((one) => one.kind === "row"), scrolls = alike.filter((one) => one.kind === "scroll");
      put("list", list(action.element, rows, scrolls));
      for (const one of [...rows, ...scrolls]) done.add(one);
    } else if (action.kind === "menu" || action.kind === "hover") {
      const shared = alike.filter((one) => one.kind === action.kind);
      put("menu", menu(shared));
      for (const one of shared) done.add(one);
    } else {
      const goes = action.kind === "button" && action.is_navigation;
      const role = action.kind === "banner" ? "notice" : ENTRIES.includes(action.kind) ? "entry"
        : goes && action.is_quiet ? "back" : goes && page.is_first ? "way" : "action";
      put(role, (role === "back" || role === "way" ? link : MAKERS[action.kind])(action), action);
      done.add(action);
    }
  }
  return { widgets, nodes };
}

function form(legend, nodes, actions) {
  const made = nodeOf("form", "form", nodeOf("fieldset", "", element("legend", "", legend), ...nodes), nodeOf("p", "actions", ...actions));
  made.addEventListener("submit", (event) => event.preventDefault());
  return made;
}

function build(page) {
  const { widgets, nodes } = parts(page);
  const main = element("main", ""), { plan } = world, inHead = plan.ways === "head" ? nodes.way : [];
  const made = (widget) => { widgets.push(widget); return widget.node; };
  if (page.is_first) {
    const ways = nodeOf("nav", "ways", ...nodes.way.filter((node) => !inHead.includes(node)), ...nodes.menu);
    main.append(hero(), ways, ...blocks(plan.first, page));
    if (nodes.entry.length + nodes.action.length > 0) main.append(form(page.title, nodes.entry, nodes.action));
    main.append(...nodes.list);
  } else {
    const trail = [...nodes.back, element("span", "here", page.title)].map((node) => nodeOf("li", "", node));
    main.append(nodeOf("nav", "crumbs", nodeOf("ol", "", ...trail)), element("h1", "", page.title));
    if (page.message !== null) {
      main.append(nodeOf("section", "done", drawing("tick", world.style.accent), nodeOf("p", "", element("mark", "", page.message))));
    }
    const side = nodeOf("aside", "side"), body = nodeOf("div", "body");
    const hasList = nodes.list.length > 0;
    if (nodes.menu.length > 0) side.append(...nodes.menu);
    if (hasList) {
      if (nodes.entry.length > 0) side.append(form("Find", nodes.entry, []));
      body.append(made(cards()), ...nodes.list);
      if (nodes.action.length > 0) body.append(nodeOf("p", "actions", ...nodes.action));
    } else if (nodes.entry.length > 0) {
      body.classList.add("fills");
      body.append(form(page.title, [...nodes.entry, made(summary(true))], nodes.action), made(cards()));
    } else {
      body.append(nodeOf("p", "actions", ...nodes.action), made(cards()), made(summary()));
    }
    const others = nodeOf("aside", "others extra", ...blocks(hasList ? plan.beside : plan.below, page));
    main.append(nodeOf("div", "middle", side.children.length > 0 ? side : null, body, hasList && plan.beside.length > 0 ? others : null));
    if (!hasList) main.append(others);
  }
  document.title = page.title;
  document.body.className = [page.is_first ? "first" : "", nodes.list.length > 0 ? "lists" : ""].join(" ");
  document.body.replaceChildren(top(page, inHead), main, foot(), ...nodes.notice);
  scrollTo(0, 0);
  return widgets;
}

function draw() {
  if (shown === null || shown.page !== state.page) {
    shown = { page: state.page, widgets: build(world.pages[state.page]) };
  }
  for (const error of document.querySelectorAll(".error")) error.remove();
  for (const widget of shown.widgets) widget.update();
}

for (const [name, value] of Object.entries(world.plan.knobs)) document.documentElement.style.setProperty("--" + name, value);
document.documentElement.dataset.filters = world.plan.filters;
if (sessionStorage.getItem("minirl") !== null) { // left by the window that has opened this one
  state = JSON.parse(sessionStorage.getItem("minirl"));
  sessionStorage.removeItem("minirl");
  history.replaceState(state, "", "#" + state.page);
}
draw();
