"""How far a judge can be trusted: its verdicts against labels that are taken for the truth.

    trajectories with labels --a judge--> pairs --score--> rows --show--> tables

Stands beside the loop: before a judge gives rewards, and whenever one is exchanged for another. The labels
are people's (AgentRewardBench: OpenWebRL, appendix C.2 and table 9), a stronger judge's (section 5.3 and
table 3: 500 episodes labelled by GPT-4.1), or those of a site that can be asked for its state. A success is
the positive class: precision is low where a judge lets failures pass, which a policy learns to exploit.
Deviation: an answer without a verdict is no failure. It is counted apart, and is in no rate.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from minirl.console import CONSOLE
from minirl.evaluation.statistics import wilson
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn, Verdict

Part = Literal["overall", "split", "benchmark", "site"]  # split: how unlike the judge's training it is


@dataclass(frozen=True)
class Pair:
    """One episode: what is true of it, and what the judge said (None: nothing that could be used)."""

    truth: bool
    verdict: bool | None
    benchmark: str = ""
    site: str = ""
    task: str = ""


@dataclass(frozen=True)
class Row:
    """The counts of all episodes, of one benchmark, or of one site; rates lie between 0 and 1, and are None
    where nothing was there to be counted.

    >>> row = Row("overall", "all", true_pos=3, false_pos=1, false_neg=1, true_neg=5)
    >>> row.accuracy, row.precision, row.recall, row.f1, row.base_rate
    (0.8, 0.75, 0.75, 0.75, 0.4)
    """

    part: Part
    name: str
    true_pos: int = 0
    false_pos: int = 0
    false_neg: int = 0
    true_neg: int = 0
    invalid: int = 0
    tasks: int = 0  # that the episodes with a verdict are of, where it is known

    @property
    def n(self) -> int:
        """Episodes with a verdict."""
        return self.true_pos + self.false_pos + self.false_neg + self.true_neg

    @property
    def agreed(self) -> int:
        return self.true_pos + self.true_neg

    @property
    def accuracy(self) -> float | None:
        return share(self.agreed, self.n)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy. Episodes of one task are much alike, so that it is as wide
        as that of so many tasks."""
        tasks = self.tasks or self.n
        return wilson(self.agreed * tasks / max(self.n, 1), tasks)

    @property
    def precision(self) -> float | None:
        return share(self.true_pos, self.true_pos + self.false_pos)

    @property
    def recall(self) -> float | None:
        return share(self.true_pos, self.true_pos + self.false_neg)

    @property
    def f1(self) -> float | None:
        return share(2 * self.true_pos, 2 * self.true_pos + self.false_pos + self.false_neg)

    @property
    def base_rate(self) -> float | None:
        """How many succeeded in truth: what a judge that always says so would be right in."""
        return share(self.true_pos + self.false_neg, self.n)

    @property
    def passed(self) -> float | None:
        """How many the judge lets pass."""
        return share(self.true_pos + self.false_pos, self.n)


def share(count: int, of: int) -> float | None:
    return count / of if of else None


# --- scores ----------------------------------------------------------------------------------------------


def pair_of(trajectory: Trajectory, truth: bool, verdict: Verdict) -> Pair:
    """A judged trajectory. Its benchmark and site are named in the task's meta; else the site is the host of
    its first page."""
    meta = trajectory.task.meta
    site = meta.get("site") or urlsplit(trajectory.task.start_url).hostname or ""
    return Pair(truth, verdict.success, str(meta.get("benchmark") or ""), str(site), trajectory.task.id)


def score(pairs: Sequence[Pair]) -> list[Row]:
    """The row of all, then one for each benchmark and each site by name, where they are known."""
    rows = [count("overall", "all", pairs)]
    for name in sorted({pair.benchmark for pair in pairs} - {""}):
        rows.append(count("benchmark", name, [pair for pair in pairs if pair.benchmark == name]))
    for name in sorted({pair.site for pair in pairs} - {""}):
        rows.append(count("site", name, [pair for pair in pairs if pair.site == name]))
    return rows


def count(part: Part, name: str, pairs: Sequence[Pair]) -> Row:
    def number(truth: bool, verdict: bool) -> int:
        return sum(pair.truth is truth and pair.verdict is verdict for pair in pairs)

    return Row(
        part,
        name,
        true_pos=number(True, True),
        false_pos=number(False, True),
        false_neg=number(True, False),
        true_neg=number(False, False),
        invalid=sum(pair.verdict is None for pair in pairs),
        tasks=len({pair.task for pair in pairs if pair.verdict is not None} - {""}),
    )


# --- tables ------------------------------------------------------------------------------------------------


def show(scores: Mapping[str, Sequence[Row]]) -> None:
    """Prints what `score` returned for each judge: the judges side by side, then each one's parts."""
    CONSOLE.print(judges_table(scores))
    if any(row.part == "benchmark" for rows in scores.values() for row in rows):
        CONSOLE.print(benchmarks_table(scores))
    for judge, rows in scores.items():
        if len(rows) > 1:
            CONSOLE.print(parts_table(judge, rows))


def judges_table(scores: Mapping[str, Sequence[Row]]) -> Table:
    """As the paper's table 3: accuracy, precision, recall and F1 of each judge, in percent; and how sure the
    accuracy is, on how many episodes, and how many have no verdict and are in no rate."""
    table = new_table("Agreement", "judge", "accuracy", "precision", "recall", "F1", "95%", "n", "inv.")
    for judge, (overall, *_) in scores.items():
        rates = (overall.accuracy, overall.precision, overall.recall, overall.f1)
        table.add_row(Text(judge), *map(percent, rates), sure(overall), str(overall.n), str(overall.invalid))
    return table


def sure(row: Row) -> str:
    """The interval of the accuracy, in percent."""
    low, high = row.interval
    return f"{100 * low:.0f}–{100 * high:.0f}"


def benchmarks_table(scores: Mapping[str, Sequence[Row]]) -> Table:
    """As table 9: precision, recall and F1 over everything, then the precision on each benchmark."""
    names = sorted({row.name for rows in scores.values() for row in rows if row.part == "benchmark"})
    table = new_table("Precision by benchmark", "judge", "precision", "recall", "F1", *names)
    for judge, (overall, *parts) in scores.items():
        precision = {row.name: row.precision for row in parts if row.part == "benchmark"}
        rates = (overall.precision, overall.recall, overall.f1, *map(precision.get, names))
        table.add_row(Text(judge), *map(percent, rates))
    return table


def parts_table(judge: str, rows: Sequence[Row]) -> Table:
    """One judge on everything, on each benchmark and on each site: episodes with a verdict and without, how
    many of the former succeeded in truth and how many the judge let pass, and how sure its accuracy is.
    The short headings leave room for a site's name on 80 columns."""
    columns = ("n", "inv.", "truth", "passed", "acc.", "95%", "prec.", "rec.", "F1")
    table = new_table(judge, "part", *columns)
    for before, row in zip([None, *rows], rows, strict=False):
        if before and before.part != row.part:
            table.add_section()
        table.add_row(
            Text(row.name),
            str(row.n),
            str(row.invalid),
            *map(percent, (row.base_rate, row.passed, row.accuracy)),
            sure(row),
            *map(percent, (row.precision, row.recall, row.f1)),
        )
    return table


def new_table(title: str, first: str, *others: str) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def percent(rate: float | None) -> str:
    """
    >>> percent(0.898), percent(None)
    ('89.8', '–')
    """
    return "–" if rate is None else f"{100 * rate:.1f}"


# --- AgentRewardBench --------------------------------------------------------------------------------------

LABELS = {"successful": True, "unsuccessful": False}
COLUMNS = ("benchmark", "model_name", "task_id", "trajectory_success")
_ACTION = re.compile(r"\s*([A-Za-z_]\w*)\((.*)\)\s*", re.DOTALL)


def read_agent_reward_bench(folder: Path) -> list[tuple[Trajectory, bool]]:
    """AgentRewardBench's episodes with people's labels. Assumed of the folder, which is not part of minirl:

        annotations.csv   with the columns benchmark, model_name, task_id, and trajectory_success, which is
                          "Successful" or "Unsuccessful"; a row with another label is left out, and of
                          several on one episode the first counts
        trajectories/     with one file TASK_ID.json for each episode, somewhere below a folder that is called
                          as the model, in cleaned/ if there is such a folder (judgments/ lies beside it); it
                          has `goal` and `steps`, and a step has `action` (a BrowserGym call, as text), `url`,
                          `screenshot_path` (within the folder), `reasoning`, and `last_action_error`, which
                          is the feedback on the step before it

    Screenshots are named by their paths: `image` is `lambda name: (folder / name).read_bytes()`. The answer
    is what was last sent to the user. There are no token ids. WorkArena's tasks of the second level are the
    benchmark workarena++, as in table 9. The benchmark's own script counts its test split only; here all
    rows count. ValueError names a file that is missing or of another form, and a screenshot that lies
    outside of the folder.
    """
    found: dict[tuple[str, str], list[Path]] = {}
    cleaned = folder / "trajectories" / "cleaned"
    for path in sorted((cleaned if cleaned.is_dir() else cleaned.parent).rglob("*.json")):
        for model in path.relative_to(folder).parts[1:-1]:
            found.setdefault((model, path.stem), []).append(path)
    labelled: dict[tuple[str, str, str], tuple[Trajectory, bool]] = {}
    for number, record in read_annotations(folder / "annotations.csv"):
        benchmark, model, task, label = (record[column].strip() for column in COLUMNS)
        if benchmark == "workarena" and "l2" in task.lower():
            benchmark = "workarena++"
        if label.lower() not in LABELS or (benchmark, model, task) in labelled:
            continue
        paths = found.get((model, task), [])
        if len(paths) != 1:
            what = f"{len(paths)} files {task}.json below trajectories/.../{model}"
            raise ValueError(f"{folder / 'annotations.csv'}, line {number}: there are {what}, not one")
        trajectory = read_episode(paths[0], folder, benchmark, task)
        labelled[benchmark, model, task] = (trajectory, LABELS[label.lower()])
    return list(labelled.values())


def read_annotations(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Line numbers and records."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"the column {missing[0]} is missing")
            return [(reader.line_num, record) for record in reader]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None


def read_episode(path: Path, folder: Path, benchmark: str, task_id: str) -> Trajectory:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        steps, goal = record["steps"], str(record["goal"])
        turns = [read_step(step, folder) for step in steps]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no episode of AgentRewardBench: {error!r}") from None
    errors = [str(step.get("last_action_error") or "") for step in steps[1:]] + [""]
    turns = [
        replace(turn, feedback=(error,) if error else ()) for turn, error in zip(turns, errors, strict=True)
    ]
    acted = [turn for turn in turns if turn.parsed.calls]
    sent = [turn.parsed.calls[0] for turn in acted if turn.parsed.calls[0].name == "send_msg_to_user"]
    start = turns[0].url if turns else ""
    meta = {"benchmark": benchmark, "site": urlsplit(start).hostname or ""}
    return Trajectory(
        Task(task_id, goal, start, meta=meta),
        member=0,
        turns=tuple(acted),
        stop=Stop.DONE if sent else Stop.MAX_STEPS,
        answer=str(sent[-1].arguments["text"]) if sent else "",
        # a step that did something shows what was there before it
        final_image=turns[-1].images[0] if turns and turns[-1].images and not turns[-1].parsed.calls else "",
    )


def read_step(step: Mapping[str, Any], folder: Path) -> Turn:
    """A step as a turn. Its action is only cut into name and arguments, which stay text."""
    shot = str(step.get("screenshot_path") or "")
    if shot and not (folder / shot).resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"the screenshot {shot!r} lies outside of the folder")
    action, calls = _ACTION.fullmatch(str(step.get("action") or "")), ()
    if action:
        calls = (Call(action[1], {"text": action[2].strip().strip("'\"")}),)
    thought = str(step.get("reasoning") or "")
    return Turn(
        shared=0,
        branch=(),
        response_ids=(),
        logprobs=(),
        text=thought,
        images=(shot,) if shot else (),
        parsed=Parsed(thought, calls),
        url=str(step.get("url") or ""),
    )
