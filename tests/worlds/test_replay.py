"""Solutions acted out in Chromium: sound sites are followed to the end, and broken ones are caught."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.worlds import render
from minirl.worlds.__main__ import main
from minirl.worlds.folder import save_world
from minirl.worlds.generate import PROFILES, make_site
from minirl.worlds.interpreter import World, apply, enabled, initial_state, parameter_values
from minirl.worlds.lint import check_fsm
from minirl.worlds.render import SiteServer
from minirl.worlds.replay import replay, replay_sites, solutions, within_reach
from minirl.worlds.search import Step
from minirl.worlds.themes import THEMES
from minirl.worlds.widgets import widget_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]
CONFIG = BrowserConfig(browsers=1, episodes=4, width=1280, height=720)
SITES = [(theme, list(PROFILES)[i % 3]) for i, theme in enumerate(THEMES)] + [
    ("shop", "easy"),
    ("mail", "hard"),
    ("code", "medium"),
    ("films", "medium"),
    ("tasks", "medium"),
]


def worlds(count: int, seed: int = 11) -> list[World]:
    return [make_site(theme, seed, difficulty) for theme, difficulty in SITES[:count]]


async def test_twenty_sites_do_what_their_machines_say():
    outcomes = await replay_sites(worlds(20), CONFIG)
    assert len(outcomes) == sum(len(world.fsm.terminal_pages) for world in worlds(20))
    assert [(o.world, o.terminal, o.replay.reason) for o in outcomes if o.replay.reason] == []
    kinds = {
        widget_of(world.fsm.pages[page].actions[step.action_id], world.fsm).kind
        for world in worlds(20)
        for steps in solutions(world, 0).values()
        for step in steps
        for page in world.fsm.pages
        if step.action_id in world.fsm.pages[page].actions
    }
    assert kinds >= {
        "button",
        "banner",
        "row",
        "checkbox",
        "choice",
        "field",
        "search",
        "slider",
        "scroll",
        "date",
        "menu",
        "hover",
    }


@pytest.mark.slow
async def test_two_hundred_sites():
    """All themes, three difficulties: none with a finding, at least 99% of the solutions acted out."""
    many = [make_site(t, seed, d) for seed in range(5) for t in THEMES for d in PROFILES][:200]
    assert all(check_fsm(world.fsm) == [] for world in many)
    outcomes = await replay_sites(many, replace(CONFIG, browsers=2, episodes=8))
    failed = [(o.world, o.terminal, o.replay.reason) for o in outcomes if o.replay.reason]
    print(f"{len(many)} sites, {len(outcomes)} trajectories, {len(failed)} dropped: {failed[:5]}")
    assert len(failed) <= 0.01 * len(outcomes)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[World, SiteServer]]:
    world = make_site("shop", 11, "medium")
    with SiteServer([world]) as server:
        yield world, server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool(served: tuple[World, SiteServer]) -> AsyncIterator[BrowserPool]:
    async with BrowserPool(CONFIG, served[1].sites, sealed=True) as pool:
        yield pool


async def test_every_step_is_grounded(pool, served):
    world, _ = served
    steps = next(iter(solutions(world, 1).values()))
    async with pool.session() as session:
        await session.start(f"http://{world.name}.test/")
        result = await replay(session, world, steps, pictures=True)
    assert result.reason == ""
    assert [g.action_id for g in result.grounded if g.op == "click"] != []
    for one in result.grounded:
        if one.op == "key_press":
            assert one.box is None
            continue
        left, top, right, bottom = one.box
        assert 0 <= left < right <= 1280 and 0 <= top < bottom <= 720
        assert one.center == ((left + right) / 2, (top + bottom) / 2)
        assert Image.open(io.BytesIO(one.before)).size == (1280, 720)
    assert any(one.before != one.after for one in result.grounded)


async def test_a_path_that_is_not_possible_is_no_trajectory(pool, served):
    """The last action without those before it: the row is not there, or cannot be opened."""
    world, _ = served
    steps = next(iter(solutions(world, 1).values()))
    async with pool.session() as session:
        await session.start(f"http://{world.name}.test/")
        result = await replay(session, world, [steps[0]])
        assert result.reason == ""
        again = await replay(session, world, [steps[0]])
        assert again.reason.startswith("at the start the page shows")


async def random_walk(pool: BrowserPool, world: World, length: int, rng: random.Random) -> int:
    """Random possible actions with a hand's work; the state is compared after each."""
    async with pool.session() as session:
        await session.start(f"http://{world.name}.test/")
        state, steps = initial_state(world.fsm), []
        for _ in range(length):
            options = [
                Step(id, params)
                for id in world.fsm.pages[state.page].actions
                for params in within_reach(world, state, id)[:6]
                if enabled(world.fsm, state, id, params)
            ]
            if not options:
                break
            step = rng.choice(options)
            steps.append(step)
            state = apply(world.fsm, state, step.action_id, step.params)
        result = await replay(session, world, steps)
        assert result.reason == "", (world.name, result.reason, steps)
        return len(steps)


@pytest.mark.parametrize("sites", [3, pytest.param(10, marks=pytest.mark.slow)])
async def test_random_walks_by_hand(sites):
    rng = random.Random(0)
    many = worlds(sites, seed=3)
    with SiteServer(many) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool:
            walked = [await random_walk(pool, world, 20, rng) for world in many]
    assert sum(walked) >= 19 * sites


DISPATCH = """calls => calls.map(([id, params]) => {
  const accepted = minirl.dispatch(id, params), state = minirl.state();
  return [accepted, state.page, state.signature];
})"""


async def test_the_machine_in_the_page_agrees_on_random_dispatches(pool, served):
    """Possible and not: accepted alike, with the interpreter's state after each."""
    world, _ = served
    rng = random.Random(5)
    everything = {id: page for page in world.fsm.pages.values() for id in page.actions}
    state, calls, expected = initial_state(world.fsm), [], []
    for _ in range(10_000):
        here = list(world.fsm.pages[state.page].actions)
        id = rng.choice(list(everything) if rng.random() < 0.3 else here)
        there = replace(state, page=everything[id].id)
        params = dict(rng.choice(parameter_values(world, there, id) or [{}]))
        if rng.random() < 0.1:
            params = {**params, "stray": 1} if rng.random() < 0.5 else {}
        accepted = enabled(world.fsm, state, id, params)
        if accepted:
            state = apply(world.fsm, state, id, params)
        calls.append([id, params])
        expected.append([accepted, state.page, dict(state.signature)])
    async with pool.session() as session:
        session.config = replace(CONFIG, call_seconds=60)
        await session.start(f"http://{world.name}.test/")
        assert await session.do(session.page.evaluate(DISPATCH, calls)) == expected
    assert 0.3 < sum(accepted for accepted, *_ in expected) / len(expected) < 0.95


# --- faults ------------------------------------------------------------------------------------------------


FAULTS = ("effect", "carry", "slider", "dead", "target", "count", "choice", "search")


def mutate(description: Json, world: World, steps: list[Step], fault: str, rng: random.Random) -> str:
    """Breaks something that the path depends on; what it was, or "" if this fault does not apply."""
    pages, step = description["pages"], rng.choice(steps)
    page = next(page for page in world.fsm.pages.values() if step.action_id in page.actions)
    action = next(one for one in pages[page.id]["actions"] if one["id"] == step.action_id)
    target = world.fsm.pages[action["target"]]
    seen = [e for e in action["effects"] if e["op"] != "clear" and e["path"][0] in target.schema]
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
        case "count" if any(e["op"] == "inc" for e in action["effects"]):
            for effect in action["effects"]:
                effect["by"] = 2
        case "choice" if action["kind"] == "choice" and len(values) > 2:
            action["bind"]["values"] = [*values[1:], values[0]]
        case "search" if action["kind"] == "search":
            for record in description["data"][action["bind"]["collection"]]:
                record["title"] = record["title"][::-1]
        case _:
            return ""
    return f"{fault} at {step.action_id}"


@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.slow)])
async def test_faults_are_caught(monkeypatch, count):
    """The same paths on the same sites: all followed where nothing is broken, none where something is."""
    rng, broken = random.Random(1), []
    sound = worlds(20, seed=21)
    paths = [(world, path) for n in range(4) for world in sound for path in solutions(world, n).values()]
    real, faults = render.describe, {}

    def describe(world: World) -> Json:
        description = json.loads(json.dumps(real(world), default=list))
        original, path, fault, seed = faults[world.name]
        assert mutate(description, original, path, fault, random.Random(seed))
        return description

    while len(broken) < count:
        (world, path), seed = rng.choice(paths), rng.random()
        name, fault = f"fault-{len(broken)}", FAULTS[len(broken) % len(FAULTS)]
        description = json.loads(json.dumps(real(world), default=list))
        if what := mutate(description, world, path, fault, random.Random(seed)):
            faults[name] = (world, path, fault, seed)
            broken.append((replace(world, name=name), path, what))
    monkeypatch.setattr(render, "describe", describe)
    with SiteServer([world for world, _, _ in broken]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool:
            for world, path, fault in broken:
                async with pool.session() as session:
                    await session.start(f"http://{world.name}.test/")
                    result = await replay(session, world, path)
                assert result.reason, (fault, path)


async def test_hostile_words_are_only_words():
    attack = "</script><img src=x onerror='window.hit = 1'>\"]'"
    sound = make_site("shop", 11, "medium")
    data = {name: tuple({**r, "title": attack + r["id"]} for r in rows) for name, rows in sound.data.items()}
    labels = dict.fromkeys(sound.style["labels"], attack)
    style = {
        **sound.style,
        "labels": labels,
        "brand": attack,
        "facts": {name: {"kind": attack} for name in data},
    }
    world = replace(sound, data=data, style=style, name="hostile")
    (outcome, *_) = await replay_sites([world], CONFIG)
    assert outcome.replay.reason == ""
    assert b"<img" not in render.render(world)
    with SiteServer([world]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool, pool.session() as session:
            await session.start("http://hostile.test/")
            assert await session.page.evaluate("[window.hit, document.images.length]") == [None, 0]


async def test_the_command_replays_folders(tmp_path, capsys):
    for world in worlds(2):
        save_world(world, tmp_path / "sites" / world.name)
    folders = [str(path) for path in sorted((tmp_path / "sites").iterdir())]
    flags = ["--out", str(tmp_path / "out"), "--workers", "2", "--browsers", "1"]
    assert await asyncio.to_thread(main, ["replay", *folders, *flags]) == 0
    assert "2 sites" in capsys.readouterr().out
    lines = (tmp_path / "out/steps.jsonl").read_text().splitlines()
    assert len(lines) == sum(len(world.fsm.terminal_pages) for world in worlds(2))
    for line in lines:
        for step in json.loads(line)["steps"]:
            assert (tmp_path / "out/pictures" / f"{step['after']}.png").is_file()
