"""Whether a task was fulfilled, where the task itself can tell: by a site's state or by WebArena's rules.

Stands at an episode's end: called with the page that the agent has left and its answer. Tasks without a goal
are for a judge (minirl/judges/judge.py), which reads the whole trajectory afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from minirl.benchmarks.webarena.evaluators import evaluate
from minirl.benchmarks.webarena.lookups import Ask, NoVerdict
from minirl.browser.session import Session
from minirl.types import BrowserFault, Stop, Task
from minirl.worlds.scripted_agent import WorldVerifier


@dataclass(frozen=True)
class TaskVerifier:
    """`variant`: whose reading of WebArena's rules; `ask`: the model that decides what they leave open."""

    variant: Literal["lite", "upstream"] = "lite"
    ask: Ask | None = None

    async def __call__(self, task: Task, session: Session, answer: str) -> tuple[bool, dict[str, Any]]:
        """Success, and what was read. BrowserFault, with Stop.JUDGE_ERROR, if nothing can be said."""
        if task.goal.get("kind") != "webarena":
            return await WorldVerifier()(task, session, answer)
        try:
            score = await evaluate(task, answer, session.page, variant=self.variant, ask=self.ask)
        except NoVerdict as reason:
            raise BrowserFault(Stop.JUDGE_ERROR, str(reason)) from None
        return score.value == 1, {"score": score.value, "reason": score.reason}
