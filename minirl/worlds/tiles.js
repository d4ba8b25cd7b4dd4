// A site for small screens and small models: every choice is a large tile, everything else a button. Where each
// control of a page stands may be given, in pixels of a window of 480 x 360; else the style sheet decides.

function place(made, name) {
  const box = (world.places[state.page] ?? {})[name];
  if (box === undefined) return made;
  ["left", "top", "width", "height"].forEach((side, i) => {
    made.style[side] = (100 * box[i]) / (i % 2 === 0 ? 480 : 360) + "%";
  });
  return made;
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
  return place(made, record.id);
}

function isChosen(action, id) {
  const writes = action.effects.filter((effect) => effect.op === "set" && effect.ref === action.bind.param);
  return writes.some((effect) => read(state.signature, effect.path) === id);
}

// One action with one tile per record. A page's only group gets two rows, groups that share one each.
function group(action, isOnly) {
  const records = boundRecords(action.bind);
  const made = element("section", "group");
  made.append(element("h2", "", action.label));
  const grid = element("div", "grid");
  grid.id = action.element;
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
  return place(made, action.element);
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
  const bound = page.actions.filter((action) => action.kind === "row");
  const header = place(element("header", ""), "header");
  document.body.classList.toggle("placed", world.places[state.page] !== undefined);
  header.append(element("h1", "", page.title), element("p", "crumbs", breadcrumb()));
  const main = element("main", "");
  if (page.message !== null) {
    const done = element("section", "done");
    done.append(drawing("tick", world.style.accent), element("p", "", page.message));
    main.append(done);
  }
  for (const action of bound) main.append(group(action, bound.length === 1));
  const footer = element("footer", "");
  footer.append(...page.actions.filter((action) => action.kind !== "row").map(button));
  document.title = page.title;
  document.body.replaceChildren(header, main, footer);
}

draw();
