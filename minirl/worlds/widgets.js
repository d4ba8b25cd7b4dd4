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
  const node = control("a", action.element, "link");
  node.href = "#" + action.target;
  node.append(label(action));
  node.addEventListener("click", (event) => { event.preventDefault(); take(action); });
  return { node, update: () => { node.setAttribute("aria-disabled", String(!can(action))); } };
}

// A button, which on some sites can be pressed too early, and then says what is missing.
function button(action) {
  const node = control("button", action.element, action.is_quiet ? "button quiet" : "button");
  node.append(label(action));
  const complains = world.complains && action.is_navigation && action.preconditions.length > 0;
  node.addEventListener("click", () => can(action) ? take(action) : complain(action));
  return { node, update: () => { node.disabled = !complains && !can(action); } };
}

// Marks every widget whose field a condition of the action still waits for.
function complain(action) {
  const missing = action.preconditions.filter((one) => !meets(state.signature, one)).map((one) => one.path.join());
  for (const { action: other, node } of shown.widgets) {
    const isMissing = other?.effects.some((one) => missing.includes(one.path.join()));
    if (isMissing && !node.querySelector(".error")) node.append(element("small", "error", "This is still missing."));
  }
}

// A question in the way of the whole page, or a notice at its edge.
function banner(action) {
  const isToast = action.face === "toast";
  const node = element("div", isToast ? "toast" : world.consent === "modal" ? "banner modal" : "banner");
  const accept = control("button", action.element, "button");
  accept.append(label(action));
  accept.addEventListener("click", () => take(action));
  node.setAttribute("role", isToast ? "status" : "dialog");
  const asks = /location/i.test(action.label) ? "This site would like to know where you are." : world.question;
  node.append(element("p", "", isToast ? "There is a voucher for you." : asks), accept);
  return { node, update: () => { node.hidden = !can(action); } };
}

// A button that asks back before it does anything.
function confirm(action) {
  const node = element("span", "asks"), box = element("div", "options dialog");
  const opener = control("button", action.element, "button");
  const yes = control("button", action.element + "-yes", "button"), no = control("button", "", "button quiet");
  opener.append(label(action));
  yes.append("Yes, go on");
  no.append("No");
  box.hidden = true;
  box.setAttribute("role", "alertdialog");
  box.append(element("p", "", action.label + ": are you sure?"), yes, no);
  opener.addEventListener("click", () => { closeAll(box); box.hidden = false; });
  no.addEventListener("click", () => { box.hidden = true; });
  yes.addEventListener("click", () => { box.hidden = true; take(action); });
  node.append(opener, box);
  return { node, update: () => { opener.disabled = !can(action); } };
}

// A link to another window, which goes on from the state that the action leads to.
function windowLink(action) {
  const node = control("a", action.element, "link window");
  node.href = "#" + action.target;
  node.append(label(action), icon("arrow"));
  node.addEventListener("click", (event) => {
    event.preventDefault();
    if (!can(action)) return;
    sessionStorage.setItem("minirl", JSON.stringify(apply(action, given(action))));
    window.open(location.pathname); // gets a copy of what is stored
    sessionStorage.removeItem("minirl");
  });
  return { node, update: () => { node.setAttribute("aria-disabled", String(!can(action))); } };
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

// --- one of several ---------------------------------------------------------------------------------

// A button that opens a list, of which one is chosen. `entries`: what it offers, {node, run} each.
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
    closeAll(list);
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

// A node for each value that an action offers, with what happens on a click.
function offered(action, tag, className) {
  return choices(action).map((value, index) => {
    const node = control(tag, "", className);
    node.append(sayValue(nameOf(action, value)));
    node.dataset.index = String(index);
    return { node, value, run: () => take(action, value) };
  });
}

function choice(action) {
  const entries = offered(action, "button", "option");
  const { node, opener } = popup(action.element, action.label, entries, false);
  const update = () => {
    const value = written(action);
    opener.lastChild.textContent = value === null || value === "" ? "any" : sayValue(nameOf(action, value));
    for (const entry of entries) {
      entry.node.disabled = !can(action, entry.value);
      entry.node.setAttribute("aria-selected", String(same(entry.value, value)));
    }
  };
  return { node, update };
}

// The browser's own list, but for its pop-up.
function select(action) {
  const node = element("label", "field select"), box = control("select", action.element, "");
  const list = element("div", "options"), entries = offered(action, "button", "option");
  list.id = action.element + "-options";
  list.hidden = true;
  box.append(...[["", "any"], ...entries.map(({ value }, i) => [String(i), sayValue(nameOf(action, value))])]
    .map(([value, text]) => Object.assign(element("option", "", text), { value })));
  for (const { node: entry, run } of entries) entry.addEventListener("click", () => { list.hidden = true; run(); });
  list.append(...entries.map((entry) => entry.node));
  box.addEventListener("mousedown", (event) => {
    event.preventDefault();
    box.focus();
    closeAll(list);
    list.hidden = !list.hidden;
  });
  box.addEventListener("change", () => {
    const chosen = entries[Number(box.value)];
    if (box.value !== "" && chosen) chosen.run();
  });
  list.addEventListener("click", (event) => event.preventDefault()); // a label's click is its field's
  node.append(label(action), box, list);
  const update = () => {
    const at = entries.findIndex(({ value }) => same(value, written(action)));
    box.value = at < 0 ? "" : String(at);
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
  const node = control("div", action.element, "tabs"), entries = offered(action, "button", "tab");
  const panel = element("p", "panel", "");
  const strip = element("div", "strip");
  strip.setAttribute("role", "tablist");
  for (const { node: entry, run } of entries) {
    entry.setAttribute("role", "tab");
    entry.addEventListener("click", run);
    strip.append(entry);
  }
  node.append(label(action), strip, panel);
  const update = () => {
    const value = written(action);
    panel.textContent = value === null ? "Nothing is chosen yet." : `You have chosen: ${sayValue(value)}.`;
    for (const entry of entries) entry.node.setAttribute("aria-selected", String(same(entry.value, value)));
  };
  return { node, update };
}

// Files as a desktop would show them.
function upload(action) {
  const entries = offered(action, "button", "option file");
  for (const entry of entries) entry.node.prepend(icon("file"));
  const { node, opener, list } = popup(action.element, action.label, entries, false);
  list.classList.add("dialog");
  list.prepend(element("p", "", "Files on this computer"));
  const update = () => {
    opener.lastChild.textContent = written(action) ?? "Choose a file";
    opener.disabled = !can(action, choices(action)[0]);
  };
  return { node, update };
}

// Proposes what begins with what was typed; only a proposal counts.
function autocomplete(action) {
  const { node, box } = textBox(action, "field");
  const list = element("div", "options"), entries = offered(action, "button", "option");
  list.id = action.element + "-options";
  list.hidden = true;
  box.addEventListener("input", () => {
    const typed = box.value.trim().toLowerCase();
    for (const { node: entry, value } of entries) entry.hidden = !String(value).toLowerCase().startsWith(typed);
    list.hidden = typed === "" || entries.every(({ node: entry }) => entry.hidden);
  });
  const update = () => {
    if (document.activeElement !== box) box.value = written(action) ?? "";
    box.disabled = !can(action, choices(action)[0]);
  };
  for (const { node: entry, run } of entries) {
    entry.addEventListener("click", (event) => { event.preventDefault(); list.hidden = true; run(); update(); });
  }
  list.append(...entries.map((entry) => entry.node));
  node.append(list);
  return { node, update };
}

// Cards, of which one is dragged onto a place.
function drop(action) {
  const node = control("div", action.element, "drop"), entries = offered(action, "div", "chip");
  const cards = element("div", "chips"), place = control("div", action.element + "-target", "target");
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
  cards.append(...entries.map((entry) => entry.node));
  node.append(label(action), cards, place);
  return { node, update: () => { place.textContent = written(action) ?? "Drag one of them here"; } };
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
  const { node } = popup(actions[0].element, actions[0].opener ?? (isHover ? "Explore" : "Menu"), entries, isHover);
  const update = () => {
    for (const entry of entries) if (entry.action !== null) entry.node.disabled = !can(entry.action);
  };
  return { node, update };
}

// --- what is typed, drawn or picked -------------------------------------------------------------------

function textBox(action, className, tag = "input") {
  const node = element("label", className);
  const box = control(tag, action.element, "");
  if (tag === "input") box.type = action.face === "password" ? "password" : "text";
  box.autocomplete = "off";
  node.append(label(action), box);
  return { node, box };
}

function field(action) {
  const { node, box } = textBox(action, "field", action.face === "textarea" ? "textarea" : "input");
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
  box.placeholder = action.label;
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
  const value = element("output", "value", "");
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
    closeAll(panel);
    panel.hidden = !opens;
    turn((written(action) || days[0]).slice(0, 7));
  });
  const update = () => {
    opener.lastChild.textContent = written(action) || "choose a day";
    opener.disabled = !can(action, days[0]);
  };
  return { node, update };
}
