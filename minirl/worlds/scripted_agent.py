"""Demonstrations: `ScriptedPolicy` answers an episode's prompts with a task's solution.

    task.meta["solution"] --gui_steps--> operations --hand.py--> one response a turn --Episode--> Trajectory

It stands in place of a model's samples, so a demonstration is an ordinary trajectory: the same harness,
history and ids as the model will see. Paper: AutoWebWorld, section 4.3.

1. There the browser's state is never compared; here it must be what the interpreter predicts before every
   response, so that a page which does something else ends the episode.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence

from minirl.agents import simplified_html
from minirl.config import AgentConfig
from minirl.console import progress, say
from minirl.model import Preprocessor
from minirl.rollout import RolloutWorker
from minirl.types import Fields, Json, Prompt, Sample, Session, Task, Trajectory
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.hand import Operation, compare, find, is_visible, middle, text_action, tool_calls
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.render import sites_of, world_at
from minirl.worlds.shop import SHOP, TO_PRESS
from minirl.worlds.solutions import solution_of
from minirl.worlds.widgets import gui_steps


class ScriptedPolicy:
    """The solution of one task, told turn by turn with the agent's own tools. ValueError if it has none.

    A response to tiles does all that is to be done on the current page; to other pages as much of one step as
    can be seen, or a scroll towards it; a text agent's does one thing.
    """

    def __init__(self, world: World, task: Task, preprocessor: Preprocessor, agent: AgentConfig):
        self.world = world
        self.preprocessor = preprocessor
        self.agent = agent
        self.steps = solution_of(task, world)  # those still to be taken
        self.state = initial_state(world.fsm)  # which the page must show by now
        self.pending = []  # what is left to do of the first step
        answers = load_goal(task.goal).answer
        self.answer = answers[0] if answers else "done"
        self.is_tiles = world.style.get("look", "tiles") == "tiles"
        self.search_words = []  # what a page of tiles is looked through for
        if self.is_tiles:
            values = [str(condition["value"]) for condition in task.goal.get("where", [])]
            self.search_words = values + [SHOP["buttons"][role].lower() for role in TO_PRESS]

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        _, ids = self.preprocessor.render_response(await self.respond(session))
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def respond(self, session: Session) -> str:
        """Return the next response's text. BrowserFault if the site is not in the predicted state."""
        await compare(session, self.state)
        if self.agent.kind == "visual":
            return await self.visual_response(session)
        return await self.text_response(session)

    def next_operation(self) -> Json:
        """Return what is to be done next: at the end, to answer."""
        if not self.steps:
            return {"op": "answer", "text": self.answer}
        if not self.pending:
            self.pending = gui_steps(self.world, self.state, self.steps[0])
        return self.pending[0]

    def advance(self, operation: Operation) -> None:
        """Note that an operation is told and, if it is its step's last one, predict the state behind it."""
        if operation.is_detour:
            return
        self.pending = self.pending[1:]
        if self.steps and not self.pending:
            step = self.steps[0]
            self.state = apply(self.world.fsm, self.state, step.action_id, step.params)
            self.steps = self.steps[1:]

    async def words_of(self, session: Session, operation: Operation) -> str:
        """Return what the next step chooses or, if it chooses nothing, what stands on the element."""
        params = self.steps[0].params
        if params:
            return " ".join(str(value) for value in params.values())
        return str(await session.do(session.page.inner_text(operation.selector))).strip()

    async def text_response(self, session: Session) -> str:
        """Return the text agent's action for the next operation, or its goodbye."""
        gui = self.next_operation()
        if len(self.pending) > 1:
            following = self.pending[1]
            if following["op"] == "type_text" and following["selector"] == gui["selector"]:
                self.pending = self.pending[1:]  # the agent's "Type" clicks by itself
                gui = following
        operation = await find(session, gui)
        words = operation.text  # the way to scroll
        number = None
        if not self.steps:
            words = "done"
        elif not operation.is_detour:
            words = await self.words_of(session, operation)
            if operation.selector:
                number = await simplified_html.number_at(session, operation.selector)
        self.advance(operation)
        action = text_action(operation, number)
        if not action:
            raise ValueError(f"{self.world.name}: the text agent can't {operation.op}")
        return with_thought(words, action) if self.agent.answers == "thinking" else action

    async def visual_response(self, session: Session) -> str:
        """Return the visual agent's calls for what can be done before the next look, or its goodbye."""
        width = session.width
        height = session.height
        page = self.state.page
        points: dict[str, list[int] | None] = dict.fromkeys(self.search_words)
        calls = []
        while self.steps and self.state.page == page and (self.is_tiles or self.pending or not calls):
            gui = self.next_operation()
            if calls and not self.is_tiles and not await is_visible(session, gui):
                break  # until the calls so far are carried out
            operation = await find(session, gui)
            calls += tool_calls(operation, width, height)
            if operation.is_detour:  # after which the page is to be looked at
                self.advance(operation)
                break
            if operation.box:
                words = await self.words_of(session, operation)
                name = words if self.steps[0].params else words.lower()
                points[name] = middle(operation.box, width, height)
            self.advance(operation)
        if not self.steps:
            calls += tool_calls(await find(session, self.next_operation()), width, height)
        return f"<think>\n{with_points(points, calls)}"


def with_thought(words: str, action: str) -> str:
    """Return a text agent's response that acts on the element with these words."""
    return f"<think> # Element: {words} </think> <answer> {action} </answer>"


def with_points(points: Mapping[str, Sequence[int] | None], calls: Sequence[Fields]) -> str:
    """Return a visual agent's response that looks for things and makes calls on those that are there.

    >>> with_points({"dune": None, "red": (140, 7)}, [{"name": "click", "arguments": {"point_2d": [140, 7]}}])
    'choose dune no red 140 7</think><tool_call>{"name": "click", ... [ 140, 7]}}</tool_call>'
    """
    thought = "choose"
    for word, point in points.items():
        thought += f" {word} no" if point is None else f" {word} {point[0]} {point[1]}"
    response = f"{thought}</think>"
    for one in calls:
        # The blank makes a number the same token in the call as in the thought, from which it is copied.
        call = re.sub(r": \[(?=\d)", ": [ ", json.dumps(one))
        response += f"<tool_call>{call}</tool_call>"
    return response


def scripted_policy(task: Task, worker: RolloutWorker) -> ScriptedPolicy:
    """Return the policy that takes a task's solution. ValueError if its site is not a generated one."""
    sites = sites_of([task])
    if not sites:
        raise ValueError(f"task {task.id} has no scripted solution; give --warm-start a checkpoint")
    return ScriptedPolicy(world_at(sites[0]), task, worker.harness.preprocessor, worker.config.agent)


async def act_out(tasks: Sequence[Task], worker: RolloutWorker) -> list[Trajectory]:
    """Return the solutions of tasks on generated sites, acted out, in the order of the tasks; those that the
    task's rules don't confirm are dropped. A collective call."""
    ranks = worker.ranks

    async def solve_in_browser(task: Task) -> Trajectory:
        demo = await worker.episode(task, 0, scripted_policy(task, worker), worker.config.eval.max_steps)
        meter.advance(ranks.world_size)
        if not demo.success:
            say(f"demonstration {task.id} dropped: {demo.stop.value} {demo.error}")
        return demo

    with progress("recording demonstrations", len(tasks)) as meter:
        trajectories = await asyncio.gather(*map(solve_in_browser, tasks[ranks.rank :: ranks.world_size]))
    successes = ranks.all_gather([one for one in trajectories if one.success])
    by_task = {one.task.id: one for one in successes}
    return [by_task[task.id] for task in tasks if task.id in by_task]
