"""Actions by the widget that they look like: written into an fsm.json, read from it, and done by hand.

`generate` and `shop` put their machines together from `action`, `condition`, `effect` and `control`.
`widget_of` finds the widget in a gui_procedure; `render` hands it to the page's scripts, and `gui_steps`
returns the work of mouse and keyboard. What there is to each widget stands in widgets.toml.
Paper: AutoWebWorld, appendix A.1.4, and the idioms of the released files (click, type and Enter is a search,
hover and click a menu ...). Deviation: only the procedure counts, not its words, but for "slider", and a
parameter `widget` that is a key of WIDGETS.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minirl.types import Json
from minirl.worlds.fsm_file import Action, Fsm, load_fsm
from minirl.worlds.interpreter import State, World, parameter_values
from minirl.worlds.looks import read_table, style_of
from minirl.worlds.search import Step, interceptors

SELECTOR = re.compile(r"([#.][A-Za-z_][\w-]*)+( ([#.][A-Za-z_][\w-]*)+)*")
WIDGETS = read_table("widgets")
Offered = Sequence[Any] | Json  # values, or a `bind` as in an fsm.json


def action(
    id: str,
    page: str,
    control: Json,
    to: str = "",
    gates: Sequence[Json] = (),
    effects: Sequence[Json] = (),
) -> Json:
    """Return an action that stays on `page`, or goes `to` another one, once all conditions `gates` hold."""
    return {
        "id": id,
        "from": page,
        "to": to or page,
        "is_navigation": bool(to),
        **control,
        "preconditions": list(gates),
        "effects": [*control.get("effects", ()), *effects],
    }


def condition(field: str, cond: str, value: Any = None) -> Json:
    return {"path": f"$.{field}", "cond": cond, "value": value}


def effect(op: str, field: str, **more: Any) -> Json:
    return {"op": op, "path": f"$.{field}", **more}


def control(kind: str, selector: str, field: str = "", offered: Offered = ()) -> Json:
    """Return the part of an action that a widget decides. `selector` is the element that is touched first,
    `offered` is the range of choices, and `field` is where the chosen value goes."""
    widget = WIDGETS[kind]
    made = {
        "gui_procedure": [_filled_in(step, selector) for step in widget["procedure"]],
        "parameters": widget.get("parameters", {}),
        "effects": [effect("toggle", field)] if kind == "checkbox" else [],
    }
    if "value" not in widget:
        return made
    value = widget["value"]
    bind = offered
    if not isinstance(bind, dict):
        bind = {"param": value["param"], "values": list(offered)}
    param = bind["param"]
    return made | {
        "name": value["name"],
        "bind": bind,
        "parameters": {param: value["symbol"], **made["parameters"]},
        "effects": [effect("set", field, value_ref=f"{{{param}}}")],
    }


def _filled_in(operation: Mapping[str, str], selector: str, **values: Any) -> Json:
    """Return an operation of widgets.toml with the selector of its element, and values for its {names}."""
    texts = {}
    for key, text in operation.items():
        text = text.replace("@", selector)
        texts[key] = text.format(**values) if values else text
    return texts


class SiteDocument:
    """The pages of a site in the form of an fsm.json, while they are written, and the words on them.

    id_style says how elements are named, as "{page}-{role}". The id of an action is "<page>_<role>".
    """

    def __init__(self, id_style: str):
        self.id_style = id_style
        self.pages = {}  # by id
        self.labels = {}  # by the ids of pages and actions
        self.messages = {}  # by the ids of terminal pages
        self.done = {}  # the types of what the session notes, which all pages carry along

    def add_page(self, id: str, label: str, back: str = "", fields: Json | None = None) -> None:
        """Add a page with these fields and their types, and a button that leads `back`."""
        self.pages[id] = {"id": id, "signature_schema": dict(fields or {}), "actions": []}
        self.labels[id] = label
        if back:
            self.add_action(id, "BACK", "Back", to=back)

    def add_action(self, page: str, role: str, label: str, widget: Json | None = None, **more: Any) -> None:
        """Add an action to a page, by default a button; `more` are arguments of `action`."""
        if widget is None:
            widget = control("button", self.selector(page, role))
        id = f"{page}_{role}"
        self.labels[id] = label
        self.pages[page]["actions"].append(action(id, page, widget, **more))

    def selector(self, page: str, role: str) -> str:
        """Return the selector of the element by which an action is taken."""
        page = page.lower().replace("_", "-")
        role = role.lower().replace("_", "-")
        return "#" + self.id_style.format(page=page, role=role)

    def fields(self, page: str) -> Json:
        """Return the types of a page's fields, to be read or added to."""
        return self.pages[page]["signature_schema"]

    def note(self, flow: str, name: str, type: str = "string|null", **source: str) -> Json:
        """Return the effect by which the session notes done.<flow>.<name>, from the action's `value_ref` or
        the field `value_from`."""
        self.done.setdefault(flow, {})[name] = type
        return effect("set", f"done.{flow}.{name}", **source)

    def machine(self, meta: Json) -> Fsm:
        """Return the machine, which begins on the first page."""
        if self.done:
            for id in self.pages:
                self.fields(id)["done"] = self.done
        pages = list(self.pages.values())
        ends = {"initial_page_id": pages[0]["id"], "terminal_pages": list(self.messages)}
        return load_fsm({"meta": meta | ends, "pages": pages})


@dataclass(frozen=True)
class Widget:
    kind: str  # a key of WIDGETS
    element: str  # the id of the element that is touched first
    item: str = ""  # the class or id of what is chosen then


def widget_of(action: Action, fsm: Fsm) -> Widget:
    """Return the widget that an action's gui_procedure describes. ValueError if no widget has it."""
    steps = [step for step in action.gui_procedure if step["op"] != "key_press"]
    selectors = [str(step["selector"]) for step in steps if "selector" in step]
    first = selectors[0] if selectors else ""
    where = f"{action.source}: {action.id}"
    if not SELECTOR.fullmatch(first):
        raise ValueError(f"{where}: {first[:80]!r} must be like '#some-id' or '.some-class' to be drawn")
    ops = tuple(step["op"] for step in steps)
    named = str(action.parameters.get("widget", ""))
    *outer, last = first.split()
    is_click = ops == ("click",) and named not in WIDGETS
    if is_click and last.startswith(".") and action.open_parameters:
        return Widget("row", target_of(*outer) or f"{action.source.lower()}-rows", target_of(last))
    element = target_of(first)
    if first.startswith("#"):
        element = target_of(first.split()[0])
    # What is called a slider is one only if it is dragged.
    is_named = named in WIDGETS and named != "slider"
    if is_named and (action.bind or "value" not in WIDGETS[named]):
        return Widget(named, element)
    kind = _kind_of_procedure(action, fsm, ops, selectors, named)
    if kind == "":
        raise ValueError(f"{where}: no widget has the procedure {', '.join(ops)}")
    item = ""
    if kind in ("hover", "menu", "choice"):
        item = target_of(selectors[-1].split()[-1])
    return Widget(kind, element, item)


def _kind_of_procedure(
    action: Action, fsm: Fsm, ops: Sequence[str], selectors: Sequence[str], named: str
) -> str:
    """Return the kind of widget that is handled by these operations, "" if there is none. `named` is what the
    action calls it."""
    first = selectors[0]
    match ops:
        case ("click",):
            if action.id in interceptors(fsm):
                return "banner"
            toggles = any(effect.op == "toggle" for effect in action.effects)
            is_box = first.endswith("checkbox") or toggles
            return "checkbox" if is_box and not action.is_navigation else "button"
        case ("type_text",) | ("click", "type_text") | ("click", "click", "type_text"):
            enters = any(step.get("key") == "Enter" for step in action.gui_procedure)
            return "search" if enters and action.name == "search" else "field"
        case ("click", "drag"):
            return "slider" if "slider" in first or named.startswith("slider") else "scroll"
        case ("hover", "click"):
            return "hover"
        case ("click", "click"):
            return "choice" if action.bind else "menu"
    picks_day = any(".day" in selector for selector in selectors)
    if picks_day and len(ops) > 2 and set(ops) == {"click"}:
        return "date"
    return ""


def target_of(*selectors: str) -> str:
    """Return the id that an element is drawn with: "list" for "#list", "card-like" for ".card .like"."""
    return "-".join(re.findall(r"[\w-]+", " ".join(selectors)))


def options_of(action: Action) -> dict[str, str]:
    """Return what a menu offers, by selectors."""
    options = {}
    for step in action.gui_procedure:
        for option in step.get("ui_elements", {}).get("options", []):
            options[str(option["selector"])] = str(option["value"])
    return options


def words_in(name: str) -> list[str]:
    return re.findall("[a-z]+", name.lower())


def gui_steps(world: World, state: State, step: Step) -> list[Json]:
    """Return the mouse and keyboard work of a step, with selectors that find one element each: `click`,
    `hover`, `type_text` (in place of the text that is there), `key_press`, `drag` (a slider's thumb, `to` a
    share of its width) and `scroll` (a list, until the row `to` is its first)."""
    action = world.fsm.pages[state.page].actions[step.action_id]
    params = dict(step.params)
    widget = widget_of(action, world.fsm)
    choices = parameter_values(world, state, step.action_id)
    number = choices.index(params) if action.bind and params in choices else 0
    if widget.kind == "slider":
        # All the way to the left is no value, so that the nth of n values is all the way to the right.
        return [{"op": "drag", "selector": f"#{widget.element}", "to": (number + 1) / len(choices)}]
    value = next(iter(params.values()), None)  # of the open parameter; there is at most one
    if widget.kind == "search" and action.bind and action.bind.collection:
        for record in world.data[action.bind.collection]:
            if record["id"] == value:
                value = record.get("title", value)
                break
    words = {
        "item": widget.item,
        "value": value,
        "number": number,
        "month": str(value)[:7],
        "start": str(value)[:3],
    }
    steps = _turns(world, action, widget.element, number) if widget.kind == "row" else []
    table = WIDGETS[widget.kind]
    for operation in table.get("hand", table.get("procedure")):
        steps.append(_filled_in(operation, f"#{widget.element}", **words))
    return steps


def _turns(world: World, action: Action, element: str, number: int) -> list[Json]:
    """Return the operations that bring a list's row of this number to sight, where lists are shown in parts.
    A list is at its beginning whenever something has changed."""
    size = style_of(world)["page_size"]
    if size == 0 or number < size:
        return []
    others = world.fsm.pages[action.source].actions.values()
    if Widget("scroll", element) in [widget_of(other, world.fsm) for other in others]:
        return []  # such a list is shown whole
    return [{"op": "click", "selector": f"#{element}-page-{number // size}"}]
