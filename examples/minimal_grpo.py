"""Multi-turn GRPO in one file, to be read from top to bottom in a quarter of an hour.

    python examples/minimal_grpo.py

The agent is a Qwen3-VL of a million parameters, which can read a screenshot and begins an order rightly
four times in ten. Here it learns to begin orders ("Order pearl shoes in teal.") in shops drawn anew: one
thing on the first page, then others. In each turn it sees a screenshot, and writes a thought and calls. The
reward is 1 if two or more things are chosen, all as asked for, else 0. All of it is here:

    1. sample      several episodes of each task from the policy, and keep the log-prob of every token
    2. reward      a program looks at the page
    3. advantage   how much better an episode was than the others of its task
    4. loss        the tokens of better episodes become likelier, those of worse ones less likely

The package does the same, and more (docs/walk.md). The control, `--permuted`, shuffles each group's rewards.
"""

import argparse
import json
import os
import random
import re
import shutil
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

from minirl.worlds.render import render  # a shop as one HTML page
from minirl.worlds.shop import make_shop, make_tasks

BASE = Path(__file__).parents[1] / "minirl/tiny/base"  # the model's weights
BROWSERS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome")
CHROMIUM = os.environ.get("MINIRL_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
WIDTH = 480  # of the window, in pixels
HEIGHT = 360
TURNS = 2  # of an episode
GROUP = 8  # episodes of one task, which are compared with one another
GROUPS = 8  # tasks of a step
EPOCHS = 2  # passes over a step's turns
MINIBATCH = 32  # turns of an update
MAX_TOKENS = 96  # of a response
LEARNING_RATE = 2e-4
PRACTISED = range(600, 50_000)  # shops; in 0 to 599 it has learned to see
HELDOUT = range(90_000, 100_000)  # shops that it is asked about
RATIO = (0.8, 1.28)  # beyond these a token is pushed no further

# --- the model ------------------------------------------------------------------------------------------

tokenizer = AutoTokenizer.from_pretrained(BASE)
processor = AutoImageProcessor.from_pretrained(BASE, backend="pil", max_pixels=256 * 192)
policy: Any = AutoModelForImageTextToText.from_pretrained(BASE, dtype=torch.float32)
policy.model.visual.requires_grad_(False)  # it sees well enough; what to do is to be learned
optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=LEARNING_RATE)
IMAGE_PAD = tokenizer.convert_tokens_to_ids("<|image_pad|>")  # where a piece of an image goes
END = tokenizer.eos_token_id
# what no response may hold: the marks of images and of other people's words
FORBIDDEN = [id for token, id in tokenizer.get_vocab().items() if token.startswith("<|") and id != END]


def ids_of(text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


BEGIN_RESPONSE = ids_of("<|im_end|>\n<|im_start|>assistant\n<think>\n")


@dataclass
class Turn:
    """One prompt and one response, as the model has read and written them."""

    prompt: list[int]  # ids
    image: dict[str, Tensor]  # the screenshot in it
    response: list[int]
    logprobs: list[float]  # of the response's tokens when they were sampled


@dataclass
class Episode:
    """One attempt at a task."""

    task: dict
    page: Page
    history: list[int]  # the ids of all that was said; images would cost too much
    turns: list[Turn] = field(default_factory=list)
    ended: bool = False
    reward: float = 0.0
    advantage: float = 0.0


# --- the environment: tasks, what the model sees, what its words do, what they were worth ----------------

sites: dict[str, bytes] = {}  # every page there is, by address: no request leaves this program


def draw_task(rng: random.Random, shops: range) -> dict:
    """Return an order in one of the shops, whose first page asks for one thing and goes on by itself."""
    shop = make_shop(rng.choice(shops))
    while len(next(iter(shop.fsm.pages.values())).actions) > 1:  # there is a button, too
        shop = make_shop(rng.choice(shops))
    (order,) = make_tasks(shop, 1)
    choices = {part["path"].removeprefix("$."): part["value"] for part in order.goal["where"]}
    sites[order.start_url] = render(shop)
    return {"instruction": order.instruction, "url": order.start_url, "choices": choices}


def begin(task: dict, page: Page) -> Episode:
    """Open the task's shop, and begin the conversation."""
    page.goto(task["url"])
    text = "<|im_start|>system\nUse the browser.<|im_end|>\n<|im_start|>user\n<user_request>\n"
    text += f"{task['instruction']}\n</user_request>\n\n"
    return Episode(task, page, ids_of(text))


def look(page: Page) -> tuple[list[int], dict[str, Tensor]]:
    """Return what the model is shown of a page: ids, and pixels, with an image pad for 32 x 32 of them."""
    screenshot = Image.open(BytesIO(page.screenshot())).convert("RGB")
    image = dict(processor(images=[screenshot], return_tensors="pt"))
    pads = int(image["image_grid_thw"].prod()) // 4
    text = f"<observation>\nscreen size: {WIDTH} x {HEIGHT}\nscreenshot:\n<|vision_start|>"
    text += "<|image_pad|>" * pads + "<|vision_end|>\n</observation>"
    return ids_of(text), image


def act(episode: Episode, response: str) -> str:
    """Carry out the calls of a response, and return a line about each. Nothing of it is run as code."""
    lines = []
    for text in re.findall(r"<tool_call>(.*?)</tool_call>", response):
        try:
            call = json.loads(text)
            if call["name"] == "done":
                episode.ended = True
                break
            x, y = call["arguments"]["point_2d"]  # from 0 to 1000
            episode.page.mouse.click(x * WIDTH / 1000, y * HEIGHT / 1000)
            lines.append(f"Succeed: `click` at ({x}, {y}) executed.")
        except (ValueError, KeyError, TypeError):
            lines.append("Error: the call is not valid JSON.")
    return "\n".join(lines)


def reward_of(episode: Episode) -> float:
    """Return 1 if two or more things are chosen, all as asked for, else 0; the page can tell."""
    state = episode.page.evaluate("() => window.minirl.state()")["signature"]
    chosen = {name: value for name, value in state.items() if value is not None}
    right = [name for name, value in chosen.items() if episode.task["choices"].get(name) == value]
    return float(len(right) == len(chosen) and len(right) >= 2)


# --- 1. sample, 2. reward -------------------------------------------------------------------------------


def inputs_of(rows: list[list[int]], images: list[dict[str, Tensor]], left: bool) -> dict[str, Tensor]:
    """Return what the model takes: ids, padded; which are real; which stand for images; all pixels."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), END)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row)
        mask[i, place] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "mm_token_type_ids": (ids == IMAGE_PAD).long()}
    for name in images[0]:
        inputs[name] = torch.cat([image[name] for image in images])
    return inputs


@torch.no_grad()
def take_turn(episodes: list[Episode]) -> None:
    """Let the model answer in all episodes at once, and carry out what it says."""
    seen = [look(episode.page) for episode in episodes]
    images = [image for _, image in seen]
    prompts = [e.history + ids + BEGIN_RESPONSE for e, (ids, _) in zip(episodes, seen, strict=True)]
    inputs = inputs_of(prompts, images, left=True)
    sampling = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "suppress_tokens": FORBIDDEN}
    limits = {"max_new_tokens": MAX_TOKENS, "pad_token_id": END}
    out = policy.generate(**inputs, **sampling, **limits, return_dict_in_generate=True, output_scores=True)
    # scores are logits, -inf for what is forbidden: these are of the distribution that was sampled from
    all_logprobs = torch.stack(out.scores, dim=1).log_softmax(-1)  # (episodes, tokens, vocabulary)
    for i, episode in enumerate(episodes):
        response = out.sequences[i, inputs["input_ids"].shape[1] :].tolist()
        if END in response:
            response = response[: response.index(END) + 1]
        logprobs = [all_logprobs[i, n, token].item() for n, token in enumerate(response)]
        episode.turns.append(Turn(prompts[i], images[i], response, logprobs))
        feedback = act(episode, tokenizer.decode(response))
        # the sampled ids themselves go on: their text, tokenised again, might have others
        episode.history = episode.history + BEGIN_RESPONSE + response
        episode.history += ids_of(f"\n<|im_start|>user\n<tool_response>\n{feedback}\n</tool_response>\n")


def sample(tasks: list[dict], pages: list[Page]) -> list[Episode]:
    """Return an episode for each of the tasks, finished, with its reward."""
    episodes = [begin(task, page) for task, page in zip(tasks, pages, strict=True)]
    for _ in range(TURNS):
        going = [episode for episode in episodes if not episode.ended]
        if going:
            take_turn(going)
    for episode in episodes:
        episode.reward = reward_of(episode)
    return episodes


def success(episodes: list[Episode]) -> float:
    return sum(episode.reward for episode in episodes) / len(episodes)


# --- 3. advantage ---------------------------------------------------------------------------------------


def advantages_of(rewards: list[float]) -> list[float]:
    """Return by how many standard deviations each reward is above the mean of its group.

    >>> advantages_of([1.0, 0.0, 0.0, 0.0])
    [1.5, -0.5, -0.5, -0.5]
    """
    values = torch.tensor(rewards)
    if values.std() == 0:  # all alike: nothing can be learned from comparing them
        return [0.0] * len(rewards)
    return ((values - values.mean()) / values.std()).tolist()


# --- 4. loss and update ---------------------------------------------------------------------------------


def logprobs_of(turns: list[Turn]) -> list[Tensor]:
    """Return the log-prob of each token of the turns' responses, as the model has them now."""
    rows = [turn.prompt + turn.response for turn in turns]
    inputs = inputs_of(rows, [turn.image for turn in turns], left=False)
    logits = policy(**inputs).logits
    logits[..., FORBIDDEN] = -torch.inf  # as when the tokens were sampled
    # the logits at one place are about the token at the next
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
    firsts = [len(turn.prompt) - 1 for turn in turns]
    return [logprobs[i, n : n + len(turns[i].response)] for i, n in enumerate(firsts)]


def clipped_loss(now: Tensor, old: Tensor, advantage: float) -> Tensor:
    """Return the loss of a response. Of two surrogates it is the worse one, so that a token which has already
    moved as far as the clip allows is pushed no further."""
    ratio = (now - old).exp()  # how much likelier the token has become since it was sampled
    clipped = ratio.clamp(*RATIO)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def update(episodes: list[Episode], rng: random.Random) -> None:
    """Go through the turns of the episodes in random order, and change the weights after each minibatch."""
    rows = [(turn, episode.advantage) for episode in episodes if episode.advantage for turn in episode.turns]
    for _ in range(EPOCHS):
        rng.shuffle(rows)
        for start in range(0, len(rows), MINIBATCH):
            minibatch = rows[start : start + MINIBATCH]
            logprobs = logprobs_of([turn for turn, _ in minibatch])
            losses = []
            for now, (turn, advantage) in zip(logprobs, minibatch, strict=True):
                losses.append(clipped_loss(now, torch.tensor(turn.logprobs), advantage))
            torch.stack(losses).mean().backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--permuted", action="store_true", help="the control: rewards dealt out at random")
    flags = parser.parse_args()
    rng = random.Random(flags.seed)
    torch.manual_seed(flags.seed)
    heldout = [draw_task(random.Random(n), HELDOUT) for n in range(GROUPS * GROUP)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--renderer-process-limit=2"])
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        context.route("**/*", lambda route: route.fulfill(body=sites.get(route.request.url, b"")))
        pages = [context.new_page() for _ in heldout]
        print(f"at first: {success(sample(heldout, pages)):.1%} of held-out orders", flush=True)
        for step in range(1, flags.steps + 1):
            tasks = [draw_task(rng, PRACTISED) for _ in range(GROUPS)]
            episodes = sample([task for task in tasks for _ in range(GROUP)], pages)
            for n in range(0, len(episodes), GROUP):
                rewards = [episode.reward for episode in episodes[n : n + GROUP]]
                if flags.permuted:
                    rng.shuffle(rewards)
                for i, advantage in enumerate(advantages_of(rewards)):
                    episodes[n + i].advantage = advantage
            update(episodes, rng)
            print(f"step {step}: {success(episodes):.1%} of orders that were new", flush=True)
            if step % 4 == 0:
                print(f"after it: {success(sample(heldout, pages)):.1%} of held-out orders", flush=True)


if __name__ == "__main__":
    main()
