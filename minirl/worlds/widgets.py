"""What an action looks like on the screen, and what a hand does to take it.

Where it stands: `widget_of` reads a gui_procedure; `site` tells runtime and drawing the result, and
`gui_steps` says for one step of a solution which elements are to be clicked, hovered over, dragged, scrolled
and typed into.

Paper: AutoWebWorld, appendix A.1.4, and the idioms of the released files (click and type and Enter is a
search, click and drag a slider or a list, hover and click a menu ...). Deviation: what a procedure does not
say is not guessed from its words, except whether something dragged is a slider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from minirl.worlds.fsm_file import Action, Fsm
from minirl.worlds.interpreter import State, World, parameter_values
from minirl.worlds.reading import shown
from minirl.worlds.search import Step, interceptors

Kind = Literal[
    "button",
    "banner",
    "row",
    "checkbox",
    "choice",
    "menu",
    "hover",
    "search",
    "field",
    "slider",
    "scroll",
    "date",
]
_ID = re.compile(r"#([A-Za-z_][\w-]*)")
_WITHIN = re.compile(r"#([A-Za-z_][\w-]*) \.([A-Za-z_][\w-]*)")


@dataclass(frozen=True)
class Widget:
    """`element` is the id of what the hand touches first, `item` the class or id of what it chooses then."""

    kind: Kind
    element: str
    item: str = ""


def widget_of(action: Action, fsm: Fsm) -> Widget:
    """Raises ValueError for a procedure that none of the widgets has."""
    ops = tuple(step["op"] for step in action.gui_procedure if step["op"] != "key_press")
    enters = any(step.get("key") == "Enter" for step in action.gui_procedure)
    selectors = [
        str(s["selector"]) for s in action.gui_procedure if s["op"] != "key_press" and "selector" in s
    ]
    where = f"{action.source}: {action.id}"
    if not selectors:
        raise ValueError(f"{where}: its gui_procedure names no element")
    first, last = selectors[0], selectors[-1]
    if ops == ("click",):
        if within := _WITHIN.fullmatch(first):
            return Widget("row", within[1], within[2])
        if action.id in interceptors(fsm):
            return Widget("banner", _id(first, where))
        is_box = first.endswith("checkbox") or any(effect.op == "toggle" for effect in action.effects)
        return Widget("checkbox" if is_box and not action.is_navigation else "button", _id(first, where))
    opener = _id(first, where)
    if ops in (("click", "type_text"), ("click", "click", "type_text"), ("type_text",)):
        return Widget("search" if enters and action.name == "search" else "field", opener)
    if ops == ("click", "drag"):
        is_slider = "slider" in first or str(action.parameters.get("widget", "")).startswith("slider")
        return Widget("slider" if is_slider else "scroll", opener)
    if ops == ("hover", "click"):
        return Widget("hover", opener, target_of(last))
    if ops == ("click", "click"):
        return Widget("choice" if action.bind is not None else "menu", opener, target_of(last))
    if len(ops) > 2 and set(ops) == {"click"} and any(".day" in selector for selector in selectors):
        return Widget("date", opener)
    raise ValueError(f"{where}: no widget has the procedure {', '.join(ops)}")


def _id(selector: str, where: str) -> str:
    found = _ID.fullmatch(selector)
    if found is None:
        raise ValueError(f"{where}: {shown(selector)} must be like '#some-id' to be drawn")
    return found[1]


def target_of(selector: str) -> str:
    """The id, or the class within, of what a menu offers."""
    return selector.split()[-1].lstrip("#.")


# --- what a hand does ---------------------------------------------------------------------------------


def gui_steps(world: World, state: State, step: Step) -> list[dict[str, Any]]:
    """The mouse and keyboard work of a step in a state, with selectors that find one element each: `click`,
    `hover`, `type_text` (which replaces what is there), `key_press`, `drag` (a slider's thumb, `to` a share
    of its width) and `scroll` (a list, until the row `to` is its first)."""
    action = world.fsm.pages[state.page].actions[step.action_id]
    widget = widget_of(action, world.fsm)
    element = f"#{widget.element}"
    value = _chosen(action, step)
    match widget.kind:
        case "button" | "banner" | "checkbox":
            return [_do("click", element)]
        case "row":
            return [_do("click", f"{element} .{widget.item}.data-id-{value}")]
        case "menu":
            return [_do("click", element), _do("click", f"[id='{widget.item}'], {element} .{widget.item}")]
        case "hover":
            return [_do("hover", element), _do("click", f"[id='{widget.item}'], {element} .{widget.item}")]
        case "choice":
            number = _index(world, state, step)
            return [_do("click", element), _do("click", f"{element}-options [data-index='{number}']")]
        case "field":
            return [_do("click", element), _do("type_text", element, text=str(value))]
        case "search":
            text = _title(world, action, value)
            return [
                _do("click", element),
                _do("type_text", element, text=text),
                {"op": "key_press", "key": "Enter"},
            ]
        case "slider":
            if action.bind is None:
                return [_do("drag", element, to=1.0)]
            count = len(parameter_values(world, state, step.action_id))  # and one place for none
            return [_do("drag", element, to=(_index(world, state, step) + 1) / count)]
        case "scroll":
            return [_do("scroll", element, to=f"{element} .data-id-{value}")]
        case "date":
            if value is None:  # the one day that the file names
                named = action.parameters
                value = f"{named.get('year', 2026)}-{named.get('month', 1):02}-{named.get('day', 1):02}"
            month = str(value)[:7]
            panel = f"{element}-panel"
            return [
                _do("click", element),
                _do("click", f"{panel} .month[data-value='{month}']"),
                _do("click", f"{panel} .day[data-value='{value}']"),
            ]
    raise AssertionError(widget.kind)


def _do(op: str, selector: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "selector": selector, **more}


def _chosen(action: Action, step: Step) -> Any:
    """The value of the parameter that the visitor gives; there is at most one."""
    return next((step.params[name] for name in action.open_parameters if name in step.params), None)


def _index(world: World, state: State, step: Step) -> int:
    return parameter_values(world, state, step.action_id).index(dict(step.params))


def _title(world: World, action: Action, id: Any) -> str:
    records = world.data[action.bind.collection] if action.bind else ()
    found: Mapping[str, Any] = next((record for record in records if record["id"] == id), {})
    return str(found.get("title", id))
