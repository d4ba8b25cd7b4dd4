"""The text recipe's base model: a Llama of 0.7M parameters that finds a word in HTML it never saw.

    torchrun --nproc-per-node 2 -m examples.base_models.reading

It writes runs/reading; the shipped one came with `--out minirl/tiny/base_text --curve docs/reading.json`.

It is to `tiny-text` what Qwen2.5-3B is to WebAgent-R1's recipe, as seeing.py's model is to `tiny`: it can
read a page, has heard of clicks, and knows no order. Its tasks name words, some of them on no page:

    words    "Click pearl, dune." and a page, then pearl with the click on it, and "dune no"
    agent    the text agent's own conversations over up to three pages: a click a turn, and that it is done

Without the first, which looks up to eight words up in one page, 600 updates of the second learned nothing.
Which button leads on, and when, is left to demonstrations and reinforcement.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional as F

from examples.base_models.checkpoints import shop_words, text_corpus
from examples.base_models.pretraining import (
    MAX_WORDS,
    Example,
    Recipe,
    Teacher,
    make_base_model,
    name_words,
    read,
)
from minirl.browser.session import Session
from minirl.config import Config
from minirl.episode import conversation
from minirl.experiment import make_agent
from minirl.model import Preprocessor
from minirl.recipes import tiny_text
from minirl.types import Observation, Task
from minirl.worlds.hand import Operation, text_action
from minirl.worlds.interpreter import World
from minirl.worlds.scripted_agent import with_thought
from minirl.worlds.shop import CHOICES, SHOP

CONTROL = re.compile(
    r'<button id="(\d+)" type="button"(?: data-text="(\w+)")?[^>]*>(?: <span data-text="(\w+)")?'
)
MAX_CONTROLS = 10  # on a page, so that a number is one digit
DIGITS = {word: str(n) for n, word in enumerate(CHOICES["quantity"]["words"], 1)}  # shown 4, asked four
LAYERS = {"numbers": 1, "left": 2, "found": 2}  # layers of the model behind which these are known
CHOSEN = re.compile(r' <p data-text="[^"<]{0,99}"[^<>]{0,99}> [^<]{0,99} </p>')
PATH = "{path}"  # stands for what has been chosen
TEST_TURNS = 3  # of every test shop
END_OF_TASK = 'exit(message="done")'


class TextPage(NamedTuple):
    address: str
    html: str
    numbers: dict[str, str]  # of its controls, by the words that a response calls them


Shops = list[list[TextPage]]


async def make_page(observation: Observation, session: Session, shop: World) -> TextPage:
    """Return a page of the text agent's. A number's control is called by its word, as in an order."""
    ids = {}
    for records in shop.data.values():
        for record in records:
            ids[record["title"]] = record["id"]
    numbers = {}
    for number, label, title in CONTROL.findall(observation.page_text):
        word = label or title
        numbers[ids.get(word, word)] = number
    html = CHOSEN.sub(PATH, observation.page_text)
    return TextPage(observation.url, html, numbers)


def click(page: TextPage, word: str) -> str:
    """Return the action that clicks a page's control."""
    return text_action(Operation("click"), int(page.numbers[word]))


def html_of(page: TextPage, chosen: Iterable[str] = ()) -> str:
    """Return a page that shows what has been chosen."""
    path = " › ".join(DIGITS.get(word, word) for word in chosen)
    shown = f' <p data-text="{path}"> {path} </p>' if path else ""
    return page.html.replace(PATH, shown)


def part_of(page: TextPage, rng: np.random.Generator) -> TextPage:
    """Return a page that has some of the controls of another, at least one, and little else."""
    buttons = []
    for after in page.html.split("<button ")[1:]:
        inside = after.partition("</button>")[0]
        buttons.append(f"<button {inside}</button>")
    is_taken = rng.random(len(buttons)) < rng.random()
    is_taken[rng.integers(len(buttons))] = True
    numbers = {}
    for k, (word, number) in enumerate(page.numbers.items()):
        if k < len(buttons) and is_taken[k]:
            numbers[word] = number
    taken = [button for k, button in enumerate(buttons) if is_taken[k]]
    html = " ".join(["<html> <body>", *taken, "</body> </html>"])
    return TextPage(page.address, html, numbers)


def last_looks(shops: Shops) -> Shops:
    """Return every shop's pages with controls as they looked last: then the header shows what was chosen."""
    out = []
    for shop in shops:
        by_address = {page.address: page for page in shop if page.numbers}
        out.append(list(by_address.values()))
    return out


class Reading(Teacher):
    """The text agent's teacher."""

    stages = {"words": 25_600, "agent": 16_000}  # pages, and turns

    def __init__(self, config: Config, preprocessor: Preprocessor, model: Any, shops: Shops, unseen: Shops):
        self.config = config
        self.preprocessor = preprocessor
        self.model = model
        self.shops = last_looks(shops)
        self.test = last_looks(unseen)
        self.agent = make_agent(config)
        self.words = shop_words()
        vocab: dict[str, int] = preprocessor.tokenizer.get_vocab()
        self.numbers = torch.tensor([vocab[str(n)] for n in range(MAX_CONTROLS)])
        self.marks: dict[str, int] = {}
        for name in (' id="', " </button>", " </html>", " no", "Round"):
            self.marks[name] = vocab[name.replace(" ", "Ġ")]
        self.word_of = self._words_by_id()
        self._look_for_equal_tokens()
        width = model.config.hidden_size
        numbers = nn.Linear(width, width, bias=False)
        found = nn.Linear(width, width, bias=False)
        left = nn.Linear(width, 1)
        self.parts = nn.ModuleDict({"model": model, "numbers": numbers, "found": found, "left": left})

    def _words_by_id(self) -> dict[int, str]:
        """Return the words of orders and buttons by their tokens, as far as they are single ones."""
        words = {f" {digit}": word for word, digit in DIGITS.items()}
        for word in (*self.words, *SHOP["buttons"].values()):
            words[word] = word
            words[f" {word}"] = word
        by_id = {}
        encoded = self.preprocessor.tokenizer([*words], add_special_tokens=False)["input_ids"]
        for ids, word in zip(encoded, words.values(), strict=True):
            if len(ids) == 1:
                by_id[ids[0]] = word
        return by_id

    def _look_for_equal_tokens(self) -> None:
        """Give half of the heads the same keys as queries, so that they find equal tokens from the first."""
        width = self.model.config.hidden_size
        for layer in self.model.model.layers:
            attention = layer.self_attn
            queries = attention.q_proj.weight.data.view(2, 2, width // 4, width)
            attention.k_proj.weight.data.copy_(queries[:, 0].reshape(-1, width))

    def examples(
        self,
        stage: str,
        shop: Sequence[TextPage],
        rng: np.random.Generator,
        instead: Sequence[TextPage] = (),
    ) -> Iterator[Example]:
        """Yield a stage's examples of a shop; `instead`: with these pages in place of its own."""
        if stage == "agent":
            yield from self.turns(shop, rng, instead)
        else:
            yield self.lookup(shop, rng, instead)

    def lookup(
        self, shop: Sequence[TextPage], rng: np.random.Generator, instead: Sequence[TextPage] = ()
    ) -> Example:
        """Return a task with part of a page, and the answer: every word's click, or that it is not there."""
        page = shop[int(rng.integers(len(shop)))]
        page = part_of(instead[0] if instead else page, rng)
        count = int(rng.integers(1, MAX_WORDS + 1))
        present = rng.permutation([*page.numbers])[:count]
        others = rng.choice(self.words, int(rng.integers(1, 3)))
        absent = [word for word in others if word not in page.numbers]
        words, task = name_words([*present, *absent], rng)
        answers = []
        for word in words:
            answer = click(page, word) if word in page.numbers else "no"
            answers.append(f" {word} {answer}")
        text = f"{task.instruction}\n\n{html_of(page)}"
        prompt = self.preprocessor.tokenizer(text, add_special_tokens=False)["input_ids"]
        _, response = self.preprocessor.render_response("".join(answers))
        return Example([*prompt, *response], [False] * len(prompt) + [True] * len(response))

    def turns(
        self, shop: Sequence[TextPage], rng: np.random.Generator, instead: Sequence[TextPage] = ()
    ) -> Iterator[Example]:
        """Yield the turns of a conversation over one to three pages that follow each other; `instead`: with
        these in their place."""
        first = int(rng.integers(len(shop)))
        count = int(rng.integers(1, 4))
        pages = shop[first : first + count]
        words, task = self._task_over(pages, count, rng)
        context = conversation(self.agent, self.config.agent, self.preprocessor, task)
        # Controls are clicked in the order of pages, and on a page in its own order; then the task ends.
        clicks = []
        for page in pages:
            clicks += [(page, word) for word in page.numbers if word in words]
        clicks.append((pages[-1], ""))
        clicked: list[str] = []
        for page, word in clicks:
            if word in clicked:
                continue
            chosen = [earlier for earlier in clicked if earlier in self.words]  # buttons choose nothing
            shown = instead[pages.index(page) % len(instead)] if instead else page
            observation = Observation("", page_text=html_of(shown, chosen))
            prompt = context.observe(observation).ids
            action = click(page, word) if word else END_OF_TASK
            text, response = self.preprocessor.render_response(with_thought(word or "done", action))
            context.respond(response, text)
            clicked.append(word)
            yield Example([*prompt, *response], [False] * len(prompt) + [True] * len(response))

    def _task_over(
        self, pages: Sequence[TextPage], count: int, rng: np.random.Generator
    ) -> tuple[list[str], Task]:
        """Return a task that names words of every page, and some that are on none."""
        max_words = 5 - count  # of a page
        words = []
        for page in pages:
            order = rng.permutation([*page.numbers])
            words += [str(word) for word in order[: rng.integers(max_words) + 1]]
        n_absent = max(0, int(rng.integers(1, MAX_WORDS + 1)) - len(words))
        on_pages = {word for page in pages for word in page.numbers}
        words += [word for word in rng.choice(self.words, n_absent) if word not in on_pages]
        return name_words(words, rng)

    def labels(self, ids: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
        """Return what tokens are to know, as positions and labels: every word on a control its "numbers", and
        whether it is "left" to do, asked for and neither said nor shown as chosen; every word of the response
        its control's number, "found", or "no"."""
        out: dict[str, list[tuple[int, int]]] = {name: [] for name in LAYERS}
        mentions = Counter[str]()  # of a word before it stands on a control: in the task, then as chosen
        numbers: dict[str, int] = {}
        number = None  # of the control that is being read
        is_response = False
        for i, id in enumerate(ids):
            word = self.word_of.get(id)
            before = ids[i - 1] if i else None
            if before == self.marks[' id="']:
                number = id
            elif id == self.marks[" </button>"]:
                number = None
            elif id == self.marks[" </html>"]:
                is_response = True
            elif word and is_response:
                out["found"].append((i, numbers.get(word, self.marks[" no"])))
            elif word and number is not None:
                numbers[word] = number
                out["numbers"].append((i, number))
                out["left"].append((i, int(mentions[word] == 1)))
            elif word and before != self.marks["Round"]:
                mentions[word] += 1
        return out

    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor:
        """Return the loss of what is said, and of what a page's and a response's words know of each other:
        layers behind can then look words up."""
        logits_NV, targets_N, out = read(self.model, self.preprocessor, examples, output_hidden_states=True)
        embed_VH = self.model.get_input_embeddings().weight
        labels = [self.labels(example.ids) for example in examples]
        losses = [F.cross_entropy(logits_NV, targets_N)]
        for name, layer in LAYERS.items():
            places = [(b, i, label) for b, of in enumerate(labels) for i, label in of[name]]
            b_N, i_N, label_N = torch.tensor(places).T
            hidden_NH = out.hidden_states[layer][b_N, i_N]
            known_NH = self.parts[name](F.rms_norm(hidden_NH, hidden_NH.shape[-1:]))
            if name == "left":
                losses.append(F.binary_cross_entropy_with_logits(known_NH[:, 0], label_N.float()))
            else:
                losses.append(F.cross_entropy(known_NH @ embed_VH.T, label_N))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def measure(self, stage: str, other: bool = False) -> list[bool]:
        """Return of which answers, in shops never seen, all tokens that are numbers are the likeliest, and in
        conversations all tokens; `other`: with the pages of another shop."""
        rng = np.random.default_rng(0)
        hits: list[bool] = []
        for k, shop in enumerate(self.test):
            instead = self.test[k - 1] if other else ()
            examples = self.examples(stage, shop, rng, instead)
            for example in islice(examples, TEST_TURNS):
                logits_NV, targets_N, _ = read(self.model, self.preprocessor, [example])
                is_right_N = logits_NV.argmax(-1) == targets_N
                if stage == "words":
                    is_right_N = is_right_N[torch.isin(targets_N, self.numbers)]
                hits.append(bool(is_right_N.all()))
        return hits

    def results(self) -> dict[str, list[bool]]:
        return {"unseen": self.measure("agent"), "other_page": self.measure("agent", other=True)}


def main(
    out: Path = Path("runs/reading"), curve: Path = Path("runs/reading/curve.json"), seed: int = 0
) -> None:
    """Make the base model. The shipped one lies in minirl/tiny/base_text, its curve in docs/reading.json."""
    make_base_model(Recipe(tiny_text(), make_page, text_corpus, Reading), out, curve, seed)


if __name__ == "__main__":
    tyro.cli(main)
