"""Recorded steps: solutions acted out, as rows of the file that AutoWebWorld's loader reads.

    tasks --one_of_each--> tasks --recorded--> Replays --rows_of--> rows --mixed--> steps.json, pictures/

benchmarks/recorded.py reads such a file. Points are pixels of the screenshot. Paper: AutoWebWorld, sections
4.3 and 5.1. Deviations: the solutions are shortest ones, and tasks with the same goal on the same site are
taken for one; a thought comes from a template unless a served model writes it (there, Gemini-2.5-Flash); a
grounding row's instruction does, too; the rows say beyond the released ones what a response must hold.
"""

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.agents.autowebworld import action_of, spell
from minirl.config import BrowserConfig, EndpointConfig
from minirl.console import progress, say
from minirl.run_folder import ImageFolder, write_atomic
from minirl.samplers.endpoint import Endpoint, EndpointError, open_endpoint
from minirl.types import Task
from minirl.worlds.interpreter import World
from minirl.worlds.looks import read_table
from minirl.worlds.replay import Grounded, Replay, replay_sites

WORDS = read_table("thoughts")
THOUGHTS, ASKED = WORDS["thoughts"], WORDS["asked"]  # by action
TAGS = re.compile(r"</?(?:think|action)>")
GROUNDING = 0.2  # of all rows: the paper's 2:8
THUMB, NEAR = 8, 4  # pixels: half of a slider's thumb, and how far from its end a drag may end
THOUGHT_TOKENS = 1024
Json = dict[str, Any]


def one_of_each(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Return one task, drawn by the seed, of those that have the same goal on the same site."""
    alike: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        alike.setdefault((task.start_url, json.dumps(task.goal, sort_keys=True)), []).append(task)
    return [random.Random(f"{seed} {key}").choice(same) for key, same in alike.items()]


async def recorded(
    tasks: Sequence[Task], worlds: Mapping[str, World], config: BrowserConfig
) -> list[tuple[Task, Replay]]:
    """Return the shortest solutions of tasks, acted out with pictures; `worlds` are named as in the tasks'
    meta. Those that fail are dropped and told. ValueError if a task's world is missing."""
    if strange := [task.id for task in tasks if task.meta.get("world") not in worlds]:
        raise ValueError(f"task {strange[0]} is on no site that is given: name its folder with --sites")
    shown = [world for name, world in worlds.items() if any(task.meta["world"] == name for task in tasks)]
    replays = await replay_sites(shown, config, tasks, pictures=True)
    found = [(task, replays[str(task.meta["world"]), task.id]) for task in tasks]
    for task, replay in found:
        if replay.reason:
            say(f"dropped: {task.id}: {replay.reason}")
    return [(task, replay) for task, replay in found if not replay.reason]


def move_of(one: Grounded) -> Json:
    """Return an operation as a row's action, its box and what it holds; `words` are those of the element."""
    box = [round(side) for side in one.box or ()]
    match one.op:
        case "drag":
            half = (box[3] - box[1]) // 2
            (x, y), (end, height) = map(round, one.ends[:2]), map(round, one.ends[2:])
            bbox = [x - THUMB, y - half, x + THUMB, y + half]
            to = [end - NEAR, height - half, end + NEAR, height + half]
            return {"action": "drag", "bbox": bbox, "to": to, "words": one.words}
        case "type_text":
            return {"action": "type_text", "bbox": [], "text": one.text}
        case "key_press" if one.text == "Enter":
            return {"action": "press_enter", "bbox": []}
        case "key_press" | "scroll":
            name = "hotkey" if one.op == "key_press" else "scroll"
            return {"action": name, "bbox": [], "value": one.text}
    return {"action": "click" if one.op == "open" else one.op, "bbox": box, "words": one.words}


async def rows_of(task: Task, replay: Replay, images: ImageFolder, endpoint: Endpoint | None) -> list[Json]:
    """Return a row for every operation of a trajectory, with what was thought and done before it; thoughts
    are those of the served model if there is one, and the template's where it gives none."""
    moves = [move_of(one) for one in replay.grounded]
    actions = [action_of(move) or {} for move in moves]

    async def think(n: int) -> str:
        thought = THOUGHTS[moves[n]["action"]].format(**moves[n])
        if endpoint is not None:
            history = "\n".join(map(str, actions[:n])) or "nothing"
            question = WORDS["prompt"].format(task=task.instruction, history=history, action=actions[n])
            message = ("user", (question, replay.grounded[n].picture))
            try:
                reply = await endpoint.ask([message], THOUGHT_TOKENS, temperature=0.0)
                thought = reply.text.strip() if reply.finish == "stop" and reply.text.strip() else thought
            except EndpointError as error:
                say(f"{task.id}, step {n + 1} has the template's thought: {error}")
        return " ".join(TAGS.sub(" ", thought).split())  # so that it can't close itself

    thoughts = await asyncio.gather(*map(think, range(len(moves))))
    rows, past = [], []
    for n, (move, thought, one) in enumerate(zip(moves, thoughts, replay.grounded, strict=True), 1):
        picture = f"pictures/{images.put(one.picture)}.png"
        facts = {"instruction": task.instruction, "img_filename": picture, **move}
        rows.append(facts | {"history": "\n".join(past), "thought": thought})
        past.append(f"Step {n}: {spell(thought, actions[n - 1])}")
    return rows


def mixed(rows: Sequence[Json], share: float, seed: int) -> list[Json]:
    """Return the rows with so many grounding rows among them that these are a `share` of all: steps that aim
    at something with words on it, each with an instruction for it alone."""
    alone: dict[tuple[str, str], Json] = {}
    for row in rows:
        if row["action"] in ASKED and (words := row["words"]):
            asked, thought = ASKED[row["action"]].format(words=words), f'I see "{words}".'
            facts = {"instruction": asked, "history": "", "thought": " ".join(TAGS.sub(" ", thought).split())}
            alone[row["img_filename"], asked] = row | facts
    wanted, rng = round(share / (1 - share) * len(rows)), random.Random(f"{seed} grounding")
    if wanted > len(alone):
        say(f"{len(alone)} steps can be asked for by themselves, fewer than {wanted}")
    out = [*rows, *rng.sample(list(alone.values()), min(wanted, len(alone)))]
    rng.shuffle(out)
    return [{name: value for name, value in row.items() if name != "words"} for row in out]


async def save_steps(
    found: Sequence[tuple[Task, Replay]], out: Path, served: EndpointConfig, share: float, seed: int
) -> None:
    """Write the steps of `recorded` tasks as steps.json, and the pictures that it names. The model that is
    `served`, if it has a name, writes the thoughts, and its cost is told."""
    images = ImageFolder(out / "pictures")
    async with open_endpoint(served) if served.model else contextlib.nullcontext() as endpoint:
        with progress("writing thoughts"):
            told = await asyncio.gather(*(rows_of(*one, images, endpoint) for one in found))
    rows = [row for own in told for row in own]
    everything = mixed(rows, share, seed)
    write_atomic(out / "steps.json", json.dumps(everything, indent=1, ensure_ascii=False).encode() + b"\n")
    extra = len(everything) - len(rows)
    say(f"{out / 'steps.json'}: {len(found)} trajectories, {len(rows)} steps, {extra} for grounding")
