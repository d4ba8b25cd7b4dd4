"""Filter a pool of tasks, and curate demonstrations of those that stay.

    tasks --filter_tasks--> kept | removed, each with the filter's name and the reason
    a dump of four rollouts a task --curate--> the shortest success of each, evenly over sites

Stands before and behind a teacher's rollouts. OpenWebRL sections 4.2 and 5.5: 292K tasks of WebGym become
15,601 to demonstrate and, with a stricter threshold, about 2.2K to practise. Deviations: the paper does not
say where the long tail begins (here: sites with few tasks), which sites are unstable (here: those of a list,
or on which most episodes were aborted) and how many demonstrations a site may give (here the least with which
a preset's number is reached); what is nearly an evaluation's task goes, too.
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

SFT, RL = 0.99, 0.95  # OpenWebRL's thresholds, for cosines of Qwen3-Embedding-8B
BLOCK = 4096  # rows that are compared at a time
MOST_ABORTED = 0.5  # share of a site's episodes; above, it is unstable

# How many trajectories of which of WebGym's parts; "" is any
PRESETS: dict[str, dict[str, int]] = {
    "412": {"pae-webvoyager": 412},  # the default, and the 4B model's
    "912": {"pae-webvoyager": 412, "insta-v3": 500},  # the 8B model's
    "1.9k": {"": 1900},  # section 5.5: more of them, from which reinforcement gains less
}

Reasons = dict[str, str]  # by the id of a task that is to go
Alike = dict[int, tuple[int, float]]  # by the row that is to go: the row that it is like, and the cosine


def filter_tasks(
    tasks: Sequence[Task],
    evaluation: Sequence[Task],
    unstable: Mapping[str, str],  # the reason, by site
    least: int,  # tasks on a site
    embeddings_NE: np.ndarray | None,  # of the tasks, then of the evaluation's
    threshold: float,
) -> tuple[list[Task], list[dict[str, Any]]]:
    """Return the tasks that stay, and a record of each that goes: the filter, the reason and the task."""

    def evaluated(some: Sequence[Task]) -> Reasons:
        clean = {task.id for task in drop_leaked(some, evaluation, choose_benchmarks(openwebrl_4b()))}
        return {task.id: "an evaluation has it" for task in some if task.id not in clean}

    def decomposed(some: Sequence[Task]) -> Reasons:
        parents = {task.id: task.meta.get("task_id_decomposed_from") for task in some}  # WebGym's field
        return {name: f"part of {parent}" for name, parent in parents.items() if parent}

    def on_unstable_sites(some: Sequence[Task]) -> Reasons:
        return {task.id: why for task in some if (why := unstable.get(task.site))}

    def in_long_tail(some: Sequence[Task]) -> Reasons:
        counts = Counter(task.site for task in some)
        return {t.id: f"one of {n} on {t.site}" for t in some if (n := counts[t.site]) < least}

    def near_duplicates(some: Sequence[Task]) -> Reasons:
        row_of = {task.id: n for n, task in enumerate(tasks)}
        known, ordered = len(evaluation), [*evaluation, *some]
        rows = [*range(len(tasks), len(tasks) + known), *(row_of[task.id] for task in some)]
        found = {} if embeddings_NE is None else duplicates(embeddings_NE, rows, threshold, known)
        return {ordered[n].id: f"{cosine:.3f} like {ordered[m].id}" for n, (m, cosine) in found.items()}

    kept, removed = list(tasks), list[dict[str, Any]]()
    for find in (evaluated, decomposed, on_unstable_sites, in_long_tail, near_duplicates):
        reasons, name = find(kept), find.__name__.replace("_", " ")
        gone = [task for task in kept if task.id in reasons]
        removed += [{"filter": name, "reason": reasons[task.id], "task": asdict(task)} for task in gone]
        kept = [task for task in kept if task.id not in reasons]
        say(f"{name}: {len(gone)} removed, {len(kept)} left")
    return kept, removed


def unstable_sites(hosts: Path | None, results: Sequence[Path]) -> dict[str, str]:
    """Return, each with the reason, a list's sites, and those on which most episodes were aborted."""
    listed = hosts.read_text(encoding="utf-8").split() if hosts else []
    found = {host.lower().removeprefix("www."): "its site is listed" for host in listed}
    ends: dict[str, list[bool]] = defaultdict(list)
    for result in (result for path in results for result in read_results(path)[1]):
        ends[result.site].append(not result.stop.is_agent_fault)
    most = {site: aborted for site, aborted in ends.items() if sum(aborted) > MOST_ABORTED * len(aborted)}
    return found | {site: f"{sum(n)} of {len(n)} episodes on its site aborted" for site, n in most.items()}


def duplicates(
    vectors_NE: np.ndarray, rows: Sequence[int], threshold: float, first: int = 0, block: int = BLOCK
) -> Alike:
    """Compare rows greedily, from the first to the last: one goes if it is at least `threshold` like one that
    stays. Return those that go, each with the row before it that it is most like, and the cosine. The `first`
    rows all stay. Rows are counted by their order in `rows`. Beside the vectors, which may lie in a file,
    memory holds a copy of those that stay, and a few blocks.

    >>> found = duplicates(np.array([[1.0, 0], [0, 1], [2, 0], [1, 0.1]]), range(4), 0.99)
    >>> {row: (like, round(cosine, 3)) for row, (like, cosine) in found.items()}
    {2: (0, 1.0), 3: (0, 0.995)}
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # of each row, how like it is to the most like of those before it that stay, and which that is
    best_N, like_N = torch.full((len(rows),), -2.0), torch.zeros(len(rows), dtype=torch.long)
    found, earlier = Alike(), list[tuple[torch.Tensor, torch.Tensor]]()  # what stays of a block, and its rows

    def note(here: slice, cosine_B: torch.Tensor, like_B: torch.Tensor) -> None:
        like_N[here] = torch.where(cosine_B > best_N[here], like_B, like_N[here])
        best_N[here] = torch.maximum(cosine_B, best_N[here])

    with progress("comparing tasks", len(rows)) as meter:
        for at in range(0, len(rows), block):
            here = slice(at, at + block)
            vectors_BE = torch.from_numpy(vectors_NE[rows[here]].astype(np.float32)).to(device)
            if not vectors_BE.isfinite().all():
                raise ValueError("the embeddings must be numbers, without NaN or infinity")
            unit_BE = torch.nn.functional.normalize(vectors_BE, dim=1)
            for staying_BE, rows_B in earlier:
                most_B = (unit_BE @ staying_BE.T).max(dim=1)
                note(here, most_B.values.cpu(), rows_B[most_B.indices.cpu()])
            for n, cosine_B in enumerate((unit_BE @ unit_BE.T).cpu(), at):
                if n >= first and best_N[n] >= threshold:
                    found[n] = (int(like_N[n]), float(best_N[n]))
                else:
                    note(here, cosine_B, torch.tensor(n))
            if stay := [n for n in range(at, at + len(unit_BE)) if n not in found]:
                rows_B = torch.tensor(stay)
                earlier.append((unit_BE[rows_B - at], rows_B))
            meter.reach(at + block)
    return found


def embed(tasks: Sequence[Task], model: str) -> np.ndarray:
    """Return the embeddings (N, E) of the tasks' wordings by a sentence-transformers model."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ValueError("--model needs sentence-transformers: pip install sentence-transformers") from None
    return SentenceTransformer(model).encode([task.instruction for task in tasks], show_progress_bar=True)


def curate(episodes: Sequence[Trajectory], parts: Mapping[str, int]) -> list[Trajectory]:
    """Return a preset's demonstrations, or as many as there are; say how they were found. Of a site
    those tasks come first whose ids' digests do."""
    successes = [(result_of(t), t) for t in episodes if t.success and t.valid]
    best = dict[str, Trajectory]()
    for _, episode in sorted(successes, key=lambda pair: (pair[0].steps, pair[0].response_tokens)):
        best.setdefault(episode.task.id, episode)
    say(f"{len(episodes)} episodes, {len(successes)} successes, {len(best)} tasks solved")
    ordered = sorted(best.values(), key=lambda t: sha256(t.task.id.encode()).digest())
    chosen = list[Trajectory]()
    for part, most in parts.items():
        seen, rounds = Counter[str](), list[tuple[int, Trajectory]]()  # one on each site, then a second, ...
        for episode in (t for t in ordered if part in ("", t.task.meta.get("benchmark"))):
            seen[episode.task.site] += 1
            rounds.append((seen[episode.task.site], episode))
        found = sorted(rounds, key=lambda pair: pair[0])[:most]
        sites, cap = len({t.task.site for _, t in found}), max((n for n, _ in found), default=0)
        say(f"{part or 'any part'}: {len(found)} of {most} on {sites} sites, at most {cap} on each")
        chosen += [episode for _, episode in found]
    return chosen
