"""Rewards of the user's own, on pages in a real Chromium, and what is refused."""

import asyncio
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minirl.benchmarks import own_reward
from minirl.benchmarks.own_reward import OwnReward, load_reward
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, RunEnds, Stop, Task, ToolFailure

browsing = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True)
NO_PAGE = SimpleNamespace(page=None)
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
async def nan(task, page, answer): return float("nan")
async def word(task, page, answer): return "yes"
async def fails(task, page, answer): return {}["order\\nno"]
async def late(task, page, answer): raise TimeoutError("mine")
async def missing(task, page, answer): await page.click("#none", timeout=50)
async def hangs(task, page, answer): await asyncio.sleep(60)
def plain(task, page, answer): return 1
number = 1
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "my rewards.py"
    path.write_text(REWARD)
    return path


def task_with(goal: dict[str, Any]) -> Task:
    return Task("a", "Fill in the form", "http://shop.test/", goal)


@browsing
async def test_a_reward_reads_the_page_and_the_task(session, site, file):
    benchmark = load_reward(f"{file}:title")
    await session.goto(f"{site}/two")
    for title, value in (("Two", 1.0), ("Form", 0.0)):
        task = task_with({"title": title})
        score = await benchmark.score(task, session, "")
        assert score.value == score.details["score"] == value and not benchmark.needs_judge(task)
    assert (await load_reward(f"{file}:half").score(task, session, "")).value == 0.5
    nothing = await load_reward(f"{file}:none").score(task, session, "")
    assert nothing.value is None and "no verdict" in nothing.details["reason"]
    for name in ("", ":nobody", ":plain", ":number"):
        place = f"{file}{name}"
        line = f"--task.reward {place} must be like FILE.py:NAME, .* async def"
        with pytest.raises(ValueError, match=line):
            load_reward(place)


@browsing
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan", "the reward failed: ValueError: cannot convert float NaN to integer"),
        ("word", "the reward failed: ValueError: could not convert string to float: 'yes'"),
        ("fails", r"the reward failed: KeyError: 'order\nno'"),
        ("late", "the reward failed: TimeoutError: mine"),
        ("missing", "the reward failed: TimeoutError: Page.click: Timeout 50ms exceeded."),
        ("hangs", "the reward failed: TimeoutError: "),
    ],
)
async def test_a_reward_that_fails_gives_no_verdict(session: Session, file, monkeypatch, name, reason):
    monkeypatch.setattr(own_reward, "REWARD_SECONDS", 5.0 if name == "missing" else 0.2)
    with pytest.raises(BrowserFault) as caught:
        await load_reward(f"{file}:{name}").score(task_with({}), session, "")
    assert caught.value.stop is Stop.JUDGE_ERROR and str(caught.value) == reason


ROUNDED = [(sum([0.1] * 10), 1.0), (1 + 1e-15, 1.0), (-1e-17, 0.0), (0.83, 0.83)]
OTHERS = [(np.True_, 1.0), (Decimal(1), 1.0), (-1, None), (5, None), (1.00001, None)]


@pytest.mark.parametrize(("given", "value"), ROUNDED + OTHERS)
async def test_a_value_may_miss_its_end_by_rounding_and_another_ends_the_run(given, value):
    async def reward(task: Task, page: Any, answer: str) -> Any:
        return given

    work = OwnReward(reward, None).score(task_with({}), NO_PAGE, "")
    if value is not None:
        score = await work
        assert (score.value, type(score.value)) == (value, float)
        return
    with pytest.raises(RunEnds, match="--task.reward reward must return 0 to 1 or None, not "):
        await work


async def test_an_episode_that_is_cancelled_takes_its_reward_along():
    ended = []

    async def reward(task: Task, page: Any, answer: str) -> float:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return 1.0

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await OwnReward(reward, None).score(task_with({}), NO_PAGE, "")
    assert ended == [True]


@browsing
async def test_an_episode_begins_with_the_log_in_of_the_rewards_file(session, site, file):
    """If there is one; then its page is opened anew, and nothing leads back."""
    task = Task("a", "Look", f"{site}/two")
    await session.start(task.start_url)
    before = load_reward(f"{file}:half")
    await before.prepare(session, task)
    assert session.page.url == task.start_url and await session.context.cookies() == []
    page = f"page.goto({site!r})"
    file.with_name("member.py").write_text(f"""
async def log_in(task, page):
    await {page}
    await page.evaluate("document.cookie = 'member=' + 1")
    assert task.id != "b", "no account"

async def reward(task, page, answer): return 1
""")
    benchmark = load_reward(f"{file.with_name('member.py')}:reward")
    await benchmark.prepare(session, task)
    assert [cookie["name"] for cookie in await session.context.cookies()] == ["member"]
    assert session.page.url == task.start_url
    with pytest.raises(ToolFailure):
        await session.travel(-1)
