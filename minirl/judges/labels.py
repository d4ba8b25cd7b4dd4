"""Labels: what a teacher says of dumped trajectories, and which of them a judge may learn from.

    dumps of runs --teacher--> trajectories/labelled.jsonl --split--> train | held out

Stands before distill.py. OpenWebRL, section 4.3: 12.5K online rollouts labelled by GPT-4.1; section 5.3: 500
more. The teacher is a served model, or the task's own verifier; only trajectories that a judge would be asked
about are labelled. A label is a trajectory's verdict: the judge's own run folder holds the trajectories,
without their token ids, and those of their screenshots that a judge may see. Deviation: how the paper held
its 500 out is not stated. Here whole goals are held out.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from minirl.console import say
from minirl.distributed import Ranks
from minirl.judges.judge import open_judge
from minirl.judges.rubrics import newest_screenshots
from minirl.judges.settings import JudgeScriptConfig
from minirl.rewards import needs_verdict
from minirl.run_folder import Run, to_line, to_record
from minirl.samplers.endpoint import ask_all
from minirl.types import ImageStore, Judge, Trajectory, Verdict

# The dumps of a judge's run, whose trajectories have the teacher's verdicts
LABELLED = "labelled"
HELD_OUT = "heldout"
SCRIPTED = "demos"  # a dump that no policy made
MAX_SCREENSHOTS = 3  # that a judge may see of an episode


def target(verdict: Verdict) -> str:
    """Return what the judge learns to answer: reasons, and the verdict on the last line."""
    last_line = "SUCCESS" if verdict.success else "NOT SUCCESS"
    return f"{verdict.rationale}\n{last_line}".strip()


async def label_dumps(config: JudgeScriptConfig, ranks: Ranks, world_teacher: Judge) -> None:
    """Label the dumps of `--runs`, and say how many of each kind there are. The teacher is the model that is
    served as `--judge.model`, or the checkpoint `--judge.path`; without one, the task's own verifier."""
    run = open_run(config, ranks)
    if config.judge.model or config.judge.path:
        async with open_judge(config, ranks, run.images) as teacher:
            counts = await label_all(config, run, teacher)
    else:
        counts = await label_all(config, run, world_teacher)
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.most_common())
    say(f"{run.root}: {outcomes}")


def open_run(config: JudgeScriptConfig, ranks: Ranks) -> Run:
    """Return the judge's run. ValueError if a policy was trained in its folder."""
    run = Run(config.run_dir, records=ranks.is_main)
    if set(run.labels()) - {LABELLED, HELD_OUT}:
        raise ValueError(f"{config.run_dir} holds a policy's run; choose another --name")
    return run


async def label_all(config: JudgeScriptConfig, judge_run: Run, teacher: Judge) -> Counter[str]:
    """Ask the teacher about every trajectory that a judge would be asked about and that has no label yet, and
    append it with its label to the run. Return how many were labelled, and why others were not."""
    earlier = []
    if LABELLED in judge_run.labels():
        earlier = judge_run.load_trajectories(LABELLED)
        judge_run.save_trajectories(LABELLED, earlier)  # without a line that a killed process has torn
    labelled = {fingerprint(trajectory) for trajectory in earlier}
    counts: Counter[str] = Counter()

    async def ask(trajectory: Trajectory) -> None:
        verdict = await teacher(trajectory)
        if verdict.success is None:
            counts[f"no verdict: {verdict.error}"] += 1
            return
        judge_run.add_trajectory(LABELLED, replace(without_ids(trajectory), verdict=verdict))
        counts["labelled"] += 1

    # One dump at a time: all of them may not fit in memory
    for run, dump in dumps_of(config):
        unlabelled = []
        for trajectory in run.load_trajectories(dump):
            if not needs_verdict(trajectory, config.reward.format, config.reward):
                counts["decided by the gates"] += 1
            elif fingerprint(trajectory) in labelled:
                counts["labelled before"] += 1
            else:
                copy_screenshots(trajectory, run.images, judge_run)
                unlabelled.append(trajectory)
        await ask_all(ask, unlabelled, phase=f"labelling {run.root.name}/{dump}")
    return counts


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return what a judge and a teacher may read of a trajectory: token ids are most of a dump."""
    turns = [replace(turn, suffix=(), response_ids=(), logprobs=()) for turn in trajectory.turns]
    return replace(trajectory, prefix=(), turns=tuple(turns), verdict=None)


def fingerprint(trajectory: Trajectory) -> int:
    return hash(to_line(to_record(without_ids(trajectory))))


def copy_screenshots(trajectory: Trajectory, images: ImageStore, run: Run) -> None:
    for name in newest_screenshots(trajectory, MAX_SCREENSHOTS):
        run.images.put(images.get(name))


def dumps_of(config: JudgeScriptConfig) -> list[tuple[Run, str]]:
    """Return the dumps of `--runs` that a policy made. ValueError if there is none."""
    dumps = []
    for run in map(Run, config.runs):
        dumps += [(run, name) for name in run.labels() if name != SCRIPTED]
    if not dumps:
        folders = " ".join(map(str, config.runs))
        raise ValueError(f"no dump of a policy in --runs {folders}; give the folders of runs")
    return dumps


def split(
    labelled: Sequence[Trajectory], share: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Return the trajectories to learn from and those held out: all of a share of the goals, at least one.
    ValueError if either would be empty."""
    goals = sorted({goal_of(trajectory) for trajectory in labelled})
    count = max(1, round(share * len(goals)))
    heldout_goals = set(random.Random(f"goals {seed}").sample(goals, min(count, len(goals))))
    train = [trajectory for trajectory in labelled if goal_of(trajectory) not in heldout_goals]
    heldout = [trajectory for trajectory in labelled if goal_of(trajectory) in heldout_goals]
    if not train or not heldout:
        raise ValueError(f"{len(labelled)} labels on {len(goals)} goals are too few to hold some out")
    return train, heldout


def goal_of(trajectory: Trajectory) -> tuple[str, str]:
    task = trajectory.task
    return task.site, task.instruction
