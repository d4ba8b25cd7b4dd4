"""AgentRewardBench: web agents' episodes with people's labels, on which judges are compared.

    python examples/agent_reward_bench/read.py FOLDER                 writes runs/agent_reward_bench
    python judge.py score judge-8b --name agent_reward_bench --judge.path runs/judge_8b/checkpoints/judge

    annotations.csv, trajectories/**/TASK_ID.json --read_bench--> labelled trajectories --write_run--> a run

Writes the episodes, whose verdicts are the labels, as the dump heldout, and their screenshots: `judge.py
score` reads both. OpenWebRL, appendix C.2 and table 9. An episode's file lies below a folder with the model's
name. A step's `action` is a BrowserGym call, its `last_action_error` the feedback on the step before.
Deviation: the benchmark's own script counts its test split, here all rows count.
"""

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import tyro
from annotated_types import MinLen
from pydantic import BaseModel, BeforeValidator, TypeAdapter

from minirl.cli.command_line import run_main
from minirl.console import say
from minirl.judges.labels import HELD_OUT
from minirl.run_folder import Run, read_as
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn, Verdict

LABELS = {"successful": True, "unsuccessful": False}
COLUMNS = ("benchmark", "model_name", "task_id", "trajectory_success")
_ACTION = re.compile(r"\s*([A-Za-z_]\w*)\((.*)\)\s*", re.DOTALL)
Text = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]


class BenchStep(BaseModel):
    action: Text = ""
    url: Text = ""
    screenshot_path: Text = ""  # within the folder
    reasoning: Text = ""
    last_action_error: Text = ""


class BenchEpisode(BaseModel):
    goal: Any
    steps: Annotated[list[BenchStep], MinLen(1)]


def read_bench(folder: Path, store: Callable[[str], str]) -> list[Trajectory]:
    """Return the episodes with their labels as verdicts, in the table's order; of several rows on one the
    first labelled one counts. `store` takes a screenshot's path within the folder and returns its name.
    WorkArena's tasks of the second level are the benchmark workarena++, as in table 9."""
    table = folder / "annotations.csv"
    root = folder / "trajectories"
    if (root / "cleaned").is_dir():  # judgments/ lies beside it
        root = root / "cleaned"
    files = defaultdict(list)
    for path in root.rglob("*.json"):
        for model in path.relative_to(root).parts[:-1]:
            files[model, path.stem].append(path)
    episodes: dict[tuple[str, str, str], Trajectory] = {}
    for benchmark, model, task, label in read_table(table):
        place = (benchmark, model, task)
        if label.lower() not in LABELS or place in episodes:
            continue
        paths = files[model, task]
        if len(paths) != 1:
            raise ValueError(f"{table}: {root} has {len(paths)} files {task}.json of {model}, not one")
        plus = "++" if benchmark == "workarena" and "l2" in task.lower() else ""
        episode = read_episode(paths[0], benchmark + plus, store)
        episodes[place] = replace(episode, verdict=Verdict(LABELS[label.lower()]))
    if not episodes:
        raise ValueError(f"{table} labels no episode as one of {', '.join(LABELS)}")
    return list(episodes.values())


def read_table(table: Path) -> list[list[str]]:
    """Return the cells of COLUMNS, row by row. ValueError if the file or a column is missing."""
    try:
        csv.field_size_limit(2**31 - 1)  # comments may be long
        with open(table, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, restval=""))
        return [[row[name].strip() for name in COLUMNS] for row in rows]
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise ValueError(f"{table} can't be read: {error} (columns {', '.join(COLUMNS)})") from None


def read_episode(path: Path, benchmark: str, store: Callable[[str], str]) -> Trajectory:
    """Return an episode's file as a trajectory without token ids. Actions' arguments stay text; the answer is
    what was last sent to the user."""
    episode = read_as(
        path.read_bytes(), TypeAdapter(BenchEpisode), f"{path} is no episode of AgentRewardBench"
    )
    turns = [read_step(step, store) for step in episode.steps]
    for n, step in enumerate(episode.steps[1:]):
        if step.last_action_error:
            turns[n] = replace(turns[n], feedback=(step.last_action_error,))
    # A step that did something shows what was there before it; one that did nothing, the end
    final_image = "" if turns[-1].parsed.calls else "".join(turns[-1].images)
    acted = tuple(turn for turn in turns if turn.parsed.calls)
    calls = [turn.parsed.calls[0] for turn in acted]
    answers = [call.arguments["text"] for call in calls if call.name == "send_msg_to_user"]
    meta = {"benchmark": benchmark, "site": urlsplit(turns[0].url).hostname or ""}
    return Trajectory(
        Task(path.stem, str(episode.goal), turns[0].url, meta=meta),
        0,
        turns=acted,
        stop=Stop.DONE if answers else Stop.MAX_STEPS,
        answer=answers[-1] if answers else "",
        final_image=final_image,
    )


def read_step(step: BenchStep, store: Callable[[str], str]) -> Turn:
    calls = ()
    if action := _ACTION.fullmatch(step.action):
        calls = (Call(action[1], {"text": read_text(action[0].strip(), action[2].strip())}),)
    screenshots = (store(step.screenshot_path),) if step.screenshot_path else ()
    return Turn(
        0, (), (), (), step.reasoning, screenshots, parsed=Parsed(step.reasoning, calls), url=step.url
    )


def read_text(call: str, arguments: str) -> str:
    """Return the text that a call such as send_msg_to_user(text='It\\'s open') has as its one argument; of
    other calls the arguments as they are written."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        match ast.parse(call, mode="eval").body:
            case ast.Call(_, [ast.Constant(str(text))], []):
                return text
            case ast.Call(_, [], [ast.keyword(value=ast.Constant(str(text)))]):
                return text
    return arguments.strip("'\"")


def write_run(folder: Path, root: Path) -> int:
    """Write the benchmark's folder as a run folder. Returns how many episodes it has."""
    run = Run(root)

    def store(name: str) -> str:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError(f"the screenshot {name!r} lies outside of {folder}")
        return run.images.put(path.read_bytes())

    episodes = read_bench(folder, store)
    run.save_trajectories(HELD_OUT, episodes)
    return len(episodes)


def main(folder: tyro.conf.Positional[Path], out: Path = Path("runs/agent_reward_bench")) -> None:
    """Write AgentRewardBench's folder as the run folder OUT."""
    say(f"{write_run(folder, out)} labelled episodes are in {out}")


if __name__ == "__main__":
    run_main(lambda argv: tyro.cli(main, args=argv))
