"""What vLLM is told: an engine's settings and environment, a request's parameters, a prompt as its model
takes it; and repairs in its models and its client.

Stands behind minirl/samplers/vllm.py. All that knows vLLM's types and its models' insides is here; vLLM is
imported where it is used, because everything else runs without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from minirl.config import Config
from minirl.distributed import Ranks
from minirl.model import Preprocessor, compute_dtype, image_starts
from minirl.types import Prompt, Request

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs.engine import EngineInput

CPU_CACHE_BYTES = 1 << 30  # of the KV cache, where there is no GPU whose share could be taken
CPU_BLOCK = 32  # tokens; vLLM's CPU attention wants multiples of 32, and its own 128 would hardly ever match
CPU_BATCH = 8192  # tokens of one step
END = "its process has ended"
TORCHRUN = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
)


def engine_settings(config: Config, preprocessor: Preprocessor, ranks: Ranks) -> dict[str, Any]:
    """vLLM's EngineArgs for a config."""
    sampler, agent, browser = config.sampler, config.agent, config.browser
    settings: dict[str, Any] = {
        "model": config.model.path,
        "dtype": str(compute_dtype(config.model, ranks.device)).removeprefix("torch."),
        "generation_config": "vllm",  # no defaults of the checkpoint's: every request says all
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "max_model_len": agent.context_tokens,
        "max_num_seqs": browser.episodes * sampler.tensor_parallel,
        "tensor_parallel_size": sampler.tensor_parallel,
        "distributed_executor_backend": "external_launcher",
        "seed": config.seed,
        "disable_log_stats": True,
    }
    if preprocessor.images is not None:
        most = min(preprocessor.images.size["longest_edge"], browser.width * browser.height)
        settings["mm_device_do_normalize"] = False  # pixels come normalised
        settings["limit_mm_per_prompt"] = {"image": agent.screenshots, "video": 0}
        settings["mm_processor_kwargs"] = {"size": preprocessor.images.size | {"longest_edge": most}}
    if ranks.device.type == "cuda":
        return settings | {"gpu_memory_utilization": sampler.gpu_memory, "enable_sleep_mode": True}
    cpu = {
        "kv_cache_memory_bytes": CPU_CACHE_BYTES,
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        "skip_mm_profiling": True,
        # whole prompts only: after a part of one vLLM turns the request's random generator back, and a CPU's
        # generator can't be
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_BATCH, agent.context_tokens),
    }
    return settings | cpu


def sampling_params(request: Request, preprocessor: Preprocessor) -> SamplingParams:
    """What a request asks of vLLM's sampling."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    how = request.sampling
    return SamplingParams(
        temperature=how.temperature,
        top_p=how.top_p,
        top_k=how.top_k,
        seed=request.seed,
        max_tokens=request.max_tokens,
        logprobs=0,  # the sampled token's, and no others
        flat_logprobs=True,
        logit_bias=dict.fromkeys(preprocessor.suppressed, float("-inf")),
        ignore_eos=True,  # what ends a response is ours to say
        stop_token_ids=list(preprocessor.end),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_input(prompt: Prompt, preprocessor: Preprocessor) -> EngineInput:
    """A prompt as vLLM's processors would leave it. Images are named by their content, by which vLLM
    finds what its encoder made of them before."""
    from vllm.inputs.engine import mm_input, tokens_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    ids, images = list(prompt.ids), preprocessor.images
    if not prompt.images or images is None:
        return tokens_input(ids)
    pixels, grids = zip(*map(images.prepare, prompt.images), strict=True)
    fields = {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(grids)}
    patches = torch.tensor([len(each) for each in pixels])
    kinds = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    lengths = (patches // images.merge**2).tolist()
    runs = zip(image_starts(np.asarray(ids), lengths, preprocessor.pad), lengths, strict=True)
    return mm_input(
        ids,
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(fields, kinds),
        mm_hashes={"image": [hashlib.sha256(png).hexdigest() for png in prompt.images]},
        mm_placeholders={"image": [PlaceholderRange(start, length) for start, length in runs]},
    )


def variables(ranks: Ranks, apart: bool) -> dict[str, str | None]:
    """What an engine finds in its environment when it starts: its place among torchrun's ranks, as vLLM's
    launcher reads it; or, in a process of its own, no ranks at all, this rank's GPU, and its threads."""
    place = ranks.device.index or 0
    if not apart:
        own = {"RANK": str(ranks.rank), "LOCAL_RANK": str(place)}
        return {name: os.environ.get(name, value) for name, value in own.items()}
    alone: dict[str, str | None] = dict.fromkeys(TORCHRUN)
    alone["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    if ranks.device.type == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        alone["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place] if visible else str(place)
    return alone


@contextlib.contextmanager
def environment(changed: Mapping[str, str | None]) -> Iterator[None]:
    """While the block lasts, some variables have other values, or with None are not there."""
    before = {name: os.environ.get(name) for name in changed}
    try:
        put(changed)
        yield
    finally:
        put(before)


def put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def tell_of_its_end(client: Any) -> None:
    """When an engine's own process ends, vLLM's client would go on waiting for what it was to say or do."""
    ended = [process.sentinel for process in client.resources.engine_manager.processes]

    def tell() -> None:
        wait(ended)
        client.outputs_queue.put_nowait(RuntimeError(END))
        for call in list(client.utility_results.values()):
            if not call.done():
                call.set_exception(RuntimeError(END))

    threading.Thread(target=tell, name="vllm-end", daemon=True).start()


def pack_head(worker: Any) -> None:
    """On a CPU vLLM multiplies with packed copies of matrices. A reload packs anew what is loaded, which a
    head that is tied to the embeddings is not."""
    model = worker.get_model()
    head = (model.get_language_model() if hasattr(model, "get_language_model") else model).lm_head
    head.quant_method.process_weights_after_loading(head)


def clear_deepstack(worker: Any) -> None:
    """Waking restores parameters and buffers. Qwen3-VL has tensors in a plain list besides, whose rows it
    adds to hidden states even where no picture has filled them."""
    for left_over in getattr(worker.get_model(), "deepstack_input_embeds", None) or []:
        left_over.zero_()
