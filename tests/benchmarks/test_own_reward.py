"""Rewards of the user's own, on pages in a real Chromium, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from minirl.benchmarks import own_reward
from minirl.benchmarks.own_reward import OwnReward, load_reward
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, Task

browsing = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True)
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
async def nan(task, page, answer): return float("nan")
async def word(task, page, answer): return "1"
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
    benchmark = OwnReward(load_reward(f"{file}:title"))
    await session.goto(f"{site}/two")
    for title, value in (("Two", 1.0), ("Form", 0.0)):
        task = task_with({"title": title})
        score = await benchmark.score(task, session, "")
        assert score.value == score.details["score"] == value and not benchmark.needs_judge(task)
    assert (await OwnReward(load_reward(f"{file}:half")).score(task, session, "")).value == 0.5
    nothing = await OwnReward(load_reward(f"{file}:none")).score(task, session, "")
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
        ("above", "the reward failed: ValueError: it must be 0 to 1 or None, not 1.5"),
        ("nan", "the reward failed: ValueError: it must be 0 to 1 or None, not nan"),
        ("word", "the reward failed: TypeError: '<=' not supported between instances of 'int' and 'str'"),
        ("fails", r"the reward failed: KeyError: 'order\nno'"),
        ("late", "the reward failed: TimeoutError: mine"),
        ("missing", "the reward failed: TimeoutError: Page.click: Timeout 50ms exceeded."),
        ("hangs", "the reward failed: TimeoutError: "),
    ],
)
async def test_a_reward_that_fails_gives_no_verdict(session: Session, file, monkeypatch, name, reason):
    monkeypatch.setattr(own_reward, "REWARD_SECONDS", 5.0 if name == "missing" else 0.2)
    with pytest.raises(BrowserFault) as caught:
        await OwnReward(load_reward(f"{file}:{name}")).score(task_with({}), session, "")
    assert caught.value.stop is Stop.JUDGE_ERROR and str(caught.value) == reason


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
    assert ended == [True]
