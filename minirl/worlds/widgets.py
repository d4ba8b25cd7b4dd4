"""Actions by the widget that they look like: written into an fsm.json, read from it, and done by hand.

`generate` puts its machines together from `action`, `condition`, `effect` and `control`. `widget_of` finds
the widget in a gui_procedure; `render` hands it to the page's scripts, and `gui_steps` returns the work of
mouse and keyboard. What there is to each widget stands in widgets.toml.
Paper: AutoWebWorld, appendix A.1.4, and the idioms of the released files (click, type and Enter is a search,
hover and click a menu ...). Deviation: only the procedure counts, not its words, but for "slider", and a
parameter `widget` that is a key of WIDGETS.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minirl.worlds.fsm_file import Action, Fsm
from minirl.worlds.interpreter import State, World, parameter_values
from minirl.worlds.looks import read_table
from minirl.worlds.search import Step, interceptors

SELECTOR = re.compile(r"([#.][A-Za-z_][\w-]*)+( ([#.][A-Za-z_][\w-]*)+)*")
FACES = {"textarea": "field", "password": "field"}  # widgets that only look different from others
WIDGETS = read_table("widgets")
Json = dict[str, Any]
Offered = Sequence[Any] | Json  # values, or a `bind` as in an fsm.json


def action(
    id: str, page: str, control: Json, to: str = "", gates: Sequence[Json] = (), effects: Sequence[Json] = ()
) -> Json:
    """Return an action that stays on `page`, or goes `to` another one, once all conditions `gates` hold."""
    moves = {"id": id, "from": page, "to": to or page, "is_navigation": bool(to), **control}
    return moves | {"preconditions": list(gates), "effects": [*control.get("effects", ()), *effects]}


def condition(field: str, cond: str, value: Any = None) -> Json:
    return {"path": f"$.{field}", "cond": cond, "value": value}


def effect(op: str, field: str, **more: Any) -> Json:
    return {"op": op, "path": f"$.{field}", **more}


def control(kind: str, selector: str, field: str = "", offered: Offered = ()) -> Json:
    """Return the part of an action that a widget decides. `selector` is the element that is touched first,
    `offered` is the range of choices, and `field` is where the chosen value goes."""
    widget = WIDGETS[kind]
    procedure = [{k: text.replace("@", selector) for k, text in step.items()} for step in widget["procedure"]]
    if "param" not in widget:
        toggles = [effect("toggle", field)] if kind == "checkbox" else []
        return {"gui_procedure": procedure, "effects": toggles, "parameters": widget.get("parameters", {})}
    bind = offered if isinstance(offered, dict) else {"param": widget["param"], "values": list(offered)}
    parameters = {bind["param"]: widget["symbol"], **widget.get("parameters", {})}
    effects = [effect("set", field, value_ref=f"{{{bind['param']}}}")]
    work = {"bind": bind, "effects": effects, "gui_procedure": procedure}
    return {"name": widget["name"], "parameters": parameters, **work}


@dataclass(frozen=True)
class Widget:
    kind: str  # a key of WIDGETS
    element: str  # the id of the element that is touched first
    item: str = ""  # the class or id of what is chosen then
    face: str = ""  # how it looks, where that is not as usual


def widget_of(action: Action, fsm: Fsm) -> Widget:
    """Return the widget that an action's gui_procedure describes. ValueError if no widget has it."""
    steps = [step for step in action.gui_procedure if step["op"] != "key_press"]
    ops = tuple(step["op"] for step in steps)
    selectors = [str(step["selector"]) for step in steps if "selector" in step]
    where, named = f"{action.source}: {action.id}", str(action.parameters.get("widget", ""))
    first = selectors[0] if selectors else ""
    if not SELECTOR.fullmatch(first):
        raise ValueError(f"{where}: {first[:80]!r} must be like '#some-id' or '.some-class' to be drawn")
    *outer, last = first.split()
    if ops == ("click",) and last.startswith(".") and action.open_parameters and named not in WIDGETS:
        return Widget("row", target_of(*outer) if outer else f"{action.source.lower()}-rows", target_of(last))
    element = target_of(first.split()[0] if first.startswith("#") else first)
    if named in WIDGETS and named != "slider" and (action.bind or "param" not in WIDGETS[named]):
        kind = "banner" if named == "toast" else FACES.get(named, named)
        return Widget(kind, element, face=named if named != kind else "")
    match ops:
        case ("click",):
            is_box = first.endswith("checkbox") or any(effect.op == "toggle" for effect in action.effects)
            kind = "checkbox" if is_box and not action.is_navigation else "button"
            return Widget("banner" if action.id in interceptors(fsm) else kind, element)
        case ("type_text",) | ("click", "type_text") | ("click", "click", "type_text"):
            enters = any(step.get("key") == "Enter" for step in action.gui_procedure)
            return Widget("search" if enters and action.name == "search" else "field", element)
        case ("click", "drag"):
            is_slider = "slider" in first or named.startswith("slider")
            return Widget("slider" if is_slider else "scroll", element)
        case ("hover" | "click", "click"):
            kind = "hover" if ops[0] == "hover" else "menu" if action.bind is None else "choice"
            return Widget(kind, element, target_of(selectors[-1].split()[-1]))
    if len(ops) > 2 and set(ops) == {"click"} and any(".day" in one for one in selectors):
        return Widget("date", element)
    raise ValueError(f"{where}: no widget has the procedure {', '.join(ops)}")


def target_of(*selectors: str) -> str:
    """Return the id that an element is drawn with: "list" for "#list", "card-like" for ".card .like"."""
    return "-".join(re.findall(r"[\w-]+", " ".join(selectors)))


def options_of(action: Action) -> dict[str, str]:
    """Return what a menu offers, by selectors."""
    given = [step.get("ui_elements", {}).get("options", []) for step in action.gui_procedure]
    return {str(option["selector"]): str(option["value"]) for options in given for option in options}


def words_in(name: str) -> list[str]:
    return re.findall("[a-z]+", name.lower())


def gui_steps(world: World, state: State, step: Step) -> list[dict[str, Any]]:
    """Return the mouse and keyboard work of a step, with selectors that find one element each: `click`,
    `hover`, `type_text` (in place of the text that is there), `key_press`, `drag` (a slider's thumb, `to` a
    share of its width) and `scroll` (a list, until the row `to` is its first)."""
    action, params = world.fsm.pages[state.page].actions[step.action_id], dict(step.params)
    widget = widget_of(action, world.fsm)
    # The value that the visitor chooses; there is at most one.
    value = next((params[name] for name in action.open_parameters if name in params), None)
    choices = parameter_values(world, state, step.action_id)
    number = choices.index(params) if action.bind and params in choices else 0
    if widget.kind == "slider":
        # All the way to the left is no value, so that the nth of n values is all the way to the right.
        return [{"op": "drag", "selector": f"#{widget.element}", "to": (number + 1) / len(choices)}]
    if widget.kind == "search" and action.bind and action.bind.collection:  # by title
        found = (record for record in world.data[action.bind.collection] if record["id"] == value)
        value = next((record["title"] for record in found if "title" in record), value)
    if widget.kind == "date" and value is None:  # the one day that the file names
        named = action.parameters
        value = f"{named.get('year', 2026)}-{named.get('month', 1):02}-{named.get('day', 1):02}"
    values = {"item": widget.item, "value": value, "number": number}
    values |= {"month": str(value)[:7], "start": str(value)[:3]}
    turns = _turns(world, action, number) if widget.kind == "row" else []
    return turns + [
        {name: text.replace("@", f"#{widget.element}").format(**values) for name, text in operation.items()}
        for operation in WIDGETS[widget.kind]["hand"]
    ]


def _turns(world: World, action: Action, number: int) -> list[dict[str, Any]]:
    """Return the operations that bring a list's row of this number to sight, where lists are shown in parts.
    A list is at its beginning whenever something has changed."""
    element, others = widget_of(action, world.fsm).element, world.fsm.pages[action.source].actions.values()
    kinds = {widget_of(one, world.fsm) for one in others}
    paging = world.style.get("paging", {"kind": "all", "size": 1})
    page = number // paging["size"]
    if world.style.get("look") != "pages" or paging["kind"] == "all" or Widget("scroll", element) in kinds:
        return []
    if paging["kind"] == "more":
        return [{"op": "click", "selector": f"#{element}-more"}] * page
    if paging["kind"] == "endless":  # its end is scrolled to, and what is shown grows on the way
        return [{"op": "hover", "selector": f"#{element}-end"}] * min(page, 1)
    return [{"op": "click", "selector": f"#{element}-page-{page}"}] * min(page, 1)
