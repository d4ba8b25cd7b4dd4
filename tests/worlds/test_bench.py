"""The benchmark: its list, what holds it apart from training, and that no episode gets at its machine."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from random import Random

import pytest

from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.benchmarks.task_files import load_tasks
from minirl.browser.pool import BrowserPool
from minirl.config import AgentConfig, BrowserConfig
from minirl.experiment import make_agent
from minirl.recipes import tiny
from minirl.types import Call, ToolFailure
from minirl.worlds import bench
from minirl.worlds.__main__ import main
from minirl.worlds.generate import LEVELS, THEMES, VOCABULARY, make_site
from minirl.worlds.interpreter import enabled, initial_state
from minirl.worlds.looks import SKINS, draw_looks
from minirl.worlds.render import SiteServer, find_task_files, read_state, render

KEPT = VOCABULARY["bench"]["themes"]
KEPT_SKINS = [name for name, plan in SKINS.items() if "kept" in plan]
OF_LEVEL = {level: [place for place in bench.LIST if place["level"] == level] for level in LEVELS}


def test_every_level_has_every_kept_theme_in_every_kept_skin():
    for level, places in OF_LEVEL.items():
        skins = KEPT_SKINS if LEVELS[level].look == "pages" else ["", ""]
        drawn = [(place["theme"], place["skin"]) for place in places]
        assert sorted(drawn) == sorted(itertools.product(KEPT, skins))
        assert [place["doors"] > 0 for place in places] == [
            LEVELS[level].has_doors and n % 2 for n in range(6)
        ]


def test_no_site_for_training_has_its_themes_skins_and_verbs(tmp_path, capsys):
    assert main(["make", "--count", "16", "--level", "first", "--tasks", "1", "--out", str(tmp_path)]) == 0
    made = {folder.name.split("-")[0] for folder in tmp_path.glob("*/*")}
    assert made == THEMES.keys() - set(KEPT)
    assert {draw_looks(Random(n))["skin"] for n in range(200)} == SKINS.keys() - set(KEPT_SKINS)
    verbs = {name: {entity.verb for entity in theme.entities} for name, theme in THEMES.items()}
    ours = set.union(*(verbs.pop(name) for name in KEPT))
    assert ours.isdisjoint({*VOCABULARY["verbs"], *set.union(*verbs.values())})


@pytest.mark.parametrize("level", [*list(LEVELS)[:3], pytest.param("hard", marks=pytest.mark.slow)])
def test_sites_are_those_of_the_list_and_their_tasks_are_solved(level):
    """The last of each level, which has doors if any has; another site is told from it in one line."""
    place = OF_LEVEL[level][-1]
    world, tasks = bench.make(place)
    low, high = LEVELS[level].steps
    assert len(tasks) >= 4 and all(low <= task.meta["steps"] <= high for task in tasks)
    assert all(task.meta["widgets"] and task.meta["level"] == level for task in tasks)
    assert (world.style.get("skin", "") or "first") == (place["skin"] or "first")
    if level == "first":
        with pytest.raises(ValueError, match="is not the benchmark's any more") as told:
            bench.make({**place, "seed": place["seed"] + 1})
        assert "\n" not in str(told.value)


def test_the_command_writes_a_level(tmp_path, capsys):
    assert main(["bench", "--level", "first", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "6 sites" in said and f"--task.heldout {tmp_path}" in said and "demo --by-hand --site" in said
    files = find_task_files(tmp_path)
    assert len(files) == 6 and all(load_tasks(file)[0].meta["widgets"] for file in files)


SITE = make_site("hotels", 3, "easy")
CONFIG = BrowserConfig(browsers=1, episodes=2, width=1280, height=720)
FIRST = initial_state(SITE.fsm)
TAKE = next(
    f"minirl.dispatch('{id}')" for id in SITE.fsm.pages["HOME"].actions if enabled(SITE.fsm, FIRST, id, {})
)
ADDRESSES = [
    f"javascript:{TAKE}",
    f"data:text/html,<script>opener.{TAKE}</script>",
    "view-source:{}",
    "about:blank",
]
KEYS = ["F12", "Control+Shift+J", "Control+Shift+I", "Control+U", "Control+L", "Alt+D"]


@pytest.mark.asyncio
async def test_no_tool_of_an_agent_reaches_the_machine():
    """What would take a step, typed, pasted or opened by every tool that takes a text: the state stays. The
    driver alone, which no agent is given, can ask for it; the files behind a site are not served."""
    agent = OpenWebRLAgent(AgentConfig())
    with SiteServer([SITE]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool, pool.session() as session:
            home = f"http://{SITE.name}.test/"
            await session.start(home)
            before = await read_state(session.page)
            assert before is not None
            calls = [("goto_url", {"url": address.format(home)}) for address in ADDRESSES]
            calls += [("goto_url", {"url": f"{home}#HOTELS"}), ("goto_url", {"url": f"{home}?page=ROOMS"})]
            for keys in KEYS:
                calls += [("press_keys", {"keys": [keys]}), ("write", {"message": f"javascript:{TAKE}"})]
                calls += [("press_keys", {"keys": ["Enter"]})]
            for name, arguments in calls:
                await agent.observe(session)
                with contextlib.suppress(ToolFailure):
                    await agent.act(session, Call(name, arguments))
                assert (await read_state(session.page)) == before, (name, arguments)
            for file in ("fsm.json", "data.json", "tasks.jsonl", "index.html"):
                await agent.act(session, Call("goto_url", {"url": home + file}))
                assert (await session.page.inner_text("body")).strip() == "There is no such site or page."
            await session.start(home)
            assert await session.page.evaluate(TAKE) and await read_state(session.page) != before, (
                "the control"
            )


@pytest.mark.asyncio
async def test_a_drawn_page_holds_neither_the_machine_nor_records_that_it_does_not_show():
    """They come with the document, and are taken out of it before anybody can look."""
    agent = make_agent(replace(tiny(), agent=AgentConfig(kind="text")))
    with SiteServer([SITE]) as server:
        async with BrowserPool(CONFIG, server.sites, sealed=True) as pool, pool.session() as session:
            await session.start(f"http://{SITE.name}.test/")
            live, seen = await session.page.content(), (await agent.observe(session)).text
    served = render(SITE).decode()
    hidden = [name for name in ("preconditions", "effects", "initial_page") if name not in live + seen]
    assert len(hidden) == 3 and all(name in served for name in hidden)
    titles = [record["title"] for record in SITE.data["rooms"]]
    assert all(title in served for title in titles) and not all(title in live + seen for title in titles)
