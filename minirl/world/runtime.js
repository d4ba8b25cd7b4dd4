// The page that plays a site: it follows the machine exactly as fsm.py does, and draws it.
//
// The document carries a JSON description (see `describe` in site.py): pages with their defaults and
// actions, the records, and the style. First comes the interpreter, which has the names of fsm.py so
// that the two can be read side by side; then the drawing, one function per thing on the screen.
//
// Whatever came from a machine or a record reaches the document as text or as a checked value, never
// as HTML. Nothing here asks for the time, for a random number or for another file: a state always
// gives the same pixels. That is also why there are no hover styles and no animations.
(() => {
  "use strict";
  const world = JSON.parse(document.getElementById("world").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  let state = { page: world.initial_page, signature: world.pages[world.initial_page].defaults };

  // --- the machine ------------------------------------------------------------------------------

  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

  function canonical(value) {
    if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
    if (!isObject(value)) return JSON.stringify(value);
    const entries = Object.keys(value).sort();
    return "{" + entries.map((name) => JSON.stringify(name) + ":" + canonical(value[name])).join(",") + "}";
  }

  const same = (a, b) => canonical(a) === canonical(b);

  // What a path leads to; undefined when there is no such field (JSON has no undefined).
  function read(signature, path) {
    let value = signature;
    for (const name of path) {
      if (!isObject(value) || !Object.hasOwn(value, name)) return undefined;
      value = value[name];
    }
    return value;
  }

  function write(signature, [name, ...rest], value) {
    if (rest.length > 0) {
      const inner = Object.hasOwn(signature, name) ? signature[name] : null;
      value = write(isObject(inner) ? inner : {}, rest, value);
    }
    return { ...signature, [name]: value };
  }

  function lengthOf(value) {
    if (typeof value === "string") return Array.from(value).length;
    if (Array.isArray(value)) return value.length;
    return isObject(value) ? Object.keys(value).length : 0;
  }

  function meets(signature, { path, cond, value: wanted }) {
    const found = read(signature, path);
    const value = found === undefined ? null : found;
    const isNumber = typeof value === "number";
    switch (cond) {
      case "eq": return same(value, wanted);
      case "neq": return !same(value, wanted);
      case "exists": return found !== undefined;
      case "not_null": return value !== null;
      case "in":
      case "oneof": return wanted.some((one) => same(value, one));
      case "length_gt": return lengthOf(value) > wanted;
      case "gt": return isNumber && value > wanted;
      case "gte": return isNumber && value >= wanted;
      case "lt": return isNumber && value < wanted;
      case "lte": return isNumber && value <= wanted;
    }
    throw new Error("no such condition: " + cond);
  }

  function enabled(action, params) {
    if (!action.open_parameters.every((name) => Object.hasOwn(params, name))) return false;
    for (const name of Object.keys(params)) {
      if (!Object.hasOwn(action.parameters, name)) return false;
      const isFixed = !action.open_parameters.includes(name);
      if (isFixed && !same(params[name], action.parameters[name])) return false;
    }
    return action.preconditions.every((condition) => meets(state.signature, condition));
  }

  function writeEffect(signature, effect, values, defaults) {
    if (effect.expr !== null) return signature;
    const given = effect.ref === null ? effect.value : values[effect.ref];
    const old = read(signature, effect.path);
    switch (effect.op) {
      case "set": return write(signature, effect.path, given);
      case "clear": return write(signature, effect.path, read(defaults, effect.path) ?? null);
      case "inc": return write(signature, effect.path, (typeof old === "number" ? old : 0) + effect.by);
      case "toggle": return write(signature, effect.path, old !== true);
      case "append_unique": {
        const items = Array.isArray(old) ? old : [];
        const known = items.some((one) => same(one, given));
        return write(signature, effect.path, known ? items : [...items, given]);
      }
      case "remove":
        return write(signature, effect.path, (Array.isArray(old) ? old : []).filter((one) => !same(one, given)));
    }
    throw new Error("no such effect: " + effect.op);
  }

  function apply(action, params) {
    const defaults = world.pages[state.page].defaults;
    const values = { ...action.parameters, ...params };
    let signature = state.signature;
    for (const effect of action.effects) signature = writeEffect(signature, effect, values, defaults);
    if (!action.is_navigation) return { page: state.page, signature };
    const target = { ...world.pages[action.target].defaults };
    for (const name of Object.keys(target)) {
      if (Object.hasOwn(signature, name)) target[name] = signature[name];
    }
    return { page: action.target, signature: target };
  }

  // Takes the action if the machine allows it, and says whether it did.
  function dispatch(actionId, params = {}) {
    const page = world.pages[state.page];
    const action = page.actions.find((one) => one.id === actionId);
    if (action === undefined || !enabled(action, params)) return false;
    const next = JSON.parse(JSON.stringify(apply(action, params))); // a copy: the caller keeps `params`
    state = next;
    // A navigation is a step that the browser's back button undoes; a choice in place is not.
    if (action.is_navigation) history.pushState(state, "", "#" + state.page);
    else history.replaceState(state, "", "#" + state.page);
    draw();
    return true;
  }

  // Back and forward bring their snapshot along. A hand-written hash has none: the address is put
  // right and the state stays.
  addEventListener("popstate", (event) => {
    if (event.state === null) return history.replaceState(state, "", "#" + state.page);
    state = event.state;
    draw();
  });

  // --- the drawing ------------------------------------------------------------------------------

  function element(tag, className, text) {
    const made = document.createElement(tag);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const SHAPES = {
    circle: "M20 5a15 15 0 1 1 0 30a15 15 0 1 1 0-30z",
    square: "M7 7h26v26h-26z",
    triangle: "M20 5l17 29h-34z",
    diamond: "M20 3l17 17l-17 17l-17-17z",
    hexagon: "M20 4l14 8v16l-14 8l-14-8v-16z",
    ring: "M20 4a16 16 0 1 1 0 32a16 16 0 1 1 0-32zm0 9a7 7 0 1 0 0 14a7 7 0 1 0 0-14z",
    cross: "M14 5h12v9h9v12h-9v9h-12v-9h-9v-12h9z",
    drop: "M20 3c7 10 12 15 12 21a12 12 0 1 1-24 0c0-6 5-11 12-21z",
    tick: "M5 21l6-6l6 6l14-14l6 6l-20 20z",
  };

  function drawing(shape, fill) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 40 40");
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", SHAPES[shape]);
    path.setAttribute("fill", fill);
    svg.append(path);
    return svg;
  }

  function tile(action, record) {
    const made = element("button", "row data-id-" + record.id);
    made.type = "button";
    if (record.shape) made.append(drawing(record.shape, record.fill));
    if (record.swatch) {
      const swatch = element("span", "swatch");
      swatch.style.background = record.swatch;
      made.append(swatch);
    }
    const size = record.shape || record.swatch ? "" : record.title.length > 2 ? " alone" : " alone short";
    made.append(element("span", "title" + size, record.title));
    const params = { ...placeholders(action), [action.bind.param]: record.id };
    made.disabled = !enabled(action, params);
    made.setAttribute("aria-pressed", String(isChosen(action, record.id)));
    made.addEventListener("click", () => dispatch(action.id, params));
    return made;
  }

  function placeholders(action) {
    return Object.fromEntries(action.open_parameters.map((name) => [name, action.parameters[name]]));
  }

  function isChosen(action, id) {
    const writes = action.effects.filter((effect) => effect.op === "set" && effect.ref === action.bind.param);
    return writes.some((effect) => read(state.signature, effect.path) === id);
  }

  // The records that the action's binding offers now.
  function boundRecords(bind) {
    const wanted = Object.entries(bind.where).map(([name, value]) => [name, resolve(value)]);
    const fits = (record) => wanted.every(([name, value]) => same(record[name] ?? null, value));
    return world.data[bind.collection].filter(fits);
  }

  function resolve(value) {
    if (typeof value !== "string" || !value.startsWith("$.")) return value;
    return read(state.signature, value.slice(2).split(".")) ?? null;
  }

  // One action with one tile per record. A page's only group gets two rows, groups that share one each.
  function group(action, isOnly) {
    const records = boundRecords(action.bind);
    const made = element("section", "group");
    made.append(element("h2", "", action.label));
    const grid = element("div", "grid");
    grid.id = action.container;
    const rows = isOnly ? Math.round(Math.sqrt(records.length / 2)) : Math.ceil(records.length / 8);
    const columns = Math.max(1, Math.ceil(records.length / Math.max(1, rows)));
    grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const record of records) grid.append(tile(action, record));
    made.append(grid);
    return made;
  }

  function button(action) {
    const params = placeholders(action);
    const made = element("button", action.is_quiet ? "button quiet" : "button", action.label);
    made.type = "button";
    made.id = action.element;
    made.disabled = !enabled(action, params);
    made.addEventListener("click", () => dispatch(action.id, params));
    return made;
  }

  // What has been chosen so far, by title where a record has one.
  function breadcrumb() {
    const titles = new Map(Object.values(world.data).flat().map((record) => [record.id, record.title]));
    const isText = (value) => typeof value === "string" && value !== "";
    const values = Object.values(state.signature).filter(isText);
    return values.map((value) => titles.get(value) ?? value).join(" \u203a ");
  }

  function draw() {
    const page = world.pages[state.page];
    const bound = page.actions.filter((action) => action.bind !== null);
    const header = element("header", "");
    header.append(element("h1", "", page.title), element("p", "crumbs", breadcrumb()));
    const main = element("main", "");
    if (page.message !== null) {
      const done = element("section", "done");
      done.append(drawing("tick", world.style.accent), element("p", "", page.message));
      main.append(done);
    }
    for (const action of bound) main.append(group(action, bound.length === 1));
    const footer = element("footer", "");
    footer.append(...page.actions.filter((action) => action.bind === null).map(button));
    document.title = page.title;
    document.body.replaceChildren(header, main, footer);
  }

  for (const name of ["background", "tile", "text", "accent"]) {
    document.documentElement.style.setProperty("--" + name, world.style[name]);
  }
  Object.defineProperty(window, "minirl", {
    value: Object.freeze({ state: () => JSON.parse(JSON.stringify(state)), dispatch }),
  });
  history.replaceState(state, "", "#" + state.page); // also after a reload: a visit starts afresh
  draw();
})();
