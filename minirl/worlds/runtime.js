// The machine behind a page: it follows the state machine exactly as interpreter.py does, and has its
// names, so that the two can be read side by side.
//
// The document carries a JSON description (see `describe` in render.py): pages with their defaults and
// actions, the records, and the style. What draws it, tiles.js or pages.js, comes behind this file and defines
// `draw`, which is called after every change.
//
// Whatever came from a machine or a record reaches the document as text or as a checked value, never
// as HTML. Nothing here asks for the time, for a random number or for another file: a state always
// gives the same pixels. That is also why there are no animations.
const world = JSON.parse(document.getElementById("world").textContent);
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
  const names = Object.keys(params);
  if (names.length !== action.open_parameters.length) return false;
  if (!names.every((name) => action.open_parameters.includes(name))) return false;
  return action.preconditions.every((condition) => meets(state.signature, condition));
}

function writeEffect(signature, effect, values, defaults) {
  if (effect.expr !== null) return signature;
  const literal = effect.ref === null ? effect.value : values[effect.ref];
  const given = effect.source === null ? literal : read(signature, effect.source) ?? null;
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
  if (isObject(state.signature.done)) sessionStorage.setItem(location.pathname, JSON.stringify(state.signature.done));
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
  state = withDone(event.state);
  draw();
});

// What was ordered stays ordered, as on a server: whoever goes back, reloads the page or opens it by its address
// finds in `done` what the session has noted, beside all else as it was then, or as it begins.
function withDone(snapshot) {
  const done = JSON.parse(sessionStorage.getItem(location.pathname));
  if (done === null || !isObject(snapshot.signature.done)) return snapshot;
  return { ...snapshot, signature: { ...snapshot.signature, done } };
}

// --- what a binding offers ------------------------------------------------------------------------

function resolve(value) {
  if (typeof value !== "string" || !value.startsWith("$.")) return value;
  return read(state.signature, value.slice(2).split(".")) ?? null;
}

// Whether a record's value passes a list's filter. One that is not set lets all pass.
function passes(value, cond, asked) {
  if (asked === null || asked === false) return true;
  const areNumbers = typeof value === "number" && typeof asked === "number";
  switch (cond) {
    case "eq": return same(value, asked);
    case "flag": return value === true;
    case "gte": return areNumbers && value >= asked;
    case "lte": return areNumbers && value <= asked;
  }
  throw new Error("no such filter: " + cond);
}

// The records that a binding offers now, in the order in which they are shown.
function boundRecords(bind) {
  const fits = (record) => Object.entries(bind.where).every(([name, wanted]) => isObject(wanted)
    ? passes(record[name] ?? null, wanted.cond, resolve(wanted.value))
    : same(record[name] ?? null, resolve(wanted)));
  const records = world.data[bind.collection].filter(fits);
  const [name, direction] = String((bind.order && resolve(bind.order)) || "").split(":");
  if (name === "") return records;
  const sign = direction === "desc" ? -1 : 1;
  const compare = (a, b) => (typeof a === "string") - (typeof b === "string") || (a > b) - (a < b);
  return records.sort((a, b) => sign * compare(a[name] || 0, b[name] || 0));
}

// The record that a text in a search finds: with that title, or else the first whose title holds it.
function titled(records, text) {
  const wanted = text.trim().toLowerCase();
  const hits = records.filter((one) => wanted !== "" && one.title.toLowerCase().includes(wanted));
  return hits.find((one) => one.title.toLowerCase() === wanted) ?? hits[0];
}

// Every value of an action's one open parameter, in display order; [undefined] if it has none.
function choices(action) {
  if (action.bind === null) return [undefined];
  return action.bind.collection ? boundRecords(action.bind).map((record) => record.id) : action.bind.values;
}

const placeholders = (action) => Object.fromEntries(action.open_parameters.map((name) => [name, action.parameters[name]]));

// An action's parameters with this value for the bound one, or for the only open one.
function given(action, value) {
  const name = action.bind !== null ? action.bind.param : action.open_parameters[0];
  return { ...placeholders(action), ...(name === undefined || value === undefined ? {} : { [name]: value }) };
}

Object.defineProperty(window, "minirl", {
  value: Object.freeze({ state: () => JSON.parse(JSON.stringify(state)), dispatch }),
});
for (const [name, value] of Object.entries(world.style)) {
  document.documentElement.style.setProperty("--" + name, value);
}
state = withDone(state);
history.replaceState(state, "", "#" + state.page); // also after a reload: a visit begins on the first page
