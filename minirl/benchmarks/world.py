"""Tasks on generated sites: their machine's rules decide on the page's state (AutoWebWorld, section 3)."""

from dataclasses import dataclass

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.types import Score, Session, Task
from minirl.worlds.interpreter import share_met
from minirl.worlds.render import read_state


@dataclass
class WorldBenchmark(JudgedBenchmark):
    partial: float = 0.0  # of the reward for the share of the goal that holds, where not all of it does
    judged = False

    async def state(self, session: Session) -> str:
        state = await session.do(read_state(session.page))
        return state.key() if state else ""

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        state = await session.do(read_state(session.page))
        # another site may have the same pages
        if state is None or not session.page.url.startswith(task.start_url.partition("#")[0]):
            return Score(0.0)
        details = {"page": state.page, "signature": dict(state.signature)}
        if "answer" in task.goal:
            details["answer"] = answer
        share = share_met(state, task.goal, answer)
        return Score(share if share == 1 else self.partial * share, details)
