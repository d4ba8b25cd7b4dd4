"""What teaches the base models: examples whose truth is known, and the loop that learns from them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from minirl.distributed import open_ranks
from minirl.experiment import open_model
from minirl.model import load_preprocessor
from minirl.recipes import tiny
from minirl.tiny import pretraining
from minirl.tiny.checkpoints import build, vocabulary
from minirl.tiny.pretraining import Example, look, muon, task_naming, teach
from minirl.tiny.seeing import Seeing, make_page, moved, whole
from minirl.worlds.shop import make_shop

# --- tasks ---------------------------------------------------------------------------------------------


def test_a_task_names_each_word_once_in_the_order_that_is_wanted():
    wanted, task = task_naming(["pearl", "mint", "pearl"], np.random.default_rng(0))
    assert sorted(wanted) == ["mint", "pearl"] and re.fullmatch(r"Click.*\.", task.instruction)
    assert [word for word in re.findall(r"\w+", task.instruction) if word in wanted] == wanted


# --- seeing --------------------------------------------------------------------------------------------


async def test_what_is_moved_keeps_letters_and_words_where_they_are_drawn(tmp_path):
    """Of a page moved by whole patches every whole control is cut out the same as before."""
    (pages,) = await look([make_shop(7)], tiny(), make_page)
    page, size = pages[0], np.array([256, 192, 256, 192])
    assert {"koala", "lamps", "next"} < set(page.words) and (page.boxes > 0).all() and (page.boxes < 1).all()
    cut = lambda one, k: one.picture[slice(*box(one, k)[1::2]), slice(*box(one, k)[::2])]  # noqa: E731
    box = lambda one, k: np.floor(one.boxes[k] * size + 0.5).astype(int)  # noqa: E731
    moves = 0
    for seed in range(12):
        other = moved(page, np.random.default_rng(seed))
        moves += not np.array_equal(other.boxes, page.boxes)
        for k in whole(other):
            assert np.array_equal(cut(other, k), cut(page, k))
    assert moves >= 3


async def test_points_that_are_asked_for_lie_in_the_controls_that_the_task_names(tmp_path):
    path = build(tmp_path / "m", vocabulary(), 0, 32, 1)
    config = tiny()
    config = replace(config, model=replace(config.model, path=str(path)))
    (pages,) = await look([make_shop(7)], config, make_page)
    teacher = Seeing(config, load_preprocessor(config.model), open_model(config), [pages], [pages])
    number = {id: n * 20 / 1000 for n, id in enumerate(teacher.numbers)}
    found = 0
    for one in islice(teacher.draw("words", np.random.default_rng(0)), 20):
        said = [i for i, learned in zip(one.ids, one.is_learned, strict=True) if learned]
        points = np.array([number[i] for i in said if i in number]).reshape(-1, 2)[: len(one.boxes)]
        assert ((one.boxes[:, :2] < points) & (points < one.boxes[:, 2:])).all()
        found += len(points)
    assert found > 20
    hits = teacher.measure("words")
    assert len(hits) > 3 and np.mean(hits) < 0.7  # random weights


# --- the loop ------------------------------------------------------------------------------------------


def test_muons_step_is_orthogonal_and_as_long_as_adamws():
    matrix = nn.Parameter(torch.randn(8, 24, generator=torch.Generator().manual_seed(0)))
    matrix.grad, before = torch.randn(8, 24), matrix.detach().clone()
    muon(matrix, torch.zeros_like(matrix), 0.1)
    step = (before * (1 - 0.01 * 0.1) - matrix.detach()) / (0.2 * 0.1 * 24**0.5)
    values = torch.linalg.svdvals(step)
    assert values.min() > 0.5 and values.max() < 1.5
    assert step.pow(2).mean().sqrt() * 24**0.5 == pytest.approx(1.0, abs=0.35)


def test_teaching_lowers_the_loss_and_notes_the_curve(monkeypatch):
    class Sum:
        """Learns to say which of two numbers it was given."""

        stages = {"only": 32 * 200}

        def __init__(self):
            torch.manual_seed(0)
            self.parts = nn.ModuleDict({"model": nn.Linear(2, 2)})

        def draw(self, stage, rng):
            while True:
                yield Example([int(rng.integers(2))], [True])

        def loss(self, stage, examples):
            given = torch.tensor([one.ids[0] for one in examples])
            return F.cross_entropy(self.parts["model"](F.one_hot(given, 2).float()), given)

        def measure(self, stage):
            logits = self.parts["model"](torch.eye(2))
            return (logits.argmax(-1) == torch.arange(2)).tolist()

    monkeypatch.setattr(pretraining, "RATE", 0.1)
    teacher = Sum()
    with open_ranks() as ranks:
        curve = teach(teacher, 0, ranks)
    assert curve[-1]["accuracy"] == 1.0 and curve[-1]["loss"] < 0.3 and curve[-1]["stage"] == "only"
