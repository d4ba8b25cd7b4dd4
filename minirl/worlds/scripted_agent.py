"""Demonstrations: `ScriptedPolicy` answers an episode's prompts with the shortest solution.

It stands in place of a model's samples, so a demonstration is an ordinary trajectory: the same harness,
history and ids as the model will see. Paper: AutoWebWorld, section 3.3. Deviation: there the browser's state
is never compared; here it must be what the interpreter predicts before every action.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from minirl.agents import simplified_html
from minirl.agents.openwebrl import SCALE
from minirl.browser.session import Session
from minirl.config import AgentConfig
from minirl.console import progress, say
from minirl.model import Preprocessor
from minirl.rollout import RolloutWorker
from minirl.types import Prompt, Sample, Task, Trajectory
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.replay import compare, measure
from minirl.worlds.search import Step, solve
from minirl.worlds.shop import shops_of
from minirl.worlds.widgets import gui_steps

VISUAL = AgentConfig()


class ScriptedPolicy:
    """The shortest solution of one task, told turn by turn: a text agent's response does one thing, a visual
    agent's all that is done on the current page. Without a preprocessor there is only `respond`."""

    def __init__(
        self, world: World, task: Task, preprocessor: Preprocessor | None = None, agent: AgentConfig = VISUAL
    ):
        self.world, self.preprocessor, self.agent = world, preprocessor, agent
        self.state, self.ended = initial_state(world.fsm), False  # the page must show that state by now
        steps = solve(world, task.goal)
        if steps is None:
            raise ValueError(f"task {task.id} has no solution in {world.name}")
        self.steps = steps  # that are left

    async def __call__(self, t: int, prompt: Prompt, session: Any) -> Sample:
        assert self.preprocessor is not None
        tokenizer = self.preprocessor.tokenizer
        text = f"{await self.respond(session)}{tokenizer.eos_token}"
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def respond(self, session: Session) -> str:
        """Return the next response's text. BrowserFault if the page is not in the predicted state."""
        await compare(session, self.state)
        return await (self._calls(session) if self.agent.kind == "visual" else self._action(session))

    def _next(self) -> tuple[Step, list[dict[str, Any]]]:
        """Return the next step and its operations, and predict the state behind it."""
        step = self.steps.pop(0)
        operations = gui_steps(self.world, self.state, step)
        self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
        return step, operations

    async def _action(self, session: Session) -> str:
        words, action = "done", 'exit(message="done")'
        self.ended = not self.steps
        if not self.ended:
            step, (operation,) = self._next()
            selector = operation["selector"]
            number = await simplified_html.number_at(session, selector)
            action = f'do(action="Click", element="{number}")'
            words = " ".join(str(value) for value in step.params.values())
            words = words or str(await session.do(session.page.inner_text(selector))).strip()
        thinking = f"<think> # Element: {words} </think> <answer> {action} </answer>"
        return thinking if self.agent.thinking else action

    async def _calls(self, session: Session) -> str:
        calls, words, page = [], [], self.state.page
        while self.steps and self.state.page == page:
            step, operations = self._next()
            calls += [await self._click(session, operation["selector"]) for operation in operations]
            words += [str(value) for value in step.params.values()]
        self.ended = not self.steps
        if self.ended:
            calls.append({"name": "done", "arguments": {"response": "done"}})
        blocks = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        opening = "" if self.preprocessor and self.preprocessor.chat.opens_think else "<think>\n"
        return f"{opening}choose {' '.join(words)}</think>{blocks}"

    async def _click(self, session: Session, selector: str) -> dict[str, Any]:
        """Return a click on the element's centre, rounded to a multiple of 10 if that is inside too, because
        round coordinates are single tokens for a small vocabulary."""
        left, top, right, bottom = await measure(session, "box", selector)
        point = []
        for low, high, size in ((left, right, session.width), (top, bottom, session.height)):
            exact = (low + high) / 2 * SCALE / size
            tens = round(exact / 10) * 10
            point.append(tens if low < tens * size / SCALE < high else round(exact))
        return {"name": "click", "arguments": {"point_2d": point}}


async def act_out(tasks: Sequence[Task], worker: RolloutWorker) -> list[Trajectory]:
    """Return the shortest solutions of tasks on generated shops, acted out, in the order of the tasks; those
    that the task's rules don't confirm are dropped. A collective call."""
    config, ranks = worker.config, worker.ranks
    shops = {shop.name: shop for shop in shops_of(tasks)}

    async def solve_in_browser(task: Task) -> Trajectory:
        shop = shops.get(str(task.meta.get("world")))
        if shop is None:
            raise ValueError(f"task {task.id} has no scripted solution; give --warm-start a checkpoint")
        policy = ScriptedPolicy(shop, task, worker.harness.preprocessor, config.agent)
        trajectory = await worker.episode(task, 0, policy, config.eval.max_steps)
        meter.advance(ranks.world)
        if not trajectory.success:
            say(f"demonstration {task.id} dropped: {trajectory.stop.value} {trajectory.error}")
        return trajectory

    with progress("recording demonstrations", len(tasks)) as meter:
        tried = await asyncio.gather(*map(solve_in_browser, tasks[ranks.rank :: ranks.world]))
    found = {t.task.id: t for t in ranks.all_gather([t for t in tried if t.success])}
    return [found[task.id] for task in tasks if task.id in found]
