"""Filter a pool of tasks, and curate demonstrations of those that stay.

    tasks --filter_tasks--> kept | removed, each with the filter's name and the reason
    a dump of four rollouts a task --curate--> the shortest success of each, evenly over sites

Stands before and behind a teacher's rollouts. OpenWebRL sections 4.2 and 5.5: 292K tasks of WebGym become
15,601 to demonstrate and, with a stricter threshold, about 2.2K to practise. Deviations:

1. The long tail are sites with few tasks; the paper does not say where it begins.
2. Unstable sites are those of a list; the paper names none.
3. How many demonstrations a site may give is the smallest cap with which a preset's number is reached.
4. What is nearly an evaluation's task goes, too, and what is to be booked for months that are over.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from hashlib import sha256

import numpy as np

from minirl.benchmarks.task_sets import choose_benchmarks, drop_leaked
from minirl.console import progress, say
from minirl.evaluation.results import result_of
from minirl.recipes import openwebrl_4b
from minirl.types import Json, Task, Trajectory

SFT_THRESHOLD = 0.99  # OpenWebRL's, for cosines of Qwen3-Embedding-8B; of tasks to practise it is 0.95
DATES = {  # with a year, as "January 8 to 10, 2027", "12 May 2026", "2026-02-14"
    r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:r?uary|ch|il|e|y|ust|t|(?:o|em|tem)ber)?\b"
    r".{0,12}?\b(20\d\d)\b": "%b %Y",
    r"\b(20\d\d)-(0[1-9]|1[0-2])-\d\d\b": "%Y %m",
}
BOOKING = re.compile(
    r"\b(book(ing)?|reserv\w*|rent(al)?|rooms?|hotels?|flights?|stay(ing)?|check-?in|tickets?)\b(?!-)",
    re.IGNORECASE,
)
BLOCK = 256  # rows that are compared at a time

# How many trajectories of which of WebGym's parts; "" is any
PRESETS: dict[str, dict[str, int]] = {
    "412": {"pae-webvoyager": 412},  # the default, and the 4B model's
    "912": {"pae-webvoyager": 412, "insta-v3": 500},  # the 8B model's
    "1.9k": {"": 1900},  # section 5.5: more of them, from which reinforcement gains less
}


def filter_tasks(
    tasks: Sequence[Task],
    evaluation: Sequence[Task],
    unstable: Sequence[str],  # hosts
    min_tasks: int,  # on a site
    embeddings_NE: np.ndarray | None,  # of the tasks, then of the evaluation's
    threshold: float,
) -> tuple[list[Task], list[Json]]:
    """Return the tasks that stay, and a record of each that goes: the filter, the reason and the task."""
    remaining = list(tasks)
    removed: list[Json] = []

    def remove(name: str, reasons: dict[str, str]) -> None:  # by the id of a task that is to go
        nonlocal remaining
        for task in remaining:
            if task.id in reasons:
                removed.append({"filter": name, "reason": reasons[task.id], "task": asdict(task)})
        remaining = [task for task in remaining if task.id not in reasons]
        say(f"{name}: {len(reasons)} removed, {len(remaining)} left")

    unseen = {task.id for task in drop_leaked(tasks, evaluation, choose_benchmarks(openwebrl_4b()))}
    remove("evaluated", {task.id: "an evaluation has it" for task in tasks if task.id not in unseen})
    parents = {task.id: task.meta.get("task_id_decomposed_from") for task in remaining}  # WebGym's field
    remove("decomposed", {name: f"part of {parent}" for name, parent in parents.items() if parent})
    hosts = {host.lower().removeprefix("www.") for host in unstable}
    listed = [task.id for task in remaining if task.host.removeprefix("www.") in hosts]
    remove("on unstable sites", dict.fromkeys(listed, "its site is listed"))
    late = [task.id for task in remaining if has_passed(task, datetime.now())]
    remove("for months that are over", dict.fromkeys(late, "nobody can book for the past"))
    counts = Counter(task.site for task in remaining)
    few = {
        task.id: f"one of {counts[task.site]} on {task.site}"
        for task in remaining
        if counts[task.site] < min_tasks
    }
    remove("in long tail", few)
    if embeddings_NE is not None:
        near_duplicates = {}
        # the evaluation's come first, and all stay
        row_of = {task.id: row for row, task in enumerate(tasks)}
        rows = [*range(len(tasks), len(embeddings_NE)), *(row_of[task.id] for task in remaining)]
        compared = [*evaluation, *remaining]
        alike = duplicates(embeddings_NE[rows], threshold, len(evaluation))
        for row, (like, cosine) in alike.items():
            near_duplicates[compared[row].id] = f"{cosine:.3f} like {compared[like].id}"
        remove("near duplicates", near_duplicates)
    return remaining, removed


def has_passed(task: Task, now: datetime) -> bool:
    """Return whether a task asks to book something for months that are over. Questions about them never are.

    >>> has_passed(Task("", "Find a room in Bergen, April 3 to April 6, 2026.", ""), datetime(2026, 6, 1))
    True
    """
    months = []
    for pattern, form in DATES.items():
        for parts in re.findall(pattern, task.instruction):
            months.append(datetime.strptime(" ".join(parts), form))
    last = max(months, default=now)
    return bool(BOOKING.search(task.instruction)) and last + timedelta(31) < now


def duplicates(vectors_NE: np.ndarray, threshold: float, n_first: int = 0) -> dict[int, tuple[int, float]]:
    """Compare rows greedily, from the first to the last: one goes if its cosine to one that stays is at least
    `threshold`. Return those that go, each with the row before it that it is most like, and the cosine. The
    `n_first` first rows all stay.

    >>> removed = duplicates(np.array([[1.0, 0], [0, 1], [2, 0], [1, 0.1]]), 0.99)
    >>> {row: (like, round(cosine, 3)) for row, (like, cosine) in removed.items()}
    {2: (0, 1.0), 3: (0, 0.995)}
    """
    unit_NE = vectors_NE.astype(np.float32)
    unit_NE /= np.linalg.norm(unit_NE, axis=1, keepdims=True)
    bad_N = ~np.isfinite(unit_NE).all(axis=1)
    if bad_N.any():
        raise ValueError(
            f"embedding {bad_N.argmax() + 1} of {len(bad_N)}, the evaluation's first, has no direction"
        )
    stays_N = np.ones(len(unit_NE), bool)
    removed = {}
    with progress("comparing tasks", len(unit_NE)) as meter:
        for start in range(0, len(unit_NE), BLOCK):
            stop = start + BLOCK
            cosines_BN = unit_NE[start:stop] @ unit_NE[:stop].T
            for row, cosines_N in enumerate(cosines_BN, start):
                if row < max(n_first, 1):
                    continue
                earlier_N = np.where(stays_N[:row], cosines_N[:row], -2.0)
                like = int(earlier_N.argmax())
                if earlier_N[like] >= threshold:
                    stays_N[row] = False
                    removed[row] = (like, float(earlier_N[like]))
            meter.advance(len(cosines_BN))
    return removed


def embed(tasks: Sequence[Task], model: str) -> np.ndarray:
    """Return the embeddings (N, E) of the tasks' wordings by a sentence-transformers model."""
    from sentence_transformers import SentenceTransformer  # to be installed for this alone

    return SentenceTransformer(model).encode([task.instruction for task in tasks], show_progress_bar=True)


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
        chosen = [episode for _, episode in rounds[:count]]
        sites = {episode.task.site for episode in chosen}
        say(f"{part or 'any part'}: {len(chosen)} of {count} on {len(sites)} sites")
        demonstrations += chosen
    return demonstrations


def _length(episode: Trajectory) -> tuple[int, int]:
    result = result_of(episode)
    return result.steps, result.response_tokens
