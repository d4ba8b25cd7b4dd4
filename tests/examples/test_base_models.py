"""What teaches the base models: examples whose truth is known, and the loop that learns from them."""

import asyncio
import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from examples.base_models import pretraining
from examples.base_models.checkpoints import build, text_corpus, vocabulary
from examples.base_models.pretraining import Example, look, muon, name_words, teach
from examples.base_models.reading import DIGITS, PATH, Reading, html_of, make_page
from examples.base_models.seeing import Seeing, moved, whole
from examples.base_models.seeing import make_page as make_visual_page
from minirl.distributed import open_ranks
from minirl.model import load_model, load_preprocessor
from minirl.recipes import tiny, tiny_text
from minirl.worlds.shop import make_shop

pytestmark = pytest.mark.more


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """A teacher of the text base's: it has looked at two shops, and knows nothing yet."""
    config = tiny_text()
    shops = asyncio.run(look([make_shop(7), make_shop(8)], config, make_page))
    path = build(tmp_path_factory.mktemp("text") / "m", text_corpus(shops), 0, 32, 2, "text")
    config = replace(config, model=replace(config.model, path=str(path)))
    return Reading(config, load_preprocessor(config.model), load_model(config.model), shops[:1], shops[1:])


def parts(teacher, one):
    """What an example's response is given, and the response."""
    decode, count = teacher.preprocessor.tokenizer.decode, one.is_learned.count(False)
    assert one.is_learned == [False] * count + [True] * sum(one.is_learned)
    return decode(one.ids[:count]), decode(one.ids[count:])


def asked_in(instruction, teacher):
    return [
        word for word in re.findall(r"\w+", instruction) if word in [*teacher.words, "Next", "Back", "Buy"]
    ]


# --- tasks ---------------------------------------------------------------------------------------------


def test_a_task_names_each_word_once_in_the_order_that_is_wanted():
    wanted, task = name_words(["pearl", "mint", "pearl"], np.random.default_rng(0))
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


def test_turns_click_what_is_there_one_by_one_and_end(reading):
    seen = set()
    for one in islice(reading.draw("agent", np.random.default_rng(1)), 80):
        prompt, said = parts(reading, one)
        (page,) = [page for page in reading.shops[0] if heading(page) in prompt]  # earlier ones are left out
        asked = asked_in(prompt.partition("Task Instruction: Click")[2].partition("Round")[0], reading)
        before, (word,) = (re.findall(r"# Element: (\w+)", text) for text in (prompt, said))
        left = [w for w in page.numbers if w in asked and w not in before]
        if word == "done":
            assert not left and 'exit(message="done")' in said
        else:
            assert word == left[0] and f'element="{page.numbers[word]}"' in said
        chosen = " › ".join(DIGITS.get(w, w) for w in before if w in reading.words)
        assert (f"> {chosen} </p>" in prompt) == bool(chosen), "the page shows what was chosen"
        seen.add(word)
    assert seen > {"Next", "done"} and seen & set(DIGITS)


def test_every_word_that_a_task_names_is_looked_up_in_part_of_a_page(reading):
    absent = 0
    for one in islice(reading.draw("words", np.random.default_rng(1)), 40):
        prompt, said = parts(reading, one)
        asked, _, html = prompt.partition("\n\n")
        numbers = {
            dict(zip(DIGITS.values(), DIGITS, strict=True)).get(word, word): number
            for number, word in re.findall(
                r'id="(\d+)" type="button"(?:>| data-text="\w+">) ?(?:<span[^>]*>)? ?(\w+)', html
            )
        }
        answers = [
            f'{w} do(action="Click", element="{numbers[w]}")' if w in numbers else f"{w} no"
            for w in asked_in(asked, reading)
        ]
        assert said == " " + " ".join(answers) + reading.preprocessor.tokenizer.eos_token
        absent += said.count(" no")
    assert absent > 5


def test_words_are_to_know_their_number_and_whether_they_are_left_to_do(reading):
    """Of the second click of a conversation: what the page offers, what is asked for and not yet chosen."""
    tokenizer, page = reading.preprocessor.tokenizer, reading.shops[0][0]
    first, second, *_ = [word for word in page.numbers if word in reading.words]
    html = re.sub(' data-bbox="[^"]*"', "", html_of(page, [first]))
    text = f"Click {first}, {second}.\n\nRound 2\n\n{html} # Element: {second} falcon"
    labels = reading.labels(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert {word for word, is_left in named(labels["left"], text, tokenizer) if is_left} == {second}
    no = tokenizer(" no", add_special_tokens=False)["input_ids"][0]
    number = int(tokenizer(page.numbers[second], add_special_tokens=False)["input_ids"][0])
    assert named(labels["found"], text, tokenizer) == [(second, number), ("falcon", no)]
    known = {word: tokenizer.decode([id]) for word, id in named(labels["numbers"], text, tokenizer)}
    assert known == page.numbers


def test_the_control_shows_another_shops_pages(reading):
    mine, others = reading.shops[0], reading.test[0]
    right, wrong = ([*reading.turns(mine, np.random.default_rng(3), some)] for some in ((), others))
    assert [parts(reading, one)[1] for one in right] == [parts(reading, one)[1] for one in wrong]
    for one in wrong:
        assert any(heading(page) in parts(reading, one)[0] for page in others)


def heading(page):
    return re.sub(' data-bbox="[^"]*"', "", page.html.partition(PATH)[2])


def named(labels, text, tokenizer):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [(tokenizer.decode([ids[i]]).strip(), label) for i, label in labels]


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
    teacher = Seeing(config, load_preprocessor(config.model), load_model(config.model), [pages], [pages])
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
    muon(matrix, momentum := torch.zeros_like(matrix), 0.1)
    torch.testing.assert_close(momentum, 0.05 * matrix.grad)  # of 0.95
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
