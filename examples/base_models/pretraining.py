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
from dataclasses import replace
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
    load_preprocessor,
    open_model,
    padded_inputs,
    positions,
    save_model,
)
from minirl.run_folder import write_atomic
from minirl.types import Observation, Task
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.search import solve
from minirl.worlds.shop import make_tasks, shops_named

TRAIN, TEST = "shops:0-599", "shops:50001-50060"
BATCH, RATE, WARMUP, DECAY = 32, 4e-3, 50, 0.25
MOST = 8  # words that a task names, one to as many equally often: an order of five things takes seven
JOINTS = (" ", ", ", " in ", ", size ", ", quantity ")
EVERY = 200  # updates between two measurements


PageOf = Callable[[Observation, Session, World], Awaitable[Any]]


class Example(NamedTuple):
    ids: list[int]
    is_learned: list[bool]
    page: Any = None  # what seeing.py adds: the page as it was moved,
    boxes: np.ndarray = np.zeros((0, 4))  # and those of the controls that the first learned points are in


async def look(shops: Sequence[World], config: Config, page_of: PageOf) -> list[list[Any]]:
    """Return what every shop shows its agent on the way through its first order."""
    agent, places = make_agent(config), asyncio.Semaphore(8)

    async def visit(shop: World) -> list[Any]:
        pages, task = [], make_tasks(shop, 1)[0]
        async with places, pool.session() as session:
            await session.start(task.start_url)
            for step in [None, *(solve(shop, task.goal) or [])[:-1]]:
                if step is not None:
                    taken = [step.action_id, dict(step.params)]
                    await session.do(session.page.evaluate("(step) => minirl.dispatch(...step)", taken))
                pages.append(await page_of(await agent.observe(session), session, shop))
        meter.advance()
        return pages

    with SiteServer(shops) as server, progress("looking at shops", len(shops)) as meter:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            return await asyncio.gather(*map(visit, shops))


def task_naming(named: Iterable[str], rng: np.random.Generator) -> tuple[list[str], Task]:
    """Return the words in any order, each once, and a task that asks for them as orders do."""
    wanted = [str(word) for word in rng.permutation(sorted(set(named)))]
    joints = rng.choice(JOINTS, len(wanted))
    told = "".join(f"{joint}{word}" for joint, word in zip(joints, wanted, strict=True))
    return wanted, Task("", f"Click{told}.", "")


def read(
    model: Any,
    preprocessor: Preprocessor,
    examples: Sequence[Example],
    grids: Sequence[Grid] = (),
    **seen: Any,
) -> tuple[Tensor, Tensor, Any]:
    """Return what is said (N, V) where the examples are learned, the N ids that should be, and what the
    model returned."""
    merge = preprocessor.images.merge if preprocessor.images else 1
    arrays = [np.array(one.ids) for one in examples]
    rows = [Encoded(ids, positions(ids, grids, preprocessor.pad, merge), []) for ids in arrays]
    inputs = padded_inputs(rows, preprocessor, torch.device("cpu"))
    out = model.model(**inputs, **seen, use_cache=False)
    where = [(b, i) for b, one in enumerate(examples) for i in np.flatnonzero(one.is_learned)]
    b_N, i_N = torch.tensor(where).T
    wanted_N = torch.tensor([examples[b].ids[i] for b, i in where])
    return out.last_hidden_state[b_N, i_N - 1] @ model.get_input_embeddings().weight.T, wanted_N, out


def batches(examples: Iterator[Example], size: int, order: np.random.Generator) -> Iterator[list[Example]]:
    """Yield examples of about equal lengths together, so that little is padding."""
    while True:
        some = sorted(itertools.islice(examples, 4 * size), key=lambda one: len(one.ids))
        for i in order.permutation(4):
            yield some[i * size : (i + 1) * size]


@torch.no_grad()
def muon(matrix: Tensor, momentum: Tensor, rate: float) -> None:
    """Move a matrix by its gradient's momentum made orthogonal, as far as AdamW would. PyTorch's own Muon
    computes in bfloat16, which is slow on most CPUs."""
    if matrix.grad is None:
        return
    momentum.lerp_(matrix.grad, 0.05)
    step = matrix.grad.lerp(momentum, 0.95)
    x = step.T if len(step) > step.shape[1] else step
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (2.0315 * a @ a - 4.7750 * a) @ x
    x = x.T if len(step) > step.shape[1] else x
    matrix.mul_(1 - 0.01 * rate).add_(x, alpha=-0.2 * rate * max(step.shape) ** 0.5)


class Teacher(Protocol):
    """What makes the examples of one kind of base model, and reads its answers."""

    parts: nn.ModuleDict  # "model", and what is thrown away afterwards
    stages: Mapping[str, int]  # their examples
    shops: list[Any]

    def examples(self, stage: str, shop: Any, rng: np.random.Generator) -> Iterator[Example]: ...
    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor: ...
    def measure(self, stage: str) -> list[bool]: ...
    def results(self) -> dict[str, list[bool]]: ...

    def draw(self, stage: str, rng: np.random.Generator) -> Iterator[Example]:
        while True:
            yield from self.examples(stage, self.shops[rng.integers(len(self.shops))], rng)


def teach(teacher: Teacher, seed: int, ranks: Ranks) -> list[dict[str, Any]]:
    """Teach stage by stage; return the curve: every so many updates the loss, and the share of hits."""
    rng, order = np.random.default_rng([seed, ranks.rank]), np.random.default_rng(seed)  # equal on all ranks
    named = [*teacher.parts.named_parameters()]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    momenta = [torch.zeros_like(p) for p in matrices]
    adamw = torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    total, update, curve, started = sum(teacher.stages.values()) // BATCH, 0, [], time.monotonic()
    for stage, examples in teacher.stages.items():
        source, updates = batches(teacher.draw(stage, rng), BATCH // ranks.world, order), examples // BATCH
        with progress(f"teaching: {stage}", updates) as meter:
            for k in range(1, updates + 1):
                update += 1
                rate = RATE * min(1.0, update / WARMUP, (total - update + 1) / (DECAY * total))
                loss = teacher.loss(stage, next(source))
                loss.backward()
                grads = [p.grad for _, p in named if p.grad is not None]
                mean = nn.utils.parameters_to_vector(grads) / ranks.world
                dist.all_reduce(mean)
                nn.utils.vector_to_parameters(mean, grads)
                nn.utils.clip_grad_norm_([p for _, p in named], 1.0)
                adamw.param_groups[0]["lr"] = rate
                adamw.step()
                for matrix, momentum in zip(matrices, momenta, strict=True):
                    muon(matrix, momentum, rate)
                teacher.parts.zero_grad()
                if k % EVERY == 0 or k == updates:
                    minutes = (time.monotonic() - started) / 60
                    hits = float(np.mean(ranks.all_gather(teacher.measure(stage))))
                    point = {"stage": stage, "pictures": update * BATCH, "minutes": round(minutes, 2)}
                    curve.append(point | {"loss": round(loss.item(), 3), "accuracy": round(hits, 4)})
                    meter.advance(0, note=f"loss {loss.item():.2f}, accuracy {hits:.1%}")
                meter.advance()
    return curve


def make(
    config: Config,
    page_of: PageOf,
    texts: Callable[[list[Any]], Iterable[str]],
    teacher_of: Callable[..., Teacher],
    out: Path,
    curve: Path,
    seed: int,
) -> None:
    """Make a base model: look at shops, build a tokenizer and random weights from `texts`, teach, measure on
    shops that were not among them, save it in bfloat16 to `out` and what was found to `curve`."""
    started = time.monotonic()
    with open_ranks() as ranks:
        torch.set_num_threads(1)  # more were no faster
        CONSOLE.quiet = not ranks.is_main
        own, unseen = (shops_named(some)[ranks.rank :: ranks.world] for some in (TRAIN, TEST))
        seen = asyncio.run(look(own + unseen, config, page_of))
        if ranks.is_main:
            build(out, texts(seen), seed, kind=config.agent.kind)
        ranks.barrier()
        config = replace(config, model=replace(config.model, path=str(out)))
        model = open_model(config)
        torch.manual_seed(seed)
        preprocessor, shops = load_preprocessor(config.model), (seen[: len(own)], seen[len(own) :])
        teacher = teacher_of(config, preprocessor, model, *shops)
        points = teach(teacher, seed, ranks)
        model.bfloat16().float()  # as it is saved
        found = {name: np.mean(ranks.all_gather(hits)).item() for name, hits in teacher.results().items()}
        pages = sum(ranks.all_gather([sum(map(len, shops[1]))]))
        if ranks.is_main:
            save_model(model.bfloat16(), out)
            minutes = round((time.monotonic() - started) / 60, 1)
            facts = {**found, "pages": pages, "seed": seed, "minutes": minutes, "curve": points}
            write_atomic(curve, json.dumps(facts, indent=1).encode())
    told = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in found.items())
    say(f"right, in shops never seen: {told}")
