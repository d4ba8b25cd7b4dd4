"""Bindings for released site files, which name no records: guessed from names, and every guess is reported.

Where it stands: `python -m minirl.worlds render` turns an fsm.json, with or without data, into a World.

Paper: AutoWebWorld's released code infers the same from names, anew in every stage and without a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from minirl.worlds.fsm_file import Action, Bind, Fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES
from minirl.worlds.widgets import widget_of

INVENTED = 12  # records of a collection that no data are given for
TITLES = ("title", "name", "content", "body", "label")  # fields that can head a record
FILLS = ("#c94f4f", "#4a7fc1", "#4f9d69", "#d98a3d", "#8a5fb8")


def world_of(name: str, fsm: Fsm, data: Mapping[str, Any]) -> tuple[World, list[str]]:
    """Return the site with a binding wherever a list is shown, and a line for each guess."""
    records = {key: _records(key, value) for key, value in data.items()}
    bound = fsm.rebound(lambda action: action.bind or _bind(action, fsm, records))
    guesses = []
    for old, action in zip(fsm.actions, bound.actions, strict=True):
        collection = action.bind.collection if action.bind else ""
        if action.bind and old.bind is None:
            guesses.append(f"{action.source}: {action.id}: {action.bind.param} is one of {collection}")
        if collection and collection not in records:
            one = collection.removesuffix("s")
            title = one.replace("_", " ").capitalize()
            made = [{"id": f"{one}_{n}", "title": f"{title} {n}"} for n in range(1, INVENTED + 1)]
            records[collection] = _records(collection, made)
            guesses.append(f"{collection}: there are no data, so {INVENTED} records are invented")
    return World(name, bound, records, {"look": "pages"}), guesses


def _bind(action: Action, fsm: Fsm, records: Mapping[str, Any]) -> Bind | None:
    """Return the binding of an action on an item of a list, or None. Its collection is named after the rows
    of its page, else after its own parameter."""
    if not action.open_parameters or widget_of(action, fsm).kind not in ("row", "search", "scroll"):
        return None
    others = fsm.pages[action.source].actions.values()
    rows = [one for one in others if one.open_parameters and widget_of(one, fsm).kind == "row"]
    fields = []
    for one in (*rows, action):
        param = one.open_parameters[0]
        fields += [param, *(effect.path[-1] for effect in one.effects if effect.ref == param)]
    affixes = r"^(selected|matched|current)_|(_viewport_anchor)?_id$"  # selected_video_id -> video
    names = [re.sub(affixes, "", field) for field in fields if field != "item_id"] or [action.source.lower()]
    plurals = [plural for name in names for plural in (f"{name}s", f"{name[:-1]}ies", f"{name}es", name)]
    return Bind(action.open_parameters[0], next((one for one in plurals if one in records), plurals[0]))


def _records(collection: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Return the records with titles, and with pictures in place of those that they may name."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("id") for one in value):
        raise ValueError(f"data: {collection!r} must be a list of records, each with an id")
    out = []
    for n, record in enumerate(value):
        title = next((str(record[name]) for name in TITLES if record.get(name)), record["id"])
        looks = {"title": title, "shape": SHAPES[n % len(SHAPES)], "fill": FILLS[n % len(FILLS)]}
        out.append({**record, **looks})
    return tuple(out)
