"""The text recipe's base model: a Llama of 0.7M parameters that finds a word in HTML it never saw.

    torchrun --nproc-per-node 2 -m examples.base_models.reading

It writes minirl/tiny/base_text/ and docs/reading.json.

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

from examples.base_models.checkpoints import text_corpus, words
from examples.base_models.pretraining import MOST, Example, Teacher, make, read, task_naming
from minirl.browser.session import Session
from minirl.config import Config
from minirl.episode import conversation
from minirl.experiment import make_agent
from minirl.model import Preprocessor
from minirl.recipes import tiny_text
from minirl.tiny.checkpoints import BASE_TEXT
from minirl.types import Observation
from minirl.worlds.hand import Operation, text_action
from minirl.worlds.interpreter import World
from minirl.worlds.scripted_agent import with_thought
from minirl.worlds.shop import CHOICES, SHOP

CONTROL = re.compile(
    r'<button id="(\d+)" type="button"(?: data-text="(\w+)")?[^>]*>(?: <span data-text="(\w+)")?'
)
CONTROLS = 10
DIGITS = {word: str(n) for n, word in enumerate(CHOICES["quantity"]["words"], 1)}  # shown 4, asked four
LAYERS = {"numbers": 1, "left": 2, "found": 2}  # behind which these are known
CHOSEN = re.compile(r' <p data-text="[^"<]{0,99}"[^<>]{0,99}> [^<]{0,99} </p>')
PATH = "{path}"
TURNS = 3  # of every shop never seen that are measured


class Page(NamedTuple):
    address: str
    html: str
    numbers: dict[str, str]  # of its controls, by the words that a response calls them


Shops = list[list[Page]]


async def make_page(seen: Observation, session: Session, shop: World) -> Page:
    """Return a page of the text agent's. A number's control is called by its word, as in an order."""
    names = {record["title"]: record["id"] for some in shop.data.values() for record in some}
    shown = {label or title: number for number, label, title in CONTROL.findall(seen.page_text)}
    html = CHOSEN.sub(PATH, seen.page_text)
    return Page(seen.url, html, {names.get(word, word): n for word, n in shown.items()})


def click(page: Page, word: str) -> str:
    return text_action(Operation("click"), int(page.numbers[word]))


def html_of(page: Page, chosen: Iterable[str] = ()) -> str:
    """Return a page that shows what has been chosen."""
    path = " › ".join(DIGITS.get(word, word) for word in chosen)
    return page.html.replace(PATH, f' <p data-text="{path}"> {path} </p>' if path else "")


def part(page: Page, rng: np.random.Generator) -> Page:
    """Return a page that has some of the controls of another, and little else."""
    ends = [after.partition("</button>")[0] for after in page.html.split("<button ")[1:]]
    buttons = [f"<button {inside}</button>" for inside in ends]
    is_kept = rng.random(len(buttons)) < rng.random()
    is_kept[rng.integers(len(buttons))] = True  # at least one
    kept = np.flatnonzero(is_kept).tolist()
    numbers = {w: n for k, (w, n) in enumerate(page.numbers.items()) if k in kept}
    html = " ".join(["<html> <body>", *(buttons[k] for k in kept), "</body> </html>"])
    return Page(page.address, html, numbers)


class Reading(Teacher):
    """The text agent's teacher."""

    stages = {"words": 25_600, "agent": 16_000}  # pages, and turns

    def __init__(self, config: Config, preprocessor: Preprocessor, model: Any, shops: Shops, unseen: Shops):
        self.config, self.preprocessor, self.model = config, preprocessor, model
        # the last look at each page: its header shows what was chosen
        self.shops, self.test = (
            [list({page.address: page for page in shop if page.numbers}.values()) for shop in some]
            for some in (shops, unseen)
        )
        self.agent, self.words, tokenizer = make_agent(config), words(), preprocessor.tokenizer
        vocab: dict[str, int] = tokenizer.get_vocab()
        self.numbers = torch.tensor([vocab[str(n)] for n in range(CONTROLS)])
        self.marks = {
            name: vocab[name.replace(" ", "Ġ")]
            for name in (' id="', " </button>", " </html>", " no", "Round")
        }
        width = model.config.hidden_size
        spelled = {f" {digit}": word for word, digit in DIGITS.items()}
        spelled |= {
            f"{space}{word}": word for word in (*self.words, *SHOP["buttons"].values()) for space in ("", " ")
        }
        ids = tokenizer([*spelled], add_special_tokens=False)["input_ids"]
        self.word_of = {one[0]: w for one, w in zip(ids, spelled.values(), strict=True) if len(one) == 1}
        for layer in model.model.layers:  # half the heads look for equal tokens from the first
            queries = layer.self_attn.q_proj.weight.data.view(2, 2, width // 4, width)
            layer.self_attn.k_proj.weight.data.copy_(queries[:, 0].reshape(-1, width))
        heads = {name: nn.Linear(width, width, bias=False) for name in ("numbers", "found")}
        self.parts = nn.ModuleDict({"model": model, **heads, "left": nn.Linear(width, 1)})

    def examples(
        self, stage: str, shop: Sequence[Page], rng: np.random.Generator, shown: Sequence[Page] = ()
    ) -> Iterator[Example]:
        """Yield a stage's examples of a shop; `shown`: with these pages in place of its own."""
        if stage == "agent":
            yield from self.turns(shop, rng, shown)
            return
        page = shop[int(rng.integers(len(shop)))]
        page, count = part(shown[0] if shown else page, rng), int(rng.integers(1, MOST + 1))
        there = rng.permutation([*page.numbers])[:count]
        absent = [w for w in rng.choice(self.words, int(rng.integers(1, 3))) if w not in page.numbers]
        wanted, task = task_naming([*there, *absent], rng)
        said = (f" {word} {click(page, word) if word in page.numbers else 'no'}" for word in wanted)
        text = f"{task.instruction}\n\n{html_of(page)}"
        asked = self.preprocessor.tokenizer(text, add_special_tokens=False)["input_ids"]
        _, answer = self.preprocessor.render_response("".join(said))
        yield Example([*asked, *answer], [False] * len(asked) + [True] * len(answer))

    def turns(
        self, shop: Sequence[Page], rng: np.random.Generator, shown: Sequence[Page] = ()
    ) -> Iterator[Example]:
        """Yield the turns of a conversation over one to three pages that follow each other; `shown`: with
        these in their place."""
        first, count = int(rng.integers(len(shop))), int(rng.integers(1, 4))
        pages, most = shop[first : first + count], 5 - count  # of a page
        drawn = ((page, rng.permutation([*page.numbers])[: rng.integers(most) + 1]) for page in pages)
        named = [str(word) for _, some in drawn for word in some]
        absent = max(0, int(rng.integers(1, MOST + 1)) - len(named))
        on_pages = {word for page in pages for word in page.numbers}
        named += [word for word in rng.choice(self.words, absent) if word not in on_pages]
        wanted, task = task_naming(named, rng)
        context = conversation(self.agent, self.config.agent, self.preprocessor, task)
        clicks = [(page, word) for page in pages for word in page.numbers if word in wanted]
        clicked: list[str] = []
        for page, word in [*clicks, (pages[-1], "")]:
            if word in clicked:
                continue
            action = click(page, word) if word else 'exit(message="done")'
            chosen = [word for word in clicked if word in self.words]  # not Next
            html = html_of(shown[pages.index(page) % len(shown)] if shown else page, chosen)
            clicked.append(word)
            ids = context.observe(Observation("", page_text=html)).ids
            text, said = self.preprocessor.render_response(with_thought(word or "done", action))
            context.respond(said, text)
            yield Example([*ids, *said], [False] * len(ids) + [True] * len(said))

    def labels(self, ids: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
        """Return what tokens are to know, as positions and labels: every word on a control its "numbers", and
        whether it is "left" to do, asked for and neither said nor shown as chosen; every word of the response
        its control's number, "found", or "no"."""
        out: dict[str, list[tuple[int, int]]] = {name: [] for name in LAYERS}
        named, numbers, number, is_answer = Counter[str](), dict[str, int](), None, False
        for i, id in enumerate(ids):
            word = self.word_of.get(id)
            if i and ids[i - 1] == self.marks[' id="']:
                number = id
            elif id == self.marks[" </button>"]:
                number = None
            elif id == self.marks[" </html>"]:
                is_answer = True
            elif word and is_answer:
                out["found"].append((i, numbers.get(word, self.marks[" no"])))
            elif word and number is not None:
                numbers[word] = number
                out["numbers"].append((i, number))
                out["left"].append((i, int(named[word] == 1)))
            elif word and ids[i - 1] != self.marks["Round"]:
                named[word] += 1
        return out

    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor:
        """Return the loss of what is said, and of what a page's and a response's words know of each other:
        layers behind can then look words up."""
        said_NV, wanted_N, out = read(self.model, self.preprocessor, examples, output_hidden_states=True)
        embed_VH = self.model.get_input_embeddings().weight
        labels = [self.labels(one.ids) for one in examples]
        losses = [F.cross_entropy(said_NV, wanted_N)]
        for name, layer in LAYERS.items():
            b_N, i_N, label_N = torch.tensor([(b, *one) for b, of in enumerate(labels) for one in of[name]]).T
            hidden_NH = out.hidden_states[layer][b_N, i_N]
            told_NH = self.parts[name](F.rms_norm(hidden_NH, hidden_NH.shape[-1:]))
            if name == "left":
                losses.append(F.binary_cross_entropy_with_logits(told_NH[:, 0], label_N.float()))
            else:
                losses.append(F.cross_entropy(told_NH @ embed_VH.T, label_N))
        return torch.stack(losses).sum()

    @torch.no_grad()
    def measure(self, stage: str, other: bool = False) -> list[bool]:
        """Return of which answers, in shops never seen, all tokens that are numbers are the likeliest, and in
        conversations all tokens; `other`: with the pages of another shop."""
        rng, hits = np.random.default_rng(0), list[bool]()
        for k, shop in enumerate(self.test):
            examples = self.examples(stage, shop, rng, self.test[k - 1] if other else ())
            for one in islice(examples, TURNS):
                said_NV, wanted_N, _ = read(self.model, self.preprocessor, [one])
                is_right_N = said_NV.argmax(-1) == wanted_N
                if stage == "words":
                    is_right_N = is_right_N[torch.isin(wanted_N, self.numbers)]
                hits.append(bool(is_right_N.all()))
        return hits

    def results(self) -> dict[str, list[bool]]:
        return {"unseen": self.measure("agent"), "other_page": self.measure("agent", other=True)}


def main(out: Path = BASE_TEXT, curve: Path = Path("docs/reading.json"), seed: int = 0) -> None:
    """Make the base model."""
    make(tiny_text(), make_page, text_corpus, Reading, out, curve, seed)


if __name__ == "__main__":
    tyro.cli(main)
