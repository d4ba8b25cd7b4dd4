"""The tiny recipe's base model: a Qwen3-VL of 1.05M parameters that finds a word on a page it never saw.

    torchrun --nproc-per-node 2 -m minirl.tiny.seeing        writes minirl/tiny/base/ and docs/seeing.json

It is to the tiny recipe what Qwen3-VL is to OpenWebRL's: a model that can look, has heard of clicks, and
knows nothing of any task. Pages of generated shops, in Chromium, teach it, for there the truth is known:

    vision   every patch that shows letters says which, every image token which word, and where its control is
    words    "Click lamps, dune." and a picture, then "choose lamps 140 700 dune no", and a call
    agent    the agent's own conversations over several pages for such tasks

Without the first, which stays in the loss of the others, nothing was learned. What a shop's order wants,
when to go on and when an order is done is left to demonstrations and reinforcement. Suffixes: B pictures,
P patches and T image tokens of each, A letters of the alphabet, N learned tokens, V vocabulary, H width,
L row length.
"""

import asyncio
import io
import itertools
import json
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import tyro
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.agents.openwebrl_actions import SCALE
from minirl.browser.pool import BrowserPool
from minirl.config import Config, ModelConfig
from minirl.console import CONSOLE, progress, say
from minirl.context import VISION_CLOSE, VISION_OPEN
from minirl.distributed import Ranks, open_ranks
from minirl.episode import conversation
from minirl.experiment import open_model
from minirl.model import (
    VIDEO_PAD,
    Encoded,
    Preprocessor,
    load_preprocessor,
    padded_inputs,
    positions,
    save_model,
)
from minirl.recipes import tiny
from minirl.run_folder import write_atomic
from minirl.tiny.checkpoints import BASE, DONE, FOLDER, build, vocabulary, words
from minirl.types import Observation, Task
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.replay import GRID, middle
from minirl.worlds.scripted_agent import spoken
from minirl.worlds.search import solve
from minirl.worlds.shop import make_tasks, shops_named

LOOK = FOLDER.joinpath("seeing.js").read_text(encoding="utf-8")
TRAIN, TEST = "shops:0-599", "shops:50001-50060"
STAGES = {"vision": 41_600, "words": 25_600, "agent": 17_600}  # pictures
BATCH, RATE, WARMUP, DECAY = 32, 4e-3, 50, 0.25
ROWS, COLUMNS, TOKEN = 6, 8, 32  # image tokens of a picture, and the pixels of one, which is 2 x 2 patches
PATCHES = (1, 2 * ROWS, 2 * COLUMNS)
EVERY = 200  # updates between two measurements
ALPHABET = string.ascii_lowercase + string.digits
OFTEN = torch.tensor(10.0)  # a letter's weight, for most patches show none
LETTERS = 10.0  # weight of their loss
MOST = 8  # words that a task names, one to as many equally often: an order of five things takes seven
JOINTS = (" ", ", ", " in ", ", size ", ", quantity ")  # of the words that a task names
MISSING = -100  # no label


@dataclass
class Page:
    text: str  # of the observation
    picture: np.ndarray  # (192, 256, 3) bytes, as the processor scales a screenshot
    words: list[str]  # of its controls
    boxes: np.ndarray  # (words, 4): left, top, right and bottom of each control, in shares of the picture
    letters: np.ndarray  # (letters, 2): which word's, and which of the alphabet
    letter_boxes: np.ndarray  # (letters, 4)


class Example(NamedTuple):
    ids: list[int]
    is_learned: list[bool]
    page: Page  # as it was moved
    boxes: np.ndarray  # of the controls that the first learned points are in


async def look(shops: Sequence[World], config: Config) -> list[list[Page]]:
    """Return what every shop shows on the way through its first order."""
    agent, places = OpenWebRLAgent(config.agent), asyncio.Semaphore(8)

    async def visit(shop: World) -> list[Page]:
        pages, task = [], make_tasks(shop, 1)[0]
        async with places, pool.session() as session:
            await session.start(task.start_url)
            for step in [None, *(solve(shop, task.goal) or [])[:-1]]:
                if step is not None:
                    taken = [step.action_id, dict(step.params)]
                    await session.do(session.page.evaluate("(step) => minirl.dispatch(...step)", taken))
                seen = await agent.observe(session)
                pages.append(make_page(seen, await session.do(session.page.evaluate(LOOK))))
        meter.advance()
        return pages

    with SiteServer(shops) as server, progress("looking at shops", len(shops)) as meter:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            return await asyncio.gather(*map(visit, shops))


def make_page(seen: Observation, controls: Sequence[dict[str, Any]]) -> Page:
    picture = Image.open(io.BytesIO(seen.image or b"")).convert("RGB")
    picture = picture.resize((COLUMNS * TOKEN, ROWS * TOKEN), Image.Resampling.BICUBIC)
    letters = [(k, *one) for k, control in enumerate(controls) for one in control["letters"]]
    return Page(
        seen.text,
        np.asarray(picture),
        [control["word"] for control in controls],
        np.array([control["box"] for control in controls]).reshape(-1, 4),
        np.array([(k, ALPHABET.index(letter)) for k, letter, *_ in letters]).reshape(-1, 2),
        np.array([box for _, _, *box in letters]).reshape(-1, 4),
    )


def moved(page: Page, rng: np.random.Generator) -> Page:
    """Return the page, every other time moved by up to a token, what leaves it on one side coming in on the
    other. So no word is learned by where it happens to stand."""
    dx, dy = rng.integers(-2, 3, 2) * (TOKEN // 2) * rng.integers(2)
    by = np.tile([dx / (COLUMNS * TOKEN), dy / (ROWS * TOKEN)], 2)
    boxes, letters = (
        out - np.tile(np.floor((out[:, :2] + out[:, 2:]) / 2), 2)
        for out in (page.boxes + by, page.letter_boxes + by)
    )
    return replace(page, picture=np.roll(page.picture, (dy, dx), (0, 1)), boxes=boxes, letter_boxes=letters)


def whole(page: Page) -> np.ndarray:
    """Return the controls that lie in the picture, which `moved` did not tear apart."""
    return np.flatnonzero(((page.boxes >= 0) & (page.boxes <= 1)).all(1))


def patches(picture: np.ndarray) -> np.ndarray:
    parts = picture.reshape(ROWS, 2, TOKEN // 2, COLUMNS, 2, TOKEN // 2, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    frames = np.repeat(parts.reshape(-1, 3, 1, (TOKEN // 2) ** 2), 2, axis=2)  # a still picture's are equal
    return (frames.reshape(len(frames), -1) / 127.5 - 1).astype(np.float32)


class Teacher:
    def __init__(self, preprocessor: Preprocessor, config: Config):
        self.preprocessor, self.config, self.agent = preprocessor, config, OpenWebRLAgent(config.agent)
        tokenizer = preprocessor.tokenizer
        self.end, self.none = tokenizer.eos_token, tokenizer.get_vocab()[VIDEO_PAD]
        self.word_ids = {word: self.ids(f" {word}")[0] for word in words()}
        self.numbers = [self.ids(f" {n}")[0] for n in range(0, SCALE + 1, GRID)]
        blank = io.BytesIO()
        Image.new("RGB", (config.browser.width, config.browser.height)).save(blank, "PNG")
        self.blank = blank.getvalue()  # stands for every screenshot while ids are made
        self.pads = [preprocessor.pad] * preprocessor.image_tokens(self.blank)

    def ids(self, text: str) -> list[int]:
        return self.preprocessor.tokenizer(text, add_special_tokens=False)["input_ids"]

    def examples(self, stage: str, shop: Sequence[Page], rng: np.random.Generator) -> Iterator[Example]:
        """Yield a stage's examples of a shop: of one of its pages, or the turns of a conversation over one to
        three that follow each other. The task names words that are there, and some that are not."""
        first, count = int(rng.integers(len(shop))), int(rng.integers(1, 4)) if stage == "agent" else 1
        pages = [moved(page, rng) for page in shop[first : first + count]]
        most = 5 - count  # of a page
        drawn = ((page, rng.permutation(whole(page))[: rng.integers(most) + 1]) for page in pages)
        named = [page.words[i] for page, some in drawn for i in some]
        absent = max(0, int(rng.integers(1, MOST + 1)) - len(named))
        named += [w for w in rng.choice(list(self.word_ids), absent) if w not in pages[0].words]
        wanted = [str(word) for word in rng.permutation(sorted(set(named)))]
        joints = rng.choice(JOINTS, len(wanted))
        named = "".join(f"{joint}{word}" for joint, word in zip(joints, wanted, strict=True))
        task = Task("", f"Click{named}.", "")
        context, feedback = conversation(self.agent, self.config.agent, self.preprocessor, task), ()
        for page in pages:
            there = {page.words[i]: page.boxes[i] for i in whole(page)}
            boxes = [there[word] for word in wanted if word in there]
            points = {word: middle(there[word].tolist(), 1, 1) if word in there else None for word in wanted}
            clicked = {word: point for word, point in points.items() if point}
            calls = [{"name": "click", "arguments": {"point_2d": point}} for point in clicked.values()]
            text = spoken(points, [*calls, DONE] if page is pages[-1] else calls)
            said = self.ids(text + self.end)
            if stage == "agent":
                ids = list(context.observe(Observation(page.text, image=self.blank), feedback).ids)
                context.respond(tuple(said), text)
                feedback = tuple(f'click: clicked button "{w}" at {at}.' for w, at in clicked.items())
            else:
                ids = [*self.ids(task.instruction + VISION_OPEN), *self.pads, *self.ids(VISION_CLOSE)]
            is_learned = [False] * len(ids) + [True] * len(said)
            yield Example([*ids, *said], is_learned, page, np.array(boxes).reshape(-1, 4))

    def labels(self, page: Page) -> tuple[np.ndarray, ...]:
        """Return which letters each patch shows a part of (P, A), and for each image token the id of the word
        of which it shows a third or more, and its control's x and y, as numbers of tokens."""
        token, part = np.divmod(np.arange(4 * ROWS * COLUMNS), 4)  # in the processor's order
        row, column = token // COLUMNS * 2 + part // 2, token % COLUMNS * 2 + part % 2
        low = np.stack([column / (2 * COLUMNS), row / (2 * ROWS)], 1)[:, None]
        high, boxes = low + [1 / (2 * COLUMNS), 1 / (2 * ROWS)], page.letter_boxes
        shared = np.clip(np.minimum(high, boxes[:, 2:]) - np.maximum(low, boxes[:, :2]), 0, None).prod(-1)
        patch, letter = np.nonzero(shared >= 0.25 * (boxes[:, 2:] - boxes[:, :2]).prod(-1))
        shown_PA = np.zeros((len(token), len(ALPHABET)), np.float32)
        shown_PA[patch, page.letters[letter, 1]] = 1
        of_word = page.letters[:, 0]
        shown_TK = np.zeros((ROWS * COLUMNS, len(of_word)), bool)
        shown_TK[token[patch], letter] = True
        # of each word the share of its letters
        share = np.stack([shown_TK[:, of_word == k].mean(1) for k in range(len(page.words))], 1)
        word, most = share.argmax(1), share.max(1)
        told = (most >= 1 / 3) & np.isin(word, whole(page))
        ids_T = np.where(told, np.array([self.word_ids[w] for w in page.words])[word], MISSING)
        centres = np.array([middle(box, 1, 1) for box in page.boxes.tolist()]) // GRID
        places = (np.where(told, axis[word], MISSING) for axis in centres.T)
        return shown_PA, np.where(most > 0, ids_T, self.none), *places

    def see(self, model: Any, examples: Sequence[Example]) -> Any:
        pixels = torch.from_numpy(np.concatenate([patches(one.page.picture) for one in examples]))
        grids = torch.tensor([PATCHES] * len(examples))
        return model.model.get_image_features(pixels, grids, return_dict=True)

    def read(self, model: Any, examples: Sequence[Example], seen: Any) -> tuple[Tensor, Tensor]:
        """Return what is said (N, V) where the examples are learned, given what was seen, and what should."""
        arrays = [np.array(one.ids) for one in examples]
        pad = self.preprocessor.pad
        rows = [Encoded(ids, positions(ids, [PATCHES], pad, 2), []) for ids in arrays]
        inputs = padded_inputs(rows, self.preprocessor, torch.device("cpu"))
        out = model.model(**inputs, mm_encoder_outputs={"image": seen}, use_cache=False)
        where = [(b, i) for b, one in enumerate(examples) for i in np.flatnonzero(one.is_learned)]
        b_N, i_N = torch.tensor(where).T
        wanted_N = torch.tensor([examples[b].ids[i] for b, i in where])
        return out.last_hidden_state[b_N, i_N - 1] @ model.get_input_embeddings().weight.T, wanted_N

    def loss(self, model: Any, heads: nn.ModuleList, stage: str, examples: Sequence[Example]) -> Tensor:
        """Return the loss of what is seen and, but for the first stage, of what is said."""
        seen, embed_VH = self.see(model, examples), model.get_input_embeddings().weight
        image_BTH, patch_PH = torch.stack(seen.pooler_output), seen.last_hidden_state
        labels = zip(*(self.labels(one.page) for one in examples), strict=True)
        shown_BPA, word_BT, *axes_BT = (torch.from_numpy(np.stack(one)) for one in labels)
        letters, places = heads
        shown_PA = letters(F.layer_norm(patch_PH, patch_PH.shape[-1:]))
        told_PA = shown_BPA.flatten(0, 1)
        loss = LETTERS * F.binary_cross_entropy_with_logits(shown_PA, told_PA, pos_weight=OFTEN)
        loss = loss + F.cross_entropy((image_BTH @ embed_VH.T).flatten(0, 1), word_BT.flatten())
        for place_BTH, axis_BT in zip(places(image_BTH).chunk(2, -1), axes_BT, strict=True):
            logits_BTN = place_BTH @ embed_VH[self.numbers].T
            loss = loss + 0.5 * F.cross_entropy(logits_BTN.flatten(0, 1), axis_BT.flatten())
        return loss if stage == "vision" else loss + F.cross_entropy(*self.read(model, examples, seen))

    @torch.no_grad()
    def measure(self, model: Any, stage: str, pages: Sequence[Page], other: bool = False) -> list[bool]:
        """Return which of the points that are asked for lie in their controls: the likeliest x and, given
        the right x, y; `other`: with another page's picture. In the first stage, which of the image tokens
        that show a word name it."""
        rng, hits = np.random.default_rng(0), list[bool]()
        examples = [next(self.examples(stage, [page], rng)) for page in pages]
        if other:
            half = len(pages) // 2
            examples = [one._replace(page=examples[k - half].page) for k, one in enumerate(examples)]
        for one in (one for one in examples if len(one.boxes)):
            seen = self.see(model, [one])
            if stage == "vision":
                said = (seen.pooler_output[0] @ model.get_input_embeddings().weight.T).argmax(-1).numpy()
                wanted = self.labels(one.page)[1]
                hits += (said == wanted)[(wanted != MISSING) & (wanted != self.none)].tolist()
                continue
            said_NV, wanted_N = self.read(model, [one], seen)
            # of the thought, from which calls copy
            asked = [n for n, id in enumerate(wanted_N.tolist()) if id in self.numbers][: 2 * len(one.boxes)]
            best = said_NV[asked][:, self.numbers].argmax(-1).view(-1, 2).numpy() * GRID / SCALE
            hits += np.all((one.boxes[:, :2] < best) & (best < one.boxes[:, 2:]), axis=1).tolist()
        return hits


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


def batches(examples: Iterator[Example], size: int, order: np.random.Generator) -> Iterator[list[Example]]:
    """Yield examples of about equal lengths together, so that little is padding."""
    while True:
        some = sorted(itertools.islice(examples, 4 * size), key=lambda one: len(one.ids))
        for i in order.permutation(4):
            yield some[i * size : (i + 1) * size]


def train(
    model: Any, teacher: Teacher, shops: list[list[Page]], test: list[Page], seed: int, ranks: Ranks
) -> list[dict]:
    """Teach the model stage by stage, every rank by its own shops; return its curve."""
    rng, order = np.random.default_rng([seed, ranks.rank]), np.random.default_rng(seed)  # equal on all ranks
    torch.manual_seed(seed)
    width = model.config.text_config.hidden_size
    sight = model.config.vision_config.hidden_size
    # what reads letters and places off the vision tower is thrown away afterwards
    heads = nn.ModuleList([nn.Linear(sight, len(ALPHABET)), nn.Linear(width, 2 * width, bias=False)])
    named = [*model.named_parameters(), *heads.named_parameters()]
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    momenta = [torch.zeros_like(p) for p in matrices]
    adamw = torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    total, update, curve, started = sum(STAGES.values()) // BATCH, 0, [], time.monotonic()
    for stage, pictures in STAGES.items():
        drawn = (shops[i] for i in iter(lambda: rng.integers(len(shops)), None))
        examples = (one for shop in drawn for one in teacher.examples(stage, shop, rng))
        source = batches(examples, BATCH // ranks.world, order)
        with progress(f"teaching to see: {stage}", pictures // BATCH) as meter:
            for k in range(1, pictures // BATCH + 1):
                update += 1
                rate = RATE * min(1.0, update / WARMUP, (total - update + 1) / (DECAY * total))
                loss = teacher.loss(model, heads, stage, next(source))
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
                model.zero_grad()
                heads.zero_grad()
                if k % EVERY == 0 or k == pictures // BATCH:
                    minutes = (time.monotonic() - started) / 60
                    hits = float(np.mean(ranks.all_gather(teacher.measure(model, stage, test))))
                    point = {"stage": stage, "pictures": update * BATCH, "minutes": round(minutes, 2)}
                    curve.append(point | {"loss": round(loss.item(), 3), "accuracy": round(hits, 4)})
                    meter.advance(0, note=f"loss {loss.item():.2f}, accuracy {hits:.1%}")
                meter.advance()
    return curve


def main(out: Path = BASE, curve: Path = Path("docs/seeing.json"), seed: int = 0) -> None:
    """Make the base model: look at shops, teach, measure on shops that were not among them, save."""
    config, started = tiny(), time.monotonic()
    with open_ranks() as ranks:
        torch.set_num_threads(1)  # more were no faster
        CONSOLE.quiet = not ranks.is_main
        own, unseen = (shops_named(some)[ranks.rank :: ranks.world] for some in (TRAIN, TEST))
        seen = asyncio.run(look(own + unseen, config))
        shops, test = seen[: len(own)], [page for shop in seen[len(own) :] for page in shop]
        if ranks.is_main:
            build(out, vocabulary(), seed)
        ranks.barrier()
        settings = ModelConfig(path=str(out), max_pixels=config.model.max_pixels)
        teacher = Teacher(load_preprocessor(settings), config)
        model = open_model(replace(config, model=settings))
        points = train(model, teacher, shops, test, seed, ranks)
        model.bfloat16().float()  # as it is saved
        right = (ranks.all_gather(teacher.measure(model, "agent", test, other)) for other in (False, True))
        hits, other = (float(np.mean(each)) for each in right)
        pages = sum(ranks.all_gather([len(test)]))
        if ranks.is_main:
            save_model(model.bfloat16(), out)
            found = {"unseen": hits, "other_screenshot": other, "pages": pages, "seed": seed}
            found |= {"minutes": round((time.monotonic() - started) / 60, 1), "curve": points}
            write_atomic(curve, json.dumps(found, indent=1).encode())
    say(f"points in the right control, on shops never seen: {hits:.1%}; with another screenshot {other:.1%}")


if __name__ == "__main__":
    tyro.cli(main)
