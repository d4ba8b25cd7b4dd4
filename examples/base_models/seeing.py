"""The tiny recipe's base model: a Qwen3-VL of 1.05M parameters that finds a word on a page it never saw.

    torchrun --nproc-per-node 2 -m examples.base_models.seeing

It writes minirl/tiny/base/ and docs/seeing.json.

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

import io
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from examples.base_models.checkpoints import DONE, FOLDER, vocabulary, words
from examples.base_models.pretraining import MOST, Example, Teacher, make, read, task_naming
from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.agents.openwebrl_actions import SCALE
from minirl.browser.session import Session
from minirl.config import Config
from minirl.context import VISION_CLOSE, VISION_OPEN
from minirl.episode import conversation
from minirl.model import VIDEO_PAD, Preprocessor
from minirl.recipes import tiny
from minirl.tiny.checkpoints import BASE
from minirl.types import Observation
from minirl.worlds.hand import GRID, middle
from minirl.worlds.interpreter import World
from minirl.worlds.scripted_agent import with_points

LOOK = FOLDER.joinpath("seeing.js").read_text(encoding="utf-8")
ROWS, COLUMNS, TOKEN = 6, 8, 32  # image tokens of a picture, and the pixels of one, which is 2 x 2 patches
PATCHES = (1, 2 * ROWS, 2 * COLUMNS)
ALPHABET = string.ascii_lowercase + string.digits
OFTEN = torch.tensor(10.0)  # a letter's weight, for most patches show none
LETTERS = 10.0  # weight of their loss
MISSING = -100  # no label
Shops = list[list["Page"]]  # every page of each shop that was looked at


@dataclass
class Page:
    text: str  # of the observation
    picture: np.ndarray  # (192, 256, 3) bytes, as the processor scales a screenshot
    words: list[str]  # of its controls
    boxes: np.ndarray  # (words, 4): left, top, right and bottom of each control, in shares of the picture
    letters: np.ndarray  # (letters, 2): which word's, and which of the alphabet
    letter_boxes: np.ndarray  # (letters, 4)


async def make_page(seen: Observation, session: Session, shop: World) -> Page:
    controls: list[dict[str, Any]] = await session.do(session.page.evaluate(LOOK))
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


class Seeing(Teacher):
    """The visual agent's teacher."""

    stages = {"vision": 41_600, "words": 25_600, "agent": 17_600}  # pictures

    def __init__(self, config: Config, preprocessor: Preprocessor, model: Any, shops: Shops, unseen: Shops):
        self.config, self.preprocessor, self.model, self.shops = config, preprocessor, model, shops
        self.agent, self.test = OpenWebRLAgent(config.agent), [page for shop in unseen for page in shop]
        tokenizer = preprocessor.tokenizer
        self.end, self.none = tokenizer.eos_token, tokenizer.get_vocab()[VIDEO_PAD]
        self.word_ids = {word: self.ids(f" {word}")[0] for word in words()}
        self.numbers = [self.ids(f" {n}")[0] for n in range(0, SCALE + 1, GRID)]
        blank = io.BytesIO()
        Image.new("RGB", (config.browser.width, config.browser.height)).save(blank, "PNG")
        self.blank = blank.getvalue()  # stands for every screenshot while ids are made
        self.pads = [preprocessor.pad] * preprocessor.image_tokens(self.blank)
        width, sight = (part.hidden_size for part in (model.config.text_config, model.config.vision_config))
        letters, places = nn.Linear(sight, len(ALPHABET)), nn.Linear(width, 2 * width, bias=False)
        self.parts = nn.ModuleDict({"model": model, "letters": letters, "places": places})

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
        wanted, task = task_naming(named, rng)
        context, feedback = conversation(self.agent, self.config.agent, self.preprocessor, task), ()
        for page in pages:
            there = {page.words[i]: page.boxes[i] for i in whole(page)}
            boxes = [there[word] for word in wanted if word in there]
            points = {word: middle(there[word].tolist(), 1, 1) if word in there else None for word in wanted}
            clicked = {word: point for word, point in points.items() if point}
            calls = [{"name": "click", "arguments": {"point_2d": point}} for point in clicked.values()]
            text = with_points(points, [*calls, DONE] if page is pages[-1] else calls)
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

    def see(self, examples: Sequence[Example]) -> Any:
        pixels = torch.from_numpy(np.concatenate([patches(one.page.picture) for one in examples]))
        grids = torch.tensor([PATCHES] * len(examples))
        return self.model.model.get_image_features(pixels, grids, return_dict=True)

    def read(self, examples: Sequence[Example], seen: Any) -> tuple[Tensor, Tensor]:
        shown = {"image": seen}
        return read(self.model, self.preprocessor, examples, [PATCHES], mm_encoder_outputs=shown)[:2]

    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor:
        """Return the loss of what is seen and, but for the first stage, of what is said."""
        seen, embed_VH = self.see(examples), self.model.get_input_embeddings().weight
        image_BTH, patch_PH = torch.stack(seen.pooler_output), seen.last_hidden_state
        labels = zip(*(self.labels(one.page) for one in examples), strict=True)
        shown_BPA, word_BT, *axes_BT = (torch.from_numpy(np.stack(one)) for one in labels)
        shown_PA = self.parts["letters"](F.layer_norm(patch_PH, patch_PH.shape[-1:]))
        told_PA = shown_BPA.flatten(0, 1)
        loss = LETTERS * F.binary_cross_entropy_with_logits(shown_PA, told_PA, pos_weight=OFTEN)
        loss = loss + F.cross_entropy((image_BTH @ embed_VH.T).flatten(0, 1), word_BT.flatten())
        for place_BTH, axis_BT in zip(self.parts["places"](image_BTH).chunk(2, -1), axes_BT, strict=True):
            logits_BTN = place_BTH @ embed_VH[self.numbers].T
            loss = loss + 0.5 * F.cross_entropy(logits_BTN.flatten(0, 1), axis_BT.flatten())
        return loss if stage == "vision" else loss + F.cross_entropy(*self.read(examples, seen))

    @torch.no_grad()
    def measure(self, stage: str, other: bool = False) -> list[bool]:
        """Return which of the points that are asked for, on pages never seen, lie in their controls: the
        likeliest x and, given the right x, y; `other`: with another page's picture. In the first stage, which
        of the image tokens that show a word name it."""
        rng, hits = np.random.default_rng(0), list[bool]()
        examples = [next(self.examples(stage, [page], rng)) for page in self.test]
        if other:
            half = len(examples) // 2
            examples = [one._replace(page=examples[k - half].page) for k, one in enumerate(examples)]
        for one in (one for one in examples if len(one.boxes)):
            seen = self.see([one])
            if stage == "vision":
                embed_VH = self.model.get_input_embeddings().weight
                said = (seen.pooler_output[0] @ embed_VH.T).argmax(-1).numpy()
                wanted = self.labels(one.page)[1]
                hits += (said == wanted)[(wanted != MISSING) & (wanted != self.none)].tolist()
                continue
            said_NV, wanted_N = self.read([one], seen)
            # of the thought, from which calls copy
            asked = [n for n, id in enumerate(wanted_N.tolist()) if id in self.numbers][: 2 * len(one.boxes)]
            best = said_NV[asked][:, self.numbers].argmax(-1).view(-1, 2).numpy() * GRID / SCALE
            hits += np.all((one.boxes[:, :2] < best) & (best < one.boxes[:, 2:]), axis=1).tolist()
        return hits

    def results(self) -> dict[str, list[bool]]:
        return {"unseen": self.measure("agent"), "other_screenshot": self.measure("agent", other=True)}


def main(out: Path = BASE, curve: Path = Path("docs/seeing.json"), seed: int = 0) -> None:
    """Make the base model."""
    make(tiny(), make_page, lambda _: vocabulary(), Seeing, out, curve, seed)


if __name__ == "__main__":
    tyro.cli(main)
