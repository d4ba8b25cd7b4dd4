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

from minirl.config import ModelConfig
from minirl.distributed import open_ranks
from minirl.experiment import open_model
from minirl.model import load_preprocessor
from minirl.recipes import tiny, tiny_text
from minirl.tiny import pretraining
from minirl.tiny.checkpoints import build, text_corpus, vocabulary
from minirl.tiny.pretraining import Example, look, muon, task_naming, teach
from minirl.tiny.reading import Page, Reading, make_page
from minirl.tiny.seeing import Seeing, moved, whole
from minirl.tiny.seeing import make_page as make_visual_page
from minirl.worlds.shop import make_shop

PAGES = [
    Page("#A", "page A", {"pearl": "4", "mint": "0", "Next": "5"}),
    Page("#B", "page B", {"slim": "12", "Buy": "1", "Next": "2"}),
]


@pytest.fixture(scope="module")
def text_preprocessor(tmp_path_factory):
    path = build(tmp_path_factory.mktemp("text") / "m", text_corpus(["page A"]), 0, 32, 1, "text")
    return load_preprocessor(ModelConfig(path=str(path)))


# --- tasks ---------------------------------------------------------------------------------------------


def test_a_task_names_each_word_once_in_the_order_that_is_wanted():
    wanted, task = task_naming(["pearl", "mint", "pearl"], np.random.default_rng(0))
    assert sorted(wanted) == ["mint", "pearl"] and re.fullmatch(r"Click.*\.", task.instruction)
    assert [word for word in re.findall(r"\w+", task.instruction) if word in wanted] == wanted


# --- reading -------------------------------------------------------------------------------------------


async def test_a_text_page_knows_its_controls_by_the_words_that_a_response_calls_them():
    (pages,) = await look([make_shop(7)], tiny_text(), make_page)
    first, last = pages[0], pages[-1]
    assert first.numbers.keys() > {"koala", "lamps", "Next"} and first.address.endswith("#PRODUCT_CATEGORY")
    assert last.numbers.keys() > {"four", "Buy", "Back"}  # which shows 4
    for word, number in first.numbers.items():
        assert re.search(rf'id="{number}"[^>]*>[^/]*\b{word}\b', first.html)


def test_turns_click_what_is_there_one_by_one_and_end(text_preprocessor):
    teacher = Reading(tiny_text(), text_preprocessor, nn.Linear(1, 1), [PAGES], [])
    decode, seen = text_preprocessor.tokenizer.decode, set()
    for one in islice(teacher.draw("agent", np.random.default_rng(1)), 60):
        said = decode([i for i, learned in zip(one.ids, one.is_learned, strict=True) if learned])
        prompt = decode([i for i, learned in zip(one.ids, one.is_learned, strict=True) if not learned])
        shown = PAGES[0] if "page A" in prompt else PAGES[1]
        assert ("page A" in prompt) != ("page B" in prompt)  # earlier pages are left out
        asked = re.findall(r"\w+", prompt.partition("Click")[2].partition("Round")[0])
        before = re.findall(r"# Element: (\w+)", prompt)
        word = re.findall(r"# Element: (\w+)", said)[0]
        left = [w for w in asked if w in shown.numbers and w not in before]
        if word == "done":
            assert not left and 'exit(message="done")' in said
        else:
            assert word == left[0] and f'element="{shown.numbers[word]}"' in said
        seen.add(word)
    assert seen > {"pearl", "mint", "slim", "Next", "done"}


def test_every_word_that_a_task_names_is_looked_up_in_one_page(text_preprocessor):
    teacher = Reading(tiny_text(), text_preprocessor, nn.Linear(1, 1), [PAGES], [])
    decode, absent = text_preprocessor.tokenizer.decode, 0
    for one in islice(teacher.draw("words", np.random.default_rng(1)), 40):
        asked, _, said = decode(one.ids).partition("\n\npage ")
        page = PAGES["AB".index(said[0])]
        named = [
            word
            for word in re.findall(r"\w+", asked.removeprefix("Click"))
            if word in teacher.words + ["Next", "Buy"]
        ]
        expected = "".join(
            f' {word} do(action="Click", element="{page.numbers[word]}")'
            if word in page.numbers
            else f" {word} no"
            for word in named
        )
        assert said[1:] == expected + text_preprocessor.tokenizer.eos_token and named
        absent += expected.count(" no")
        assert one.is_learned == [False] * one.is_learned.count(False) + [True] * sum(one.is_learned)
    assert absent > 5


def test_the_control_shows_another_shops_pages(text_preprocessor):
    teacher = Reading(tiny_text(), text_preprocessor, nn.Linear(1, 1), [PAGES], [])
    other = [Page("#C", "page C", {})]
    right, wrong = ([*teacher.turns(PAGES, np.random.default_rng(3), shown)] for shown in ((), other))
    learned = [
        [[i for i, k in zip(e.ids, e.is_learned, strict=True) if k] for e in some] for some in (right, wrong)
    ]
    assert learned[0] == learned[1]
    assert all("page C" in text_preprocessor.tokenizer.decode(one.ids) for one in wrong)


# --- seeing --------------------------------------------------------------------------------------------


async def test_what_is_moved_keeps_letters_and_words_where_they_are_drawn(tmp_path):
    """Of a page moved by whole patches every whole control is cut out the same as before."""
    (pages,) = await look([make_shop(7)], tiny(), make_visual_page)
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
    (pages,) = await look([make_shop(7)], config, make_visual_page)
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
