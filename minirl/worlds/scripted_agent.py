"""Demonstrations: `ScriptedPolicy` answers an episode's prompts with a task's solution.

It stands in place of a model's samples, so a demonstration is an ordinary trajectory: the same harness,
history and ids as the model will see. Paper: AutoWebWorld, section 3.3. Deviation: there the browser's state
is never compared; here it must be what the interpreter predicts before every action.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from minirl.agents import simplified_html
from minirl.config import AgentConfig
from minirl.console import progress, say
from minirl.model import Preprocessor
from minirl.rollout import RolloutWorker
from minirl.types import BrowserFault, Prompt, Sample, Session, Stop, Task, Trajectory
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.render import sites_of, world_at
from minirl.worlds.replay import MOST_SCROLLS, action, call, compare, find, is_visible, middle
from minirl.worlds.shop import SHOP, TO_PRESS
from minirl.worlds.solutions import solution_of
from minirl.worlds.widgets import gui_steps


class ScriptedPolicy:
    """The solution of one task, told turn by turn with the agent's own tools: of tiles all that is
    done on the current page, else as much of one step as can be seen, or a scroll towards it; a text agent's
    response does one thing."""

    def __init__(self, world: World, task: Task, preprocessor: Preprocessor, agent: AgentConfig):
        self.world, self.preprocessor, self.agent = world, preprocessor, agent
        self.steps = solution_of(task, world)  # to be taken
        self.state = initial_state(world.fsm)  # which the page must show by now
        self.left = list[dict[str, Any]]()  # operations of the first one
        self.answer = next(iter(load_goal(task.goal).answer), "done")
        self.is_tiles, self.scrolls = world.style.get("look", "tiles") == "tiles", 0
        asked = [str(condition["value"]) for condition in task.goal.get("where", [])]
        asked += [SHOP["buttons"][role].lower() for role in TO_PRESS]
        self.looked_for = asked if self.is_tiles else []

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        _, ids = self.preprocessor.said(await self.respond(session))
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def respond(self, session: Session) -> str:
        """Return the next response's text. BrowserFault if the site is not in the predicted state."""
        await compare(session, self.state)
        return await (self._calls(session) if self.agent.kind == "visual" else self._action(session))

    def _operations(self) -> list[dict[str, Any]]:
        """Return what is left to do of the next step."""
        self.left = self.left or gui_steps(self.world, self.state, self.steps[0])
        return self.left

    async def _did(self, session: Session, gui: Mapping[str, Any]) -> str:
        """Note that an operation is said, predict the state behind its step's last one, return its words."""
        step, selector = self.steps[0], gui.get("selector", "")
        words = " ".join(str(value) for value in step.params.values())
        self.left, self.scrolls = self.left[1:], 0
        if not self.left:
            self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
            self.steps.pop(0)
        return words or str(await session.do(session.page.inner_text(selector))).strip()

    def _scrolled(self) -> None:
        self.scrolls += 1
        if self.scrolls > MOST_SCROLLS:
            raise BrowserFault(Stop.ENV_ERROR, f"{self.steps[0].action_id}: scrolling does not lead to it")

    async def _action(self, session: Session) -> str:
        if not self.steps:
            words, said = "done", f"exit(message={json.dumps(self.answer)})"
        else:
            wanted, *later = self._operations()
            if later and later[0]["op"] == "type_text" and later[0]["selector"] == wanted["selector"]:
                wanted, self.left = later[0], later  # the agent's "Type" clicks by itself
            gui, _ = await find(session, wanted)
            if gui["op"] != wanted["op"]:
                self._scrolled()
                words, said = gui["to"], action(gui, None)
            else:
                selector = gui.get("selector", "")
                number = await simplified_html.number_at(session, selector) if selector else None
                words, said = await self._did(session, gui), action(gui, number)
            if not said:
                raise ValueError(f"{self.world.name}: the text agent can't {gui['op']}")
        return told(words, said) if self.agent.thinking else said

    async def _calls(self, session: Session) -> str:
        points, page = dict[str, list[int] | None].fromkeys(self.looked_for), self.state.page
        calls, size = list[dict[str, Any]](), (session.width, session.height)
        while self.steps and self.state.page == page and (self.is_tiles or self.left or not calls):
            wanted = self._operations()[0]
            if calls and not self.is_tiles and not await is_visible(session, wanted):
                break  # until the calls so far are carried out
            is_named = bool(self.steps[0].params)
            gui, target = await find(session, wanted)
            calls.append(call(gui, target, *size))
            if gui["op"] != wanted["op"]:
                self._scrolled()
                break
            words = await self._did(session, gui)
            if target.box:
                points[words if is_named else words.lower()] = middle(target.box, *size)
        if not self.steps:
            calls.append({"name": "done", "arguments": {"response": self.answer}})
        return f"<think>\n{spoken(points, calls)}"


def told(words: str, action: str) -> str:
    """Return what a text agent says that acts on the element with these words."""
    return f"<think> # Element: {words} </think> <answer> {action} </answer>"


def spoken(points: Mapping[str, Sequence[int] | None], calls: Sequence[Mapping[str, Any]]) -> str:
    """Return what a visual agent says that looks for things and makes calls on those that are there.

    >>> spoken({"dune": None, "red": (140, 700)}, [{"name": "click", "arguments": {"point_2d": [140, 700]}}])
    'choose dune no red 140 700</think><tool_call>{"name": "click", ... [ 140, 700]}}</tool_call>'
    """
    seen = (f" {word} no" if at is None else f" {word} {at[0]} {at[1]}" for word, at in points.items())
    # the blank makes a number the same token in the call as in the thought, from which it is copied
    said = (re.sub(r": \[(?=\d)", ": [ ", json.dumps(one)) for one in calls)
    return f"choose{''.join(seen)}</think>" + "".join(f"<tool_call>{one}</tool_call>" for one in said)


async def act_out(tasks: Sequence[Task], worker: RolloutWorker) -> list[Trajectory]:
    """Return the solutions of tasks on generated sites, acted out, in the order of the tasks; those
    that the task's rules don't confirm are dropped. A collective call."""
    config, ranks = worker.config, worker.ranks

    async def solve_in_browser(task: Task) -> Trajectory:
        if not (worlds := [world_at(site) for site in sites_of([task])]):
            raise ValueError(f"task {task.id} has no scripted solution; give --warm-start a checkpoint")
        policy = ScriptedPolicy(worlds[0], task, worker.harness.preprocessor, config.agent)
        trajectory = await worker.episode(task, 0, policy, config.eval.max_steps)
        meter.advance(ranks.world)
        if not trajectory.success:
            say(f"demonstration {task.id} dropped: {trajectory.stop.value} {trajectory.error}")
        return trajectory

    with progress("recording demonstrations", len(tasks)) as meter:
        tried = await asyncio.gather(*map(solve_in_browser, tasks[ranks.rank :: ranks.world]))
    found = {t.task.id: t for t in ranks.all_gather([t for t in tried if t.success])}
    return [found[task.id] for task in tasks if task.id in found]
