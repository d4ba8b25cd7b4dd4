"""Does minirl do on a GPU what it does on a CPU, and how fast? Eight stages, in some 20 minutes.

    python benchmarks/gpu.py                        # one GPU; stages 5 to 7 need vLLM
    python benchmarks/gpu.py --device cpu --small   # all of the code in small, in two minutes
    python benchmarks/gpu.py --only ceilings model attention

docs/gpu.md says what each stage measures. Each is a process of its own with its own deadline, and ends as
one line of JSON, here and in `--out`; one that fails, or takes too long, ends alone. Nothing is downloaded:
the model has Qwen3-VL-4B's sizes and random weights, on a GPU that is too small for it fewer layers, and
lies in shared memory where that has room. `failed` names the figures that are out of bounds; then the exit
status is 1.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

TOTAL = 1770.0  # seconds of all stages
MODEL_BYTES = 12 << 30  # room that the model needs
SECONDS = {"ceilings": 30, "model": 100, "loss": 40, "attention": 100, "trainer": 400}
VLLM = {"sampler": 480, "throughput": 600, "step": 520}  # an engine's cold start alone takes up to 150
STDERR_LINES = 30  # that a stage which failed leaves in its line
STAGES = SECONDS | VLLM
Name = Literal["ceilings", "model", "loss", "attention", "trainer", "sampler", "throughput", "step"]
Bounds = dict[str, dict[str, tuple[float, float]]]  # stage -> figure -> least and most

AGREEMENT: Bounds = {  # in float32
    "loss": {"log_prob_error": (0, 0.1)},
    "attention": {"joined_error": (0, 0.02), "segment_error": (0, 0.02)},
    "trainer": {"cosine": (0.999, 1.001), "gap_mean": (0, 0.02), "skipped": (0, 0)},
    "sampler": {
        "gap_mean": (0, 0.02),
        "gap_p99": (0, 0.15),
        "bias": (-0.002, 0.002),
        "stale_mean": (0.05, math.inf),  # the control: weights that were not synced are noticed
        "woken_mean": (0, 0.02),
    },
}
# In bfloat16, where random weights amplify rounding: with 36 layers and logits that spread over 4, two orders
# of the same sums are 0.16 apart in log-probs (99%: 0.5), and their gradients have a cosine of 0.996.
ROUGH: Bounds = {
    "trainer": {"cosine": (0.99, 1.01), "gap_mean": (0, 0.3), "skipped": (0, 0)},
    "sampler": {
        "gap_mean": (0, 0.3),
        "gap_p99": (0, 1.0),
        "bias": (-0.06, 0.06),
        "stale_mean": (0.4, math.inf),
        "woken_mean": (0, 0.3),
    },
}
SPEED: Bounds = {  # on a GPU
    "trainer": {"above_plan_gb": (-math.inf, 5)},
    "sampler": {"slept": (0.8, 2), "sync_s": (0, 5)},
    "throughput": {"ratio": (0.95, math.inf)},
    "step": {"growth_gb": (-math.inf, 0.5)},
}


@dataclass
class Args:
    device: Literal["cuda", "cpu"] = "cuda"
    small: bool = False
    """A small model and short rows."""
    hybrid: bool = False
    """A model of Qwen3.5-4B's sizes, not Qwen3-VL-4B's."""
    only: Annotated[tuple[Name, ...], tyro.conf.arg(help="these stages; all need `model`")] = ()
    out: Path | None = None
    """A file to which the lines are added."""


def start(name: str, folder: Path, args: Args, seconds: float) -> dict[str, Any]:
    """A stage's figures, or why there are none."""
    script = Path(__file__).with_name("gpu_vllm.py" if name in VLLM else "gpu_stages.py")
    command = [
        sys.executable,
        str(script),
        name,
        str(folder),
        args.device,
        *["small"] * args.small,
        *["hybrid"] * args.hybrid,
    ]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if args.device == "cpu" else {}
    with tempfile.TemporaryFile("w+") as errors:
        options = {"env": os.environ | hidden, "text": True, "start_new_session": True}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, **options)
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            output, _ = process.communicate()
            problem = f"took longer than {seconds:.0f} s"
        else:
            problem = f"exit status {process.returncode}"
        errors.seek(0)
        stderr = errors.read().strip().splitlines()
    figures = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not figures:
        last = (stderr or ["no word"])[-1]
        return {"error": f"{problem}: {last}", "stderr": stderr[-STDERR_LINES:]}
    return json.loads(figures[-1])


def missing(name: str, args: Args, folder: Path) -> str:
    """Why a stage can't run here, or "" if it can."""
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        return "no NVIDIA GPU; --device cpu --small runs the same code in small"
    if name in VLLM and importlib.util.find_spec("vllm") is None:
        return "vLLM is not installed: make setup EXTRAS=test,vllm"
    if name in {"trainer", *VLLM} and not (folder / "model").exists():
        return "the stage `model` has made none"
    return ""


def failed(name: str, figures: dict[str, Any], args: Args) -> list[str]:
    bounds = AGREEMENT.get(name, {})
    if args.device == "cuda":
        bounds = ROUGH.get(name, bounds) | SPEED.get(name, {})
    return [key for key, (least, most) in bounds.items() if not least <= figures.get(key, math.nan) <= most]


def home() -> str | None:
    """Shared memory, if it has room for the model; else where temporary files are."""
    shared = Path("/dev/shm")
    return str(shared) if shared.exists() and shutil.disk_usage(shared).free > MODEL_BYTES else None


def main(argv: list[str] | None = None) -> int:
    args = tyro.cli(Args, args=argv)
    began = time.monotonic()
    bad = False
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        for number, name in enumerate(STAGES):
            if args.only and name not in args.only:
                continue
            line: dict[str, Any] = {"stage": number, "name": name}
            begin = time.monotonic()
            left = began + TOTAL - begin
            if reason := missing(name, args, Path(folder)) or ("no time is left" if left < 1 else ""):
                line |= {"skipped_because": reason}
            else:
                figures = start(name, Path(folder), args, min(STAGES[name], left))
                wrong = [] if "error" in figures else failed(name, figures, args)
                line |= {"seconds": round(time.monotonic() - begin, 1), **figures, "failed": wrong}
                bad = bad or bool(wrong) or "error" in figures
                (Path(folder) / f"{name}.json").write_text(json.dumps(figures))
            print(json.dumps(line), flush=True)
            if args.out:
                with args.out.open("a") as file:
                    print(json.dumps(line), file=file)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
