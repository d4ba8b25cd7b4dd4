"""Solutions acted out in Chromium: sound sites are followed to the end, and broken ones are caught."""

import asyncio
import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image
from walking import walk
from worlds_command import main

from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.run_folder import save_tasks
from minirl.worlds import render
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.hand import OPERATIONS
from minirl.worlds.interpreter import World, apply, enabled, initial_state, parameter_values
from minirl.worlds.render import SiteServer, save_world
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.search import Step
from minirl.worlds.solutions import solution_of
from minirl.worlds.tasks import make_tasks
from minirl.worlds.widgets import WIDGETS, widget_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CONFIG = BrowserConfig(browsers=1, episodes=4, width=1280, height=720, quiet_ms=0)
SITES = [(theme, list(LEVELS)[1 + i % 3]) for i, theme in enumerate(THEMES)]


def worlds(count: int, seed: int = 11) -> list[World]:
    return [make_site(theme, seed, level) for theme, level in SITES[:count]]


def failed(replays: list[Replay]) -> list[tuple[str, str]]:
    return [(replay.task.id, replay.reason) for replay in replays if replay.reason]


@pytest.mark.parametrize(
    "count", [pytest.param(3, marks=pytest.mark.more), pytest.param(15, marks=pytest.mark.slow)]
)
async def test_tasks_are_done_on_sites_that_do_what_their_machines_say(count):
    """One of each level: every solution ends in a state that the goal wants. Fifteen have every widget that
    sites are made with."""
    sites = {world.name: world for world in worlds(count, seed=12)}
    tasks = [task for world in sites.values() for task in make_tasks(world, 1 if count < 15 else 5)]
    outcomes = await replay_sites(list(sites.values()), CONFIG, tasks)
    assert failed(outcomes) == [] and len(outcomes) == len(tasks)
    kinds, operations = set(), set()
    for outcome in outcomes:
        fsm = sites[outcome.task.meta["world"]].fsm
        by_id = {action.id: action for action in fsm.actions}
        widgets = [widget_of(by_id[id], fsm) for id in {one.action_id for one in outcome.records} - {""}]
        kinds |= {widget.kind for widget in widgets}
        operations |= {one.operation.op for one in outcome.records}
    if count == 15:
        assert kinds == set(WIDGETS) - {"scroll"}, "lists are scrolled without a step of the machine"
        assert operations == set(OPERATIONS)


async def test_every_operation_is_recorded_and_a_task_without_a_solution_leaves_the_others_theirs():
    world = make_site("shop", 11, "easy")
    _, task = make_tasks(world, 2)
    first, *_ = task.meta["solution"]
    twice = replace(task, id="twice", meta={**task.meta, "solution": [first, first]})
    short = replace(task, id="short", meta={**task.meta, "solution": [first]})
    tasks = [twice, task, short]
    failed_first, done, failed_last = await replay_sites([world], CONFIG, tasks, has_pictures=True)
    assert "is not enabled on page" in failed_first.reason
    assert failed_last.reason.startswith("task short has no solution in shop-")
    assert (done.task.id, done.reason) == (task.id, "")
    assert {record.action_id for record in done.records if record.operation.op == "click"}
    *before, answer = done.records
    assert answer.operation.op == "answer" and answer.picture
    for record in before:
        assert Image.open(io.BytesIO(record.picture)).size == (1280, 720)
        if record.operation.op != "key_press":
            left, top, right, bottom = record.operation.box
            assert left < right <= 1280 and top < bottom
            assert record.operation.op == "scroll" or (left >= 0 and top >= 0 and bottom <= 720)
    assert len({record.picture for record in before}) > 1


def random_path(world: World, length: int, rng: random.Random) -> list[Step]:
    state, steps = initial_state(world.fsm), []
    while len(steps) < length:
        options = [
            Step(id, params)
            for id in world.fsm.pages[state.page].actions
            for params in parameter_values(world, state, id)[:6]
            if enabled(world.fsm, state, id, params)
        ]
        if not options:
            break
        steps.append(rng.choice(options))
        state = apply(world.fsm, state, steps[-1].action_id, steps[-1].params)
    return steps


@pytest.mark.parametrize(
    "sites", [pytest.param(1, marks=pytest.mark.more), pytest.param(10, marks=pytest.mark.slow)]
)
async def test_random_walks_by_hand(sites):
    """Random possible actions with a hand's work; the state is compared after each."""
    rng, many = random.Random(0), worlds(sites, seed=3)
    tasks = [walk(world, random_path(world, 20, rng)) for world in many]
    assert failed(await replay_sites(many, CONFIG, tasks)) == []
    assert sum(len(task.meta["solution"]) for task in tasks) >= 19 * sites


FAULTS = ("effect", "carry", "slider", "dead", "target", "choice", "search")


def mutate(description: Json, world: World, steps: list[Step], fault: str, rng: random.Random) -> str:
    """Breaks something that the path depends on; what it was, or "" if this fault does not apply."""
    pages, step = description["pages"], rng.choice(steps)
    page = next(page for page in world.fsm.pages.values() if step.action_id in page.actions)
    action = next(one for one in pages[page.id]["actions"] if one["id"] == step.action_id)
    target = world.fsm.pages[action["target"]]
    # a note of what was left open writes null over null
    seen = [e for e in action["effects"] if e["source"] is None and e["path"][0] in target.schema]
    values = action["bind"]["values"] if action["bind"] else ()
    match fault:
        case "effect" if seen:
            action["effects"].remove(rng.choice(seen))
        case "carry" if action["is_navigation"] and target.schema:
            del pages[target.id]["defaults"][rng.choice(list(target.schema))]
        case "slider" if action["kind"] == "slider":
            action["bind"]["values"] = [*values[1:], values[-1] + 1]
        case "dead":
            action["preconditions"].append({"path": ["nothing"], "cond": "exists", "value": None})
        case "target" if action["is_navigation"]:
            action["target"] = rng.choice([id for id in pages if id != target.id])
        case "choice" if action["kind"] == "choice" and len(values) > 2:
            action["bind"]["values"] = [*values[1:], values[0]]
        case "search" if action["kind"] == "search":
            for record in description["data"][action["bind"]["collection"]]:
                record["title"] = record["title"][::-1]
        case _:
            return ""
    return f"{fault} at {step.action_id}"


@pytest.mark.parametrize(
    "count", [pytest.param(7, marks=pytest.mark.more), pytest.param(50, marks=pytest.mark.slow)]
)
async def test_faults_are_caught(monkeypatch, count):
    """Paths that can be followed on sound sites, on the same sites with something broken."""
    rng, broken, descriptions = random.Random(1), [], {}
    sound = worlds(4 if count < 10 else 15, seed=21)
    paths = [(world, solution_of(task, world)) for world in sound for task in make_tasks(world, 8)]
    while len(broken) < count:
        world, path = rng.choice(paths)
        name, fault = f"fault-{len(broken)}", FAULTS[len(broken) % len(FAULTS)]
        description = json.loads(json.dumps(render.describe(world), default=list))
        if what := mutate(description, world, path, fault, rng):
            descriptions[name] = description
            broken.append((replace(world, name=name), path, what))
    monkeypatch.setattr(render, "describe", lambda world: descriptions[world.name])
    tasks = [walk(world, path, fault) for world, path, fault in broken]
    outcomes = await replay_sites([world for world, _, _ in broken], CONFIG, tasks)
    assert [outcome.task.id for outcome in outcomes if not outcome.reason] == []


async def test_a_task_of_another_site_is_not_replayed():
    here, other = worlds(2)
    (task, *_) = make_tasks(other, 1)
    (outcome,) = await replay_sites([here], CONFIG, [task])
    assert outcome.reason == "its site is not among these"


@pytest.mark.more
async def test_hostile_words_are_only_words():
    attack = "</script><img src=x onerror='window.hit = 1'>\"]'"
    sound = make_site("shop", 11, "medium")
    words = dict.fromkeys(("fill", "by", "place", "date", "text"), attack)
    data = {
        many: tuple({**r, **words, "title": attack + r["id"]} for r in rows)
        for many, rows in sound.data.items()
    }
    labels = dict.fromkeys(sound.style["labels"], attack)
    facts = {name: {"kind": attack} for name in data}
    style = {**sound.style, "labels": labels, "brand": attack, "facts": facts}
    world = World(sound.name, sound.fsm, data, style)
    (outcome,) = await replay_sites([world], CONFIG, make_tasks(sound, 1))
    assert outcome.reason == ""
    assert b"<img" not in render.render(world)
    with SiteServer([world]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool, pool.session() as session:
            await session.start(f"http://{world.name}.test/")
            drawn = "[...document.images].filter((one) => !one.src.startsWith('data:image/svg+xml,')).length"
            assert await session.page.evaluate(f"[window.hit, {drawn}]") == [None, 0]


@pytest.mark.more
async def test_the_command_replays_folders(tmp_path, capsys):
    for world in worlds(2):
        save_world(world, tmp_path / world.name)
        save_tasks(tmp_path / world.name / "tasks.jsonl", make_tasks(world, 1))
    folders = [str(path) for path in sorted(tmp_path.iterdir())]
    flags = ["--browser.episodes", "2", "--browser.browsers", "1"]
    assert await asyncio.to_thread(main, ["replay", *folders, *flags]) == 0
    assert "2 sites, 2 of 2 trajectories kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("data.json", '{"books": 3}', "data.json: books: Input should be a valid tuple"),
        ("style.json", "[]", "style.json: Input should be a valid dictionary"),
    ],
)
async def test_a_folder_with_a_wrong_file_is_refused(tmp_path, capsys, name, text, reason):
    save_world(make_site("shop", 11, "easy"), tmp_path)
    (tmp_path / name).write_text(text)
    assert main(["replay", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err
