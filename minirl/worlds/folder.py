"""Sites as folders: fsm.json, data.json, style.json, and index.html to open in a browser.

Where it stands: `make` writes and `replay` reads them. fsm.json is in the released form,
which `check`, `solve` and other people's tools read too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from minirl.run_folder import write_atomic
from minirl.worlds.fsm_file import document_of, load_fsm, read_json
from minirl.worlds.interpreter import World
from minirl.worlds.render import render
from minirl.worlds.replay import Outcome


def save_world(world: World, folder: Path) -> None:
    """Write a site's four files."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = {"fsm": document_of(world.fsm), "data": world.data, "style": world.style}
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False, default=list)
        write_atomic(folder / f"{name}.json", text.encode())
    write_atomic(folder / "index.html", render(world))


def load_world(folder: Path) -> World:
    """Return the site in a folder; data.json and style.json may be absent. Raises ValueError."""
    paths = (folder / "data.json", folder / "style.json")
    data, style = (read_json(path) if path.is_file() else {} for path in paths)
    collections = {name: tuple(records) for name, records in data.items()}
    return World(folder.name.lower(), load_fsm(folder / "fsm.json"), collections, style)


def save_outcomes(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write a line of steps.jsonl for every trajectory, and the pictures that it names by their hashes."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    lines = []
    for outcome in outcomes:
        steps = []
        for one in outcome.replay.grounded:
            names = {}
            for when, picture in (("before", one.before), ("after", one.after)):
                names[when] = hashlib.sha256(picture).hexdigest()[:20] if picture else ""
                if picture:
                    write_atomic(folder / "pictures" / f"{names[when]}.png", picture)
            steps.append({**asdict(one), "center": one.center, **names})
        path = [{"action_id": step.action_id, "params": step.params} for step in outcome.replay.steps]
        line = {"world": outcome.world, "terminal": outcome.terminal, "path": path, "steps": steps}
        lines.append(json.dumps(line) + "\n")
    write_atomic(folder / "steps.jsonl", "".join(lines).encode())
