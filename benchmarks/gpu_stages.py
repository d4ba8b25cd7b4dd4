"""The first stages of gpu.py, each in a process of its own: `gpu_stages.py STAGE FOLDER DEVICE [small]`.

A stage returns the figures of its JSON line. Everything runs on a CPU too, in small; what only CUDA has
(peaks, free memory, filling it) is then 0 or left out. Weights and lengths are random: nothing is downloaded.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from tree import Dims, HybridDims, Lengths, chains_of, flops, trajectory_rows

from minirl import tree_attention
from minirl.cli.memory_plan import MODELS, meta_model, plan
from minirl.config import ModelConfig, SamplerConfig
from minirl.distributed import Ranks, full_tensor, open_ranks
from minirl.loss import token_entropies, token_logprobs
from minirl.model import Preprocessor, is_hybrid, load_model, load_preprocessor
from minirl.recipes import openwebrl_4b
from minirl.rows import Row, TrajectoryRows
from minirl.trainer import Trainer
from minirl.tree_attention import Chain, Tree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from examples.base_models import checkpoints as tiny  # noqa: E402

GB = 1e9
CPU = torch.device("cpu")
QWEN = ROOT / "tests/data/qwen3_vl_4b/config.json"
HYBRID = MODELS / "Qwen3.5-4B" / "config.json"
HYBRID_ROPE = {
    "rope_type": "default",
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10],
}
LENGTHS = Lengths(system=1500, response=400, feedback=60, observation=1300)
Figures = dict[str, Any]


@dataclass(frozen=True)
class Here:
    """Where a stage runs: `folder` holds the model, and earlier stages' figures."""

    folder: Path
    device: torch.device
    small: bool
    hybrid: bool = False  # a Qwen3.5

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def size(self, full: int, small: int) -> int:
        return small if self.small else full

    def earlier(self, stage: str, name: str) -> float:
        file = self.folder / f"{stage}.json"
        return json.loads(file.read_text()).get(name, 0.0) if file.exists() else 0.0

    def seconds(self, work: Callable[[], Any], repeats: int = 3, warm: int = 1) -> float:
        """The median of some repeats, after some that are not counted."""
        times = []
        for _ in range(warm + repeats):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return median(times[warm:])

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_gb(self) -> float:
        """The most that tensors have held since the last call."""
        if self.device.type != "cuda":
            return 0.0
        peak = torch.cuda.max_memory_allocated() / GB
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return round(peak, 2)

    def free_gb(self) -> float:
        return torch.cuda.mem_get_info()[0] / GB if self.device.type == "cuda" else 0.0


# --- 0 to 3: the machine, the model, the loss, attention ----------------------------------------------


def ceilings(here: Here) -> Figures:
    n = here.size(8192, 256)
    dtype = torch.bfloat16
    a, b = (torch.randn(n, n, device=here.device, dtype=dtype) for _ in range(2))
    source = torch.empty(here.size(4 << 30, 1 << 20), dtype=torch.uint8, device=here.device)
    target = torch.empty_like(source)
    cuda = here.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": sys.version.split()[0],
        },
        "total_gb": round(torch.cuda.mem_get_info()[1] / GB, 1) if cuda else 0.0,
        "free_gb": round(here.free_gb(), 1),
        "pinned": bool(torch.empty(1 << 20, pin_memory=True).is_pinned()) if cuda else False,
        "tflops": round(2 * n**3 / here.seconds(lambda: a @ b, repeats=9) / 1e12, 5),
        "copy_gb_s": round(2 * len(source) / here.seconds(lambda: target.copy_(source)) / GB, 1),
    }


def model(here: Here) -> Figures:
    """A Qwen3-VL or Qwen3.5 of the 4B model's sizes, on a small GPU with fewer layers. The gain of the last
    norm spreads the logits over about 3: were all words equally probable, agreement would say nothing."""
    texts = tiny.corpus(["red", "mugs", "plate", "blue", "kettle", "look"], "http://shop-0.test/")
    kind = "hybrid" if here.hybrid else "visual"
    if here.small:
        layers = 4 if here.hybrid else 2
        tiny.build(here.model, texts, seed=0, hidden=64, layers=layers, kind=kind)
        return {"layers": layers}
    words = tiny.build_tokenizer(texts, kind)
    sizes = json.loads((HYBRID if here.hybrid else QWEN).read_text())
    parts = json.loads(words.backend_tokenizer.to_str())
    parts["model"]["vocab"] |= {f"unused-{n}": n for n in range(len(words), 151_669)}
    full = Tokenizer.from_str(json.dumps(parts))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=full, chat_template=tiny.TEMPLATES[kind], **tiny.SETTINGS["tokenizer"]
    )
    ids = {k: tokenizer.convert_tokens_to_ids(v) for k, v in tiny.SETTINGS["tokens"].items()}
    sizes["text_config"].setdefault("rope_parameters", dict(HYBRID_ROPE))["mrope_interleaved"] = True
    sizes["text_config"]["eos_token_id"] = tokenizer.eos_token_id
    here.model.mkdir()
    tokenizer.save_pretrained(here.model)
    for file in tiny.FOLDER.joinpath("processor").iterdir():
        (here.model / file.name).write_bytes(file.read_bytes())
    whole = sizes["text_config"]["num_hidden_layers"]
    for layers in (whole, 28, 24, 20, 16, 12, 8, 4):
        sizes["text_config"]["num_hidden_layers"] = layers
        settings = (Qwen3_5Config if here.hybrid else Qwen3VLConfig)(**sizes | ids)
        settings.save_pretrained(here.model)
        if plan(trainer_config(here)).total / GB + 10 < here.free_gb():  # what vLLM keeps asleep
            break
        meta_model.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    with here.device:
        net = (Qwen3_5ForConditionalGeneration if here.hybrid else Qwen3VLForConditionalGeneration)(settings)
    with torch.no_grad():
        for weight in net.parameters():
            weight.normal_(0, 0.02) if weight.ndim > 1 else None
        net.model.language_model.norm.weight.fill_(2.0 if here.hybrid else 3.0)  # Qwen3.5 adds 1
    net.save_pretrained(here.model)
    note = {} if layers == whole else {"dropped": f"{whole - layers} of {whole} layers, to fit into this GPU"}
    return {"layers": layers, "parameters": sum(w.numel() for w in net.parameters())} | note


def loss(here: Here) -> Figures:
    """Of N response tokens: peak and time of log-probs with their gradients, ours and over all logits."""
    N, H, V = (12_000, 2560, 151_936) if not here.small else (64, 32, 1000)
    dtype = torch.bfloat16 if here.device.type == "cuda" else torch.float32
    hidden = torch.randn(N, H, device=here.device, dtype=dtype, requires_grad=True)
    weight = (0.06 * torch.randn(V, H, device=here.device, dtype=dtype)).detach().requires_grad_()
    targets = torch.randint(V, (N,), device=here.device)
    bias = torch.zeros(V, device=here.device, dtype=dtype)
    out = {}

    def plain(h: Tensor) -> Tensor:
        return (h @ weight.T).float().log_softmax(-1).gather(-1, targets[: len(h), None])[:, 0]

    def ours(h: Tensor) -> Tensor:
        return token_logprobs(h, targets[: len(h)], weight, bias, 1.0)

    def run(work: Callable[[Tensor], Tensor]) -> None:
        hidden.grad = weight.grad = None
        work(hidden).sum().backward()

    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        for name, work in (("ours", ours), ("plain", plain)):
            here.peak_gb()
            out[f"{name}_{precision}_ms"] = round(1e3 * here.seconds(partial(run, work)), 2)
            out[f"{name}_peak_gb"] = here.peak_gb()
    out["entropies_ms"] = 1e3 * here.seconds(lambda: token_entropies(hidden, weight, bias, 1.0))
    exact = (hidden[:64].double() @ weight.double().T).log_softmax(-1).gather(-1, targets[:64, None])[:, 0]
    return out | {"log_prob_error": (ours(hidden[:64]).double() - exact).abs().max().item()}


def attention(here: Here) -> Figures:
    """A layer's attention in three trees of 30 turns, forward and backward: each tree's first call, and the
    later ones; how far each kernel is from float32, in a small tree."""
    A, K, D = (32, 8, 128) if not here.small else (4, 2, 16)
    dtype = torch.bfloat16 if here.device.type == "cuda" else torch.float32
    each = LENGTHS.divided(here.size(1, 40))  # three lengths, so that every tree's shapes are new
    sizes = [replace(each, system=n // here.size(1, 40)) for n in (1500, 1700, 1930)]
    trees = [chains_of(trajectory_rows(size, here.size(30, 4))) for size in sizes]
    kernels = {"joined": tree_attention.JoinedAttention.apply, "segment": tree_attention.segment_attention}
    kernels |= {"segment_cudnn": tree_attention.segment_attention} if here.device.type == "cuda" else {}
    out: Figures = {}

    def run(kernel: Any, tree: Tree, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(0)
        shape = {"device": here.device, "dtype": dtype, "requires_grad": True}
        q, k, v = (torch.randn(1, n, tree[-1].end, D, **shape) for n in (A, K, K))
        result = kernel(q, k, v, tree, D**-0.5)
        result.backward(torch.ones_like(result))
        return [result.detach(), q.grad, k.grad, v.grad]

    for name, kernel in kernels.items():
        torch.backends.cuda.enable_cudnn_sdp(name == "segment_cudnn")
        here.peak_gb()
        first = [here.seconds(partial(run, kernel, tree, dtype), 1, warm=0) for tree in trees]
        later = [here.seconds(partial(run, kernel, tree, dtype), 1, warm=0) for tree in trees]
        one = Dims(0, 0, 1, A, K, D, 0)
        work = sum(3.5 * flops(one, tree, 0) for tree in trees)  # backward computes the scores again
        out[f"{name}_first_ms"] = [round(1e3 * s, 1) for s in first]
        out[f"{name}_ms"] = [round(1e3 * s, 1) for s in later]
        out[f"{name}_tflops"] = round(work / sum(later) / 1e12, 1)
        out[f"{name}_peak_gb"] = here.peak_gb()
    little = chains_of(trajectory_rows(LENGTHS.divided(here.size(16, 40)), here.size(30, 4)))
    exact = run(tree_attention.segment_attention, little, torch.float32)
    for name in ("joined", "segment"):
        pairs = zip(run(kernels[name], little, dtype), exact, strict=True)
        out[f"{name}_error"] = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
    return out


# --- 4: the trainer ------------------------------------------------------------------------------------


def screenshot(here: Here, seed: int) -> bytes:
    width, height = (160, 128) if here.small else (1280, 1000)
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST).save(out, "PNG")
    return out.getvalue()


def words(preprocessor: Preprocessor, rng: np.random.Generator, n: int) -> tuple[int, ...]:
    return tuple(rng.integers(300, min(1000, len(preprocessor.tokenizer)) - 20, n).tolist())


def shown(preprocessor: Preprocessor, png: bytes) -> tuple[int, ...]:
    """A screenshot's ids."""
    start, end = (preprocessor.tokenizer.convert_tokens_to_ids(f"<|vision_{w}|>") for w in ("start", "end"))
    return (start, *[preprocessor.pad] * preprocessor.image_tokens(png), end)


def trajectories(here: Here, trainer: Trainer, turns: int, count: int = 1) -> list[TrajectoryRows]:
    """Random trajectories with a screenshot in each turn, which the trainer's images get."""
    rng = np.random.default_rng(0)
    each = LENGTHS.divided(here.size(1, 40))
    prep = trainer.preprocessor
    out = []
    for number in range(count):
        rows = []
        prefix = words(prep, rng, each.system)
        for t in range(turns):
            name = f"{number}-{t}"
            png = trainer.images.setdefault(name, screenshot(here, 100 * number + t))
            prompt = prefix + shown(prep, png)
            response = words(prep, rng, each.response)
            numbers = ((-3.0,) * len(response), (-1.0) ** number, len(prefix), (1.0,) * len(response))
            rows.append(Row(prompt + response, len(prompt), (name,), *numbers))
            prefix += response + words(prep, rng, each.feedback)
        out.append(TrajectoryRows(0, rows))
    return out


def trainer_config(here: Here) -> Any:
    config = openwebrl_4b()
    context = here.size(32_768, 768)
    return replace(
        config,
        plan="1x80",
        model=ModelConfig(str(here.model), gradient_checkpointing=True),
        agent=replace(config.agent, context_tokens=context, response_tokens=here.size(1024, 64)),
        browser=replace(config.browser, episodes=64),
        sampler=SamplerConfig(temperature=0.8, gpu_memory=0.3),
        batch=replace(config.batch, epochs=1, micro_tokens=context),
        replay=Path("elsewhere"),  # log-probs are made up, not sampled from the weights
    )


@contextmanager
def open_trainer(here: Here) -> Iterator[tuple[Trainer, Ranks]]:
    config = trainer_config(here)
    with open_ranks() as ranks:
        load = partial(load_model, config.model, CPU, "auto")
        yield Trainer(load, load_preprocessor(config.model), config, {}, ranks), ranks


def row_flops(trainer: Trainer, rows: Sequence[Row]) -> float:
    """Operations forward and backward in the trainer's layout, the vision tower's included, attention to
    patches and what checkpointing computes again left out."""
    text = trainer.policy.model.config.get_text_config()
    total = 0
    kind = HybridDims if is_hybrid(trainer.policy.model) else Dims
    dims = kind(**{field.name: getattr(text, field.name) for field in fields(kind)})
    tower = sum(weight.numel() for weight in trainer.policy.model.model.visual.parameters())
    for batch in trainer._batches(trainer._share(rows)):
        chains = batch.inputs.get("tree") or [Chain(0, len(row.ids)) for row in batch.rows]
        total += flops(dims, chains, len(batch.targets_N)) + 2 * tower * len(batch.inputs["pixel_values"])
    return 3.0 * total


def layouts(here: Here, trainer: Trainer, rows: list[Row]) -> Figures:
    """The same turns as a tree and one by one: time, share of the measured peak, log-probs and gradients."""
    out = {}
    results = {}
    named = dict(trainer.policy.model.named_parameters())

    def note(*_: Any) -> None:
        parts = [full_tensor(w.grad).flatten()[::64].float() for w in named.values() if w.grad is not None]
        results["gradient"] = torch.cat(parts)

    hook = trainer.optimizer.register_step_pre_hook(note)
    for layout in ("tree", "per-turn"):
        trainer.config = replace(trainer.config, batch=replace(trainer.config.batch, layout=layout))
        results[layout] = torch.tensor([x for row in trainer._score(trainer.policy, rows) for x in row])
        here.peak_gb()
        took = here.seconds(lambda: trainer.sft_update(rows, lr=0.0), 1, warm=int(layout == "tree"))
        results[layout, "gradient"] = results.pop("gradient")
        rate = row_flops(trainer, rows) / took / 1e12
        peak = here.earlier("ceilings", "tflops")
        values = {"s": took, "tokens_s": sum(len(row.ids) for row in rows) / took, "peak_gb": here.peak_gb()}
        values["mfu"] = rate / peak if peak else 0.0
        out |= {f"{layout.replace('-', '_')}_{k}": round(v, 4) for k, v in values.items()}
    hook.remove()
    trainer.config = replace(trainer.config, batch=replace(trainer.config.batch, layout="tree"))
    gaps = (results["tree"] - results["per-turn"]).abs()
    both = results["tree", "gradient"], results["per-turn", "gradient"]
    cosine = torch.nn.functional.cosine_similarity(*(x.double() for x in both), dim=0)
    return out | {"gap_mean": gaps.mean().item(), "gap_max": gaps.max().item(), "cosine": cosine.item()}


def trainer(here: Here) -> Figures:
    """Both layouts, then an update of two trajectories as in a step."""
    with open_trainer(here) as (trainer, _):
        (trajectory,) = trajectories(here, trainer, here.size(30, 3))
        out = layouts(here, trainer, list(trajectory.rows))
        two = trajectories(here, trainer, here.size(30, 3), count=2)
        rows = [row for trajectory in two for row in trajectory.rows]
        share = trainer._share(rows)
        out["prepare_s"] = here.seconds(lambda: [len(batch.rows) for batch in trainer._batches(share)], 1, 0)
        out["score_s"] = here.seconds(lambda: trainer._score(trainer.policy, rows), 1, 0)
        here.peak_gb()
        out["update_s"] = here.seconds(lambda: out.update(trainer.update(two, 0, int)), 1, 0)
        planned = plan(trainer.config)
        held = (sum(planned.shards.values()) + sum(planned.update.values())) / GB
        peak = here.peak_gb()
        return out | {"peak_gb": peak, "plan_gb": round(held, 1), "above_plan_gb": peak - held}


def run(stages: dict[str, Callable[[Here], Figures]]) -> None:
    """Run the stage that the command line names, and print its figures."""
    name, folder, device = sys.argv[1:4]
    torch.manual_seed(0)
    here = Here(Path(folder), torch.device(device), "small" in sys.argv, "hybrid" in sys.argv)
    print(json.dumps(stages[name](here)), flush=True)
    os._exit(0)  # vLLM's finalizers destroy the process group that is gone by now


if __name__ == "__main__":
    run({stage.__name__: stage for stage in (ceilings, model, loss, attention, trainer)})
