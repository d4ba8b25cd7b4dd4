"""The tiny recipe's base model: a Qwen3-VL of 1.05M parameters that finds a word on a page it never saw.

    torchrun --nproc-per-node 2 -m examples.base_models.seeing

It writes runs/seeing; the shipped one came with `--out minirl/tiny/base --curve docs/seeing.json`.

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

from examples.base_models.checkpoints import DONE, FOLDER, shop_words, vocabulary
from examples.base_models.pretraining import (
    MAX_WORDS,
    Example,
    Recipe,
    Teacher,
    make_base_model,
    name_words,
    read,
)
from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.agents.openwebrl_actions import SCALE
from minirl.browser.session import Session
from minirl.config import Config
from minirl.context import VISION_CLOSE, VISION_OPEN
from minirl.episode import conversation
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.types import Observation, Task
from minirl.worlds.hand import GRID, middle
from minirl.worlds.interpreter import World
from minirl.worlds.scripted_agent import with_points

LOOK = FOLDER.joinpath("seeing.js").read_text(encoding="utf-8")
ROWS = 6  # of a picture's image tokens
COLUMNS = 8
TOKEN = 32  # pixels of an image token, which is 2 x 2 patches
PATCH = TOKEN // 2
GRID_OF_PATCHES = (1, 2 * ROWS, 2 * COLUMNS)
ALPHABET = string.ascii_lowercase + string.digits
LETTER_WEIGHT = torch.tensor(10.0)  # of a patch that shows a letter, for most show none
LETTERS_LOSS_WEIGHT = 10.0
MIN_LETTER_SHARE = 0.25  # of a letter's box, in a patch that shows it
MIN_WORD_SHARE = 1 / 3  # of a word's letters, in an image token that names it
MISSING = -100  # no label


@dataclass
class PicturePage:
    """A page as the model sees it, and the truth about it. Boxes are left, top, right and bottom in shares of
    the picture."""

    text: str  # of the observation
    picture: np.ndarray  # (192, 256, 3) bytes, as the processor scales a screenshot
    words: list[str]  # of its controls
    boxes: np.ndarray  # (words, 4), of its controls
    letters: np.ndarray  # (letters, 2): which word's, and which of the alphabet
    letter_boxes: np.ndarray  # (letters, 4)


Shops = list[list[PicturePage]]  # every page of each shop that was looked at


async def make_page(observation: Observation, session: Session, shop: World) -> PicturePage:
    controls: list[dict[str, Any]] = await session.do(session.page.evaluate(LOOK))
    picture = Image.open(io.BytesIO(observation.image or b"")).convert("RGB")
    picture = picture.resize((COLUMNS * TOKEN, ROWS * TOKEN), Image.Resampling.BICUBIC)
    letters = []
    letter_boxes = []
    for k, control in enumerate(controls):
        for letter, *box in control["letters"]:
            letters.append((k, ALPHABET.index(letter)))
            letter_boxes.append(box)
    return PicturePage(
        observation.text,
        np.asarray(picture),
        [control["word"] for control in controls],
        np.array([control["box"] for control in controls]).reshape(-1, 4),
        np.array(letters).reshape(-1, 2),
        np.array(letter_boxes).reshape(-1, 4),
    )


def moved(page: PicturePage, rng: np.random.Generator) -> PicturePage:
    """Return the page, every other time moved by up to a token, what leaves it on one side coming in on the
    other. So no word is learned by where it happens to stand."""
    dx, dy = rng.integers(-2, 3, 2) * PATCH * rng.integers(2)
    picture = np.roll(page.picture, (dy, dx), (0, 1))
    move = np.tile([dx / (COLUMNS * TOKEN), dy / (ROWS * TOKEN)], 2)
    boxes = wrapped(page.boxes + move)
    letter_boxes = wrapped(page.letter_boxes + move)
    return replace(page, picture=picture, boxes=boxes, letter_boxes=letter_boxes)


def wrapped(boxes: np.ndarray) -> np.ndarray:
    """Return boxes with their centres in the picture."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    return boxes - np.tile(np.floor(centres), 2)


def feedback_of(word: str, x: int, y: int) -> str:
    """Return the feedback on a click on a control."""
    return f'Succeed: `click` on <button> type=button "{word}" at ({x}, {y}) executed.'


def whole(page: PicturePage) -> np.ndarray:
    """Return the numbers of the controls that lie in the picture, which `moved` did not tear apart."""
    is_inside = (page.boxes >= 0) & (page.boxes <= 1)
    return np.flatnonzero(is_inside.all(1))


def patches(picture: np.ndarray) -> np.ndarray:
    """Return a picture's patches (P, 3 * 2 * 16 * 16) from -1 to 1, token by token, as the processor does."""
    parts = picture.reshape(ROWS, 2, PATCH, COLUMNS, 2, PATCH, 3)
    parts = parts.transpose(0, 3, 1, 4, 6, 2, 5)
    parts = parts.reshape(-1, 3, 1, PATCH**2)
    frames = np.repeat(parts, 2, axis=2)  # two that are equal, for a still picture
    return (frames.reshape(len(frames), -1) / 127.5 - 1).astype(np.float32)


class Seeing(Teacher):
    """The visual agent's teacher."""

    stages = {"vision": 41_600, "words": 25_600, "agent": 17_600}  # pictures

    def __init__(self, config: Config, preprocessor: Preprocessor, model: Any, shops: Shops, unseen: Shops):
        self.config = config
        self.preprocessor = preprocessor
        self.model = model
        self.shops = shops
        self.test = [page for shop in unseen for page in shop]
        self.agent = OpenWebRLAgent(config.agent)
        tokenizer = preprocessor.tokenizer
        self.end = tokenizer.eos_token
        self.no_word = tokenizer.get_vocab()["<|video_pad|>"]  # label of an image token without a word
        self.word_ids = {word: self.ids(f" {word}")[0] for word in shop_words()}
        self.numbers = [self.ids(f" {n}")[0] for n in range(0, SCALE + 1, GRID)]
        blank = io.BytesIO()
        Image.new("RGB", (config.browser.width, config.browser.height)).save(blank, "PNG")
        self.blank = blank.getvalue()  # stands for every screenshot while ids are made
        self.pads = [preprocessor.pad] * preprocessor.image_tokens(self.blank)
        width = model.config.text_config.hidden_size
        letters = nn.Linear(model.config.vision_config.hidden_size, len(ALPHABET))
        places = nn.Linear(width, 2 * width, bias=False)
        self.parts = nn.ModuleDict({"model": model, "letters": letters, "places": places})

    def ids(self, text: str) -> list[int]:
        return self.preprocessor.tokenizer(text, add_special_tokens=False)["input_ids"]

    def examples(
        self, stage: str, shop: Sequence[PicturePage], rng: np.random.Generator
    ) -> Iterator[Example]:
        """Yield a stage's examples of a shop: of one of its pages, or the turns of a conversation over one to
        three that follow each other. The task names words that are there, and some that are not."""
        first = int(rng.integers(len(shop)))
        count = int(rng.integers(1, 4)) if stage == "agent" else 1
        pages = [moved(page, rng) for page in shop[first : first + count]]
        words, task = self._task_over(pages, count, rng)
        context = conversation(self.agent, self.config.agent, self.preprocessor, task)
        feedback: tuple[str, ...] = ()
        for page in pages:
            box_of = {page.words[i]: page.boxes[i] for i in whole(page)}
            points: dict[str, list[int] | None] = {}  # None: it is not there
            for word in words:
                points[word] = middle(box_of[word].tolist(), 1, 1) if word in box_of else None
            clicked = {word: point for word, point in points.items() if point}
            calls = [{"name": "click", "arguments": {"point_2d": point}} for point in clicked.values()]
            if page is pages[-1]:
                calls.append(DONE)
            text = with_points(points, calls)
            response = self.ids(text + self.end)
            if stage == "agent":
                prompt = list(context.observe(Observation(page.text, image=self.blank), feedback).ids)
                context.respond(tuple(response), text)
                feedback = tuple(feedback_of(word, *point) for word, point in clicked.items())
            else:
                opening = self.ids(task.instruction + VISION_OPEN)
                prompt = [*opening, *self.pads, *self.ids(VISION_CLOSE)]
            is_learned = [False] * len(prompt) + [True] * len(response)
            boxes = np.array([box_of[word] for word in words if word in box_of]).reshape(-1, 4)
            yield Example([*prompt, *response], is_learned, page, boxes)

    def _task_over(
        self, pages: Sequence[PicturePage], count: int, rng: np.random.Generator
    ) -> tuple[list[str], Task]:
        """Return a task that names words of every page, and some that are not on the first."""
        max_words = 5 - count  # of a page
        words = []
        for page in pages:
            order = rng.permutation(whole(page))
            words += [page.words[i] for i in order[: rng.integers(max_words) + 1]]
        n_absent = max(0, int(rng.integers(1, MAX_WORDS + 1)) - len(words))
        others = rng.choice(list(self.word_ids), n_absent)
        words += [word for word in others if word not in pages[0].words]
        return name_words(words, rng)

    def labels(self, page: PicturePage) -> tuple[np.ndarray, ...]:
        """Return which letters each patch shows a part of (P, A), and for each image token the id of the word
        of which it shows a third or more, and its control's x and y, as numbers of tokens."""
        # Where the patches lie, in the processor's order: token by token, four patches each.
        token_P, part_P = np.divmod(np.arange(4 * ROWS * COLUMNS), 4)
        row_P = token_P // COLUMNS * 2 + part_P // 2
        column_P = token_P % COLUMNS * 2 + part_P % 2
        low = np.stack([column_P / (2 * COLUMNS), row_P / (2 * ROWS)], 1)[:, None]
        high = low + [1 / (2 * COLUMNS), 1 / (2 * ROWS)]
        # Which letters lie in which patches, by the area that they share.
        boxes = page.letter_boxes
        overlap = np.minimum(high, boxes[:, 2:]) - np.maximum(low, boxes[:, :2])
        shared = np.clip(overlap, 0, None).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        patch, letter = np.nonzero(shared >= MIN_LETTER_SHARE * area)
        shown_PA = np.zeros((len(token_P), len(ALPHABET)), np.float32)
        shown_PA[patch, page.letters[letter, 1]] = 1
        # Of each word, the share of its letters that a token shows.
        word_of_letter = page.letters[:, 0]
        shown_TK = np.zeros((ROWS * COLUMNS, len(word_of_letter)), bool)
        shown_TK[token_P[patch], letter] = True
        shares = [shown_TK[:, word_of_letter == k].mean(1) for k in range(len(page.words))]
        share_TW = np.stack(shares, 1)
        word_T = share_TW.argmax(1)
        share_T = share_TW.max(1)
        is_named_T = (share_T >= MIN_WORD_SHARE) & np.isin(word_T, whole(page))
        id_of_word = np.array([self.word_ids[word] for word in page.words])
        ids_T = np.where(is_named_T, id_of_word[word_T], MISSING)
        ids_T = np.where(share_T > 0, ids_T, self.no_word)
        centres = np.array([middle(box, 1, 1) for box in page.boxes.tolist()]) // GRID
        x_T, y_T = (np.where(is_named_T, axis[word_T], MISSING) for axis in centres.T)
        return shown_PA, ids_T, x_T, y_T

    def see(self, examples: Sequence[Example]) -> Any:
        """Return what the vision tower makes of the examples' pictures."""
        pixels = torch.from_numpy(np.concatenate([patches(example.page.picture) for example in examples]))
        grids = torch.tensor([GRID_OF_PATCHES] * len(examples))
        return self.model.model.get_image_features(pixels, grids, return_dict=True)

    def read(self, examples: Sequence[Example], seen: Any) -> tuple[Tensor, Tensor]:
        """Return logits (N, V) of the tokens that are learned, and their ids (N)."""
        outputs = {"image": seen}
        logits_NV, targets_N, _ = read(
            self.model, self.preprocessor, examples, [GRID_OF_PATCHES], mm_encoder_outputs=outputs
        )
        return logits_NV, targets_N

    def loss(self, stage: str, examples: Sequence[Example]) -> Tensor:
        """Return the loss of what is seen and, but for the first stage, of what is said."""
        seen = self.see(examples)
        loss = self._loss_of_seeing(examples, seen)
        if stage == "vision":
            return loss
        return loss + F.cross_entropy(*self.read(examples, seen))

    def _loss_of_seeing(self, examples: Sequence[Example], seen: Any) -> Tensor:
        """Return the loss of patches that know their letters, image tokens that know their word and place."""
        embed_VH = self.model.get_input_embeddings().weight
        labels = zip(*(self.labels(example.page) for example in examples), strict=True)
        shown_BPA, word_BT, *axes_BT = (torch.from_numpy(np.stack(label)) for label in labels)

        patch_PH = seen.last_hidden_state
        letters_PA = self.parts["letters"](F.layer_norm(patch_PH, patch_PH.shape[-1:]))
        targets_PA = shown_BPA.flatten(0, 1)
        loss = LETTERS_LOSS_WEIGHT * F.binary_cross_entropy_with_logits(
            letters_PA, targets_PA, pos_weight=LETTER_WEIGHT
        )
        image_BTH = torch.stack(seen.pooler_output)
        logits_BTV = image_BTH @ embed_VH.T
        loss = loss + F.cross_entropy(logits_BTV.flatten(0, 1), word_BT.flatten())
        places_BTH = self.parts["places"](image_BTH).chunk(2, -1)  # of x, and of y
        for place_BTH, axis_BT in zip(places_BTH, axes_BT, strict=True):
            logits_BTN = place_BTH @ embed_VH[self.numbers].T
            loss = loss + 0.5 * F.cross_entropy(logits_BTN.flatten(0, 1), axis_BT.flatten())
        return loss

    @torch.no_grad()
    def measure(self, stage: str, other: bool = False) -> list[bool]:
        """Return which of the points that are asked for, on pages never seen, lie in their controls: the
        likeliest x and, given the right x, y; `other`: with another page's picture. In the first stage, which
        of the image tokens that show a word name it."""
        rng = np.random.default_rng(0)
        examples = [next(self.examples(stage, [page], rng)) for page in self.test]
        if other:
            half = len(examples) // 2
            pages = [example.page for example in examples]
            examples = [one._replace(page=pages[k - half]) for k, one in enumerate(examples)]
        hits: list[bool] = []
        for example in examples:
            if len(example.boxes):
                named = self._named_words if stage == "vision" else self._hit_points
                hits += named(example)
        return hits

    def _named_words(self, example: Example) -> list[bool]:
        embed_VH = self.model.get_input_embeddings().weight
        image_TH = self.see([example]).pooler_output[0]
        likeliest_T = (image_TH @ embed_VH.T).argmax(-1).numpy()
        ids_T = self.labels(example.page)[1]
        is_word_T = (ids_T != MISSING) & (ids_T != self.no_word)
        return (likeliest_T == ids_T)[is_word_T].tolist()

    def _hit_points(self, example: Example) -> list[bool]:
        logits_NV, targets_N = self.read([example], self.see([example]))
        # The thought's numbers come first; calls only copy them.
        places = [n for n, id in enumerate(targets_N.tolist()) if id in self.numbers]
        places = places[: 2 * len(example.boxes)]
        likeliest = logits_NV[places][:, self.numbers].argmax(-1)
        points = likeliest.view(-1, 2).numpy() * GRID / SCALE
        is_inside = (example.boxes[:, :2] < points) & (points < example.boxes[:, 2:])
        return np.all(is_inside, axis=1).tolist()

    def results(self) -> dict[str, list[bool]]:
        return {"unseen": self.measure("agent"), "other_screenshot": self.measure("agent", other=True)}


def main(
    out: Path = Path("runs/seeing"), curve: Path = Path("runs/seeing/curve.json"), seed: int = 0
) -> None:
    """Make the base model. The shipped one lies in minirl/tiny/base, its curve in docs/seeing.json."""
    recipe = Recipe(tiny(), make_page, lambda _: vocabulary(), Seeing)
    make_base_model(recipe, out, curve, seed)


if __name__ == "__main__":
    tyro.cli(main)
