// What a visitor handles: one function makes one widget, its node and `update`, which shows the state in it.
// What the machine does not know, an open list, a half-typed word or the month that a calendar shows, lives in
// the nodes. All that a visitor must see is drawn in the page: a desktop's own pop-ups are in no screenshot.

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
  if (id !== "") made.id = id;
  return made;
}

// A button with a text or a node on it.
function press(id, className, content, run) {
  const made = control("button", id, className);
  made.append(content);
  made.addEventListener("click", run);
  return made;
}

// "price:desc" -> "price, highest first"
function sayValue(value) {
  const [name, direction] = String(value).split(":");
  if (direction === "asc") return name + ", lowest first";
  return direction === "desc" ? name + ", highest first" : name;
}

// A value in words, which for a record's id is its title.
function nameOf(action, value) {
  const record = action.bind.collection && world.data[action.bind.collection].find((one) => one.id === value);
  return record ? record.title : value;
}

function closeAll(but) {
  for (const other of document.querySelectorAll(".options")) if (other !== but) other.hidden = true;
}

// --- buttons and links ------------------------------------------------------------------------------

function link(action) {
  const node = nodeOf("a", "link", label(action));
  Object.assign(node, { id: action.element, href: "#" + action.target });
  node.addEventListener("click", (event) => { event.preventDefault(); take(action); });
  return { node, update: () => { node.setAttribute("aria-disabled", String(!can(action))); } };
}

function button(action) {
  const node = press(action.element, action.is_quiet ? "button quiet" : "button", label(action), () => take(action));
  return { node, update: () => { node.disabled = !can(action); } };
}

// A question in the way of the page, or of all of it.
function banner(action) {
  const accept = press(action.element, "button", label(action), () => take(action));
  const node = nodeOf("div", world.consent === "modal" ? "banner modal" : "banner", element("p", "", world.question), accept);
  node.setAttribute("role", "dialog");
  return { node, update: () => { node.hidden = !can(action); } };
}

function checkbox(action) {
  const box = Object.assign(control("input", action.element, ""), { type: "checkbox" });
  const node = nodeOf("label", "check", box, label(action));
  box.addEventListener("click", (event) => { event.preventDefault(); });
  box.addEventListener("click", () => setTimeout(() => take(action)));
  const isOn = () => action.effects.some((one) => one.op === "toggle")
    ? written(action) === true
    : action.effects.some((one) => one.op === "set" && same(read(state.signature, one.path) ?? null, one.value));
  return { node, update: () => { box.checked = isOn(); box.disabled = !can(action); } };
}

// --- one of several ---------------------------------------------------------------------------------

// A list that is hidden until it is opened. A click on one of its entries, {node, run} each, closes it.
function hiddenList(id, entries) {
  const list = control("div", id, "options");
  list.hidden = true;
  list.addEventListener("click", (event) => event.preventDefault()); // a label's click is its field's
  for (const { node, run } of entries) node.addEventListener("click", () => { list.hidden = true; run(); });
  list.append(...entries.map((entry) => entry.node));
  return list;
}

// A button that opens a hidden list, and shows the value that was chosen.
function popup(id, text, entries, opensUnderPointer = false) {
  const value = element("span", "value", ""), list = hiddenList(id + "-options", entries);
  const opener = press(id, "opener", element("span", "label", text), () => {
    const opens = opensUnderPointer || list.hidden;
    closeAll(list);
    list.hidden = !opens;
  });
  const node = nodeOf("div", "popup", opener, list);
  opener.append(value);
  if (opensUnderPointer) {
    opener.addEventListener("mouseenter", () => { list.hidden = false; });
    node.addEventListener("mouseleave", () => { list.hidden = true; });
  }
  return { node, opener, list, value };
}

// A node for each value that an action offers, with what happens on a click.
function offered(action, tag, className) {
  return choices(action).map((value, index) => {
    const node = control(tag, "", className);
    node.append(sayValue(nameOf(action, value)));
    node.dataset.index = String(index);
    return { node, value, run: () => take(action, value) };
  });
}

// Marks the entry that holds the value.
function mark(entries, value) {
  for (const entry of entries) entry.node.setAttribute("aria-selected", String(same(entry.value, value)));
}

function choice(action) {
  const entries = offered(action, "button", "option");
  const { node, value } = popup(action.element, action.label, entries);
  const update = () => {
    const chosen = written(action);
    value.textContent = chosen === null || chosen === "" ? "any" : sayValue(nameOf(action, chosen));
    for (const entry of entries) entry.node.disabled = !can(action, entry.value);
    mark(entries, chosen);
  };
  return { node, update };
}

// The browser's own list, but for its pop-up.
function select(action) {
  const node = element("label", "field select"), box = control("select", action.element, "");
  const entries = offered(action, "button", "option"), list = hiddenList(action.element + "-options", entries);
  box.append(...["any", ...entries.map(({ value }) => sayValue(nameOf(action, value)))]
    .map((text, i) => Object.assign(element("option", "", text), { value: String(i) })));
  box.addEventListener("mousedown", (event) => {
    event.preventDefault();
    box.focus();
    closeAll(list);
    list.hidden = !list.hidden;
  });
  box.addEventListener("change", () => box.value === "0" ? update() : entries[Number(box.value) - 1].run());
  node.append(label(action), box, list);
  const update = () => {
    box.value = String(1 + entries.findIndex(({ value }) => same(value, written(action))));
    box.disabled = !can(action, choices(action)[0]);
  };
  return { node, update };
}

function radio(action) {
  const node = control("fieldset", action.element, "radios"), entries = offered(action, "label", "check");
  for (const { node: entry, run } of entries) {
    const box = Object.assign(element("input", ""), { type: "radio", name: action.element });
    box.addEventListener("change", run);
    entry.prepend(box);
  }
  node.append(element("legend", "label", action.label), ...entries.map((entry) => entry.node));
  const update = () => {
    for (const { node: entry, value } of entries) entry.firstChild.checked = same(value, written(action));
    node.disabled = !can(action, entries[0].value);
  };
  return { node, update };
}

function tabs(action) {
  const entries = offered(action, "button", "tab");
  const strip = nodeOf("div", "strip", ...entries.map((entry) => entry.node));
  const node = nodeOf("div", "tabs", label(action), strip);
  node.id = action.element;
  for (const { node: entry, run } of entries) entry.addEventListener("click", run);
  return { node, update: () => mark(entries, written(action)) };
}

function upload(action) {
  const entries = offered(action, "button", "option file");
  const { node, opener, value } = popup(action.element, action.label, entries);
  const update = () => {
    value.textContent = written(action) ?? "Choose a file";
    opener.disabled = !can(action, choices(action)[0]);
  };
  return { node, update };
}

// Proposes what begins with what was typed; only a proposal counts.
function autocomplete(action) {
  const { node, box } = textBox(action, "field");
  const entries = offered(action, "button", "option"), list = hiddenList(action.element + "-options", entries);
  box.addEventListener("input", () => {
    const typed = box.value.trim().toLowerCase();
    for (const { node: entry, value } of entries) entry.hidden = !String(value).toLowerCase().startsWith(typed);
    list.hidden = typed === "" || entries.every(({ node: entry }) => entry.hidden);
  });
  node.append(list);
  const update = () => {
    if (document.activeElement !== box) box.value = written(action) ?? "";
    box.disabled = !can(action, choices(action)[0]);
  };
  return { node, update };
}

// Cards, of which one is dragged onto a place.
function drop(action) {
  const entries = offered(action, "div", "chip"), node = control("div", action.element, "drop");
  const place = control("div", action.element + "-target", "target");
  for (const { node: chip, run } of entries) {
    chip.addEventListener("mousedown", (down) => {
      down.preventDefault();
      const move = (event) => {
        chip.style.transform = `translate(${event.clientX - down.clientX}px, ${event.clientY - down.clientY}px)`;
      };
      const release = (event) => {
        removeEventListener("mousemove", move);
        chip.style.transform = "";
        const box = place.getBoundingClientRect(), { clientX: x, clientY: y } = event;
        if (x >= box.left && x <= box.right && y >= box.top && y <= box.bottom) run();
      };
      addEventListener("mousemove", move);
      addEventListener("mouseup", release, { once: true });
    });
  }
  node.append(label(action), nodeOf("div", "chips", ...entries.map((entry) => entry.node)), place);
  return { node, update: () => { place.textContent = written(action) ?? "Drag one of them here"; } };
}

// Menus that actions share: one opener, an entry for each, and entries that do nothing.
function menu(actions) {
  const { element: id, kind, opener, options } = actions[0], isHover = kind === "hover";
  const entry = (item, text, action, run) => {
    const node = nodeOf("button", `option ${item}`, element("span", "label", text));
    return { node: Object.assign(node, { id: item, type: "button" }), action, run };
  };
  const known = new Set(actions.map((action) => action.item));
  const entries = [
    ...actions.map((action) => entry(action.item, action.label, action, () => take(action))),
    ...options.filter(({ item }) => !known.has(item)).map(({ item, text }) => entry(item, text, null, () => {})),
  ];
  const { node } = popup(id, opener ?? (isHover ? "Explore" : "Menu"), entries, isHover);
  const update = () => {
    for (const { node: made, action } of entries) if (action !== null) made.disabled = !can(action);
  };
  return { node, update };
}

// --- what is typed, drawn or picked -------------------------------------------------------------------

function textBox(action, className) {
  const box = control("input", action.element, "");
  box.type = "text";
  box.autocomplete = "off";
  return { node: nodeOf("label", className, label(action), box), box };
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

// Takes the record whose title was typed.
function search(action) {
  const { node, box } = textBox(action, "field search");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    if (action.bind === null) return take(action);
    const hit = titled(boundRecords(action.bind), box.value);
    if (hit !== undefined) take(action, hit.id);
  });
  return { node, update: () => {} };
}

function slider(action) {
  const range = control("input", action.element, "");
  const values = action.bind.values;
  // all the way to the left is no value yet, and none again
  Object.assign(range, { type: "range", min: "0", max: String(values.length), step: "1", value: "0" });
  const chosen = () => values[Number(range.value) - 1];
  const value = element("output", "value", ""), node = nodeOf("label", "field", nodeOf("span", "head", label(action), value), range);
  const update = () => {
    const at = values.findIndex((one) => same(one, written(action)));
    range.value = String(at + 1);
    value.textContent = at < 0 ? "any" : String(values[at]);
    range.disabled = !can(action, values[0]);
  };
  range.addEventListener("input", () => { value.textContent = String(chosen() ?? "any"); });
  range.addEventListener("change", () => chosen() === undefined ? update() : take(action, chosen()));
  return { node, update };
}

function date(action) {
  const { node, opener, list, value } = popup(action.element, action.label, []);
  const days = action.bind.values;
  const months = [...new Set(days.map((day) => day.slice(0, 7)))];
  const buttons = (className, values, run) => values.map((value) => {
    const made = press("", className, className === "day" ? String(Number(value.slice(8))) : value, () => run(value));
    made.dataset.value = value;
    return made;
  });
  const turn = (month) => {
    const pick = (day) => { list.hidden = true; take(action, day); };
    const head = nodeOf("div", "months", ...buttons("month", months, turn));
    const grid = nodeOf("div", "days", ...buttons("day", days.filter((day) => day.startsWith(month)), pick));
    for (const one of head.children) one.setAttribute("aria-selected", String(one.dataset.value === month));
    list.replaceChildren(head, grid);
  };
  opener.addEventListener("click", () => turn((written(action) || days[0]).slice(0, 7)));
  const update = () => {
    value.textContent = written(action) || "choose a day";
    opener.disabled = !can(action, days[0]);
  };
  return { node, update };
}
