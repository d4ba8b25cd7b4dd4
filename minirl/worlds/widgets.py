"""Actions by the widget that they look like: written into an fsm.json, read from it, and done by hand.

`generate` puts its machines together from `action`, `condition`, `effect` and `control`. `widget_of` finds
the widget in a gui_procedure; `render` hands it to the page's scripts, and `gui_steps` returns the work of
mouse and keyboard. What there is to each widget stands in widgets.toml.

Paper: AutoWebWorld, appendix A.1.4, and the idioms of the released files (click, type and Enter is a search,
hover and click a menu ...). Deviation: only the procedure counts, not its words, but for "slider".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from minirl.worlds.fsm_file import Action, Fsm
from minirl.worlds.interpreter import State, World, parameter_values
from minirl.worlds.search import Step, interceptors

NAME = r"([A-Za-z_][\w-]*)"
WIDGETS = tomllib.loads(files("minirl.worlds").joinpath("widgets.toml").read_text(encoding="utf-8"))
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
    if kind in ("button", "checkbox"):
        toggles = [effect("toggle", field)] if kind == "checkbox" else []
        return {"gui_procedure": procedure, "effects": toggles}
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


def widget_of(action: Action, fsm: Fsm) -> Widget:
    """Return the widget that an action's gui_procedure describes. ValueError if no widget has it."""
    steps = [step for step in action.gui_procedure if step["op"] != "key_press"]
    ops = tuple(step["op"] for step in steps)
    selectors = [str(step["selector"]) for step in steps if "selector" in step]
    where = f"{action.source}: {action.id}"
    first = selectors[0] if selectors else ""
    element = first[1:]
    if ops == ("click",) and (within := re.fullmatch(f"#{NAME} \\.{NAME}", first)):
        return Widget("row", within[1], within[2])
    if not re.fullmatch(f"#{NAME}", first):
        raise ValueError(f"{where}: {first[:80]!r} must be like '#some-id' to be drawn")
    match ops:
        case ("click",):
            is_box = first.endswith("checkbox") or any(effect.op == "toggle" for effect in action.effects)
            kind = "checkbox" if is_box and not action.is_navigation else "button"
            return Widget("banner" if action.id in interceptors(fsm) else kind, element)
        case ("type_text",) | ("click", "type_text") | ("click", "click", "type_text"):
            enters = any(step.get("key") == "Enter" for step in action.gui_procedure)
            return Widget("search" if enters and action.name == "search" else "field", element)
        case ("click", "drag"):
            is_slider = "slider" in first or str(action.parameters.get("widget", "")).startswith("slider")
            return Widget("slider" if is_slider else "scroll", element)
        case ("hover", "click"):
            return Widget("hover", element, target_of(selectors[-1]))
        case ("click", "click"):
            return Widget("menu" if action.bind is None else "choice", element, target_of(selectors[-1]))
    if len(ops) > 2 and set(ops) == {"click"} and any(".day" in one for one in selectors):
        return Widget("date", element)
    raise ValueError(f"{where}: no widget has the procedure {', '.join(ops)}")


def target_of(selector: str) -> str:
    return selector.split()[-1].lstrip("#.")


def gui_steps(world: World, state: State, step: Step) -> list[dict[str, Any]]:
    """Return the mouse and keyboard work of a step, with selectors that find one element each: `click`,
    `hover`, `type_text` (in place of the text that is there), `key_press`, `drag` (a slider's thumb, `to` a
    share of its width) and `scroll` (a list, until the row `to` is its first)."""
    action, params = world.fsm.pages[state.page].actions[step.action_id], dict(step.params)
    widget = widget_of(action, world.fsm)
    # The value that the visitor chooses; there is at most one.
    value = next((params[name] for name in action.open_parameters if name in params), None)
    choices, number = parameter_values(world, state, step.action_id), 0
    if action.bind and widget.kind in ("choice", "slider"):
        number = choices.index(params)
    if widget.kind == "slider":
        # All the way to the left is no value, so that the nth of n values is all the way to the right.
        return [{"op": "drag", "selector": f"#{widget.element}", "to": (number + 1) / len(choices)}]
    if widget.kind == "search" and action.bind and action.bind.collection:  # by title
        found = (record for record in world.data[action.bind.collection] if record["id"] == value)
        value = next((record["title"] for record in found if "title" in record), value)
    if widget.kind == "date" and value is None:  # the one day that the file names
        named = action.parameters
        value = f"{named.get('year', 2026)}-{named.get('month', 1):02}-{named.get('day', 1):02}"
    values = {"item": widget.item, "value": value, "number": number, "month": str(value)[:7]}
    return [
        {name: text.replace("@", f"#{widget.element}").format(**values) for name, text in operation.items()}
        for operation in WIDGETS[widget.kind]["hand"]
    ]
