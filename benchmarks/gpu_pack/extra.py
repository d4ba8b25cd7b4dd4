"""What the stages leave out, on the shipped small model: `extra.py FOLDER`. One line of JSON for each check.

`replay`: train.py without a browser, in bfloat16 on a GPU: run folder, updates, checkpoints, then --resume.
`settings`: an update with weights on the CPU, with a reference, with checkpointing: each near the plain one.
`decoding`: the transformers sampler against the trainer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import training  # noqa: E402

from minirl.config import LossConfig, ModelConfig  # noqa: E402
from minirl.distributed import Ranks, open_ranks  # noqa: E402
from minirl.model import load_model, load_preprocessor  # noqa: E402
from minirl.recipes import tiny  # noqa: E402
from minirl.rows import Row  # noqa: E402
from minirl.run_folder import Run  # noqa: E402
from minirl.samplers.huggingface import HfSampler  # noqa: E402
from minirl.tiny.checkpoints import build_tiny  # noqa: E402
from minirl.types import Prompt, Request, Sample, Sampling  # noqa: E402

Figures = dict[str, Any]


def report(name: str, check: Callable[[], Figures]) -> bool:
    """Print a check's figures, or why there are none; the next check may still tell something."""
    start = time.perf_counter()
    try:
        figures = check()
    except Exception as error:
        traceback.print_exc()
        figures = {"error": f"{type(error).__name__}: {error}"[:300]}
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"check": name, "seconds": seconds, **figures}), flush=True)
    return "error" not in figures


def dump(folder: Path, model: Path) -> None:
    """Write two steps of the tests' six episodes, as a run would have dumped them."""
    preprocessor = load_preprocessor(ModelConfig(path=str(model)))
    run = Run(folder)
    names = {name: run.images.put(training.picture(name)) for name in training.SIZES}
    episodes = []
    for trajectory in (t for group in training.make_groups(preprocessor) for t in group):
        turns = tuple(replace(turn, images=tuple(names[n] for n in turn.images)) for turn in trajectory.turns)
        success = bool(trajectory.member % 2)
        episodes.append(replace(trajectory, turns=turns, reward=float(success), success=success))
    for step in (1, 2):
        run.save_trajectories(Run.step_label(step), episodes)


def replay(folder: Path) -> Figures:
    model = build_tiny(folder / "model", tiny())
    dump(folder / "source", model)
    flags = ["tiny", "--model.path", str(model), "--replay", str(folder / "source")]
    flags += ["--name", str(folder / "replayed"), "--save-every", "1", "--batch.minibatch-turns", "6"]
    seconds = []
    for more in (["--steps", "1"], ["--steps", "2", "--resume"]):
        start = time.perf_counter()
        command = [sys.executable, str(ROOT / "train.py"), *flags, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        seconds.append(round(time.perf_counter() - start, 1))
        if done.returncode:
            raise ValueError((done.stdout + done.stderr)[-1500:])
    rows = Run(folder / "replayed").metrics()
    saved = sorted(path.name for path in (folder / "replayed/checkpoints").glob("step_*"))
    names = ("loss", "grad_norm", "skipped", "mismatch_mean")
    last = {name: rows[-1][name] for name in names}
    return {"runs_s": seconds, "steps": [row["step"] for row in rows], "saved": saved, **last}


def settings(folder: Path, ranks: Ranks) -> Figures:
    model = build_tiny(folder / "tiny", tiny())
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "checkpointing": {"model": {"gradient_checkpointing": True}},
        "reference": {"loss": LossConfig(kl=0.1)},
    }
    if ranks.device.type == "cuda":
        cases["offload"] = {"optim": {"offload": True}}
    figures: Figures = {}
    for name, options in cases.items():
        trainer = training.make_trainer(model, ranks, lr=2e-4, minibatch_turns=6, **options)
        before = {key: weight.cpu() for key, weight in training.weights(trainer).items()}
        trainer.keep_reference()
        metrics = training.learn(trainer, training.make_groups(trainer.preprocessor))
        after = {key: weight.cpu() for key, weight in training.weights(trainer).items()}
        moved = training.distance(after, before)
        figures[name] = {"grad_norm": round(metrics["grad_norm"], 4), "moved": round(moved, 4)}
        assert metrics["skipped"] == 0
    return figures


async def answer_all(sampler: HfSampler, requests: list[Request]) -> list[Sample]:
    return await asyncio.gather(*map(sampler.generate, requests))


def decoding(folder: Path, ranks: Ranks) -> Figures:
    model = build_tiny(folder / "tiny", tiny())
    config = replace(tiny(), model=ModelConfig(path=str(model)))
    preprocessor = replace(load_preprocessor(config.model), end=())  # responses are equally long
    trainer = training.make_trainer(model, ranks)
    trainer.config = replace(trainer.config, sampler=replace(trainer.config.sampler, temperature=0.8))
    requests = [Request(Prompt((1, *range(40, 46 + n)), 0), n, 64, Sampling(0.8)) for n in range(12)]
    sampler = HfSampler(load_model(config.model, ranks.device), preprocessor)
    sampler.sync(trainer.weights())
    start = time.perf_counter()
    samples = asyncio.run(answer_all(sampler, requests))
    seconds = time.perf_counter() - start
    sampler.close()

    rows = []
    gaps = []
    for request, sample in zip(requests, samples, strict=True):
        ids = request.prompt.ids
        rows.append(Row(ids + sample.ids, len(ids), (), sample.logprobs, 1.0))
    for row, logprobs in zip(rows, trainer._score(trainer.policy, rows), strict=True):
        gaps += [abs(a - b) for a, b in zip(row.old, logprobs, strict=True)]
    return {"tokens_s": round(12 * 64 / seconds, 1), "gap_mean": sum(gaps) / len(gaps), "gap_max": max(gaps)}


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    is_good = report("replay", partial(replay, folder))
    with open_ranks() as ranks:
        is_good = report("settings", partial(settings, folder, ranks)) and is_good
        is_good = report("decoding", partial(decoding, folder, ranks)) and is_good
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
