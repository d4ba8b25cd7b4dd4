"""Tasks on generated sites: their machine's rules decide on the page's state (AutoWebWorld, section 3)."""

from __future__ import annotations

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.browser.session import Session
from minirl.types import Score, Task
from minirl.worlds.interpreter import holds
from minirl.worlds.render import read_state


class WorldBenchmark(JudgedBenchmark):
    judged = False

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        state = await session.do(read_state(session.page))
        if state is None:
            return Score(0.0)
        details = {"page": state.page, "signature": dict(state.signature)}
        return Score(float(holds(state, task.goal)), details)
