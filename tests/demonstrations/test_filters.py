"""Pools of tasks: each filter removes what it says, and near-duplicates are those of a brute-force search."""

import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from minirl.benchmarks.task_files import load_tasks
from minirl.data import __main__ as script
from minirl.data import filters
from minirl.data.filters import PRESETS, SFT_THRESHOLD, curate
from minirl.run_folder import save_tasks
from minirl.types import Stop, Task, Trajectory, Turn

PUBLIC = Path(__file__).parents[1] / "data" / "public"
POOL = PUBLIC / "webgym.jsonl"
# Cosines to the first task's vector: of the second 0.97, of the others far less
VECTORS = np.zeros((9, 10), np.float32)
VECTORS[range(9), range(9)] = 1
VECTORS[1, :2] = 0.97, (1 - 0.97**2) ** 0.5


def greedy(vectors: np.ndarray, threshold: float, first: int) -> dict[int, tuple[int, float]]:
    """The definition, pair by pair."""
    kept, found = list(range(first)), {}
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for n in range(first, len(unit)):
        cosine, like = max(((float(unit[n] @ unit[m]), -m) for m in kept), default=(-2.0, 0))
        if cosine >= threshold:
            found[n] = (-like, cosine)
        else:
            kept.append(n)
    return found


# Of sixteen ones and minus ones each, so that cosines are eighths and sums are exact in any order
signs = st.integers(0, 40).flatmap(
    lambda n: arrays.arrays(np.float32, (n, 16), elements=st.sampled_from([-1.0, 1.0]))
)


@settings(max_examples=40)
@given(signs, st.sampled_from([0.25, 0.5, 0.75, 0.95]), st.integers(1, 9), st.data())
def test_near_duplicates_are_those_of_a_search_through_all_pairs(vectors, threshold, block, data):
    first = data.draw(st.integers(0, len(vectors)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "BLOCK", block)
        assert filters.duplicates(vectors, threshold, first) == greedy(vectors, threshold, first)


def test_near_duplicates_of_real_numbers_too(monkeypatch):
    """300 noisy copies of 60 vectors, in blocks that are no divisor of either."""
    monkeypatch.setattr(filters, "BLOCK", 64)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 32))[rng.integers(0, 60, 300)] + rng.normal(size=(300, 32)) * 0.15
    expected = greedy(vectors, SFT_THRESHOLD - 0.02, 20)
    found = filters.duplicates(vectors, SFT_THRESHOLD - 0.02, 20)
    assert {n: like for n, (like, _) in found.items()} == {n: like for n, (like, _) in expected.items()}
    assert 30 < len(found) < 250 and max(found[n][1] - expected[n][1] for n in found) < 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_an_embedding_without_a_direction_is_refused(bad):
    """Compared with it, nothing is a duplicate of anything."""
    vectors = np.ones((3, 4))
    vectors[1] = bad
    with pytest.raises(ValueError, match="embedding 2 of 3"), np.errstate(invalid="ignore"):
        filters.duplicates(vectors, 0.9)


@pytest.fixture
def evaluation(tmp_path) -> Path:
    """The museum's question in other spelling, on the site without www."""
    task = Task("e", "when does  the museum open?", "https://museum.example/")
    save_tasks(tmp_path / "evaluation.jsonl", [task])
    return tmp_path / "evaluation.jsonl"


def run(tmp_path: Path, *flags: object) -> tuple[list[str], dict[str, str]]:
    """The ids that are kept, and of the others the filter with its reason."""
    out = tmp_path / "out"
    script.run(["filter", str(POOL), "--out", str(out), *map(str, flags)])
    removed = [json.loads(line) for line in (out / "removed.jsonl").read_text().splitlines()]
    assert all(Task(**row["task"]) in load_tasks(POOL) for row in removed)
    reasons = {row["task"]["id"]: f"{row['filter']}: {row['reason']}" for row in removed}
    return [task.id for task in load_tasks(out / "tasks.jsonl")], reasons


def test_every_filter_says_what_it_removes_and_why(tmp_path, evaluation, capsys):
    vectors = np.concatenate([VECTORS, VECTORS[5:6] + 0.01])  # the evaluation's task is nearly the sixth
    np.save(tmp_path / "vectors.npy", vectors)
    # however they are spelled, and saved by Windows
    (tmp_path / "hosts").write_text("\ufeffwww.Captcha.example\nelsewhere.example\n", "utf-8")
    flags = ["--evaluation", evaluation, "--unstable", tmp_path / "hosts"]
    flags += ["--embeddings", tmp_path / "vectors.npy"]
    kept, reasons = run(tmp_path, *flags, "--least", 2, "--threshold", 0.95)
    assert kept == ["1", "4"]
    assert reasons == {
        "5": "evaluated: an evaluation has it",
        "3": "decomposed: part of 1",
        "8": "on unstable sites: its site is listed",
        "9": "on unstable sites: its site is listed",
        "7": "in long tail: one of 1 on fences.example",
        "2": "near duplicates: 0.970 like 1",
        "6": "near duplicates: 1.000 like e",
    }
    said = capsys.readouterr().out
    for line in ("evaluated: 1 removed, 8 left", "near duplicates: 2 removed, 2 left", "2 of 9 tasks"):
        assert line in said


def test_a_site_is_unstable_by_its_address(tmp_path):
    """Whatever the task calls it."""
    tasks = tmp_path / "tasks.jsonl"
    shop = "https://www.shop.example/"
    listed = [Task("1", "Buy it.", shop, meta={"site": "Shop"}), Task("2", "Buy it.", shop)]
    other = Task("3", "Buy it.", "https://www.other.example/")
    save_tasks(tasks, [*listed, other])
    (tmp_path / "hosts").write_text("shop.example\n")
    flags = ["--out", str(tmp_path / "out"), "--unstable", str(tmp_path / "hosts"), "--least", "0"]
    script.run(["filter", str(tasks), *flags])
    assert load_tasks(tmp_path / "out/tasks.jsonl") == [other]


def test_without_their_settings_filters_remove_nothing(tmp_path):
    """The controls: only what is part of another task goes; 0.97 is not 0.99."""
    assert run(tmp_path, "--least", 0) == (list("12456789"), {"3": "decomposed: part of 1"})
    np.save(tmp_path / "vectors.npy", VECTORS)
    assert run(tmp_path, "--least", 0, "--embeddings", tmp_path / "vectors.npy")[0] == list("12456789")


def test_a_model_embeds_the_wordings_once(tmp_path, evaluation, monkeypatch):
    """A stand-in for sentence-transformers counts letters. What it says is kept for other runs."""
    letters = "abcdefghijklmnopqrstuvwxyz"

    class Model:
        def __init__(self, name: str):
            assert name == "letters"

        def encode(self, texts: list[str], **how: object) -> np.ndarray:
            return np.array([[t.lower().count(c) for c in letters] for t in texts], np.float32)

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Model))
    flags = ["--least", 0, "--threshold", 0.95, "--evaluation", evaluation]
    first = run(tmp_path, *flags, "--model", "letters")
    assert first[1]["2"].startswith("near duplicates: 0.951") and first[0] == list("146789")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    assert run(tmp_path, *flags, "--embeddings", tmp_path / "out" / "embeddings.npy") == first


def test_embeddings_of_other_tasks_are_refused(tmp_path):
    np.save(tmp_path / "short.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"9 \+ 0 tasks, and 2 embeddings"):
        run(tmp_path, "--embeddings", tmp_path / "short.npy")


@pytest.mark.parametrize(
    ("instruction", "is_over"),
    [
        ("Find a room in Bergen for two, from April 3, 2026 to April 6, 2026.", True),
        ("Show the cheapest one-way flight from Oslo to Turin on 2026-02-14.", True),
        ("Reserve a table in Leeds for 12 May 2026 at seven.", True),
        ("Reserve a table in Leeds for Sept 12 or 13 September 2026.", True),
        ("Book a room at the Marriott for Dec 3, 2026.", False),  # Mar is no month here
        ("Find a room in Bergen from January 8 to 10, 2027.", False),
        ("Book a hotel from Nov. 20th, 2026 to 26 November 2026.", False),
        ("Find a hotel for a week-long stay from Feb 22 to Feb 29, 2026.", True),  # there is no such day
        ("Which film won the prize that was given on March 2, 2025?", False),
        ("Find a lamp below 40 euros, or a table.", False),
        ("Which were the best-selling books of March 2024?", False),
        ("Show the league table of May 2023.", False),
        ("Read a paper on room-temperature conductors of July 2023.", False),
    ],
)
def test_what_is_to_be_booked_for_months_that_are_over(instruction, is_over, tmp_path):
    task = Task("a", instruction, "https://hotels.test/")
    assert filters.has_passed(task, datetime(2026, 11, 26, 12)) == is_over
    if is_over:
        kept, removed = filters.filter_tasks([task], [], [], 0, None, 1.0)
        assert kept == [] and removed[0]["filter"] == "for months that are over"


def test_the_past_months_of_fara():
    tasks = load_tasks(PUBLIC.parent / "webvoyager" / "fara_595.jsonl")
    late = [task for task in tasks if filters.has_passed(task, datetime(2026, 11, 26))]
    assert Counter(task.meta["site"] for task in late) == {"Booking": 28, "Google Flights": 32}


def attempt(task: str, site: str, turns: int, tokens: int = 10, **how: object) -> Trajectory:
    """An episode of so many turns, the last of which a served model has counted so many tokens in."""
    made = [Turn(0, (), (), (), "x", counted=(5, tokens if n == turns - 1 else 1)) for n in range(turns)]
    meta = {"site": site, "benchmark": how.pop("part", "pae-webvoyager")}
    how = {"success": True, "stop": Stop.DONE} | how
    return Trajectory(Task(task, "Do.", f"https://{site}/", meta=meta), 0, turns=tuple(made), **how)


def test_the_shortest_judged_success_of_each_task_is_taken():
    """Turns decide, then response tokens; what failed or was aborted does not count, however short."""
    episodes = [
        attempt("a", "one.example", 3),
        attempt("a", "one.example", 2, 30),
        attempt("a", "one.example", 2, 20),
        attempt("a", "one.example", 1, success=False),
        attempt("a", "one.example", 1, stop=Stop.JUDGE_ERROR),
        attempt("b", "one.example", 4),
    ]
    chosen = curate(episodes, {"": 10})
    assert {t.task.id: (len(t.turns), t.turns[-1].counted[1]) for t in chosen} == {"a": (2, 20), "b": (4, 10)}


def test_sites_are_served_in_turn(capsys):
    """Of 9 tasks on one site, 2 on another and 1 on a third, 6: the cap is 3, the least that gives six."""
    sizes = {"many.example": 9, "few.example": 2, "one.example": 1}
    episodes = [attempt(f"{site} {n}", site, 1) for site, most in sizes.items() for n in range(most)]
    chosen = curate(episodes, {"pae-webvoyager": 6})
    assert Counter(t.task.site for t in chosen) == {"many.example": 3, "few.example": 2, "one.example": 1}
    assert "pae-webvoyager: 6 of 6 on 3 sites" in capsys.readouterr().out
    assert {t.task.id for t in chosen} < {t.task.id for t in curate(episodes, {"": 8})}, "more changes none"


def test_the_papers_sizes():
    """Of 1,000 successes of each part; 1.9k are of any part."""
    parts = [(n, part) for n in range(1000) for part in ("pae-webvoyager", "insta-v3")]
    episodes = [attempt(f"{part} {n}", f"s{n % 80}.example", 1, part=part) for n, part in parts]
    for preset, sizes in {"412": [412], "912": [412, 500]}.items():
        counts = Counter(t.task.meta["benchmark"] for t in curate(episodes, PRESETS[preset]))
        assert list(counts.values()) == sizes
    assert len(curate(episodes, PRESETS["1.9k"])) == 1900
