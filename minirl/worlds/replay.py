"""Solutions acted out in Chromium, with the state compared with the interpreter's before every operation.

    tasks --Recorder in Episode--> trajectories, and what a hand did --> Replays

Stands behind the verbs `replay`, `record` (see steps.py) and `author`. A `Recorder` is the scripted policy in
the ordinary harness, so what is verified here is done by the tools that agents have.
Paper: AutoWebWorld, section 4.4 (execution-based filtering).

1. There a failed click is a warning, and the page is believed to be where the trace says; here the page's
   state is read before every operation and at the end.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.browser.pool import BrowserPool
from minirl.config import AgentConfig, BrowserConfig, Config, ModelConfig
from minirl.episode import Episode, Harness
from minirl.model import load_preprocessor
from minirl.package_files import PACKAGE
from minirl.run_folder import ImageFolder
from minirl.samplers.endpoint import ask_all
from minirl.types import (
    BrowserFault,
    Observation,
    Prompt,
    Sample,
    Session,
    Stop,
    Task,
)
from minirl.worlds.hand import Operation, compare, find, measure, tool_calls
from minirl.worlds.interpreter import State, World
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy, with_points

MAX_TURNS = 300
AGENT = AgentConfig(brief=True, context_tokens=10**9)


@dataclass
class Record:
    """One operation of a replay, or the answer at its end, and the page's state before it. What the page
    looked like then (PNG) and the words of its element are empty unless pictures are wanted."""

    action_id: str
    operation: Operation
    state: State
    picture: bytes = b""
    words: str = ""


@dataclass
class Replay:
    """A task's solution acted out. `reason` is empty if the page was in the predicted state all the way."""

    task: Task
    records: list[Record] = field(default_factory=list)
    reason: str = ""


class Recorder(ScriptedPolicy):
    """The solution of one task, one operation a turn, each of which is recorded. Responses are texts without
    ids, so nobody's tokenizer needs to know their words."""

    def __init__(self, world: World, task: Task, harness: Harness, has_pictures: bool):
        super().__init__(world, task, harness.preprocessor, harness.config.agent)
        self.has_pictures = has_pictures
        self.records = []
        self.place = "at the start"

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        try:
            return Sample((), (), "stop", text=await self.respond(session))
        except BrowserFault as fault:
            raise BrowserFault(fault.stop, f"{self.place}: {fault}") from None

    async def respond(self, session: Session) -> str:
        await measure(session, "frames")  # scrolling tells the page only with the next frame
        await compare(session, self.state)
        if self.steps:
            self.place = self.steps[0].action_id
        operation = await find(session, self.next_operation())
        record = Record(self.place, operation, self.state)
        if self.has_pictures:
            record.picture = await session.screenshot() or b""
            if operation.selector:
                record.words = await measure(session, "words", operation.selector)
        self.records.append(record)
        self.advance(operation)
        return with_points({}, tool_calls(operation, session.width, session.height))


class UnseeingAgent(OpenWebRLAgent):
    """OpenWebRL's agent for a policy that looks at the page by itself: it takes no screenshots."""

    async def observe(self, session: Session) -> Observation:
        return Observation("", url=session.page.url)


# A benchmark without rules, as far as an episode asks: every state is compared, nothing else counts
UNSCORED: Any = SimpleNamespace(
    judged=True,
    recorded=False,
    session=lambda harness, task: harness.browsers.session(),
    prepare=lambda session, task: asyncio.sleep(0),
    has_ended=lambda session, task: asyncio.sleep(0, False),
)


async def replay_sites(
    worlds: Sequence[World], config: BrowserConfig, tasks: Sequence[Task], has_pictures: bool = False
) -> list[Replay]:
    """Return the Replay of every task, in their order; `config.episodes` run at a time."""
    sites = {world.name: world for world in worlds}

    async def visit(task: Task) -> Replay:
        if task.meta["world"] not in sites:  # a folder with another name
            return Replay(task, reason="its site is not among these")
        try:
            policy = Recorder(sites[task.meta["world"]], task, harness, has_pictures)
        except ValueError as problem:
            return Replay(task, reason=str(problem))
        trajectory = await Episode(harness, task, 0, policy, MAX_TURNS).run()
        reason = ""
        if trajectory.stop is not Stop.DONE:
            reason = trajectory.error or f"it ended by {trajectory.stop.value}"
        return Replay(task, policy.records, reason)

    with SiteServer(worlds) as server:
        config = replace(config, quiet_ms=0)  # pages of ours change at once, or with the next frame
        async with BrowserPool(config, server.sites, sealed=True) as browsers:
            # What replays share: the visual agent's tools, and the tiny text model's tokenizer
            everything = Config("replay", agent=AGENT, browser=config)
            preprocessor = load_preprocessor(ModelConfig(f"{PACKAGE}/tiny/base_text"))
            agent = UnseeingAgent(AGENT)
            images = ImageFolder(Path("unused"))  # there are no observed pictures
            harness = Harness(everything, preprocessor, agent, browsers, images, lambda task: UNSCORED)
            return await ask_all(visit, tasks, config.episodes, "acting out solutions")
