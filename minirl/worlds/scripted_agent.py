"""Solutions acted out in Chromium: demonstrations whose every step is checked.

Stands between search and imitation. `ScriptedPolicy` answers an episode's prompts with a `Script`, the
shortest solution, instead of a model's samples, so a demonstration is an ordinary trajectory: same harness,
same history, same ids as the model will see. Before it acts it compares the page's state with the state that
the interpreter predicts, and refuses to go on if they differ. AutoWebWorld section 3.3; deviation: there
the browser's state is never compared.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from minirl.agents import simplified_html
from minirl.agents.openwebrl import SCALE
from minirl.browser.session import Session
from minirl.model import Preprocessor
from minirl.types import BrowserFault, Prompt, Sample, Stop, Task
from minirl.worlds.interpreter import World, apply, holds, initial_state
from minirl.worlds.render import difference, read_state
from minirl.worlds.replay import BOX
from minirl.worlds.search import Step, solve
from minirl.worlds.widgets import gui_steps

Form = Literal[
    "tools", "thinking", "action"
]  # the visual agent's, the text agent's, and that without thoughts


class Script:
    """The shortest solution of one task, told turn by turn.

    A visual agent's response does everything that can be done on the current page, then ends with the
    navigation; its last one also calls `done`. A text agent's does one thing. `opens_think`: the chat
    template has written "<think>" already.
    """

    def __init__(self, world: World, task: Task, form: Form = "tools", opens_think: bool = False):
        self.world, self.form, self.opens_think = world, form, opens_think
        steps = solve(world, task.goal)
        if steps is None:
            raise ValueError(f"task {task.id} has no solution in {world.name}")
        self.steps: list[Step] = steps
        self.state = initial_state(world.fsm)  # what the page must show by now
        self.ended = False

    async def respond(self, session: Session) -> str:
        """The next response's text. BrowserFault if the page is not in the predicted state."""
        if found := await difference(session, self.state):
            raise BrowserFault(Stop.ENV_ERROR, found)
        return await (self._tools(session) if self.form == "tools" else self._action(session))

    async def _action(self, session: Session) -> str:
        """The text agent's next action, with what it looks for as its thought."""
        words, action = "done", 'exit(message="done")'
        self.ended = not self.steps
        if self.steps:
            step = self.steps.pop(0)
            (gui,) = gui_steps(self.world, self.state, step)
            number = await simplified_html.number_at(session, gui["selector"])
            action = f'do(action="Click", element="{number}")'
            words = " ".join(str(value) for value in step.params.values()) or await self._label(session, gui)
            self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
        if self.form == "action":
            return action
        return f"<think> # Element: {words} </think> <answer> {action} </answer>"

    async def _label(self, session: Session, gui: dict[str, Any]) -> str:
        return str(await session.do(session.page.inner_text(gui["selector"]))).strip()

    async def _tools(self, session: Session) -> str:
        calls, words, page = [], [], self.state.page
        while self.steps and self.state.page == page:
            step = self.steps.pop(0)
            for gui in gui_steps(self.world, self.state, step):
                calls.append(await self._click(session, gui["selector"]))
            words += [str(value) for value in step.params.values()]
            self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
        self.ended = not self.steps
        if self.ended:
            calls.append({"name": "done", "arguments": {"response": "done"}})
        blocks = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        opening = "" if self.opens_think else "<think>\n"
        return f"{opening}choose {' '.join(words)}</think>{blocks}"

    async def _click(self, session: Session, selector: str) -> dict[str, Any]:
        """A click on the element's centre, or on the nearest multiple of 10 if that is inside too: round
        coordinates are what a person would say, and single tokens for a small vocabulary."""
        box = await session.do(session.page.evaluate(BOX, selector))
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


class ScriptedPolicy:
    """A `Script` as a policy: call it turn by turn."""

    def __init__(self, world: World, task: Task, preprocessor: Preprocessor, form: Form = "tools"):
        self.script = Script(world, task, form, preprocessor.chat.opens_think)
        self.tokenizer = preprocessor.tokenizer

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        text = await self.script.respond(session) + self.tokenizer.eos_token
        ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")


class WorldVerifier:
    """Success in a synthetic world: the page's state fulfils the task's goal, by the interpreter's rules."""

    async def __call__(self, task: Task, session: Session, answer: str) -> tuple[bool, dict[str, Any]]:
        state = await session.do(read_state(session.page))
        if state is None:
            return False, {}
        return holds(state, task.goal), {"page": state.page, "signature": dict(state.signature)}
