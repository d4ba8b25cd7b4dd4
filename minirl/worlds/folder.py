"""Sites as folders: fsm.json, data.json, style.json, and index.html to open in a browser.

Where it stands: what `python -m minirl.worlds make` writes and `replay` reads. fsm.json is in the released
form, so that `check` and `solve`, and other people's tools, read it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.run_folder import write_atomic
from minirl.worlds.fsm_file import Action, Bind, Condition, Effect, Fsm, load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import render
from minirl.worlds.replay import Outcome


def save_world(world: World, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"fsm": document_of(world.fsm), "data": world.data, "style": world.style}
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False, default=list)
        write_atomic(folder / f"{name}.json", text.encode())
    write_atomic(folder / "index.html", render(world))


def load_world(folder: Path) -> World:
    """Raises ValueError that names the file."""
    parts: dict[str, Any] = {}
    for name in ("data", "style"):
        path = folder / f"{name}.json"
        try:
            parts[name] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{path}: not a readable JSON file: {error}") from None
        if not isinstance(parts[name], Mapping):
            raise ValueError(f"{path}: must be an object")
    data = {name: tuple(records) for name, records in parts["data"].items()}
    return World(folder.name.lower(), load_fsm(folder / "fsm.json"), data, parts["style"])


def document_of(fsm: Fsm) -> dict[str, Any]:
    """The machine as `load_fsm` reads it."""
    meta = {"app": fsm.app, "initial_page_id": fsm.initial_page, "terminal_pages": list(fsm.terminal_pages)}
    pages = [
        {
            "id": page.id,
            "signature_schema": page.schema,
            "defaults": page.defaults,
            "actions": [_action(action) for action in page.actions.values()],
        }
        for page in fsm.pages.values()
    ]
    return {"meta": {**fsm.meta, **meta}, "pages": pages}


def save_outcomes(outcomes: Sequence[Outcome], folder: Path) -> None:
    """One line of steps.jsonl for every trajectory, and the pictures that it names by their hashes."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    lines = []
    for outcome in outcomes:
        steps = []
        for one in outcome.replay.grounded:
            record = {"action_id": one.action_id, "op": one.op, "selector": one.selector, "text": one.text}
            record |= {"box": one.box, "center": one.center}
            for name, picture in (("before", one.before), ("after", one.after)):
                record[name] = hashlib.sha256(picture).hexdigest()[:20] if picture else ""
                if picture:
                    write_atomic(folder / "pictures" / f"{record[name]}.png", picture)
            steps.append(record)
        path = [{"action_id": step.action_id, "params": step.params} for step in outcome.replay.steps]
        line = {"world": outcome.world, "terminal": outcome.terminal, "path": path, "steps": steps}
        lines.append(json.dumps(line))
    write_atomic(folder / "steps.jsonl", "".join(f"{line}\n" for line in lines).encode())


def _action(action: Action) -> dict[str, Any]:
    out = {
        "id": action.id,
        "name": action.name,
        "is_navigation": action.is_navigation,
        "from": action.source,
        "to": action.target,
        "parameters": action.parameters,
        "preconditions": [_condition(condition) for condition in action.preconditions],
        "effects": [_effect(effect) for effect in action.effects],
        "gui_procedure": list(action.gui_procedure),
    }
    return out | ({"bind": _bind(action.bind)} if action.bind else {})


def _condition(condition: Condition) -> dict[str, Any]:
    return {"path": _path(condition.path), "cond": condition.cond, "value": condition.value}


def _effect(effect: Effect) -> dict[str, Any]:
    out: dict[str, Any] = {"op": effect.op, "path": _path(effect.path)}
    if effect.ref is not None:
        out["value_ref"] = f"{{{effect.ref}}}"
    elif effect.expr is not None:
        out["value_expr"] = effect.expr
    elif effect.op not in ("clear", "toggle", "inc"):
        out["value"] = effect.value
    return out | ({"by": effect.by} if effect.op == "inc" else {})


def _bind(bind: Bind) -> dict[str, Any]:
    if not bind.collection:
        return {bind.param: {"values": list(bind.values)}}
    order = {"order": bind.order} if bind.order else {}
    return {bind.param: {"collection": bind.collection, "where": bind.where, **order}}


def _path(path: tuple[str, ...]) -> str:
    return "$." + ".".join(path)
