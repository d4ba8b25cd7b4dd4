"""Recorded steps: solutions acted out, as rows of the file that AutoWebWorld's loader reads.

    tasks --ways_of--> tasks --recorded--> Replays --one_of_each, rows_of--> rows --mixed--> steps.json

benchmarks/recorded.py reads such a file. Points are pixels of the screenshot. Paper: AutoWebWorld, sections
4.4 and 5.1, appendix A.2.4.

1. A goal's trajectories differ in how a list is searched, filtered or ordered; of those that are acted out
   one is drawn. Tasks with the same goal on the same site are taken for one.
2. A thought comes from a template unless a served model writes it (there, Gemini-2.5-Flash), and so does the
   instruction of a grounding row.
3. The rows tell beyond the released ones what a response must hold, and the state that the page was in.
4. There are no negative trajectories, which the appendix has as an option.
"""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from minirl.agents.autowebworld import action_of, spell
from minirl.config import BrowserConfig, EndpointConfig
from minirl.console import progress, say
from minirl.run_folder import ImageFolder, write_atomic
from minirl.samplers.endpoint import Endpoint, EndpointError, open_endpoint
from minirl.types import Json, Task
from minirl.worlds.hand import row_of
from minirl.worlds.interpreter import World
from minirl.worlds.looks import read_table
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.solutions import ways_of

WORDS = read_table("thoughts")
THOUGHTS = WORDS["thoughts"]  # by action
INSTRUCTIONS = WORDS["asked"]  # by action
TAGS = re.compile(r"</?(?:think|action)>")
THOUGHT_TOKENS = 1024


def one_of_each(replays: Sequence[Replay], seed: int) -> list[Replay]:
    """Return one trajectory, drawn by the seed, of those that have the same goal on the same site."""
    by_goal = {}
    for replay in replays:
        key = replay.task.start_url, json.dumps(replay.task.goal, sort_keys=True)
        by_goal.setdefault(key, []).append(replay)
    return [random.Random(f"{seed} {key}").choice(same) for key, same in by_goal.items()]


async def recorded(
    tasks: Sequence[Task], worlds: Mapping[str, World], config: BrowserConfig, ways: int
) -> list[Replay]:
    """Return the solutions of tasks, acted out with pictures, in at most so many `ways` each; `worlds` are
    named as in the tasks' meta. Those that fail are dropped and told. ValueError if a task's world is
    missing, or is another one than it was made for."""
    trajectories = []
    for task in tasks:
        name = task.meta.get("world", "")
        if name not in worlds:
            raise ValueError(f"task {task.id} is on no site that is given: name its folder with --sites")
        trajectories += ways_of(task, worlds[name])[:ways]
    replays = await replay_sites(list(worlds.values()), config, trajectories, has_pictures=True)
    for replay in replays:
        if replay.reason:
            say(f"dropped: {replay.task.id}: {replay.reason}")
    return [replay for replay in replays if not replay.reason]


async def rows_of(replay: Replay, images: ImageFolder, endpoint: Endpoint | None) -> list[Json]:
    """Return a row for every operation of a trajectory, with what was thought and done before it; thoughts
    are those of the served model if there is one, and the template's where it gives none."""
    task = replay.task
    moves = [row_of(record.operation, record.words) for record in replay.records]
    actions = [action_of(move) or {} for move in moves]

    async def think(n: int) -> str:
        thought = THOUGHTS[moves[n]["action"]].format(**moves[n])
        if endpoint:
            history = "\n".join(map(str, actions[:n])) or "nothing"
            question = WORDS["prompt"].format(task=task.instruction, history=history, action=actions[n])
            message = ("user", (question, replay.records[n].picture))
            try:
                reply = await endpoint.ask([message], THOUGHT_TOKENS, temperature=0.0)
                if reply.finish == "stop":
                    thought = reply.text.strip() or thought
            except EndpointError as error:
                say(f"{task.id}, step {n + 1} has the template's thought: {error}")
        return without_tags(thought)

    thoughts = await asyncio.gather(*map(think, range(len(moves))))
    rows = []
    history = []
    for n, record in enumerate(replay.records):
        picture = images.put(record.picture)
        state = record.state
        rows.append(
            {
                "instruction": task.instruction,
                "img_filename": f"pictures/{picture}.png",
                **moves[n],
                "state": {"page": state.page, "signature": dict(state.signature)},
                "history": "\n".join(history),
                "thought": thoughts[n],
            }
        )
        history.append(f"Step {n + 1}: {spell(thoughts[n], actions[n])}")
    return rows


def without_tags(thought: str) -> str:
    """Return a thought in one line, without the tags by which it could close itself."""
    return " ".join(TAGS.sub(" ", thought).split())


def mixed(rows: Sequence[Json], share: float, seed: int) -> list[Json]:
    """Return the rows, shuffled, with so many grounding rows among them that these are a `share` of all, and
    of the first rows as well, however many are taken. Such are steps that aim at something with words on it,
    each with an instruction for it alone."""
    single_steps = {}  # by picture and instruction
    for row in rows:
        words = row.get("words")
        if words and row["action"] in INSTRUCTIONS:
            instruction = INSTRUCTIONS[row["action"]].format(words=words)
            thought = without_tags(f'I see "{words}".')
            alone = {"instruction": instruction, "history": "", "thought": thought}
            single_steps[row["img_filename"], instruction] = row | alone
    count = min(round(share / (1 - share) * len(rows)), len(single_steps))
    rng = random.Random(f"{seed} grounding")
    grounding = rng.sample(list(single_steps.values()), count)
    steps = rng.sample(rows, len(rows))
    total = len(rows) + count
    out = []
    for n in range(1, total + 1):
        is_due = round(n * count / total) > round((n - 1) * count / total)
        row = (grounding if is_due else steps).pop()
        out.append({name: value for name, value in row.items() if name != "words"})
    return out


async def save_steps(
    replays: Sequence[Replay], out: Path, served: EndpointConfig, share: float, seed: int
) -> None:
    """Write the steps of `recorded` tasks as steps.json, and the pictures that it names. The model that is
    `served`, if it has a name, writes the thoughts, and its cost is told."""
    images = ImageFolder(out / "pictures")
    async with open_endpoint(served) if served.model else contextlib.nullcontext() as endpoint:
        with progress("writing thoughts"):
            by_task = await asyncio.gather(*(rows_of(replay, images, endpoint) for replay in replays))
    rows = [row for trajectory in by_task for row in trajectory]
    everything = mixed(rows, share, seed)
    text = json.dumps(everything, indent=1, ensure_ascii=False) + "\n"
    write_atomic(out / "steps.json", text.encode())
    extra = len(everything) - len(rows)
    say(f"{out / 'steps.json'}: {len(replays)} trajectories, {len(rows)} steps, {extra} for grounding")
