"""Goals without code and rewards of the user's own, on pages in a real Chromium, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pages
import pytest

from minirl.benchmarks import own_reward, page_goals
from minirl.benchmarks.own_reward import OwnReward, load_reward
from minirl.benchmarks.page_goals import PageGoalBenchmark, is_page_goal
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, Task

browsing = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True)
FORM = """<!doctype html><title>Form</title>
<h1>Thank   you,<br>Amy</h1><p hidden>secret</p>
<label for="a">E-mail: *</label><input id="a" name="mail" value="a@b.test">
<label>Country
  <select name="country"><option value="de">Germany<option value="fr" selected>France</select></label>
<label><input type="checkbox" name="news" value="weekly" checked> News</label>
<label><input type="radio" name="pay" value="card"> Card</label>
<label><input type="radio" name="pay" value="cash" checked> Cash</label>
<textarea aria-label="Notes">two
lines</textarea><input name="__proto__" value="x"><b id="total">12.50</b>"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(page_goals, "LATE_SECONDS", 0.3)
    monkeypatch.setattr(page_goals, "LOOK_SECONDS", 0.05)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setitem(pages.PAGES, "/form", FORM)
    with pages.serve() as address:
        yield address


def task_with(goal: dict[str, Any]) -> Task:
    return Task("a", "Fill in the form", "http://shop.test/", goal)


@browsing
@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        ({"address": "SITE/form"}, ""),
        ({"address": "SITE/fo*"}, ""),
        ({"address": "SITE/form?"}, "address wanted 'SITE/form?', found 'SITE/form'"),
        ({"address": "SITE/fo"}, "address wanted 'SITE/fo', found 'SITE/form'"),
        ({"address": "SITE/x*"}, "address wanted 'SITE/x*', found 'SITE/form'"),
        ({"text": "Thank you, Amy"}, ""),  # however it is laid out
        ({"text": "thank you"}, "text wanted 'thank you', and the page does not show it"),
        ({"text": "secret"}, "text wanted 'secret', and the page does not show it"),
        ({"fields": {"#a": "a@b.test", "E-mail": "a@b.test", "mail": "a@b.test"}}, ""),
        ({"fields": {"mail": "a@b"}}, "field 'mail' wanted 'a@b', found 'a@b.test'"),
        ({"fields": {"Country": "France", "country": "fr"}}, ""),
        ({"fields": {"Country": "Germany"}}, "field 'Country' wanted 'Germany', found 'France'"),
        ({"fields": {"News": "true", "pay": "cash", "Card": "false", "Cash": "true"}}, ""),
        ({"fields": {"pay": "card"}}, "field 'pay' wanted 'card', found 'false'"),
        ({"fields": {"Notes": "two\nlines", "#total": "12.50"}}, ""),
        ({"fields": {"Phone": "1"}}, "field 'Phone' wanted '1', found no such field"),
        ({"fields": {"[[": "1"}}, "field '[[' wanted '1', found no such field"),  # no CSS selector either
        ({"address": "SITE/form", "text": "Amy", "fields": {"mail": "a@b.test"}}, ""),
        ({"address": "SITE/form", "text": "Bob", "fields": {"mail": "a@b.test"}}, "text wanted 'Bob'"),
    ],
)
async def test_a_goal_is_met_or_says_why_not(session, site, goal, reason):
    if "address" in goal:
        goal = goal | {"address": goal["address"].replace("SITE", site)}
    await session.goto(f"{site}/form")
    score = await PageGoalBenchmark().score(task_with(goal), session, "any answer")
    assert score.value == (not reason) == score.details["score"]
    assert score.details["reason"].startswith(reason.replace("SITE", site) or "the goal is met")


@browsing
async def test_a_site_has_its_address_with_a_slash_or_without(session, site):
    await session.goto(site)
    for address in (site, f"{site}/"):
        assert (await PageGoalBenchmark().score(task_with({"address": address}), session, "")).value == 1


@browsing
async def test_what_a_page_shows_late_is_waited_for(session, site, monkeypatch):
    monkeypatch.setattr(page_goals, "LATE_SECONDS", 20.0)
    await session.goto(f"{site}/form")
    await session.page.evaluate("setTimeout(() => document.body.append('All done'), 300)")
    assert (await PageGoalBenchmark().score(task_with({"text": "All done"}), session, "")).value == 1
    await session.page.evaluate("setTimeout(() => { location = '/two' }, 100)")
    assert (await PageGoalBenchmark().score(task_with({"address": f"{site}/two"}), session, "")).value == 1


@browsing
@pytest.mark.parametrize(
    "script",
    [
        "setTimeout(() => { for (;;); }, 0)",
        "void (Object.fromEntries = () => 7)",
        "void (document.querySelectorAll = () => { throw 'no' })",
        "",  # the tab is closed
    ],
)
async def test_a_page_that_can_not_be_read_gives_no_verdict(pool, site, script):
    async with pool.session() as session:
        await session.goto(f"{site}/form")
        await (session.page.evaluate(script) if script else session.page.close())
        problem = "the final page can't be read: " if script else None
        with pytest.raises(BrowserFault, match=problem) as caught:
            await PageGoalBenchmark().score(task_with({"fields": {"mail": "x"}}), session, "")
        assert not caught.value.stop.is_agent_fault and "\n" not in str(caught.value)
        assert caught.value.stop is Stop.JUDGE_ERROR or not script


def test_goals_that_are_ours_to_score():
    assert is_page_goal({"text": 7}) and is_page_goal({"address": "x", "page": "y"})
    assert not is_page_goal({"page": "DONE"}) and not is_page_goal({})
    benchmark, task = PageGoalBenchmark(), task_with({"text": "Amy"})
    assert not benchmark.needs_judge(task)
    other = Task("b", "Write to Amy", "http://shop.test/x", {"text": "Amy"})  # the same site and goal
    assert benchmark.identity(task) & benchmark.identity(other)
    assert benchmark.identity(task).isdisjoint(benchmark.identity(Task("c", "Buy", "http://shop.test/")))


REWARD = """
import asyncio
from dataclasses import dataclass

@dataclass
class Names:  # which looks its module up
    title: str

async def title(task, page, answer):
    return await page.title() == task.goal["title"]

async def half(task, page, answer, more=0): return 0.5
async def none(task, page, answer): return None
async def above(task, page, answer): return 1.5
async def below(task, page, answer): return -1
async def nan(task, page, answer): return float("nan")
async def word(task, page, answer): return "1"
async def fails(task, page, answer): return {}["order\\nno"]
async def gives_up(task, page, answer): raise asyncio.CancelledError()
async def late(task, page, answer): raise TimeoutError("mine")
async def missing(task, page, answer): await page.click("#none", timeout=50)
async def hangs(task, page, answer): await asyncio.sleep(60)
async def clings(task, page, answer):
    while True:
        try: await asyncio.sleep(0.3)
        except asyncio.CancelledError: pass
        if answer == "let go": return 1
        answer = "let go"
async def two(task, page): return 1
async def named(task, page, answer, *, more): return 1
def plain(task, page, answer): return 1
number = 1
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "my rewards.py"
    path.write_text(REWARD)
    return path


@browsing
async def test_a_reward_reads_the_page_and_the_task(session, site, file):
    benchmark = OwnReward(load_reward(f"{file}:title"))
    await session.goto(f"{site}/form")
    for title, value in (("Form", 1.0), ("Two", 0.0)):
        task = task_with({"title": title})
        score = await benchmark.score(task, session, "")
        assert score.value == score.details["score"] == value and not benchmark.needs_judge(task)
    assert (await OwnReward(load_reward(f"{file}:half")).score(task, session, "")).value == 0.5
    nothing = await OwnReward(load_reward(f"{file}:none")).score(task, session, "")
    assert nothing.value is None and "no verdict" in nothing.details["reason"]


@browsing
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("above", "the reward must be 0 to 1 or None, not 1.5"),
        ("below", "the reward must be 0 to 1 or None, not -1"),
        ("nan", "the reward must be 0 to 1 or None, not nan"),
        ("word", "the reward must be 0 to 1 or None, not '1'"),
        ("fails", r"the reward failed: KeyError: 'order\\nno'"),
        ("gives_up", "the reward failed: CancelledError: "),
        ("late", "the reward failed: TimeoutError: mine"),
        ("missing", "the reward failed: TimeoutError: Page.click: Timeout 50ms exceeded."),
        ("hangs", "the reward took more than 0.2 s"),
        ("clings", "the reward took more than 0.2 s"),
    ],
)
async def test_a_reward_that_fails_gives_no_verdict(session: Session, file, monkeypatch, name, reason):
    monkeypatch.setattr(own_reward, "REWARD_SECONDS", 5.0 if name == "missing" else 0.2)
    with pytest.raises(BrowserFault) as caught:
        await OwnReward(load_reward(f"{file}:{name}")).score(task_with({}), session, "")
    assert caught.value.stop is Stop.JUDGE_ERROR and str(caught.value) == reason.replace("\\\\", "\\")


@browsing
async def test_an_episode_that_is_cancelled_takes_its_reward_along(session, file):
    ended = []

    async def reward(task: Task, page: Any, answer: str) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return 1.0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await OwnReward(reward).score(task_with({}), session, "")
    await asyncio.sleep(0)
    assert ended == [True]


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("FILE", "must be like FILE.py:NAME"),
        (":title", "must be like FILE.py:NAME"),
        ("FILE:", "must be like FILE.py:NAME"),
        ("FOLDER/none.py:title", "FOLDER/none.py can't be imported: FileNotFoundError: "),
        ("FOLDER:title", "FOLDER can't be imported: ImportError: "),
        ("FILE:nobody", r"must have an async def nobody\(task, page, answer\)"),
        ("FILE:plain", "must have an async def plain"),
        ("FILE:number", "must have an async def number"),
        ("FILE:two", r"two must take \(task, page, answer\): too many positional arguments"),
        ("FILE:named", r"named must take \(task, page, answer\): missing a required"),
        ("FOLDER/torn.py:title", "torn.py can't be imported: SyntaxError: "),
        ("FOLDER/raises.py:title", "raises.py can't be imported: ZeroDivisionError: division by zero"),
        ("FOLDER/leaves.py:title", "leaves.py can't be imported: SystemExit: 3"),
    ],
)
def test_a_function_that_can_not_be_is_refused_in_one_line(file, tmp_path, place, problem):
    (tmp_path / "torn.py").write_text("async def title(:\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)\n")
    place = place.replace("FILE", str(file)).replace("FOLDER", str(tmp_path))
    with pytest.raises(ValueError, match=problem.replace("FOLDER", str(tmp_path))) as caught:
        load_reward(place)
    assert str(caught.value).startswith("--task.reward ") and "\n" not in str(caught.value)
