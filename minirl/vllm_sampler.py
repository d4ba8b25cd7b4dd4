"""The vLLM sampler: one engine in every rank's process, fed by all its live episodes, synced every step.

The default on CUDA. A thread of its own owns the engine: it takes what has been ordered, adds and aborts
requests, and steps the engine as long as there are any; `generate` awaits one request among the hundreds
that are batched continuously. Prompts are token ids and prepared pixels, exactly those that the trainer will
see: vLLM neither tokenises nor renders nor scales anything. What it returns are its *processed* log-probs:
of the distribution that was sampled from, after temperature and suppressed tokens (for evaluation also after
top-k and top-p).

New weights are streamed one parameter at a time into the engine's own (`sync`), which invalidates its
caches. On CUDA `sleep` gives the engine's memory to the update: weights are dropped, not copied away, because
`sync` brings new ones. With `--sampler.tensor-parallel n`, n consecutive ranks run one engine between them:
each keeps a part of it, and before every step they tell one another what was ordered, so that all parts do
the same (vLLM's external launcher).

OpenWebRL section 3.4 and WebAgent-R1 section 3.1 sample with servers in other processes; everything else
here is as there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from minirl.config import Config
from minirl.model import Language, blueprint, compute_dtype
from minirl.ranks import Ranks
from minirl.types import Prompt, Request, Sample, SamplerError

CPU_CACHE_BYTES = 1 << 30  # of the KV cache, where there is no GPU whose share could be taken
CPU_BLOCK = 32  # tokens; vLLM's CPU attention wants multiples of 32, and its own 128 would hardly ever match
CPU_BATCH = 8192  # tokens of one step
CALL_SECONDS = 1800.0  # the longest that starting an engine, or new weights, may take
POLL_SECONDS = 0.005  # how often idle parts of an engine look for orders


class Order(NamedTuple):
    """What the engine's thread is to do: add a request; abort it, if there is no body; make a call, if there
    is no name either."""

    name: str
    request: Request | None = None


class VllmSampler:
    """Continuous batching in vLLM. Use one per process, inside a running event loop."""

    def __init__(self, config: Config, language: Language, ranks: Ranks):
        self.config, self.language, self.ranks = config, language, ranks
        self.version = 0
        self.failure = ""
        self.asleep = False
        self.count = 0
        self.futures: dict[str, asyncio.Future[Sample]] = {}  # of requests that the engine has or will have
        self.written: list[Order] = []  # in this turn of the event loop
        self.orders: queue.SimpleQueue[list[Order]] = queue.SimpleQueue()
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.called = 0
        self.closed = False
        self.names = {name for name, _ in blueprint(config.model.path).named_parameters()}
        self.parts = config.sampler.tensor_parallel
        self.peers = ranks.neighbours(self.parts) if self.parts > 1 else None
        self.thread = threading.Thread(target=self._serve, name="vllm", daemon=True)
        self.thread.start()
        self._call(self._start)

    # --- what episodes and the trainer use ----------------------------------------------------------

    async def generate(self, request: Request) -> Sample:
        """Raises SamplerError if vLLM refuses the prompt, fails, or takes longer than request_seconds."""
        if self.failure:
            raise SamplerError(self.failure)
        self.count += 1
        name = f"{self.ranks.rank}-{self.count}"
        future = asyncio.get_running_loop().create_future()
        self.futures[name] = future
        self._order(Order(name, request))
        try:
            return await asyncio.wait_for(future, self.config.sampler.request_seconds)
        except TimeoutError:
            raise SamplerError("the sampler did not answer in time") from None
        finally:
            if name in self.futures:  # nobody waits for it any more
                self._order(Order(name))

    async def idle(self) -> None:
        """Waits until the engine has no request left, not even one that was given up."""
        while self.futures and not self.failure:
            await asyncio.sleep(POLL_SECONDS)

    def sleep(self) -> None:
        """Frees the memory that an update needs; `sync` wakes the engine. Nothing on a CPU."""
        if self.ranks.device.type == "cuda" and not self.asleep:
            self._call(lambda: self.engine.sleep(level=2))
            self.asleep = True

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Takes all weights, named as in the Hugging Face model, one at a time. A collective call."""
        assert not self.futures, "idle() comes before new weights"
        self._call(lambda: self._reload(weights))
        self.version += 1

    def close(self) -> None:
        self._call(self._stop)
        self.thread.join(timeout=60)

    # --- in the engine's thread ------------------------------------------------------------------------

    def _call(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, done in the engine's thread, on all ranks that share an engine at once."""
        done: Future[Any] = Future()
        self.calls.put((work, done))
        self.orders.put([Order("")])
        return done.result(timeout=CALL_SECONDS)

    def _order(self, order: Order) -> None:
        """Passes orders on once for each turn of the event loop: whenever a step ends many requests, many
        come at once, and two threads that wake each other for each of them lose a tenth of the time."""
        if not self.written:
            asyncio.get_running_loop().call_soon(self._post)
        self.written.append(order)

    def _post(self) -> None:
        self.orders.put(self.written)
        self.written = []

    def _serve(self) -> None:
        """Orders, then a step, until closed. If the engine dies, so do all requests, each with its reason."""
        working = False
        while not self.closed:
            for order in self._ordered(wait=not working):
                if not order.name:
                    self.called += 1
                    if self.called == self.parts:
                        self.called = 0
                        self._run_call()
                elif order.request is None:
                    self._abort(order.name)
                else:
                    self._add(order.name, order.request)
            try:
                working = not (self.closed or self.failure) and self.engine.has_unfinished_requests()
                if working:
                    self._finish({output.request_id: self._sample(output) for output in self.engine.step()})
            except Exception as error:  # whatever ends it, episodes must not wait for their deadlines
                self.failure = f"the vLLM engine died: {type(error).__name__}: {error}"
                self._finish({name: SamplerError(self.failure) for name in list(self.futures)})

    def _ordered(self, wait: bool) -> list[Order]:
        """What has been ordered since the last step, by all ranks that share the engine."""
        own: list[Order] = []
        if wait:
            with contextlib.suppress(queue.Empty):
                own += self.orders.get(timeout=POLL_SECONDS if self.peers else None)
        while not self.orders.empty():
            own += self.orders.get()
        if self.peers is None:
            return own
        everyone: list[list[Order]] = [[] for _ in range(self.parts)]
        dist.all_gather_object(everyone, own, group=self.peers)
        return [order for orders in everyone for order in orders]

    def _run_call(self) -> None:
        work, done = self.calls.get()
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    def _add(self, name: str, request: Request) -> None:
        if self.failure:
            return self._finish({name: SamplerError(self.failure)})
        try:
            self.engine.add_request(name, self._input(request.prompt), self._params(request))
        except Exception as error:  # vLLM's own class for what it can't take, which is this request's alone
            self._finish({name: SamplerError(f"vLLM refused a prompt: {error}")})

    def _abort(self, name: str) -> None:
        if not self.failure:
            self.engine.abort_request([name])
        self.futures.pop(name, None)

    def _finish(self, outcomes: dict[str, Sample | SamplerError]) -> None:
        """Wakes those who wait, if they still do and are here."""
        ended = [(self.futures.pop(name), each) for name, each in outcomes.items() if name in self.futures]
        for loop in {future.get_loop() for future, _ in ended}:
            loop.call_soon_threadsafe(settle, [pair for pair in ended if pair[0].get_loop() is loop])

    def _sample(self, output: Any) -> Sample:
        (text,) = output.outputs
        return Sample(
            ids=tuple(text.token_ids),
            logprobs=tuple(text.logprobs.logprobs),
            finish="stop" if text.finish_reason == "stop" else "length",
            version=self.version,
            cached=output.num_cached_tokens or 0,
        )

    def _params(self, request: Request) -> Any:
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
            logit_bias=dict.fromkeys(self.language.suppressed, float("-inf")),
            ignore_eos=True,  # what ends a response is ours to say
            stop_token_ids=list(self.language.end),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _input(self, prompt: Prompt) -> Any:
        """A prompt as vLLM's processors would leave it. Images are named by their content, by which vLLM
        finds what its encoder made of them before."""
        from vllm.inputs.engine import mm_input, tokens_input
        from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

        ids, images = list(prompt.ids), self.language.images
        if not prompt.images or images is None:
            return tokens_input(ids)
        pixels, grids = zip(*map(images.prepare, prompt.images), strict=True)
        fields = {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(grids)}
        patches = torch.tensor([len(each) for each in pixels])
        kinds = {
            "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", patches),
            "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
        }
        runs = pad_runs(ids, self.language.pad, (patches // images.merge**2).tolist())
        return mm_input(
            ids,
            mm_kwargs=MultiModalKwargsItems.from_hf_inputs(fields, kinds),
            mm_hashes={"image": [hashlib.sha256(png).hexdigest() for png in prompt.images]},
            mm_placeholders={"image": [PlaceholderRange(start, length) for start, length in runs]},
        )

    # --- the engine ----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Makes the engine. It reads the checkpoint although `sync` brings other weights: where vLLM makes up
        weights it makes up buffers too, and those are never synced."""
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")):
            os.environ.setdefault(name, value)
        try:
            from vllm import EngineArgs, LLMEngine
        except ImportError as error:
            problem = f"--sampler vllm: {error}; pip install 'minirl[vllm]', or take --sampler hf"
            raise ValueError(problem) from None
        set_threads = torch.set_num_threads
        if self.ranks.device.type == "cuda":
            torch.cuda.set_device(self.ranks.device)
        settings = engine_settings(self.config, self.language, self.ranks)
        launched = {"RANK": str(self.ranks.rank), "LOCAL_RANK": str(self.ranks.device.index or 0)}
        added = launched.keys() - os.environ.keys()  # without torchrun, whose variables the launcher reads
        os.environ |= {name: launched[name] for name in added}
        try:
            self.engine = LLMEngine.from_engine_args(EngineArgs(**settings))
        finally:
            for name in added:
                del os.environ[name]
        torch.set_num_threads = set_threads  # vLLM disables it on a CPU; the trainer needs it

    def _reload(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        if self.asleep:
            torch.cuda.empty_cache()
            self.engine.wake_up(["weights"])
        given: set[str] = set()

        def named() -> Iterator[tuple[str, Tensor]]:
            for name, weight in weights:
                given.add(name)
                yield name, weight

        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named()})
        # vLLM would go on with what it had
        assert given == self.names, f"weights missing or unknown: {sorted(given ^ self.names)[:3]}"
        if self.ranks.device.type == "cpu":
            self.engine.collective_rpc(pack_head)
        if self.asleep:
            self.engine.wake_up(["kv_cache"])
            self.asleep = False
        self.engine.reset_prefix_cache()
        self.engine.reset_mm_cache()
        self.engine.reset_encoder_cache()

    def _stop(self) -> None:
        """Frees the engine, and leaves the process group alone, which vLLM's own shutdown would destroy."""
        from vllm.distributed.parallel_state import destroy_model_parallel

        self.closed = True
        client = self.engine.engine_core
        client._finalizer.detach()
        client.engine_core.model_executor.shutdown()
        client.engine_core.scheduler.shutdown()
        destroy_model_parallel()
        del self.engine


def engine_settings(config: Config, language: Language, ranks: Ranks) -> dict[str, Any]:
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
    if language.images is not None:
        most = min(language.images.size["longest_edge"], browser.width * browser.height)
        settings["mm_device_do_normalize"] = False  # pixels come normalised
        settings["limit_mm_per_prompt"] = {"image": agent.screenshots, "video": 0}
        settings["mm_processor_kwargs"] = {"size": language.images.size | {"longest_edge": most}}
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


def settle(ended: list[tuple[asyncio.Future[Sample], Sample | SamplerError]]) -> None:
    """Hands over results, in the event loop's thread; too late for those who have left."""
    for future, outcome in ended:
        if future.done():
            continue
        if isinstance(outcome, Sample):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def pad_runs(ids: list[int], pad: int, lengths: list[int]) -> list[tuple[int, int]]:
    """Where the images' runs of pads begin, and how long they are.

    >>> pad_runs([1, 9, 9, 2, 9, 3], 9, [2, 1])
    [(1, 2), (4, 1)]
    """
    array, runs, at = np.asarray(ids), [], 0
    for length in lengths:
        at += int(np.argmax(array[at:] == pad))
        assert (array[at : at + length] == pad).all(), "an image and its pads differ in number"
        runs.append((at, length))
        at += length
    return runs


def pack_head(worker: Any) -> None:
    """On a CPU vLLM multiplies with packed copies of matrices. A reload packs anew what is loaded, which a
    head that is tied to the embeddings is not."""
    model = worker.get_model()
    head = (model.get_language_model() if hasattr(model, "get_language_model") else model).lm_head
    head.quant_method.process_weights_after_loading(head)
