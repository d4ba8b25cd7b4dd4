"""The last stages of gpu.py, with vLLM: log-probs, sleep, throughput, the whole step (see gpu_stages.py)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import sampler as bench
import torch
from gpu_stages import (
    GB,
    Figures,
    Here,
    open_trainer,
    run,
    screenshot,
    shown,
    trainer_config,
    trajectories,
    words,
)
from torch import Tensor

from minirl.distributed import open_ranks
from minirl.model import Preprocessor, load_preprocessor
from minirl.rows import Row
from minirl.samplers.vllm import VllmSampler
from minirl.samplers.vllm_engine import engine_environment, engine_settings
from minirl.trainer import Trainer
from minirl.types import Prompt, Request, Sample, Sampling


def asked(here: Here, preprocessor: Preprocessor, how: Sampling) -> list[Request]:
    """64 prompts, half of them with a screenshot."""
    rng = np.random.default_rng(1)
    out = []
    for n in range(here.size(64, 8)):
        images = (screenshot(here, n),) if n % 2 else ()
        ids = words(preprocessor, rng, here.size(200, 20))
        ids += sum((shown(preprocessor, png) for png in images), ()) + words(preprocessor, rng, 5)
        out.append(Request(Prompt(ids, 0, images), n, here.size(128, 8), how))
    return out


async def answered(sampler: VllmSampler, requests: list[Request]) -> list[Sample]:
    samples = await asyncio.gather(*map(sampler.generate, requests))
    await sampler.idle()
    return samples


def gap(trainer: Trainer, requests: list[Request], samples: list[Sample]) -> tuple[Tensor, list[Row]]:
    """The sampler's log-probs minus the trainer's, and the rows."""
    rows = []
    for request, sample in zip(requests, samples, strict=True):
        names = tuple(f"asked-{request.seed}" for _ in request.prompt.images)
        trainer.images.update(zip(names, request.prompt.images, strict=True))
        ids = request.prompt.ids
        ones = (1.0,) * len(sample.ids)
        rows.append(Row(ids + sample.ids, len(ids), names, sample.logprobs, 1.0, 0, ones))
    scores = trainer._score(trainer.policy, rows)
    pairs = [(a, b) for row, new in zip(rows, scores, strict=True) for a, b in zip(row.old, new, strict=True)]
    return torch.tensor([a - b for a, b in pairs]), rows


def poison(here: Here) -> None:
    """Fill all free memory with 0x7f: whatever waking up does not restore is then far off."""
    if here.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.full((int((here.free_gb() - 2) * GB),), 0x7F, dtype=torch.uint8, device=here.device)
        torch.cuda.empty_cache()


@contextmanager
def open_both(here: Here) -> Iterator[tuple[Trainer, VllmSampler, float]]:
    with open_trainer(here) as (trainer, ranks):
        _ = trainer.optimizer  # its moments stay while episodes run
        start = time.perf_counter()
        endless = replace(trainer.preprocessor, end=())  # responses are equally long
        sampler = VllmSampler(trainer.config, endless, ranks)
        yield trainer, sampler, time.perf_counter() - start
        sampler.close()


def sampler(here: Here) -> Figures:
    """Log-probs against the trainer's: fresh, stale after an update, synced, and after sleep in memory that
    was overwritten."""
    out: Figures = {}
    with open_both(here) as (trainer, sampler, started):
        requests = asked(here, trainer.preprocessor, Sampling(0.8))
        greedy = asked(here, trainer.preprocessor, Sampling(0.0))
        sync = [here.seconds(lambda: sampler.sync(trainer.weights()), 1, warm=0)]
        off, rows = gap(trainer, requests, asyncio.run(answered(sampler, requests)))
        size = off.abs()
        out |= {"gap_mean": size.mean(), "gap_p50": size.quantile(0.5), "gap_p99": size.quantile(0.99)}
        out |= {"gap_max": size.max(), "bias": off.mean()}
        again = asyncio.run(answered(sampler, requests))
        cached = sum(s.cached for s in again)
        of = sum(len(r.prompt.ids) for r in requests)
        sampler.sleep()  # an update beside a waking engine is more than a GPU of 80 GB holds
        trainer.sft_update(rows, lr=1e-2 if here.small else 1e-4)
        out["stale_mean"] = gap(trainer, requests, again)[0].abs().mean()
        sync.append(here.seconds(lambda: sampler.sync(trainer.weights()), 1, warm=0))
        before = [s.ids for s in asyncio.run(answered(sampler, greedy))]
        frees = [here.free_gb()]
        for _ in range(5):
            sampler.sleep()
            frees.append(here.free_gb())
            poison(here)
            sync.append(here.seconds(lambda: sampler.sync(trainer.weights()), 1, warm=0))
        after = [s.ids for s in asyncio.run(answered(sampler, greedy))]
        off, _ = gap(trainer, requests, asyncio.run(answered(sampler, requests)))
        out |= {"woken_mean": off.abs().mean(), "free_gb": torch.tensor(frees)}
    out |= {"start_s": started, "sync_s": max(sync[1:]), "cached": cached / of}
    if here.device.type == "cuda":
        out["slept"] = (frees[1] - frees[0]) * GB / (0.3 * torch.cuda.mem_get_info()[1])
    same = sum(a == b for a, b in zip(before, after, strict=True)) / len(before)
    numbers = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in out.items()}
    return numbers | {"greedy_same": same}


def rate(here: Here, kind: str) -> Figures:
    """Tokens per second of 64 scripted episodes in step with `LLM.generate`, or each at its own pace with
    VllmSampler, after a first turn that is not counted."""
    config = trainer_config(here)
    turns = here.size(5, 2)
    tokens = here.size(128, 8)
    bench.PAGES[:] = [screenshot(here, n) for n in range(16)]
    bench.EPISODES = here.size(64, 8)
    with open_ranks() as ranks:
        prep = replace(load_preprocessor(config.model), end=())
        if kind == "ours":
            sampler = VllmSampler(config, prep, ranks)
            engine = sampler.engine
            close = sampler.close
            work = lambda count: asyncio.run(bench.episodes(sampler, count, tokens, True))  # noqa: E731
        else:
            with engine_environment(ranks):
                from vllm import LLM

                llm = LLM(**engine_settings(config, prep, ranks))
            engine = llm.llm_engine
            close = int
            given = SimpleNamespace(preprocessor=prep)
            work = lambda count: bench.waves(llm, given, bench.Args(turns=count, tokens=tokens), True)  # noqa: E731
        seconds = 0.0
        for count in (1, turns):
            engine.reset_prefix_cache()
            engine.reset_mm_cache()
            engine.reset_encoder_cache()
            seconds = here.seconds(partial(work, count), 1, warm=0)
            print(f"{kind}: {count} turns in {seconds:.1f} s", file=sys.stderr, flush=True)
        close()
    return {"tokens_s": bench.EPISODES * turns * tokens / seconds}


def throughput(here: Here) -> Figures:
    """Each engine in a process of its own: vLLM can put one to sleep, and that one only, in a process."""
    rates = {}
    for kind in ("ours", "llm"):
        command = [sys.executable, __file__, kind, *sys.argv[2:]]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        rates[f"{kind}_tokens_s"] = round(json.loads(lines[-1])["tokens_s"], 1)
    return rates | {"ratio": round(rates["ours_tokens_s"] / rates["llm_tokens_s"], 3)}


def step(here: Here) -> Figures:
    """The loop of training, twice: the seconds of its parts, and what memory is free at each end."""
    parts: dict[str, list[float]] = {name: [] for name in ("sleep_s", "update_s", "sync_s", "sample_s")}
    free = []
    with open_both(here) as (trainer, sampler, _):
        requests = asked(here, trainer.preprocessor, Sampling(0.8))
        sampler.sync(trainer.weights())
        given = trajectories(here, trainer, here.size(30, 3), count=2)
        works = [
            sampler.sleep,
            lambda: trainer.update(given, 0, int),
            lambda: sampler.sync(trainer.weights()),
            lambda: asyncio.run(answered(sampler, requests)),
        ]
        for _ in range(here.size(3, 2)):
            for name, work in zip(parts, works, strict=True):
                parts[name].append(round(here.seconds(work, 1, warm=0), 3))
            free.append(round(here.free_gb(), 2))
        return parts | {"free_gb": free, "growth_gb": free[-2] - free[-1], "peak_gb": here.peak_gb()}


if __name__ == "__main__":
    engines = {kind: partial(rate, kind=kind) for kind in ("ours", "llm")}
    run({stage.__name__: stage for stage in (sampler, throughput, step)} | engines)
