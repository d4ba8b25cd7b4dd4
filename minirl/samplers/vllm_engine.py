"""vLLM's side of the sampler: an engine's settings, start and end, requests and prompts in its form, repairs.

Stands behind minirl/samplers/vllm.py. vLLM is imported where it is used: everything else runs without it.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from minirl.config import Config
from minirl.distributed import Ranks
from minirl.model import Preprocessor, compute_dtype, image_starts
from minirl.types import Json, Prompt, Request

CPU_CACHE_BYTES = 1 << 30  # of the KV cache, where there is no GPU whose share could be taken
CPU_BLOCK = 32  # tokens; vLLM's CPU attention wants multiples of 32, and its own 128 would hardly ever match
CPU_BATCH = 8192  # tokens of one step


@contextlib.contextmanager
def engine_environment(ranks: Ranks) -> Iterator[None]:
    """Set what vLLM reads at an engine's start in a place among torchrun's ranks; the user's values stay."""
    needed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    preferred = {
        "RANK": str(ranks.rank),
        "LOCAL_RANK": str(ranks.device.index or 0),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # a kernel for top-p, compiled at the first start
    }
    before = dict(os.environ)
    os.environ |= preferred | before | needed
    try:
        yield
    finally:
        for name in preferred | needed:
            os.environ.pop(name, None)
        os.environ |= {name: before[name] for name in preferred | needed if name in before}


def start_engine(config: Config, preprocessor: Preprocessor, ranks: Ranks) -> Any:
    """Return an engine in this process. It reads the checkpoint for its buffers, which are never synced."""
    set_threads = torch.set_num_threads
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
    with engine_environment(ranks):
        try:
            from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportAttributeAccessIssue]
            from vllm.usage.usage_lib import UsageContext

            args = EngineArgs(**engine_settings(config, preprocessor, ranks))
            # by this name vLLM chooses how many tokens a step may have: as for its `LLM`, not an eighth of it
            options = {"usage_context": UsageContext.LLM_CLASS, "enable_multiprocessing": False}
            return LLMEngine.from_engine_args(args, **options)
        except ImportError as error:
            raise ValueError(f"--sampler vllm: {error}; pip install 'minirl-web[vllm]'") from None
        finally:
            torch.set_num_threads = set_threads  # vLLM disables it on a CPU; the trainer needs it


def stop_engine(engine: Any) -> None:
    """Free an engine. vLLM's own shutdown would destroy this process's group of ranks."""
    from vllm.distributed.parallel_state import destroy_model_parallel

    client = engine.engine_core
    client._finalizer.detach()
    client.engine_core.model_executor.shutdown()
    client.engine_core.scheduler.shutdown()
    destroy_model_parallel()


def engine_settings(config: Config, preprocessor: Preprocessor, ranks: Ranks) -> Json:
    agent = config.agent
    browser = config.browser
    settings: Json = {
        "model": config.model.path,
        "dtype": str(compute_dtype(config.model, ranks.device)).removeprefix("torch."),
        "generation_config": "vllm",  # no defaults of the checkpoint's: every request says all
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "max_model_len": agent.context_tokens,
        "max_num_seqs": ranks.share(browser.episodes),
        "distributed_executor_backend": "external_launcher",
        "disable_log_stats": True,
    }
    if preprocessor.images:
        size = preprocessor.images.size
        if agent.kind != "autowebworld":  # whose recorded pictures are of any size
            size = size | {"longest_edge": min(size["longest_edge"], browser.width * browser.height)}
        settings["mm_device_do_normalize"] = False  # pixels come normalised
        settings["limit_mm_per_prompt"] = {"image": agent.screenshots, "video": 0}
        settings["mm_processor_kwargs"] = {"size": size}
    if ranks.device.type == "cuda":
        if torch.cuda.get_device_capability(ranks.device)[0] == 10:
            settings["attention_backend"] = "FLASH_ATTN"  # B200's default, FlashInfer, has to be compiled
        return settings | {"gpu_memory_utilization": config.sampler.gpu_memory, "enable_sleep_mode": True}
    return settings | {
        "kv_cache_memory_bytes": CPU_CACHE_BYTES,
        "block_size": CPU_BLOCK,
        "enforce_eager": True,
        "skip_mm_profiling": True,
        # after a part of a prompt vLLM turns the request's random generator back, which a CPU's can't be
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_BATCH, agent.context_tokens),
    }


def sampling_params(request: Request, preprocessor: Preprocessor) -> Any:
    from vllm import SamplingParams  # pyright: ignore[reportAttributeAccessIssue]
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        **vars(request.sampling),  # temperature, top_p, top_k
        seed=request.seed,
        max_tokens=request.max_tokens,
        logprobs=0,  # the sampled token's, and no others
        flat_logprobs=True,
        logit_bias=dict.fromkeys(preprocessor.suppressed, float("-inf")),
        ignore_eos=True,  # `end` says what ends a response
        stop_token_ids=list(preprocessor.end),
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def engine_input(prompt: Prompt, preprocessor: Preprocessor) -> Any:
    """Return a prompt as vLLM's processors would leave it, with hashes by which images are found again."""
    from vllm.inputs.engine import mm_input, tokens_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    ids = list(prompt.ids)
    images = preprocessor.images
    if not prompt.images or not images:
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


def pack_head(worker: Any) -> None:
    """Pack the head anew: on a CPU vLLM multiplies with packed copies, and a reload omits a tied head."""
    model = worker.get_model()
    head = (model.get_language_model() if hasattr(model, "get_language_model") else model).lm_head
    head.quant_method.process_weights_after_loading(head)


def clear_forgotten(worker: Any) -> None:
    """Clear the tensors beside weights that waking leaves with any content: Qwen3-VL's deepstack, added to
    every hidden state; MRoPE's positions and the embeddings, of which graphs read more than a step has."""
    state = getattr(worker.model_runner, "model_state", None)
    positions = getattr(getattr(state, "rope_state", None), "positions", None)
    embeddings = getattr(getattr(state, "encoder_runner", None), "inputs_embeds", None)
    deepstack = getattr(worker.get_model(), "deepstack_input_embeds", None) or []
    for tensor in [*deepstack, positions, embeddings]:
        if tensor is not None:
            tensor.zero_()
