"""How a base model of the tiny recipes is taught: one loop for the one that sees and the one that reads.

    shops' pages, looked at once --> examples of a stage, drawn without end --> batches --> Muon and AdamW

seeing.py and reading.py make the examples. Every rank has its own shops and draws its own examples; gradients
are averaged. Not in a paper: those start from Qwen's and Meta's models.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from examples.base_models.checkpoints import build
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import Config
from minirl.console import CONSOLE, progress, say
from minirl.distributed import Ranks, open_ranks
from minirl.experiment import make_agent
from minirl.model import (
    Encoded,
    Grid,
    Preprocessor,
    load_model,
    load_preprocessor,
    padded_inputs,
    positions,
)
from minirl.run_folder import write_atomic
from minirl.types import Observation, Task
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.shop import make_tasks, shops_named
from minirl.worlds.solutions import solution_of

TRAIN_SHOPS = "shops:0-599"
TEST_SHOPS = "shops:50001-50060"
BATCH = 32
RATE = 4e-3  # the highest, between warm-up and decay
WARMUP_UPDATES = 50
DECAY = 0.25  # share of all updates in which the rate falls to zero
MAX_WORDS = 8  # that a task names, one to as many equally often: an order of five things takes seven
JOINTS = (" ", ", ", " in ", ", size ", ", quantity ")
MEASURE_EVERY = 200  # updates

MakePage = Callable[[Observation, Session, World], Awaitable[Any]]


class Example(NamedTuple):
    """A conversation, and which of its tokens are learned."""

    ids: list[int]
    is_learned: list[bool]
    page: Any = None  # what seeing.py adds: the page as it was moved,
    boxes: np.ndarray = np.zeros((0, 4))  # and those of the controls that the first learned points are in


async def look(shops: Sequence[World], config: Config, make_page: MakePage) -> list[list[Any]]:
    """Return what every shop shows its agent on the way through its first order."""
    agent = make_agent(config)
    places = asyncio.Semaphore(8)

    async def visit(shop: World) -> list[Any]:
        task = make_tasks(shop, 1)[0]
        steps = solution_of(task, shop)[:-1]
        async with places, pool.session() as session:
            await session.start(task.start_url)
            pages = [await make_page(await agent.observe(session), session, shop)]
            for step in steps:
                action = [step.action_id, dict(step.params)]
                await session.do(session.page.evaluate("(step) => minirl.dispatch(...step)", action))
                pages.append(await make_page(await agent.observe(session), session, shop))
        meter.advance()
        return pages

    with SiteServer(shops) as server, progress("looking at shops", len(shops)) as meter:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            return await asyncio.gather(*map(visit, shops))


def name_words(words: Iterable[str], rng: np.random.Generator) -> tuple[list[str], Task]:
    """Return the words in any order, each once, and a task that asks for them as orders do."""
    order = [str(word) for word in rng.permutation(sorted(set(words)))]
    joints = rng.choice(JOINTS, len(order))
    parts = [f"{joint}{word}" for joint, word in zip(joints, order, strict=True)]
    return order, Task("", f"Click{''.join(parts)}.", "")


def read(
    model: Any,
    preprocessor: Preprocessor,
    examples: Sequence[Example],
    grids: Sequence[Grid] = (),
    **options: Any,
) -> tuple[Tensor, Tensor, Any]:
    """Return logits (N, V) of the tokens that are learned, their ids (N), and the model's output. `options`
    go to the model's forward pass."""
    merge = preprocessor.images.merge if preprocessor.images else 1
    rows = []
    for example in examples:
        ids_L = np.array(example.ids)
        rows.append(Encoded(ids_L, positions(ids_L, grids, preprocessor.pad, merge), []))
    inputs = padded_inputs(rows, preprocessor, torch.device("cpu"))
    out = model.model(**inputs, **options, use_cache=False)
    places = []
    targets = []
    for b, example in enumerate(examples):
        for i in np.flatnonzero(example.is_learned):
            places.append((b, i))
            targets.append(example.ids[i])
    b_N, i_N = torch.tensor(places).T
    # a token is predicted from the state one before it
    hidden_NH = out.last_hidden_state[b_N, i_N - 1]
    logits_NV = hidden_NH @ model.get_input_embeddings().weight.T
    return logits_NV, torch.tensor(targets), out


def batches(examples: Iterator[Example], size: int, order: np.random.Generator) -> Iterator[list[Example]]:
    """Yield batches of examples of about equal lengths, so that little is padding."""
    while True:
        pool = list(itertools.islice(examples, 4 * size))
        pool.sort(key=lambda example: len(example.ids))
        for i in order.permutation(4):
            yield pool[i * size : (i + 1) * size]


@torch.no_grad()
def muon(matrix: Tensor, momentum: Tensor, rate: float) -> None:
    """Move a matrix by its gradient's momentum made orthogonal, as far as AdamW would.

    Jordan et al. 2024, with Moonlight's scale (Liu et al. 2025, section 2.2): 0.2 times
    the root of the longer side. PyTorch's own Muon computes in bfloat16, which is slow on most CPUs.
    """
    if matrix.grad is None:
        return
    momentum.lerp_(matrix.grad, 0.05)
    step = matrix.grad.lerp(momentum, 0.95)
    is_tall = len(step) > step.shape[1]
    x = step.T if is_tall else step
    x = x / x.norm().clamp(min=1e-7)
    # Newton-Schulz: five rounds bring all singular values near 1.
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.7750 * a) @ x
    x = x.T if is_tall else x
    matrix.mul_(1 - 0.01 * rate)
    matrix.add_(x, alpha=-0.2 * rate * max(step.shape) ** 0.5)


class Teacher(Protocol):
    """Makes the examples of one kind of base model, and reads its answers."""

    parts: nn.ModuleDict  # "model", and what is thrown away afterwards
    stages: Mapping[str, int]  # their examples
    shops: list[Any]

    def examples(self, stage: str, shop: Any, rng: np.random.Generator) -> Iterator[Example]: ...
    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor: ...
    def measure(self, stage: str) -> list[bool]: ...
    def results(self) -> dict[str, list[bool]]: ...

    def draw(self, stage: str, rng: np.random.Generator) -> Iterator[Example]:
        while True:
            shop = self.shops[rng.integers(len(self.shops))]
            yield from self.examples(stage, shop, rng)


class Optimizer:
    """Muon for matrices, AdamW for embeddings, biases and gains; gradients are averaged over ranks."""

    def __init__(self, parts: nn.ModuleDict, ranks: Ranks):
        self.ranks = ranks
        self.parameters = list(parts.parameters())
        self.matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in parts.named_parameters():
            is_matrix = parameter.ndim == 2 and "embed" not in name
            (self.matrices if is_matrix else others).append(parameter)
        self.momenta = [torch.zeros_like(matrix) for matrix in self.matrices]
        self.adamw = torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, rate: float) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        mean = nn.utils.parameters_to_vector(gradients) / self.ranks.world_size
        dist.all_reduce(mean)
        nn.utils.vector_to_parameters(mean, gradients)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.param_groups[0]["lr"] = rate
        self.adamw.step()
        for matrix, momentum in zip(self.matrices, self.momenta, strict=True):
            muon(matrix, momentum, rate)


def rate_of(update: int, total: int) -> float:
    """Return the learning rate of an update, counted from 1: warm-up, constant, linear decay."""
    warmup = update / WARMUP_UPDATES
    decay = (total - update + 1) / (DECAY * total)
    return RATE * min(1.0, warmup, decay)


def teach(teacher: Teacher, seed: int, ranks: Ranks) -> list[dict[str, Any]]:
    """Teach stage by stage; return the curve: every so many updates the loss, and the share of hits."""
    rng = np.random.default_rng([seed, ranks.rank])
    order = np.random.default_rng(seed)  # equal on all ranks
    optimizer = Optimizer(teacher.parts, ranks)
    total = sum(teacher.stages.values()) // BATCH
    update = 0
    curve = []
    start = time.monotonic()
    for stage, n_examples in teacher.stages.items():
        source = batches(teacher.draw(stage, rng), BATCH // ranks.world_size, order)
        updates = n_examples // BATCH
        with progress(f"teaching: {stage}", updates) as meter:
            for k in range(1, updates + 1):
                update += 1
                loss = teacher.loss(stage, next(source))
                loss.backward()
                optimizer.step(rate_of(update, total))
                teacher.parts.zero_grad()
                if k % MEASURE_EVERY == 0 or k == updates:
                    hits = float(np.mean(ranks.all_gather(teacher.measure(stage))))
                    point = {"stage": stage, "pictures": update * BATCH}
                    point["minutes"] = round((time.monotonic() - start) / 60, 2)
                    point |= {"loss": round(loss.item(), 3), "accuracy": round(hits, 4)}
                    curve.append(point)
                    meter.advance(0, note=f"loss {loss.item():.2f}, accuracy {hits:.1%}")
                meter.advance()
    return curve


@dataclass
class Recipe:
    """What differs between the two base models."""

    config: Config
    make_page: MakePage
    make_texts: Callable[[list[Any]], Iterable[str]]  # for the tokenizer, of all pages
    make_teacher: Callable[..., Teacher]


def make_base_model(recipe: Recipe, out: Path, curve: Path, seed: int) -> None:
    """Make a base model: look at shops, build a tokenizer and random weights, teach, measure on shops that
    were not among them, save it in bfloat16 to `out` and the figures to `curve`."""
    start = time.monotonic()
    with open_ranks() as ranks:
        torch.set_num_threads(1)  # more were no faster
        CONSOLE.quiet = not ranks.is_main
        train = shops_named(TRAIN_SHOPS)[ranks.rank :: ranks.world_size]
        test = shops_named(TEST_SHOPS)[ranks.rank :: ranks.world_size]
        pages = asyncio.run(look(train + test, recipe.config, recipe.make_page))
        train_pages = pages[: len(train)]
        test_pages = pages[len(train) :]
        if ranks.is_main:
            build(out, recipe.make_texts(pages), seed, kind=recipe.config.agent.kind)
        ranks.barrier()

        config = replace(recipe.config, model=replace(recipe.config.model, path=str(out)))
        model = load_model(config.model, dtype="auto")
        torch.manual_seed(seed)
        preprocessor = load_preprocessor(config.model)
        teacher = recipe.make_teacher(config, preprocessor, model, train_pages, test_pages)
        points = teach(teacher, seed, ranks)

        model.bfloat16().float()  # measured as it is saved
        shares = {}
        for name, hits in teacher.results().items():
            shares[name] = np.mean(ranks.all_gather(hits)).item()
        n_pages = sum(ranks.all_gather([sum(map(len, test_pages))]))
        if ranks.is_main:
            model.bfloat16().save_pretrained(out)
            minutes = round((time.monotonic() - start) / 60, 1)
            facts = {**shares, "pages": n_pages, "seed": seed, "minutes": minutes, "curve": points}
            write_atomic(curve, json.dumps(facts, indent=1).encode())
    summary = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in shares.items())
    say(f"right, in shops never seen: {summary}")
