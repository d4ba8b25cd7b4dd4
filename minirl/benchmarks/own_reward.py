"""A reward function of the user's own: --task.reward FILE.py:NAME.

    async def reward(task: Task, page: playwright.async_api.Page, answer: str) -> float | None:
        return float(await page.title() == "Thank you")

It reads the page that the agent has left. Its value is the reward, 0 to 1, and 1 is a success; None, an
exception, another value or more than REWARD_SECONDS are no verdict: the episode does not count.
"""

import asyncio
import inspect
import runpy
from collections.abc import Awaitable, Callable
from functools import cache
from numbers import Real
from pathlib import Path

from playwright.async_api import Page

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.types import BrowserFault, Score, Session, Stop, Task

REWARD_SECONDS = 60.0  # for one call; a call that blocks the event loop, as time.sleep does, can't be ended

Reward = Callable[[Task, Page, str], Awaitable[float | None]]


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.300}"


@cache  # the user's file may do anything: it is run once
def load_reward(place: str) -> Reward:
    """Return the function that `FILE.py:NAME` names. ValueError says in one line why it can't be one."""
    flag = f"--task.reward {place}"
    file, _, name = place.rpartition(":")
    if not file or not name:
        raise ValueError(f"{flag} must be like FILE.py:NAME")
    try:
        found = runpy.run_path(file, run_name=f"own_reward_{Path(file).stem}").get(name)
    except (Exception, SystemExit) as error:  # it is the user's code, which may raise anything
        raise ValueError(f"{flag}: {file} can't be imported: {_in_a_line(error)}") from error
    if not inspect.iscoroutinefunction(found):
        raise ValueError(f"{flag}: {file} must have an async def {name}(task, page, answer)")
    try:
        inspect.signature(found).bind("task", "page", "answer")
    except TypeError as error:
        raise ValueError(f"{flag}: {name} must take (task, page, answer): {error}") from None
    return found


class OwnReward(JudgedBenchmark):
    judged = False

    def __init__(self, reward: Reward):
        self.reward = reward

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the function's value. Raises BrowserFault with Stop.JUDGE_ERROR where it fails."""
        call = asyncio.ensure_future(self.reward(task, session.page, answer))
        try:  # not asyncio.timeout: a function that swallows its cancellation is left behind
            await asyncio.wait([call], timeout=REWARD_SECONDS)
            if not call.done():
                raise BrowserFault(Stop.JUDGE_ERROR, f"the reward took more than {REWARD_SECONDS:g} s")
        finally:
            call.cancel()
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is not None:
            raise BrowserFault(Stop.JUDGE_ERROR, f"the reward failed: {_in_a_line(error)}") from error
        value = call.result()
        if value is None:
            return Score(None, {"reason": "the reward function gave no verdict"})
        if not isinstance(value, Real) or not 0 <= value <= 1:
            raise BrowserFault(Stop.JUDGE_ERROR, f"the reward must be 0 to 1 or None, not {value!r}"[:200])
        value = float(value)
        return Score(value, {"score": value, "reason": f"the reward function gave {value:g}"})
