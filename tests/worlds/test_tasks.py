"""Tasks in words: of the right length, each meaning one thing, and only that thing fulfils it."""

import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio
import shopping
from playwright.async_api import Browser, Page
from walking import operations, visit

from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.types import Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import State, World, parameter_values, share_met
from minirl.worlds.render import SiteServer, read_state
from minirl.worlds.search import Step
from minirl.worlds.solutions import solution_of, state_after
from minirl.worlds.tasks import FAMILIES, MODES, WORDS, make_tasks


def sites(count: int) -> list[World]:
    levels, themes = list(LEVELS)[1:], list(THEMES)  # the first one has no words but titles
    return [make_site(themes[n % len(themes)], n, levels[n % len(levels)]) for n in range(count)]


MADE = [(world, make_tasks(world)) for world in sites(6)]


def meant(world: World, find: Mapping[str, Any]) -> list[str]:
    """What a person finds who sets a list as told, by reading the records alone."""
    rows = list(world.data[find["list"]])
    for name, value in find["set"].items():
        kind, _, field = name.partition("_")
        if kind == "least":
            rows = [row for row in rows if row[field] >= value]
        elif kind == "only":
            rows = [row for row in rows if row[field]]
        elif kind == "query":
            rows = [row for row in rows if row["id"] == value]
        else:
            field, _, way = value.partition(":")
            rows.sort(key=lambda row: row[field], reverse=way == "desc")
    target = dict(find["target"])
    rank = target.pop("rank", None)
    rows = [row for row in rows if all(row[name] == value for name, value in target.items())]
    return [row["id"] for row in (rows[rank - 1 : rank] if rank else rows)]


def test_every_instruction_means_one_record():
    """Proved by going through all of them."""
    for world, tasks in MADE:
        for task in tasks:
            assert task.meta["finds"]
            for find in task.meta["finds"]:
                assert meant(world, find) == [find["item"]], task


def test_tasks_have_their_levels_length_and_are_all_different():
    for world, tasks in MADE:
        low, high = LEVELS[world.fsm.meta["level"]].steps
        for task in tasks:
            path = solution_of(task, world)
            assert path and low <= len(operations(world, path)) == task.meta["steps"] <= high
            assert ("drag" in operations(world, path)) == ("text" not in task.meta["agents"])
        assert len(tasks) >= 6
        assert len({task.instruction for task in tasks}) == len({task.id for task in tasks}) == len(tasks)


def otherwise(world: World, steps: list[Step]) -> Iterator[tuple[str, State]]:
    """The ends of a path on which another value is chosen once, where the rest of it can be done then."""
    for n, step in enumerate(steps):
        choices = parameter_values(world, state_after(world, steps[:n]), step.action_id)
        for params in [one for one in choices if one != step.params][:3]:
            with contextlib.suppress(ValueError):
                changed = [*steps[:n], Step(step.action_id, params), *steps[n + 1 :]]
                yield step.action_id, state_after(world, changed)


def test_another_item_text_date_option_or_number_is_wrong():
    """The solution that a task carries fulfils it; with another value somewhere it does not."""
    wrong = Counter[str]()
    for world, tasks in MADE[:3]:
        for task in tasks:
            steps = solution_of(task, world)
            assert shopping.holds(state_after(world, steps), task.goal)
            for action, state in otherwise(world, steps):
                assert not shopping.holds(state, task.goal), (task, action)
                assert share_met(state, task.goal) < 1
                wrong[action.rpartition("_")[0]] += 1
    assert len(wrong) >= 10


def test_an_answer_is_one_value_of_the_item_in_question():
    asked = [(world, task) for world, tasks in MADE for task in tasks if "answer" in task.goal]
    assert len(asked) >= 5
    for world, task in asked:
        find = task.meta["finds"][0]
        record = next(one for one in world.data[find["list"]] if one["id"] == find["item"])
        value, *longer = task.goal["answer"]
        assert value in [str(known) for known in record.values()]
        assert all(one.startswith(value) for one in longer)
        state = state_after(world, solution_of(task, world))
        assert share_met(state, load_goal(task.goal), f" {value.upper()}. ") == 1
        assert share_met(state, load_goal(task.goal), f"{value}0") < 1


def test_there_are_three_wordings_of_everything():
    for table in ("modes", "targets", "flows", "asks", "questions"):
        for name, wordings in WORDS[table].items():
            assert len(set(wordings)) >= 3, name


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("count", "least"), [(0, 1), pytest.param(300, 50, marks=pytest.mark.slow)])
def test_every_family_is_asked_in_every_mode(count, least):
    """Nobody searches for the title of what is described by its picture."""
    made = [(world, make_tasks(world)) for world in sites(count)] or MADE
    cells = Counter((task.meta["family"], task.meta["mode"]) for _, tasks in made for task in tasks)
    found = [cell for cell in itertools.product(FAMILIES, MODES) if cells[cell] >= least]
    assert ("visual", "search") not in cells
    assert len(found) == 14 if count else len(found) >= 11, cells


# --- ways to be rewarded for something else, in a real browser -------------------------------------------


HOTELS = make_site("hotels", 6, "easy")
in_browser = pytest.mark.asyncio(loop_scope="module")  # one for both tests


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with visit(HOTELS, replace(HOTELS, name="twin")) as page:
        yield page.context.browser


@dataclass
class Tab:
    """As much of a session as a score asks for."""

    page: Page

    async def do(self, work: Awaitable[Any]) -> Any:
        return await work

    async def take(self, task: Task) -> None:
        """Take a task's solution on the page that is there, by what its buttons call."""
        for id, params in task.meta["solution"]:
            taken = await self.page.evaluate("([id, params]) => minirl.dispatch(id, params)", [id, params])
            assert taken or id == "HOME_ACCEPT", "which has been answered before"

    async def back_home(self) -> None:
        while (await read_state(self.page)).page != "HOME":
            await self.page.go_back()


@pytest.mark.parametrize(
    ("deeds", "value"),
    [
        ("task", 1),
        ("task on another site", 0),
        ("other, home, task", 0),  # what was not asked, and the task besides
        ("other, back, task", 0),  # it can't be taken back
        ("task, reload", 1),
        *(
            pytest.param(*case, marks=pytest.mark.more)
            for case in (("other, address, task", 0), ("task, back", 1), ("task, address", 1))
        ),
    ],
)
@in_browser
async def test_what_counts_is_the_task_on_its_site_and_nothing_else_done(browser, deeds, value):
    _, other, task, *_ = make_tasks(HOTELS)  # to recommend a room, and to reserve another
    page = await browser.new_page()
    await page.goto("http://twin.test/" if "another" in deeds else task.start_url)
    tab = Tab(page)
    do = {
        "task": lambda: tab.take(task),
        "other": lambda: tab.take(other),
        "home": lambda: page.evaluate("minirl.dispatch(`${minirl.state().page}_BACK`)"),
        "back": tab.back_home,
        "address": lambda: page.goto(task.start_url),
        "reload": page.reload,
    }
    for deed in deeds.split(", "):
        await do[deed.split()[0]]()
    score = await WorldBenchmark().score(task, tab, "done")
    await page.close()
    assert (score.value == 1) == bool(value)


@in_browser
async def test_the_next_episode_in_a_context_begins_anew():
    task, *_ = make_tasks(HOTELS)
    config = BrowserConfig(browsers=1, quiet_ms=0)
    contexts = []
    with SiteServer([HOTELS]) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool:
            for _ in range(2):
                async with pool.session() as session:
                    assert await session.context.cookies() == []
                    await session.start(task.start_url)
                    assert await session.page.evaluate("localStorage.length + sessionStorage.length") == 0
                    assert (await read_state(session.page)).signature == HOTELS.fsm.pages["HOME"].defaults
                    await Tab(session.page).take(task)
                    await session.page.evaluate("localStorage.setItem('visits', 1), document.cookie = 'a=1'")
                    assert await session.context.cookies() != []
                    contexts.append(session.context)
    assert contexts[0] is contexts[1]
