"""Demonstrations: `ScriptedPolicy` answers an episode's prompts with the shortest solution.

It stands in place of a model's samples, so a demonstration is an ordinary trajectory: the same harness,
history and ids as the model will see. Paper: AutoWebWorld, section 3.3. Deviation: there the browser's state
is never compared; here it must be what the interpreter predicts before every action.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
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
from minirl.worlds.shop import SHOP, shops_of
from minirl.worlds.widgets import gui_steps

VISUAL = AgentConfig()
GRID = 20  # of the coordinates that it says, from 0 to SCALE


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
        asked = [str(condition["value"]) for condition in task.goal.get("where", [])]
        self.looked_for = [*asked, *(SHOP["buttons"][role].lower() for role in ("next", "order"))]

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
        points, page = dict[str, list[int] | None].fromkeys(self.looked_for), self.state.page
        while self.steps and self.state.page == page:
            step, operations = self._next()
            for selector in (operation["selector"] for operation in operations):
                box = await measure(session, "box", selector)
                words = " ".join(str(value) for value in step.params.values())
                words = words or str(await session.do(session.page.inner_text(selector))).strip().lower()
                points[words] = middle(box, session.width, session.height)
        self.ended = not self.steps
        opens_think = self.preprocessor is not None and self.preprocessor.chat.opens_think
        return ("" if opens_think else "<think>\n") + spoken(points, self.ended)


def middle(box: Sequence[float], width: float, height: float) -> list[int]:
    """Return the middle of left, top, right and bottom as a click's point, rounded to a multiple of GRID if
    that is inside too: such coordinates are single tokens for a small vocabulary."""
    point = []
    for low, high, size in ((box[0], box[2], width), (box[1], box[3], height)):
        exact = (low + high) / 2 * SCALE / size
        rounded = round(exact / GRID) * GRID
        point.append(rounded if low < rounded * size / SCALE < high else round(exact))
    return point


def spoken(points: Mapping[str, Sequence[int] | None], ends: bool) -> str:
    """Return what a visual agent says that looks for things and clicks on those that are there.

    >>> spoken({"dune": None, "red": (140, 700)}, ends=False)
    'choose dune no red 140 700</think><tool_call>{"name": "click", ... [ 140, 700]}}</tool_call>'
    """
    there = [list(point) for point in points.values() if point is not None]
    calls: list[dict[str, Any]] = [{"name": "click", "arguments": {"point_2d": point}} for point in there]
    if ends:
        calls.append({"name": "done", "arguments": {"response": "done"}})
    seen = (
        f" {word} no" if point is None else f" {word} {point[0]} {point[1]}" for word, point in points.items()
    )
    # the blank makes a number the same token in the call as in the thought, from which it is copied
    said = (json.dumps(call).replace("[", "[ ") for call in calls)
    return f"choose{''.join(seen)}</think>" + "".join(f"<tool_call>{call}</tool_call>" for call in said)


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
