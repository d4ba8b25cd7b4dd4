"""Released site files name no records: what their actions' parameters stand for is guessed, and said.

Where it stands: `python -m minirl.worlds render FILE` turns an fsm.json, with or without its data, into a
World that `site` draws. Sites of our own say it themselves (`bind`), and never come here.

Paper: AutoWebWorld's released code infers the same from names, anew in every stage and without telling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minirl.worlds.fsm_file import Action, Bind, Fsm, Page
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES
from minirl.worlds.widgets import widget_of

INVENTED = 12  # records of a collection that no data are given for
TITLES = ("title", "name", "content", "body", "label")  # fields that can head a record
LISTED = ("row", "search", "scroll")
FILLS = ("#c94f4f", "#4a7fc1", "#4f9d69", "#d98a3d", "#8a5fb8")


def world_of(name: str, fsm: Fsm, data: Mapping[str, Any]) -> tuple[World, list[str]]:
    """The site with a binding wherever a list is shown, and a line for each guess.

    Raises ValueError for data that are no collections of records.
    """
    records = {key: _records(key, value) for key, value in data.items()}
    guesses: list[str] = []
    pages = {}
    for page in fsm.pages.values():
        actions = {}
        for action in page.actions.values():
            bind = action.bind or _bind(action, page, fsm, records)
            if bind is not action.bind:
                guesses.append(f"{page.id}: {action.id}: {bind.param} is one of {bind.collection}")
            actions[action.id] = replace(action, bind=bind)
        pages[page.id] = replace(page, actions=actions)
    fsm = replace(fsm, pages=pages)
    for action in fsm.actions:
        collection = action.bind.collection if action.bind else ""
        if collection and collection not in records:
            records[collection] = _invented(collection)
            guesses.append(f"{collection}: there are no data, so {INVENTED} records are invented")
    return World(name, fsm, records, {"look": "pages"}), guesses


def _bind(action: Action, page: Page, fsm: Fsm, records: Mapping[str, Any]) -> Bind | None:
    """For an action about an item of a list: what the rows of its page are called, else it itself."""
    if not action.open_parameters or widget_of(action, fsm).kind not in LISTED:
        return None
    rows = [a for a in page.actions.values() if a.open_parameters and widget_of(a, fsm).kind == "row"]
    names = [_singular(name) for one in (*rows, action) for name in _names(one) if name != "item_id"]
    param = action.open_parameters[0]
    for name in names:
        for collection in records:
            if collection in _plurals(name):
                return Bind(param, collection)
    return Bind(param, _plurals(names[0] if names else page.id.lower())[0])


def _names(action: Action) -> list[str]:
    param = action.open_parameters[0]
    return [param, *(effect.path[-1] for effect in action.effects if effect.ref == param)]


def _singular(name: str) -> str:
    """selected_video_id -> video"""
    return re.sub(r"^(selected|matched|current)_|(_viewport_anchor)?_id$", "", name)


def _plurals(name: str) -> tuple[str, ...]:
    return (f"{name}s", f"{name[:-1]}ies", f"{name}es", name)


def _records(collection: str, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(record, Mapping) for record in value):
        raise ValueError(f"data: {collection!r} must be a list of records")
    out = []
    for n, record in enumerate(value):
        if not isinstance(record.get("id"), str):
            raise ValueError(f"data: {collection}[{n}] needs an id")
        title = next((str(record[name]) for name in TITLES if record.get(name)), record["id"])
        plain = {k: v for k, v in record.items() if k not in ("shape", "fill", "swatch")}
        out.append({**plain, "title": title, **_picture(n)})
    return tuple(out)


def _invented(collection: str) -> tuple[dict[str, Any], ...]:
    one = collection.removesuffix("s")
    return tuple(
        {"id": f"{one}_{n}", "title": f"{one.replace('_', ' ').capitalize()} {n}", **_picture(n)}
        for n in range(1, INVENTED + 1)
    )


def _picture(n: int) -> dict[str, str]:
    return {"shape": SHAPES[n % len(SHAPES)], "fill": FILLS[n % len(FILLS)]}
