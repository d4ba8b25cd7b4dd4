"""Solutions acted out in Chromium: demonstrations whose every step is checked.

Stands between search and imitation. `ScriptedPolicy` answers an episode's prompts with the shortest
solution instead of a model's samples, so a demonstration is an ordinary trajectory: same harness, same
history, same ids as the model will see. Before it acts it compares the page's state with the state that
the interpreter predicts, and refuses to go on if they differ. AutoWebWorld section 3.3; deviation: there
the browser's state is never compared.
"""

from __future__ import annotations

import json
from typing import Any

from minirl.browser import BrowserFault, Session
from minirl.model import Language
from minirl.tools import SCALE
from minirl.types import Prompt, Sample, Stop, Task
from minirl.world.fsm import World, apply, holds, initial_state
from minirl.world.search import Step, solve
from minirl.world.site import read_state
from minirl.world.widgets import gui_steps

CENTER = """selector => {
  const e = document.querySelector(selector);
  if (!e) return null;
  const r = e.getBoundingClientRect();
  return [r.left, r.top, r.right, r.bottom];
}"""


class ScriptedPolicy:
    """The shortest solution of one task as a policy: call it turn by turn.

    One response does everything that can be done on the current page, then ends with the navigation; the
    last one also calls `done`.
    """

    def __init__(self, world: World, task: Task, language: Language):
        self.world, self.language = world, language
        steps = solve(world, task.goal)
        if steps is None:
            raise ValueError(f"task {task.id} has no solution in {world.name}")
        self.steps: list[Step] = steps
        self.state = initial_state(world.fsm)  # what the page must show by now

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        text = await self.respond(session) + self.language.tokenizer.eos_token
        ids = tuple(self.language.tokenizer(text, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def respond(self, session: Session) -> str:
        """The next response's text. BrowserFault if the page is not in the predicted state."""
        seen = await session.do(read_state(session.page))
        if seen is None or seen.key() != self.state.key():
            found = seen.key() if seen else "no state"
            raise BrowserFault(Stop.ENV_ERROR, f"the page shows {found}, not {self.state.key()}")
        calls, words, page = [], [], self.state.page
        while self.steps and self.state.page == page:
            step = self.steps.pop(0)
            for gui in gui_steps(self.world, self.state, step):
                calls.append(await self._click(session, gui["selector"]))
            words += [str(value) for value in step.params.values()]
            self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
        if not self.steps:
            calls.append({"name": "done", "arguments": {"response": "done"}})
        blocks = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        opening = "" if self.language.chat.opens_think else "<think>\n"
        return f"{opening}choose {' '.join(words)}</think>{blocks}"

    async def _click(self, session: Session, selector: str) -> dict[str, Any]:
        """A click on the element's centre, or on the nearest multiple of 10 if that is inside too: round
        coordinates are what a person would say, and single tokens for a small vocabulary."""
        box = await session.do(session.page.evaluate(CENTER, selector))
        if box is None:
            raise BrowserFault(Stop.ENV_ERROR, f"the page has no element {selector}")
        left, top, right, bottom = box
        point = []
        for low, high, size in ((left, right, session.width), (top, bottom, session.height)):
            exact = (low + high) / 2 * SCALE / size
            tens = round(exact / 10) * 10
            inside = low < tens * size / SCALE < high
            point.append(tens if inside else round(exact))
        return {"name": "click", "arguments": {"point_2d": point}}


class WorldVerifier:
    """Success in a synthetic world: the page's state fulfils the task's goal, by the interpreter's rules."""

    async def __call__(self, task: Task, session: Session) -> tuple[bool, dict[str, Any]]:
        state = await session.do(read_state(session.page))
        if state is None:
            return False, {}
        return holds(state, task.goal), {"page": state.page, "signature": dict(state.signature)}
