"""Filter a pool of tasks, and curate demonstrations of those that stay.

    tasks --filter_tasks--> kept | removed, each with the filter's name and the reason
    a dump of four rollouts a task --curate--> the shortest success of each, evenly over sites

Stands before and behind a teacher's rollouts. OpenWebRL sections 4.2 and 5.5: 292K tasks of WebGym become
15,601 to demonstrate and, with a stricter threshold, about 2.2K to practise. Deviations:

1. The long tail are sites with few tasks; the paper does not say where it begins.
2. Unstable sites are those of a list, and those on which most episodes were aborted; the paper names none.
3. How many demonstrations a site may give is the smallest cap with which a preset's number is reached.
4. What is nearly an evaluation's task goes, too.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minirl.benchmarks.task_sets import choose_benchmarks, drop_leaked
from minirl.console import progress, say
from minirl.evaluation.results import read_results, result_of
from minirl.recipes import openwebrl_4b
from minirl.types import Task, Trajectory

SFT_THRESHOLD = 0.99  # OpenWebRL's, for cosines of Qwen3-Embedding-8B
RL_THRESHOLD = 0.95
BLOCK = 256  # rows that are compared at a time
MAX_ABORTED = 0.5  # share of a site's episodes; above, it is unstable

# How many trajectories of which of WebGym's parts; "" is any
PRESETS: dict[str, dict[str, int]] = {
    "412": {"pae-webvoyager": 412},  # the default, and the 4B model's
    "912": {"pae-webvoyager": 412, "insta-v3": 500},  # the 8B model's
    "1.9k": {"": 1900},  # section 5.5: more of them, from which reinforcement gains less
}

Reasons = dict[str, str]  # by the id of a task that is to go


def filter_tasks(
    tasks: Sequence[Task],
    evaluation: Sequence[Task],
    unstable: Mapping[str, str],  # the reason, by site
    min_tasks: int,  # on a site
    embeddings_NE: np.ndarray | None,  # of the tasks, then of the evaluation's
    threshold: float,
) -> tuple[list[Task], list[dict[str, Any]]]:
    """Return the tasks that stay, and a record of each that goes: the filter, the reason and the task."""
    remaining = list(tasks)
    removed: list[dict[str, Any]] = []

    def remove(name: str, reasons: Reasons) -> None:
        nonlocal remaining
        for task in remaining:
            if task.id in reasons:
                removed.append({"filter": name, "reason": reasons[task.id], "task": asdict(task)})
        remaining = [task for task in remaining if task.id not in reasons]
        say(f"{name}: {len(reasons)} removed, {len(remaining)} left")

    remove("evaluated", in_evaluation(remaining, evaluation))
    parents = {task.id: task.meta.get("task_id_decomposed_from") for task in remaining}  # WebGym's field
    remove("decomposed", {name: f"part of {parent}" for name, parent in parents.items() if parent})
    remove("on unstable sites", {t.id: unstable[t.site] for t in remaining if t.site in unstable})
    remove("in long tail", in_long_tail(remaining, min_tasks))
    near_duplicates = {}
    if embeddings_NE is not None:
        # the evaluation's come first, and all stay
        row_of = {task.id: row for row, task in enumerate(tasks)}
        rows = [len(tasks) + n for n in range(len(evaluation))]
        rows += [row_of[task.id] for task in remaining]
        compared = [*evaluation, *remaining]
        for row, (other, cosine) in duplicates(embeddings_NE, rows, threshold, len(evaluation)).items():
            near_duplicates[compared[row].id] = f"{cosine:.3f} like {compared[other].id}"
    remove("near duplicates", near_duplicates)
    return remaining, removed


def in_evaluation(tasks: Sequence[Task], evaluation: Sequence[Task]) -> Reasons:
    unseen = drop_leaked(tasks, evaluation, choose_benchmarks(openwebrl_4b()))
    names = {task.id for task in unseen}
    return {task.id: "an evaluation has it" for task in tasks if task.id not in names}


def in_long_tail(tasks: Sequence[Task], min_tasks: int) -> Reasons:
    counts = Counter(task.site for task in tasks)
    few = [task for task in tasks if counts[task.site] < min_tasks]
    return {task.id: f"one of {counts[task.site]} on {task.site}" for task in few}


def unstable_sites(hosts: Path | None, results: Sequence[Path]) -> Reasons:
    """Return, each with the reason, a list's sites, and those on which most episodes were aborted."""
    reasons = {}
    if hosts is not None:
        for host in hosts.read_text(encoding="utf-8").split():
            reasons[host.lower().removeprefix("www.")] = "its site is listed"
    aborted: dict[str, list[bool]] = defaultdict(list)
    for path in results:
        for result in read_results(path).results:
            aborted[result.site].append(not result.stop.is_agent_fault)
    for site, episodes in aborted.items():
        if sum(episodes) > MAX_ABORTED * len(episodes):
            reasons[site] = f"{sum(episodes)} of {len(episodes)} episodes on its site aborted"
    return reasons


def duplicates(
    vectors_NE: np.ndarray, rows: Sequence[int], threshold: float, n_first: int = 0, block: int = BLOCK
) -> dict[int, tuple[int, float]]:
    """Compare rows greedily, from the first to the last: one goes if its cosine to one that stays is at least
    `threshold`. Return those that go, each with the row before it that it is most like, and the cosine. The
    `n_first` first rows all stay. Rows are counted by their order in `rows`. Beside the vectors, which may
    lie in a file, memory holds a copy of those that stay, and their cosines to the rows of one block.

    >>> removed = duplicates(np.array([[1.0, 0], [0, 1], [2, 0], [1, 0.1]]), range(4), 0.99)
    >>> {row: (like, round(cosine, 3)) for row, (like, cosine) in removed.items()}
    {2: (0, 1.0), 3: (0, 0.995)}
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    unique_NE = torch.empty((len(rows), vectors_NE.shape[1]), device=device)  # filled from the front
    unique: list[int] = []
    removed = {}
    with progress("comparing tasks", len(rows)) as meter:
        for start in range(0, len(rows), block):
            chosen = rows[start : start + block]
            vectors_BE = torch.from_numpy(vectors_NE[chosen].astype(np.float32)).to(device)
            if not vectors_BE.isfinite().all():
                raise ValueError("the embeddings must be numbers, without NaN or infinity")
            unit_BE = torch.nn.functional.normalize(vectors_BE, dim=1)
            within_BB = (unit_BE @ unit_BE.T).cpu()
            # of each row the one that it is most like among those of earlier blocks that stay
            best_B = torch.full((len(chosen),), -2.0)
            like_B = torch.zeros(len(chosen), dtype=torch.long)
            if unique:
                most_B = (unit_BE @ unique_NE[: len(unique)].T).max(dim=1)
                best_B = most_B.values.cpu()
                like_B = torch.tensor(unique)[most_B.indices.cpu()]
            for n in range(len(chosen)):
                row = start + n
                if row >= n_first and best_B[n] >= threshold:
                    removed[row] = (int(like_B[n]), float(best_B[n]))
                    continue
                unique_NE[len(unique)] = unit_BE[n]
                unique.append(row)
                # it may be more like the rows behind it than what they have been compared with so far
                closer_B = within_BB[n] > best_B
                best_B[closer_B] = within_BB[n][closer_B]
                like_B[closer_B] = row
            meter.reach(start + block)
    return removed


def embed(tasks: Sequence[Task], model: str) -> np.ndarray:
    """Return the embeddings (N, E) of the tasks' wordings by a sentence-transformers model."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ValueError("--model needs sentence-transformers: pip install sentence-transformers") from None
    wordings = [task.instruction for task in tasks]
    return SentenceTransformer(model).encode(wordings, show_progress_bar=True)


def curate(episodes: Sequence[Trajectory], parts: Mapping[str, int]) -> list[Trajectory]:
    """Return a preset's demonstrations, or as many as there are; say how they were found. Of a site
    those tasks come first whose ids' digests do."""
    successes = [episode for episode in episodes if episode.success and episode.valid]
    shortest: dict[str, Trajectory] = {}
    for episode in sorted(successes, key=_length):
        shortest.setdefault(episode.task.id, episode)
    say(f"{len(episodes)} episodes, {len(successes)} successes, {len(shortest)} tasks solved")
    ordered = sorted(shortest.values(), key=lambda episode: sha256(episode.task.id.encode()).digest())
    demonstrations = []
    for part, count in parts.items():
        # one on each site, then a second one, and so on
        n_on_site: Counter[str] = Counter()
        rounds = []
        for episode in ordered:
            if part in ("", episode.task.meta.get("benchmark")):
                n_on_site[episode.task.site] += 1
                rounds.append((n_on_site[episode.task.site], episode))
        rounds.sort(key=lambda pair: pair[0])
        chosen = rounds[:count]
        sites = {episode.task.site for _, episode in chosen}
        cap = chosen[-1][0] if chosen else 0
        say(f"{part or 'any part'}: {len(chosen)} of {count} on {len(sites)} sites, at most {cap} on each")
        demonstrations += [episode for _, episode in chosen]
    return demonstrations


def _length(episode: Trajectory) -> tuple[int, int]:
    result = result_of(episode)
    return result.steps, result.response_tokens
