"""Is the vLLM sampler as fast as vLLM, does it use the prefix, and is a sync as cheap as it should be?

    python benchmarks/sampler.py

throughput_ratio: 64 episodes of several turns, each a coroutine that builds its next prompt from what was
sampled and what a scripted environment answers, against the same 64 in step: prompts are built, and
`LLM.generate` is given the very same requests, wave after wave. Tokens per second, the median of interleaved
pairs. Responses are equally long, so that waves lose
nothing by waiting for the slowest; and text alone, because `LLM.generate` would prepare images again. With
screenshots it is `images_ratio`.

prefix_hit_ratio: prompt tokens that were found in the cache over 15 turns, of those that could be: in whole
cache blocks, what a prompt has in common with the one before it and its response.

sync_ratio: new weights from memory, against vLLM's own reload of the same safetensors from disk.

The last line is JSON.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the engine's thread beside the event loop's

import numpy as np
import torch
import tyro
from PIL import Image

from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.config import AgentConfig, BrowserConfig, Config, ModelConfig
from minirl.context import Context
from minirl.distributed import Ranks, open_ranks
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.samplers.vllm import VllmSampler
from minirl.samplers.vllm_engine import CPU_BLOCK, engine_environment, engine_settings, sampling_params
from minirl.types import Observation, Prompt, Request, Sample, Sampling

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.base_models import checkpoints as tiny  # noqa: E402

if TYPE_CHECKING:
    from vllm import LLM

HOT = Sampling(1.0)
EPISODES = 64


@dataclass
class Args:
    pairs: int = 5
    turns: int = 5
    """Of an episode, when throughput is measured."""
    long: int = 15
    """Of an episode, when the cache is."""
    tokens: int = 16
    """Of a response."""


def page(n: int) -> bytes:
    """A screenshot: 160 x 128 pixels, 20 tokens."""
    pixels = np.random.default_rng(n).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((160, 128), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


PAGES = [page(n) for n in range(16)]


class Scripted:
    """An episode without a browser: what the pages show and say follows from numbers."""

    def __init__(self, preprocessor: Preprocessor, n: int, shows: bool):
        self.n = n
        self.shows = shows
        self.t = 0
        task = f"Order {n} red mugs and a plate, and then look for a blue kettle."
        config = AgentConfig(brief=True)
        self.context = Context(preprocessor, OpenWebRLAgent(config), config, task)

    def prompt(self) -> Prompt:
        shown = PAGES[(self.n + self.t) % len(PAGES)] if self.shows else None
        text = f"Current tab: 0, Available tabs: http://shop-0.test/#PAGE-{self.n}-{self.t}\n"
        feedback = (f'Succeed: `click` on <button> "mug {self.t}" executed.',) if self.t else ()
        return self.context.observe(Observation(text, shown), feedback)

    def respond(self, sample: Sample) -> None:
        self.context.respond(sample.ids)
        self.t += 1


def request(prompt: Prompt, n: int, t: int, tokens: int) -> Request:
    return Request(prompt, 1000 * n + t, tokens, HOT)


async def episodes(
    sampler: VllmSampler, turns: int, tokens: int, shows: bool
) -> list[list[tuple[Prompt, Sample]]]:
    """All episodes at once, each at its own pace."""

    async def one(n: int) -> list[tuple[Prompt, Sample]]:
        episode = Scripted(sampler.preprocessor, n, shows)
        out = []
        for t in range(turns):
            prompt = episode.prompt()
            sample = await sampler.generate(request(prompt, n, t, tokens))
            episode.respond(sample)
            out.append((prompt, sample))
        return out

    return await asyncio.gather(*map(one, range(EPISODES)))


def as_vllm_takes_it(prompt: Prompt, pad: int) -> dict:
    """The same prompt for `LLM.generate`: one pad for each image, which it expands, and the picture."""
    ids = [i for before, i in zip((None, *prompt.ids), prompt.ids) if not i == before == pad]  # noqa: B905
    pictures = [Image.open(io.BytesIO(png)) for png in prompt.images]
    return {"prompt_token_ids": ids} | ({"multi_modal_data": {"image": pictures}} if pictures else {})


def waves(llm: LLM, sampler: VllmSampler, args: Args, shows: bool) -> list[list[tuple[int, ...]]]:
    """All episodes in step; the ids of every episode's responses."""
    running = [Scripted(sampler.preprocessor, n, shows) for n in range(EPISODES)]
    responses: list[list[tuple[int, ...]]] = [[] for _ in running]
    for t in range(args.turns):
        asked = [request(episode.prompt(), n, t, args.tokens) for n, episode in enumerate(running)]
        prompts = [as_vllm_takes_it(r.prompt, sampler.preprocessor.pad) for r in asked]
        outputs = llm.generate(
            prompts, [sampling_params(r, sampler.preprocessor) for r in asked], use_tqdm=False
        )
        for episode, ids, output in zip(running, responses, outputs, strict=True):
            ids.append(tuple(output.outputs[0].token_ids))
            episode.respond(Sample(ids[-1], (), "length"))
    return responses


def measure(sampler: VllmSampler, llm: LLM, args: Args, shows: bool) -> float:
    """Median ratio of tokens per second, ours to LLM.generate's, both from empty caches."""
    ratios = []
    for pair in range(args.pairs + 1):
        for engine in (sampler.engine, llm.llm_engine):
            engine.reset_prefix_cache()
            engine.reset_mm_cache()
            engine.reset_encoder_cache()
        start = time.perf_counter()
        ours = asyncio.run(episodes(sampler, args.turns, args.tokens, shows))
        between = time.perf_counter()
        theirs = waves(llm, sampler, args, shows)
        end = time.perf_counter()
        assert theirs == [[sample.ids for _, sample in episode] for episode in ours]  # the same requests
        rates = [
            EPISODES * args.turns * args.tokens / seconds for seconds in (between - start, end - between)
        ]
        if pair:  # the first warms up
            ratios.append(rates[0] / rates[1])
            print(f"shows {shows}, pair {pair}: {rates[0]:.0f} and {rates[1]:.0f} tokens/s", file=sys.stderr)
    return median(ratios)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def hits(sampler: VllmSampler, args: Args) -> float:
    sampler.engine.reset_prefix_cache()
    cached = possible = 0
    for episode in asyncio.run(episodes(sampler, args.long, args.tokens, shows=True)):
        for (before, response), (prompt, sample) in zip(episode, episode[1:], strict=False):
            block = CPU_BLOCK
            possible += common(prompt.ids[:-1], before.ids + response.ids) // block * block
            cached += sample.cached
    print(f"{cached} of {possible} tokens that prompts share with the one before", file=sys.stderr)
    return cached / possible


def syncs(folder: Path, ranks: Ranks, args: Args) -> float:
    """On a model of 250 MB: large enough that its weights matter, small enough for the page cache."""
    tiny.build(folder, tiny.corpus(["mug", "plate"], "http://shop-0.test/"), seed=0, hidden=768, layers=8)
    config = configured(folder)
    weights = dict(load_model(config.model, ranks.device).named_parameters())
    sampler = VllmSampler(config, load_preprocessor(config.model), ranks)
    ratios = []
    for pair in range(args.pairs + 1):
        start = time.perf_counter()
        sampler.sync((name, weight.detach()) for name, weight in weights.items())
        between = time.perf_counter()
        sampler.engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        end = time.perf_counter()
        if pair:
            ratios.append((between - start) / (end - between))
            print(f"sync {between - start:.3f} s, from disk {end - between:.3f} s", file=sys.stderr)
    sampler.close()
    return median(ratios)


def configured(folder: Path) -> Config:
    return Config(
        recipe="bench",
        model=ModelConfig(path=str(folder)),
        agent=AgentConfig(context_tokens=2048),
        browser=BrowserConfig(episodes=EPISODES),
    )


def main() -> None:
    args = tyro.cli(Args)
    with tempfile.TemporaryDirectory() as folder, open_ranks() as ranks, torch.no_grad():
        path = Path(folder) / "model"
        words = ["red", "mugs", "plate", "blue", "kettle", "look"]
        tiny.build(path, tiny.corpus(words, "http://shop-0.test/"), seed=0)
        config = configured(path)
        preprocessor = replace(load_preprocessor(config.model), end=())  # responses are equally long
        sampler = VllmSampler(config, preprocessor, ranks)
        with engine_environment(ranks):
            from vllm import LLM

            llm = LLM(**engine_settings(config, preprocessor, ranks))
        text, images = (measure(sampler, llm, args, shows) for shows in (False, True))
        hit_ratio = hits(sampler, args)
        sampler.close()
        sync = syncs(Path(folder) / "large", ranks, args)
    print(
        json.dumps(
            {
                "throughput_ratio": round(text, 3),
                "prefix_hit_ratio": round(hit_ratio, 3),
                "sync_ratio": round(sync, 3),
                "images_ratio": round(images, 3),
            }
        ),
        flush=True,
    )
    os._exit(0)  # vLLM's finalizers destroy the process group that is gone by now


if __name__ == "__main__":
    main()
