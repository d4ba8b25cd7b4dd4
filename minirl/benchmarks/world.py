"""Tasks on generated sites: their machine's rules decide on the page's state (AutoWebWorld, section 3)."""

from dataclasses import asdict, dataclass

from minirl.benchmarks.judged import JudgedBenchmark
from minirl.types import Score, Session, Task
from minirl.worlds.interpreter import share_met
from minirl.worlds.render import read_state
from minirl.worlds.several import share_over, states_of


@dataclass
class WorldBenchmark(JudgedBenchmark):
    partial: float = 0.0  # of the reward for the share of the goal that holds, where not all of it does
    judged = False

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        if "sites" in task.goal:
            states = await states_of(session)
            details = {"sites": {name: [asdict(state) for state in some] for name, some in states.items()}}
            share = share_over(states, task.goal)
        elif state := await session.do(read_state(session.page)):
            details = {"page": state.page, "signature": dict(state.signature)}
            details |= {"answer": answer} if "answer" in task.goal else {}
            share = share_met(state, task.goal, answer)
        else:
            return Score(0.0)
        return Score(share if share == 1 else self.partial * share, details)
