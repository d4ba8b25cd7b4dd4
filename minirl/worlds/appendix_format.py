"""The site files that AutoWebWorld's paper describes, translated into those that were released.

Where it stands: `schema.load_fsm` asks `is_appendix_form`, and reads what `translate` returns. There is no
second reader: a defect is reported at its place in the translated file.

Paper: AutoWebWorld, appendix A.1 and A.3: pages and actions are objects by id, a page's `signature` holds
literal defaults, actions have `params` and `to_page_id`, conditions an `op` such as "==", effects an `op`
such as "assign". The released files have none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minirl.worlds.reading import Malformed, is_number, is_placeholder, readable, shown, taken

CONDITIONS = {"==": "eq", "=": "eq", "!=": "neq", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
EFFECTS = {
    "assign": "set", "switch": "set", "increment": "inc", "add": "inc", "decrement": "dec",
    "insert": "append_unique", "append": "append_unique", "delete": "remove", "reset": "clear",
}  # fmt: skip
PAGE_KEYS = ("from", "from_page_id", "page_id")  # where an action may say on which page it is


def is_appendix_form(document: Any) -> bool:
    pages = document.get("pages") if isinstance(document, Mapping) else None
    return isinstance(pages, Mapping) and len(pages) > 0


def translate(document: Mapping[str, Any], place: str, note: Callable[[Malformed], None]) -> dict[str, Any]:
    """The same machine in the released form. Pages that can't be translated are told to `note`."""
    actions = taken(document, "actions", Mapping, place, {})
    entries = ((f"{place}: pages {id}", (id, page)) for id, page in document["pages"].items())
    pages = readable(entries, lambda entry, where: _page(*entry, actions, where, note), note)
    listed = {action["id"] for page in pages for action in page["actions"] if isinstance(action, Mapping)}
    for id in actions:
        if id not in listed:
            note(Malformed(f"{place}: actions {id}", "is on no page"))
    return {**document, "pages": pages}


def _page(
    id: str, page: Any, actions: Mapping[str, Any], place: str, note: Callable[[Malformed], None]
) -> dict[str, Any]:
    signature = taken(page, "signature", Mapping, place, {})
    ids = list(taken(page, "actions", list, place, []))
    for action_id, action in actions.items():
        is_here = isinstance(action, Mapping) and any(action.get(key) == id for key in PAGE_KEYS)
        if is_here and action_id not in ids:
            ids.append(action_id)
    entries = ((f"{place}: {shown(one)}", one) for one in ids)
    translated = readable(entries, lambda one, where: _action(one, actions, id, where), note)
    return {
        "id": id,
        "signature_schema": {name: _type(value) for name, value in signature.items()},
        "defaults": dict(signature),
        "actions": translated,
    }


def _type(value: Any) -> Any:
    """The type that a default stands for.

    >>> _type(1), _type(True), _type(None), _type({"sort": "price"})
    ('integer', 'boolean', 'any|null', {'sort': 'string'})
    """
    if isinstance(value, Mapping):
        return {name: _type(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return "array<any>"
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return names.get(type(value), "any|null")


def _action(id: Any, actions: Mapping[str, Any], page: str, place: str) -> dict[str, Any]:
    action = id
    if isinstance(id, Mapping):  # written out where it belongs
        id = taken(id, "id", str, place)
    elif not isinstance(id, str) or id not in actions:
        raise Malformed(place, "is not among the actions")
    else:
        action = actions[id]
    if not isinstance(action, Mapping):
        raise Malformed(place, f"must be an object, not {shown(action)}")
    params = action.get("params", action.get("parameters", {}))
    if isinstance(params, list):
        params = {str(name): f"{{{name}}}" for name in params}
    if not isinstance(params, Mapping):
        raise Malformed(place, f"'params' must be an object or a list, not {shown(params)}")
    target = action.get("to_page_id", action.get("to")) or page
    out = {
        "id": id,
        "name": action.get("name", "click"),
        "from": page,
        "to": target,
        "is_navigation": action.get("is_navigation", target != page),
        "parameters": params,
        "preconditions": [_condition(one) for one in taken(action, "preconditions", list, place, [])],
        "effects": [_effect(one, params) for one in taken(action, "effects", list, place, [])],
        "gui_procedure": action.get("gui_procedure", []),
    }
    return out | ({"bind": action["bind"]} if "bind" in action else {})


def _condition(condition: Any) -> Any:
    if not isinstance(condition, Mapping) or "cond" in condition:
        return condition
    op = condition.get("op")
    return {**condition, "cond": CONDITIONS.get(op, op) if isinstance(op, str) else op}


def _effect(effect: Any, params: Any) -> Any:
    if not isinstance(effect, Mapping) or not isinstance(effect.get("op"), str):
        return effect
    op, out = EFFECTS.get(effect["op"], effect["op"]), dict(effect)
    if op == "dec":
        by = effect.get("by", 1)
        op, out["by"] = "inc", -by if is_number(by) else by
    value = effect.get("value")
    if is_placeholder(value) and value[1:-1] in params:
        out["value_ref"] = value
    return {**out, "op": op}
