"""The benchmark: a fixed list of sites and their tasks, on themes and skins that no training site has.

    bench.json --make--> site, tasks --digest--> as listed? --> OUT/SITE/tasks.jsonl --> python eval.py

All that a site shows is drawn from this package's own tables, so a digest tells whether another version of
them makes another site. Each task is solved by search when it is made; tests/bench/worlds.py has written the
list, and has acted the solutions out. Paper: AutoWebWorld has no such benchmark; its section 5 uses others'.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from minirl.types import Task
from minirl.worlds.fsm_file import document_of
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import World
from minirl.worlds.search import solve
from minirl.worlds.tables import text_of
from minirl.worlds.tasks import make_tasks
from minirl.worlds.widgets import widget_of

LIST: list[dict[str, Any]] = json.loads(text_of("bench.json"))


def make(place: Mapping[str, Any]) -> tuple[World, list[Task]]:
    """Return one of the list's sites and its tasks, whose meta names the widgets that they take. ValueError
    if they are not what the place's `digest`, if it has one, was made of."""
    site = {name: value for name, value in place.items() if name != "digest"}
    world, tasks = make_site(**site), list[Task]()
    actions = {action.id: widget_of(action, world.fsm) for action in world.fsm.actions}
    for task in make_tasks(world):
        used = {actions[step.action_id] for step in solve(world, task.goal) or []}
        kinds = sorted({widget.face or widget.kind for widget in used})
        tasks.append(replace(task, meta={**task.meta, "widgets": kinds}))
    if "digest" in place and digest(world, tasks) != place["digest"]:
        raise ValueError(f"{world.name} is not the benchmark's any more: install the minirl that it is of")
    return world, tasks


def digest(world: World, tasks: list[Task]) -> str:
    """Return a hash of all that a site is and shows, and of its tasks."""
    document = [document_of(world.fsm), world.data, world.style, [asdict(task) for task in tasks]]
    text = json.dumps(document, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()
