// A site as people know them: a head with the ways to its lists, lists with filters, item pages, forms, a foot.
// `world.plan`, which the skin decides, says what stands where; the skin's style sheet does the rest. A page is built
// once when it is entered, so that what has the focus, or is being dragged or scrolled, stays where it is when the
// state changes.

let shown = null; // the page that was built last: {page, widgets}

function nodeOf(tag, className, ...children) {
  const made = element(tag, className);
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

// --- a record's parts -----------------------------------------------------------------------------------

// What a record's page and row say of it, as texts by their names.
function factsOf(record) {
  const told = Object.entries(world.facts[record.collection] ?? {}).filter(([name]) => record[name] != null);
  return told.map(([name, unit]) => {
    const value = record[name];
    return [name, typeof value === "boolean" ? (value ? "yes" : "no") : unit.replace("{}", String(value))];
  });
}

const titleOf = (record) => Object.assign(element("a", "title", record.title), { href: "#" });
const by = (record) => record.by ? nodeOf("cite", "by", `${record.by}, ${record.place}, ${record.date}`) : null;

// One record of a list: a row of a table, or a card, whose order the style sheet decides.
function itemOf(record) {
  const className = "row data-id-" + record.id;
  if (world.plan.skin === "table") {
    const cells = factsOf(record).map(([, text]) => element("td", "", text));
    return nodeOf("tr", className, nodeOf("td", "picture", scene(record)), nodeOf("td", "", titleOf(record)), ...cells);
  }
  const facts = factsOf(record).map(([name, text]) => nodeOf("li", "", element("small", "", name + " "), text));
  return nodeOf("article", className, nodeOf("h3", "", titleOf(record)), scene(record),
    record.text ? element("p", "text", record.text) : null, nodeOf("ul", "numbers", ...facts), by(record));
}

// --- lists ----------------------------------------------------------------------------------------------

// A list's box and the node that its rows stand in; a table's head is told by its first record.
function frameOf(records) {
  if (world.plan.skin !== "table" || records.length === 0) {
    const body = element("div", "rows");
    return { frame: body, body };
  }
  const body = element("tbody", "rows"), names = ["", "name", ...factsOf(records[0]).map(([name]) => name)];
  const head = nodeOf("thead", "", nodeOf("tr", "", ...names.map((name) => element("th", "", name))));
  return { frame: nodeOf("table", "", nodeOf("caption", "", records[0].collection), head, body), body };
}

// A list of records with all actions that open one of them, the first possible one counting, and with the action,
// if there is one, that notes which row a scrolled list begins with. A long list may be shown page by page, and
// from its beginning again as soon as anything changes.
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
  const size = scrolls.length > 0 || world.page_size === 0 ? Infinity : world.page_size;
  const pager = element("nav", "pager");
  const show = (records, page) => {
    const wanted = records.slice(page * size || 0, (page + 1) * size).map((record) => rows.get(record.id));
    if (wanted.length !== body.children.length || wanted.some((row, i) => row !== body.children[i])) {
      body.replaceChildren(...wanted);
      still = node.scrollTop;
    }
    count.textContent = `${records.length} of ${all.length} ${bind === null ? "" : bind.collection}`;
    const pages = [...Array(Math.ceil(records.length / size)).keys()];
    pager.replaceChildren(...pages.map((to) =>
      Object.assign(press(`${id}-page-${to}`, "page", String(to + 1), () => show(records, to)), { disabled: to === page })));
    pager.hidden = pages.length < 2;
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

// A node whose children are made anew whenever the state changes.
function showing(node, find, make) {
  return { node, update: () => node.replaceChildren(...find().flatMap(make)) };
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
  const table = nodeOf("table", "facts", nodeOf("tbody", "", ...factsOf(record).map(([name, text]) =>
    nodeOf("tr", "", element("th", "", name), element("td", "", text)))));
  return nodeOf("article", "detail", nodeOf("figure", "", scene(record)),
    nodeOf("div", "info", element("h2", "", record.title), by(record),
      record.text ? element("p", "text", record.text) : null, table));
}

// What a review shows: everything that has been filled in, or only the `amounts`.
function summary(amounts = false) {
  const find = () => Object.entries(state.signature)
    .filter(([name, value]) => !/^(selected|matched)_|_(id|applied|searched|order|kind)$/.test(name) &&
      value !== null && value !== "" && value !== false && (amounts ? typeof value === "number" : typeof value !== "object"));
  return showing(element("dl", "summary"), find, said);
}

const BLOCKS = {
  // a few records of a kind as the skin draws them; a click leads to where all are
  shelf(page) {
    const [records = []] = Object.values(world.data), { frame, body } = frameOf(records);
    for (const record of records.slice(0, 4)) {
      const row = itemOf(record), way = page.actions.find((one) => one.target === record.collection.toUpperCase());
      row.addEventListener("click", (event) => { event.preventDefault(); if (way) take(way); });
      body.append(row);
    }
    return nodeOf("section", "shelf", element("h2", "", "New here"), frame);
  },
  steps: () => nodeOf("section", "steps", element("h2", "", "How it works"),
    nodeOf("ol", "", ...world.words.steps.map((text) => element("li", "", text)))),
  reviews: () => nodeOf("section", "reviews", element("h2", "", "What others say"),
    ...world.words.reviews.map(([name, text]) => nodeOf("blockquote", "", element("q", "", text), element("cite", "", name)))),
};

// Links that lead nowhere.
function links() {
  return world.words.links.map((name) => {
    const made = Object.assign(element("a", "link", name), { href: "#" });
    made.addEventListener("click", (event) => event.preventDefault());
    return nodeOf("li", "", made);
  });
}

function foot() {
  return nodeOf("footer", "", nodeOf("nav", "", nodeOf("ul", "", ...links())),
    nodeOf("address", "", element("strong", "", world.brand), element("small", "", world.words.towns.join(", "))));
}

function top(ways) {
  return nodeOf("header", "top",
    element("div", "brand", world.brand),
    nodeOf("nav", "site", nodeOf("ul", "", ...ways.map((node) => nodeOf("li", "", node)))));
}

// --- the page ------------------------------------------------------------------------------------------

const ENTRIES = ["choice", "select", "radio", "tabs", "upload", "autocomplete", "drop", "slider", "checkbox", "search", "date", "field"];
const MAKERS = { button, link, banner, checkbox, choice, select, radio, tabs, upload,
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
  const { widgets, nodes } = parts(page), main = element("main", "");
  const made = (widget) => { widgets.push(widget); return widget.node; };
  if (page.is_first) {
    main.append(nodeOf("section", "hero", element("h1", "", world.brand), element("p", "", world.words.motto)),
      ...world.plan.blocks.map((name) => BLOCKS[name](page)));
    if (nodes.entry.length + nodes.action.length > 0) main.append(form(page.title, nodes.entry, nodes.action));
    main.append(...nodes.list);
  } else {
    const trail = [...nodes.back, element("span", "here", page.title)].map((node) => nodeOf("li", "", node));
    main.append(nodeOf("nav", "crumbs", nodeOf("ol", "", ...trail)), element("h1", "", page.title));
    if (page.message !== null) {
      main.append(nodeOf("section", "done", drawing("tick", world.style.accent), element("p", "", page.message)));
    }
    const side = nodeOf("aside", "side", ...nodes.menu), body = nodeOf("div", "body");
    if (nodes.list.length > 0) {
      if (nodes.entry.length > 0) side.append(form("Find", nodes.entry, []));
      body.append(made(cards()), ...nodes.list);
      if (nodes.action.length > 0) body.append(nodeOf("p", "actions", ...nodes.action));
    } else if (nodes.entry.length > 0) {
      body.classList.add("fills");
      body.append(form(page.title, [...nodes.entry, made(summary(true))], nodes.action), made(cards()));
    } else {
      body.append(nodeOf("p", "actions", ...nodes.action), made(cards()), made(summary()));
    }
    main.append(nodeOf("div", "middle", side.children.length > 0 ? side : null, body));
  }
  document.title = page.title;
  document.body.className = page.is_first ? "first" : "";
  document.body.replaceChildren(top(page.is_first ? [...nodes.way, ...nodes.menu] : []), main, foot(), ...nodes.notice);
  scrollTo(0, 0);
  return widgets;
}

function draw() {
  if (shown === null || shown.page !== state.page) {
    shown = { page: state.page, widgets: build(world.pages[state.page]) };
  }
  for (const widget of shown.widgets) widget.update();
}

document.documentElement.dataset.filters = world.plan.filters;
draw();
