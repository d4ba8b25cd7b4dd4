"""A reward function of the user's own: --task.reward FILE.py:NAME.

    async def reward(task: Task, page: playwright.async_api.Page, answer: str) -> float | None:
        return float(await page.title() == "Thank you")

It reads the page that the agent has left. Its value is the reward, 0 to 1, and 1 is a success (or less, with
--reward.success); None, an exception, no number or more than REWARD_SECONDS are no verdict: the episode does
not count. Another number ends the run: without this episode its group would be compared wrongly.

If the file has an `async def log_in(task, page)`, an episode begins with that, and then opens its page anew.
"""

import asyncio
import inspect
import runpy
from collections.abc import Awaitable, Callable
from functools import cache

from playwright.async_api import Page

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.types import ROUNDING, BrowserFault, RunEnds, Score, Session, Stop, Task

REWARD_SECONDS = 60.0  # for one call; one that blocks the event loop, as time.sleep does, can't be ended

Reward = Callable[[Task, Page, str], Awaitable[float | None]]


class OwnReward(JudgedBenchmark):
    judged = False

    def __init__(self, reward: Reward, enter: Callable | None):
        self.reward = reward
        self.enter = enter

    async def log_in(self, session: Session, task: Task) -> bool:
        """Await the file's own log_in, if it has one."""
        if self.enter:
            await session.do(self.enter(task, session.page), REWARD_SECONDS)
        return bool(self.enter)

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the function's value. BrowserFault with Stop.JUDGE_ERROR where it fails, RunEnds for another
        number."""
        try:
            async with asyncio.timeout(REWARD_SECONDS):
                value = await self.reward(task, session.page, answer)
            if value is not None:
                value = float(value)
                if abs(value - round(value)) < ROUNDING:
                    value = float(round(value))
        except Exception as error:  # whatever the user's code raises
            problem = f"the reward failed: {type(error).__name__}: {error}"
            raise BrowserFault(Stop.JUDGE_ERROR, problem.splitlines()[0]) from error
        if value is None:
            return Score(None, {"reason": "the reward function gave no verdict"})
        if not 0 <= value <= 1:
            raise RunEnds(f"--task.reward {self.reward.__name__} must return 0 to 1 or None, not {value:g}")
        return Score(value, {"score": value, "reason": f"the reward function gave {value:g}"})


@cache  # the user's file may do anything: it is run once
def load_reward(place: str) -> OwnReward:
    """Return the benchmark whose reward is the function that `FILE.py:NAME` names. ValueError if it can't be
    one."""
    file, _, name = place.partition(":")
    functions = runpy.run_path(file)
    reward = functions.get(name)
    if not inspect.iscoroutinefunction(reward):
        expected = "FILE.py:NAME, and the file an async def NAME(task, page, answer)"
        raise ValueError(f"--task.reward {place} must be like {expected}")
    return OwnReward(reward, functions.get("log_in"))
